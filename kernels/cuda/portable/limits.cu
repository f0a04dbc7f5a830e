/* SPDX-License-Identifier: MIT */
/* What the portable set asks a card for when it is opened.
 *
 * Early starts. Hopper's kernels may start before the kernel before them has ended (cuda_start); those of the portable
 * set where the code that the card got was made for 9.0 and later, since the instructions by which a kernel waits
 * (common.cuh) are not known before.
 *
 * Shared memory. A kernel gets more than 48 KiB of it only if it was asked for. Hopper's kernels are asked for at open
 * (cuda_set.setup), those of the portable set before a launch (cuda_allow_shared), so that a driver which compiles PTX
 * compiles what runs alone. */
#include "kernels/cuda/portable/limits.h"
#include "kernels/cuda/cuda.h"

static uint64_t cards_of_early_starts; /* a bit for each card */

static __global__ void any_kernel(void) {}

static void find_early_starts(const cuda_device *d) {
  cudaFuncAttributes facts = {};
  bool early = cudaFuncGetAttributes(&facts, any_kernel) == cudaSuccess && facts.ptxVersion >= 90;
  (void)cudaGetLastError();
  if (early) (void)__atomic_fetch_or(&cards_of_early_starts, 1ull << d->card, __ATOMIC_RELAXED);
}

enum { STATIC_BYTES = 3 << 10 /* of a kernel of few rows, at most */ };

static uint32_t least_shared_bytes = UINT32_MAX;

static uint32_t usable_of(uint32_t shared_bytes) {
  return (shared_bytes < PORTABLE_SHARED_BYTES_MOST ? PORTABLE_SHARED_BYTES_MOST : shared_bytes) - STATIC_BYTES;
}

static void find_shared_bytes(const cuda_device *d) {
  int most = 0;
  if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->card) != cudaSuccess) most = 0;
  (void)cudaGetLastError();
  uint32_t own = usable_of((uint32_t)most), now = __atomic_load_n(&least_shared_bytes, __ATOMIC_RELAXED);
  bool done = own >= now;
  while (!done) {
    done = __atomic_compare_exchange_n(&least_shared_bytes, &now, own, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    done = done || own >= now;
  }
}

uint32_t cuda_shared_bytes(void) {
  uint32_t bytes = __atomic_load_n(&least_shared_bytes, __ATOMIC_RELAXED);
  return bytes == UINT32_MAX ? usable_of(0) : bytes;
}

uint32_t cuda_starts_early(const cuda_device *device) {
  return __atomic_load_n(&cards_of_early_starts, __ATOMIC_RELAXED) >> device->card & 1u;
}

void cuda_find_limits(const cuda_device *d) {
  find_early_starts(d);
  find_shared_bytes(d);
}
