/* SPDX-License-Identifier: MIT */
/* The prologue in 16 bits (gemm.h), with act(g) * u as input where it is gated. */
#include "kernels/cuda/gemm/prologue.cuh"

enum { SHORT_PIECES = 96 };

/* A block takes a row; a warp takes a short one. The first pieces of a thread stay in registers between the search for
 * the row's maximum and their rounding. */
template <bool BF16, bool GATED, bool SHORT>
static __global__ void __launch_bounds__(PROLOGUE_THREADS) prologue_kernel(const __grid_constant__ prologue_args a) {
  launch_dependents_and_wait();
  constexpr uint32_t KEPT = SHORT ? SHORT_PIECES / 32 : 2;
  __shared__ uint32_t shared[32];
  uint64_t r = SHORT ? blockIdx.x * (PROLOGUE_THREADS / 32) + threadIdx.x / 32 : blockIdx.x;
  uint32_t own = SHORT ? threadIdx.x % 32 : threadIdx.x, step = SHORT ? 32 : blockDim.x;
  if (SHORT && r >= a.n_rows) return;
  const int32_t *at = a.at == NULL ? NULL : a.at + r * a.k;
  if (a.from_place) {
    if (*at < 0) return;
    r = (uint64_t)*at;
  }
  const float *x = a.x + r * a.x_stride;
  row_pieces<GATED, KEPT> row;
  load_row(a, x, own, step, row);
  uint32_t most = finish_row<BF16>(a, x, own, step, row);
  if (!BF16) most = SHORT ? __reduce_max_sync(0xFFFFFFFFu, most) : block_max(most, shared);
  put_row<BF16>(a, x, own, step, row, BF16 ? 0 : scale_exponent_of(most), at, at == NULL ? 1 : a.k, (int64_t)r);
}

template <bool BF16>
static auto kernel_of(bool gated, bool is_short) {
  if (gated) return is_short ? prologue_kernel<BF16, true, true> : prologue_kernel<BF16, true, false>;
  return is_short ? prologue_kernel<BF16, false, true> : prologue_kernel<BF16, false, false>;
}

weft_status prologue_rows(cuda_device *d, const prologue_args *args) {
  prologue_args a = *args;
  a.wide = prologue_is_wide(args);
  uint32_t n_threads = a.n_units <= 4 ? 64 : a.n_units <= 8 ? 128 : PROLOGUE_THREADS;
  bool is_short = a.n_units * 16 <= SHORT_PIECES;
  uint32_t n_blocks = is_short ? cuda_ceil(a.n_rows, PROLOGUE_THREADS / 32) : a.n_rows;
  auto kernel = packed_is_bf16(a.type) ? kernel_of<true>(a.gated, is_short) : kernel_of<false>(a.gated, is_short);
  cuda_start(d, kernel, n_blocks, is_short ? (uint32_t)PROLOGUE_THREADS : n_threads, 0, a);
  return cuda_launched(d, "preparing rows");
}
