/* SPDX-License-Identifier: MIT */
/* Writing JSON into a weft_text, for answers and events.
 *
 * Law: what is written is always valid JSON in valid UTF-8: bytes that are no UTF-8 become U+FFFD, numbers that are
 * not finite become null. Nothing is remembered; a caller checks weft_text_status once at the end. */
#ifndef WEFT_API_JSON_H
#define WEFT_API_JSON_H

#include "base/text.h"

/* n bytes as a string with its quotes; and without them. */
void weft_json_string(weft_text *out, const char *bytes, size_t n);
void weft_json_escape(weft_text *out, const char *bytes, size_t n);
/* The same, of a text that ends with a zero. */
void weft_json_words(weft_text *out, const char *zero_ended);
/* As "%.9g" gives it. */
void weft_json_real(weft_text *out, double value);
void weft_json_int(weft_text *out, int64_t value);
/* [1,2,3] */
void weft_json_ids(weft_text *out, const int32_t *ids, uint32_t n);

#endif
