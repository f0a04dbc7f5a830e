/* SPDX-License-Identifier: MIT */
/* Streaming text: always valid, never split inside a character, the same text however it is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/text/detok.h"
#include "tests/support/tokenizer_fixture.h"

#define BAD "\xEF\xBF\xBD"

typedef struct world {
  tokenizer_fixture f;
  weft_tokenizer *t;
} world;

static void world_open(world *w) {
  memset(w, 0, sizeof *w);
  fixture_gemma4(&w->f);
  (void)fixture_token(&w->f, "\xE2\x96\x81the\xE2\x96\x81", FIXTURE_NORMAL);
  w->t = fixture_tokenizer(&w->f);
}

static void world_close(world *w) {
  fixture_close(&w->f);
}

static int32_t byte_id(const world *w, unsigned byte) {
  char text[8];
  (void)snprintf(text, sizeof text, "<0x%02X>", byte);
  return weft_tokenizer_find(w->t, text);
}

static void push(weft_detok *d, int32_t id, const char *want, uint32_t want_ids) {
  weft_text out = {0};
  uint32_t n_ids = 99;
  assert_int_equal(weft_detok_push(d, id, &out, &n_ids), WEFT_OK);
  assert_string_equal(out.bytes == NULL ? "" : out.bytes, want);
  assert_int_equal(n_ids, want_ids);
  weft_text_free(&out);
}

static void flush(weft_detok *d, const char *want, uint32_t want_ids) {
  weft_text out = {0};
  uint32_t n_ids = 99;
  assert_int_equal(weft_detok_flush(d, &out, &n_ids), WEFT_OK);
  assert_string_equal(out.bytes == NULL ? "" : out.bytes, want);
  assert_int_equal(n_ids, want_ids);
  weft_text_free(&out);
}

static void test_characters_wait(void **state) {
  (void)state;
  world w;
  weft_detok d;
  world_open(&w);
  weft_detok_open(&d, w.t, 0);
  push(&d, byte_id(&w, 0xF0), "", 1);
  push(&d, byte_id(&w, 0x9F), "", 1);
  push(&d, byte_id(&w, 0x98), "", 1);
  push(&d, byte_id(&w, 0x80), "\xF0\x9F\x98\x80", 1);
  push(&d, weft_tokenizer_find(w.t, "a"), "a", 1);
  push(&d, weft_tokenizer_find(w.t, "\xE2\x96\x81the\xE2\x96\x81"), " the ", 1);
  push(&d, GEMMA_TURN_END, "", 1); /* control tokens print nothing */
  push(&d, GEMMA_CHANNEL, "<|channel>", 1);
  push(&d, byte_id(&w, 0xE2), "", 1);
  push(&d, weft_tokenizer_find(w.t, "a"), BAD "a", 1); /* it can no longer become a character */
  push(&d, byte_id(&w, 0x80), BAD, 1);
  push(&d, byte_id(&w, 0xE2), "", 1);
  push(&d, byte_id(&w, 0x82), "", 1);
  flush(&d, BAD, 0);
  flush(&d, "", 0);
  weft_detok_close(&d);
  world_close(&w);
}

static void test_whole_tokens(void **state) {
  (void)state;
  world w;
  weft_detok d;
  world_open(&w);
  weft_detok_open(&d, w.t, WEFT_DETOK_WHOLE_TOKENS | WEFT_DETOK_WITH_SPECIAL);
  push(&d, weft_tokenizer_find(w.t, "a"), "a", 1);
  push(&d, byte_id(&w, 0xC3), "", 0);
  push(&d, byte_id(&w, 0xA9), "\xC3\xA9", 2);
  push(&d, GEMMA_TURN_END, "<turn|>", 1);
  push(&d, byte_id(&w, 0xE2), "", 0);
  push(&d, byte_id(&w, 0xE2), "", 0); /* the first is lost, but the second may still become a character */
  push(&d, weft_tokenizer_find(w.t, "b"), BAD BAD "b", 3);
  push(&d, byte_id(&w, 0xE2), "", 0);
  push(&d, byte_id(&w, 0x82), "", 0);
  flush(&d, BAD, 2);
  weft_detok_close(&d);
  world_close(&w);
}

static void test_unknown_ids(void **state) {
  (void)state;
  world w;
  weft_detok d;
  weft_text out = {0};
  uint32_t n_ids;
  world_open(&w);
  weft_detok_open(&d, w.t, 0);
  push(&d, byte_id(&w, 0xC3), "", 1);
  assert_int_equal(weft_detok_push(&d, -1, &out, &n_ids), WEFT_E_INVALID);
  assert_int_equal(weft_detok_push(&d, (int32_t)w.f.n, &out, &n_ids), WEFT_E_INVALID);
  assert_int_equal(n_ids, 0);
  push(&d, byte_id(&w, 0xA9), "\xC3\xA9", 1); /* nothing had changed */
  int32_t bad[] = {0, 1 << 30};
  assert_int_equal(weft_tokenizer_decode(w.t, bad, 2, false, &out), WEFT_E_INVALID);
  weft_text_free(&out);
  weft_detok_close(&d);
  world_close(&w);
}

