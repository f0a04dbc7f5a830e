/* SPDX-License-Identifier: MIT */
/* Files whose numbers are broken in one place: tensor, matrix and row are named, and a sound file has no finding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/gguf/numbers.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refuse_each.h"

enum { COLUMNS = 64, ROWS = 12, EXPERTS = 3 };

typedef struct findings {
  weft_numbers_finding item[8];
  char tensor[8][64];
  uint32_t n;
} findings;

static void take(void *self, const weft_numbers_finding *finding) {
  findings *f = self;
  assert_true(f->n < 8);
  (void)snprintf(f->tensor[f->n], sizeof f->tensor[0], "%s", finding->tensor);
  f->item[f->n++] = *finding;
}

static findings look(weft_bytes file, const char *path, weft_numbers_report *report) {
  findings f = {.n = 0};
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_status status = path != NULL ? weft_gguf_open(path, &gguf, &error)
                                    : weft_gguf_open_memory(file.data, file.n, "x.gguf", &gguf, &error);
  if (status != WEFT_OK) fail_msg("%s", error.text);
  weft_numbers_args args = {.gguf = gguf, .take = take, .self = &f};
  if (weft_numbers(&args, report, &error) != WEFT_OK) fail_msg("%s", error.text);
  weft_gguf_close(gguf);
  return f;
}

/* A tensor of 1, 2, 3 ... with the rows from first on set to a value. */
typedef struct tensor {
  const char *name;
  weft_type type;
  uint32_t n_dims, first, n_broken;
  float value;
} tensor;

static void add(gguf_writer *w, tensor t) {
  const uint64_t ne[] = {COLUMNS, ROWS, EXPERTS};
  uint32_t n_rows = t.n_dims == 1 ? 1 : t.n_dims == 2 ? ROWS : ROWS * EXPERTS;
  float values[COLUMNS * ROWS * EXPERTS];
  uint8_t stored[sizeof values];
  for (uint32_t i = 0; i < COLUMNS * n_rows; i++) {
    uint32_t row = i / COLUMNS;
    bool broken = row >= t.first && row < t.first + t.n_broken;
    values[i] = !broken ? (float)(i % 17) + 1.0f : t.value;
    if (broken && isnan(t.value) && i % COLUMNS != 33) values[i] = 1.0f; /* one element is enough */
  }
  assert_int_equal(weft_quantise_row(t.type, values, stored, (uint64_t)COLUMNS * n_rows), WEFT_OK);
  gguf_writer_tensor(w, t.name, (int32_t)t.type, t.n_dims, ne, stored,
                     weft_type_row_bytes(t.type, (uint64_t)COLUMNS * n_rows));
}

static findings look_at(tensor t, weft_numbers_report *report) {
  gguf_writer w = {0};
  add(&w, (tensor){"blk.0.attn_q.weight", WEFT_TYPE_Q8_0, 2, 0, 0, 0});
  add(&w, t);
  findings f = look(gguf_writer_finish(&w), NULL, report);
  gguf_writer_close(&w);
  assert_int_equal(report->n_tensors, 2);
  return f;
}

static void found(tensor t, weft_numbers_fault fault, uint64_t n_rows, uint64_t matrix, uint64_t row) {
  weft_numbers_report report;
  findings f = look_at(t, &report);
  if (f.n != 1) fail_msg("%s: %u findings", t.name, f.n);
  assert_int_equal(report.n_broken, 1);
  assert_string_equal(f.tensor[0], t.name);
  assert_int_equal(f.item[0].fault, fault);
  assert_int_equal(f.item[0].n_rows, n_rows);
  assert_int_equal(f.item[0].matrix, matrix);
  assert_int_equal(f.item[0].row, row);
}

static void sound(tensor t) {
  weft_numbers_report report;
  findings f = look_at(t, &report);
  if (f.n != 0) fail_msg("%s: row %d is %s", t.name, (int)f.item[0].row, weft_numbers_fault_text(f.item[0].fault));
  assert_int_equal(report.n_broken, 0);
}

static void test_not_finite(void **state) {
  (void)state;
  found((tensor){"blk.1.attn_k.weight", WEFT_TYPE_F32, 2, 5, 2, NAN}, WEFT_NUMBERS_NOT_FINITE, 2, 0, 5);
  found((tensor){"blk.1.attn_k.weight", WEFT_TYPE_F16, 2, 11, 1, INFINITY}, WEFT_NUMBERS_NOT_FINITE, 1, 0, 11);
  found((tensor){"blk.1.ffn_up_exps.weight", WEFT_TYPE_BF16, 3, 2 * ROWS + 3, 1, NAN}, WEFT_NUMBERS_NOT_FINITE, 1, 2,
        3);
  found((tensor){"blk.1.ffn_norm.weight", WEFT_TYPE_F32, 1, 0, 1, NAN}, WEFT_NUMBERS_NOT_FINITE, 1, 0, 0);
}

