/* SPDX-License-Identifier: MIT */
#include "model/runner/guest_runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/model_internal.h"

typedef struct guest_runner {
  weft_runner base;
  weft_runner_info info;
  const weft_kv_store *store;
  weft_guest_news news;
  void *self;
  weft_device *device;
  uint32_t graph_owner;
  weft_graphs_taken graphs; /* of the inner runner that was let go */
  weft_runner *inner;       /* written while away, by enter before the state says HERE */
  _Atomic uint32_t state;   /* weft_runner_stay */
  _Atomic uint32_t n_waiting;
  _Atomic bool is_used;
  bool told; /* engine thread: that requests wait was told, since the guest is away */
  _Atomic bool refuses;
  pthread_mutex_t mutex; /* of line */
  char line[320], said[320];
} guest_runner;

static guest_runner *guest_of(const weft_runner *base) {
  return (guest_runner *)(uintptr_t)base;
}

static weft_runner *inner_of(weft_runner *base) {
  guest_runner *g = guest_of(base);
  WEFT_CHECK(atomic_load_explicit(&g->state, memory_order_relaxed) != WEFT_STAY_AWAY);
  return g->inner;
}

/* ---- what the engine calls -------------------------------------------------------------------- */

static const weft_runner_info *guest_info(const weft_runner *base) {
  return &guest_of(base)->info;
}

static weft_status guest_slot_open(weft_runner *base, uint32_t slot, const weft_slot_params *params) {
  weft_runner *inner = inner_of(base);
  return inner->ops->slot_open(inner, slot, params);
}

static void guest_slot_close(weft_runner *base, uint32_t slot) {
  weft_runner *inner = inner_of(base);
  inner->ops->slot_close(inner, slot);
}

static weft_status guest_slot_save(weft_runner *base, uint32_t slot, uint32_t save) {
  weft_runner *inner = inner_of(base);
  return inner->ops->slot_save(inner, slot, save);
}

static weft_status guest_slot_restore(weft_runner *base, uint32_t slot, uint32_t save) {
  weft_runner *inner = inner_of(base);
  return inner->ops->slot_restore(inner, slot, save);
}

static weft_status guest_submit(weft_runner *base, const weft_batch *batch) {
  weft_runner *inner = inner_of(base);
  return inner->ops->submit(inner, batch);
}

static weft_status guest_collect(weft_runner *base, weft_step_result *result) {
  weft_runner *inner = inner_of(base);
  return inner->ops->collect(inner, result);
}

static uint32_t guest_copies_ended(weft_runner *base, weft_copy_end *out, uint32_t max) {
  const weft_kv_store *store = guest_of(base)->store;
  return store == NULL || store->file == NULL ? 0 : weft_kv_file_ended(store->file, out, max);
}

static uint32_t guest_allowed(weft_runner *base, uint32_t slot, const int32_t *draft, uint32_t n) {
  weft_runner *inner = inner_of(base);
  return inner->ops->allowed == NULL ? n : inner->ops->allowed(inner, slot, draft, n);
}

/* The line that was left for those who wait, once. */
static const char *take_line(guest_runner *g) {
  if (!atomic_exchange(&g->refuses, false)) return NULL;
  (void)pthread_mutex_lock(&g->mutex);
  (void)snprintf(g->said, sizeof g->said, "%s", g->line);
  (void)pthread_mutex_unlock(&g->mutex);
  return g->said;
}

/* A broken device says so elsewhere, and runs nothing. */
static void let_go(guest_runner *g) {
  weft_device_take_graphs(g->device, g->graph_owner, &g->graphs);
  (void)weft_device_mark(g->device, MARK_LEFT);
}

