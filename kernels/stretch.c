/* SPDX-License-Identifier: MIT */
#include "kernels/stretch.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/round.h"
#include "kernels/device_internal.h"

enum { HUGE_PAGE = 2 << 20 };

static uint64_t host_grain(weft_device *device) {
  (void)device;
  long size = sysconf(_SC_PAGE_SIZE);
  return size > 0 ? (uint64_t)size : 0;
}

/* Addresses that begin at a huge page: what lies before and behind them is given back at once. */
static weft_status host_reserve(weft_device *device, uint64_t n_bytes, void **out) {
  size_t n = (size_t)n_bytes + HUGE_PAGE;
  (void)device;
  uint8_t *all = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = NULL;
  if (all == MAP_FAILED) return WEFT_E_NO_MEMORY;
  size_t skip = (HUGE_PAGE - (uintptr_t)all % HUGE_PAGE) % HUGE_PAGE;
  if (skip > 0) (void)munmap(all, skip);
  if (HUGE_PAGE - skip > 0) (void)munmap(all + skip + n_bytes, HUGE_PAGE - skip);
  *out = all + skip;
  return WEFT_OK;
}

static void host_release(weft_device *device, void *address, uint64_t n_bytes) {
  (void)device;
  (void)munmap(address, (size_t)n_bytes);
}

static weft_status host_map(weft_device *device, void *memory, uint64_t n_bytes) {
  if (!host_budget_take(device, n_bytes)) return WEFT_E_NO_MEMORY;
  if (mprotect(memory, (size_t)n_bytes, PROT_READ | PROT_WRITE) != 0) {
    host_budget_give(device, n_bytes);
    return WEFT_E_NO_MEMORY;
  }
  if (n_bytes >= HUGE_PAGE) weft_memory_prefer_huge(memory, (size_t)n_bytes);
  return WEFT_OK;
}

/* New addresses in the place of the old ones have no memory and cannot be touched. Where the system refuses even that,
 * the memory alone goes. */
static void host_unmap(weft_device *device, void *memory, uint64_t n_bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(memory, (size_t)n_bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
    (void)madvise(memory, (size_t)n_bytes, MADV_DONTNEED);
  host_budget_give(device, n_bytes);
}

const device_stretch_calls host_stretch_calls = {host_grain, host_reserve, host_release, host_map, host_unmap};

/* NULL: the device has none. */
static const device_stretch_calls *calls_of(weft_device *device) {
  device_enter(device);
  if (device->calls->stretch != NULL) return device->calls->stretch;
  return device->info.host_memory ? &host_stretch_calls : NULL;
}

weft_status weft_stretch_open(weft_device *device, uint64_t n_bytes_max, uint64_t piece_bytes, weft_stretch *out) {
  *out = (weft_stretch){.device = device};
  const device_stretch_calls *calls = calls_of(device);
  uint64_t grain = calls == NULL ? 0 : calls->grain(device);
  if (grain == 0) return WEFT_E_UNSUPPORTED;
  if (n_bytes_max == 0 || n_bytes_max > UINT64_MAX / 4 || piece_bytes > UINT64_MAX / 4) return WEFT_E_NO_MEMORY;
  out->piece_bytes = weft_round_up(piece_bytes == 0 ? 1 : piece_bytes, grain);
  out->n_bytes_max = weft_round_up(n_bytes_max, out->piece_bytes);
  return calls->reserve(device, out->n_bytes_max, &out->base);
}

/* A card's driver needs memory besides; a host's own bounds are asked for each piece. */
static bool has_room(weft_device *device, uint64_t n_bytes) {
  return device->info.host_memory || n_bytes <= weft_device_memory_left(device);
}

weft_status weft_stretch_resize(weft_stretch *stretch, uint64_t n_bytes) {
  uint64_t n = weft_round_up(n_bytes, stretch->piece_bytes), before = stretch->n_bytes;
  WEFT_CHECK(stretch->base != NULL && n <= stretch->n_bytes_max);
  weft_device *device = stretch->device;
  const device_stretch_calls *calls = calls_of(device);
  uint8_t *base = stretch->base;
  weft_status status = n > before && !has_room(device, n - before) ? WEFT_E_NO_MEMORY : WEFT_OK;
  for (; stretch->n_bytes < n && status == WEFT_OK; stretch->n_bytes += status == WEFT_OK ? stretch->piece_bytes : 0)
    status = calls->map(device, base + stretch->n_bytes, stretch->piece_bytes);
  uint64_t keep = status == WEFT_OK ? n : before;
  for (; stretch->n_bytes > keep; stretch->n_bytes -= stretch->piece_bytes)
    calls->unmap(device, base + stretch->n_bytes - stretch->piece_bytes, stretch->piece_bytes);
  return status;
}

void weft_stretch_close(weft_stretch *stretch) {
  if (stretch->base == NULL) return;
  (void)weft_stretch_resize(stretch, 0);
  calls_of(stretch->device)->release(stretch->device, stretch->base, stretch->n_bytes_max);
  stretch->base = NULL;
}
