/* SPDX-License-Identifier: MIT */
#include "bench/prove/ask.h"

#include "bench/prove/child.h"

static bool is_stopped(void *self) {
  (void)self;
  return prove_told_to_stop();
}

static void take_line(void *self, const char *line, size_t n, uint64_t at_us) {
  const prove_ask *ask = self;
  if (ask->take != NULL) ask->take(ask->self, line, n, at_us);
}

int prove_ask_run(const prove_ask *ask, weft_text *body) {
  uint64_t now_us = weft_clock_us();
  if (now_us >= ask->until_us) return PROVE_ASK_LATE;
  uint64_t left_ms = (ask->until_us - now_us) / 1000 + 1;
  const weft_target target = {.port = ask->port};
  const weft_client_call request = {.method = ask->body == NULL ? "GET" : "POST",
                                    .path = ask->path,
                                    .body = ask->body,
                                    .timeout_ms = left_ms < UINT32_MAX ? (uint32_t)left_ms : UINT32_MAX,
                                    .take = take_line,
                                    .stop = is_stopped,
                                    .self = (void *)(uintptr_t)ask};
  int status = weft_client_run(&target, &request, body);
  return status == WEFT_CLIENT_LEFT ? PROVE_ASK_LATE : status < 0 ? PROVE_ASK_BROKEN : status;
}
