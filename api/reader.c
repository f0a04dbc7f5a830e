/* SPDX-License-Identifier: MIT */
/* The reader of a generation: events of the engine in, deltas out. The engine deals in tokens; here they become text,
 * thinking is split from the answer, and stop strings end it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/generation_internal.h"
#include "base/memory.h"

void generation_reader_close(generation_reader *r) {
  weft_chat_stream_close(&r->stream);
  weft_text_free(&r->limbo);
  weft_text_free(&r->text);
  weft_text_free(&r->stop);
  delta_logprobs_close(&r->entries);
  weft_free(r->text_at);
}

/* Forgets what the last delta gave. */
static void drop_released(generation_reader *r) {
  r->n_given += r->n_released;
  r->n_ids -= r->n_released;
  if (r->text_at != NULL) memmove(r->text_at, r->text_at + r->n_released, r->n_ids * sizeof *r->text_at);
  r->n_released = 0;
  weft_text_clear(&r->text);
}

/* Drops the first n bytes of limbo, which were searched. */
static void drop_limbo(generation_reader *r, size_t n) {
  if (n == 0) return;
  memmove(r->limbo.bytes, r->limbo.bytes + n, r->limbo.n - n + 1);
  r->limbo.n -= n;
  r->n_searched = r->limbo.n;
}

/* Moves from limbo to the delta what can no longer become a stop string; ids follow their text in whole-token mode. */
static void release_text(weft_generation *g, bool all) {
  generation_reader *r = &g->reader;
  size_t end = 0, from = r->n_searched, n_new = r->limbo.n - from;
  if (!r->stopped && n_new > 0 &&
      weft_stops_read(&g->stops, &r->search, r->limbo.bytes + from, n_new, r->limbo_thinking, &end)) {
    size_t n_stop = weft_stops_found(&g->stops, &r->search);
    weft_text_append(&r->text, r->limbo.bytes, g->asked->keep_stop ? from + end : from + end - n_stop);
    weft_text_append(&r->stop, r->limbo.bytes + from + end - n_stop, n_stop);
    r->stopped = true;
  }
  r->n_searched = r->limbo.n;
  size_t held = all ? 0 : weft_stops_held(&g->stops, &r->search);
  if (r->stopped) {
    drop_limbo(r, r->limbo.n);
  } else if (held == 0 || !g->asked->whole_tokens) {
    if (r->limbo.n > held) weft_text_append(&r->text, r->limbo.bytes, r->limbo.n - held);
    drop_limbo(r, r->limbo.n - held);
  }
  if (g->asked->whole_tokens && r->limbo.n > 0) return;
  r->n_released = r->n_ids - (uint32_t)r->n_waiting;
}

/* Counts the text that was added to limbo, which had `before` bytes. */
static void count_text(generation_reader *r, size_t before) {
  if (r->limbo.n > before)
    r->n_characters += (uint32_t)weft_text_characters(r->limbo.bytes + before, r->limbo.n - before);
}

/* Where the text of the next token begins; limbo had `before` bytes then. A token that ends within a character prints
 * nothing yet. */
static weft_status keep_place(weft_generation *g, size_t before) {
  generation_reader *r = &g->reader;
  if (!g->asked->sampling.logprobs) return WEFT_OK;
  uint32_t *text_at = weft_grow(r->text_at, r->n_ids, &r->text_at_capacity, 16, sizeof *text_at);
  if (text_at == NULL) return WEFT_E_NO_MEMORY;
  r->text_at = text_at;
  r->text_at[r->n_ids] = r->n_characters;
  count_text(r, before);
  return WEFT_OK;
}

