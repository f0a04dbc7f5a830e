/* SPDX-License-Identifier: MIT */
#include "api/model_drafter.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/condition.h"
#include "base/memory.h"
#include "base/threads.h"

/* How often a request looks for drafts that have no rows meanwhile, before it gives them up; and how long an engine
 * without other work sleeps between two looks. */
enum { LOOKS_MAX = 32, LOOK_US = 1000 };

typedef enum text_state {
  TEXT_NONE = 0, /* nothing was asked */
  TEXT_ASKED,    /* in the queue of the thread */
  TEXT_SENT,     /* request drafts it */
  TEXT_DRAFTED   /* draft has what there is, maybe nothing */
} text_state;

/* What a request that runs has asked. */
typedef struct drafted_text {
  text_state state;
  bool queued;
  uint32_t next; /* in the queue */
  weft_draft_text text;
  uint32_t n_max, n;
  uint32_t n_looks, last_step; /* looks since the last step that had rows of the request */
  uint64_t asked_us;
  weft_request *request; /* of the text that was sent last, maybe an older one; NULL: none */
  int32_t draft[WEFT_DRAFTS_MAX];
} drafted_text;

struct model_drafter {
  weft_drafter calls;
  weft_engine *engine;
  model_drafter_lane *lane; /* [n_models] */
  double *wait_us;          /* [n_models] what the drafts of a run took, of late; engine thread */
  uint32_t n_models, n_slots, n_texts;
  pthread_t thread;
  pthread_mutex_t mutex; /* of all below */
  pthread_cond_t changed;
  drafted_text *at;     /* [n_models][n_slots] */
  uint32_t first, last; /* of the queue; UINT32_MAX: empty */
  uint32_t n_sent;
  bool closing;
  int32_t *tokens; /* [n_tokens_max] the thread's copy of a text */
};

static drafted_text *text_of(model_drafter *d, uint32_t model, uint32_t slot) {
  WEFT_CHECK(model < d->n_models && slot < d->n_slots);
  return &d->at[(size_t)model * d->n_slots + slot];
}

/* ---- the engine thread, under the mutex --------------------------------------------------------- */

static void queue_text(model_drafter *d, drafted_text *t) {
  if (!t->queued) {
    uint32_t i = (uint32_t)(t - d->at);
    t->queued = true;
    t->next = UINT32_MAX;
    if (d->first == UINT32_MAX)
      d->first = i;
    else
      d->at[d->last].next = i;
    d->last = i;
  }
  (void)pthread_cond_signal(&d->changed);
}

static void set_state(model_drafter *d, drafted_text *t, text_state state) {
  d->n_sent += (uint32_t)(state == TEXT_SENT) - (uint32_t)(t->state == TEXT_SENT);
  t->state = state;
}

/* The drafts are what there is by now; the thread releases their request. */
static void end_drafting(model_drafter *d, drafted_text *t) {
  set_state(d, t, TEXT_DRAFTED);
  queue_text(d, t);
}

/* Reads what has been drafted; it is complete when the request has ended, however it did. */
static void read_drafts(model_drafter *d, drafted_text *t) {
  weft_event event;
  while (weft_engine_poll(d->engine, t->request, &event) == WEFT_OK) {
    for (uint32_t i = 0; event.kind == WEFT_EVENT_TOKENS && i < event.n && t->n < t->n_max; i++)
      t->draft[t->n++] = event.tokens[i];
    if (event.kind != WEFT_EVENT_FINISHED) continue;
    double took_us = (double)(weft_clock_us() - t->asked_us), *mean = &d->wait_us[t->text.model];
    *mean = *mean == 0.0 ? took_us : *mean + (took_us - *mean) / 8.0;
    end_drafting(d, t);
  }
}

/* The request lacks a place or pages, which may be those of the request that waits for it. */
static bool stands_still(drafted_text *t) {
  uint32_t last_step = weft_engine_last_step(t->request);
  t->n_looks = last_step == t->last_step ? t->n_looks + 1 : 0;
  t->last_step = last_step;
  return t->n_looks > LOOKS_MAX;
}

