/* SPDX-License-Identifier: MIT */
/* What a forward pass refuses, what poisoned weights do, and what the facts of a model are. Logits
 * are judged in tests/golden. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device_internal.h"
#include "tests/support/gguf_requantise.h"
#include "tests/support/model_harness.h"

enum { ROWS = 12 };

typedef struct fixture {
  harness h;
  weft_batch batch;
  weft_segment segment[2];
  int32_t token[ROWS], position[ROWS];
  int64_t slot[ROWS];
  uint32_t table[4], table_at[2 * WEFT_GROUPS_MAX];
  const float *soft[2];
  uint32_t output_row[ROWS];
  weft_forward_args args;
} fixture;

/* Four causal rows and one canvas of eight on a diffusion model: sound. */
static void open_fixture(fixture *f, const char *name) {
  harness_options options = {.backend = "ref", .n_threads = 1, .rows_max = ROWS, .n_pages = 8};
  memset(f, 0, sizeof *f);
  harness_open(&f->h, harness_tiny(name), &options);
  f->segment[0] = (weft_segment){.first_row = 0, .n_rows = 4};
  f->segment[1] = (weft_segment){.first_row = 4,
                                 .n_rows = 8,
                                 .kv_len = 4,
                                 .mask = WEFT_MASK_WHOLE,
                                 .stores = WEFT_STORES_SCRATCH,
                                 .pass = WEFT_PASS_DECODER};
  for (uint32_t i = 0; i < ROWS; i++) {
    f->position[i] = (int32_t)i;
    f->slot[i] = i < 4 ? (int64_t)i : -1;
    f->output_row[i] = i;
  }
  f->batch = (weft_batch){.n_rows = 12,
                          .n_stored = 4,
                          .n_encoder = 4,
                          .n_segments = 2,
                          .n_groups = f->h.layout.n_groups,
                          .token = f->token,
                          .position = f->position,
                          .segment = f->segment,
                          .table = f->table,
                          .table_at = f->table_at};
  for (uint32_t g = 0; g < f->batch.n_groups; g++) f->batch.kv_slot[g] = f->slot;
  f->args = (weft_forward_args){.batch = &f->batch,
                                .token = f->token,
                                .kv = f->h.kv,
                                .layout = &f->h.layout,
                                .soft = f->soft,
                                .output_row = f->output_row,
                                .n_output = ROWS,
                                .hidden = f->h.hidden};
}

static weft_status run(fixture *f) {
  return weft_model_forward(f->h.model, &f->args);
}

static void test_sound(void **state) {
  (void)state;
  fixture f;
  open_fixture(&f, "dg-base");
  assert_int_equal(run(&f), WEFT_OK);
  f.args.n_output = 0;
  assert_int_equal(run(&f), WEFT_OK);
  f.batch.n_rows = f.batch.n_stored = f.batch.n_encoder = f.batch.n_segments = 0; /* an empty step */
  assert_int_equal(run(&f), WEFT_OK);
  harness_close(&f.h);
}

static void test_refused(void **state) {
  (void)state;
  fixture f;
  open_fixture(&f, "dg-base");
  f.batch.n_rows = 13;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_rows = 11; /* the canvas leaves the rows */
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_rows = 12;
  f.batch.n_stored = f.batch.n_encoder = 13;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_stored = f.batch.n_encoder = 3; /* a causal segment among canvas rows */
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_stored = f.batch.n_encoder = 12;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_stored = f.batch.n_encoder = 4;
  f.batch.n_groups += 1;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_groups -= 1;
  f.segment[1].first_row = 5; /* a row of nobody */
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.segment[1].first_row = 4;
  f.segment[0].n_rows = 0;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.segment[0].n_rows = 4;
  f.output_row[3] = 5; /* a canvas row before a causal one */
  f.output_row[4] = 3;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.output_row[3] = 3;
  f.output_row[4] = 4;
  f.args.n_output = ROWS + 1;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.args.n_output = ROWS;
  f.output_row[11] = 12;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.output_row[11] = 11;
  f.batch.n_segments = ROWS + 1;
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_segments = 2;
  assert_int_equal(run(&f), WEFT_OK);
  harness_close(&f.h);
}

/* Any subset of rows in any order (causal ones first) gives these rows' hidden states, bit for bit. */
static void test_output_orders(void **state) {
  (void)state;
  static const uint32_t orders[][ROWS] = {{3, 1, 2, 0, 11, 4, 10, 5, 9, 6, 8, 7}, {2}, {0, 3, 7}, {11, 4}, {3, 2, 5}};
  static const uint32_t counts[] = {12, 1, 3, 2, 3};
  fixture f;
  float wanted[ROWS * 32];
  open_fixture(&f, "dg-base");
  for (uint32_t i = 0; i < ROWS; i++) f.token[i] = (int32_t)(7 * i + 3);
  assert_int_equal(run(&f), WEFT_OK);
  memcpy(wanted, f.h.hidden, sizeof wanted);
  for (uint32_t k = 0; k < sizeof counts / sizeof *counts; k++) {
    memcpy(f.output_row, orders[k], sizeof f.output_row);
    f.args.n_output = counts[k];
    memset(f.h.hidden, 0xFF, sizeof wanted);
    assert_int_equal(run(&f), WEFT_OK);
    for (uint32_t i = 0; i < counts[k]; i++) {
      assert_memory_equal(f.h.hidden + 32 * i, wanted + 32 * orders[k][i], 32 * sizeof(float));
    }
  }
  harness_close(&f.h);
}

