/* SPDX-License-Identifier: MIT */
/* A request: what was asked, how far the engine is with it, and the answer as its reader sees it.
 *
 * Law. A request has three parts, each with one owner:
 *   params    written by submit, read by everyone afterwards; params.asked is the one copy of what the client asked for
 *   engine    touched by the engine thread only
 *   answer    tokens[] is append-only: the engine writes beyond n_published, then raises it; the reader reads below
 *             it. Without the mutex both touch only atomic words.
 * The submitter holds one reference, the engine one (until the request is done and nothing of it is in flight), and a
 * cancel that lies in the inbox another. The thread that gives back the last reference frees the memory. No callback of
 * the submitter runs once detach has returned.
 *
 * States (engine):
 *
 *              admit            finish, preempt            finished, nothing in flight
 *   WAITING ----------> RUNNING ----------------> LEAVING ----------------------------> DONE
 *    |   ^                                         |
 *    |   +-----------------------------------------+  preempted, nothing in flight
 *    +--> DONE  (cancelled, expired, evicted or refused while it waited)
 *
 * Positions of a running request, oldest first (n_virtual = n_tokens + n_pending: tokens that exist or are sampled
 * now):
 *
 *   [0, n_committed)        keys and values are written, the pager knows the tokens
 *   [n_committed, n_valid)  written; the pager is told when a block is full
 *   [n_valid, n_planned)    rows in flight
 *   [n_planned, n_virtual)  rows still to plan
 *   [0, n_tokens)           tokens that the host knows: prompt, answer; canvases whole
 *
 * While a run is in flight the drafts of its rows stand in tokens behind n_tokens, and n_planned and n_pending count
 * every row of it. When it lands they are set back to what was taken. */
#ifndef WEFT_SCHEDULER_REQUEST_H
#define WEFT_SCHEDULER_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "scheduler/budget.h"
#include "scheduler/canvas_ring.h"
#include "scheduler/deadline.h"
#include "scheduler/drafting.h"
#include "scheduler/event.h"
#include "scheduler/list.h"

typedef enum weft_request_state {
  WEFT_REQUEST_WAITING = 0, /* in the inbox, a queue, or among the followers of a prefix */
  WEFT_REQUEST_RUNNING = 1, /* has a slot and a sequence */
  WEFT_REQUEST_LEAVING = 2, /* gives them back when its rows in flight have landed */
  WEFT_REQUEST_DONE = 3
} weft_request_state;

/* What the inbox counts a request as; set by inbox.c under its mutex. */
typedef enum weft_place {
  WEFT_PLACE_NONE = 0,      /* not submitted, or ended */
  WEFT_PLACE_UNSTARTED = 1, /* in the queue: it never ran */
  WEFT_PLACE_RUNNING = 2,
  WEFT_PLACE_PREEMPTED = 3, /* it ran and waits again */
  WEFT_PLACE_EVICTED = 4    /* its place went to another tenant; the engine thread has not ended it yet */
} weft_place;

#define WEFT_SAVE_NONE UINT32_MAX

/* How long the answer may become; computed by submit.c. */
typedef struct weft_request_size {
  uint32_t answer_max; /* tokens after which the answer is cut */
  uint32_t n_canvas;   /* canvas length, 0: autoregressive */
  uint32_t n_blocks;   /* most canvases */
} weft_request_size;

/* Where the keys and values of a running request go: offsets of its block tables, and the block that it writes now, so
 * that a decode row reads no table. Set by the batcher. */
typedef struct weft_placement {
  uint32_t block; /* the present position, counted in smallest blocks; UINT32_MAX: not known */
  struct {
    uint32_t table_at; /* where its part of the pager's array of tables begins */
    uint32_t unit;     /* where in the pool the present block lies, counted in smallest blocks */
  } group[WEFT_GROUPS_MAX];
} weft_placement;

/* Stands for the leader of a request that waits for the file (file_wait.h). */
#define WEFT_LEADER_FILE (WEFT_SEQ_NONE - 1)

/* What a waiting request waits for besides its turn. Set by perform.c and waiting.c. */
typedef struct weft_wait {
  uint64_t retry_plan; /* number of the plan that tries again to admit it, even if nothing has come free */
  uint32_t need_pages; /* pages that must be free for it, as the last try to admit it found; 0: it lacked none */
  weft_seq leader;  /* the sequence that computes its prefix, WEFT_LEADER_FILE, or WEFT_SEQ_NONE: it is in its queue */
  uint32_t wake_at; /* valid tokens of the leader that make another try worth it */
  uint32_t file_at; /* its place in the heap of requests that wait for the file */
  uint32_t file_pages; /* counted in weft_file_waits.n_pages for it */
  uint32_t n_file_waits;
  uint32_t follow_at;     /* its place in the heap of followers */
  uint32_t followed_from; /* valid tokens of its leader when it began to follow */
  bool follow_none;       /* its leader made no progress, so it computes its prefix by itself */
} weft_wait;

