/* SPDX-License-Identifier: MIT */
/* Copies that are enqueued: of a few bytes by a kernel, of others by the card's copy engines. Between two steps results
 * are copied to the host and inputs from it, and each time some 10 us pass until an engine has heard that a kernel has
 * ended, or a kernel that an engine has.
 *
 * Law: a copy is in stream order. It starts when all work before it has ended, and what comes behind it when it has,
 * since what was uploaded is read without a wait (common.cuh). */
#ifndef WEFT_KERNELS_CUDA_COPIES_H
#define WEFT_KERNELS_CUDA_COPIES_H

#include "kernels/cuda/cuda.h"

enum { COPIES_SHORT_BYTES = 16 << 10 /* most of a copy by a kernel */ };

/* Both places are memory of this card, of other cards, or pinned memory of the host. */
weft_status copies_enqueue(cuda_device *device, void *to, const void *from, uint64_t n_bytes, const char *what);

#endif
