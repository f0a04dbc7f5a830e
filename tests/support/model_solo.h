/* SPDX-License-Identifier: MIT */
/* The answer of a real model to one request alone, computed in the plainest way: no engine, no runner, no slots; the
 * forward pass of tests/support/model_harness.h, the head, and the samplers' own functions.
 *
 * Law: a digest covers everything a reader of the request can see: tokens, logprobs, and every array of every denoise
 * step. What the engine gives must have the same digest. */
#ifndef WEFT_TESTS_MODEL_SOLO_H
#define WEFT_TESTS_MODEL_SOLO_H

#include "bench/doubles/canvas_step.h"
#include "base/random.h"
#include "scheduler/engine.h"
#include "tests/support/model_harness.h"

typedef struct solo_digest {
  uint64_t value;
} solo_digest;

static inline void solo_add(solo_digest *d, const void *bytes, size_t n) {
  const uint8_t *b = bytes;
  uint64_t x = d->value ^ (n * 0x9E3779B97F4A7C15ull);
  for (size_t i = 0; i < n; i++) x = (x ^ b[i]) * 0x100000001B3ull;
  d->value = weft_mix64(x);
}

static inline void solo_add_sampled(solo_digest *d, const weft_sampled *s) {
  solo_add(d, &s->token, sizeof s->token);
  solo_add(d, &s->logprob, sizeof s->logprob);
  solo_add(d, s->top, s->n_top * sizeof *s->top);
}

/* The same from an event: a token, then n_top most likely ones, fewer where their token is -1. */
static inline void solo_add_logprobs(solo_digest *d, const weft_logprob *own, uint32_t n_top) {
  while (n_top > 0 && own[n_top].token < 0) n_top -= 1;
  solo_add(d, &own->token, sizeof own->token);
  solo_add(d, &own->logprob, sizeof own->logprob);
  solo_add(d, own + 1, n_top * sizeof *own);
}

/* One denoise step as an event shows it (with trace). */
static inline void solo_add_event(solo_digest *d, const weft_event *e) {
  size_t n = e->n_canvas * sizeof(int32_t);
  const uint32_t numbers[] = {e->block, e->step, e->n_accepted, e->stopped ? 1 : 0};
  solo_add(d, numbers, sizeof numbers);
  solo_add(d, &e->temperature, sizeof(float));
  solo_add(d, &e->mean_entropy, sizeof(float));
  solo_add(d, e->argmax, n);
  solo_add(d, e->canvas_in, n);
  solo_add(d, e->drawn, n);
  solo_add(d, e->canvas_out, n);
  solo_add(d, e->entropy, n);
  solo_add(d, e->accepted, e->n_canvas);
}

/* One row of an autoregressive answer, in memory that the device and this process share. */
typedef struct solo_row {
  float temperature, u, top, log_total, entropy;
  int32_t argmax, drawn;
  uint8_t bad;
  weft_sample_row asked;
  weft_sample_result found;
  weft_logit_bias bias[WEFT_LOGIT_BIAS_MAX];
} solo_row;

typedef struct solo {
  harness *h;
  const weft_request_params *p;
  uint32_t context;
  /* the answer */
  int32_t *tokens; /* [context], prompt and answer */
  uint32_t n_answer, n_steps, n_canvases;
  weft_finish finish;
  solo_digest digest;
  /* inside; what ops read or write is harness_memory */
  harness_seq seq;
  solo_row *row;
  float *logits;
  uint32_t *allowed;
  void *scratch;
  uint64_t scratch_bytes;
} solo;

static inline bool solo_is_stop(const weft_request_params *p, int32_t token) {
  for (uint32_t i = 0; i < p->n_stop_tokens; i++) {
    if (p->stop_tokens[i] == token) return true;
  }
  return false;
}

static inline void solo_scratch(solo *s, uint64_t need) {
  if (need <= s->scratch_bytes) return;
  weft_device_free(s->h->device, s->scratch);
  s->scratch_bytes = need;
  if (weft_device_alloc(s->h->device, need, &s->scratch) != WEFT_OK) harness_die("scratch", WEFT_E_NO_MEMORY, "");
}

