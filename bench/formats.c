/* SPDX-License-Identifier: MIT */
/* What holding answers to a format costs the host: compiling, masks token by token, paths of canvases.
 *
 * usage: bench_formats VOCABULARY.gguf [WORD [check]]
 *        formats whose name contains WORD, a JSON object each. bench/synthetic_gguf.py gemma4-26b none FILE makes a
 *        vocabulary of 262,144 tokens.
 *
 * SEQUENCES answers are written side by side, each token drawn evenly from its mask, so a step is as many masks; an
 * answer that ends begins again. Every second answer has room for few tokens, as near the end of `max_tokens`, where masks
 * depend on what is left. canvas_path_us: a path over a canvas of POSITIONS positions where the model agrees
 * with the format, _flat: where it says nothing, as in the first steps of a canvas.
 * With `check` each mask is compared with the one that a walk of the whole vocabulary makes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/formats/canvas_path.h"
#include "model/formats/grammar_internal.h"
#include "model/gguf/gguf.h"

enum { SEQUENCES = 32, STEPS = 96, STEPS_CHECKED = 8, POSITIONS = 256, PATHS = 16 };

typedef struct format_case {
  const char *name;
  weft_grammar_kind kind;
  const char *text;
} format_case;

#define PERSON                                                                                                        \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0}," \
  "\"role\":{\"enum\":[\"admin\",\"editor\",\"reader\"]},\"mail\":{\"type\":\"string\"}},"                            \
  "\"required\":[\"name\",\"age\",\"role\"]}"

static const format_case cases[] = {
    {"integers", WEFT_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"},
    {"integers, at least 127", WEFT_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":127}"},
    {"strings", WEFT_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"},
    {"strings, not empty", WEFT_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":1}}"},
    {"strings of 3 to 24", WEFT_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":24}}"},
    {"strings of at most 400", WEFT_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":400}}"},
    {"strings of a pattern", WEFT_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z]+(-[a-z0-9]+)*$\"}}"},
    {"a person", WEFT_GRAMMAR_JSON_SCHEMA, PERSON},
    {"people with addresses", WEFT_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"people\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
     "\"properties\":{"
     "\"who\":" PERSON
     ",\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\",\"minLength\":1,"
     "\"maxLength\":80},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{5}$\"},\"city\":{\"type\":\"string\","
     "\"minLength\":"
     "1}},\"required\":[\"street\",\"zip\",\"city\"]},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\","
     "\"c\"]}},"
     "\"score\":{\"type\":\"number\"},\"since\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"who\","
     "\"address\","
     "\"tags\",\"score\",\"since\"]}}},\"required\":[\"people\"]}"},
    {"any object", WEFT_GRAMMAR_JSON_OBJECT, ""},
    {"words, GBNF", WEFT_GRAMMAR_GBNF, "root ::= word (\", \" word)* \".\"\nword ::= [^,.]+"},
    {"words with blanks, GBNF", WEFT_GRAMMAR_GBNF, "root ::= (word \" \"?)+ \".\"\nword ::= [^,. ]+"},
    {"a regular expression", WEFT_GRAMMAR_REGEX, "([A-Z][a-z]{2,12} ){2,30}end"},
};

typedef struct bench {
  weft_gguf *gguf;
  weft_tokenizer *tokenizer;
  weft_token_trie *trie;
  weft_grammar_scratch *scratch;
  uint32_t *mask, *walked, n_words;
  bool check;
} bench;

/* ---- answers token by token ---- */

typedef struct answer {
  weft_matcher at;
  uint32_t n_left;
} answer;

typedef struct mask_times {
  uint64_t n, sum_us, most_us, most_done; /* of steps */
  uint64_t n_differ;
} mask_times;

static void begin_answer(const weft_grammar *g, answer *a, uint64_t draw) {
  uint32_t shortest = weft_grammar_shortest(g);
  weft_matcher_begin(&a->at, g);
  a->n_left = draw % 2 == 0 ? shortest + 128 : shortest + (uint32_t)(draw / 2 % 16);
  if (a->n_left == 0) a->n_left = 1;
}

static int32_t draw_token(const uint32_t *mask, uint32_t n_words, uint64_t draw) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < n_words; i++) n += (uint64_t)__builtin_popcount(mask[i]);
  WEFT_CHECK(n > 0);
  uint64_t pick = draw % n;
  for (uint32_t i = 0;; i++) {
    uint32_t here = (uint32_t)__builtin_popcount(mask[i]), word = mask[i];
    if (pick >= here) {
      pick -= here;
      continue;
    }
    for (; pick > 0; pick--) word &= word - 1;
    return (int32_t)(i * 32 + (uint32_t)__builtin_ctz(word));
  }
}

