/* SPDX-License-Identifier: MIT */
/* The functions of rows.h for one instruction set. rows_portable.c, rows_avx2.c and rows_avx512.c include this file;
 * ROWS_TABLE is the name of the table that it defines.
 *
 * Law (the order of sums): lane i of accumulator j adds the elements (block * SUMS + j) * VF_LANES + i, ascending; what
 * is left behind the last whole block goes to accumulator 0. Accumulators are added pairwise, then the lanes as vf_sum
 * does. All of this depends on n alone. */
#include <math.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

enum { SUMS = 4 };

SIMD_INLINE vf norm_summand(const cpu_norm_row *row, uint32_t i) {
  vf x = vf_load(row->x + i);
  return row->x2 == NULL ? x : x + vf_load(row->x2 + i);
}

SIMD_INLINE vf summand_some(const cpu_norm_row *row, uint32_t i, uint32_t n) {
  vf x = vf_load_some(row->x + i, n);
  return row->x2 == NULL ? x : x + vf_load_some(row->x2 + i, n);
}

static float sum_squares(const cpu_norm_row *row) {
  vf sum[SUMS] = {{0}};
  uint32_t i = 0;
  for (; i + SUMS * VF_LANES <= row->n; i += SUMS * VF_LANES) {
    for (uint32_t j = 0; j < SUMS; j++) {
      vf x = norm_summand(row, i + j * VF_LANES);
      sum[j] = vf_fma(x, x, sum[j]);
    }
  }
  for (; i + VF_LANES <= row->n; i += VF_LANES) {
    vf x = norm_summand(row, i);
    sum[0] = vf_fma(x, x, sum[0]);
  }
  if (i < row->n) {
    vf x = summand_some(row, i, row->n - i);
    sum[0] = vf_fma(x, x, sum[0]);
  }
  return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void norm_row(const cpu_norm_row *row) {
  const vf factor = vf_set(row->plain ? 1.0f : 1.0f / sqrtf(sum_squares(row) / (float)row->n + row->eps));
  const vf scale = vf_set(row->row_scale);
  uint32_t i = 0;
  for (; i + VF_LANES <= row->n; i += VF_LANES) {
    vf value = norm_summand(row, i) * factor;
    if (row->weight != NULL) value *= vf_load(row->weight + i);
    if (row->add != NULL) value += vf_load(row->add + i);
    vf_store(row->y + i, value * scale);
  }
  uint32_t left = row->n - i;
  if (left == 0) return;
  vf value = summand_some(row, i, left) * factor;
  if (row->weight != NULL) value *= vf_load_some(row->weight + i, left);
  if (row->add != NULL) value += vf_load_some(row->add + i, left);
  vf_store_some(row->y + i, value * scale, left);
}

SIMD_INLINE vf activate_vf(weft_activation activation, vf x) {
  if (activation == WEFT_SIGMOID) return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x));
  return activation == WEFT_SILU ? vf_silu(x) : vf_gelu_tanh(x);
}

/* A limit is the first operand, so that a number that is none stays none. */
SIMD_INLINE vf clamped_gate(vf g, vf u) {
  const vf limit = vf_set(WEFT_GATE_LIMIT), one = vf_set(1.0f);
  g = vf_min(limit, g);
  u = vf_max(-limit, vf_min(limit, u));
  return g / (one + vf_exp(vf_set(-WEFT_GATE_SLOPE) * g)) * (u + one);
}

static void gate_clamped_row(const float *g, const float *u, float *y, uint32_t n) {
  uint32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) vf_store(y + i, clamped_gate(vf_load(g + i), vf_load(u + i)));
  uint32_t left = n - i;
  if (left == 0) return;
  vf_store_some(y + i, clamped_gate(vf_load_some(g + i, left), vf_load_some(u + i, left)), left);
}

static void gate_row(weft_activation activation, const float *g, const float *u, float *y, uint32_t n) {
  if (activation == WEFT_CLAMPED_SILU) {
    gate_clamped_row(g, u, y, n);
    return;
  }
  uint32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) {
    vf_store(y + i, activate_vf(activation, vf_load(g + i)) * vf_load(u + i));
  }
  uint32_t left = n - i;
  if (left == 0) return;
  vf_store_some(y + i, activate_vf(activation, vf_load_some(g + i, left)) * vf_load_some(u + i, left), left);
}

static void gate_row_by_one(float g, const float *u, float *y, uint32_t n) {
  const vf factor = activate_vf(WEFT_SIGMOID, vf_set(g));
  uint32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) vf_store(y + i, vf_load(u + i) * factor);
  if (i < n) vf_store_some(y + i, vf_load_some(u + i, n - i) * factor, n - i);
}

static void scale_row(float *y, float factor, uint32_t n) {
  uint32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) vf_store(y + i, vf_load(y + i) * vf_set(factor));
  if (i < n) vf_store_some(y + i, vf_load_some(y + i, n - i) * vf_set(factor), n - i);
}

