/* SPDX-License-Identifier: MIT */
#include "bench/quality/noise.h"

uint32_t weft_noise_count(float level, uint32_t n) {
  uint32_t count = (uint32_t)((double)level * n + 0.5);
  return count < 1 ? 1 : count > n ? n : count;
}

static uint64_t rank_bits(uint64_t seed, uint64_t position) {
  weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_NOISED, .position = position};
  return weft_draw_bits(&key);
}

/* How many positions are replaced before this one: those whose bits are smaller. */
static uint32_t rank_of(uint64_t seed, uint64_t at, uint32_t n, uint32_t i) {
  uint64_t own = rank_bits(seed, at + i);
  uint32_t rank = 0;
  for (uint32_t k = 0; k < n; k++) {
    uint64_t other = rank_bits(seed, at + k);
    rank += other < own || (other == own && k < i);
  }
  return rank;
}

void weft_noise_add(const int32_t *text, uint32_t n, uint64_t at, float level, uint64_t seed, uint32_t n_vocab,
                    int32_t *canvas, uint8_t *noised) {
  uint32_t count = weft_noise_count(level, n);
  for (uint32_t i = 0; i < n; i++) {
    weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_INIT, .position = at + i};
    noised[i] = rank_of(seed, at, n, i) < count;
    canvas[i] = noised[i] != 0 ? (int32_t)weft_draw_below(&key, n_vocab) : text[i];
  }
}
