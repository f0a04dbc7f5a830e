/* SPDX-License-Identifier: MIT */
/* The two endpoints of the OpenAI dialect: parse, submit, answer. */
#include "api/dialect.h"

static weft_status parse_chat(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                              weft_refusal *why) {
  return weft_openai_parse(WEFT_OPENAI_CHAT, body, n, limits, gen, why);
}

static weft_status parse_completions(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                     weft_refusal *why) {
  return weft_openai_parse(WEFT_OPENAI_COMPLETIONS, body, n, limits, gen, why);
}

void weft_handle_chat(weft_server *s, weft_exchange *x) {
  weft_dialect_answer(s, x, parse_chat, &weft_openai_chat);
}

void weft_handle_completions(weft_server *s, weft_exchange *x) {
  weft_dialect_answer(s, x, parse_completions, &weft_openai_completions);
}
