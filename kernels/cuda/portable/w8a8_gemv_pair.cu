/* SPDX-License-Identifier: MIT */
/* Two dense products of the same few rows in W8A8, of weights of two types, as one kernel: q and k beside v, which many
 * files keep with more bits. Where a kernel waits for all blocks of the one before it, the second product would begin
 * when the card has run empty, and neither fills it. */
#include "kernels/cuda/gemm/w8a8_ahead.h"
#include "kernels/cuda/gemm/w8a8_dense.h"
#include "kernels/cuda/gemm/w8a8_gemv_dense.cuh"
#include "kernels/cuda/portable/gemm_sizes.h"

/* Blocks below n_blocks have the product of a, the others that of b. */
template <int T, int OTHER, int ROWS>
static __global__ void __maxnreg__(80)
    w8a8_gemv_pair_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args b, uint32_t n_blocks,
                          uint32_t n_groups, uint32_t other_groups) {
  if (blockIdx.x < n_blocks)
    multiply_groups<T, 1, ROWS, false>(a, n_groups, some_blocks{0, n_blocks});
  else
    multiply_groups<OTHER, 1, ROWS, false>(b, other_groups, some_blocks{n_blocks, gridDim.x - n_blocks});
}

/* ---- host ------------------------------------------------------------------------------------------------ */

bool w8a8_gemv_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b) {
  if (w8a8_ahead_pairs(d, a, b) || w8a8_gemm_pairs(d, a, b)) return true;
  bool few = a->is_w8a8 && b->is_w8a8 && a->n_rows <= 8 && !a->is_tiled && !b->is_tiled && !a->gated && !b->gated;
  return few && (a->type == WEFT_TYPE_Q4_K || a->type == WEFT_TYPE_Q5_K) && b->type == WEFT_TYPE_Q6_K &&
         (a->raw.x != NULL) == (b->raw.x != NULL) && a->n_splits == b->n_splits;
}

/* As few row tiles to a block as have all blocks on the card at once. */
static uint32_t slots_of(const cuda_device *d, const gemm_args &a, const gemm_args &b, uint32_t n_columns) {
  uint32_t n_raw = a.raw.x != NULL ? a.n_rows : 0, n_spans = w8a8_spans_of(a), n = GEMV_SPLITS_MAX / a.n_splits;
  if (n_raw == 0) return n;
  uint32_t n_tiles = gemv_tiles(a) + gemv_tiles(b);
  while ((n + 1) * a.n_splits <= GEMV_WARPS_MAX && n_tiles > n * d->n_multiprocessors &&
         w8a8_gemv_bytes(b.type, n + 1, a.n_splits, n_spans, n_columns, n_raw, 2) <= GEMV_SHARED_BYTES_MAX)
    n++;
  return n;
}

template <int T, int ROWS>
static weft_status start_pair(cuda_device *d, const gemm_args &first, const gemm_args &second) {
  gemm_args a = first, b = second;
  uint32_t n_columns = ROWS == ROWS_RAW_ONE ? 1 : 8, n_raw = ROWS != ROWS_PREPARED ? a.n_rows : 0;
  uint32_t n_slots = slots_of(d, a, b, n_columns), n_warps = n_slots * a.n_splits;
  ring_set_stages(&a, RING_DENSE);
  ring_set_stages(&b, RING_DENSE);
  uint32_t n = cuda_ceil(gemv_tiles(a), n_slots), other = cuda_ceil(gemv_tiles(b), n_slots);
  uint32_t bytes = w8a8_gemv_bytes(WEFT_TYPE_Q6_K, n_slots, a.n_splits, w8a8_spans_of(a), n_columns, n_raw, 2);
  cuda_start(d, w8a8_gemv_pair_kernel<T, WEFT_TYPE_Q6_K, ROWS>, n + other, 32 * n_warps, bytes, a, b, n, n, other);
  return cuda_launched(d, "two products of few rows in 8 bits");
}

template <int T>
static weft_status start_for_rows(cuda_device *d, const gemm_args &a, const gemm_args &b) {
  if (a.raw.x == NULL) return start_pair<T, ROWS_PREPARED>(d, a, b);
  return a.n_rows == 1 ? start_pair<T, ROWS_RAW_ONE>(d, a, b) : start_pair<T, ROWS_RAW>(d, a, b);
}

weft_status w8a8_gemv_pair(cuda_device *d, const gemm_args *a, const gemm_args *b) {
  if (w8a8_ahead_pairs(d, a, b)) return w8a8_ahead_pair(d, a, b);
  if (w8a8_gemm_pairs(d, a, b)) return w8a8_gemm_pair(d, a, b);
  return a->type == WEFT_TYPE_Q4_K ? start_for_rows<WEFT_TYPE_Q4_K>(d, *a, *b)
                                   : start_for_rows<WEFT_TYPE_Q5_K>(d, *a, *b);
}