/* The mask as it is made where no state has a table. */
static bool is_as_walked(const bench *b, weft_grammar *g, const answer *a, const uint32_t *mask) {
  grammar_state *state = g->state;
  grammar_state *bare = weft_alloc((size_t)g->n_states + 1, sizeof *bare);
  WEFT_CHECK(bare != NULL);
  memcpy(bare, state, ((size_t)g->n_states + 1) * sizeof *bare);
  for (uint32_t i = 0; i < g->n_states; i++) bare[i].allowed = GRAMMAR_NONE, bare[i].n_pairs = 0;
  g->state = bare;
  b->scratch->n_enough = UINT64_MAX;
  weft_matcher_mask(&a->at, b->scratch, a->n_left, b->walked);
  b->scratch->n_enough = WALK_MASK_MAX;
  g->state = state;
  weft_free(bare);
  return memcmp(mask, b->walked, b->n_words * sizeof *mask) == 0;
}

static mask_times write_answers(const bench *b, weft_grammar *g) {
  static answer answers[SEQUENCES];
  mask_times t = {0};
  uint64_t draw = 1;
  for (uint32_t i = 0; i < SEQUENCES; i++) begin_answer(g, &answers[i], draw = weft_mix64(draw + i));
  for (uint32_t step = 0; step < (b->check ? STEPS_CHECKED : STEPS); step++) {
    uint64_t start = weft_clock_us();
    for (uint32_t i = 0; i < SEQUENCES; i++) {
      weft_matcher_mask(&answers[i].at, b->scratch, answers[i].n_left, b->mask + (uint64_t)i * b->n_words);
      if (b->scratch->n_done > t.most_done) t.most_done = b->scratch->n_done;
    }
    uint64_t us = weft_clock_us() - start;
    t.n += 1;
    t.sum_us += us;
    if (us > t.most_us) t.most_us = us;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
      answer *a = &answers[i];
      const uint32_t *mask = b->mask + (uint64_t)i * b->n_words;
      if (b->check && !is_as_walked(b, g, a, mask)) t.n_differ += 1;
      draw = weft_mix64(draw + 1);
      int32_t token = draw_token(mask, b->n_words, draw);
      bool ends = weft_tokenizer_is_eog(b->tokenizer, token);
      if (!ends) WEFT_CHECK(weft_matcher_take(&a->at, b->scratch, token));
      a->n_left -= 1;
      if (ends || a->n_left == 0 || weft_matcher_is_done(&a->at)) begin_answer(g, a, draw);
    }
  }
  return t;
}

/* ---- canvases ---- */

/* Log-sums that differ at random, or that, beside this, are high along an answer. */
static void fill_log_sums(const weft_grammar_graph *graph, bool agrees, float *log_sum) {
  uint32_t place = graph->start;
  for (uint32_t i = 0; i < POSITIONS; i++) {
    float *row = log_sum + (uint64_t)i * graph->n_classes;
    for (uint32_t c = 0; c < graph->n_classes; c++) {
      row[c] = -(agrees ? 4.0f : 0.0f) - 16.0f * (float)(weft_mix64((uint64_t)i << 32 | c) % 4096) / 4096.0f;
    }
    uint32_t n = graph->edge_at[place + 1] - graph->edge_at[place];
    const weft_graph_edge *edge = &graph->edge[graph->edge_at[place] + weft_mix64(i + 7) % n];
    if (agrees) row[edge->which] = -0.05f;
    place = edge->to;
  }
}

static uint64_t time_paths(const weft_grammar *g, const weft_grammar_graph *graph, bool agrees) {
  static int32_t token[POSITIONS];
  uint64_t n = (uint64_t)POSITIONS * graph->n_classes, n_bytes;
  canvas_path *path;
  weft_graph_set from;
  int32_t *best = weft_alloc(n, sizeof *best);
  float *log_sum = weft_alloc(n, sizeof *log_sum);
  WEFT_CHECK(best != NULL && log_sum != NULL && canvas_path_open(POSITIONS, &path, &n_bytes) == WEFT_OK);
  fill_log_sums(graph, agrees, log_sum);
  weft_graph_begin(graph, &from);
  canvas_path_ask ask = {graph, &from, POSITIONS, 2 * POSITIONS + weft_grammar_shortest(g), best, log_sum};
  uint64_t start = weft_clock_us();
  for (uint32_t i = 0; i < PATHS; i++) WEFT_CHECK(canvas_path_find(path, &ask, token));
  uint64_t us = (weft_clock_us() - start) / PATHS;
  canvas_path_close(path);
  weft_free(best);
  weft_free(log_sum);
  return us;
}

