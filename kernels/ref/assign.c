/* SPDX-License-Identifier: MIT */
/* assign: experts by scores of their own, or by a table of the row's token (kernels/experts.h). */
#include "kernels/ref/ref.h"

#include <math.h>

#include "kernels/parts.h"

typedef struct scored {
  const weft_assign_args *args;
  const float *logits;
  double most, total; /* of the softmax */
  uint32_t closed;    /* groups that are not chosen among, a bit each */
} scored;

static double score_of(const scored *row, uint32_t expert) {
  double x = (double)row->logits[expert];
  if (row->args->scores == WEFT_SCORES_SIGMOID) return 1.0 / (1.0 + exp(-x));
  if (row->args->scores == WEFT_SCORES_SOFTMAX) return exp(x - row->most) / row->total;
  return sqrt(x > 20.0 ? x + log1p(exp(-x)) : log1p(exp(x)));
}

static double rank_of(const scored *row, uint32_t expert) {
  const float *bias = row->args->bias;
  double rank = score_of(row, expert) + (bias == NULL ? 0.0 : (double)bias[expert]);
  return isnan(rank) ? (double)-INFINITY : rank;
}

static scored begin_row(const weft_assign_args *args, uint32_t r) {
  scored row = {.args = args, .logits = args->logits + r * args->logits_stride, .most = (double)-INFINITY};
  for (uint32_t e = 0; args->scores == WEFT_SCORES_SOFTMAX && e < args->n_experts; e++)
    row.most = fmax(row.most, (double)row.logits[e]);
  for (uint32_t e = 0; args->scores == WEFT_SCORES_SOFTMAX && e < args->n_experts; e++)
    row.total += exp((double)row.logits[e] - row.most);
  return row;
}

static double rank_group(const scored *row, uint32_t group) {
  uint32_t n = row->args->n_experts / row->args->n_groups;
  double best = (double)-INFINITY, second = (double)-INFINITY;
  for (uint32_t e = group * n; e < (group + 1) * n; e++) {
    double rank = rank_of(row, e);
    if (rank > best)
      second = best, best = rank;
    else if (rank > second)
      second = rank;
  }
  return row->args->scores == WEFT_SCORES_SOFTMAX ? best : best + second;
}

/* Closes all groups but the best. */
static void close_groups(scored *row) {
  const weft_assign_args *args = row->args;
  double rank[WEFT_ASSIGN_GROUPS_MAX];
  uint32_t open = 0;
  for (uint32_t g = 0; g < args->n_groups; g++) rank[g] = rank_group(row, g);
  for (uint32_t i = 0; i < args->n_groups_used; i++) {
    uint32_t best = UINT32_MAX;
    for (uint32_t g = 0; g < args->n_groups; g++) {
      bool is_left = (open >> g & 1) == 0;
      if (is_left && (best == UINT32_MAX || rank[g] > rank[best])) best = g;
    }
    open |= 1u << best;
  }
  row->closed = args->n_groups == 0 ? 0 : ~open;
}

static bool is_closed(const scored *row, uint32_t expert) {
  const weft_assign_args *args = row->args;
  return args->n_groups > 0 && (row->closed >> (expert / (args->n_experts / args->n_groups)) & 1) != 0;
}

/* ids stay sorted by rank, largest first; of equal experts the first stays before. */
static void choose_by_rank(const scored *row, int32_t *ids) {
  uint32_t n = 0, k = row->args->k;
  for (uint32_t e = 0; e < row->args->n_experts; e++) {
    double rank = rank_of(row, e);
    if (is_closed(row, e) || (n == k && !(rank > rank_of(row, (uint32_t)ids[k - 1])))) continue;
    uint32_t place = n < k ? n++ : k - 1;
    for (; place > 0 && rank > rank_of(row, (uint32_t)ids[place - 1]); place--) ids[place] = ids[place - 1];
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
    scored row = begin_row(args, r);
    int32_t *ids = args->ids + (uint64_t)r * args->k;
    float *weights = args->weights + (uint64_t)r * args->k;
    weft_status status = WEFT_OK;
    double total = 1e-20;
    close_groups(&row);
    if (args->table != NULL)
      status = choose_by_table(args, r, ids);
    else
      choose_by_rank(&row, ids);
    if (status != WEFT_OK) return status;
    for (uint32_t j = 0; j < args->k; j++) total += score_of(&row, (uint32_t)ids[j]);
    for (uint32_t j = 0; j < args->k; j++)
      weights[j] = (float)((double)args->factor * score_of(&row, (uint32_t)ids[j]) / (args->as_scored ? 1.0 : total));
  }
  return WEFT_OK;
}