/* Takes tokens of the event until it is used up, the delta is full or the channel changes. */
static weft_status take_tokens(weft_generation *g, bool *thinking) {
  generation_reader *r = &g->reader;
  r->answer = r->event.tokens - r->event.first;
  r->n_top = r->event.n_top;
  if (r->event.logprobs != NULL) r->logprob = r->event.logprobs - (size_t)r->event.first * (1 + r->n_top);
  /* one at a time where calls are read, so that whose text a logprob is of does not depend on the reader's haste */
  uint32_t n_max = DELTA_TOKENS_MAX;
  if (g->asked->sampling.logprobs) n_max = g->calls.read ? 1 : delta_logprobs_tokens_max(r->n_top);
  for (uint32_t n = 0; n < n_max && r->next < r->event.n; n++) {
    uint32_t i = r->next;
    uint32_t n_ids = 1;
    bool channel = r->limbo_thinking;
    size_t before = r->limbo.n;
    weft_status status = weft_chat_stream_push(&r->stream, r->event.tokens[i], &r->limbo, &channel, &n_ids);
    if (status == WEFT_OK) status = keep_place(g, before);
    if (status != WEFT_OK) return status;
    bool searched = r->event.first + i >= g->asked->min_tokens; /* as the engine thread does */
    if (!searched) r->n_searched = r->limbo.n;
    if (g->asked->score) r->logprob_sum += (double)r->event.logprobs[(size_t)i * (1 + r->n_top)].logprob;
    r->next += 1;
    r->n_ids += 1;
    r->n_waiting = n_ids > 0 ? 0 : r->n_waiting + 1;
    bool grew = r->limbo.n > before;
    if (grew && channel != r->limbo_thinking && (before > 0 || r->text.n > 0)) {
      /* the text of the other channel goes first: split what limbo holds */
      weft_text tail = {0};
      weft_text_append(&tail, r->limbo.bytes + before, r->limbo.n - before);
      r->limbo.n = before;
      if (r->n_searched > before) r->n_searched = before;
      release_text(g, true);
      if (r->n_released == r->n_ids) r->n_released -= 1; /* this token belongs to the text that follows */
      status = weft_text_status(&tail);
      weft_text_append(&r->limbo, tail.bytes, tail.n);
      weft_text_free(&tail);
      if (!searched) r->n_searched = r->limbo.n;
      *thinking = r->limbo_thinking;
      r->limbo_thinking = channel;
      return status == WEFT_OK ? weft_text_status(&r->limbo) : status;
    }
    if (grew) r->limbo_thinking = channel;
    release_text(g, false);
  }
  *thinking = r->limbo_thinking;
  return weft_text_status(&r->limbo);
}

/* The logprobs of n tokens: [n][1 + n_top]. */
static weft_status fill_logprobs(weft_generation *g, const weft_logprob *from, uint32_t n, weft_delta *out) {
  generation_reader *r = &g->reader;
  delta_logprobs *l = &r->entries;
  weft_status status = delta_logprobs_begin(l, g->model->tokenizer, n, r->n_top);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    const weft_logprob *own = from + (size_t)i * (1 + r->n_top), *top = own + 1;
    status = delta_logprobs_put(l, own->token, own->logprob, 0);
    for (uint32_t k = 0; k < r->n_top && status == WEFT_OK; k++) {
      status = delta_logprobs_put_top(l, top[k].token, top[k].logprob, 0);
    }
  }
  return status == WEFT_OK ? delta_logprobs_end(l, out) : status;
}

static weft_status give_text_delta(weft_generation *g, bool thinking, weft_delta *out) {
  generation_reader *r = &g->reader;
  *out = (weft_delta){.kind = WEFT_DELTA_TEXT,
                      .text = r->text.bytes == NULL ? "" : r->text.bytes,
                      .n_text = r->text.n,
                      .thinking = thinking,
                      .tokens = r->answer + r->n_given,
                      .n_tokens = r->n_released};
  if (weft_text_status(&r->text) != WEFT_OK) return WEFT_E_NO_MEMORY;
  if (!g->asked->sampling.logprobs || r->n_released == 0) return WEFT_OK;
  out->text_at = r->text_at;
  return fill_logprobs(g, r->logprob + (size_t)r->n_given * (1 + r->n_top), r->n_released, out);
}

