/* SPDX-License-Identifier: MIT */
/* head_part and head_join: head_stats of an output matrix whose rows lie in ranges on several devices. Part of
 * kernels/ops.h, whose laws hold.
 *
 * Law: head_join gives what head_stats gives (without soft embeddings) on one device that has the whole matrix, bit
 * for bit, however the tokens are shared out. A range begins at a multiple of WEFT_VOCAB_CHUNK tokens, so a device has
 * whole chunks of the vocabulary, makes their logits and what a backend keeps of a chunk; joining chunks, and looking a
 * drawn token up in its chunk, is done by one device, which reads what all have made. The caller sees to it that join
 * comes after every part. Logits are those of head_rows before the cap. */
#ifndef WEFT_KERNELS_HEAD_PARTS_H
#define WEFT_KERNELS_HEAD_PARTS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_HEAD_CHUNK_BYTES = 20 /* of a row and a chunk, what a backend keeps */ };

/* Rows [first, first + n_tokens) of weight stand for the tokens from `token` on, of n_vocab. */
typedef struct weft_head_part_args {
  const float *h;            /* [n_rows, n_in], after the final norm */
  const weft_weight *weight; /* [at least first + n_tokens, n_in] */
  uint32_t first, n_tokens;  /* first and token: multiples of WEFT_VOCAB_CHUNK, and so is n_tokens, but for a */
  uint32_t token, n_vocab;   /* range that ends with the vocabulary */
  float *logits;             /* [n_rows, n_tokens], not capped; memory of any device that this one reaches */
  void *chunks;              /* optional, likewise: [n_rows, all chunks of the vocabulary, WEFT_HEAD_CHUNK_BYTES],
                              * of which those of the range may be written */
  const float *temperature;  /* [n_rows]; with chunks */
  const uint32_t *allowed;   /* optional: bits of all tokens, for every row; with chunks */
  uint32_t n_rows;
  float cap; /* with chunks */
  uint64_t h_stride, logits_stride;
  void *scratch;
  uint64_t scratch_bytes;
} weft_head_part_args;

/* Part i has the tokens [token[i], token[i + 1]), with token[0] 0 and token[n_parts] n_vocab; it may have none. All
 * else is as in weft_head_stats_args. */
typedef struct weft_head_join_args {
  const float *logits[WEFT_DEVICES_MAX]; /* of each part [n_rows, its tokens] */
  uint32_t token[WEFT_DEVICES_MAX + 1], n_parts;
  const void *chunks; /* as head_part left it for all parts, with the same temperatures, mask and cap */
  const float *temperature, *u;
  const uint32_t *allowed;
  int32_t *argmax, *drawn;
  float *top, *log_total, *entropy;
  uint8_t *bad;
  uint32_t n_rows;
  float cap;
  uint64_t logits_stride; /* of every part */
  void *scratch;
  uint64_t scratch_bytes;
} weft_head_join_args;

/* The first of the tokens that part i of n has: equally many chunks for all, and part 0 always has some. Of part n it
 * is their number. Pure. */
uint32_t weft_head_first(uint32_t n_vocab, uint32_t n_parts, uint32_t part);

#ifdef __cplusplus
}
#endif
#endif
