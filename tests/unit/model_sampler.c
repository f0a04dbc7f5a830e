/* SPDX-License-Identifier: MIT */
/* The autoregressive sampler, sentence by sentence of model/sampler.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kernels/ops.h"
#include "model/sampler.h"

enum { V = 16 };

static weft_device *ref;
static _Alignas(64) uint8_t scratch[V * 8];

static int open_ref(void **state) {
  (void)state;
  weft_device_config config = {.backend = "ref"};
  return weft_device_open(&config, &ref, NULL) == WEFT_OK ? 0 : 1;
}

static int close_ref(void **state) {
  (void)state;
  weft_device_close(ref);
  return 0;
}

static weft_sample_result ask(weft_sampling s, const float *logits, const int32_t *history, uint32_t n,
                              uint32_t n_prompt, uint64_t position, uint32_t allowed) {
  float copy[V];
  weft_sample_row row;
  weft_sample_result result;
  memcpy(copy, logits, sizeof copy);
  weft_sampling_ask(&s, position, &row);
  uint32_t skip = weft_sampling_forgets(&s, n, n_prompt);
  row.n_history = skip == UINT32_MAX ? 0 : n - skip;
  row.n_prompt = skip < n_prompt ? n_prompt - skip : 0;
  weft_sample_args args = {.logits = copy,
                           .row = &row,
                           .history = skip == UINT32_MAX ? NULL : history + skip,
                           .bias = (const weft_logit_bias *)(const void *)s.bias,
                           .allowed = &allowed,
                           .out = &result,
                           .n_rows = 1,
                           .n_vocab = V,
                           .logits_stride = V,
                           .scratch = scratch,
                           .scratch_bytes = sizeof scratch};
  assert_int_equal(weft_sample(ref, &args), WEFT_OK);
  return result;
}

static weft_sampled sample(weft_sampling s, const float *logits, const int32_t *history, uint32_t n, uint32_t n_prompt,
                           uint64_t position) {
  weft_sampled out;
  weft_sample_result result = ask(s, logits, history, n, n_prompt, position, UINT32_MAX);
  assert_int_equal(result.bad, 0);
  weft_sampling_take(&result, &out);
  return out;
}

static const float ramp[V] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 14};

static void greedy_takes_the_lower_of_a_tie(void **state) {
  (void)state;
  weft_sampling s = weft_sampling_neutral();
  s.temperature = 0;
  assert_int_equal(sample(s, ramp, NULL, 0, 0, 0).token, 14);
}

/* Empirical frequencies over many positions against softmax(logits / t), by chi-square. */
static void draws_follow_the_distribution(void **state) {
  (void)state;
  enum { N = 40000 };
  weft_sampling s = weft_sampling_neutral();
  float logits[V];
  uint32_t seen[V] = {0};
  double total = 0, chi = 0;
  for (int i = 0; i < V; i++) logits[i] = (float)i * 0.3f;
  s.temperature = 1.5f;
  s.seed = 42;
  for (uint64_t position = 0; position < N; position++) seen[sample(s, logits, NULL, 0, 0, position).token] += 1;
  for (int i = 0; i < V; i++) total += exp((double)logits[i] / 1.5);
  for (int i = 0; i < V; i++) {
    double wanted = N * exp((double)logits[i] / 1.5) / total, d = seen[i] - wanted;
    chi += d * d / wanted;
  }
  assert_true(chi < 45.0); /* 15 degrees of freedom: P(chi > 45) is under 1e-4 */
  assert_true(chi > 1.0);  /* and draws are not arranged */
}

static void same_key_same_draw(void **state) {
  (void)state;
  weft_sampling a = weft_sampling_neutral(), b = a, c = a;
  uint32_t differ_seed = 0, differ_choice = 0;
  a.seed = b.seed = c.seed = 9;
  b.seed = 10;
  c.choice = 1;
  float flat[V] = {0};
  for (uint64_t p = 0; p < 100; p++) {
    int32_t token = sample(a, flat, NULL, 0, 0, p).token;
    assert_int_equal(token, sample(a, flat, NULL, 0, 0, p).token);
    differ_seed += token != sample(b, flat, NULL, 0, 0, p).token;
    differ_choice += token != sample(c, flat, NULL, 0, 0, p).token;
  }
  assert_true(differ_seed > 80);
  assert_true(differ_choice > 80);
}

static uint32_t support(weft_sampling s, const float *logits) {
  uint32_t mask = 0;
  for (uint64_t p = 0; p < 4000; p++) mask |= 1u << sample(s, logits, NULL, 0, 0, p).token;
  return mask;
}

static void cuts_keep_what_they_should(void **state) {
  (void)state;
  float logits[V];
  for (int i = 0; i < V; i++) logits[i] = logf((float)(V - i)); /* weights 16, 15, ... 1 of 136 */
  weft_sampling s = weft_sampling_neutral();
  assert_int_equal(support(s, logits), 0xFFFF);
  s.top_k = 3;
  assert_int_equal(support(s, logits), 0x7);
  s = weft_sampling_neutral();
  s.top_p = 31.0f / 136.0f - 1e-4f; /* the first two hold exactly 31/136 */
  assert_int_equal(support(s, logits), 0x3);
  s.top_p = 31.0f / 136.0f + 1e-3f;
  assert_int_equal(support(s, logits), 0x7);
  s = weft_sampling_neutral();
  s.min_p = 14.5f / 16.0f;
  assert_int_equal(support(s, logits), 0x3);
  s.min_p = 1.0f;
  assert_int_equal(support(s, logits), 0x1);
}

