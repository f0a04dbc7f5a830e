/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM from integers of weights with jobs of few rows: down of experts, where gate and up have too few rows for
 * integers to be faster than codes. Whether a product with jobs reads integers is decided where the list of jobs is
 * made (moe/experts.cu): weights that are to be read as codes come without int8_weights.
 *
 * Law: a result has the bits of w8a8_gemm. */
#ifndef WEFT_KERNELS_CUDA_INT8_JOBS_H
#define WEFT_KERNELS_CUDA_INT8_JOBS_H

#include "kernels/cuda/gemm/w8a8.h"

enum { INT8_FEW_ROWS = 64 }; /* of a job, at most */

static inline bool int8_jobs_takes(const gemm_args *args) {
  return args->jobs != NULL && args->job_rows <= INT8_FEW_ROWS && args->n_weights == 1 && !args->gated;
}
weft_status int8_jobs(cuda_device *d, const gemm_args *args);
weft_status int8_jobs_setup(cuda_device *d);

#endif
