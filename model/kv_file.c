/* SPDX-License-Identifier: MIT */
/* Two rings of moves, up and down, with four marks each, which only rise:
 *
 *   told <= ended <= started <= added          added - told <= moves_max
 *
 * [ended, started) is the file's thread's, the rest the engine thread's; marks but `added` are under the mutex. */
#include "model/kv_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"

/* How a move ends. */
typedef enum outcome { DONE, WRITE_FAILED, READ_FAILED, DAMAGED, LOST, N_OUTCOMES } outcome;

typedef struct move {
  weft_copy_end end;
  uint64_t number; /* from 0, of both kinds */
  bool lost;       /* its host memory is not what it should be */
} move;

typedef struct ring {
  move *move; /* [moves_max] */
  uint64_t n_added, n_started, n_ended, n_told;
  uint64_t n_ahead; /* up: what these read was said before; the file's thread's */
} ring;

struct weft_kv_file {
  weft_kv_file_config config;
  weft_kv_file_io io;
  int fd;
  uint64_t begin, stride;
  uint64_t *checksum;          /* [n_slots]; the file's thread's */
  bool *filled;                /* [n_slots] */
  bool told[N_OUTCOMES];       /* of an outcome, in the log */
  uint64_t n_added, n_allowed; /* engine thread */
  pthread_t thread;
  bool has_thread, borrows; /* borrows: the descriptor is another's */
  pthread_mutex_t mutex;
  pthread_cond_t changed, moved;
  /* under the mutex */
  ring up, down;
  bool stop, gone, moves; /* gone: weft_kv_file_let_go was called; moves: the thread reads or writes */
  void (*notify)(void *self);
  void *notify_self;
  uint64_t n_outcomes[N_OUTCOMES], n_bytes_written, n_bytes_read;
};

/* ---- open ------------------------------------------------------------------------------------------------ */

static int64_t system_write(void *self, int fd, const void *from, uint64_t n_bytes, uint64_t at) {
  (void)self;
  return pwrite(fd, from, n_bytes, (off_t)at);
}

static int64_t system_read(void *self, int fd, void *to, uint64_t n_bytes, uint64_t at) {
  (void)self;
  return pread(fd, to, n_bytes, (off_t)at);
}

static void system_ahead(void *self, int fd, uint64_t n_bytes, uint64_t at) {
  (void)self;
  (void)posix_fadvise(fd, (off_t)at, (off_t)n_bytes, POSIX_FADV_WILLNEED);
}

/* All of its room is taken now, where the file system can; elsewhere a write may find none. */
static weft_status reserve_room(weft_kv_file *f, uint64_t n_bytes, weft_error *error) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < n_bytes) {
    return weft_fail(error, WEFT_E_IO, "%s: %" PRIu64 " MiB are more than this process may write (ulimit -f)",
                     f->config.path, n_bytes >> 20);
  }
  int bad = fallocate(f->fd, 0, 0, (off_t)n_bytes);
  if (bad != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) bad = ftruncate(f->fd, (off_t)n_bytes);
  if (bad == 0) return WEFT_OK;
  return weft_fail(error, WEFT_E_IO, "%s: there is no room for %" PRIu64 " MiB: %s", f->config.path, n_bytes >> 20,
                   strerror(errno));
}

static weft_status make_file(weft_kv_file *f, weft_error *error) {
  const char *path = f->config.path;
  f->stride = f->config.page_bytes;
  if (f->config.kept != NULL) {
    f->fd = f->config.kept->fd;
    f->begin = f->config.kept->begin;
    f->stride = f->config.kept->stride;
    f->borrows = true;
    f->config.kept = NULL;
    return WEFT_OK;
  }
  f->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (f->fd < 0 && errno == EEXIST) {
    return weft_fail(error, WEFT_E_IO, "%s exists: name a file that does not, it is made and removed again", path);
  }
  if (f->fd < 0) return weft_fail(error, WEFT_E_IO, "%s: the file cannot be made: %s", path, strerror(errno));
  if (unlink(path) != 0) {
    return weft_fail(error, WEFT_E_IO, "%s: the file cannot be unlinked: %s", path, strerror(errno));
  }
  return reserve_room(f, f->config.page_bytes * f->config.n_slots, error);
}

