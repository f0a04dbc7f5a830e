/* SPDX-License-Identifier: MIT */
#include "api/dialects/limits_told.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"

static void set_number(weft_exchange *x, const char *name, uint32_t number) {
  char text[16];
  (void)snprintf(text, sizeof text, "%" PRIu32, number);
  weft_exchange_set_header(x, name, text);
}

/* As OpenAI writes spans: 1m30.5s, 250ms, 0s; rounded up. */
static void set_span(weft_exchange *x, const char *name, uint64_t us) {
  char text[48];
  uint64_t ms = (us + 999) / 1000, minutes = ms / 60000;
  if (ms > 0 && ms < 1000) {
    (void)snprintf(text, sizeof text, "%" PRIu64 "ms", ms);
  } else if (minutes > 0) {
    (void)snprintf(text, sizeof text, "%" PRIu64 "m%gs", minutes, (double)(ms % 60000) / 1000.0);
  } else {
    (void)snprintf(text, sizeof text, "%gs", (double)ms / 1000.0);
  }
  weft_exchange_set_header(x, name, text);
}

void limits_tell(const weft_runtime *rt, uint32_t tenant, weft_exchange *x) {
  weft_tenant_left left = weft_replicas_get_tenant_left(rt->replicas, tenant, weft_clock_us());
  if (left.requests_max > 0) {
    set_number(x, "x-ratelimit-limit-requests", left.requests_max);
    set_number(x, "x-ratelimit-remaining-requests", left.requests);
    if (left.requests == left.requests_max) set_span(x, "x-ratelimit-reset-requests", 0);
  }
  if (left.tokens_max > 0) {
    set_number(x, "x-ratelimit-limit-tokens", left.tokens_max);
    set_number(x, "x-ratelimit-remaining-tokens", left.tokens);
    set_span(x, "x-ratelimit-reset-tokens", left.tokens_full_us);
  }
}
