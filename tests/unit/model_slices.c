/* SPDX-License-Identifier: MIT */
/* Slices of tensors: those of all shards, one after another, are the tensor's bytes, of every type; what a shard has
 * whole, and where a dimension cannot be shared out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/gguf/gguf_internal.h"
#include "model/weights_slice.h"

enum { COLS = 1024, ROWS = 12, MATRICES = 7, DENSE = 0, MOE = 1 /* layers */ };

static weft_model model;
static weft_error error;
static char path[] = "a file";
static gguf_part part = {.path = path};
static weft_gguf gguf = {.parts = &part};
static weights_loader loader = {.gguf = &gguf, .model = &model, .error = &error};
static const uint8_t bytes[1];

static weights_slice slice_of(const weft_gguf_tensor *tensor, const tensor_row *row, uint32_t layer, uint32_t shard) {
  weights_slice slice;
  model.shard = shard;
  assert_int_equal(weights_slice_of(&loader, tensor, row, layer, &slice), WEFT_OK);
  return slice;
}

static weft_gguf_tensor tensor_of(weft_type type, uint64_t n_rows, uint64_t n_matrices) {
  return (weft_gguf_tensor){.name = "a tensor",
                            .type = type,
                            .ne = {COLS, n_rows, n_matrices, 1},
                            .n_bytes = weft_type_row_bytes(type, COLS) * n_rows * n_matrices,
                            .data = bytes};
}

/* Slices follow one another without a gap, as even as can be, and have shapes that fit their bytes. */
static void check_cut(const weft_gguf_tensor *tensor, const tensor_row *row, uint32_t layer) {
  uint64_t row_bytes = weft_type_row_bytes(tensor->type, COLS),
           n_units = row->dim[2] != 0 ? tensor->ne[2] : tensor->ne[1];
  const uint8_t *next = tensor->data;
  for (uint32_t i = 0; i < model.n_shards; i++) {
    weights_slice slice = slice_of(tensor, row, layer, i);
    const weft_gguf_tensor *own = &slice.matrix;
    uint64_t n_own = row->dim[2] != 0 ? own->ne[2] : own->ne[1];
    assert_ptr_equal(own->data, next);
    assert_int_equal(own->ne[0], COLS);
    assert_int_equal(own->n_bytes, own->ne[1] * own->ne[2] * row_bytes);
    assert_true(n_own == n_units / model.n_shards || n_own == n_units / model.n_shards + 1);
    next += own->n_bytes;
  }
  assert_ptr_equal(next, (const uint8_t *)tensor->data + tensor->n_bytes);
}

static void check_whole(const weft_gguf_tensor *tensor, const tensor_row *row, uint32_t layer) {
  for (uint32_t i = 0; i < model.n_shards; i++) {
    weights_slice slice = slice_of(tensor, row, layer, i);
    assert_memory_equal(&slice.matrix, tensor, sizeof *tensor);
  }
}

static const tensor_row q = {.kind = TENSOR_HEADS_MATRIX, .dim = {DIM_HIDDEN, DIM_Q}};
static const tensor_row o = {.kind = TENSOR_MATRIX, .dim = {DIM_Q, DIM_HIDDEN}};
static const tensor_row gate = {.kind = TENSOR_MATRIX, .dim = {DIM_HIDDEN, DIM_FF}};
static const tensor_row down = {.kind = TENSOR_MATRIX, .dim = {DIM_FF, DIM_DOWN}};
static const tensor_row router = {.kind = TENSOR_MATRIX, .dim = {DIM_HIDDEN, DIM_EXPERTS}};
static const tensor_row experts = {.kind = TENSOR_MATRIX, .dim = {DIM_HIDDEN, DIM_EXPERT_FF_TWICE, DIM_EXPERTS}};

