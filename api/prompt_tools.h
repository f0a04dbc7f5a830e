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
/* What a turn has besides its role and its content, as a JSON object; NULL and WEFT_OK: nothing. */
weft_status prompt_turn_json(const weft_prompt *prompt, uint32_t turn, uint32_t context, char **out, weft_error *error);

#endif
