/* SPDX-License-Identifier: MIT */
/* latent_attend of rows of 576 numbers whose first 512 are values and which have no far rows (parted.cu,
 * parted_flash.cu): the definition that both kernels keep, the cut of a call into items, and how chunks are merged.
 *
 * Law: a row's bits depend on its position, its queries and the rows before it alone. Positions are cut into chunks of
 * 512, which begin at multiples of that, and these into tiles of 64:
 *
 *   scores    four sums, added ascending: of 128 of the first 512 numbers, sixteen at a time, ascending, then of
 *             sixteen of the last 64. Queries are bf16, and so are rows: of eight bits factor times integer, rounded
 *   weights   online softmax over the tiles of a chunk, ascending: out so far is rescaled to the new maximum, weights
 *             are 2^(score - maximum) as bf16. Their sum is one more column of out, whose values are all 1
 *   out       sixteen positions at a time, ascending
 *
 * Chunks are merged ascending, each from a fresh state (attention.cuh). A position that a row does not see weighs 0. */
#ifndef WEFT_KERNELS_CUDA_LATENT_PARTED_CUH
#define WEFT_KERNELS_CUDA_LATENT_PARTED_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/latent/latent.cuh"

enum {
  PARTED_WIDTH = 576,
  PARTED_VALUES = 512,
  PARTED_CHUNK = 512, /* positions */
  PARTED_TILE = 64,
  PARTED_QUERIES = 64 /* of an item of parted_flash.cu */
};

/* Queries (row * n_heads + head) [first, first + n) of a segment. Of the kernel of single rows: the row `first` and all
 * its heads, n 1. n 0: void. */
typedef struct parted_item {
  uint32_t segment, first, n;
} parted_item;

typedef struct parted_args {
  weft_latent_attend_args op; /* segment: device copy */
  const parted_item *items;   /* device; of the kernel that is launched */
  uint32_t n_items, cluster;  /* blocks of a row */
} parted_args;

/* The stored row at a position. */
static __device__ __forceinline__ const uint8_t *parted_row(const weft_latent_attend_args &a,
                                                            const weft_latent_segment &s, uint32_t position) {
  return latent_row_at(a.near, a.near.offset, s.table[WEFT_LATENT_NEAR], position);
}

/* Whether parted_attend takes the call. */
bool parted_fits(const weft_latent_attend_args *args);
weft_status parted_attend(cuda_device *d, const weft_latent_attend_args *args);
weft_status parted_walk(cuda_device *d, const weft_latent_attend_args *args);
weft_status parted_setup(cuda_device *d);
/* Items of up to PARTED_QUERIES queries (Hopper). */
weft_status parted_flash(cuda_device *d, const parted_args *args);
weft_status parted_flash_setup(cuda_device *d);

#endif
