/* SPDX-License-Identifier: MIT */
/* An answer has the same logprobs however its tokens fall into deltas: one answer, some of whose places have fewer
 * likely tokens than were asked for, is cut in every way, and every dialect writes it, whole and as a stream. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "api/delta_logprobs.h"
#include "api/dialects/ollama.h"
#include "api/dialects/openai.h"
#include "api/dialects/responses.h"
#include "tests/support/tokenizer_fixture.h"

enum { N = 6, ASKED = 3, ENTRIES = 1 + ASKED };

/* A format leaves two tokens at some places and one at others; each place begins with its own token. */
static const int32_t likely[N][ASKED] = {{0, 1, 2}, {1, 3, -1}, {2, -1, -1}, {3, 0, 5}, {4, -1, -1}, {5, 4, -1}};
static const uint32_t wanted[N] = {3, 2, 1, 3, 1, 2};
static const uint32_t places[N] = {0, 1, 2, 3, 4, 5};

static weft_tokenizer *tokenizer;
static tokenizer_fixture fixture;
static weft_logprob entries[N * ENTRIES];
static int32_t ids[N];

static int open_tokenizer(void **state) {
  static const char *const names[N] = {"a", "b", "c", "\xC3\xA9", "\"", "f"};
  (void)state;
  fixture = (tokenizer_fixture){.model = "gemma4"};
  gguf_writer_u32(&fixture.writer, "tokenizer.ggml.bos_token_id", 0);
  for (uint32_t i = 0; i < N; i++) (void)fixture_token(&fixture, names[i], FIXTURE_NORMAL);
  fixture_bytes(&fixture);
  tokenizer = fixture_tokenizer(&fixture);
  for (uint32_t i = 0; i < N; i++) {
    ids[i] = (int32_t)i;
    entries[i * ENTRIES] = (weft_logprob){ids[i], -0.125f * (float)i};
    for (uint32_t k = 0; k < ASKED; k++) entries[i * ENTRIES + 1 + k] = (weft_logprob){likely[i][k], -0.5f * (float)k};
  }
  return 0;
}

static int close_tokenizer(void **state) {
  (void)state;
  fixture_close(&fixture);
  return 0;
}

/* The delta of tokens [from, to). */
static void fill(delta_logprobs *l, uint32_t from, uint32_t to, weft_delta *d) {
  *d = (weft_delta){.kind = WEFT_DELTA_TEXT, .tokens = ids + from, .n_tokens = to - from, .text_at = places + from};
  assert_int_equal(delta_logprobs_begin(l, tokenizer, to - from, ASKED), WEFT_OK);
  for (uint32_t i = from; i < to; i++) {
    const weft_logprob *own = entries + i * ENTRIES;
    assert_int_equal(delta_logprobs_put(l, own->token, own->logprob, 0), WEFT_OK);
    for (uint32_t k = 1; k < ENTRIES; k++) {
      assert_int_equal(delta_logprobs_put_top(l, own[k].token, own[k].logprob, 0), WEFT_OK);
    }
  }
  assert_int_equal(delta_logprobs_end(l, d), WEFT_OK);
}

static bool begins_delta(uint32_t cuts, uint32_t i) {
  return i == 0 || (cuts >> (i - 1) & 1) != 0;
}

/* The entries themselves. */
static void entries_are_those_of_their_token(void **state) {
  (void)state;
  for (uint32_t cuts = 0; cuts < 1u << (N - 1); cuts++) {
    delta_logprobs l = {0};
    weft_delta d;
    for (uint32_t from = 0, to; from < N; from = to) {
      for (to = from + 1; to < N && !begins_delta(cuts, to);) to++;
      fill(&l, from, to, &d);
      for (uint32_t i = from; i < to; i++) {
        const weft_token_logprob *own = &d.logprobs[i - from], *top = d.top_logprobs + (i - from) * d.top_stride;
        assert_int_equal(d.n_top[i - from], wanted[i]);
        assert_int_equal(own->token, ids[i]);
        for (uint32_t k = 0; k < wanted[i]; k++) {
          weft_text piece = {0};
          assert_int_equal(top[k].token, likely[i][k]);
          assert_int_equal(weft_tokenizer_piece(tokenizer, top[k].token, true, &piece), WEFT_OK);
          assert_int_equal(top[k].n_bytes, piece.n);
          assert_memory_equal(top[k].bytes, piece.bytes, piece.n);
          weft_text_free(&piece);
        }
      }
    }
    delta_logprobs_close(&l);
  }
}

