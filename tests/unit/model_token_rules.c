/* SPDX-License-Identifier: MIT */
/* Rules of tokens as masks, compared with what their words say, token by token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/formats/token_rules.h"

enum { N_VOCAB = 70, N_MASK = 3 };

static bool has(const uint32_t *mask, int32_t token) {
  return (mask[token / 32] >> (token % 32) & 1) != 0;
}

/* What the rules say, looked up one by one. */
static bool says(const weft_token_rules_config *c, const int32_t *answer, uint32_t n, int32_t token) {
  bool good = c->n_allowed == 0;
  for (uint32_t i = 0; i < c->n_allowed; i++) good = good || c->allowed[i] == token;
  for (uint32_t i = 0; i < c->n_suppressed; i++) good = good && c->suppressed[i] != token;
  for (uint32_t i = 0; i < c->n_ends && n < c->min_tokens; i++) good = good && c->end[i] != token;
  const int32_t *word = c->word;
  for (uint32_t i = 0; i < c->n_words; word += c->word_length[i++]) {
    uint32_t before = c->word_length[i] - 1;
    bool follows = before <= n;
    for (uint32_t k = 0; k < before && follows; k++) follows = answer[n - before + k] == word[k];
    if (follows && word[before] == token) good = false;
  }
  return good;
}

static weft_token_rules *open_rules(const weft_token_rules_config *c) {
  weft_token_rules *r = NULL;
  weft_error error = {{0}};
  if (weft_token_rules_open(c, &r, &error) != WEFT_OK) fail_msg("%s", error.text);
  return r;
}

static void masks_are_what_the_rules_say(void **state) {
  static const int32_t suppressed[] = {0, 69}, allowed[] = {1, 2, 3, 4, 31, 32, 33, 63, 64, 69}, ends[] = {1, 64};
  static const int32_t words[] = {5, 2, 3, 2, 3, 4, 31, 31};
  static const uint32_t lengths[] = {1, 2, 3, 2}; /* 5; 2 3; 2 3 4 (never reached after 2 3); 31 31 */
  static const int32_t answer[] = {2, 31, 2, 4, 3, 32, 31, 31, 2};
  (void)state;
  for (unsigned kind = 0; kind < 16; kind++) {
    const weft_token_rules_config c = {.n_vocab = N_VOCAB,
                                       .suppressed = suppressed,
                                       .n_suppressed = 2,
                                       .allowed = allowed,
                                       .n_allowed = (kind & 1) != 0 ? 10 : 0,
                                       .end = ends,
                                       .n_ends = 2,
                                       .min_tokens = (kind & 2) != 0 ? 4 : 0,
                                       .word = words,
                                       .word_length = lengths,
                                       .n_words = (kind & 4) != 0   ? 4
                                                  : (kind & 8) != 0 ? 1
                                                                    : 0};
    weft_token_rules *r = weft_token_rules_ref(open_rules(&c));
    weft_token_rules_unref(r);
    assert_int_equal(weft_token_rules_waits(r), c.n_words > 1);
    for (uint32_t n = 0; n <= 9; n++) {
      uint32_t mask[N_MASK];
      weft_token_rules_mask(r, weft_token_rules_waits(r) ? answer : NULL, n, mask);
      for (int32_t token = 0; token < N_VOCAB; token++) {
        if (has(mask, token) != says(&c, answer, n, token)) fail_msg("rules %u, %u tokens, token %d", kind, n, token);
      }
      assert_int_equal(mask[N_MASK - 1] >> (N_VOCAB % 32), 0); /* nothing beyond the vocabulary */
    }
    weft_token_rules_unref(r);
  }
}

static void a_mask_is_never_empty(void **state) {
  static const int32_t allowed[] = {7}, words[] = {7, 7}, ends[] = {7};
  static const uint32_t two = 2, one = 1;
  static const int32_t answer[] = {7};
  uint32_t mask[N_MASK];
  weft_error error;
  weft_token_rules *r;
  (void)state;
  weft_token_rules_config c = {
      .n_vocab = N_VOCAB, .allowed = allowed, .n_allowed = 1, .word = words, .word_length = &two, .n_words = 1};
  r = open_rules(&c);
  weft_token_rules_mask(r, answer, 1, mask); /* 7 7 is not wanted, and there is nothing else */
  assert_true(has(mask, 7) && mask[0] == 1u << 7 && mask[1] == 0 && mask[2] == 0);
  weft_token_rules_unref(r);
  c.word_length = &one;
  assert_int_equal(weft_token_rules_open(&c, &r, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "leave no token"));
  c.n_words = 0;
  c.end = ends;
  c.n_ends = 1;
  r = open_rules(&c);
  weft_token_rules_unref(r);
  c.min_tokens = 1;
  assert_int_equal(weft_token_rules_open(&c, &r, &error), WEFT_E_INVALID);
}

static void strange_tokens_are_refused(void **state) {
  static const int32_t beyond[] = {3, N_VOCAB}, below[] = {-1};
  static const uint32_t lengths[] = {2, 0};
  weft_token_rules *r;
  weft_error error;
  (void)state;
  weft_token_rules_config c = {.n_vocab = N_VOCAB, .allowed = beyond, .n_allowed = 2};
  assert_int_equal(weft_token_rules_open(&c, &r, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "allowed_token_ids has token 70"));
  c = (weft_token_rules_config){.n_vocab = N_VOCAB, .end = below, .n_ends = 1};
  assert_int_equal(weft_token_rules_open(&c, &r, &error), WEFT_E_INVALID);
  c = (weft_token_rules_config){.n_vocab = N_VOCAB, .word = beyond, .word_length = lengths, .n_words = 1};
  assert_int_equal(weft_token_rules_open(&c, &r, &error), WEFT_E_INVALID);
  c.n_words = 2;
  assert_int_equal(weft_token_rules_open(&c, &r, &error), WEFT_E_INVALID);
  assert_null(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(masks_are_what_the_rules_say),
                                     cmocka_unit_test(a_mask_is_never_empty),
                                     cmocka_unit_test(strange_tokens_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
