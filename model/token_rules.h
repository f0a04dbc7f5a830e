/* SPDX-License-Identifier: MIT */
/* Which tokens an answer may have: only some, none that completes a certain word, and no end before so many tokens. It
 * becomes a mask of each row of logits, as a grammar does (model/grammar.h), so every backend draws the same.
 *
 * Law.
 *   The mask depends on the rules and the tokens of the answer alone, so an answer is the same in any batch and after
 *   preemption. It never is empty: what would leave no token from the start is refused when the rules are made, and a
 *   word of several tokens that is not wanted gives way where every other token is ruled out.
 *   Rules never change; they are counted by references. Any thread. */
#ifndef WEFT_MODEL_TOKEN_RULES_H
#define WEFT_MODEL_TOKEN_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_token_rules weft_token_rules;

/* Copied. Zero-initialise. */
typedef struct weft_token_rules_config {
  uint32_t n_vocab;
  const int32_t *suppressed; /* [n_suppressed] tokens that no answer of the model has */
  uint32_t n_suppressed;
  const int32_t *allowed; /* [n_allowed] the answer has no others; 0: all */
  uint32_t n_allowed;
  const int32_t *end; /* [n_ends] what ends the answer; ruled out before min_tokens tokens of it */
  uint32_t n_ends, min_tokens;
  const int32_t *word;         /* words that are not wanted, the tokens of one behind those of the other */
  const uint32_t *word_length; /* [n_words] */
  uint32_t n_words;
} weft_token_rules_config;

/* INVALID with one line: a token beyond the vocabulary, an empty word, or no token is left. Begins with one reference. */
weft_status weft_token_rules_open(const weft_token_rules_config *config, weft_token_rules **out, weft_error *error);
weft_token_rules *weft_token_rules_ref(weft_token_rules *rules); /* NULL is fine */
void weft_token_rules_unref(weft_token_rules *rules);            /* NULL is fine */
uint64_t weft_token_rules_bytes(const weft_token_rules *rules);

/* Whether a mask needs to know the tokens before it, and not only their number. */
bool weft_token_rules_waits(const weft_token_rules *rules);
/* The tokens that may follow n_answer tokens of the answer: [(n_vocab + 31) / 32] words. answer: [n_answer] where the rules
 * wait; else not read. */
void weft_token_rules_mask(const weft_token_rules *rules, const int32_t *answer, uint32_t n_answer, uint32_t *mask);

#ifdef __cplusplus
}
#endif
#endif
