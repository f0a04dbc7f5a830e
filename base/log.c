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
enum { TEXT_BYTES = 1024, HEAD_BYTES = 64, ESCAPE_BYTES = 4, LINE_BYTES = HEAD_BYTES + TEXT_BYTES * 3 };

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

static bool is_plain(const char *text, size_t n, size_t *n_bytes) {
  uint32_t code = 0;
  *n_bytes = weft_utf8_decode(text, n, &code);
  if (*n_bytes == 0) return false;
  bool separates = code == 0x2028 || code == 0x2029;
  bool directs = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069); /* reorders what is shown */
  return code >= 0x20 && !(code >= 0x7F && code < 0xA0) && !separates && !directs;
}

/* Cut where it would not fit: a cut line is still a line. */
static size_t put_clean(char *line, size_t at, const char *text) {
  size_t n = strlen(text), n_bytes;
  for (size_t i = 0; i < n; i += n_bytes) {
    bool plain = is_plain(text + i, n - i, &n_bytes);
    if (n_bytes == 0) n_bytes = 1;
    if (at + n_bytes * ESCAPE_BYTES + 2 > LINE_BYTES) break;
    if (plain) {
      memcpy(line + at, text + i, n_bytes);
      at += n_bytes;
    } else {
      for (size_t k = 0; k < n_bytes; k++)
        at += (size_t)snprintf(line + at, ESCAPE_BYTES + 1, "\\x%02x", (unsigned char)text[i + k]);
    }
  }
  return at;
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
  size_t n = put_clean(line, put_head(line, level), text);
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
