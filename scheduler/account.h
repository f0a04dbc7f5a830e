/* SPDX-License-Identifier: MIT */
/* An account: what a tenant has in the engine and what it may still submit: places, and tokens of its minute.
 *
 * Law. A tenant with a limit on waiting requests has at most live_max requests in the engine: as many as may run for it
 * at once, and waiting_max more. So requests that would start at once take no place of those that wait, whatever the
 * engine is doing just now, and whatever n requests fit an idle tenant fit it again whenever its own have ended.
 * Tokens are a bucket that holds one minute's worth, full at first, refilled evenly in engine time. A submission takes
 * all that its requests may use, prompts and longest answers; the end of each gives back what it did not use: prompt
 * tokens found in the cache, the rest of the answer, everything when it never started. So in any span of t minutes the
 * tokens taken, less those given back, are at most (1 + t) times the limit. Not locked: the inbox is. */
#ifndef WEFT_SCHEDULER_ACCOUNT_H
#define WEFT_SCHEDULER_ACCOUNT_H

#include "scheduler/list.h"
#include "scheduler/stats.h"

typedef struct weft_account {
  uint32_t weight;
  uint32_t n_live, live_max; /* submitted, not finished and not evicted; 0: no limit */
  uint32_t running_max, waiting_max;
  uint32_t n_waiting;   /* of n_live: they do not run; never started, or preempted */
  uint32_t n_unstarted; /* of n_waiting: they never ran */
  /* Those, by unstarted_link: of submissions of which no part has started, by age; and of the others, by when that was. */
  weft_link unstarted, remaining;
  uint32_t tokens_per_minute;
  uint64_t level;                                    /* of the bucket, in tokens x microseconds of a minute */
  uint64_t filled_us;                                /* when it was last refilled */
  uint64_t n_refused[WEFT_REFUSED_KINDS], n_evicted; /* requests */
} weft_account;

/* What a submission lacks for now. */
typedef struct weft_shortage {
  weft_refused why;      /* the first of the limits that it met */
  uint32_t n_own_places; /* of its tenant, that must come free */
  uint32_t n_places;     /* of the queue of all tenants */
  uint64_t tokens_us;    /* until the tokens of its minute are there */
} weft_shortage;

/* config: with its defaults filled in. running_max: of the engine. */
void weft_account_open(weft_account *account, const weft_tenant_config *config, uint32_t running_max);
/* FULL with a line when places or tokens for n_requests are short, and by how much. Takes nothing. */
weft_status weft_account_check(weft_account *account, uint32_t n_requests, uint64_t n_tokens, uint64_t now_us,
                               weft_shortage *shortage, weft_error *error);
/* Takes tokens that weft_account_check found. */
void weft_account_take(weft_account *account, uint64_t n_tokens);
void weft_account_give_back(weft_account *account, uint64_t n_tokens, uint64_t now_us);

#endif
