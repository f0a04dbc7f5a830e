/* SPDX-License-Identifier: MIT */
/* JSON of a request as a tree, and a tree as text: the one reader and the one writer of JSON that a chat template sees.
 *
 * Law: no JSON text is refused for a character or a number that the tree cannot hold, since one such character in a
 * history would end a session. Half of a surrogate pair is read as U+FFFD. So is \u0000, but where WEFT_JSON_ZEROS is
 * asked for, as schemas do: there WEFT_JSON_ZERO stands for it, a character that no text has otherwise (read, it is
 * U+FFFD), and it is written as \u0000 again. A number that neither 64 bits
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

/* U+FDD1 is a character that Unicode leaves to programs for their own use. */
#define WEFT_JSON_ZERO "\xEF\xB7\x91"
enum { WEFT_JSON_ZERO_CHARACTER = 0xFDD1, WEFT_JSON_ZEROS = 1 << 28 };

/* A new tree, or NULL with *error (may be NULL). flags: jansson's, for example JSON_DECODE_ANY, and WEFT_JSON_ZEROS. */
json_t *weft_json_read(const char *text, size_t n, size_t flags, json_error_t *error);
/* Appends any value as compact JSON, a number with a fraction in as few digits as it needs; weft_text_status tells
 * whether memory was refused. */
void weft_json_write(const json_t *json, weft_text *out);

/* U+FFFD in the place of every WEFT_JSON_ZERO, but within objects that are members of one of these names (a NULL ends
 * them). false: no memory. */
bool weft_json_drop_zeros(json_t *json, const char *const *kept);

/* The text of a number that no other value can hold; NULL: json is something else. */
const char *weft_json_written(const json_t *json);
/* Whether the n bytes are such a number. */
bool weft_json_is_written(const char *number, size_t n);

#ifdef __cplusplus
}
#endif
#endif
