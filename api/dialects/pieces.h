/* SPDX-License-Identifier: MIT */
/* Text of an answer that is written at once and formatted a piece at a time: small things are there as bytes, large
 * ones are referred to where they belong between them, and are copied, escaped or spelled only when they are read.
 *
 * Law: reading takes off `work` one for each byte that it writes and stops soon (by PIECE_BYTES) when none is left, so
 * one call costs no more however long the answer is; all that was read, joined, is the text as if it had been written
 * whole. What is referred to must live unchanged until all is read. */
#ifndef WEFT_API_DIALECTS_PIECES_H
#define WEFT_API_DIALECTS_PIECES_H

#include "base/text.h"

enum { PIECE_BYTES = 4096 };

typedef enum piece_kind {
  PIECE_RAW,    /* bytes as they are */
  PIECE_STRING, /* the inside of a JSON string */
  PIECE_IDS     /* int32_t, as the inside of a JSON list */
} piece_kind;

typedef struct weft_piece {
  size_t at; /* how many bytes of `text` come before it */
  piece_kind kind;
  const char *bytes; /* NULL: none */
  size_t n;          /* of IDS: how many */
} weft_piece;

/* Zero-initialise. */
typedef struct weft_pieces {
  weft_text text; /* whoever writes small things appends to it */
  weft_piece *piece;
  uint32_t n, capacity;
  bool copies; /* what is put is copied at once: it does not live until it is read */
  /* The reader's. */
  size_t n_read, n_read_of_piece; /* of text; of the next piece */
  uint32_t next;
} weft_pieces;

/* Put n bytes, or a JSON string of them with its quotes. */
void weft_pieces_raw(weft_pieces *out, const char *bytes, size_t n);
void weft_pieces_string(weft_pieces *out, const char *bytes, size_t n);
/* The same, referred to whatever `copies` says. */
void weft_pieces_refer(weft_pieces *out, piece_kind kind, const void *bytes, size_t n);
/* Puts all of `other`, none of which may have been read. */
void weft_pieces_add(weft_pieces *out, const weft_pieces *other);
/* Appends to `to` what was not read yet, as far as *work goes. True: all is read, and *from is empty again. */
bool weft_pieces_read(weft_pieces *from, weft_text *to, int64_t *work);
/* How many bytes reading will give at least. */
size_t weft_pieces_bytes(const weft_pieces *pieces);
/* Makes it empty. */
void weft_pieces_clear(weft_pieces *pieces);
void weft_pieces_free(weft_pieces *pieces);

#endif
