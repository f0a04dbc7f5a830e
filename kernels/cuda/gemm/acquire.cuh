/* SPDX-License-Identifier: MIT */
/* Inputs that are there although this grid has not waited for the kernels before it (gemm_raw_rows.is_there).
 *
 * Law: what earlier kernels wrote is read past the multiprocessor's first cache, or after this. A wait, or a start in
 * the ordinary way, empties that cache; a block that begins without either may find lines in it that are older than
 * those kernels. */
#ifndef WEFT_KERNELS_CUDA_ACQUIRE_CUH
#define WEFT_KERNELS_CUDA_ACQUIRE_CUH

#include "kernels/cuda/common.cuh"

/* For this thread's own reads, and for the bulk copies that it starts. */
static __device__ __forceinline__ void acquire_prior_writes(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

#endif
