/* SPDX-License-Identifier: MIT */
#include "api/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/memory.h"

enum { EVENTS = 64 };

typedef struct watch_row {
  void (*gone)(void *self);
  void *self;
  int fd;
  uint32_t age; /* of the row's use: an event of an earlier use is not taken for a later one */
  bool used;
} watch_row;

struct weft_watch {
  pthread_mutex_t lock; /* held while gone runs, so that remove waits for it */
  pthread_t thread;
  bool running, stop;
  int epoll, wake;
  watch_row *row;
  uint32_t *free_row;
  uint32_t n_max, n_free;
};

static uint64_t ticket_of(uint32_t index, uint32_t age) {
  return (uint64_t)age << 32 | index;
}

static void take_event(weft_watch *w, uint64_t ticket) {
  uint32_t index = (uint32_t)ticket;
  (void)pthread_mutex_lock(&w->lock);
  watch_row *row = index < w->n_max ? &w->row[index] : NULL;
  if (row != NULL && row->used && row->age == ticket >> 32 && row->gone != NULL) {
    void (*gone)(void *) = row->gone;
    row->gone = NULL;
    gone(row->self);
  }
  (void)pthread_mutex_unlock(&w->lock);
}

static void *run(void *self) {
  weft_watch *w = self;
  struct epoll_event events[EVENTS];
  for (;;) {
    int n = epoll_wait(w->epoll, events, EVENTS, -1);
    WEFT_CHECK(n >= 0 || errno == EINTR);
    for (int i = 0; i < n; i++) {
      if (events[i].data.u64 == UINT64_MAX) return NULL; /* close asks */
      take_event(w, events[i].data.u64);
    }
  }
}

static weft_status start(weft_watch *w, weft_error *error) {
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
  w->epoll = epoll_create1(EPOLL_CLOEXEC);
  w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (w->epoll < 0 || w->wake < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &event) != 0) {
    return weft_fail(error, WEFT_E_IO, "the system refused a descriptor for watching clients: %s", strerror(errno));
  }
  int code = pthread_create(&w->thread, NULL, run, w);
  if (code != 0) return weft_fail(error, WEFT_E_IO, "the system refused a thread: %s", strerror(code));
  w->running = true;
  return WEFT_OK;
}

weft_status weft_watch_open(uint32_t n_max, weft_watch **out, weft_error *error) {
  *out = NULL;
  weft_watch *w = weft_alloc(1, sizeof *w);
  if (w == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for watching clients");
  (void)pthread_mutex_init(&w->lock, NULL); /* cannot fail with default attributes on this system */
  w->epoll = w->wake = -1;
  w->n_max = n_max;
  w->row = weft_alloc(n_max, sizeof *w->row);
  w->free_row = weft_alloc(n_max, sizeof *w->free_row);
  weft_status status = WEFT_OK;
  if (w->row == NULL || w->free_row == NULL) {
    status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for watching %u clients", n_max);
  }
  if (status == WEFT_OK) {
    for (uint32_t i = 0; i < n_max; i++) w->free_row[w->n_free++] = n_max - 1 - i;
    status = start(w, error);
  }
  if (status != WEFT_OK) {
    weft_watch_close(w);
    return status;
  }
  *out = w;
  return WEFT_OK;
}

void weft_watch_close(weft_watch *w) {
  if (w == NULL) return;
  if (w->running) {
    uint64_t one = 1;
    WEFT_CHECK(write(w->wake, &one, sizeof one) == (ssize_t)sizeof one);
    (void)pthread_join(w->thread, NULL); /* ours, joined once */
  }
  if (w->epoll >= 0) (void)close(w->epoll);
  if (w->wake >= 0) (void)close(w->wake);
  (void)pthread_mutex_destroy(&w->lock);
  weft_free(w->row);
  weft_free(w->free_row);
  weft_free(w);
}

weft_status weft_watch_add(weft_watch *w, int fd, void (*gone)(void *self), void *self, uint64_t *ticket) {
  weft_status status = WEFT_FULL;
  (void)pthread_mutex_lock(&w->lock);
  if (w->n_free > 0) {
    uint32_t index = w->free_row[w->n_free - 1];
    watch_row *row = &w->row[index];
    uint32_t age = row->age + 1 == UINT32_MAX ? 0 : row->age + 1; /* UINT64_MAX stays the word for close */
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = ticket_of(index, age)};
    status = epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? WEFT_OK : WEFT_E_IO;
    if (status == WEFT_OK) {
      w->n_free -= 1;
      *row = (watch_row){.gone = gone, .self = self, .fd = fd, .age = age, .used = true};
      *ticket = event.data.u64;
    }
  }
  (void)pthread_mutex_unlock(&w->lock);
  return status;
}

void weft_watch_remove(weft_watch *w, uint64_t ticket) {
  uint32_t index = (uint32_t)ticket;
  (void)pthread_mutex_lock(&w->lock);
  watch_row *row = &w->row[index];
  WEFT_CHECK(index < w->n_max && row->used && row->age == ticket >> 32);
  (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, row->fd, NULL); /* a socket that broke may be gone from the set */
  row->used = false;
  w->free_row[w->n_free++] = index;
  (void)pthread_mutex_unlock(&w->lock);
}
