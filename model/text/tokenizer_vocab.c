/* SPDX-License-Identifier: MIT */
/* Strings to numbers, pairs to merges: the two tables that tokenizing lives on. */
#include <string.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/text/tokenizer_internal.h"

/* The smallest power of two that n entries fill at most by half. */
static uint64_t table_size(uint32_t n) {
  uint64_t size = 16;
  while (size < 2 * ((uint64_t)n + 1)) size *= 2;
  return size;
}

weft_status vocab_open(vocab *v, uint32_t n_expected) {
  uint64_t size = table_size(n_expected);
  if (size > UINT32_MAX) return WEFT_E_TOO_LARGE;
  v->slots = weft_alloc((size_t)size, sizeof *v->slots);
  v->start = weft_alloc((size_t)n_expected + 1, sizeof *v->start);
  v->mask = (uint32_t)(size - 1);
  v->capacity = n_expected;
  weft_text_append(&v->bytes, "", 0);
  return v->slots == NULL || v->start == NULL ? WEFT_E_NO_MEMORY : weft_text_status(&v->bytes);
}

void vocab_close(vocab *v) {
  weft_free(v->slots);
  weft_free(v->start);
  weft_free(v->type);
  weft_text_free(&v->bytes);
  memset(v, 0, sizeof *v);
}

/* The slot that holds the text, or the empty one where it belongs. */
static uint32_t *vocab_slot(const vocab *v, const char *text, size_t n) {
  uint32_t at = (uint32_t)XXH3_64bits(text, n) & v->mask;
  for (;; at = (at + 1) & v->mask) {
    uint32_t id = v->slots[at];
    if (id == 0) return &v->slots[at];
    id -= 1;
    if (vocab_length(v, id) == n && memcmp(vocab_text(v, id), text, n) == 0) return &v->slots[at];
  }
}

uint32_t vocab_find(const vocab *v, const char *text, size_t n) {
  if (n > v->longest) return VOCAB_NONE;
  uint32_t id = *vocab_slot(v, text, n);
  return id == 0 ? VOCAB_NONE : id - 1;
}

static weft_status vocab_grow(vocab *v) {
  uint32_t capacity = v->capacity < 32 ? 64 : v->capacity + v->capacity / 2;
  uint64_t size = table_size(capacity);
  if (capacity < v->capacity || size > UINT32_MAX) return WEFT_E_TOO_LARGE;
  uint32_t *start = weft_realloc(v->start, (size_t)capacity + 1, sizeof *start);
  if (start == NULL) return WEFT_E_NO_MEMORY;
  v->start = start;
  uint32_t *slots = weft_alloc((size_t)size, sizeof *slots);
  if (slots == NULL) return WEFT_E_NO_MEMORY;
  weft_free(v->slots);
  v->slots = slots;
  v->mask = (uint32_t)(size - 1);
  v->capacity = capacity;
  for (uint32_t id = 0; id < v->n_strings; id++) {
    if (vocab_length(v, id) == 0) continue;
    *vocab_slot(v, vocab_text(v, id), vocab_length(v, id)) = id + 1;
  }
  return WEFT_OK;
}

weft_status vocab_add(vocab *v, const char *text, size_t n, uint32_t *id, bool *found) {
  uint32_t *slot = vocab_slot(v, text, n);
  *found = *slot != 0; /* never for the empty text, which has no slot */
  if (*found) {
    *id = *slot - 1;
    return WEFT_OK;
  }
  if (v->n_strings == v->capacity) {
    weft_status status = vocab_grow(v);
    if (status != WEFT_OK) return status;
    slot = vocab_slot(v, text, n);
  }
  weft_text_append(&v->bytes, text, n); /* refuses beyond 1 GiB, so offsets fit */
  if (weft_text_status(&v->bytes) != WEFT_OK) return WEFT_E_NO_MEMORY;
  *id = v->n_strings;
  v->n_strings += 1;
  v->start[v->n_strings] = (uint32_t)v->bytes.n;
  if (n > v->longest) v->longest = (uint32_t)n;
  if (n > 0) *slot = *id + 1;
  return WEFT_OK;
}

weft_status merges_open(merge_table *table, uint32_t n_expected) {
  uint64_t size = table_size(n_expected);
  if (size > UINT32_MAX) return WEFT_E_TOO_LARGE;
  table->slots = weft_alloc_aligned((size_t)size * sizeof *table->slots, 64);
  if (table->slots == NULL) return WEFT_E_NO_MEMORY;
  memset(table->slots, 0xFF, (size_t)size * sizeof *table->slots);
  table->mask = (uint32_t)(size - 1);
  return WEFT_OK;
}

void merges_close(merge_table *table) {
  weft_free(table->slots);
  memset(table, 0, sizeof *table);
}

static merge_rule *merges_slot(const merge_table *table, uint32_t left, uint32_t right) {
  uint64_t key = (uint64_t)left << 32 | right;
  uint32_t at = (uint32_t)(key * 0x9E3779B97F4A7C15ull >> 32) & table->mask;
  for (;; at = (at + 1) & table->mask) {
    merge_rule *slot = &table->slots[at];
    if (slot->left == VOCAB_NONE) return slot;
    if (slot->left == left && slot->right == right) return slot;
  }
}

void merges_add(merge_table *table, merge_rule rule) {
  WEFT_CHECK(rule.left != VOCAB_NONE);
  merge_rule *slot = merges_slot(table, rule.left, rule.right);
  if (slot->left == VOCAB_NONE) *slot = rule;
}

const merge_rule *merges_find(const merge_table *table, uint32_t left, uint32_t right) {
  if (left == VOCAB_NONE || right == VOCAB_NONE) return NULL;
  const merge_rule *slot = merges_slot(table, left, right);
  return slot->left == VOCAB_NONE ? NULL : slot;
}
