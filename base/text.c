/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <stdarg.h>
#include <string.h>

#include "base/memory.h"

static bool text_room(weft_text *text, size_t n_more) {
  size_t max = text->max == 0 ? (size_t)1 << 30 : text->max;
  if (text->refused || n_more > max || text->n > max - n_more) {
    text->refused = true;
    return false;
  }
  size_t wanted = text->n + n_more + 1;
  if (wanted <= text->capacity) return true;
  size_t capacity = text->capacity == 0 ? 64 : text->capacity;
  while (capacity < wanted) capacity *= 2;
  char *bytes = weft_realloc(text->bytes, capacity, 1);
  if (bytes == NULL) {
    text->refused = true;
    return false;
  }
  text->bytes = bytes;
  text->capacity = capacity;
  return true;
}

bool weft_text_read(weft_text *text, FILE *file) {
  char piece[65536];
  size_t n;
  while (!text->refused && (n = fread(piece, 1, sizeof piece, file)) > 0) weft_text_append(text, piece, n);
  return ferror(file) == 0;
}

void weft_text_reserve(weft_text *text, size_t n) {
  if (n >= text->n) (void)text_room(text, n - text->n); /* a refusal shows in the status */
}

void weft_text_append(weft_text *text, const char *bytes, size_t n) {
  if (!text_room(text, n)) return;
  if (n > 0) memcpy(text->bytes + text->n, bytes, n);
  text->n += n;
  text->bytes[text->n] = 0;
}

void weft_text_puts(weft_text *text, const char *zero_ended) {
  weft_text_append(text, zero_ended, strlen(zero_ended));
}

void weft_text_printf(weft_text *text, const char *format, ...) {
  va_list list;
  va_start(list, format);
  va_list again;
  va_copy(again, list);
  int n = vsnprintf(NULL, 0, format, list);
  va_end(list);
  if (n < 0) {
    text->refused = true;
  } else if (text_room(text, (size_t)n)) {
    (void)vsnprintf(text->bytes + text->n, (size_t)n + 1, format, again);
    text->n += (size_t)n;
  }
  va_end(again);
}

void weft_text_clear(weft_text *text) {
  text->n = 0;
  text->refused = false;
  if (text->bytes != NULL) text->bytes[0] = 0;
}

void weft_text_free(weft_text *text) {
  weft_free(text->bytes);
  size_t max = text->max;
  memset(text, 0, sizeof *text);
  text->max = max;
}

weft_status weft_text_status(const weft_text *text) {
  return text->refused ? WEFT_E_NO_MEMORY : WEFT_OK;
}

static bool is_continuation(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

size_t weft_utf8_decode(const char *bytes, size_t n, uint32_t *code_point) {
  const unsigned char *b = (const unsigned char *)bytes;
  if (n == 0) return 0;
  if (b[0] < 0x80) {
    *code_point = b[0];
    return 1;
  }
  size_t length = b[0] >= 0xF0 && b[0] <= 0xF4  ? 4
                  : b[0] >= 0xE0 && b[0] < 0xF0 ? 3
                  : b[0] >= 0xC2 && b[0] < 0xE0 ? 2
                                                : 0;
  if (length == 0 || length > n) return 0;
  uint32_t value = b[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; i++) {
    if (!is_continuation(b[i])) return 0;
    value = value << 6 | (b[i] & 0x3Fu);
  }
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < least[length] || value > 0x10FFFF) return 0;
  if (value >= 0xD800 && value <= 0xDFFF) return 0;
  *code_point = value;
  return length;
}

size_t weft_utf8_encode(uint32_t c, char out[4]) {
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  if (c < 0x800) {
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = (char)(0xE0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3F));
    out[2] = (char)(0x80 | (c & 0x3F));
    return 3;
  }
  out[0] = (char)(0xF0 | c >> 18);
  out[1] = (char)(0x80 | (c >> 12 & 0x3F));
  out[2] = (char)(0x80 | (c >> 6 & 0x3F));
  out[3] = (char)(0x80 | (c & 0x3F));
  return 4;
}

bool weft_utf8_valid(const char *bytes, size_t n, size_t *bad_at) {
  size_t at = 0;
  while (at < n) {
    uint32_t code_point;
    size_t length = weft_utf8_decode(bytes + at, n - at, &code_point);
    if (length == 0) {
      if (bad_at != NULL) *bad_at = at;
      return false;
    }
    at += length;
  }
  return true;
}

void weft_utf8_repair(const char *bytes, size_t n, weft_text *out) {
  size_t bad_at;
  while (!weft_utf8_valid(bytes, n, &bad_at)) {
    weft_text_append(out, bytes, bad_at);
    weft_text_puts(out, "\xEF\xBF\xBD");
    bytes += bad_at + 1;
    n -= bad_at + 1;
  }
  weft_text_append(out, bytes, n);
}

bool weft_utf8_plain(const char *bytes, size_t n, size_t *n_bytes, uint32_t *code_point) {
  uint32_t code = 0;
  *n_bytes = weft_utf8_decode(bytes, n, &code);
  *code_point = code;
  if (*n_bytes == 0) return false;
  bool separates = code == 0x2028 || code == 0x2029;
  bool directs = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069); /* reorders what is shown */
  return code >= 0x20 && !(code >= 0x7F && code < 0xA0) && !separates && !directs;
}

size_t weft_utf8_clean(const char *text, char *out, size_t n_max) {
  enum { ESCAPE_BYTES = 4 };
  size_t n = strlen(text), n_bytes, at = 0;
  for (size_t i = 0; i < n; i += n_bytes) {
    uint32_t code;
    bool plain = weft_utf8_plain(text + i, n - i, &n_bytes, &code);
    if (n_bytes == 0) n_bytes = 1;
    if (at + n_bytes * ESCAPE_BYTES + 1 > n_max) break;
    if (plain) {
      memcpy(out + at, text + i, n_bytes);
      at += n_bytes;
    } else {
      for (size_t k = 0; k < n_bytes; k++)
        at += (size_t)snprintf(out + at, ESCAPE_BYTES + 1, "\\x%02x", (unsigned char)text[i + k]);
    }
  }
  if (n_max > 0) out[at] = 0;
  return at;
}

size_t weft_utf8_mark(const char *bytes, size_t n) {
  return n >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

size_t weft_utf8_complete(const char *bytes, size_t n) {
  const unsigned char *b = (const unsigned char *)bytes;
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    unsigned char lead = b[n - back];
    if (is_continuation(lead)) continue;
    size_t length = lead >= 0xF0 && lead <= 0xF4  ? 4
                    : lead >= 0xE0 && lead < 0xF0 ? 3
                    : lead >= 0xC2 && lead < 0xE0 ? 2
                                                  : 1;
    return length > back ? n - back : n;
  }
  return n;
}
