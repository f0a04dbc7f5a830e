/* SPDX-License-Identifier: MIT */
/* What fits the pool: pages of a number of tokens, the longest sequence, how many requests at once. Any thread: reads only
 * what never changes after open. */
#ifndef WEFT_SCHEDULER_FIT_H
#define WEFT_SCHEDULER_FIT_H

#include "scheduler/state.h"

/* Pages of n tokens that come in as a prompt does, chunk by chunk. */
uint32_t weft_fit_pages(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);
/* The longest sequence of the lane that n_pages hold with n_rows rows in flight. */
uint32_t weft_fit_longest(const weft_engine *engine, uint32_t lane, uint32_t n_rows, uint32_t n_pages);
/* See weft_engine_room. */
uint32_t weft_fit_room(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);

#endif
