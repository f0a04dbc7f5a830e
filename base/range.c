/* SPDX-License-Identifier: MIT */
#include "base/range.h"

#include <math.h>
#include <stdio.h>

bool weft_range_has(const weft_range *r, double number) {
  return isfinite(number) && number <= r->greatest && (r->above ? number > r->least : number >= r->least);
}

const char *weft_range_text(const weft_range *r, char text[WEFT_RANGE_TEXT]) {
  const char *format = r->above ? "above %.10g and at most %.10g" : "from %.10g to %.10g";
  (void)snprintf(text, WEFT_RANGE_TEXT, format, r->least, r->greatest);
  return text;
}
