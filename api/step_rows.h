/* SPDX-License-Identifier: MIT */
/* How many rows one step holds.
 *
 * Law: a number that was given always holds. Else it follows from the kind of device and from how many requests may
 * run. A device with memory of its own reads its weights once a step however many rows share them, so it gets large
 * steps (docs/performance.md, rows of a step): room for eight rows of each request that may run, so that prompts find
 * some beside all rows that decode, from STEP_ROWS_CARD up to STEP_ROWS_CARD_MAX. A processor is bound by its products at
 * some hundred rows already, so there smaller steps cost little and answer sooner. */
#ifndef WEFT_API_STEP_ROWS_H
#define WEFT_API_STEP_ROWS_H

#include "kernels/device.h"

enum { STEP_ROWS_HOST = 512, STEP_ROWS_CARD = 2048, STEP_ROWS_CARD_MAX = 4096, STEP_ROWS_OF_REQUEST = 8 };

/* asked: 0 leaves the choice here. running: requests at once, at most. */
static inline uint32_t step_rows_choose(uint32_t asked, const weft_device_info *device, uint32_t running) {
  uint32_t rows = STEP_ROWS_CARD;
  if (asked > 0) return asked;
  if (device->host_memory) return STEP_ROWS_HOST;
  while (rows < STEP_ROWS_CARD_MAX && 2 * rows <= (uint64_t)STEP_ROWS_OF_REQUEST * running) rows *= 2;
  return rows;
}

#endif
