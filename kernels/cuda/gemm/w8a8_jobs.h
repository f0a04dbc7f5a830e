/* SPDX-License-Identifier: MIT */
/* Jobs of products of 8 bits with a gated epilogue, where experts have some ten rows each (w8a8_gemm.cu): up to
 * W8A8_TWICE_ROWS rows, which are multiplied in two halves by operands that are made once. 0: the set has no such
 * kernel. */
#ifndef WEFT_KERNELS_CUDA_W8A8_JOBS_H
#define WEFT_KERNELS_CUDA_W8A8_JOBS_H

#ifdef WEFT_CUDA_PORTABLE
enum { W8A8_TWICE_ROWS = 0 };
#else
enum { W8A8_TWICE_ROWS = 48 };
#endif

#endif
