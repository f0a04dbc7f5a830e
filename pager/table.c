/* SPDX-License-Identifier: MIT */
/* Law: between the first block that its group still holds and the end of what is reserved, a block table has no hole. A
 * page that rows will write to has one reference and is published nowhere. Of a group of states the table has the state
 * at the last border before n_valid, and holes (state.c).
 *
 *   table of a windowed group    [ NONE NONE | page page page | page page ]
 *                                  0   first ^       n_valid ^    n_reserved ^ */
#include <string.h>

#include "pager/resize.h"
#include "pager/spill.h"

/* ---- copies ---------------------------------------------------------------------------------- */

static inline bool fills_page(const weft_page_copy *copy, weft_page page) {
  return copy->to == page && pager_copy_fills_page(copy->kind);
}

static inline bool reads_page(const weft_page_copy *copy, weft_page page) {
  return copy->from == page && (copy->kind == WEFT_PAGE_TO_PAGE || copy->kind == WEFT_PAGE_TO_HOST);
}

/* The page that a waiting copy fills becomes FREE, so the copy is dropped. But if a later copy reads the page, the copy
 * stays for that one's sake. It does no harm if the page is taken again: rows are written only after all copies ran. */
void pager_copies_cancel(weft_pager *pager, weft_page to) {
  pager->page[to].copy = 0;
  uint32_t n = pager->n_copies_waiting, at = n;
  while (at > 0 && !fills_page(&pager->copy[at - 1], to)) {
    if (reads_page(&pager->copy[at - 1], to)) return;
    at -= 1;
  }
  WEFT_CHECK(at > 0);
  pager->n_spills_waiting -= pager->copy[at - 1].kind != WEFT_PAGE_TO_PAGE;
  memmove(pager->copy + at - 1, pager->copy + at, (n - at) * sizeof *pager->copy);
  pager->n_copies_waiting -= 1;
}

void pager_copy_emit(weft_pager *pager, weft_copy_kind kind, uint32_t from, uint32_t to) {
  pager->copy[pager->n_copies_waiting++] = (weft_page_copy){.from = from, .to = to, .kind = kind};
  pager->n_spills_waiting += kind != WEFT_PAGE_TO_PAGE;
  pager->n_moves_waiting += weft_copy_is_move(kind);
  if (pager_copy_fills_page(kind)) pager->page[to].copy = 1;
}

/* What the host's slot holds can be brought back from now on. */
static void fill_slot(weft_pager *pager, uint32_t s) {
  pager->slot[s].waiting = 0;
  if (pager->slot[s].node != PAGER_NODE_NONE) pager_node_changed(pager, pager->slot[s].node);
}

/* A copy was taken. Its target is no longer waiting for a copy, unless another waiting copy has the same target. */
static void copy_was_taken(weft_pager *pager, const weft_page_copy *copy) {
  bool page = pager_copy_fills_page(copy->kind), move = weft_copy_is_move(copy->kind);
  pager->n_spills_waiting -= copy->kind != WEFT_PAGE_TO_PAGE;
  pager->n_moves_waiting -= move;
  if (move) return;
  for (uint32_t i = 0; i < pager->n_copies_waiting; i++) {
    const weft_page_copy *other = &pager->copy[i];
    if (page ? fills_page(other, copy->to) : other->kind == WEFT_PAGE_TO_HOST && other->to == copy->to) return;
  }
  if (page)
    pager->page[copy->to].copy = 0;
  else
    fill_slot(pager, copy->to);
}

uint32_t weft_pager_take_copies(weft_pager *pager, weft_page_copy *out, uint32_t max) {
  uint32_t n = pager->n_copies_waiting < max ? pager->n_copies_waiting : max;
  if (n == 0) return 0;
  memcpy(out, pager->copy, n * sizeof *out);
  pager->n_copies_waiting -= n;
  memmove(pager->copy, pager->copy + n, pager->n_copies_waiting * sizeof *out);
  for (uint32_t i = 0; i < n; i++) copy_was_taken(pager, &out[i]);
  return n;
}

uint32_t weft_pager_copies_max(const weft_pager *pager) {
  return pager->copy_capacity + pager->spill_capacity;
}

