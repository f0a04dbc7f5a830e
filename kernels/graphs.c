/* SPDX-License-Identifier: MIT */
#include "kernels/graphs.h"

#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"

weft_status weft_graphs_open(weft_graphs *g, weft_device *device, const weft_graphs_calls *calls) {
  *g = (weft_graphs){.device = device, .calls = calls};
  g->staging = weft_alloc(WEFT_GRAPHS_TABLE_BYTES, 1);
  if (g->staging == NULL) return WEFT_E_NO_MEMORY;
  void *tables = NULL;
  weft_status status = weft_device_alloc(device, WEFT_GRAPHS_TABLE_BYTES, &tables);
  g->tables = tables;
  return status;
}

/* One thread writes, any may read. */
static void count(uint64_t *n) {
  __atomic_store_n(n, *n + 1, __ATOMIC_RELAXED);
}

static void drop(weft_graphs *g, weft_graph *graph) {
  if (graph->exec != NULL) g->calls->free_exec(g->device, graph->exec);
  *graph = (weft_graph){.exec = NULL};
}

void weft_graphs_close(weft_graphs *g) {
  for (uint32_t i = 0; i < WEFT_GRAPHS_MAX; i++) drop(g, &g->graph[i]);
  if (g->tables != NULL) weft_device_free(g->device, g->tables);
  weft_free(g->staging);
  *g = (weft_graphs){.device = NULL};
}

/* ---- the walk ---------------------------------------------------------------------------------------------- */

static bool same(weft_graphs_signature a, weft_graphs_signature b) {
  return a.low == b.low && a.high == b.high;
}

