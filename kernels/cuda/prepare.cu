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

template <bool BF16>
static __global__ void __launch_bounds__(PREPARE_THREADS) prepare_kernel(const prepare_args a) {
  __shared__ uint32_t shared[33];
  uint64_t r = blockIdx.x;
  float up = 1.0f;
  if (!BF16) {
    uint32_t most = 0;
    for (uint32_t i = threadIdx.x; i < a.n_in; i += PREPARE_THREADS)
      most = max(most, __float_as_uint(element(a, r, i)) & 0x7FFFFFFFu);
    int lift = lift_of(block_max(most, shared));
    up = ldexpf(1.0f, lift);
    if (threadIdx.x == 0) a.back[r] = ldexpf(1.0f, -lift);
  } else if (threadIdx.x == 0) {
    a.back[r] = 1.0f;
  }
  uint32_t n_chunks = a.n_units * 16 - (a.is_tail != 0 ? 8 : 0);
  uint8_t *out = a.out + (r / 8 * a.n_units * 4) * 512;
  for (uint32_t chunk = threadIdx.x; chunk < n_chunks; chunk += PREPARE_THREADS) {
    uint32_t unit = chunk / 16, in = chunk % 16; /* 8 numbers from input 128 unit + 8 in on */
    bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
    uint32_t c = tail ? in / 2 : in / 4, i = tail ? in % 2 : in % 4;
    float v[8];
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) {
      uint32_t k = 128 * unit + 8 * in + e;
      v[e] = k < a.n_in ? __fmul_rn(element(a, r, k), up) : 0.0f;
    }
    uint32_t lane = (uint32_t)(r % 8) * 4 + c;
    *(uint4 *)(void *)(out + ((uint64_t)unit * 4 + i) * 512 + lane * 16) = eight_16<BF16>(v);
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