static weft_status give_canvas(weft_generation *g, weft_delta *out) {
  generation_reader *r = &g->reader;
  const weft_event *e = &r->event;
  weft_detok detok;
  weft_text_clear(&r->text);
  weft_detok_open(&detok, g->model->tokenizer, 0);
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < e->n_canvas && status == WEFT_OK; i++) {
    if (weft_tokenizer_is_eog(g->model->tokenizer, e->argmax[i])) break;
    bool marker = g->calls.read && weft_chat_is_call_marker(g->prompt.chat, e->argmax[i]);
    detok.flags = marker ? WEFT_DETOK_WITH_SPECIAL : 0;
    status = weft_detok_push(&detok, e->argmax[i], &r->text, NULL);
  }
  if (status == WEFT_OK) status = weft_detok_flush(&detok, &r->text, NULL);
  weft_detok_close(&detok);
  *out = (weft_delta){.kind = WEFT_DELTA_CANVAS,
                      .text = r->text.bytes == NULL ? "" : r->text.bytes,
                      .n_text = r->text.n,
                      .tokens = e->argmax,
                      .n_tokens = e->n_canvas,
                      .block = e->block,
                      .step = e->step,
                      .stopped = e->stopped,
                      .accepted = e->n_accepted,
                      .step_temperature = e->temperature,
                      .mean_entropy = e->mean_entropy,
                      .canvas_in = e->canvas_in,
                      .drawn = e->drawn,
                      .canvas_out = e->canvas_out,
                      .entropy = e->entropy,
                      .accepted_mask = e->accepted};
  return status;
}

/* The model's own ends are no answer to why it stopped. */
static int32_t own_stop_token(const weft_generation *g) {
  const generation_reader *r = &g->reader;
  int32_t token = r->event.finish == WEFT_FINISH_STOP && g->limits.has_stop ? r->event.stop_token : -1;
  return token >= 0 && !g->asked->ignore_eos && weft_tokenizer_is_eog(g->model->tokenizer, token) ? -1 : token;
}

static weft_status give_end(weft_generation *g, weft_delta *out) {
  generation_reader *r = &g->reader;
  const weft_usage *u = &r->event.usage;
  (void)snprintf(r->error, sizeof r->error, "%s", r->event.error == NULL ? "" : r->event.error);
  if (r->lost != WEFT_OK && r->event.finish != WEFT_FINISH_ERROR) {
    r->event.finish = WEFT_FINISH_ERROR;
    (void)snprintf(r->error, sizeof r->error, "the text of the answer broke off: %s", weft_status_text(r->lost));
  }
  /* broken bytes at the very end are printed only now, and U+FFFD may complete a stop string */
  if (r->stopped && r->event.finish == WEFT_FINISH_LENGTH) r->event.finish = WEFT_FINISH_STOP;
  *out = (weft_delta){
      .kind = WEFT_DELTA_END,
      .text = "",
      .finish = weft_finish_text(r->event.finish),
      .stop = r->stopped && r->event.finish == WEFT_FINISH_STOP ? r->stop.bytes : NULL,
      .error = r->event.finish == WEFT_FINISH_ERROR ? r->error : NULL,
      .retry_ms = generation_ms(r->event.retry_us),
      .stop_token = own_stop_token(g),
      .mean_logprob = u->n_answer == 0 ? -INFINITY : r->logprob_sum / u->n_answer,
      .usage = {.prompt_tokens = u->n_prompt,
                .cached_tokens = u->n_cached,
                .completion_tokens = u->n_answer,
                .canvases = u->n_canvases,
                .denoise_steps = u->n_denoise_steps,
                .preemptions = u->n_preemptions,
                .drafted = u->n_drafted,
                .accepted = u->n_accepted,
                .queue_us = u->started_us > u->submitted_us ? u->started_us - u->submitted_us : 0,
                .first_token_us = u->first_token_us > u->submitted_us ? u->first_token_us - u->submitted_us : 0,
                .total_us = u->finished_us - u->submitted_us,
                .denoising_us = u->denoising_us > u->submitted_us ? u->denoising_us - u->submitted_us : 0,
                .draft_runs = u->drafts.n_runs,
                .draft_us = u->drafts.draft_ns / 1000,
                .verify_us = u->drafts.verify_us,
                .commit_us = u->drafts.commit_ns / 1000,
                .rollback_us = u->drafts.back_ns / 1000}};
  r->ended = true;
  r->n_top = r->event.n_top;
  bool has_logprobs = g->asked->sampling.logprobs && r->event.logprobs != NULL && r->event.finish == WEFT_FINISH_STOP;
  if (has_logprobs) out->text_at = &r->n_characters;
  return has_logprobs ? fill_logprobs(g, r->event.logprobs, 1, out) : WEFT_OK;
}

