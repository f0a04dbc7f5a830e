/* SPDX-License-Identifier: MIT */
/* The functions of latent.h for one instruction set. latent_portable.c, latent_avx2.c and latent_avx512.c include this
 * file; LATENT_CODE is the name of the table that it defines. */
#include <math.h>

#include "kernels/cpu/latent.h"
#include "kernels/cpu/simd.h"

enum { BLOCK = CPU_LATENT_ROWS, HEADS = CPU_LATENT_HEADS };

SIMD_INLINE vf load_part(const float *from, uint32_t n) {
  return n >= VF_LANES ? vf_load(from) : vf_load_some(from, n);
}

static float multiply_rows(const float *a, const float *b, uint32_t n) {
  vf sum[4] = {vf_set(0.0f), vf_set(0.0f), vf_set(0.0f), vf_set(0.0f)};
  uint32_t i = 0;
  for (; i + 4 * VF_LANES <= n; i += 4 * VF_LANES)
    for (uint32_t k = 0; k < 4; k++)
      sum[k] = vf_fma(vf_load(a + i + k * VF_LANES), vf_load(b + i + k * VF_LANES), sum[k]);
  for (; i < n; i += VF_LANES) sum[0] = vf_fma(load_part(a + i, n - i), load_part(b + i, n - i), sum[0]);
  return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void load_row(weft_type type, const uint8_t *from, uint32_t n, float *to) {
  uint32_t i = 0;
  if (type == WEFT_TYPE_BF16)
    for (; i + VF_LANES <= n; i += VF_LANES)
      vf_store(to + i, vf_load_bf16((const uint16_t *)(const void *)(from + 2ull * i)));
  if (i < n) weft_kv_row_load(type, from + 2ull * i, n - i, to + i); /* what is left of bf16, or all of other types */
}

/* ---- latent_attend ---- */

/* What a row sees: near rows, then far ones. */
typedef struct seen_rows {
  const weft_latent_attend_args *args;
  const weft_latent_segment *segment;
  const int32_t *ids;
  uint32_t position, first_near, n_near, n_far;
} seen_rows;

static seen_rows find_seen(const weft_latent_attend_args *args, uint32_t row) {
  seen_rows s = {.args = args, .segment = ref_latent_segment(args->segment, args->n_segments, row)};
  s.position = s.segment->kv_len + (row - s.segment->first_row);
  s.first_near = s.position + 1 > args->window ? s.position + 1 - args->window : 0;
  s.n_near = s.position + 1 - s.first_near;
  s.n_far = args->far.base == NULL ? 0 : (s.position + 1) / args->far.positions;
  s.ids = args->ids == NULL ? NULL : args->ids + (uint64_t)row * args->k;
  if (s.ids != NULL)
    for (s.n_far = 0; s.n_far < args->k && s.ids[s.n_far] >= 0;) s.n_far++;
  return s;
}

static void load_seen(const seen_rows *s, uint32_t i, float *to) {
  const weft_latent_attend_args *a = s->args;
  if (i < s->n_near) {
    const uint32_t *table = s->segment->table[WEFT_LATENT_NEAR];
    load_row(a->near.type, weft_latent_row(&a->near, a->near.offset, table, s->first_near + i), a->near.width, to);
    return;
  }
  uint32_t id = s->ids == NULL ? i - s->n_near : (uint32_t)s->ids[i - s->n_near];
  const uint8_t *from =
      weft_latent_row(&a->far, a->far.offset, s->segment->table[WEFT_LATENT_FAR], id * a->far.positions);
  load_row(a->far.type, from, a->far.width, to);
}

/* A head's softmax so far. */
typedef struct head_state {
  float most, total;
  float *out;
} head_state;

/* Shares of a block's n rows in place of their scores; gives what the sums before shrink by. */
static float share_block(head_state *h, float *score, uint32_t n) {
  float most = h->most, shares = 0.0f;
  for (uint32_t k = 0; k < n; k++)
    if (score[k] > most) most = score[k];
  for (uint32_t k = 0; k < BLOCK; k++) score[k] = k < n ? score[k] - most : -INFINITY;
  for (uint32_t k = 0; k < BLOCK; k += VF_LANES) vf_store(score + k, vf_exp(vf_load(score + k)));
  for (uint32_t k = 0; k < n; k++) shares += score[k];
  float shrinks = h->most == most ? 1.0f : expf(h->most - most);
  h->total = h->total * shrinks + shares;
  h->most = most;
  return shrinks;
}

/* out = out * shrinks + the sum of share * row; widths are filled up to whole vectors. */
static void add_block(float *out, float shrinks, const float *share, const float *rows, uint32_t n, uint32_t width) {
  for (uint32_t d = 0; d < width; d += VF_LANES) {
    vf sum = vf_load(out + d) * vf_set(shrinks);
    for (uint32_t k = 0; k < n; k++) sum = vf_fma(vf_set(share[k]), vf_load(rows + (uint64_t)k * width + d), sum);
    vf_store(out + d, sum);
  }
}

static void attend_heads(const weft_latent_attend_args *args, uint32_t row, uint32_t head) {
  const seen_rows seen = find_seen(args, row);
  const uint32_t n = args->near.width, width = (n + VF_LANES - 1) / VF_LANES * VF_LANES,
                 n_seen = seen.n_near + seen.n_far;
  const uint32_t n_heads = args->n_heads - head < HEADS ? args->n_heads - head : HEADS;
  const uint32_t n_out = args->n_values > 0 ? args->n_values : n;
  const float *q = args->q + row * args->q_stride + (uint64_t)head * n;
  float rows[BLOCK * WEFT_HEAD_DIM_MAX], out[HEADS * WEFT_HEAD_DIM_MAX], score[BLOCK];
  head_state state[HEADS];
  memset(rows, 0, (uint64_t)BLOCK * width * sizeof *rows);
  memset(out, 0, (uint64_t)n_heads * width * sizeof *out);
  for (uint32_t h = 0; h < n_heads; h++)
    state[h] = args->sinks == NULL ? (head_state){-INFINITY, 0.0f, out + (uint64_t)h * width}
                                   : (head_state){args->sinks[head + h], 1.0f, out + (uint64_t)h * width};
  for (uint32_t base = 0; base < n_seen; base += BLOCK) {
    const uint32_t n_block = n_seen - base < BLOCK ? n_seen - base : BLOCK;
    for (uint32_t k = 0; k < n_block; k++) load_seen(&seen, base + k, rows + (uint64_t)k * width);
    for (uint32_t h = 0; h < n_heads; h++) {
      for (uint32_t k = 0; k < n_block; k++)
        score[k] = args->scale * multiply_rows(q + (uint64_t)h * n, rows + (uint64_t)k * width, n);
      float shrinks = share_block(&state[h], score, n_block);
      add_block(state[h].out, shrinks, score, rows, n_block, width);
    }
  }
  for (uint32_t h = 0; h < n_heads; h++) {
    float *to = args->out + row * args->out_stride + (uint64_t)(head + h) * n_out;
    for (uint32_t d = 0; d < n_out; d++) to[d] = state[h].out[d] / state[h].total;
    if (args->n_values == 0) ref_latent_rotate(&args->turn, to, n, seen.position, -1.0f);
  }
}

/* ---- latent_choose ---- */

static float score_row(const weft_latent_choose_args *args, const float *q, const float *weights, const float *key) {
  const uint32_t n = args->index.width;
  float score = 0.0f;
  for (uint32_t h = 0; h < args->n_heads; h++) {
    float product = multiply_rows(q + (uint64_t)h * n, key, n);
    if (product > 0.0f) score += weights[h] * product;
  }
  return score;
}

/* ---- latent_heads ---- */

static void multiply_head(const weft_latent_heads_args *args, uint32_t row, uint32_t head) {
  const uint32_t n_in = args->n_in, n_out = args->n_out, n_rest = args->n_rest;
  const float *x = args->x + row * args->x_stride + (uint64_t)head * (n_in + n_rest);
  const float *weight = args->weight + (uint64_t)head * n_out * n_in;
  float *y = args->y + row * args->y_stride + (uint64_t)head * (n_out + n_rest);
  for (uint32_t i = 0; i < n_out; i++) y[i] = multiply_rows(weight + (uint64_t)i * n_in, x, n_in);
  if (n_rest > 0) memcpy(y + n_out, x + n_in, n_rest * sizeof *y);
}

const cpu_latent_code LATENT_CODE = {attend_heads, score_row, multiply_head};
