/* SPDX-License-Identifier: MIT */
/* Those who watch the server: GET /stats, and the event stream /stats/stream.
 *
 * Law. There is one look (look.h) in a period for all who watch, and none where nobody does: the thread that takes it
 * sleeps then. Each tenant's text is written once for all of its watchers, who share it. A watcher has at most the text
 * that it is being sent: who does not read misses the texts in between, and delays nobody. There are 64 at most, and 16
 * of one tenant. A stream ends when its key
 * is taken away and when the server drains, with an event that says so; a question is answered while it drains, too.
 *
 * Threads: any. The server's HTTP is closed before the watchers are. */
#ifndef WEFT_API_SERVER_WATCH_H
#define WEFT_API_SERVER_WATCH_H

#include "api/server/router.h"

typedef struct weft_watchers weft_watchers;

/* keys: NULL where there are none. NO_MEMORY with a line. */
weft_status weft_watchers_open(weft_runtime *runtime, const weft_keys *keys, weft_watchers **out, weft_error *error);
void weft_watchers_close(weft_watchers *watchers); /* NULL is fine */
/* Streams end, those that come later too. */
void weft_watchers_drain(weft_watchers *watchers);
/* Streams and questions that are open. */
uint32_t weft_watchers_count(weft_watchers *watchers);
/* Most bytes of what is written for them. */
uint64_t weft_watchers_bytes_max(const weft_watchers *watchers);
/* Appends counters as Prometheus text. */
void weft_watchers_metrics(weft_watchers *watchers, weft_text *out);

#endif
