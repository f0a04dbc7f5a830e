/* SPDX-License-Identifier: MIT */
#include "model/gguf/gguf_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cpu/thread_pool.h"
#include "model/gguf/gguf_internal.h"

enum { READER_THREADS = 4, SLICE = 1 << 20, SAMPLES = 256 };

typedef struct reader_file {
  int plain, direct; /* -1: not open */
} reader_file;

struct gguf_reader {
  const weft_gguf *gguf;
  reader_file *file; /* [n_parts] */
  weft_thread_pool *pool;
  weft_error error;
  uint64_t opened_us, n_bytes, n_bytes_direct;
  /* the tensor, and the read that is on */
  uint32_t part;
  uint64_t tensor_at, tensor_bytes; /* in the file */
  bool is_direct;
  uint64_t first, end; /* of the read: a multiple of WEFT_READ_ALIGN, the byte after the last one */
  uint8_t *to;
  int why; /* errno of a slice that failed; -1: the file ended */
};

/* ---- opening ---- */

/* Most of the file lies in the page cache: copying from there beats the disk. */
static bool is_cached(const gguf_part *part) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n_pages = part->n_bytes / page;
  uint32_t n = n_pages < SAMPLES ? (uint32_t)n_pages : SAMPLES, n_cached = 0;
  for (uint32_t i = 0; i < n; i++) {
    unsigned char here = 0;
    void *at = (void *)(uintptr_t)(part->bytes + (i * n_pages / n + n_pages / (2 * n)) * page);
    if (mincore(at, page, &here) == 0) n_cached += here & 1u;
  }
  return 2 * n_cached > n;
}

static weft_status check_unchanged(const gguf_part *part, const struct stat *about, weft_error *error) {
  int64_t changed_ns = (int64_t)about->st_mtim.tv_sec * 1000000000 + about->st_mtim.tv_nsec;
  if ((uint64_t)about->st_size == part->n_bytes && changed_ns == part->changed_ns) return WEFT_OK;
  return weft_fail(error, WEFT_E_IO,
                   "%s: the file was changed while it was opened (it had %" PRIu64 " bytes and has %" PRIu64
                   "); open it again when it is complete",
                   part->path, part->n_bytes, (uint64_t)about->st_size);
}

static weft_status open_file(const gguf_part *part, bool direct, reader_file *file, weft_error *error) {
  struct stat about;
  file->plain = open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->plain < 0) return weft_fail(error, WEFT_E_IO, "%s: %s", part->path, strerror(errno));
  if (fstat(file->plain, &about) != 0 || (uint64_t)about.st_ino != part->inode ||
      (uint64_t)about.st_dev != part->device) {
    return weft_fail(error, WEFT_E_IO, "%s: the file was replaced while it was opened; open it again", part->path);
  }
  weft_status status = check_unchanged(part, &about, error);
  if (status != WEFT_OK || !direct || is_cached(part)) return status;
  char name[64]; /* the same file, whatever its name stands for by now */
  (void)snprintf(name, sizeof name, "/proc/self/fd/%d", file->plain);
  file->direct = open(name, O_RDONLY | O_CLOEXEC | O_DIRECT);
  return WEFT_OK;
}

weft_status gguf_reader_open(const weft_gguf *gguf, bool direct, gguf_reader **out, weft_error *error) {
  *out = NULL;
  if (!gguf->parts[0].mapped) return WEFT_OK;
  gguf_reader *r = weft_alloc(1, sizeof *r);
  if (r != NULL) r->file = weft_alloc(gguf->n_parts, sizeof *r->file);
  if (r == NULL || r->file == NULL) {
    weft_free(r);
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory to read it", weft_gguf_path(gguf));
  }
  r->gguf = gguf;
  r->opened_us = weft_clock_us();
  for (uint32_t i = 0; i < gguf->n_parts; i++) r->file[i] = (reader_file){-1, -1};
  uint32_t n_cores = weft_thread_pool_cores();
  weft_status status = weft_thread_pool_open(n_cores < READER_THREADS ? n_cores : READER_THREADS, &r->pool, error);
  for (uint32_t i = 0; i < gguf->n_parts && status == WEFT_OK; i++)
    status = open_file(&gguf->parts[i], direct, &r->file[i], error);
  if (status != WEFT_OK) {
    gguf_reader_close(r);
    return status;
  }
  *out = r;
  return WEFT_OK;
}

