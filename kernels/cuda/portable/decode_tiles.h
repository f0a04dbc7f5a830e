/* SPDX-License-Identifier: MIT */
/* Attention of few queries of the portable set, where there are few items of one chunk each. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_DECODE_TILES_H
#define WEFT_KERNELS_CUDA_PORTABLE_DECODE_TILES_H

#include "kernels/cuda/attention/attention.cuh"

/* Scratch of an item and key head, behind the partial rows: the scores of a chunk, and the largest of each 16. */
enum { DECODE_TILES_FLOATS = DECODE_QUERIES * (CHUNK + CHUNK / 16) };
weft_status attention_decode_tiles(cuda_device *d, const attention_kernel_args *args);

#endif
