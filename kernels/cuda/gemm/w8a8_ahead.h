/* SPDX-License-Identifier: MIT */
/* Few rows in W8A8 whose weights are requantised before these are there (w8a8_ahead.cu). */
#ifndef WEFT_KERNELS_CUDA_W8A8_AHEAD_H
#define WEFT_KERNELS_CUDA_W8A8_AHEAD_H

#include "kernels/cuda/gemm/w8a8.h"

/* Whether w8a8_ahead takes a dense product; with one of other weights: w8a8_gemv_pair (w8a8_dense.h). */
bool w8a8_ahead_takes(const cuda_device *d, const gemm_args *args);
weft_status w8a8_ahead(cuda_device *d, const gemm_args *args);
weft_status w8a8_ahead_setup(cuda_device *d);

#endif
