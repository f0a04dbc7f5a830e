/* SPDX-License-Identifier: MIT */
/* OpenAI's /v1/responses.
 *
 * Law: a response is kept for its tenant (api/dialects/responses_store.h) unless the request says "store": false; a
 * request that names a previous response continues the conversation that ended with that response, without its
 * instructions. What the response repeats of its request, and the conversation until it is stored, counts among the
 * memory of the request. What is repeated is bounded, since a client that reads slowly leaves its answer in memory.
 * Every event of a stream has its number, and the last event holds the whole response. */
#ifndef WEFT_API_DIALECTS_RESPONSES_H
#define WEFT_API_DIALECTS_RESPONSES_H

#include "api/dialects/dialect.h"
#include "api/dialects/responses_store.h"

enum { WEFT_RESPONSES_ECHO_MAX = 1 << 20 };

/* Does not look up the previous response that the body names: weft_responses_continue puts its conversation in
 * front. */
weft_status weft_responses_parse(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                 weft_refusal *why);
/* items: the members of a JSON list, as they are stored. On failure *gen is closed. */
weft_status weft_responses_continue(weft_gen *gen, const weft_text *items, const weft_body_rules *rules,
                                    weft_refusal *why);
/* The items of the input, as members of a JSON list; and what a response repeats of its request, as members of an
 * object, each with a comma behind it. */
void weft_responses_put_items(const weft_gen *gen, weft_text *out);
void weft_responses_put_echo(const weft_gen *gen, weft_text *out);

extern const weft_dialect weft_openai_responses;

#endif
