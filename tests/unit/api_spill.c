/* SPDX-License-Identifier: MIT */
/* The options of the spill file: what is refused and in which words, the line of the plan, the counters; and a server
 * that ends while the file works. */
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
#include "tests/support/amount.h"

static const char path[] = WEFT_BINARY_DIR "/api_spill.file";
static const char *const model = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";

static weft_open_options options(uint64_t host_bytes, const char *file, uint64_t bytes) {
  return (weft_open_options){.models = &model,
                             .n_models = 1,
                             .backend = "cpu",
                             .threads = 1,
                             .kv_bytes = 2 << 20,
                             .host_bytes = host_bytes,
                             .spill_file = file,
                             .spill_bytes = bytes,
                             .context = 512,
                             .running = 16,
                             .quiet = true};
}

static void refused(uint64_t host_bytes, const char *file, uint64_t bytes, const char *words) {
  weft_open_options o = options(host_bytes, file, bytes);
  weft_runtime *rt = NULL;
  char error[512] = "";
  assert_true(weft_open(&o, &rt, error, sizeof error) != 0);
  assert_null(rt);
  if (strstr(error, words) == NULL || strchr(error, '\n') != NULL) fail_msg("'%s' lacks '%s'", error, words);
  assert_int_equal(access(path, F_OK), -1);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  refused(1 << 20, path, 0, "--spill-mib");
  refused(1 << 20, NULL, 1 << 20, "--spill-file");
  refused(0, path, 1 << 20, "--host-mib");
  refused(1 << 20, path, 1 << 10, "holds 0 pages");
  refused(1 << 20, path, (uint64_t)1 << 50, "--spill-mib");
  refused(1 << 20, WEFT_SOURCE_DIR "/README.md", 1 << 20, "exists");
  refused(1 << 20, WEFT_BINARY_DIR "/no/folder", 1 << 20, "No such file");
}

/* Twenty long prompts, twice, in a pool and a host that hold few of them. */
static void submit_all(weft_runtime *rt, weft_generation **g) {
  static int32_t tokens[20][200];
  for (uint32_t i = 0; i < 20; i++) {
    weft_generate_params p;
    char error[256] = "";
    for (uint32_t k = 0; k < 200; k++) tokens[i][k] = (int32_t)(60 + (i * 31 + k * 7) % 300);
    weft_generate_defaults(&p);
    p.prompt.tokens = tokens[i];
    p.prompt.n_tokens = 200;
    p.max_tokens = 4;
    p.ignore_eos = true;
    p.mode = WEFT_MODE_AUTOREGRESSIVE;
    if (weft_submit(rt, &p, &g[i], error, sizeof error) != 0) fail_msg("%s", error);
  }
}

static void free_all(weft_generation **g, bool read) {
  for (uint32_t i = 0; i < 20; i++) {
    weft_delta d = {0};
    while (read && d.kind != WEFT_DELTA_END) (void)weft_next(g[i], TEST_WAIT_MS, &d);
    weft_generation_free(g[i]);
  }
}

static double metric(const char *text, const char *name) {
  char line[128];
  int n = snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(text, line);
  if (at == NULL) fail_msg("there is no %s", name);
  return strtod(at + n, NULL);
}

/* Pages that went to the file or came from it until now. */
static double moved(weft_runtime *rt) {
  char *text = weft_metrics(rt);
  double n = metric(text, "weft_file_pages_out_total") + metric(text, "weft_file_pages_back_total");
  weft_release(text);
  return n;
}

static void pages_go_and_come(void **state) {
  (void)state;
  weft_open_options o = options(4 << 20, path, 64 << 20);
  weft_runtime *rt;
  weft_generation *g[20];
  char error[512] = "";
  if (weft_open(&o, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  assert_int_equal(access(path, F_OK), -1);
  assert_non_null(strstr(weft_plan(rt), "file     64.0 MiB behind the host memory: 2048 pages"));
  for (int round = 0; round < 2; round++) {
    submit_all(rt, g);
    free_all(g, true);
  }
  while (!weft_idle(rt)) (void)usleep(1000);
  char *text = weft_metrics(rt);
  assert_true(metric(text, "weft_file_pages") == 2048);
  assert_true(metric(text, "weft_file_pages_out_total") > 0);
  assert_true(metric(text, "weft_file_pages_back_total") > 0);
  assert_true(metric(text, "weft_file_waits_total") > 0);
  assert_true(metric(text, "weft_file_pages_lost_total") == 0);
  assert_true(metric(text, "weft_file_bytes_written_total") >= 32768 * metric(text, "weft_file_pages_out_total"));
  assert_true(metric(text, "weft_file_damaged_total") == 0);
  assert_true(metric(text, "weft_spill_bytes_out_total") == 32768 * metric(text, "weft_spill_pages_out_total"));
  weft_release(text);
  const double n_moved = moved(rt);
  submit_all(rt, g); /* and gone in the middle of it */
  while (moved(rt) == n_moved) (void)usleep(1000);
  free_all(g, false);
  weft_close(rt);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_cannot_be_is_refused), cmocka_unit_test(pages_go_and_come)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