enum { WEFT_REQUEST_LINE = 64 }; /* bytes of a cache line */

struct weft_request {
  /* ---- engine: the first cache line is all that planning and applying a decode row touch ---- */
  _Alignas(WEFT_REQUEST_LINE) int32_t *tokens; /* [n_prompt + room] */
  uint32_t n_tokens, n_valid, n_planned;
  uint32_t n_reserved; /* positions that have blocks */
  int32_t last_token;  /* of n_tokens */
  uint32_t n_answer;   /* tokens of the answer; for a diffusion request without what is cut off the last canvas */
  uint32_t n_end;      /* asked: length of prompt and answer at which the answer is cut */
  uint32_t planned_in; /* low half of the number of the last step that holds it */
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
  bool drafts : 1;     /* its rows may be runs with drafts (rows.h) */
  bool denoises : 1;   /* it answers by canvases: after its prompt it has denoise steps and commits; else it draws */
  bool is_draft : 1;   /* asked */
  bool has_stop_tokens : 1, has_rule : 1, has_notify : 1, has_logprobs : 1;

  /* ---- engine: the second cache line is what packing its row touches ---- */
  _Alignas(WEFT_REQUEST_LINE) weft_placement placement;

  /* ---- engine: the rest ---- */
  weft_link link;       /* in a queue, or in a list of its lane; in none while it is ready */
  uint32_t ready_at;    /* place among the ready ones of the lane */
  uint32_t n_committed; /* of n_valid, the positions that the pager knows; it is told of decoded ones by whole blocks */
  weft_request_size size; /* asked */
  uint32_t n_prompt, n_stop_tokens;
  uint32_t n_scored; /* rows of the prompt whose scores are there; kept when it is preempted */
  const int32_t *stop_tokens;
  uint32_t block;                 /* canvases that are final */
  uint32_t next_block, next_step; /* the next denoise step to plan */
  /* While the request waits: the runner's place that has its canvas, or WEFT_SAVE_NONE; and the next step of that
   * canvas. */
  uint32_t save, saved_step, saved_stay;  /* saved_stay: n_away of its lane then */
  uint32_t reported_block, reported_step; /* the next denoise step to count and report */
  bool accepted;                          /* the engine thread took it out of the inbox */
  bool turned_away;                       /* it was evicted before that */
  bool admitted_once;                     /* it ran before: it waits because it was preempted */
  uint32_t rank_at;                       /* in the engine's table of running requests */
  uint64_t arrival;
  uint32_t deadline_at; /* in the heap */
  weft_wait wait;
  /* Siblings: requests of one prompt (n, best_of). Engine thread only, except head, which is set at submit. */
  struct weft_request *head;  /* the first sibling; the request itself when it is alone, else a reference */
  struct weft_request *trunk; /* of a head: the running sibling whose prompt the others fork */
  uint32_t n_expected;        /* of a head: siblings that have not started */
  bool expected;              /* it is counted in n_expected of its head */
  weft_usage usage;
  weft_drafting drafting;
  int32_t stop_token; /* the stop token that ended the answer; -1: none did */
  uint64_t retry_us;  /* of an evicted request: when to submit again */
  char error[320];

  /* ---- asked ---- */
  weft_request_params params; /* pointers lead into this request's memory; sibling and retry_us are NULL */
  struct weft_request *inbox_next, *cancel_next;
  /* ---- the inbox: under its mutex ---- */
  weft_link unstarted_link, evicted_link; /* in its tenant's account; in the inbox */
  uint64_t submission;                    /* number of the submission that it is a part of */
  uint32_t limits;                        /* weft_account.limits when it was judged; set by submit */
  uint8_t place;                          /* weft_place */
  bool submission_started;                /* a part of its submission has started */
  struct weft_inbox *inbox; /* of the engine that it was submitted to; like n_rows set by submit, then never changed */
  uint64_t n_rows;          /* that it may need: of its prompt, and of its longest answer with all denoise steps */

  void *memory;        /* the one allocation that holds the request and all its arrays */
  weft_budget *budget; /* borrowed: where its bytes are counted */
  uint64_t n_counted;  /* bytes */

