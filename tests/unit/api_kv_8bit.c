/* SPDX-License-Identifier: MIT */
/* Keys and values in 8 bits: half the memory, the same law (a request gives the same tokens alone,
 * among others, and after a hit), and clear refusals. What it costs in quality is measured by
 * `weft eval --kv-8bit all`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/runtime.h"
#include "tests/support/amount.h"

#define DEMO WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"
#define TINY WEFT_SOURCE_DIR "/tests/golden/models/ar-base.gguf"
enum { N_ASKED = 6, TOKENS_MAX = 64 };

static int open_with(const char *model, const char *eight, bool no_cache, weft_runtime **rt, char *line, size_t n) {
  weft_open_options o = {.models = &model,
                         .n_models = 1,
                         .backend = "cpu",
                         .threads = 1,
                         .kv_bytes = 4 << 20,
                         .context = 512,
                         .no_prefix_cache = no_cache,
                         .kv_8bit = &eight,
                         .n_kv_8bit = eight != NULL,
                         .quiet = true};
  return weft_open(&o, rt, line, n);
}

typedef struct answer {
  int32_t token[TOKENS_MAX];
  uint32_t n;
} answer;

static weft_generation *ask(weft_runtime *rt, uint32_t i) {
  static const char *const text[N_ASKED] = {
      "Sort from low to high: 41 77 23 95 10 68", "What is 58 + 37?", "Sort from low to high: 41 77 23 95 10 67",
      "Write a sentence about a frog.",           "What is 12 + 30?", "Write a story about a cat."};
  weft_chat_turn turn = {.role = "user", .content = text[i]};
  weft_generate_params p;
  weft_generation *g;
  char line[256] = "";
  weft_generate_defaults(&p);
  p.prompt.turns = &turn;
  p.prompt.n_turns = 1;
  p.mode = i % 2 == 0 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.has_seed = true;
  p.sampling.seed = 11 + i;
  p.max_tokens = TOKENS_MAX;
  if (weft_submit(rt, &p, &g, line, sizeof line) != 0) fail_msg("%s", line);
  return g;
}

static void read_all(weft_generation *g, answer *out) {
  weft_delta d;
  out->n = 0;
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
    for (uint32_t i = 0; d.kind == WEFT_DELTA_TEXT && i < d.n_tokens; i++) {
      assert_true(out->n < TOKENS_MAX);
      out->token[out->n++] = d.tokens[i];
    }
  } while (d.kind != WEFT_DELTA_END);
  assert_string_not_equal(d.finish, "error");
  weft_generation_free(g);
}

static void same_alone_and_among_others(void **state) {
  answer alone[N_ASKED], among;
  weft_generation *g[N_ASKED];
  weft_runtime *rt;
  char line[256] = "";
  (void)state;
  if (open_with(DEMO, "weft-demo", true, &rt, line, sizeof line) != 0) fail_msg("%s", line);
  for (uint32_t i = 0; i < N_ASKED; i++) read_all(ask(rt, i), &alone[i]);
  weft_close(rt);
  if (open_with(DEMO, "all", false, &rt, line, sizeof line) != 0) fail_msg("%s", line);
  for (uint32_t round = 0; round < 2; round++) { /* the second finds the first one's prefixes */
    for (uint32_t i = 0; i < N_ASKED; i++) g[i] = ask(rt, i);
    for (uint32_t i = 0; i < N_ASKED; i++) {
      read_all(g[i], &among);
      assert_int_equal(among.n, alone[i].n);
      assert_memory_equal(among.token, alone[i].token, among.n * sizeof(int32_t));
    }
  }
  weft_close(rt);
}

static void half_the_memory(void **state) {
  uint64_t bytes[2];
  char line[256] = "";
  (void)state;
  for (int i = 0; i < 2; i++) {
    weft_runtime *rt;
    if (open_with(DEMO, i == 0 ? NULL : "all", false, &rt, line, sizeof line) != 0) fail_msg("%s", line);
    assert_non_null(strstr(weft_plan(rt), i == 0 ? "keys and values BF16" : "keys and values Q8_0"));
    bytes[i] = rt->model[0].runner->ops->info(rt->model[0].runner)->kv_bytes_per_token;
    weft_close(rt);
  }
  assert_true(bytes[1] * 32 == bytes[0] * 17); /* 34 bytes of 32 values, against 64 */
}

static void refusals_say_why(void **state) {
  weft_runtime *rt;
  char line[256] = "";
  (void)state;
  assert_true(open_with(DEMO, "other", false, &rt, line, sizeof line) < 0);
  assert_non_null(strstr(line, "no model's file is named 'other'"));
  assert_true(open_with(TINY, "all", false, &rt, line, sizeof line) < 0);
  assert_non_null(strstr(line, "need multiples of 32"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_alone_and_among_others), cmocka_unit_test(half_the_memory),
                                     cmocka_unit_test(refusals_say_why)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
