/* SPDX-License-Identifier: MIT */
/* The table of tiles by family of cards, and what the portable set asks a card for when it is opened.
 *
 * Early starts. Hopper's kernels may start before the kernel before them has ended (cuda_start); those of the portable
 * set where the code that the card got was made for 9.0 and later, since the instructions by which a kernel waits
 * (common.cuh) are not known before.
 *
 * Shared memory. A kernel gets more than 48 KiB of it only if it was asked for. Hopper's kernels are asked for at open
 * (cuda_set.setup), those of the portable set before a launch (cuda_allow_shared), so that a driver which compiles PTX
 * compiles what runs alone. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/portable/tiles.h"
#include "kernels/cuda/cuda.h"

/* The least family first. Sizes: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", where a
 * multiprocessor has 65536 registers everywhere, 255 of a thread at most; a family of several capabilities has the
 * least of each (blocks: 8.6 has 16, 8.9 and 12.0 have 24). Capabilities that family_of does not name get the first
 * row. Choices: bench/results/h200-portable-tiles.json. */
static const card_family families[] = {
    /*        KiB of a block, of all; threads, blocks; early; ring; down, experts; wide, narrow, thin, split; decode */
    {"86", 86, 99 << 10, 100 << 10, 1536, 16, false, {1, 1, 1}, 2, 4, {2, 4, 4, 1}, 2},
    {"120", 120, 99 << 10, 100 << 10, 1536, 24, true, {1, 1, 1}, 2, 4, {2, 4, 4, 1}, 2},
    {"80", 80, 163 << 10, 164 << 10, 2048, 32, false, {2, 2, 2}, 2, 4, {2, 4, 6, 1}, 2},
    {"90", 90, 227 << 10, 228 << 10, 2048, 32, true, {2, 2, 2}, 2, 4, {2, 4, 6, 2}, 2},
};
enum { FAMILIES = sizeof families / sizeof *families };

static uint32_t family_of(uint32_t capability) {
  switch (capability) {
    case 80:
      return 2;
    case 90:
    case 100:
    case 103:
      return 3;
    case 120:
    case 121:
      return 1;
    default:
      return 0;
  }
}

static uint32_t least_family = FAMILIES; /* of the cards that were opened; FAMILIES: none was */
static card_family held;                 /* name NULL: cards are held to none */

const card_family *cuda_family(void) {
  if (held.name != NULL) return &held;
  uint32_t least = __atomic_load_n(&least_family, __ATOMIC_RELAXED);
  return &families[least == FAMILIES ? 0 : least];
}

uint32_t cuda_shared_bytes_of(uint32_t n, uint32_t n_static) {
  const card_family *f = cuda_family();
  uint32_t own = f->all_bytes / n - PORTABLE_BLOCK_BYTES;
  return (own < f->block_bytes ? own : f->block_bytes) / 16 * 16 - n_static;
}

uint32_t cuda_blocks_in(uint32_t n_bytes, uint32_t n_static) {
  return cuda_family()->all_bytes / (n_bytes + n_static + PORTABLE_BLOCK_BYTES);
}

/* ---- early starts ---------------------------------------------------------------------------------------- */

static uint64_t cards_of_early_starts; /* a bit for each card */

static __global__ void any_kernel(void) {}

static void find_early_starts(const cuda_device *d) {
  cudaFuncAttributes facts = {};
  bool early = cudaFuncGetAttributes(&facts, any_kernel) == cudaSuccess && facts.ptxVersion >= 90;
  (void)cudaGetLastError();
  if (early) (void)__atomic_fetch_or(&cards_of_early_starts, 1ull << d->card, __ATOMIC_RELAXED);
}

uint32_t cuda_starts_early(const cuda_device *device) {
  if (!cuda_family()->early) return 0;
  return __atomic_load_n(&cards_of_early_starts, __ATOMIC_RELAXED) >> device->card & 1u;
}

/* ---- a card that is held to a family --------------------------------------------------------------------- */

/* Shared memory of a kernel beside what it is launched with; what the card takes of each block may be counted in. */
static uint32_t static_bytes_of(const void *kernel) {
  cudaFuncAttributes facts = {}, none = {};
  if (cudaFuncGetAttributes(&facts, kernel) != cudaSuccess || cudaFuncGetAttributes(&none, any_kernel) != cudaSuccess)
    return 0;
  return (uint32_t)(facts.sharedSizeBytes - none.sharedSizeBytes);
}

