/* SPDX-License-Identifier: MIT */
/* A report of a card: what `weft bench model --report FILE` writes for a user to send, so that figures of cards which
 * the project does not have enter docs/models.md.
 *
 * Law: the file says what was measured and beside it what `weft plan` predicts of the same card and load, by the
 * driver's figures of the card; it names the card by what it is, never the machine, its user or a path. */
#ifndef WEFT_BENCH_SPEED_REPORT_H
#define WEFT_BENCH_SPEED_REPORT_H

#include <jansson.h>

#include "bench/lab/lab.h"

/* Whether the file can be written, before hours are measured. 0, or an exit code after one line. */
int weft_bench_report_check(const weft_lab_config *config);
/* rows: as bench model --json prints them, each with work, unit, median, spread, n_prompt, n_generate, n_parallel and
 * n_canvases. 0, or an exit code after one line. */
int weft_bench_report(const weft_lab_config *config, const weft_runtime *runtime, const json_t *rows);

#endif
