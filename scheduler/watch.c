/* SPDX-License-Identifier: MIT */
#include "scheduler/watch.h"

#include <string.h>

#include "base/condition.h"
#include "base/memory.h"

/* ---- open ------------------------------------------------------------------------------------- */

weft_status weft_watch_open_view(const weft_engine *e, weft_view *out) {
  uint32_t running = e->config.running_max < WEFT_VIEW_RUNNING_MAX ? e->config.running_max : WEFT_VIEW_RUNNING_MAX;
  return weft_view_open(out, running + WEFT_VIEW_WAITING_MAX, &e->watch.grid);
}

weft_status weft_watch_open(weft_engine *e) {
  weft_watch *w = &e->watch;
  if (pthread_mutex_init(&w->mutex, NULL) != 0) return WEFT_E_NO_MEMORY;
  if (weft_condition_open(&w->taken) != WEFT_OK) {
    (void)pthread_mutex_destroy(&w->mutex);
    return WEFT_E_NO_MEMORY;
  }
  w->is_open = true;
  weft_status status = weft_grid_open(&w->grid, e->pager);
  if (status == WEFT_OK) status = weft_watch_open_view(e, &w->own);
  return status == WEFT_OK ? weft_watch_open_view(e, &w->shared) : status;
}

void weft_watch_close(weft_engine *e) {
  weft_watch *w = &e->watch;
  if (!w->is_open) return;
  weft_view_close(&w->own);
  weft_view_close(&w->shared);
  weft_grid_close(&w->grid);
  (void)pthread_cond_destroy(&w->taken);
  (void)pthread_mutex_destroy(&w->mutex);
  w->is_open = false;
}

/* ---- the engine thread ------------------------------------------------------------------------ */

static weft_phase phase_of(const weft_request *r) {
  if (r->finish != WEFT_FINISH_NONE) return WEFT_PHASE_ENDING;
  if (r->state == WEFT_REQUEST_LEAVING) return WEFT_PHASE_PREEMPTED;
  if (r->state == WEFT_REQUEST_RUNNING) {
    bool prompt = r->n_valid < r->n_prompt || (r->prefilling && !r->denoises);
    return prompt ? WEFT_PHASE_PREFILL : r->denoises ? WEFT_PHASE_DENOISE : WEFT_PHASE_DECODE;
  }
  if (r->wait.leader != WEFT_SEQ_NONE) return r->wait.leader == WEFT_LEADER_FILE ? WEFT_PHASE_FILE : WEFT_PHASE_PREFIX;
  return r->admitted_once ? WEFT_PHASE_PREEMPTED : WEFT_PHASE_QUEUED;
}

static void put_request(weft_view *v, const weft_request *r) {
  if (v->n_requests == v->requests_max) return;
  uint32_t computed = r->state == WEFT_REQUEST_WAITING ? 0 : r->n_valid;
  v->request[v->n_requests++] =
      (weft_view_request){.number = r->arrival,
                          .submitted_us = r->usage.submitted_us,
                          .tenant = r->tenant,
                          .model = r->lane,
                          .phase = phase_of(r),
                          .n_prompt = r->n_prompt,
                          .n_cached = r->usage.n_cached,
                          .n_computed = computed < r->n_prompt ? computed : r->n_prompt,
                          .n_answer = r->n_answer,
                          .answer_max = r->size.answer_max,
                          .n_canvas = r->size.n_canvas,
                          .block = r->reported_block,
                          .step = r->reported_step,
                          .n_steps = r->size.n_canvas == 0 ? 0 : r->params.asked.entropy_bound.max_steps,
                          .n_preemptions = r->usage.n_preemptions};
}

static void put_list(weft_view *v, const weft_link *list, uint32_t max) {
  for (const weft_link *link = list->next; link != list && max > 0; link = link->next, max--) {
    put_request(v, WEFT_OF_LINK(link, weft_request, link));
  }
}

static void put_heap(weft_view *v, const weft_deadlines *heap, uint32_t max) {
  for (uint32_t i = 0; i < heap->n && i < max; i++) put_request(v, heap->heap[i].owner);
}

