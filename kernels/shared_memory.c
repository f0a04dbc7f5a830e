/* SPDX-License-Identifier: MIT */
#include "kernels/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

enum { PIECE_ALIGN = 256 };

static const int all_seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

weft_status shared_memory_open(shared_memory *m, uint64_t n_bytes_max, weft_error *error) {
  *m = (shared_memory){.fd = memfd_create("weft-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING), .n_reserved = n_bytes_max};
  if (m->fd < 0) return weft_fail(error, WEFT_E_UNSUPPORTED, "memory to share (memfd): %s", strerror(errno));
  void *base = MAP_FAILED;
  if (n_bytes_max <= INT64_MAX && ftruncate(m->fd, (off_t)n_bytes_max) == 0)
    base = mmap(NULL, (size_t)n_bytes_max, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->fd, 0);
  if (base != MAP_FAILED) {
    m->base = base;
    return WEFT_OK;
  }
  int fault = errno;
  shared_memory_close(m);
  return weft_fail(error, WEFT_E_NO_MEMORY, "memory to share, up to %" PRIu64 " MiB: %s", n_bytes_max >> 20,
                   strerror(fault));
}

/* Pages are taken here, where a refusal is an error, and not at the first write, where it would be a signal. */
void *shared_memory_take(shared_memory *m, uint64_t n_bytes) {
  uint64_t at = (m->n_used + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
  if (m->base == NULL || n_bytes == 0 || at > m->n_reserved || n_bytes > m->n_reserved - at) return NULL;
  if (fallocate(m->fd, 0, (off_t)at, (off_t)n_bytes) != 0) return NULL;
  m->n_used = at + n_bytes;
  return m->base + at;
}

/* The seal of writing is refused while a mapping could be written to. */
weft_status shared_memory_seal(shared_memory *m, weft_error *error) {
  if (m->base == NULL) return weft_fail(error, WEFT_E_INVALID, "memory to share is sealed already");
  (void)munmap(m->base, (size_t)m->n_reserved); /* the range is ours */
  m->base = NULL;
  bool good = ftruncate(m->fd, (off_t)m->n_used) == 0 && fcntl(m->fd, F_ADD_SEALS, all_seals) == 0;
  return good ? WEFT_OK : weft_fail(error, WEFT_E_IO, "sealing memory to share: %s", strerror(errno));
}

bool shared_memory_is_sealed(const shared_memory *m) {
  return m->base == NULL && fcntl(m->fd, F_GET_SEALS) == all_seals;
}

void shared_memory_close(shared_memory *m) {
  if (m->base != NULL) (void)munmap(m->base, (size_t)m->n_reserved); /* the range is ours */
  if (m->fd >= 0) (void)close(m->fd);                                /* a file in memory has nothing to write back */
  *m = (shared_memory){.fd = -1};
}

weft_status shared_memory_map(int fd, uint64_t n_bytes, const void **out, weft_error *error) {
  struct stat about;
  *out = NULL;
  if (fcntl(fd, F_GET_SEALS) != all_seals)
    return weft_fail(error, WEFT_E_FORMAT, "what was handed over is no sealed memory: it could still change");
  if (fstat(fd, &about) != 0 || (uint64_t)about.st_size != n_bytes || n_bytes == 0)
    return weft_fail(error, WEFT_E_FORMAT, "what was handed over has %lld bytes, and not %" PRIu64,
                     (long long)about.st_size, n_bytes);
  void *memory = mmap(NULL, (size_t)n_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return weft_fail(error, WEFT_E_NO_MEMORY, "mapping %" PRIu64 " MiB of weights: %s", n_bytes >> 20, strerror(errno));
  weft_memory_prefer_huge(memory, (size_t)n_bytes);
  *out = memory;
  return WEFT_OK;
}

void shared_memory_unmap(const void *memory, uint64_t n_bytes) {
  if (memory != NULL) (void)munmap((void *)(uintptr_t)memory, (size_t)n_bytes); /* the range was mapped here */
}
