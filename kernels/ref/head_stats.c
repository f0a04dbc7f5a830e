/* SPDX-License-Identifier: MIT */
/* head_stats: the statistics of softmax(logit / temperature), one row of logits at a time.
 *
 * Law: a row with a logit that is not finite, or with no allowed token, is bad: its argmax and drawn token are 0, its
 * other numbers 0, its soft row zeros. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* Scratch: [n_in] sum (double), [n_in] weight row, [n_vocab] logits. */
uint64_t ref_head_stats_scratch(weft_device *device, const weft_head_stats_args *args) {
  (void)device;
  uint64_t n_in = args->weight->n_in, n_vocab = args->weight->n_out;
  return n_in * (sizeof(double) + sizeof(float)) + n_vocab * sizeof(float);
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

static void stats_row(const weft_head_stats_args *args, uint32_t r, const float *logits, uint32_t argmax) {
  const uint32_t *allowed = args->allowed == NULL ? NULL : args->allowed[r];
  uint32_t n_vocab = args->weight->n_out;
  double temperature = (double)args->temperature[r];
  double max = (double)logits[argmax] / temperature;
  double total = 0.0, weighted = 0.0;
  for (uint32_t v = 0; v < n_vocab; v++) {
    if (!ref_is_allowed(allowed, v)) continue;
    double below = (double)logits[v] / temperature - max;
    total += exp(below);
    weighted += exp(below) * below;
  }
  args->argmax[r] = (int32_t)argmax;
  args->top[r] = logits[argmax];
  args->log_total[r] = (float)(max + log(total));
  args->entropy[r] = (float)(log(total) - weighted / total);
  args->drawn[r] = draw_token(logits, allowed, n_vocab, temperature, max, (double)args->u[r] * total);
}

static void clear_row(const weft_head_stats_args *args, uint32_t r) {
  args->argmax[r] = 0;
  args->drawn[r] = 0;
  args->top[r] = 0.0f;
  args->log_total[r] = 0.0f;
  args->entropy[r] = 0.0f;
}

weft_status ref_head_stats(weft_device *device, const weft_head_stats_args *args) {
  (void)device;
  const weft_weight *weight = args->weight;
  double *sum = args->scratch;
  float *row = (float *)(sum + weight->n_in);
  float *logits = row + weight->n_in;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const uint32_t *allowed = args->allowed == NULL ? NULL : args->allowed[r];
    bool bad = ref_logits_row(weight, args->h + r * args->h_stride, args->cap, row, logits);
    uint32_t argmax = find_argmax(logits, allowed, weight->n_out);
    bad = bad || argmax == weight->n_out;
    if (args->logits != NULL) memcpy(args->logits + r * args->logits_stride, logits, weight->n_out * sizeof *logits);
    args->bad[r] = bad ? 1 : 0;
    if (bad)
      clear_row(args, r);
    else
      stats_row(args, r, logits, argmax);
    if (args->soft == NULL || (args->want_soft != NULL && args->want_soft[r] == 0)) continue;
    float *soft = args->soft + r * args->soft_stride;
    if (bad)
      memset(soft, 0, weight->n_in * sizeof(float));
    else
      ref_soft_row(weight, logits, allowed, args->temperature[r], args->soft_scale, sum, row, soft);
  }
  return WEFT_OK;
}
