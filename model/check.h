/* SPDX-License-Identifier: MIT */
/* A device against ref, op by op, over a real model.
 *
 * Law: the same tokens run on both. Every op of ref gets the inputs that the device's op had, as the device computed
 * them (keys and values of pages excepted), so an op that differs is where the fault lies. An output row may be off by
 * `tolerance` times the root of its mean square. Then each row's statistics are compared with the device's own logits
 * on the host: the largest logit's token, the token drawn, the entropy, and per pass the soft embedding of one row.
 * ref is slow, so its work can be bounded: products with weights (matmul, experts, head_rows, soft) are then computed
 * for some of their rows, by the same share in every op, but for one row of each at least. */
#ifndef WEFT_MODEL_CHECK_H
#define WEFT_MODEL_CHECK_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_check_args {
  const weft_gguf *gguf;
  weft_device *device, *ref;
  const int32_t *tokens;
  uint32_t n_tokens;     /* >= 1 */
  const int32_t *canvas; /* optional, of the model's canvas length: one denoise pass on top */
  uint32_t n_canvas;
  float tolerance;   /* > 0 */
  uint64_t work_max; /* weights that ref reads and multiplies in all, about; 0: as many as it takes */
  void (*progress)(void *self, uint64_t done, uint64_t total); /* or NULL: of that work, while ref computes */
  void *progress_self;
  /* For tests: what the device gave, before it is compared. op: an op's name, or "argmax", "drawn", "entropy",
   * "soft row"; values: f32, but i32 of "argmax" and "drawn". */
  void (*touch)(void *self, uint32_t layer, const char *op, void *values, uint64_t n);
  void *touch_self;
} weft_check_args;

typedef struct weft_check_report {
  bool agrees;
  uint32_t n_ops, n_rows;            /* compared: ops, rows of statistics */
  uint64_t product_rows, rows_taken; /* of products: rows in all, rows that ref computed */
  /* The first op that differs, or the one that came closest to it. layer: UINT32_MAX for ops after the last layer. */
  char op[24];
  uint32_t layer, index; /* index: which op of that layer, from 0 */
  uint32_t row;
  double error; /* in units of what is allowed */
} weft_check_report;

/* An error of the check itself (memory, files, a device): a status; a difference: report->agrees false. */
weft_status weft_check(const weft_check_args *args, weft_check_report *report, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
