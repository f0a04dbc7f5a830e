/* SPDX-License-Identifier: MIT */
#include "scheduler/batcher.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

enum { AHEAD = 6 }; /* works between a prefetch and its use */

static uint32_t smallest_block_shift(const weft_runner_info *info) {
  uint32_t smallest = info->group[0].block_tokens;
  for (uint32_t g = 1; g < info->n_groups; g++) {
    if (info->group[g].block_tokens < smallest) smallest = info->group[g].block_tokens;
  }
  return (uint32_t)__builtin_ctz(smallest);
}

weft_status weft_batcher_open(weft_batcher *batcher, const weft_runner_info *info, uint32_t rows_max,
                              uint32_t segments_max, uint32_t copies_max) {
  uint32_t groups_max = info->n_groups;
  *batcher = (weft_batcher){.rows_max = rows_max,
                            .segments_max = segments_max,
                            .groups_max = groups_max,
                            .copies_max = copies_max,
                            .block_shift = smallest_block_shift(info)};
  while (batcher->n_plain < groups_max && info->group[batcher->n_plain].state_pages == 0) batcher->n_plain += 1;
  uint32_t n_states = groups_max - batcher->n_plain;
  batcher->token = weft_alloc(rows_max, sizeof *batcher->token);
  batcher->position = weft_alloc(rows_max, sizeof *batcher->position);
  batcher->segment = weft_alloc(segments_max, sizeof *batcher->segment);
  batcher->table_at = weft_alloc((size_t)segments_max * groups_max, sizeof *batcher->table_at);
  batcher->copy = weft_alloc(copies_max, sizeof *batcher->copy);
  bool ok = batcher->token != NULL && batcher->position != NULL && batcher->segment != NULL &&
            batcher->table_at != NULL && batcher->copy != NULL;
  if (n_states > 0) batcher->state = weft_alloc((size_t)rows_max * n_states, sizeof *batcher->state);
  ok = ok && (batcher->state != NULL || n_states == 0);
  for (uint32_t g = 0; ok && g < batcher->n_plain; g++) {
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
  weft_free(batcher->state);
  weft_free(batcher->copy);
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_free(batcher->kv_slot[g]);
  memset(batcher, 0, sizeof *batcher);
}

void weft_batcher_forget(weft_batcher *batcher) {
  batcher->n_lead = 0;
}

static void pack_positions(int32_t *position, uint32_t first, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) position[i] = (int32_t)(first + i);
}

