/* SPDX-License-Identifier: MIT */
/* A number that a user sets: its default, its least and its greatest value.
 *
 * Law: the range of a number is written once. Those of sampling stand in base/sampling.h; the table of options, the
 * HTTP dialects and the checks of weft_submit read them there. */
#ifndef WEFT_BASE_RANGE_H
#define WEFT_BASE_RANGE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_range {
  double initial; /* the default; outside of the range where it means something else: -1 is the model's own value */
  double least, greatest;
  bool above; /* a value must be greater than `least`, not equal to it */
} weft_range;

/* The range of an option that is not a number. */
#define WEFT_NO_RANGE \
  { 0, 0, 0, false }

/* Reads the number that text begins with, written in decimals: a sign, digits, a point, an exponent. Blanks, hexadecimal
 * digits and words such as inf are none. *end: what stands behind it. False: there is no number. */
bool weft_range_read(const char *text, double *out, const char **end);

enum { WEFT_RANGE_TEXT = 80 }; /* bytes of a range in words, with the zero byte */

/* Whether the number lies in the range; NaN and infinity lie in none. */
bool weft_range_has(const weft_range *range, double number);
/* Writes the range in words, such as "from 0 to 100" or "above 0 and at most 1", and returns text. */
const char *weft_range_text(const weft_range *range, char text[WEFT_RANGE_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
