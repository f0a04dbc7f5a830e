/* SPDX-License-Identifier: MIT */
/* Weights that are not finite, in one part of a model or in all of it: a request that meets one ends with an error that
 * says so, after the right start of its answer; everybody else, in the same steps and over the same pages, gives the
 * bits that they give without it; all pages come back; nothing is unwell. On every backend and instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/weft.h"
#include "base/log.h"
#include "base/random.h"
#include "tests/support/amount.h"
#include "tests/support/gguf_edit.h"
#include "tests/support/real_engine.h"
#include "tests/support/small_runtime.h"

enum { N = 24, PROMPT_MAX = 40, CONTEXT = 80, POISON = 77 };

typedef struct way {
  const char *backend, *isa;
} way;

static const way ways[] = {{"ref", NULL}, {"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}};
static int32_t prompts[N][PROMPT_MAX];
static weft_request_params requests[N];
static rig_answer clean[N], got[N];

static uint32_t draw(uint64_t *state, uint32_t n) {
  return (uint32_t)((weft_mix64(++*state * 0x9E3779B97F4A7C15ull) >> 32) % n);
}

/* On lane 0: canvases with and without self-conditioning, tokens; on lane 1: tokens. Every third prompt holds the
 * token POISON. */
static void make_requests(bool canvases) {
  uint64_t state = 11;
  for (uint32_t i = 0; i < N; i++) {
    weft_request_params *p = &requests[i];
    *p = (weft_request_params){.model = i % 4 == 3, .tokens = prompts[i], .domain = {1, 1}};
    p->n_tokens = 2 + draw(&state, PROMPT_MAX - 2);
    p->max_tokens = 6 + draw(&state, 14);
    for (uint32_t k = 0; k < p->n_tokens; k++) prompts[i][k] = (int32_t)(5 + draw(&state, POISON - 5));
    if (i % 3 == 0) prompts[i][draw(&state, p->n_tokens)] = POISON;
    p->canvas = canvases && p->model == 0 && i % 2 == 0;
    p->asked.sampling = weft_sampling_neutral();
    p->asked.sampling.seed = i;
    p->asked.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    if (i % 5 == 4 && !p->canvas) p->asked.sampling.top_k = 20;
    p->asked.entropy_bound = weft_entropy_bound_default();
    p->asked.entropy_bound.max_steps = i % 8 == 4 ? 1 : 4;
    p->asked.entropy_bound.no_self_conditioning = i % 8 == 2;
  }
}

/* All requests at once over a pool in which pages are handed on. */
static void play(const way *w, const char *first, const char *second, bool overlap, rig_answer *answers) {
  rig r;
  weft_request *handle[N] = {NULL};
  weft_error error = {{0}};
  weft_engine_stats stats;
  rig_options o = {.backend = w->backend,
                   .isa = w->isa,
                   .n_threads = 2,
                   .path = {first, second},
                   .n_models = 2,
                   .block = 4,
                   .n_pages = 150,
                   .context = CONTEXT,
                   .rows = 64,
                   .chunk = 16,
                   .running = 12,
                   .overlap = overlap};
  rig_open(&r, &o);
  memset(answers, 0, N * sizeof *answers);
  for (uint32_t i = 0; i < N; i++) {
    weft_status status = weft_engine_submit(r.engine, &requests[i], r.now, &handle[i], &error);
    rig_need(status == WEFT_OK, "submit", error.text);
  }
  while (!weft_engine_idle(r.engine)) {
    (void)weft_engine_step(r.engine, ++r.now);
    for (uint32_t i = 0; i < N; i++) rig_collect(&r, &handle[i], &answers[i]);
    rig_check_pager(&r);
  }
  weft_engine_get_stats(r.engine, &stats);
  assert_int_equal(stats.pager.n_pinned, 0);
  assert_int_equal(stats.broken_runners, 0);
  assert_true(stats.n_steps > 20 && stats.pager.n_taken > o.n_pages); /* pages were handed on */
  assert_true(stats.n_canvases == 0 || stats.n_mixed_steps > 0);
  rig_close(&r);
}

static bool has_way(const way *w) {
  weft_device_config config = {.backend = w->backend, .n_threads = 1, .isa = w->isa};
  weft_device *device;
  if (weft_device_open(&config, &device, NULL) != WEFT_OK) return false;
  weft_device_close(device);
  return true;
}

/* Those that must_fail ended with an error after a start of the clean answer; the others are the clean ones. */
static void compare(const char *what, const way *w, bool (*must_fail)(uint32_t index)) {
  uint32_t n_failed = 0;
  for (uint32_t i = 0; i < N; i++) {
    const rig_answer *a = &got[i], *b = &clean[i];
    bool fails = must_fail(i);
    bool good = fails ? a->finish == WEFT_FINISH_ERROR && strstr(a->error, "not finite") != NULL && a->n <= b->n
                      : a->finish == b->finish && a->n == b->n;
    good = good && memcmp(a->tokens, b->tokens, a->n * sizeof(int32_t)) == 0;
    if (!good) {
      fail_msg(
          "%s on %s %s: request %u (%s on model %u, %u prompt tokens): finish %d '%s', %u tokens; without NaN "
          "finish %d, %u tokens; it should %s",
          what, w->backend, w->isa == NULL ? "" : w->isa, i, requests[i].canvas ? "canvas" : "tokens",
          requests[i].model, requests[i].n_tokens, (int)a->finish, a->error, a->n, (int)b->finish, b->n,
          fails ? "fail" : "not be touched");
    }
    n_failed += fails;
  }
  assert_true(n_failed > 0 && n_failed < N);
}

