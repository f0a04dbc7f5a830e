/* SPDX-License-Identifier: MIT */
/* N-grams of a text: what is guessed stood behind the same tokens before; the longest gram decides, and of its places
 * the last one; a text that repeats itself is guessed to go on so; memory is bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "scheduler/ngram.h"

static weft_ngram open_ngram(uint32_t n_tokens, uint32_t least, uint32_t most) {
  uint32_t n = weft_ngram_entries(n_tokens, least, most);
  weft_ngram g = {.entry = calloc(n, sizeof *g.entry), .n_entries = n, .least = (uint8_t)least, .most = (uint8_t)most};
  assert_non_null(g.entry);
  return g;
}

static uint32_t guess_of(const int32_t *tokens, uint32_t n, uint32_t least, uint32_t most, uint32_t n_max,
                         int32_t *out) {
  weft_ngram g = open_ngram(n, least, most);
  weft_ngram_learn(&g, tokens, n);
  uint32_t got = weft_ngram_guess(&g, tokens, n, n_max, out);
  free(g.entry);
  return got;
}

static void what_followed_is_guessed(void **state) {
  (void)state;
  const int32_t text[] = {5, 6, 7, 8, 9, 1, 2, 5, 6, 7};
  const int32_t wanted[] = {8, 9, 1, 2, 5};
  int32_t out[16];
  assert_int_equal(guess_of(text, 10, 2, 4, 5, out), 5);
  assert_memory_equal(out, wanted, sizeof wanted);
  assert_int_equal(guess_of(text, 10, 4, 6, 5, out), 0); /* only three tokens are the same */
  assert_int_equal(guess_of(text, 7, 1, 4, 5, out), 0);
  assert_int_equal(guess_of(text, 1, 1, 4, 5, out), 0);
}

/* Two tokens stood at the end of four that did not, and later behind others. */
static void the_longest_gram_decides(void **state) {
  (void)state;
  const int32_t text[] = {1, 2, 3, 4, 10, 9, 3, 4, 20, 1, 2, 3, 4};
  int32_t out[1];
  assert_int_equal(guess_of(text, 13, 2, 4, 1, out), 1);
  assert_int_equal(out[0], 10);
  assert_int_equal(guess_of(text, 13, 2, 2, 1, out), 1);
  assert_int_equal(out[0], 20); /* the last place of the two tokens */
}

static void a_repetition_goes_on(void **state) {
  (void)state;
  const int32_t text[] = {7, 1, 2, 3, 1, 2, 3, 1, 2};
  const int32_t wanted[] = {3, 1, 2, 3, 1, 2, 3, 1, 2, 3};
  int32_t out[10];
  assert_int_equal(guess_of(text, 9, 2, 3, 10, out), 10);
  assert_memory_equal(out, wanted, sizeof wanted);
}

/* The longest gram's last place, by looking at the whole text. */
static uint32_t guess_plainly(const int32_t *tokens, uint32_t n, uint32_t least, uint32_t most, int32_t *out) {
  for (uint32_t length = most < n ? most : n - 1; length >= least && length > 0; length--) {
    for (uint32_t at = n - 1; at >= length; at--) {
      if (memcmp(tokens + at - length, tokens + n - length, length * sizeof *tokens) != 0) continue;
      *out = tokens[at];
      return 1;
    }
  }
  return 0;
}

/* Learned in pieces of any size. Entries that were taken by other grams cost a few guesses and give no wrong place. */
static void guesses_are_those_of_a_plain_search(void **state) {
  enum { N = 400 };
  uint32_t n_guesses = 0, n_lost = 0;
  (void)state;
  for (uint64_t seed = 0; seed < 60; seed++) {
    int32_t text[N], out = 0, wanted = 0;
    uint32_t least = 1 + (uint32_t)(seed % 3), most = least + (uint32_t)(seed / 3 % 3);
    for (uint32_t i = 0; i < N; i++) text[i] = (int32_t)(weft_mix64(seed * 1000 + i) % (3 + seed % 40));
    weft_ngram g = open_ngram(N, least, most);
    for (uint32_t n = 1; n <= N; n += 1 + (uint32_t)(weft_mix64(seed + n) % 3)) {
      weft_ngram_learn(&g, text, n);
      uint32_t got = weft_ngram_guess(&g, text, n, 1, &out);
      uint32_t plain = guess_plainly(text, n, least, most, &wanted);
      assert_true(got <= plain);
      n_guesses += plain;
      n_lost += got < plain || (got == 1 && out != wanted);
    }
    free(g.entry);
  }
  assert_true(n_guesses > 1000 && n_lost * 3 < n_guesses);
}

static void memory_is_bounded(void **state) {
  (void)state;
  assert_int_equal(weft_ngram_entries(1, 1, 16), 64);
  assert_int_equal(weft_ngram_entries(1000, 2, 4), 4096);
  assert_int_equal(weft_ngram_entries(UINT32_MAX, 1, 16), WEFT_NGRAM_ENTRIES_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_followed_is_guessed),
                                     cmocka_unit_test(the_longest_gram_decides), cmocka_unit_test(a_repetition_goes_on),
                                     cmocka_unit_test(guesses_are_those_of_a_plain_search),
                                     cmocka_unit_test(memory_is_bounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
