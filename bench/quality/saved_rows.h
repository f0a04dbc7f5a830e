/* SPDX-License-Identifier: MIT */
/* A file of saved rows (distribution.h): what one model says of every scored token of a text, for another to be compared
 * with.
 *
 * Law: the file is written and read once, from its beginning to its end, so it may be a pipe. It is a header of
 * WEFT_SAVED_HEADER bytes, then the rows of each window in order, each window followed by a checksum of its rows. Memory
 * does not grow with the file. Whatever does not fit (no such file, another text, windows, vocabulary, a file cut short,
 * a bit that changed) is one line that names the file. */
#ifndef WEFT_BENCH_QUALITY_SAVED_ROWS_H
#define WEFT_BENCH_QUALITY_SAVED_ROWS_H

#include "bench/inside.h"
#include "bench/quality/distribution.h"

enum { WEFT_SAVED_HEADER = 512, WEFT_SAVED_LEVELS_MAX = 16 };

/* What the rows are of. In the file as it lies here, little-endian, filled up with zeros. */
typedef struct weft_saved_header {
  char magic[16]; /* set by the writer */
  char model[128], backend[96];
  uint64_t fingerprint_low, fingerprint_high; /* of the model */
  uint64_t vocabulary, text;                  /* hashes: all tokens' texts; what the windows hold */
  uint64_t seed;                              /* of the noise of canvases */
  uint32_t n_vocab, context, stride, n_windows;
  uint32_t rows_per_window; /* scored tokens */
  uint32_t n_levels;        /* of noise; 0: token by token */
  float level[WEFT_SAVED_LEVELS_MAX];
  uint64_t checksum; /* of all before it; set by the writer */
} weft_saved_header;

typedef struct weft_saved_file weft_saved_file;

/* Writes the header, and asks the system for the room, so that a disk that is too small is known before hours of work. */
weft_status weft_saved_create(const char *path, const weft_saved_header *header, weft_saved_file **out,
                              weft_error *error);
weft_status weft_saved_write(weft_saved_file *file, const weft_saved_row *row, weft_error *error);

/* Reads the header and holds it against the one that this run would write: all but model, backend and fingerprint must be
 * equal. Where the file has a size, it must be the right one. */
weft_status weft_saved_open(const char *path, const weft_saved_header *wanted, weft_saved_file **out,
                            weft_error *error);
const weft_saved_header *weft_saved_header_of(const weft_saved_file *file);
weft_status weft_saved_read(weft_saved_file *file, weft_saved_row *row, weft_error *error);

/* Of a file that was created: whether all of it reached the file. NULL is fine. */
weft_status weft_saved_close(weft_saved_file *file, weft_error *error);

#endif
