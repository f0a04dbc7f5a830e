/* SPDX-License-Identifier: MIT */
/* Cards that are full when a runner is opened: each buffer that may lie elsewhere goes to the first card, or where that
 * is full or out of reach to host memory, and all answers are what they are with room enough. Buffers that the last of
 * several cards sends from have no other place: a refusal of one names the cards, what is needed and what is free. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "tests/support/real_engine.h"

#define MODELS WEFT_SOURCE_DIR "/tests/golden/models/"

enum { N = 10, PROMPT = 20, CONTEXT = 64, PIECES = 64 };

static int32_t prompts[N][PROMPT];
static weft_request_params requests[N];

static void make_requests(void) {
  for (uint32_t i = 0; i < N; i++) {
    weft_request_params *p = &requests[i];
    *p = (weft_request_params){.tokens = prompts[i], .n_tokens = 3 + i, .max_tokens = 5 + i % 7};
    for (uint32_t k = 0; k < p->n_tokens; k++) prompts[i][k] = (int32_t)((i * 31 + k * 7) % 90 + 5);
    p->canvas = i % 2 == 0;
    p->asked.sampling = weft_sampling_neutral();
    p->asked.sampling.seed = i;
    if (i % 3 == 0 && !p->canvas) p->asked.sampling.top_k = 10;
    p->asked.sampling.logprobs = i == 5;
    p->asked.entropy_bound = weft_entropy_bound_default();
    p->asked.entropy_bound.max_steps = 4;
  }
}

static rig_options options_of(const char *backend, uint32_t n_devices) {
  return (rig_options){.backend = backend,
                       .path = {MODELS "dg-base.gguf"},
                       .n_models = 1,
                       .block = 4,
                       .n_pages = 40,
                       .n_saves = 2,
                       .context = CONTEXT,
                       .rows = 40,
                       .chunk = 9,
                       .running = 4,
                       .n_devices = n_devices,
                       .overlap = true,
                       .n_full = PIECES};
}

static void play(const rig_options *o, rig_answer *answers, uint64_t *n_first, uint64_t *n_host) {
  rig r;
  weft_request *handle[N] = {NULL};
  weft_error error = {{0}};
  rig_open(&r, o);
  memset(answers, 0, N * sizeof *answers);
  for (uint32_t i = 0; i < N; i++)
    rig_need(weft_engine_submit(r.engine, &requests[i], r.now, &handle[i], &error) == WEFT_OK, "submit", error.text);
  for (uint32_t turns = 0; !weft_engine_idle(r.engine); turns++) {
    (void)weft_engine_step(r.engine, ++r.now);
    for (uint32_t i = 0; i < N; i++) rig_collect(&r, &handle[i], &answers[i]);
    assert_true(turns < 2000);
  }
  for (uint32_t i = 0; i < N; i++) rig_collect(&r, &handle[i], &answers[i]);
  weft_device_runner_away(r.runner[0], n_first, n_host);
  rig_close(&r);
}

static void same(const char *what, const rig_answer *got, const rig_answer *wanted) {
  for (uint32_t i = 0; i < N; i++) {
    bool equal = got[i].finish == wanted[i].finish && got[i].n == wanted[i].n && wanted[i].n > 0 &&
                 memcmp(got[i].tokens, wanted[i].tokens, wanted[i].n * sizeof(int32_t)) == 0;
    if (!equal) fail_msg("%s: request %u: %u tokens, %u with room enough", what, i, got[i].n, wanted[i].n);
  }
}

/* Opens a runner on cards of which `which` refuses piece `site`; there is no host memory where `no_host`. */
static weft_status open_runner(const rig_options *o, uint32_t which, uint32_t site, weft_error *error) {
  rig r = {0};
  bool full[PIECES] = {false};
  weft_runner *runner = NULL;
  weft_model_limits limits = {.rows_max = o->rows, .canvas_rows_max = o->rows, .segments_max = 8};
  full[site] = true;
  rig_options own = *o;
  own.full[which] = full;
  r.n_models = 1;
  rig_open_models(&r, &own, &limits);
  rig_fill_cards(&r, &own);
  weft_device_runner_config config = {.model = r.model[0],
                                      .store = r.store,
                                      .layout = &r.layout[0],
                                      .name = r.info[0]->name,
                                      .limits = limits,
                                      .n_slots = o->running,
                                      .n_saves = o->n_saves,
                                      .seq_tokens_max = o->context,
                                      .suppressed = rig_suppressed,
                                      .n_suppressed = 2};
  weft_status status = weft_device_runner_open(&config, &runner, NULL, error);
  if (runner != NULL) runner->ops->close(runner);
  weft_model_close(r.model[0]);
  weft_gguf_close(r.gguf[0]);
  weft_kv_store_close(r.store);
  for (uint32_t p = 0; p < r.split[0].n_devices; p++) weft_device_close(r.split[0].device[p]);
  return status;
}

/* Which pieces of the last card have another place. */
static uint32_t find_movable(const rig_options *o, bool *movable) {
  uint32_t n = 0, n_fixed = 0;
  for (uint32_t i = 0; i < PIECES; i++) {
    weft_error error = {{0}};
    weft_status status = open_runner(o, o->n_devices - 1, i, &error);
    movable[i] = status == WEFT_OK;
    n += movable[i];
    if (movable[i]) continue;
    n_fixed += 1;
    assert_int_equal(status, WEFT_E_NO_MEMORY);
    if (strstr(error.text, "MiB needed") == NULL || strstr(error.text, "MiB free") == NULL ||
        strstr(error.text, "lower --running, --rows or --kv-mib") == NULL || strstr(error.text, "device ") == NULL)
      fail_msg("piece %u: the line is: %s", i, error.text);
  }
  assert_int_equal(n_fixed, o->n_devices == 1 ? 0 : 2); /* soft embeddings and cells, which are sent */
  return n;
}

static void play_full(const char *backend, uint32_t n_devices) {
  static rig_answer wanted[N], got[N];
  bool movable[PIECES], all[PIECES];
  uint64_t n_first, n_host, n_moved;
  memset(all, true, sizeof all);
  rig_options o = options_of(backend, n_devices);
  play(&o, wanted, &n_first, &n_host);
  assert_int_equal(n_first + n_host, 0);
  (void)find_movable(&o, movable);
  o.full[n_devices - 1] = movable;
  play(&o, got, &n_first, &n_host);
  same("a full card", got, wanted);
  assert_true(n_devices == 1 ? n_first == 0 && n_host > 0 : n_first > 0 && n_host == 0);
  n_moved = n_first + n_host;
  if (n_devices == 1) return;
  o.unreachable = true;
  play(&o, got, &n_first, &n_host);
  same("a full card that does not reach the first one", got, wanted);
  assert_true(n_first == 0 && n_host == n_moved);
  o.unreachable = false;
  o.full[0] = all;
  play(&o, got, &n_first, &n_host);
  same("two full cards", got, wanted);
  assert_true(n_first == 0 && n_host > n_moved); /* and what the first card has of its own */
  print_message("%s, %u cards: %llu KiB elsewhere, %llu KiB where the first one is full too\n", backend, n_devices,
                (unsigned long long)n_moved >> 10, (unsigned long long)n_host >> 10);
}

static void test_places(void **state) {
  (void)state;
  make_requests();
  play_full("fake", 1);
  play_full("fake graphs", 1);
  play_full("fake", 2);
  play_full("fake late", 2);
  play_full("fake late graphs", 2);
  play_full("fake late", 3);
}

int main(void) {
  weft_log_set_level((weft_log_level)-1); /* every runner says what lies elsewhere */
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_places)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
