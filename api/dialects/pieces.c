/* SPDX-License-Identifier: MIT */
#include "api/dialects/pieces.h"

#include <string.h>

#include "api/json.h"
#include "base/memory.h"

void weft_pieces_refer(weft_pieces *out, piece_kind kind, const void *bytes, size_t n) {
  if (n == 0) return;
  weft_piece *grown = weft_grow(out->piece, out->n, &out->capacity, 16, sizeof *grown);
  if (grown == NULL) {
    out->text.refused = true;
    return;
  }
  out->piece = grown;
  out->piece[out->n++] = (weft_piece){.at = out->text.n, .kind = kind, .bytes = bytes, .n = n};
}

void weft_pieces_raw(weft_pieces *out, const char *bytes, size_t n) {
  if (out->copies) {
    weft_text_append(&out->text, bytes, n);
  } else {
    weft_pieces_refer(out, PIECE_RAW, bytes, n);
  }
}

void weft_pieces_string(weft_pieces *out, const char *bytes, size_t n) {
  if (out->copies) {
    weft_json_string(&out->text, bytes, n);
    return;
  }
  weft_text_append(&out->text, "\"", 1);
  weft_pieces_refer(out, PIECE_STRING, bytes, n);
  weft_text_append(&out->text, "\"", 1);
}

void weft_pieces_add(weft_pieces *out, const weft_pieces *other) {
  size_t from = 0;
  if (other->text.refused) out->text.refused = true;
  for (uint32_t i = 0; i < other->n; i++) {
    const weft_piece *p = &other->piece[i];
    weft_text_append(&out->text, other->text.bytes + from, p->at - from);
    weft_pieces_refer(out, p->kind, p->bytes, p->n);
    from = p->at;
  }
  if (other->text.n > from) weft_text_append(&out->text, other->text.bytes + from, other->text.n - from);
}

size_t weft_pieces_bytes(const weft_pieces *pieces) {
  size_t n = pieces->text.n;
  for (uint32_t i = 0; i < pieces->n; i++) n += pieces->piece[i].n; /* an id is a byte at least */
  return n;
}

/* ---- reading ---- */

static size_t smaller_of(size_t a, size_t b) {
  return a < b ? a : b;
}

static void read_ids(const weft_piece *p, size_t from, size_t n, weft_text *to) {
  for (size_t i = from; i < from + n; i++) {
    int32_t id;
    memcpy(&id, p->bytes + i * sizeof id, sizeof id);
    if (i > 0) weft_text_append(to, ",", 1);
    weft_json_int(to, id);
  }
}

/* Reads a little of the piece from `from` on; returns how much of it that was. */
static size_t read_part(const weft_piece *p, size_t from, weft_text *to) {
  size_t left = p->n - from, n = smaller_of(left, p->kind == PIECE_IDS ? PIECE_BYTES / 8 : PIECE_BYTES);
  switch (p->kind) {
    case PIECE_RAW:
      weft_text_append(to, p->bytes + from, n);
      break;
    case PIECE_STRING:
      if (n < left) n = weft_utf8_complete(p->bytes + from, n); /* between two characters */
      weft_json_escape(to, p->bytes + from, n);
      break;
    case PIECE_IDS:
      read_ids(p, from, n, to);
      break;
  }
  return n;
}

/* One step: of the text up to the next piece, or of that. False: there is no more. */
static bool read_step(weft_pieces *from, weft_text *to) {
  const weft_piece *p = from->next < from->n ? &from->piece[from->next] : NULL;
  size_t end = p == NULL ? from->text.n : p->at, n = smaller_of(end - from->n_read, PIECE_BYTES);
  if (n > 0) {
    weft_text_append(to, from->text.bytes + from->n_read, n);
    from->n_read += n;
    return true;
  }
  if (p == NULL) return false;
  from->n_read_of_piece += read_part(p, from->n_read_of_piece, to);
  if (from->n_read_of_piece < p->n) return true;
  from->next += 1;
  from->n_read_of_piece = 0;
  return true;
}

bool weft_pieces_read(weft_pieces *from, weft_text *to, int64_t *work) {
  if (from->text.refused) to->refused = true;
  for (;;) {
    size_t before = to->n;
    if (to->refused || !read_step(from, to)) break;
    *work -= (int64_t)(to->n - before);
    if (*work <= 0) return false;
  }
  weft_pieces_clear(from);
  return true;
}

void weft_pieces_clear(weft_pieces *pieces) {
  weft_text_clear(&pieces->text);
  pieces->n = pieces->next = 0;
  pieces->n_read = pieces->n_read_of_piece = 0;
}

void weft_pieces_free(weft_pieces *pieces) {
  weft_text_free(&pieces->text);
  weft_free(pieces->piece);
  *pieces = (weft_pieces){0};
}
