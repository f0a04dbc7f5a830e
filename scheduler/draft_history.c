/* SPDX-License-Identifier: MIT */
#include "scheduler/draft_history.h"

#include "base/random.h"

enum { JUDGED_MIN = 8 }; /* fewer tell nothing */

/* The hash of one more block. */
static uint64_t extend_key(uint64_t key, const int32_t *tokens) {
  for (uint32_t i = 0; i < WEFT_DRAFT_BLOCK; i++) key = weft_mix64(key ^ (uint32_t)tokens[i]);
  return key;
}

/* Of a text whose hash is known, whoever it belongs to. */
static uint64_t key_of(const weft_draft_learned *l) {
  return weft_mix64(l->text ^ weft_mix64(l->domain.low ^ weft_mix64(l->domain.high ^ (l->model << 8 | l->kind)))) | 1;
}

static uint32_t place_of(uint64_t key) {
  return (uint32_t)((key >> 1) % WEFT_DRAFT_TEXTS);
}

void weft_draft_history_find(const weft_draft_history *h, weft_drafting *d, weft_key128 domain, uint32_t model,
                             const int32_t *tokens, uint32_t n_prompt) {
  weft_draft_learned text = {.text = weft_mix64(1), .domain = domain, .model = model, .kind = d->kind};
  uint32_t found = 0, n = 0;
  for (; n + WEFT_DRAFT_BLOCK <= n_prompt; n += WEFT_DRAFT_BLOCK) {
    text.text = extend_key(text.text, tokens + n);
    const uint64_t key = key_of(&text);
    const weft_draft_past *past = &h->at[place_of(key)];
    if (atomic_load_explicit(&past->key, memory_order_relaxed) == key)
      found = atomic_load_explicit(&past->judged, memory_order_relaxed);
  }
  d->text_key = d->prompt_key = text.text;
  d->n_keyed = n;
  d->own = (weft_acceptance){.n_judged = (found >> 16) / 2, .n_right = (found & 0xffff) / 2};
  if (d->own.n_right > d->own.n_judged) d->own.n_right = d->own.n_judged;
}

void weft_draft_history_learn(weft_draft_history *h, const weft_draft_learned *learned) {
  const uint64_t key = key_of(learned);
  weft_draft_past *past = &h->at[place_of(key)];
  past->of = *learned;
  atomic_store_explicit(&past->key, key, memory_order_relaxed);
  atomic_store_explicit(&past->judged, learned->judged, memory_order_relaxed);
}

bool weft_draft_history_tell(const weft_draft_history *h, uint32_t i, weft_draft_learned *out) {
  *out = h->at[i].of;
  return atomic_load_explicit(&h->at[i].key, memory_order_relaxed) != 0;
}

void weft_draft_history_keep(weft_draft_history *h, weft_drafting *d, weft_key128 domain, uint32_t model,
                             const int32_t *tokens, uint32_t n_tokens) {
  if (d->own.n_judged < JUDGED_MIN || d->prompt_key == 0) return;
  weft_draft_learned learned = {.text = d->prompt_key,
                                .domain = domain,
                                .model = model,
                                .kind = d->kind,
                                .judged = d->own.n_judged << 16 | d->own.n_right};
  if (d->n_keyed > 0) weft_draft_history_learn(h, &learned);
  uint32_t n_before = d->n_keyed;
  for (; d->n_keyed + WEFT_DRAFT_BLOCK <= n_tokens; d->n_keyed += WEFT_DRAFT_BLOCK)
    d->text_key = extend_key(d->text_key, tokens + d->n_keyed);
  learned.text = d->text_key;
  if (d->n_keyed > n_before) weft_draft_history_learn(h, &learned);
}
