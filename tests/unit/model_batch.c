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
                  {.slot = 2,
                   .first_row = 12,
                   .n_rows = 8,
                   .mask = WEFT_MASK_WHOLE,
                   .stores = WEFT_STORES_SCRATCH,
                   .pass = WEFT_PASS_DECODER}},
      .batch = {.n_rows = 20, .n_stored = 12, .n_encoder = 12, .n_segments = 4, .n_groups = 2},
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
  REFUSED(f.batch.n_encoder = 21);
  REFUSED(f.batch.n_stored = f.batch.n_encoder = 11); /* a causal segment among canvas rows */
  REFUSED(f.batch.n_stored = f.batch.n_encoder = 20); /* a canvas among causal rows */
  REFUSED(f.batch.n_stored = 20; f.batch.n_encoder = 12);
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

/* Any mask may store anywhere, in its place; the decoder pass is of whole canvases in scratch. */
static void test_kinds(void **state) {
  (void)state;
  fixture kinds = sound();
  kinds.segment[0].mask = WEFT_MASK_WHOLE; /* and stored */
  assert_true(is_sound(kinds));
  kinds = sound();
  kinds.segment[3].pass = WEFT_PASS_ENCODER;
  kinds.segment[3].n_rows = 5;
  kinds.batch.n_rows = kinds.batch.n_encoder = 17;
  assert_true(is_sound(kinds));
  kinds.segment[3].mask = WEFT_MASK_CAUSAL;
  assert_true(is_sound(kinds));
  kinds.segment[3].stores = WEFT_STORES_POOL;
  assert_false(is_sound(kinds));
  REFUSED(f.segment[3].mask = WEFT_MASK_CAUSAL);
  REFUSED(f.segment[3].stores = WEFT_STORES_POOL);
  REFUSED(f.segment[3].pass = WEFT_PASS_ENCODER); /* among rows of the decoder */
  REFUSED(f.segment[0].pass = WEFT_PASS_DECODER);
  REFUSED(f.segment[0].stores = WEFT_STORES_SCRATCH);
  REFUSED(f.segment[0].mask = 2);
  REFUSED(f.segment[3].stores = 2);
  REFUSED(f.segment[3].pass = 2);
}

/* A sound batch whose first segment, a prompt chunk of three rows, is asked for something. */
static fixture asked(weft_ask ask, uint32_t first, uint32_t n) {
  fixture f = sound();
  f.bounds.scored_rows_max = 3;
  f.bounds.draft_rows_max = 2;
  f.segment[0].ask = ask;
  f.segment[0].first_output = first;
  f.segment[0].n_outputs = n;
  return f;
}

#define UNSOUND(from, change)  \
  do {                         \
    fixture f = from;          \
    change;                    \
    assert_false(is_sound(f)); \
  } while (0)

/* Rows that are scored have a token of the host after them. */
static void test_scores(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 3; n++) assert_true(is_sound(asked(WEFT_ASK_SCORE, 0, n)));
  assert_true(is_sound(asked(WEFT_ASK_SCORE, 1, 2)));
  assert_true(is_sound(asked(WEFT_ASK_SCORE_THEN_SAMPLE, 1, 2)));
  assert_true(is_sound(asked(WEFT_ASK_SCORE_THEN_SAMPLE, 0, 3)));
  UNSOUND(asked(WEFT_ASK_SCORE, 0, 3), f.bounds.scored_rows_max = 2);
  UNSOUND(asked(WEFT_ASK_SCORE, 0, 3), f.segment[0].token_source = WEFT_TOKENS_ARGMAX);
  UNSOUND(asked(WEFT_ASK_SCORE, 0, 0), (void)f); /* whose outputs are none asks for nothing */
  UNSOUND(asked(WEFT_ASK_SCORE, 0, 4), (void)f);
  UNSOUND(asked(WEFT_ASK_SCORE, 1, 3), (void)f);
  UNSOUND(asked(WEFT_ASK_SCORE, UINT32_MAX, 2), (void)f);
  UNSOUND(asked(WEFT_ASK_SCORE_THEN_SAMPLE, 0, 2), (void)f); /* the last row is the one that draws */
  UNSOUND(asked(WEFT_ASK_SCORE_THEN_SAMPLE, 2, 1), (void)f);
}

/* Rows that draw are the last ones of a causal segment, and all but the first of them hold drafts of the host. */
static void test_runs(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 3; n++) assert_true(is_sound(asked(WEFT_ASK_SAMPLE, 3 - n, n)));
  UNSOUND(asked(WEFT_ASK_SAMPLE, 0, 2), (void)f);
  UNSOUND(asked(WEFT_ASK_SAMPLE, 0, 3), f.bounds.draft_rows_max = 1);
  UNSOUND(asked(WEFT_ASK_SAMPLE, 3, 1), (void)f);
  UNSOUND(asked(WEFT_ASK_CANVAS, 0, 3), (void)f);
  fixture commit = sound();
  commit.bounds.draft_rows_max = 8;
  commit.segment[2].n_outputs = 1;
  commit.segment[2].first_output = 7;
  assert_true(is_sound(commit));
  UNSOUND(commit, f.segment[2].first_output = 6; f.segment[2].n_outputs = 2); /* the host does not know its tokens */
}

/* A denoise step has an output for each row, or none. */
static void test_canvases(void **state) {
  (void)state;
  fixture canvas = sound();
  canvas.segment[3].ask = WEFT_ASK_CANVAS;
  canvas.segment[3].n_outputs = 8;
  assert_true(is_sound(canvas));
  UNSOUND(canvas, f.segment[3].n_outputs = 7);
  UNSOUND(canvas, f.segment[3].ask = WEFT_ASK_SAMPLE);
  UNSOUND(canvas, f.segment[3].ask = WEFT_ASK_SCORE);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds),  cmocka_unit_test(test_rows),
                                     cmocka_unit_test(test_sources), cmocka_unit_test(test_scores),
                                     cmocka_unit_test(test_runs),    cmocka_unit_test(test_kinds),
                                     cmocka_unit_test(test_canvases)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
