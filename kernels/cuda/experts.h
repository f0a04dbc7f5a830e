/* SPDX-License-Identifier: MIT */
/* The down side of experts for few rows (experts_few.cu). */
#ifndef WEFT_KERNELS_CUDA_EXPERTS_H
#define WEFT_KERNELS_CUDA_EXPERTS_H

#include "kernels/cuda/multiply.h"

/* Whether rows with this number of inputs and of ranks fit into a block's shared memory. */
bool experts_down_fits(uint32_t n_in, uint32_t k);
/* Whether the kernel takes the product of a shared MLP along, of one row. */
bool experts_down_shares(const multiply_args *args, const multiply_args *shared);
/* y[r] = sum over ranks j of weights[r,j] * W[ids[r,j]] x[r k + j], for rows [0, n_rows); and shared, unless it has no
 * weight. The kernel before it must let the next one start only after it waited for its own inputs, ids among them
 * (multiply_few with ids does): ids are read before this one waits. */
weft_status experts_down_few(cuda_device *d, const multiply_args *args, const multiply_args *shared,
                             const float *weights, uint32_t k);
weft_status experts_few_setup(cuda_device *d);

#endif
