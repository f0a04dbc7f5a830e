/* SPDX-License-Identifier: MIT */
/* Answers on canvases that are held to a grammar: the graph against the matcher, token by token; the path against
 * trying everything; and answers over many canvases, which always are of the grammar and complete in time. With
 * arguments it is a tool (tests/support/grammar_tool.h), whose answers are paths over canvases of random logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "kernels/classes.h"
#include "model/formats/canvas_path.h"
#include "tests/support/grammar_tool.h"

typedef struct held {
  weft_grammar *g;
  const weft_grammar_graph *graph;
  uint32_t measured; /* its shortest completion as a matcher counts it */
} held;

typedef struct grammar_text {
  weft_grammar_kind kind;
  const char *text;
} grammar_text;

#define SCHEMA                                                                                                        \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},\"n\":{\"type\":\"integer\"}," \
  "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",\"abc\"]},\"maxItems\":3}},\"required\":[\"name\"," \
  "\"tags\"]}"
#define TREE                                                                                                           \
  "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"boolean\"},\"l\":{" \
  "\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/t\"}]}},\"required\":[\"v\",\"l\"]}}}"

static const grammar_text small[] = {{WEFT_GRAMMAR_GBNF, "root ::= \"\""}, /* nothing but the end */
                                     {WEFT_GRAMMAR_CHOICE, "[\"ab\",\"abc\",\"abcab\",\"x\",\"10\"]"},
                                     {WEFT_GRAMMAR_REGEX, "(ab|abc)(c|10)?"},
                                     {WEFT_GRAMMAR_REGEX, "a{2,4}b?"},
                                     {WEFT_GRAMMAR_CHOICE, "[\"true\",\"false\",\"null\",\"name\"]"},
                                     {WEFT_GRAMMAR_GBNF, "root ::= \"[\" item? \"]\"\nitem ::= \"ab\" | root"}};
static const grammar_text large[] = {
    {WEFT_GRAMMAR_JSON_SCHEMA, SCHEMA},
    {WEFT_GRAMMAR_JSON_SCHEMA, TREE},
    {WEFT_GRAMMAR_JSON_OBJECT, ""},
    {WEFT_GRAMMAR_REGEX, "[a-f0-9]{8}-[a-z]{1,60}\\.(com|org)"},
    {WEFT_GRAMMAR_REGEX, "[^x]{3,500}x"},
    {WEFT_GRAMMAR_GBNF, "root ::= e\ne ::= t ((\"+\" | \"-\") t)*\nt ::= [0-9]+ | \"(\" e \")\""},
    {WEFT_GRAMMAR_REGEX, ".*"}};

static held open_held(grammar_world *w, const grammar_text *t) {
  held h;
  weft_error error;
  weft_grammar_work work = {0};
  weft_status status = weft_grammar_compile(t->kind, t->text, strlen(t->text), w->trie, &h.g, &work, &error);
  if (status == WEFT_OK) h.measured = weft_grammar_shortest(h.g);
  if (status == WEFT_OK) status = weft_grammar_for_canvases(h.g, &work, &error);
  if (status != WEFT_OK) fail_msg("%s: %s", t->text, error.text);
  h.graph = weft_grammar_graph_of(h.g);
  return h;
}

static uint64_t draw(uint64_t seed, uint64_t n) {
  return weft_mix64(seed * 0x9E3779B97F4A7C15u + n);
}

/* ---- the graph ---- */

static uint32_t least_left(const held *h, const weft_graph_set *set) {
  uint32_t least = UINT32_MAX;
  for (uint32_t p = 0; p < h->graph->n_places; p++) {
    if (weft_graph_has(set, p) && h->graph->left[p] < least) least = h->graph->left[p];
  }
  return least;
}

/* Random answers: what the graph allows the matcher does, and with `exact` the other way round; both agree on where the
 * answer may end and where it must. */
