/* SPDX-License-Identifier: MIT */
/* Cards that are full when a runner is opened: each buffer goes to the first card, or where that is full or out of
 * reach to host memory, and all answers are what they are with room enough; soft embeddings also one stage after
 * another, with the line of the log that says where they are made. Where nothing has room, the refusal names the cards,
 * what is needed and what is free. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

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

/* Opens a runner on cards of which `which` refuses piece `site`, and where `nowhere` all that is asked for after it. */
static weft_status open_runner(const rig_options *o, uint32_t which, uint32_t site, bool nowhere, weft_error *error) {
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
  for (uint32_t p = 0; p < o->n_devices && nowhere; p++) {
    fake_card *card = fake_of(r.split[0].device[p]);
    card->fail_alloc = card->n_allocs + 1;
    card->fail_on = true;
  }
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

/* Every piece of the last card has another place; with none the line says what is needed. */
static void find_places(const rig_options *o) {
  weft_error error = {{0}};
  for (uint32_t i = 0; i < PIECES; i++)
    if (open_runner(o, o->n_devices - 1, i, false, &error) != WEFT_OK) fail_msg("piece %u: %s", i, error.text);
  assert_int_equal(open_runner(o, o->n_devices - 1, 0, true, &error), WEFT_E_NO_MEMORY);
  if (strstr(error.text, "MiB needed") == NULL || strstr(error.text, "MiB free") == NULL ||
      strstr(error.text, "lower --running, --rows or --kv-mib") == NULL || strstr(error.text, "device ") == NULL)
    fail_msg("the line is: %s", error.text);
}

static void play_full(const char *backend, uint32_t n_devices) {
  static rig_answer wanted[N], got[N];
  bool all[PIECES];
  uint64_t n_first, n_host, n_moved;
  memset(all, true, sizeof all);
  rig_options o = options_of(backend, n_devices);
  play(&o, wanted, &n_first, &n_host);
  assert_int_equal(n_first + n_host, 0);
  find_places(&o);
  o.full[n_devices - 1] = all;
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

/* ---- soft embeddings ---- */

/* What play logs, in text [n]. */
static void play_logged(const rig_options *o, rig_answer *answers, char *text, size_t n) {
  uint64_t n_first, n_host;
  FILE *file = tmpfile();
  int kept = dup(STDERR_FILENO);
  assert_true(file != NULL && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
  weft_log_set_level(WEFT_LOG_WARN);
  play(o, answers, &n_first, &n_host);
  weft_log_set_level((weft_log_level)-1);
  assert_true(dup2(kept, STDERR_FILENO) >= 0);
  (void)close(kept);
  rewind(file);
  size_t n_read = fread(text, 1, n - 1, file);
  text[n_read] = 0;
  (void)fclose(file);
}

/* From the last device to the first one and to host memory, each because the place before refused. */
static void test_soft_embeddings(void **state) {
  static rig_answer wanted[N], got[N];
  static char text[1 << 14];
  bool one[PIECES] = {false}, all[PIECES];
  rig_options o = options_of("fake late graphs", 2);
  (void)state;
  make_requests();
  memset(all, true, sizeof all);
  play_logged(&o, wanted, text, sizeof text);
  assert_string_equal(text, ""); /* at home */
  o.full[1] = one;
  uint32_t site = 0;
  for (; site < PIECES; site++) { /* which piece they are */
    one[site] = true;
    play_logged(&o, got, text, sizeof text);
    if (strstr(text, "soft embeddings are made on device 0") != NULL) break;
    one[site] = false;
  }
  assert_true(site < PIECES);
  same("soft embeddings on the first card", got, wanted);
  o.full[0] = all;
  play_logged(&o, got, text, sizeof text);
  assert_non_null(strstr(text, "soft embeddings are made in host memory"));
  same("soft embeddings in host memory", got, wanted);
  o.full[0] = NULL;
  o.unreachable = true;
  play_logged(&o, got, text, sizeof text);
  assert_non_null(strstr(text, "soft embeddings are made in host memory"));
  same("soft embeddings in host memory, since the first card is out of reach", got, wanted);
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_soft_embeddings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