uint32_t weft_pager_copies_waiting(const weft_pager *pager) {
  return pager->n_copies_waiting;
}

uint32_t weft_pager_moves_waiting(const weft_pager *pager) {
  return pager->n_moves_waiting;
}

/* The entry of the partly filled last block, if rows must not be written to it in place. */
static inline weft_page *shared_entry(const weft_pager *pager, const pager_seq *s, const pager_group *group) {
  if ((s->n_valid & group->rest) == 0) return NULL; /* a state is never filled partly */
  weft_page *entry = &s->table[group->table_offset + (s->n_valid >> group->shift)];
  const pager_page *record = &pager->page[*entry];
  return record->pinned.references > 1 || record->node != PAGER_NODE_NONE ? entry : NULL;
}

static void copy_on_write(weft_pager *pager, weft_page *entry, uint32_t owner) {
  weft_page to = pager_page_take(pager, owner, pager->page[*entry].pinned.group_id);
  pager_copy_emit(pager, WEFT_PAGE_TO_PAGE, *entry, to);
  if (pager->page[*entry].node != PAGER_NODE_NONE) pager->page[*entry].keep = 1;
  pager_page_unpin(pager, *entry, PAGER_WARM);
  *entry = to;
  pager->stats.n_copies += 1;
}

/* ---- reserve, trim, commit ------------------------------------------------------------------- */

static inline uint32_t table_take_blocks(weft_pager *pager, weft_page *table, uint32_t from, uint32_t to,
                                         uint32_t owner, uint32_t group_id) {
  if (from >= to) return from;
  for (uint32_t block = from; block < to; block++) table[block] = pager_page_next(pager, owner, group_id);
  pager_count_taken(pager, owner, group_id, to - from);
  return to;
}

/* How many pages a reserve up to `end` takes for keys and values that the owner of the sequence pays for, and not the
 * operator. */
static uint32_t count_reserve_own(const weft_pager *pager, weft_seq seq, uint32_t end) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  uint32_t n_own = 0;
  for (uint32_t g = 0; g < model->n_plain; g++) {
    const pager_group *group = &model->group[g];
    uint32_t n_blocks = pager_blocks(group, end), n_public = pager_public_blocks(s, group);
    n_own += shared_entry(pager, s, group) != NULL && s->n_valid >> group->shift >= n_public;
    if (n_blocks > n_public) n_own += n_blocks - (s->end[g] > n_public ? s->end[g] : n_public);
  }
  return n_own;
}

/* has_states: of the sequence's model; a constant where this is called, so that models without states pay nothing. */
static inline __attribute__((always_inline)) weft_status reserve(weft_pager *pager, weft_seq seq, uint32_t n_rows,
                                                                 uint32_t n_sure, bool has_states) {
  pager_seq *s = pager_seq_of(pager, seq);
  const pager_model *model = &pager->model[s->model];
  if (n_rows == 0) return WEFT_OK;
  if (n_rows > pager->seq_tokens_max - s->n_valid) return WEFT_E_TOO_LARGE;
  uint32_t end = s->n_valid + n_rows > s->n_reserved ? s->n_valid + n_rows : s->n_reserved;
  uint32_t n_new = 0, n_copies = 0;
  for (uint32_t g = 0; g < model->n_plain; g++) {
    n_new += pager_blocks(&model->group[g], end) - s->end[g];
    n_copies += shared_entry(pager, s, &model->group[g]) != NULL;
  }
  pager_state_need need = {0};
  if (has_states) need = pager_states_need(pager, seq, end, s->n_valid + n_sure);
  n_new += need.n_next;
  uint32_t n_own = pager->owner[s->owner].limit != 0 ? count_reserve_own(pager, seq, end) + need.n_next_own : 0;
  uint64_t n_taken = (uint64_t)n_new + n_copies, headroom = weft_pager_headroom(pager);
  if (pager_over_limit(pager, s->owner, n_own)) return WEFT_QUOTA;
  if (n_taken > headroom) return WEFT_NO_BLOCKS;
  need.snapshots =
      n_taken + need.n_snapshots <= headroom && !pager_over_limit(pager, s->owner, n_own + need.n_snapshots_own);
  uint32_t n_forked = pager->n_copies_waiting - pager->n_spills_waiting;
  if (n_copies != 0 && n_copies > pager->copy_capacity - n_forked) return WEFT_NO_BLOCKS;
  for (uint32_t g = 0; g < model->n_plain; g++) {
    const pager_group *group = &model->group[g];
    weft_page *entry = n_copies == 0 ? NULL : shared_entry(pager, s, group);
    if (entry != NULL) copy_on_write(pager, entry, pager_payer(s, group, s->n_valid >> group->shift));
    weft_page *table = s->table + group->table_offset;
    uint32_t block = s->end[g], n_blocks = pager_blocks(group, end), group_id = pager_group_id(s->model, g);
    if (s->public_end != 0) {
      uint32_t n_public = pager_public_blocks(s, group);
      uint32_t to = n_public < n_blocks ? n_public : n_blocks;
      block = table_take_blocks(pager, table, block, to, WEFT_OWNER_OPERATOR, group_id);
    }
    s->end[g] = table_take_blocks(pager, table, block, n_blocks, s->owner, group_id);
  }
  if (has_states) pager_states_take(pager, seq, end, s->n_valid + n_sure, &need);
  s->n_reserved = end;
  return WEFT_OK;
}

