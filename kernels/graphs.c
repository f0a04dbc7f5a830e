/* SPDX-License-Identifier: MIT */
#include "kernels/graphs.h"

#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"

/* What the device has of the last upload; behind the staging memory. */
typedef struct sent_tables {
  uint32_t n_bytes;
  uint8_t byte[STEP_GRAPHS_TABLE_BYTES];
} sent_tables;

static sent_tables *sent_of(const step_graphs *g) {
  return (sent_tables *)(void *)(g->staging + STEP_GRAPHS_TABLE_BYTES);
}

weft_status step_graphs_open(step_graphs *g, weft_device *device, const step_graphs_calls *calls) {
  *g = (step_graphs){.device = device, .calls = calls};
  g->staging = weft_alloc(STEP_GRAPHS_TABLE_BYTES + sizeof(sent_tables), 1);
  if (g->staging == NULL) return WEFT_E_NO_MEMORY;
  void *tables = NULL;
  weft_status status = weft_device_alloc(device, STEP_GRAPHS_TABLE_BYTES, &tables);
  g->tables = tables;
  return status;
}

/* Adds to a counter, which one thread writes and any thread may read. */
static void count_more(uint64_t *n, uint64_t more) {
  __atomic_store_n(n, *n + more, __ATOMIC_RELAXED);
}
static void count_one(uint64_t *n) {
  count_more(n, 1);
}

static void drop_graph(step_graphs *g, step_graph *graph) {
  if (graph->exec != NULL) g->calls->free_exec(g->device, graph->exec, false);
  *graph = (step_graph){.exec = NULL};
}

void step_graphs_drop(step_graphs *g) {
  for (uint32_t i = 0; i < STEP_GRAPHS_MAX; i++) drop_graph(g, &g->graph[i]);
}

void step_graphs_take(step_graphs *g, uint32_t owner, weft_graphs_taken *out) {
  out->n = 0;
  for (uint32_t i = 0; i < STEP_GRAPHS_MAX; i++) {
    if (g->graph[i].exec == NULL || g->graph[i].owner != owner) continue;
    out->graph[out->n++] = g->graph[i].exec;
    g->graph[i] = (step_graph){.exec = NULL};
  }
}

void step_graphs_close(step_graphs *g) {
  step_graphs_drop(g);
  if (g->tables != NULL) weft_device_free(g->device, g->tables);
  weft_free(g->staging);
  *g = (step_graphs){.device = NULL};
}

/* ---- the walk ---------------------------------------------------------------------------------------------- */

static bool same_signature(step_graphs_signature a, step_graphs_signature b) {
  return a.low == b.low && a.high == b.high;
}

