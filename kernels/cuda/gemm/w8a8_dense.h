/* SPDX-License-Identifier: MIT */
/* Which items a dense W8A8 product of tiled rows has, and which kernel makes them: those of 128 outputs are
 * w8a8_gemm's, those of 64 are w8a8_dense's (w8a8.h). */
#ifndef WEFT_KERNELS_CUDA_W8A8_DENSE_H
#define WEFT_KERNELS_CUDA_W8A8_DENSE_H

#include "kernels/cuda/gemm/w8a8.h"

/* The items of a dense product: rows in eights, row tiles, how many a multiprocessor has at once, and the measured time
 * of one relative to the others. */
typedef struct dense_items {
  uint32_t nt, tiles, at_once, work;
} dense_items;

/* Those with which the multiprocessors are done first, if each takes one item after another. */
dense_items dense_items_of(const cuda_device *d, const gemm_args *a);
/* Whether w8a8_dense makes a product. It lets the next kernel start when it has waited for its rows, and so may that
 * one with rows that were there before (gemm_raw_rows.is_there). */
bool w8a8_is_narrow(const cuda_device *d, const gemm_args *a);
/* Whether w8a8_gemv_pair makes two dense products of the same few rows, of weights of two types, as one kernel
 * (w8a8_ahead.cu, portable/w8a8_gemv_pair.cu, portable/w8a8_gemm_split.cu). */
bool w8a8_gemv_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b);
weft_status w8a8_gemv_pair(cuda_device *d, const gemm_args *a, const gemm_args *b);

#endif