/* The scale of one block becomes infinite, and NaN. */
static void test_scales(void **state) {
  (void)state;
  static const uint16_t scales[] = {0x7C00, 0xFC00, 0x7E01};
  static const struct {
    weft_type type;
    uint32_t at, n_bytes; /* of the scale; of a row of 256 */
  } types[] = {{WEFT_TYPE_Q4_0, 0, 144},   {WEFT_TYPE_Q8_0, 0, 272},   {WEFT_TYPE_Q4_K, 2, 144},
               {WEFT_TYPE_Q6_K, 208, 210}, {WEFT_TYPE_IQ2_XXS, 0, 66}, {WEFT_TYPE_Q2_K, 80, 84}};
  for (uint32_t i = 0; i < 6; i++) {
    for (uint32_t k = 0; k < 3; k++) {
      const uint64_t ne[] = {256, 3};
      uint8_t rows[3 * 272];
      gguf_writer w = {0};
      weft_numbers_report report;
      memset(rows, 0x31, sizeof rows);
      memcpy(rows + types[i].n_bytes + types[i].at, &scales[k], 2);
      gguf_writer_tensor(&w, "blk.0.ffn_up.weight", (int32_t)types[i].type, 2, ne, rows, (size_t)3 * types[i].n_bytes);
      findings f = look(gguf_writer_finish(&w), NULL, &report);
      gguf_writer_close(&w);
      assert_int_equal(f.n, 1);
      assert_int_equal(f.item[0].fault, WEFT_NUMBERS_NOT_FINITE);
      assert_int_equal(f.item[0].row, 1);
      assert_int_equal(f.item[0].n_rows, 1);
    }
  }
}

static void test_zeros(void **state) {
  (void)state;
  found((tensor){"blk.1.ffn_down.weight", WEFT_TYPE_Q4_0, 2, 4, 3, 0}, WEFT_NUMBERS_ZERO, 3, 0, 4);
  found((tensor){"blk.1.ffn_up_exps.weight", WEFT_TYPE_F32, 3, ROWS, ROWS, 0}, WEFT_NUMBERS_ZERO, ROWS, 1, 0);
  found((tensor){"blk.1.attn_norm.weight", WEFT_TYPE_F32, 1, 0, 1, 0}, WEFT_NUMBERS_ZERO, 1, 0, 0);
  found((tensor){"token_embd.weight", WEFT_TYPE_F32, 2, 5, 7, 0}, WEFT_NUMBERS_ZERO, 7, 0, 5);
  sound((tensor){"token_embd.weight", WEFT_TYPE_F32, 2, 6, 6, 0}); /* tokens that no text has */
  sound((tensor){"blk.1.attn_q.bias", WEFT_TYPE_F32, 1, 0, 1, 0});
}

static void test_routers(void **state) {
  (void)state;
  found((tensor){"blk.1.ffn_gate_inp.weight", WEFT_TYPE_F32, 2, 0, ROWS, 0.25f}, WEFT_NUMBERS_CONSTANT_ROUTER, ROWS, 0,
        0);
  sound((tensor){"blk.1.ffn_gate_inp.weight", WEFT_TYPE_F32, 2, 1, ROWS - 1, 0.25f});
  sound((tensor){"blk.1.ffn_gate.weight", WEFT_TYPE_F32, 2, 0, ROWS, 0.25f}); /* odd, and no router */
}

/* A tensor of many reads, from a file, and one of a type that is not computed. */
static void test_files(void **state) {
  (void)state;
  enum { WIDE = 1024, TALL = 3000 };
  const uint64_t ne[] = {WIDE, TALL}, few[] = {8};
  char path[] = "/tmp/weft-numbers-XXXXXX";
  gguf_writer w = {0};
  weft_numbers_report report;
  float *values = malloc(sizeof *values * WIDE * TALL);
  assert_non_null(values);
  for (uint32_t i = 0; i < WIDE * TALL; i++) values[i] = (float)(i % 31 + 1);
  values[WIDE * (TALL - 1) + 7] = -INFINITY;
  gguf_writer_tensor(&w, "blk.0.ids", 26, 1, few, values, 32);
  gguf_writer_tensor(&w, "blk.0.ffn_up.weight", WEFT_TYPE_F32, 2, ne, values, sizeof *values * WIDE * TALL);
  weft_bytes bytes = gguf_writer_finish(&w);
  int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, bytes.data, bytes.n), bytes.n);
  assert_int_equal(close(file), 0);
  findings f = look(bytes, path, &report);
  assert_int_equal(f.n, 1);
  assert_int_equal(f.item[0].row, TALL - 1);
  assert_true(report.n_tensors == 1 && report.n_skipped == 1 && report.n_broken == 1);
  assert_int_equal(unlink(path), 0);
  gguf_writer_close(&w);
  free(values);
}

static weft_status look_through(void *self, weft_error *error) {
  findings f = {.n = 0};
  weft_numbers_report report;
  weft_numbers_args args = {.gguf = self, .take = take, .self = &f};
  return weft_numbers(&args, &report, error);
}

static void test_memory_refused(void **state) {
  (void)state;
  gguf_writer w = {0};
  weft_gguf *gguf;
  add(&w, (tensor){"blk.0.attn_q.weight", WEFT_TYPE_Q8_0, 2, 0, 0, 0});
  weft_bytes file = gguf_writer_finish(&w);
  assert_int_equal(weft_gguf_open_memory(file.data, file.n, "x.gguf", &gguf, NULL), WEFT_OK);
  (void)refuse_each(look_through, gguf, true);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_not_finite), cmocka_unit_test(test_scales), cmocka_unit_test(test_zeros),
      cmocka_unit_test(test_routers),    cmocka_unit_test(test_files),  cmocka_unit_test(test_memory_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
