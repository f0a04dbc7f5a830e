/* SPDX-License-Identifier: MIT */
/* move: to[to_at[r]] = from[from_at[r]]. The cpu backend uses this function too. */
#include "kernels/ref/ref.h"

weft_status ref_move(weft_device *device, const weft_move_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    int32_t from = args->from_at[r], to = args->to_at == NULL ? (int32_t)r : args->to_at[r];
    if (from >= 0 && to >= 0) args->to[to] = args->from[from];
  }
  return WEFT_OK;
}
