/* SPDX-License-Identifier: MIT */
/* Products of many rows in 16 bits, in thin items. */
#include "kernels/cuda/portable/gemm_sizes.h"
#include "kernels/cuda/portable/gemm.cuh"

weft_status gemm_thin(cuda_device *d, const gemm_args *args) {
  return launch_items<TILE_THIN>(d, args);
}
