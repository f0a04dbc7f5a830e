/* SPDX-License-Identifier: MIT */
/* Host memory that other processes map: a file in memory without a name (memfd).
 *
 * Law: one process fills it and seals it. From then on nobody can write to it, shorten or lengthen it, and it lives as
 * long as a process has a descriptor or a mapping of it. Only sealed memory is exported, and only sealed memory of the
 * very size that was told is mapped: memory that somebody could still shorten would end the process that reads it. */
#ifndef WEFT_KERNELS_SHARED_MEMORY_H
#define WEFT_KERNELS_SHARED_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct shared_memory {
  int fd;
  uint8_t *base; /* NULL once it is sealed */
  uint64_t n_reserved, n_used;
} shared_memory;

/* Reserves addresses for at most n_bytes_max; takes no memory yet. Errors, each with a line: NO_MEMORY, UNSUPPORTED. */
weft_status shared_memory_open(shared_memory *memory, uint64_t n_bytes_max, weft_error *error);
/* The next n_bytes, zeroed, at a multiple of 256 bytes; NULL: there is no memory, or it is sealed. */
void *shared_memory_take(shared_memory *memory, uint64_t n_bytes);
weft_status shared_memory_seal(shared_memory *memory, weft_error *error);
bool shared_memory_is_sealed(const shared_memory *memory);
void shared_memory_close(shared_memory *memory);

/* Maps sealed memory of n_bytes for reading. FORMAT: it is none; NO_MEMORY. */
weft_status shared_memory_map(int fd, uint64_t n_bytes, const void **out, weft_error *error);
void shared_memory_unmap(const void *memory, uint64_t n_bytes);

#endif
