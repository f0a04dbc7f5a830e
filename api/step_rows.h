/* SPDX-License-Identifier: MIT */
/* How many rows one step holds.
 *
 * Law: a number that was given always holds. Else it follows from the kind of device and from how many requests may
 * run. A device with memory of its own reads its weights once a step however many rows share them, so it gets large
 * steps (docs/performance.md, rows of a step), and larger ones where many requests may run, so that prompts find room
 * beside the rows that decode. A processor is bound by its products at some hundred rows already, so there smaller
 * steps cost little and answer sooner. */
#ifndef WEFT_API_STEP_ROWS_H
#define WEFT_API_STEP_ROWS_H

#include "kernels/device.h"

enum { STEP_ROWS_HOST = 512, STEP_ROWS_CARD = 2048, STEP_ROWS_CARD_MANY = 4096, STEP_ROWS_MANY = 512 /* requests */ };

/* asked: 0 leaves the choice here. running: requests at once, at most. */
static inline uint32_t step_rows_choose(uint32_t asked, const weft_device_info *device, uint32_t running) {
  if (asked > 0) return asked;
  if (device->host_memory) return STEP_ROWS_HOST;
  return running < STEP_ROWS_MANY ? STEP_ROWS_CARD : STEP_ROWS_CARD_MANY;
}

#endif
