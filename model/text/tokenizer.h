/* SPDX-License-Identifier: MIT */
/* Text to tokens and back, by the vocabulary inside a GGUF file: `gpt2` (byte-level BPE), `llama`
 * (pieces with scores) and `gemma4` (BPE over characters with byte tokens).
 *
 * Law: a tokenizer is immutable after open and may be used by any number of threads. Any bytes can
 * be encoded, in time that grows no faster than n log n. Text should be UTF-8; before anything else
 * every byte that is not part of a well-formed character (overlong forms, surrogates and values
 * above U+10FFFF are not well formed) becomes one U+FFFD. Then special tokens are cut out of
 * the text, leftmost first and the longest at each place:
 *
 *                                             PLAIN     no flag   PARSE_SPECIAL
 *   user-defined, nothing but white space     matched   matched   matched
 *   user-defined, for example <|channel>      text      matched   matched
 *   control and unknown, for example <bos>    text      text      matched
 *
 * Text that was not cut out never becomes a control, unknown or non-blank user-defined token,
 * whatever the file's merges say. So a user's text that is encoded as PLAIN never becomes a token
 * that has a meaning in a chat, such as the end of a turn. */
#ifndef WEFT_MODEL_TEXT_TOKENIZER_H
#define WEFT_MODEL_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "model/gguf/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_TOKENIZER_TEXT_MAX = 64 << 20 }; /* bytes of one text */

typedef struct weft_tokenizer weft_tokenizer;

/* A growing list of ids; zero-initialise. */
typedef struct weft_tokens {
  int32_t *ids; /* NULL until the first push */
  uint32_t n, capacity;
} weft_tokens;

weft_status weft_tokens_push(weft_tokens *tokens, int32_t id);
void weft_tokens_free(weft_tokens *tokens);

/* Copies what it needs: the gguf may be closed afterwards. UNSUPPORTED: a tokenizer model or pre-tokenizer
 * that is not implemented; FORMAT: arrays that do not fit together; NOT_FOUND: the file has no vocabulary.
 * One line each. */
weft_status weft_tokenizer_open(const weft_gguf *gguf, weft_tokenizer **out, weft_error *error);
void weft_tokenizer_close(weft_tokenizer *tokenizer); /* NULL is fine */

enum {
  WEFT_ENCODE_ADD_SPECIAL = 1,   /* add the beginning (and end) tokens that the file asks for */
  WEFT_ENCODE_PARSE_SPECIAL = 2, /* the names of control tokens become these tokens: for trusted text only */
  WEFT_ENCODE_PLAIN = 4          /* not even user-defined tokens are found: for text of users inside a template */
};

/* Appends the tokens of text[0..n). On failure *out keeps what it had. Empty text gives at most the
 * tokens of ADD_SPECIAL. TOO_LARGE beyond WEFT_TOKENIZER_TEXT_MAX; INVALID when the vocabulary
 * cannot write some byte. */
weft_status weft_tokenizer_encode(const weft_tokenizer *tokenizer, const char *text, size_t n, unsigned flags,
                                  weft_tokens *out, weft_error *error);

/* Appends the bytes of one token as printed. Control and unknown tokens print nothing unless
 * with_special. The bytes may be part of a character. INVALID when id is outside the vocabulary. */
weft_status weft_tokenizer_piece(const weft_tokenizer *tokenizer, int32_t id, bool with_special, weft_text *out);

/* Appends the text of all ids, valid UTF-8 (see model/text/detok.h). The single space that a `llama`
 * vocabulary puts before a text is taken off again. */
weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids, uint32_t n, bool with_special,
                                  weft_text *out);
/* The same, and at[n] is filled with how many bytes of the text come before each token. */
weft_status weft_tokenizer_decode_at(const weft_tokenizer *tokenizer, const int32_t *ids, uint32_t n, bool with_special,
                                     uint32_t *at, weft_text *out);

/* The longest control, unknown or user-defined token that text[0..n) begins with, and its length in bytes; -1: none.
 * User-defined tokens of nothing but white space are left out. */
int32_t weft_tokenizer_special_at(const weft_tokenizer *tokenizer, const char *text, size_t n, size_t *length);
/* The most bytes of text that one token stands for, so that a text of n bytes has at least n divided by this number of
 * tokens. No token prints more. */
uint32_t weft_tokenizer_longest(const weft_tokenizer *tokenizer);
uint32_t weft_tokenizer_n_vocab(const weft_tokenizer *tokenizer);
/* The token whose text in the file is exactly this text, or -1. */
int32_t weft_tokenizer_find(const weft_tokenizer *tokenizer, const char *text);
/* Whether the token is a control token or the unknown token. */
bool weft_tokenizer_is_control(const weft_tokenizer *tokenizer, int32_t id);

/* The tokens that end a generation (llama.cpp: EOG), in ascending order and borrowed. */
bool weft_tokenizer_is_eog(const weft_tokenizer *tokenizer, int32_t id);
const int32_t *weft_tokenizer_eog(const weft_tokenizer *tokenizer, uint32_t *n);
/* The tokens that are never to be drawn (tokenizer.ggml.suppress_tokens), in the order of the file; borrowed. */
const int32_t *weft_tokenizer_suppressed(const weft_tokenizer *tokenizer, uint32_t *n);

/* Each -1 when the file names no such token. */
int32_t weft_tokenizer_bos(const weft_tokenizer *tokenizer);
int32_t weft_tokenizer_eos(const weft_tokenizer *tokenizer);
int32_t weft_tokenizer_pad(const weft_tokenizer *tokenizer);
int32_t weft_tokenizer_unk(const weft_tokenizer *tokenizer);
/* Whether WEFT_ENCODE_ADD_SPECIAL puts the bos token before a text. */
bool weft_tokenizer_adds_bos(const weft_tokenizer *tokenizer);
/* Whether a space is put before every stretch of text between special tokens (`llama` vocabularies). */
bool weft_tokenizer_adds_space(const weft_tokenizer *tokenizer);

#ifdef __cplusplus
}
#endif
#endif
