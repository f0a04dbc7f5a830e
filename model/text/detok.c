/* SPDX-License-Identifier: MIT */
#include "model/text/detok.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

/* Length of the longest start of a character at bytes that is not a whole character: at least 1. */
static size_t broken_length(const unsigned char *b, size_t n) {
  size_t length = b[0] >= 0xF0 && b[0] <= 0xF4   ? 4
                  : b[0] >= 0xE0 && b[0] <= 0xEF ? 3
                  : b[0] >= 0xC2 && b[0] <= 0xDF ? 2
                                                 : 1;
  if (length == 1 || n < 2) return 1;
  unsigned char low = b[0] == 0xE0 ? 0xA0 : b[0] == 0xF0 ? 0x90 : 0x80;
  unsigned char high = b[0] == 0xED ? 0x9F : b[0] == 0xF4 ? 0x8F : 0xBF;
  if (b[1] < low || b[1] > high) return 1;
  size_t have = 2;
  while (have < length && have < n && (b[have] & 0xC0) == 0x80) have += 1;
  return have;
}

/* Whether bytes[0..n) is the start of a character that later bytes can finish. */
static bool is_unfinished(const unsigned char *b, size_t n) {
  if (n == 0 || n > 3) return false;
  size_t length = b[0] >= 0xF0 && b[0] <= 0xF4   ? 4
                  : b[0] >= 0xE0 && b[0] <= 0xEF ? 3
                  : b[0] >= 0xC2 && b[0] <= 0xDF ? 2
                                                 : 1;
  return n < length && broken_length(b, n) == n;
}

/* How many bytes of an unfinished character end the text: 0 to 3. */
static size_t unfinished_tail(const char *bytes, size_t n) {
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    const unsigned char *b = (const unsigned char *)bytes + n - back;
    if ((b[0] & 0xC0) == 0x80) continue;
    return is_unfinished(b, back) ? back : 0;
  }
  return 0;
}

void weft_text_append_lossy(weft_text *out, const char *bytes, size_t n) {
  size_t bad_at;
  while (!weft_utf8_valid(bytes, n, &bad_at)) {
    weft_text_append(out, bytes, bad_at);
    weft_text_puts(out, REPLACEMENT);
    size_t skip = bad_at + broken_length((const unsigned char *)bytes + bad_at, n - bad_at);
    bytes += skip;
    n -= skip;
  }
  weft_text_append(out, bytes, n);
}

size_t weft_text_characters(const char *bytes, size_t n) {
  size_t n_characters = 0;
  for (size_t i = 0; i < n; i++) n_characters += ((unsigned char)bytes[i] & 0xC0) != 0x80;
  return n_characters;
}

void weft_detok_open(weft_detok *detok, const weft_tokenizer *tokenizer, unsigned flags) {
  memset(detok, 0, sizeof *detok);
  detok->tokenizer = tokenizer;
  detok->flags = flags;
}

void weft_detok_close(weft_detok *detok) {
  weft_text_free(&detok->pending);
  weft_text_free(&detok->piece);
}

enum { UNFINISHED_BYTES_MAX = 3, REPLACEMENT_BYTES = sizeof REPLACEMENT - 1 };

weft_status weft_detok_reserve(weft_detok *detok) {
  size_t longest = weft_tokenizer_longest(detok->tokenizer);
  weft_text_reserve(&detok->piece, longest);
  weft_text_reserve(&detok->pending, UNFINISHED_BYTES_MAX + longest);
  weft_status status = weft_text_status(&detok->piece);
  return status == WEFT_OK ? weft_text_status(&detok->pending) : status;
}

size_t weft_detok_text_max(const weft_detok *detok) {
  return (UNFINISHED_BYTES_MAX + (size_t)weft_tokenizer_longest(detok->tokenizer)) * REPLACEMENT_BYTES;
}

/* Gives the first n pending bytes, which end at a character. */
static weft_status give_pending(weft_detok *detok, size_t n, weft_text *out) {
  if (n == 0) return WEFT_OK;
  weft_text *pending = &detok->pending;
  weft_text_append_lossy(out, pending->bytes, n);
  memmove(pending->bytes, pending->bytes + n, pending->n - n);
  pending->n -= n;
  return weft_text_status(out);
}

weft_status weft_detok_push(weft_detok *detok, int32_t id, weft_text *out, uint32_t *n_ids) {
  if (n_ids != NULL) *n_ids = 0;
  weft_text_clear(&detok->piece);
  bool with_special = (detok->flags & WEFT_DETOK_WITH_SPECIAL) != 0;
  weft_status status = weft_tokenizer_piece(detok->tokenizer, id, with_special, &detok->piece);
  if (status != WEFT_OK) return status;
  weft_text_append(&detok->pending, detok->piece.bytes, detok->piece.n);
  status = weft_text_status(&detok->pending);
  if (status != WEFT_OK) return status;
  detok->n_pending += 1;
  size_t tail = unfinished_tail(detok->pending.bytes, detok->pending.n);
  bool whole = (detok->flags & WEFT_DETOK_WHOLE_TOKENS) != 0;
  if (whole && tail > 0) return WEFT_OK;
  status = give_pending(detok, detok->pending.n - tail, out);
  if (n_ids != NULL) *n_ids = detok->n_pending;
  detok->n_pending = 0;
  return status;
}

weft_status weft_detok_flush(weft_detok *detok, weft_text *out, uint32_t *n_ids) {
  if (n_ids != NULL) *n_ids = detok->n_pending;
  detok->n_pending = 0;
  return give_pending(detok, detok->pending.n, out);
}

weft_status weft_tokenizer_decode(const weft_tokenizer *t, const int32_t *ids, uint32_t n, bool with_special,
                                  weft_text *out) {
  return weft_tokenizer_decode_at(t, ids, n, with_special, NULL, out);
}

weft_status weft_tokenizer_decode_at(const weft_tokenizer *t, const int32_t *ids, uint32_t n, bool with_special,
                                     uint32_t *at, weft_text *out) {
  weft_detok detok;
  weft_text text = {0};
  weft_detok_open(&detok, t, with_special ? WEFT_DETOK_WITH_SPECIAL : 0);
  weft_status status = WEFT_OK;
  bool first = weft_tokenizer_adds_space(t);
  size_t before = out->n;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    weft_text_clear(&text);
    if (at != NULL) at[i] = (uint32_t)(out->n - before);
    status = weft_detok_push(&detok, ids[i], &text, NULL);
    if (text.n == 0) continue;
    bool plain = !weft_tokenizer_is_control(t, ids[i]);
    size_t strip = first && plain && text.bytes[0] == ' ' ? 1 : 0;
    if (plain) first = false;
    weft_text_append(out, text.bytes + strip, text.n - strip);
  }
  if (status == WEFT_OK) status = weft_detok_flush(&detok, out, NULL);
  weft_text_free(&text);
  weft_detok_close(&detok);
  return status == WEFT_OK ? weft_text_status(out) : status;
}
