/* SPDX-License-Identifier: MIT */
#include "model/text/triples.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

bool triples_open(triples *t, uint32_t max) {
  *t = (triples){.max = max, .n_slots = 16};
  while (t->n_slots < 2 * max) t->n_slots *= 2;
  t->key = weft_alloc(max, sizeof *t->key);
  t->slot = weft_alloc(t->n_slots, sizeof *t->slot);
  return t->key != NULL && t->slot != NULL;
}

void triples_close(triples *t) {
  weft_free(t->key);
  weft_free(t->slot);
  *t = (triples){0};
}

void triples_clear(triples *t) {
  memset(t->slot, 0, t->n_slots * sizeof *t->slot);
  t->n = 0;
}

uint32_t triples_number(triples *t, uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t key[3] = {a, b, c};
  uint64_t hash = weft_mix64(((uint64_t)a << 32 | b) ^ weft_mix64(c));
  uint32_t at = (uint32_t)hash & (t->n_slots - 1);
  for (; t->slot[at] != 0; at = (at + 1) & (t->n_slots - 1)) {
    if (memcmp(t->key[t->slot[at] - 1], key, sizeof key) == 0) return t->slot[at] - 1;
  }
  if (t->n == t->max) return TRIPLES_FULL;
  memcpy(t->key[t->n], key, sizeof key);
  t->slot[at] = ++t->n;
  return t->n - 1;
}
