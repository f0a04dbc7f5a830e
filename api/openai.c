/* SPDX-License-Identifier: MIT */
/* The two endpoints of the OpenAI dialect: parse, submit, answer. */
#include "api/openai.h"

#include "api/router.h"

static void answer(weft_server *s, weft_exchange *x, weft_openai_kind kind, const weft_dialect *dialect) {
  weft_refusal why;
  weft_gen gen;
  size_t n;
  if (atomic_load(&s->draining)) {
    (void)weft_refuse_status(&why, WEFT_FULL, "", true);
    weft_exchange_refuse(x, &why);
    return;
  }
  const char *body = weft_exchange_body(x, &n);
  if (weft_openai_parse(kind, body, n, &s->json_limits, &gen, &why) != WEFT_OK) {
    weft_exchange_refuse(x, &why);
    return;
  }
  weft_answer_config config = {.runtime = s->runtime,
                               .dialect = dialect,
                               .gen = &gen,
                               .tenant = weft_exchange_note(x)->tenant,
                               .draining = atomic_load(&s->draining)};
  weft_answer_start(&config, x);
  weft_gen_close(&gen);
}

void weft_handle_chat(weft_server *s, weft_exchange *x) {
  answer(s, x, WEFT_OPENAI_CHAT, &weft_openai_chat);
}

void weft_handle_completions(weft_server *s, weft_exchange *x) {
  answer(s, x, WEFT_OPENAI_COMPLETIONS, &weft_openai_completions);
}
