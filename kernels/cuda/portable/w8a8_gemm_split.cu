/* SPDX-License-Identifier: MIT */
/* Products of many rows in 8 bits, in split items; and two of them, of the same rows and of weights of two types, as
 * one kernel: q and k beside v, each of which leaves multiprocessors idle. */
#include "kernels/cuda/portable/gemm_sizes.h"
#include "kernels/cuda/portable/w8a8_gemm.cuh"

weft_status w8a8_gemm_split(cuda_device *d, const gemm_args *args) {
  return launch_items<TILE_SPLIT>(d, args);
}

/* Blocks below n_blocks have the product of a, the others that of b. */
template <int T, int U>
static __global__ void __launch_bounds__(gemm_tile<T, TILE_SPLIT, 1024>::threads *gemm_tile<T, TILE_SPLIT, 1024>::teams,
                                         gemm_tile<T, TILE_SPLIT, 1024>::fits)
    w8a8_gemm_pair_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args b, uint32_t n_blocks) {
  extern __shared__ __align__(1024) uint8_t memory[]; /* stages, as gemm_tile has them */
  wait_for_prior_grids();
  if (blockIdx.x < n_blocks)
    multiply_product<T, TILE_SPLIT>(a, memory, some_blocks{0, n_blocks});
  else
    multiply_product<U, TILE_SPLIT>(b, memory, some_blocks{n_blocks, gridDim.x - n_blocks});
  launch_dependent_grids();
}

/* ---- host ------------------------------------------------------------------------------------------------ */

static bool is_split(const cuda_device *d, const gemm_args *a) {
  return a->is_w8a8 && a->is_tiled && a->jobs == NULL && !a->gated && tile_size_of(d, *a) == TILE_SPLIT;
}

template <int T>
static uint32_t blocks_of_split(const cuda_device *d, const gemm_args *a) {
  return blocks_of<gemm_tile<T, TILE_SPLIT, 1024>>(d, *a);
}

bool w8a8_gemm_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b) {
  bool types = (a->type == WEFT_TYPE_Q4_K || a->type == WEFT_TYPE_Q5_K) && b->type == WEFT_TYPE_Q6_K;
  if (!types || !is_split(d, a) || !is_split(d, b)) return false;
  using S = gemm_tile<WEFT_TYPE_Q6_K, TILE_SPLIT, 1024>;
  return blocks_of_split<WEFT_TYPE_Q4_K>(d, a) + blocks_of<S>(d, *b) <= d->n_multiprocessors * blocks_at_once<S>();
}

template <int T>
static weft_status launch_pair(cuda_device *d, const gemm_args *a, const gemm_args *b) {
  using S = gemm_tile<T, TILE_SPLIT, 1024>;
  using U = gemm_tile<WEFT_TYPE_Q6_K, TILE_SPLIT, 1024>;
  uint32_t n = blocks_of<S>(d, *a), other = blocks_of<U>(d, *b);
  cuda_start_in_order(d, w8a8_gemm_pair_kernel<T, WEFT_TYPE_Q6_K>, n + other, S::threads * S::teams,
                      S::bytes > U::bytes ? S::bytes : U::bytes, *a, *b, n);
  return cuda_launched(d, "two products of 8 bits");
}

weft_status w8a8_gemm_pair(cuda_device *d, const gemm_args *a, const gemm_args *b) {
  return a->type == WEFT_TYPE_Q4_K ? launch_pair<WEFT_TYPE_Q4_K>(d, a, b) : launch_pair<WEFT_TYPE_Q5_K>(d, a, b);
}
