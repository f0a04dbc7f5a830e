/* SPDX-License-Identifier: MIT */
/* The logprobs of a delta (weft.h): each token's own, then the most likely tokens at its place, with their text.
 *
 * Law: what a token's entries are depends on that token alone, so an answer has the same ones however its tokens fall
 * into deltas. A place has as many likely tokens as it has, which may be fewer than were asked for: a format of the
 * answer, or a small vocabulary, leaves no more. The entries live until the next delta is begun. */
#ifndef WEFT_API_DELTA_LOGPROBS_H
#define WEFT_API_DELTA_LOGPROBS_H

#include "api/runtime.h"

/* Most entries of one delta, its tokens' own and the likely ones, but one token at least: what one delta costs its
 * reader is bounded. */
enum { DELTA_ENTRIES_MAX = 512 };

/* Zero-initialise. */
typedef struct delta_logprobs {
  const weft_tokenizer *tokenizer;
  weft_token_logprob *own, *top; /* [capacity], [capacity x stride] */
  uint32_t *n_top;               /* [capacity] */
  uint32_t n, capacity, stride;
  weft_text bytes;
} delta_logprobs;

/* How many tokens a delta has at most where each comes with n_top likely ones. */
uint32_t delta_logprobs_tokens_max(uint32_t n_top);
/* Begins a delta of n tokens with at most n_top likely ones each. The number of likely ones is the same in all deltas
 * of an answer. */
weft_status delta_logprobs_begin(delta_logprobs *l, const weft_tokenizer *tokenizer, uint32_t n, uint32_t n_top);
/* Adds the next token; one more of the likely tokens at the place of the last one. A token of -1 is none, and so are
 * all after it. */
weft_status delta_logprobs_put(delta_logprobs *l, int32_t token, float logprob, uint32_t rank);
weft_status delta_logprobs_put_top(delta_logprobs *l, int32_t token, float logprob, uint32_t rank);
/* Sets logprobs, top_logprobs, n_top and top_stride of the delta. */
weft_status delta_logprobs_end(delta_logprobs *l, weft_delta *out);
void delta_logprobs_close(delta_logprobs *l);

#endif
