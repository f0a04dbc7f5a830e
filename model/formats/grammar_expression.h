/* SPDX-License-Identifier: MIT */
/* Expressions: what regular expressions and GBNF rules are read into before they become automata.
 *
 * Law: an expression is a tree in one list; children are linked by `next`. A set of characters is a run of ranges,
 * which may overlap, and classes such as \d; `negated` says that the set is the characters outside of these. Which
 * characters beyond ASCII a class holds is understood in two ways (JavaScript's, Python's), so a set is made ranges
 * by a reading: of what is surely in it, or of what perhaps is. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_EXPRESSION_H
#define WEFT_MODEL_FORMATS_GRAMMAR_EXPRESSION_H

#include "model/formats/grammar_internal.h"

typedef enum expression_kind {
  EXPR_SEQUENCE,
  EXPR_CHOICE,
  EXPR_REPEAT,
  EXPR_SET,
  EXPR_RULE,
  /* Assertions, which hold no characters. */
  EXPR_BEGIN,
  EXPR_END,
  EXPR_BORDER,    /* of a word */
  EXPR_NO_BORDER, /* \B */
  EXPR_AHEAD,     /* child: what follows; negated: what does not */
  EXPR_BEHIND     /* child: what stands before; negated: what does not */
} expression_kind;

enum {
  CLASS_DIGIT = 1,
  CLASS_NOT_DIGIT = 2,
  CLASS_WORD = 4,
  CLASS_NOT_WORD = 8,
  CLASS_SPACE = 16,
  CLASS_NOT_SPACE = 32,
  CLASS_DOT = 64,
  CLASS_PROPERTY = 128 /* some ranges are of a class by a property: unassigned characters may be in it, too */
};

typedef enum regex_reading {
  /* What matches however a validator understands classes beyond ASCII, line ends and the like. */
  REGEX_SURELY,
  /* What matches in some understanding: what is not among it surely does not match. */
  REGEX_PERHAPS,
  /* As expressions beside schemas have it: classes of ASCII, a dot is everything but a line feed. */
  REGEX_PLAIN
} regex_reading;

typedef struct expression {
  uint8_t kind;
  bool negated;              /* SET, AHEAD, BEHIND */
  uint8_t classes;           /* SET */
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
  grammar_writing writing;
  regex_reading reading;
  uint32_t avoids; /* a character that no set may have; 0: none */
  bool lost;       /* some set had nothing else */
  uint32_t n_assertions;
  uint32_t (*sorted)[2]; /* of the set that was made ranges last */
  uint32_t sorted_capacity;
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
/* The characters of a set as sorted ranges, e->sorted; how many there are. */
uint32_t expression_sort_set(expressions *e, const expression *set, regex_reading reading);
/* Adds the expression `at`, which has no assertions, to the builder, between two states. */
void expression_emit(expressions *e, uint32_t at, uint32_t from, uint32_t to);

/* The next character of the text, GRAMMAR_NONE at its end; take goes on behind the character. */
uint32_t expression_peek(const expressions *e);
uint32_t expression_take(expressions *e);

/* A regular expression as a tree: a choice of sequences (grammar_regex.c). */
uint32_t regex_read(expressions *e);
/* The same where assertions are no more than ^ and $ at the ends of its alternatives: these are left out, and where
 * one is missing in an expression that is searched for, any text is added. false: there are others. */
bool regex_drop_anchors(expressions *e, uint32_t choice, bool search);

#endif
