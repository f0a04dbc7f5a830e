/* SPDX-License-Identifier: MIT */
/* The batcher: a plan becomes the flat arrays of model/batch.h. Loops only; it decides nothing.
 *
 * Law: causal works first, then canvas works, each in plan order; segment i of the batch is work i.
 * Block tables are not copied: table is the pager's own array and table_at says where in it. The
 * arrays are reused by the next batch. */
#ifndef WEFT_SCHEDULER_BATCHER_H
#define WEFT_SCHEDULER_BATCHER_H

#include "pager/pager.h"
#include "scheduler/plan.h"

typedef struct weft_batcher {
  uint32_t rows_max, segments_max, groups_max, copies_max;
  uint32_t block_shift; /* of the smallest block of the lane whose plan is being packed */
  int32_t *token, *position;
  weft_segment *segment;
  int64_t *kv_slot[WEFT_BATCH_GROUPS_MAX];
  uint32_t *table_at;
  weft_batch_copy *copy;
} weft_batcher;

weft_status weft_batcher_open(weft_batcher *batcher, uint32_t rows_max, uint32_t segments_max,
                              uint32_t groups_max, uint32_t copies_max);
void weft_batcher_close(weft_batcher *batcher);
/* Valid until the next build and until the pager changes. */
weft_batch weft_batcher_build(weft_batcher *batcher, const weft_plan *plan, weft_pager *pager,
                              const weft_runner_info *info, uint64_t number);

#endif
