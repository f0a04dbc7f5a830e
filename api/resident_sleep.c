/* SPDX-License-Identifier: MIT */
#include "api/resident_sleep.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/round.h"

static uint64_t n_blocks(const resident_beds *beds) {
  return beds->most_bytes / RESIDENT_BLOCK_BYTES;
}

weft_status resident_beds_open(weft_device *device, uint64_t most_bytes, resident_beds *out, weft_error *error) {
  void *memory = NULL;
  *out = (resident_beds){.device = device, .most_bytes = most_bytes};
  if (most_bytes == 0 || weft_device_get_info(device)->host_memory) return WEFT_OK;
  out->most_bytes -= most_bytes % RESIDENT_BLOCK_BYTES;
  out->taken_by = weft_alloc(n_blocks(out), 1);
  weft_status status = out->taken_by == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
  if (status == WEFT_OK) status = weft_device_alloc_host(device, out->most_bytes, &memory);
  out->memory = memory;
  if (status == WEFT_OK) return status;
  return weft_fail(error, status, "--sleep-mib: there is no room for %.1f MiB of pinned host memory",
                   (double)out->most_bytes / 1048576.0);
}

void resident_beds_close(resident_beds *beds) {
  if (beds->memory != NULL) weft_device_free_host(beds->device, beds->memory);
  weft_free(beds->taken_by);
  *beds = (resident_beds){.most_bytes = 0};
}

uint64_t resident_bed_bytes(const resident_beds *beds, const weft_holding *holding, uint64_t need_bytes) {
  uint64_t n_bytes = holding->at > 0 ? holding->at : need_bytes;
  return beds->memory == NULL ? need_bytes : weft_round_up(n_bytes, RESIDENT_BLOCK_BYTES);
}

/* Copies block by block, to the host or back, each before the next one is begun. */
static weft_status move_block(resident_beds *beds, void *to, const void *from, uint64_t n_bytes) {
  uint64_t start = weft_clock_us();
  weft_status status = weft_device_copy(beds->device, to, from, n_bytes);
  if (status == WEFT_OK) status = weft_device_sync(beds->device);
  if (status == WEFT_OK && beds->pace != NULL) beds->pace(beds->pace_self, weft_clock_us() - start);
  return status;
}

static uint64_t part_bytes(const weft_holding *holding, uint64_t at) {
  return holding->at - at < RESIDENT_BLOCK_BYTES ? holding->at - at : RESIDENT_BLOCK_BYTES;
}

/* The next block of an owner from *block on; 0 is nobody. */
static uint8_t *find_block(const resident_beds *beds, uint8_t owner, uint64_t *block) {
  while (*block < n_blocks(beds) && beds->taken_by[*block] != owner) *block += 1;
  WEFT_CHECK(*block < n_blocks(beds));
  return beds->memory + *block * RESIDENT_BLOCK_BYTES;
}

weft_status resident_rest(resident_beds *beds, uint32_t model, weft_holding *holding) {
  weft_status status = WEFT_OK;
  uint64_t block = 0;
  if (beds->memory == NULL) return WEFT_OK;
  for (uint64_t at = 0; at < holding->at && status == WEFT_OK; at += RESIDENT_BLOCK_BYTES) {
    uint8_t *to = find_block(beds, 0, &block);
    beds->taken_by[block] = (uint8_t)(model + 1);
    status = move_block(beds, to, (uint8_t *)holding->stretch.base + at, part_bytes(holding, at));
  }
  if (status == WEFT_OK)
    weft_holding_rest(holding);
  else
    resident_drop(beds, model);
  return status;
}

weft_status resident_rise(resident_beds *beds, uint32_t model, weft_holding *holding) {
  uint64_t block = 0;
  if (beds->memory == NULL) return WEFT_OK;
  weft_status status = weft_holding_rise(holding);
  bool has_memory = status == WEFT_OK;
  for (uint64_t at = 0; at < holding->at && status == WEFT_OK; at += RESIDENT_BLOCK_BYTES, block += 1) {
    const uint8_t *from = find_block(beds, (uint8_t)(model + 1), &block);
    status = move_block(beds, (uint8_t *)holding->stretch.base + at, from, part_bytes(holding, at));
  }
  if (status == WEFT_OK)
    resident_drop(beds, model);
  else if (has_memory)
    weft_holding_rest(holding);
  return status;
}

void resident_drop(resident_beds *beds, uint32_t model) {
  for (uint64_t block = 0; beds->memory != NULL && block < n_blocks(beds); block++)
    if (beds->taken_by[block] == model + 1) beds->taken_by[block] = 0;
}
