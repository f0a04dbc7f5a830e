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

enum { CALLS_TEXT, CALLS_HEAD, CALLS_ARGUMENTS, CALLS_TAIL };
enum {
  CALLS_HELD_MAX = 8192, /* bytes of a head, a key or a value that is read as a whole */
  CALLS_BLANKS_MAX = 256 /* blanks that are held back before a possible call */
};

typedef struct calls_row {
  const char *name;
  const char *open[2];        /* markers that a call begins with */
  const char *close;          /* the marker that ends a call; NULL: none */
  const char *quote;          /* the marker around strings; as the others, it is never content; NULL: none */
  const char *inside[2];      /* markers between the parts of a head, whose letters may be content elsewhere */
  const char *sign[2];        /* a chat template with these texts is one of this form */
  const weft_call_tags *tags; /* NULL: those of QWEN */
  bool bare;                  /* a call may begin the answer without a marker, if its name was declared */
  bool (*head)(weft_call_reader *r);
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
/* A call that is whole, whose text ends at held[end]. Returns true. */
bool calls_give_whole(weft_call_reader *r, const char *name, size_t n_name, const char *arguments, size_t n,
                      size_t end);
void calls_give(weft_call_reader *r, const char *text, size_t n);
void calls_puts(weft_call_reader *r, const char *text);
/* Gives the bytes as the inside of a JSON string, escaped where they must be. */
void calls_give_escaped(weft_call_reader *r, const char *text, size_t n);
void calls_finish(weft_call_reader *r, bool whole, uint8_t state);
/* The mender of this call's arguments; end NULL: the marker that ends a call, or begins the next, ends them. */
void calls_mend_open(weft_call_reader *r, const char *end);
json_mend *calls_mender(weft_call_reader *r);

/* Arguments that are one text, and what comes behind them. The answer ends within them: gives what is held of them. */
bool calls_json_head(weft_call_reader *r);
bool calls_json_arguments(weft_call_reader *r);
bool calls_json_tail(weft_call_reader *r);
void calls_json_end(weft_call_reader *r, bool cut);
bool calls_gemma_head(weft_call_reader *r);
/* Calls with tags: a head begins with the tag that opens a function, behind a marker or as one. */
bool calls_tags_head(weft_call_reader *r);
bool calls_tags_arguments(weft_call_reader *r);
bool calls_tags_tail(weft_call_reader *r);
void calls_tags_end(weft_call_reader *r, bool cut);
/* A call that is written in another way than JSON has it: the object at held[from]. */
bool calls_drift_head(weft_call_reader *r, size_t from);

#endif
