/* SPDX-License-Identifier: MIT */
/* A list of kernel sets with a ; between them, each of which holds the card to a family or to another choice of its
 * tiles (kernels/cuda/portable/tiles.h): "portable@86;portable@86,down=1". */
#ifndef WEFT_BENCH_HELD_SETS_H
#define WEFT_BENCH_HELD_SETS_H

#include <string.h>

#include "kernels/device.h"

enum { HELD_SET_BYTES = 128 };

/* Takes the first set off a list; NULL: there is none. */
static inline const char *held_sets_take(const char **list, char set[HELD_SET_BYTES]) {
  if (*list == NULL) return NULL;
  size_t n = strcspn(*list, ";"), kept = n < HELD_SET_BYTES ? n : HELD_SET_BYTES - 1;
  memcpy(set, *list, kept);
  set[kept] = 0;
  *list = (*list)[n] == ';' ? *list + n + 1 : NULL;
  return set;
}

/* All devices of a process are held to what was named last. */
static inline weft_status held_sets_hold(weft_device_config config, const char *set, weft_error *error) {
  weft_device *device = NULL;
  config.isa = set;
  weft_status status = weft_device_open(&config, &device, error);
  if (status == WEFT_OK) weft_device_close(device);
  return status;
}

#endif
