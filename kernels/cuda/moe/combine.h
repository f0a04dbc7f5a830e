/* SPDX-License-Identifier: MIT */
/* y[row] of experts: the sum of what down gave of the row's ranks, each plus its bias and times its weight.
 *
 * Law: ranks are added in the order of ranks.cuh. Places, ids and weights may be said to be there early only if every
 * kernel that writes them has ended when the one in front of this one begins. */
#ifndef WEFT_KERNELS_CUDA_COMBINE_H
#define WEFT_KERNELS_CUDA_COMBINE_H

#include "kernels/cuda/cuda.h"

/* What a down product left: [place][n_in]. */
typedef struct experts_results {
  const void *down;
  bool is_bf16;           /* else f32 */
  bool early;             /* places, ids and weights may be read before the kernels in front have ended */
  uint32_t n_in, n_all;   /* n_all: how many experts there are, here or elsewhere */
  const int32_t *pair_at; /* place of each pair; -1: its expert is not here */
} experts_results;

weft_status experts_combine(cuda_device *d, const weft_experts_args *args, const experts_results *from);

#endif
