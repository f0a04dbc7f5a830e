/* SPDX-License-Identifier: MIT */
/* Sets of texts as deterministic automata over characters: what several patterns, lengths and names of a schema say
 * together of one text, and what they exclude.
 *
 * Law: edges of a state are sorted, do not overlap, and lead to states from which some text is completed; where a
 * state has no edge, no text of the set goes on. State 0 is the first one; an automaton of no states is the empty
 * set. All of it counts in steps of the builder, which fails where there are too many; after a failure what is given
 * is empty, and may still be closed. */
#ifndef WEFT_MODEL_FORMATS_AUTOMATON_H
#define WEFT_MODEL_FORMATS_AUTOMATON_H

#include "model/formats/grammar_expression.h"

enum { AUTOMATON_STATES_MAX = 1 << 14, AUTOMATON_CHARACTER_MAX = 0x10FFFF };

typedef struct automaton_edge {
  uint32_t low, high, to; /* characters, both ends included */
} automaton_edge;

typedef struct automaton {
  uint32_t n_states, n_edges, states_capacity, edges_capacity, finals_capacity;
  uint32_t *first; /* [n_states + 1] edges of a state */
  automaton_edge *edge;
  bool *final;         /* [n_states] */
  uint32_t everything; /* the state from which every text is of the set; GRAMMAR_NONE: there is none */
} automaton;

void automaton_close(automaton *a); /* all zero is fine */

/* While an automaton is made: states in their order, edges of the state that was begun last. */
bool automaton_begin_state(grammar_builder *b, automaton *a, bool final);
void automaton_add_edge(grammar_builder *b, automaton *a, uint32_t low, uint32_t high, uint32_t to);
/* Leaves out what leads nowhere, and makes one of all states that hold everything. */
void automaton_finish(grammar_builder *b, automaton *a);

/* Texts of min to max characters; max GRAMMAR_NONE: without end. */
automaton automaton_sized(grammar_builder *b, uint32_t min, uint32_t max);
/* The n texts, as a tree of JSON has them: WEFT_JSON_ZERO is U+0000. */
automaton automaton_texts(grammar_builder *b, const char *const *text, uint32_t n);
/* What is in both; what is in the first one and not in the second. */
automaton automaton_both(grammar_builder *b, const automaton *x, const automaton *y);
automaton automaton_without(grammar_builder *b, const automaton *x, const automaton *y);
/* *x becomes what is in both; *y is closed. The same for without. */
void automaton_narrow(grammar_builder *b, automaton *x, automaton *y);
void automaton_exclude(grammar_builder *b, automaton *x, automaton *y);

static inline bool automaton_is_empty(const automaton *a) {
  return a->n_states == 0;
}
/* The state that a character leads to, GRAMMAR_NONE: it leads nowhere. */
uint32_t automaton_next(const automaton *a, uint32_t state, uint32_t character);
bool automaton_has(grammar_builder *b, const automaton *a, const char *text, size_t n);
/* Adds its texts between two states of the builder. */
void automaton_emit(grammar_builder *b, const automaton *a, grammar_writing writing, uint32_t from, uint32_t to);

/* ---- regular expressions (automaton_regex.c) ---- */

/* The texts of an expression, read as e->reading says; search: the texts in which it is found. */
automaton automaton_regex(expressions *e, uint32_t at, bool search);
/* The texts in which the expression is found, as a schema's `pattern` asks for. */
automaton automaton_found(grammar_builder *b, const char *text, size_t n, regex_reading reading);

#endif
