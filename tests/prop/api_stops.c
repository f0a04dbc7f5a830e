/* SPDX-License-Identifier: MIT */
/* Stop strings as a user of weft.h sees them: an answer with stop strings is the same answer without them, cut where a
 * plain search finds the first string that becomes complete (of several that end together the longest; none reaches
 * from thinking into the answer), and it ends with "stop" exactly when it was cut. Token by token and by diffusion,
 * with and without special tokens, whole tokens and thinking, strings from inside the text and others, one and many,
 * and in calls of tools, which are text like any other here. Text of tokens before min_tokens is not searched.
 * And looking for them takes no memory while the engine runs.
 *
 *   api_stops [SEED] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/weft.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/support/amount.h"

#define DEMO WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"

enum { KINDS = 10, CALLS = 8 /* from this kind on: calls of tools */, STOPS = 12, TEXT_MAX = 8192, STOP_MAX = 24 };

typedef struct answer {
  char text[TEXT_MAX];
  bool thinking[TEXT_MAX]; /* by byte */
  size_t n;
  uint32_t n_tokens;
  char finish[16];
} answer;

static weft_runtime *runtime;
static uint64_t seed = 1;
static int32_t *markers; /* of thinking, and a newline */
static uint32_t n_markers;

static int open_runtime(void **state) {
  static const char *const models[] = {DEMO};
  weft_open_options options = {
      .models = models, .n_models = 1, .threads = 1, .kv_bytes = 8 << 20, .context = 256, .rows = 64, .quiet = true};
  char error[512];
  (void)state;
  if (weft_open(&options, &runtime, error, sizeof error) != 0) fail_msg("%s", error);
  static const char text[] = "<|channel><channel|>\n";
  int status = weft_tokenize(runtime, NULL, text, strlen(text), false, true, &markers, &n_markers, error, sizeof error);
  if (status != 0 || n_markers != 3) fail_msg("%u markers: %s", n_markers, error);
  return 0;
}

static int close_runtime(void **state) {
  (void)state;
  weft_release(markers);
  weft_close(runtime);
  return 0;
}

/* Token by token nearly anything is drawn: control tokens, halves of characters, markers of thinking more than
 * others. */
