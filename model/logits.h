/* SPDX-License-Identifier: MIT */
/* Logits of given tokens, for comparison with other implementations and for measures of quality: the causal pass over
 * each sequence, and optionally denoise passes of canvases after it, with self-conditioning from given logits.
 *
 * Law: the sequences of one call share steps, as many rows to a step as the model was opened for, and a row's logits do
 * not depend on the others. Rows are given in order: those of the tokens, sequence by sequence, then those of the
 * canvases, sequence by sequence; only rows that are wanted go through the head. The pass owns a small pool of pages,
 * and all memory is taken at open. */
#ifndef WEFT_MODEL_LOGITS_H
#define WEFT_MODEL_LOGITS_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_logits weft_logits;

typedef struct weft_logits_config {
  weft_model *model;
  weft_model_limits limits;                           /* those the model was opened with: they bound a step */
  uint32_t tokens_max;                                /* tokens of the longest sequence, without its canvases; >= 1 */
  uint32_t sequences_max;                             /* sequences of one call; >= 1 */
  uint32_t head_rows;                                 /* rows that go through the head at once; >= 1 */
  void (*tap)(void *self, const weft_tapped *tapped); /* shown the stages of each step; NULL: nobody is */
  void *tap_self;
} weft_logits_config;

typedef struct weft_logits_sequence {
  const int32_t *tokens;
  uint32_t n_tokens; /* >= 1 */
  uint32_t first;    /* the rows of tokens[first ..] are wanted; n_tokens: none */
  /* Canvases, each denoised for one pass over the keys of the tokens alone. */
  const int32_t *canvas; /* [n_canvases, canvas_length] */
  uint32_t n_canvases;
  const uint8_t *wanted; /* [n_canvases * canvas_length], 0: the row is not wanted; NULL: all are */
  const float *previous; /* optional [n_canvases * canvas_length, n_vocab]: softcapped logits of the step before */
  float previous_temperature;
} weft_logits_sequence;

/* Which row it is: that of token `row` of the sequence or, from n_tokens on, that of position row - n_tokens of its
 * canvases, which count one behind another. */
typedef struct weft_logits_row {
  uint32_t sequence, row;
  bool bad; /* a logit was not finite before the soft cap */
} weft_logits_row;

/* Takes logits [n_rows, n_vocab]. A result other than 0 ends the run with WEFT_E_IO. */
typedef int (*weft_logits_take)(void *self, const weft_logits_row *row, uint32_t n_rows, const float *logits,
                                uint32_t n_vocab);

weft_status weft_logits_open(const weft_logits_config *config, weft_logits **out, weft_error *error);
void weft_logits_close(weft_logits *logits); /* NULL is fine */
weft_status weft_logits_run(weft_logits *logits, const weft_logits_sequence *sequence, uint32_t n_sequences,
                            weft_logits_take take, void *self, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
