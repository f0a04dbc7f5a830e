/* SPDX-License-Identifier: MIT */
/* A pool that gets larger and smaller while sequences use it. Law: as weft_pager_resize says; what a page number means
 * to anybody but the pager may change in it, and in no other call that closes pages. Engine thread. */
#ifndef WEFT_PAGER_RESIZE_H
#define WEFT_PAGER_RESIZE_H

#include "pager/pager.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the pool one of n_pages pages, 1 to those that it was opened with, by opening or closing the last ones. Closed
 * pages have no content, no sequence holds them, and none is ever taken; statistics count open pages alone. What the
 * pages that close hold is moved to others, for which blocks are evicted, and sent down, in their order: so the pool
 * ends as if it had always been as small, and no hit is lost that another page could have kept. The copies of these
 * moves are taken like all others, and the memory of a closed page may be given back when they have run and all rows
 * that were submitted before have landed. Refused, and nothing has changed: NO_BLOCKS: more than n_pages are PINNED.
 * AGAIN: copies wait to be taken. TOO_LARGE: it closes more than resize_pages of a pool
 * that is not empty. */
weft_status weft_pager_resize(weft_pager *pager, uint32_t n_pages);

/* Copies that wait to be taken. */
uint32_t weft_pager_copies_waiting(const weft_pager *pager);

#ifdef __cplusplus
}
#endif
#endif