static void forget(weft_choice *c) {
  for (int k = 0; k < 4; k++) weft_text_free(&c->logprobs[k]);
  c->n_logprobs = 0;
}

/* The choice's lists as the dialect writes them, over all deltas; streamed: each delta is written by itself. */
static weft_text written(const weft_dialect *dialect, uint32_t cuts, bool streamed) {
  static const weft_generate_params asked = {.sampling = {.logprobs = true, .n_top_logprobs = ASKED}};
  weft_answer a = {.dialect = dialect, .asked = &asked, .wanted.stream = streamed};
  weft_choice c = {.begun = true};
  weft_text out[4] = {{0}}, all = {0};
  delta_logprobs l = {0};
  weft_delta d;
  for (uint32_t from = 0, to; from < N; from = to) {
    for (to = from + 1; to < N && !begins_delta(cuts, to);) to++;
    fill(&l, from, to, &d);
    dialect->logprobs(&a, &c, &d);
    for (int k = 0; k < 4 && (streamed || to == N); k++) {
      if (out[k].n > 0 && c.logprobs[k].n > 0) weft_text_puts(&out[k], ",");
      weft_text_append(&out[k], c.logprobs[k].bytes, c.logprobs[k].n);
    }
    if (streamed) forget(&c);
  }
  forget(&c);
  delta_logprobs_close(&l);
  for (int k = 0; k < 4; k++) {
    weft_text_puts(&all, k == 0 ? "[[" : ",[");
    weft_text_append(&all, out[k].bytes, out[k].n);
    weft_text_puts(&all, "]");
    weft_text_free(&out[k]);
  }
  weft_text_puts(&all, "]");
  return all;
}

/* As many likely tokens as the place has; of completions, which write an object with the own token in it, likewise. */
static void check_counts(const weft_dialect *dialect, const weft_text *text) {
  bool lists = dialect == &weft_openai_completions;
  json_error_t error;
  json_t *root = json_loads(text->bytes, 0, &error);
  if (root == NULL) fail_msg("%s: %s", error.text, text->bytes);
  json_t *list = json_array_get(root, lists ? 2 : 0);
  assert_int_equal(json_array_size(list), N);
  for (uint32_t i = 0; i < N; i++) {
    json_t *place = json_array_get(list, i);
    assert_int_equal(lists ? json_object_size(place) : json_array_size(json_object_get(place, "top_logprobs")),
                     wanted[i]);
  }
  json_decref(root);
}

static void every_dialect_writes_the_same_for_every_cut(void **state) {
  static const weft_dialect *const dialects[] = {&weft_openai_chat, &weft_openai_completions, &weft_openai_responses,
                                                 &weft_ollama_chat, &weft_ollama_generate};
  (void)state;
  for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
    weft_text first = written(dialects[i], 0, false);
    check_counts(dialects[i], &first);
    for (uint32_t cuts = 0; cuts < 1u << (N - 1); cuts++) {
      for (int streamed = 0; streamed < 2; streamed++) {
        weft_text other = written(dialects[i], cuts, streamed == 1);
        assert_string_equal(other.bytes, first.bytes);
        weft_text_free(&other);
      }
    }
    weft_text_free(&first);
  }
}

/* What one delta costs its reader does not grow with what is asked for. */
static void a_delta_has_few_entries(void **state) {
  (void)state;
  for (uint32_t n_top = 0; n_top <= 2 * DELTA_ENTRIES_MAX; n_top++) {
    uint32_t n = delta_logprobs_tokens_max(n_top);
    assert_true(n >= 1 && (n == 1 || n * (1 + n_top) <= DELTA_ENTRIES_MAX));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(entries_are_those_of_their_token),
                                     cmocka_unit_test(every_dialect_writes_the_same_for_every_cut),
                                     cmocka_unit_test(a_delta_has_few_entries)};
  return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
