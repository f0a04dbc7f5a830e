/* SPDX-License-Identifier: MIT */
/* How many rows one step holds.
 *
 * Law: a number that was given always holds. Else it follows from the kind of device alone. A device with memory of
 * its own reads its weights once a step however many rows share them, so it gets large steps (docs/performance.md, rows
 * of a step). A processor is bound by its products at some hundred rows already, so there smaller steps cost little
 * and answer sooner. */
#ifndef WEFT_API_STEP_ROWS_H
#define WEFT_API_STEP_ROWS_H

#include "kernels/device.h"

enum { STEP_ROWS_HOST = 512, STEP_ROWS_CARD = 2048 };

/* asked: 0 leaves the choice here. */
static inline uint32_t step_rows_choose(uint32_t asked, const weft_device_info *device) {
  if (asked > 0) return asked;
  return device->host_memory ? STEP_ROWS_HOST : STEP_ROWS_CARD;
}

#endif
