/* SPDX-License-Identifier: MIT */
/* What supervisors and balancers of load ask: is it alive, is it ready, how much has it to do.
 *
 * Law: alive and ready differ. A server that drains is alive, and must not be killed for it, but wants no new requests;
 * one whose device broke is neither, since a new start is what helps it. Where another replica goes on it is both, and
 * says so: whoever starts it again chooses when. A server that leaves says that it drains before it does, so that a
 * balancer sends its requests elsewhere while those that still come are answered. */
#include "api/json.h"
#include "api/runtime.h"
#include "api/server/watch.h"

enum { READY = 1 };

/* wanted: READY, or only alive. */
static void answer_probe(weft_server *s, weft_exchange *x, int wanted) {
  const char *unwell = weft_unwell(s->runtime), *degraded = unwell == NULL ? weft_degraded(s->runtime) : NULL;
  const char *message = unwell != NULL ? unwell : degraded;
  bool draining = atomic_load(&s->draining) || atomic_load(&s->leaving),
       good = unwell == NULL && !(wanted == READY && draining);
  weft_text body = {0};
  const char *word = unwell != NULL ? "unwell" : draining ? "draining" : degraded != NULL ? "degraded" : "ok";
  weft_text_printf(&body, "{\"status\":\"%s\"", word);
  if (message != NULL) {
    weft_text_puts(&body, ",\"message\":");
    weft_json_words(&body, message);
  }
  weft_text_puts(&body, "}");
  weft_exchange_answer(x, good ? 200 : 503, "application/json", &body);
}

void weft_handle_alive(weft_server *s, weft_exchange *x) {
  answer_probe(s, x, 0);
}

void weft_handle_ready(weft_server *s, weft_exchange *x) {
  answer_probe(s, x, READY);
}

void weft_handle_load(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  /* this question is one of them, and who looks on is no load */
  uint32_t n = weft_http_active(s->http), n_others = 1 + weft_watchers_count(s->watchers);
  weft_text_printf(&body, "{\"server_load\":%u}", n > n_others ? n - n_others : 0);
  weft_exchange_answer(x, 200, "application/json", &body);
}
