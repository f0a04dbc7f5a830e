/* SPDX-License-Identifier: MIT */
/* Requests that wait for their prefix to come up from the spill file (waiting.c moves them). Engine thread.
 *
 * Law. Such a request is in no queue, so no request waits behind it; cancel, deadline and the end of its lane still
 * reach it. When no page is on its way up any more, all requests whose whole prefix was on its way come back to their
 * queues, and of the others the first, whose turn it is then: so the move of a page costs one try of admission, not
 * one for each request that waits. Pages come up only for a request that has room in the pool beside the requests that
 * wait already.
 *
 * A request whose whole prefix is on its way waits at most `patience` times as long as computing all its tokens would
 * take, or 0.2 s if that is longer; after that, or after its eighth wait, it computes. Patience is 1, and 2 where the
 * operator named whose prefixes are kept: reading leaves the device to others. A request that waits for its turn goes
 * on waiting while moves end. While no move ends for 0.2 s (the disk hangs) no request begins to wait, and those that
 * wait compute when their time is over. */
#ifndef WEFT_SCHEDULER_FILE_WAIT_H
#define WEFT_SCHEDULER_FILE_WAIT_H

#include "scheduler/deadline.h"
#include "scheduler/list.h"

typedef struct weft_file_waits {
  weft_link whole;      /* requests whose whole prefix is on its way */
  weft_link list;       /* the others, in the order in which they began to wait */
  weft_deadlines until; /* when each request of both lists computes instead */
  double page_us;       /* mean time of a page to or from the file, over the last moves */
  double patience;      /* so many times as long as computing may reading take */
  uint32_t n_pages;     /* pages that the requests in `whole` will need for all their tokens */
  uint64_t heard_us;    /* engine time at which a move ended last, or began while there was none */
} weft_file_waits;

#endif