weft_status weft_pager_reserve(weft_pager *pager, weft_seq seq, uint32_t n_rows, uint32_t n_sure) {
  bool has_states = pager->run != NULL && pager_has_states(&pager->model[pager_seq_of(pager, seq)->model]);
  return has_states ? reserve(pager, seq, n_rows, n_sure, true) : reserve(pager, seq, n_rows, n_sure, false);
}

void weft_pager_trim(weft_pager *pager, weft_seq seq) {
  pager_seq *s = pager_seq_of(pager, seq);
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = 0; g < model->n_plain; g++) {
    const weft_page *table = s->table + model->group[g].table_offset;
    uint32_t n_kept = pager_blocks(&model->group[g], s->n_valid), block = s->end[g];
    s->end[g] = n_kept;
    while (block-- > n_kept) pager_page_unpin(pager, table[block], PAGER_WARM);
  }
  if (pager->run != NULL) pager_states_trim(pager, seq);
  s->n_reserved = s->n_valid;
}

void weft_pager_commit(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n) {
  pager_seq *s = pager_seq_of(pager, seq);
  WEFT_CHECK(n <= s->n_reserved - s->n_valid);
  if (s->tail != PAGER_NODE_NONE) pager_publish(pager, seq, tokens, n);
  s->n_valid += n;
  if (pager->model[s->model].n_windowed != 0) pager_window_drop(pager, seq);
}

void weft_pager_prefetch(const weft_pager *pager, weft_seq seq) {
  const char *s = (const char *)&pager->seq[seq];
  for (uint32_t at = 0; at < sizeof(pager_seq); at += 64) __builtin_prefetch(s + at, 1);
}

/* ---- reading --------------------------------------------------------------------------------- */

uint32_t weft_pager_n_valid(const weft_pager *pager, weft_seq seq) {
  return pager_seq_of(pager, seq)->n_valid;
}

uint32_t weft_pager_n_reserved(const weft_pager *pager, weft_seq seq) {
  return pager_seq_of(pager, seq)->n_reserved;
}

uint32_t weft_pager_n_pages_held(const weft_pager *pager, weft_seq seq) {
  const pager_seq *s = pager_seq_of(pager, seq);
  uint32_t n_held = 0;
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = 0; g < model->n_plain; g++) n_held += s->end[g] - s->first[g];
  for (uint32_t g = model->n_plain; g < model->n_groups; g++)
    for (uint32_t block = s->first[g]; block < s->end[g]; block++)
      if (pager_table(pager, seq, g)[block] != WEFT_PAGE_NONE) n_held += model->group[g].layers.state_pages;
  return n_held;
}

const weft_page *weft_pager_table(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t *n_entries) {
  const pager_seq *s = pager_seq_of(pager, seq);
  WEFT_CHECK(group < pager->model[s->model].n_groups);
  *n_entries = s->end[group];
  return pager_table(pager, seq, group);
}

const weft_page *weft_pager_tables(const weft_pager *pager) {
  return pager->table;
}
