/* SPDX-License-Identifier: MIT */
#include "api/json.h"

#include <stdio.h>
#include <string.h>

static const char *escape_of(unsigned char c, char buffer[8]) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      if (c >= 0x20 && c != 0x7F) return NULL;
      (void)snprintf(buffer, 8, "\\u%04x", c);
      return buffer;
  }
}

void weft_json_escape(weft_text *out, const char *bytes, size_t n) {
  size_t from = 0, at = 0;
  while (at < n) {
    uint32_t c;
    char buffer[8];
    size_t length = weft_utf8_decode(bytes + at, n - at, &c);
    const char *instead = length == 0 ? "\xEF\xBF\xBD" : length == 1 ? escape_of((unsigned char)c, buffer) : NULL;
    if (length == 0) length = 1;
    if (instead != NULL) {
      weft_text_append(out, bytes + from, at - from);
      weft_text_puts(out, instead);
      from = at + length;
    }
    at += length;
  }
  if (n > from) weft_text_append(out, bytes + from, n - from);
}

void weft_json_string(weft_text *out, const char *bytes, size_t n) {
  weft_text_append(out, "\"", 1);
  weft_json_escape(out, bytes, n);
  weft_text_append(out, "\"", 1);
}

void weft_json_words(weft_text *out, const char *zero_ended) {
  weft_json_string(out, zero_ended, strlen(zero_ended));
}
