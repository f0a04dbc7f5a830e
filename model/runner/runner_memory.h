/* SPDX-License-Identifier: MIT */
/* The memory of a runner that devices reach, and where it lies when its device is full.
 *
 * Law. Each buffer has a home: the device whose ops use it. Where the home has no room for it, it goes to the first
 * device of the split, if ops of the home, and of the shards beside it, reach that one's memory; and where that has no room either, to host memory
 * that all devices reach. Answers have the same bits; steps are slower, and runner_memory_tell says so. What one device
 * sends to another lies at its home on both sides; from or to any other place the sender copies, in the same order
 * (runner_memory_is_sent). A device error is no lack of room. On ref and cpu only a bound (memory_bytes_max) leads to
 * other places: without one a refusal is the host's. Where the model's limits name a placer, it takes and frees all of
 * this, and a refusal is final. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_MEMORY_H
#define WEFT_MODEL_RUNNER_RUNNER_MEMORY_H

#include "model/split.h"

typedef struct runner_piece {
  void *memory;
  uint64_t n_bytes;
  weft_device *from; /* the device that gave it */
  bool in_host;
} runner_piece;

typedef struct runner_memory {
  const weft_split *split;
  weft_device *placer; /* NULL: each device takes its own */
  uint64_t n_pinned;   /* bytes of host memory that devices reach, in pieces as a holding cuts them */
  bool counts;         /* nothing is taken */
  runner_piece *piece;
  uint32_t n_pieces, pieces_max;
  uint64_t n_bytes_first, n_bytes_host; /* of buffers that found no room at home */
  uint64_t asked[WEFT_DEVICES_MAX];     /* of each device as home */
  uint64_t left[WEFT_DEVICES_MAX];      /* of its memory before the first buffer */
} runner_memory;

void runner_memory_open(runner_memory *memory, const weft_split *split, weft_device *placer);
/* Frees all of it. */
void runner_memory_close(runner_memory *memory);
/* NULL: *status says why, or was not OK before. home: the first or the last device of the split. */
void *runner_memory_take(runner_memory *memory, weft_device *home, uint64_t n_bytes, weft_status *status);
/* Host memory that the devices reach; home as above. Freed by unpin; of NULL too. */
void *runner_memory_pin(runner_memory *memory, weft_device *home, uint64_t n_bytes, weft_status *status);
void runner_memory_unpin(const runner_memory *memory, weft_device *home, void *pinned);
/* Whether weft_device_send takes a piece of a buffer of the last device to one of the first: both lie at home. */
bool runner_memory_is_sent(const runner_memory *memory, const void *to, const void *from);
/* One line of the log, if something does not lie at home. soft: where soft embeddings are made; NULL: nowhere. */
void runner_memory_tell(const runner_memory *memory, const char *name, const void *soft);

#endif