/* Running requests first; of those that wait some of each tenant, so that no one's are all left out. */
static void put_requests(weft_engine *e, weft_view *v) {
  uint32_t n_all = e->stats.n_waiting;
  v->n_requests = 0;
  for (uint32_t i = 0; i < e->n_running && v->n_requests < WEFT_VIEW_RUNNING_MAX; i++) put_request(v, e->ranked[i]);
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    n_all += e->lane[i].n_running;
    put_list(v, &e->lane[i].leaving, WEFT_VIEW_WAITING_MAX);
  }
  put_heap(v, &e->following, WEFT_VIEW_WAITING_MAX / 4);
  put_heap(v, &e->file_waits.until, WEFT_VIEW_WAITING_MAX / 4);
  for (uint32_t i = 0; i < e->n_lanes * e->config.n_tenants; i++)
    put_list(v, &e->tenants.queue[i], WEFT_VIEW_QUEUE_MAX);
  v->n_more = n_all - v->n_requests;
}

static void mark_pins(weft_engine *e) {
  weft_grid *grid = &e->watch.grid;
  weft_grid_clear_marks(grid);
  if (e->pins.n_known == 0) return;
  (void)pthread_mutex_lock(&e->pins.mutex);
  for (uint32_t i = 0; i < e->pins.n; i++) {
    if (e->pins.pin[i]->seq != WEFT_SEQ_NONE) weft_grid_mark(grid, e->pager, e->pins.pin[i]->seq);
  }
  (void)pthread_mutex_unlock(&e->pins.mutex);
}

/* The scan has come to its end in this turn. in_one: it began in it, too. */
static void take_view(weft_engine *e, bool in_one) {
  weft_watch *w = &e->watch;
  weft_view *own = &w->own;
  if (!in_one) mark_pins(e); /* to count them */
  own->number += 1;
  own->taken_us = weft_present_us(e);
  own->pager = weft_pager_get_stats(e->pager);
  own->n_pinned = w->grid.n_pinned;
  put_requests(e, own);
  memcpy(own->cell, w->grid.cell, own->n_cells * sizeof *own->cell);
  (void)pthread_mutex_lock(&w->mutex);
  weft_view_copy(own, &w->shared);
  atomic_store_explicit(&w->asked, false, memory_order_release);
  (void)pthread_cond_broadcast(&w->taken);
  (void)pthread_mutex_unlock(&w->mutex);
}

void weft_watch_turn(weft_engine *e, bool idle) {
  weft_watch *w = &e->watch;
  if (!atomic_load_explicit(&w->asked, memory_order_acquire)) return;
  bool begins = !w->scanning;
  if (begins) {
    mark_pins(e);
    weft_grid_begin(&w->grid);
  }
  w->scanning = !weft_grid_scan(&w->grid, e->pager, idle ? w->grid.n_pages : WEFT_VIEW_SCAN_PAGES);
  if (!w->scanning) take_view(e, begins);
}

/* ---- any thread -------------------------------------------------------------------------------- */

void weft_watch_ask(weft_engine *e) {
  weft_watch *w = &e->watch;
  (void)pthread_mutex_lock(&w->mutex);
  w->wanted = w->shared.number + 1;
  atomic_store_explicit(&w->asked, true, memory_order_release);
  (void)pthread_mutex_unlock(&w->mutex);
  weft_inbox_poke(&e->inbox);
}

bool weft_watch_await(weft_engine *e, uint64_t until_us, weft_view *out) {
  weft_watch *w = &e->watch;
  bool in_time = true;
  (void)pthread_mutex_lock(&w->mutex);
  while (w->shared.number < w->wanted && in_time) in_time = weft_condition_wait(&w->taken, &w->mutex, until_us);
  bool is_there = w->shared.number >= w->wanted;
  weft_view_copy(&w->shared, out);
  (void)pthread_mutex_unlock(&w->mutex);
  return is_there;
}

uint64_t weft_watch_count(weft_engine *e) {
  (void)pthread_mutex_lock(&e->watch.mutex);
  uint64_t n = e->watch.shared.number;
  (void)pthread_mutex_unlock(&e->watch.mutex);
  return n;
}
