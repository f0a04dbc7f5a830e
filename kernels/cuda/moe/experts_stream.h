/* SPDX-License-Identifier: MIT */
/* The two products of experts in MXFP4 that have up to STREAM_ROWS rows each (experts_stream.cu), with jobs as in
 * gemm.h. Rows come in the GEMV layout, at their places.
 *
 * Law: products and gates have the bits that gemm_grouped and the kernels around it give. */
#ifndef WEFT_KERNELS_CUDA_EXPERTS_STREAM_H
#define WEFT_KERNELS_CUDA_EXPERTS_STREAM_H

#include "kernels/cuda/gemm/gemm.h"

enum { STREAM_ROWS = 24 /* of a job, at most */ };

/* Whether there are kernels for experts in jobs of up to job_rows rows: rows of down have no padding, and all weights
 * are of the one type. */
static inline bool experts_stream_takes(const weft_experts_args *args, uint32_t job_rows) {
  const int type = WEFT_TYPE_MXFP4;
  return job_rows <= STREAM_ROWS && args->down->type == type && args->down->n_in % 64 == 0 &&
         (args->gate_up != NULL ? args->gate_up->type == type : args->gate->type == type && args->up->type == type);
}

/* Results of down, f32, at their places. in: the product with gate, or with the stack of both; rows of down are made at
 * down->x. */
weft_status experts_stream(cuda_device *d, const weft_experts_args *args, const gemm_args *in, const gemm_args *down);
weft_status experts_stream_setup(cuda_device *d);

#endif
