/* SPDX-License-Identifier: MIT */
/* What the owner of weights and a worker say to each other over the owner's unix socket.
 *
 * Law: a worker asks and the owner answers, one message each, in the order of the questions; the owner says nothing
 * unasked. Both run on one machine, so numbers have its order of bytes, and both messages have a size that never
 * changes: a first word that names the talk, the number of its form, then what is asked or answered. A message of
 * another form is answered by the number that is known here and nothing else. Behind an answer stand n_text bytes of
 * text; with the answer to a question for a piece comes one file descriptor (SCM_RIGHTS) or, as the text, a name in
 * hexadecimal digits, with others no descriptor. Both sides have asked the system who the other is (SO_PEERCRED):
 * another user than their own is not answered and not believed. A connection that stays open tells either side that
 * the other one lives. */
#ifndef WEFT_API_WEIGHTS_TALK_H
#define WEFT_API_WEIGHTS_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/weights_manifest.h"

enum { WEIGHTS_TALK_WORD = 0x74776677, WEIGHTS_TALK_FORM = 2, WEIGHTS_TALK_TEXT = 4096 };

typedef enum weights_question {
  WEIGHTS_ASK_DIGEST = 1, /* of the manifest: the worker's hello */
  WEIGHTS_ASK_PIECE = 2,
  WEIGHTS_ASK_COUNTS = 3 /* as JSON in the text */
} weights_question;

typedef struct weights_ask {
  uint32_t word, form, question, piece;
} weights_ask;

typedef struct weights_answer {
  uint32_t word, form, question;
  int32_t status;   /* weft_status; not OK: the text says why */
  uint64_t n_bytes; /* of the piece */
  weights_digest digest;
  uint32_t n_text, zero;
} weights_answer;

_Static_assert(sizeof(weights_ask) == 16 && sizeof(weights_answer) == 48, "sizes that never change");

/* Judges a question of sizeof(weights_ask) bytes. FORMAT: it is none. UNSUPPORTED: another form. INVALID: there is no
 * such question. */
weft_status weights_ask_read(const void *bytes, weights_ask *out);
/* The same of an answer to `question`, with a line. */
weft_status weights_answer_read(const void *bytes, uint32_t question, weights_answer *out, weft_error *error);

/* One message, and a descriptor where it is not -1. False: the other end did not take it at once. */
bool weights_answer_send(int fd, const weights_answer *answer, const char *text, int descriptor);
/* Asks and waits for the answer. *descriptor: of a piece that has one, and the caller's; else -1. text:
 * [WEIGHTS_TALK_TEXT], may be NULL. Errors, each with a line: IO (the owner is gone, or answers nothing), FORMAT, and
 * what the owner answered. */
weft_status weights_talk_ask(int fd, uint32_t question, uint32_t piece, weights_answer *out, char *text,
                             int *descriptor, weft_error *error);

#endif
