/* SPDX-License-Identifier: MIT */
/* What fits the pool: pages of a number of tokens, the longest sequence, how many requests at once. Any thread: the
 * functions read only what never changes after open. */
#ifndef WEFT_SCHEDULER_FIT_H
#define WEFT_SCHEDULER_FIT_H

#include "scheduler/state.h"

/* Pages of the pool that a prompt of n_tokens tokens needs at most while it is computed chunk by chunk. */
uint32_t weft_fit_pages(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);
/* Tokens of the longest sequence of the lane that n_pages pages hold while n_rows rows of it are in flight. */
uint32_t weft_fit_longest(const weft_engine *engine, uint32_t lane, uint32_t n_rows, uint32_t n_pages);
/* As weft_engine_tokens (engine.h). */
uint64_t weft_fit_tokens(const weft_engine *engine, uint32_t lane);
/* As weft_engine_room (engine.h). */
uint32_t weft_fit_room(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);

#endif
