/* SPDX-License-Identifier: MIT */
#include "bench/quality/distribution.h"

#include <math.h>
#include <string.h>

enum { STEPS = 65535, DIGIT = 256, DIGITS = 2 };
static const float range_max = 32.0f;

uint64_t weft_saved_row_bytes(uint32_t n_vocab) {
  return sizeof(weft_saved_row) + ((uint64_t)n_vocab + n_vocab % 2) * sizeof(uint16_t);
}

weft_score weft_score_row(const float *logits, uint32_t n_vocab, uint32_t token) {
  weft_score score = {.nll = 0.0f};
  double total = 0.0;
  for (uint32_t v = 0; v < n_vocab; v++) {
    if (!isfinite(logits[v])) {
      score.bad = true;
      return score;
    }
    if (logits[v] > logits[score.top]) score.top = v;
  }
  float largest = logits[score.top];
  for (uint32_t v = 0; v < n_vocab; v++) total += (double)expf(logits[v] - largest);
  score.nll = (float)(log(total) + (double)largest - (double)logits[token]);
  return score;
}

void weft_shorten_row(const float *logits, uint32_t n_vocab, const weft_score *score, weft_saved_row *out) {
  float largest = logits[score->top], range = 0.0f;
  for (uint32_t v = 0; v < n_vocab; v++) range = fmaxf(range, largest - logits[v]);
  range = fminf(range, range_max);
  memset(out, 0, weft_saved_row_bytes(n_vocab));
  out->step = range / STEPS;
  out->nll = score->nll;
  out->top = score->top;
  if (!(out->step > 0.0f)) return;
  for (uint32_t v = 0; v < n_vocab; v++) {
    double below = rint(((double)largest - (double)logits[v]) / (double)out->step);
    out->below[v] = below < STEPS ? (uint16_t)below : STEPS;
  }
}

bool weft_saved_row_is_sound(const weft_saved_row *row, uint32_t n_vocab) {
  return row->step >= 0.0f && row->step <= range_max / STEPS * 1.001f && row->nll >= 0.0f && isfinite(row->nll) &&
         row->top < n_vocab && row->below[row->top] == 0;
}

/* exp(-step * n) for whole n up to 65535 as a product, one factor for each digit of n: a row of a large vocabulary then
 * needs 512 exponentials, not one for each token. */
typedef struct powers {
  double of[DIGITS][DIGIT];
} powers;

static void fill_powers(powers *p, double step) {
  double unit = step;
  for (uint32_t d = 0; d < DIGITS; d++, unit *= DIGIT) {
    for (uint32_t i = 0; i < DIGIT; i++) p->of[d][i] = exp(-unit * i);
  }
}

static double power_of(const powers *p, double step, double n) {
  if (n > STEPS) return exp(-step * n);
  uint32_t k = (uint32_t)n;
  return p->of[0][k % DIGIT] * p->of[1][k / DIGIT];
}

double weft_divergence(const weft_saved_row *saved, const float *logits, uint32_t n_vocab, const weft_score *score) {
  powers p;
  double step = (double)saved->step, largest = (double)logits[score->top];
  double saved_total = 0.0, total = 0.0, weighted = 0.0;
  fill_powers(&p, step);
  for (uint32_t v = 0; v < n_vocab; v++) {
    double a = saved->below[v], b = 0.0, gap = largest - (double)logits[v], weight = power_of(&p, step, a);
    if (step > 0.0) {
      b = rint(gap / step);
      if (a == STEPS && b > STEPS) b = STEPS; /* both are further below than the short form tells apart */
      total += power_of(&p, step, b);
    } else { /* all logits of the saved row are equal: there are no steps to round to */
      b = gap;
      total += exp(-gap);
    }
    saved_total += weight;
    weighted += weight * (b - a);
  }
  double unit = step > 0.0 ? step : 1.0;
  double divergence = unit * weighted / saved_total + log(total) - log(saved_total);
  return divergence > 0.0 ? divergence : 0.0; /* sums may be off by their rounding */
}
