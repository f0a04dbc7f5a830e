/* SPDX-License-Identifier: MIT */
#include "scheduler/batcher.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

enum { AHEAD = 6 }; /* works between a prefetch and its use */

_Static_assert(sizeof(weft_batch_copy) == sizeof(weft_page_copy), "the same copy");
_Static_assert((int)WEFT_COPY_FROM_FILE == (int)WEFT_FILE_TO_HOST, "the same kinds");

weft_status weft_batcher_open(weft_batcher *batcher, uint32_t rows_max, uint32_t segments_max,
                              uint32_t groups_max, uint32_t copies_max) {
  *batcher = (weft_batcher){.rows_max = rows_max,
                            .segments_max = segments_max,
                            .groups_max = groups_max,
                            .copies_max = copies_max};
  batcher->token = weft_alloc(rows_max, sizeof *batcher->token);
  batcher->position = weft_alloc(rows_max, sizeof *batcher->position);
  batcher->segment = weft_alloc(segments_max, sizeof *batcher->segment);
  batcher->table_at = weft_alloc((size_t)segments_max * groups_max, sizeof *batcher->table_at);
  batcher->copy = weft_alloc(copies_max, sizeof *batcher->copy);
  bool ok = batcher->token != NULL && batcher->position != NULL && batcher->segment != NULL &&
            batcher->table_at != NULL && batcher->copy != NULL;
  for (uint32_t g = 0; ok && g < groups_max; g++) {
    batcher->kv_slot[g] = weft_alloc(rows_max, sizeof *batcher->kv_slot[g]);
    ok = batcher->kv_slot[g] != NULL;
  }
  if (ok) return WEFT_OK;
  weft_batcher_close(batcher);
  return WEFT_E_NO_MEMORY;
}

void weft_batcher_close(weft_batcher *batcher) {
  weft_free(batcher->token);
  weft_free(batcher->position);
  weft_free(batcher->segment);
  weft_free(batcher->table_at);
  weft_free(batcher->copy);
  for (uint32_t g = 0; g < WEFT_BATCH_GROUPS_MAX; g++) weft_free(batcher->kv_slot[g]);
  memset(batcher, 0, sizeof *batcher);
}

static void pack_positions(int32_t *position, uint32_t first, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) position[i] = (int32_t)(first + i);
}

static void pack_kv_slots(int64_t *slot, const weft_page *table, uint32_t block_tokens,
                          uint32_t first, uint32_t n) {
  uint32_t shift = (uint32_t)__builtin_ctz(block_tokens);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t position = first + i;
    slot[i] = ((int64_t)table[position >> shift] << shift) | (position & (block_tokens - 1));
  }
}

static inline void pack_segment(weft_segment *segment, const weft_work *work, uint32_t first_row) {
  segment->slot = work->slot;
  segment->first_row = first_row;
  segment->n_rows = work->n_rows;
  segment->kv_len = work->kv_len;
  segment->canvas = work->kind == WEFT_WORK_DENOISE;
  segment->token_source = (weft_token_source)work->source;
  segment->output = (weft_output)work->output;
  segment->block = work->block;
  segment->step = work->step;
}

static void pack_rows(weft_batcher *b, const weft_work *work, uint32_t first_row) {
  uint32_t n = work->n_rows;
  int32_t *token = b->token + first_row;
  if (work->source == WEFT_TOKENS_HOST) {
    memcpy(token, work->request->tokens + work->kv_len, (size_t)n * sizeof *token);
  } else {
    memset(token, 0, (size_t)n * sizeof *token);
  }
  pack_positions(b->position + first_row, work->kv_len, n);
}

/* Offsets of the request's tables and where the smallest block that holds `position` lies. Such a
 * block lies in one page of every group, and a page that is being written stays where it is. */
static void place(weft_placement *placement, uint32_t block, weft_seq seq, uint32_t position,
                  const weft_batcher *b, const weft_pager *pager, const weft_runner_info *info) {
  const weft_page *tables = weft_pager_tables(pager);
  placement->block = block;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    uint32_t n_entries, shift = (uint32_t)__builtin_ctz(info->group[g].block_tokens);
    const weft_page *table = weft_pager_table(pager, seq, g, &n_entries);
    weft_page page = position >> shift < n_entries ? table[position >> shift] : 0;
    uint32_t within = (position & (info->group[g].block_tokens - 1)) >> b->block_shift;
    placement->group[g].table_at = (uint32_t)(table - tables);
    placement->group[g].unit = (page << (shift - b->block_shift)) + within;
  }
}

