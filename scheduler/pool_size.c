/* SPDX-License-Identifier: MIT */
#include "scheduler/pool_size.h"

#include "pager/resize.h"
#include "scheduler/policy.h"

/* What it takes is time of the engine's thread, in which no step begins. */
static weft_status resize_memory(weft_engine *e, uint32_t n_pages) {
  const weft_pool_calls *calls = e->config.pool;
  uint64_t began_us = weft_present_us(e);
  weft_status status = calls->resize(calls->self, n_pages);
  e->pool.resizing_us += weft_present_us(e) - began_us;
  return status;
}

static void tell_size(weft_engine *e) {
  weft_pool_size *p = &e->pool;
  atomic_store(&p->shown_open, weft_pager_get_stats(e->pager).n_pages);
  atomic_store(&p->shown_backed, p->n_backed);
  atomic_store(&p->shown_refused, p->n_refused > 0);
  e->n_changes += 1;
  if (e->config.pool->changed != NULL) e->config.pool->changed(e->config.pool->self);
}

void weft_pool_size_open(weft_engine *e) {
  const weft_pool_calls *calls = e->config.pool;
  uint32_t n = calls == NULL ? e->config.n_pages : calls->n_pages_first;
  if (calls != NULL) (void)weft_pager_resize(e->pager, n); /* empty, so it cannot be refused */
  e->pool.n_backed = n;
  e->pool.wanted = e->pool.shown_open = e->pool.shown_backed = n;
}

/* Pages that a request holds at its longest, as it was judged by when it was submitted (submit.c). */
static uint32_t pages_of(const weft_engine *e, const weft_request *r) {
  const weft_lane *lane = &e->lane[r->lane];
  uint64_t n_answer = r->denoises ? (uint64_t)r->size.n_blocks * lane->info->canvas_length : r->size.answer_max;
  uint64_t n_tokens = r->params.n_tokens + n_answer;
  if (n_tokens > e->config.seq_tokens_max) n_tokens = e->config.seq_tokens_max;
  uint32_t n_rows = r->denoises ? lane->info->canvas_length : 1;
  return weft_pager_pages_for(e->pager, r->lane, (uint32_t)n_tokens, n_rows);
}

void weft_pool_size_expect(weft_engine *e, const weft_request *r) {
  if (e->config.pool == NULL) return;
  uint32_t n = pages_of(e, r);
  if (n > e->pool.n_largest) e->pool.n_largest = n;
}

static bool has_requests(const weft_engine *e) {
  for (uint32_t i = 0; i < e->n_lanes; i++)
    if (e->lane[i].n_running + e->lane[i].n_waiting > 0) return true;
  return false;
}

/* What the pool must have, whatever was asked for. */
static uint32_t find_least(weft_engine *e) {
  weft_pool_size *p = &e->pool;
  if (!has_requests(e)) p->n_largest = 0;
  uint64_t least = (uint64_t)p->n_largest + e->stats.n_pin_pages;
  return least > e->config.n_pages ? e->config.n_pages : (uint32_t)least; /* what was accepted runs in these */
}

/* Gives back the memory of pages that nothing enqueued uses any more. */
static void settle_memory(weft_engine *e) {
  weft_pool_size *p = &e->pool;
  uint32_t n_done = 0, before = p->n_backed;
  while (n_done < p->n_waits && p->wait[n_done].n_steps <= p->n_landed) p->n_backed = p->wait[n_done++].n_pages;
  if (n_done == 0) return;
  p->n_waits -= n_done;
  for (uint32_t i = 0; i < p->n_waits; i++) p->wait[i] = p->wait[i + n_done];
  if (p->n_backed < before) (void)resize_memory(e, p->n_backed);
  tell_size(e);
}

static bool was_refused(const weft_pool_size *p, uint32_t n_pages) {
  return p->n_refused > 0 && n_pages >= p->n_refused;
}

static void grow_pool(weft_engine *e, uint32_t n_pages) {
  weft_pool_size *p = &e->pool;
  if (n_pages > p->n_backed) {
    if (p->n_waits > 0 || was_refused(p, n_pages)) return; /* first it gets as small as it was asked to be */
    if (resize_memory(e, n_pages) == WEFT_OK)
      p->n_backed = n_pages;
    else
      p->n_refused = n_pages;
  }
  for (uint32_t i = 0; i < p->n_waits; i++)
    if (p->wait[i].n_pages < n_pages) p->wait[i].n_pages = n_pages;
  if (n_pages <= p->n_backed) (void)weft_pager_resize(e->pager, n_pages);
  tell_size(e);
}

/* Blocks lie in other pages: what is known of where rows go holds no longer. */
static void forget_places(weft_engine *e) {
  for (uint32_t i = 0; i < e->n_running; i++) e->ranked[i]->placement.block = UINT32_MAX;
  for (uint32_t i = 0; i < e->n_lanes; i++) weft_batcher_forget(&e->lane[i].batcher);
}

