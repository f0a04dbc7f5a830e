/* SPDX-License-Identifier: MIT */
/* Products of many rows in 8 bits, in split items. */
#include "kernels/cuda/portable/gemm_sizes.h"
#include "kernels/cuda/portable/w8a8_gemm.cuh"

weft_status w8a8_gemm_split(cuda_device *d, const gemm_args *args) {
  return launch_items<TILE_SPLIT>(d, args);
}
