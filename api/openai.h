/* SPDX-License-Identifier: MIT */
/* The OpenAI dialect: bodies to requests, answers to bodies and chunks. For the files of api/ only.
 *
 * Law: a field is one of four: understood, refused by name because ignoring it would change the
 * answer, wrong (refused by name), or unknown and then ignored, as other servers of this dialect
 * do. */
#ifndef WEFT_API_OPENAI_H
#define WEFT_API_OPENAI_H

#include <jansson.h>

#include "api/gen.h"
#include "api/json_scan.h"
#include "api/stream.h"

typedef enum weft_openai_kind { WEFT_OPENAI_CHAT = 1, WEFT_OPENAI_COMPLETIONS = 2 } weft_openai_kind;

/* A JSON object out of a body that stays within the limits; json_decref ends it. The refusal names the place. */
weft_status weft_openai_load(const char *body, size_t n, const weft_json_size *limits, json_t **out, weft_refusal *why);
/* On failure *gen is closed. */
weft_status weft_openai_parse(weft_openai_kind kind, const char *body, size_t n, const weft_json_size *limits,
                              weft_gen *gen, weft_refusal *why);
/* The turns, and the tokens, of a prompt; nothing else of *out is touched. field is what refusals name. */
weft_status weft_openai_messages(weft_gen *gen, const json_t *messages, weft_prompt *out, weft_refusal *why);
weft_status weft_openai_ids(weft_gen *gen, const json_t *list, const char *field, weft_prompt *out, weft_refusal *why);
/* chat_template_kwargs: thinking and variables of *prompt. */
weft_status weft_openai_variables(weft_gen *gen, const json_t *root, weft_prompt *prompt, weft_refusal *why);
/* Tools (api/openai_tools.c). Declarations of a list of {"type":"function","function":{...}}; of one function object, which
 * refusals name as field; tool_choice and parallel_tool_calls, which need the prompt's tools. */
weft_status weft_openai_tools(weft_gen *gen, const json_t *tools, weft_prompt *out, weft_refusal *why);
weft_status weft_openai_function(weft_gen *gen, const json_t *function, const char *field, weft_tool *out,
                                 weft_refusal *why);
weft_status weft_openai_tool_choice(weft_gen *gen, const json_t *root, const weft_prompt *prompt, weft_refusal *why);
/* The calls of message i, which is the assistant's; what a message of a tool says of the call that it answers. */
weft_status weft_openai_calls(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why);
weft_status weft_openai_result(const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why);
/* The format of the answer that a body asks for, by any of its names. */
weft_status weft_openai_format(weft_gen *gen, const json_t *root, weft_refusal *why);

extern const weft_dialect weft_openai_chat, weft_openai_completions;

#endif
