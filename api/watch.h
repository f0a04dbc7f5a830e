/* SPDX-License-Identifier: MIT */
/* Watching sockets for clients that leave while their request waits. The HTTP library looks at a
 * suspended connection only when it is resumed, so one thread of ours sleeps in epoll on those
 * sockets instead.
 *
 * Law: gone(self) is called at most once per ticket, on the watcher's thread, and must not block or
 * call this module; after weft_watch_remove returned it is not running and will not be called. A
 * peer counts as gone when it closed its sending half: no client that still wants its answer does
 * that before it has it. */
#ifndef WEFT_API_WATCH_H
#define WEFT_API_WATCH_H

#include <stdint.h>

#include "base/status.h"

typedef struct weft_watch weft_watch;

weft_status weft_watch_open(uint32_t n_max, weft_watch **out, weft_error *error);
void weft_watch_close(weft_watch *watch); /* NULL is fine */
/* FULL: n_max are watched already. */
weft_status weft_watch_add(weft_watch *watch, int fd, void (*gone)(void *self), void *self, uint64_t *ticket);
void weft_watch_remove(weft_watch *watch, uint64_t ticket); /* before the fd is closed */

#endif
