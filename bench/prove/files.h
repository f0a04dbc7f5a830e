/* SPDX-License-Identifier: MIT */
/* The files of a proof: tests/proof/KIND/NAME.json, each held to schemas/KIND.json beside them.
 *
 * Law: a file that is not there, is no JSON or is not of its schema is one line with its name and the place in it;
 * nothing is guessed and no name is passed over. A name with a '/' is a path. */
#ifndef WEFT_BENCH_PROVE_FILES_H
#define WEFT_BENCH_PROVE_FILES_H

#include <jansson.h>

#include "bench/inside.h"

/* kind: "profiles", "suites", "prompts", "budgets", "contracts", "matrices", "weight-servers". The caller owns *out. */
weft_status prove_file_read(const char *folder, const char *kind, const char *name, json_t **out, weft_error *error);
/* A report, held to schemas/reports.json. */
weft_status prove_report_read(const char *folder, const char *path, json_t **out, weft_error *error);
/* Holds a report that was just made to the same schema. */
weft_status prove_report_check(const char *folder, const json_t *report, weft_error *error);

/* Members of an object that its schema has checked; other: what is not there counts as. */
const char *prove_text(const json_t *object, const char *name, const char *other);
uint64_t prove_number(const json_t *object, const char *name, uint64_t other);
bool prove_flag(const json_t *object, const char *name);

#endif