/* Penalties of a window are those of a history that has only its last tokens. */
static void penalties_of_a_window(void **state) {
  (void)state;
  const int32_t history[] = {15, 14, 13, 15, 12, 14}; /* prompt 15, 14, 13; answer 15, 12, 14 */
  weft_sampling s = weft_sampling_neutral();
  s.temperature = 0;
  s.repetition_penalty = 2.0f;
  assert_int_equal(sample(s, ramp, history, 6, 3, 0).token, 11); /* all of 12 to 15 were said */
  s.penalty_window = 6;
  assert_int_equal(sample(s, ramp, history, 6, 3, 0).token, 11);
  s.penalty_window = 3;
  assert_int_equal(sample(s, ramp, history, 6, 3, 0).token, 13);
  s.penalty_window = 2;
  assert_int_equal(sample(s, ramp, history, 6, 3, 0).token, 15);
  s.repetition_penalty = 1.0f;
  s.presence_penalty = 2.0f; /* of the answer's tokens in the window */
  s.penalty_window = 100;
  assert_int_equal(sample(s, ramp, history, 6, 3, 0).token, 13);
  s.penalty_window = 1;
  assert_int_equal(sample(s, ramp, history, 6, 3, 0).token, 15);
}

static void penalties_and_bias(void **state) {
  (void)state;
  weft_sampling s = weft_sampling_neutral();
  s.temperature = 0;
  const int32_t history[] = {14, 14, 15, 13}; /* prompt 14, 14; answer 15, 13 */
  assert_int_equal(sample(s, ramp, history, 4, 2, 0).token, 14);
  s.presence_penalty = 1.5f; /* answer only: 15 -> 12.5, 13 -> 11.5 */
  assert_int_equal(sample(s, ramp, history, 4, 2, 0).token, 14);
  s = weft_sampling_neutral();
  s.temperature = 0;
  s.repetition_penalty = 2.0f; /* prompt too: 14, 15, 13 are halved */
  assert_int_equal(sample(s, ramp, history, 4, 2, 0).token, 12);
  s = weft_sampling_neutral();
  s.temperature = 0;
  s.frequency_penalty = 1.0f;
  const int32_t many[] = {14, 14, 14, 15};
  assert_int_equal(sample(s, ramp, many, 4, 0, 0).token, 13); /* 14 -> 11, 15 -> 13, tie with 13: lower id */
  weft_logit_bias bias[] = {{3, 50.0f}};
  s = weft_sampling_neutral();
  s.temperature = 0;
  s.bias = bias;
  s.n_bias = 1;
  assert_int_equal(sample(s, ramp, NULL, 0, 0, 0).token, 3);
}

static void logprobs_are_of_the_whole_distribution(void **state) {
  (void)state;
  weft_sampling s = weft_sampling_neutral();
  s.logprobs = true;
  s.n_top_logprobs = V;
  s.top_k = 1;
  weft_sampled out = sample(s, ramp, NULL, 0, 0, 3);
  double total = 0;
  assert_int_equal(out.n_top, V);
  for (uint32_t i = 0; i < out.n_top; i++) {
    total += exp((double)out.top[i].logprob);
    if (i > 0) assert_true(out.top[i].logprob <= out.top[i - 1].logprob);
  }
  assert_true(fabs(total - 1.0) < 1e-5);
  assert_int_equal(out.top[0].token, 14);
  assert_int_equal(out.top[1].token, 15);
  assert_true(out.logprob == out.top[0].logprob);
}

static void suppressed_and_nothing_left(void **state) {
  (void)state;
  weft_sampling s = weft_sampling_neutral();
  weft_sample_result result = ask(s, ramp, NULL, 0, 0, 0, 1u << 15);
  assert_int_equal(result.bad, 0);
  assert_int_equal(result.token, 15);
  assert_int_equal(ask(s, ramp, NULL, 0, 0, 0, 0).bad, 1);
}

static void ranges_are_checked(void **state) {
  (void)state;
  weft_error error;
  weft_sampling s = weft_sampling_neutral();
  assert_int_equal(weft_sampling_check(&s, V, &error), WEFT_OK);
  s.temperature = NAN;
  assert_int_equal(weft_sampling_check(&s, V, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "temperature"));
  s = weft_sampling_neutral();
  s.top_p = 0;
  assert_int_equal(weft_sampling_check(&s, V, &error), WEFT_E_INVALID);
  weft_logit_bias bias = {V, 1.0f};
  s = weft_sampling_neutral();
  s.bias = &bias;
  s.n_bias = 1;
  assert_int_equal(weft_sampling_check(&s, V, &error), WEFT_E_INVALID);
  weft_entropy_bound e = weft_entropy_bound_default();
  assert_int_equal(weft_entropy_bound_check(&e, &error), WEFT_OK);
  e.t_max = 0.1f;
  assert_int_equal(weft_entropy_bound_check(&e, &error), WEFT_E_INVALID);
  e = weft_entropy_bound_default();
  e.max_steps = 0;
  assert_int_equal(weft_entropy_bound_check(&e, &error), WEFT_E_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_takes_the_lower_of_a_tie),
                                     cmocka_unit_test(draws_follow_the_distribution),
                                     cmocka_unit_test(same_key_same_draw),
                                     cmocka_unit_test(cuts_keep_what_they_should),
                                     cmocka_unit_test(penalties_of_a_window),
                                     cmocka_unit_test(penalties_and_bias),
                                     cmocka_unit_test(logprobs_are_of_the_whole_distribution),
                                     cmocka_unit_test(suppressed_and_nothing_left),
                                     cmocka_unit_test(ranges_are_checked)};
  return cmocka_run_group_tests(tests, open_ref, close_ref);
}
