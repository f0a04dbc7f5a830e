/* SPDX-License-Identifier: MIT */
/* Requests that cannot be served: each differs from a sound one in one parameter, and is refused by weft_submit with
 * one line that names it; nothing is left running, a generation that runs meanwhile is not touched, and the sound
 * request is served afterwards. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/weft.h"
#include "base/log.h"
#include "base/status.h"
#include "tests/support/amount.h"

#define DEMO WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"

enum { CONTEXT = 256, LONG = 4096 };

static weft_runtime *runtime;
static int32_t tokens[LONG];
static char long_text[LONG];

static int open_runtime(void **state) {
  (void)state;
  static const char *const models[] = {DEMO, WEFT_SOURCE_DIR "/tests/golden/models/ar-base.gguf"};
  char error[512] = "";
  weft_open_options options = {.models = models,
                               .n_models = 2,
                               .backend = "cpu",
                               .threads = 1,
                               .kv_bytes = 1 << 20,
                               .context = CONTEXT,
                               .running = 2,
                               .queue = 4,
                               .rows = 64,
                               .tenants = 2,
                               .quiet = true};
  for (uint32_t i = 0; i < LONG; i++) tokens[i] = (int32_t)(5 + i % 90);
  memset(long_text, 'a', sizeof long_text - 1);
  if (weft_open(&options, &runtime, error, sizeof error) == 0) return 0;
  print_error("%s\n", error);
  return -1;
}

static int close_runtime(void **state) {
  (void)state;
  weft_close(runtime);
  return 0;
}

static weft_generate_params sound(weft_mode mode) {
  weft_generate_params p;
  weft_generate_defaults(&p);
  p.mode = mode;
  p.model = "weft-demo";
  p.prompt.tokens = tokens;
  p.prompt.n_tokens = 10;
  p.max_tokens = 4;
  p.has_seed = true;
  p.ignore_eos = true;
  return p;
}

/* Afterwards the request is a sound one of the same mode again. */
static void refused(weft_generate_params *p, weft_status wanted, const char *words) {
  weft_generation *g = (weft_generation *)(void *)&wanted;
  char error[512] = "";
  int status = weft_submit(runtime, p, &g, error, sizeof error);
  if (status != (int)wanted || g != NULL || strstr(error, words) == NULL || strchr(error, '\n') != NULL) {
    fail_msg("status %d: '%s'; wanted %d with '%s'", status, error, (int)wanted, words);
  }
  assert_true(weft_submit(runtime, p, &g, NULL, 0) == status);
  *p = sound(p->mode);
}

static void served(const weft_generate_params *p, uint32_t n_tokens) {
  weft_generation *g;
  weft_delta d;
  char error[512] = "";
  uint32_t n = 0;
  if (weft_submit(runtime, p, &g, error, sizeof error) != 0) fail_msg("%s", error);
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
    if (d.kind == WEFT_DELTA_TEXT) n += d.n_tokens;
  } while (d.kind != WEFT_DELTA_END);
  assert_string_equal(d.finish, "length");
  assert_int_equal(n, n_tokens);
  weft_generation_free(g);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* A float of the parameters, and what a refusal of it says. */
typedef struct real_member {
  size_t at;
  const char *words;
} real_member;

static void refuse_bad_reals(weft_mode mode, const real_member *rows, size_t n) {
  static const float bad[] = {NAN, INFINITY, 1e30f};
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
      weft_generate_params p = sound(mode);
      memcpy((char *)&p + rows[i].at, &bad[k], sizeof(float));
      refused(&p, WEFT_E_INVALID, rows[i].words);
    }
  }
}

static void test_sampling(void **state) {
  (void)state;
  static const real_member rows[] = {
      {offsetof(weft_generate_params, sampling.temperature), "temperature"},
      {offsetof(weft_generate_params, sampling.top_p), "top_p"},
      {offsetof(weft_generate_params, sampling.min_p), "min_p"},
      {offsetof(weft_generate_params, sampling.repetition_penalty), "repetition_penalty"},
      {offsetof(weft_generate_params, sampling.presence_penalty), "presence_penalty"},
      {offsetof(weft_generate_params, sampling.frequency_penalty), "frequency_penalty"},
  };
  refuse_bad_reals(WEFT_MODE_AUTOREGRESSIVE, rows, sizeof rows / sizeof *rows);
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
  p.sampling.top_p = 0.0f;
  refused(&p, WEFT_E_INVALID, "top_p");
  p.sampling.repetition_penalty = 0.0f;
  refused(&p, WEFT_E_INVALID, "repetition_penalty");
  p.sampling.logprobs = true;
  p.sampling.n_top_logprobs = 21;
  refused(&p, WEFT_E_INVALID, "top_logprobs is 21");
}

