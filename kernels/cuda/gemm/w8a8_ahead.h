/* SPDX-License-Identifier: MIT */
/* Few rows in W8A8 whose weights are requantised before these are there (w8a8_ahead.cu). */
#ifndef WEFT_KERNELS_CUDA_W8A8_AHEAD_H
#define WEFT_KERNELS_CUDA_W8A8_AHEAD_H

#include "kernels/cuda/gemm/w8a8.h"

/* Whether w8a8_ahead takes a dense product; whether w8a8_ahead_pair takes one with one of other weights. */
bool w8a8_ahead_takes(const cuda_device *d, const gemm_args *args);
weft_status w8a8_ahead(cuda_device *d, const gemm_args *args);
bool w8a8_ahead_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b);
weft_status w8a8_ahead_pair(cuda_device *d, const gemm_args *a, const gemm_args *b);
weft_status w8a8_ahead_setup(cuda_device *d);

#endif
