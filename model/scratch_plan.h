/* SPDX-License-Identifier: MIT */
/* The scratch of a model, laid out once at open: named rows of bytes in one device allocation.
 *
 * Law: rows that are never alive together may overlap (rewind); every other pair is disjoint.
 * Offsets are multiples of 256. n_bytes is the highest end of any row. After an overflow the plan
 * stays refused. */
#ifndef WEFT_MODEL_SCRATCH_PLAN_H
#define WEFT_MODEL_SCRATCH_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

enum { SCRATCH_PLAN_ROWS_MAX = 40 };

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

/* n * size bytes; returns the offset. name must outlive the plan. */
uint64_t scratch_plan_add(scratch_plan *plan, const char *name, uint64_t n, uint64_t size);
/* The next row starts at `at` again: it may overlap the rows added since then. */
void scratch_plan_rewind(scratch_plan *plan, uint64_t at);

#endif
