/* SPDX-License-Identifier: MIT */
#include "scheduler/draft_history.h"

#include "base/random.h"

enum { JUDGED_MIN = 8 }; /* fewer tell nothing */

/* The hash of one more block. */
static uint64_t extend_key(uint64_t key, const int32_t *tokens) {
  for (uint32_t i = 0; i < WEFT_DRAFT_BLOCK; i++) key = weft_mix64(key ^ (uint32_t)tokens[i]);
  return key;
}

static uint32_t place_of(uint64_t key) {
  return (uint32_t)(key % WEFT_DRAFT_TEXTS);
}

void weft_draft_history_find(const weft_draft_history *h, weft_drafting *d, weft_key128 domain, uint32_t model,
                             const int32_t *tokens, uint32_t n_prompt) {
  uint64_t key = weft_mix64(domain.low ^ weft_mix64(domain.high ^ weft_mix64(model << 8 | d->kind)));
  uint32_t found = 0, n = 0;
  for (; n + WEFT_DRAFT_BLOCK <= n_prompt; n += WEFT_DRAFT_BLOCK) {
    key = extend_key(key, tokens + n);
    const weft_draft_past *past = &h->at[place_of(key)];
    if (atomic_load_explicit(&past->key, memory_order_relaxed) == key)
      found = atomic_load_explicit(&past->judged, memory_order_relaxed);
  }
  d->text_key = d->prompt_key = key;
  d->n_keyed = n;
  d->own = (weft_acceptance){.n_judged = (found >> 16) / 2, .n_right = (found & 0xffff) / 2};
  if (d->own.n_right > d->own.n_judged) d->own.n_right = d->own.n_judged;
}

static void keep_text(weft_draft_history *h, uint64_t key, const weft_acceptance *own) {
  weft_draft_past *past = &h->at[place_of(key)];
  atomic_store_explicit(&past->key, key, memory_order_relaxed);
  atomic_store_explicit(&past->judged, own->n_judged << 16 | own->n_right, memory_order_relaxed);
}

void weft_draft_history_keep(weft_draft_history *h, weft_drafting *d, const int32_t *tokens, uint32_t n_tokens) {
  if (d->own.n_judged < JUDGED_MIN || d->prompt_key == 0) return;
  if (d->n_keyed > 0) keep_text(h, d->prompt_key, &d->own);
  uint32_t n_before = d->n_keyed;
  for (; d->n_keyed + WEFT_DRAFT_BLOCK <= n_tokens; d->n_keyed += WEFT_DRAFT_BLOCK)
    d->text_key = extend_key(d->text_key, tokens + d->n_keyed);
  if (d->n_keyed > n_before) keep_text(h, d->text_key, &d->own);
}
