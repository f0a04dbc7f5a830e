/* SPDX-License-Identifier: MIT */
/* route of the portable set: routers of many rows as on Hopper (moe/route_gemm.cu), all others by a product, then the
 * choice (moe/route.cu). */
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/weights/packed_layout.cuh"

enum { ROUTE_PORTABLE_ROWS = 160 /* from so many on, where Hopper has clusters for fewer */ };

static bool takes_gemm(const weft_route_args *args) {
  return args->router != NULL && args->n_rows >= ROUTE_PORTABLE_ROWS && route_gemm_suits(args);
}

uint64_t route_portable_scratch(weft_device *device, const weft_route_args *args) {
  return takes_gemm(args) ? route_gemm_scratch(args) : route_product_scratch(device, args);
}

weft_status route_portable(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (!takes_gemm(args)) return route_product(device, args);
  const uint8_t *data = (const uint8_t *)args->router->data + PACKED_HEADER_BYTES;
  return route_gemm(d, args, (const float *)(const void *)data);
}
