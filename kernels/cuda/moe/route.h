/* SPDX-License-Identifier: MIT */
/* What products with F32 weights share: gemm/gemm_f32.cu, and routers in route_cluster.cu and route.cu.
 *
 * Law (numerics): a result is the sum of 32 chains of inputs, which a tree reduces. Chain l of 0 .. 31 adds the inputs
 * 128 j + 4 l .. 128 j + 4 l + 3 for ascending j. */
#ifndef WEFT_KERNELS_CUDA_ROUTE_H
#define WEFT_KERNELS_CUDA_ROUTE_H

#include "kernels/cuda/cuda.h"

weft_status route_setup(cuda_device *d);    /* Hopper's routers (route_cluster.cu, route_gemm.cu) */
weft_status gemm_f32_setup(cuda_device *d); /* tiles of gemm/gemm_f32.cu */
/* route by a product, then a choice (route.cu). */
uint64_t route_product_scratch(weft_device *device, const weft_route_args *args);
weft_status route_product(weft_device *device, const weft_route_args *args);
/* Routers of many rows (route_gemm.cu). route_gemm_suits: whether a router is one for them and for clusters: F32
 * weights, at most 128 experts of which at most 32 are chosen, whole fours of inputs that may be read at once. */
enum { ROUTE_GEMM_ROWS = 640 /* from so many on, on Hopper; portable/route.cu has its own */ };
bool route_gemm_suits(const weft_route_args *args);
weft_status route_gemm_setup(cuda_device *d);
uint64_t route_gemm_scratch(const weft_route_args *args);
weft_status route_gemm(cuda_device *d, const weft_route_args *args, const float *weights);

/* The route of the portable set (portable/route.cu). */
uint64_t route_portable_scratch(weft_device *device, const weft_route_args *args);
weft_status route_portable(weft_device *device, const weft_route_args *args);

/* The tree, over the lanes of a warp: neighbours first. */
static __device__ __forceinline__ float sum_of_chains(float v) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

#endif