/* A reader that lost text gives no more of it: the request ends, and its end says why. */
static weft_status give_lost(weft_generation *g, weft_delta *out, bool *given) {
  generation_reader *r = &g->reader;
  bool ends = r->has_event && r->event.kind == WEFT_EVENT_FINISHED;
  *given = ends;
  if (ends) return give_end(g, out);
  r->has_event = false;
  return WEFT_OK;
}

/* The end of the tokens: what the stream still holds comes out. */
static weft_status flush_stream(weft_generation *g, bool *thinking) {
  generation_reader *r = &g->reader;
  bool channel = r->limbo_thinking;
  size_t before = r->limbo.n;
  weft_status status = weft_chat_stream_flush(&r->stream, &r->limbo, &channel, NULL);
  if (g->asked->sampling.logprobs) count_text(r, before);
  if (r->limbo.n > before) r->limbo_thinking = channel;
  r->n_waiting = 0;
  release_text(g, true);
  *thinking = r->limbo_thinking;
  return status;
}

static weft_status next_delta(weft_generation *g, weft_delta *out, bool *given) {
  generation_reader *r = &g->reader;
  bool thinking = r->limbo_thinking;
  weft_status status = WEFT_OK;
  *given = true;
  drop_released(r);
  if (r->has_event && r->event.kind == WEFT_EVENT_TOKENS) {
    status = take_tokens(g, &thinking);
    if (r->next == r->event.n) r->has_event = false;
    if (status == WEFT_OK) status = weft_text_status(&r->text);
    if (status == WEFT_OK && (r->text.n > 0 || r->n_released > 0)) return give_text_delta(g, thinking, out);
  } else if (r->has_event && r->event.kind == WEFT_EVENT_CANVAS) {
    r->has_event = false;
    return give_canvas(g, out);
  } else if (r->has_event) {
    if (!r->finishing) {
      r->finishing = true;
      status = flush_stream(g, &thinking);
      if (status == WEFT_OK) status = weft_text_status(&r->text);
      if (status == WEFT_OK && (r->text.n > 0 || r->n_released > 0)) return give_text_delta(g, thinking, out);
    }
    if (status == WEFT_OK) return give_end(g, out);
  }
  *given = false;
  return status;
}

int weft_next(weft_generation *g, uint32_t timeout_ms, weft_delta *out) {
  generation_reader *r = &g->reader;
  weft_engine *engine = weft_replicas_of(g->runtime->replicas, g->request);
  if (r->ended) return WEFT_AGAIN;
  uint64_t until = weft_clock_us() + (uint64_t)timeout_ms * 1000u;
  for (;;) {
    bool given;
    weft_status status = r->lost == WEFT_OK ? next_delta(g, out, &given) : give_lost(g, out, &given);
    if (status != WEFT_OK) {
      r->lost = status;
      weft_engine_cancel(engine, g->request);
      continue;
    }
    if (given) return 0;
    if (r->has_event) continue;
    status = weft_engine_poll(engine, g->request, &r->event);
    if (status == WEFT_OK) {
      r->has_event = true;
      r->next = 0;
      continue;
    }
    if (status != WEFT_AGAIN) return (int)status;
    uint64_t now = weft_clock_us();
    if (now >= until) return WEFT_AGAIN;
    status = weft_engine_wait(engine, g->request, until - now);
    if (status != WEFT_OK && status != WEFT_AGAIN) return (int)status;
  }
}
