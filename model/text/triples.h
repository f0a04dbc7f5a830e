/* SPDX-License-Identifier: MIT */
/* Numbers for triples of 32-bit words (hash consing). Private to model/.
 *
 * Law: since open or the last clear, the same triple always has the same number, and numbers count from 0 in the order
 * in which the triples came. Memory is taken once, at open. */
#ifndef WEFT_MODEL_TEXT_TRIPLES_H
#define WEFT_MODEL_TEXT_TRIPLES_H

#include <stdbool.h>
#include <stdint.h>

#define TRIPLES_FULL UINT32_MAX

typedef struct triples {
  uint32_t (*key)[3]; /* [max] */
  uint32_t *slot;     /* [n_slots] number + 1, or 0 */
  uint32_t n, max, n_slots;
} triples;

bool triples_open(triples *t, uint32_t max); /* false: no memory; close it all the same */
void triples_close(triples *t);
void triples_clear(triples *t);
/* The number of a triple. TRIPLES_FULL: the triple is new, and `max` others have numbers. */
uint32_t triples_number(triples *t, uint32_t a, uint32_t b, uint32_t c);

#endif
