/* SPDX-License-Identifier: MIT */
/* Private to model/calls*.c: how forms of calls share one reader.
 *
 * Law: a function of a form looks at held[at .. n) and either takes some of it (true: look again) or waits for more
 * (false). It decides by what is there, never by how it came: where the end of held could still change its mind, it
 * waits, unless reader->last. Whatever it searches again with every piece is bounded by CALLS_HELD_MAX or begins at
 * `scanned`. */
#ifndef WEFT_MODEL_CALLS_INTERNAL_H
#define WEFT_MODEL_CALLS_INTERNAL_H

#include "model/calls.h"

enum { CALLS_TEXT, CALLS_HEAD, CALLS_ARGUMENTS, CALLS_RAW, CALLS_TAIL };
enum {
  CALLS_HELD_MAX = 8192, /* bytes of a head, a key, a value that is looked at as a whole */
  CALLS_BLANKS_MAX = 256 /* held back before what may be a call */
};

typedef struct calls_row {
  const char *name;
  const char *open[2]; /* markers that a call begins with */
  const char *close;   /* ends one; NULL: none */
  const char *sign[2]; /* a chat template that has these writes this form */
  bool bare;           /* a call may begin the answer without a marker, if its name was declared */
  bool listed;         /* several calls may be a list */
  bool keeps_open;     /* the second marker is a part of the head */
  bool (*head)(weft_call_reader *r);
  bool (*arguments)(weft_call_reader *r);
  bool (*tail)(weft_call_reader *r);
} calls_row;

extern const calls_row calls_rows[WEFT_CALL_FORMS];

static inline bool calls_is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

typedef enum calls_match { MATCH_NO, MATCH_PART, MATCH_YES } calls_match;
/* Whether word stands at held[from]; PART: more may make it so. */
calls_match calls_match_at(const weft_call_reader *r, size_t from, const char *word);
/* Where word stands at or after held[from]; without it, where it may yet begin, or n. *found says which. */
size_t calls_find(const weft_call_reader *r, size_t from, const char *word, bool *found);
size_t calls_skip_blanks(const weft_call_reader *r, size_t from);
/* The length of a name of a function at held[from]; 0: there is none. */
size_t calls_name_length(const weft_call_reader *r, size_t from);
/* After the arguments: takes the mark that closes a call, if it stands here; false: wait. */
bool calls_close(weft_call_reader *r);

/* What is no head is content without its marker. Gives true. */
bool calls_refuse_head(weft_call_reader *r);
/* A head is whole: the arguments begin at held[arguments]. Gives true. */
bool calls_begin(weft_call_reader *r, size_t name, size_t n_name, size_t arguments);
void calls_give(weft_call_reader *r, const char *text, size_t n);
void calls_puts(weft_call_reader *r, const char *text);
/* The bytes inside of a JSON string: what must be escaped is. */
void calls_give_escaped(weft_call_reader *r, const char *text, size_t n);
void calls_finish(weft_call_reader *r, bool whole, uint8_t state);
/* The arguments are not what the form has: they are given as they are written from here on. Gives true. */
bool calls_break(weft_call_reader *r);

bool calls_json_head(weft_call_reader *r);
bool calls_json_arguments(weft_call_reader *r);
bool calls_json_tail(weft_call_reader *r);
bool calls_gemma_head(weft_call_reader *r);
bool calls_gemma_arguments(weft_call_reader *r);
bool calls_gemma_tail(weft_call_reader *r);
bool calls_qwen_head(weft_call_reader *r);
bool calls_qwen_arguments(weft_call_reader *r);
bool calls_qwen_tail(weft_call_reader *r);

/* A JSON value that held[from .. to) is, blanks around it apart, as JSON writes it; else false and nothing is given.
 * A word of Python for true, false and null is one. */
bool calls_give_value(weft_call_reader *r, size_t from, size_t to);

#endif
