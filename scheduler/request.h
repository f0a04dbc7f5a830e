/* SPDX-License-Identifier: MIT */
/* A request: what was asked, how far the engine is with it, and the answer as its reader sees it.
 *
 * Law. Three owners, three parts:
 *   asked     written by submit, read by everyone afterwards
 *   engine    touched by the engine thread only
 *   answer    tokens[] is append-only: the engine writes beyond n_published, then raises it; the
 *             reader reads below it. Without the mutex both touch only atomic words.
 * One reference is the submitter's, one the engine's (until the request is done and nothing of it
 * is in flight), and one belongs to a cancel that lies in the inbox. Whoever gives back the last
 * one frees the memory. No callback of the submitter runs after detach returned.
 *
 * States (engine):
 *
 *              admit            finish, preempt            finished, nothing in flight
 *   WAITING ----------> RUNNING ----------------> LEAVING ----------------------------> DONE
 *    |   ^                                         |
 *    |   +-----------------------------------------+  preempted, nothing in flight
 *    +--> DONE  (cancelled, expired, evicted or refused while it waited)
 *
 * Positions of a running request, oldest first (n_virtual: tokens that exist or are computed now):
 *
 *   [0, n_committed)        keys and values are written, the pager knows the tokens
 *   [n_committed, n_valid)  written; the pager is told when a block is full
 *   [n_valid, n_planned)    rows in flight
 *   [n_planned, n_virtual)  rows still to plan
 *   [0, n_tokens)           tokens the host knows: prompt, answer; canvases whole */
#ifndef WEFT_SCHEDULER_REQUEST_H
#define WEFT_SCHEDULER_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "scheduler/budget.h"
#include "scheduler/canvas_ring.h"
#include "scheduler/deadline.h"
#include "scheduler/event.h"
#include "scheduler/list.h"

typedef enum weft_request_state {
  WEFT_REQUEST_WAITING = 0, /* in the inbox, a queue, or among the followers of a prefix */
  WEFT_REQUEST_RUNNING = 1, /* has a slot and a sequence */
  WEFT_REQUEST_LEAVING = 2, /* gives them back when its rows in flight have landed */
  WEFT_REQUEST_DONE = 3
} weft_request_state;

/* What the inbox counts a request as; under the inbox's mutex. */
typedef enum weft_place {
  WEFT_PLACE_NONE = 0,      /* not submitted, or ended */
  WEFT_PLACE_UNSTARTED = 1, /* in the queue: it never ran */
  WEFT_PLACE_RUNNING = 2,
  WEFT_PLACE_PREEMPTED = 3, /* waits again */
  WEFT_PLACE_EVICTED = 4    /* its place went to another tenant; the engine thread has not ended it yet */
} weft_place;

#define WEFT_SAVE_NONE UINT32_MAX

/* What the engine found out at submit about how long the answer may become. */
typedef struct weft_request_size {
  uint32_t answer_max; /* tokens after which the answer is cut */
  uint32_t n_canvas;   /* canvas length, 0: autoregressive */
  uint32_t n_blocks;   /* most canvases */
} weft_request_size;

/* Where a running request's keys and values go: offsets of its block tables, and where in the pool
 * the block of positions it writes now lies, so that a decode row looks into no table. */
typedef struct weft_placement {
  uint32_t block; /* position >> shift of the smallest block; UINT32_MAX: not known */
  struct {
    uint32_t table_at;
    uint32_t unit; /* counted in smallest blocks */
  } group[WEFT_GROUPS_MAX];
} weft_placement;

/* The leader of a request that waits for the file (file_wait.h). */
#define WEFT_LEADER_FILE (WEFT_SEQ_NONE - 1)