static void find_paths(weft_grammar *g) {
  weft_error error;
  weft_grammar_work work = {0};
  uint64_t start = weft_clock_us();
  if (weft_grammar_for_canvases(g, &work, &error) != WEFT_OK) {
    (void)printf(", \"canvas_refused\": true");
    return;
  }
  const weft_grammar_graph *graph = weft_grammar_graph_of(g);
  uint64_t graph_us = weft_clock_us() - start;
  (void)printf(", \"graph_us\": %llu, \"graph_cost\": %llu, \"places\": %u, \"classes\": %u, \"edges\": %u",
               (unsigned long long)graph_us, (unsigned long long)work.n_steps, graph->n_places, graph->n_classes,
               graph->edge_at[graph->n_places]);
  (void)printf(", \"canvas_path_us\": %llu, \"canvas_path_us_flat\": %llu",
               (unsigned long long)time_paths(g, graph, true), (unsigned long long)time_paths(g, graph, false));
}

/* ---- */

static bool run_case(const bench *b, const format_case *c) {
  weft_grammar *g;
  weft_error error;
  weft_grammar_work work = {0};
  uint64_t start = weft_clock_us();
  (void)printf("{\"format\": \"%s\"", c->name);
  if (weft_grammar_compile(c->kind, c->text, strlen(c->text), b->trie, &g, &work, &error) != WEFT_OK) {
    (void)printf(", \"refused\": \"%s\"}\n", error.text);
    return false;
  }
  (void)printf(", \"compile_us\": %llu, \"cost\": %llu, \"bytes\": %llu, \"states\": %u, \"shortest\": %u",
               (unsigned long long)(weft_clock_us() - start), (unsigned long long)work.n_steps,
               (unsigned long long)weft_grammar_bytes(g), g->n_states, weft_grammar_shortest(g));
  mask_times t = write_answers(b, g);
  (void)printf(", \"step_us\": %llu, \"step_us_most\": %llu, \"items_most\": %llu",
               (unsigned long long)(t.sum_us / t.n), (unsigned long long)t.most_us, (unsigned long long)t.most_done);
  if (b->check)
    (void)printf(", \"masks\": %u, \"differ\": %llu", STEPS_CHECKED * SEQUENCES, (unsigned long long)t.n_differ);
  if (!b->check) find_paths(g);
  (void)printf("}\n");
  (void)fflush(stdout);
  weft_grammar_unref(g);
  return t.n_differ == 0;
}

int main(int argc, char **argv) {
  bench b = {.check = argc > 3 && strcmp(argv[3], "check") == 0};
  weft_error error = {{0}};
  bool ok = true;
  if (argc < 2) {
    (void)fprintf(stderr, "usage: bench_formats VOCABULARY.gguf [WORD [check]]\n");
    return 2;
  }
  if (weft_gguf_open(argv[1], &b.gguf, &error) != WEFT_OK ||
      weft_tokenizer_open(b.gguf, &b.tokenizer, &error) != WEFT_OK ||
      weft_token_trie_open(b.tokenizer, &b.trie, &error) != WEFT_OK ||
      weft_grammar_scratch_open(&b.scratch) != WEFT_OK) {
    (void)fprintf(stderr, "bench_formats: %s\n", error.text);
    return 1;
  }
  b.n_words = (b.trie->n_vocab + 31) / 32;
  b.mask = weft_alloc((size_t)b.n_words * SEQUENCES, sizeof *b.mask);
  b.walked = weft_alloc(b.n_words, sizeof *b.walked);
  WEFT_CHECK(b.mask != NULL && b.walked != NULL);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc < 3 || strstr(cases[i].name, argv[2]) != NULL) ok = run_case(&b, &cases[i]) && ok;
  }
  weft_free(b.mask);
  weft_free(b.walked);
  weft_grammar_scratch_close(b.scratch);
  weft_token_trie_close(b.trie);
  weft_tokenizer_close(b.tokenizer);
  weft_gguf_close(b.gguf);
  return ok ? 0 : 1;
}
