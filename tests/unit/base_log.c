/* SPDX-License-Identifier: MIT */
/* The log: one line is one line whatever its text holds, it says when, and nobody waits for it. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/text.h"

/* Standard error is a pipe while a test runs; cmocka says what it has to say afterwards. */
static int pipe_fd[2], kept;

static int open_pipe(void **state) {
  (void)state;
  kept = dup(STDERR_FILENO);
  assert_true(kept >= 0);
  assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
  assert_true(dup2(pipe_fd[1], STDERR_FILENO) >= 0);
  (void)close(pipe_fd[1]);
  return 0;
}

static int close_pipe(void **state) {
  (void)state;
  (void)dup2(kept, STDERR_FILENO);
  (void)close(kept);
  if (pipe_fd[0] >= 0) (void)close(pipe_fd[0]);
  return 0;
}

/* What is in the pipe now. */
static size_t take(char *out, size_t n_max) {
  size_t n = 0;
  struct pollfd wait = {.fd = pipe_fd[0], .events = POLLIN};
  while (n + 1 < n_max && poll(&wait, 1, 0) == 1) {
    ssize_t got = read(pipe_fd[0], out + n, n_max - 1 - n);
    if (got <= 0) break;
    n += (size_t)got;
  }
  out[n] = 0;
  return n;
}

static void a_line_is_one_line(void **state) {
  char out[8192];
  (void)state;
  weft_log(WEFT_LOG_WARN, "%s", "one\nweft: error: two\r\x1b[2J\x7f\x80\xc2\x9b\xe2\x80\xae\xc3\xa4 end");
  size_t n = take(out, sizeof out);
  assert_int_equal(out[n - 1], '\n');
  for (size_t i = 0; i + 1 < n; i++) assert_true((unsigned char)out[i] >= 0x20 && out[i] != 0x7F);
  assert_true(weft_utf8_valid(out, n, NULL));
  assert_non_null(
      strstr(out, " warning: one\\x0aweft: error: two\\x0d\\x1b[2J\\x7f\\x80\\xc2\\x9b\\xe2\\x80\\xae\xc3\xa4 end\n"));
}

static void a_line_says_when(void **state) {
  char out[256];
  int year, month, day, hour, minute, second, ms, at = 0;
  (void)state;
  weft_log(WEFT_LOG_ERROR, "x");
  (void)take(out, sizeof out);
  assert_int_equal(sscanf(out, "weft: %4d-%2d-%2dT%2d:%2d:%2d.%3dZ error: x%n", &year, &month, &day, &hour, &minute,
                          &second, &ms, &at),
                   7);
  assert_string_equal(out + at, "\n");
  assert_true(year >= 2024 && month >= 1 && month <= 12 && hour < 24);
}

static void a_long_line_is_cut(void **state) {
  char out[8192], text[3000];
  (void)state;
  memset(text, 1, sizeof text - 1);
  text[sizeof text - 1] = 0;
  weft_log(WEFT_LOG_WARN, "%s", text);
  size_t n = take(out, sizeof out);
  assert_true(n > 1000 && n < 4096); /* a pipe takes it in one piece */
  assert_ptr_equal(strchr(out, '\n'), out + n - 1);
}

/* Ten times what a pipe holds, and nobody reads it. */
static void a_full_pipe_holds_up_nobody(void **state) {
  static char out[1 << 20];
  char line[1001];
  (void)state;
  uint64_t before = weft_log_dropped();
  memset(line, 'x', sizeof line - 1);
  line[sizeof line - 1] = 0;
  for (int i = 0; i < 640; i++) weft_log(WEFT_LOG_WARN, "%s", line);
  uint64_t dropped = weft_log_dropped() - before;
  assert_true(dropped > 500 && dropped < 640);
  size_t n = take(out, sizeof out), n_lines = 0;
  for (size_t i = 0; i < n; i++) n_lines += out[i] == '\n';
  assert_int_equal(n_lines, 640 - dropped);
  weft_log(WEFT_LOG_WARN, "again");
  (void)take(out, sizeof out);
  char words[128];
  (void)snprintf(words, sizeof words, " log: text=\"%d lines of this log were dropped: nobody took them\" dropped=%d\n",
                 (int)dropped, (int)dropped);
  assert_non_null(strstr(out, words));
  assert_non_null(strstr(out, " warning: again\n"));
  weft_log(WEFT_LOG_WARN, "and again");
  (void)take(out, sizeof out);
  assert_null(strstr(out, "dropped")); /* it is said once */
}

/* A reader that is gone is no reason to end. */
static void a_closed_pipe_ends_nobody(void **state) {
  (void)state;
  uint64_t before = weft_log_dropped();
  (void)close(pipe_fd[0]);
  pipe_fd[0] = -1;
  weft_log(WEFT_LOG_WARN, "x");
  assert_int_equal(weft_log_dropped(), before + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_line_is_one_line, open_pipe, close_pipe),
      cmocka_unit_test_setup_teardown(a_line_says_when, open_pipe, close_pipe),
      cmocka_unit_test_setup_teardown(a_long_line_is_cut, open_pipe, close_pipe),
      cmocka_unit_test_setup_teardown(a_full_pipe_holds_up_nobody, open_pipe, close_pipe),
      cmocka_unit_test_setup_teardown(a_closed_pipe_ends_nobody, open_pipe, close_pipe),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
