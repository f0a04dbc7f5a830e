/* SPDX-License-Identifier: MIT */
/* The cpu as several devices with a bound of memory each (--device-mib), from far too little to enough: a start that is
 * refused says in one line which device lacks how much and what to lower, and one that is not gives the answers of
 * devices without a bound, also where buffers found no room on their device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/runtime.h"
#include "base/log.h"
#include "tests/support/amount.h"
#include "tests/support/small_runtime.h"

enum { N = 4, TOKENS = 64, STEPS = 96 };

typedef struct answer {
  int32_t tokens[TOKENS];
  uint32_t n;
} answer;

static const char *const models[] = {MODELS "dg-base.gguf"};

static void ask(weft_runtime *rt, uint32_t i, answer *a) {
  weft_generate_params p;
  weft_generation *g = NULL;
  weft_delta d;
  char error[512] = "";
  weft_generate_defaults(&p);
  p.mode = i % 2 == 0 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.prompt.text = "a few words";
  p.prompt.n_text = 3 + i;
  p.max_tokens = 12 + 4 * i;
  p.ignore_eos = p.has_seed = true;
  p.sampling.seed = i;
  p.entropy_bound.max_steps = 3;
  if (weft_submit(rt, &p, &g, error, sizeof error) != 0) fail_msg("%s", error);
  a->n = 0;
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
    if (d.kind != WEFT_DELTA_TEXT) continue;
    assert_true(a->n + d.n_tokens <= TOKENS);
    memcpy(a->tokens + a->n, d.tokens, d.n_tokens * sizeof *d.tokens);
    a->n += d.n_tokens;
  } while (d.kind != WEFT_DELTA_END);
  assert_string_equal(d.finish, "length");
  weft_generation_free(g);
}

static void check_line(const char *mib, const char *line) {
  bool names_device = strstr(line, "device ") != NULL && strstr(line, "MiB needed") != NULL;
  bool lower =
      strstr(line, "--rows") != NULL || strstr(line, "--kv-mib") != NULL || strstr(line, "--device-mib") != NULL;
  if (!names_device || strstr(line, "MiB free") == NULL || !lower || strchr(line, '\n') != NULL)
    fail_msg("--device-mib %s: the line is: %s", mib, line);
}

/* Of the bounds [n_devices] one grows, the others are large. Counts what came of it. */
static void grow_bound(const char *devices, uint32_t n_devices, uint32_t which, double from, double to,
                       uint32_t away_least, const answer *wanted) {
  uint32_t n_refused = 0, n_away = 0, n_home = 0;
  for (uint32_t step = 0; step <= STEPS; step++) {
    weft_open_options options = small_runtime(models, 1);
    weft_runtime *rt = NULL;
    answer got[N];
    char error[512] = "", mib[128];
    size_t at = 0;
    double bound = from + (to - from) * step / STEPS;
    for (uint32_t p = 0; p < n_devices; p++)
      at += (size_t)snprintf(mib + at, sizeof mib - at, "%s%.4f", p == 0 ? "" : ",", p == which ? bound : 64.0);
    options.devices = devices;
    options.device_mib = mib;
    options.split_ratio = n_devices == 2 ? "1,1" : NULL;
    int status = weft_open(&options, &rt, error, sizeof error);
    if (status != 0) {
      bool pool = status == WEFT_E_INVALID && strstr(error, "more than this device has") != NULL; /* in all */
      if (status != WEFT_E_NO_MEMORY && !pool) fail_msg("--device-mib %s: status %d, %s", mib, status, error);
      if (!pool) check_line(mib, error);
      n_refused += 1;
      continue;
    }
    bool away = strstr(weft_plan(rt), "  away ") != NULL;
    if (n_home > 0) assert_false(away); /* more room, and less found */
    n_away += away;
    n_home += !away;
    for (uint32_t i = 0; i < N && (away || n_home == 1); i++) {
      ask(rt, i, &got[i]);
      assert_int_equal(got[i].n, wanted[i].n);
      assert_memory_equal(got[i].tokens, wanted[i].tokens, wanted[i].n * sizeof(int32_t));
    }
    weft_close(rt);
  }
  print_message("device %u of %u: %u starts refused, %u with buffers elsewhere, %u with room enough\n", which + 1,
                n_devices, n_refused, n_away, n_home);
  assert_true(n_refused > 5 && n_away >= away_least && n_home > 0);
}

static void test_bounds(void **state) {
  answer wanted[N];
  weft_open_options options = small_runtime(models, 1);
  weft_runtime *rt;
  char error[512] = "";
  (void)state;
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  for (uint32_t i = 0; i < N; i++) ask(rt, i, &wanted[i]);
  weft_close(rt);
  grow_bound(NULL, 1, 0, 0.05, 4, 3, wanted);
  grow_bound("0,1", 2, 0, 0.05, 4, 0, wanted); /* of slots and head the first device has little */
  grow_bound("0,1", 2, 1, 0.05, 4, 3, wanted);
  grow_bound("0,1,2", 3, 2, 0.05, 4, 3, wanted);
}

int main(void) {
  weft_log_set_level((weft_log_level)-1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
