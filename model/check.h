/* SPDX-License-Identifier: MIT */
/* Compares devices with the backend ref, op by op, over a real model (weft check).
 *
 * Law: the same tokens run on both; of several devices each computes its layers. Every op of ref gets the inputs that
 * the device's op had, as the device computed them (except keys and values in pages), so the first op that differs is
 * the faulty one. An output row may be off by `tolerance` times the root of its mean square. Then each row's
 * statistics are compared with the device's own logits on the host: the largest logit's token, the token drawn, the
 * entropy, and per pass the soft embedding of one row. ref is slow, so its work can be bounded: products with weights
 * (matmul, experts, head_rows, soft) are then computed for the same share of the rows of every op, and for one row of
 * each at least. */
#ifndef WEFT_MODEL_CHECK_H
#define WEFT_MODEL_CHECK_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_check_args {
  const weft_gguf *gguf;
  /* The devices that are compared, and how the layers are shared out to them, not by tensor; and as many devices of the
   * backend ref, with the same cuts, because ops do not cross a cut. */
  const weft_split *split, *ref;
  const int32_t *tokens;
  uint32_t n_tokens;     /* >= 1 */
  const int32_t *canvas; /* optional, of the model's canvas length: one denoise pass after the tokens */
  uint32_t n_canvas;
  float tolerance;   /* > 0 */
  uint64_t work_max; /* about how many weights ref may multiply in all; 0: as many as all rows need */
  void (*progress)(void *self, uint64_t done, uint64_t total); /* or NULL: called with that work while ref computes */
  void *progress_self;
  /* For tests, which change a value to see that the check finds it; called with what the device gave, before that is
   * compared. op: the name of an op, or "argmax", "drawn", "entropy", "soft row"; values: i32 of "argmax" and "drawn",
   * else f32. */
  void (*touch)(void *self, uint32_t layer, const char *op, void *values, uint64_t n);
  void *touch_self;
} weft_check_args;

typedef struct weft_check_report {
  bool agrees;
  uint32_t n_ops, n_rows;            /* how many ops, and rows of statistics, were compared */
  uint64_t product_rows, rows_taken; /* rows of products in all, and those that ref computed */
  /* The first op that differs, or if none does the one with the largest error. layer: UINT32_MAX for ops after the last
   * layer. */
  char op[24];
  uint32_t layer, index; /* index: which op of that layer, from 0 */
  uint32_t row;
  double error; /* in units of what is allowed */
} weft_check_report;

/* A difference is no failure: report->agrees is then false. The status is that of the check itself (memory, files, a
 * device). INVALID: a split by tensor, whose ops have parts of rows that ref has no counterpart for. */
weft_status weft_check(const weft_check_args *args, weft_check_report *report, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