  /* ---- answer ---- */
  /* [answer_max][1 + n_top] or NULL: each token of the answer, and a stop token, followed by the most likely ones. */
  weft_logprob *logprobs;
  uint32_t n_top;
  /* Of the prompt's tokens from the second on, or NULL; the engine writes them until is_scored. */
  weft_prompt_logprob *scores; /* [n_prompt - 1] */
  weft_logprob *score_tops;    /* [n_prompt - 1][params.asked.n_prompt_top] */
  _Atomic bool is_scored;
  _Atomic uint32_t n_canvas_events;
  _Atomic bool finished;
  _Atomic bool cancelled;
  _Atomic uint32_t n_references;
  uint32_t reader_at; /* the reader's own: tokens already given */
  bool reader_ended;  /* the reader's own: FINISHED was given */
  weft_canvas_ring ring;
  pthread_mutex_t mutex; /* ring, sleep */
  pthread_cond_t changed;
  pthread_mutex_t callback_mutex; /* held while a callback runs */
  bool detached;                  /* under callback_mutex */
};

_Static_assert(offsetof(weft_request, placement) == WEFT_REQUEST_LINE, "one cache line");

static inline bool weft_request_wants_logprobs(const weft_request_params *params) {
  return !params->canvas && weft_wants_logprobs(&params->asked);
}

/* The bytes that a request takes of the budget. */
uint64_t weft_request_bytes(const weft_request_params *params, const weft_request_size *size);
/* Takes the memory from the budget and copies what was asked; the request has two references, the submitter's and the
 * engine's. FULL, LIMIT or NO_MEMORY with one line. */
weft_status weft_request_open(const weft_request_params *params, const weft_request_size *size, weft_budget *budget,
                              weft_request **out, weft_error *error);
void weft_request_unref(weft_request *request);
/* No callback runs afterwards; waits for one that is running. */
void weft_request_detach(weft_request *request);

/* ---- engine thread --------------------------------------------------------------------------- */

/* Asks the stop rule; returns how many of the n_answer tokens the rule keeps. *stop: the rule ends the answer. */
uint32_t weft_request_ask_rule(weft_request *request, uint32_t n_answer, bool *stop);
/* Wakes the reader and calls the request's notify. */
void weft_request_wake(weft_request *request);

static inline bool weft_request_is_stop_token(const weft_request *request, int32_t token) {
  if (!request->has_stop_tokens) return false;
  for (uint32_t i = 0; i < request->n_stop_tokens; i++) {
    if (request->stop_tokens[i] == token) return true;
  }
  return false;
}

/* The logprobs of token `at` of the answer: [1 + n_top]. */
static inline weft_logprob *weft_request_logprobs_at(const weft_request *request, uint32_t at) {
  return request->logprobs + (size_t)at * (1 + request->n_top);
}

/* Keeps the logprobs of the next token of the answer, or of the stop token in its place. Token -1 fills the places that
 * a small vocabulary cannot fill. */
static inline void weft_request_keep_logprobs(weft_request *request, const weft_sampled *sampled) {
  weft_logprob *own = weft_request_logprobs_at(request, request->n_answer);
  own[0] = (weft_logprob){sampled->token, sampled->logprob};
  for (uint32_t i = 0; i < request->n_top; i++) {
    own[1 + i] = i < sampled->n_top ? sampled->top[i] : (weft_logprob){-1, 0.0f};
  }
}

/* Whether rows of the prompt are still to be scored. They must then be computed, whatever is cached. */
static inline bool weft_request_lacks_scores(const weft_request *request) {
  return request->scores != NULL && request->n_scored + 1 < request->n_prompt;
}

/* How many of the next n rows of a prompt are to be scored, as they have not been before; *first: the first of them. */
static inline uint32_t weft_request_n_to_score(const weft_request *request, uint32_t n, uint32_t *first) {
  uint32_t begin = request->n_planned, end = begin + n;
  *first = 0;
  if (!weft_request_lacks_scores(request)) return 0;
  if (begin < request->n_scored) begin = request->n_scored;
  if (end > request->n_prompt - 1) end = request->n_prompt - 1;
  if (begin >= end) return 0;
  *first = begin - request->n_planned;
  return end - begin;
}

/* Keeps the scores of the next n rows of the prompt. */
void weft_request_keep_scores(weft_request *request, const weft_scored *scored, uint32_t n);

/* Makes n_answer tokens of the answer readable. */
static inline void weft_request_publish(weft_request *request, uint32_t n_answer) {
  atomic_store_explicit(&request->n_published, n_answer, memory_order_release);
}

/* A full memory barrier between publishing and looking for readers that sleep. A reader counts itself in n_sleepers
 * before it looks for news; the engine publishes before it looks at n_sleepers. With a barrier in between, one of the
 * two always sees the other, so no reader sleeps through news. */
static inline void weft_request_published(void) {
  __sync_synchronize();
}

/* Tells the reader that there is something to read. Between publishing and this call weft_request_published must have
 * been called. */
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
weft_status weft_request_prompt_logprobs(const weft_request *request, weft_prompt_logprobs *out);

#endif
