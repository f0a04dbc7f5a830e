/* SPDX-License-Identifier: MIT */
/* What step_arrays_old says of a batch's segments: positions that were stored before the step, so that a kernel may
 * read them before the kernels before it have ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/step_arrays.h"
#include "tests/support/fake_card.h"

enum { SEGMENTS = 129, BLOCK = 8, TABLE = 16 };

typedef struct world {
  fake_card *card;
  step_arrays arrays;
  weft_kv_layout layout;
  weft_batch batch;
  weft_segment segment[SEGMENTS];
  int32_t words[256];
  int64_t slot[256];
  uint32_t table[SEGMENTS * TABLE], table_at[SEGMENTS];
} world;

/* Every segment has pages of its own. */
static void open_world(world *w) {
  memset(w, 0, sizeof *w);
  static const weft_model_limits limits = {.rows_max = 256, .canvas_rows_max = 256, .segments_max = SEGMENTS};
  w->card = fake_card_open(false);
  assert_int_equal(step_arrays_open(&w->arrays, &w->card->base, &limits), WEFT_OK);
  assert_false(w->arrays.in_place);
  w->layout.n_groups = 1;
  w->layout.group[0].block_tokens = BLOCK;
  for (uint32_t i = 0; i < SEGMENTS * TABLE; i++) w->table[i] = i;
  for (uint32_t s = 0; s < SEGMENTS; s++) w->table_at[s] = s * TABLE;
  w->batch = (weft_batch){.n_groups = 1, .token = w->words, .position = w->words, .segment = w->segment};
  w->batch.kv_slot[0] = w->slot;
  w->batch.table = w->table;
  w->batch.table_at = w->table_at;
}

static void close_world(world *w) {
  step_arrays_close(&w->arrays);
  weft_device_close(&w->card->base);
}

static void add_segment(world *w, uint32_t kv_len, uint32_t n_rows, bool canvas) {
  w->segment[w->batch.n_segments++] = (weft_segment){.first_row = w->batch.n_rows, .n_rows = n_rows, .kv_len = kv_len};
  if (canvas) w->segment[w->batch.n_segments - 1].stores = WEFT_STORES_SCRATCH;
  w->batch.n_rows += n_rows;
}

/* Gives segment s the first n pages of another one. */
static void share_pages(world *w, uint32_t s, uint32_t other, uint32_t n) {
  memcpy(w->table + w->table_at[s], w->table + w->table_at[other], n * sizeof *w->table);
}

static void assert_old(world *w, uint32_t s, uint32_t want) {
  weft_forward_args args = {.batch = &w->batch, .token = w->words, .layout = &w->layout};
  assert_int_equal(step_arrays_fill(&w->arrays, &args, false), WEFT_OK);
  assert_int_equal(step_arrays_old(&w->arrays, s, 0), want);
}

/* Sequences that share pages of a prompt of earlier steps, and each store into a page of their own. */
static void test_decode(void **state) {
  (void)state;
  world w;
  open_world(&w);
  add_segment(&w, 40, 1, false);
  assert_old(&w, 0, 40); /* alone */
  add_segment(&w, 44, 1, false);
  share_pages(&w, 1, 0, 4);
  assert_old(&w, 0, 40);
  assert_old(&w, 1, 44);
  close_world(&w);
}

/* A canvas over a prompt whose rows are stored in the same step: only what comes before them is old. */
static void test_prompt_and_canvas(void **state) {
  (void)state;
  world w;
  open_world(&w);
  add_segment(&w, 20, 30, false);
  add_segment(&w, 50, 16, true);
  share_pages(&w, 1, 0, 7);
  assert_old(&w, 0, 20); /* a canvas stores nothing */
  assert_old(&w, 1, 20);
  share_pages(&w, 1, 2, 3); /* the pages of positions below 24 are its own: the first that both have begins there */
  assert_old(&w, 1, 24);
  close_world(&w);
}

/* As many sequences as are compared, each with all others, then one more. */
static void test_many(void **state) {
  (void)state;
  world w;
  open_world(&w);
  for (uint32_t s = 0; s + 1 < SEGMENTS; s++) add_segment(&w, 9, 1, false);
  share_pages(&w, SEGMENTS - 2, 0, 2); /* the first one stores into the second page */
  assert_old(&w, 3, 9);
  assert_old(&w, SEGMENTS - 2, 9);
  w.segment[SEGMENTS - 2].kv_len = 12;
  assert_old(&w, SEGMENTS - 2, 9);
  add_segment(&w, 9, 1, false);
  assert_old(&w, 3, 0);
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_decode), cmocka_unit_test(test_prompt_and_canvas),
                                     cmocka_unit_test(test_many)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
