/* SPDX-License-Identifier: MIT */
/* Every host allocation refused once, while opening, submitting, stepping and reading: nothing crashes or leaks (the
 * address sanitizer sees), a refused open or submit says so in one line, every generation gets exactly one end, and an
 * answer that does not end with an error is the answer that undisturbed memory gives. Afterwards the same runtime
 * serves as if nothing had been. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "tests/support/amount.h"
#include "tests/support/small_runtime.h"

#define DEMO WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"

enum { TEXT_MAX = 8192, KINDS = 7 };

static const char *const tiny[] = {MODELS "dg-base.gguf", MODELS "ar-base.gguf"};

static bool replicas; /* what is opened lies on each of two devices */

static weft_open_options options_of(const char *const *models, uint32_t n_models, const char *backend) {
  weft_open_options options = small_runtime(models, n_models);
  options.backend = backend;
  options.context = 256;
  options.devices = replicas ? "0,1" : NULL;
  options.split = replicas ? "replicas" : NULL;
  return options;
}

/* ---- open ---------------------------------------------------------------------------------------------- */

static void open_refusing(const char *const *models, uint32_t n_models, const char *backend, uint32_t dense,
                          uint32_t stride) {
  weft_open_options options = options_of(models, n_models, backend);
  uint64_t n_tried = 0, n = 1;
  for (bool worked = false; !worked; n += n < dense ? 1 : stride) {
    weft_runtime *runtime = NULL;
    char error[512] = "";
    (void)weft_memory_fail_at(n);
    int status = weft_open(&options, &runtime, error, sizeof error);
    uint64_t n_counted = weft_memory_fail_at(0);
    n_tried += 1;
    worked = status == 0 && n_counted < n;
    assert_true((status == 0) == (runtime != NULL));
    if (status != 0 && (status != WEFT_E_NO_MEMORY || error[0] == 0 || strchr(error, '\n') != NULL)) {
      fail_msg("allocation %llu: status %d, '%s'", (unsigned long long)n, status, error);
    }
    if (status == 0 && !worked) fail_msg("allocation %llu was refused and nobody noticed", (unsigned long long)n);
    weft_close(runtime);
  }
  print_message("open on %s: %llu of about %llu allocations refused\n", backend, (unsigned long long)n_tried - 1,
                (unsigned long long)n);
}

static void test_open(void **state) {
  (void)state;
  static const char *const demo[] = {DEMO};
  open_refusing(tiny, 2, "ref", 1u << 30, 1);
  open_refusing(tiny, 1, "cpu", 1u << 30, 1);
  open_refusing(demo, 1, "cpu", 40, 17); /* a chat template, quantised weights */
  replicas = true;
  open_refusing(tiny, 2, "cpu", 1u << 30, 1);
  replicas = false;
}

/* ---- generations --------------------------------------------------------------------------------------- */

typedef struct outcome {
  int submitted;
  uint32_t n_ends, n_canvases, n_logprobs, n_thinking;
  char finish[16], error[256], submit_error[512];
  char text[TEXT_MAX];
  size_t n_text;
  int32_t tokens[512];
  uint32_t n_tokens;
} outcome;

static const int32_t prompt[] = {2, 17, 30, 44, 17, 30, 44, 90, 61};
static const weft_chat_turn turns[] = {{.role = "system", .content = "Be brief."},
                                       {.role = "user", .content = "Write 4711 backwards."}};
static const char *const stops[] = {"\xE2\x82\xAC never", "qq", "zz top"};
static const weft_logit_bias bias[] = {{9, 1.0f}, {10, -1.0f}};

static void fill(weft_generate_params *p, uint32_t kind, bool has_chat) {
  weft_generate_defaults(p);
  p->has_seed = true;
  p->sampling.seed = 5;
  p->max_tokens = 20;
  p->ignore_eos = true;
  p->mode = kind < 4 ? WEFT_MODE_AUTOREGRESSIVE : WEFT_MODE_DIFFUSION;
  p->entropy_bound.max_steps = 3;
  p->sampling.temperature = kind == 0 ? 0.0f : 0.9f;
  p->stop = stops;
  p->n_stop = kind % 2 == 1 ? 3 : 0;
  p->whole_tokens = kind == 1 || kind == 5;
  p->with_special = kind == 2;
  if (kind == 2) {
    p->sampling.logprobs = true;
    p->sampling.n_top_logprobs = 3;
    p->sampling.bias = bias;
    p->sampling.n_bias = 2;
  }
  if (kind == 4) p->canvas_deltas = true;
  if (kind == 6) p->canvas_deltas = p->trace = true;
  if (kind % 3 == 0) {
    p->prompt.tokens = prompt;
    p->prompt.n_tokens = sizeof prompt / sizeof *prompt;
  } else if (kind % 3 == 1 && has_chat) {
    p->prompt.turns = turns;
    p->prompt.n_turns = 2;
    p->prompt.thinking = kind == 4;
  } else {
    p->prompt.text = "a text of words \xE2\x82\xAC 12";
    p->prompt.n_text = strlen(p->prompt.text);
  }
}

