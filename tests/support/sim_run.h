/* SPDX-License-Identifier: MIT */
/* Runs of `weft sim`, for tests (after cmocka.h): options in, an exit code and what was printed out.
 *
 * `trace` is the name of a file of the test's own: open_trace makes it, close_trace removes it. */
#ifndef WEFT_TESTS_SIM_RUN_H
#define WEFT_TESTS_SIM_RUN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

enum { LINE = 2048, OUTPUT = 65536 };

static char trace[] = "/tmp/weft-sim-XXXXXX";

/* Runs it; the exit code. */
static inline int sim(const char *options, char *out) {
  char command[2 * LINE];
  (void)snprintf(command, sizeof command, "%s/weft sim %s 2>&1", WEFT_BINARY_DIR, options);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t n = fread(out, 1, OUTPUT - 1, pipe);
  out[n] = 0;
  int status = pclose(pipe);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static inline void write_file(const char *name, const char *text) {
  FILE *file = fopen(name, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

/* Runs a trace with steps of 1 ms, whatever they hold. */
static inline int sim_trace(const char *lines, const char *options, char *out) {
  char all[LINE];
  write_file(trace, lines);
  (void)snprintf(all, sizeof all, "--json --trace %s --step-us 1000 --row-us 0 --key-us 0 %s", trace, options);
  return sim(all, out);
}

static inline json_t *read_numbers(int code, const char *out) {
  json_t *root = code == 0 ? json_loads(out, 0, NULL) : NULL;
  if (root == NULL) fail_msg("exit code %d: %s", code, out);
  return root;
}

static inline json_t *sim_numbers(const char *lines, const char *options) {
  static char out[OUTPUT];
  return read_numbers(sim_trace(lines, options, out), out);
}

static inline void assert_number(const json_t *root, const char *name, double expected) {
  double x = json_number_value(json_object_get(root, name));
  if (!(fabs(x - expected) <= 1e-6 * (1.0 + fabs(expected)))) {
    fail_msg("%s is %.9g, not %.9g", name, x, expected);
  }
}

typedef struct number {
  const char *name; /* NULL: the end of a list */
  double value;
} number;

/* A run of which these numbers are to be seen. */
static inline void check_numbers(const char *lines, const char *options, const number *expected) {
  json_t *root = sim_numbers(lines, options);
  for (; expected->name != NULL; expected++) assert_number(root, expected->name, expected->value);
  json_decref(root);
}

static inline void check_number(const char *lines, const char *options, const char *name, double expected) {
  check_numbers(lines, options, (const number[]){{name, expected}, {NULL, 0}});
}

static inline double number_at(const json_t *root, const char *name) {
  return json_number_value(json_object_get(root, name));
}

/* A run that is refused with this exit code, in one line that has these words. */
static inline void check_refused(const char *options, int code, const char *words) {
  static char out[OUTPUT];
  assert_int_equal(sim(options, out), code);
  if (strstr(out, words) == NULL || strchr(out, '\n') != strrchr(out, '\n')) fail_msg("'%s' is not in: %s", words, out);
}

static inline int open_trace(void **state) {
  (void)state;
  int file = mkstemp(trace);
  return file < 0 || close(file) != 0 || access(WEFT_BINARY_DIR "/weft", X_OK) != 0;
}

static inline int close_trace(void **state) {
  (void)state;
  return unlink(trace) != 0;
}

#endif