static void test_every_type(void **state) {
  uint32_t n_types = 0;
  (void)state;
  for (int32_t id = 0; id < 64; id++) {
    if (weft_type_find(id) == NULL) continue;
    weft_gguf_tensor one = tensor_of((weft_type)id, ROWS, 1), stack = tensor_of((weft_type)id, 5, MATRICES);
    for (model.n_shards = 2; model.n_shards <= 4; model.n_shards++) {
      check_cut(&one, &q, MOE);
      check_cut(&one, &gate, DENSE);
      check_cut(&one, &down, DENSE);
      check_cut(&stack, &experts, MOE);
      check_whole(&one, &gate, MOE);
      check_whole(&one, &down, MOE);
      check_whole(&one, &o, DENSE);
      check_whole(&one, &router, MOE);
      check_whole(&one, &gate, UINT32_MAX);
    }
    model.n_shards = 1;
    check_whole(&one, &q, DENSE);
    n_types += 1;
  }
  assert_true(n_types >= 20);
}

static void test_vectors(void **state) {
  static const tensor_row bias = {.kind = TENSOR_HEADS_VECTOR, .dim = {DIM_Q}};
  static const tensor_row norm = {.kind = TENSOR_VECTOR, .dim = {DIM_HIDDEN}};
  static const tensor_row scale = {.kind = TENSOR_SCALE, .dim = {DIM_EXPERTS}};
  static const tensor_row factor = {.kind = TENSOR_VECTOR, .dim = {DIM_EXPERTS}}; /* of the router's choice */
  weft_gguf_tensor tensor = {.name = "a vector", .type = WEFT_TYPE_F32, .ne = {MATRICES, 1, 1, 1}, .data = bytes};
  weft_gguf_tensor heads = tensor;
  heads.ne[0] = ROWS;
  (void)state;
  model.n_shards = 2;
  for (uint32_t i = 0; i < 2; i++) {
    weights_slice slice = slice_of(&heads, &bias, DENSE, i);
    assert_true(slice.first == i * ROWS / 2 && slice.n == ROWS / 2);
    slice = slice_of(&tensor, &scale, MOE, i);
    assert_true(slice.first == i * 3 && slice.n == 3 + i);
    slice = slice_of(&tensor, &norm, MOE, i);
    assert_true(slice.first == 0 && slice.n == MATRICES);
    slice = slice_of(&tensor, &factor, MOE, i);
    assert_true(slice.first == 0 && slice.n == MATRICES);
  }
}

/* Two key heads on four devices. */
static void test_few_key_heads(void **state) {
  static const tensor_row k = {.kind = TENSOR_HEADS_MATRIX, .dim = {DIM_HIDDEN, DIM_KV}};
  static const tensor_row bias = {.kind = TENSOR_HEADS_VECTOR, .dim = {DIM_KV}};
  weft_gguf_tensor tensor = tensor_of(WEFT_TYPE_Q4_K, ROWS, 1);
  weft_gguf_tensor vector = {.name = "a vector", .type = WEFT_TYPE_F32, .ne = {ROWS, 1, 1, 1}, .data = bytes};
  (void)state;
  model.n_shards = 4;
  for (uint32_t i = 0; i < 4; i++) {
    weights_slice slice = slice_of(&tensor, &k, DENSE, i);
    const uint8_t *first = (const uint8_t *)tensor.data + (i / 2) * tensor.n_bytes / 2;
    assert_true(slice.matrix.data == first && slice.matrix.ne[1] == ROWS / 2);
    slice = slice_of(&vector, &bias, DENSE, i);
    assert_true(slice.first == i / 2 * ROWS / 2 && slice.n == ROWS / 2);
  }
}

static void test_uneven(void **state) {
  weft_gguf_tensor tensor = tensor_of(WEFT_TYPE_Q4_K, 7, 1);
  weights_slice slice;
  (void)state;
  model.n_shards = 2;
  assert_int_equal(weights_slice_of(&loader, &tensor, &gate, DENSE, &slice), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "tensor 'a tensor': 7 rows cannot be shared out evenly to 2 devices"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_type), cmocka_unit_test(test_vectors),
                                     cmocka_unit_test(test_few_key_heads), cmocka_unit_test(test_uneven)};
  model.hyper.moe[MOE] = true;
  model.hyper.n_experts = MATRICES;
  model.hyper.n_kv_shares[DENSE] = 2;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
