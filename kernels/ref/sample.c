/* SPDX-License-Identifier: MIT */
/* sample: all candidates are sorted by value and cut; what is left is drawn from in vocabulary order. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef weft_sample_ranked ranked;

uint64_t ref_sample_scratch(weft_device *device, const weft_sample_args *args) {
  (void)device;
  return (uint64_t)args->n_vocab * sizeof(ranked);
}

/* Each distinct token of the history once, with how often the answer holds it. */
static void penalise_history(const weft_sample_args *args, const weft_sample_row *row, float *logits) {
  uint32_t *seen = args->scratch, *times = seen + args->n_vocab, n = row->n_history + (row->pending != 0 ? 1 : 0);
  memset(seen, 0, (size_t)args->n_vocab * 8);
  for (uint32_t i = 0; i < n; i++) {
    int32_t token = i < row->n_history ? args->history[row->history_at + i] : args->cells[row->cell];
    if (token < 0 || (uint32_t)token >= args->n_vocab) continue;
    seen[token] = 1;
    if (i >= row->n_prompt) times[token] += 1;
  }
  for (uint32_t v = 0; v < args->n_vocab; v++) {
    if (seen[v] != 0) logits[v] = weft_sample_penalised(logits[v], row, times[v]);
  }
}

/* Lists the finite values of finite logits, best first, and returns how many they are. */
static uint32_t rank_candidates(const float *logits, float temperature, uint32_t n_vocab, ranked *list) {
  uint32_t n = 0;
  for (uint32_t v = 0; v < n_vocab; v++) {
    float value = logits[v] / temperature;
    if (isfinite(logits[v]) && isfinite(value)) list[n++] = (ranked){value, (int32_t)v};
  }
  qsort(list, n, sizeof *list, weft_sample_by_value);
  return n;
}

static uint64_t weight_of(const ranked *list, uint32_t i, float most) {
  return weft_sample_weight(list[i].value - most);
}

static uint64_t total_of(const ranked *list, uint32_t n, float most) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; i++) total += weight_of(list, i, most);
  return total;
}

/* How many of the list, best first, are left by top_k, top_p and min_log. */
static uint32_t cut_candidates(const weft_sample_row *row, const ranked *list, uint32_t n) {
  float most = list[0].value;
  if (row->top_k > 0 && row->top_k < n) n = row->top_k;
  if (row->top_p < 1.0f) {
    uint64_t wanted = weft_sample_wanted(row->top_p, total_of(list, n, most)), sum = 0;
    uint32_t i = 0;
    while (sum < wanted) sum += weight_of(list, i++, most);
    n = i;
  }
  while (n > 1 && list[n - 1].value - most < row->min_log) n -= 1;
  return n;
}

static int32_t draw_token(const weft_sample_row *row, ranked *list, uint32_t n) {
  float most = list[0].value;
  uint64_t threshold = weft_sample_threshold(row->u, total_of(list, n, most)), sum = 0;
  uint32_t i = 0;
  qsort(list, n, sizeof *list, weft_sample_by_token);
  while ((sum += weight_of(list, i, most)) <= threshold) i += 1;
  return list[i].token;
}

static void take_logprobs(const weft_sample_row *row, const ranked *list, uint32_t n, weft_sample_result *out) {
  out->total = total_of(list, n, out->most);
  out->n_top = row->n_top < n ? row->n_top : n;
  for (uint32_t i = 0; i < out->n_top; i++) out->top[i] = (weft_sample_top){list[i].token, list[i].value};
}

static void prepare_logits(const weft_sample_args *args, const weft_sample_row *row, float *logits) {
  const uint32_t *own = weft_sample_mask(args, row);
  for (uint32_t v = 0; v < args->n_vocab; v++) {
    if (!ref_is_allowed(args->allowed, v) || !ref_is_allowed(own, v)) logits[v] = -INFINITY;
  }
  for (uint32_t i = 0; i < row->n_bias; i++) {
    const weft_logit_bias *bias = &args->bias[row->bias_at + i];
    logits[bias->token] += bias->bias;
  }
  penalise_history(args, row, logits);
}

static void sample_row(const weft_sample_args *args, uint32_t r) {
  const weft_sample_row *row = &args->row[r];
  weft_sample_result *out = &args->out[r];
  float *logits = args->logits + r * args->logits_stride;
  ranked *list = args->scratch;
  memset(out, 0, sizeof *out);
  prepare_logits(args, row, logits);
  uint32_t n = rank_candidates(logits, 1.0f, args->n_vocab, list);
  out->bad = n == 0 || (args->bad != NULL && args->bad[r] != 0) ? 1 : 0;
  if (out->bad == 0) {
    out->token = list[0].token;
    out->most = list[0].value;
    if (row->logprobs != 0) take_logprobs(row, list, n, out);
    if (row->temperature != 0.0f && isfinite(out->most / row->temperature)) {
      n = rank_candidates(logits, row->temperature, args->n_vocab, list);
      out->token = draw_token(row, list, cut_candidates(row, list, n));
    }
    out->logit = logits[out->token];
  }
  if (row->cell >= 0) args->cells[row->cell] = out->token;
}

weft_status ref_sample(weft_device *device, const weft_sample_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) sample_row(args, r);
  return WEFT_OK;
}
