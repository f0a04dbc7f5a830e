/* SPDX-License-Identifier: MIT */
#include "scheduler/account.h"

static const uint64_t minute_us = 60000000;

static void set_places(weft_account *a, const weft_tenant_config *config, uint32_t running_max) {
  a->weight = config->weight == 0 ? 1 : config->weight;
  a->running_max = running_max;
  a->waiting_max = config->waiting_max;
  a->blocks_max = config->blocks_max;
  a->live_max = 0;
  if (config->running_max > 0 && config->running_max < running_max) a->running_max = config->running_max;
  if (config->waiting_max == 0) return;
  uint64_t most = (uint64_t)a->running_max + config->waiting_max;
  a->live_max = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

void weft_account_open(weft_account *account, const weft_tenant_config *config, uint32_t running_max) {
  *account =
      (weft_account){.tokens_per_minute = config->tokens_per_minute, .level = config->tokens_per_minute * minute_us};
  set_places(account, config, running_max);
  weft_list_init(&account->unstarted);
  weft_list_init(&account->remaining);
}

static void add_tokens(weft_account *a, uint64_t amount) {
  uint64_t most = a->tokens_per_minute * minute_us, paid = amount < a->owed ? amount : a->owed;
  a->owed -= paid;
  amount -= paid;
  a->level = amount < most - a->level ? a->level + amount : most;
}

static void refill_minute(weft_account *a, uint64_t now_us) {
  if (now_us <= a->filled_us) return; /* submitters may be late */
  uint64_t passed_us = now_us - a->filled_us;
  add_tokens(a, a->tokens_per_minute * (passed_us < minute_us ? passed_us : minute_us));
  a->filled_us = now_us;
}

void weft_account_change(weft_account *a, const weft_tenant_config *config, uint32_t running_max, uint64_t now_us) {
  a->limits += 1;
  set_places(a, config, running_max);
  if (config->tokens_per_minute == a->tokens_per_minute) return;
  if (a->tokens_per_minute > 0) refill_minute(a, now_us);
  uint64_t taken = a->tokens_per_minute * minute_us - a->level, most = config->tokens_per_minute * minute_us;
  a->tokens_per_minute = config->tokens_per_minute;
  a->tokens_limits = a->limits;
  a->level = taken < most ? most - taken : 0;
  if (most == 0) a->owed = 0;
  if (now_us > a->filled_us) a->filled_us = now_us;
}

static weft_status check_places(const weft_account *a, uint32_t n_requests, weft_shortage *shortage,
                                weft_error *error) {
  uint64_t n = (uint64_t)a->n_live + n_requests;
  if (a->live_max == 0 || n <= a->live_max) return WEFT_OK;
  shortage->why = WEFT_REFUSED_TENANT_QUEUE;
  shortage->n_own_places = (uint32_t)(n - a->live_max);
  return weft_fail(error, WEFT_FULL,
                   "this tenant's queue is full: it has %u requests, may have %u (%u running and %u waiting), and %u "
                   "more came; come again later",
                   a->n_live, a->live_max, a->running_max, a->waiting_max, n_requests);
}

static weft_status check_tokens(weft_account *a, uint64_t n_tokens, uint64_t now_us, weft_shortage *shortage,
                                weft_error *error) {
  if (a->tokens_per_minute == 0) return WEFT_OK;
  uint64_t wanted = n_tokens * minute_us;
  refill_minute(a, now_us);
  if (wanted <= a->level) return WEFT_OK;
  if (shortage->why == WEFT_REFUSED_NONE) shortage->why = WEFT_REFUSED_TOKENS;
  shortage->tokens_us = (wanted - a->level + a->owed + a->tokens_per_minute - 1) / a->tokens_per_minute;
  return weft_fail(error, WEFT_RATE_LIMIT,
                   "%u of this tenant's %u tokens a minute are left; prompt and max_tokens, over all answers, are "
                   "%llu: come again later",
                   (uint32_t)(a->level / minute_us), a->tokens_per_minute, (unsigned long long)n_tokens);
}

weft_status weft_account_check(weft_account *a, uint32_t n_requests, uint64_t n_tokens, uint64_t now_us,
                               weft_shortage *shortage, weft_error *error) {
  weft_status places = check_places(a, n_requests, shortage, error);
  weft_status tokens = check_tokens(a, n_tokens, now_us, shortage, places == WEFT_OK ? error : NULL);
  return places != WEFT_OK ? places : tokens;
}

void weft_account_take(weft_account *a, uint64_t n_tokens) {
  if (a->tokens_per_minute == 0) return;
  a->level -= n_tokens * minute_us;
  a->n_taken += (int64_t)n_tokens;
}

void weft_account_give_back(weft_account *a, uint64_t n_tokens, uint64_t now_us) {
  if (a->tokens_per_minute == 0) return;
  refill_minute(a, now_us);
  add_tokens(a, n_tokens * minute_us);
  a->n_taken -= (int64_t)n_tokens;
}

void weft_account_move(weft_account *a, int64_t n_tokens, uint64_t now_us) {
  if (n_tokens <= 0) {
    weft_account_give_back(a, (uint64_t)-n_tokens, now_us);
    return;
  }
  if (a->tokens_per_minute == 0) return;
  refill_minute(a, now_us);
  uint64_t wanted = (uint64_t)n_tokens * minute_us, there = wanted < a->level ? wanted : a->level;
  a->level -= there;
  a->owed += wanted - there;
  a->n_taken += n_tokens;
}

weft_tenant_left weft_account_left(weft_account *a, uint64_t now_us) {
  weft_tenant_left left = {.requests_max = a->live_max, .tokens_max = a->tokens_per_minute};
  if (a->n_live < a->live_max) left.requests = a->live_max - a->n_live;
  if (a->tokens_per_minute == 0) return left;
  refill_minute(a, now_us);
  left.tokens = (uint32_t)(a->level / minute_us);
  uint64_t lacking = a->tokens_per_minute * minute_us - a->level + a->owed;
  left.tokens_full_us = lacking / a->tokens_per_minute;
  left.tokens_lacking = lacking / minute_us;
  left.tokens_taken = a->n_taken;
  return left;
}