static void fill(weft_generate_params *p, uint32_t kind) {
  static const weft_chat_turn turns[] = {
      {.role = "user", .content = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris; Amy 20 Rome"}};
  static weft_logit_bias bias[3];
  for (uint32_t i = 0; i < n_markers; i++) bias[i] = (weft_logit_bias){markers[i], i < 2 ? 50.0f : 60.0f};
  weft_generate_defaults(p);
  p->mode = kind % 4 != 3 ? WEFT_MODE_AUTOREGRESSIVE : WEFT_MODE_DIFFUSION;
  p->has_seed = true;
  p->sampling.seed = seed + kind;
  p->max_tokens = 90;
  p->ignore_eos = true;
  p->whole_tokens = kind % 8 >= 4;
  p->with_special = kind % 3 == 1;
  p->prompt.turns = turns;
  p->prompt.n_turns = 1;
  p->entropy_bound.max_steps = 8;
  if (kind >= CALLS) {
    static const weft_chat_turn asks[] = {
        {.role = "user", .content = "What time is it in Oslo? Order soup, 77 of it."}};
    static const weft_tool tools[] = {
        {.name = "clock", .parameters = "{\"type\":\"object\",\"properties\":{\"place\":{\"type\":\"string\"}}}"},
        {.name = "buy",
         .parameters = "{\"type\":\"object\",\"properties\":{\"item\":{\"type\":\"string\"},\"number\":{\"type\":"
                       "\"integer\"}}}"}};
    p->prompt.turns = asks;
    p->prompt.tools = tools;
    p->prompt.n_tools = 2;
    p->mode = kind % 2 == 0 ? WEFT_MODE_AUTOREGRESSIVE : WEFT_MODE_DIFFUSION;
    p->entropy_bound.max_steps = 48;
    p->sampling.temperature = 0;
    p->with_special = p->whole_tokens = false;
    return;
  }
  if (p->mode == WEFT_MODE_DIFFUSION) return;
  p->sampling.temperature = 30.0f;
  p->sampling.bias = bias;
  p->sampling.n_bias = n_markers;
  p->prompt.thinking = kind % 2 == 0;
}

static void take(answer *a, const weft_delta *d) {
  assert_true(a->n + d->n_text < TEXT_MAX);
  memcpy(a->text + a->n, d->text, d->n_text);
  for (size_t i = 0; i < d->n_text; i++) a->thinking[a->n + i] = d->thinking;
  a->n += d->n_text;
  a->n_tokens += d->n_tokens;
}

/* How many allocations were made between submit and the end of the engine's work, before anything was read. */
static uint64_t generate(const weft_generate_params *p, bool late, answer *a) {
  weft_generation *g = NULL;
  weft_delta d;
  char error[512] = "";
  uint64_t n_allocations = 0;
  memset(a, 0, sizeof *a);
  if (weft_submit(runtime, p, &g, error, sizeof error) != 0) fail_msg("%s", error);
  (void)weft_memory_fail_at(0);
  while (late && !weft_idle(runtime)) continue;
  if (late) n_allocations = weft_memory_fail_at(0);
  for (bool ended = false; !ended;) {
    if (weft_next(g, 60000, &d) != 0) continue;
    if (d.kind == WEFT_DELTA_TEXT) take(a, &d);
    ended = d.kind == WEFT_DELTA_END;
    if (ended) (void)snprintf(a->finish, sizeof a->finish, "%s", d.finish);
  }
  weft_generation_free(g);
  return n_allocations;
}

/* Where the text is cut if it is searched from `from` on; n when it is not. */
static size_t naive_cut(const answer *a, size_t from, const char *const *stops, uint32_t n_stops) {
  for (size_t end = from + 1; end <= a->n; end++) {
    size_t longest = 0;
    for (uint32_t i = 0; i < n_stops; i++) {
      size_t length = strlen(stops[i]);
      if (length <= longest || length > end - from || memcmp(a->text + end - length, stops[i], length) != 0) continue;
      bool one_channel = true;
      for (size_t k = end - length; k < end; k++) one_channel = one_channel && a->thinking[k] == a->thinking[end - 1];
      if (one_channel) longest = length;
    }
    if (longest > 0) return end - longest;
  }
  return a->n;
}

static bool starts_character(const answer *a, size_t at) {
  return at >= a->n || ((unsigned char)a->text[at] & 0xC0) != 0x80;
}

/* Some of the answer, from character to character, sometimes with a byte that is not there. */
static void draw_stop(const answer *a, uint64_t *state, char stop[STOP_MAX + 4]) {
  size_t from = weft_mix64(++*state) % a->n, n = 1 + weft_mix64(++*state) % STOP_MAX;
  while (!starts_character(a, from)) from -= 1;
  size_t to = from + n < a->n ? from + n : a->n;
  while (!starts_character(a, to)) to -= 1;
  if (to <= from) to = from + 1;
  while (!starts_character(a, to)) to += 1;
  n = to - from;
  memcpy(stop, a->text + from, n);
  stop[n] = 0;
  if (weft_mix64(++*state) % 3 == 0 && (unsigned char)stop[n - 1] < 0x80) stop[n - 1] = '~';
  if (memchr(a->text + from, 0, n) != NULL) (void)snprintf(stop, STOP_MAX, "none");
}

static void compare(const answer *whole, size_t from, const answer *cut, const char *const *stops, uint32_t n_stops,
                    uint32_t kind, uint32_t attempt) {
  size_t at = naive_cut(whole, from, stops, n_stops);
  bool stopped = at < whole->n;
  const char *finish = stopped ? "stop" : "length";
  if (cut->n == at && memcmp(cut->text, whole->text, at) == 0 && strcmp(cut->finish, finish) == 0 &&
      memcmp(cut->thinking, whole->thinking, at) == 0)
    return;
  fail_msg(
      "kind %u, try %u (first of %u stop strings: '%s', searched from byte %zu on): expected %zu bytes and %s of '%s', "
      "got %zu bytes and %s: "
      "'%s'",
      kind, attempt, n_stops, stops[0], from, at, finish, whole->text, cut->n, cut->finish, cut->text);
}

static void test_the_cut_is_where_a_plain_search_finds_it(void **state) {
  static answer whole, cut;
  uint32_t n_cut = 0, n_thinking = 0, n_tries = test_amount(12, 14, 400);
  uint64_t draws = seed;
  (void)state;
  for (uint32_t kind = 0; kind < KINDS; kind++) {
    weft_generate_params p;
    fill(&p, kind);
    (void)generate(&p, false, &whole);
    assert_true(whole.n > 10);
    if (kind >= CALLS) assert_non_null(strstr(whole.text, "<tool_call>"));
    for (uint32_t attempt = 0; attempt < n_tries; attempt++) {
      char text[STOPS][STOP_MAX + 4];
      const char *stops[STOPS];
      p.n_stop = 1 + attempt % STOPS;
      for (uint32_t i = 0; i < p.n_stop; i++) {
        draw_stop(&whole, &draws, text[i]);
        stops[i] = text[i];
      }
      p.stop = stops;
      (void)generate(&p, attempt % 2 == 1, &cut);
      compare(&whole, 0, &cut, stops, p.n_stop, kind, attempt);
      n_cut += cut.n < whole.n;
      n_thinking += cut.n < whole.n && whole.thinking[cut.n];
    }
  }
  print_message("%u answers, %u were cut, %u of them while thinking\n", KINDS * n_tries, n_cut, n_thinking);
  assert_true(n_cut > KINDS * n_tries / 2 && n_cut < KINDS * n_tries && n_thinking > 0);
}

/* How many bytes the first tokens print in the answer `whole`; 0 where that cannot be told, since they may end within a
 * character, which an answer that ends there replaces. */
static size_t bytes_of_first(const weft_generate_params *params, uint32_t n_tokens, const answer *whole) {
  static answer first;
  weft_generate_params p = *params;
  size_t n = 0;
  p.max_tokens = n_tokens;
  p.n_stop = p.min_tokens = 0;
  (void)generate(&p, false, &first);
  if (first.n >= 3 && memcmp(first.text + first.n - 3, "\xEF\xBF\xBD", 3) == 0) return 0;
  while (n < first.n && n < whole->n && first.text[n] == whole->text[n]) n++;
  return n;
}

/* Token by token, since min_tokens is not defined for a canvas. */
static void test_the_tokens_before_min_tokens_are_not_searched(void **state) {
  static answer whole, cut;
  uint32_t n_cut = 0, n_tries = test_amount(24, 28, 800);
  uint64_t draws = seed;
  (void)state;
  for (uint32_t kind = 0; kind < CALLS; kind++) {
    weft_generate_params p;
    fill(&p, kind);
    if (p.mode == WEFT_MODE_DIFFUSION) continue;
    (void)generate(&p, false, &whole);
    for (uint32_t attempt = 0; attempt < n_tries; attempt++) {
      char text[2][STOP_MAX + 4];
      const char *stops[2] = {text[0], text[1]};
      draw_stop(&whole, &draws, text[0]);
      draw_stop(&whole, &draws, text[1]);
      p.stop = stops;
      p.n_stop = 2;
      p.min_tokens = 1 + (uint32_t)(weft_mix64(++draws) % 80);
      size_t from = bytes_of_first(&p, p.min_tokens, &whole);
      (void)generate(&p, attempt % 2 == 1, &cut);
      if (from > 0) compare(&whole, from, &cut, stops, 2, kind, attempt);
      p.n_stop = p.min_tokens = 0;
      n_cut += cut.n < whole.n;
    }
  }
  assert_true(n_cut > 0);
}

/* Strings that a search which compares each of them everywhere is slow at. */
static void test_looking_for_them_takes_no_memory(void **state) {
  static answer whole;
  static char crafted[63][33];
  const char *stops[63];
  (void)state;
  for (uint32_t i = 0; i < 63; i++) {
    memset(crafted[i], ' ', 32);
    crafted[i][31] = (char)('A' + i % 60);
    stops[i] = crafted[i];
  }
  for (uint32_t kind = 0; kind < KINDS; kind++) {
    weft_generate_params p;
    fill(&p, kind);
    p.stop = stops;
    p.n_stop = 63;
    assert_int_equal(generate(&p, true, &whole), 0);
    assert_int_equal(whole.n_tokens > 0, 1);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 10);
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_cut_is_where_a_plain_search_finds_it),
                                     cmocka_unit_test(test_the_tokens_before_min_tokens_are_not_searched),
                                     cmocka_unit_test(test_looking_for_them_takes_no_memory)};
  return cmocka_run_group_tests(tests, open_runtime, close_runtime);
}
