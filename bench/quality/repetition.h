/* SPDX-License-Identifier: MIT */
/* How much answers repeat themselves, in tokens, without a model: a measure that says nothing of whether they are right.
 *
 * Law: a gram is WEFT_REPETITION_GRAM tokens that stand one after another. It is repeated if the same tokens stood
 * earlier in the same answer. Right answers repeat few grams (records with the same keys do); an answer in a loop
 * repeats nearly all of its own. */
#ifndef WEFT_BENCH_QUALITY_REPETITION_H
#define WEFT_BENCH_QUALITY_REPETITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFT_REPETITION_GRAM = 8 };

/* The bound. Right answers of the demo's questions repeat 7 % of their grams at most, where two calls of one tool are
 * answered, and no token more than three times in a row. */
#define WEFT_REPETITION_SHARE_MAX 0.10
#define WEFT_REPETITION_RUN_MAX   6

/* Over all answers that were added; all zero at first. */
typedef struct weft_repetition {
  uint64_t n_grams, n_repeated;
  uint64_t longest_run; /* tokens; the most that one token stood in a row */
} weft_repetition;

/* Adds one answer of n tokens. Time grows with the square of n. */
void weft_repetition_add(weft_repetition *r, const int32_t *tokens, size_t n);
/* The share of repeated grams, 0 where there are none. */
double weft_repetition_share(const weft_repetition *r);
/* Whether the answers are over the bound: they go round in circles. */
bool weft_repetition_is_loop(const weft_repetition *r);

#endif
