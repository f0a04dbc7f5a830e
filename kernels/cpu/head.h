/* SPDX-License-Identifier: MIT */
/* The head: what the three instruction sets implement of it, and what head_stats and soft share.
 *
 * Law. The vocabulary goes by in chunks of WEFT_VOCAB_CHUNK tokens, ascending. Within a chunk a row's numbers are
 * relative to the chunk's largest allowed logit, called top: e = exp((logit - top) * (1 / temperature)) in f32. Chunks
 * are joined in ascending order, their sums in double. The soft embedding of a chunk is summed from zero over its
 * tokens, ascending, and joins the row's (differences of logits are divided by the temperature):
 *
 *   soft = soft * exp(old top - new top) + chunk's sum * exp(chunk's top - new top)
 *
 * A chunk whose largest token weighs less than `least` of the row's largest token so far is left out. Weights are
 * widened once per chunk for all rows:
 *
 *   F32, F16, without AVX-512   to f32; e stays f32; products and sums are f32
 *   all types
 *   all others, with AVX-512    to integers of 16 bits. The chunk goes by in spans of CPU_SOFT_SPAN tokens: of a column
 *                               those of a span are rounded to multiples of 1/2047 of the largest, each e to a multiple
 *                               of 1/16383. A span's sum is exact, and spans ascend in one f32 sum:
 *                               sum = fma((float)span's sum, step, sum)
 *
 * So with integers a weight is off by 1/4094 of the largest of its span, and e by 1/32766. least is 2^-40 with f32, so
 * that a vocabulary of 2^18 tokens loses 2^-22 at most, and 2^-30 with integers (2^-12).
 * All of this is a function of the row alone: the numbers of threads and of rows change nothing. */
#ifndef WEFT_KERNELS_CPU_HEAD_H
#define WEFT_KERNELS_CPU_HEAD_H

#include "kernels/cpu/matmul.h"

enum {
  CPU_SOFT_ROWS = 8,  /* most rows of a cpu_soft_tile */
  CPU_SOFT_SPAN = 64, /* tokens that are widened together; as integers they share a step */
  CPU_CHUNK_PANELS = WEFT_VOCAB_CHUNK / CPU_PANEL
};

/* What is kept of one row in one chunk. */
typedef struct cpu_head_chunk {
  float top;     /* largest allowed logit; -INFINITY: none is allowed */
  float sum;     /* of e */
  float below;   /* of e * (logit - top) / temperature */
  int32_t index; /* of the first token with logit top, in the chunk; -1: a logit was not finite */
} cpu_head_chunk;

typedef struct cpu_head_fns {
  /* Caps n logits in place (cap 0: leaves them); true when one was not finite before. */
  bool (*cap)(float *logits, uint32_t n, float cap);
  /* Turns logits into e; e is 0 for tokens that are not allowed and from n to the end of the chunk. allowed: the bits
   * of this chunk, or NULL for all. */
  void (*chunk)(float *logits, uint32_t n, const uint32_t *allowed, float inverse_temperature, cpu_head_chunk *out);
} cpu_head_fns;

/* soft[r][i] = soft[r][i] * factor[r][0] + factor[r][1] * (sum over v of e[r][v] * wide[v][i]), for one column of
 * sixteen inputs or several. All eight pointers of a tile are set: with fewer rows the last one is repeated. */
typedef struct cpu_soft_tile {
  const uint8_t *wide;
  uint32_t n_tokens; /* a multiple of 16 */
  uint32_t n_rows;   /* 1 .. 8 */
  uint32_t n_cols;   /* inputs: 1 .. 16 for each column */
  const float *e[CPU_SOFT_ROWS];
  float *soft[CPU_SOFT_ROWS];
  float factor[CPU_SOFT_ROWS][2];
} cpu_soft_tile;

/* Panels [first, first + n) of a span, n_in inputs wide: those of a chunk have the numbers 0 to 31. */
typedef struct cpu_soft_panels {
  const cpu_pack_info *info;
  const uint8_t *panel; /* the first of them */
  uint64_t panel_bytes;
  uint32_t n_in, first, n;
} cpu_soft_panels;

/* How soft embeddings are multiplied. The widened weights of a chunk are, per column of sixteen inputs, f32
 * [WEFT_VOCAB_CHUNK][16], or for each span integers with tokens v and v + 1 side by side, [32][16][2], and sixteen
 * steps in f32. */
typedef struct cpu_soft_fns {
  uint32_t column_bytes;
  uint32_t columns; /* most columns of a tile */
  double least;
  /* Widens panels from the first of a span on. */
  void (*widen)(const cpu_soft_panels *panels, uint8_t *wide);
  /* Turns e of one row from f32 into the form that add reads, in place. NULL: add reads f32. */
  void (*narrow)(float *e);
  void (*add)(const cpu_soft_tile *tile);
} cpu_soft_fns;

extern const cpu_head_fns cpu_head_portable, cpu_head_avx2, cpu_head_avx512;
extern const cpu_soft_fns cpu_soft_portable, cpu_soft_avx2, cpu_soft_avx512, cpu_soft_integers_avx512;
const cpu_head_fns *cpu_head_find(cpu_isa isa);
const cpu_soft_fns *cpu_soft_find(cpu_isa isa, weft_type type);

/* ---- soft embeddings of one call ---- */

typedef struct cpu_soft_run {
  const cpu_soft_fns *fns;
  const weft_weight *weight;
  const float *temperature;
  const uint8_t *want; /* NULL: all rows */
  float *soft;
  uint64_t soft_stride;
  uint32_t n_rows;
  float *logits; /* [n_rows][WEFT_VOCAB_CHUNK]: logits, then e */
  uint8_t *wide;
  float *top;    /* [n_rows] largest logit so far */
  double *total; /* [n_rows] sum of exp((logit - top) / temperature); -1: a logit was not finite */
} cpu_soft_run;

/* Returns the bytes that logits, wide, top and total need. Unless memory is NULL, sets them to their places in it. */
uint64_t cpu_soft_place(cpu_soft_run *run, uint8_t *memory);
/* Sets the sums of all rows to zero. */
void cpu_soft_begin(const cpu_soft_run *run);
/* Widens the n panels from `at` on of chunk `chunk`, all that there are of a span. Spans may be widened by any
 * threads. */
void cpu_soft_widen(const cpu_soft_run *run, uint32_t chunk, uint32_t at, uint32_t n);
/* Adds the chunk to rows [first, first + n); chunks[r] belongs to row first + r. */
void cpu_soft_add(const cpu_soft_run *run, uint32_t chunk, uint32_t first, uint32_t n, const cpu_head_chunk *chunks);
/* soft = scale * soft / total; zeros for a row with a logit that was not finite, or without an allowed token. */
void cpu_soft_end(const cpu_soft_run *run, float scale);

static inline uint32_t cpu_chunk_count(uint32_t n_vocab) {
  return n_vocab / WEFT_VOCAB_CHUNK + (n_vocab % WEFT_VOCAB_CHUNK != 0 ? 1u : 0u);
}
static inline uint32_t cpu_chunk_tokens(uint32_t n_vocab, uint32_t chunk) {
  uint32_t left = n_vocab - chunk * WEFT_VOCAB_CHUNK;
  return left < WEFT_VOCAB_CHUNK ? left : WEFT_VOCAB_CHUNK;
}

#endif
