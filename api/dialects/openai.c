/* SPDX-License-Identifier: MIT */
/* The two endpoints of the OpenAI dialect: parse, submit, answer. */
#include "api/dialects/dialect.h"
#include "api/dialects/openai_fields.h"

static void answer_request(weft_server *s, weft_exchange *x, weft_openai_kind kind, weft_parser parse,
                           const weft_dialect *dialect) {
  weft_gen gen;
  weft_refusal why;
  if (weft_dialect_read(s, x, parse, &gen) != WEFT_OK) return;
  if (weft_openai_check_fields(kind, gen.json, s->strict_fields, &why) == WEFT_OK) {
    weft_dialect_start(s, x, dialect, &gen, NULL);
    return;
  }
  weft_gen_close(&gen);
  weft_exchange_refuse(x, &why);
}

void weft_handle_chat(weft_server *s, weft_exchange *x) {
  answer_request(s, x, WEFT_OPENAI_CHAT, weft_openai_parse_chat, &weft_openai_chat);
}

void weft_handle_completions(weft_server *s, weft_exchange *x) {
  answer_request(s, x, WEFT_OPENAI_COMPLETIONS, weft_openai_parse_completions, &weft_openai_completions);
}
