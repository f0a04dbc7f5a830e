/* SPDX-License-Identifier: MIT */
/* A number that a user sets: its default, its least and its greatest value. The ranges of sampling are
 * written once, in base/sampling.h; the table of options, the HTTP dialects and the check of submit read them. */
#ifndef WEFT_BASE_RANGE_H
#define WEFT_BASE_RANGE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_range {
  double initial; /* the default; it may lie outside, as -1 does where it stands for the model's own value */
  double least, greatest;
  bool above; /* the least value itself is outside */
} weft_range;

/* The range of an option that is no number. */
#define WEFT_NO_RANGE \
  { 0, 0, 0, false }

enum { WEFT_RANGE_TEXT = 80 };

/* NaN and infinity are in no range. */
bool weft_range_has(const weft_range *range, double number);
/* "from 0 to 100" or "above 0 and at most 1"; returns text. */
const char *weft_range_text(const weft_range *range, char text[WEFT_RANGE_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