static void fold_word(step_graphs_signature *s, uint64_t word) {
  s->low = (s->low ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  s->low ^= s->low >> 29;
  s->high = (s->high << 23 | s->high >> 41) ^ word;
  s->high *= UINT64_C(0xD6E8FEB86659FD93);
  s->high ^= s->high >> 32;
}

/* Four words at a time, in sums of their own: a step has some hundreds of calls, and a signature is made while the
 * device waits. */
void step_graphs_note(step_graphs *g, uint32_t call, const void *args, size_t n_bytes) {
  enum { LANES = 4 };
  static const uint64_t factor[LANES] = {UINT64_C(0x9E3779B97F4A7C15), UINT64_C(0xD6E8FEB86659FD93),
                                         UINT64_C(0xA0761D6478BD642F), UINT64_C(0xE7037ED1A0B428DB)};
  const uint8_t *bytes = args;
  uint64_t lane[LANES] = {1, 2, 3, 4}, word[LANES];
  fold_word(&g->signature, (uint64_t)call << 32 | n_bytes);
  while (n_bytes > 0) {
    size_t n = n_bytes < sizeof word ? n_bytes : sizeof word;
    if (n < sizeof word) memset(word, 0, sizeof word);
    memcpy(word, bytes, n);
    for (uint32_t i = 0; i < LANES; i++) {
      lane[i] = (lane[i] ^ word[i]) * factor[i];
      lane[i] = lane[i] << 29 | lane[i] >> 35;
    }
    bytes += n;
    n_bytes -= n;
  }
  for (uint32_t i = 0; i < LANES; i++) fold_word(&g->signature, lane[i]);
}

uint8_t *step_graphs_table(step_graphs *g, uint64_t n_bytes) {
  if (n_bytes <= STEP_GRAPHS_TABLE_BYTES - g->at && g->n_tables < STEP_GRAPHS_TABLES) return g->staging + g->at;
  g->full = true;
  return NULL;
}

const uint8_t *step_graphs_table_end(step_graphs *g, uint64_t n_bytes) {
  uint32_t i = 0;
  const uint8_t *made = g->staging + g->at;
  while (i < g->n_tables && (g->table_bytes[i] != n_bytes || memcmp(g->staging + g->table_at[i], made, n_bytes) != 0))
    i++;
  if (i == g->n_tables) {
    g->table_at[i] = g->at;
    g->table_bytes[i] = (uint32_t)n_bytes;
    g->n_tables += 1;
    uint32_t end = g->at + (uint32_t)((n_bytes + 255) / 256 * 256), used = g->at + (uint32_t)n_bytes;
    g->at = end < STEP_GRAPHS_TABLE_BYTES ? end : STEP_GRAPHS_TABLE_BYTES;
    memset(g->staging + used, 0, g->at - used); /* so that equal tables are equal bytes (send_tables) */
  }
  fold_word(&g->signature, (uint64_t)g->table_at[i] << 32 | n_bytes);
  return g->tables + g->table_at[i];
}

static void start_pass(step_graphs *g, step_graphs_mode mode) {
  g->mode = mode;
  g->signature = (step_graphs_signature){g->key, ~g->key};
  g->n_tables = 0;
  g->at = 0;
}

/* Whether the step is launched as a graph on all devices that compute it. */
static bool all_ready(const step_graphs *g, bool ready) {
  return g->vote == NULL ? ready : g->vote->all(g->vote->self, ready);
}

void step_graphs_begin(step_graphs *g, uint64_t key, const weft_graph_vote *vote) {
  WEFT_CHECK(g->mode == STEP_GRAPHS_RUN);
  g->vote = vote;
  g->again = false;
  if (g->refused) (void)all_ready(g, false);
  if (g->refused) return;
  g->key = key;
  g->full = false;
  g->n_steps += 1;
  start_pass(g, STEP_GRAPHS_WALK);
}

/* ---- its end ----------------------------------------------------------------------------------------------- */

static step_graph *find_graph(step_graphs *g) {
  for (uint32_t i = 0; i < STEP_GRAPHS_MAX; i++) {
    if (g->graph[i].exec != NULL && same_signature(g->graph[i].signature, g->walked)) return &g->graph[i];
  }
  return NULL;
}

static bool seen_before(step_graphs *g) {
  for (uint32_t i = 0; i < STEP_GRAPHS_SEEN; i++) {
    if (same_signature(g->seen[i], g->walked)) return true;
  }
  g->seen[g->next_seen] = g->walked;
  g->next_seen = (g->next_seen + 1) % STEP_GRAPHS_SEEN;
  return false;
}

static weft_status launch_graph(step_graphs *g, step_graph *graph) {
  graph->last = g->n_steps;
  count_one(&g->n.launches);
  count_more(&g->n.nodes, graph->n_nodes);
  return g->calls->launch(g->device, graph->exec);
}

/* Where the next graph goes: to a free place, else to that of the graph that was launched least recently. */
static step_graph *place_of_next(step_graphs *g) {
  step_graph *oldest = &g->graph[0];
  for (uint32_t i = 0; i < STEP_GRAPHS_MAX; i++) {
    step_graph *at = &g->graph[i];
    if (at->exec == NULL) return at;
    if (at->last < oldest->last) oldest = at;
  }
  return oldest;
}

static weft_status make_exec(step_graphs *g, step_graph *place, void *graph) {
  drop_graph(g, place);
  weft_status status = g->calls->instantiate(g->device, graph, &place->exec, &place->n_nodes);
  if (status == WEFT_E_NO_MEMORY) { /* other graphs are given up to make room */
    step_graphs_drop(g);
    status = g->calls->instantiate(g->device, graph, &place->exec, &place->n_nodes);
  }
  if (status != WEFT_OK) place->exec = NULL;
  return status;
}

/* The step runs call by call. */
static bool run_eagerly(step_graphs *g) {
  g->mode = STEP_GRAPHS_RUN;
  count_one(&g->n.eager);
  return true;
}

/* The device cannot make graphs: from now on every step runs call by call. */
static bool refuse_graphs(step_graphs *g, weft_status why, weft_status *status) {
  g->mode = STEP_GRAPHS_RUN;
  *status = why == WEFT_E_DEVICE ? why : WEFT_OK;
  if (why == WEFT_E_DEVICE) return false;
  weft_log(WEFT_LOG_WARN, "steps run without graphs from now on: %s", weft_status_text(why));
  g->refused = true;
  count_one(&g->n.refused);
  (void)all_ready(g, false);
  return true;
}

/* Drafts of one run have the same tables, one graph after another. */
static weft_status send_tables(step_graphs *g) {
  sent_tables *sent = sent_of(g);
  if (g->at <= sent->n_bytes && memcmp(g->staging, sent->byte, g->at) == 0) return WEFT_OK;
  sent->n_bytes = 0;
  weft_status status = weft_device_upload(g->device, g->tables, g->staging, g->at);
  if (status != WEFT_OK) return status;
  memcpy(sent->byte, g->staging, g->at);
  sent->n_bytes = g->at;
  return WEFT_OK;
}

static bool end_walk(step_graphs *g, weft_status *status) {
  g->walked = g->signature;
  step_graph *graph = g->full ? NULL : find_graph(g);
  bool wanted = graph != NULL || (!g->full && seen_before(g));
  g->mode = STEP_GRAPHS_RUN;
  if (wanted) *status = send_tables(g);
  if (*status != WEFT_OK) return false;
  if (graph != NULL) {
    if (!all_ready(g, true)) return run_eagerly(g);
    count_one(&g->n.patched);
    *status = launch_graph(g, graph);
    return false;
  }
  if (!wanted) {
    (void)all_ready(g, false);
    return run_eagerly(g);
  }
  weft_status began = g->calls->capture(g->device);
  if (began != WEFT_OK) return refuse_graphs(g, began, status);
  start_pass(g, STEP_GRAPHS_CAPTURE);
  return true;
}

static bool end_capture(step_graphs *g, weft_status *status) {
  void *graph = NULL;
  step_graph *place = place_of_next(g);
  weft_status captured = g->calls->capture_end(g->device, &graph);
  g->mode = STEP_GRAPHS_RUN;
  if (*status != WEFT_OK) captured = *status;
  if (captured == WEFT_OK && !same_signature(g->signature, g->walked)) captured = WEFT_E_INVALID;
  if (captured == WEFT_OK) captured = make_exec(g, place, graph);
  if (graph != NULL) g->calls->free_graph(g->device, graph);
  if (captured != WEFT_OK) return refuse_graphs(g, captured, status);
  count_one(&g->n.captures);
  place->signature = g->walked;
  place->last = g->n_steps;
  place->owner = g->owner;
  if (!all_ready(g, true)) return run_eagerly(g);
  *status = launch_graph(g, place);
  return false;
}

bool step_graphs_end(step_graphs *g, weft_status *status) {
  bool walked = g->mode == STEP_GRAPHS_WALK;
  g->again = false;
  if (g->mode == STEP_GRAPHS_CAPTURE)
    g->again = end_capture(g, status);
  else if (walked && *status == WEFT_OK)
    g->again = end_walk(g, status);
  else
    g->mode = STEP_GRAPHS_RUN; /* the step has failed, or ran call by call */
  return g->again;
}