/* Blocks of a launch that share a multiprocessor of the family, but for the registers, which every card has as many of;
 * and of the card. */
static uint32_t blocks_there(const card_family *f, uint32_t n_threads, uint32_t n_bytes) {
  uint32_t n = f->all_bytes / (n_bytes + PORTABLE_BLOCK_BYTES), by_threads = f->n_threads / n_threads;
  if (n > by_threads) n = by_threads;
  return n < f->n_blocks ? n : f->n_blocks;
}

static uint32_t blocks_here(const void *kernel, uint32_t n_threads, uint32_t n_bytes) {
  int n = 0;
  uint32_t most = n_bytes > CUDA_SHARED_BYTES_UNASKED ? n_bytes : (uint32_t)CUDA_SHARED_BYTES_UNASKED;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most);
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, (int)n_threads, n_bytes) != cudaSuccess) n = 0;
  (void)cudaGetLastError();
  return (uint32_t)n;
}

/* The driver is asked once for a launch, since it takes as long as a short kernel. */
uint64_t cuda_held_bytes(const void *kernel, uint32_t n_threads, uint64_t shared_bytes) {
  static thread_local struct {
    const void *kernel;
    uint32_t n_threads, n_bytes, capability, held_bytes;
  } known[256];
  if (held.name == NULL) return shared_bytes;
  uint32_t n_bytes = (uint32_t)shared_bytes, static_bytes = 0, n = 0;
  auto *at = &known[((uintptr_t)kernel / 16 + n_threads + n_bytes / 16 * 31 + held.capability) % 256];
  if (at->kernel == kernel && at->n_threads == n_threads && at->n_bytes == n_bytes && at->capability == held.capability)
    return at->held_bytes;
  static_bytes = static_bytes_of(kernel);
  n = blocks_there(&held, n_threads, static_bytes + n_bytes);
  uint32_t more = n_bytes;
  while (n > 0 && blocks_here(kernel, n_threads, more) > n) more += 1024;
  *at = {kernel, n_threads, n_bytes, held.capability, more};
  return more;
}

/* Changes a choice of the row, as "down=1" says. */
static bool change_choice(card_family *f, const char *text) {
  static const struct {
    const char *name;
    size_t at;
  } choices[] = {
      {"dense", offsetof(card_family, ring[RING_DENSE])}, {"gate-up", offsetof(card_family, ring[RING_GATE_UP])},
      {"tiles", offsetof(card_family, ring[RING_TILES])}, {"down", offsetof(card_family, down)},
      {"experts", offsetof(card_family, experts)},        {"decode", offsetof(card_family, decode)},
      {"wide", offsetof(card_family, tile[TILE_WIDE])},   {"narrow", offsetof(card_family, tile[TILE_NARROW])},
      {"thin", offsetof(card_family, tile[TILE_THIN])},   {"split", offsetof(card_family, tile[TILE_SPLIT])}};
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
    size_t n = strlen(choices[i].name);
    if (strncmp(text, choices[i].name, n) != 0 || text[n] != '=') continue;
    uint32_t to = (uint32_t)strtoul(text + n + 1, NULL, 10);
    if (to == 0 || to > 8) return false;
    memcpy((char *)f + choices[i].at, &to, sizeof to);
    return true;
  }
  return false;
}

/* Holds cards to a family, as "86" or "86,down=1" says. */
static bool hold_family(const char *text) {
  size_t n = strcspn(text, ",");
  for (uint32_t i = 0; i < FAMILIES; i++) {
    if (strlen(families[i].name) != n || strncmp(families[i].name, text, n) != 0) continue;
    card_family f = families[i];
    for (text += n; *text == ','; text += strcspn(text, ","))
      if (!change_choice(&f, ++text)) return false;
    held = f;
    return true;
  }
  return false;
}

weft_status cuda_find_family(const cuda_device *d, uint32_t capability, const char *set, weft_error *error) {
  const char *named = set == NULL ? NULL : strchr(set, '@');
  uint32_t own = family_of(capability), now = __atomic_load_n(&least_family, __ATOMIC_RELAXED);
  while (own < now &&
         !__atomic_compare_exchange_n(&least_family, &now, own, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  find_early_starts(d);
  if (named == NULL || hold_family(named + 1)) return WEFT_OK;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "backend 'cuda': kernel set 'portable' has no family '%.64s'; there is 80, 86, 90 and 120",
                   named + 1);
}
