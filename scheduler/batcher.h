/* SPDX-License-Identifier: MIT */
/* The batcher of a lane: a plan becomes the flat arrays of model/batch.h. Loops only; it decides nothing.
 *
 * Law: causal works first, then canvas works, each in plan order; segment i of the batch is work i.
 * Block tables are not copied: table is the pager's own array and table_at says where in it. The
 * arrays are those of the batch before: a decode row that follows one of them in the same block is
 * that row moved on by one, and its request is not looked at. */
#ifndef WEFT_SCHEDULER_BATCHER_H
#define WEFT_SCHEDULER_BATCHER_H

#include "pager/pager.h"
#include "scheduler/plan.h"

typedef struct weft_batcher {
  uint32_t rows_max, segments_max, groups_max, copies_max;
  uint32_t block_shift; /* of the smallest block of the lane */
  uint32_t n_lead;      /* of the last batch: segments before the first that is no decode row */
  int32_t *token, *position;
  weft_segment *segment;
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *table_at;
  weft_page_copy *copy;
} weft_batcher;

weft_status weft_batcher_open(weft_batcher *batcher, const weft_runner_info *info, uint32_t rows_max,
                              uint32_t segments_max, uint32_t copies_max);
void weft_batcher_close(weft_batcher *batcher);
/* Valid until the next build and until the pager changes. */
weft_batch weft_batcher_build(weft_batcher *batcher, const weft_step_plan *plan, weft_pager *pager,
                              const weft_runner_info *info, uint64_t number);

#endif
