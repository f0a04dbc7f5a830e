/* SPDX-License-Identifier: MIT */
#include "kernels/kv_row.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

enum { BLOCK = WEFT_KV_Q8_BLOCK };

static void store_q8(const float *x, int8_t *q, uint16_t *factor) {
  float largest = 0.0f, spoilt = 0.0f; /* spoilt: 0, or NaN when a value is not finite */
  for (uint32_t i = 0; i < BLOCK; i++) {
    largest = fmaxf(largest, fabsf(x[i]));
    spoilt += x[i] * 0.0f;
  }
  float d = largest / 127.0f + spoilt;
  float inverse = d >= WEFT_KV_Q8_LEAST ? 1.0f / d : 0.0f;
  *factor = weft_f32_to_f16(d);
  for (uint32_t i = 0; i < BLOCK; i++) q[i] = inverse > 0.0f ? (int8_t)roundf(x[i] * inverse) : 0;
}

void weft_kv_row_store(weft_type type, const float *x, uint32_t n, void *to) {
  WEFT_CHECK(weft_kv_row_fits(type, n));
  if (type != WEFT_TYPE_Q8_0) {
    WEFT_CHECK(weft_quantise_row(type, x, to, n) == WEFT_OK);
    return;
  }
  int8_t *q = to;
  for (uint32_t i = 0; i < n; i += BLOCK) {
    uint16_t factor;
    store_q8(x + i, q + i, &factor);
    memcpy(q + n + i / BLOCK * sizeof factor, &factor, sizeof factor);
  }
}

void weft_kv_row_load(weft_type type, const void *from, uint32_t n, float *x) {
  WEFT_CHECK(weft_kv_row_fits(type, n));
  if (type != WEFT_TYPE_Q8_0) {
    weft_dequantise_row(type, from, x, n);
    return;
  }
  const int8_t *q = from;
  for (uint32_t i = 0; i < n; i += BLOCK) {
    uint16_t bits;
    memcpy(&bits, q + n + i / BLOCK * sizeof bits, sizeof bits);
    const float factor = weft_f16_to_f32(bits);
    for (uint32_t k = i; k < i + BLOCK; k++) x[k] = factor * (float)q[k];
  }
}