static void walk_both(grammar_world *w, const held *h, uint64_t seed, bool exact) {
  weft_matcher m, next;
  weft_graph_set set, after;
  weft_matcher_begin(&m, h->g);
  weft_graph_begin(h->graph, &set);
  for (uint32_t i = 0; i < 24 && !weft_graph_is_done(h->graph, &set); i++) {
    int32_t picked = -1;
    uint32_t n = 0;
    for (uint32_t v = 0; v < w->trie->n_vocab; v++) {
      after = set;
      next = m;
      bool graph = weft_graph_take(h->graph, &after, (int32_t)v),
           ends = weft_tokenizer_is_eog(w->tokenizer, (int32_t)v);
      bool grammar = ends ? weft_matcher_may_end(&m, w->scratch) : weft_matcher_take(&next, w->scratch, (int32_t)v);
      if (graph && !grammar) fail_msg("token %u is in the graph and not in the grammar", v);
      if (exact && grammar && !graph) fail_msg("token %u is in the grammar and not in the graph", v);
      if (!graph || ends) continue;
      n += 1;
      if (draw(seed, 1000 * i + n) % n == 0) picked = (int32_t)v;
    }
    if (picked < 0) break;
    assert_true(weft_matcher_take(&m, w->scratch, picked));
    assert_true(weft_graph_take(h->graph, &set, picked));
    if (least_left(h, &set) == 0) assert_true(weft_matcher_may_end(&m, w->scratch));
    if (exact) assert_int_equal(least_left(h, &set) == 0, weft_matcher_may_end(&m, w->scratch));
    if (exact) assert_int_equal(weft_graph_is_done(h->graph, &set), weft_matcher_is_done(&m));
  }
}

static void graph_says_what_the_grammar_says(void **state) {
  grammar_world *w = *state;
  for (size_t i = 0; i < sizeof small / sizeof *small - 1; i++) {
    held h = open_held(w, &small[i]);
    for (uint64_t seed = 0; seed < 20; seed++) walk_both(w, &h, seed, true);
    weft_grammar_unref(h.g);
  }
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
    held h = open_held(w, &large[i]);
    for (uint64_t seed = 0; seed < 6; seed++) walk_both(w, &h, seed, false);
    assert_true(h.graph->n_places <= WEFT_GRAPH_PLACES && h.graph->n_classes <= WEFT_GRAPH_CLASSES);
    assert_true(h.graph->edge_at[h.graph->n_places] <= WEFT_GRAPH_EDGES);
    assert_true(h.graph->left[h.graph->start] <= h.measured);
    weft_grammar_unref(h.g);
  }
}

/* From every place some edge leads one token nearer to the end, and none further than that. */
static void every_place_has_a_way_to_the_end(void **state) {
  grammar_world *w = *state;
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
    held h = open_held(w, &large[i]);
    const weft_grammar_graph *g = h.graph;
    for (uint32_t p = 1; p < g->n_places; p++) {
      uint32_t least = UINT32_MAX;
      bool ends = false;
      for (uint32_t k = g->edge_at[p]; k < g->edge_at[p + 1]; k++) {
        ends = ends || g->edge[k].to == WEFT_GRAPH_END;
        if (g->edge[k].to != WEFT_GRAPH_END && g->left[g->edge[k].to] < least) least = g->left[g->edge[k].to];
        uint32_t which = g->edge[k].which;
        assert_true(which < g->n_classes && g->tokens_at[which] < g->tokens_at[which + 1]);
      }
      assert_int_equal(ends, g->left[p] == 0);
      if (g->left[p] > 0) assert_int_equal(g->left[p], least + 1);
    }
    weft_grammar_unref(h.g);
  }
}

/* ---- the path against trying everything ---- */

enum { POSITIONS_MAX = 48 };

/* Numbers of random logits; kind 0: noise, 1: as sure as a trained model, 2: the same everywhere. */
typedef struct rows {
  int32_t *best;
  float *log_sum;
} rows;

static rows make_rows(const weft_grammar_graph *g, uint32_t n, uint64_t seed, uint32_t kind) {
  rows r = {calloc((size_t)n * g->n_classes, sizeof *r.best), calloc((size_t)n * g->n_classes, sizeof *r.log_sum)};
  for (uint32_t i = 0; i < n * g->n_classes; i++) {
    uint32_t c = i % g->n_classes, first = g->tokens_at[c], size = g->tokens_at[c + 1] - first;
    r.best[i] = size == 0 ? -1 : g->token[first + draw(seed, i) % size];
    double u = (double)(draw(seed + 1, i) >> 11) * 0x1p-53;
    r.log_sum[i] = kind == 2 ? 0.0f : kind == 1 ? (float)(u * u * u * 40.0) : (float)u;
  }
  return r;
}

static void free_rows(rows *r) {
  free(r->best);
  free(r->log_sum);
}

