/* SPDX-License-Identifier: MIT */
/* Frequencies of the rotation of queries and keys.
 *
 * Law: a model rotates pairs (i, head_dim / 2 + i) by position * inv_freq[i]. What a file says about longer contexts
 * (rope.scaling.*, rope_freqs) changes inv_freq, and the factor of the scores, at open; a step knows nothing of it. */
#ifndef WEFT_MODEL_ROPE_H
#define WEFT_MODEL_ROPE_H

#include "model/keys.h"
#include "model/weights.h"

/* rope.scaling.* of a file; the type in words as the format has them. */
weft_status rope_read_scaling(const model_keys *keys, model_hyper *hyper);
/* What the scores of a head that rotates in all its dimensions are multiplied by: yarn makes both sides longer. */
float rope_score_factor(const rope_scaling *scaling);
/* head_dim / 2 frequencies to device memory. divisor is NULL, or the rope_freqs of the file: a divisor of 1e29 or more
 * means no rotation. */
weft_status rope_frequencies(weights_loader *loader, uint32_t head_dim, float base, const float *divisor,
                             const float **out);

#endif
