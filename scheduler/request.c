/* SPDX-License-Identifier: MIT */
#include "scheduler/request.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/condition.h"
#include "base/memory.h"

const char *weft_finish_text(weft_finish finish) {
  static const char *const names[] = {"", "stop", "length", "cancelled", "deadline", "error", "evicted"};
  return names[finish];
}

/* ---- memory: one allocation per request ------------------------------------------------------ */

typedef struct request_layout {
  size_t tokens, stop_tokens, bias, logprobs, scores, score_tops, ngram, ring, n_bytes;
  uint32_t ring_capacity;
} request_layout;

static size_t take_part(size_t *at, size_t n, size_t size) {
  size_t here = *at;
  *at += (n * size + 15) & ~(size_t)15;
  return here;
}

static bool wants_canvas_events(const weft_request_params *params) {
  return params->canvas && (params->asked.canvas_deltas || params->asked.trace);
}

static request_layout layout_of(const weft_request_params *params, const weft_request_size *size) {
  request_layout l = {0};
  size_t at = 0;
  size_t room = params->canvas ? (size_t)size->n_blocks * size->n_canvas : size->answer_max;
  (void)take_part(&at, 1, sizeof(weft_request));
  l.tokens = take_part(&at, params->n_tokens + room, sizeof(int32_t));
  l.stop_tokens = take_part(&at, params->n_stop_tokens, sizeof(int32_t));
  l.bias = take_part(&at, params->canvas ? 0 : params->asked.sampling.n_bias, sizeof(weft_logit_bias));
  size_t n_logprobs = weft_request_wants_logprobs(params) ? 1 + (size_t)params->asked.sampling.n_top_logprobs : 0;
  l.logprobs = take_part(&at, size->answer_max * n_logprobs, sizeof(weft_logprob));
  size_t n_scores = params->asked.prompt_logprobs && params->n_tokens > 0 ? params->n_tokens - 1 : 0;
  l.scores = take_part(&at, n_scores, sizeof(weft_prompt_logprob));
  l.score_tops = take_part(&at, n_scores * params->asked.n_prompt_top, sizeof(weft_logprob));
  uint64_t ngram_bytes =
      params->canvas ? 0 : weft_drafting_bytes(&params->asked.draft, params->n_tokens + (uint32_t)room);
  l.ngram = take_part(&at, ngram_bytes, 1);
  l.ring = at;
  if (wants_canvas_events(params)) {
    uint64_t n_steps = (uint64_t)size->n_blocks * params->asked.entropy_bound.max_steps;
    l.ring_capacity = weft_canvas_ring_capacity(size->n_canvas, n_steps, params->asked.trace);
    at += weft_canvas_ring_bytes(size->n_canvas, l.ring_capacity, params->asked.trace);
  }
  l.n_bytes = at;
  return l;
}

/* Requests of one size lie at equal distances in memory, so the lines that a step touches of each would fall into few
 * sets of the processor's caches. Therefore each request starts some lines further on, by a hash of its address. */
enum { COLOURS = 16, COLOUR_BYTES = (COLOURS - 1) * WEFT_REQUEST_LINE };

static char *colour_memory(char *memory) {
  uint64_t hash = (uint64_t)(uintptr_t)memory * UINT64_C(0x9E3779B97F4A7C15);
  return memory + (hash >> 32) % COLOURS * WEFT_REQUEST_LINE;
}

