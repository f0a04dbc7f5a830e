/* SPDX-License-Identifier: MIT */
/* Gives the prompt of a generation back: its text, and the logprobs of its tokens, part by part.
 *
 * Law: the text is what the tokens decode to, and all of it is made at open. A part is made when it is asked for and
 * lives until the next one, so the memory for the text of logprobs does not grow with the prompt. Many likely tokens
 * make a part shorter. One thread at a time. */
#ifndef WEFT_API_PROMPT_PARTS_H
#define WEFT_API_PROMPT_PARTS_H

#include "api/delta_logprobs.h"

enum { PROMPT_PART_TOKENS = 256 };

/* Zero-initialise. */
typedef struct prompt_parts {
  const weft_tokenizer *tokenizer;
  const int32_t *tokens; /* borrowed until close */
  uint32_t n;
  weft_text text;
  uint32_t *byte_at, *text_at; /* [n] bytes, and characters, of the text before each token; NULL: it is not wanted */
  delta_logprobs entries;      /* of the present part */
} prompt_parts;

/* echo: the text is wanted; with_special: control tokens are printed too. */
weft_status prompt_parts_open(prompt_parts *parts, const weft_tokenizer *tokenizer, const int32_t *tokens, uint32_t n,
                              bool echo, bool with_special);
/* Gives the part from token `first` on. logprobs NULL: a part without logprobs. */
weft_status prompt_parts_get(prompt_parts *parts, uint32_t first, const weft_prompt_logprobs *logprobs,
                             weft_delta *out);
void prompt_parts_close(prompt_parts *parts);

#endif