/* What Unicode recommends: one U+FFFD for each longest part that could have begun a character. */
static void test_replacement(void **state) {
  (void)state;
  static const struct {
    const char *in, *out;
  } rows[] = {
      {"plain", "plain"},
      {"\xC0\xAF", BAD BAD},
      {"\xE0\x80\xAF", BAD BAD BAD},
      {"\xED\xA0\x80", BAD BAD BAD},
      {"\xF4\x91\x92\x93\xFF", BAD BAD BAD BAD BAD},
      {"\x41\x80\xBF\x42", "A" BAD BAD "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", BAD BAD BAD BAD "A"},
      {"\xF0\x90\x80", BAD},
      {"\xC3", BAD},
      {"\xC3\xA9\xC3", "\xC3\xA9" BAD},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text out = {0};
    weft_text_append_lossy(&out, rows[i].in, strlen(rows[i].in));
    assert_string_equal(out.bytes, rows[i].out);
    weft_text_free(&out);
  }
}

/* Random tokens, mostly bytes that nearly form characters: pieces are valid and add up to the
 * whole; with whole tokens, every release decodes to its own text. */
static void test_any_cut_gives_the_same_text(void **state) {
  (void)state;
  static const unsigned bytes[] = {0x41, 0x80, 0x82, 0xA9, 0xBF, 0xC3, 0xE2, 0xE0, 0xED, 0xF0, 0xF4, 0x9F, 0x98, 0xFF};
  world w;
  uint64_t seed = 0;
  world_open(&w);
  for (int round = 0; round < 3000; round++) {
    int32_t ids[24];
    uint32_t n = 1 + (uint32_t)(fixture_draw(5, &seed) % 24);
    weft_text all = {0}, raw = {0}, want = {0}, chunk = {0}, again = {0};
    weft_detok d;
    bool whole = round % 2 == 1;
    weft_detok_open(&d, w.t, whole ? WEFT_DETOK_WHOLE_TOKENS : 0);
    for (uint32_t i = 0; i < n; i++) {
      uint64_t r = fixture_draw(5, &seed);
      ids[i] = r % 9 == 0 ? (int32_t)(r / 9 % w.f.n) : byte_id(&w, bytes[r / 9 % (sizeof bytes / sizeof *bytes)]);
      assert_int_equal(weft_tokenizer_piece(w.t, ids[i], false, &raw), WEFT_OK);
    }
    weft_text_append_lossy(&want, raw.bytes == NULL ? "" : raw.bytes, raw.n);
    for (uint32_t i = 0, from = 0; i <= n; i++) {
      uint32_t n_ids;
      weft_text_clear(&chunk);
      weft_status status = i < n ? weft_detok_push(&d, ids[i], &chunk, &n_ids) : weft_detok_flush(&d, &chunk, &n_ids);
      assert_int_equal(status, WEFT_OK);
      assert_true(weft_utf8_valid(chunk.bytes, chunk.n, NULL));
      weft_text_append(&all, chunk.bytes, chunk.n);
      if (whole) {
        weft_text_clear(&again);
        assert_int_equal(weft_tokenizer_decode(w.t, ids + from, n_ids, false, &again), WEFT_OK);
        assert_int_equal(again.n, chunk.n);
        if (chunk.n > 0) assert_memory_equal(again.bytes, chunk.bytes, chunk.n);
      }
      from += n_ids;
      if (i == n && whole) assert_int_equal(from, n);
    }
    assert_int_equal(all.n, want.n);
    if (all.n > 0) assert_memory_equal(all.bytes, want.bytes, all.n);
    weft_detok_close(&d);
    weft_text_free(&all);
    weft_text_free(&raw);
    weft_text_free(&want);
    weft_text_free(&chunk);
    weft_text_free(&again);
  }
  world_close(&w);
}

static void test_gpt2_bytes(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gpt2(&f, "qwen2");
  uint32_t odd =
      fixture_token(&f, "\xE6\xB2\xB3\xC4\xA0", FIXTURE_NORMAL);   /* a character outside the alphabet, a space */
  uint32_t marker = fixture_token(&f, "<\xC4\xA0>", FIXTURE_USER); /* not in the alphabet: printed as it is */
  weft_tokenizer *t = fixture_tokenizer(&f);
  weft_text out = {0};
  const int32_t ids[] = {' ', '\n', 0xC3, 0xA9, (int32_t)odd, (int32_t)marker};
  assert_int_equal(weft_tokenizer_decode(t, ids, 6, false, &out), WEFT_OK);
  assert_string_equal(out.bytes, " \n\xC3\xA9\xE6\xB2\xB3 <\xC4\xA0>");
  weft_text_free(&out);
  fixture_close(&f);
}

static void test_refused_memory(void **state) {
  (void)state;
  world w;
  world_open(&w);
  for (uint64_t n = 1;; n++) {
    weft_detok d;
    weft_text out = {0};
    weft_detok_open(&d, w.t, 0);
    (void)weft_memory_fail_at(n);
    weft_status status = weft_detok_push(&d, weft_tokenizer_find(w.t, "a"), &out, NULL);
    if (status == WEFT_OK) status = weft_detok_flush(&d, &out, NULL);
    (void)weft_memory_fail_at(0);
    weft_detok_close(&d);
    weft_text_free(&out);
    if (status == WEFT_OK) break;
    assert_int_equal(status, WEFT_E_NO_MEMORY);
    assert_true(n < 100);
  }
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_characters_wait),
      cmocka_unit_test(test_whole_tokens),
      cmocka_unit_test(test_unknown_ids),
      cmocka_unit_test(test_replacement),
      cmocka_unit_test(test_any_cut_gives_the_same_text),
      cmocka_unit_test(test_gpt2_bytes),
      cmocka_unit_test(test_refused_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
