/* SPDX-License-Identifier: MIT */
/* The functions of delta.h for one instruction set. delta_portable.c, delta_avx2.c and delta_avx512.c include this
 * file; DELTA_CODE is the name of the table that it defines. */
#include <math.h>

#include "kernels/cpu/delta.h"
#include "kernels/cpu/simd.h"

enum { WIDE = 4 /* vectors of a result that are added up at a time */ };

SIMD_INLINE vf load_part(const float *from, uint32_t n) {
  return n >= VF_LANES ? vf_load(from) : vf_load_some(from, n);
}

SIMD_INLINE void store_part(float *to, vf x, uint32_t n) {
  if (n >= VF_LANES)
    vf_store(to, x);
  else
    vf_store_some(to, x, n);
}

static void convolve_channels(const float *conv, const float *const input[WEFT_DELTA_TAPS], uint32_t n, float *y) {
  for (uint32_t c = 0; c < n; c++) {
    float sum = 0.0f;
    for (uint32_t j = 0; j < WEFT_DELTA_TAPS; j++) sum += conv[c * WEFT_DELTA_TAPS + j] * input[j][c];
    y[c] = sum;
  }
  for (uint32_t c = 0; c < n; c += VF_LANES) store_part(y + c, vf_silu(load_part(y + c, n - c)), n - c);
}

static float multiply_heads(const float *a, const float *b, uint32_t n) {
  vf sum = {0};
  for (uint32_t i = 0; i < n; i += VF_LANES) sum = vf_fma(load_part(a + i, n - i), load_part(b + i, n - i), sum);
  return vf_sum(sum);
}

static void norm_length(const float *x, uint32_t n, float factor, float *y) {
  const vf scale = vf_set(factor / sqrtf(multiply_heads(x, x, n) + 1e-6f));
  for (uint32_t i = 0; i < n; i += VF_LANES) store_part(y + i, load_part(x + i, n - i) * scale, n - i);
}

/* weight[i] = e^(G_t - G_i) for i < n; returns e^(G_t). */
static float fill_weights(cpu_delta_block *block, uint32_t t, uint32_t n) {
  const vf last = vf_set(block->total[t]);
  float all[VF_LANES];
  for (uint32_t i = 0; i < n; i += VF_LANES)
    store_part(block->weight + i, vf_exp(last - load_part(block->total + i, n - i)), n - i);
  vf_store(all, vf_exp(last));
  return all[0];
}

/* Up to WIDE vectors of a result, from column j on, of which n_cols are left. */
SIMD_INLINE void read_columns(const cpu_delta_block *block, float decay, uint32_t n, const float *x, uint32_t j,
                              uint32_t n_vectors, float *out) {
  const uint32_t dim = block->dim;
  vf sum[WIDE];
  for (uint32_t v = 0; v < n_vectors; v++) sum[v] = vf_set(0.0f);
  for (uint32_t i = 0; i < dim; i++) {
    const float *row = block->state + (uint64_t)i * dim + j;
    for (uint32_t v = 0; v < n_vectors; v++)
      sum[v] = vf_fma(vf_set(x[i]), load_part(row + v * VF_LANES, dim - j - v * VF_LANES), sum[v]);
  }
  for (uint32_t v = 0; v < n_vectors; v++) sum[v] *= vf_set(decay);
  for (uint32_t i = 0; i < n; i++) {
    const float *row = block->u + (uint64_t)i * dim + j;
    for (uint32_t v = 0; v < n_vectors; v++)
      sum[v] = vf_fma(vf_set(block->weight[i]), load_part(row + v * VF_LANES, dim - j - v * VF_LANES), sum[v]);
  }
  for (uint32_t v = 0; v < n_vectors; v++) store_part(out + j + v * VF_LANES, sum[v], dim - j - v * VF_LANES);
}

static void read_block(cpu_delta_block *block, uint32_t t, uint32_t n, const float *x, float *out) {
  const uint32_t dim = block->dim;
  const float decay = fill_weights(block, t, n);
  uint32_t j = 0;
  for (uint32_t i = 0; i < n; i++) block->weight[i] *= multiply_heads(block->key + (uint64_t)i * dim, x, dim);
  for (; j + WIDE * VF_LANES <= dim; j += WIDE * VF_LANES) read_columns(block, decay, n, x, j, WIDE, out);
  for (; j < dim; j += VF_LANES) read_columns(block, decay, n, x, j, 1, out);
}

SIMD_INLINE void cross_columns(cpu_delta_block *block, float decay, uint32_t every, uint32_t a, uint32_t j,
                               uint32_t n_vectors) {
  const uint32_t dim = block->dim;
  float *at = block->state + (uint64_t)a * dim + j;
  vf sum[WIDE];
  for (uint32_t v = 0; v < n_vectors; v++)
    sum[v] = load_part(at + v * VF_LANES, dim - j - v * VF_LANES) * vf_set(decay);
  for (uint32_t i = 0; i < every; i++) {
    const vf by = vf_set(block->weight[i] * block->key[(uint64_t)i * dim + a]);
    const float *row = block->u + (uint64_t)i * dim + j;
    for (uint32_t v = 0; v < n_vectors; v++)
      sum[v] = vf_fma(by, load_part(row + v * VF_LANES, dim - j - v * VF_LANES), sum[v]);
  }
  for (uint32_t v = 0; v < n_vectors; v++) store_part(at + v * VF_LANES, sum[v], dim - j - v * VF_LANES);
}

static void cross_block(cpu_delta_block *block, uint32_t every) {
  const uint32_t dim = block->dim;
  const float decay = fill_weights(block, every - 1, every);
  for (uint32_t a = 0; a < dim; a++) {
    uint32_t j = 0;
    for (; j + WIDE * VF_LANES <= dim; j += WIDE * VF_LANES) cross_columns(block, decay, every, a, j, WIDE);
    for (; j < dim; j += VF_LANES) cross_columns(block, decay, every, a, j, 1);
  }
}

const cpu_delta_code DELTA_CODE = {
    .convolve = convolve_channels,
    .length = norm_length,
    .read = read_block,
    .cross = cross_block,
};
