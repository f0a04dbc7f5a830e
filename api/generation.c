/* SPDX-License-Identifier: MIT */
/* A generation's engine side, which looks for stop strings, and what may be asked of it besides its deltas. */
#include "api/generation_internal.h"

#include "base/memory.h"

/* ---- engine thread ---- */

static void search_text(void *self, const char *text, size_t n, bool thinking) {
  weft_generation *g = self;
  size_t end;
  if (g->watch.n_seen <= g->watch.min_tokens) return; /* counted before its text comes */
  if (!g->watch.found) g->watch.found = weft_stops_read(&g->stops, &g->watch.search, text, n, thinking, &end);
}

uint32_t generation_stop_rule(void *self, const int32_t *tokens, uint32_t n_tokens) {
  weft_generation *g = self;
  while (g->watch.n_seen < n_tokens && !g->watch.found) {
    /* an id outside the vocabulary has no text to search; the reader, who cannot print it either, ends the answer */
    (void)weft_chat_stream_feed(&g->watch.stream, tokens[g->watch.n_seen++], search_text, g);
  }
  if (!g->watch.found) return n_tokens;
  return g->watch.n_seen < n_tokens ? g->watch.n_seen : WEFT_STOP_KEEP_ALL;
}

void generation_notify(void *self) {
  weft_generation *g = self;
  void (*ready)(void *) = atomic_load(&g->ready);
  if (ready != NULL) ready(atomic_load(&g->ready_self));
}

/* ---- any thread ---- */

void weft_on_ready(weft_generation *g, void (*ready)(void *self), void *self) {
  atomic_store(&g->ready_self, self);
  atomic_store(&g->ready, ready);
  ready(self); /* what came before is not missed */
}

weft_mode weft_answer_mode(const weft_generation *g) {
  return g->canvas ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
}

uint32_t weft_prompt_tokens(const weft_generation *g, const int32_t **tokens) {
  *tokens = g->prompt.tokens.ids;
  return g->prompt.tokens.n;
}

int weft_prompt_part(weft_generation *g, uint32_t first, weft_delta *out) {
  weft_prompt_logprobs logprobs;
  if (!g->asked->prompt_logprobs) return (int)prompt_parts_get(&g->parts, first, NULL, out);
  weft_status status = weft_engine_prompt_logprobs(g->request, &logprobs);
  if (status == WEFT_AGAIN) return WEFT_AGAIN;
  if (status != WEFT_OK) return (int)prompt_parts_get(&g->parts, g->parts.n, NULL, out); /* it ended before */
  return (int)prompt_parts_get(&g->parts, first, &logprobs, out);
}

void weft_cancel(weft_generation *g) {
  weft_engine_cancel(weft_replicas_of(g->runtime->replicas, g->request), g->request);
}

void weft_generation_free(weft_generation *g) {
  if (g == NULL) return;
  if (g->request != NULL) weft_engine_release(weft_replicas_of(g->runtime->replicas, g->request), g->request);
  generation_reader_close(&g->reader);
  weft_chat_stream_close(&g->watch.stream);
  weft_stops_close(&g->stops);
  weft_grammar_unref(g->grammar);
  answer_limits_close(&g->limits);
  prompt_parts_close(&g->parts);
  prompt_close(&g->prompt);
  weft_free(g);
}

bool weft_generation_calls(const weft_generation *g, weft_call_form *form) {
  *form = g->calls.form;
  return g->calls.read;
}

const weft_generate_params *weft_generation_asked(const weft_generation *g) {
  return g->asked;
}

weft_status weft_generation_piece(const weft_generation *g, int32_t token, weft_text *out) {
  return weft_tokenizer_piece(g->model->tokenizer, token, true, out);
}

bool weft_generation_ends_with(const weft_generation *g, int32_t token) {
  return weft_tokenizer_is_eog(g->model->tokenizer, token);
}
