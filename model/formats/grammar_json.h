/* SPDX-License-Identifier: MIT */
/* Pieces of JSON, and what a schema is read with, in the builder's style. Private to model/formats.
 *
 * Law: after { [ , : and before ] } white space is nothing, one blank, or a line end and up to 32 blanks; there is none
 * before a value that is the whole answer, none after it. Numbers have at most 15 digits before the point and 15 after
 * it, and, where nothing bounds them, an exponent of one or two digits. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_JSON_H
#define WEFT_MODEL_FORMATS_GRAMMAR_JSON_H

#include <jansson.h>

#include "model/formats/decimal.h"
#include "model/formats/automaton.h"
#include "model/formats/grammar_internal.h"

/* Each adds edges from the state `from` to the state that it returns. */
uint32_t json_space(grammar_builder *b, uint32_t from);
uint32_t json_comma(grammar_builder *b, uint32_t from);
uint32_t json_colon(grammar_builder *b, uint32_t from); /* with its space */
uint32_t json_string_any(grammar_builder *b, uint32_t from);
uint32_t json_value_any(grammar_builder *b, uint32_t from);
uint32_t json_object_any(grammar_builder *b, uint32_t from);
/* A whole value as text, a string with its quotes; GRAMMAR_NONE: it cannot be written in the builder's style. */
uint32_t json_constant(grammar_builder *b, uint32_t from, const json_t *value);
/* The same of the name of a member. */
uint32_t json_key(grammar_builder *b, uint32_t from, const char *name);
/* As JSON, but for the tags of STYLE_TAGS. */
uint32_t json_written_constant(grammar_builder *b, uint32_t from, const json_t *value);
/* A string that is one of the texts, of which those that the style cannot write are taken. */
uint32_t json_string_of(grammar_builder *b, uint32_t from, automaton *texts);
/* A string of min to max characters; max GRAMMAR_NONE: any number. */
uint32_t json_string_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max);
/* A property's name that is none of the n names, which are sorted; in STYLE_JSON the name has no escapes. */
uint32_t json_key_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n);

/* Bounds of a number. `open`: the bound itself is out. */
typedef struct json_bounds {
  decimal low, high;
  bool has_low, has_high, low_open, high_open;
} json_bounds;
bool json_bounds_hold(const json_bounds *bounds, const decimal *value);

/* Whole numbers within bounds. GRAMMAR_NONE: there is none of at most 15 digits. */
uint32_t json_integer_within(grammar_builder *b, uint32_t from, const json_bounds *bounds);
/* Any number, fractions included. */
uint32_t json_number_any(grammar_builder *b, uint32_t from);

/* What else a number must be (grammar_number.c): whole, or not; a multiple of each of several numbers. */
enum { NUMBER_MULTIPLES = 4 };
typedef struct json_number_kind {
  json_bounds bounds;
  bool whole, fraction;
  decimal multiple[NUMBER_MULTIPLES];
  uint32_t n_multiples;
} json_number_kind;
/* Numbers of at most 15 digits in all, which every reader keeps apart as their digits do; where the bounds leave none
 * of these, of as many as they need. GRAMMAR_NONE: there is none that 64 bits hold as a floating point number. */
uint32_t json_number_of(grammar_builder *b, uint32_t from, const json_number_kind *kind);

#endif