static void *move_loop(void *self);

weft_status weft_kv_file_open(const weft_kv_file_config *config, weft_kv_file **out, weft_error *error) {
  *out = NULL;
  weft_kv_file *f = weft_alloc(1, sizeof *f);
  if (f == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory", config->path);
  f->config = *config;
  f->io = config->io != NULL ? *config->io
                             : (weft_kv_file_io){.write = system_write, .read = system_read, .ahead = system_ahead};
  f->fd = -1;
  (void)pthread_mutex_init(&f->mutex, NULL);
  (void)pthread_cond_init(&f->changed, NULL);
  (void)pthread_cond_init(&f->moved, NULL);
  f->checksum = weft_alloc(config->n_slots, sizeof *f->checksum);
  f->filled = weft_alloc(config->n_slots, sizeof *f->filled);
  f->up.move = weft_alloc(config->moves_max, sizeof(move));
  f->down.move = weft_alloc(config->moves_max, sizeof(move));
  weft_status status =
      f->checksum == NULL || f->filled == NULL || f->up.move == NULL || f->down.move == NULL
          ? weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for %u slots", config->path, config->n_slots)
          : make_file(f, error);
  f->config.path = NULL;
  if (status == WEFT_OK) {
    weft_error why = {{0}};
    f->has_thread = weft_threads_start(&f->thread, move_loop, f, &why) == WEFT_OK;
    if (!f->has_thread) status = weft_fail(error, WEFT_E_NO_MEMORY, "%s: %s", config->path, why.text);
  }
  if (status != WEFT_OK) {
    weft_kv_file_close(f);
    return status;
  }
  *out = f;
  return WEFT_OK;
}

void weft_kv_file_close(weft_kv_file *f) {
  if (f == NULL) return;
  (void)pthread_mutex_lock(&f->mutex);
  f->stop = true;
  (void)pthread_cond_signal(&f->changed);
  (void)pthread_mutex_unlock(&f->mutex);
  if (f->has_thread) (void)pthread_join(f->thread, NULL);
  if (f->fd >= 0 && !f->borrows) (void)close(f->fd);
  (void)pthread_mutex_destroy(&f->mutex);
  (void)pthread_cond_destroy(&f->changed);
  (void)pthread_cond_destroy(&f->moved);
  weft_free(f->checksum);
  weft_free(f->filled);
  weft_free(f->up.move);
  weft_free(f->down.move);
  weft_free(f);
}

/* ---- the file's thread ----------------------------------------------------------------------------------- */

/* All bytes, however many calls it takes. A call that moves nothing is the end. */
static bool write_all(weft_kv_file *f, const char *from, uint64_t n_bytes, uint64_t at) {
  while (n_bytes > 0) {
    int64_t n = f->io.write(f->io.self, f->fd, from, n_bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    from += n, at += (uint64_t)n, n_bytes -= (uint64_t)n;
  }
  return true;
}

static bool read_all(weft_kv_file *f, char *to, uint64_t n_bytes, uint64_t at) {
  while (n_bytes > 0) {
    int64_t n = f->io.read(f->io.self, f->fd, to, n_bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO; /* the file is shorter than it was made */
    if (n <= 0) return false;
    to += n, at += (uint64_t)n, n_bytes -= (uint64_t)n;
  }
  return true;
}

uint64_t weft_kv_page_sum(const void *page, uint64_t page_bytes, uint32_t slot) {
  return XXH3_64bits_withSeed(page, page_bytes, slot);
}

static uint64_t checksum_of(const weft_kv_file *f, const char *page, uint32_t slot) {
  return weft_kv_page_sum(page, f->config.page_bytes, slot);
}

static uint64_t place_of(const weft_kv_file *f, uint32_t slot) {
  return f->begin + slot * f->stride;
}

static outcome sink_page(weft_kv_file *f, uint32_t from, uint32_t slot) {
  const char *page = f->config.host + from * f->config.page_bytes;
  f->checksum[slot] = checksum_of(f, page, slot);
  f->filled[slot] = write_all(f, page, f->config.page_bytes, place_of(f, slot));
  return f->filled[slot] ? DONE : WRITE_FAILED;
}

static outcome lift_page(weft_kv_file *f, uint32_t slot, uint32_t to) {
  char *page = f->config.host + to * f->config.page_bytes;
  WEFT_CHECK(f->filled[slot]);
  if (!read_all(f, page, f->config.page_bytes, place_of(f, slot))) return READ_FAILED;
  return checksum_of(f, page, slot) == f->checksum[slot] ? DONE : DAMAGED;
}

/* Once for each way to fail; how often is counted. */
static void tell_of(weft_kv_file *f, outcome how) {
  static const char *const what[N_OUTCOMES] = {[WRITE_FAILED] = "cannot be written",
                                               [READ_FAILED] = "cannot be read",
                                               [DAMAGED] = "gives back other bytes than it was given"};
  int why = errno;
  if (what[how] == NULL || f->told[how]) return;
  f->told[how] = true;
  weft_log(WEFT_LOG_WARN, "the spill file %s%s%s; what it loses is computed again, and counted from now on", what[how],
           how == DAMAGED ? "" : ": ", how == DAMAGED ? "" : strerror(why));
}

enum { AHEAD_BYTES = 16 << 20, AHEAD_PAGES = 32 };

/* Where the pages lie that the next moves will read and nobody spoke of yet: a page at a time would leave the disk idle
 * while its bytes are looked at. The mutex is held. */
static uint32_t find_ahead(weft_kv_file *f, uint64_t out[AHEAD_PAGES]) {
  ring *q = &f->up;
  uint64_t n_most = AHEAD_BYTES / f->config.page_bytes, end;
  uint32_t n = 0;
  n_most = n_most < 2 ? 2 : n_most < AHEAD_PAGES ? n_most : AHEAD_PAGES;
  end = q->n_ended + n_most < q->n_started ? q->n_ended + n_most : q->n_started;
  if (q->n_ahead < q->n_ended) q->n_ahead = q->n_ended;
  for (; q->n_ahead < end; q->n_ahead++) {
    const move *m = &q->move[q->n_ahead % f->config.moves_max];
    if (!m->lost) out[n++] = place_of(f, m->end.copy.from);
  }
  return n;
}

/* The mutex is held before and after. */
static void make_move(weft_kv_file *f, ring *q) {
  move *m = &q->move[q->n_ended % f->config.moves_max];
  const weft_page_copy *copy = &m->end.copy;
  bool up = q == &f->up;
  uint64_t ahead[AHEAD_PAGES];
  if (f->gone) m->lost = true;
  f->moves = !m->lost;
  uint32_t n_ahead = up && f->io.ahead != NULL && !m->lost ? find_ahead(f, ahead) : 0;
  (void)pthread_mutex_unlock(&f->mutex);
  for (uint32_t i = 0; i < n_ahead; i++) f->io.ahead(f->io.self, f->fd, f->config.page_bytes, ahead[i]);
  uint64_t start_us = weft_clock_us();
  outcome how = m->lost ? LOST : up ? lift_page(f, copy->from, copy->to) : sink_page(f, copy->from, copy->to);
  tell_of(f, how);
  m->end.ok = how == DONE;
  m->end.us = weft_clock_us() - start_us;
  (void)pthread_mutex_lock(&f->mutex);
  f->moves = false;
  (void)pthread_cond_broadcast(&f->moved);
  f->n_outcomes[how] += 1;
  if (how == DONE) *(up ? &f->n_bytes_read : &f->n_bytes_written) += f->config.page_bytes;
  q->n_ended += 1;
  if (f->notify != NULL) f->notify(f->notify_self);
}

static void *move_loop(void *self) {
  weft_kv_file *f = self;
  (void)pthread_mutex_lock(&f->mutex);
  while (!f->stop) {
    if (f->up.n_ended < f->up.n_started)
      make_move(f, &f->up);
    else if (f->down.n_ended < f->down.n_started)
      make_move(f, &f->down);
    else
      (void)pthread_cond_wait(&f->changed, &f->mutex);
  }
  (void)pthread_mutex_unlock(&f->mutex);
  return NULL;
}

/* ---- the engine's thread --------------------------------------------------------------------------------- */

void weft_kv_file_add(weft_kv_file *f, const weft_page_copy *copy) {
  bool up = copy->kind == WEFT_FILE_TO_HOST;
  WEFT_CHECK(up || copy->kind == WEFT_HOST_TO_FILE);
  WEFT_CHECK((up ? copy->from : copy->to) < f->config.n_slots && (up ? copy->to : copy->from) < f->config.n_host);
  ring *q = up ? &f->up : &f->down;
  WEFT_CHECK(q->n_added - q->n_told < f->config.moves_max); /* n_told is written by this thread only */
  q->move[q->n_added++ % f->config.moves_max] = (move){.end.copy = *copy, .number = f->n_added++};
}

uint64_t weft_kv_file_n_added(const weft_kv_file *f) {
  return f->n_added;
}

static void start_moves(const weft_kv_file *f, ring *q, uint64_t n_added, bool lost) {
  for (; q->n_started < q->n_added; q->n_started++) {
    move *m = &q->move[q->n_started % f->config.moves_max];
    if (m->number >= n_added) return;
    m->lost = lost;
  }
}

void weft_kv_file_start(weft_kv_file *f, uint64_t n_added, bool lost) {
  WEFT_CHECK(n_added <= f->n_added);
  if (n_added <= f->n_allowed) return;
  f->n_allowed = n_added;
  (void)pthread_mutex_lock(&f->mutex);
  start_moves(f, &f->up, n_added, lost);
  start_moves(f, &f->down, n_added, lost);
  (void)pthread_cond_signal(&f->changed);
  (void)pthread_mutex_unlock(&f->mutex);
}

static uint32_t tell_ended(const weft_kv_file *f, ring *q, weft_copy_end *out, uint32_t max) {
  uint32_t n = 0;
  for (; n < max && q->n_told < q->n_ended; q->n_told++) out[n++] = q->move[q->n_told % f->config.moves_max].end;
  return n;
}

uint32_t weft_kv_file_ended(weft_kv_file *f, weft_copy_end *out, uint32_t max) {
  (void)pthread_mutex_lock(&f->mutex);
  uint32_t n = tell_ended(f, &f->up, out, max);
  n += tell_ended(f, &f->down, out + n, max - n);
  (void)pthread_mutex_unlock(&f->mutex);
  return n;
}

uint64_t weft_kv_file_sum(const weft_kv_file *f, uint32_t slot) {
  WEFT_CHECK(slot < f->config.n_slots);
  return f->checksum[slot];
}

void weft_kv_file_adopt(weft_kv_file *f, uint32_t slot, uint64_t sum) {
  WEFT_CHECK(slot < f->config.n_slots);
  f->checksum[slot] = sum;
  f->filled[slot] = true;
}

/* ---- any thread ------------------------------------------------------------------------------------------ */

void weft_kv_file_let_go(weft_kv_file *f) {
  (void)pthread_mutex_lock(&f->mutex);
  f->gone = true;
  while (f->moves) (void)pthread_cond_wait(&f->moved, &f->mutex);
  (void)pthread_mutex_unlock(&f->mutex);
}

void weft_kv_file_watch(weft_kv_file *f, void (*notify)(void *self), void *self) {
  (void)pthread_mutex_lock(&f->mutex);
  f->notify = notify;
  f->notify_self = self;
  (void)pthread_mutex_unlock(&f->mutex);
}

weft_kv_file_counters weft_kv_file_get_counters(weft_kv_file *f) {
  (void)pthread_mutex_lock(&f->mutex);
  weft_kv_file_counters counters = {.n_bytes_written = f->n_bytes_written,
                                    .n_bytes_read = f->n_bytes_read,
                                    .n_write_failed = f->n_outcomes[WRITE_FAILED],
                                    .n_read_failed = f->n_outcomes[READ_FAILED],
                                    .n_damaged = f->n_outcomes[DAMAGED]};
  (void)pthread_mutex_unlock(&f->mutex);
  return counters;
}
