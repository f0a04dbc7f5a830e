/* SPDX-License-Identifier: MIT */
#include "api/http/sse.h"

void weft_sse_begin(weft_text *out, const char *name) {
  if (name != NULL) {
    weft_text_puts(out, "event: ");
    weft_text_puts(out, name);
    weft_text_puts(out, "\n");
  }
  weft_text_puts(out, "data: ");
}

void weft_sse_end(weft_text *out) {
  weft_text_puts(out, "\n\n");
}

void weft_sse_done(weft_text *out) {
  weft_text_puts(out, "data: [DONE]\n\n");
}

void weft_sse_comment(weft_text *out) {
  weft_text_puts(out, ": still working\n\n");
}