/* What a waiting request waits for besides its turn. */
typedef struct weft_wait {
  uint64_t retry_plan; /* number of the plan that tries again to admit it, whatever came free until then */
  uint32_t need_pages; /* that the last try to admit it lacked; 0: it lacked none */
  weft_seq leader;  /* the sequence that computes its prefix, WEFT_LEADER_FILE, or WEFT_SEQ_NONE: it is in its queue */
  uint32_t wake_at; /* valid tokens of the leader that make another try worth it */
  uint32_t file_at; /* its place in the heap of those that wait for the file */
  uint32_t file_pages; /* counted in weft_file_waits.n_pages for it */
  uint32_t n_file_waits;
  uint32_t follow_at;     /* its place in the heap of followers */
  uint32_t followed_from; /* valid tokens of its leader when it began to follow */
  bool follow_none;       /* its leader made no progress: it computes its prefix by itself */
} weft_wait;

enum { WEFT_REQUEST_LINE = 64 }; /* bytes of a cache line */

struct weft_request {
  /* ---- engine: the first cache line is all that planning and applying a decode row touch --------
   */
  _Alignas(WEFT_REQUEST_LINE) int32_t *tokens; /* [n_prompt + room] */
  uint32_t n_tokens, n_valid, n_planned;
  uint32_t n_reserved; /* positions that have blocks */
  int32_t last_token;  /* of n_tokens */
  uint32_t n_answer;   /* == n_tokens - n_prompt when autoregressive; the cut answer of a canvas
                          request */
  uint32_t n_end;      /* asked: tokens at which the answer is cut, with the prompt */
  uint32_t planned_in; /* number of the plan that holds it last, its low half */
  uint32_t slot;
  weft_seq seq;
  _Atomic uint32_t n_published, n_sleepers; /* answer */
  uint16_t tenant;
  uint8_t lane;
  uint8_t n_in_flight; /* segments planned and not landed */
  uint8_t n_pending;   /* sampled tokens among them */
  uint8_t state;       /* weft_request_state */
  uint8_t finish;      /* weft_finish */
  bool prefilling : 1; /* tokens the host knows have no rows yet */
  bool canvas : 1, has_stop_tokens : 1, has_rule : 1, has_notify : 1, has_logprobs : 1;
  bool has_grammar : 1; /* a row after a token needs that token on the host: nothing is planned ahead of it */

  /* ---- engine: the second is what packing its row touches --------------------------------------
   */
  _Alignas(WEFT_REQUEST_LINE) weft_placement placement;

  /* ---- engine: the rest ------------------------------------------------------------------------
   */
  weft_link link;         /* in a queue, or in a list of its lane; in none while it is ready */
  uint32_t ready_at;      /* place among the ready ones of the lane */
  uint32_t n_committed;   /* of n_valid, what the pager knows: decoded positions are told by blocks */
  weft_request_size size; /* asked */
  uint32_t n_prompt, n_stop_tokens;
  const int32_t *stop_tokens;
  uint32_t block;                 /* canvases that are final */
  uint32_t next_block, next_step; /* the next denoise step to plan */
  uint32_t save, saved_step; /* while it waits: where the state of its canvas is, WEFT_SAVE_NONE, and the next step */
  uint32_t reported_block, reported_step; /* the next denoise step to count and report */
  bool accepted;                          /* the engine thread took it out of the inbox */
  bool turned_away;                       /* it was evicted before that */
  bool admitted_once;
  uint32_t rank_at; /* in the engine's table of running requests */
  uint64_t arrival;
  uint32_t deadline_at; /* in the heap */
  weft_wait wait;
  /* Requests of one prompt. Engine thread only, but for head, which is set at submit. */
  struct weft_request *head;  /* the first of them, itself when alone; a reference unless itself */
  struct weft_request *trunk; /* of a head: the running one whose prompt the others fork */
  uint32_t n_expected;        /* of a head: others that have not started */
  bool expected;              /* counted there */
  weft_usage usage;
  uint64_t retry_us; /* of an evicted one */
  char error[320];

  /* ---- asked -----------------------------------------------------------------------------------
   */
  weft_request_params asked; /* pointers lead into this request's memory */
  struct weft_request *inbox_next, *cancel_next;
  /* ---- the inbox: under its mutex --------------------------------------------------------------
   */
  weft_link unstarted_link, evicted_link; /* in its tenant's account; in the inbox */
  uint64_t submission;                    /* number of the submission that it is a part of */
  uint8_t place;                          /* weft_place */
  bool submission_started;                /* a part of its submission has started */

