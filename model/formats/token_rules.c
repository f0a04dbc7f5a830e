/* SPDX-License-Identifier: MIT */
#include "model/formats/token_rules.h"

#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"

struct weft_token_rules {
  _Atomic uint32_t n_references;
  uint32_t n_mask; /* words of 32 bits */
  uint32_t min_tokens, n_words, n_word_tokens;
  uint64_t n_bytes;
  uint32_t *base;   /* [n_mask] what may come anywhere */
  uint32_t *no_end; /* [n_mask] what may come before min_tokens */
  int32_t *word;    /* words of two and more tokens */
  uint32_t *length; /* [n_words] */
};

static void clear_bit(uint32_t *mask, int32_t token) {
  mask[(uint32_t)token / 32] &= ~(UINT32_C(1) << ((uint32_t)token % 32));
}

static bool is_empty(const uint32_t *mask, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (mask[i] != 0) return false;
  }
  return true;
}

static weft_status check_ids(const int32_t *ids, uint32_t n, uint32_t n_vocab, const char *what, weft_error *error) {
  for (uint32_t i = 0; i < n; i++) {
    if (ids[i] >= 0 && (uint32_t)ids[i] < n_vocab) continue;
    return weft_fail(error, WEFT_E_INVALID, "%s has token %d; the vocabulary has tokens 0 to %u", what, ids[i],
                     n_vocab - 1);
  }
  return WEFT_OK;
}

static weft_status check_config(const weft_token_rules_config *c, uint32_t *n_tokens, uint32_t *n_long,
                                weft_error *error) {
  weft_status status = check_ids(c->allowed, c->n_allowed, c->n_vocab, "allowed_token_ids", error);
  if (status == WEFT_OK) status = check_ids(c->end, c->n_ends, c->n_vocab, "stop_token_ids", error);
  *n_tokens = *n_long = 0;
  for (uint32_t i = 0; i < c->n_words && status == WEFT_OK; i++) {
    if (c->word_length[i] == 0) return weft_fail(error, WEFT_E_INVALID, "a word of bad_words has no tokens");
    *n_long += c->word_length[i] > 1;
    *n_tokens += c->word_length[i];
  }
  return status == WEFT_OK ? check_ids(c->word, *n_tokens, c->n_vocab, "bad_words", error) : status;
}

/* Words of one token are never wanted; longer ones are kept. */
static void take_words(weft_token_rules *r, const weft_token_rules_config *c) {
  const int32_t *word = c->word;
  for (uint32_t i = 0; i < c->n_words; word += c->word_length[i++]) {
    if (c->word_length[i] == 1) {
      clear_bit(r->base, word[0]);
      continue;
    }
    memcpy(r->word + r->n_word_tokens, word, c->word_length[i] * sizeof *word);
    r->n_word_tokens += c->word_length[i];
    r->length[r->n_words++] = c->word_length[i];
  }
}

static void fill_masks(weft_token_rules *r, const weft_token_rules_config *c) {
  if (c->n_allowed == 0) {
    memset(r->base, 0xFF, r->n_mask * sizeof *r->base);
    if (c->n_vocab % 32 != 0) r->base[r->n_mask - 1] = (UINT32_C(1) << (c->n_vocab % 32)) - 1;
  }
  for (uint32_t i = 0; i < c->n_allowed; i++) {
    r->base[(uint32_t)c->allowed[i] / 32] |= UINT32_C(1) << ((uint32_t)c->allowed[i] % 32);
  }
  for (uint32_t i = 0; i < c->n_suppressed; i++) clear_bit(r->base, c->suppressed[i]);
  take_words(r, c);
  memcpy(r->no_end, r->base, r->n_mask * sizeof *r->base);
  for (uint32_t i = 0; i < c->n_ends; i++) clear_bit(r->no_end, c->end[i]);
}

weft_status weft_token_rules_open(const weft_token_rules_config *c, weft_token_rules **out, weft_error *error) {
  uint32_t n_tokens, n_long, n_mask = (c->n_vocab + 31) / 32;
  *out = NULL;
  weft_status status = check_config(c, &n_tokens, &n_long, error);
  if (status != WEFT_OK) return status;
  size_t n_bytes = sizeof(weft_token_rules) + (2 * (size_t)n_mask + n_tokens + n_long) * sizeof(uint32_t);
  weft_token_rules *r = weft_alloc(1, n_bytes);
  if (r == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the rules of an answer");
  atomic_store(&r->n_references, 1);
  r->n_bytes = n_bytes;
  r->n_mask = n_mask;
  r->min_tokens = c->min_tokens;
  r->base = (uint32_t *)(void *)(r + 1);
  r->no_end = r->base + n_mask;
  r->length = r->no_end + n_mask;
  r->word = (int32_t *)(void *)(r->length + n_long);
  fill_masks(r, c);
  if (is_empty(c->min_tokens > 0 ? r->no_end : r->base, n_mask)) {
    weft_free(r);
    return weft_fail(error, WEFT_E_INVALID,
                     "allowed_token_ids, bad_words and min_tokens together leave no token that the answer could have");
  }
  *out = r;
  return WEFT_OK;
}

weft_token_rules *weft_token_rules_ref(weft_token_rules *r) {
  if (r != NULL) (void)atomic_fetch_add(&r->n_references, 1);
  return r;
}

void weft_token_rules_unref(weft_token_rules *r) {
  if (r != NULL && atomic_fetch_sub(&r->n_references, 1) == 1) weft_free(r);
}

uint64_t weft_token_rules_bytes(const weft_token_rules *r) {
  return r->n_bytes;
}

bool weft_token_rules_waits(const weft_token_rules *r) {
  return r->n_words > 0;
}

void weft_token_rules_mask(const weft_token_rules *r, const int32_t *answer, uint32_t n_answer, uint32_t *mask) {
  const uint32_t *from = n_answer < r->min_tokens ? r->no_end : r->base;
  const int32_t *word = r->word;
  memcpy(mask, from, r->n_mask * sizeof *mask);
  for (uint32_t i = 0; i < r->n_words; word += r->length[i++]) {
    uint32_t n = r->length[i] - 1; /* tokens before its last one */
    if (n <= n_answer && memcmp(answer + (n_answer - n), word, n * sizeof *word) == 0) clear_bit(mask, word[n]);
  }
  if (r->n_words > 0 && is_empty(mask, r->n_mask)) memcpy(mask, from, r->n_mask * sizeof *mask);
}
