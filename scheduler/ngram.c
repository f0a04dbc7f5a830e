/* SPDX-License-Identifier: MIT */
#include "scheduler/ngram.h"

#include <string.h>

#include "base/random.h"

uint32_t weft_ngram_entries(uint32_t n_tokens, uint32_t least, uint32_t most) {
  uint64_t n_grams = (uint64_t)n_tokens * (most - least + 1);
  uint32_t n = 64;
  while (n < n_grams && n < WEFT_NGRAM_ENTRIES_MAX) n *= 2;
  return n;
}

/* The hash of a gram that is one token longer to the left. */
static uint64_t extend_hash(uint64_t hash, int32_t token) {
  return weft_mix64(hash ^ (uint32_t)token);
}

static uint32_t *entry_of(const weft_ngram *g, uint64_t hash) {
  return &g->entry[hash & (g->n_entries - 1)];
}

void weft_ngram_learn(weft_ngram *g, const int32_t *tokens, uint32_t n_tokens) {
  for (; g->n_known < n_tokens; g->n_known++) {
    uint64_t hash = 0;
    uint32_t at = g->n_known; /* its token follows the grams that end before it */
    for (uint32_t n = 1; n <= g->most && n <= at; n++) {
      hash = extend_hash(hash, tokens[at - n]);
      if (n >= g->least) *entry_of(g, hash) = at;
    }
  }
}

static uint32_t find_place(const weft_ngram *g, const int32_t *tokens, uint32_t n_tokens) {
  uint32_t found = 0;
  uint64_t hash = 0;
  for (uint32_t n = 1; n <= g->most && n <= n_tokens; n++) {
    hash = extend_hash(hash, tokens[n_tokens - n]);
    uint32_t at = n >= g->least ? *entry_of(g, hash) : 0;
    bool same = at >= n && memcmp(tokens + at - n, tokens + n_tokens - n, n * sizeof *tokens) == 0;
    if (same) found = at;
  }
  return found;
}

uint32_t weft_ngram_guess(const weft_ngram *g, const int32_t *tokens, uint32_t n_tokens, uint32_t n_max, int32_t *out) {
  uint32_t at = find_place(g, tokens, n_tokens);
  if (at == 0) return 0;
  for (uint32_t i = 0; i < n_max; i++) out[i] = at + i < n_tokens ? tokens[at + i] : out[at + i - n_tokens];
  return n_max;
}
