/* SPDX-License-Identifier: MIT */
/* Tokens to text, as they come.
 *
 * Law: what is given out is always whole, valid UTF-8. A character that is spread over tokens waits
 * for its last byte; bytes that can never become a character are given as U+FFFD, one for each
 * longest part that could have begun one. The text given in all does not depend on how the tokens
 * were cut into calls. Feeding the ids of consecutive releases (see n_ids) to a fresh detok gives
 * the same text release by release when WEFT_DETOK_WHOLE_TOKENS is set. */
#ifndef WEFT_MODEL_DETOK_H
#define WEFT_MODEL_DETOK_H

#include "model/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_DETOK_WITH_SPECIAL = 1, /* print control tokens too */
  WEFT_DETOK_WHOLE_TOKENS = 2  /* release text only where a token's last byte ends a character */
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
/* Takes at once the memory for the longest token: without WHOLE_TOKENS no later push takes any of its own. */
weft_status weft_detok_reserve(weft_detok *detok);
/* Most bytes of text that one push or flush gives without WHOLE_TOKENS. */
size_t weft_detok_text_max(const weft_detok *detok);

/* Takes one token and appends the text that became certain to out. *n_ids (may be NULL): how many
 * of the oldest unreleased tokens, this one included, are released by this call: without
 * WHOLE_TOKENS always 1; with it 0 while a character is unfinished, then all that were waiting.
 * INVALID when id is outside the vocabulary: nothing changes. */
weft_status weft_detok_push(weft_detok *detok, int32_t id, weft_text *out, uint32_t *n_ids);
/* The end of the stream: what waits is released; an unfinished character becomes U+FFFD. */
weft_status weft_detok_flush(weft_detok *detok, weft_text *out, uint32_t *n_ids);

/* Appends bytes[0..n) as valid UTF-8: the replacement rule above, for bytes that are complete. */
void weft_text_append_lossy(weft_text *out, const char *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
