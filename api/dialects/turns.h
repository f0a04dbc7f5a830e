/* SPDX-License-Identifier: MIT */
/* The turns of a conversation, which all dialects but OpenAI's chat fill in while a body is read, and the tools that a
 * body of any dialect declares.
 *
 * Law: turns and calls live as long as their weft_gen and are bounded in number; names of functions are checked
 * as api/dialects/openai_tools.c checks them. */
#ifndef WEFT_API_DIALECTS_TURNS_H
#define WEFT_API_DIALECTS_TURNS_H

#include "api/dialects/dialect.h"

/* Zero-initialise but for gen. */
typedef struct turn_list {
  weft_gen *gen;
  weft_chat_turn *turn;
  uint32_t n, capacity;
} turn_list;

/* Adds a turn with an empty content, list->turn[list->n - 1]. field: the name of the list in the body, for refusals. */
weft_status turns_add(turn_list *list, const char *role, const char *field, weft_refusal *why);
/* Adds a call to the last turn. id may be NULL; arguments is a JSON object as text; field: the call in the body. */
weft_status turns_add_call(turn_list *list, const char *id, const json_t *name, const char *arguments,
                           const char *field, weft_refusal *why);
/* Gives the turns to the prompt of the request. */
void turns_finish(const turn_list *list);
/* The turn was made of an answer, and what follows is to be another one. */
bool turns_end_with_answer(const turn_list *list);

/* Sets the tools of *out to those of a list; none where it is absent or null. declare reads one entry, be it an object
 * or not; the names that it gives must differ. */
typedef weft_status (*tool_reader)(weft_gen *gen, const json_t *tool, const char *field, weft_tool *out,
                                   weft_refusal *why);
weft_status turns_tools(weft_gen *gen, const json_t *tools, tool_reader declare, weft_prompt *out, weft_refusal *why);

#endif