/* head_stats of n rows of the hidden state; u and temperature one per row. */
static inline void solo_stats(solo *s, uint32_t n, const float *temperature, const float *u, bool soft,
                              weft_head_stats_args *out) {
  harness *h = s->h;
  float cap, scale;
  const uint32_t **allowed = harness_alloc(n, sizeof *allowed); /* a host array of device masks */
  for (uint32_t i = 0; i < n; i++) allowed[i] = s->allowed;
  weft_head_stats_args args = *out;
  args.h = h->hidden;
  args.weight = weft_model_head(h->model, &cap, &scale);
  args.temperature = temperature;
  args.u = u;
  args.allowed = allowed;
  args.n_rows = n;
  args.h_stride = args.soft_stride = h->info->n_hidden;
  args.cap = cap;
  args.soft_scale = scale;
  if (!soft) args.soft = NULL;
  solo_scratch(s, weft_head_stats_scratch(h->device, &args));
  args.scratch = s->scratch;
  args.scratch_bytes = s->scratch_bytes;
  weft_status status = weft_head_stats(h->device, &args);
  if (status != WEFT_OK) harness_die("head_stats", status, "");
  harness_settle(h);
  free(allowed);
}

/* Feeds tokens[n_valid, n); the last row's hidden state stays in the harness, its logits in s->logits. */
static inline void solo_feed(solo *s, uint32_t n) {
  harness_piece piece = {.seq = &s->seq,
                         .tokens = s->tokens + s->seq.n_valid,
                         .n = n - s->seq.n_valid,
                         .output = OUT_LAST,
                         .logits = s->logits};
  harness_run(s->h, &piece, 1);
}

static inline weft_sampled solo_draw(solo *s, uint32_t n_tokens) {
  const weft_sampling *p = &s->p->asked.sampling;
  weft_sampled sampled = {0};
  if (weft_sampling_is_plain(p)) {
    weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_TOKEN, n_tokens, 0};
    solo_row *r = s->row;
    r->temperature = p->temperature > 0.0f ? p->temperature : 1.0f;
    r->u = weft_draw_uniform(&key);
    weft_head_stats_args stats = {.argmax = &r->argmax,
                                  .drawn = &r->drawn,
                                  .top = &r->top,
                                  .log_total = &r->log_total,
                                  .entropy = &r->entropy,
                                  .bad = &r->bad};
    solo_stats(s, 1, &r->temperature, &r->u, false, &stats);
    sampled.token = p->temperature > 0.0f ? r->drawn : r->argmax;
    return sampled;
  }
  weft_sample_row *row = &s->row->asked;
  weft_sampling_ask(p, n_tokens, row);
  row->n_history = n_tokens;
  row->n_prompt = s->p->n_tokens;
  if (p->n_bias > 0) memcpy(s->row->bias, p->bias, p->n_bias * sizeof *p->bias);
  weft_sample_args args = {.logits = s->logits,
                           .row = row,
                           .history = s->tokens,
                           .bias = s->row->bias,
                           .allowed = s->allowed,
                           .out = &s->row->found,
                           .n_rows = 1,
                           .n_vocab = s->h->info->n_vocab,
                           .logits_stride = s->h->info->n_vocab};
  solo_scratch(s, args.scratch_bytes = weft_sample_scratch(s->h->device, &args));
  args.scratch = s->scratch;
  weft_status status = weft_sample(s->h->device, &args);
  harness_settle(s->h);
  if (status != WEFT_OK || s->row->found.bad != 0) harness_die("sample", status, "");
  weft_sampling_take(&s->row->found, &sampled);
  return sampled;
}

/* True when the stop rule cuts the answer, grown from n_before tokens. */
static inline bool solo_rule(solo *s, uint32_t n_before) {
  if (s->p->stop_rule == NULL || s->n_answer == n_before) return false;
  uint32_t keep = s->p->stop_rule(s->p->stop_self, s->tokens + s->p->n_tokens, s->n_answer);
  if (keep >= s->n_answer) return false;
  s->n_answer = keep > n_before ? keep : n_before;
  return true;
}