typedef struct force {
  grammar_world *w;
  const held *h;
  const rows *r;
  uint32_t n, n_left;
  double best;
} force;

/* Fewest tokens that complete the answer, by trying; UINT32_MAX: more than `limit`. */
static uint32_t shortest_by_force(const force *f, const weft_matcher *m, uint32_t limit) {
  if (weft_matcher_may_end(m, f->w->scratch)) return 0;
  for (uint32_t most = 1; most <= limit; most++) {
    for (uint32_t v = 0; v < f->w->trie->n_vocab; v++) {
      weft_matcher next = *m;
      if (weft_matcher_take(&next, f->w->scratch, (int32_t)v) && shortest_by_force(f, &next, most - 1) != UINT32_MAX) {
        return most;
      }
    }
  }
  return UINT32_MAX;
}

static double gain_of(const force *f, uint32_t position, uint32_t which) {
  return (double)f->r->log_sum[position * f->h->graph->n_classes + which];
}

/* Every text of the grammar, token by token; behind the end what ends a generation or prints nothing. */
static void try_everything(force *f, const weft_matcher *m, uint32_t position, double score) {
  const weft_grammar_graph *g = f->h->graph;
  if (shortest_by_force(f, m, f->n_left - position) == UINT32_MAX) return;
  if (position == f->n) {
    if (score > f->best) f->best = score;
    return;
  }
  for (uint32_t v = 0; v < f->w->trie->n_vocab; v++) {
    weft_matcher next = *m;
    if (!weft_matcher_take(&next, f->w->scratch, (int32_t)v)) continue;
    assert_true(g->class_of[v] < g->n_classes);
    try_everything(f, &next, position + 1, score + gain_of(f, position, g->class_of[v]));
  }
  if (!weft_matcher_may_end(m, f->w->scratch)) return;
  score += gain_of(f, position, WEFT_GRAPH_CLASS_END);
  for (uint32_t i = position + 1; i < f->n; i++) {
    double end = gain_of(f, i, WEFT_GRAPH_CLASS_END), silent = gain_of(f, i, WEFT_GRAPH_CLASS_SILENT);
    score += end > silent ? end : silent;
  }
  if (score > f->best) f->best = score;
}

static double score_of(const held *h, const rows *r, const int32_t *token, uint32_t n) {
  double score = 0.0;
  for (uint32_t i = 0; i < n; i++) score += (double)r->log_sum[i * h->graph->n_classes + h->graph->class_of[token[i]]];
  return score;
}

static void path_is_the_best_one(void **state) {
  grammar_world *w = *state;
  canvas_path *path;
  uint64_t n_bytes;
  assert_int_equal(canvas_path_open(POSITIONS_MAX, &path, &n_bytes), WEFT_OK);
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    held h = open_held(w, &small[i]);
    for (uint64_t seed = 0; seed < 12; seed++) {
      uint32_t n = 1 + (uint32_t)(seed % 3), n_left = n + (uint32_t)(seed / 3 % 4);
      rows r = make_rows(h.graph, n, seed * 77 + i, (uint32_t)(seed % 2));
      weft_graph_set from;
      weft_matcher m;
      int32_t token[POSITIONS_MAX];
      force f = {.w = w, .h = &h, .r = &r, .n = n, .n_left = n_left, .best = -INFINITY};
      const canvas_path_ask ask = {h.graph, &from, n, n_left, r.best, r.log_sum};
      weft_graph_begin(h.graph, &from);
      weft_matcher_begin(&m, h.g);
      try_everything(&f, &m, 0, 0.0);
      bool found = canvas_path_find(path, &ask, token);
      assert_int_equal(found, f.best > -INFINITY);
      if (found && fabs(score_of(&h, &r, token, n) - f.best) > 1e-9) {
        fail_msg("%s: a path of %g, the best one has %g", small[i].text, score_of(&h, &r, token, n), f.best);
      }
      free_rows(&r);
    }
    weft_grammar_unref(h.g);
  }
  canvas_path_close(path);
}

/* ---- whole answers ---- */

