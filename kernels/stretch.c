/* SPDX-License-Identifier: MIT */
#include "kernels/stretch.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/memory.h"
#include "kernels/device_internal.h"

static uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

enum { HUGE_PAGE = 2 << 20 };

static uint64_t find_grain(void) {
  long size = sysconf(_SC_PAGE_SIZE);
  return size > 0 ? (uint64_t)size : 0;
}

/* Addresses that begin at a huge page: what lies before and behind them is given back at once. */
static weft_status reserve_addresses(uint64_t n_bytes, void **out) {
  size_t n = (size_t)n_bytes + HUGE_PAGE;
  uint8_t *all = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = NULL;
  if (all == MAP_FAILED) return WEFT_E_NO_MEMORY;
  size_t skip = (HUGE_PAGE - (uintptr_t)all % HUGE_PAGE) % HUGE_PAGE;
  if (skip > 0) (void)munmap(all, skip);
  if (HUGE_PAGE - skip > 0) (void)munmap(all + skip + n_bytes, HUGE_PAGE - skip);
  *out = all + skip;
  return WEFT_OK;
}

static weft_status give_memory(weft_device *device, void *memory, uint64_t n_bytes) {
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
static void take_memory_back(weft_device *device, void *memory, uint64_t n_bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(memory, (size_t)n_bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
    (void)madvise(memory, (size_t)n_bytes, MADV_DONTNEED);
  host_budget_give(device, n_bytes);
}

weft_status weft_stretch_open(weft_device *device, uint64_t n_bytes_max, uint64_t piece_bytes, weft_stretch *out) {
  *out = (weft_stretch){.device = device};
  uint64_t grain = weft_device_get_info(device)->host_memory ? find_grain() : 0;
  if (grain == 0) return WEFT_E_UNSUPPORTED;
  if (n_bytes_max == 0 || n_bytes_max > UINT64_MAX / 4 || piece_bytes > UINT64_MAX / 4) return WEFT_E_NO_MEMORY;
  out->piece_bytes = round_up(piece_bytes == 0 ? 1 : piece_bytes, grain);
  out->n_bytes_max = round_up(n_bytes_max, out->piece_bytes);
  return reserve_addresses(out->n_bytes_max, &out->base);
}

weft_status weft_stretch_resize(weft_stretch *stretch, uint64_t n_bytes) {
  uint64_t n = round_up(n_bytes, stretch->piece_bytes), before = stretch->n_bytes;
  WEFT_CHECK(stretch->base != NULL && n <= stretch->n_bytes_max);
  weft_status status = WEFT_OK;
  for (; stretch->n_bytes < n && status == WEFT_OK; stretch->n_bytes += status == WEFT_OK ? stretch->piece_bytes : 0)
    status = give_memory(stretch->device, (uint8_t *)stretch->base + stretch->n_bytes, stretch->piece_bytes);
  uint64_t keep = status == WEFT_OK ? n : before;
  for (; stretch->n_bytes > keep; stretch->n_bytes -= stretch->piece_bytes)
    take_memory_back(stretch->device, (uint8_t *)stretch->base + stretch->n_bytes - stretch->piece_bytes,
                     stretch->piece_bytes);
  return status;
}

void weft_stretch_close(weft_stretch *stretch) {
  if (stretch->base == NULL) return;
  (void)weft_stretch_resize(stretch, 0);
  (void)munmap(stretch->base, (size_t)stretch->n_bytes_max);
  stretch->base = NULL;
}
