/* SPDX-License-Identifier: MIT */
/* A number for each triple of words that was seen, in the order in which they came (hash consing). Private to model/.
 *
 * Law: the same triple always has the same number; numbers count from 0. Memory is taken once, at open. */
#ifndef WEFT_MODEL_TRIPLES_H
#define WEFT_MODEL_TRIPLES_H

#include <stdbool.h>
#include <stdint.h>

#define TRIPLES_FULL UINT32_MAX

typedef struct triples {
  uint32_t (*key)[3]; /* [max] */
  uint32_t *slot;     /* [n_slots] number + 1, or 0 */
  uint32_t n, max, n_slots;
} triples;

bool triples_open(triples *t, uint32_t max);
void triples_close(triples *t);
void triples_clear(triples *t);
/* TRIPLES_FULL: it is a new one and there is no room. */
uint32_t triples_number(triples *t, uint32_t a, uint32_t b, uint32_t c);

#endif
