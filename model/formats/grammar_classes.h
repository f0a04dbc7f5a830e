/* SPDX-License-Identifier: MIT */
/* Classes of tokens that a grammar treats alike: one class at first, which the outcomes at each place of the grammar
 * split further and further. Private to model/formats/grammar_graph.c.
 *
 * Law: tokens of one class have the same outcome in every place that was noted. When a class is split, one part keeps
 * its number and the new class names it as its parent, so what was recorded for the parent before holds for the new
 * class too. The outcomes at a place are noted as a whole or, where there would be too many classes or records, not at
 * all. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_CLASSES_H
#define WEFT_MODEL_FORMATS_GRAMMAR_CLASSES_H

#include "model/text/triples.h"

typedef struct classes_record {
  uint32_t which, outcome; /* a class, and the outcome of its tokens */
} classes_record;

typedef struct token_classes {
  uint32_t n_vocab, n_classes, n_max, n_records, records_max, records_capacity;
  uint32_t *class_of;      /* [n_vocab] */
  uint32_t *size, *parent; /* [n_max] */
  classes_record *record;
  bool refused; /* there was no memory for a record */
  /* Of the place that is being noted. */
  triples pairs;                      /* numbers pairs of a class and an outcome */
  uint32_t *pair_size, *pair_becomes; /* [n_max] how many tokens a pair has; the class that they become */
  uint32_t *moving;                   /* [n_max] how many tokens of a class are in some pair */
  bool *kept;                         /* [n_max] one pair has all tokens of the class and keeps its number */
} token_classes;

/* All tokens begin in class 0. false: no memory; close it all the same. */
bool token_classes_open(token_classes *c, uint32_t n_vocab, uint32_t n_max, uint32_t records_max);
void token_classes_close(token_classes *c);
/* Moves the tokens from their class into a new one, which is returned. */
uint32_t token_classes_part(token_classes *c, const int32_t *token, uint32_t n);
/* Notes the outcomes at one place: outcome[i] is that of token[i], and no token comes twice. Adds to c->record; false:
 * it was not noted, because there is no room. */
bool token_classes_note(token_classes *c, const int32_t *token, const uint32_t *outcome, uint32_t n);

#endif