  void *memory; /* of all of it */
  weft_budget *budget;
  uint64_t n_counted; /* bytes of the budget */

  /* ---- answer ----------------------------------------------------------------------------------
   */
  weft_logprob *logprobs; /* [answer_max][1 + n_top] or NULL: each token, then the most likely ones */
  uint32_t n_top;
  _Atomic uint32_t n_canvas_events;
  _Atomic bool finished;
  _Atomic bool cancelled;
  _Atomic uint32_t n_references;
  uint32_t reader_at; /* the reader's: tokens already given */
  bool reader_ended;  /* the reader's: FINISHED was given */
  weft_canvas_ring ring;
  pthread_mutex_t mutex; /* ring, sleep */
  pthread_cond_t changed;
  pthread_mutex_t callback_mutex; /* held while a callback runs */
  bool detached;                  /* under callback_mutex */
};

_Static_assert(offsetof(weft_request, placement) == WEFT_REQUEST_LINE, "one cache line");

static inline bool weft_request_wants_logprobs(const weft_request_params *params) {
  return !params->canvas && params->sampling.logprobs;
}

/* What a request counts for in the budget. */
uint64_t weft_request_bytes(const weft_request_params *params, const weft_request_size *size);
/* Takes the memory from the budget and copies what was asked; two references. FULL, TOO_LARGE or NO_MEMORY with one
 * line. */
weft_status weft_request_open(const weft_request_params *params, const weft_request_size *size, weft_budget *budget,
                              weft_request **out, weft_error *error);
void weft_request_unref(weft_request *request);
/* No callback afterwards; waits for one that runs. */
void weft_request_detach(weft_request *request);

/* ---- engine thread --------------------------------------------------------------------------- */

/* How many of the n_answer tokens the stop rule keeps; *stop: it ends the answer. */
uint32_t weft_request_ask_rule(weft_request *request, uint32_t n_answer, bool *stop);
/* Wakes the reader, calls notify. */
void weft_request_wake(weft_request *request);

static inline bool weft_request_is_stop_token(const weft_request *request, int32_t token) {
  if (!request->has_stop_tokens) return false;
  for (uint32_t i = 0; i < request->n_stop_tokens; i++) {
    if (request->stop_tokens[i] == token) return true;
  }
  return false;
}

/* The logprobs of a token of the answer. */
static inline weft_logprob *weft_request_logprobs_at(const weft_request *request, uint32_t at) {
  return request->logprobs + (size_t)at * (1 + request->n_top);
}

/* Keeps the logprobs of the next token of the answer; -1 stands for the most likely ones that a small vocabulary lacks. */
static inline void weft_request_keep_logprobs(weft_request *request, const weft_sampled *sampled) {
  weft_logprob *own = weft_request_logprobs_at(request, request->n_answer);
  own[0] = (weft_logprob){sampled->token, sampled->logprob};
  for (uint32_t i = 0; i < request->n_top; i++) {
    own[1 + i] = i < sampled->n_top ? sampled->top[i] : (weft_logprob){-1, 0.0f};
  }
}

/* Makes n_answer tokens of the answer readable. */
static inline void weft_request_publish(weft_request *request, uint32_t n_answer) {
  atomic_store_explicit(&request->n_published, n_answer, memory_order_release);
}

/* A reader counts itself before it looks and sleeps; we publish before we look: one of both sees
 * the other. So what was published must be seen by all before readers are told. */
static inline void weft_request_published(void) {
  __sync_synchronize();
}

/* There is something to read, and weft_request_published was called since it was published. */
static inline void weft_request_tell(weft_request *request) {
  if (request->has_notify || atomic_load(&request->n_sleepers) > 0) weft_request_wake(request);
}

void weft_request_publish_canvas(weft_request *request, const weft_segment_result *result, uint32_t block,
                                 uint32_t step);
/* Makes the end readable: finish, usage and error are final. */
void weft_request_publish_end(weft_request *request);

/* ---- the reader ------------------------------------------------------------------------------ */

weft_status weft_request_poll(weft_request *request, weft_event *out);
weft_status weft_request_wait(weft_request *request, uint64_t timeout_us);

#endif
