/* SPDX-License-Identifier: MIT */
#include "model/kept_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/memory.h"

enum { FORM = 1, N_HEADS = 2, HEADS_BYTES = N_HEADS * WEFT_KEPT_UNIT, INDEX_MAX = 1 << 30 };

static const char magic[16] = "weft kept pages";

/* Written as it is: the file stays on its machine, or on one like it. */
typedef struct head {
  char magic[16];
  uint32_t form, n_slots;
  uint64_t page_bytes, number; /* number: heads with a higher one are newer */
  uint64_t index_at, index_bytes, index_low, index_high;
  uint8_t sealed[WEFT_KEPT_MARK]; /* of the cipher; all zero: none */
  uint64_t sum;                   /* of all before it */
} head;
_Static_assert(sizeof(head) <= WEFT_KEPT_UNIT, "a head is written at once");

struct weft_kept_file {
  const weft_kept_cipher *cipher;
  weft_kv_place_of_slots slots;
  weft_kv_file_io io;
  uint64_t page_bytes;
  bool only_read;
  head head; /* the newest */
  char name[200];
};

static uint64_t whole_units(uint64_t n_bytes) {
  return (n_bytes + WEFT_KEPT_UNIT - 1) / WEFT_KEPT_UNIT * WEFT_KEPT_UNIT;
}

static uint64_t slots_end(const weft_kept_file *f, uint32_t n_slots) {
  return f->slots.begin + n_slots * f->slots.stride;
}

static weft_status fail_io(const weft_kept_file *f, const char *what, weft_error *error) {
  return weft_fail(error, WEFT_E_IO, "%s: %s: %s", f->name, what, strerror(errno));
}

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static bool write_all(int fd, const char *from, uint64_t n_bytes, uint64_t at) {
  while (n_bytes > 0) {
    ssize_t n = pwrite(fd, from, n_bytes, (off_t)at);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    from += n, at += (uint64_t)n, n_bytes -= (uint64_t)n;
  }
  return true;
}

static bool read_all(int fd, char *to, uint64_t n_bytes, uint64_t at) {
  while (n_bytes > 0) {
    ssize_t n = pread(fd, to, n_bytes, (off_t)at);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    to += n, at += (uint64_t)n, n_bytes -= (uint64_t)n;
  }
  return true;
}

/* What is sealed is whole units, the last one filled up with zeros. */
static int64_t sealed_write(void *self, int fd, const void *from, uint64_t n_bytes, uint64_t at) {
  const weft_kept_file *f = self;
  uint64_t n = whole_units(n_bytes);
  char *units = weft_alloc(n, 1);
  bool good = units != NULL;
  if (!good) errno = ENOMEM;
  if (good) memcpy(units, from, n_bytes);
  if (good && !f->cipher->seal(f->cipher->self, at / WEFT_KEPT_UNIT, units, units, n)) errno = EIO, good = false;
  good = good && write_all(fd, units, n, at);
  weft_free(units);
  return good ? (int64_t)n_bytes : -1;
}

static int64_t sealed_read(void *self, int fd, void *to, uint64_t n_bytes, uint64_t at) {
  const weft_kept_file *f = self;
  uint64_t n = whole_units(n_bytes);
  char *units = weft_alloc(n, 1);
  bool good = units != NULL;
  if (!good) errno = ENOMEM;
  good = good && read_all(fd, units, n, at);
  if (good && !f->cipher->unseal(f->cipher->self, at / WEFT_KEPT_UNIT, units, units, n)) errno = EIO, good = false;
  if (good) memcpy(to, units, n_bytes);
  weft_free(units);
  return good ? (int64_t)n_bytes : -1;
}

/* All bytes, however many calls it takes, as they lie in the file. */
static bool pass_all(const weft_kept_file *f, char *bytes, uint64_t n_bytes, uint64_t at, bool writes) {
  for (uint64_t done = 0; done < n_bytes;) {
    int64_t n = writes ? f->io.write(f->io.self, f->slots.fd, bytes + done, n_bytes - done, at + done)
                       : f->io.read(f->io.self, f->slots.fd, bytes + done, n_bytes - done, at + done);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    done += (uint64_t)n;
  }
  return true;
}

static int64_t plain_write(void *self, int fd, const void *from, uint64_t n_bytes, uint64_t at) {
  (void)self;
  return pwrite(fd, from, n_bytes, (off_t)at);
}

static int64_t plain_read(void *self, int fd, void *to, uint64_t n_bytes, uint64_t at) {
  (void)self;
  return pread(fd, to, n_bytes, (off_t)at);
}

/* ---- heads ------------------------------------------------------------------------------------------------- */

static uint64_t head_sum(const head *h) {
  return XXH3_64bits(h, offsetof(head, sum));
}