static void copy_params(weft_request *r, const weft_request_params *params, char *base, const request_layout *l) {
  r->params = *params;
  memset(&r->params.asked, 0, offsetof(weft_generate_params, tenant)); /* the client's pointers */
  r->params.sibling = NULL;                                            /* likewise */
  r->params.retry_us = NULL;
  r->params.own_limit = NULL;
  r->tokens = (int32_t *)(void *)(base + l->tokens);
  memcpy(r->tokens, params->tokens, (size_t)params->n_tokens * sizeof(int32_t));
  r->params.tokens = r->tokens;
  int32_t *stop_tokens = (int32_t *)(void *)(base + l->stop_tokens);
  if (params->n_stop_tokens > 0) {
    memcpy(stop_tokens, params->stop_tokens, (size_t)params->n_stop_tokens * sizeof(int32_t));
  }
  r->params.stop_tokens = stop_tokens;
  uint32_t n_bias = params->canvas ? 0 : params->asked.sampling.n_bias;
  weft_logit_bias *bias = (weft_logit_bias *)(void *)(base + l->bias);
  if (n_bias > 0) memcpy(bias, params->asked.sampling.bias, n_bias * sizeof *bias);
  r->params.asked.sampling.bias = bias;
  r->params.asked.sampling.n_bias = n_bias;
  if (weft_request_wants_logprobs(params)) {
    r->logprobs = (weft_logprob *)(void *)(base + l->logprobs);
    r->n_top = params->asked.sampling.n_top_logprobs;
  }
  if (params->asked.prompt_logprobs) {
    r->scores = (weft_prompt_logprob *)(void *)(base + l->scores);
    r->score_tops = (weft_logprob *)(void *)(base + l->score_tops);
    atomic_store_explicit(&r->is_scored, params->n_tokens == 1, memory_order_relaxed);
  }
  if (!params->canvas) {
    uint32_t n_tokens_max = params->n_tokens + r->size.answer_max;
    weft_drafting_open(&r->drafting, &params->asked.draft, base + l->ngram, r->tokens, params->n_tokens, n_tokens_max);
  }
  if (wants_canvas_events(params)) {
    weft_canvas_ring_open(&r->ring, base + l->ring, r->size.n_canvas, l->ring_capacity, params->asked.trace);
  }
}

static weft_status open_locks(weft_request *r) {
  if (weft_condition_open(&r->changed) != WEFT_OK) return WEFT_E_NO_MEMORY;
  if (pthread_mutex_init(&r->mutex, NULL) != 0) goto fail;
  if (pthread_mutex_init(&r->callback_mutex, NULL) == 0) return WEFT_OK;
  (void)pthread_mutex_destroy(&r->mutex);
fail:
  (void)pthread_cond_destroy(&r->changed);
  return WEFT_E_NO_MEMORY;
}

uint64_t weft_request_bytes(const weft_request_params *params, const weft_request_size *size) {
  return layout_of(params, size).n_bytes + COLOUR_BYTES + params->caller_bytes;
}

/* The memory, counted in the budget; NULL with the reason. */
static weft_request *take_request(const weft_request_params *params, const request_layout *l, weft_budget *budget,
                                  weft_status *status, weft_error *error) {
  uint64_t n_counted = l->n_bytes + COLOUR_BYTES + params->caller_bytes;
  *status = weft_budget_take(budget, params->tenant, n_counted, error);
  if (*status != WEFT_OK) return NULL;
  char *memory = weft_alloc_aligned(l->n_bytes + COLOUR_BYTES, WEFT_REQUEST_LINE);
  weft_request *r = memory == NULL ? NULL : (weft_request *)(void *)colour_memory(memory);
  if (r != NULL) memset(r, 0, l->n_bytes);
  if (r == NULL || open_locks(r) != WEFT_OK) {
    weft_free(memory);
    weft_budget_give_back(budget, params->tenant, n_counted);
    *status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a request of %u prompt tokens", params->n_tokens);
    return NULL;
  }
  r->memory = memory;
  r->budget = budget;
  r->n_counted = n_counted;
  return r;
}

weft_status weft_request_open(const weft_request_params *params, const weft_request_size *size, weft_budget *budget,
                              weft_request **out, weft_error *error) {
  *out = NULL;
  request_layout l = layout_of(params, size);
  weft_status status;
  weft_request *r = take_request(params, &l, budget, &status, error);
  if (r == NULL) return status;
  char *base = (char *)r;
  r->size = *size;
  copy_params(r, params, base, &l);
  weft_list_init(&r->link);
  weft_list_init(&r->unstarted_link);
  weft_list_init(&r->evicted_link);
  r->state = WEFT_REQUEST_WAITING;
  r->lane = (uint8_t)params->model;
  r->seq = r->wait.leader = WEFT_SEQ_NONE;
  r->ready_at = UINT32_MAX;
  r->save = WEFT_SAVE_NONE;
  r->deadline_at = r->wait.file_at = r->wait.follow_at = WEFT_DEADLINE_NONE;
  r->n_tokens = r->n_prompt = params->n_tokens;
  r->last_token = params->tokens[params->n_tokens - 1];
  r->has_logprobs = r->logprobs != NULL;
  r->is_draft = params->is_draft;
  r->n_end = params->n_tokens + size->answer_max;
  r->denoises = params->canvas;
  r->tenant = (uint16_t)params->tenant;
  r->params.grammar = weft_grammar_ref(params->grammar);
  r->params.rules = weft_token_rules_ref(params->rules);
  r->stop_token = -1;
  r->has_rule = params->stop_rule != NULL;
  r->has_notify = params->notify != NULL;
  r->stop_tokens = r->params.stop_tokens;
  r->n_stop_tokens = params->n_stop_tokens;
  r->has_stop_tokens = r->n_stop_tokens > 0;
  r->usage.n_prompt = params->n_tokens;
  r->head = r;
  if (params->sibling != NULL) {
    r->head = params->sibling->head;
    (void)atomic_fetch_add_explicit(&r->head->n_references, 1, memory_order_relaxed);
  }
  atomic_store_explicit(&r->n_references, 2, memory_order_relaxed);
  *out = r;
  return WEFT_OK;
}

