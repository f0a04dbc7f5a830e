/* SPDX-License-Identifier: MIT */
/* What the device's table has of latent rows (kernels/latent.h) beside the ops: their walks, and what they ask for when
 * a device of Hopper's set is opened. */
#ifndef WEFT_KERNELS_CUDA_LATENT_H
#define WEFT_KERNELS_CUDA_LATENT_H

#include "kernels/cuda/cuda.h"

weft_status cuda_latent_rows_walk(weft_device *device, const weft_latent_rows_args *args);
weft_status cuda_latent_press_walk(weft_device *device, const weft_latent_press_args *args);
weft_status cuda_latent_choose_walk(weft_device *device, const weft_latent_choose_args *args);
weft_status cuda_latent_attend_walk(weft_device *device, const weft_latent_attend_args *args);
weft_status cuda_engram_rows_walk(weft_device *device, const weft_engram_rows_args *args);
weft_status cuda_latent_setup(cuda_device *device);

#endif
