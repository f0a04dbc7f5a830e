/* SPDX-License-Identifier: MIT */
/* The blocks that share a row of `sample` on Hopper: a cluster, whose blocks read each other's shared memory.
 * portable/row_blocks.cuh has the same names for cards without clusters. */
#ifndef WEFT_KERNELS_CUDA_ROW_BLOCKS_CUH
#define WEFT_KERNELS_CUDA_ROW_BLOCKS_CUH

#include <cooperative_groups.h>

enum { ROW_BLOCKS = 8 };
#define ROW_BLOCKS_DIMS __cluster_dims__(ROW_BLOCKS, 1, 1)

typedef cooperative_groups::cluster_group row_blocks;

static __device__ __forceinline__ row_blocks row_blocks_here(void) {
  return cooperative_groups::this_cluster();
}

#endif