static void test_diffusion(void **state) {
  (void)state;
  static const real_member rows[] = {
      {offsetof(weft_generate_params, entropy_bound.t_min), "t_m"},
      {offsetof(weft_generate_params, entropy_bound.t_max), "t_max"},
      {offsetof(weft_generate_params, entropy_bound.entropy_bound), "entropy_bound"},
      {offsetof(weft_generate_params, entropy_bound.confidence), "confidence"},
  };
  refuse_bad_reals(WEFT_MODE_DIFFUSION, rows, sizeof rows / sizeof *rows);
  weft_generate_params p = sound(WEFT_MODE_DIFFUSION);
  p.entropy_bound.max_steps = UINT32_MAX;
  refused(&p, WEFT_E_INVALID, "diffusion steps");
  p.entropy_bound.stability = 100;
  refused(&p, WEFT_E_INVALID, "stability");
  p.entropy_bound.t_min = 0.9f;
  p.entropy_bound.t_max = 0.2f;
  refused(&p, WEFT_E_INVALID, "t_max");
  p.sampling.logprobs = true;
  refused(&p, WEFT_E_INVALID, "logprobs");
  p.sampling.min_p = 0.1f;
  refused(&p, WEFT_E_INVALID, "min_p");
  p.model = "ar-base";
  refused(&p, WEFT_E_INVALID, "ar-base cannot answer by diffusion");
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

static void test_prompts(void **state) {
  (void)state;
  weft_generate_params p = sound(WEFT_MODE_AUTO);
  p.prompt.tokens = NULL;
  refused(&p, WEFT_E_INVALID, "exactly one of");
  p.prompt.text = "and a text";
  p.prompt.n_text = 10;
  refused(&p, WEFT_E_INVALID, "exactly one of");
  const weft_tool tool = {.name = "f"};
  p.prompt.tools = &tool;
  p.prompt.n_tools = 1;
  refused(&p, WEFT_E_INVALID, "tools need messages");
  p.prompt.n_tokens = 0;
  refused(&p, WEFT_E_INVALID, "the prompt is empty");
  p.prompt.n_tokens = CONTEXT;
  refused(&p, WEFT_E_TOO_LARGE, "256");
  p = sound(WEFT_MODE_DIFFUSION);
  p.prompt.n_tokens = CONTEXT - 10; /* no canvas of 32 fits behind it */
  refused(&p, WEFT_E_TOO_LARGE, "no room for a canvas");
  p = sound(WEFT_MODE_AUTO);
  p.prompt.n_tokens = LONG;
  refused(&p, WEFT_E_TOO_LARGE, "4096");
  static const int32_t outside[][2] = {{5, -1}, {5, 1024}, {INT32_MAX, 5}, {INT32_MIN, 5}};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    p.prompt.tokens = outside[i];
    p.prompt.n_tokens = 2;
    refused(&p, WEFT_E_INVALID, "prompt token");
  }
  p.prompt.tokens = NULL;
  p.prompt.text = long_text;
  p.prompt.n_text = sizeof long_text - 1;
  refused(&p, WEFT_E_TOO_LARGE, "the prompt has");
}

static weft_generate_params sound_chat(const weft_chat_turn *turns, uint32_t n_turns) {
  weft_generate_params p = sound(WEFT_MODE_AUTO);
  p.prompt.tokens = NULL;
  p.prompt.turns = turns;
  p.prompt.n_turns = n_turns;
  return p;
}