static uint32_t take_drafts(const drafted_text *t, uint32_t n_max, int32_t *out) {
  uint32_t n = t->n < n_max ? t->n : n_max;
  memcpy(out, t->draft, n * sizeof *out);
  return n;
}

static void ask_for(model_drafter *d, drafted_text *t, const weft_draft_text *text, uint32_t n_max) {
  set_state(d, t, TEXT_ASKED);
  t->text = *text;
  t->n_max = n_max;
  t->n = t->n_looks = 0;
  t->asked_us = weft_clock_us();
  queue_text(d, t);
}

static uint32_t guess_text(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  model_drafter *d = self;
  uint32_t n = WEFT_DRAFTS_COMING;
  if (!d->lane[text->model].drafts) return 0;
  drafted_text *t = text_of(d, text->model, text->slot);
  (void)pthread_mutex_lock(&d->mutex);
  bool known = t->state != TEXT_NONE && t->text.n_tokens == text->n_tokens;
  if (known && t->state == TEXT_SENT) read_drafts(d, t);
  if (known && t->state == TEXT_SENT && stands_still(t)) end_drafting(d, t);
  if (!known)
    ask_for(d, t, text, n_max);
  else if (t->state == TEXT_DRAFTED)
    n = take_drafts(t, n_max, out);
  (void)pthread_mutex_unlock(&d->mutex);
  return n;
}

static void end_text(void *self, uint32_t model, uint32_t slot) {
  model_drafter *d = self;
  drafted_text *t = text_of(d, model, slot);
  (void)pthread_mutex_lock(&d->mutex);
  set_state(d, t, TEXT_NONE);
  if (t->request != NULL) queue_text(d, t);
  (void)pthread_mutex_unlock(&d->mutex);
}

static double tell_wait_us(void *self, uint32_t model) {
  const model_drafter *d = self;
  return d->wait_us[model];
}

/* ---- the drafter's thread ----------------------------------------------------------------------- */

/* The request that drafts: the same draws as its text's own, so that equal distributions give equal tokens. */
static weft_request_params params_of(const model_drafter *d, const drafted_text *t) {
  const weft_request_params *p = t->text.params;
  const model_drafter_lane *lane = &d->lane[t->text.model];
  weft_request_params out = {.model = lane->model,
                             .tenant = p->tenant,
                             .domain = p->domain,
                             .canvas = lane->canvas.max_steps > 0,
                             .tokens = d->tokens,
                             .n_tokens = t->text.n_tokens,
                             .max_tokens = t->n_max,
                             .is_draft = true,
                             .asked = {.tenant = p->tenant,
                                       .sampling = weft_sampling_neutral(),
                                       .entropy_bound = lane->canvas,
                                       .priority = p->asked.priority,
                                       .no_cache = p->asked.no_cache}};
  weft_sampling *s = &out.asked.sampling;
  s->seed = p->asked.sampling.seed;
  s->choice = p->asked.sampling.choice;
  if (out.canvas) return out;
  s->temperature = p->asked.sampling.temperature;
  s->top_k = p->asked.sampling.top_k;
  s->top_p = p->asked.sampling.top_p;
  s->min_p = p->asked.sampling.min_p;
  return out;
}

/* Called and returns under the mutex, which is left meanwhile. */
static void release_request(model_drafter *d, drafted_text *t) {
  weft_request *request = t->request;
  if (request == NULL) return;
  t->request = NULL;
  (void)pthread_mutex_unlock(&d->mutex);
  weft_engine_release(d->engine, request);
  (void)pthread_mutex_lock(&d->mutex);
}

/* The same. The text may change or end meanwhile: then the request is released again. */
static void send_text(model_drafter *d, drafted_text *t) {
  uint64_t asked_us = t->asked_us;
  weft_request_params params = params_of(d, t);
  weft_request *request = NULL;
  memcpy(d->tokens, t->text.tokens, t->text.n_tokens * sizeof *d->tokens);
  (void)pthread_mutex_unlock(&d->mutex);
  weft_status status = weft_engine_submit(d->engine, &params, weft_clock_us(), &request, NULL);
  if (status != WEFT_OK) weft_engine_wake(d->engine);
  (void)pthread_mutex_lock(&d->mutex);
  t->request = request;
  if (t->state == TEXT_ASKED && t->asked_us == asked_us)
    set_state(d, t, status == WEFT_OK ? TEXT_SENT : TEXT_DRAFTED);
  else if (request != NULL)
    queue_text(d, t);
}

