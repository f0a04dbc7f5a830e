/* SPDX-License-Identifier: MIT */
/* The head of a step, shared out among the shards of the last part, where these exchange in one call.
 *
 * Steps with canvases are shared out by rows: each shard makes the statistics and soft embeddings of some rows with a
 * copy of the output matrix. Other steps are shared out by the vocabulary: each shard makes the products of all rows
 * with the rows of its tokens, which is all that a model without canvases has of the matrix there. Of plain rows what
 * is known of chunks goes to the first device, which joins them and looks drawn tokens up in the logits of whoever has
 * them (kernels/head_parts.h); of few rows that need their logits the products do. Of many such rows, and of scored
 * rows, the products are made after the step, for as many rows at a time as logits have room (runner_share_logits),
 * where no device has the whole matrix (model/shards.h, token ranges).
 *
 * Law: shards have the same hidden rows, and a row's numbers depend on that row alone, and a chunk's on that chunk: so
 * they are those that the first device would have made. All else (canvases that are held to a format, and where the
 * first device has the whole matrix many rows that need their logits and scored rows), and what comes after, is done on
 * the first device. What it does after runner_share_meet comes after what the others wrote. A shard writes to logits of
 * its own, or to the first device, only behind an exchange that the first device came to when it had read what was
 * there. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_SHARE_H
#define WEFT_MODEL_RUNNER_RUNNER_SHARE_H

#include "model/runner/runner_internal.h"

/* What makes statistics on a device: the output matrix, and there the hidden rows of the step and its inputs. */
typedef struct runner_head {
  weft_device *device;
  const weft_weight *weight, *canvases; /* canvases: its form for their rows (kernels/canvas_head.h) */
  const float *hidden;
  int32_t *inputs;
  const uint32_t **allowed_of; /* as in device_runner; NULL: none is suppressed */
  void *scratch;
  uint64_t scratch_bytes;
} runner_head;

/* Statistics of n rows from `first` of those with statistics; their logits are left in `logits`, unless it is NULL.
 * head NULL: that of the last device. */
weft_status runner_head_stats(device_runner *r, const runner_head *head, const runner_outputs *outputs, uint32_t first,
                              uint32_t n, float *logits);
/* Bytes of scratch for that, by the arguments of rows of canvases: plain rows beside them, whose head may lie in another
 * form, need other ones. */
uint64_t runner_stats_scratch(weft_device *device, const weft_weight *head, weft_head_stats_args canvases);
/* The same by the vocabulary, of plain rows: what a shard makes of its tokens, and what the first device makes of all.
 * range, parts: what does not depend on the rows. */
weft_status runner_head_part(const device_runner *r, const runner_head *head, const runner_outputs *outputs,
                             const weft_head_part_args *range, uint32_t first, uint32_t n);
weft_status runner_head_join(const device_runner *r, const runner_outputs *outputs, const weft_head_join_args *parts,
                             uint32_t first, uint32_t n);
/* What heads read, to memory of a device. */
weft_status runner_upload_inputs(const device_runner *r, const runner_outputs *outputs, weft_device *device,
                                 int32_t *to);
weft_status runner_upload_allowed(const device_runner *r, weft_device *device, uint32_t *to);

typedef struct runner_share runner_share;

/* NULL in *out: nothing is shared out. Errors: NO_MEMORY, DEVICE. */
weft_status runner_share_open(device_runner *r, uint64_t inputs_words, runner_share **out);
void runner_share_close(runner_share *share); /* nothing of it may still run */
uint64_t runner_share_bytes(const runner_share *share);
/* What the first device's scratch must have for its range of the vocabulary; 0: it will have none. */
uint64_t runner_share_scratch(const device_runner *r);
/* Whether the step's head is shared out; then the model's other shards do their share as part of it. share may be
 * NULL. */
bool runner_share_step(runner_share *share, const runner_outputs *outputs, weft_forward_args *args);
/* Of a step with canvases: rows with statistics [*first, *end) of n are those of a shard. */
void runner_share_rows(const device_runner *r, uint32_t n, uint32_t shard, uint32_t *first, uint32_t *end);
weft_status runner_share_meet(const device_runner *r);
/* Of a step without: what a shard does; shard 0 then has the statistics of all plain rows. */
weft_status runner_share_tokens(runner_share *share, uint32_t shard, const runner_head *head);
/* Where no device has the whole matrix, its shape, for ops that read none of its numbers; else NULL. share may be
 * NULL. */
const weft_weight *runner_share_ranges(const runner_share *share);
/* Then, after a step: the products of rows [first, first + n) of its outputs, n at most logit_rows_max, into
 * d_logits. */
weft_status runner_share_logits(runner_share *share, uint32_t first, uint32_t n);
/* Whether the products of all rows of the step that need their logits are in d_logits. share may be NULL. */
bool runner_share_made(const runner_share *share);

#endif
