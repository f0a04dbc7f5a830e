/* SPDX-License-Identifier: MIT */
/* What cards keep of weights as integers. */
#ifndef WEFT_TESTS_CARD_INTEGERS_H
#define WEFT_TESTS_CARD_INTEGERS_H

#include "api/runtime.h"
#include "model/split_plan.h"

/* Hopper's kernel set multiplies integers of weights. */
static inline bool has_integers(void) {
  const weft_device_config config = {.backend = "cuda", .products = 8};
  weft_device *device;
  if (weft_device_open(&config, &device, NULL) != WEFT_OK) return false;
  bool can = weft_device_keep_integers(device, true);
  weft_device_close(device);
  return can;
}

/* Bytes that a runtime's weights take of a card without integers, but for those that are there in any case, and of the
 * others. The runtime is of no use then. */
static inline void count_integers(weft_runtime *rt, uint64_t *n_codes, uint64_t *n_integers) {
  uint64_t n_file, n_kept;
  weft_device *device = rt->devices.device[0];
  weft_split_weights(rt->model[0].gguf, device, &n_file, n_integers);
  (void)weft_device_keep_integers(device, false);
  weft_split_weights(rt->model[0].gguf, device, &n_file, &n_kept);
  *n_integers -= n_kept;
  *n_codes = devices_weights(&rt->devices).n_bytes - *n_integers;
}

#endif
