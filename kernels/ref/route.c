/* SPDX-License-Identifier: MIT */
/* route: softmax over all experts, the k largest, renormalised over the k, times expert_scale. The sum over all experts
 * cancels in the renormalisation, so only the k chosen ones are summed, in rank order. */
#include "kernels/ref/ref.h"

#include <math.h>

#include "kernels/parts.h"

static bool is_taken(const int32_t *ids, uint32_t n_taken, uint32_t expert) {
  for (uint32_t j = 0; j < n_taken; j++) {
    if (ids[j] == (int32_t)expert) return true;
  }
  return false;
}

/* The expert with the largest logit that is not taken yet; of equal ones the first. */
static uint32_t best_left(const float *logits, uint32_t n_experts, const int32_t *ids, uint32_t n_taken) {
  uint32_t best = n_experts;
  for (uint32_t e = 0; e < n_experts; e++) {
    if (is_taken(ids, n_taken, e)) continue;
    if (best == n_experts || parts_route_rank(logits[e]) > parts_route_rank(logits[best])) best = e;
  }
  return best;
}

uint64_t ref_route_scratch(weft_device *device, const weft_route_args *args) {
  return parts_route_scratch(device, args, ref_matmul_scratch);
}

weft_status ref_route(weft_device *device, const weft_route_args *args) {
  weft_status status = parts_route_logits(device, args, ref_matmul, ref_norm);
  if (status != WEFT_OK) return status;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const float *logits = args->logits + r * args->logits_stride;
    int32_t *ids = args->ids + (uint64_t)r * args->k;
    float *weights = args->weights + (uint64_t)r * args->k;
    double total = 0.0;
    for (uint32_t j = 0; j < args->k; j++) {
      ids[j] = (int32_t)best_left(logits, args->n_experts, ids, j);
      total += exp((double)logits[ids[j]] - (double)logits[ids[0]]);
    }
    for (uint32_t j = 0; j < args->k; j++) {
      double weight = exp((double)logits[ids[j]] - (double)logits[ids[0]]) / total;
      if (args->expert_scale != NULL) weight *= (double)args->expert_scale[ids[j]];
      weights[j] = (float)weight;
    }
  }
  return WEFT_OK;
}
