/* SPDX-License-Identifier: MIT */
/* An account: what a tenant may still submit, places in the queue and tokens of its minute.
 *
 * Law. n_waiting counts requests that wait: submitted or preempted, not running; a submission never
 * raises it above its limit. Tokens are a bucket that holds one minute's worth, full at first,
 * refilled evenly in engine time. A submission takes all that the request may use, prompt and
 * longest answer; its end gives back what it did not use: prompt tokens found in the cache, the
 * rest of the answer, everything when it never started. So in any span of t minutes the tokens
 * taken, less those given back, are at most (1 + t) times the limit. Not locked: the inbox is. */
#ifndef WEFT_SCHEDULER_ACCOUNT_H
#define WEFT_SCHEDULER_ACCOUNT_H

#include "scheduler/stats.h"

typedef struct weft_account {
  uint32_t n_waiting, waiting_max;
  uint32_t tokens_per_minute;
  uint64_t level;     /* of the bucket, in tokens x microseconds of a minute */
  uint64_t filled_us; /* when it was last refilled */
  uint64_t n_refused[WEFT_REFUSED_KINDS];
} weft_account;

void weft_account_open(weft_account *account, const weft_tenant_config *config);
/* Takes n_tokens and a place in the queue, or says with a line what is short, and *why: FULL. */
weft_status weft_account_take(weft_account *account, uint32_t n_tokens, uint64_t now_us, weft_refused *why,
                              weft_error *error);
/* When the bucket will hold n_tokens, if nobody takes any. */
uint64_t weft_account_retry_us(const weft_account *account, uint32_t n_tokens);
void weft_account_give_back(weft_account *account, uint32_t n_tokens, uint64_t now_us);

#endif
