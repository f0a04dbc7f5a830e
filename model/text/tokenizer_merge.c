/* SPDX-License-Identifier: MIT */
/* Merging: a linked list of symbols and a heap of offers, n log n whatever the text. */
#include <string.h>

#include "base/memory.h"
#include "model/text/tokenizer_internal.h"

#define NO_SYMBOL UINT32_MAX

void work_close(work *w) {
  weft_free(w->symbols);
  weft_free(w->heap);
  weft_free(w->unused_at);
  weft_free(w->ends[0]);
  weft_free(w->ends[1]);
  weft_text_free(&w->text);
}

weft_status work_symbol(work *w, uint32_t start, uint32_t n, uint32_t id) {
  merge_symbol *symbols = weft_grow(w->symbols, w->n_symbols, &w->symbols_capacity, 64, sizeof *symbols);
  if (symbols == NULL) return WEFT_E_NO_MEMORY;
  w->symbols = symbols;
  uint32_t at = w->n_symbols++;
  w->symbols[at] = (merge_symbol){start, n, id, NO_SYMBOL, at == 0 ? NO_SYMBOL : at - 1};
  if (at > 0) w->symbols[at - 1].next = at;
  return WEFT_OK;
}

static bool offer_before(const merge_offer *a, const merge_offer *b) {
  return a->order != b->order ? a->order < b->order : a->at < b->at;
}

weft_status work_push(work *w, merge_offer offer) {
  merge_offer *heap = weft_grow(w->heap, w->n_heap, &w->heap_capacity, 64, sizeof *heap);
  if (heap == NULL) return WEFT_E_NO_MEMORY;
  w->heap = heap;
  w->heap[w->n_heap++] = offer;
  return WEFT_OK;
}

static weft_status heap_push(work *w, merge_offer offer) {
  weft_status status = work_push(w, offer);
  if (status != WEFT_OK) return status;
  uint32_t at = w->n_heap - 1;
  while (at > 0) {
    uint32_t parent = (at - 1) / 2;
    if (!offer_before(&offer, &w->heap[parent])) break;
    w->heap[at] = w->heap[parent];
    at = parent;
  }
  w->heap[at] = offer;
  return WEFT_OK;
}

static merge_offer heap_pop(work *w) {
  merge_offer first = w->heap[0];
  merge_offer last = w->heap[--w->n_heap];
  uint32_t at = 0;
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= w->n_heap) break;
    if (child + 1 < w->n_heap && offer_before(&w->heap[child + 1], &w->heap[child])) child += 1;
    if (!offer_before(&w->heap[child], &last)) break;
    w->heap[at] = w->heap[child];
    at = child;
  }
  if (w->n_heap > 0) w->heap[at] = last;
  return first;
}

/* llama: any two neighbours that together are a token's text. An unused token may be a step on the
 * way; what is left of it in the end is taken apart again, where it was put together last. */
static weft_status offer_by_score(const weft_tokenizer *t, work *w, uint32_t at, merge_offer *offer) {
  const merge_symbol *left = &w->symbols[at];
  const merge_symbol *right = &w->symbols[left->next];
  offer->result = VOCAB_NONE;
  if (left->n + right->n > t->vocab.longest) return WEFT_OK;
  uint32_t id = vocab_find(&t->vocab, w->text.bytes + left->start, left->n + right->n);
  if (id == VOCAB_NONE) return WEFT_OK;
  if (!tokenizer_is_text(t, id)) return WEFT_OK;
  *offer = (merge_offer){t->order[id], at, left->n + right->n, id};
  if (t->vocab.type[id] != VOCAB_UNUSED) return WEFT_OK;
  if (w->unused_at == NULL) w->unused_at = weft_alloc(t->vocab.n, sizeof *w->unused_at);
  if (w->unused_at == NULL) return WEFT_E_NO_MEMORY;
  w->unused_at[id] = left->n;
  return WEFT_OK;
}

/* Offers the symbol at `at` and the one after it, when there is one and they merge. */
static weft_status offer_pair(const weft_tokenizer *t, work *w, uint32_t at) {
  if (at == NO_SYMBOL || w->symbols[at].next == NO_SYMBOL) return WEFT_OK;
  const merge_symbol *left = &w->symbols[at];
  const merge_symbol *right = &w->symbols[left->next];
  merge_offer offer;
  if (t->kind == TOKENIZER_LLAMA) {
    weft_status status = offer_by_score(t, w, at, &offer);
    if (status != WEFT_OK || offer.result == VOCAB_NONE) return status;
  } else {
    const merge_rule *rule = merges_find(&t->merges, left->id, right->id);
    if (rule == NULL) return WEFT_OK;
    offer = (merge_offer){rule->rank, at, left->n + right->n, rule->result};
  }
  return heap_push(w, offer);
}

weft_status merge_run(const weft_tokenizer *t, work *w) {
  weft_status status = WEFT_OK;
  w->n_heap = 0;
  for (uint32_t i = 0; i + 1 < w->n_symbols && status == WEFT_OK; i++) status = offer_pair(t, w, i);
  while (w->n_heap > 0 && status == WEFT_OK) {
    merge_offer offer = heap_pop(w);
    merge_symbol *left = &w->symbols[offer.at];
    if (left->n == 0 || left->next == NO_SYMBOL) continue;
    merge_symbol *right = &w->symbols[left->next];
    if (left->n + right->n != offer.n) continue;
    left->n = offer.n;
    left->id = offer.result;
    left->next = right->next;
    right->n = 0;
    if (left->next != NO_SYMBOL) w->symbols[left->next].previous = offer.at;
    status = offer_pair(t, w, left->previous);
    if (status == WEFT_OK) status = offer_pair(t, w, offer.at);
  }
  return status;
}
