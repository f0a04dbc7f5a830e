/* SPDX-License-Identifier: MIT */
/* A file of pages that outlives the process: its head, where its slots lie, and its index, of which this file knows
 * only the bytes.
 *
 *   [0, 4096) and [4096, 8192)   two heads, written in turns
 *   [8192, ...)                  the slots, each at a multiple of 4096
 *   behind them                  the index that the newer head names; the next one is written beside it
 *
 * Law. Wherever the process is ended, the file has one whole index: an index counts once a head names it, a head is
 * written after its index, and what it names is never written over. Heads and indexes have checksums; pages have theirs
 * in the index (model/kv_file.h checks them when they are read), so a page that was written after the index, or in
 * part, is found. The file is a plain one of this user, for whom alone it can be read, and locked while it is open; a file
 * that is something else is refused, and never written. */
#ifndef WEFT_MODEL_KEPT_FILE_H
#define WEFT_MODEL_KEPT_FILE_H

#include "base/text.h"
#include "model/kv_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_kept_file weft_kept_file;

enum { WEFT_KEPT_UNIT = 4096, WEFT_KEPT_MARK = 16 };

/* Keeps bytes of the file from others. Each call is about whole units, of which `first` is the first one's number in
 * the file. from and to may be the same. */
typedef struct weft_kept_cipher {
  void *self;
  bool (*seal)(void *self, uint64_t first, const void *from, void *to, uint64_t n_bytes);
  bool (*unseal)(void *self, uint64_t first, const void *from, void *to, uint64_t n_bytes);
  uint8_t mark[WEFT_KEPT_MARK]; /* tells the key from others, and nothing else of it */
} weft_kept_cipher;

typedef struct weft_kept_config {
  const char *path;
  uint64_t page_bytes;
  uint32_t n_slots;               /* 0: as many as the file has; it is only read */
  const weft_kept_cipher *cipher; /* NULL: none; borrowed until close */
} weft_kept_config;

/* Opens the file, or makes it where there is none. *index: the bytes of its index, none where it has no whole one (a
 * new file, or one whose heads or index were damaged: *damaged says which). Errors name the file and what is wrong: IO,
 * UNSUPPORTED (another program's file, another form, pages of another size, another key, another user's), FULL (another
 * process has it open), NO_MEMORY. */
weft_status weft_kept_file_open(const weft_kept_config *config, weft_kept_file **out, weft_text *index, bool *damaged,
                                weft_error *error);
/* Writes an index in place of the one there was, and waits until the disk has it. IO: the old one stays. */
weft_status weft_kept_file_write(weft_kept_file *file, const char *index, uint64_t n_bytes, weft_error *error);
void weft_kept_file_close(weft_kept_file *file); /* NULL is fine */

/* For weft_kv_file_config: where the slots lie, and how bytes come and go. Both live as long as the file. */
const weft_kv_place_of_slots *weft_kept_file_slots(const weft_kept_file *file);
const weft_kv_file_io *weft_kept_file_io(const weft_kept_file *file);
/* Writes a page into a slot that nothing else writes now; *sum: its checksum, for the index. False: errno says why. */
bool weft_kept_file_put(weft_kept_file *file, uint32_t slot, const void *page, uint64_t *sum);
/* Reads it. False: it cannot be read, or has not this checksum. */
bool weft_kept_file_get(weft_kept_file *file, uint32_t slot, uint64_t sum, void *page);
/* What was there of these slots is given back to the disk. A disk that cannot is no error. */
void weft_kept_file_forget(weft_kept_file *file, const uint32_t *slot, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