static weft_runner_stay guest_stay(weft_runner *base, bool used, uint32_t n_waiting, const char **refused) {
  guest_runner *g = guest_of(base);
  uint32_t state = atomic_load_explicit(&g->state, memory_order_acquire);
  bool went = !used && state == WEFT_STAY_LEAVING;
  if (went) let_go(g);
  if (went) state = WEFT_STAY_AWAY;
  if (went) atomic_store_explicit(&g->state, state, memory_order_release);
  *refused = state == WEFT_STAY_AWAY ? take_line(g) : NULL;
  if (*refused != NULL) n_waiting = 0;
  bool was_used = atomic_exchange_explicit(&g->is_used, used, memory_order_relaxed);
  atomic_store_explicit(&g->n_waiting, n_waiting, memory_order_relaxed);
  bool waited_for = state == WEFT_STAY_AWAY && n_waiting > 0;
  bool tells = went || (was_used && !used) || (waited_for && !g->told);
  g->told = waited_for;
  if (tells) g->news(g->self, base);
  return (weft_runner_stay)state;
}

static void guest_close(weft_runner *base) {
  guest_runner *g = guest_of(base);
  if (g == NULL) return;
  (void)pthread_mutex_destroy(&g->mutex);
  weft_free(g);
}

static const weft_runner_ops guest_ops = {WEFT_RUNNER_OPS_ALL(guest), .allowed = guest_allowed, .stay = guest_stay};

/* ---- what its owner calls ---------------------------------------------------------------------- */

weft_status weft_guest_open(const weft_device_runner_config *config, weft_guest_news news, void *self,
                            weft_runner **out, weft_error *error) {
  *out = NULL;
  guest_runner *g = weft_alloc(1, sizeof *g);
  if (g == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the runner of %s", config->name);
  if (pthread_mutex_init(&g->mutex, NULL) != 0) {
    weft_free(g);
    return weft_fail(error, WEFT_E_NO_MEMORY, "the system refused a lock for the runner of %s", config->name);
  }
  g->base.ops = &guest_ops;
  g->store = config->store;
  g->graph_owner = config->graph_owner;
  g->device = weft_split_last(weft_model_get_split(config->model));
  g->news = news;
  g->self = self;
  g->state = WEFT_STAY_AWAY;
  weft_device_runner_describe(config, &g->info);
  *out = &g->base;
  return WEFT_OK;
}

void weft_guest_enter(weft_runner *guest, weft_runner *inner) {
  guest_runner *g = guest_of(guest);
  WEFT_CHECK(weft_guest_state(guest) == WEFT_STAY_AWAY);
  g->inner = inner;
  atomic_store_explicit(&g->refuses, false, memory_order_relaxed);
  atomic_store_explicit(&g->state, WEFT_STAY_HERE, memory_order_release);
}

void weft_guest_leave(weft_runner *guest) {
  uint32_t here = WEFT_STAY_HERE;
  (void)atomic_compare_exchange_strong(&guest_of(guest)->state, &here, (uint32_t)WEFT_STAY_LEAVING);
}

void weft_guest_settle(weft_runner *guest) {
  guest_runner *g = guest_of(guest);
  WEFT_CHECK(weft_guest_state(guest) == WEFT_STAY_AWAY);
  (void)weft_device_wait(g->device, MARK_LEFT);
  weft_device_free_graphs(g->device, &g->graphs);
  g->graphs.n = 0;
}

weft_runner_stay weft_guest_state(const weft_runner *guest) {
  return (weft_runner_stay)atomic_load_explicit(&guest_of(guest)->state, memory_order_acquire);
}

uint32_t weft_guest_n_waiting(const weft_runner *guest) {
  return atomic_load_explicit(&guest_of(guest)->n_waiting, memory_order_relaxed);
}

bool weft_guest_is_used(const weft_runner *guest) {
  return atomic_load_explicit(&guest_of(guest)->is_used, memory_order_relaxed);
}

void weft_guest_refuse(weft_runner *guest, const char *line) {
  guest_runner *g = guest_of(guest);
  (void)pthread_mutex_lock(&g->mutex);
  (void)snprintf(g->line, sizeof g->line, "%s", line);
  (void)pthread_mutex_unlock(&g->mutex);
  atomic_store(&g->refuses, true);
}
