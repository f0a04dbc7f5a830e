/* SPDX-License-Identifier: MIT */
#include "api/server/request_log.h"

#include <stdio.h>
#include <string.h>

#include "api/dialects/stream.h"
#include "base/clock.h"
#include "base/log.h"

enum { FIELDS_MAX = 32, FINISH_BYTES = 128 };

/* The fields of one line, and what is made for it. */
typedef struct request_line {
  weft_log_field field[FIELDS_MAX];
  uint32_t n;
  char finish[FINISH_BYTES];
} request_line;

static void add_words(request_line *l, const char *name, const char *words) {
  l->field[l->n++] = weft_log_words(name, words);
}

static void add_number(request_line *l, const char *name, uint64_t number) {
  l->field[l->n++] = weft_log_number(name, number);
}

static void add_ms(request_line *l, const char *name, uint64_t us) {
  l->field[l->n++] = weft_log_real(name, (double)us / 1000.0);
}

/* How its choices ended, each way once: stop,length. */
static void add_finish(request_line *l, const weft_answer *a) {
  size_t n = 0;
  for (uint32_t i = 0; i < a->n; i++) {
    const char *finish = a->choice[i].ended ? a->choice[i].finish : "unread";
    bool told = false;
    for (uint32_t k = 0; k < i && !told; k++) {
      told = strcmp(a->choice[k].ended ? a->choice[k].finish : "unread", finish) == 0;
    }
    if (!told && n < sizeof l->finish)
      n += (size_t)snprintf(l->finish + n, sizeof l->finish - n, "%s%s", n == 0 ? "" : ",", finish);
  }
  if (n > 0) add_words(l, "finish", l->finish);
}

/* The trace, and the client's span in it that this request is a child of. */
static void add_trace(request_line *l, const weft_trace_context *t) {
  if (!t->known) return;
  add_words(l, "trace_id", t->trace_id);
  add_words(l, "span_id", t->span_id);
  add_words(l, "parent_span_id", t->parent_id);
  add_words(l, "trace_flags", t->flags);
  if (t->state[0] != 0) add_words(l, "trace_state", t->state);
}

/* What came behind the queue, for the choice that was first to have a token: its prompt, and its answer token by token
 * or in canvases, up to the end of the last choice. */
static void add_spans(request_line *l, const weft_answer *a) {
  const weft_usage_counts *first = NULL;
  uint64_t end_us = 0, n_steps = 0;
  for (uint32_t i = 0; i < a->n; i++) {
    const weft_usage_counts *u = &a->choice[i].usage;
    n_steps += u->denoise_steps;
    if (u->total_us > end_us) end_us = u->total_us;
    if (u->first_token_us > 0 && (first == NULL || u->first_token_us < first->first_token_us)) first = u;
  }
  if (first == NULL) return;
  bool canvas = first->denoising_us > 0;
  uint64_t from_us = canvas ? first->denoising_us : first->first_token_us;
  add_ms(l, "prefill_ms", from_us > first->queue_us ? from_us - first->queue_us : 0);
  add_ms(l, canvas ? "denoise_ms" : "decode_ms", end_us > from_us ? end_us - from_us : 0);
  if (canvas) add_number(l, "denoise_steps", n_steps);
}

static void add_drafts(request_line *l, const weft_answer_usage *sum) {
  add_number(l, "drafted", sum->drafted);
  add_number(l, "accepted", sum->accepted);
  add_ms(l, "draft_ms", sum->draft_us);
  add_ms(l, "verify_ms", sum->verify_us);
  add_ms(l, "commit_ms", sum->commit_us);
  add_ms(l, "rollback_ms", sum->rollback_us);
}

/* Tokens as its usage counts them; times of the choice that was first, and of the one that was last. */
static void add_answer(request_line *l, const weft_answer *a) {
  weft_answer_usage sum = weft_answer_get_usage(a);
  uint64_t first_us = UINT64_MAX, queue_us = 0, n_preemptions = 0;
  for (uint32_t i = 0; i < a->n; i++) {
    const weft_usage_counts *u = &a->choice[i].usage;
    n_preemptions += u->preemptions;
    if (u->queue_us > queue_us) queue_us = u->queue_us;
    if (u->first_token_us > 0 && u->first_token_us < first_us) first_us = u->first_token_us;
  }
  add_words(l, "model", a->model);
  add_number(l, "answers", a->n);
  if (a->n_ended > 0) {
    add_number(l, "prompt", sum.prompt);
    add_number(l, "cached", sum.cached);
    add_number(l, "completion", sum.completion);
    add_number(l, "canvases", sum.canvases);
    add_number(l, "preemptions", n_preemptions);
    if (sum.draft_runs > 0) add_drafts(l, &sum);
    add_ms(l, "queue_ms", queue_us);
    if (first_us != UINT64_MAX) add_ms(l, "first_ms", first_us);
    add_spans(l, a);
  }
  add_finish(l, a);
}

void weft_request_tell(const weft_server *s, weft_exchange *x, int code, bool left) {
  request_line l = {.n = 0};
  const weft_note *note = weft_exchange_note(x);
  if (!weft_log_wants(WEFT_LOG_INFO)) return;
  add_words(&l, "id", weft_exchange_id(x));
  add_words(&l, "method", weft_exchange_method(x));
  add_words(&l, "path", weft_exchange_path(x));
  add_number(&l, "code", (uint64_t)code);
  if (s->keys == NULL) add_words(&l, "tenant", WEFT_EVERYBODY);
  if (s->keys != NULL && note->has_tenant) add_words(&l, "tenant", weft_keys_tenant(s->keys, note->tenant));
  add_trace(&l, weft_exchange_trace(x));
  if (note->answer != NULL) add_answer(&l, note->answer);
  if (note->begun_us > 0) add_ms(&l, "ms", weft_clock_us() - note->begun_us);
  if (left) l.field[l.n++] = weft_log_true("left");
  const weft_log_event event = {"request", NULL, l.field, l.n};
  weft_log_tell(WEFT_LOG_INFO, &event);
}
