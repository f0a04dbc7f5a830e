/* SPDX-License-Identifier: MIT */
/* Memory for bodies: whose it is, who gives way, and that nothing is read for who may not ask. */
#include "tests/support/http_conversation.h"

enum { MIB = 1 << 20, ALL_MIB = 16, N_HELD = 16 };

static const char keys_text[] = "sk-red red\nsk-green green\nsk-blue blue\nsk-op operator\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const green = "Authorization: Bearer sk-green\r\n";
static const char *const blue = "Authorization: Bearer sk-blue\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

static char spaces[MIB];

static talk server;

static int open_server(void **state) {
  *state = talk_serve(&server, keys_text, (weft_open_options){0}, (weft_server_options){.body_mib = 1});
  memset(spaces, ' ', sizeof spaces);
  return 0;
}

static double metric(const char *name) {
  return talk_metric_as(server.port, boss, name);
}

static double n_refused(int code) {
  char name[128];
  (void)snprintf(name, sizeof name, "weft_http_requests_total{method=\"POST\",path=\"/v1/completions\",code=\"%d\"}",
                 code);
  double n = metric(name);
  return n < 0 ? 0 : n;
}

/* Asks with all of the body but its last byte. */
static int hold(const char *who, size_t n) {
  int fd = talk_dial(server.port);
  char head[256];
  (void)snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n",
                 who, n);
  assert_true(talk_write(fd, head, strlen(head)));
  (void)talk_write(fd, spaces, n - 1); /* a server that refuses may close before it has all */
  return fd;
}

static double n_refused_all(void) {
  return n_refused(429) + n_refused(503);
}

/* One by one, until all sent so far are held or refused: one that is refused may give its bytes back after it was
 * counted, so bytes and refusals are looked at again until they agree. Returns how many came with no refusal. */
static int hold_all(const char *who, int *fd, int n) {
  const double bytes = metric("weft_http_body_bytes"), refused = n_refused_all();
  int n_held = 0;
  for (int i = 0; i < n; i++) {
    double before = n_refused_all(), now = before;
    fd[i] = hold(who, MIB);
    while (metric("weft_http_body_bytes") != bytes + (i + 1 - (now - refused)) * (MIB - 1)) {
      (void)poll(NULL, 0, 1);
      now = n_refused_all();
    }
    n_held += now == before;
  }
  return n_held;
}

static void let_go(const int *fd, int n) {
  for (int i = 0; i < n; i++) (void)close(fd[i]);
  while (metric("weft_http_body_bytes") != 0) (void)poll(NULL, 0, 1);
}

static int ask(const char *who, size_t n_spaces) {
  static const char words[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
  weft_text body = {0};
  weft_text_append(&body, spaces, n_spaces);
  weft_text_puts(&body, words);
  talk_answer a = talk_ask_as(server.port, "POST", "/v1/completions", who, body.bytes);
  int code = a.code;
  weft_text_free(&body);
  talk_answer_free(&a);
  return code;
}

/* One tenant holds as many of the largest bodies as all memory would take: it has half, and nobody else notices. */
static void one_tenant_has_half(void **state) {
  int fd[N_HELD];
  (void)state;
  int n_held = hold_all(red, fd, N_HELD);
  assert_in_range(n_held, 6, ALL_MIB / 2);
  assert_int_equal(ask(blue, 0), 200);
  assert_int_equal(ask(blue, MIB - 1000), 200);
  assert_int_equal(ask(red, 0), 200); /* small bodies have memory of their own */
  assert_int_equal(ask(red, MIB - 1000), 429);
  let_go(fd, N_HELD);
  assert_int_equal(ask(red, MIB - 1000), 200);
}

/* Two tenants hold all there is: who holds most gives way to a third. */
static void who_holds_most_gives_way(void **state) {
  int fd[2 * N_HELD];
  (void)state;
  int n_held = hold_all(red, fd, N_HELD) + hold_all(green, fd + N_HELD, N_HELD);
  assert_true(n_held >= 12);
  double refused = n_refused(503);
  for (int i = 0; i < 3; i++) assert_int_equal(ask(blue, MIB - 1000), 200);
  assert_true(n_refused(503) > refused);
  let_go(fd, 2 * N_HELD);
}

/* Who has no key is told so before the body, which need not come. */
static void keys_are_checked_before_bodies(void **state) {
  static const char *const strangers[] = {"", "Authorization: Bearer sk-none\r\n"};
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    char head[256];
    int fd = talk_dial(server.port);
    (void)snprintf(head, sizeof head,
                   "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n", strangers[i],
                   MIB);
    assert_true(talk_write(fd, head, strlen(head)));
    talk_answer a = talk_receive(fd);
    assert_int_equal(a.code, 401);
    char connection[16];
    assert_string_equal(talk_header(&a, "Connection", connection, sizeof connection), "close");
    talk_answer_free(&a);
    (void)close(fd);
  }
  /* after a small one the connection is still of use */
  int fd = talk_dial(server.port);
  talk_send(fd, "POST", "/v1/completions", "", spaces, 1000);
  talk_check(talk_receive(fd), 401, "");
  talk_send(fd, "GET", "/health", "", "", 0);
  talk_check(talk_receive(fd), 200, "");
  (void)close(fd);
  assert_true(metric("weft_http_body_bytes") == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_tenant_has_half), cmocka_unit_test(who_holds_most_gives_way),
                                     cmocka_unit_test(keys_are_checked_before_bodies)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
