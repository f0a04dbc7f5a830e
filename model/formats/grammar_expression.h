/* SPDX-License-Identifier: MIT */
/* Expressions: what regular expressions and GBNF rules are read into before they become automata.
 *
 * Law: an expression is a tree in one list; children are linked by `next`. A set of characters is a run of ranges,
 * which may overlap; `negated` says that the set is the characters outside its ranges. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_EXPRESSION_H
#define WEFT_MODEL_FORMATS_GRAMMAR_EXPRESSION_H

#include "model/formats/grammar_internal.h"

typedef enum expression_kind { EXPR_SEQUENCE, EXPR_CHOICE, EXPR_REPEAT, EXPR_SET, EXPR_RULE } expression_kind;

typedef struct expression {
  uint8_t kind;
  bool negated;              /* SET */
  bool ascii;                /* SET, negated: the characters of ASCII outside its ranges */
  uint32_t child, next;      /* GRAMMAR_NONE: there is none */
  uint32_t min, max;         /* REPEAT */
  uint32_t ranges, n_ranges; /* SET; n_ranges of pairs */
  uint32_t rule;             /* RULE, of the builder */
} expression;

typedef struct expressions {
  grammar_builder *b;
  expression *at;
  uint32_t *range; /* pairs: low, high */
  uint32_t n, n_ranges, capacity, ranges_capacity;
  bool json; /* the expressions stand in a JSON string */
  const char *text;
  size_t n_text, i; /* bytes of the text; how many of them are read */
} expressions;

void expressions_close(expressions *e);
uint32_t expression_new(expressions *e, expression_kind kind);
void expression_append(expressions *e, uint32_t parent, uint32_t *last, uint32_t child);
void expression_range(expressions *e, uint32_t set, uint32_t low, uint32_t high);
/* One character as a set. */
uint32_t expression_character(expressions *e, uint32_t c);
/* x{min,max} */
uint32_t expression_repeat(expressions *e, uint32_t child, uint32_t min, uint32_t max);
/* Reads a repetition, *, +, ?, {m}, {m,} or {m,n}; false: none stands here. max GRAMMAR_NONE: without end. */
bool expression_counts(expressions *e, uint32_t *min, uint32_t *max);
/* Adds the expression `at` to the builder, between two states. */
void expression_emit(expressions *e, uint32_t at, uint32_t from, uint32_t to);

/* The next character of the text, GRAMMAR_NONE at its end; take goes on behind the character. */
uint32_t expression_peek(const expressions *e);
uint32_t expression_take(expressions *e);

#endif
