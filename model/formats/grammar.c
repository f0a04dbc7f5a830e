/* SPDX-License-Identifier: MIT */
#include "model/formats/grammar.h"

#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/formats/grammar_graph.h"
#include "model/formats/grammar_internal.h"
#include "model/formats/unicode_class.h"

bool grammar_spend(weft_grammar_work *work, uint64_t n) {
  if (work == NULL) return true;
  work->n_steps += n;
  if (work->stopped || work->stop == NULL || work->n_steps < work->look_at) return !work->stopped;
  work->look_at = work->n_steps + WEFT_GRAMMAR_LOOK;
  work->stopped = work->stop(work->self);
  return !work->stopped;
}

static weft_status tell_stopped(weft_error *error) {
  return weft_fail(error, WEFT_CANCELLED, "the format of the answer is not wanted any more");
}

void grammar_read(grammar_builder *b, weft_grammar_kind kind, const char *text, size_t n) {
  size_t bad_at;
  if (n > WEFT_GRAMMAR_TEXT_MAX) {
    builder_fail(b, WEFT_E_TOO_LARGE, "the grammar has %zu bytes; it may have %d", n, WEFT_GRAMMAR_TEXT_MAX);
  } else if (!weft_utf8_valid(text, n, &bad_at)) {
    builder_fail(b, WEFT_E_INVALID, "the grammar is not valid UTF-8 at byte %zu", bad_at);
  } else if (kind == WEFT_GRAMMAR_JSON_OBJECT) {
    grammar_read_object(b);
  } else if (kind == WEFT_GRAMMAR_JSON_SCHEMA) {
    grammar_read_schema(b, text, n);
  } else if (kind == WEFT_GRAMMAR_REGEX) {
    grammar_read_regex(b, text, n);
  } else if (kind == WEFT_GRAMMAR_CHOICE) {
    grammar_read_choice(b, text, n);
  } else if (kind == WEFT_GRAMMAR_GBNF) {
    grammar_read_gbnf(b, text, n);
  } else if (kind == WEFT_GRAMMAR_CALLS) {
    grammar_read_calls(b, text, n);
  } else if (kind == WEFT_GRAMMAR_ANSWER) {
    grammar_read_answer(b, text, n);
  } else {
    builder_fail(b, WEFT_E_INVALID, "no such kind of grammar");
  }
}

static void close_grammar(weft_grammar *g) {
  if (g == NULL) return;
  void *const all[] = {g->next, g->state, g->call, g->rule};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  grammar_tables_close(g);
  weft_grammar_graph_close(g->graph);
  weft_free(g);
}

/* Where nothing fits, the reader may have seen why. */
static weft_status measure_grammar(weft_grammar *g, const char *why, weft_error *error) {
  weft_error own = {{0}};
  weft_status status = grammar_measure(g, &own);
  if (status == WEFT_OK || status == WEFT_E_NO_MEMORY || why[0] == 0) {
    return status == WEFT_OK ? status : weft_fail(error, status, "%s", own.text);
  }
  return weft_fail(error, status, "%.240s; %.240s", why, own.text);
}

typedef struct compiling {
  weft_grammar_kind kind;
  const char *text;
  size_t n;
  const weft_token_trie *trie;
  weft_grammar_work *work;
  bool widest, may_widen; /* as of the builder */
} compiling;

static weft_status compile_once(compiling *c, weft_grammar **out, weft_error *error) {
  unicode_classes classes = {.n = 0};
  weft_grammar_work *work = c->work;
  grammar_builder b = {.trie = c->trie, .work = work, .error = error, .classes = &classes, .widest = c->widest};
  *out = NULL;
  weft_grammar *g = weft_alloc(1, sizeof *g);
  if (g == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  g->trie = c->trie;
  g->work = work;
  for (uint32_t i = 0; i < sizeof b.shared / sizeof *b.shared; i++) b.shared[i] = GRAMMAR_NONE;
  grammar_read(&b, c->kind, c->n == 0 ? "" : c->text, c->n);
  c->may_widen = b.may_widen;
  weft_status status = grammar_determinise(&b, g);
  builder_close(&b);
  unicode_classes_close(&classes);
  if (status == WEFT_OK) status = grammar_minimise(g, error);
  if (status == WEFT_OK) status = measure_grammar(g, b.why, error);
  if (status == WEFT_OK) status = grammar_tabulate(g, error);
  if (grammar_is_stopped(work)) status = tell_stopped(error);
  g->work = NULL;
  if (status != WEFT_OK) {
    close_grammar(g);
    return status;
  }
  atomic_init(&g->n_references, 1);
  g->n_bytes = sizeof *g + (uint64_t)g->n_states * sizeof *g->state + grammar_tables_bytes(g) +
               (uint64_t)g->n_states * g->n_classes * sizeof *g->next + (uint64_t)g->n_calls * sizeof *g->call +
               (uint64_t)g->n_rules * sizeof *g->rule;
  *out = g;
  return WEFT_OK;
}

/* What cannot be held with what tools that are not strict say of their arguments is held without. */
weft_status weft_grammar_compile(weft_grammar_kind kind, const char *text, size_t n, const weft_token_trie *trie,
                                 weft_grammar **out, weft_grammar_work *work, weft_error *error) {
  compiling c = {.kind = kind, .text = text, .n = n, .trie = trie, .work = work};
  weft_error own = {{0}};
  weft_status status = compile_once(&c, out, &own);
  bool refused = status == WEFT_E_UNSUPPORTED || status == WEFT_E_TOO_LARGE || status == WEFT_E_INVALID;
  if (!refused || !c.may_widen) return status == WEFT_OK ? status : weft_fail(error, status, "%s", own.text);
  weft_error why = {{0}};
  c.widest = true;
  status = compile_once(&c, out, &why);
  if (status != WEFT_OK) return weft_fail(error, status, "%s", own.text); /* the first fault is the caller's */
  weft_log(WEFT_LOG_WARN, "tools that are not strict may be called with any arguments, since: %.300s", own.text);
  return status;
}

weft_status weft_grammar_for_canvases(weft_grammar *g, weft_grammar_work *work, weft_error *error) {
  weft_status status = weft_grammar_graph_open(g, &g->graph, work, error);
  if (grammar_is_stopped(work)) status = tell_stopped(error);
  if (status != WEFT_OK) return status;
  g->n_bytes += g->graph->n_bytes;
  g->shortest = g->graph->left[g->graph->start];
  return WEFT_OK;
}

const weft_grammar_graph *weft_grammar_graph_of(const weft_grammar *g) {
  return g->graph;
}

weft_grammar *weft_grammar_ref(weft_grammar *g) {
  if (g != NULL) (void)atomic_fetch_add_explicit(&g->n_references, 1, memory_order_relaxed);
  return g;
}

void weft_grammar_unref(weft_grammar *g) {
  if (g != NULL && atomic_fetch_sub_explicit(&g->n_references, 1, memory_order_acq_rel) == 1) close_grammar(g);
}

uint64_t weft_grammar_bytes(const weft_grammar *g) {
  return g->n_bytes;
}

uint32_t weft_grammar_shortest(const weft_grammar *g) {
  return g->shortest;
}
