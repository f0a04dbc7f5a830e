/* SPDX-License-Identifier: MIT */
/* Calls of tools in the choices of an answer.
 *
 * Law: text of a choice goes through its reader, and what comes out is content (weft_choice.text) or calls
 * (weft_choice.call); nothing else writes calls. Thinking is not looked at, and left out within a call, where no
 * dialect has a place for it: the call goes on behind it. With one_call, calls after the first are read and left out.
 * A call of a tool of free text gives that text at its end, in place of its arguments. Everything that a choice gives
 * is the same whether it is streamed or not. */
#ifndef WEFT_API_DIALECTS_ANSWER_CALLS_H
#define WEFT_API_DIALECTS_ANSWER_CALLS_H

#include "api/dialects/stream.h"
#include "model/text/calls.h"

/* What the choices of an answer may call: a copy of the request's tools, shared by their readers. */
typedef struct answer_tools {
  weft_callable *callable;
  weft_tool_origin *origin; /* [n] what the client calls them; NULL: the same */
  uint32_t n;
  weft_text bytes; /* the strings into which callable and origin point */
} answer_tools;

/* Opens the readers of all choices, once these have their generations. NO_MEMORY; the answer calls answer_calls_close
 * in any case. */
weft_status answer_calls_open(weft_answer *answer, const weft_gen *gen);
void answer_calls_close(weft_answer *answer);
/* Reads more text of a choice. NO_MEMORY: text was lost. */
weft_status answer_calls_push(weft_choice *choice, const char *text, size_t n);
/* Whether the text of the choice stands within a call. */
bool answer_calls_in_call(const weft_choice *choice);
/* Ends the text of a choice. cut: not the model ended it, so an open call is not whole. */
weft_status answer_calls_end(weft_choice *choice, bool cut);
/* Whether something of a call is to be sent; answer_calls_sent says that it was. */
bool answer_calls_waiting(const weft_choice *choice);
void answer_calls_sent(weft_choice *choice);
/* Appends the content of a canvas that is not final, as if it followed the text that the choice was given so far. */
weft_status answer_calls_canvas(const weft_choice *choice, const char *text, size_t n, weft_text *out);

#endif
