/* SPDX-License-Identifier: MIT */
/* Two rings of moves, up and down, with five marks each, which only rise:
 *
 *   told <= ended <= taken <= started <= added          added - told <= moves_max
 *
 * [ended, started) is the file's threads', the rest the engine thread's; marks but `added` are under the mutex. Of
 * [ended, taken) each move is one thread's, or done while an earlier one is not. */
#include "model/kv_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"

/* One page after another would leave the disk idle while each is looked at, and disks give several reads at once faster
 * than one by one. */
enum { N_THREADS = 6 };

/* How a move ends. */
typedef enum outcome { DONE, WRITE_FAILED, READ_FAILED, DAMAGED, LOST, N_OUTCOMES } outcome;

typedef struct move {
  weft_copy_end end;
  uint64_t number; /* from 0, of both kinds */
  bool lost;       /* its host memory is not what it should be */
  bool done;       /* the mutex's */
} move;

typedef struct ring {
  move *move; /* [moves_max] */
  uint64_t n_added, n_started, n_taken, n_ended, n_told;
  uint64_t heard_us; /* when one of them was done last */
} ring;

struct weft_kv_file {
  weft_kv_file_config config;
  weft_kv_file_io io;
  int fd;
  uint64_t begin, stride;
  uint64_t *checksum;            /* [n_slots]; that of a slot is of the thread whose move has it */
  bool *filled;                  /* [n_slots] */
  _Atomic bool told[N_OUTCOMES]; /* of an outcome, in the log */
  uint64_t n_added, n_allowed;   /* engine thread */
  pthread_t thread[N_THREADS];
  uint32_t n_threads;
  bool borrows; /* the descriptor is another's */
  pthread_mutex_t mutex;
  pthread_cond_t changed, moved;
  /* under the mutex */
  ring up, down;
  bool stop, gone, sinks; /* gone: weft_kv_file_let_go was called; sinks: a thread writes */
  uint32_t n_moving;      /* threads that read or write */
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
  f->io = config->io != NULL ? *config->io : (weft_kv_file_io){.write = system_write, .read = system_read};
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
  while (status == WEFT_OK && f->n_threads < N_THREADS) {
    weft_error why = {{0}};
    if (weft_threads_start(&f->thread[f->n_threads], move_loop, f, &why) == WEFT_OK)
      f->n_threads += 1;
    else
      status = weft_fail(error, WEFT_E_NO_MEMORY, "%s: %s", config->path, why.text);
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
  (void)pthread_cond_broadcast(&f->changed);
  (void)pthread_mutex_unlock(&f->mutex);
  for (uint32_t i = 0; i < f->n_threads; i++) (void)pthread_join(f->thread[i], NULL);
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

/* ---- the file's threads ---------------------------------------------------------------------------------- */

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
  if (what[how] == NULL || atomic_exchange(&f->told[how], true)) return;
  weft_log(WEFT_LOG_WARN, "the spill file %s%s%s; what it loses is computed again, and counted from now on", what[how],
           how == DAMAGED ? "" : ": ", how == DAMAGED ? "" : strerror(why));
}

/* Which ring has a move that may begin: those from the file first, of those to it one at a time. NULL: none. The mutex
 * is held. */
static ring *find_ring(weft_kv_file *f) {
  if (f->up.n_taken < f->up.n_started) return &f->up;
  return f->down.n_taken < f->down.n_started && !f->sinks ? &f->down : NULL;
}

/* The time of a move is what of it passed after the one that was done before, so that the sum is the time in which the
 * disk was asked, however many it was asked for at once. The mutex is held. */
static void end_move(weft_kv_file *f, ring *q, move *m, outcome how, uint64_t began_us) {
  uint64_t now = weft_clock_us();
  m->end.ok = how == DONE;
  m->end.us = now - (q->heard_us > began_us ? q->heard_us : began_us);
  m->done = true;
  q->heard_us = now;
  f->n_outcomes[how] += 1;
  if (how == DONE) *(q == &f->up ? &f->n_bytes_read : &f->n_bytes_written) += f->config.page_bytes;
  while (q->n_ended < q->n_taken && q->move[q->n_ended % f->config.moves_max].done) q->n_ended += 1;
}

/* The mutex is held before and after. */
static void make_move(weft_kv_file *f, ring *q) {
  move *m = &q->move[q->n_taken++ % f->config.moves_max];
  const weft_page_copy *copy = &m->end.copy;
  bool up = q == &f->up;
  if (f->gone) m->lost = true;
  f->sinks = f->sinks || !up;
  f->n_moving += 1;
  (void)pthread_mutex_unlock(&f->mutex);
  uint64_t began_us = weft_clock_us();
  outcome how = m->lost ? LOST : up ? lift_page(f, copy->from, copy->to) : sink_page(f, copy->from, copy->to);
  tell_of(f, how);
  (void)pthread_mutex_lock(&f->mutex);
  f->n_moving -= 1;
  if (!up) f->sinks = false;
  end_move(f, q, m, how, began_us);
  (void)pthread_cond_broadcast(&f->moved);
  if (f->notify != NULL) f->notify(f->notify_self);
}

static void *move_loop(void *self) {
  weft_kv_file *f = self;
  (void)pthread_mutex_lock(&f->mutex);
  while (!f->stop) {
    ring *q = find_ring(f);
    if (q != NULL)
      make_move(f, q);
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

/* Wakes as many threads as there are moves for: one writes at a time. */
static void start_moves(weft_kv_file *f, ring *q, uint64_t n_added, bool lost) {
  uint64_t n = 0, n_most = q == &f->up ? N_THREADS : 1;
  for (; q->n_started < q->n_added; q->n_started++, n++) {
    move *m = &q->move[q->n_started % f->config.moves_max];
    if (m->number >= n_added) break;
    m->lost = lost;
  }
  for (uint64_t i = 0; i < n && i < n_most; i++) (void)pthread_cond_signal(&f->changed);
}

void weft_kv_file_start(weft_kv_file *f, uint64_t n_added, bool lost) {
  WEFT_CHECK(n_added <= f->n_added);
  if (n_added <= f->n_allowed) return;
  f->n_allowed = n_added;
  (void)pthread_mutex_lock(&f->mutex);
  start_moves(f, &f->up, n_added, lost);
  start_moves(f, &f->down, n_added, lost);
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

double weft_kv_file_measure(weft_kv_file *f, const uint32_t *slot, uint32_t n) {
  uint32_t n_reads = 0, n_ended = 0;
  uint64_t us = 0;
  weft_copy_end end;
  for (uint32_t i = 0; i < n && n_reads < f->config.n_host && n_reads < f->config.moves_max; i++) {
    WEFT_CHECK(slot[i] < f->config.n_slots);
    if (!f->filled[slot[i]]) continue;
    weft_kv_file_add(f, &(weft_page_copy){.from = slot[i], .to = n_reads++, .kind = WEFT_FILE_TO_HOST});
  }
  weft_kv_file_start(f, f->n_added, false);
  (void)pthread_mutex_lock(&f->mutex);
  while (f->up.n_ended < f->up.n_added) (void)pthread_cond_wait(&f->moved, &f->mutex);
  f->n_bytes_read = 0;
  (void)pthread_mutex_unlock(&f->mutex);
  for (; n_ended < n_reads; us += end.us) n_ended += weft_kv_file_ended(f, &end, 1);
  return n_reads == 0 ? 0 : (double)us / n_reads;
}

/* ---- any thread ------------------------------------------------------------------------------------------ */

void weft_kv_file_let_go(weft_kv_file *f) {
  (void)pthread_mutex_lock(&f->mutex);
  f->gone = true;
  while (f->n_moving > 0) (void)pthread_cond_wait(&f->moved, &f->mutex);
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
