/* SPDX-License-Identifier: MIT */
/* Products of rows with panels in plain C, with the numerics of matmul.h. */
#include <math.h>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_lanes.h"

/* A quarter of sixteen lanes, which is what a machine of this file has registers for. A number put into all sixteen at
 * once would go through memory in small pieces. */
typedef int32_t quad_i __attribute__((vector_size(16)));
typedef uint32_t quad_u __attribute__((vector_size(16)));
typedef uint16_t quad_halves __attribute__((vector_size(16)));

enum { CODES = 16, QUADS = CPU_PANEL / 4 };

/* dot[o] = start + the sum over four vectors, of four inputs each, of w * code. The first and third code of a lane are
 * multiplied at once, and so are the second and fourth: a product of 8 bits without a sign and 8 with one fits the half
 * of a lane, and SSE2 has no instruction that multiplies whole lanes. */
LANES_INLINE void dot_codes(int32_t start, const lanes_u *w, const uint8_t *codes, int32_t dot[CPU_PANEL]) {
  quad_u x[CODES / 2];
  for (uint32_t c = 0; c < CODES / 4; c++) {
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t low = (uint16_t)(int8_t)codes[4 * c + i], high = (uint16_t)(int8_t)codes[4 * c + i + 2];
      x[2 * c + i] = (quad_u){0} + (low | high << 16);
    }
  }
  for (uint32_t q = 0; q < QUADS; q++) {
    quad_i sum = (quad_i){0} + start;
#pragma GCC unroll 4
    for (uint32_t c = 0; c < CODES / 4; c++) {
      quad_u v;
      memcpy(&v, (const uint8_t *)&w[c] + q * sizeof v, sizeof v);
      quad_u even = (quad_u)((quad_halves)(v & 0x00FF00FFu) * (quad_halves)x[2 * c]);
      quad_u odd = (quad_u)((quad_halves)(v >> 8 & 0x00FF00FFu) * (quad_halves)x[2 * c + 1]);
      sum += ((quad_i)(even << 16) >> 16) + ((quad_i)even >> 16) + ((quad_i)(odd << 16) >> 16) + ((quad_i)odd >> 16);
    }
    memcpy(dot + 4 * q, &sum, sizeof sum);
  }
}

static float read_float(const uint8_t *at) {
  float f;
  memcpy(&f, at, sizeof f);
  return f;
}

/* Adds a block to the sums of one row: acc[o] for output o. */
static void add_block(const cpu_pack_info *info, const lanes_block *block, const lanes_u w[8], const uint8_t *x,
                      float acc[CPU_PANEL]) {
  const float x_scale = read_float(x + CPU_X_SCALE), x_sum = read_float(x + CPU_X_SUM);
  const int32_t offset = 1 << info->offset_shift;
  bool pairs = info->form == CPU_FORM_PAIRS, split = info->form == CPU_FORM_SPLIT || pairs;
  int16_t minus[2];
  int32_t start0 = 0, start1 = 0, dot0[CPU_PANEL], dot1[CPU_PANEL];
  memcpy(minus, x + CPU_X_MINUS, sizeof minus);
  if (info->form == CPU_FORM_OFFSET) start0 = (minus[0] + minus[1]) * offset;
  if (info->form == CPU_FORM_SPLIT) {
    start0 = minus[0] * offset;
    start1 = minus[1] * offset;
  }
  dot_codes(start0, w, x, dot0);
  dot_codes(start1, w + 4, x + CODES, dot1);
  for (uint32_t o = 0; o < CPU_PANEL && !split; o++) dot0[o] += dot1[o];
  for (uint32_t o = 0; o < CPU_PANEL; o++) {
    float t = block->scale[0][o] * (float)dot0[o];
    if (info->form == CPU_FORM_LEAST) t = fmaf(block->least[0][o], x_sum, t);
    if (split) t = fmaf(block->scale[1][o], (float)dot1[o], t);
    if (pairs) t = fmaf(block->least[0][o], -(float)minus[0], t);
    if (pairs) t = fmaf(block->least[1][o], -(float)minus[1], t);
    acc[o] = fmaf(t, x_scale, acc[o]);
  }
}

static void store_rows(const cpu_tile *tile, uint32_t panel, const float acc[][CPU_PANEL]) {
  uint32_t n = tile->n_cols - panel * CPU_PANEL;
  if (n > CPU_PANEL) n = CPU_PANEL;
  for (uint32_t r = 0; r < tile->n_rows; r++) {
    memcpy(tile->y + r * tile->y_stride + (uint64_t)panel * CPU_PANEL, acc[r], n * sizeof(float));
  }
}

static void quantised_panel(const cpu_tile *tile, uint32_t p) {
  float acc[CPU_GROUP][CPU_PANEL] = {{0}};
  const uint8_t *panel = tile->panel + p * tile->panel_bytes;
  lanes_u w[8];
  for (uint32_t b = 0; b < tile->n_in / CPU_PACK_BLOCK; b++) {
    lanes_block block = lanes_find_block(tile->info, panel, b);
    lanes_block_codes(tile->info, &block, w);
    const uint8_t *x = tile->x + (uint64_t)b * CPU_X_BYTES * tile->n_rows;
    for (uint32_t r = 0; r < tile->n_rows; r++) {
      add_block(tile->info, &block, w, x + CPU_X_BYTES * r, acc[r]);
    }
  }
  store_rows(tile, p, acc);
}

static void float_panel(const cpu_tile *tile, uint32_t p) {
  float total[CPU_GROUP][CPU_PANEL] = {{0}};
  const uint8_t *panel = tile->panel + p * tile->panel_bytes;
  lanes_f acc[CPU_GROUP];
  for (uint32_t first = 0; first < tile->n_in; first += CPU_SEGMENT) {
    uint32_t n = tile->n_in - first < CPU_SEGMENT ? tile->n_in - first : CPU_SEGMENT;
    memset(acc, 0, sizeof acc);
    for (uint32_t i = first; i < first + n; i++) {
      lanes_f w = lanes_weight(tile->info->type, panel, i);
      const uint8_t *x = tile->x + 4ull * i * tile->n_rows;
      for (uint32_t r = 0; r < tile->n_rows; r++) acc[r] += w * lanes_splat(read_float(x + 4 * r));
    }
    for (uint32_t r = 0; r < tile->n_rows; r++) lanes_store(total[r], lanes_load(total[r]) + acc[r]);
  }
  store_rows(tile, p, total);
}

static void tile_portable(const cpu_tile *tile) {
  for (uint32_t p = 0; p < tile->n_panels; p++) {
    if (tile->info->form == CPU_FORM_FLOAT)
      float_panel(tile, p);
    else
      quantised_panel(tile, p);
  }
}

const cpu_products cpu_products_portable = {
    .tile = tile_portable,
    .quantise = lanes_quantise,
    .add_ranked = lanes_add_ranked,
};