static bool uses_self_conditioning(uint32_t i) {
  const weft_entropy_bound *e = &requests[i].asked.entropy_bound;
  return requests[i].canvas && !e->no_self_conditioning && e->max_steps > 1;
}

static bool meets_token(uint32_t i) {
  if (requests[i].model == 1) return false;
  for (uint32_t k = 0; k < requests[i].n_tokens; k++) {
    if (prompts[i][k] == POISON) return true;
  }
  for (uint32_t k = 0; k + 1 < clean[i].n; k++) { /* the last token is never fed */
    if (clean[i].tokens[k] == POISON) return true;
  }
  return false;
}

static bool is_first_model(uint32_t i) {
  return requests[i].model == 0;
}
static bool is_canvas(uint32_t i) {
  return requests[i].canvas;
}

static void run(const char *first, const gguf_edit *e, bool canvases, bool (*must_fail)(uint32_t index)) {
  static const char second[] = MODELS "ar-base.gguf";
  char source[300];
  (void)snprintf(source, sizeof source, MODELS "%s.gguf", first);
  const char *bad = gguf_edit_file(source, e, "nan");
  make_requests(canvases);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    if (!has_way(&ways[i])) continue;
    play(&ways[i], source, second, false, clean);
    play(&ways[i], bad, second, i % 2 == 1, got);
    compare(e->poison, &ways[i], must_fail);
  }
}

static void test_self_conditioning(void **state) {
  (void)state;
  run("dg-base", &(gguf_edit){.poison = "self_cond_gate"}, true, uses_self_conditioning);
  run("dg-base", &(gguf_edit){.poison = "self_cond_down"}, true, uses_self_conditioning);
}

static void test_one_token(void **state) {
  (void)state;
  run("ar-moe-v", &(gguf_edit){.poison = "token_embd", .poison_row = POISON, .poison_one_row = true}, false,
      meets_token);
}

/* Everything that a whole model of NaN does, part by part. */
static void test_parts(void **state) {
  (void)state;
  static const char *const parts[] = {
      "output_norm",       "blk.0.attn_norm",           "blk.0.attn_q.weight",        "blk.3.attn_k.weight",
      "blk.1.attn_output", "blk.2.ffn_gate_inp.weight", "blk.0.ffn_down_exps.weight", "blk.3.ffn_gate_up",
      "token_embd"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    run("dg-base", &(gguf_edit){.poison = parts[i]}, true, is_first_model);
  }
  run("dg-base", &(gguf_edit){.poison = "blk.1.layer_output_scale"}, true, is_canvas); /* the decoder pass */
}

/* ---- through weft.h ------------------------------------------------------------------------------------- */

static void start(weft_runtime *rt, const char *model, weft_mode mode, weft_generation **out) {
  weft_generate_params p;
  char error[512] = "";
  weft_generate_defaults(&p);
  p.model = model;
  p.mode = mode;
  p.prompt.text = "a few words";
  p.prompt.n_text = strlen(p.prompt.text);
  p.has_seed = true;
  p.max_tokens = 12;
  p.ignore_eos = true;
  if (weft_submit(rt, &p, out, error, sizeof error) != 0) fail_msg("%s", error);
}

static void finishes(weft_generation *g, const char *finish, const char *words) {
  weft_delta d;
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
  } while (d.kind != WEFT_DELTA_END);
  assert_string_equal(d.finish, finish);
  assert_true((words == NULL) == (d.error == NULL));
  if (words != NULL && strstr(d.error, words) == NULL) fail_msg("%s", d.error);
  weft_generation_free(g);
}

static void test_public(void **state) {
  (void)state;
  const char *bad = gguf_edit_file(MODELS "dg-base.gguf", &(gguf_edit){.poison = "output_norm"}, "bad");
  const char *models[] = {bad, MODELS "dg-fused-c4.gguf"};
  weft_open_options options = small_runtime(models, 2);
  options.running = 8;
  weft_runtime *rt;
  char error[512] = "";
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  for (uint32_t round = 0; round < 3; round++) {
    weft_generation *g[4];
    for (uint32_t i = 0; i < 4; i++) {
      start(rt, i % 2 == 0 ? "bad" : "dg-fused-c4", i < 2 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE, &g[i]);
    }
    for (uint32_t i = 0; i < 4; i++) finishes(g[i], i % 2 == 0 ? "error" : "length", i % 2 == 0 ? "not finite" : NULL);
  }
  assert_null(weft_unwell(rt)); /* the device is sound: only the model is not */
  weft_close(rt);
  gguf_edit_clean();
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_self_conditioning), cmocka_unit_test(test_one_token),
                                     cmocka_unit_test(test_parts), cmocka_unit_test(test_public)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
