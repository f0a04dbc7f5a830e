/* SPDX-License-Identifier: MIT */
/* A prompt to tokens: the one place where a conversation, a text or token ids become what a model reads.
 *
 * Law: callers do not know how a conversation is rendered. model/chat.h renders it into pieces, which keep apart what
 * the template wrote and what came with the request, and only what the template wrote becomes control tokens. A plain
 * text becomes control tokens only where the caller asks for it with WEFT_ENCODE_PARSE_SPECIAL. A prompt that the
 * context could not hold is refused before it is tokenised, so that what is refused costs nothing. */
#ifndef WEFT_API_PROMPT_H
#define WEFT_API_PROMPT_H

#include "api/runtime.h"

/* How a prompt is encoded. */
typedef struct prompt_form {
  unsigned text_flags; /* WEFT_ENCODE_ADD_SPECIAL and WEFT_ENCODE_PARSE_SPECIAL: what they mean for a plain text */
  bool open_answer;    /* a conversation ends with the beginning of the model's turn */
} prompt_form;

/* What a request is answered for: the tokens that a server gives to the model. */
extern const prompt_form prompt_to_answer;

/* Zero-initialise. */
typedef struct encoded_prompt {
  weft_tokens tokens;
  const weft_chat *chat; /* parts thinking from the answer; NULL: the prompt is no conversation */
  bool thinks;           /* the answer begins in the thinking channel */
} encoded_prompt;

/* Refuses with one line. Close *out whatever was returned. */
weft_status prompt_encode(const weft_served_model *model, const weft_prompt *prompt, const prompt_form *form,
                          encoded_prompt *out, weft_error *error);
weft_status prompt_copy(const encoded_prompt *from, encoded_prompt *out, weft_error *error);
void prompt_close(encoded_prompt *prompt);

#endif
