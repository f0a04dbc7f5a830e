/* SPDX-License-Identifier: MIT */
/* A prompt to tokens: the one place where a conversation, a text or token ids become what a model reads.
 *
 * Law: callers do not know how a conversation is rendered. model/text/chat.h renders it into pieces, which keep
 * apart what the template wrote and what came with the request, and only what the template wrote becomes control
 * tokens. A plain text becomes control tokens only where the caller asks for it with WEFT_ENCODE_PARSE_SPECIAL. A
 * prompt that the context could not hold is refused before it is tokenised, so that a refusal costs nothing. Any
 * thread. */
#ifndef WEFT_API_PROMPT_H
#define WEFT_API_PROMPT_H

#include "api/runtime.h"

/* How a prompt is encoded. */
typedef struct prompt_form {
  unsigned text_flags; /* WEFT_ENCODE_ADD_SPECIAL and WEFT_ENCODE_PARSE_SPECIAL: what they mean for a plain text */
  bool open_answer;    /* a conversation ends with the opening of the model's turn (add_generation_prompt) */
  bool calls_anyway;   /* the answer is held to calls: the model need not have been shown its tools */
} prompt_form;

/* The form in which a request for an answer is encoded, where the model decides whether it calls a tool. */
extern const prompt_form prompt_to_answer;
/* The same, for any choice of tools. */
prompt_form prompt_form_of(weft_tool_choice choice);

/* Zero-initialise. */
typedef struct encoded_prompt {
  weft_tokens tokens;
  const weft_chat *chat; /* borrowed from the model: splits thinking from the answer; NULL: no conversation */
  bool thinks;           /* the answer begins in the thinking channel */
  uint32_t parting[2];   /* tokens before the places where other prompts are likely to part from it; 0: none */
} encoded_prompt;

/* Refuses with one line. The caller closes *out with prompt_close, whatever was returned. */
weft_status prompt_encode(const weft_served_model *model, const weft_prompt *prompt, const prompt_form *form,
                          encoded_prompt *out, weft_error *error);
weft_status prompt_copy(const encoded_prompt *from, encoded_prompt *out, weft_error *error);
void prompt_close(encoded_prompt *prompt);

#endif
