/* SPDX-License-Identifier: MIT */
/* Expressions: what regular expressions and GBNF rules are read into before they become automata.
 *
 * Law: an expression is a tree in one list; children are linked by `next`. A set of characters is a run of ranges,
 * which may overlap, and may be meant as what is not among them. */
#ifndef WEFT_MODEL_GRAMMAR_EXPRESSION_H
#define WEFT_MODEL_GRAMMAR_EXPRESSION_H

#include "model/grammar_internal.h"

typedef enum expression_kind { EXPR_SEQUENCE, EXPR_CHOICE, EXPR_REPEAT, EXPR_SET, EXPR_RULE } expression_kind;

typedef struct expression {
  uint8_t kind;
  bool negated;              /* SET */
  bool ascii;                /* SET, negated: only ASCII is meant */
  uint32_t child, next;      /* NONE: none */
  uint32_t min, max;         /* REPEAT */
  uint32_t ranges, n_ranges; /* SET; n_ranges of pairs */
  uint32_t rule;             /* RULE, of the builder */
} expression;

typedef struct expressions {
  grammar_builder *b;
  expression *at;
  uint32_t *range; /* pairs: low, high */
  uint32_t n, n_ranges, capacity, ranges_capacity;
  bool json; /* they stand in a JSON string */
  const char *text;
  size_t n_text, i; /* read so far */
} expressions;

void expressions_close(expressions *e);
uint32_t expression_new(expressions *e, expression_kind kind);
void expression_append(expressions *e, uint32_t parent, uint32_t *last, uint32_t child);
void expression_range(expressions *e, uint32_t set, uint32_t low, uint32_t high);
/* One character as a set. */
uint32_t expression_character(expressions *e, uint32_t c);
/* x{min,max} */
uint32_t expression_repeat(expressions *e, uint32_t child, uint32_t min, uint32_t max);
/* Reads a repetition, *, +, ?, {m}, {m,} or {m,n}, when one stands here. max GRAMMAR_NONE: without end. */
bool expression_counts(expressions *e, uint32_t *min, uint32_t *max);
void expression_emit(expressions *e, uint32_t at, uint32_t from, uint32_t to);

/* The text: its next character without taking it, GRAMMAR_NONE at the end; the same and taken. */
uint32_t expression_peek(const expressions *e);
uint32_t expression_take(expressions *e);

#endif
