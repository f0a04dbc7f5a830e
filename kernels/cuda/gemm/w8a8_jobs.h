/* SPDX-License-Identifier: MIT */
/* W8A8_TWICE_ROWS: the most rows of a job of gate and up in 8 bits where the epilogue is gated and gemm_job_rows
 * (gemm.h) gives half as many; w8a8_gemm.cu multiplies them in two halves, by operands that are made once. 0: the set
 * has no such kernel. */
#ifndef WEFT_KERNELS_CUDA_W8A8_JOBS_H
#define WEFT_KERNELS_CUDA_W8A8_JOBS_H

#ifdef WEFT_CUDA_PORTABLE
enum { W8A8_TWICE_ROWS = 0 };
#else
enum { W8A8_TWICE_ROWS = 48 };
#endif

#endif