weft_status gguf_reader_check_unchanged(const gguf_reader *r, weft_error *error) {
  for (uint32_t i = 0; r != NULL && i < r->gguf->n_parts; i++) {
    const gguf_part *part = &r->gguf->parts[i];
    struct stat about;
    if (fstat(r->file[i].plain, &about) != 0) return weft_fail(error, WEFT_E_IO, "%s: %s", part->path, strerror(errno));
    weft_status status = check_unchanged(part, &about, error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

void gguf_reader_close(gguf_reader *r) {
  if (r == NULL) return;
  double seconds = (double)(weft_clock_us() - r->opened_us) * 1e-6;
  if (r->n_bytes > 0) {
    weft_log(WEFT_LOG_INFO, "%s: %.1f MiB of weights in %.2f s, %.2f GB/s, %.0f %% of it by direct reads",
             weft_gguf_path(r->gguf), (double)r->n_bytes / (1024.0 * 1024.0), seconds,
             (double)r->n_bytes * 1e-9 / seconds, 100.0 * (double)r->n_bytes_direct / (double)r->n_bytes);
  }
  for (uint32_t i = 0; i < r->gguf->n_parts; i++) {
    if (r->file[i].direct >= 0) (void)close(r->file[i].direct); /* nothing was written */
    if (r->file[i].plain >= 0) (void)close(r->file[i].plain);
  }
  if (r->pool != NULL) weft_thread_pool_close(r->pool);
  weft_free(r->file);
  weft_free(r);
}

/* ---- reading ---- */

/* Bytes [from, to) of the file, or more where reads must be whole blocks. */
static int read_range(const gguf_reader *r, uint64_t from, uint64_t to) {
  const reader_file *file = &r->file[r->part];
  uint64_t align = WEFT_READ_ALIGN, wanted = r->is_direct ? (to + align - 1) / align * align : to;
  while (from < to) {
    ssize_t n = pread(r->is_direct ? file->direct : file->plain, r->to + (from - r->first), wanted - from, (off_t)from);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0 || (r->is_direct && n % WEFT_READ_ALIGN != 0 && from + (uint64_t)n < to)) return -1;
    from += (uint64_t)n;
  }
  return 0;
}

static void read_slice(void *self, uint32_t task, uint32_t thread) {
  gguf_reader *r = self;
  (void)thread;
  uint64_t from = r->first + (uint64_t)task * SLICE, to = from + SLICE < r->end ? from + SLICE : r->end;
  int why = read_range(r, from, to);
  if (why != 0) __atomic_store_n(&r->why, why, __ATOMIC_RELAXED);
}

static int read_all(gguf_reader *r) {
  r->why = 0;
  weft_thread_pool_run(r->pool, read_slice, r, (uint32_t)((r->end - r->first + SLICE - 1) / SLICE));
  return r->why;
}

static weft_status reader_read(void *self, uint64_t at, uint64_t n_bytes, uint8_t *to, uint32_t *skip) {
  gguf_reader *r = self;
  reader_file *file = &r->file[r->part];
  if (n_bytes > r->tensor_bytes || at > r->tensor_bytes - n_bytes) return WEFT_E_INVALID;
  r->end = r->tensor_at + at + n_bytes;
  r->first = (r->tensor_at + at) / WEFT_READ_ALIGN * WEFT_READ_ALIGN;
  r->to = to;
  *skip = (uint32_t)(r->tensor_at + at - r->first);
  r->is_direct = file->direct >= 0;
  int why = read_all(r);
  if (why == EINVAL && r->is_direct) { /* opened so, and refused after all */
    (void)close(file->direct);
    file->direct = -1;
    r->is_direct = false;
    why = read_all(r);
  }
  if (why == 0) {
    r->n_bytes += n_bytes;
    if (r->is_direct) r->n_bytes_direct += n_bytes;
    return WEFT_OK;
  }
  return weft_fail(&r->error, WEFT_E_IO, "%s: reading at %" PRIu64 ": %s", r->gguf->parts[r->part].path, r->first,
                   why < 0 ? "the file ends early" : strerror(why));
}

weft_weight_source gguf_reader_source(gguf_reader *r, const weft_gguf_tensor *tensor) {
  weft_weight_source source = {.bytes = tensor->data};
  const uint8_t *data = tensor->data;
  for (uint32_t i = 0; r != NULL && i < r->gguf->n_parts; i++) {
    const gguf_part *part = &r->gguf->parts[i];
    if (data < part->bytes || data >= part->bytes + part->n_bytes) continue;
    r->part = i;
    r->tensor_at = (uint64_t)(data - part->bytes);
    r->tensor_bytes = tensor->n_bytes;
    source.read = reader_read;
    source.self = r;
  }
  return source;
}

uint64_t gguf_reader_bytes(const gguf_reader *r) {
  return r == NULL ? 0 : r->n_bytes;
}

const char *gguf_reader_error(const gguf_reader *r) {
  return r == NULL ? "" : r->error.text;
}