static void fold(weft_graphs_signature *s, uint64_t word) {
  s->low = (s->low ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  s->low ^= s->low >> 29;
  s->high = (s->high << 23 | s->high >> 41) ^ word;
  s->high *= UINT64_C(0xD6E8FEB86659FD93);
  s->high ^= s->high >> 32;
}

void weft_graphs_note(weft_graphs *g, uint32_t call, const void *args, size_t n_bytes) {
  const uint8_t *bytes = args;
  fold(&g->signature, (uint64_t)call << 32 | n_bytes);
  while (n_bytes > 0) {
    uint64_t word = 0;
    size_t n = n_bytes < sizeof word ? n_bytes : sizeof word;
    memcpy(&word, bytes, n);
    fold(&g->signature, word);
    bytes += n;
    n_bytes -= n;
  }
}

uint8_t *weft_graphs_table(weft_graphs *g, uint64_t n_bytes) {
  if (n_bytes <= WEFT_GRAPHS_TABLE_BYTES - g->at && g->n_tables < WEFT_GRAPHS_TABLES) return g->staging + g->at;
  g->full = true;
  return NULL;
}

const uint8_t *weft_graphs_table_end(weft_graphs *g, uint64_t n_bytes) {
  uint32_t i = 0;
  const uint8_t *made = g->staging + g->at;
  while (i < g->n_tables && (g->table_bytes[i] != n_bytes || memcmp(g->staging + g->table_at[i], made, n_bytes) != 0))
    i++;
  if (i == g->n_tables) {
    g->table_at[i] = g->at;
    g->table_bytes[i] = (uint32_t)n_bytes;
    g->n_tables += 1;
    g->at += (uint32_t)((n_bytes + 255) / 256 * 256);
    if (g->at > WEFT_GRAPHS_TABLE_BYTES) g->at = WEFT_GRAPHS_TABLE_BYTES;
  }
  fold(&g->signature, (uint64_t)g->table_at[i] << 32 | n_bytes);
  return g->tables + g->table_at[i];
}

static void start(weft_graphs *g, weft_graphs_mode mode) {
  g->mode = mode;
  g->signature = (weft_graphs_signature){g->key, ~g->key};
  g->n_tables = 0;
  g->at = 0;
}

void weft_graphs_begin(weft_graphs *g, uint64_t key) {
  WEFT_CHECK(g->mode == WEFT_GRAPHS_RUN);
  if (g->refused) return;
  g->key = key;
  g->full = false;
  g->n_steps += 1;
  start(g, WEFT_GRAPHS_WALK);
}

/* ---- its end ----------------------------------------------------------------------------------------------- */

static weft_graph *find(weft_graphs *g) {
  for (uint32_t i = 0; i < WEFT_GRAPHS_MAX; i++) {
    if (g->graph[i].exec != NULL && same(g->graph[i].signature, g->walked)) return &g->graph[i];
  }
  return NULL;
}

static bool seen_before(weft_graphs *g) {
  for (uint32_t i = 0; i < WEFT_GRAPHS_SEEN; i++) {
    if (same(g->seen[i], g->walked)) return true;
  }
  g->seen[g->next_seen] = g->walked;
  g->next_seen = (g->next_seen + 1) % WEFT_GRAPHS_SEEN;
  return false;
}

static weft_status launch(weft_graphs *g, weft_graph *graph) {
  graph->last = g->n_steps;
  count(&g->n.launches);
  return g->calls->launch(g->device, graph->exec);
}

/* Where the next graph goes: the place of a stale one of the same key, a free place, the oldest one's. */
static weft_graph *place_of_next(weft_graphs *g) {
  weft_graph *free_place = NULL, *oldest = &g->graph[0], *stale = NULL;
  for (uint32_t i = 0; i < WEFT_GRAPHS_MAX; i++) {
    weft_graph *at = &g->graph[i];
    if (at->exec == NULL) {
      if (free_place == NULL) free_place = at;
      continue;
    }
    if (oldest->exec == NULL || at->last < oldest->last) oldest = at;
    bool is_stale = at->key == g->key && g->n_steps - at->last > WEFT_GRAPHS_STALE;
    if (is_stale && (stale == NULL || at->last < stale->last)) stale = at;
  }
  return stale != NULL ? stale : free_place != NULL ? free_place : oldest;
}

static weft_status make_exec(weft_graphs *g, weft_graph *place, void *graph) {
  if (place->exec != NULL && place->key == g->key) {
    if (g->calls->update(g->device, place->exec, graph)) {
      count(&g->n.updates);
      return WEFT_OK;
    }
    count(&g->n.updates_refused);
  }
  drop(g, place);
  weft_status status = g->calls->instantiate(g->device, graph, &place->exec);
  if (status == WEFT_E_NO_MEMORY) { /* the smaller plan: fewer graphs */
    for (uint32_t i = 0; i < WEFT_GRAPHS_MAX; i++) drop(g, &g->graph[i]);
    status = g->calls->instantiate(g->device, graph, &place->exec);
  }
  if (status != WEFT_OK) place->exec = NULL;
  return status;
}

/* The device cannot do it: from now on every step runs call by call. */
static bool refuse(weft_graphs *g, weft_status why, weft_status *status) {
  g->mode = WEFT_GRAPHS_RUN;
  *status = why == WEFT_E_DEVICE ? why : WEFT_OK;
  if (why == WEFT_E_DEVICE) return false;
  weft_log(WEFT_LOG_WARN, "steps run without graphs from now on: %s", weft_status_text(why));
  g->refused = true;
  count(&g->n.refused);
  return true;
}

static bool end_walk(weft_graphs *g, weft_status *status) {
  g->walked = g->signature;
  weft_graph *graph = g->full ? NULL : find(g);
  bool wanted = graph != NULL || (!g->full && seen_before(g));
  g->mode = WEFT_GRAPHS_RUN;
  if (wanted && g->at > 0) *status = weft_device_upload(g->device, g->tables, g->staging, g->at);
  if (*status != WEFT_OK) return false;
  if (graph != NULL) {
    count(&g->n.patched);
    *status = launch(g, graph);
    return false;
  }
  if (!wanted) {
    count(&g->n.eager);
    return true;
  }
  weft_status began = g->calls->capture(g->device);
  if (began != WEFT_OK) return refuse(g, began, status);
  start(g, WEFT_GRAPHS_CAPTURE);
  return true;
}

static bool end_capture(weft_graphs *g, weft_status *status) {
  void *graph = NULL;
  weft_graph *place = place_of_next(g);
  weft_status captured = g->calls->capture_end(g->device, &graph);
  g->mode = WEFT_GRAPHS_RUN;
  if (*status != WEFT_OK) captured = *status;
  if (captured == WEFT_OK && !same(g->signature, g->walked)) captured = WEFT_E_INVALID;
  if (captured == WEFT_OK) captured = make_exec(g, place, graph);
  if (graph != NULL) g->calls->free_graph(g->device, graph);
  if (captured != WEFT_OK) return refuse(g, captured, status);
  count(&g->n.captures);
  place->signature = g->walked;
  place->key = g->key;
  *status = launch(g, place);
  return false;
}

bool weft_graphs_end(weft_graphs *g, weft_status *status) {
  if (g->mode == WEFT_GRAPHS_CAPTURE) return end_capture(g, status);
  if (g->mode == WEFT_GRAPHS_RUN) return false; /* it ran call by call */
  if (*status == WEFT_OK) return end_walk(g, status);
  g->mode = WEFT_GRAPHS_RUN;
  return false;
}
