/* SPDX-License-Identifier: MIT */
/* One row of logits as a distribution over the vocabulary: what it says of the token that came, a short form of it to
 * keep, and how far another row is from a saved one.
 *
 * Law: the short form of a row is its largest logit minus each of its logits, in whole steps of 1/65535 of the row's
 * range (of 32 nats at most: what is further below the largest counts as that far). It stands for the softmax of these
 * numbers. A row is compared after it was rounded to the steps of the saved one, so equal logits have a divergence of
 * exactly 0. Rounding by a step s changes a divergence by about s^2 / 12: 2e-8 at most. */
#ifndef WEFT_BENCH_QUALITY_DISTRIBUTION_H
#define WEFT_BENCH_QUALITY_DISTRIBUTION_H

#include <stdbool.h>
#include <stdint.h>

/* What a row says of its token. */
typedef struct weft_score {
  float nll;    /* minus the logarithm of the token's probability, in nats */
  uint32_t top; /* the largest logit's token, the lower of two */
  bool bad;     /* a logit is not finite: nothing else counts */
} weft_score;

/* A row in its short form. */
typedef struct weft_saved_row {
  float step; /* nats; > 0, or 0 where all logits are equal */
  float nll;
  uint32_t top;
  uint16_t below[]; /* [n_vocab, rounded up to an even number], in steps */
} weft_saved_row;

uint64_t weft_saved_row_bytes(uint32_t n_vocab);

weft_score weft_score_row(const float *logits, uint32_t n_vocab, uint32_t token);
void weft_shorten_row(const float *logits, uint32_t n_vocab, const weft_score *score, weft_saved_row *out);
/* Whether numbers of a row that was read from a file are possible. */
bool weft_saved_row_is_sound(const weft_saved_row *row, uint32_t n_vocab);
/* KL(saved row || row of these logits), in nats, >= 0. score: of the logits, not bad. */
double weft_divergence(const weft_saved_row *saved, const float *logits, uint32_t n_vocab, const weft_score *score);

#endif
