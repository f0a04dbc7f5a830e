/* SPDX-License-Identifier: MIT */
/* What the engine is given: its configuration, its tenants, requests and pins.
 *
 * Law. These are plain data that the caller fills in and owns; open, submit and pin copy what they keep. Zero means
 * the default that the field names. Defaults of sampling are not here: api/submission.c fills them from the model
 * file. */
#ifndef WEFT_SCHEDULER_PARAMS_H
#define WEFT_SCHEDULER_PARAMS_H

#include "base/asked.h"
#include "model/runner/runner.h"
#include "pager/pager.h"
#include "scheduler/draft.h"

typedef struct weft_request weft_request; /* a handle; reference held by the submitter until release */

enum {
  WEFT_WEIGHT_MAX = 1000,
  WEFT_SUBMISSION_MAX = 128,
  WEFT_PROMPT_LOGPROBS_MAX = 1 << 20 /* of one request: its prompt's tokens times what is reported of each */
};

/* One tenant. Zero-initialise; every zero means the default in brackets. */
typedef struct weft_tenant_config {
  uint32_t weight;            /* [1] its share of the device against other tenants; <= WEFT_WEIGHT_MAX */
  int32_t priority_class;     /* [normal] whose requests start first: -1 low, 0 normal, 1 high */
  uint32_t running_max;       /* [no limit] requests running at once */
  uint32_t waiting_max;       /* [no limit] requests beyond those that may run at once; submit gives WEFT_FULL */
  uint32_t tokens_per_minute; /* [no limit] prompt tokens computed and answer tokens; submit gives WEFT_RATE_LIMIT */
  uint32_t blocks_max;        /* [no limit] pages of the pool that it pays for at once (pager.h: owners) */
} weft_tenant_config;

/* A pool whose size can be changed while the engine runs (pool_size.h). The calls come from the engine's thread. */
typedef struct weft_pool_calls {
  uint32_t n_pages_max;   /* the most it will ever have, with which page numbers are reserved */
  uint32_t n_pages_first; /* that have memory when the engine opens */
  uint32_t n_pages_step;  /* most pages that one turn opens or closes */
  /* Memory for the first n_pages pages and no others. Of fewer pages: nothing that is enqueued uses the rest, and it
   * must not fail. Of more: an error, and nothing has changed; then requests have the pages that
   * there are until the next weft_engine_resize_pool, so who makes the pool smaller than n_pages keeps their memory for
   * it while there are requests. */
  weft_status (*resize)(void *self, uint32_t n_pages);
  /* Performs copies, in order, and returns when they are done; no step is in flight. */
  weft_status (*copy)(void *self, const weft_page_copy *copy, uint32_t n);
  void (*changed)(void *self); /* NULL: nobody listens; must not block */
  void *self;
} weft_pool_calls;

typedef struct weft_pool_view {
  uint32_t n_wanted; /* pages that were asked for last */
  uint32_t n_open;   /* that requests can have */
  uint32_t n_backed; /* that have memory: never fewer */
  bool refused;      /* memory for more was refused since it was asked for */
} weft_pool_view;

typedef struct weft_engine_config {
  uint32_t n_models;
  weft_runner *const *runner; /* [n_models]; owned by the caller; runner i computes model i */
  uint32_t n_pages; /* pages of the shared pool; where it changes its size, those that requests may count on */
  const weft_pool_calls *pool; /* borrowed until close; NULL: the pool keeps its size */
  uint32_t n_host_pages;       /* pages of host memory that take what is evicted; the runners must have them; 0: none */
  uint32_t n_file_pages;       /* pages of a file behind the host memory; the runners must have them; 0: none */
  uint32_t rows_per_step;      /* most rows of a step; at least the longest canvas */
  uint32_t rows_beside;        /* most rows of a step for which somebody waits (rows.h); 0: rows_per_step */
  uint32_t prefill_chunk;      /* most rows of one prompt in one step; 0: rows_per_step */
  uint32_t running_max;        /* requests running at once, over all models */
  uint32_t waiting_max;        /* requests beyond running_max; queue_share.h decides who gives way beyond that */
  uint32_t n_tenants;          /* 1 .. 255; places for those that come later among them */
  const weft_tenant_config *tenant; /* [n_tenants], copied; NULL: all default; weft_engine_change_tenant */
  uint32_t seq_tokens_max;          /* longest request: prompt + answer */
  bool overlap;                     /* plan step n+1 before the results of step n are applied */
  bool no_prefix_cache;
  bool prefix_feed;    /* what changes in the prefix trie can be read (weft_engine_feed) */
  bool saves_prefixes; /* visits may use pager/saved.h */
  uint64_t hash_seed;  /* of the prefix index (weft_pager_config); 0: drawn at open and secret, as a server needs it */
  uint32_t pins_max;   /* prefixes the operator may pin; each has a sequence of the pager */
  uint64_t request_bytes_max; /* host memory of all requests, waiting or running (budget.h); 0: no limit */
  uint64_t slice_us;          /* a model keeps its turn until it has used this much more device time than another */
  uint64_t target_tpot_us;    /* target for the time between tokens of requests that decode (pace.h); 0: none */
  const weft_drafter
      *drafter;       /* guesses for requests that leave drafts open (draft.h); borrowed until close; NULL: none */
  bool drafts_always; /* as many drafts as there are, whether they gain or not (drafting.h): to test and to measure */
  /* Shared with other engines (places.h), borrowed until close; NULL: the engine has places of its own. Shared ones
   * hold at most running_max + waiting_max requests, all of which may come to this engine. */
  struct weft_places *places;
} weft_engine_config;