void weft_request_unref(weft_request *request) {
  uint32_t before = atomic_fetch_sub_explicit(&request->n_references, 1, memory_order_acq_rel);
  WEFT_CHECK(before > 0);
  if (before > 1) return;
  weft_request *head = request->head;
  (void)pthread_mutex_destroy(&request->callback_mutex);
  (void)pthread_mutex_destroy(&request->mutex);
  (void)pthread_cond_destroy(&request->changed);
  weft_budget_give_back(request->budget, request->tenant, request->n_counted);
  weft_grammar_unref(request->params.grammar);
  weft_token_rules_unref(request->params.rules);
  weft_free(request->memory);
  if (head != request) weft_request_unref(head); /* which is its own */
}

void weft_request_detach(weft_request *request) {
  (void)pthread_mutex_lock(&request->callback_mutex);
  request->detached = true;
  (void)pthread_mutex_unlock(&request->callback_mutex);
}

/* ---- engine thread --------------------------------------------------------------------------- */

uint32_t weft_request_ask_rule(weft_request *r, uint32_t n_answer, bool *stop) {
  uint32_t keep = n_answer;
  (void)pthread_mutex_lock(&r->callback_mutex);
  if (!r->detached) {
    keep = r->params.stop_rule(r->params.stop_self, r->tokens + r->n_prompt, n_answer);
  }
  (void)pthread_mutex_unlock(&r->callback_mutex);
  *stop = keep < n_answer || keep == WEFT_STOP_KEEP_ALL;
  return keep < n_answer ? keep : n_answer;
}

void weft_request_keep_scores(weft_request *r, const weft_scored *scored, uint32_t n) {
  uint32_t n_top = r->params.asked.n_prompt_top;
  for (uint32_t i = 0; i < n; i++) {
    weft_logprob *top = r->score_tops + (size_t)r->n_scored * n_top;
    r->scores[r->n_scored++] = (weft_prompt_logprob){scored[i].logprob, scored[i].rank};
    for (uint32_t k = 0; k < n_top; k++) {
      top[k] = k < scored[i].n_top ? scored[i].top[k] : (weft_logprob){-1, 0.0f};
    }
  }
  if (!weft_request_lacks_scores(r)) atomic_store_explicit(&r->is_scored, true, memory_order_release);
}

void weft_request_publish_canvas(weft_request *r, const weft_segment_result *result, uint32_t block, uint32_t step) {
  if (r->ring.record == NULL) return;
  uint32_t n_answer = atomic_load_explicit(&r->n_published, memory_order_relaxed);
  (void)pthread_mutex_lock(&r->mutex);
  weft_canvas_ring_push(&r->ring, result, block, step, n_answer);
  atomic_store(&r->n_canvas_events, r->ring.n);
  (void)pthread_mutex_unlock(&r->mutex);
}

void weft_request_publish_end(weft_request *r) {
  atomic_store(&r->finished, true);
}

void weft_request_wake(weft_request *r) {
  if (atomic_load(&r->n_sleepers) > 0) {
    (void)pthread_mutex_lock(&r->mutex);
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
  }
  if (!r->has_notify) return;
  (void)pthread_mutex_lock(&r->callback_mutex);
  if (!r->detached) r->params.notify(r->params.notify_self);
  (void)pthread_mutex_unlock(&r->callback_mutex);
}

/* ---- the reader ------------------------------------------------------------------------------ */

