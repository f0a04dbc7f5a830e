/* SPDX-License-Identifier: MIT */
#include "base/range.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool weft_range_has(const weft_range *r, double number) {
  return isfinite(number) && number <= r->greatest && (r->above ? number > r->least : number >= r->least);
}

bool weft_range_read(const char *text, double *out, const char **end) {
  const char *first = text + strspn(text, "+-"), *behind = text + strspn(text, "+-.0123456789eE");
  char *at;
  if (*first != '.' && (*first < '0' || *first > '9')) return false;
  *out = strtod(text, &at);
  *end = at;
  return at > text && at <= behind; /* 0x10: strtod reads further than decimals go */
}

const char *weft_range_text(const weft_range *r, char text[WEFT_RANGE_TEXT]) {
  const char *format = r->above ? "above %.10g and at most %.10g" : "from %.10g to %.10g";
  (void)snprintf(text, WEFT_RANGE_TEXT, format, r->least, r->greatest);
  return text;
}
