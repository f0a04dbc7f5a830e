/* SPDX-License-Identifier: MIT */
/* Rotary position embeddings (RoPE): the frequencies by which queries and keys rotate.
 *
 * Law: a model rotates pairs (i, head_dim / 2 + i) by position * inv_freq[i]. What a file says about longer contexts
 * (rope.scaling.*, rope_freqs) changes inv_freq, and the factor of the scores, at open; a step knows nothing of it. */
#ifndef WEFT_MODEL_ROPE_H
#define WEFT_MODEL_ROPE_H

#include "model/gguf/keys.h"
#include "model/weights.h"

/* Reads the keys rope.scaling.* of a file. takes_shorter: the architecture takes yarn_log_multiplier, which is refused
 * for others. */
weft_status rope_read_scaling(const model_keys *keys, model_hyper *hyper, bool takes_shorter);
/* The factor of attention scores, for heads that rotate in all their dimensions: YaRN makes queries and keys longer. */
float rope_score_factor(const rope_scaling *scaling);
/* Puts the head_dim / 2 frequencies into device memory that the model owns. divisor is NULL or the file's rope_freqs,
 * where 1e29 or more means that the pair does not rotate. */
weft_status rope_frequencies(weights_loader *loader, uint32_t head_dim, float base, const float *divisor,
                             const float **out);
/* The n_rotated / 2 frequencies of a rotation with a scaling of its own; scaling NULL: none. */
weft_status rope_frequencies_of(weights_loader *loader, uint32_t n_rotated, float base, const rope_scaling *scaling,
                                const float **out);
/* The frequencies of a model whose layers all have one head size and rotate alike, for each of its parts; with the
 * divisors of rope_freqs.weight, if the file has it. */
weft_status rope_load(weights_loader *loader);

#endif
