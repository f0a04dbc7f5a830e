/* SPDX-License-Identifier: MIT */
#include "scheduler/cost.h"

/* So many keys cost as much as the rest of a row. Gemma 4 26B: about 6.2 GFLOP per row without
 * attention, and 0.16 MFLOP per key in its five global layers (16 heads of 512, scores and sums):
 * 38 000, as a power of two. */
enum { KEYS_PER_ROW = 32768 };

uint64_t weft_cost_of_segment(uint32_t n_rows, uint32_t kv_len) {
  return n_rows + (uint64_t)n_rows * kv_len / KEYS_PER_ROW;
}
