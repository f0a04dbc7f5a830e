/* SPDX-License-Identifier: MIT */
/* Counters and words of blocks that wait for others of their kernel, in memory of the card: zero before a kernel and
 * after it (counters.cuh).
 *
 * Law: kernels of two devices may run at the same time, also on one card, so each device that was opened has a number,
 * and with it counters of its own. A device that lies where another one lay gets the number of that one, whose kernels
 * have ended. Blocks begin in the order of their numbers: so a block may wait for those before it, which wait for no
 * block behind them. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_COUNTERS_H
#define WEFT_KERNELS_CUDA_PORTABLE_COUNTERS_H

#include "kernels/cuda/cuda.h"

enum { COUNTED_DEVICES = 64 };

/* The number of a device; COUNTED_DEVICES: there are no more. */
uint32_t counters_device(const cuda_device *d);

#endif