static void test_chats(void **state) {
  (void)state;
  static const weft_chat_turn turns[][2] = {
      {{.role = "user"}, {0}}, {{.content = "x"}, {0}}, {{.role = "narrator", .content = "x"}, {0}}};
  static const char *const words[] = {"message 0 lacks", "message 0 lacks", "narrator"};
  weft_generate_params p;
  for (uint32_t i = 0; i < 3; i++) {
    p = sound_chat(turns[i], 1);
    refused(&p, WEFT_E_INVALID, words[i]);
  }
  p = sound_chat(turns[0], 0);
  refused(&p, WEFT_E_INVALID, "message");
  p = sound_chat(&(weft_chat_turn){.role = "user", .content = "hello"}, 1);
  p.model = "ar-base"; /* without a template */
  refused(&p, WEFT_E_UNSUPPORTED, "ar-base cannot chat");
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

static void test_others(void **state) {
  (void)state;
  weft_generate_params p = sound(WEFT_MODE_AUTO);
  p.model = "gpt-9";
  refused(&p, WEFT_E_NOT_FOUND, "'gpt-9'");
  p.tenant = 2;
  refused(&p, WEFT_E_INVALID, "tenant 2");
  static const char *const empty[] = {"x", ""}, *const absent[] = {"x", NULL};
  static const char *many[65];
  for (uint32_t i = 0; i < 65; i++) many[i] = "x";
  const struct {
    const char *const *list;
    uint32_t n;
  } stops[] = {{empty, 2}, {absent, 2}, {many, 65}, {NULL, 1}, {(const char *const[]){long_text}, 1}};
  for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
    p.stop = stops[i].list;
    p.n_stop = stops[i].n;
    refused(&p, WEFT_E_INVALID, "stop string");
  }
  const weft_logit_bias outside = {1024, 1.0f}, one = {tokens[0], 1.0f}, nan_bias = {tokens[0], NAN};
  const struct {
    const weft_logit_bias *list;
    uint32_t n;
    const char *words;
  } biases[] = {{&outside, 1, "logit_bias names token 1024"},
                {&nan_bias, 1, "logit_bias of token 5"},
                {NULL, 1, "logit_bias"},
                {&one, UINT32_MAX, "at most 1024"}};
  p = sound(WEFT_MODE_AUTOREGRESSIVE);
  for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
    p.sampling.bias = biases[i].list;
    p.sampling.n_bias = biases[i].n;
    refused(&p, WEFT_E_INVALID, biases[i].words);
  }
}

static void ends(weft_generation *g, const char *finish) {
  weft_delta d;
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
  } while (d.kind != WEFT_DELTA_END);
  assert_string_equal(d.finish, finish);
  assert_true((d.retry_ms > 0) == (strcmp(finish, "evicted") == 0));
  weft_generation_free(g);
}

/* A sibling takes the prompt of another generation, so it brings none of its own. */
static void test_siblings(void **state) {
  (void)state;
  weft_generation *first, *second;
  const int32_t *ids;
  char error[512] = "";
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE), q = p;
  assert_int_equal(weft_submit(runtime, &p, &first, error, sizeof error), 0);
  q.sibling = first;
  refused(&q, WEFT_E_INVALID, "exactly one of a prompt and a sibling");
  q.sibling = first;
  q.prompt = (weft_prompt){0};
  q.sampling.choice = 1;
  assert_int_equal(weft_submit(runtime, &q, &second, error, sizeof error), 0);
  assert_int_equal(weft_prompt_tokens(second, &ids), p.prompt.n_tokens);
  assert_memory_equal(ids, p.prompt.tokens, p.prompt.n_tokens * sizeof *ids);
  ends(first, "length");
  ends(second, "length");
}

/* A sibling of calls is held to calls, so it has no format of its own. */
static void test_siblings_of_calls(void **state) {
  static const weft_chat_turn turn = {.role = "user", .content = "hi"};
  static const weft_tool tool = {.name = "find"};
  weft_generation *first, *second = NULL;
  char error[512] = "";
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
  (void)state;
  p.prompt = (weft_prompt){.turns = &turn, .n_turns = 1, .tools = &tool, .n_tools = 1};
  p.ignore_eos = false;
  p.max_tokens = 100;
  p.tool_choice = WEFT_TOOLS_REQUIRED;
  p.one_call = true;
  if (weft_submit(runtime, &p, &first, error, sizeof error) != 0) fail_msg("%s", error);
  p.prompt = (weft_prompt){0};
  p.sibling = first;
  p.sampling.choice = 1;
  p.format = WEFT_FORMAT_REGEX;
  p.format_text = "a+";
  p.n_format_text = 2;
  assert_int_equal(weft_submit(runtime, &p, &second, error, sizeof error), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(error, "a sibling of a generation with tools or thinking has its format"));
  ends(first, "stop");
}

