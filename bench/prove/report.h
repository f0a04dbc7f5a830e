/* SPDX-License-Identifier: MIT */
/* The report of a proof: tests/proof/schemas/reports.json says what it holds.
 *
 * Law: every figure in it was measured or counted in this run. It is also a record of bench/results: device, date,
 * commit and command are at its top. */
#ifndef WEFT_BENCH_PROVE_REPORT_H
#define WEFT_BENCH_PROVE_REPORT_H

#include "bench/prove/plan.h"
#include "bench/prove/server.h"

/* {baseline, candidate}: of each first_ms, tokens_per_second (the first token left out) and steps_per_second, as
 * {median, least, most, spread, n}, spread being (most - least) / median; null where no answer has the figure. */
json_t *prove_timing(const json_t *baseline, const json_t *candidate);
/* What a report says of a configuration: {profile, options, devices, preflight, start_seconds, models}. */
json_t *prove_facts(const prove_server *server);
/* {option: default} of `weft serve`, as its --help says them, for all options of memory, scheduling and device. */
json_t *prove_defaults(void);
/* Drafted and accepted tokens as a server counts them; null where it counts none. until_us: as ever. */
json_t *prove_acceptance(uint16_t port, uint64_t until_us);
/* {name: value} of the counters of /metrics that a profile names, over all labels; one that is not there is left out.
 * NULL: it names none. */
json_t *prove_counts(uint16_t port, const json_t *profile, uint64_t until_us);
/* What was counted between two of prove_acceptance. */
json_t *prove_acceptance_since(const json_t *before, const json_t *after);
/* The whole report; the caller owns it. NULL: no memory. baseline: its facts. */
json_t *prove_report_make(const prove_plan *plan, const weft_lab_config *config, json_t *baseline, const char *device,
                          double seconds, uint32_t n_starts);

#endif
