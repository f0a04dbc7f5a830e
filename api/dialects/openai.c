/* SPDX-License-Identifier: MIT */
/* The two endpoints of the OpenAI dialect: parse, submit, answer. */
#include "api/dialects/dialect.h"

static void answer_request(weft_server *s, weft_exchange *x, weft_parser parse, const weft_dialect *dialect) {
  weft_gen gen;
  if (weft_dialect_read(s, x, parse, &gen) == WEFT_OK) weft_dialect_start(s, x, dialect, &gen, NULL);
}

void weft_handle_chat(weft_server *s, weft_exchange *x) {
  answer_request(s, x, weft_openai_parse_chat, &weft_openai_chat);
}

void weft_handle_completions(weft_server *s, weft_exchange *x) {
  answer_request(s, x, weft_openai_parse_completions, &weft_openai_completions);
}