static inline void solo_tokens(solo *s) {
  uint32_t n_prompt = s->p->n_tokens, room = s->context - n_prompt;
  uint32_t most = s->p->max_tokens < room ? s->p->max_tokens : room;
  while (s->finish == WEFT_FINISH_NONE) {
    uint32_t n = n_prompt + s->n_answer;
    solo_feed(s, n);
    weft_sampled sampled = solo_draw(s, n);
    if (solo_is_stop(s->p, sampled.token)) {
      s->finish = WEFT_FINISH_STOP;
      return;
    }
    s->tokens[n] = sampled.token;
    s->n_answer += 1;
    if (s->n_answer == most) s->finish = WEFT_FINISH_LENGTH;
    if (solo_rule(s, s->n_answer - 1)) {
      s->finish = WEFT_FINISH_STOP;
      return;
    }
    if (s->p->asked.sampling.logprobs) solo_add_sampled(&s->digest, &sampled);
  }
}

/* Arrays of one canvas. */
typedef struct solo_canvas {
  uint32_t n;
  weft_host_canvas host;
  int32_t *tokens;
  float *temperature, *u, *top, *log_total, *soft;
  uint8_t *bad, *want_soft;
} solo_canvas;

static inline solo_canvas solo_canvas_open(const harness *h) {
  uint32_t n = h->info->canvas_length;
  return (solo_canvas){.n = n,
                       .host = {.n = n,
                                .argmax = harness_memory(h, n, 4),
                                .drawn = harness_memory(h, n, 4),
                                .entropy = harness_memory(h, n, 4),
                                .fresh = harness_alloc(n, 4),
                                .next = harness_alloc(n, 4),
                                .history = harness_alloc((size_t)n * WEFT_STABILITY_MAX, 4),
                                .accepted = harness_alloc(n, 1),
                                .order = harness_alloc(n, 4)},
                       .tokens = harness_alloc(n, 4),
                       .temperature = harness_memory(h, n, 4),
                       .u = harness_memory(h, n, 4),
                       .top = harness_memory(h, n, 4),
                       .log_total = harness_memory(h, n, 4),
                       .soft = harness_memory(h, (size_t)n * h->info->n_hidden, 4),
                       .bad = harness_memory(h, n, 1),
                       .want_soft = harness_alloc(n, 1)};
}

static inline void solo_canvas_close(const harness *h, solo_canvas *c) {
  const weft_host_canvas *host = &c->host;
  void *const of_ops[] = {host->argmax, host->drawn,  host->entropy, c->temperature, c->u,
                          c->top,       c->log_total, c->soft,       c->bad};
  void *const own[] = {host->fresh, host->next, host->history, host->accepted, host->order, c->tokens, c->want_soft};
  for (size_t i = 0; i < sizeof of_ops / sizeof *of_ops; i++) harness_release(h, of_ops[i]);
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) free(own[i]);
}

/* One denoise step on the valid keys of the sequence; true: the canvas is done. */
static inline bool solo_step(solo *s, solo_canvas *c, uint32_t block, uint32_t step) {
  const weft_entropy_bound *p = &s->p->asked.entropy_bound;
  const weft_sampling *drawn = &s->p->asked.sampling;
  uint32_t first = s->seq.n_valid, n_vocab = s->h->info->n_vocab;
  weft_event e = {.block = block,
                  .step = step,
                  .n_canvas = c->n,
                  .canvas_in = c->tokens,
                  .argmax = c->host.argmax,
                  .drawn = c->host.drawn,
                  .canvas_out = c->host.next,
                  .entropy = c->host.entropy,
                  .accepted = c->host.accepted};
  bool has_soft = step > 0 && !p->no_self_conditioning;
  harness_piece piece = {.seq = &s->seq,
                         .tokens = c->tokens,
                         .n = c->n,
                         .canvas = true,
                         .soft = has_soft ? c->soft : NULL,
                         .output = OUT_ALL,
                         .logits = s->logits};
  harness_run(s->h, &piece, 1);
  for (uint32_t i = 0; i < c->n; i++) {
    weft_draw_key draw = {drawn->seed, drawn->choice, WEFT_DRAW_CANVAS, first + i, step};
    weft_draw_key fresh = {drawn->seed, drawn->choice, WEFT_DRAW_RENOISE, first + i, step};
    c->temperature[i] = weft_entropy_bound_temperature(p, step);
    c->u[i] = weft_draw_uniform(&draw);
    c->host.fresh[i] = (int32_t)weft_draw_below(&fresh, n_vocab);
  }
  weft_head_stats_args stats = {.argmax = c->host.argmax,
                                .drawn = c->host.drawn,
                                .top = c->top,
                                .log_total = c->log_total,
                                .entropy = c->host.entropy,
                                .bad = c->bad,
                                .soft = c->soft};
  solo_stats(s, c->n, c->temperature, c->u, true, &stats);
  weft_canvas_result result = weft_host_canvas_step(&c->host, p, step);
  e.n_accepted = result.n_accepted;
  e.stopped = result.stopped != 0;
  e.temperature = c->temperature[0];
  e.mean_entropy = result.mean_entropy;
  if (s->p->asked.trace) solo_add_event(&s->digest, &e);
  memcpy(c->tokens, c->host.next, c->n * sizeof(int32_t));
  s->n_steps += 1;
  return result.done != 0;
}

