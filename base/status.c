/* SPDX-License-Identifier: MIT */
#include "base/status.h"

#include <stdio.h>

const char *weft_status_text(weft_status status) {
  switch (status) {
#define X(name, value, text) \
  case name:                 \
    return text;
    WEFT_STATUS_MAP(X)
#undef X
  }
  return "unknown status";
}

weft_status weft_fail(weft_error *error, weft_status status, const char *format, ...) {
  if (error == NULL) return status;
  va_list list;
  va_start(list, format);
  (void)vsnprintf(error->text, sizeof error->text, format, list); /* a cut line is still a line */
  va_end(list);
  return status;
}
