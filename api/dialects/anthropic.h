/* SPDX-License-Identifier: MIT */
/* The Anthropic dialect: /v1/messages and /v1/messages/count_tokens.
 *
 * Law: a stream is message_start, then for each block of the answer content_block_start, its deltas and
 * content_block_stop, then message_delta and message_stop; one ping follows the first content_block_start. An answer
 * without calls of tools has a block of text, even an empty one. Fields are known by one table; others are refused by
 * name, as Anthropic does. */
#ifndef WEFT_API_DIALECTS_ANTHROPIC_H
#define WEFT_API_DIALECTS_ANTHROPIC_H

#include "api/dialects/dialect.h"

weft_status weft_anthropic_parse(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                 weft_refusal *why);
/* The same body without what says how it is answered. */
weft_status weft_anthropic_parse_count(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                       weft_refusal *why);

extern const weft_dialect weft_anthropic;

#endif
