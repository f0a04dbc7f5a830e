/* SPDX-License-Identifier: MIT */
/* Views of an engine for those who watch it (view.h), taken by the engine thread at the end of a turn when somebody has
 * asked for one.
 *
 * Law. Nobody who watches holds up the engine: it takes a view in its own time, one for each that was asked for, and
 * copies it under a mutex that readers hold for a copy, too. Where nobody asks, a turn reads one word. In a turn with a
 * step it looks at WEFT_VIEW_SCAN_PAGES pages at most; an idle engine, which is woken for it, looks at all. */
#ifndef WEFT_SCHEDULER_WATCH_H
#define WEFT_SCHEDULER_WATCH_H

#include "scheduler/state.h"

weft_status weft_watch_open(weft_engine *engine); /* NO_MEMORY */
void weft_watch_close(weft_engine *engine);       /* one that was not opened is fine */
/* The end of a turn. Engine thread. idle: it had nothing to do. */
void weft_watch_turn(weft_engine *engine, bool idle);

/* ---- any thread ---- */

/* A view for copies of this engine's; the caller closes it. */
weft_status weft_watch_open_view(const weft_engine *engine, weft_view *out); /* NO_MEMORY */
uint64_t weft_watch_count(weft_engine *engine);                              /* how many views were ever taken */
/* Asks for a view, and wakes the engine. */
void weft_watch_ask(weft_engine *engine);
/* Waits until the view that was asked for is taken, at most until weft_clock_us reaches until_us. True: it is there.
 * Either way *out is the newest one, which is all zero but for its sizes where there is none. */
bool weft_watch_await(weft_engine *engine, uint64_t until_us, weft_view *out);

#endif