static bool has_event(weft_request *r) {
  bool finished = atomic_load(&r->finished); /* before the others: what is final is visible then */
  if (atomic_load(&r->n_published) > r->reader_at) return true;
  if (atomic_load(&r->n_canvas_events) > 0) return true;
  return finished && !r->reader_ended;
}

/* Takes the next canvas event if it is its turn. *limit: tokens that come before it. */
static bool take_canvas(weft_request *r, weft_event *out, uint32_t *limit) {
  bool taken = false;
  (void)pthread_mutex_lock(&r->mutex);
  const weft_canvas_record *record = weft_canvas_ring_peek(&r->ring);
  if (record != NULL && record->n_answer <= r->reader_at) {
    uint32_t n_dropped = 0;
    record = weft_canvas_ring_take(&r->ring, &n_dropped);
    atomic_store(&r->n_canvas_events, r->ring.n);
    *out = (weft_event){.kind = WEFT_EVENT_CANVAS,
                        .block = record->block,
                        .step = record->step,
                        .n_accepted = record->n_accepted,
                        .stopped = record->stopped,
                        .temperature = record->temperature,
                        .mean_entropy = record->mean_entropy,
                        .n_canvas = r->ring.n_canvas,
                        .argmax = record->argmax,
                        .canvas_in = record->canvas_in,
                        .drawn = record->drawn,
                        .canvas_out = record->canvas_out,
                        .entropy = record->entropy,
                        .accepted = record->accepted,
                        .n_dropped = n_dropped};
    taken = true;
  } else if (record != NULL) {
    *limit = record->n_answer;
  }
  (void)pthread_mutex_unlock(&r->mutex);
  return taken;
}

weft_status weft_request_poll(weft_request *r, weft_event *out) {
  bool finished = atomic_load(&r->finished);
  uint32_t n_published = atomic_load(&r->n_published);
  if (atomic_load(&r->n_canvas_events) > 0 && take_canvas(r, out, &n_published)) return WEFT_OK;
  if (n_published > r->reader_at) {
    uint32_t first = r->reader_at;
    r->reader_at = n_published;
    *out = (weft_event){.kind = WEFT_EVENT_TOKENS,
                        .first = first,
                        .n = n_published - first,
                        .tokens = r->tokens + r->n_prompt + first,
                        .n_top = r->n_top,
                        .logprobs = r->logprobs == NULL ? NULL : weft_request_logprobs_at(r, first)};
    return WEFT_OK;
  }
  if (!finished || r->reader_ended) return WEFT_AGAIN;
  r->reader_ended = true;
  *out = (weft_event){.kind = WEFT_EVENT_FINISHED,
                      .finish = r->finish,
                      .usage = r->usage,
                      .error = r->finish == WEFT_FINISH_ERROR ? r->error : NULL,
                      .stop_token = r->stop_token,
                      .n_top = r->n_top,
                      .logprobs = r->logprobs == NULL || r->stop_token < 0 || r->finish != WEFT_FINISH_STOP
                                      ? NULL
                                      : weft_request_logprobs_at(r, r->n_answer),
                      .retry_us = r->retry_us};
  return WEFT_OK;
}

weft_status weft_request_prompt_logprobs(const weft_request *r, weft_prompt_logprobs *out) {
  bool finished = atomic_load(&r->finished); /* before is_scored, which is final then */
  if (!atomic_load_explicit(&r->is_scored, memory_order_acquire)) return finished ? WEFT_E_NOT_FOUND : WEFT_AGAIN;
  *out = (weft_prompt_logprobs){
      .n = r->n_prompt - 1, .n_top = r->params.asked.n_prompt_top, .own = r->scores, .top = r->score_tops};
  return WEFT_OK;
}

weft_status weft_request_wait(weft_request *r, uint64_t timeout_us) {
  if (has_event(r)) return WEFT_OK;
  uint64_t now_us = weft_clock_us(), until_us = timeout_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + timeout_us;
  (void)pthread_mutex_lock(&r->mutex);
  (void)atomic_fetch_add(&r->n_sleepers, 1);
  bool ready = has_event(r), in_time = true;
  while (!ready && in_time) {
    in_time = weft_condition_wait(&r->changed, &r->mutex, until_us);
    ready = has_event(r);
  }
  (void)atomic_fetch_sub(&r->n_sleepers, 1);
  (void)pthread_mutex_unlock(&r->mutex);
  return ready ? WEFT_OK : WEFT_AGAIN;
}
