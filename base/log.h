/* SPDX-License-Identifier: MIT */
/* The log of the process.
 *
 * Law: a line is a list of fields, each with a name: time (UTC, to the millisecond), level, topic where it has one,
 * text, and those of its topic. One function writes them in either form:
 *   weft: 2026-01-31T12:00:00.000Z info: request: code=200 path="/a b"
 *   {"time":"2026-01-31T12:00:00.000Z","level":"info","topic":"request","code":200,"path":"/a b"}
 * Lines go to standard error. The libraries log only what an operator can act on; results of a program never go to the
 * log. The program sets level and form once, when it starts.
 *
 * A line stays one line whatever its fields hold: control characters, characters that change the direction of writing
 * and bytes that are not UTF-8 are written as \xNN, in JSON as \uNNNN, so that nothing a client sent can begin a line
 * or a field of its own or send commands to the operator's terminal. A field that is too long is cut, one for which
 * there is no room left out, and the field `cut` says so. No thread waits for the log: a line that a full pipe cannot
 * take is dropped and counted, and before the next line that can be written stands how many were lost. Any thread may
 * write. */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_log_level {
  WEFT_LOG_ERROR = 0,
  WEFT_LOG_WARN = 1,
  WEFT_LOG_NOTICE = 2, /* what the operator did came about; written unless the level is lower */
  WEFT_LOG_INFO = 3,
  WEFT_LOG_DEBUG = 4
} weft_log_level;

typedef enum weft_log_form { WEFT_LOG_TEXT = 0, WEFT_LOG_JSON = 1 } weft_log_form;

typedef struct weft_log_settings {
  weft_log_level level; /* lines beyond it are not written */
  weft_log_form form;
} weft_log_settings;

void weft_log_set(weft_log_settings settings);
weft_log_settings weft_log_get(void);
void weft_log_set_level(weft_log_level level);
bool weft_log_wants(weft_log_level level); /* whether lines of this level are written */
/* The level, or form, of a name such as "warning" or "json"; false: there is none. */
bool weft_log_level_of(const char *name, weft_log_level *out);
bool weft_log_form_of(const char *name, weft_log_form *out);

typedef enum weft_log_kind { WEFT_LOG_WORDS, WEFT_LOG_NUMBER, WEFT_LOG_REAL, WEFT_LOG_TRUE } weft_log_kind;

/* A field. name: a word of [a-z_0-9], static. */
typedef struct weft_log_field {
  const char *name;
  weft_log_kind kind;
  const char *words; /* borrowed for the call; NULL: the field is not there */
  uint64_t number;
  double real; /* written with one decimal */
} weft_log_field;

static inline weft_log_field weft_log_words(const char *name, const char *words) {
  weft_log_field f = {name, WEFT_LOG_WORDS, words, 0, 0};
  return f;
}
static inline weft_log_field weft_log_number(const char *name, uint64_t number) {
  weft_log_field f = {name, WEFT_LOG_NUMBER, NULL, number, 0};
  return f;
}
static inline weft_log_field weft_log_real(const char *name, double real) {
  weft_log_field f = {name, WEFT_LOG_REAL, NULL, 0, real};
  return f;
}
static inline weft_log_field weft_log_true(const char *name) {
  weft_log_field f = {name, WEFT_LOG_TRUE, NULL, 0, 0};
  return f;
}

/* What a line says beside time and level. */
typedef struct weft_log_event {
  const char *topic; /* a word, static; NULL: none */
  const char *text;  /* NULL: none */
  const weft_log_field *field;
  uint32_t n_fields;
} weft_log_event;

/* A line with a text alone. */
void weft_log(weft_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void weft_log_tell(weft_log_level level, const weft_log_event *event);
/* The line itself with its line feed, whatever the level; returns its bytes, at most WEFT_LOG_LINE. A pipe takes it in
 * one piece. */
enum { WEFT_LOG_LINE = 4096 };
size_t weft_log_write(weft_log_level level, const weft_log_event *event, char out[WEFT_LOG_LINE]);
/* How many lines were dropped since the process began. */
uint64_t weft_log_dropped(void);

#ifdef __cplusplus
}
#endif
#endif