static int submit_sibling(weft_generation *of, const char *format, weft_generation **out, char error[512]) {
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
  p.prompt = (weft_prompt){0};
  p.ignore_eos = false;
  p.max_tokens = 100;
  p.sibling = of;
  p.sampling.choice = 1;
  if (format != NULL) {
    p.format = WEFT_FORMAT_REGEX;
    p.format_text = format;
    p.n_format_text = strlen(format);
  }
  return weft_submit(runtime, &p, out, error, 512);
}

/* Where thinking is held with a format, siblings have that format, also those of a sibling that did not name it. */
static void test_siblings_of_formats(void **state) {
  static const weft_chat_turn turn = {.role = "user", .content = "hi"};
  weft_generation *of[3] = {NULL}, *other = NULL;
  char error[512] = "";
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
  (void)state;
  p.prompt = (weft_prompt){.turns = &turn, .n_turns = 1, .thinking = true};
  p.ignore_eos = false;
  p.max_tokens = 100;
  p.format = WEFT_FORMAT_REGEX;
  p.format_text = "a+";
  p.n_format_text = 2;
  if (weft_submit(runtime, &p, &of[0], error, sizeof error) != 0) fail_msg("%s", error);
  if (submit_sibling(of[0], NULL, &of[1], error) != 0) fail_msg("%s", error);
  if (submit_sibling(of[1], "a+", &of[2], error) != 0) fail_msg("%s", error);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(submit_sibling(of[i], "b+", &other, error), WEFT_E_UNSUPPORTED);
    assert_non_null(strstr(error, "a sibling of a generation with tools or thinking has its format"));
  }
  for (uint32_t i = 0; i < 3; i++) weft_generation_free(of[i]);
}

/* Where a prompt is only read, it may have the whole context, and -1 cuts it to that. */
static void test_cut_prompts(void **state) {
  (void)state;
  for (int only = 0; only < 2; only++) {
    weft_generation *g;
    const int32_t *ids;
    char error[512] = "";
    weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
    p.prompt.n_tokens = CONTEXT + 50;
    p.truncate_prompt = -1;
    p.prompt_only = only == 1;
    p.max_tokens = only == 1 ? 0 : 4;
    if (weft_submit(runtime, &p, &g, error, sizeof error) != 0) fail_msg("%s", error);
    assert_int_equal(weft_prompt_tokens(g, &ids), only == 1 ? CONTEXT : CONTEXT - 4);
    ends(g, "length");
  }
}

/* More than the queue holds: "come again", and those inside end as they should. */
static void test_full(void **state) {
  (void)state;
  weft_generation *g[64];
  char error[512] = "";
  uint32_t n = 0;
  int status = 0;
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
  p.max_tokens = 60;
  while (n < 64 && (status = weft_submit(runtime, &p, &g[n], error, sizeof error)) == 0) n += 1;
  assert_int_equal(status, WEFT_FULL);
  assert_true(n >= 4 && error[0] != 0);
  for (uint32_t i = 0; i < n; i++) ends(g[i], "length");
}

static void all_refused(const weft_generate_params *p, uint32_t n_prompts, uint32_t n_choices, int wanted,
                        const char *words) {
  weft_generation *g[WEFT_ANSWERS_MAX];
  char error[512] = "";
  memset(g, 0xFF, sizeof g);
  int status = weft_submit_all(runtime, p, n_prompts, n_choices, g, error, sizeof error);
  if (status != wanted || strstr(error, words) == NULL) fail_msg("status %d: '%s'; wanted '%s'", status, error, words);
  for (uint32_t i = 0; i < n_prompts * n_choices && i < WEFT_ANSWERS_MAX && n_choices < 100; i++) assert_null(g[i]);
}