static void take(outcome *o, const weft_delta *d) {
  if (d->kind == WEFT_DELTA_CANVAS) o->n_canvases += 1;
  if (d->kind == WEFT_DELTA_TEXT) {
    assert_true(o->n_text + d->n_text < TEXT_MAX && o->n_tokens + d->n_tokens <= 512);
    memcpy(o->text + o->n_text, d->text, d->n_text);
    o->n_text += d->n_text;
    if (d->n_tokens > 0) memcpy(o->tokens + o->n_tokens, d->tokens, d->n_tokens * sizeof *d->tokens);
    o->n_tokens += d->n_tokens;
    for (uint32_t i = 0; d->logprobs != NULL && i < d->n_tokens; i++) {
      assert_int_equal(d->logprobs[i].token, d->tokens[i]);
      o->n_logprobs += d->logprobs[i].n_bytes + d->n_top[i] > 0;
    }
    if (d->thinking) o->n_thinking += 1;
  }
  if (d->kind == WEFT_DELTA_END) {
    o->n_ends += 1;
    (void)snprintf(o->finish, sizeof o->finish, "%s", d->finish);
    if (d->error != NULL) (void)snprintf(o->error, sizeof o->error, "%s", d->error);
    assert_true((strcmp(d->finish, "error") == 0) == (d->error != NULL && d->error[0] != 0));
  }
}

/* refuse: which allocation, counted from before submit (in_submit) or from after it. */
static uint64_t generate(weft_runtime *runtime, uint32_t kind, bool has_chat, uint64_t refuse, bool in_submit,
                         outcome *o) {
  weft_generate_params params;
  weft_generation *g = NULL;
  weft_delta d;
  memset(o, 0, sizeof *o);
  fill(&params, kind, has_chat);
  if (in_submit) (void)weft_memory_fail_at(refuse);
  o->submitted = weft_submit(runtime, &params, &g, o->submit_error, sizeof o->submit_error);
  if (!in_submit) (void)weft_memory_fail_at(refuse);
  assert_true((o->submitted == 0) == (g != NULL));
  while (g != NULL && o->n_ends == 0) {
    int status = weft_next(g, TEST_WAIT_MS, &d);
    if (status != 0) fail_msg("kind %u, allocation %llu: weft_next gave %d", kind, (unsigned long long)refuse, status);
    take(o, &d);
  }
  if (g != NULL) assert_int_equal(weft_next(g, 0, &d), WEFT_AGAIN); /* nothing after the end */
  weft_generation_free(g);
  while (!weft_idle(runtime)) continue;
  return weft_memory_fail_at(0);
}

static void same(const outcome *got, const outcome *wanted, uint32_t kind, uint64_t refused) {
  bool equal = got->n_tokens == wanted->n_tokens && got->n_text == wanted->n_text &&
               strcmp(got->finish, wanted->finish) == 0 && got->n_logprobs == wanted->n_logprobs &&
               memcmp(got->text, wanted->text, got->n_text) == 0 &&
               memcmp(got->tokens, wanted->tokens, got->n_tokens * sizeof(int32_t)) == 0;
  if (equal) return;
  fail_msg("kind %u, allocation %llu: %u tokens '%s' (%s), expected %u tokens '%s' (%s)", kind,
           (unsigned long long)refused, got->n_tokens, got->text, got->finish, wanted->n_tokens, wanted->text,
           wanted->finish);
}

/* What came before an error is a start of the right answer. */
static void starts(const outcome *got, const outcome *wanted, uint32_t kind, uint64_t refused) {
  bool is_start = got->n_text <= wanted->n_text && memcmp(got->text, wanted->text, got->n_text) == 0 &&
                  got->n_tokens <= wanted->n_tokens &&
                  memcmp(got->tokens, wanted->tokens, got->n_tokens * sizeof(int32_t)) == 0;
  if (!is_start) {
    fail_msg("kind %u, allocation %llu: '%s' is no start of '%s'", kind, (unsigned long long)refused, got->text,
             wanted->text);
  }
}

