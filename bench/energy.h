/* SPDX-License-Identifier: MIT */
/* What the machine's first NVIDIA GPU has taken, by its own counter, which NVML reads; it is loaded when it is
 * asked for. The counter moves every 100 ms or so: measure for a second or more. */
#ifndef WEFT_BENCH_ENERGY_H
#define WEFT_BENCH_ENERGY_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct energy_meter {
  void *gpu; /* NULL: there is none */
  int (*total)(void *gpu, unsigned long long *millijoules);
  int (*clock)(void *gpu, int kind, unsigned *mhz);
} energy_meter;

static inline energy_meter energy_open(void) {
  energy_meter meter = {NULL, NULL, NULL};
  void *module = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *gpu = NULL;
  int (*init)(void) = NULL, (*find)(unsigned, void **) = NULL;
  if (module == NULL) return meter;
  *(void **)&init = dlsym(module, "nvmlInit_v2");
  *(void **)&find = dlsym(module, "nvmlDeviceGetHandleByIndex_v2");
  *(void **)&meter.total = dlsym(module, "nvmlDeviceGetTotalEnergyConsumption");
  *(void **)&meter.clock = dlsym(module, "nvmlDeviceGetClockInfo");
  if (init == NULL || find == NULL || meter.total == NULL || meter.clock == NULL) return meter;
  if (init() == 0 && find(0, &gpu) == 0) meter.gpu = gpu;
  return meter;
}

static inline double energy_joules(const energy_meter *meter) {
  unsigned long long millijoules = 0;
  if (meter->total(meter->gpu, &millijoules) != 0) return 0.0;
  return (double)millijoules * 1e-3;
}

/* Of the multiprocessors, now. */
static inline unsigned energy_mhz(const energy_meter *meter) {
  unsigned mhz = 0;
  (void)meter->clock(meter->gpu, 1, &mhz);
  return mhz;
}

#endif
