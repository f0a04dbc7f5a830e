/* SPDX-License-Identifier: MIT */
/* An account: what a tenant has in the engine and what it may still submit, in places and in tokens of its minute. The
 * accounts belong to the places (places.h), whose mutex guards them.
 *
 * Law. A tenant with a limit on waiting requests has at most live_max requests in the engine: as many as may run for
 * it at once, and waiting_max more. So requests that would start at once take no place of those that wait, however far
 * the engine thread is, and any n requests that fit an idle tenant fit it again once its own have ended. Tokens are a
 * bucket that holds one minute's worth, full at first, refilled evenly in engine time. A submission takes all that its
 * requests may use, their prompts and longest answers; the end of each request gives back what it did not use: prompt
 * tokens found in the cache, the rest of the answer, everything when it never started. So in any span of t minutes the
 * tokens taken, less those given back, are at most (1 + t) times the limit. What another server took of the same bucket
 * (weft_account_move) is taken here, too; what is more than there is stays owed, and refills pay it first.
 *
 * The limits may change while requests are there (weft_account_change). Requests that were judged by earlier limits
 * keep their places and end as they would; `limits` tells them apart. What has been taken from the bucket stays taken,
 * and what was taken before its size changed is not given back, so that the law of the bucket holds across the change. */
#ifndef WEFT_SCHEDULER_ACCOUNT_H
#define WEFT_SCHEDULER_ACCOUNT_H

#include "scheduler/list.h"
#include "scheduler/stats.h"

typedef struct weft_account {
  uint32_t weight;
  uint32_t n_live, live_max; /* submitted, not finished and not evicted; 0: no limit */
  uint32_t running_max, waiting_max;
  uint32_t n_waiting;   /* of n_live: requests that do not run, because they never started or were preempted */
  uint32_t n_unstarted; /* of n_waiting: requests that never ran */
  /* The n_unstarted requests, by unstarted_link. unstarted: of submissions of which no part has started, oldest first.
   * remaining: of submissions of which a part has started, in the order in which that happened. */
  weft_link unstarted, remaining;
  uint32_t tokens_per_minute;
  uint32_t blocks_max;                               /* pages that a request may need at most; 0: no limit */
  uint32_t limits;                                   /* how often the limits have changed */
  uint32_t tokens_limits;                            /* the same when tokens_per_minute changed last */
  uint64_t level;                                    /* of the bucket: tokens times the 60,000,000 us of a minute */
  uint64_t owed;                                     /* the same: what refills pay before the bucket fills */
  int64_t n_taken;                                   /* tokens taken since open, less those given back */
  uint64_t filled_us;                                /* engine time of the last refill */
  uint64_t n_refused[WEFT_REFUSED_KINDS], n_evicted; /* requests */
} weft_account;

/* What a submission lacks for now; the submitter makes an estimate of Retry-After of it (snapshot.h). */
typedef struct weft_shortage {
  weft_refused why;      /* the first of the limits that it met */
  uint32_t n_own_places; /* places of its tenant that must come free */
  uint32_t n_places;     /* places of the queue of all tenants that must come free */
  uint64_t tokens_us;    /* microseconds until the bucket holds enough tokens */
} weft_shortage;

/* What the tenant may still submit. */
weft_tenant_left weft_account_left(weft_account *account, uint64_t now_us);

/* running_max: the limit over all tenants. */
void weft_account_open(weft_account *account, const weft_tenant_config *config, uint32_t running_max);
/* The tenant has these limits from now on. running_max: as in open. */
void weft_account_change(weft_account *account, const weft_tenant_config *config, uint32_t running_max,
                         uint64_t now_us);
/* Whether the tenant may submit n_requests requests that may use n_tokens tokens together; takes nothing. FULL when
 * places are short, else RATE_LIMIT when tokens are, with a line; *shortage says how much is missing. */
weft_status weft_account_check(weft_account *account, uint32_t n_requests, uint64_t n_tokens, uint64_t now_us,
                               weft_shortage *shortage, weft_error *error);
/* Takes tokens from the bucket; weft_account_check has found that there are enough. */
void weft_account_take(weft_account *account, uint64_t n_tokens);
void weft_account_give_back(weft_account *account, uint64_t n_tokens, uint64_t now_us);
/* n_tokens were taken from the bucket elsewhere, or, below 0, given back. */
void weft_account_move(weft_account *account, int64_t n_tokens, uint64_t now_us);

#endif
