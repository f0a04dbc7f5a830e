/* SPDX-License-Identifier: MIT */
/* Cost: the predicted device time of rows, in units of one row over a short prefix.
 *
 * Law: a cost depends only on the segment, is never less than its rows, and is what fair share
 * charges: a canvas pays for its rows at every step, a cached token is never a row and so is free.
 */
#ifndef WEFT_SCHEDULER_COST_H
#define WEFT_SCHEDULER_COST_H

#include <stdint.h>

/* n_rows new rows that attend over kv_len keys. */
uint64_t weft_cost_of_segment(uint32_t n_rows, uint32_t kv_len);

#endif
