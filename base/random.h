/* SPDX-License-Identifier: MIT */
/* Random numbers.
 *
 * Law: a draw is a pure function of its key; no state is kept between draws, so a request draws the same numbers alone,
 * in any batch and after preemption. Keys of different purposes give independent numbers. */
#ifndef WEFT_BASE_RANDOM_H
#define WEFT_BASE_RANDOM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_draw_purpose {
  WEFT_DRAW_TOKEN = 1,   /* the next token of an autoregressive request */
  WEFT_DRAW_INIT = 2,    /* the random tokens that a canvas begins with */
  WEFT_DRAW_CANVAS = 3,  /* the token drawn at a position of a canvas in a denoise step */
  WEFT_DRAW_RENOISE = 4, /* the random token that takes the place of one that a denoise step did not accept */
  WEFT_DRAW_TEST = 5,
  WEFT_DRAW_NOISED = 6 /* which positions of a text are replaced by noise (weft perplexity of a diffusion model) */
} weft_draw_purpose;

typedef struct weft_draw_key {
  uint64_t seed;
  uint32_t choice;   /* which of the n answers of a request */
  uint32_t purpose;  /* weft_draw_purpose */
  uint64_t position; /* of the token in its sequence, from 0 */
  uint32_t step;     /* denoise step, counted from 0; 0 where there is none */
} weft_draw_key;

static inline uint64_t weft_mix64(uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 32;
  return x;
}

/* 64 random bits of this key. */
static inline uint64_t weft_draw_bits(const weft_draw_key *key) {
  uint64_t x = weft_mix64(key->seed + 0x9E3779B97F4A7C15ull);
  x = weft_mix64(x ^ (((uint64_t)key->choice << 32) | key->purpose) * 0xA0761D6478BD642Full);
  x = weft_mix64(x ^ (key->position + 1) * 0xE7037ED1A0B428DBull);
  return weft_mix64(x ^ ((uint64_t)key->step + 1) * 0x8EBC6AF09C88C6E3ull);
}

/* Uniform in [0, 1), in multiples of 2^-24, which a float holds exactly on every device. */
static inline float weft_draw_uniform(const weft_draw_key *key) {
  return (float)(weft_draw_bits(key) >> 40) * 0x1p-24f;
}

/* Uniform in [0, n), n >= 1. */
static inline uint32_t weft_draw_below(const weft_draw_key *key, uint32_t n) {
  return (uint32_t)(((weft_draw_bits(key) >> 32) * (uint64_t)n) >> 32);
}

#ifdef __cplusplus
}
#endif
#endif
