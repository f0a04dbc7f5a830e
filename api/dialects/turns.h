/* SPDX-License-Identifier: MIT */
/* The turns of a conversation, which all dialects but OpenAI's chat fill in while a body is read.
 *
 * Law: turns and calls live as long as their weft_gen and are bounded in number; names of functions are checked
 * as api/dialects/tools.c checks them. */
#ifndef WEFT_API_DIALECTS_TURNS_H
#define WEFT_API_DIALECTS_TURNS_H

#include "api/dialects/dialect.h"

/* Zero-initialise but for gen. */
typedef struct turn_list {
  weft_gen *gen;
  weft_turn_place at; /* what is being read: the caller sets it before turns are added */
  weft_chat_turn *turn;
  weft_turn_place *place; /* of each turn */
  uint32_t n, capacity;
} turn_list;

/* Adds a turn with an empty content, list->turn[list->n - 1]. */
weft_status turns_add(turn_list *list, const char *role, weft_refusal *why);
/* Adds a call to the last turn. id may be NULL; arguments is a JSON object as text; field: the call in the body. */
weft_status turns_add_call(turn_list *list, const char *id, const json_t *name, const char *arguments,
                           const char *field, weft_refusal *why);
/* Refuses arguments that are nested deeper than those that answers have. NULL is fine; field: for the refusal. */
weft_status turns_check_arguments(const char *arguments, const char *field, weft_refusal *why);
/* The arguments of a call of free text, for the function that the model is shown in its place. */
weft_status turns_text_arguments(weft_gen *gen, const char *text, const char **out, weft_refusal *why);
/* Gives the turns to the prompt of the request. */
void turns_finish(const turn_list *list);
/* The turn was made of an answer, and what follows is to be another one. */
bool turns_end_with_answer(const turn_list *list);

#endif
