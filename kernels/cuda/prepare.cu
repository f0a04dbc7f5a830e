/* SPDX-License-Identifier: MIT */
/* Rows in 16 bits, laid out for the matrix units (multiply.h); and act(g) * u on the way into it. */
#include "kernels/cuda/prepare.cuh"

enum { SHORT_PIECES = 96 };

/* A block takes a row; of short ones a warp does. The first pieces of a thread stay in registers between the row's
 * maximum and their rounding. */
template <bool BF16, bool SHORT>
static __global__ void __launch_bounds__(PREPARE_THREADS) prepare_kernel(const __grid_constant__ prepare_args a) {
  inputs_ready();
  constexpr uint32_t KEPT = SHORT ? SHORT_PIECES / 32 : 2;
  __shared__ uint32_t shared[33];
  uint64_t r = SHORT ? blockIdx.x * (PREPARE_THREADS / 32) + threadIdx.x / 32 : blockIdx.x;
  uint32_t own = SHORT ? threadIdx.x % 32 : threadIdx.x, step = SHORT ? 32 : blockDim.x;
  if (SHORT && r >= a.n_rows) return;
  const int32_t *at = a.at == NULL ? NULL : a.at + r * a.k;
  uint32_t n_places = at == NULL ? 1 : a.k, n_pieces = pieces_of(a), most = 0;
  if (a.from_place) {
    if (*at < 0) return;
    r = (uint64_t)*at;
  }
  const float *x = a.x + r * a.x_stride;
  float kept[KEPT][8], v[8];
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (own + t * step < n_pieces) load_piece(a, x, own + t * step, kept[t]);
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (own + t * step < n_pieces) most = max(most, most_of_chunk(kept[t]));
#pragma unroll 1
  for (uint32_t piece = BF16 ? n_pieces : own + KEPT * step; piece < n_pieces; piece += step) {
    load_piece(a, x, piece, v);
    most = max(most, most_of_chunk(v));
  }
  int lift = BF16 ? 0 : lift_of(SHORT ? warp_max(most) : block_max(most, shared));
  float up = power_of_two(lift);
  for (uint32_t j = own; j < n_places; j += step) {
    int64_t place = at == NULL ? (int64_t)r : at[j];
    if (place >= 0) a.back[place] = power_of_two(-lift);
  }
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (own + t * step < n_pieces) put_piece<BF16>(a, own + t * step, kept[t], up, at, n_places, (int64_t)r);
  for (uint32_t piece = own + KEPT * step; piece < n_pieces; piece += step) {
    load_piece(a, x, piece, v);
    put_piece<BF16>(a, piece, v, up, at, n_places, (int64_t)r);
  }
}

weft_status prepare_rows(cuda_device *d, const prepare_args *args) {
  prepare_args a = *args;
  a.wide = prepare_is_wide(args);
  uint32_t n_threads = a.n_units <= 4 ? 64 : a.n_units <= 8 ? 128 : PREPARE_THREADS;
  bool is_short = a.n_units * 16 <= SHORT_PIECES;
  uint32_t n_blocks = is_short ? cuda_ceil(a.n_rows, PREPARE_THREADS / 32) : a.n_rows;
  auto kernel = form_is_bf16(args->type) ? (is_short ? prepare_kernel<true, true> : prepare_kernel<true, false>)
                                         : (is_short ? prepare_kernel<false, true> : prepare_kernel<false, false>);
  cuda_start(d, kernel, n_blocks, is_short ? (uint32_t)PREPARE_THREADS : n_threads, 0, a);
  return cuda_launched(d, "preparing rows");
}
