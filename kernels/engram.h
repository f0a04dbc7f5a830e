/* SPDX-License-Identifier: MIT */
/* The ops engram_rows and engram_add: a memory that is read by what the last tokens are (Engram, DeepSeek-V4.1). Part
 * of kernels/ops.h, whose laws hold.
 *
 * Law: which rows of a table a position reads depends on its token and the n_grams - 1 before it alone; before position
 * 0 stands `pad`. Tokens of earlier calls are found in pages, in a set of f32 rows of one number, whose bits are the
 * token: a call that has a position stores its row, and no segment of the call looks up a position that another segment
 * stores. So a row that turned out to be void leaves nothing behind: its token is written over before any row sees
 * it. */
#ifndef WEFT_KERNELS_ENGRAM_H
#define WEFT_KERNELS_ENGRAM_H

#include "kernels/latent.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_ENGRAM_GRAMS_MAX = 8, WEFT_ENGRAM_HEADS_MAX = 64 };

/* ---- engram_rows: the rows of a table that each row reads ------------------------------------------------------- *
 * t_i = map[token at p - i], or pad. Of the last n tokens, n from 2 to n_grams: x = t_0 multiplier[0] ^ ... ^ t_(n - 1)
 * multiplier[n - 1], in 64 bits. Head h of n_heads reads row x % prime[i] + offset[i], i = (n - 2) n_heads + h.    */
typedef struct weft_engram_rows_args {
  weft_latent_view past;          /* of set WEFT_LATENT_TOKENS */
  const int32_t *tokens;          /* [n_rows]; one outside of the map is INVALID, on cuda it counts as pad */
  const int32_t *map;             /* [n_tokens], not negative */
  const uint64_t *multiplier;     /* [n_grams] */
  const uint32_t *prime, *offset; /* [(n_grams - 1) * n_heads] */
  int32_t *ids;                   /* [n_rows, (n_grams - 1) * n_heads] */
  const weft_latent_segment *segment;
  uint32_t n_segments, n_rows, n_tokens, n_grams, n_heads, pad;
} weft_engram_rows_args;

/* ---- engram_add: what was read is added to every part of the stream, as far as the part agrees with it --------- *
 * With s = weight_i * x_i . key_i / (rms(x_i) rms(key_i) sqrt(n_cols)), rms(v) = sqrt(mean(v^2) + eps), each part
 * x_i += sigmoid(s < 0 ? -r : r) * value, r = sqrt(max(|s|, 1e-6)).                                                */
typedef struct weft_engram_add_args {
  float *x;            /* [n_rows, n_streams * n_cols], in place */
  const float *read;   /* [n_rows, (n_streams + 1) * n_cols]: a key for each part, then the value */
  const float *weight; /* [n_streams * n_cols] */
  uint32_t n_rows, n_cols, n_streams;
  uint64_t x_stride, read_stride;
  float eps;
} weft_engram_add_args;

#ifdef __cplusplus
}
#endif
#endif
