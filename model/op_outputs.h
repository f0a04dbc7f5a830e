/* SPDX-License-Identifier: MIT */
/* What an op writes, found from its name and its arguments: for whoever watches a device (weft_op_watch) and compares
 * what ops gave.
 *
 * Law: arrays of f32, or of ids, one row after another. Keys and values that qkv stores in pages are not among them.
 * Rows that a norm or attention leaves in a form of the backend's own are marked by it, and no f32. */
#ifndef WEFT_MODEL_OP_OUTPUTS_H
#define WEFT_MODEL_OP_OUTPUTS_H

#include "kernels/ops.h"

enum { OP_OUTPUTS_MAX = 1 + WEFT_NORM_THEN_MAX };

typedef struct op_output {
  void *data; /* device memory */
  uint64_t n_rows, n_cols, stride;
  bool is_ids;
  weft_rows_form form;
} op_output;

/* How many arrays the op writes; 0 of an op that is not known here. */
uint32_t op_outputs_of(const char *op, const void *args, op_output out[OP_OUTPUTS_MAX]);

#endif
