/* SPDX-License-Identifier: MIT */
/* Tools and calls as chat templates read them: the JSON that transformers and vLLM give to templates.
 *
 * Law: arguments of a call go on as the text that came, whatever dialect the request came in: the chat makes an object
 * of them where they are one (model/text/chat_messages.h), and none are refused, since they may be what this server
 * gave out before. The JSON is written by a library, so no text of a
 * request can add a member to it. The memory that parsing takes is limited before anything is parsed, for all JSON of
 * the request together: the whole conversation is one tree when the template reads it. */
#ifndef WEFT_API_PROMPT_TOOLS_H
#define WEFT_API_PROMPT_TOOLS_H

#include "api/json_scan.h"
#include "api/weft.h"
#include "base/status.h"

/* The declarations of the tools as a JSON list, which weft_free frees; *out is NULL where there are none. *left: how
 * much the JSON of the request may still have; what is read is taken off it. */
weft_status prompt_tools_json(const weft_prompt *prompt, weft_json_size *left, char **out, weft_error *error);

/* Which call has which id, for results that do not name their function. A look-up takes time in the logarithm of the
 * number of calls, so that conversations with many results stay cheap. The strings are those of the prompt. */
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

/* What a turn has besides its role, content and thinking, as a JSON object, which weft_free frees; *out is NULL where
 * there is nothing. *left: as above. */
weft_status prompt_turn_json(const weft_prompt *prompt, const prompt_calls *calls, uint32_t turn, weft_json_size *left,
                             char **out, weft_error *error);

#endif
