/* SPDX-License-Identifier: MIT */
/* Which size of items a GEMM of the portable set has (gemm_tile.cuh). */
#include "kernels/cuda/gemm/w8a8_dense.h"
#include "kernels/cuda/portable/gemm_sizes.h"
#include "kernels/cuda/portable/gemm_tile.cuh"
#include "kernels/cuda/weights/int8_weights.h"

static weft_status multiply(cuda_device *d, const gemm_args *args) {
  switch (tile_size_of(d, *args)) {
    case TILE_WIDE:
      return args->is_w8a8 ? w8a8_gemm_wide(d, args) : gemm_wide(d, args);
    case TILE_NARROW:
      return args->is_w8a8 ? w8a8_gemm_narrow(d, args) : gemm_narrow(d, args);
    case TILE_SPLIT:
      return w8a8_gemm_split(d, args);
    default:
      return args->is_w8a8 ? w8a8_gemm_thin(d, args) : gemm_thin(d, args);
  }
}

weft_status gemm_dense(cuda_device *d, const gemm_args *args) {
  return multiply(d, args);
}

weft_status gemm_grouped(cuda_device *d, const gemm_args *args) {
  return multiply(d, args);
}

weft_status w8a8_gemm(cuda_device *d, const gemm_args *args) {
  return multiply(d, args);
}

/* The set has no kernels for weights that are kept as int8, and none with a gated epilogue: the gate is an op of its
 * own then, of the same bits. */
bool w8a8_has_gated_epilogue(const cuda_device *, const gemm_args *) {
  return false;
}

bool w8a8_is_narrow(const cuda_device *, const gemm_args *) {
  return false;
}

bool int8_gemm_takes(const gemm_args *) {
  return false;
}

bool int8_gemm_has_gated_epilogue(const gemm_args *) {
  return false;
}
