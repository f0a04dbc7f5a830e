/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

/* A whole line stays within PIPE_BUF: a pipe takes it in one piece or says beforehand that it is full. */
enum { TEXT_BYTES = 2048, WORDS_BYTES = 1024, END_BYTES = 24 };

static _Atomic int max_level = WEFT_LOG_NOTICE, form_now = WEFT_LOG_TEXT;
static _Atomic uint64_t n_dropped;
static uint64_t n_told; /* of those; under the lock */
static pthread_mutex_t sink = PTHREAD_MUTEX_INITIALIZER;

static const char *const level_names[] = {"error", "warning", "notice", "info", "debug"};
enum { N_LEVELS = sizeof level_names / sizeof *level_names };

void weft_log_set(weft_log_settings settings) {
  atomic_store(&max_level, (int)settings.level);
  atomic_store(&form_now, (int)settings.form);
}

weft_log_settings weft_log_get(void) {
  weft_log_settings s = {(weft_log_level)atomic_load(&max_level), (weft_log_form)atomic_load(&form_now)};
  return s;
}

void weft_log_set_level(weft_log_level level) {
  atomic_store(&max_level, (int)level);
}

bool weft_log_wants(weft_log_level level) {
  return (int)level <= atomic_load(&max_level);
}

bool weft_log_level_of(const char *name, weft_log_level *out) {
  for (int i = 0; i < N_LEVELS; i++) {
    if (strcmp(name, level_names[i]) != 0) continue;
    *out = (weft_log_level)i;
    return true;
  }
  return false;
}

bool weft_log_form_of(const char *name, weft_log_form *out) {
  bool json = strcmp(name, "json") == 0;
  *out = json ? WEFT_LOG_JSON : WEFT_LOG_TEXT;
  return json || strcmp(name, "text") == 0;
}

uint64_t weft_log_dropped(void) {
  return atomic_load(&n_dropped);
}

/* ---- a line ---- */

/* A line that is being written. What does not fit whole is left out. */
typedef struct log_line {
  char *out;
  size_t n, max;
  bool json, cut;
} log_line;

static bool put_bytes(log_line *l, const char *bytes, size_t n) {
  if (l->n + n > l->max) return false;
  memcpy(l->out + l->n, bytes, n);
  l->n += n;
  return true;
}

static bool put_word(log_line *l, const char *word) {
  return put_bytes(l, word, strlen(word));
}

/* How a character stands in the line; returns its bytes. */
static size_t escape_one(const log_line *l, const char *from, size_t n_left, bool quoted, char *to, size_t *n_used) {
  uint32_t code;
  bool plain = weft_utf8_plain(from, n_left, n_used, &code), valid = *n_used > 0;
  if (!valid) *n_used = 1;
  if (plain && quoted && (*from == '"' || *from == '\\')) {
    to[0] = '\\';
    to[1] = *from;
    return 2;
  }
  if (plain) {
    memcpy(to, from, *n_used);
    return *n_used;
  }
  if (l->json) return (size_t)snprintf(to, 8, "\\u%04x", valid ? (unsigned)code : 0xFFFDu);
  size_t n = 0;
  for (size_t k = 0; k < *n_used; k++) n += (size_t)snprintf(to + n, 5, "\\x%02x", (unsigned char)from[k]);
  return n;
}

/* At most n_max bytes of words; what is beyond them is cut between characters. */
static void put_escaped(log_line *l, const char *words, bool quoted, size_t n_max) {
  size_t n = strlen(words), n_used, end = l->n + n_max < l->max ? l->n + n_max : l->max;
  for (size_t i = 0; i < n; i += n_used) {
    char one[20];
    size_t n_one = escape_one(l, words + i, n - i, quoted, one, &n_used);
    if (l->n + n_one > end) {
      l->cut = true;
      return;
    }
    memcpy(l->out + l->n, one, n_one);
    l->n += n_one;
  }
}

/* In text a word stands as it is where nothing in it could be taken for the end of it. */
static bool needs_quotes(const char *words) {
  return *words == 0 || strpbrk(words, " \"=\\\t") != NULL;
}

static bool put_value(log_line *l, const weft_log_field *f) {
  char digits[48];
  bool quoted = f->kind == WEFT_LOG_WORDS && (l->json || needs_quotes(f->words));
  switch (f->kind) {
    case WEFT_LOG_NUMBER:
      (void)snprintf(digits, sizeof digits, "%" PRIu64, f->number);
      return put_word(l, digits);
    case WEFT_LOG_REAL:
      (void)snprintf(digits, sizeof digits, "%.1f", isfinite(f->real) && fabs(f->real) < 1e30 ? f->real : 0.0);
      return put_word(l, digits);
    case WEFT_LOG_TRUE:
      return put_word(l, "true");
    default:
      break;
  }
  if (l->n + 2 > l->max) return false;
  if (quoted) (void)put_word(l, "\"");
  l->max -= quoted;
  put_escaped(l, f->words, quoted, WORDS_BYTES);
  l->max += quoted;
  return !quoted || put_word(l, "\"");
}

