/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/portable/counters.h"

uint32_t counters_device(const cuda_device *d) {
  static const cuda_device *owner[COUNTED_DEVICES];
  for (uint32_t i = 0; i < COUNTED_DEVICES; i++) {
    const cuda_device *none = NULL;
    if (__atomic_load_n(&owner[i], __ATOMIC_ACQUIRE) == d ||
        __atomic_compare_exchange_n(&owner[i], &none, d, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      return i;
  }
  return COUNTED_DEVICES;
}
