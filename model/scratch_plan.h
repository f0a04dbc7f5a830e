/* SPDX-License-Identifier: MIT */
/* The scratch memory of a model, laid out once at open: named pieces (rows) of one device allocation.
 *
 * Law: rows that are never in use at the same time may overlap (scratch_plan_rewind); all others are
 * disjoint. Offsets are multiples of 256. n_bytes is the highest end of any row. A plan that
 * overflowed, in bytes or in rows, stays refused. */
#ifndef WEFT_MODEL_SCRATCH_PLAN_H
#define WEFT_MODEL_SCRATCH_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

enum { SCRATCH_PLAN_ROWS_MAX = 48 };

typedef struct scratch_plan_row {
  const char *name;
  uint64_t offset, n_bytes;
} scratch_plan_row;

typedef struct scratch_plan {
  scratch_plan_row row[SCRATCH_PLAN_ROWS_MAX];
  uint32_t n_rows;
  uint64_t at;      /* where the next row starts */
  uint64_t n_bytes; /* in all */
  bool refused;
} scratch_plan;

/* Adds a row of n * size bytes and returns its offset. name must outlive the plan. */
uint64_t scratch_plan_add(scratch_plan *plan, const char *name, uint64_t n, uint64_t size);
/* Lets the next row start at `at`, a value that plan->at had, so that it overlaps the rows added since then. */
void scratch_plan_rewind(scratch_plan *plan, uint64_t at);

#endif
