/* SPDX-License-Identifier: MIT */
/* Where things lie in a packed row tile, for every instruction set (card_products.h). */
#ifndef WEFT_KERNELS_CPU_CARD_PRODUCTS_IMPL_H
#define WEFT_KERNELS_CPU_CARD_PRODUCTS_IMPL_H

#include <string.h>

#include "kernels/cpu/card_products.h"
#include "kernels/quant.h"

#define CARD_INLINE static inline __attribute__((always_inline, unused))
/* A number whose f32 neighbours are 1 apart; bytes of integers are its low bytes. */
#define CARD_MAGIC 12582912.0f /* 1.5 * 2^23 */

/* Bytes of codes and high bits of 128 inputs, and of the scales of a unit. */
typedef struct card_shape {
  uint32_t codes, high, scales, unit, offset;
} card_shape;

CARD_INLINE card_shape card_shape_of(int type) {
  switch (type) {
    case WEFT_TYPE_Q8_0:
      return (card_shape){2048, 0, 128, 128, 128};
    case WEFT_TYPE_Q4_0:
      return (card_shape){1024, 0, 128, 128, 8};
    case WEFT_TYPE_Q5_0:
      return (card_shape){1024, 256, 128, 128, 16};
    case WEFT_TYPE_Q4_K:
      return (card_shape){1024, 0, 256, 256, 0};
    case WEFT_TYPE_Q5_K:
      return (card_shape){1024, 256, 256, 256, 0};
    default:
      return (card_shape){1024, 512, 288, 256, 32};
  }
}

/* 128 inputs of a row tile; the last ones may be a tail of 64 (packed_layout.cuh). */
typedef struct card_block {
  const uint8_t *codes, *high, *scales;
  bool tail;
} card_block;

CARD_INLINE card_block card_block_of(int type, uint32_t n_in, const uint8_t *tile, uint32_t unit) {
  const card_shape f = card_shape_of(type);
  if (f.unit == 256) {
    const uint8_t *base = tile + (uint64_t)(unit / 2) * (2 * (f.codes + f.high) + f.scales);
    return (card_block){base + unit % 2 * f.codes, base + 2 * f.codes + unit % 2 * f.high,
                        base + 2 * (f.codes + f.high), false};
  }
  const uint8_t *base = tile + (uint64_t)unit * (f.codes + f.high + f.scales);
  const bool tail = n_in - 128 * unit <= 64;
  const uint32_t shift = tail ? 1 : 0;
  return (card_block){base, base + (f.codes >> shift), base + ((f.codes + f.high) >> shift), tail};
}

/* Row tiles lie one behind another, so what comes CARD_FETCH_SPANS further on is read next: a hint. */
enum { CARD_FETCH_SPANS = 2 };
CARD_INLINE void card_fetch_ahead(int type, const uint8_t *tile, uint32_t span) {
  const card_shape f = card_shape_of(type);
  const uint32_t n_bytes = 256 / f.unit * (f.unit / 128 * (f.codes + f.high) + f.scales);
  const uint8_t *next = tile + (uint64_t)(span + CARD_FETCH_SPANS) * n_bytes;
  for (uint32_t at = 0; at < n_bytes; at += 64) __builtin_prefetch(next + at);
}

/* The inverse of a step as the card has it: 2^11 / step. */
CARD_INLINE float card_over(float step) {
  const float inverse = 1.0f / (step == 0.0f ? 1.0f : step) * 0x1p11f; /* so that many are made at once */
  return step == 0.0f ? 0.0f : inverse;
}

CARD_INLINE float card_half(const uint8_t *at) {
  uint16_t bits;
  memcpy(&bits, at, 2);
  return weft_f16_to_f32(bits);
}

CARD_INLINE float card_step(const card_matrix *m, uint32_t n_spans, uint32_t tile, uint32_t span, uint32_t row) {
  uint16_t bits;
  memcpy(&bits, m->steps + (((uint64_t)tile * n_spans + span) * CARD_TILE + row) * 2, 2);
  return weft_bf16_to_f32(bits);
}

#endif
