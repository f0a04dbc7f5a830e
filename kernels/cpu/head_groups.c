/* SPDX-License-Identifier: MIT */
/* head_groups. A task is a row and one of its groups; the product with a token's row is a sum of 16 chains of f32, of
 * which chain l adds inputs l, l + 16 .., ascending, and a tree adds the chains, neighbours first. */
#include <math.h>

#include "kernels/cpu/rows.h"
#include "kernels/parts.h"

enum { CHAINS = 16 };

static float add_products(const float *a, const float *b, uint32_t n) {
  float sum[CHAINS] = {0.0f};
  uint32_t whole = n / CHAINS * CHAINS;
  for (uint32_t i = 0; i < whole; i += CHAINS) {
    for (uint32_t l = 0; l < CHAINS; l++) sum[l] += a[i + l] * b[i + l];
  }
  for (uint32_t i = whole; i < n; i++) sum[i - whole] += a[i] * b[i];
  for (uint32_t step = 1; step < CHAINS; step *= 2) {
    for (uint32_t l = 0; l < CHAINS; l += 2 * step) sum[l] += sum[l + step];
  }
  return sum[0];
}

static void empty_rows(void *arg, uint32_t first, uint32_t end) {
  const weft_head_groups_args *args = arg;
  for (uint64_t r = first; r < end; r++) {
    for (uint32_t v = 0; v < args->weight->n_out; v++) args->logits[r * args->logits_stride + v] = -INFINITY;
  }
}

/* Tasks [first, end); each has a row of weight in scratch. */
static void multiply_groups(void *arg, uint32_t first, uint32_t end) {
  const weft_head_groups_args *args = arg;
  const uint32_t n_in = args->weight->n_in;
  for (uint64_t task = first; task < end; task++) {
    uint64_t r = task / args->k, rank = task % args->k;
    float *values = (float *)args->scratch + task * n_in;
    for (uint64_t i = rank * args->size; i < (rank + 1) * args->size; i++) {
      int32_t token = parts_group_token(args, r, i);
      cpu_weight_row(args->weight, 0, (uint32_t)token, values);
      args->logits[r * args->logits_stride + (uint32_t)token] =
          add_products(args->h + r * args->h_stride, values, n_in);
    }
  }
}

uint64_t cpu_head_groups_scratch(weft_device *device, const weft_head_groups_args *args) {
  (void)device;
  return (uint64_t)args->n_rows * args->k * args->weight->n_in * sizeof(float);
}

weft_status cpu_head_groups(weft_device *device, const weft_head_groups_args *args) {
  for (uint32_t r = 0; r < args->n_rows; r++) {
    if (!parts_groups_exist(args, r)) return parts_refuse_row("head_groups", r, PARTS_NO_GROUP);
  }
  weft_head_groups_args copy = *args;
  cpu_for_rows(device, args->n_rows, args->weight->n_out, empty_rows, &copy);
  cpu_for_rows(device, args->n_rows * args->k, args->size * args->weight->n_in, multiply_groups, &copy);
  return WEFT_OK;
}