static bool read_head(const weft_kept_file *f, uint32_t i, head *out) {
  if (!read_all(f->slots.fd, (char *)out, sizeof *out, (uint64_t)i * WEFT_KEPT_UNIT)) return false;
  return memcmp(out->magic, magic, sizeof magic) == 0;
}

/* The newer one of the heads that are whole. *begun: the file begins as one of ours. */
static bool find_head(weft_kept_file *f, bool *begun) {
  bool found = false;
  *begun = false;
  for (uint32_t i = 0; i < N_HEADS; i++) {
    head h;
    if (!read_head(f, i, &h)) continue;
    *begun = true;
    if (h.sum != head_sum(&h) || (found && h.number < f->head.number)) continue;
    f->head = h;
    found = true;
  }
  return found;
}

static weft_status write_head(weft_kept_file *f, const head *h, weft_error *error) {
  head own = *h;
  memcpy(own.magic, magic, sizeof magic);
  own.form = FORM;
  own.number = f->head.number + 1;
  own.sum = head_sum(&own);
  if (!write_all(f->slots.fd, (const char *)&own, sizeof own, own.number % N_HEADS * WEFT_KEPT_UNIT) ||
      fdatasync(f->slots.fd) != 0)
    return fail_io(f, "its head cannot be written", error);
  f->head = own;
  return WEFT_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------- */

static weft_status take_file(weft_kept_file *f, const weft_kept_config *config, uint64_t *n_bytes, weft_error *error) {
  struct stat about;
  int flags = f->only_read ? O_RDONLY : O_RDWR | O_CREAT;
  f->slots.fd = open(config->path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (f->slots.fd < 0 || fstat(f->slots.fd, &about) != 0) return fail_io(f, "the file cannot be opened", error);
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 077) != 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: prefixes are kept in a plain file of this user that nobody else can read: chmod 600, or name "
                     "another",
                     f->name);
  if (flock(f->slots.fd, (f->only_read ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    return weft_fail(error, WEFT_FULL, "%s: another process keeps its prefixes there: end it, or name another file",
                     f->name);
  *n_bytes = (uint64_t)about.st_size;
  return WEFT_OK;
}

static weft_status judge_head(const weft_kept_file *f, weft_error *error) {
  static const uint8_t none[WEFT_KEPT_MARK];
  const head *h = &f->head;
  const uint8_t *mark = f->cipher == NULL ? none : f->cipher->mark;
  if (h->form != FORM)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: its form is %u, and this program's is %d: name another file",
                     f->name, h->form, FORM);
  if (memcmp(h->sealed, mark, sizeof none) != 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: %s", f->name,
                     f->cipher == NULL                           ? "it is encrypted: give --keep-key"
                     : memcmp(h->sealed, none, sizeof none) == 0 ? "it is not encrypted: leave out --keep-key"
                                                                 : "it is encrypted with another key");
  if (h->page_bytes != f->page_bytes)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: it has pages of %" PRIu64 " bytes, and the models that are served %" PRIu64
                     ": it is of other models, or of another layout: name another file",
                     f->name, h->page_bytes, f->page_bytes);
  return WEFT_OK;
}

/* False: it is not whole. NO_MEMORY leaves *index refused. */
static bool read_index(const weft_kept_file *f, weft_text *index) {
  const head *h = &f->head;
  if (h->index_bytes == 0) return true;
  if (h->index_bytes > INDEX_MAX) return false;
  weft_text_reserve(index, h->index_bytes + 1);
  if (weft_text_status(index) != WEFT_OK) return false;
  if (!pass_all(f, index->bytes, h->index_bytes, h->index_at, false)) return false;
  XXH128_hash_t sum = XXH3_128bits(index->bytes, h->index_bytes);
  if (sum.low64 != h->index_low || sum.high64 != h->index_high) return false;
  index->n = h->index_bytes;
  index->bytes[index->n] = 0;
  return true;
}

/* The room for all slots is taken now, where the file system can; elsewhere a write may find none. */
static weft_status reserve_room(const weft_kept_file *f, uint32_t n_slots, weft_error *error) {
  uint64_t n_bytes = slots_end(f, n_slots);
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < n_bytes)
    return weft_fail(error, WEFT_E_IO, "%s: %" PRIu64 " MiB are more than this process may write (ulimit -f)", f->name,
                     n_bytes >> 20);
  int bad = fallocate(f->slots.fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)n_bytes);
  if (bad == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return WEFT_OK;
  return weft_fail(error, WEFT_E_IO, "%s: there is no room for %" PRIu64 " MiB: %s", f->name, n_bytes >> 20,
                   strerror(errno));
}