static void serve_queue(model_drafter *d) {
  while (d->first != UINT32_MAX) {
    drafted_text *t = &d->at[d->first];
    d->first = t->next;
    t->queued = false;
    if (t->state != TEXT_SENT) release_request(d, t);
    if (t->state == TEXT_ASKED && t->request == NULL && !d->closing) send_text(d, t);
  }
}

static void *run_drafter(void *self) {
  model_drafter *d = self;
  (void)pthread_mutex_lock(&d->mutex);
  while (!d->closing) {
    serve_queue(d);
    if (d->first != UINT32_MAX || d->closing) continue;
    bool signalled =
        weft_condition_wait(&d->changed, &d->mutex, d->n_sent > 0 ? weft_clock_us() + LOOK_US : UINT64_MAX);
    if (!signalled) weft_engine_wake(d->engine);
  }
  (void)pthread_mutex_unlock(&d->mutex);
  return NULL;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static weft_status start_thread(model_drafter *d, weft_error *error) {
  if (pthread_mutex_init(&d->mutex, NULL) != 0) return WEFT_E_NO_MEMORY;
  weft_status status = weft_condition_open(&d->changed);
  if (status == WEFT_OK) status = weft_threads_start(&d->thread, run_drafter, d, error);
  if (status == WEFT_OK) return status;
  (void)pthread_cond_destroy(&d->changed);
  (void)pthread_mutex_destroy(&d->mutex);
  return status;
}

static void free_drafter(model_drafter *d) {
  weft_free(d->lane);
  weft_free(d->wait_us);
  weft_free(d->at);
  weft_free(d->tokens);
  weft_free(d);
}

weft_status model_drafter_open(weft_engine *engine, const model_drafter_lane *lane, uint32_t n_models, uint32_t n_slots,
                               uint32_t n_tokens_max, model_drafter **out, weft_error *error) {
  *out = NULL;
  model_drafter *d = weft_alloc(1, sizeof *d);
  if (d == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for drafts");
  d->calls = (weft_drafter){.guess = guess_text, .end = end_text, .wait_us = tell_wait_us, .self = d};
  d->engine = engine;
  d->n_models = n_models;
  d->n_slots = n_slots;
  d->n_texts = n_models * n_slots;
  d->first = d->last = UINT32_MAX;
  d->lane = weft_alloc(n_models, sizeof *d->lane);
  d->wait_us = weft_alloc(n_models, sizeof *d->wait_us);
  d->at = weft_alloc(d->n_texts, sizeof *d->at);
  d->tokens = weft_alloc(n_tokens_max, sizeof *d->tokens);
  bool whole = d->lane != NULL && d->wait_us != NULL && d->at != NULL && d->tokens != NULL;
  if (whole) memcpy(d->lane, lane, n_models * sizeof *lane);
  weft_status status = whole ? start_thread(d, error) : WEFT_E_NO_MEMORY;
  if (status == WEFT_OK) {
    *out = d;
    return WEFT_OK;
  }
  free_drafter(d);
  return weft_fail(error, status, "no memory for drafts of %u requests at once", n_slots);
}

const weft_drafter *model_drafter_calls(const model_drafter *d) {
  return &d->calls;
}

void model_drafter_close(model_drafter *d) {
  if (d == NULL) return;
  (void)pthread_mutex_lock(&d->mutex);
  d->closing = true;
  (void)pthread_cond_signal(&d->changed);
  (void)pthread_mutex_unlock(&d->mutex);
  (void)pthread_join(d->thread, NULL);
  for (uint32_t i = 0; i < d->n_texts; i++) weft_engine_release(d->engine, d->at[i].request);
  (void)pthread_cond_destroy(&d->changed);
  (void)pthread_mutex_destroy(&d->mutex);
  free_drafter(d);
}
