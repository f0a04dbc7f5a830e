/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "kernels/cpu/rows.h"
#include "kernels/parts.h"

/* Chooses the k experts of largest logit: ids stay sorted by logit, largest first. An equal logit goes behind those
 * that are there already, so of equal experts the first wins. */
static void choose_experts(const float *logits, uint32_t n_experts, uint32_t k, int32_t *ids) {
  uint32_t n = 0;
  for (uint32_t e = 0; e < n_experts; e++) {
    float logit = parts_route_rank(logits[e]);
    if (n == k && !(logit > parts_route_rank(logits[ids[k - 1]]))) continue;
    uint32_t place = n < k ? n++ : k - 1;
    while (place > 0 && logit > parts_route_rank(logits[ids[place - 1]])) {
      ids[place] = ids[place - 1];
      place -= 1;
    }
    ids[place] = (int32_t)e;
  }
}

static void route_rows(void *arg, uint32_t first, uint32_t end) {
  const weft_route_args *args = arg;
  for (uint64_t r = first; r < end; r++) {
    const float *logits = args->logits + r * args->logits_stride;
    int32_t *ids = args->ids + r * args->k;
    float *weights = args->weights + r * args->k;
    float total = 0.0f;
    choose_experts(logits, args->n_experts, args->k, ids);
    for (uint32_t j = 0; j < args->k; j++) {
      weights[j] = expf(logits[ids[j]] - logits[ids[0]]);
      total += weights[j];
    }
    for (uint32_t j = 0; j < args->k; j++) {
      weights[j] /= total;
      if (args->expert_scale != NULL) weights[j] *= args->expert_scale[ids[j]];
    }
  }
}

uint64_t cpu_route_scratch(weft_device *device, const weft_route_args *args) {
  return parts_route_scratch(device, args, cpu_matmul_scratch);
}

weft_status cpu_route(weft_device *device, const weft_route_args *args) {
  weft_status status = parts_route_logits(device, args, cpu_matmul, cpu_norm);
  if (status != WEFT_OK) return status;
  weft_route_args copy = *args;
  cpu_for_rows(device, args->n_rows, args->n_experts, route_rows, &copy);
  return WEFT_OK;
}
