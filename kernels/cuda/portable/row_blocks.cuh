/* SPDX-License-Identifier: MIT */
/* The blocks that share a row of `sample` in the portable set: one, since these cards have no clusters. The sums are of
 * integers, so the result is that of eight. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_ROW_BLOCKS_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_ROW_BLOCKS_CUH

#include <stdint.h>

enum { ROW_BLOCKS = 1 };
#define ROW_BLOCKS_DIMS

struct row_blocks {
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ uint32_t block_rank() const { return 0; }
  template <class T>
  __device__ __forceinline__ T *map_shared_rank(T *mine, uint32_t) const {
    return mine;
  }
};

static __device__ __forceinline__ row_blocks row_blocks_here(void) {
  return {};
}

#endif
