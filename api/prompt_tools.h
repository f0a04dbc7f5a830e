/* SPDX-License-Identifier: MIT */
/* Tools and calls in the words of chat templates: the JSON that transformers and vLLM give to them.
 *
 * Law: a template reads the arguments of a call as an object, whatever dialect the request came in; arguments that are
 * no JSON object are refused with a line that names the message. What is made is JSON that a parser wrote, so no text
 * of a request can add a member to it. How much memory it becomes is limited before it is parsed. */
#ifndef WEFT_API_PROMPT_TOOLS_H
#define WEFT_API_PROMPT_TOOLS_H

#include "api/weft.h"
#include "base/status.h"

/* The declarations as a JSON list; NULL and WEFT_OK without any. weft_free ends it. */
weft_status prompt_tools_json(const weft_prompt *prompt, uint32_t context, char **out, weft_error *error);

/* Which call has which id, for results that do not name their function. Looking one up takes the logarithm of the number
 * of calls, so a conversation of many results costs little more than one of many messages. Points into the prompt. */
typedef struct prompt_call {
  const char *id, *name;
  uint64_t place; /* in the conversation: the turn, and the number of the call in it */
} prompt_call;
typedef struct prompt_calls {
  prompt_call *call; /* [n], ordered by id and place */
  size_t n;
} prompt_calls;
weft_status prompt_calls_open(const weft_prompt *prompt, prompt_calls *out, weft_error *error);
void prompt_calls_close(prompt_calls *calls); /* one that is all zero is fine */
/* The name of the last call with this id in the turns before `turn`; NULL: none has it. */
const char *prompt_calls_name(const prompt_calls *calls, const char *id, uint32_t turn);

/* What a turn has besides its role and its content, as a JSON object; NULL and WEFT_OK: nothing. */
weft_status prompt_turn_json(const weft_prompt *prompt, const prompt_calls *calls, uint32_t turn, uint32_t context,
                             char **out, weft_error *error);

#endif
