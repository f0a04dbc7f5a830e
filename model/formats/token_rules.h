/* SPDX-License-Identifier: MIT */
/* Rules of tokens (vLLM: allowed_token_ids, bad_words, min_tokens): an answer has only certain tokens, none that
 * completes an unwanted word, and no end before its shortest length. The rules become a mask of each row of logits, as
 * a grammar does (model/formats/grammar.h), so every backend draws the same.
 *
 * Law: the mask depends on the rules and the tokens of the answer alone, so an answer is the same in any batch and
 * after preemption. A mask is never empty: rules that would leave no token at the start are refused when they are made,
 * and an unwanted word of several tokens is allowed where the mask would have no other token. Rules never change; they
 * are counted by references and may be used by any thread. */
#ifndef WEFT_MODEL_FORMATS_TOKEN_RULES_H
#define WEFT_MODEL_FORMATS_TOKEN_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_token_rules weft_token_rules;

/* Copied by open; members may stay zero. */
typedef struct weft_token_rules_config {
  uint32_t n_vocab;
  const int32_t *suppressed; /* [n_suppressed] tokens that no answer of the model may have */
  uint32_t n_suppressed;
  const int32_t *allowed; /* [n_allowed] the answer may have no others; n_allowed 0: all */
  uint32_t n_allowed;
  const int32_t *end; /* [n_ends] tokens that end the answer: not allowed before it has min_tokens tokens */
  uint32_t n_ends, min_tokens;
  const int32_t *word;         /* unwanted words, the tokens of each behind those of the one before */
  const uint32_t *word_length; /* [n_words] */
  uint32_t n_words;
} weft_token_rules_config;

/* The rules begin with one reference. INVALID with one line: a token beyond the vocabulary, an empty word, or no token
 * is left. */
weft_status weft_token_rules_open(const weft_token_rules_config *config, weft_token_rules **out, weft_error *error);
weft_token_rules *weft_token_rules_ref(weft_token_rules *rules); /* NULL is fine */
void weft_token_rules_unref(weft_token_rules *rules);            /* NULL is fine */
uint64_t weft_token_rules_bytes(const weft_token_rules *rules);

/* Whether a mask depends on the tokens of the answer, and not only on their number. */
bool weft_token_rules_waits(const weft_token_rules *rules);
/* Writes the tokens that may follow the n_answer tokens of an answer as bits of [(n_vocab + 31) / 32] words. The tokens
 * themselves, answer[n_answer], are read only where weft_token_rules_waits. */
void weft_token_rules_mask(const weft_token_rules *rules, const int32_t *answer, uint32_t n_answer, uint32_t *mask);

#ifdef __cplusplus
}
#endif
#endif
