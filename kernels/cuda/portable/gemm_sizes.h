/* SPDX-License-Identifier: MIT */
/* The GEMM kernels of the portable set by the size of their items (gemm_tile.cuh), in 16 bits and in W8A8, the latter
 * for types that w8a8_takes; UNSUPPORTED: another type. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_GEMM_SIZES_H
#define WEFT_KERNELS_CUDA_PORTABLE_GEMM_SIZES_H

#include "kernels/cuda/gemm/w8a8.h"

weft_status gemm_wide(cuda_device *d, const gemm_args *args);
weft_status gemm_narrow(cuda_device *d, const gemm_args *args);
weft_status gemm_thin(cuda_device *d, const gemm_args *args);
weft_status w8a8_gemm_wide(cuda_device *d, const gemm_args *args);
weft_status w8a8_gemm_narrow(cuda_device *d, const gemm_args *args);
weft_status w8a8_gemm_thin(cuda_device *d, const gemm_args *args);
weft_status w8a8_gemm_split(cuda_device *d, const gemm_args *args);
/* Whether w8a8_gemm_pair makes two dense products of the same rows as one kernel. */
bool w8a8_gemm_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b);
weft_status w8a8_gemm_pair(cuda_device *d, const gemm_args *a, const gemm_args *b);

#endif
