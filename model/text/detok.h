/* SPDX-License-Identifier: MIT */
/* Turns tokens into text as the tokens come.
 *
 * Law: every piece of text is valid UTF-8. A character that is spread over several tokens waits for
 * its last byte; bytes that can never become a character are given as U+FFFD, one for each longest
 * part that could have begun a character. A call releases tokens with its text (n_ids says how many).
 * With WEFT_DETOK_WHOLE_TOKENS a fresh detok that is given the released tokens of one call gives the
 * same text as that call. */
#ifndef WEFT_MODEL_TEXT_DETOK_H
#define WEFT_MODEL_TEXT_DETOK_H

#include "model/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_DETOK_WITH_SPECIAL = 1, /* print control tokens too */
  WEFT_DETOK_WHOLE_TOKENS = 2  /* give text only where the last byte of a token ends a character */
};

/* One stream; one thread at a time. The tokenizer is borrowed until close. */
typedef struct weft_detok {
  const weft_tokenizer *tokenizer;
  unsigned flags;
  weft_text pending;  /* bytes not given yet */
  uint32_t n_pending; /* tokens not released yet */
  weft_text piece;    /* scratch */
} weft_detok;

void weft_detok_open(weft_detok *detok, const weft_tokenizer *tokenizer, unsigned flags);
void weft_detok_close(weft_detok *detok); /* all zero is fine */
/* Takes at once the memory for the longest token: without WHOLE_TOKENS no later push allocates anything. */
weft_status weft_detok_reserve(weft_detok *detok);
/* Most bytes of text that one push or flush gives without WHOLE_TOKENS. */
size_t weft_detok_text_max(const weft_detok *detok);

/* Takes one token and appends the text that became certain to out. *n_ids (may be NULL): how many of
 * the tokens that wait, this one included, the call releases: without WHOLE_TOKENS always 1; with it
 * 0 while a character is unfinished, then all that were waiting.
 * INVALID when id is outside the vocabulary: nothing changes. */
weft_status weft_detok_push(weft_detok *detok, int32_t id, weft_text *out, uint32_t *n_ids);
/* Ends the stream: gives the text that waits; an unfinished character becomes U+FFFD. */
weft_status weft_detok_flush(weft_detok *detok, weft_text *out, uint32_t *n_ids);

/* Appends bytes[0..n) as valid UTF-8 by the rule of U+FFFD above; no more bytes will follow. */
void weft_text_append_lossy(weft_text *out, const char *bytes, size_t n);
/* How many characters (code points) a text is that was given out here. */
size_t weft_text_characters(const char *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
