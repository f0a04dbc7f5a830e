/* SPDX-License-Identifier: MIT */
#include "api/formats.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

typedef struct kept_format {
  weft_format_ask ask;   /* what it was compiled for, with a text of its own */
  weft_grammar *grammar; /* NULL: the place is free */
  uint64_t used;         /* greater: later */
} kept_format;

struct weft_formats {
  pthread_mutex_t mutex;
  const weft_tokenizer *tokenizer;
  weft_token_trie *trie; /* made when the first format is asked for */
  kept_format kept[WEFT_FORMATS];
  uint64_t n_used, n_bytes;
  uint32_t n_tenants;
  double *left; /* [n_tenants] steps */
  uint64_t *at; /* [n_tenants] when that was so */
};

weft_status weft_formats_open(const weft_tokenizer *tokenizer, uint32_t n_tenants, weft_formats **out) {
  weft_formats *f = *out = weft_alloc(1, sizeof *f);
  if (f == NULL) return WEFT_E_NO_MEMORY;
  f->tokenizer = tokenizer;
  f->n_tenants = n_tenants;
  f->left = weft_alloc(n_tenants, sizeof *f->left);
  f->at = weft_alloc(n_tenants, sizeof *f->at);
  if (f->left == NULL || f->at == NULL || pthread_mutex_init(&f->mutex, NULL) != 0) {
    weft_free(f->left);
    weft_free(f->at);
    weft_free(f);
    *out = NULL;
    return WEFT_E_NO_MEMORY;
  }
  for (uint32_t i = 0; i < n_tenants; i++) f->left[i] = WEFT_FORMAT_STEPS;
  return WEFT_OK;
}

static void forget_format(weft_formats *f, kept_format *k) {
  if (k->grammar == NULL) return;
  f->n_bytes -= weft_grammar_bytes(k->grammar) + k->ask.n;
  weft_grammar_unref(k->grammar);
  weft_free((char *)k->ask.text);
  *k = (kept_format){0};
}

void weft_formats_close(weft_formats *f) {
  if (f == NULL) return;
  for (uint32_t i = 0; i < WEFT_FORMATS; i++) forget_format(f, &f->kept[i]);
  weft_token_trie_close(f->trie);
  (void)pthread_mutex_destroy(&f->mutex);
  weft_free(f->left);
  weft_free(f->at);
  weft_free(f);
}

/* ---- under the mutex ---- */

static weft_grammar *find_format(weft_formats *f, const weft_format_ask *ask) {
  for (uint32_t i = 0; i < WEFT_FORMATS; i++) {
    kept_format *k = &f->kept[i];
    if (k->grammar == NULL || k->ask.tenant != ask->tenant || k->ask.kind != ask->kind) continue;
    if (k->ask.canvas != ask->canvas || k->ask.n != ask->n) continue;
    if (ask->n > 0 && memcmp(k->ask.text, ask->text, ask->n) != 0) continue; /* without a text, it may be NULL */
    k->used = ++f->n_used;
    return weft_grammar_ref(k->grammar);
  }
  return NULL;
}

/* What a tenant keeps: formats, or bytes of them. */
static uint64_t kept_by(const weft_formats *f, uint32_t tenant, bool bytes) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < WEFT_FORMATS; i++) {
    const kept_format *k = &f->kept[i];
    if (k->grammar == NULL || k->ask.tenant != tenant) continue;
    n += bytes ? weft_grammar_bytes(k->grammar) + k->ask.n : 1;
  }
  return n;
}

/* Of the tenant that keeps most, the format used longest ago; NULL: nothing is kept. */
static kept_format *format_to_forget(weft_formats *f, bool bytes) {
  kept_format *found = NULL;
  uint64_t most = 0;
  for (uint32_t i = 0; i < WEFT_FORMATS; i++) {
    kept_format *k = &f->kept[i];
    if (k->grammar == NULL) continue;
    uint64_t n = kept_by(f, k->ask.tenant, bytes);
    if (found != NULL && (n < most || (n == most && k->used > found->used))) continue;
    found = k;
    most = n;
  }
  return found;
}

static kept_format *free_place(weft_formats *f) {
  for (uint32_t i = 0; i < WEFT_FORMATS; i++)
    if (f->kept[i].grammar == NULL) return &f->kept[i];
  kept_format *k = format_to_forget(f, false);
  forget_format(f, k);
  return k;
}

/* Without memory for the text it is not kept, and that is all. */
static void keep_format(weft_formats *f, const weft_format_ask *ask, weft_grammar *g) {
  char *copy = weft_strndup(ask->text, ask->n);
  if (copy == NULL) return;
  kept_format *k = free_place(f);
  *k = (kept_format){*ask, weft_grammar_ref(g), ++f->n_used};
  k->ask.text = copy;
  k->ask.stop = NULL;
  f->n_bytes += weft_grammar_bytes(g) + ask->n;
  while (f->n_bytes > WEFT_FORMATS_BYTES) forget_format(f, format_to_forget(f, true));
}

/* The tenant's steps as of now; false: there are none. */
static bool has_steps(weft_formats *f, uint32_t tenant, uint64_t *retry_us) {
  const double per_us = WEFT_FORMAT_STEPS / 60e6;
  uint64_t now = weft_clock_us();
  f->left[tenant] += (double)(now - f->at[tenant]) * per_us;
  if (f->left[tenant] > WEFT_FORMAT_STEPS) f->left[tenant] = WEFT_FORMAT_STEPS;
  f->at[tenant] = now;
  *retry_us = f->left[tenant] > 0 ? 0 : (uint64_t)(-f->left[tenant] / per_us) + 1;
  return f->left[tenant] > 0;
}

/* ---- */

static weft_status compile_format(weft_formats *f, const weft_format_ask *ask, weft_grammar **out, weft_error *error) {
  weft_grammar_work work = {.stop = ask->stop, .self = ask->stop_self};
  weft_status status = weft_grammar_compile(ask->kind, ask->text, ask->n, f->trie, out, &work, error);
  if (status == WEFT_OK && ask->canvas && (status = weft_grammar_for_canvases(*out, &work, error)) != WEFT_OK) {
    weft_grammar_unref(*out);
    *out = NULL;
  }
  (void)pthread_mutex_lock(&f->mutex);
  f->left[ask->tenant] -= (double)work.n_steps;
  if (status == WEFT_OK) keep_format(f, ask, *out);
  (void)pthread_mutex_unlock(&f->mutex);
  return status == WEFT_E_TOO_LARGE ? WEFT_E_UNSUPPORTED : status; /* it is not the context that is too short */
}

weft_status weft_formats_get(weft_formats *f, const weft_format_ask *ask, weft_grammar **out, uint64_t *retry_us,
                             weft_error *error) {
  weft_status status = WEFT_OK;
  weft_format_ask own = *ask;
  if (own.n == 0) own.text = ""; /* a kind without a text may come with none */
  *retry_us = 0;
  (void)pthread_mutex_lock(&f->mutex);
  *out = find_format(f, &own);
  bool found = *out != NULL;
  if (!found && !has_steps(f, ask->tenant, retry_us)) {
    status = weft_fail(error, WEFT_RATE_LIMIT,
                       "this tenant's formats of answers took too long to compile: use the same ones again, "
                       "or come back in %u s",
                       (uint32_t)(*retry_us / 1000000) + 1);
  }
  if (status == WEFT_OK && !found && f->trie == NULL) status = weft_token_trie_open(f->tokenizer, &f->trie, error);
  (void)pthread_mutex_unlock(&f->mutex);
  return found || status != WEFT_OK ? status : compile_format(f, &own, out, error);
}
