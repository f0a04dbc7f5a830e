/* SPDX-License-Identifier: MIT */
/* The head's functions for one instruction set. head_portable.c, head_avx2.c and head_avx512.c include this file;
 * HEAD_TABLE and SOFT_TABLE are the names of the tables that it defines.
 *
 * Law: the numerics of head.h. */
#include <math.h>

#include "kernels/cpu/head.h"
#include "kernels/cpu/matmul_lanes.h"
#include "kernels/cpu/simd.h"

enum { TILE_ROWS = VF_LANES == 16 ? 8 : 4, TILE_PARTS = CPU_PANEL / VF_LANES };

/* tanh as 1 - 2 / (e^2|x| + 1) with the sign of x; the absolute error is below 2e-7. */
SIMD_INLINE vf tanh_of(vf x) {
  const vi sign = (vi)vf_set(-0.0f);
  vf size = (vf)((vi)x & ~sign), one = vf_set(1.0f);
  vf y = one - vf_set(2.0f) / (vf_exp(size + size) + one);
  return (vf)((vi)y | ((vi)x & sign));
}

static bool cap_logits(float *logits, uint32_t n, float cap) {
  vi finite = (vi)(vf_set(0.0f) == vf_set(0.0f));
  const vf inverse = vf_set(1.0f / cap); /* not read when cap is 0 */
  for (uint32_t i = 0; i < n; i += VF_LANES) {
    uint32_t left = n - i;
    vf x = left < VF_LANES ? vf_load_some(logits + i, left) : vf_load(logits + i);
    finite &= x - x == vf_set(0.0f);
    if (cap != 0.0f) x = tanh_of(x * inverse) * vf_set(cap);
    if (left < VF_LANES)
      vf_store_some(logits + i, x, left);
    else
      vf_store(logits + i, x);
  }
  for (uint32_t lane = 0; lane < VF_LANES; lane++) {
    if (finite[lane] == 0) return true;
  }
  return false;
}

/* All ones in lane j when bit i + j is set. */
SIMD_INLINE vi allowed_lanes(const uint32_t *allowed, uint32_t i) {
  vu lane, bits = {0};
  for (uint32_t j = 0; j < VF_LANES; j++) lane[j] = j;
  bits += allowed[i / 32] >> (i % 32);
  return (vi)((bits >> lane & 1u) == 1u);
}

/* Makes the logits of tokens that are not allowed, and those from n to the end of the chunk, -INFINITY. */
static void mask_logits(float *logits, uint32_t n, const uint32_t *allowed) {
  const vf none = vf_set(-INFINITY);
  for (uint32_t i = n; i < WEFT_VOCAB_CHUNK; i++) logits[i] = -INFINITY;
  if (allowed == NULL) return;
  for (uint32_t i = 0; i < n; i += VF_LANES) {
    vf_store(logits + i, vf_select(allowed_lanes(allowed, i), vf_load(logits + i), none));
  }
}

static void chunk_of(float *logits, uint32_t n, const uint32_t *allowed, float inverse_temperature,
                     cpu_head_chunk *out) {
  mask_logits(logits, n, allowed);
  vf most = vf_load(logits);
  for (uint32_t i = VF_LANES; i < n; i += VF_LANES) most = vf_max(most, vf_load(logits + i));
  *out = (cpu_head_chunk){.top = vf_max_lane(most)};
  if (out->top == -INFINITY) {
    memset(logits, 0, WEFT_VOCAB_CHUNK * sizeof *logits);
    return;
  }
  while (logits[out->index] != out->top) out->index += 1;
  const vf top = vf_set(out->top), inverse = vf_set(inverse_temperature), least = vf_set(-100.0f);
  vf sum = {0}, below = {0};
  for (uint32_t i = 0; i < WEFT_VOCAB_CHUNK; i += VF_LANES) {
    vf t = vf_max((vf_load(logits + i) - top) * inverse, least);
    vf e = vf_exp(t);
    sum += e;
    below = vf_fma(e, t, below);
    vf_store(logits + i, e);
  }
  out->sum = vf_sum(sum);
  out->below = vf_sum(below);
}

