/* SPDX-License-Identifier: MIT */
/* Products of many rows in 16 bits, in wide items. */
#include "kernels/cuda/portable/gemm_sizes.h"
#include "kernels/cuda/portable/gemm.cuh"

weft_status gemm_wide(cuda_device *d, const gemm_args *args) {
  return launch_items<TILE_WIDE>(d, args);
}