/* A finished canvas becomes part of the answer. */
static inline void solo_take_canvas(solo *s, const solo_canvas *c, uint32_t n_before, uint32_t most) {
  memcpy(s->tokens + s->p->n_tokens + (size_t)s->n_canvases * c->n, c->host.argmax, c->n * sizeof(int32_t));
  s->n_canvases += 1;
  for (uint32_t i = 0; i < c->n && s->finish == WEFT_FINISH_NONE; i++) {
    if (solo_is_stop(s->p, c->host.argmax[i])) {
      s->finish = WEFT_FINISH_STOP;
    } else if (++s->n_answer == most) {
      s->finish = WEFT_FINISH_LENGTH;
    }
  }
  if (solo_rule(s, n_before)) s->finish = WEFT_FINISH_STOP;
}

static inline void solo_canvases(solo *s) {
  harness *h = s->h;
  uint32_t n_prompt = s->p->n_tokens;
  solo_canvas c = solo_canvas_open(h);
  uint32_t wanted = (s->p->max_tokens + c.n - 1) / c.n, room = (s->context - n_prompt) / c.n;
  uint32_t n_blocks = wanted < room ? wanted : room;
  uint32_t most = s->p->max_tokens < n_blocks * c.n ? s->p->max_tokens : n_blocks * c.n;
  const weft_sampling *p = &s->p->asked.sampling;
  for (uint32_t block = 0; s->finish == WEFT_FINISH_NONE; block++) {
    solo_feed(s, n_prompt + block * c.n);
    for (uint32_t i = 0; i < c.n; i++) {
      weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_INIT, s->seq.n_valid + i, 0};
      c.tokens[i] = (int32_t)weft_draw_below(&key, h->info->n_vocab);
    }
    c.host.n_history = 0;
    for (uint32_t step = 0; !solo_step(s, &c, block, step);) step += 1;
    solo_take_canvas(s, &c, s->n_answer, most);
  }
  solo_canvas_close(h, &c);
}

/* Fills everything under "the answer"; solo_free afterwards. The suppressed tokens are never drawn. */
static inline void solo_run(solo *s, harness *h, const weft_request_params *p, uint32_t context,
                            const int32_t *suppressed, uint32_t n_suppressed) {
  uint32_t n_words = (h->info->n_vocab + 31) / 32;
  uint32_t n_rows = h->info->canvas_length > 1 ? h->info->canvas_length : 1;
  *s = (solo){.h = h, .p = p, .context = context};
  s->tokens = harness_memory(h, context + h->info->canvas_length + 1, sizeof(int32_t));
  s->row = harness_memory(h, 1, sizeof *s->row);
  memcpy(s->tokens, p->tokens, p->n_tokens * sizeof(int32_t));
  s->logits = harness_memory(h, (size_t)n_rows * h->info->n_vocab, sizeof(float));
  s->allowed = harness_memory(h, n_words, sizeof(uint32_t));
  memset(s->allowed, 0xFF, n_words * sizeof(uint32_t));
  for (uint32_t i = 0; i < n_suppressed; i++) s->allowed[suppressed[i] / 32] &= ~(1u << suppressed[i] % 32);
  harness_forget_pages(h);
  harness_seq_open(&s->seq);
  if (p->canvas) {
    solo_canvases(s);
  } else {
    solo_tokens(s);
  }
  harness_seq_close(&s->seq);
  weft_device_free(h->device, s->scratch);
  harness_release(h, s->logits);
  harness_release(h, s->allowed);
  harness_release(h, s->row);
}

static inline void solo_free(solo *s) {
  harness_release(s->h, s->tokens);
}

#endif
