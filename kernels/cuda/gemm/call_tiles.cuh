/* SPDX-License-Identifier: MIT */
/* The row tiles of a product's weights in one sequence, for the kernels of many rows of every kernel set. */
#ifndef WEFT_KERNELS_CUDA_CALL_TILES_CUH
#define WEFT_KERNELS_CUDA_CALL_TILES_CUH

#include "kernels/cuda/gemm/gemm.h"

/* A row tile of a call: row tile `tile` of weight `w`. Calls count the row tiles of all their weights in one sequence
 * (tiles_of, find_tile). A number beyond its end gives a tile of the last weight that does not exist: producers copy
 * that weight's last tile for it, and no result of it is stored. */
typedef struct weight_tile {
  uint32_t w, tile;
} weight_tile;

static __host__ __device__ __forceinline__ uint32_t tiles_of(const gemm_args &a) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += a.weight[w].n_tiles;
  return n;
}

static __device__ __forceinline__ weight_tile find_tile(const gemm_args &a, uint32_t tile) {
  uint32_t w = 0;
  for (; w + 1 < a.n_weights && tile >= a.weight[w].n_tiles; w++) tile -= a.weight[w].n_tiles;
  return {w, tile};
}

/* The blocks of a kernel that make a product: all of them, or n from block `first` on. */
struct all_blocks {
  __device__ __forceinline__ uint32_t own() const { return blockIdx.x; }
  __device__ __forceinline__ uint32_t count() const { return gridDim.x; }
};
struct some_blocks {
  uint32_t first, n;
  __device__ __forceinline__ uint32_t own() const { return blockIdx.x - first; }
  __device__ __forceinline__ uint32_t count() const { return n; }
};

#endif
