/* SPDX-License-Identifier: MIT */
/* Noise on a text, as a canvas of the sampler has it: a position either has the text's token, or one drawn evenly from the
 * whole vocabulary (which may by chance be the text's).
 *
 * Law: a level t replaces round(t * n) of n positions, one at least. Which ones, and by what, depends on seed and place in
 * the text only; a higher level replaces the positions of a lower one by the same tokens, and more. */
#ifndef WEFT_BENCH_QUALITY_NOISE_H
#define WEFT_BENCH_QUALITY_NOISE_H

#include "bench/inside.h"

uint32_t weft_noise_count(float level, uint32_t n);
/* text[0..n) at position `at` of the whole; writes canvas[n], and noised[n]: 1 where it was replaced. */
void weft_noise_add(const int32_t *text, uint32_t n, uint64_t at, float level, uint64_t seed, uint32_t n_vocab,
                    int32_t *canvas, uint8_t *noised);

#endif
