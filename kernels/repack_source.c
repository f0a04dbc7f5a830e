/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/threads.h"
#include "kernels/repack.h"

enum { THREADS_MAX = 16, BLOCKS_PER_THREAD = 4096 /* fewer are repacked in less time than a thread takes to start */ };

/* The blocks of a read that one thread repacks. */
typedef struct repack_part {
  const repack_source *self;
  const uint8_t *stored;
  uint8_t *held;
  uint64_t n_blocks;
  pthread_t thread;
} repack_part;

static void *repack_blocks(void *arg) {
  const repack_part *part = arg;
  const weft_type_info *stored = part->self->stored;
  weft_repack_row(stored->type, part->stored, part->held, part->n_blocks * stored->n_elements);
  return NULL;
}

/* Repacks n_blocks by several threads. Where a thread cannot be started, the caller does that thread's part. */
static void repack_all(const repack_source *self, const uint8_t *stored, uint8_t *held, uint64_t n_blocks) {
  repack_part parts[THREADS_MAX];
  long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
  uint64_t n = n_blocks / BLOCKS_PER_THREAD + 1, done = 0;
  if (n > THREADS_MAX) n = THREADS_MAX;
  if (n_cpus > 0 && n > (uint64_t)n_cpus) n = (uint64_t)n_cpus;
  const uint64_t held_bytes = weft_type_row_bytes(self->held->type, self->stored->n_elements);
  bool started[THREADS_MAX] = {false};
  for (uint64_t i = 0; i < n; i++) {
    uint64_t end = n_blocks * (i + 1) / n;
    parts[i] = (repack_part){self, stored + done * self->stored->n_bytes, held + done * held_bytes, end - done, 0};
    started[i] = i + 1 < n && weft_threads_start(&parts[i].thread, repack_blocks, &parts[i], NULL) == WEFT_OK;
    if (!started[i]) (void)repack_blocks(&parts[i]);
    done = end;
  }
  for (uint64_t i = 0; i < n; i++) {
    if (started[i]) (void)pthread_join(parts[i].thread, NULL);
  }
}

/* weft_weight_source.read for held bytes [at, at + n_bytes): repacks all blocks that have some of them. */
static weft_status read_repacked(void *arg, uint64_t at, uint64_t n_bytes, uint8_t *to, uint32_t *skip) {
  repack_source *self = arg;
  const uint64_t held_bytes = weft_type_row_bytes(self->held->type, self->stored->n_elements);
  uint64_t first = at / held_bytes, n_blocks = (at + n_bytes + held_bytes - 1) / held_bytes - first;
  uint64_t from = first * self->stored->n_bytes;
  *skip = (uint32_t)(at - first * held_bytes);
  if (self->buffer == NULL) {
    repack_all(self, (const uint8_t *)self->from.bytes + from, to, n_blocks);
    return WEFT_OK;
  }
  uint32_t inner_skip = 0;
  weft_status status =
      self->from.read(self->from.self, from, n_blocks * self->stored->n_bytes, self->buffer, &inner_skip);
  if (status == WEFT_OK) repack_all(self, self->buffer + inner_skip, to, n_blocks);
  return status;
}

/* Held blocks are at least as large as stored ones, so a buffer for the held bytes of a read has room for the stored
 * ones. */
weft_status repack_source_open(repack_source *self, weft_type stored, const weft_weight_source *from,
                               uint64_t read_bytes) {
  const weft_type_info *info = weft_type_find((int32_t)stored);
  *self = (repack_source){.from = *from, .stored = info, .held = weft_type_find((int32_t)info->held_as)};
  self->source = (weft_weight_source){.read = read_repacked, .self = self};
  if (from->read == NULL) return WEFT_OK;
  self->buffer = weft_alloc_aligned((size_t)read_bytes + WEFT_READ_ALIGN, WEFT_READ_ALIGN);
  return self->buffer == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
}

void repack_source_close(repack_source *self) {
  weft_free(self->buffer);
}
