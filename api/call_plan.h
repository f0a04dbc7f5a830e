/* SPDX-License-Identifier: MIT */
/* What the tools of a request mean for its answer: whether calls are read from the answer, in which form, and whether
 * the answer is held to a grammar.
 *
 * Law: an answer that must be a call (tool_choice required, or a named function), and a call of a tool that is strict,
 * are held to a grammar, so that the call always parses and its arguments fit their schema. The grammar begins where
 * thinking ends. Beside a format the answer is calls, or a text of the format. A request for which that is not possible
 * is refused with one line, never served without the grammar. Tools that the model would not know of, because its chat
 * template has no place for them, are refused where the prompt is made (model/text/chat.h), unless the grammar forces
 * the call. */
#ifndef WEFT_API_CALL_PLAN_H
#define WEFT_API_CALL_PLAN_H

#include "api/runtime.h"

typedef struct call_plan {
  bool read; /* calls are looked for in the answer */
  bool held; /* the answer is held to a grammar */
  weft_call_form form;
} call_plan;

/* *format: where held, the text of a grammar of WEFT_GRAMMAR_CALLS; the caller frees it in any case. */
weft_status call_plan_make(const weft_served_model *model, const weft_generate_params *params, bool canvas,
                           call_plan *out, weft_text *format, weft_error *error);
/* Appends the text of a grammar of WEFT_GRAMMAR_ANSWER: thinking where the request asks for it or the prompt has begun it
 * (thinks), and then the calls of the plan (calls: what call_plan_make gave as format), or the format, or either. */
void call_plan_answer(const weft_served_model *model, const weft_generate_params *params, const call_plan *plan,
                      bool thinks, const weft_text *calls, weft_text *out);

#endif
