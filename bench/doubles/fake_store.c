/* SPDX-License-Identifier: MIT */
#include "bench/doubles/fake_store.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/random.h"

weft_status weft_fake_store_open(uint32_t n_pages, uint32_t block_tokens_max, weft_fake_store **out) {
  *out = NULL;
  weft_fake_store *store = weft_alloc(1, sizeof *store);
  if (store == NULL) return WEFT_E_NO_MEMORY;
  store->n_pages = store->n_open = n_pages;
  store->stride = block_tokens_max;
  store->cell = weft_alloc((size_t)n_pages * block_tokens_max, sizeof *store->cell);
  store->note = weft_alloc(n_pages, sizeof *store->note);
  if (store->cell == NULL || store->note == NULL) {
    weft_fake_store_close(store);
    return WEFT_E_NO_MEMORY;
  }
  *out = store;
  return WEFT_OK;
}

weft_status weft_fake_store_add_tiers(weft_fake_store *store, uint32_t n_host, uint32_t n_file, uint64_t seed,
                                      uint32_t fail_one_in) {
  size_t n = (size_t)store->n_pages + n_host + n_file;
  cell *cells = weft_alloc(n * store->stride, sizeof *cells);
  if (cells == NULL) return WEFT_E_NO_MEMORY;
  weft_free(store->cell);
  store->cell = cells;
  store->n_host = n_host;
  store->n_file = n_file;
  store->fail_seed = seed;
  store->fail_one_in = fail_one_in;
  return WEFT_OK;
}

void weft_fake_store_slow_moves(weft_fake_store *store, uint32_t looks) {
  store->looks_max = looks;
}

uint32_t weft_fake_store_n_moving(const weft_fake_store *store) {
  return store->n_moves;
}

void weft_fake_store_end_moves(weft_fake_store *store) {
  for (uint32_t i = 0; i < store->n_moves; i++) store->move[i].due = 0;
}

void weft_fake_store_fail(weft_fake_store *store, uint32_t one_in) {
  store->fail_one_in = one_in;
}

void weft_fake_store_close(weft_fake_store *store) {
  if (store == NULL) return;
  weft_free(store->cell);
  weft_free(store->note);
  weft_free(store);
}

/* ---- states ---------------------------------------------------------------------------------- */

/* What page i of a state holds. */
static uint64_t part_of(uint64_t value, uint32_t i) {
  return i == 0 ? value : weft_mix64(value + i);
}

void weft_fake_state_write(weft_fake_store *store, const fake_state *state, uint64_t value) {
  for (uint32_t i = 0; i < state->n_pages; i++) {
    if (state->page[i] >= store->n_open) continue; /* shows when it is read */
    store->cell[(uint64_t)state->page[i] * store->stride] = (cell){.value = part_of(value, i),
                                                                   .position = state->border,
                                                                   .group = (uint16_t)state->group,
                                                                   .runner = (uint16_t)(state->runner + 1)};
  }
}

bool weft_fake_state_read(const weft_fake_store *store, const fake_state *state, uint64_t *value) {
  for (uint32_t i = 0; i < state->n_pages; i++) {
    if (state->page[i] >= store->n_open) return false;
    const cell *c = &store->cell[(uint64_t)state->page[i] * store->stride];
    if (i == 0) *value = c->value;
    if (c->value != part_of(*value, i) || c->position != state->border || c->group != state->group ||
        c->runner != state->runner + 1)
      return false;
  }
  return true;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint64_t draw_roll(weft_fake_store *store) {
  return weft_mix64(store->fail_seed ^ weft_mix64(++store->n_rolls));
}

static bool roll_failure(weft_fake_store *store) {
  return store->fail_one_in > 0 && draw_roll(store) % store->fail_one_in == 0;
}

static void end_copy(weft_fake_store *store, const weft_copy_end *end) {
  WEFT_CHECK(store->n_ended < COPIES_MAX);
  store->ended[store->n_ended++] = *end;
}

enum { COPY_FAILED = 16 }; /* added to the kind */

void weft_fake_store_judge_copies(weft_fake_store *store, weft_page_copy *copy, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (copy[i].kind != WEFT_PAGE_TO_HOST || !roll_failure(store)) continue;
    end_copy(store, &(weft_copy_end){.copy = copy[i]});
    copy[i].kind += COPY_FAILED;
  }
}

static void copy_cells(weft_fake_store *store, const weft_page_copy *copy, uint32_t kind, bool failed) {
  static const uint8_t from_tier[] = {0, 0, 1, 1, 2}, to_tier[] = {0, 1, 0, 2, 1};
  const uint64_t base[] = {0, store->n_pages, (uint64_t)store->n_pages + store->n_host};
  size_t n_bytes = store->stride * sizeof *store->cell;
  cell *to = store->cell + (base[to_tier[kind]] + copy->to) * store->stride;
  const cell *from = store->cell + (base[from_tier[kind]] + copy->from) * store->stride;
  WEFT_CHECK(from_tier[kind] != 0 || copy->from < store->n_open);
  WEFT_CHECK(to_tier[kind] != 0 || copy->to < store->n_open);
  if (failed)
    memset(to, 0, n_bytes); /* who reads this is a violation */
  else
    memcpy(to, from, n_bytes);
}

static void begin_move(weft_fake_store *store, const weft_page_copy *copy) {
  WEFT_CHECK(store->n_moves < WEFT_MOVES_MAX);
  fake_move *m = &store->move[store->n_moves++];
  bool never = store->looks_max == UINT32_MAX && draw_roll(store) % 8 == 0;
  uint64_t looks = store->looks_max == UINT32_MAX ? LOOKS_OF_SOME : store->looks_max;
  *m = (fake_move){.end = {.copy = *copy, .ok = !roll_failure(store), .us = draw_roll(store) % 16},
                   .copied = draw_roll(store) % 2 == 0,
                   .due = never ? UINT64_MAX : store->n_looks + draw_roll(store) % (looks + 1)};
  if (m->copied) copy_cells(store, copy, copy->kind, false);
}

/* In any order. */
static void end_moves(weft_fake_store *store) {
  store->n_looks += 1;
  for (uint32_t i = 0; i < store->n_moves;) {
    fake_move *m = &store->move[i];
    if (m->due >= store->n_looks) {
      i += 1;
      continue;
    }
    if (!m->copied || !m->end.ok) copy_cells(store, &m->end.copy, m->end.copy.kind, !m->end.ok);
    end_copy(store, &m->end);
    *m = store->move[--store->n_moves];
  }
}

void weft_fake_store_run_copies(weft_fake_store *store, const weft_page_copy *copy, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t kind = copy[i].kind % COPY_FAILED;
    if (weft_copy_is_move(kind))
      begin_move(store, &copy[i]);
    else
      copy_cells(store, &copy[i], kind, copy[i].kind != kind);
  }
}

void weft_fake_store_copy(weft_fake_store *store, const weft_page_copy *copy, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_page_copy judged = copy[i];
    weft_fake_store_judge_copies(store, &judged, 1);
    weft_fake_store_run_copies(store, &judged, 1);
  }
}

uint32_t weft_fake_store_copies_ended(weft_fake_store *store, weft_copy_end *out, uint32_t max) {
  end_moves(store);
  uint32_t n = store->n_ended < max ? store->n_ended : max;
  memcpy(out, store->ended, n * sizeof *out);
  store->n_ended -= n;
  memmove(store->ended, store->ended + n, store->n_ended * sizeof *out);
  return n;
}