static void pack_kv_slots(int64_t *slot, const weft_page *table, uint32_t block_tokens, uint32_t first, uint32_t n) {
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
  bool denoises = work->kind == WEFT_WORK_DENOISE;
  segment->mask = denoises ? WEFT_MASK_WHOLE : WEFT_MASK_CAUSAL;
  segment->stores = denoises ? WEFT_STORES_SCRATCH : WEFT_STORES_POOL;
  segment->pass = denoises ? WEFT_PASS_DECODER : WEFT_PASS_ENCODER;
  segment->token_source = (weft_token_source)work->source;
  segment->first_output = work->first_output;
  segment->n_outputs = work->n_outputs;
  segment->ask = (weft_ask)work->ask;
  segment->peeks = work->kind == WEFT_WORK_VERIFY && work->peeks;
  segment->block = denoises ? work->block : 0;
  segment->step = denoises ? work->step : 0;
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

/* Fills the placement: the offsets of the request's tables, and where the smallest block that holds `position` lies.
 * Such a block lies in one page of every group, and a page that is being written stays where it is. */
static void place_rows(weft_placement *placement, uint32_t block, weft_seq seq, uint32_t position,
                       const weft_batcher *b, const weft_pager *pager, const weft_runner_info *info) {
  const weft_page *tables = weft_pager_tables(pager);
  bool known = placement->block != UINT32_MAX; /* then its tables lie where they did */
  placement->block = block;
  for (uint32_t g = 0; g < b->n_plain; g++) {
    uint32_t n_entries, shift = (uint32_t)__builtin_ctz(info->group[g].block_tokens);
    if (!known) {
      placement->group[g].table_at = (uint32_t)(weft_pager_table(pager, seq, g, &n_entries) - tables);
    }
    weft_page page = tables[placement->group[g].table_at + (position >> shift)];
    uint32_t within = (position & (info->group[g].block_tokens - 1)) >> b->block_shift;
    placement->group[g].unit = (page << (shift - b->block_shift)) + within;
  }
}

/* back: 1 where move_on will add one position to the row, so that it is packed one position too low here. */
static void pack_decode(weft_batcher *b, const weft_work *work, uint32_t segment, uint32_t row, uint32_t back,
                        const weft_pager *pager, const weft_runner_info *info) {
  weft_placement *placement = &work->request->placement;
  uint32_t position = work->kv_len, shift = b->block_shift;
  b->token[row] = work->token;
  b->position[row] = (int32_t)position;
  if (placement->block != position >> shift) {
    place_rows(placement, position >> shift, work->request->seq, position, b, pager, info);
  }
  uint32_t n_plain = b->n_plain, within = position & ((1u << shift) - 1);
  uint32_t *restrict at = b->table_at + (size_t)segment * info->n_groups;
  int64_t *const *kv_slot = b->kv_slot;
  for (uint32_t g = 0; g < n_plain; g++) {
    at[g] = placement->group[g].table_at;
    kv_slot[g][row] = ((int64_t)placement->group[g].unit << shift) + within - back;
  }
}

static void pack_tables(weft_batcher *b, const weft_work *work, uint32_t segment, uint32_t first_row,
                        const weft_pager *pager, const weft_runner_info *info) {
  const weft_page *tables = weft_pager_tables(pager);
  uint32_t *at = b->table_at + (size_t)segment * info->n_groups;
  for (uint32_t g = 0; g < b->n_plain; g++) {
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

/* ---- states ----------------------------------------------------------------------------------- */

/* Where the pages of the request's state at a border are listed; NONE: it has none there. */
static uint32_t state_at(const weft_pager *pager, weft_seq seq, uint32_t g, uint32_t border) {
  const weft_page *pages = weft_pager_state(pager, seq, g, border);
  return pages == NULL ? WEFT_STATE_NONE : (uint32_t)(pages - weft_pager_tables(pager));
}

/* The state that a segment begins with in group g, and those that it writes; returns how many there are then. */
static uint32_t pack_states(weft_batcher *b, const weft_work *work, uint32_t segment, uint32_t g,
                            const weft_pager *pager, const weft_runner_info *info, uint32_t n_states) {
  uint32_t every = info->group[g].block_tokens, border = work->kv_len & ~(every - 1);
  uint32_t from = state_at(pager, work->request->seq, g, border);
  WEFT_CHECK((from == WEFT_STATE_NONE) == (border == 0));
  b->table_at[(size_t)segment * info->n_groups + g] = from;
  if (work->kind == WEFT_WORK_DENOISE) return n_states;
  for (border += every; border <= work->kv_len + work->n_rows; border += every) {
    uint32_t to = state_at(pager, work->request->seq, g, border);
    if (to == WEFT_STATE_NONE) continue; /* no row begins there */
    b->state[n_states++] = (weft_state_write){.segment = segment, .group = g, .position = border, .table_at = to};
  }
  return n_states;
}

/* Of all segments: a state may give way to an equal one that another request published first, so none is kept from
 * step to step. */
static uint32_t pack_all_states(weft_batcher *b, const weft_step_plan *plan, const weft_pager *pager,
                                const weft_runner_info *info) {
  uint32_t n_states = 0, n_segments = plan->n_causal + plan->n_canvas;
  for (uint32_t s = 0; s < n_segments; s++) {
    const weft_work *work = s < plan->n_causal ? &plan->causal[s] : &plan->canvas[s - plan->n_causal];
    for (uint32_t g = b->n_plain; g < info->n_groups; g++) n_states = pack_states(b, work, s, g, pager, info, n_states);
  }
  return n_states;
}

/* ---- copies ----------------------------------------------------------------------------------- */

static uint32_t pack_copies(weft_batcher *b, weft_pager *pager) {
  uint32_t n = weft_pager_take_copies(pager, b->copy, b->copies_max);
  WEFT_CHECK(n < b->copies_max); /* all of them: the next rows need them */
  return n;
}

/* ---- rows that go on -------------------------------------------------------------------------- */

typedef int64_t pair_of_slots __attribute__((vector_size(16), aligned(8), may_alias));

/* Rows [first, end) of the batch are rows [first + shift, end + shift) of the last batch, one position later. */
static void move_on(weft_batcher *b, uint32_t first, uint32_t end, uint32_t shift, uint32_t n_groups) {
  if (first == end) return;
  for (uint32_t g = 0; g < b->n_plain; g++) {
    int64_t *slot = b->kv_slot[g];
    uint32_t i = first;
    for (; i + 4 <= end; i += 4) {
      pair_of_slots a = *(const pair_of_slots *)&slot[i + shift];
      pair_of_slots c = *(const pair_of_slots *)&slot[i + shift + 2];
      *(pair_of_slots *)&slot[i] = a + 1;
      *(pair_of_slots *)&slot[i + 2] = c + 1;
    }
    for (; i < end; i++) slot[i] = slot[i + shift] + 1;
  }
  if (shift == 0) return;
  memmove(b->table_at + (size_t)first * n_groups, b->table_at + (size_t)(first + shift) * n_groups,
          (size_t)(end - first) * n_groups * sizeof *b->table_at);
}

/* Finds the row of the same slot in the last batch, where a few of the rows before it may have left. */
static uint32_t find_last(const weft_batcher *b, const weft_work *work, uint32_t from) {
  enum { LEFT_MAX = 8 };
  for (uint32_t i = from; i < b->n_lead && i < from + LEFT_MAX; i++) {
    if (b->segment[i].slot == work->slot) return i;
  }
  return from;
}

/* Whether row `from` of the last batch was this row's predecessor, in the same smallest block. In the step in which a
 * sequence takes a slot it has other rows than decode rows, so an equal slot means the same sequence. */
static inline bool goes_on(const weft_batcher *b, const weft_work *work, uint32_t from) {
  const weft_segment *last = &b->segment[from];
  return last->slot == work->slot && last->kv_len + 1 == work->kv_len &&
         (work->kv_len & ((1u << b->block_shift) - 1)) != 0;
}

static inline void prefetch_work(const weft_batcher *b, const weft_work *work) {
  bool new_block = (work->kv_len & ((1u << b->block_shift) - 1)) == 0;
  if (work->kind != WEFT_WORK_DECODE || new_block) __builtin_prefetch(&work->request->placement);
}

/* The decode rows that the batch begins with; returns how many. */
static uint32_t pack_lead(weft_batcher *b, const weft_step_plan *plan, const weft_pager *pager,
                          const weft_runner_info *info) {
  uint32_t s = 0, first = 0, shift = 0;
  for (; s < plan->n_causal && plan->causal[s].kind == WEFT_WORK_DECODE; s++) {
    const weft_work *work = &plan->causal[s];
    uint32_t from = s + shift;
    if (s + AHEAD < plan->n_causal) prefetch_work(b, &work[AHEAD]);
    if (from < b->n_lead && b->segment[from].slot != work->slot) {
      from = find_last(b, work, from);
      if (from != s + shift) {
        move_on(b, first, s, shift, info->n_groups);
        first = s;
        shift = from - s;
      }
    }
    if (from < b->n_lead && goes_on(b, work, from)) {
      b->segment[s].slot = work->slot;
      b->segment[s].kv_len = work->kv_len;
      b->segment[s].token_source = (weft_token_source)work->source;
      b->position[s] = (int32_t)work->kv_len;
      b->token[s] = work->token;
      continue;
    }
    if (shift > 0) {
      move_on(b, first, s, shift, info->n_groups);
      first = s + 1;
    }
    pack_segment(&b->segment[s], work, s);
    pack_decode(b, work, s, s, shift == 0, pager, info);
  }
  move_on(b, first, s, shift, info->n_groups);
  return s;
}

weft_batch weft_batcher_build(weft_batcher *b, const weft_step_plan *plan, weft_pager *pager,
                              const weft_runner_info *info, uint64_t number) {
  uint32_t n_segments = plan->n_causal + plan->n_canvas;
  WEFT_CHECK(n_segments <= b->segments_max);
  WEFT_CHECK(plan->n_rows <= b->rows_max);
  b->n_lead = pack_lead(b, plan, pager, info);
  uint32_t row = b->n_lead;
  for (uint32_t s = b->n_lead; s < plan->n_causal; s++) {
    const weft_work *work = &plan->causal[s];
    if (s + AHEAD < plan->n_causal) prefetch_work(b, &work[AHEAD]);
    pack_segment(&b->segment[s], work, row);
    if (work->kind == WEFT_WORK_DECODE) {
      pack_decode(b, work, s, row, 0, pager, info);
    } else {
      pack_rows(b, work, row);
      pack_tables(b, work, s, row, pager, info);
    }
    row += work->n_rows;
  }
  uint32_t n_stored = row;
  for (uint32_t s = plan->n_causal; s < n_segments; s++) {
    const weft_work *work = &plan->canvas[s - plan->n_causal];
    pack_segment(&b->segment[s], work, row);
    pack_rows(b, work, row);
    pack_tables(b, work, s, row, pager, info);
    row += work->n_rows;
  }
  weft_batch batch = {.number = number,
                      .n_rows = row,
                      .n_stored = n_stored,
                      .n_encoder = n_stored,
                      .n_segments = n_segments,
                      .n_groups = info->n_groups,
                      .token = b->token,
                      .position = b->position,
                      .segment = b->segment,
                      .table = weft_pager_tables(pager),
                      .table_at = b->table_at,
                      .state = b->state,
                      .n_states = b->n_plain < info->n_groups ? pack_all_states(b, plan, pager, info) : 0,
                      .copy = b->copy,
                      .n_copies = pack_copies(b, pager)};
  for (uint32_t g = 0; g < b->n_plain; g++) batch.kv_slot[g] = b->kv_slot[g];
  return batch;
}

weft_batch weft_batcher_drafts(weft_batcher *b, weft_request *const *request, uint32_t n, const weft_pager *pager,
                               const weft_runner_info *info) {
  WEFT_CHECK(n <= b->segments_max && n <= b->rows_max);
  b->n_lead = 0; /* no row goes on from these */
  for (uint32_t i = 0; i < n; i++) {
    const weft_request *r = request[i];
    const weft_work work = {.request = request[i],
                            .slot = r->slot,
                            .kv_len = r->n_tokens - 2,
                            .n_rows = 1,
                            .n_outputs = 1,
                            .kind = WEFT_WORK_VERIFY,
                            .source = WEFT_TOKENS_HOST,
                            .ask = WEFT_ASK_SAMPLE};
    pack_segment(&b->segment[i], &work, i);
    pack_tables(b, &work, i, i, pager, info);
    b->token[i] = r->tokens[r->n_tokens - 1];
    b->position[i] = (int32_t)r->n_tokens - 1;
  }
  weft_batch batch = {.n_rows = n,
                      .n_stored = n,
                      .n_encoder = n,
                      .n_segments = n,
                      .n_groups = info->n_groups,
                      .token = b->token,
                      .position = b->position,
                      .segment = b->segment,
                      .table = weft_pager_tables(pager),
                      .table_at = b->table_at};
  for (uint32_t g = 0; g < b->n_plain; g++) batch.kv_slot[g] = b->kv_slot[g];
  return batch;
}
