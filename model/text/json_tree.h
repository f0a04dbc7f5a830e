/* SPDX-License-Identifier: MIT */
/* JSON of a request as a tree, and a tree as text: the one reader and the one writer of JSON that a chat template sees.
 *
 * Law: no JSON text is refused for a character or a number that the tree cannot hold, since one such character in a
 * history would end a session. A \u0000 and half of a surrogate pair are read as U+FFFD. A number that neither 64 bits
 * nor a double hold becomes an object of one member whose name no text can have (read as a name, it is U+FFFD), so that
 * nothing takes it for a number, a string or a list; it is written again as it was written. Everything else is read and
 * refused as jansson does, with the line, column and byte of the text that was given. */
#ifndef WEFT_MODEL_TEXT_JSON_TREE_H
#define WEFT_MODEL_TEXT_JSON_TREE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A new tree, or NULL with *error (may be NULL). flags: jansson's, for example JSON_DECODE_ANY. */
json_t *weft_json_read(const char *text, size_t n, size_t flags, json_error_t *error);
/* Appends any value as compact JSON, a number with a fraction in as few digits as it needs; weft_text_status tells
 * whether memory was refused. */
void weft_json_write(const json_t *json, weft_text *out);

/* The text of a number that no other value can hold; NULL: json is something else. */
const char *weft_json_written(const json_t *json);
/* Whether the n bytes are such a number. */
bool weft_json_is_written(const char *number, size_t n);

#ifdef __cplusplus
}
#endif
#endif
