/* SPDX-License-Identifier: MIT */
/* The batcher of a lane: a plan becomes the flat arrays of model/batch.h (tokens, positions, KV slots, block tables).
 * It has loops only and decides nothing. Engine thread.
 *
 * Law. Causal works come first, then canvas works, each in the order of the plan; segment i of the batch is work i.
 * Block tables are not copied: the batch's table is the pager's own array, and table_at says where each segment's part
 * begins. The arrays keep what the last batch wrote: a decode row that follows its predecessor in the same block is
 * that row moved on by one position, so its request is not read again. */
#ifndef WEFT_SCHEDULER_BATCHER_H
#define WEFT_SCHEDULER_BATCHER_H

#include "pager/pager.h"
#include "scheduler/plan.h"

typedef struct weft_batcher {
  uint32_t rows_max, segments_max, groups_max, copies_max;
  uint32_t n_plain;          /* groups of keys and values; those of states come after them */
  uint32_t block_shift;      /* log2 of the tokens of the smallest block of the lane */
  uint32_t n_lead;           /* of the last batch: decode rows before the first segment of another kind */
  int32_t *token, *position; /* [rows_max], owned like all arrays here */
  weft_segment *segment;     /* [segments_max] */
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *table_at;
  weft_state_write *state; /* [rows_max] for each group of states */
  weft_page_copy *copy;
} weft_batcher;

weft_status weft_batcher_open(weft_batcher *batcher, const weft_runner_info *info, uint32_t rows_max,
                              uint32_t segments_max, uint32_t copies_max);
void weft_batcher_close(weft_batcher *batcher);
/* No row of the next batch goes on from one of the last: the pager has moved pages. */
void weft_batcher_forget(weft_batcher *batcher);
/* The batch points into the arrays above and into the pager: valid until the next build, and until the pager changes.
 */
weft_batch weft_batcher_build(weft_batcher *batcher, const weft_step_plan *plan, weft_pager *pager,
                              const weft_runner_info *info, uint64_t number);
/* The last rows with keys of n requests, one segment each, for drafts of what follows their last tokens
 * (model/runner/runner.h, draft); n is at most segments_max. The same arrays. */
weft_batch weft_batcher_drafts(weft_batcher *batcher, weft_request *const *request, uint32_t n, const weft_pager *pager,
                               const weft_runner_info *info);

#endif
