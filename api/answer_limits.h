/* SPDX-License-Identifier: MIT */
/* What ends an answer and which tokens it may have, as a request asks for it: its own stop tokens beside those of the
 * model, a least number of tokens, tokens that are allowed, words that are not wanted.
 *
 * Law: everything here becomes tokens of the model's vocabulary. What the vocabulary does not have, and rules that
 * would leave no token, are refused with one line. */
#ifndef WEFT_API_ANSWER_LIMITS_H
#define WEFT_API_ANSWER_LIMITS_H

#include "api/runtime.h"

enum {
  WEFT_STOP_TOKENS_MAX = 1024,    /* of a request */
  WEFT_BAD_WORDS_MAX = 256,       /* of a request */
  WEFT_BAD_WORD_BYTES_MAX = 256,  /* of one word */
  WEFT_BAD_WORD_TOKENS_MAX = 4096 /* of all of them */
};

/* Zero-initialise. */
typedef struct answer_limits {
  weft_tokens stop;        /* the tokens that end the answer; used only where the request names some of its own */
  bool has_stop;           /* stop is used */
  weft_token_rules *rules; /* NULL: every token may come at any place */
} answer_limits;

weft_status answer_limits_open(const weft_served_model *model, const weft_generate_params *params, answer_limits *out,
                               weft_error *error);
void answer_limits_close(answer_limits *limits);
uint64_t answer_limits_bytes(const answer_limits *limits);
/* How many of the last tokens of a prompt of n tokens are kept. n_canvas: tokens of a canvas; 0: autoregressive. */
uint32_t answer_limits_prompt(const weft_generate_params *params, uint32_t n, uint32_t context, uint32_t n_canvas);
/* The sharing domain of requests with this salt: another one for each salt, the given one for "" and NULL. Which one is known
 * only with the secret. */
weft_key128 answer_limits_domain(const uint8_t secret[WEFT_SALT_SECRET], weft_key128 domain, const char *salt);

#endif