static void shrink_pool(weft_engine *e, uint32_t n_pages) {
  weft_pool_size *p = &e->pool;
  p->hindered = weft_pager_resize(e->pager, n_pages) != WEFT_OK; /* copies wait for a step */
  if (p->hindered) return;
  if (weft_pager_copies_waiting(e->pager) > 0) forget_places(e);
  uint64_t n_steps = p->n_submitted + (weft_pager_copies_waiting(e->pager) > 0);
  bool same = p->n_waits > 0 && p->wait[p->n_waits - 1].n_steps == n_steps;
  WEFT_CHECK(same || p->n_waits < WEFT_POOL_WAITS_MAX);
  p->wait[same ? p->n_waits - 1 : p->n_waits++] = (weft_pool_wait){.n_pages = n_pages, .n_steps = n_steps};
  tell_size(e);
}

/* From n pages towards more, a step at most; n where no more are wanted. */
static uint32_t next_size(uint32_t n, uint32_t wanted, uint32_t step) {
  return wanted <= n ? n : wanted - n < step ? wanted : n + step;
}

void weft_pool_size_begin(weft_engine *e) {
  const weft_pool_calls *calls = e->config.pool;
  weft_pool_size *p = &e->pool;
  if (calls == NULL) return;
  p->hindered = false;
  settle_memory(e);
  weft_pager_stats stats = weft_pager_get_stats(e->pager);
  uint32_t asked = atomic_load(&p->wanted), least = find_least(e), wanted = asked < least ? least : asked,
           n = stats.n_pages, to = next_size(n, wanted, calls->n_pages_step);
  if (atomic_load(&p->asked) != p->n_heard) p->n_refused = 0;
  p->n_heard = atomic_load(&p->asked);
  if (was_refused(p, to)) to = next_size(n, least, calls->n_pages_step); /* there may be room for what requests need */
  if (to > n) grow_pool(e, to);
  uint32_t in_use = stats.n_pinned + weft_policy_margin(e->n_running, e->config.n_pages);
  if (wanted < in_use) wanted = in_use;
  if (wanted < n) shrink_pool(e, n - wanted < calls->n_pages_step ? wanted : n - calls->n_pages_step);
  settle_memory(e);
}

void weft_pool_size_end(weft_engine *e) {
  enum { AT_ONCE = 64 };
  weft_page_copy copy[AT_ONCE];
  weft_pool_size *p = &e->pool;
  uint32_t n = AT_ONCE;
  settle_memory(e);
  if ((p->n_waits == 0 && !p->hindered) || e->n_flight > 0) return;
  p->hindered = false;
  e->n_changes += 1;
  while (n == AT_ONCE) {
    n = weft_pager_take_copies(e->pager, copy, AT_ONCE);
    if (n > 0) (void)e->config.pool->copy(e->config.pool->self, copy, n);
  }
  p->n_submitted += 1;
  p->n_landed += 1;
  settle_memory(e);
}

void weft_pool_size_ask(weft_engine *e, uint32_t n_pages) {
  if (e->config.pool == NULL) return;
  if (n_pages < 1) n_pages = 1;
  if (n_pages > e->config.pool->n_pages_max) n_pages = e->config.pool->n_pages_max;
  atomic_store(&e->pool.wanted, n_pages);
  atomic_fetch_add(&e->pool.asked, 1);
  weft_inbox_poke(&e->inbox);
}

weft_pool_view weft_pool_size_look(weft_engine *e) {
  return (weft_pool_view){.n_wanted = atomic_load(&e->pool.wanted),
                          .n_open = atomic_load(&e->pool.shown_open),
                          .n_backed = atomic_load(&e->pool.shown_backed),
                          .refused = atomic_load(&e->pool.shown_refused)};
}

const char *weft_pool_size_check(const weft_engine *e) {
  const weft_pool_size *p = &e->pool;
  uint32_t n_open = weft_pager_get_stats(e->pager).n_pages, n_behind = p->n_backed;
  uint64_t n_steps = p->n_landed;
  if (n_open > p->n_backed) return "the pool has pages without memory";
  if (p->n_submitted - p->n_landed != e->n_flight) return "steps in flight are not those that landed less";
  for (uint32_t i = 0; i < p->n_waits; i++) {
    if (p->wait[i].n_pages > n_behind || p->wait[i].n_pages < n_open) return "memory waits that pages use";
    if (p->wait[i].n_steps <= n_steps || p->wait[i].n_steps > p->n_submitted + 1)
      return "memory of the pool waits for no step";
    n_behind = p->wait[i].n_pages;
    n_steps = p->wait[i].n_steps;
  }
  return n_behind == n_open ? NULL : "pages are closed and their memory stays";
}
