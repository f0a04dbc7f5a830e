/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

/* A whole line stays below PIPE_BUF: a pipe takes it in one piece or says beforehand that it is full. */
enum { TEXT_BYTES = 1024, HEAD_BYTES = 64, LINE_BYTES = HEAD_BYTES + TEXT_BYTES * 3 };

static _Atomic int max_level = WEFT_LOG_WARN;
static _Atomic uint64_t n_dropped;
static uint64_t n_told; /* of those; under the lock */
static pthread_mutex_t sink = PTHREAD_MUTEX_INITIALIZER;

void weft_log_set_level(weft_log_level level) {
  atomic_store(&max_level, (int)level);
}

bool weft_log_wants(weft_log_level level) {
  return (int)level <= atomic_load(&max_level);
}

uint64_t weft_log_dropped(void) {
  return atomic_load(&n_dropped);
}

static size_t put_head(char *line, weft_log_level level) {
  static const char *const names[] = {"error", "warning", "info", "debug"};
  struct timespec now;
  struct tm day = {0};
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  (void)gmtime_r(&now.tv_sec, &day);         /* fails in years that int does not hold */
  size_t n = strftime(line, HEAD_BYTES, "weft: %Y-%m-%dT%H:%M:%S", &day);
  return n + (size_t)snprintf(line + n, HEAD_BYTES - n, ".%03dZ %s: ", (int)(now.tv_nsec / 1000000), names[level]);
}

/* Under the lock. False: writing would have had to wait, or the reader of the pipe is gone. */
static bool write_line(weft_log_level level, const char *text) {
  char line[LINE_BYTES + 1];
  size_t n = put_head(line, level);
  n += weft_utf8_clean(text, line + n, LINE_BYTES - n);
  line[n++] = '\n';
  struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
  if (poll(&out, 1, 0) <= 0 || (out.revents & (POLLOUT | POLLERR | POLLNVAL)) != POLLOUT) return false;
  ssize_t sent;
  do {
    sent = write(STDERR_FILENO, line, n);
  } while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)n;
}

void weft_log(weft_log_level level, const char *format, ...) {
  char text[TEXT_BYTES];
  va_list list;
  if ((int)level > atomic_load(&max_level)) return;
  va_start(list, format);
  (void)vsnprintf(text, sizeof text, format, list);
  va_end(list);
  (void)pthread_mutex_lock(&sink);
  uint64_t dropped = atomic_load(&n_dropped);
  if (dropped > n_told) {
    char told[96];
    (void)snprintf(told, sizeof told, "%llu lines of this log were dropped: nobody took them",
                   (unsigned long long)(dropped - n_told));
    if (write_line(WEFT_LOG_WARN, told)) n_told = dropped;
  }
  if (!write_line(level, text)) atomic_fetch_add(&n_dropped, 1);
  (void)pthread_mutex_unlock(&sink);
}
