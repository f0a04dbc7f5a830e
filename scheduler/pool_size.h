/* SPDX-License-Identifier: MIT */
/* The size of the pool while the engine runs: what another thread asked for, and how far it is.
 *
 * Law. Any thread says how many pages the pool shall have; the engine's thread gets there step by step, and tells
 * after each of them. No request loses a block for it: cached blocks give way, blocks that are in use are moved, and
 * what is in use beyond the size asked for leaves as requests end, since the pages that these give back are closed
 * before anybody else can take them; meanwhile those that run keep the margin that admission leaves them. A request
 * that was accepted can run whatever size was asked for: pages of held pins, and beside them those of the largest
 * request since the engine was last without any, stay. Where the pool was smaller when that request came, their memory
 * is asked for again, and that also after memory for more pages was refused.
 *
 * Memory. Pages are opened after their memory is there. Of pages that were closed it is given back when every step
 * that was submitted before, and the copies of what was moved, have landed; so neither waits for the other, and no step
 * waits for either. Until then they count as there (weft_pool_view.n_backed). Where no step is launched, the copies are
 * made by calls->copy. */
#ifndef WEFT_SCHEDULER_POOL_SIZE_H
#define WEFT_SCHEDULER_POOL_SIZE_H

#include "scheduler/state.h"

/* The pager has been opened for the most pages; makes the pool as large as it is at the start. */
void weft_pool_size_open(weft_engine *engine);
/* A request was accepted. */
void weft_pool_size_expect(weft_engine *engine, const weft_request *request);
/* The beginning of a turn, before anything is planned. */
void weft_pool_size_begin(weft_engine *engine);
/* The end of a turn. */
void weft_pool_size_end(weft_engine *engine);
/* Any thread. */
void weft_pool_size_ask(weft_engine *engine, uint32_t n_pages);
weft_pool_view weft_pool_size_look(weft_engine *engine);
/* Recomputes the law; NULL: it holds. */
const char *weft_pool_size_check(const weft_engine *engine);

#endif
