/* SPDX-License-Identifier: MIT */
/* Which replica each request went to, as a file: a number from 0 on each line, in the order of the load.
 *
 * Law: a run that replays what another run of the same load wrote gives every request to the same replica, whichever
 * router chose. */
#ifndef WEFT_BENCH_SIM_ASSIGNMENT_H
#define WEFT_BENCH_SIM_ASSIGNMENT_H

#include "bench/sim/sim.h"

/* *out: [n], owned by the caller. 0, or an exit code after one line that names the line of the file. */
int weft_sim_assignment_read(const char *path, uint32_t n, uint32_t n_replicas, uint32_t **out);
int weft_sim_assignment_write(const char *path, const weft_sim_load *load, const weft_sim_run *run);

#endif