static weft_status open_head(weft_kept_file *f, uint64_t n_bytes, weft_text *index, bool *damaged, weft_error *error) {
  bool begun = false, found = n_bytes > 0 && find_head(f, &begun);
  if (n_bytes > 0 && !begun)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: it is no file of kept prefixes: name another", f->name);
  weft_status status = found ? judge_head(f, error) : WEFT_OK;
  if (status != WEFT_OK) return status;
  *damaged = begun && (!found || !read_index(f, index));
  if (index->refused) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for its index", f->name);
  if (!*damaged) return WEFT_OK;
  if (!found) f->head = (head){.number = 0};
  f->head.index_bytes = 0;
  return WEFT_OK;
}

weft_status weft_kept_file_open(const weft_kept_config *config, weft_kept_file **out, weft_text *index, bool *damaged,
                                weft_error *error) {
  uint64_t n_bytes = 0;
  *out = NULL;
  *damaged = false;
  weft_kept_file *f = weft_alloc(1, sizeof *f);
  if (f == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a file of kept prefixes");
  (void)weft_utf8_clean(config->path, f->name, sizeof f->name);
  f->cipher = config->cipher;
  f->page_bytes = config->page_bytes;
  f->only_read = config->n_slots == 0;
  f->slots = (weft_kv_place_of_slots){.fd = -1, .begin = HEADS_BYTES, .stride = whole_units(config->page_bytes)};
  f->io = f->cipher == NULL ? (weft_kv_file_io){.self = f, .write = plain_write, .read = plain_read}
                            : (weft_kv_file_io){.self = f, .write = sealed_write, .read = sealed_read};
  weft_status status = take_file(f, config, &n_bytes, error);
  if (status == WEFT_OK) status = open_head(f, n_bytes, index, damaged, error);
  if (status == WEFT_OK && !f->only_read) status = reserve_room(f, config->n_slots, error);
  bool resized = status == WEFT_OK && !f->only_read && f->head.n_slots != config->n_slots;
  if (resized) { /* the index lies behind other slots now */
    f->head.n_slots = config->n_slots;
    f->head.page_bytes = f->page_bytes;
    f->head.index_at = 0;
    if (f->cipher != NULL) memcpy(f->head.sealed, f->cipher->mark, sizeof f->head.sealed);
    status = weft_kept_file_write(f, index->n == 0 ? "" : index->bytes, index->n, error);
  }
  if (status != WEFT_OK) {
    weft_kept_file_close(f);
    weft_text_free(index);
    return status;
  }
  *out = f;
  return WEFT_OK;
}

void weft_kept_file_close(weft_kept_file *f) {
  if (f == NULL) return;
  if (f->slots.fd >= 0) (void)close(f->slots.fd); /* all that counts was synchronised */
  weft_free(f);
}

/* ---- the index --------------------------------------------------------------------------------------------- */

/* Where an index of so many bytes touches neither slots nor the one that counts now. */
static uint64_t index_place(const weft_kept_file *f, uint64_t n_bytes) {
  uint64_t at = slots_end(f, f->head.n_slots), used = f->head.index_at;
  if (f->head.index_bytes == 0 || used < at || at + whole_units(n_bytes) <= used) return at;
  return used + whole_units(f->head.index_bytes);
}

weft_status weft_kept_file_write(weft_kept_file *f, const char *index, uint64_t n_bytes, weft_error *error) {
  head next = f->head;
  if (n_bytes > INDEX_MAX) return weft_fail(error, WEFT_E_TOO_LARGE, "%s: its index is too large", f->name);
  next.index_at = index_place(f, n_bytes);
  bool written = pass_all(f, (char *)(uintptr_t)index, n_bytes, next.index_at, true) && fdatasync(f->slots.fd) == 0;
  if (!written) return fail_io(f, "its index cannot be written", error);
  XXH128_hash_t sum = XXH3_128bits(index, n_bytes);
  next.index_bytes = n_bytes;
  next.index_low = sum.low64;
  next.index_high = sum.high64;
  return write_head(f, &next, error);
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

const weft_kv_place_of_slots *weft_kept_file_slots(const weft_kept_file *f) {
  return &f->slots;
}

const weft_kv_file_io *weft_kept_file_io(const weft_kept_file *f) {
  return &f->io;
}

/* ---- pages -------------------------------------------------------------------------------------------------- */

bool weft_kept_file_put(weft_kept_file *f, uint32_t slot, const void *page, uint64_t *sum) {
  *sum = weft_kv_page_sum(page, f->page_bytes, slot);
  return pass_all(f, (char *)(uintptr_t)page, f->page_bytes, slots_end(f, slot), true);
}

bool weft_kept_file_get(weft_kept_file *f, uint32_t slot, uint64_t sum, void *page) {
  return pass_all(f, page, f->page_bytes, slots_end(f, slot), false) &&
         weft_kv_page_sum(page, f->page_bytes, slot) == sum;
}

void weft_kept_file_forget(weft_kept_file *f, const uint32_t *slot, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    (void)fallocate(f->slots.fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, (off_t)slots_end(f, slot[i]),
                    (off_t)f->slots.stride);
}
