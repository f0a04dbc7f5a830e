/* SPDX-License-Identifier: MIT */
/* head_stats and head_join: the statistics of softmax(logit / temperature), one row of logits at a time.
 *
 * Law: a row with a logit that is not finite, or with no allowed token, is bad: its argmax and drawn token are 0, its
 * other numbers 0, its soft row zeros. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* Scratch: [n_in] sum (double), the weight rows of a soft row, [n_vocab] logits. */
uint64_t ref_head_stats_scratch(weft_device *device, const weft_head_stats_args *args) {
  (void)device;
  uint64_t n_in = args->weight->n_in, n_vocab = args->weight->n_out;
  return n_in * sizeof(double) + (ref_soft_row_floats(args->weight) + n_vocab) * sizeof(float);
}

/* The first of the tokens with the largest allowed logit; n_vocab when no token is allowed. */
static uint32_t find_argmax(const float *logits, const uint32_t *allowed, uint32_t n_vocab) {
  uint32_t best = n_vocab;
  for (uint32_t v = 0; v < n_vocab; v++) {
    if (!ref_is_allowed(allowed, v)) continue;
    if (best == n_vocab || logits[v] > logits[best]) best = v;
  }
  return best;
}

static int32_t draw_token(const float *logits, const uint32_t *allowed, uint32_t n_vocab, double temperature,
                          double max, double threshold) {
  double running = 0.0;
  int32_t last = 0;
  for (uint32_t v = 0; v < n_vocab; v++) {
    if (!ref_is_allowed(allowed, v)) continue;
    last = (int32_t)v;
    running += exp((double)logits[v] / temperature - max);
    if (running > threshold) break;
  }
  return last;
}

static void stats_row(const weft_head_join_args *args, uint32_t r, const uint32_t *allowed, const float *logits,
                      uint32_t argmax) {
  uint32_t n_vocab = args->token[args->n_parts];
  double temperature = (double)args->temperature[r];
  double max = (double)logits[argmax] / temperature;
  double total = 0.0, weighted = 0.0;
  args->argmax[r] = (int32_t)argmax;
  args->top[r] = logits[argmax];
  if (args->drawn == NULL) return;
  for (uint32_t v = 0; v < n_vocab; v++) {
    if (!ref_is_allowed(allowed, v)) continue;
    double below = (double)logits[v] / temperature - max;
    total += exp(below);
    weighted += exp(below) * below;
  }
  args->log_total[r] = (float)(max + log(total));
  args->entropy[r] = (float)(log(total) - weighted / total);
  args->drawn[r] = draw_token(logits, allowed, n_vocab, temperature, max, (double)args->u[r] * total);
}

static void clear_row(const weft_head_join_args *args, uint32_t r) {
  args->argmax[r] = 0;
  args->top[r] = 0.0f;
  if (args->drawn == NULL) return;
  args->drawn[r] = 0;
  args->log_total[r] = 0.0f;
  args->entropy[r] = 0.0f;
}

/* The numbers of a row with logits; true: it is bad. */
static bool give_row(const weft_head_join_args *args, uint32_t r, const uint32_t *allowed, const float *logits,
                     bool bad) {
  uint32_t n_vocab = args->token[args->n_parts], argmax = find_argmax(logits, allowed, n_vocab);
  bad = bad || argmax == n_vocab;
  args->bad[r] = bad ? 1 : 0;
  if (bad)
    clear_row(args, r);
  else
    stats_row(args, r, allowed, logits, argmax);
  return bad;
}

weft_status ref_head_stats(weft_device *device, const weft_head_stats_args *args) {
  (void)device;
  const weft_weight *weight = args->weight;
  double *sum = args->scratch;
  float *row = (float *)(sum + weight->n_in);
  float *logits = row + ref_soft_row_floats(weight);
  const weft_head_join_args whole = {.token = {0, weight->n_out},
                                     .n_parts = 1,
                                     .temperature = args->temperature,
                                     .u = args->u,
                                     .argmax = args->argmax,
                                     .drawn = args->drawn,
                                     .top = args->top,
                                     .log_total = args->log_total,
                                     .entropy = args->entropy,
                                     .bad = args->bad};
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const uint32_t *allowed = args->allowed == NULL ? NULL : args->allowed[r];
    bool bad = ref_logits_row(weight, args->h + r * args->h_stride, args->cap, row, logits);
    if (args->logits != NULL) memcpy(args->logits + r * args->logits_stride, logits, weight->n_out * sizeof *logits);
    bad = give_row(&whole, r, allowed, logits, bad);
    if (args->soft == NULL || (args->want_soft != NULL && args->want_soft[r] == 0)) continue;
    float *soft = args->soft + r * args->soft_stride;
    if (bad)
      memset(soft, 0, weight->n_in * sizeof(float));
    else
      ref_soft_row(weight, logits, allowed, args->temperature[r], args->soft_scale, sum, row, soft);
  }
  return WEFT_OK;
}

uint64_t ref_head_join_scratch(weft_device *device, const weft_head_join_args *args) {
  (void)device;
  return args->token[args->n_parts] * sizeof(float);
}

weft_status ref_head_join(weft_device *device, const weft_head_join_args *args) {
  (void)device;
  float *logits = args->scratch;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    for (uint32_t i = 0; i < args->n_parts; i++) {
      uint32_t first = args->token[i], n = args->token[i + 1] - first;
      if (n > 0) memcpy(logits + first, args->logits[i] + r * args->logits_stride, n * sizeof *logits);
    }
    bool bad = ref_cap_row(logits, args->token[args->n_parts], args->cap);
    (void)give_row(args, r, args->allowed, logits, bad);
  }
  return WEFT_OK;
}
