/* SPDX-License-Identifier: MIT */
/* What a runner refuses before it reads a batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/batch.h"

/* A prompt chunk, a decode row, a commit and a denoise step: sound. */
typedef struct fixture {
  weft_segment segment[4];
  weft_batch batch;
  weft_batch_bounds bounds;
} fixture;

static fixture sound(void) {
  fixture f = {
      .segment = {{.slot = 0, .first_row = 0, .n_rows = 3},
                  {.slot = 1, .first_row = 3, .n_rows = 1, .token_source = WEFT_TOKENS_SAMPLED},
                  {.slot = 2, .first_row = 4, .n_rows = 8, .token_source = WEFT_TOKENS_ARGMAX},
                  {.slot = 2, .first_row = 12, .n_rows = 8, .canvas = true}},
      .batch = {.n_rows = 20, .n_causal = 12, .n_segments = 4, .n_groups = 2},
      .bounds = {
          .rows_max = 20, .canvas_rows_max = 8, .segments_max = 4, .n_slots = 3, .n_groups = 2, .canvas_length = 8}};
  return f;
}

static bool is_sound(fixture f) {
  f.batch.segment = f.segment;
  return weft_batch_is_sound(&f.batch, &f.bounds);
}

#define REFUSED(change)        \
  do {                         \
    fixture f = sound();       \
    change;                    \
    assert_false(is_sound(f)); \
  } while (0)

static void test_bounds(void **state) {
  (void)state;
  assert_true(is_sound(sound()));
  fixture copies = {.bounds = sound().bounds, .batch = {.n_groups = 2}}; /* a batch may only bring copies */
  assert_true(is_sound(copies));
  REFUSED(f.bounds.rows_max = 19);
  REFUSED(f.bounds.canvas_rows_max = 7);
  REFUSED(f.bounds.segments_max = 3);
  REFUSED(f.bounds.n_slots = 2);
  REFUSED(f.bounds.n_groups = 3);
  REFUSED(f.bounds.canvas_length = 0);
  REFUSED(f.bounds.canvas_length = 7);
}

static void test_rows(void **state) {
  (void)state;
  REFUSED(f.batch.n_rows = 19);    /* the last segment leaves the rows */
  REFUSED(f.batch.n_segments = 3); /* rows of no segment */
  REFUSED(f.batch.n_causal = 21);
  REFUSED(f.batch.n_causal = 11); /* a causal segment among canvas rows */
  REFUSED(f.batch.n_causal = 20); /* a canvas among causal rows */
  REFUSED(f.segment[1].first_row = 4);
  REFUSED(f.segment[1].first_row = UINT32_MAX);
  REFUSED(f.segment[3].n_rows = UINT32_MAX);
  REFUSED(f.segment[0].n_rows = 0);
  REFUSED(f.segment[0].slot = UINT32_MAX);
}

static void test_sources(void **state) {
  (void)state;
  REFUSED(f.segment[0].token_source = WEFT_TOKENS_SAMPLED); /* a slot has one last token, not three */
  REFUSED(f.segment[0].token_source = WEFT_TOKENS_ARGMAX);  /* and a whole argmax canvas, not three rows of it */
}

/* Rows that are scored have a token of the host after them, and a segment says so in its output. */
static void test_scores(void **state) {
  (void)state;
  fixture scores = sound();
  scores.bounds.scored_rows_max = 3;
  scores.segment[0].output = WEFT_OUTPUT_SCORES;
  scores.segment[0].n_scored = 3;
  assert_true(is_sound(scores));
#define UNSOUND(change)        \
  do {                         \
    fixture f = scores;        \
    change;                    \
    assert_false(is_sound(f)); \
  } while (0)
  UNSOUND(f.bounds.scored_rows_max = 2);
  UNSOUND(f.segment[0].output = WEFT_OUTPUT_NONE);
  UNSOUND(f.segment[0].output = WEFT_OUTPUT_TOKEN); /* the last row is followed by what it samples */
  UNSOUND(f.segment[0].n_scored = 0);
  UNSOUND(f.segment[0].n_scored = 4);
  UNSOUND(f.segment[0].first_scored = 1);
  UNSOUND(f.segment[0].first_scored = UINT32_MAX);
  UNSOUND(f.segment[1].n_scored = 1); /* its token is not known yet */
  UNSOUND(f.segment[3].n_scored = 1);
  scores.segment[0].output = WEFT_OUTPUT_TOKEN;
  scores.segment[0].n_scored = 1;
  scores.segment[0].first_scored = 1;
  assert_true(is_sound(scores));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds), cmocka_unit_test(test_rows),
                                     cmocka_unit_test(test_sources), cmocka_unit_test(test_scores)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
