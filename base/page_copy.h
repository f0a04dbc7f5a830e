/* SPDX-License-Identifier: MIT */
/* A copy of one whole page within the pool or between the tiers that keep pages: the pool, the host memory behind the
 * pool, and the file behind the host memory. The pager decides on copies, a batch carries them to the device, and the
 * store of keys and values (model/kv_store.h) performs them.
 *
 * Law: copies within the pool and between the pool and host memory run in the device's order, before the rows of the
 * batch that brings them. The last two kinds, between host memory and the file, are called moves: a move may take any
 * time, and its end is reported. */
#ifndef WEFT_BASE_PAGE_COPY_H
#define WEFT_BASE_PAGE_COPY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum weft_copy_kind {
  WEFT_PAGE_TO_PAGE = 0, /* copy-on-write */
  WEFT_PAGE_TO_HOST = 1,
  WEFT_HOST_TO_PAGE = 2,
  WEFT_HOST_TO_FILE = 3,
  WEFT_FILE_TO_HOST = 4
} weft_copy_kind;

typedef struct weft_page_copy {
  uint32_t from, to; /* pages of the pool, or slots of the tier that the kind names */
  uint32_t kind;     /* weft_copy_kind */
} weft_page_copy;

static inline bool weft_copy_is_move(uint32_t kind) {
  return kind == WEFT_HOST_TO_FILE || kind == WEFT_FILE_TO_HOST;
}

#endif
