/* SPDX-License-Identifier: MIT */
/* Slices of stored tensors: of every type the numbers of a slice are those of the tensor at its places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "model/weights_slice.h"

enum { COLS = 1024, ROWS = 12, MATRICES = 3, N_OUT = 2 };

static void check_slice(weft_type type, const weights_slice *slice) {
  uint64_t row_bytes = weft_type_row_bytes(type, COLS), own_bytes = weft_type_row_bytes(type, slice->n_in);
  uint64_t n_rows = slice->n_out * slice->n_ranges;
  weft_gguf_tensor tensor = {.type = type, .ne = {COLS, ROWS, MATRICES, 1}, .n_bytes = row_bytes * ROWS * MATRICES};
  uint8_t *bytes = malloc(tensor.n_bytes), *own = malloc(own_bytes * n_rows * MATRICES);
  float whole[COLS], part[COLS];
  assert_true(bytes != NULL && own != NULL);
  for (uint64_t i = 0; i < tensor.n_bytes; i++) bytes[i] = (uint8_t)weft_mix64(i);
  weights_slice_copy(&tensor, slice, bytes, own);
  for (uint64_t r = 0; r < n_rows * MATRICES; r++) {
    uint64_t in_matrix = r % n_rows, range = in_matrix / slice->n_out;
    uint64_t from = r / n_rows * ROWS + slice->first_out[range] + in_matrix % slice->n_out;
    weft_dequantise_row(type, bytes + from * row_bytes, whole, COLS);
    weft_dequantise_row(type, own + r * own_bytes, part, slice->n_in);
    assert_memory_equal(part, whole + slice->first_in, slice->n_in * sizeof *part);
  }
  free(own);
  free(bytes);
}

static void test_every_type(void **state) {
  static const weights_slice slices[] = {
      {.n_in = COLS, .first_out = {4}, .n_out = N_OUT, .n_ranges = 1},                /* rows */
      {.first_in = 512, .n_in = 512, .n_out = ROWS, .n_ranges = 1},                   /* columns */
      {.first_in = 256, .n_in = 256, .first_out = {2, 8}, .n_out = 2, .n_ranges = 2}, /* both, and two ranges */
  };
  uint32_t n_types = 0;
  (void)state;
  for (int32_t id = 0; id < 64; id++) {
    const weft_type_info *type = weft_type_find(id);
    if (type == NULL) continue;
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) check_slice((weft_type)id, &slices[i]);
    n_types += 1;
  }
  assert_true(n_types >= 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_type)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
