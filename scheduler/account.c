/* SPDX-License-Identifier: MIT */
#include "scheduler/account.h"

static const uint64_t minute_us = 60000000;

void weft_account_open(weft_account *account, const weft_tenant_config *config) {
  *account = (weft_account){.waiting_max = config->waiting_max,
                            .tokens_per_minute = config->tokens_per_minute,
                            .level = config->tokens_per_minute * minute_us};
}

static void add(weft_account *a, uint64_t amount) {
  uint64_t most = a->tokens_per_minute * minute_us;
  a->level = amount < most - a->level ? a->level + amount : most;
}

static void refill(weft_account *a, uint64_t now_us) {
  if (now_us <= a->filled_us) return; /* submitters may be late */
  uint64_t passed_us = now_us - a->filled_us;
  add(a, a->tokens_per_minute * (passed_us < minute_us ? passed_us : minute_us));
  a->filled_us = now_us;
}

uint64_t weft_account_retry_us(const weft_account *a, uint32_t n_tokens) {
  uint64_t wanted = n_tokens * minute_us;
  if (wanted <= a->level) return 0;
  return (wanted - a->level + a->tokens_per_minute - 1) / a->tokens_per_minute;
}

static weft_status take_tokens(weft_account *a, uint32_t n_tokens, uint64_t now_us, weft_error *error) {
  uint64_t wanted = n_tokens * minute_us;
  refill(a, now_us);
  if (wanted <= a->level) {
    a->level -= wanted;
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_FULL,
                   "%u of this tenant's %u tokens a minute are left; prompt and max_tokens of this "
                   "request are %u: come again later",
                   (uint32_t)(a->level / minute_us), a->tokens_per_minute, n_tokens);
}

weft_status weft_account_take(weft_account *a, uint32_t n_tokens, uint64_t now_us, weft_refused *why,
                              weft_error *error) {
  weft_status status = WEFT_OK;
  if (a->waiting_max > 0 && a->n_waiting >= a->waiting_max) {
    *why = WEFT_REFUSED_TENANT_QUEUE;
    status =
        weft_fail(error, WEFT_FULL, "this tenant's queue is full: %u requests wait; come again later", a->n_waiting);
  } else if (a->tokens_per_minute > 0) {
    *why = WEFT_REFUSED_TOKENS;
    status = take_tokens(a, n_tokens, now_us, error);
  }
  if (status != WEFT_OK) {
    a->n_refused[*why] += 1;
  } else {
    a->n_waiting += 1;
  }
  return status;
}

void weft_account_give_back(weft_account *a, uint32_t n_tokens, uint64_t now_us) {
  if (a->tokens_per_minute == 0) return;
  refill(a, now_us);
  add(a, n_tokens * minute_us);
}
