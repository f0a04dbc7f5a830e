/* SPDX-License-Identifier: MIT */
/* Host memory in which weights of models that left stay (--sleep-mib), so that these come back without their files. For
 * residents.c and resident_load.c only.
 *
 * Law. On a card it is pinned once, at the start, in blocks of one size: each is free, or has a part of one model's
 * memory. A model that rests keeps its addresses, objects and pinned buffers, and gives back device memory alone; when
 * it rises, memory is mapped there again and has the same bytes, so its answers are the same. Bytes cross by
 * the stream of loads, block by block, at their pace (resident_load.h): no step waits, nothing is allocated or freed.
 * Where the processor computes, weights stay where they are, and are counted here and no longer as loaded. All that
 * rests takes at most the bytes that open was told.
 *
 * Threads: open and close at the start and the end, the rest on the thread that loads; bytes: any. */
#ifndef WEFT_API_RESIDENT_SLEEP_H
#define WEFT_API_RESIDENT_SLEEP_H

#include "kernels/holding.h"

enum { RESIDENT_BLOCK_BYTES = 2 << 20 };

typedef struct resident_beds {
  weft_device *device; /* that places weights */
  uint64_t most_bytes; /* a multiple of a block on a card */
  uint8_t *memory;     /* NULL where the processor computes, and without --sleep-mib */
  uint8_t *taken_by;   /* [most_bytes / RESIDENT_BLOCK_BYTES] number of the model + 1; 0: free */
  void (*pace)(void *self, uint64_t device_us);
  void *pace_self;
} resident_beds;

/* NO_MEMORY with a line where the host has not so much. The caller closes *out in any case. */
weft_status resident_beds_open(weft_device *device, uint64_t most_bytes, resident_beds *out, weft_error *error);
void resident_beds_close(resident_beds *beds);
/* What a model with this memory takes here. holding: as of one that is loaded; where it never was, what it may take. */
uint64_t resident_bed_bytes(const resident_beds *beds, const weft_holding *holding, uint64_t need_bytes);
/* The caller has seen to it that there is room. An error leaves all as it was. */
weft_status resident_rest(resident_beds *beds, uint32_t model, weft_holding *holding);
/* Its blocks are free afterwards. An error leaves all as it was. */
weft_status resident_rise(resident_beds *beds, uint32_t model, weft_holding *holding);
void resident_drop(resident_beds *beds, uint32_t model);

#endif
