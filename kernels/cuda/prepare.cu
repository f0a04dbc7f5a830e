/* SPDX-License-Identifier: MIT */
/* Rows in 16 bits, laid out for the matrix units (multiply.h); and act(g) * u on the way into it. */
#include "kernels/cuda/prepare.h"

enum { PREPARE_THREADS = 256 };

/* Element i of a row: as it is, or act(g) * u. */
static __device__ __forceinline__ float element(const prepare_args &a, uint64_t r, uint32_t i) {
  const float *x = a.x + r * a.x_stride;
  if (!a.gated) return x[i];
  return gate_product(a.activation, x[i], x[i + a.n_in]);
}

/* Eight numbers, inputs 8 in .. of a unit, of the row at a place. */
static __device__ __forceinline__ void store_eight(const prepare_args &a, uint32_t place, uint32_t unit, uint32_t in,
                                                   bool tail, const uint4 &v) {
  uint32_t c = tail ? in / 2 : in / 4, i = tail ? in % 2 : in % 4;
  uint8_t *to = a.out + (((uint64_t)(place / 8) * a.n_units + unit) * 4 + i) * 512;
  if (!a.as_matrices) {
    *(uint4 *)(void *)(to + (place % 8 * 4 + c) * 16) = v;
    return;
  }
  to += place % 8 * 16 + c * 4;
  *(uint32_t *)(void *)to = v.x;
  *(uint32_t *)(void *)(to + 128) = v.y;
  *(uint32_t *)(void *)(to + 256) = v.z;
  *(uint32_t *)(void *)(to + 384) = v.w;
}

template <bool BF16>
static __global__ void __launch_bounds__(PREPARE_THREADS) prepare_kernel(const __grid_constant__ prepare_args a) {
  __shared__ uint32_t shared[33];
  uint64_t r = blockIdx.x;
  const int32_t *at = a.at == NULL ? NULL : a.at + r * a.k;
  uint32_t n_places = at == NULL ? 1 : a.k;
  if (a.from_place) {
    if (*at < 0) return;
    r = (uint64_t)*at;
  }
  int lift = 0;
  if (!BF16) {
    uint32_t most = 0;
    for (uint32_t i = threadIdx.x; i < a.n_in; i += PREPARE_THREADS)
      most = max(most, __float_as_uint(element(a, r, i)) & 0x7FFFFFFFu);
    lift = lift_of(block_max(most, shared));
  }
  float up = ldexpf(1.0f, lift);
  for (uint32_t j = threadIdx.x; j < n_places; j += PREPARE_THREADS) {
    int64_t place = at == NULL ? (int64_t)r : at[j];
    if (place >= 0) a.back[place] = ldexpf(1.0f, -lift);
  }
  uint32_t n_chunks = a.n_units * 16 - (a.is_tail != 0 ? 8 : 0);
  for (uint32_t chunk = threadIdx.x; chunk < n_chunks; chunk += PREPARE_THREADS) {
    uint32_t unit = chunk / 16, in = chunk % 16; /* 8 numbers from input 128 unit + 8 in on */
    bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
    float v[8];
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) {
      uint32_t k = 128 * unit + 8 * in + e;
      v[e] = k < a.n_in ? __fmul_rn(element(a, r, k), up) : 0.0f;
    }
    uint4 bits = eight_16<BF16>(v);
    for (uint32_t j = 0; j < n_places; j++) {
      int64_t place = at == NULL ? (int64_t)r : at[j];
      if (place >= 0) store_eight(a, (uint32_t)place, unit, in, tail, bits);
    }
  }
}

weft_status prepare_rows(cuda_device *d, const prepare_args *args) {
  if (form_is_bf16(args->type)) {
    prepare_kernel<true><<<args->n_rows, PREPARE_THREADS, 0, d->stream>>>(*args);
  } else {
    prepare_kernel<false><<<args->n_rows, PREPARE_THREADS, 0, d->stream>>>(*args);
  }
  return cuda_launched(d, "preparing rows");
}
