/* SPDX-License-Identifier: MIT */
/* Logits of one sequence, for comparison with other implementations: the causal pass over all tokens, and optionally
 * one denoise pass of a canvas on top, with self-conditioning from given logits. Owns a small pool of its own. */
#ifndef WEFT_MODEL_LOGITS_H
#define WEFT_MODEL_LOGITS_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_logits_args {
  weft_device *device;
  weft_model *model;
  weft_model_limits limits; /* those the model was opened with; bounds the chunk */
  const int32_t *tokens;
  uint32_t n_tokens;     /* >= 1 */
  const int32_t *canvas; /* optional */
  uint32_t n_canvas;     /* the model's canvas length */
  const float *previous; /* optional [n_canvas, n_vocab]: softcapped logits of the step before */
  float previous_temperature;
  /* Rows in order: of the tokens when canvas is NULL, else of the canvas only. Non-zero stops. */
  int (*row)(void *self, const float *logits, uint32_t n_vocab);
  void *self;
} weft_logits_args;
weft_status weft_logits(const weft_logits_args *args, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