/* Many answers get in together or not at all: one bad prompt, or one too many, and nothing is left behind. */
static void test_together(void **state) {
  (void)state;
  weft_generation *g[6];
  char error[512] = "";
  weft_generate_params p[3] = {sound(WEFT_MODE_AUTOREGRESSIVE), sound(WEFT_MODE_AUTOREGRESSIVE),
                               sound(WEFT_MODE_AUTOREGRESSIVE)};
  all_refused(p, 0, 1, WEFT_E_INVALID, "0 prompts times 1 choices");
  all_refused(p, 1, 0, WEFT_E_INVALID, "1 prompts times 0 choices");
  all_refused(p, 1, 129, WEFT_E_INVALID, "1 to 128 answers");
  all_refused(p, 2, UINT32_MAX, WEFT_E_INVALID, "1 to 128 answers");
  all_refused(p, 1, 7, WEFT_E_INVALID, "ask for at most 6");
  all_refused(p, 3, 3, WEFT_E_INVALID, "ask for at most 6");
  p[2].prompt.n_tokens = CONTEXT;
  all_refused(p, 3, 2, WEFT_E_TOO_LARGE, "256");
  p[2] = p[0];
  p[2].tenant = 1;
  all_refused(p, 3, 1, WEFT_E_INVALID, "tenants 0 and 1 in one submission");
  p[2] = p[0];
  for (uint32_t i = 0; i < 300000 && !weft_idle(runtime); i++) (void)usleep(1000); /* the last test's leave */
  assert_true(weft_idle(runtime));
  assert_int_equal(weft_submit_all(runtime, p, 3, 2, g, error, sizeof error), 0);
  for (uint32_t i = 0; i < 6; i++) ends(g[i], "length");
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

/* Keeps the engine thread, and nobody else, until the test gives the mutex back. */
static void hold_engine(void *self) {
  if (pthread_equal(pthread_self(), *(pthread_t *)self)) return;
  (void)pthread_mutex_lock(&held);
  (void)pthread_mutex_unlock(&held);
}

/* One tenant has all places; the other comes with its half of the queue, and the newest of the first end. */
static void test_evicted(void **state) {
  (void)state;
  weft_generation *g[6], *other[2];
  char error[512] = "";
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE), q = p;
  p.max_tokens = 240;
  q.tenant = 1;
  pthread_t self = pthread_self();
  (void)pthread_mutex_lock(&held);
  for (uint32_t i = 0; i < 6; i++) {
    assert_int_equal(weft_submit(runtime, &p, &g[i], error, sizeof error), 0);
    if (i == 0) weft_on_ready(g[0], hold_engine, &self);
  }
  assert_int_equal(weft_submit_all(runtime, &q, 1, 2, other, error, sizeof error), 0);
  (void)pthread_mutex_unlock(&held);
  ends(g[5], "evicted");
  ends(g[4], "evicted");
  for (uint32_t i = 0; i < 2; i++) ends(other[i], "length");
  for (uint32_t i = 0; i < 4; i++) ends(g[i], "length");
}

static void test_edges_served(void **state) {
  (void)state;
  weft_generate_params p = sound(WEFT_MODE_AUTOREGRESSIVE);
  served(&p, 4);
  p.prompt.n_tokens = CONTEXT - 1; /* one token of room, whatever is asked */
  p.max_tokens = UINT32_MAX;
  served(&p, 1);
  p = sound(WEFT_MODE_DIFFUSION);
  p.prompt.n_tokens = CONTEXT - 32; /* exactly one canvas */
  p.max_tokens = UINT32_MAX;
  p.entropy_bound.max_steps = 2;
  served(&p, 32);
  p.prompt.n_tokens = CONTEXT - 33 - 32; /* the context ends inside the third */
  served(&p, 64);
  p.canvases = 1;
  served(&p, 32);
  assert_null(weft_unwell(runtime));
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sampling),
                                     cmocka_unit_test(test_diffusion),
                                     cmocka_unit_test(test_prompts),
                                     cmocka_unit_test(test_chats),
                                     cmocka_unit_test(test_others),
                                     cmocka_unit_test(test_siblings),
                                     cmocka_unit_test(test_siblings_of_calls),
                                     cmocka_unit_test(test_siblings_of_formats),
                                     cmocka_unit_test(test_cut_prompts),
                                     cmocka_unit_test(test_full),
                                     cmocka_unit_test(test_together),
                                     cmocka_unit_test(test_evicted),
                                     cmocka_unit_test(test_edges_served)};
  return cmocka_run_group_tests(tests, open_runtime, close_runtime);
}
