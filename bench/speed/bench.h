/* SPDX-License-Identifier: MIT */
#ifndef WEFT_BENCH_SPEED_BENCH_H
#define WEFT_BENCH_SPEED_BENCH_H

#include <jansson.h>

#include "bench/lab/lab.h"
#include "bench/sim/plot.h"

/* One row of `weft bench` each. */
int weft_bench_model(const weft_lab_config *config);
int weft_bench_drafts(const weft_lab_config *config);
int weft_bench_arena(const weft_lab_config *config);
int weft_bench_batching(const weft_lab_config *config);
int weft_bench_compare(const weft_lab_config *config);
int weft_bench_experts(const weft_lab_config *config);
int weft_bench_graphs(const weft_lab_config *config);
int weft_bench_frontier(const weft_lab_config *config);
int weft_bench_peer(const weft_lab_config *config);
int weft_bench_phases(const weft_lab_config *config);
int weft_bench_preset(const weft_lab_config *config);
int weft_bench_repeats(const weft_lab_config *config);
int weft_bench_pressure(const weft_lab_config *config);
int weft_bench_profile(const weft_lab_config *config);
int weft_bench_room(const weft_lab_config *config);
int weft_bench_stages(const weft_lab_config *config);
int weft_bench_serving(const weft_lab_config *config);
int weft_bench_tenants(const weft_lab_config *config);
int weft_bench_kernels(const weft_lab_config *config);
int weft_bench_pager(const weft_lab_config *config);
int weft_bench_capacity(const weft_lab_config *config);
int weft_bench_scheduler(const weft_lab_config *config);

/* Records as they are printed with --json; an empty list where there is no memory for the text. */
void weft_bench_print(const json_t *records);
/* A picture in the folder of --plots, which is made where there is none. 0, or an exit code after one line. */
int weft_bench_draw(const weft_lab_config *config, const weft_plot *plot, const char *file);

#endif
