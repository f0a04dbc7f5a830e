/* SPDX-License-Identifier: MIT */
/* What happened in all worlds of the simulation, so that a run shows what it has tested. */
#ifndef WEFT_TESTS_SIM_TOTALS_H
#define WEFT_TESTS_SIM_TOTALS_H

#include <stdint.h>
#include <stdio.h>

#include "scheduler/engine.h"

typedef struct sim_totals {
  uint64_t n_steps, n_requests, n_finished[WEFT_FINISH_KINDS], n_refused, n_full, n_preemptions, n_mixed, n_switches,
      n_hits, n_void, n_waits, n_broken, n_forks, n_watched, n_pins, n_dropped_pins, n_out, n_back, n_lost, n_to_file,
      n_from_file, n_file_lost, n_file_waits, n_in_vain, n_together, n_split, n_drafted, n_accepted, n_state_worlds,
      n_state_hits, n_shadowed, n_own_drafted, n_own_right, n_resizes, n_small;
} sim_totals;

static sim_totals totals;

static inline void print_totals(unsigned long long n_seeds) {
  const sim_totals *t = &totals;
  const struct {
    const char *name;
    uint64_t n;
  } row[] = {{"requests", t->n_requests},
             {"refused", t->n_refused},
             {"submissions of several", t->n_together},
             {"too large for ever", t->n_split},
             {"times full", t->n_full},
             {"steps", t->n_steps},
             {"mixed steps", t->n_mixed},
             {"switches", t->n_switches},
             {"preemptions", t->n_preemptions},
             {"resizes", t->n_resizes},
             {"worlds with a pool smaller than promised", t->n_small},
             {"hits", t->n_hits},
             {"worlds with states", t->n_state_worlds},
             {"hits on a state", t->n_state_hits},
             {"forks", t->n_forks},
             {"pins", t->n_pins},
             {"pins that gave way", t->n_dropped_pins},
             {"waits for a prefix", t->n_waits},
             {"void rows", t->n_void},
             {"rows with drafts", t->n_drafted},
             {"of them right", t->n_accepted},
             {"rows with drafts of models whose runner drafts", t->n_own_drafted},
             {"right ones", t->n_own_right},
             {"tokens that shadows foretold", t->n_shadowed},
             {"broken runners", t->n_broken},
             {"pages to the host", t->n_out},
             {"back", t->n_back},
             {"lost", t->n_lost},
             {"to the file", t->n_to_file},
             {"from it", t->n_from_file},
             {"lost there", t->n_file_lost},
             {"waits for it", t->n_file_waits},
             {"in vain", t->n_in_vain},
             {"times that two tenants waited", t->n_watched},
             {"stop", t->n_finished[WEFT_FINISH_STOP]},
             {"length", t->n_finished[WEFT_FINISH_LENGTH]},
             {"cancelled", t->n_finished[WEFT_FINISH_CANCELLED]},
             {"deadline", t->n_finished[WEFT_FINISH_DEADLINE]},
             {"error", t->n_finished[WEFT_FINISH_ERROR]},
             {"evicted", t->n_finished[WEFT_FINISH_EVICTED]}};
  printf("%llu seeds:", n_seeds);
  for (uint32_t i = 0; i < sizeof row / sizeof *row; i++) {
    printf(" %llu %s%s", (unsigned long long)row[i].n, row[i].name, i + 1 < sizeof row / sizeof *row ? "," : "\n");
  }
}

#endif
