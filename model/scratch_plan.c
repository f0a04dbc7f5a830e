/* SPDX-License-Identifier: MIT */
#include "model/scratch_plan.h"

#include <inttypes.h>

#include "base/check.h"

enum { ALIGN = 256 };

uint64_t scratch_plan_add(scratch_plan *plan, const char *name, uint64_t n, uint64_t size) {
  WEFT_CHECK(plan->n_rows < SCRATCH_PLAN_ROWS_MAX);
  uint64_t bytes, end;
  if (__builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(plan->at, bytes, &end) ||
      end > UINT64_MAX - ALIGN) {
    plan->refused = true;
    return 0;
  }
  uint64_t offset = plan->at;
  plan->row[plan->n_rows++] = (scratch_plan_row){name, offset, bytes};
  plan->at = (end + ALIGN - 1) / ALIGN * ALIGN;
  if (plan->at > plan->n_bytes) plan->n_bytes = plan->at;
  return offset;
}

void scratch_plan_rewind(scratch_plan *plan, uint64_t at) {
  WEFT_CHECK(at <= plan->at);
  plan->at = at;
}
