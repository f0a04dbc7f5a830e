/* SPDX-License-Identifier: MIT */
/* The pace at which weights are placed beside steps of requests, without a clock of its own. For resident_load.c only.
 *
 * Law. While requests run, a piece of weights that the device spent t on is followed by LOAD_PACE_TIMES t without one,
 * so that from the first piece on pieces take at most one in LOAD_PACE_TIMES + 1 of the device's time, give or take
 * what is owed: less than LOAD_PACE_LEAST_US, since a sleep is not shorter. Whether requests run is looked at every
 * LOAD_PACE_LOOK_US; so long at most is what begins to run beside a load at full speed. A step waits for no more than
 * the piece that is under way: where pieces are shorter than steps, no two steps end further apart than twice the
 * longest step. */
#ifndef WEFT_API_LOAD_PACE_H
#define WEFT_API_LOAD_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { LOAD_PACE_TIMES = 4, LOAD_PACE_LOOK_US = 2000, LOAD_PACE_LEAST_US = 200 };

/* Zero-initialise. */
typedef struct load_pace {
  uint64_t look_us, debt_us;
  bool others_run;
} load_pace;

/* Whether it is time to look whether requests run. */
static inline bool load_pace_looks(const load_pace *pace, uint64_t now_us) {
  return now_us - pace->look_us >= LOAD_PACE_LOOK_US;
}

static inline void load_pace_saw(load_pace *pace, uint64_t now_us, bool others_run) {
  pace->look_us = now_us;
  pace->others_run = others_run;
}

/* The device spent so long on a piece: how long to sleep now. */
static inline uint64_t load_pace_owes(load_pace *pace, uint64_t device_us) {
  pace->debt_us = pace->others_run ? pace->debt_us + LOAD_PACE_TIMES * device_us : 0;
  return pace->debt_us < LOAD_PACE_LEAST_US ? 0 : pace->debt_us;
}

/* What was slept longer than owed is not paid back. */
static inline void load_pace_slept(load_pace *pace, uint64_t us) {
  pace->debt_us = us < pace->debt_us ? pace->debt_us - us : 0;
}

#endif
