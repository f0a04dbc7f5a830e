/* SPDX-License-Identifier: MIT */
/* The two products of experts in MXFP4 that have up to STREAM_ROWS rows each (experts_stream.cu), with jobs as in
 * gemm.h. Rows come in the GEMV layout, at their places.
 *
 * Law: products and gates have the bits that gemm_grouped and the kernels around it give. */
#ifndef WEFT_KERNELS_CUDA_EXPERTS_STREAM_H
#define WEFT_KERNELS_CUDA_EXPERTS_STREAM_H

#include "kernels/cuda/gemm/gemm.h"

enum { STREAM_ROWS = 24 /* of a job, at most */ };

/* Whether rows of down can be left by the product with gate and up, as gemm_gated_rows: they have no padding, and all
 * weights are of the one type. */
static inline bool experts_have_gated_rows(const weft_experts_args *args) {
  const int type = WEFT_TYPE_MXFP4;
  return args->down->type == type && args->down->n_in % 64 == 0 &&
         (args->gate_up != NULL ? args->gate_up->type == type : args->gate->type == type && args->up->type == type);
}

/* Results of down, f32, at their places. in: gate and up, as for gemm_grouped_gated; rows: those of down, in the GEMV
 * layout. */
weft_status experts_stream(cuda_device *d, const gemm_args *in, const gemm_gated_rows *rows, const gemm_args *down);
weft_status experts_stream_setup(cuda_device *d);

#endif
