/* SPDX-License-Identifier: MIT */
/* Whose turn is next: the times of so many replicas, and which of them is first.
 *
 * Law. The first is the one with the least time, of equals that with the least number. A change costs as many
 * comparisons as the tree is high, and who is first costs none: each inner node has the first of its two halves. */
#ifndef WEFT_BENCH_SIM_TURNS_H
#define WEFT_BENCH_SIM_TURNS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_sim_turns {
  uint64_t *at_us; /* [n_leaves] UINT64_MAX: never */
  uint32_t *first; /* [n_leaves] of the half below an inner node; 1 is the root */
  uint32_t n_leaves;
} weft_sim_turns;

/* n > 0, and nobody has a turn. False: memory was refused. close: whatever open returned. */
bool weft_sim_turns_open(weft_sim_turns *turns, uint32_t n);
void weft_sim_turns_close(weft_sim_turns *turns);
void weft_sim_turns_set(weft_sim_turns *turns, uint32_t at, uint64_t at_us);
/* Its time is turns->at_us of it. */
uint32_t weft_sim_turns_first(const weft_sim_turns *turns);

#endif