const cpu_head_fns HEAD_TABLE = {.cap = cap_logits, .chunk = chunk_of};

/* ---- soft embeddings in f32 ---- */

/* Inputs [i, i + 16) of a panel's sixteen tokens as value[input][token]. */
LANES_INLINE void widen_sixteen(const cpu_pack_info *info, const uint8_t *panel, uint32_t n_in, uint32_t i,
                                float value[CPU_PANEL][CPU_PANEL]) {
  if (info->form == CPU_FORM_FLOAT) {
    for (uint32_t k = 0; k < CPU_PANEL; k++) {
      lanes_f v = {0};
      if (i + k < n_in) v = lanes_weight(info->type, panel, i + k);
      lanes_store(value[k], v);
    }
    return;
  }
  lanes_block block = lanes_find_block(info, panel, i / CPU_PACK_BLOCK);
  lanes_u w[8];
  lanes_block_codes(info, &block, w);
  const lanes_u *codes = w + i % CPU_PACK_BLOCK / 4;
  const uint32_t half = i % CPU_PACK_BLOCK / CPU_PANEL;
  lanes_f scale = block.scale[half], least = block.least[half];
  for (uint32_t k = 0; k < CPU_PANEL; k++) {
    lanes_i code = (lanes_i)(codes[k / 4] >> (8 * (k % 4)) & 255u);
    if (lanes_has_least(info)) {
      lanes_store(value[k], scale * __builtin_convertvector(code, lanes_f) + least);
    } else {
      lanes_store(value[k], scale * __builtin_convertvector(code - (1 << info->offset_shift), lanes_f));
    }
  }
}

static void widen_f32(const cpu_soft_panels *panels, uint8_t *wide) {
  enum { COLUMN = WEFT_VOCAB_CHUNK * CPU_PANEL };
  float value[CPU_PANEL][CPU_PANEL];
  for (uint32_t at = 0; at < panels->n; at++) {
    const uint8_t *panel = panels->panel + at * panels->panel_bytes;
    float *to = (float *)(void *)wide + (uint64_t)(panels->first + at) * CPU_PANEL * CPU_PANEL;
    for (uint32_t i = 0; i < panels->n_in; i += CPU_PANEL, to += COLUMN) {
      widen_sixteen(panels->info, panel, panels->n_in, i, value);
      for (uint32_t v = 0; v < CPU_PANEL; v++) {
        for (uint32_t k = 0; k < CPU_PANEL; k++) to[v * CPU_PANEL + k] = value[k][v];
      }
    }
  }
}

static void add_f32(const cpu_soft_tile *tile) {
  float part[TILE_ROWS][CPU_PANEL];
  for (uint32_t first = 0; first < tile->n_rows; first += TILE_ROWS) {
    const float *w = (const float *)(const void *)tile->wide;
    vf sum[TILE_ROWS][TILE_PARTS] = {{{0}}};
    for (uint32_t v = 0; v < tile->n_tokens; v++, w += CPU_PANEL) {
#pragma GCC unroll 8
      for (uint32_t r = 0; r < TILE_ROWS; r++) {
        vf one = vf_set(tile->e[first + r][v]);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < TILE_PARTS; j++) sum[r][j] = vf_fma(vf_load(w + j * VF_LANES), one, sum[r][j]);
      }
    }
    for (uint32_t r = 0; r < TILE_ROWS && first + r < tile->n_rows; r++) {
      for (uint32_t j = 0; j < TILE_PARTS; j++) vf_store(part[r] + j * VF_LANES, sum[r][j]);
      const float *factor = tile->factor[first + r];
      lanes_f soft = lanes_load_part(tile->soft[first + r], tile->n_cols, 0.0f) * factor[0];
      lanes_store_part(tile->soft[first + r], soft + lanes_load(part[r]) * factor[1], tile->n_cols);
    }
  }
}

const cpu_soft_fns SOFT_TABLE = {.column_bytes = WEFT_VOCAB_CHUNK * CPU_PANEL * sizeof(float),
                                 .columns = 1,
                                 .least = 0x1p-40,
                                 .widen = widen_f32,
                                 .add = add_f32};
