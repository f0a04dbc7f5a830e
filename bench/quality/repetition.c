/* SPDX-License-Identifier: MIT */
#include "bench/quality/repetition.h"

#include <stdbool.h>
#include <string.h>

static bool stood_before(const int32_t *tokens, size_t at) {
  for (size_t i = 0; i < at; i++) {
    if (memcmp(tokens + i, tokens + at, WEFT_REPETITION_GRAM * sizeof *tokens) == 0) return true;
  }
  return false;
}

void weft_repetition_add(weft_repetition *r, const int32_t *tokens, size_t n) {
  uint64_t run = 0;
  for (size_t i = 0; i < n; i++) {
    run = i > 0 && tokens[i] == tokens[i - 1] ? run + 1 : 1;
    if (run > r->longest_run) r->longest_run = run;
    if (i + WEFT_REPETITION_GRAM > n) continue;
    r->n_grams += 1;
    r->n_repeated += stood_before(tokens, i);
  }
}

double weft_repetition_share(const weft_repetition *r) {
  return r->n_grams == 0 ? 0.0 : (double)r->n_repeated / (double)r->n_grams;
}

bool weft_repetition_is_loop(const weft_repetition *r) {
  return weft_repetition_share(r) > WEFT_REPETITION_SHARE_MAX || r->longest_run > WEFT_REPETITION_RUN_MAX;
}
