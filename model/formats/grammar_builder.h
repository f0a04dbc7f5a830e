/* SPDX-License-Identifier: MIT */
/* What a grammar is while its text is read. Private to model/formats and its tests.
 *
 * Law: a builder holds the rules of a grammar as automata with empty edges while the text of the grammar is read:
 * states are numbered over all rules, a rule has one first and one last state. After the first failure a builder does
 * nothing more and keeps the line that says what was wrong. Everything the builder does is counted in steps, and steps
 * are bounded. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_BUILDER_H
#define WEFT_MODEL_FORMATS_GRAMMAR_BUILDER_H

#include "model/formats/grammar.h"

#define GRAMMAR_NONE UINT32_MAX

/* How text is written into an answer: as it is, or inside a JSON string. */
typedef enum grammar_writing {
  WRITING_PLAIN,
  WRITING_JSON,
  WRITING_TAGS /* the same, and every < is escaped, so that no tag stands there */
} grammar_writing;
/* How values are written: as JSON, or as model/formats/grammar_style.h has it. */
typedef enum grammar_style { STYLE_JSON, STYLE_TAGS, STYLE_GEMMA, STYLES } grammar_style;

typedef enum grammar_edge_kind { EDGE_EMPTY, EDGE_BYTES, EDGE_CALL } grammar_edge_kind;

typedef struct grammar_edge {
  uint32_t from, to, rule;
  uint8_t kind, low, high;
} grammar_edge;

typedef struct builder_rule {
  uint32_t first, last;
  uint32_t of, min, max; /* of != GRAMMAR_NONE: a repetition of that rule; max GRAMMAR_NONE: no limit */
} builder_rule;

typedef struct grammar_builder {
  grammar_edge *edge;
  builder_rule *rule;
  uint32_t n_states, n_edges, n_rules, edges_capacity, rules_capacity;
  uint32_t root;
  uint64_t n_steps;
  grammar_style style;
  const struct weft_call_tags *tags; /* of STYLE_TAGS */
  bool widest, may_widen; /* arguments of tools that are not strict are any object; there are such, and more is said */
  uint32_t shared[4 * STYLES]; /* rules that are made once in each style: white space, string, character, value */
  const weft_token_trie *trie;
  struct unicode_classes *classes; /* of the compiling; NULL: classes by properties are refused */
  weft_grammar_work *work;         /* the builder's steps are counted there, too */
  weft_status status;
  weft_error *error;
  char why[480]; /* why nothing fits a part of a schema, where that is known: told if nothing fits the whole */
} grammar_builder;

void builder_close(grammar_builder *b);
/* The first failure stays. */
void builder_fail(grammar_builder *b, weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline bool builder_ok(const grammar_builder *b) {
  return b->status == WEFT_OK;
}
/* Counts steps; false: there were too many, nobody wants the grammar any more, or the builder failed before. */
bool builder_step(grammar_builder *b, uint64_t n);
/* Room for one more of a list that holds n items: weft_grow, whose refusal ends the building. */
bool builder_grow(grammar_builder *b, void **list, uint32_t n, uint32_t *capacity, size_t size);

/* A hash table in which the maker of a list finds what the list has already: a slot holds a thing's number + 1; 0 is
 * free. The slot of a thing is the first at or behind its hash, around the end, that is free or holds it.
 * Zero-initialise; the owner frees `slot`. */
typedef struct builder_slots {
  uint32_t *slot, n;
} builder_slots;
/* Room for one more thing beside the n that are in it: where more than half of the slots would be taken, twice as many
 * (`first` at the beginning) get thing i, of this hash, as number base + i. */
bool builder_slots_grow(grammar_builder *b, builder_slots *slots, uint32_t first, uint32_t n, uint32_t base,
                        uint64_t (*hash)(const void *self, uint32_t i), const void *self);

/* A place in what was built, to which it can be taken back after a failure that is not of memory, with the failure. */
typedef struct builder_mark {
  uint32_t n_states, n_edges, n_rules;
} builder_mark;
static inline builder_mark builder_mark_here(const grammar_builder *b) {
  return (builder_mark){b->n_states, b->n_edges, b->n_rules};
}
void builder_take_back(grammar_builder *b, builder_mark mark);

uint32_t builder_state(grammar_builder *b);
uint32_t builder_rule_open(grammar_builder *b); /* a rule with a first and a last state and nothing between */
/* A rule that stands for another rule, repeated min to max times. */
uint32_t builder_rule_repeat(grammar_builder *b, uint32_t rule, uint32_t min, uint32_t max);

void builder_empty(grammar_builder *b, uint32_t from, uint32_t to);
void builder_bytes(grammar_builder *b, uint32_t from, uint32_t to, uint8_t low, uint8_t high);
void builder_call(grammar_builder *b, uint32_t from, uint32_t to, uint32_t rule);
/* Each adds edges that begin at `from`, and returns the state at which they end. */
uint32_t builder_text(grammar_builder *b, uint32_t from, const char *text, size_t n);
/* A marker of calls: its token, where the vocabulary has one, else its letters; WEFT_CALL_INNER within it likewise. */
uint32_t builder_marker(grammar_builder *b, uint32_t from, const char *marker);
/* Characters but control characters and those listed, all of which are ASCII and sorted. */
void builder_characters_but(grammar_builder *b, uint32_t from, uint32_t to, const char *sorted);
/* The same with tabs and ends of lines, where they are not listed. */
void builder_others(grammar_builder *b, uint32_t from, uint32_t to, const char *sorted);
/* Any text up to and with the marker, whose first letter stands in it once; its letters do not stand in the text.
 * `end`: where the text may end without it; `after`: where the marker leads; GRAMMAR_NONE: nowhere. */
void builder_text_until(grammar_builder *b, uint32_t from, uint32_t end, const char *marker, uint32_t after);
uint32_t builder_count(grammar_builder *b, uint32_t from, uint32_t rule, uint32_t min, uint32_t max);
/* Characters low to high, surrogates left out, as UTF-8. */
void builder_characters(grammar_builder *b, uint32_t from, uint32_t to, uint32_t low, uint32_t high);
/* The same as it is written: of a range that holds other characters, too, only those control characters that text has,
 * tabs and ends of lines. Inside a JSON string what must be escaped is. */
void builder_written(grammar_builder *b, uint32_t from, uint32_t to, uint32_t low, uint32_t high,
                     grammar_writing writing);

#endif
