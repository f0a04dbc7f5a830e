/* SPDX-License-Identifier: MIT */
#include "scheduler/cost.h"
#include "scheduler/engine_internal.h"

enum {
  FILE_BYTES_PER_US = 1024, /* until moves have told */
  LATE = 8,                 /* moves that the mean remembers */
  LEAST_US = 200000,
  WAITS_MAX = 8
};

weft_status weft_lifts_open(weft_lifts *lifts, uint32_t n_max, uint64_t page_bytes) {
  weft_list_init(&lifts->whole);
  weft_list_init(&lifts->list);
  lifts->page_us = (double)page_bytes / FILE_BYTES_PER_US;
  return weft_deadlines_open(&lifts->until, n_max);
}

void weft_lifts_close(weft_lifts *lifts) {
  weft_deadlines_close(&lifts->until);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void hear_one(weft_engine *e, const weft_copy_end *end) {
  const weft_batch_copy *copy = &end->copy;
  const weft_page_copy move = {.from = copy->from, .to = copy->to, .kind = copy->kind};
  if (copy->kind == WEFT_COPY_TO_HOST) {
    if (!end->ok) weft_pager_spill_lost(e->pager, copy->to);
    return;
  }
  weft_pager_moved(e->pager, &move, end->ok);
  e->lifts.heard_us = e->now_us;
  e->n_changes += 1;
  if (end->ok) e->lifts.page_us += ((double)end->us - e->lifts.page_us) / LATE;
}

/* Any runner tells of all. */
void weft_lifts_hear(weft_engine *e) {
  enum { AT_ONCE = 32 };
  weft_copy_end ended[AT_ONCE];
  weft_runner *runner = e->lane[0].runner;
  uint32_t n = AT_ONCE;
  if (e->config.n_host_pages == 0 || runner->ops->copies_ended == NULL) return;
  while (n == AT_ONCE) {
    n = runner->ops->copies_ended(runner, ended, AT_ONCE);
    for (uint32_t i = 0; i < n; i++) hear_one(e, &ended[i]);
  }
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool hangs(const weft_engine *e) {
  weft_pager_stats stats = weft_pager_get_stats(e->pager);
  return stats.n_lifting + stats.n_sinking > 0 && e->now_us > e->lifts.heard_us + LEAST_US;
}

bool weft_lifts_may_wait(weft_engine *e, const weft_request *r) {
  if (e->config.n_file_pages == 0 || r->n_lifts >= WAITS_MAX) return false;
  return !hangs(e);
}

void weft_lifts_wait(weft_engine *e, weft_lane *lane, weft_request *r, uint32_t n_pages) {
  double us = weft_cost_row_us(&lane->cost) * r->n_tokens;
  weft_lifecycle_dequeue(e, r);
  lane->n_waiting += 1; /* it still waits */
  e->stats.n_waiting += 1;
  e->stats.n_file_waits += 1;
  r->follows = WEFT_FOLLOWS_FILE;
  r->n_lifts += 1;
  r->lift_pages = n_pages;
  e->lifts.n_pages += n_pages;
  weft_deadlines_add(&e->lifts.until, e->now_us + (uint64_t)(us < LEAST_US ? LEAST_US : us), r, &r->lift_at);
  weft_list_push_back(n_pages > 0 ? &e->lifts.whole : &e->lifts.list, &r->link);
}

void weft_lifts_left(weft_engine *e, weft_request *r) {
  weft_deadlines_remove(&e->lifts.until, &r->lift_at);
  e->lifts.n_pages -= r->lift_pages;
  r->lift_pages = 0;
}

static void come_back(weft_engine *e, weft_request *r) {
  weft_lifecycle_dequeue(e, r);
  r->retry_step = e->n_plans; /* near the head of its queue */
  weft_lifecycle_enqueue(e, r);
}

static weft_request *first(const weft_link *list) {
  return weft_list_empty(list) ? NULL : WEFT_OF_LINK(list->next, weft_request, link);
}

void weft_lifts_wake(weft_engine *e) {
  weft_request *r;
  if (e->config.n_file_pages == 0) return;
  while ((r = weft_deadlines_expired(&e->lifts.until, e->now_us)) != NULL) {
    if (r->lift_pages == 0 && !hangs(e)) { /* its turn will come */
      weft_deadlines_remove(&e->lifts.until, &r->lift_at);
      weft_deadlines_add(&e->lifts.until, e->now_us + LEAST_US, r, &r->lift_at);
      continue;
    }
    e->stats.n_file_waits_in_vain += 1;
    r->n_lifts = WAITS_MAX;
    come_back(e, r);
  }
  weft_pager_stats stats = weft_pager_get_stats(e->pager);
  if (stats.n_lifting + stats.n_sinking == 0) e->lifts.heard_us = e->now_us;
  if (stats.n_lifting > 0) return;
  while ((r = first(&e->lifts.whole)) != NULL) come_back(e, r);
  if ((r = first(&e->lifts.list)) != NULL) come_back(e, r);
}

static void end_list(weft_engine *e, const weft_link *list, uint32_t lane) {
  for (weft_link *link = list->next, *next; link != list; link = next) {
    next = link->next;
    weft_request *r = WEFT_OF_LINK(link, weft_request, link);
    if (r->lane == lane) come_back(e, r);
  }
}

void weft_lifts_end(weft_engine *e, uint32_t lane) {
  end_list(e, &e->lifts.whole, lane);
  end_list(e, &e->lifts.list, lane);
}
