/* SPDX-License-Identifier: MIT */
/* How the forms of calls share one reader. Private to model/calls*.c.
 *
 * Law: a function of a form looks at the text held[at .. n) and either takes some of it (true: call again) or waits for
 * more (false). It decides by the text alone, never by how the text was cut into pieces: where more text could change
 * the decision, it waits, unless reader->last. What it searches anew with every piece is bounded by CALLS_HELD_MAX or
 * begins at `scanned`, so that the time in all does not grow with the square of the text. */
#ifndef WEFT_MODEL_TEXT_CALLS_INTERNAL_H
#define WEFT_MODEL_TEXT_CALLS_INTERNAL_H

#include "model/text/calls.h"

enum { CALLS_TEXT, CALLS_HEAD, CALLS_ARGUMENTS, CALLS_RAW, CALLS_TAIL };
enum {
  CALLS_HELD_MAX = 8192, /* bytes of a head, a key or a value that is read as a whole */
  CALLS_BLANKS_MAX = 256 /* blanks that are held back before a possible call */
};

typedef struct calls_row {
  const char *name;
  const char *open[2];   /* markers that a call begins with */
  const char *close;     /* the marker that ends a call; NULL: none */
  const char *quote;     /* the marker around strings; as the others, it is never content; NULL: none */
  const char *inside[2]; /* markers between the parts of a head, whose letters may be content elsewhere */
  const char *sign[2];   /* a chat template with these texts is one of this form */
  bool bare;             /* a call may begin the answer without a marker, if its name was declared */
  bool listed;           /* several calls may stand in a JSON list */
  bool keeps_open;       /* the second marker is part of the head */
  bool (*head)(weft_call_reader *r);
  bool (*arguments)(weft_call_reader *r);
  bool (*tail)(weft_call_reader *r);
  void (*cut)(weft_call_reader *r); /* the answer ends here: gives what is held of the arguments; NULL: nothing is */
} calls_row;

extern const calls_row calls_rows[WEFT_CALL_FORMS];

static inline bool calls_is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

typedef enum calls_match { MATCH_NO, MATCH_PART, MATCH_YES } calls_match;
/* Whether word stands at held[from]; PART: the text so far is a beginning of word. */
calls_match calls_match_at(const weft_call_reader *r, size_t from, const char *word);
/* The offset of word at or after held[from] (*found), or where an unfinished one may begin, or n. */
size_t calls_find(const weft_call_reader *r, size_t from, const char *word, bool *found);
size_t calls_skip_blanks(const weft_call_reader *r, size_t from);
/* The length of a name of a function at held[from]; 0: there is none. */
size_t calls_name_length(const weft_call_reader *r, size_t from);
/* Takes the marker that closes a call, if it stands after the arguments; false: wait for more text. */
bool calls_close(weft_call_reader *r);

/* Gives what turned out not to be a head as content, without its marker; returns true. */
bool calls_refuse_head(weft_call_reader *r);
/* Begins a call whose head is whole; the arguments begin at held[arguments]. Returns true. */
bool calls_begin(weft_call_reader *r, size_t name, size_t n_name, size_t arguments);
void calls_give(weft_call_reader *r, const char *text, size_t n);
void calls_puts(weft_call_reader *r, const char *text);
/* Gives the bytes as the inside of a JSON string, escaped where they must be. */
void calls_give_escaped(weft_call_reader *r, const char *text, size_t n);
void calls_finish(weft_call_reader *r, bool whole, uint8_t state);
/* The arguments are not well formed: from here on they are given as they are written. Returns true. */
bool calls_break(weft_call_reader *r);

bool calls_json_head(weft_call_reader *r);
bool calls_json_arguments(weft_call_reader *r);
bool calls_json_tail(weft_call_reader *r);
bool calls_gemma_head(weft_call_reader *r);
bool calls_gemma_arguments(weft_call_reader *r);
bool calls_gemma_tail(weft_call_reader *r);
void calls_gemma_cut(weft_call_reader *r);
bool calls_qwen_head(weft_call_reader *r);
bool calls_qwen_arguments(weft_call_reader *r);
bool calls_qwen_tail(weft_call_reader *r);
void calls_qwen_cut(weft_call_reader *r);

/* Gives the value held[from .. to) as JSON, without blanks around it, if it is a JSON value or one of Python's words
 * for true, false and null; else gives nothing and returns false. */
bool calls_give_value(weft_call_reader *r, size_t from, size_t to);
/* Gives the beginning held[from .. to) of a value whose end never came, so that all that was given is the beginning of
 * a JSON text: as it is written where it begins a JSON value, else as the beginning of a string. */
void calls_give_cut_value(weft_call_reader *r, size_t from, size_t to);

#endif
