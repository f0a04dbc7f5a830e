/* SPDX-License-Identifier: MIT */
/* classes on every device that has it: ref against sums written down here, the others against ref, bit for bit. */
#include <math.h>

#include "tests/kernels/harness.h"

enum { VOCAB = 700, ROWS = 9, STRIDE = 712, CLASSES = 40 };

typedef struct input {
  float *logits, *temperature;
  int32_t *token;
  uint32_t *at, *allowed;
} input;

/* Classes of every size, none among them; logits that are not finite, equal ones, and huge ones. */
static input make_input(uint64_t seed) {
  input in = {.logits = memory_new(ROWS * STRIDE, 4),
              .temperature = memory_new(ROWS, 4),
              .token = memory_new(VOCAB, 4),
              .at = memory_new(CLASSES + 1, 4),
              .allowed = memory_new((VOCAB + 31) / 32, 4)};
  uint32_t n = 0;
  fill_normal(in.logits, ROWS * STRIDE, seed);
  for (uint32_t r = 0; r < ROWS; r++) {
    in.temperature[r] = 0.05f + random_uniform(seed + 1, r);
    for (uint32_t v = 0; v < VOCAB; v++) {
      float *logit = &in.logits[r * STRIDE + v];
      uint32_t kind = (uint32_t)(random_uniform(seed + 2, r * VOCAB + v) * 50.0f);
      *logit = kind == 0 ? -INFINITY : kind == 1 ? NAN : kind == 2 ? 1.0f : kind == 3 ? 1e37f * *logit : *logit * 8.0f;
    }
  }
  for (uint32_t c = 0; c < CLASSES; c++) { /* a token is in one class or in none */
    in.at[c] = n;
    for (uint32_t v = 0; v < VOCAB; v++) {
      if ((uint32_t)(random_uniform(seed + 3, v) * CLASSES * 1.2f) == c && c % 7 != 3) in.token[n++] = (int32_t)v;
    }
  }
  in.at[CLASSES] = n;
  for (uint32_t v = 0; v < VOCAB; v++) {
    if (random_uniform(seed + 4, v) < 0.8f) in.allowed[v / 32] |= 1u << v % 32;
  }
  return in;
}

static void free_input(input *in) {
  void *const parts[] = {in->logits, in->temperature, in->token, in->at, in->allowed};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) memory_free(parts[i]);
}

static weft_status run(weft_device *device, const input *in, bool all, const buffer *best, const buffer *log_sum) {
  const weft_classes_args args = {.logits = in->logits,
                                  .temperature = in->temperature,
                                  .token = in->token,
                                  .at = in->at,
                                  .allowed = all ? NULL : in->allowed,
                                  .best = best->data,
                                  .log_sum = log_sum->data,
                                  .n_rows = ROWS,
                                  .n_classes = CLASSES,
                                  .logits_stride = STRIDE};
  return done(device, weft_classes(device, &args));
}

static void check_class(const input *in, bool all, uint32_t r, uint32_t c, int32_t best, float log_sum) {
  int32_t want = -1;
  double sum = 0.0, most = -INFINITY;
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = in->at[c]; i < in->at[c + 1]; i++) {
      uint32_t v = (uint32_t)in->token[i];
      double z = (double)in->logits[r * STRIDE + v] / (double)in->temperature[r];
      if (!isfinite(in->logits[r * STRIDE + v]) || (!all && (in->allowed[v / 32] >> v % 32 & 1) == 0)) continue;
      if (pass == 0 && z > most) most = z, want = (int32_t)v;
      if (pass == 1) sum += exp(z - most);
    }
  }
  if (want < 0) {
    assert_int_equal(best, in->at[c] < in->at[c + 1] ? in->token[in->at[c]] : -1);
    assert_true(log_sum == WEFT_CLASSES_NONE);
    return;
  }
  double expected = most + log(sum), distance = fabs((double)log_sum - expected);
  assert_int_equal(best, want);
  if (fabs(most) > 1e36) return; /* it may be beyond what f32 holds once it is divided */
  if (distance > 1e-5 * (1.0 + fabs(expected))) fail_msg("log-sum %g, expected %g", (double)log_sum, expected);
}

static void test_classes(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < 24; i += case_step) {
    input in = make_input(40 + i);
    buffer best = buffer_new(ROWS * CLASSES * 4), log_sum = buffer_new(ROWS * CLASSES * 4);
    assert_int_equal(run(all->ref, &in, i % 2 == 0, &best, &log_sum), WEFT_OK);
    for (uint32_t k = 0; k < ROWS * CLASSES; k++) {
      check_class(&in, i % 2 == 0, k / CLASSES, k % CLASSES, ((int32_t *)best.data)[k], ((float *)log_sum.data)[k]);
    }
    for (uint32_t d = 0; d < all->n; d++) {
      buffer b = buffer_new(best.n_bytes), s = buffer_new(log_sum.n_bytes);
      weft_status status = run(all->cpu[d], &in, i % 2 == 0, &b, &s);
      bool has = weft_device_kernels(all->cpu[d])->classes != NULL;
      assert_int_equal(status, has ? WEFT_OK : WEFT_E_UNSUPPORTED);
      if (has) assert_same("classes", all->name[d], "a best token", b.data, best.data, best.n_bytes);
      if (has) assert_same("classes", all->name[d], "a log-sum", s.data, log_sum.data, best.n_bytes);
      buffer_free(&b);
      buffer_free(&s);
    }
    buffer_free(&best);
    buffer_free(&log_sum);
    free_input(&in);
  }
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes)};
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