static void norm_head(const float *x, bool with_norm, const float *weight, float eps, uint32_t dim, float *y) {
  if (with_norm) {
    const cpu_norm_row row = {.x = x, .weight = weight, .y = y, .row_scale = 1.0f, .eps = eps, .n = dim};
    norm_row(&row);
  } else if (y != x) {
    memcpy(y, x, dim * sizeof(float));
  }
}

static void rotate_head(const float *cosine, const float *sine, uint32_t dim, float *y) {
  uint32_t half = dim / 2, i = 0;
  float *low = y, *high = y + half;
  for (; i + VF_LANES <= half; i += VF_LANES) {
    vf a = vf_load(low + i), b = vf_load(high + i), c = vf_load(cosine + i), s = vf_load(sine + i);
    vf_store(low + i, vf_fma(a, c, -(b * s)));
    vf_store(high + i, vf_fma(a, s, b * c));
  }
  uint32_t left = half - i;
  if (left == 0) return;
  vf a = vf_load_some(low + i, left), b = vf_load_some(high + i, left);
  vf c = vf_load_some(cosine + i, left), s = vf_load_some(sine + i, left);
  vf_store_some(low + i, vf_fma(a, c, -(b * s)), left);
  vf_store_some(high + i, vf_fma(a, s, b * c), left);
}

/* Sines and cosines, in double: n = angle / (pi / 2) rounded; r = angle - n pi / 2 with pi / 2 in two parts, of which
 * the first has 33 bits (Cody and Waite's reduction; the parts are those of fdlibm); then the Taylor series of sine and
 * cosine for |r| <= pi / 4. The loop is plain, so that the compiler makes vectors of it. */
static void rope_angles(const float *inv_freq, int32_t position, uint32_t n, float *cosine, float *sine) {
  const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
  for (uint32_t i = 0; i < n; i++) {
    float angle = (float)position * inv_freq[i];
    double x = (double)angle, shifted = x * 0.63661977236758134308 + magic;
    double turns = shifted - magic;
    double r = (x - turns * 1.57079632673412561417) - turns * 6.07710050650619224932e-11;
    double r2 = r * r;
    double s = r + r * r2 * (-1.0 / 6 + r2 * (1.0 / 120 + r2 * (-1.0 / 5040 + r2 * (1.0 / 362880 - r2 / 39916800))));
    double c =
        1.0 -
        r2 * (0.5 - r2 * (1.0 / 24 - r2 * (1.0 / 720 - r2 * (1.0 / 40320 - r2 * (1.0 / 3628800 - r2 / 479001600)))));
    uint64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    double first = (quadrant & 1u) != 0 ? c : s, second = (quadrant & 1u) != 0 ? s : c;
    sine[i] = (float)((quadrant & 2u) != 0 ? -first : first);
    cosine[i] = (float)(((quadrant + 1) & 2u) != 0 ? -second : second);
  }
}

static void to_bf16(const float *x, uint16_t *y, uint32_t n) {
  uint32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) {
    vh narrow = vf_narrow_bf16(vf_load(x + i));
    memcpy(y + i, &narrow, sizeof narrow);
  }
  if (i == n) return;
  vh narrow = vf_narrow_bf16(vf_load_some(x + i, n - i));
  memcpy(y + i, &narrow, (n - i) * sizeof(uint16_t));
}

/* Rounds to the nearest integer, halves away from zero, for |x| < 2^22. It adds the largest f32 below 1/2 and cuts the
 * fraction off; 1/2 itself would make 1 of the largest number below 1/2. */
SIMD_INLINE vi round_away(vf x) {
  vu sign = (vu)x & 0x80000000u;
  return __builtin_convertvector(x + (vf)((vu)vf_set(0x1.fffffep-2f) | sign), vi);
}

static void to_q8(const float *x, uint8_t *y, uint32_t n) {
  for (uint32_t i = 0; i < n; i += WEFT_KV_Q8_BLOCK) {
    vf most = {0}, spoilt = {0};
    for (uint32_t j = 0; j < WEFT_KV_Q8_BLOCK; j += VF_LANES) {
      vf value = vf_load(x + i + j);
      most = vf_max((vf)((vu)value & 0x7FFFFFFFu), most);
      spoilt += value * vf_set(0.0f);
    }
    float d = vf_max_lane(most) / 127.0f + vf_sum(spoilt);
    uint16_t factor = weft_f32_to_f16(d);
    vf inverse = vf_set(d >= WEFT_KV_Q8_LEAST ? 1.0f / d : 0.0f);
    for (uint32_t j = 0; j < WEFT_KV_Q8_BLOCK; j += VF_LANES) {
      vb q = __builtin_convertvector(round_away(vf_load(x + i + j) * inverse), vb);
      memcpy(y + i + j, &q, sizeof q);
    }
    memcpy(y + n + i / WEFT_KV_Q8_BLOCK * sizeof factor, &factor, sizeof factor);
  }
}

const cpu_rows ROWS_TABLE = {
    .norm = norm_row,
    .gate = gate_row,
    .gate_by_one = gate_row_by_one,
    .scale = scale_row,
    .angles = rope_angles,
    .head = norm_head,
    .rotate = rotate_head,
    .to_bf16 = to_bf16,
    .to_q8 = to_q8,
};
