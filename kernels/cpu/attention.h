/* SPDX-License-Identifier: MIT */
/* attention on the cpu: tiles of queries and chunks of keys.
 *
 * A query is one head of one row. A tile is up to CPU_TILE queries of one segment that read the same kv head, in
 * (row, head) order, so that a key that was loaded once serves them all. The unit of work is (tile, chunk):
 *
 *                  keys of the chunk, by position within it: 0 ... 255
 *   query 0        . . . x x x x x x x x x x . . . . . .      x: first[0] <= position < end[0]
 *   query 1        . . . x x x x x x x x x x . . . . . .
 *   query 2        . . . . x x x x x x x x x x . . . . .
 *                        ^begin                ^stop          the union; keys outside of it are never touched
 *
 * Law (numerics). A score is summed in lanes over the head dimension, ascending, and the lanes meet in the tree of
 * vf_sum. The maximum of a chunk is exact. The sum of weights is kept in lane position % lanes. An output element adds
 * its keys one after another, ascending. None of it depends on the other queries of the tile, on begin or stop, or on
 * where keys lie, so a query's bits are those it has alone. */
#ifndef WEFT_KERNELS_CPU_ATTENTION_H
#define WEFT_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/cpu.h"

enum {
  CPU_TILE = 32,                               /* queries */
  CPU_TILE_SCORES = WEFT_ATTENTION_CHUNK + 16, /* room for the scores of a query, padded for whole vectors */
  CPU_TILE_KEYS = 16,                          /* keys widened to f32 at a time */
  CPU_TILE_VALUES = 64,                        /* values widened at a time */
  CPU_TILE_SLAB = 64                           /* columns of these values widened at a time */
};

/* One tile and one chunk. The caller sets all fields; out, max and sum point to results, score and widened to scratch.
 * Positions count from the start of the chunk. */
typedef struct cpu_chunk {
  uint32_t n_queries, dim;
  weft_type type; /* of keys and values */
  float scale;
  uint32_t begin, stop;
  const float *q[CPU_TILE];
  uint32_t first[CPU_TILE], end[CPU_TILE];
  const uint8_t *key[WEFT_ATTENTION_CHUNK], *value[WEFT_ATTENTION_CHUNK];
  float *score;     /* [CPU_TILE][CPU_TILE_SCORES] */
  float *widened;   /* cpu_chunk_widened(dim) floats */
  float *out;       /* [n_queries][dim]: not yet divided by sum */
  float *max, *sum; /* [n_queries]; those of queries that see no key here are left as they were */
} cpu_chunk;

/* Floats that chunk->widened needs. */
static inline uint32_t cpu_chunk_widened(uint32_t dim) {
  uint32_t keys = CPU_TILE_KEYS * dim, values = CPU_TILE_VALUES * CPU_TILE_SLAB;
  return keys > values ? keys : values;
}

/* What each instruction set implements (attention_impl.h). */
typedef struct cpu_attention_code {
  void (*chunk)(const cpu_chunk *chunk);
  /* all = all * keep + chunk * add */
  void (*merge)(float *all, float keep, const float *chunk, float add, uint32_t dim);
  void (*scale)(float *all, float factor, uint32_t dim);
} cpu_attention_code;

extern const cpu_attention_code cpu_attention_portable;
extern const cpu_attention_code cpu_attention_avx2;
extern const cpu_attention_code cpu_attention_avx512;

#endif