/* Called on the engine thread with the answer so far, whenever it grew, before it is published. Returns how many of
 * the n_tokens are to be kept: n_tokens to go on, less to finish with STOP after that many, WEFT_STOP_KEEP_ALL to
 * finish with STOP and keep them all; what was published stays published. Every request waits meanwhile, so the rule
 * must be O(1) for each new token and must allocate nothing. */
#define WEFT_STOP_KEEP_ALL UINT32_MAX
typedef uint32_t (*weft_stop_rule)(void *self, const int32_t *tokens, uint32_t n_tokens);
/* Called on the engine thread when there is something to poll. Must not block; may poll, must not release. Once
 * weft_engine_release has returned, neither callback of the request runs any more. */
typedef void (*weft_notify)(void *self);

typedef struct weft_request_params {
  uint32_t model;        /* index */
  uint32_t tenant;       /* index */
  weft_key128 domain;    /* who may share its cached prefix; the caller derives it from the authenticated tenant */
  bool canvas;           /* answer by diffusion */
  const int32_t *tokens; /* prompt; copied */
  uint32_t n_tokens;
  uint32_t parting[WEFT_PARTINGS_MAX]; /* <= n_tokens: where other prompts are likely to part from it (pager.h) */
  uint32_t max_tokens;     /* the answer is cut there; 0: there is none, the prompt alone is computed (not by canvas) */
  weft_grammar *grammar;   /* the grammar of the answer; NULL: any answer. The request takes a reference */
  weft_token_rules *rules; /* which tokens the answer may have; NULL: all; referenced too; not with grammar or canvas */
  const int32_t *stop_tokens; /* [n_stop_tokens] end the answer and are no part of it; copied */
  uint32_t n_stop_tokens;
  weft_stop_rule stop_rule; /* NULL: none */
  void *stop_self;          /* borrowed until release, like notify_self */
  weft_notify notify;       /* NULL: none */
  void *notify_self;
  uint64_t deadline_us; /* absolute, engine time; 0: none */
  /* Its answer is a guess at that of another request of the tenant (draft.h). It is charged with its rows and takes a
   * place, but no tokens of a minute, and nobody counts it among the tenant's or the model's requests. */
  bool is_draft;
  /* A request with the same prompt that is not released yet: the prompt is computed once and forked. Model, canvas,
   * tenant, domain and no_cache must be the same. Each request of such a group has its own answer, end and limits. */
  weft_request *sibling;
  bool joins;            /* this request is a sibling of the request before it in the same submission */
  uint64_t caller_bytes; /* memory that the caller holds for as long as the request: counted in request_bytes_max */
  /* Out, may be NULL; only that of the first request of a submission is used. With FULL or RATE_LIMIT: the estimated
   * microseconds until places, tokens and memory suffice; 0: never. */
  uint64_t *retry_us;
  /* Out, may be NULL; with FULL and RATE_LIMIT: the limit is the tenant's own, not one of all tenants. */
  bool *own_limit;
  /* What its client asked for, with all numbers filled in; what is derived from it stands above. The request has the
   * one copy that lasts (base/asked.h). Where prompt_logprobs is set, no cached prefix is used. */
  weft_generate_params asked;
} weft_request_params;

/* Whether logprobs of the answer's tokens are made: the client wants them, or a score, which is made of them. */
static inline bool weft_wants_logprobs(const weft_generate_params *asked) {
  return asked->sampling.logprobs || asked->score;
}

typedef struct weft_pin_params {
  uint32_t model;
  uint32_t tenant;       /* the tenant whose requests find it; of a public pin, the tenant that computes it */
  weft_key128 domain;    /* sharing domain of the tenant */
  bool is_public;        /* requests of all tenants that begin with it share its blocks */
  const int32_t *tokens; /* [n_tokens], copied; cut to whole blocks */
  uint32_t n_tokens;
  int32_t priority;    /* requests of tenants whose class is above it may take its blocks */
  uint64_t expires_us; /* absolute, engine time; 0: never */
  uint32_t id;         /* the number that it gets where no pin has had it or a later one; else it gets the next one */
} weft_pin_params;

#endif