/* Canvas by canvas until the end, its text to `text` where there is one; why it went wrong, NULL: it did not. */
static const char *write_answer(grammar_world *w, const held *h, canvas_path *path, uint32_t n_canvas, uint32_t n_left,
                                uint64_t seed, weft_text *text, uint32_t *n_tokens) {
  weft_matcher m;
  weft_graph_set set;
  weft_matcher_begin(&m, h->g);
  weft_graph_begin(h->graph, &set);
  *n_tokens = 0;
  for (uint32_t canvas = 0; n_left > 0 && !weft_graph_is_done(h->graph, &set); canvas++) {
    int32_t token[POSITIONS_MAX];
    uint32_t n = n_canvas < n_left ? n_canvas : n_left;
    rows r = make_rows(h->graph, n, seed + 1000 * canvas, (uint32_t)(seed % 3));
    const canvas_path_ask ask = {h->graph, &set, n, n_left, r.best, r.log_sum};
    bool found = canvas_path_find(path, &ask, token);
    free_rows(&r);
    if (!found) return "there is no path";
    for (uint32_t i = 0; i < n; i++) {
      if (!weft_graph_take(h->graph, &set, token[i])) return "the path is none of the graph";
      if (weft_tokenizer_is_eog(w->tokenizer, token[i]))
        return weft_matcher_may_end(&m, w->scratch) ? NULL : "it ends too soon";
      if (!weft_matcher_take(&m, w->scratch, token[i])) return "the grammar does not have it";
      if (text != NULL && weft_tokenizer_piece(w->tokenizer, token[i], false, text) != WEFT_OK) return "no memory";
      *n_tokens += 1;
    }
    n_left -= n;
  }
  return weft_matcher_may_end(&m, w->scratch) ? NULL : "it is not complete in time";
}

static const char *answer(grammar_world *w, const held *h, canvas_path *path, uint32_t n_canvas, uint32_t n_left,
                          uint64_t seed, uint32_t *n_tokens) {
  return write_answer(w, h, path, n_canvas, n_left, seed, NULL, n_tokens);
}

/* Of the tool: canvases of 8, 16 or 32 positions. */
static const char *draw_answer(grammar_world *w, const weft_grammar *g, uint64_t seed, uint32_t room, weft_text *text,
                               uint32_t *n_tokens) {
  const held h = {.graph = weft_grammar_graph_of(g), .g = (weft_grammar *)(uintptr_t)g};
  canvas_path *path;
  uint64_t n_bytes;
  if (canvas_path_open(POSITIONS_MAX, &path, &n_bytes) != WEFT_OK) return "no memory";
  const char *wrong = write_answer(w, &h, path, 8u << seed % 3, room, seed, text, n_tokens);
  canvas_path_close(path);
  return wrong;
}

static void answers_are_complete_over_borders(void **state) {
  grammar_world *w = *state;
  canvas_path *path;
  uint64_t n_bytes;
  uint32_t n_tokens, n_over = 0;
  assert_int_equal(canvas_path_open(POSITIONS_MAX, &path, &n_bytes), WEFT_OK);
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
    held h = open_held(w, &large[i]);
    uint32_t shortest = h.graph->left[h.graph->start];
    for (uint32_t k = 0; k < 36; k++) {
      static const uint32_t canvases[] = {1, 3, 8, 32};
      uint32_t n_canvas = canvases[k % 4], room = shortest + k % 7 * (k % 7) + (k > 30 ? 60 : 0);
      const char *wrong = answer(w, &h, path, n_canvas, room == 0 ? 1 : room, 31 * k + i, &n_tokens);
      if (wrong != NULL) fail_msg("%s with room for %u in canvases of %u: %s", large[i].text, room, n_canvas, wrong);
      assert_true(n_tokens <= room || room == 0);
      n_over += n_tokens > n_canvas;
    }
    weft_grammar_unref(h.g);
  }
  assert_true(n_over > 40);
  canvas_path_close(path);
}

/* More places than a position may keep: what is kept can still be completed, however little is left. */
static void a_full_beam_keeps_the_way_to_the_end(void **state) {
  grammar_world *w = *state;
  canvas_path *path;
  uint64_t n_bytes;
  weft_text text = {0};
  uint32_t n_tokens;
  assert_int_equal(canvas_path_open(POSITIONS_MAX, &path, &n_bytes), WEFT_OK);
  weft_text_puts(&text, "[\"q\"");
  for (uint32_t i = 0; i < 700; i++)
    weft_text_printf(&text, ",\"%c%c%u\"", 'A' + i % 26, 'a' + i / 26, i * 7919 % 10007);
  weft_text_puts(&text, "]");
  held h = open_held(w, &(grammar_text){WEFT_GRAMMAR_CHOICE, text.bytes});
  assert_true(h.graph->n_places > 2 * CANVAS_PATH_BEAM);
  for (uint32_t k = 0; k < 60; k++) {
    const char *wrong = answer(w, &h, path, 1 + k % 5, 1 + k % 12, k, &n_tokens);
    if (wrong != NULL) fail_msg("with room for %u: %s", 1 + k % 12, wrong);
  }
  weft_grammar_unref(h.g);
  weft_text_free(&text);
  canvas_path_close(path);
}