static void put_field(log_line *l, const weft_log_field *f) {
  size_t before = l->n;
  if (f->kind == WEFT_LOG_WORDS && f->words == NULL) return;
  bool good = put_word(l, l->json ? ",\"" : " ") && put_word(l, f->name) && put_word(l, l->json ? "\":" : "=");
  if (good && put_value(l, f)) return;
  l->n = before;
  l->cut = true;
}

static void put_time(log_line *l) {
  char text[48];
  struct timespec now;
  struct tm day = {0};
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  (void)gmtime_r(&now.tv_sec, &day);         /* fails in years that int does not hold */
  size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &day);
  (void)snprintf(text + n, sizeof text - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
  (void)put_word(l, text);
}

static void put_text(log_line *l, const weft_log_event *event) {
  if (event->topic != NULL) {
    (void)put_word(l, l->json ? ",\"topic\":\"" : " ");
    put_escaped(l, event->topic, true, WORDS_BYTES);
    (void)put_word(l, l->json ? "\"" : ":");
  }
  if (event->text == NULL) return;
  /* beside other fields it is one of them, so that nothing in it can be taken for another */
  bool quoted = l->json || event->n_fields > 0;
  (void)put_word(l, l->json ? ",\"text\":\"" : quoted ? " text=\"" : " ");
  put_escaped(l, event->text, quoted, TEXT_BYTES);
  if (quoted) (void)put_word(l, "\"");
}

size_t weft_log_write(weft_log_level level, const weft_log_event *event, char out[WEFT_LOG_LINE]) {
  log_line l = {.out = out, .max = WEFT_LOG_LINE - END_BYTES, .json = atomic_load(&form_now) == WEFT_LOG_JSON};
  const char *name = (int)level >= 0 && (int)level < N_LEVELS ? level_names[level] : level_names[0];
  (void)put_word(&l, l.json ? "{\"time\":\"" : "weft: ");
  put_time(&l);
  (void)put_word(&l, l.json ? "\",\"level\":\"" : " ");
  (void)put_word(&l, name);
  (void)put_word(&l, l.json ? "\"" : ":");
  put_text(&l, event);
  for (uint32_t i = 0; i < event->n_fields; i++) put_field(&l, &event->field[i]);
  l.max = WEFT_LOG_LINE;
  const weft_log_field cut = weft_log_true("cut");
  if (l.cut) put_field(&l, &cut);
  (void)put_word(&l, l.json ? "}\n" : "\n");
  return l.n;
}

/* ---- the sink ---- */

/* Under the lock. False: writing would have had to wait, or the reader of the pipe is gone. */
static bool write_line(weft_log_level level, const weft_log_event *event) {
  char line[WEFT_LOG_LINE];
  size_t n = weft_log_write(level, event, line);
  struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
  if (poll(&out, 1, 0) <= 0 || (out.revents & (POLLOUT | POLLERR | POLLNVAL)) != POLLOUT) return false;
  ssize_t sent;
  do {
    sent = write(STDERR_FILENO, line, n);
  } while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)n;
}

void weft_log_tell(weft_log_level level, const weft_log_event *event) {
  if (!weft_log_wants(level)) return;
  (void)pthread_mutex_lock(&sink);
  uint64_t dropped = atomic_load(&n_dropped);
  if (dropped > n_told) {
    char told[96];
    (void)snprintf(told, sizeof told, "%" PRIu64 " lines of this log were dropped: nobody took them", dropped - n_told);
    const weft_log_field field = weft_log_number("dropped", dropped - n_told);
    const weft_log_event lost = {"log", told, &field, 1};
    if (write_line(WEFT_LOG_WARN, &lost)) n_told = dropped;
  }
  if (!write_line(level, event)) atomic_fetch_add(&n_dropped, 1);
  (void)pthread_mutex_unlock(&sink);
}

void weft_log(weft_log_level level, const char *format, ...) {
  char text[TEXT_BYTES];
  va_list list;
  if (!weft_log_wants(level)) return;
  va_start(list, format);
  (void)vsnprintf(text, sizeof text, format, list);
  va_end(list);
  const weft_log_event event = {NULL, text, NULL, 0};
  weft_log_tell(level, &event);
}