static void generate_refusing(weft_runtime *runtime, bool has_chat) {
  static outcome wanted, got;
  uint32_t n_refused = 0, n_errors = 0;
  for (uint32_t kind = 0; kind < KINDS; kind++) {
    (void)generate(runtime, kind, has_chat, 0, true, &wanted);
    if (wanted.submitted != 0) fail_msg("kind %u: %s", kind, wanted.submit_error);
    assert_string_equal(wanted.finish, "length");
    assert_true((wanted.n_canvases > 0) == (kind == 4 || kind == 6));
    assert_true((wanted.n_logprobs > 0) == (kind == 2));
    for (uint32_t in_submit = 0; in_submit < 2; in_submit++) {
      bool refused = true;
      for (uint64_t n = 1; refused; n++) {
        refused = generate(runtime, kind, has_chat, n, in_submit == 1, &got) >= n;
        n_refused += refused;
        if (got.submitted != 0) {
          assert_int_equal(got.submitted, WEFT_E_NO_MEMORY);
          assert_true(got.submit_error[0] != 0 && strchr(got.submit_error, '\n') == NULL);
        } else if (strcmp(got.finish, "error") == 0) {
          assert_non_null(strstr(got.error, "memory"));
          starts(&got, &wanted, kind, n);
          n_errors += 1;
        } else {
          same(&got, &wanted, kind, n);
        }
      }
    }
    (void)generate(runtime, kind, has_chat, 0, true, &got);
    same(&got, &wanted, kind, 0);
  }
  assert_true(n_refused > 100 && n_errors > 10);
  print_message("%u allocations refused in and after submit, %u generations ended with an error\n", n_refused,
                n_errors);
}

static weft_runtime *open_runtime(const weft_open_options *options) {
  weft_runtime *runtime = NULL;
  char error[512] = "";
  if (weft_open(options, &runtime, error, sizeof error) != 0) fail_msg("%s", error);
  return runtime;
}

static void test_generate(void **state) {
  (void)state;
  weft_open_options options = options_of(tiny, 1, "cpu");
  weft_runtime *runtime = open_runtime(&options);
  generate_refusing(runtime, false);
  weft_close(runtime);
}

static void test_generate_chat(void **state) {
  (void)state;
  static const char *const demo[] = {DEMO};
  weft_open_options options = options_of(demo, 1, "cpu");
  options.kv_bytes = 8 << 20;
  weft_runtime *runtime = open_runtime(&options);
  generate_refusing(runtime, true);
  weft_close(runtime);
}

/* ---- the rest of the header ------------------------------------------------------------------------------ */

static void test_text(void **state) {
  (void)state;
  char error[512] = "";
  weft_open_options options = options_of(tiny, 2, "ref");
  weft_runtime *runtime = open_runtime(&options);
  static const char text[] = "a text of words \xE2\x82\xAC 12 and <bos>";
  uint64_t n_counted = 0, n = 0;
  do {
    n += 1;
    int32_t *tokens = NULL;
    char *back = NULL;
    size_t n_back = 0;
    uint32_t n_tokens = 0;
    (void)weft_memory_fail_at(n);
    int status =
        weft_tokenize(runtime, "dg-base", text, strlen(text), true, true, &tokens, &n_tokens, error, sizeof error);
    assert_true(status == 0 || (status == WEFT_E_NO_MEMORY && tokens == NULL && error[0] != 0));
    if (status == 0) {
      status = weft_detokenize(runtime, "ar-base", tokens, n_tokens, true, &back, &n_back, error, sizeof error);
      assert_true(status == 0 || (status == WEFT_E_NO_MEMORY && back == NULL && error[0] != 0));
    }
    char *metrics = weft_metrics(runtime), *stats = weft_stats_json(runtime);
    n_counted = weft_memory_fail_at(0);
    assert_true(n_counted >= n || (metrics != NULL && stats != NULL && n_back > 0));
    weft_release(tokens);
    weft_release(back);
    weft_release(metrics);
    weft_release(stats);
  } while (n_counted >= n);
  print_message("tokenize, detokenize, metrics, stats: %llu allocations refused\n", (unsigned long long)n_counted);
  weft_close(runtime);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_open), cmocka_unit_test(test_generate),
                                     cmocka_unit_test(test_generate_chat), cmocka_unit_test(test_text)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