/* A token over the border of two rules, which measuring the grammar counts as one for each: a max_tokens that is enough
 * for the graph is enough. */
static void the_shortest_answer_is_that_of_the_graph(void **state) {
  grammar_world *w = *state;
  static const grammar_text texts[] = {{WEFT_GRAMMAR_GBNF, "root ::= a b\na ::= \"tr\"\nb ::= \"ue\""},
                                       {WEFT_GRAMMAR_REGEX, "(ab|abc)(c|10)?"},
                                       {WEFT_GRAMMAR_GBNF, "root ::= \"\""}};
  static const uint32_t shortest[] = {1, 1, 0};
  canvas_path *path;
  uint64_t n_bytes;
  uint32_t n_tokens;
  assert_int_equal(canvas_path_open(POSITIONS_MAX, &path, &n_bytes), WEFT_OK);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    held h = open_held(w, &texts[i]);
    assert_int_equal(weft_grammar_shortest(h.g), shortest[i]);
    assert_int_equal(h.graph->left[h.graph->start], shortest[i]);
    const char *wrong = answer(w, &h, path, 8, shortest[i] == 0 ? 1 : shortest[i], i, &n_tokens);
    if (wrong != NULL) fail_msg("%s: %s", texts[i].text, wrong);
    assert_int_equal(n_tokens, shortest[i]);
    weft_grammar_unref(h.g);
  }
  canvas_path_close(path);
}

/* ---- bounds ---- */

static void what_is_too_large_is_refused(void **state) {
  grammar_world *w = *state;
  weft_grammar *g;
  weft_error error;
  weft_grammar_work work = {0};
  static const char long_answer[] = "x{5000}";
  assert_int_equal(
      weft_grammar_compile(WEFT_GRAMMAR_REGEX, long_answer, strlen(long_answer), w->trie, &g, &work, &error), WEFT_OK);
  assert_int_equal(weft_grammar_for_canvases(g, &work, &error), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(error.text, "too large for an answer by diffusion"));
  assert_null(weft_grammar_graph_of(g));
  weft_grammar_unref(g);
}

static void every_allocation_may_fail(void **state) {
  grammar_world *w = *state;
  weft_error error;
  for (uint64_t at = 1;; at++) {
    weft_grammar *g;
    assert_int_equal(weft_grammar_compile(WEFT_GRAMMAR_REGEX, "ab*c", 4, w->trie, &g, NULL, &error), WEFT_OK);
    (void)weft_memory_fail_at(at);
    weft_status status = weft_grammar_for_canvases(g, NULL, &error);
    bool counted = weft_memory_fail_at(0) >= at;
    weft_grammar_unref(g);
    if (!counted) break;
    assert_int_equal(status, WEFT_E_NO_MEMORY);
  }
}

int main(int argc, char **argv) {
  static const grammar_way by_diffusion = {weft_grammar_for_canvases, draw_answer, NULL};
  if (argc > 1) return grammar_tool(argc, argv, &by_diffusion);
  const struct CMUnitTest tests[] = {cmocka_unit_test(graph_says_what_the_grammar_says),
                                     cmocka_unit_test(every_place_has_a_way_to_the_end),
                                     cmocka_unit_test(path_is_the_best_one),
                                     cmocka_unit_test(answers_are_complete_over_borders),
                                     cmocka_unit_test(a_full_beam_keeps_the_way_to_the_end),
                                     cmocka_unit_test(the_shortest_answer_is_that_of_the_graph),
                                     cmocka_unit_test(what_is_too_large_is_refused),
                                     cmocka_unit_test(every_allocation_may_fail)};
  return cmocka_run_group_tests(tests, grammar_world_setup, grammar_world_teardown);
}
