/* SPDX-License-Identifier: MIT */
/* experts: for every row, its experts one after another in rank order, in a sum of doubles for each leaf; these are
 * rounded to f32 before they are added by pairs. Then the shared MLP. */
#include "kernels/ref/ref.h"

#include <string.h>

#include "kernels/parts.h"

/* Scratch: [LEAVES][n_in] sums (double), [n_ff] act * up (float), [REF_SIDE][max(n_in, n_ff)] rows of weights (float),
 * [n_mats] which experts the call has used. */
uint64_t ref_experts_scratch(weft_device *device, const weft_experts_args *args) {
  uint64_t n_in = args->down->n_out, n_ff = args->down->n_in;
  uint64_t widest = n_in > n_ff ? n_in : n_ff;
  uint64_t n_double = WEFT_EXPERTS_LEAVES * n_in, n_float = n_ff + REF_SIDE * widest;
  uint64_t own = n_double * sizeof(double) + n_float * sizeof(float) + args->down->n_mats;
  return parts_shared_scratch(device, args, own, ref_matmul_scratch);
}

static void gate_up(const weft_experts_args *args, uint32_t expert, const float *x, float *row, float *h) {
  uint32_t n_ff = args->down->n_in;
  const weft_weight *gate = args->gate_up != NULL ? args->gate_up : args->gate;
  const weft_weight *up = args->gate_up != NULL ? args->gate_up : args->up;
  uint32_t first_up = args->gate_up != NULL ? n_ff : 0;
  for (uint32_t first = 0; first < n_ff; first += REF_SIDE) {
    uint32_t n = n_ff - first < REF_SIDE ? n_ff - first : REF_SIDE;
    double g[REF_SIDE], u[REF_SIDE];
    ref_products(gate, expert, first, n, x, row, g);
    ref_products(up, expert, first_up + first, n, x, row, u);
    for (uint32_t k = 0; k < n; k++) {
      uint64_t f = (uint64_t)expert * n_ff + first + k;
      if (args->gate_bias != NULL) g[k] += (double)args->gate_bias[f];
      if (args->gate_bias != NULL) u[k] += (double)args->up_bias[f];
      h[first + k] = (float)ref_gated(args->activation, (double)args->limit, g[k], u[k]);
    }
  }
}

/* Adds weight times what an expert makes of h. A product of 8 bits is rounded to bf16 before the bias is added. */
static void add_down(const weft_experts_args *args, uint32_t expert, double weight, const float *h, float *row,
                     double *sum) {
  const weft_weight *down = args->down;
  for (uint32_t first = 0; first < down->n_out; first += REF_SIDE) {
    uint32_t n = down->n_out - first < REF_SIDE ? down->n_out - first : REF_SIDE;
    double made[REF_SIDE];
    ref_products(down, expert, first, n, h, row, made);
    for (uint32_t k = 0; k < n; k++) {
      if (down->layout == REF_EIGHT) made[k] = (double)weft_bf16_to_f32(weft_f32_to_bf16((float)made[k]));
      if (args->down_bias != NULL) made[k] += (double)args->down_bias[(uint64_t)expert * down->n_out + first + k];
      sum[first + k] += weight * made[k];
    }
  }
}

/* The sum of an output's leaves, which lie n apart, by pairs. */
static float add_leaves(const double *sum, uint32_t n) {
  float leaf[WEFT_EXPERTS_LEAVES];
  for (uint32_t l = 0; l < WEFT_EXPERTS_LEAVES; l++) leaf[l] = (float)sum[(uint64_t)l * n];
  for (uint32_t left = WEFT_EXPERTS_LEAVES / 2; left > 0; left /= 2) {
    for (uint32_t l = 0; l < left; l++) leaf[l] = leaf[2 * l] + leaf[2 * l + 1];
  }
  return leaf[0];
}

static weft_status run_routed(const weft_experts_args *args) {
  uint32_t n_in = args->down->n_out, n_ff = args->down->n_in;
  uint32_t n_experts = parts_experts_count(args);
  uint64_t n_sums = (uint64_t)WEFT_EXPERTS_LEAVES * n_in;
  uint64_t widest = n_in > n_ff ? n_in : n_ff;
  double *sums = args->scratch;
  float *h = (float *)(sums + n_sums);
  float *row = h + n_ff;
  uint8_t *seen = (uint8_t *)(row + REF_SIDE * widest);
  memset(seen, 0, args->down->n_mats);
  for (uint32_t r = 0; r < args->n_rows; r++) {
    for (uint64_t i = 0; i < n_sums; i++) sums[i] = 0.0;
    for (uint32_t j = 0; j < args->k; j++) {
      uint32_t id = (uint32_t)args->ids[(uint64_t)r * args->k + j], expert = id - args->first_expert;
      if (id >= n_experts) return parts_refuse_row("experts", r, "names an expert that does not exist");
      if (expert >= args->down->n_mats) continue; /* not here */
      double weight = (double)args->weights[(uint64_t)r * args->k + j],
             *sum = sums + (uint64_t)weft_experts_leaf(id, n_experts) * n_in;
      gate_up(args, expert, args->x + r * args->x_stride, row, h);
      add_down(args, expert, weight, h, row, sum);
      if (args->n_touched != NULL && seen[expert] == 0) *args->n_touched += 1;
      seen[expert] = 1;
    }
    for (uint32_t i = 0; i < n_in; i++) args->y[r * args->y_stride + i] = add_leaves(sums + i, n_in);
  }
  return WEFT_OK;
}

weft_status ref_experts(weft_device *device, const weft_experts_args *args) {
  weft_status status = run_routed(args);
  return status == WEFT_OK ? parts_shared_run(device, args, ref_matmul) : status;
}
