/* SPDX-License-Identifier: MIT */
/* The head of steps with canvases, shared out by rows: each shard makes the statistics and soft embeddings of some rows
 * with a copy of the output matrix, and writes them to where the first device has those of all.
 *
 * Law: shards have the same hidden rows, and a row's numbers depend on that row alone, so they are those that the first
 * device would have made. Rows are shared out where devices of the last part add up in one call, in steps with
 * canvases of which none is held to a format; all else, and what comes after statistics, is done on the first device.
 * Work there that follows runner_share_meet comes after what the others wrote. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_SHARE_H
#define WEFT_MODEL_RUNNER_RUNNER_SHARE_H

#include "model/runner/runner_internal.h"

/* What makes statistics on a device: the output matrix, and there the hidden rows of the step and its inputs. */
typedef struct runner_head {
  weft_device *device;
  const weft_weight *weight;
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
/* What heads read, to memory of a device. */
weft_status runner_upload_inputs(const device_runner *r, const runner_outputs *outputs, weft_device *device,
                                 int32_t *to);
weft_status runner_upload_allowed(const device_runner *r, weft_device *device, uint32_t *to);

typedef struct runner_share runner_share;

/* NULL in *out: nothing is shared out. Errors: NO_MEMORY, DEVICE. */
weft_status runner_share_open(device_runner *r, uint64_t inputs_words, runner_share **out);
void runner_share_close(runner_share *share); /* nothing of it may still run */
uint64_t runner_share_bytes(const runner_share *share);
/* Whether the step's rows are shared out; then the model's other shards make theirs as part of it. share may be NULL. */
bool runner_share_step(runner_share *share, const runner_outputs *outputs, weft_forward_args *args);
/* Rows with statistics [*first, *end) of n are those of a shard. */
void runner_share_rows(const device_runner *r, uint32_t n, uint32_t shard, uint32_t *first, uint32_t *end);
weft_status runner_share_meet(const device_runner *r);

#endif
