/* SPDX-License-Identifier: MIT */
/* How values are written where a call is no JSON. Private to model/formats.
 *
 * Law: what is written is read again by model/text/calls.h as the same value.
 *   GEMMA: strings stand between marks (GEMMA_QUOTE), and their letters never spell one; names stand without quotes
 * where they can; there is no white space. Objects, lists, numbers and words are as in JSON.
 *   TAGS (Qwen3-Coder, DSML): each argument stands between tags (builder->tags), as it is if it is a string by its
 * schema, else as JSON; where the tag says which of them it is, as either where it may be both. Strings within that
 * JSON never spell the tag: the / behind a < is escaped, or the < is. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_STYLE_H
#define WEFT_MODEL_FORMATS_GRAMMAR_STYLE_H

#include "model/formats/automaton.h"

#define GEMMA_QUOTE "<|\"|>"

/* Each adds edges from the state `from` to the state that it returns. */

/* Any string, with its quotes; its inside, between what was written and the mark that ends it, which is written too. */
uint32_t style_string_any(grammar_builder *b, uint32_t from);
/* A string of min to max characters. */
uint32_t style_string_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max);
/* A string of the set, which is narrowed to what can be written. */
uint32_t style_string_of(grammar_builder *b, uint32_t from, automaton *texts);
uint32_t style_constant(grammar_builder *b, uint32_t from, const json_t *value);
/* A text of a schema as it is. */
uint32_t style_text(grammar_builder *b, uint32_t from, const char *text);
/* Whether a name can be written, as a member's or in a tag. */
bool style_writes_name(const grammar_builder *b, bool tag, const char *name);
/* The name of a member, without its colon; GRAMMAR_NONE: it cannot be written. */
uint32_t style_key(grammar_builder *b, uint32_t from, const char *name);
/* A name that is none of the n names; one of a set, which is narrowed to what can be written. */
uint32_t style_key_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n);
uint32_t style_key_of(grammar_builder *b, uint32_t from, automaton *names);

/* Texts in which the mark does not stand. */
void style_exclude_mark(grammar_builder *b, automaton *texts, const char *mark);
/* The end of the tag before an argument: its text is a string, or JSON. */
uint32_t style_tag_end(grammar_builder *b, uint32_t from, bool string);
/* Between tags, behind the first one and its line: any text; one of min to max characters; one of a set; up to and with
 * the tag that ends it. */
uint32_t style_argument_any(grammar_builder *b, uint32_t from);
uint32_t style_argument_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max);
uint32_t style_argument_of(grammar_builder *b, uint32_t from, automaton *texts);
/* The tag before an argument up to its name; of others than the n names; of a set. GRAMMAR_NONE: the name cannot be
 * written. */
uint32_t style_tag(grammar_builder *b, uint32_t from, const char *name);
uint32_t style_tag_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n);
uint32_t style_tag_of(grammar_builder *b, uint32_t from, automaton *names);
/* The line end before the tag that ends an argument, and the tag with its own. */
uint32_t style_tag_close(grammar_builder *b, uint32_t from);

#endif
