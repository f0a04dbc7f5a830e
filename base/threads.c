/* SPDX-License-Identifier: MIT */
#include "base/threads.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"

/* Address space that the first allocations of a thread may take: an arena's own blocks and its first extents, each at
 * a multiple of a huge page (2 MiB), so up to twice as much is mapped for a moment. */
enum { FIRST_BYTES = 24 << 20 };

typedef struct thread_start {
  void *(*run)(void *self);
  void *self;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool ready, refused;
} thread_start;

/* Whether the address space has room for a new thread's first allocations. */
static bool has_room(void) {
  void *room = mmap(NULL, FIRST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  (void)munmap(room, FIRST_BYTES); /* it was just mapped */
  return true;
}

static void *run_thread(void *arg) {
  thread_start *start = arg; /* the starter's, until it is told */
  void *(*run)(void *) = start->run, *self = start->self, *first = weft_alloc(1, 64);
  bool refused = first == NULL;
  weft_free(first);
  (void)pthread_mutex_lock(&start->mutex);
  start->ready = true;
  start->refused = refused;
  (void)pthread_cond_signal(&start->changed);
  (void)pthread_mutex_unlock(&start->mutex);
  return refused ? NULL : run(self);
}

weft_status weft_threads_start(pthread_t *out, void *(*run)(void *self), void *self, weft_error *error) {
  thread_start start = {
      .run = run, .self = self, .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  if (!has_room()) {
    return weft_fail(error, WEFT_E_NO_MEMORY,
                     "no room in the address space for a thread's first %d MiB: raise the limit (ulimit -v)",
                     FIRST_BYTES >> 20);
  }
  int code = pthread_create(out, NULL, run_thread, &start);
  if (code != 0) return weft_fail(error, WEFT_E_NO_MEMORY, "the system refused a thread: %s", strerror(code));
  (void)pthread_mutex_lock(&start.mutex);
  while (!start.ready) (void)pthread_cond_wait(&start.changed, &start.mutex);
  (void)pthread_mutex_unlock(&start.mutex);
  if (!start.refused) return WEFT_OK;
  (void)pthread_join(*out, NULL); /* it ended without running */
  return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a thread's first allocation");
}
