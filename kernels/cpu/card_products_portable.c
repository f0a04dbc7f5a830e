/* SPDX-License-Identifier: MIT */
/* Products of 8 bits from a card's packed weights in plain C: number by number, as the layout says. */
#include <math.h>

#include "kernels/cpu/card_products_impl.h"

/* Factors of a number: integer = round(zero + code * scale). */
typedef struct number_factors {
  float scale, zero;
} number_factors;

static float f16_rounded(float value) {
  return weft_f16_to_f32(weft_f32_to_f16(value));
}

static number_factors factors_of(float scale, float zero_point) {
  const float zero = f16_rounded(f16_rounded(zero_point) + 0.1875f);
  return (number_factors){f16_rounded(scale) * 0x1p-11f, (zero - 0.1875f) * 0x1p13f};
}

/* Of input k < 128 of a block's row. half: which half of a super-block it is. */
static number_factors load_factors(int type, const card_block *b, uint32_t half, uint32_t row, uint32_t k, float over) {
  const uint32_t c = k / 32;
  if (type == WEFT_TYPE_Q4_K || type == WEFT_TYPE_Q5_K) {
    const uint8_t *own = b->scales + 16 * row, *six = own + 4;
    uint32_t scale = six[c] & 63u, least = six[c + 4] & 63u;
    if (half != 0) {
      scale = (six[8 + c] & 15u) | (uint32_t)six[c] >> 6 << 4;
      least = (uint32_t)six[8 + c] >> 4 | (uint32_t)six[4 + c] >> 6 << 4;
    }
    return factors_of(card_half(own) * over * (float)scale,
                      card_half(own + 2) * (over * -0x1p-14f) * ((float)least * 0x1p-10f));
  }
  float scale;
  if (type == WEFT_TYPE_Q6_K) {
    scale = card_half(b->scales + 256 + 2 * row) * over * (float)(int8_t)b->scales[16 * row + 8 * half + k / 16];
  } else {
    const uint32_t at = b->tail ? row % 8 * 8 + k / 32 * 4 : (row % 8 * 4 + c) * 4;
    scale = card_half(b->scales + at + row / 8 * 2) * over;
  }
  return factors_of(scale, scale * (-(float)card_shape_of(type).offset * 0x1p-24f));
}

static uint32_t load_code(int type, const card_block *b, uint32_t row, uint32_t k) {
  const uint32_t per = b->tail ? 16 : 32, lane = row % 8 * 4 + k / per, r = row / 8, e = k % per;
  if (type == WEFT_TYPE_Q8_0) return b->codes[e / 16 * 1024 + r * 512 + lane * 16 + e % 16] ^ 0x80u;
  const uint8_t *word = b->codes + (r * 32 + lane) * (per / 2) + e / 8 * 4;
  const uint32_t bit = e % 2 * 16 + e % 8 / 2 * 4;
  uint32_t code = (uint32_t)word[bit / 8] >> bit % 8 & 15u, p = e / 2;
  if (type == WEFT_TYPE_Q6_K) {
    const uint32_t two = e % 2 * 16 + 2 * (p % 8);
    return code | ((uint32_t)b->high[lane * 16 + r * 8 + e / 16 * 4 + two / 8] >> two % 8 & 3u) << 4;
  }
  if (card_shape_of(type).high == 0) return code;
  const uint8_t *high = b->high + (b->tail ? lane * 4 + r * 2 : lane * 8 + r * 4);
  const uint32_t one = e % 2 * (per / 2) + p;
  return code | ((uint32_t)high[one / 8] >> one % 8 & 1u) << 4;
}

/* The integers of a row's span, in the order of rows. */
static void load_integers(const card_matrix *m, const uint8_t *tile, uint32_t span, uint32_t row, float step,
                          int8_t *out) {
  const bool nibbles = card_products_by_nibbles(m->type);
  const float over = card_over(step);
  memset(out, 0, CARD_SPAN);
  for (uint32_t i = 0; i < CARD_SPAN && CARD_SPAN * span + i < m->n_in && isfinite(step); i++) {
    const uint32_t unit = 2 * span + i / 128, k = i % 128, e = k % 8;
    const card_block block = card_block_of(m->type, m->n_in, tile, unit);
    const number_factors f = load_factors(m->type, &block, unit % 2, row, k, over);
    const double value = (double)f.scale * (double)load_code(m->type, &block, row, k) + (double)f.zero;
    const uint32_t place = e % 4 / 2 * 64 + k / 8 * 4 + e % 2 * 2 + e / 4;
    out[i / 128 * 128 + (nibbles ? place : k)] = (int8_t)(int32_t)rint(value);
  }
}

void card_tile_portable(const card_matrix *m, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride) {
  const uint32_t n_spans = (m->n_in + CARD_SPAN - 1) / CARD_SPAN;
  const uint8_t *own = m->tiles + (uint64_t)tile * card_products_tile_bytes(m->type, m->n_in);
  for (uint32_t r = 0; r < rows->n; r++) memset(y + r * y_stride, 0, CARD_TILE * sizeof *y);
  for (uint32_t span = 0; span < n_spans; span++) {
    for (uint32_t o = 0; o < CARD_TILE; o++) {
      int8_t w[CARD_SPAN];
      const float step = card_step(m, n_spans, tile, span, o);
      load_integers(m, own, span, o, step, w);
      for (uint32_t r = 0; r < rows->n; r++) {
        const uint64_t at = (uint64_t)r * n_spans + span;
        const int8_t *x = rows->numbers + at * CARD_SPAN;
        int32_t sum = 0;
        for (uint32_t i = 0; i < CARD_SPAN; i++) sum += (int32_t)w[i] * x[i];
        y[r * y_stride + o] = fmaf((float)sum, rows->scales[at] * step, y[r * y_stride + o]);
      }
    }
  }
}
