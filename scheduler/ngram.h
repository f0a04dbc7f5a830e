/* SPDX-License-Identifier: MIT */
/* N-grams: what followed the last tokens of a text where they stood in it before (prompt lookup, as vLLM's `ngram`). A
 * drafter without a model: of prompt and answer of one request, and of nothing else, so it tells a tenant nothing of
 * another's.
 *
 * Law. For each length from least to most, a gram of so many tokens leads to the place where it last stood, as long as
 * no other gram has taken its entry. A place is compared token by token before it is used, so an entry that was lost or
 * taken costs a guess and nothing else. One more token costs `most` steps, however long the text is; memory is the
 * entries, which weft_ngram_entries bounds. The same text gives the same guesses. */
#ifndef WEFT_SCHEDULER_NGRAM_H
#define WEFT_SCHEDULER_NGRAM_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_NGRAM_MAX = 16, WEFT_NGRAM_ENTRIES_MAX = 1 << 16 };

typedef struct weft_ngram {
  uint32_t *entry;    /* [n_entries] the place after the gram, from 1; 0: none; the caller's memory, zeroed */
  uint32_t n_entries; /* a power of two */
  uint32_t n_known;   /* tokens whose grams are entered */
  uint8_t least, most;
} weft_ngram;

/* Entries for a text of at most n_tokens tokens: a power of two, about one for each gram, at most
 * WEFT_NGRAM_ENTRIES_MAX. */
uint32_t weft_ngram_entries(uint32_t n_tokens, uint32_t least, uint32_t most);
/* Enters the grams of tokens[n_known .. n_tokens). tokens: the whole text, which begins as it did before. */
void weft_ngram_learn(weft_ngram *ngram, const int32_t *tokens, uint32_t n_tokens);
/* Writes at most n_max tokens that may come after the n_tokens tokens of the text, which is entered, and returns how
 * many: those behind the place where the longest gram of its end last stood. Where that place is near the end, what was
 * guessed goes on as the text does: a text that repeats itself is guessed to repeat on. */
uint32_t weft_ngram_guess(const weft_ngram *ngram, const int32_t *tokens, uint32_t n_tokens, uint32_t n_max,
                          int32_t *out);

#endif
