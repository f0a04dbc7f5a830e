/* SPDX-License-Identifier: MIT */
/* `weft serve` as a process, from its first line to its last: what it says when it listens, when it drains, and what a
 * service manager is told. */
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/support/child_program.h"

/* It listens when this returns. more: words up to NULL. */
static program start_program(const char *const *more) {
  static const char *const first[] = {"serve", "-m",        DEMO_MODEL, "--port",    "0", "--json", "--kv-mib",
                                      "4",     "--context", "512",      "--threads", "1", NULL};
  program p = spawn_program(first, more);
  json_t *root = await_object(&p);
  p.port = (uint16_t)int_at(root, "port");
  json_decref(root);
  return p;
}

static void expect_lines(const program *p, const char *const *lines) {
  char line[1024];
  for (; *lines != NULL; lines++) {
    read_line(p->err, line, sizeof line);
    if (strncmp(line, *lines, strlen(*lines)) != 0) fail_msg("'%s' does not begin with '%s'", line, *lines);
  }
}

/* ---- the lines of the start ---- */

static void says_what_was_opened(void **state) {
  (void)state;
  char rest[2048], url[128];
  static const char *const words[] = {"--backend", "cpu", "--running", "3", "--drain-seconds", "7", NULL};
  program p = start_program(words);
  (void)snprintf(url, sizeof url,
                 "weft: open    http://127.0.0.1:%u (a page, Anthropic, Ollama), http://127.0.0.1:%u/v1 (OpenAI)",
                 p.port, p.port);
  expect_lines(
      &p, (const char *const[]){"weft: serving weft-demo on http://127.0.0.1:",
                                "weft: device  cpu, because --backend names it: ", "weft: pool    4 MiB of keys",
                                "weft: room    at once for 3 users of weft-demo with 512 tokens each; at most 3 run",
                                url, "weft: keys    off: every program on this machine",
                                "weft: end     Ctrl-C or SIGTERM; what runs then has 7 s", NULL});
  end_program(&p, SIGTERM, rest, sizeof rest);
  assert_string_equal(rest, ""); /* nothing ran: there is nothing to wait for */
}

static void says_why_the_device(void **state) {
  (void)state;
  char rest[2048];
  bool card = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
  program p = start_program((const char *const[]){"--api-key", "sk-a", NULL});
  if (!card)
    expect_lines(&p, (const char *const[]){"weft: serving",
                                           "weft: device  cpu, because no NVIDIA driver is visible here: ", NULL});
  end_program(&p, SIGTERM, rest, sizeof rest);
  assert_non_null(strstr(rest, "weft: keys    on: "));
}

static void quiet_says_one_line(void **state) {
  (void)state;
  char rest[2048];
  program p = start_program((const char *const[]){"-q", "--backend", "cpu", NULL});
  end_program(&p, SIGTERM, rest, sizeof rest);
  assert_true(strncmp(rest, "weft: serving weft-demo on ", 27) == 0);
  assert_ptr_equal(strchr(rest, '\n') + 1, rest + strlen(rest));
}

/* ---- the end ---- */

static void says_that_it_drains(void **state) {
  (void)state;
  char rest[4096], line[1024];
  program p = start_program((const char *const[]){"--running", "1", "--drain-seconds", "3600", NULL});
  int fd = talk_begin(p.port, "/v1/completions",
                      "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":480,\"mode\":\"autoregressive\",\"n\":64}");
  talk_await(p.port, "vllm:num_requests_running", 1);
  talk_await(p.port, "vllm:num_requests_waiting", 63);
  assert_int_equal(kill(p.pid, SIGINT), 0);
  do {
    read_line(p.err, line, sizeof line);
  } while (line[0] != 0 && strncmp(line, "weft: draining", 14) != 0);
  assert_non_null(strstr(line, "draining: what runs has 3600 s to come to its end; a second Ctrl-C"));
  end_program(&p, SIGINT, rest, sizeof rest);
  assert_non_null(strstr(rest, "cancelling what is running"));
  talk_check(talk_receive(fd), 503, "cancelled");
  (void)close(fd);
}

/* ---- a service manager ---- */

/* A socket in the place of the manager's, under an abstract name, which stands in NOTIFY_SOCKET until the next call. */
static int listen_as_manager(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  char name[64];
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  (void)snprintf(name, sizeof name, "@weft-test-%d", (int)getpid());
  memcpy(at.sun_path + 1, name + 1, strlen(name) - 1);
  assert_int_equal(bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                   0);
  assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
  return fd;
}

static void expect_told(int fd, const char *lines) {
  char got[256];
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  assert_int_equal(poll(&wait, 1, TALK_MS), 1);
  ssize_t n = recv(fd, got, sizeof got - 1, 0);
  assert_true(n > 0);
  got[n] = 0;
  if (strncmp(got, lines, strlen(lines)) != 0) fail_msg("the manager was told '%s', not '%s'", got, lines);
}

static void tells_the_manager(void **state) {
  (void)state;
  char rest[4096];
  unsigned long long us = 0;
  int fd = listen_as_manager();
  program p = start_program((const char *const[]){"-q", NULL});
  expect_told(fd, "READY=1");
  assert_int_equal(kill(p.pid, SIGHUP), 0);
  char got[256];
  ssize_t n = recv(fd, got, sizeof got - 1, 0);
  assert_true(n > 0);
  got[n] = 0;
  assert_int_equal(sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%llu", &us), 1);
  assert_in_range(us, 1, weft_clock_us());
  expect_told(fd, "READY=1");
  end_program(&p, SIGTERM, rest, sizeof rest);
  expect_told(fd, "STOPPING=1");
  (void)close(fd);
  /* Nobody listens there now: the server serves all the same, and says so once a state. */
  p = start_program((const char *const[]){"-q", NULL});
  end_program(&p, SIGTERM, rest, sizeof rest);
  assert_non_null(strstr(rest, "NOTIFY_SOCKET: the service manager could not be told 'READY=1'"));
  assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(says_what_was_opened), cmocka_unit_test(says_why_the_device),
      cmocka_unit_test(quiet_says_one_line),  cmocka_unit_test(says_that_it_drains),
      cmocka_unit_test(tells_the_manager),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
