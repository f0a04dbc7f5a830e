/* SPDX-License-Identifier: MIT */
/* One owner of weights for a card and a scope, in the whole machine.
 *
 * Law: the lock is the kernel's, on a file (flock): it ends with the process, however that ends, and a file that was
 * left behind locks nothing. Whoever gives the lock back removes the file, and whoever takes it makes sure that the
 * file is still the one of that name. */
#ifndef WEFT_API_WEIGHTS_LOCK_H
#define WEFT_API_WEIGHTS_LOCK_H

#include "base/status.h"

typedef struct weights_lock {
  int fd; /* -1: none is held */
  char *path;
} weights_lock;

#define WEIGHTS_NO_LOCK \
  { .fd = -1, .path = NULL }

/* what: of the line that refuses, such as "card 3f..". UNSUPPORTED: another process, which the line names, has the
 * lock. Other errors: IO, NO_MEMORY. */
weft_status weights_lock_take(const char *path, const char *what, weights_lock *out, weft_error *error);
void weights_lock_give(weights_lock *lock);

#endif
