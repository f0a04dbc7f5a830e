/* SPDX-License-Identifier: MIT */
/* Random answers through the automaton of a grammar. */
#ifndef WEFT_TESTS_GRAMMAR_SAMPLE_H
#define WEFT_TESTS_GRAMMAR_SAMPLE_H

#include <stdlib.h>

#include "base/random.h"
#include "model/formats/grammar.h"
#include "tests/support/tokenizer_fixture.h"

typedef struct grammar_world {
  weft_gguf *gguf;
  weft_tokenizer *tokenizer;
  weft_token_trie *trie;
  weft_grammar_scratch *scratch;
  uint32_t *mask;
} grammar_world;

static inline bool grammar_world_ready(grammar_world *w) {
  weft_error error;
  if (weft_token_trie_open(w->tokenizer, &w->trie, &error) != WEFT_OK) return false;
  if (weft_grammar_scratch_open(&w->scratch) != WEFT_OK) return false;
  w->mask = calloc((w->trie->n_vocab + 31) / 32, sizeof *w->mask);
  return w->mask != NULL;
}

/* All bytes; tokens of several, across the borders of JSON's parts and of characters; control tokens that no mask may
 * have. In the alphabet of gpt2, where G with a dot is a blank, A with a tilde the byte C3. */
static inline bool grammar_world_with(grammar_world *w, const char *const *specials, uint32_t n_specials) {
  static const char *const words[] = {"true",
                                      "false",
                                      "null",
                                      "\":",
                                      "\":\"",
                                      "\",\"",
                                      "\"}",
                                      "{\"",
                                      "},",
                                      "]}",
                                      "\"\u00c3",
                                      "ab",
                                      "abc",
                                      "10",
                                      "2024-",
                                      "name",
                                      "\u0120\"",
                                      "\u0120{",
                                      "\u010a\u0120\u0120",
                                      "\u0120\u0120\u0120\u0120",
                                      "}}}}",
                                      "[[",
                                      "\\u",
                                      "\\\"",
                                      "hello"};
  tokenizer_fixture f = {0};
  weft_error error;
  *w = (grammar_world){0};
  fixture_gpt2(&f, "qwen2");
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) (void)fixture_token(&f, words[i], FIXTURE_NORMAL);
  (void)fixture_token(&f, "<think>", FIXTURE_USER);
  for (uint32_t i = 0; i < n_specials; i++) (void)fixture_token(&f, specials[i], FIXTURE_USER);
  gguf_writer_u32(&f.writer, "tokenizer.ggml.eos_token_id", fixture_token(&f, "<|end|>", FIXTURE_CONTROL));
  bool ok = fixture_open(&f, &w->tokenizer, &error) == WEFT_OK;
  fixture_close(&f);
  return ok && grammar_world_ready(w);
}

static inline bool grammar_world_small(grammar_world *w) {
  return grammar_world_with(w, NULL, 0);
}

static inline bool grammar_world_open(grammar_world *w, const char *path) {
  weft_error error;
  *w = (grammar_world){0};
  if (weft_gguf_open(path, &w->gguf, &error) != WEFT_OK) return false;
  return weft_tokenizer_open(w->gguf, &w->tokenizer, &error) == WEFT_OK && grammar_world_ready(w);
}

static inline void grammar_world_close(grammar_world *w) {
  free(w->mask);
  weft_grammar_scratch_close(w->scratch);
  weft_token_trie_close(w->trie);
  weft_tokenizer_close(w->tokenizer);
  weft_gguf_close(w->gguf);
}

/* For groups of tests whose state is the small world. */
static inline int grammar_world_setup(void **state) {
  static grammar_world world;
  *state = &world;
  return grammar_world_small(&world) ? 0 : -1;
}

static inline int grammar_world_teardown(void **state) {
  grammar_world_close(*state);
  return 0;
}

static inline bool grammar_mask_has(const uint32_t *mask, uint32_t token) {
  return (mask[token / 32] >> token % 32 & 1) != 0;
}

/* The pick-th allowed token, -1: there are fewer. */
static inline int32_t grammar_mask_pick(const uint32_t *mask, uint32_t n_vocab, uint64_t pick, uint64_t *n) {
  *n = 0;
  for (uint32_t i = 0; i < n_vocab; i++) {
    if (grammar_mask_has(mask, i) && (*n)++ == pick) return (int32_t)i;
  }
  return -1;
}

/* An answer of at most n_max tokens, any allowed token as likely as another. Returns why it went wrong, NULL: it did
 * not. */
static inline const char *grammar_sample(grammar_world *w, const weft_grammar *g, uint64_t seed, uint32_t n_max,
                                         weft_text *out, uint32_t *n_tokens) {
  weft_matcher m;
  uint64_t n = 0;
  weft_matcher_begin(&m, g);
  for (*n_tokens = 0;; *n_tokens += 1) {
    if (weft_matcher_is_done(&m)) return NULL;
    if (*n_tokens == n_max) return weft_matcher_may_end(&m, w->scratch) ? NULL : "the answer is not complete in time";
    weft_matcher_mask(&m, w->scratch, n_max - *n_tokens, w->mask);
    (void)grammar_mask_pick(w->mask, w->trie->n_vocab, UINT64_MAX, &n);
    if (n == 0) return "no token is allowed";
    seed = weft_mix64(seed + 1);
    int32_t token = grammar_mask_pick(w->mask, w->trie->n_vocab, seed % n, &n);
    if (weft_tokenizer_is_eog(w->tokenizer, token)) return NULL;
    if (!weft_matcher_take(&m, w->scratch, token)) return "an allowed token is not taken";
    if (weft_tokenizer_piece(w->tokenizer, token, false, out) != WEFT_OK) return "no memory";
  }
}

#endif