static void pack_decode(weft_batcher *b, const weft_work *work, uint32_t segment, uint32_t row,
                        const weft_pager *pager, const weft_runner_info *info) {
  weft_placement *placement = &work->request->placement;
  uint32_t position = work->kv_len, shift = b->block_shift;
  b->token[row] = work->source == WEFT_TOKENS_HOST ? work->request->tokens[position] : 0;
  b->position[row] = (int32_t)position;
  if (placement->block != position >> shift) {
    place(placement, position >> shift, work->request->seq, position, b, pager, info);
  }
  uint32_t n_groups = info->n_groups, within = position & ((1u << shift) - 1);
  uint32_t *restrict at = b->table_at + (size_t)segment * n_groups;
  int64_t *const *kv_slot = b->kv_slot;
  for (uint32_t g = 0; g < n_groups; g++) {
    at[g] = placement->group[g].table_at;
    kv_slot[g][row] = ((int64_t)placement->group[g].unit << shift) + within;
  }
}

static void pack_tables(weft_batcher *b, const weft_work *work, uint32_t segment,
                        uint32_t first_row, const weft_pager *pager, const weft_runner_info *info) {
  const weft_page *tables = weft_pager_tables(pager);
  uint32_t *at = b->table_at + (size_t)segment * info->n_groups;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    uint32_t n_entries;
    const weft_page *table = weft_pager_table(pager, work->request->seq, g, &n_entries);
    at[g] = (uint32_t)(table - tables);
    int64_t *slot = b->kv_slot[g] + first_row;
    if (work->kind == WEFT_WORK_DENOISE) {
      for (uint32_t i = 0; i < work->n_rows; i++) slot[i] = -1;
    } else {
      pack_kv_slots(slot, table, info->group[g].block_tokens, work->kv_len, work->n_rows);
    }
  }
}

static uint32_t pack_copies(weft_batcher *b, weft_pager *pager) {
  uint32_t n = weft_pager_take_copies(pager, (weft_page_copy *)(void *)b->copy, b->copies_max);
  WEFT_CHECK(n < b->copies_max); /* all of them: the next rows need them */
  return n;
}

static uint32_t smallest_block_shift(const weft_runner_info *info) {
  uint32_t smallest = info->group[0].block_tokens;
  for (uint32_t g = 1; g < info->n_groups; g++) {
    if (info->group[g].block_tokens < smallest) smallest = info->group[g].block_tokens;
  }
  return (uint32_t)__builtin_ctz(smallest);
}

static inline void prefetch(const weft_work *work) {
  __builtin_prefetch(&work->request->placement);
  if (work->source == WEFT_TOKENS_HOST) __builtin_prefetch(work->request->tokens + work->kv_len);
}

weft_batch weft_batcher_build(weft_batcher *b, const weft_plan *plan, weft_pager *pager,
                              const weft_runner_info *info, uint64_t number) {
  uint32_t n_segments = plan->n_causal + plan->n_canvas, row = 0;
  WEFT_CHECK(n_segments <= b->segments_max);
  WEFT_CHECK(plan->n_rows <= b->rows_max);
  b->block_shift = smallest_block_shift(info);
  for (uint32_t s = 0; s < plan->n_causal; s++) {
    const weft_work *work = &plan->causal[s];
    if (s + AHEAD < plan->n_causal) prefetch(&work[AHEAD]);
    pack_segment(&b->segment[s], work, row);
    if (work->kind == WEFT_WORK_DECODE) {
      pack_decode(b, work, s, row, pager, info);
    } else {
      pack_rows(b, work, row);
      pack_tables(b, work, s, row, pager, info);
    }
    row += work->n_rows;
  }
  uint32_t n_causal_rows = row;
  for (uint32_t s = plan->n_causal; s < n_segments; s++) {
    const weft_work *work = &plan->canvas[s - plan->n_causal];
    pack_segment(&b->segment[s], work, row);
    pack_rows(b, work, row);
    pack_tables(b, work, s, row, pager, info);
    row += work->n_rows;
  }
  weft_batch batch = {.number = number,
                      .n_rows = row,
                      .n_causal = n_causal_rows,
                      .n_segments = n_segments,
                      .n_groups = info->n_groups,
                      .token = b->token,
                      .position = b->position,
                      .segment = b->segment,
                      .table = weft_pager_tables(pager),
                      .table_at = b->table_at,
                      .copy = b->copy,
                      .n_copies = pack_copies(b, pager)};
  for (uint32_t g = 0; g < info->n_groups; g++) batch.kv_slot[g] = b->kv_slot[g];
  return batch;
}
