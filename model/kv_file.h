/* SPDX-License-Identifier: MIT */
/* The file behind host memory, which has slots of one page each, and the threads that read and write these slots.
 *
 * Law: at open the file is created, its room on the disk is reserved, and it is unlinked, so no other process can open
 * the file, and nothing of it is left when the process ends, however it ends; but for one that is kept (kept_file.h),
 * which is given open. Adding a move never waits for the disk; those from the file begin first, and several of them run
 * at once; those to it run one after another. Each ends exactly once, and ends of a kind are told in the order in which
 * they were added. The checksums of the slots stay in memory: a page that cannot be written or read in full, or that
 * comes back with another checksum, is a failed move and nothing worse. Nothing is allocated after open. */
#ifndef WEFT_MODEL_KV_FILE_H
#define WEFT_MODEL_KV_FILE_H

#include "base/status.h"
#include "model/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_kv_file weft_kv_file;

/* Functions like pwrite and pread, through which bytes go to the disk and come back; several threads call them. */
typedef struct weft_kv_file_io {
  void *self;
  int64_t (*write)(void *self, int fd, const void *from, uint64_t n_bytes, uint64_t at);
  int64_t (*read)(void *self, int fd, void *to, uint64_t n_bytes, uint64_t at);
} weft_kv_file_io;

/* Where the slots lie in a file that is open: slot s at begin + s * stride. */
typedef struct weft_kv_place_of_slots {
  int fd;
  uint64_t begin, stride;
} weft_kv_place_of_slots;

/* What a page is known by when it comes back. The slot's number is part of it: a page of another slot is none of this
 * one. */
uint64_t weft_kv_page_sum(const void *page, uint64_t page_bytes, uint32_t slot);

typedef struct weft_kv_file_config {
  const char *path; /* the name of a file that does not exist yet; not needed after open */
  uint64_t page_bytes;
  uint32_t n_slots;
  uint32_t moves_max; /* of each of the two kinds: most moves that are added and not yet given by weft_kv_file_ended */
  char *host;         /* page_bytes * n_host bytes of host memory that the caller owns */
  uint32_t n_host;
  const weft_kv_file_io *io; /* NULL: the system's functions; tests give others; copied */
  /* A file that is kept: it is open and has its room, and stays open after close. NULL: one of its own is made. */
  const weft_kv_place_of_slots *kept;
} weft_kv_file_config;

/* Errors name the file: IO (it exists, it cannot be made, there is no room for it), NO_MEMORY. */
weft_status weft_kv_file_open(const weft_kv_file_config *config, weft_kv_file **out, weft_error *error);
/* Waits for the moves that are under way and drops those that wait. NULL is fine. */
void weft_kv_file_close(weft_kv_file *file);

/* ---- one thread, the engine's ---- */

/* Adds a move, WEFT_HOST_TO_FILE or WEFT_FILE_TO_HOST; it begins after weft_kv_file_start allows it. */
void weft_kv_file_add(weft_kv_file *file, const weft_page_copy *move);
uint64_t weft_kv_file_n_added(const weft_kv_file *file);
/* Says that the first n_added moves may begin, because the device has done the copies that fill or read their slots of
 * host memory. lost: the device never will, and these moves fail. */
void weft_kv_file_start(weft_kv_file *file, uint64_t n_added, bool lost);
/* Copies out the moves that ended since the last call, at most max; returns how many. */
uint32_t weft_kv_file_ended(weft_kv_file *file, weft_copy_end *out, uint32_t max);

/* The checksum of a slot that no move fills. */
uint64_t weft_kv_file_sum(const weft_kv_file *file, uint32_t slot);
/* Before the first move: reads what is filled of these slots as moves do, into the first slots of host memory, and
 * returns the mean time of such a move, in us; 0: nothing is filled. What was read does not count, what is damaged
 * does. */
double weft_kv_file_measure(weft_kv_file *file, const uint32_t *slot, uint32_t n);
/* The slot, of which no move is under way, has content of this checksum from before: it is checked when it comes up. */
void weft_kv_file_adopt(weft_kv_file *file, uint32_t slot, uint64_t sum);

/* ---- any thread ---- */

/* Waits for the moves that are under way; all others fail from now on, and nothing is read or written any more. */
void weft_kv_file_let_go(weft_kv_file *file);

/* From now on the file's threads call notify after each move, one at a time; notify must not wait. NULL: no call is
 * made once this returns. */
void weft_kv_file_watch(weft_kv_file *file, void (*notify)(void *self), void *self);

typedef struct weft_kv_file_counters {
  uint64_t n_bytes_written, n_bytes_read;
  uint64_t n_write_failed, n_read_failed, n_damaged; /* moves */
} weft_kv_file_counters;
weft_kv_file_counters weft_kv_file_get_counters(weft_kv_file *file);

#ifdef __cplusplus
}
#endif
#endif
