/* SPDX-License-Identifier: MIT */
/* assign: the experts of a row by scores of their own, by groups, and by a table of tokens. Every device against what
 * kernels/experts.h defines, and against ref. */
#include "tests/kernels/harness.h"

static float *new_floats(uint64_t n, uint64_t seed) {
  float *x = memory_new(n + 1, sizeof *x);
  fill_normal(x, n, seed);
  return x;
}

/* What does not exist is refused where it is seen; on a card it has ids of -1 and weights that are no numbers. */
static void check_no_expert(weft_device *device, const weft_assign_args *args) {
  weft_status status = done(device, weft_assign(device, args));
  assert_int_equal(status, is_cuda(device) ? WEFT_OK : WEFT_E_INVALID);
  if (is_cuda(device)) assert_true(args->ids[3] == -1 && isnan(args->weights[2]) && isnan(args->weights[3]));
}

static void check_assign(weft_device *device) {
  static const float logits_of[] = {1.0f, -2.0f, 30.0f, 0.5f, NAN, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  float *logits = memory_new(10, sizeof *logits), *bias = memory_new(5, sizeof *bias),
        *weights = memory_new(4, sizeof *weights);
  int32_t *table = memory_new(4, sizeof *table), *tokens = memory_new(2, sizeof *tokens),
          *ids = memory_new(4, sizeof *ids);
  memcpy(logits, logits_of, sizeof logits_of);
  memcpy(table, (const int32_t[]){3, 0, 1, 4}, 4 * sizeof *table);
  bias[1] = 9.0f, tokens[0] = 1;
  weft_assign_args args = {.logits = logits,
                           .bias = bias,
                           .ids = ids,
                           .weights = weights,
                           .n_rows = 2,
                           .n_experts = 5,
                           .k = 2,
                           .n_tokens = 2,
                           .logits_stride = 5,
                           .factor = 1.5f,
                           .scores = WEFT_SCORES_ROOT};
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  assert_int_equal(ids[0], 1); /* the bias chooses, and has no part in the weight */
  assert_int_equal(ids[1], 2);
  double a = sqrt(log1p(exp(-2.0))), b = sqrt(30.0 + log1p(exp(-30.0)));
  assert_true(fabs((double)weights[0] - 1.5 * a / (a + b)) < 1e-6 &&
              fabs((double)weights[1] - 1.5 * b / (a + b)) < 1e-6);
  assert_int_equal(ids[2], 1);
  assert_int_equal(ids[3], 0); /* of equal ones the first */
  args.scores = WEFT_SCORES_SIGMOID;
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  a = 1.0 / (1.0 + exp(2.0)), b = 1.0;
  assert_true(ids[0] == 1 && ids[1] == 2);
  assert_true(fabs((double)weights[0] - 1.5 * a / (a + b)) < 1e-6);
  args.as_scored = true;
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  assert_true(fabs((double)weights[0] - 1.5 * a) < 1e-6 && fabs((double)weights[1] - 1.5 * b) < 1e-6);
  args.scores = WEFT_SCORES_ROOT, args.as_scored = false;
  args.table = table, args.tokens = tokens, args.bias = NULL;
  logits[4] = 0.0f;
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  assert_true(ids[0] == 1 && ids[1] == 4 && ids[2] == 3 && ids[3] == 0);
  assert_true(fabs((double)(weights[2] + weights[3]) - 1.5) < 1e-6);
  tokens[1] = 2;
  check_no_expert(device, &args);
  tokens[1] = 0, table[1] = 5;
  check_no_expert(device, &args);
  void *const all[] = {logits, bias, weights, table, tokens, ids};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
}

/* Groups: the two best of six lie in the second, and in the last, whose sum of two is larger than that of the first,
 * which has the best of all. By the largest alone, as with softmax, the first is chosen too. */
static void check_groups(weft_device *device) {
  static const float logits_of[] = {3.0f, -9.0f, 1.0f, 1.5f, 2.0f, 0.0f};
  float *logits = memory_new(6, sizeof *logits), *weights = memory_new(2, sizeof *weights);
  int32_t *ids = memory_new(2, sizeof *ids);
  memcpy(logits, logits_of, sizeof logits_of);
  weft_assign_args args = {.logits = logits,
                           .ids = ids,
                           .weights = weights,
                           .n_rows = 1,
                           .n_experts = 6,
                           .k = 2,
                           .logits_stride = 6,
                           .factor = 1.0f,
                           .scores = WEFT_SCORES_SIGMOID,
                           .n_groups = 3,
                           .n_groups_used = 2};
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  assert_true(ids[0] == 4 && ids[1] == 3);
  args.scores = WEFT_SCORES_SOFTMAX;
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  assert_true(ids[0] == 0 && ids[1] == 4);
  args.n_groups_used = 1, args.as_scored = true;
  assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
  double total = 0.0;
  for (uint32_t i = 0; i < 6; i++) total += exp((double)logits_of[i]);
  assert_true(ids[0] == 0 && ids[1] == 1);
  assert_true(fabs((double)weights[0] - exp(3.0) / total) < 1e-6);
  memory_free(logits), memory_free(weights), memory_free(ids);
}

/* A score is a root of a logarithm, a quotient, or a sum over all and a quotient; it is below 3. Then a sum of k and a
 * quotient. */
static void test_assign(void **state) {
  enum { ROWS = 9, K_MAX = 9 };
  static const struct {
    uint32_t n, k, n_groups, n_used;
    weft_expert_scores scores;
    bool as_scored, has_bias;
  } cases[] = {{256, 6, 0, 0, WEFT_SCORES_ROOT, false, true},    {9, 9, 0, 0, WEFT_SCORES_ROOT, false, true},
               {600, 8, 0, 0, WEFT_SCORES_ROOT, false, true},    {128, 8, 0, 0, WEFT_SCORES_SIGMOID, false, true},
               {256, 8, 8, 4, WEFT_SCORES_SIGMOID, false, true}, {640, 8, 32, 5, WEFT_SCORES_SIGMOID, true, true},
               {64, 6, 0, 0, WEFT_SCORES_SOFTMAX, true, false},  {160, 6, 8, 3, WEFT_SCORES_SOFTMAX, true, false}};
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) check_assign(d == 0 ? all->ref : all->cpu[d - 1]);
  for (uint32_t d = 0; d <= all->n; d++) check_groups(d == 0 ? all->ref : all->cpu[d - 1]);
  for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const uint32_t n = cases[i].n, k = cases[i].k;
    float *logits = new_floats((uint64_t)ROWS * (n + 3), 60 + i), *bias = new_floats(n, 70 + i),
          *weights[2] = {new_floats(ROWS * K_MAX, 0), new_floats(ROWS * K_MAX, 0)};
    int32_t *ids[2] = {memory_new(ROWS * K_MAX, sizeof **ids), memory_new(ROWS * K_MAX, sizeof **ids)};
    for (uint32_t d = 0; d <= all->n; d++) {
      weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
      const weft_assign_args args = {.logits = logits,
                                     .bias = cases[i].has_bias ? bias : NULL,
                                     .ids = ids[d > 0],
                                     .weights = weights[d > 0],
                                     .n_rows = ROWS,
                                     .n_experts = n,
                                     .k = k,
                                     .logits_stride = n + 3,
                                     .factor = 1.5f,
                                     .scores = cases[i].scores,
                                     .as_scored = cases[i].as_scored,
                                     .n_groups = cases[i].n_groups,
                                     .n_groups_used = cases[i].n_used};
      assert_int_equal(done(device, weft_assign(device, &args)), WEFT_OK);
      if (d == 0) continue;
      assert_same("assign", all->name[d - 1], "the choice", ids[0], ids[1], (size_t)ROWS * k * sizeof **ids);
      assert_within("assign", all->name[d - 1], distance(weights[0], weights[1], ROWS, k, k), 16 * 0x1p-24 * 1.5);
    }
    void *const memory[] = {logits, bias, weights[0], weights[1], ids[0], ids[1]};
    for (size_t j = 0; j < sizeof memory / sizeof *memory; j++) memory_free(memory[j]);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_assign)};
  take_arguments(argc, argv);
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
