/* SPDX-License-Identifier: MIT */
/* Classes of tokens, split further and further by what places of a grammar say of them. Private to
 * model/grammar_graph.c.
 *
 * Law: tokens of one class had the same outcome in every place that was noted. A class keeps its number when it is
 * split, and the new class names it as its parent, so what an older place says of the parent holds for the new class.
 * What a place says is noted as a whole or, where there would be too many classes or records, not at all. */
#ifndef WEFT_MODEL_GRAMMAR_CLASSES_H
#define WEFT_MODEL_GRAMMAR_CLASSES_H

#include "model/triples.h"

typedef struct classes_record {
  uint32_t which, outcome; /* a class, and what it leads to */
} classes_record;

typedef struct token_classes {
  uint32_t n_vocab, n_classes, n_max, n_records, records_max, records_capacity;
  uint32_t *class_of;      /* [n_vocab] */
  uint32_t *size, *parent; /* [n_max] */
  classes_record *record;
  bool refused; /* there was no memory for a record */
  /* of the place that is being noted */
  triples pairs;                      /* class and outcome */
  uint32_t *pair_size, *pair_becomes; /* [n_max] tokens of a pair; the class that they become */
  uint32_t *moving;                   /* [n_max] tokens of a class that are in a pair */
  bool *kept;                         /* [n_max] a pair has all tokens of the class and keeps its number */
} token_classes;

/* All tokens begin in class 0. */
bool token_classes_open(token_classes *c, uint32_t n_vocab, uint32_t n_max, uint32_t records_max);
void token_classes_close(token_classes *c);
/* Tokens leave their class for a new one, which is returned. */
uint32_t token_classes_part(token_classes *c, const int32_t *token, uint32_t n);
/* What a place says: outcome[i] of token[i], no token twice. Adds to c->record. */
bool token_classes_note(token_classes *c, const int32_t *token, const uint32_t *outcome, uint32_t n);

#endif
