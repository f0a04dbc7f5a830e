/* SPDX-License-Identifier: MIT */
/* Law: a weft_text is a growing byte string with a maximum; after a refusal (memory or maximum) it stays
 * refused and further appends do nothing, so that a writer may check once at the end. bytes is always
 * ended by a zero byte that is not counted. */
#ifndef WEFT_BASE_TEXT_H
#define WEFT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_text {
  char *bytes; /* NULL until the first append */
  size_t n;
  size_t capacity;
  size_t max; /* most bytes; 0: 1 GiB */
  bool refused;
} weft_text;

void weft_text_append(weft_text *text, const char *bytes, size_t n);
void weft_text_puts(weft_text *text, const char *zero_ended);
void weft_text_printf(weft_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Makes room for n bytes in all, so that appends up to there take no memory. */
void weft_text_reserve(weft_text *text, size_t n);
void weft_text_clear(weft_text *text); /* keeps the memory */
void weft_text_free(weft_text *text);
/* WEFT_OK, or WEFT_E_NO_MEMORY when an append was refused. */
weft_status weft_text_status(const weft_text *text);

/* Decodes one code point at bytes[0..n). Returns its length 1..4 and stores the code point, or 0 when the
 * bytes do not start a well-formed UTF-8 sequence (surrogates and overlong forms are not well formed). */
size_t weft_utf8_decode(const char *bytes, size_t n, uint32_t *code_point);
/* Writes 1..4 bytes; returns how many. code_point must be a scalar value. */
size_t weft_utf8_encode(uint32_t code_point, char out[4]);
/* True when all bytes are well-formed UTF-8; else *bad_at (may be NULL) is the first offending offset. */
bool weft_utf8_valid(const char *bytes, size_t n, size_t *bad_at);
/* Appends the bytes with U+FFFD for every one that is no part of a well-formed sequence. */
void weft_utf8_repair(const char *bytes, size_t n, weft_text *out);
/* How many of the bytes form complete characters; an incomplete but so far well-formed tail (at most 3
 * bytes) is left out. Bytes that can never become valid count as complete. */
size_t weft_utf8_complete(const char *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
