/* SPDX-License-Identifier: MIT */
/* Growing byte strings, and UTF-8.
 *
 * Law: a weft_text is a byte string that grows up to a maximum. When an append is refused, because memory is refused or
 * the maximum is reached, nothing of that append is kept and every later append does nothing until weft_text_clear or
 * weft_text_free, so a writer may check once at the end. After the last byte stands a zero byte that is not counted. A
 * weft_text that is all zero is an empty string. */
#ifndef WEFT_BASE_TEXT_H
#define WEFT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_text {
  char *bytes; /* NULL until the first append */
  size_t n;
  size_t capacity;
  size_t max;   /* most bytes; 0: 1 GiB */
  bool refused; /* an append was refused */
} weft_text;

void weft_text_append(weft_text *text, const char *bytes, size_t n);
void weft_text_puts(weft_text *text, const char *zero_ended);
void weft_text_printf(weft_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends what the file has from where it stands, as far as an append is not refused. False: it could not be read. */
bool weft_text_read(weft_text *text, FILE *file);
/* Allocates room for n bytes in all, so that appends up to that length allocate nothing. A refusal counts as one of an
 * append. */
void weft_text_reserve(weft_text *text, size_t n);
void weft_text_clear(weft_text *text); /* makes the string empty and keeps its memory */
void weft_text_free(weft_text *text);  /* makes the string empty and keeps its maximum */
/* WEFT_OK, or WEFT_E_NO_MEMORY when an append was refused, for whichever of the two reasons. */
weft_status weft_text_status(const weft_text *text);

/* Decodes the code point that bytes[0..n) begin with, stores it and returns its length of 1 to 4 bytes; returns 0 when
 * the bytes do not begin with a well-formed UTF-8 sequence (surrogates and overlong forms are not well formed). */
size_t weft_utf8_decode(const char *bytes, size_t n, uint32_t *code_point);
/* Writes the code point, which must be a Unicode scalar value, as 1 to 4 bytes and returns how many. */
size_t weft_utf8_encode(uint32_t code_point, char out[4]);
/* Whether all bytes are well-formed UTF-8; if not, *bad_at (may be NULL) is the offset of the first byte that is
 * not. */
bool weft_utf8_valid(const char *bytes, size_t n, size_t *bad_at);
/* Bytes of the mark that some programs put before a text in UTF-8 (U+FEFF); 0: there is none. */
size_t weft_utf8_mark(const char *bytes, size_t n);
/* Appends the bytes, with U+FFFD in the place of every byte that is not part of a well-formed sequence. */
void weft_utf8_repair(const char *bytes, size_t n, weft_text *out);
/* The character at bytes: its length (0: it is not UTF-8, or n is 0) and code point. True: it may stand in a line as it
 * is; false for control characters and those that change the direction of writing, or begin a line. */
bool weft_utf8_plain(const char *bytes, size_t n, size_t *n_bytes, uint32_t *code_point);
/* Writes a text that ends with a zero byte to out[n_max], and a zero byte behind it: control characters, characters that
 * change the direction of writing and bytes that are not UTF-8 as \xNN, so that it is one line and sends no commands to
 * a terminal. Cut where it does not fit. Returns how many bytes were written, the zero byte not counted. */
size_t weft_utf8_clean(const char *text, char *out, size_t n_max);
/* How many of the bytes come before a character at the end that is well formed so far and not complete (at most 3
 * bytes). Bytes that can never become a character count as complete. */
size_t weft_utf8_complete(const char *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
