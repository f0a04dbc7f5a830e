/* SPDX-License-Identifier: MIT */
#include "model/formats/grammar_classes.h"

#include <string.h>

#include "base/memory.h"

bool token_classes_open(token_classes *c, uint32_t n_vocab, uint32_t n_max, uint32_t records_max) {
  *c = (token_classes){.n_vocab = n_vocab, .n_classes = 1, .n_max = n_max, .records_max = records_max};
  c->class_of = weft_alloc(n_vocab, sizeof *c->class_of);
  c->size = weft_alloc(n_max, sizeof *c->size);
  c->parent = weft_alloc(n_max, sizeof *c->parent);
  c->pair_size = weft_alloc(n_max, sizeof *c->pair_size);
  c->pair_becomes = weft_alloc(n_max, sizeof *c->pair_becomes);
  c->moving = weft_alloc(n_max, sizeof *c->moving);
  c->kept = weft_alloc(n_max, sizeof *c->kept);
  if (!triples_open(&c->pairs, n_max)) return false;
  if (c->class_of == NULL || c->size == NULL || c->parent == NULL || c->pair_size == NULL) return false;
  if (c->pair_becomes == NULL || c->moving == NULL || c->kept == NULL) return false;
  c->size[0] = n_vocab;
  return true;
}

void token_classes_close(token_classes *c) {
  void *const all[] = {c->class_of, c->size, c->parent, c->record, c->pair_size, c->pair_becomes, c->moving, c->kept};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  triples_close(&c->pairs);
}

uint32_t token_classes_part(token_classes *c, const int32_t *token, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    c->size[c->class_of[token[i]]] -= 1;
    c->class_of[token[i]] = c->n_classes;
  }
  c->size[c->n_classes] = n;
  return c->n_classes++;
}

static bool make_room(token_classes *c, uint32_t n) {
  uint32_t wanted = c->n_records + n, capacity = c->records_capacity == 0 ? 1 << 12 : c->records_capacity;
  if (wanted > c->records_max) return false;
  while (capacity < wanted) capacity *= 2;
  if (capacity == c->records_capacity) return true;
  classes_record *record = weft_realloc(c->record, capacity, sizeof *record);
  c->refused = record == NULL;
  if (record == NULL) return false;
  c->record = record;
  c->records_capacity = capacity;
  return true;
}

/* How many tokens each pair of class and outcome has, and of each class how many are in one. */
static bool count_pairs(token_classes *c, const int32_t *token, const uint32_t *outcome, uint32_t n) {
  triples_clear(&c->pairs);
  memset(c->moving, 0, c->n_classes * sizeof *c->moving);
  memset(c->kept, 0, c->n_classes * sizeof *c->kept);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t from = c->class_of[token[i]], n_before = c->pairs.n, pair = triples_number(&c->pairs, from, outcome[i], 0);
    if (pair == TRIPLES_FULL) return false;
    if (pair == n_before) c->pair_size[pair] = 0;
    c->pair_size[pair] += 1;
    c->moving[from] += 1;
  }
  return true;
}

/* The class that each pair becomes: the first of a class that goes as a whole stays where it is. false: too many. */
static bool name_pairs(token_classes *c) {
  uint32_t n = c->n_classes;
  for (uint32_t pair = 0; pair < c->pairs.n; pair++) {
    uint32_t from = c->pairs.key[pair][0];
    bool keeps = c->moving[from] == c->size[from] && !c->kept[from];
    if (!keeps && n == c->n_max) return false;
    c->pair_becomes[pair] = keeps ? from : n++;
    if (keeps) c->kept[from] = true;
  }
  return true;
}

bool token_classes_note(token_classes *c, const int32_t *token, const uint32_t *outcome, uint32_t n) {
  if (!count_pairs(c, token, outcome, n) || !name_pairs(c) || !make_room(c, c->pairs.n)) return false;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t pair = triples_number(&c->pairs, c->class_of[token[i]], outcome[i], 0);
    c->class_of[token[i]] = c->pair_becomes[pair];
  }
  for (uint32_t pair = 0; pair < c->pairs.n; pair++) {
    uint32_t from = c->pairs.key[pair][0], to = c->pair_becomes[pair];
    c->record[c->n_records++] = (classes_record){to, c->pairs.key[pair][1]};
    if (to == from) continue;
    c->size[from] -= c->pair_size[pair];
    c->size[to] = c->pair_size[pair];
    c->parent[to] = from;
    c->n_classes += 1;
  }
  return true;
}
