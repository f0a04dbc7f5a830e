/* SPDX-License-Identifier: MIT */
/* Reads an object or a list as models write them, and gives it as JSON.
 *
 * Law: there is no text that it refuses. What it gives is always the beginning of one JSON object or list, and the
 * whole of it once it is done or closed; what is JSON already is given byte for byte. What it gives in all does not
 * depend on how the text was cut. It reads, beyond JSON: strings in single quotes, or in a quote of the caller's;
 * True, False and None; names and texts without quotes, and = in the place of a colon; control characters and quotes
 * inside of strings; escapes that JSON does not have, whose backslash is kept; commas that are missing or too many;
 * brackets that are doubled, missing or of the other kind; names without a value, which get null.
 *   Nothing is allocated. Bytes that are not taken are looked at again with the next call: they are at most a word of
 * JSON_MEND_HELD bytes or a quote with the blanks behind it. Texts are UTF-8. */
#ifndef WEFT_MODEL_TEXT_JSON_MEND_H
#define WEFT_MODEL_TEXT_JSON_MEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_MEND_HELD = 4096, JSON_MEND_BLANKS = 256 };

/* Takes n bytes of JSON. */
typedef void (*json_mend_take)(void *self, const char *text, size_t n);

/* Zero-initialise but for the first four. */
typedef struct json_mend {
  const char *mark;  /* a word that stands before and behind strings, too; NULL: none */
  const char *end;   /* a word that ends all where it stands outside of strings; it is not taken. NULL: none */
  bool drops_blanks; /* blanks outside of strings are not given */
  void *self;
  json_mend_take take;
  uint8_t state;
  char quote; /* of the string that is open */
  bool key;   /* it is a name */
  uint32_t depth;
  uint64_t objects; /* bit d: level d is an object, not a list */
} json_mend;

/* Reads text, which begins with what was not taken before; its very first byte is { or [. last: nothing follows. How
 * many bytes were taken; nothing is taken after the end of the value. */
size_t json_mend_read(json_mend *mend, const char *text, size_t n, bool last);
bool json_mend_done(const json_mend *mend);
/* The text was cut within the n bytes that were not taken: gives the beginning of what they begin. */
void json_mend_cut(json_mend *mend, const char *rest, size_t n);
/* The text ends with the n bytes that were not taken: gives them, and closes what is open. */
void json_mend_close(json_mend *mend, const char *rest, size_t n);

/* Whether the n bytes are one JSON value; or, where it need not be whole, the beginning of one. */
bool json_mend_is_value(const char *text, size_t n, bool whole);
/* Gives n bytes as the inside of a JSON string. */
void json_mend_escape(const char *text, size_t n, json_mend_take take, void *self);

#endif
