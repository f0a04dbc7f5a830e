/* SPDX-License-Identifier: MIT */
/* assign: experts by scores of their own, or by a table of the row's token (kernels/experts.h). */
#include "kernels/ref/ref.h"

#include <math.h>

#include "kernels/parts.h"

/* sqrt(softplus(logit)) */
static double score_of(float logit) {
  double x = (double)logit;
  return sqrt(x > 20.0 ? x + log1p(exp(-x)) : log1p(exp(x)));
}

static double rank_of(const weft_assign_args *args, const float *logits, uint32_t expert) {
  double rank = score_of(logits[expert]) + (double)args->bias[expert];
  return isnan(rank) ? (double)-INFINITY : rank;
}

/* ids stay sorted by rank, largest first; of equal experts the first stays before. */
static void choose_by_rank(const weft_assign_args *args, const float *logits, int32_t *ids) {
  uint32_t n = 0, k = args->k;
  for (uint32_t e = 0; e < args->n_experts; e++) {
    double rank = rank_of(args, logits, e);
    if (n == k && !(rank > rank_of(args, logits, (uint32_t)ids[k - 1]))) continue;
    uint32_t place = n < k ? n++ : k - 1;
    for (; place > 0 && rank > rank_of(args, logits, (uint32_t)ids[place - 1]); place--) ids[place] = ids[place - 1];
    ids[place] = (int32_t)e;
  }
}

static weft_status choose_by_table(const weft_assign_args *args, uint32_t row, int32_t *ids) {
  uint32_t token = (uint32_t)args->tokens[row];
  if (token >= args->n_tokens) return parts_refuse_row("assign", row, "has a token that does not exist");
  for (uint32_t j = 0; j < args->k; j++) {
    ids[j] = args->table[(uint64_t)token * args->k + j];
    if ((uint32_t)ids[j] >= args->n_experts)
      return parts_refuse_row("assign", row, "has an expert that does not exist");
  }
  return WEFT_OK;
}

weft_status ref_assign(weft_device *device, const weft_assign_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const float *logits = args->logits + r * args->logits_stride;
    int32_t *ids = args->ids + (uint64_t)r * args->k;
    float *weights = args->weights + (uint64_t)r * args->k;
    weft_status status = WEFT_OK;
    double total = 1e-20;
    if (args->table != NULL)
      status = choose_by_table(args, r, ids);
    else
      choose_by_rank(args, logits, ids);
    if (status != WEFT_OK) return status;
    for (uint32_t j = 0; j < args->k; j++) total += score_of(logits[ids[j]]);
    for (uint32_t j = 0; j < args->k; j++)
      weights[j] = (float)((double)args->factor * score_of(logits[ids[j]]) / total);
  }
  return WEFT_OK;
}
