/* SPDX-License-Identifier: MIT */
/* Every allocation of `weft perplexity` refused once: windows of a text, scores with rows that are saved or compared,
 * canvases under noise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/quality/scores.h"
#include "tests/support/refuse_each.h"
#include "tests/support/tiny_model.h"

static const weft_model_limits limits = {.rows_max = 24, .canvas_rows_max = 24, .segments_max = 8};
static const char text[] = "the model is on a mode of use and in an order there";

typedef struct world {
  tiny_model tiny;
  weft_tokenizer *tokenizer;
  uint32_t n_levels;
  const char *save, *against;
} world;

static void world_open(world *w) {
  weft_error error = {{0}};
  memset(w, 0, sizeof *w);
  tiny_model_open(&w->tiny, &limits);
  assert_int_equal(weft_tokenizer_open(w->tiny.gguf, &w->tokenizer, &error), WEFT_OK);
}

static void world_close(world *w) {
  weft_tokenizer_close(w->tokenizer);
  tiny_model_close(&w->tiny);
}

static weft_status score(void *self, weft_error *error) {
  world *w = self;
  static const float level[2] = {0.5f, 1.0f};
  const weft_windows_config config = {.context = 12};
  weft_windows windows;
  weft_saved_file *save = NULL, *against = NULL;
  weft_scores scores = {.n_series = 0};
  weft_status status = weft_windows_open(w->tokenizer, &config, "text", text, sizeof text - 1, &windows, error);
  if (status != WEFT_OK) return status;
  weft_saved_header header = {.n_vocab = 128, .context = 12, .n_windows = windows.n, .n_levels = w->n_levels};
  header.rows_per_window = weft_scores_per_window(&config, level, w->n_levels, 8);
  if (w->save != NULL) status = weft_saved_create(w->save, &header, &save, error);
  if (status == WEFT_OK && w->against != NULL) status = weft_saved_open(w->against, &header, &against, error);
  weft_scores_args args = {.device = w->tiny.device,
                           .model = w->tiny.model,
                           .limits = limits,
                           .windows = &windows,
                           .level = level,
                           .n_levels = w->n_levels,
                           .n_threads = 1,
                           .save = save,
                           .against = against};
  if (status == WEFT_OK) status = weft_scores_run(&args, &scores, error);
  assert_int_equal(weft_saved_close(save, NULL), WEFT_OK);
  assert_int_equal(weft_saved_close(against, NULL), WEFT_OK);
  weft_scores_free(&scores);
  weft_windows_close(&windows);
  return status;
}

static void test_scores(void **state) {
  (void)state;
  char path[] = "/tmp/weft-saved-XXXXXX";
  world w;
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
  world_open(&w);
  for (w.n_levels = 0; w.n_levels <= 2; w.n_levels += 2) {
    w.save = path;
    w.against = NULL;
    uint64_t saving = refuse_each(score, &w, true); /* its last run is whole: the file is too */
    w.save = NULL;
    w.against = path;
    print_message("%u levels: %llu refused, and %llu\n", w.n_levels, (unsigned long long)saving,
                  (unsigned long long)refuse_each(score, &w, true));
  }
  world_close(&w);
  (void)unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
