/* SPDX-License-Identifier: MIT */
/* A device with a fault inside, for proofs that must fail.
 *
 * Law: but for the fault, which is the same in every step, the device computes what it did before. drops_key: no row
 * but the first one of a sequence sees the key of its position 0, in no layer that would show it, as if that row of
 * keys were lost. die_at: the process kills itself in the attention call of this number. */
#ifndef WEFT_BENCH_DOUBLES_DRIFT_H
#define WEFT_BENCH_DOUBLES_DRIFT_H

#include "kernels/device.h"

typedef struct weft_drift {
  bool drops_key;
  uint64_t die_at; /* 0: never */
} weft_drift;

/* One kind of device in a process, as many as there are of it. */
void weft_drift_device(const weft_drift *drift, weft_device *device);

#endif