static void test_no_canvas_without_diffusion(void **state) {
  (void)state;
  fixture f;
  open_fixture(&f, "ar-base");
  assert_int_equal(run(&f), WEFT_E_INVALID);
  f.batch.n_segments = 1;
  f.batch.n_rows = 4;
  f.args.n_output = 4;
  assert_int_equal(run(&f), WEFT_OK);
  harness_close(&f.h);
}

/* A step of rows that cannot be looked up is refused by the op, not read from anywhere. */
static void test_bad_token(void **state) {
  (void)state;
  fixture f;
  open_fixture(&f, "dg-base");
  f.token[2] = 128;
  assert_int_not_equal(run(&f), WEFT_OK);
  f.token[2] = -1;
  assert_int_not_equal(run(&f), WEFT_OK);
  harness_close(&f.h);
}

/* One poisoned weight: the rows say so, the process lives, a file without it is unharmed. */
static void test_nan_weights(void **state) {
  (void)state;
  weft_gguf *from = harness_gguf(harness_tiny("ar-base")), *gguf;
  gguf_writer w = {0};
  harness h;
  harness_seq seq;
  static const int32_t tokens[3] = {1, 2, 3};
  harness_options options = {.backend = "ref", .n_threads = 1, .rows_max = ROWS, .n_pages = 8};
  requantise(from, WEFT_TYPE_F32, &w);
  weft_bytes file = gguf_writer_finish(&w);
  weft_gguf_close(from);
  assert_int_equal(weft_gguf_open_memory(file.data, file.n, "nan.gguf", &gguf, NULL), WEFT_OK);
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(gguf, "blk.1.ffn_down.weight");
  const float nan = __builtin_nanf("");
  memcpy(w.file.bytes + ((const char *)tensor->data - w.file.bytes), &nan, sizeof nan);
  harness_open_gguf(&h, gguf, "nan.gguf", &options);
  harness_seq_open(&seq);
  float *logits = harness_alloc(3 * h.info->n_vocab, sizeof *logits);
  harness_piece piece = {.seq = &seq, .tokens = tokens, .n = 3, .output = OUT_ALL, .logits = logits};
  harness_run(&h, &piece, 1);
  for (int i = 0; i < 3; i++) assert_int_equal(h.bad[i], 1);
  free(logits);
  harness_seq_close(&seq);
  harness_close(&h);
  gguf_writer_close(&w);
}

static void test_info(void **state) {
  (void)state;
  fixture f;
  open_fixture(&f, "dg-base");
  const weft_model_info *info = f.h.info;
  float cap, scale;
  const weft_weight *head = weft_model_head(f.h.model, &cap, &scale);
  assert_string_equal(info->arch, "diffusion-gemma");
  assert_true(info->n_layers == 4 && info->n_hidden == 32 && info->n_vocab == 128 && info->canvas_length == 8);
  assert_true(info->n_experts == 4 && info->n_experts_used == 2 && info->context_length == 1024);
  assert_true(info->kv.set[0].window == 8 && info->kv.set[1].window == 0 && info->kv.set[1].rows.head_dim == 32);
  assert_true(info->weight_bytes > 300000 && info->scratch_bytes > 0);
  assert_true(cap == 30.0f && scale == sqrtf(32.0f) && head->n_out == 128 && head->n_in == 32);
  assert_true(info->fingerprint_low != 0 && info->fingerprint_high != 0);
  harness_close(&f.h);
}

/* ---- the scratch that is planned at open ---- */

static weft_kernels watched_kernels;
static uint64_t (*scratch_of)(weft_device *device, const weft_attention_args *args);
static uint32_t n_planned, n_chosen;

static uint64_t note_scratch(weft_device *device, const weft_attention_args *args) {
  n_planned += args->segment == NULL;
  n_chosen += args->segment == NULL && args->scale > 0.0f && args->kv.type == WEFT_TYPE_F32 && args->n_heads > 0;
  return scratch_of(device, args);
}

static void watch_scratch(void *self, weft_device *device) {
  (void)self;
  watched_kernels = *device->kernels;
  scratch_of = watched_kernels.attention_scratch;
  watched_kernels.attention_scratch = note_scratch;
  device->kernels = &watched_kernels;
}

/* A backend chooses its kernels, and so its scratch, by the arguments that steps will have: the plan of a step gives it
 * all of them but the rows. */
static void test_planned_attention(void **state) {
  (void)state;
  fixture f;
  weft_device_on_open(watch_scratch, NULL);
  open_fixture(&f, "dg-base");
  weft_device_on_open(NULL, NULL);
  assert_int_equal(n_planned, f.h.info->n_layers);
  assert_int_equal(n_chosen, n_planned);
  harness_close(&f.h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sound),         cmocka_unit_test(test_refused),
      cmocka_unit_test(test_output_orders), cmocka_unit_test(test_no_canvas_without_diffusion),
      cmocka_unit_test(test_bad_token),     cmocka_unit_test(test_nan_weights),
      cmocka_unit_test(test_info),          cmocka_unit_test(test_planned_attention),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
