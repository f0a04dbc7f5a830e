/* SPDX-License-Identifier: MIT */
/* Requests that are never finished, and answers that are never taken: none of them takes a place from others, each
 * ends by a deadline however it is fed, and a shutdown does not wait for them. Deadlines are those of a clock that the
 * test turns. */
#include <stdatomic.h>

#include "tests/support/http_conversation.h"

enum { PLACES = 16, IDLE_SECONDS = 30, STEP_MS = 10 };

static talk server;
static atomic_uint_fast64_t now_us = 1000000;

static uint64_t turned_clock(void) {
  return atomic_load(&now_us);
}

static void turn_clock(uint64_t seconds) {
  atomic_fetch_add(&now_us, seconds * 1000000);
  (void)poll(NULL, 0, STEP_MS); /* lets the server look at it; that it does so now is not needed */
}

static int open_server(void **state) {
  *state =
      talk_serve(&server, NULL, (weft_open_options){0},
                 (weft_server_options){.connections = PLACES, .idle_seconds = IDLE_SECONDS, .clock_us = turned_clock});
  return 0;
}

static double n_ended(const char *reason) {
  char name[96];
  (void)snprintf(name, sizeof name, "weft_http_connections_ended_total{reason=\"%s\"}", reason);
  return talk_metric(server.port, name);
}

static int dial_and_say(const char *words) {
  int fd = talk_dial(server.port);
  (void)talk_write(fd, words, strlen(words)); /* a server that gave the place to another may have closed */
  return fd;
}

static const char half_body[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65536\r\n\r\n{";

static void everybody_is_served(void) {
  json_decref(talk_json(server.port, "/health", NULL));
  json_decref(talk_json(server.port, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}"));
}

/* Four times as many half requests as there are places, held for as long as the test lasts. */
static void half_requests_take_no_place(void **state) {
  static const char *const halves[] = {"", "POST /v1/comp", half_body};
  (void)state;
  for (size_t h = 0; h < sizeof halves / sizeof *halves; h++) {
    int fd[4 * PLACES];
    for (int i = 0; i < 4 * PLACES; i++) fd[i] = dial_and_say(halves[h]);
    for (int i = 0; i < 4; i++) everybody_is_served();
    for (int i = 0; i < 4 * PLACES; i++) (void)close(fd[i]);
  }
  assert_true(n_ended("evicted") > 0);
}

static bool is_closed(int fd, weft_text *got) {
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  while (poll(&wait, 1, 0) == 1) {
    if (talk_read(fd, got, 0) == 0) return true;
  }
  return false;
}

/* A request and its FIN in one piece: the server closes at once, by no deadline. */
static void clients_that_send_half_and_leave(void **state) {
  static const char *const halves[] = {"", "GET /hea", half_body,
                                       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"};
  (void)state;
  for (size_t h = 0; h < sizeof halves / sizeof *halves; h++) {
    for (int i = 0; i < 2 * PLACES; i++) {
      weft_text got = {0};
      int fd = dial_and_say(halves[h]);
      assert_int_equal(shutdown(fd, SHUT_WR), 0);
      while (talk_read(fd, &got, TALK_MS) > 0) continue;
      assert_int_equal(got.n, 0);
      weft_text_free(&got);
      (void)close(fd);
    }
  }
  everybody_is_served();
}

/* Feeds a byte for each second that passes, until the server ends it. Returns how many seconds that took. */
static int feed(int fd, weft_text *got) {
  int seconds = 0;
  for (; !is_closed(fd, got); seconds++) {
    while (!weft_server_idle(server.server)) (void)poll(NULL, 0, 1); /* what was not read whole holds up no shutdown */
    (void)send(fd, "x", 1, MSG_NOSIGNAL);
    turn_clock(1);
  }
  return seconds;
}

static void a_head_has_ten_seconds(void **state) {
  weft_text got = {0};
  (void)state;
  double before = n_ended("late_head");
  int fd = dial_and_say("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
  assert_true(feed(fd, &got) >= 10);
  assert_non_null(strstr(got.bytes, "HTTP/1.1 408 "));
  assert_true(n_ended("late_head") == before + 1);
  weft_text_free(&got);
  (void)close(fd);
}

static void a_body_has_time_by_its_size(void **state) {
  static const char *const heads[] = {
      half_body, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n{"};
  static const int seconds[] = {11,
                                10}; /* 10 s, and one for 64 KiB: of those it announced, in chunks of those that came */
  (void)state;
  for (int i = 0; i < 2; i++) {
    weft_text got = {0};
    double before = n_ended("late_body");
    int fd = dial_and_say(heads[i]);
    assert_true(feed(fd, &got) >= seconds[i]);
    assert_non_null(strstr(got.bytes, "HTTP/1.1 408 "));
    assert_true(n_ended("late_body") == before + 1);
    weft_text_free(&got);
    (void)close(fd);
  }
}

/* A connection that has nothing to ask. */
static void an_idle_connection_is_closed(void **state) {
  weft_text got = {0};
  (void)state;
  double before = n_ended("idle");
  int fd = talk_dial(server.port);
  talk_send(fd, "GET", "/health", "", "", 0);
  talk_check(talk_receive(fd), 200, "");
  int seconds = 0;
  for (; !is_closed(fd, &got); seconds++) turn_clock(1);
  assert_true(seconds >= IDLE_SECONDS);
  assert_int_equal(got.n, 0);
  assert_true(n_ended("idle") == before + 1);
  weft_text_free(&got);
  (void)close(fd);
}

/* Asks for more than all buffers on the way hold and takes none of it. */
static void an_answer_that_nobody_takes(void **state) {
  static const char ask[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  (void)state;
  double before = n_ended("stalled");
  int fd = talk_dial(server.port);
  struct pollfd wait = {.fd = fd, .events = POLLOUT};
  for (int quiet = 0; quiet < 20;) { /* until the server has not taken a request for a while: it waits for us */
    if (poll(&wait, 1, STEP_MS) == 1 && send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
      quiet = 0;
    } else {
      quiet++;
    }
  }
  while (n_ended("stalled") == before) turn_clock(1);
  everybody_is_served();
  (void)close(fd);
}

/* Requests in one piece are answered one by one, in order. */
static void requests_in_one_piece(void **state) {
  static const char three[] =
      "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}"
      "\r\nGET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\nGET /health HTTP/1.1\r\n";
  weft_text got = {0};
  (void)state;
  int fd = dial_and_say(three);
  while (talk_read(fd, &got, TALK_MS) > 0) continue;
  const char *health = strstr(got.bytes, "{\"status\":\"ok\"}"), *tokens = strstr(got.bytes, "{\"count\":");
  const char *version = strstr(got.bytes, "{\"version\":");
  assert_true(health != NULL && tokens > health && version > tokens);
  assert_null(strstr(version, "HTTP/1.1")); /* what stands behind Connection: close is no request */
  weft_text_free(&got);
  (void)close(fd);
}

/* A body is asked for where its client waits to be asked, and only if it is wanted. */
static void expectations(void **state) {
  static const char head[] =
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n";
  static const char refused[] =
      "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n";
  weft_text got = {0};
  (void)state;
  int fd = dial_and_say(head);
  while (got.n == 0 || strstr(got.bytes, "\r\n\r\n") == NULL) assert_true(talk_read(fd, &got, TALK_MS) > 0);
  assert_string_equal(got.bytes, "HTTP/1.1 100 Continue\r\n\r\n");
  assert_true(talk_write(fd, "{\"prompt\":\"a\"}", 14));
  talk_check(talk_receive(fd), 200, "");
  (void)close(fd);
  weft_text_clear(&got);
  fd = dial_and_say(refused);
  while (talk_read(fd, &got, TALK_MS) > 0) continue;
  assert_int_equal(strncmp(got.bytes, "HTTP/1.1 404 ", 13), 0);
  weft_text_free(&got);
  (void)close(fd);
}

/* HTTP/1.0: a stream ends where its connection does, a whole answer leaves the connection open when asked to. */
static void the_older_version(void **state) {
  static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":2,\"stream\":true}";
  char head[256];
  weft_text got = {0};
  (void)state;
  (void)snprintf(head, sizeof head, "POST /v1/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                 body);
  int fd = dial_and_say(head);
  while (talk_read(fd, &got, TALK_MS) > 0) continue;
  assert_null(strstr(got.bytes, "chunked"));
  assert_non_null(strstr(got.bytes, "\r\n\r\ndata: {"));
  assert_non_null(strstr(got.bytes, "data: [DONE]\n\n"));
  weft_text_free(&got);
  (void)close(fd);
  fd = dial_and_say("HEAD /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  while (got.n == 0 || strstr(got.bytes, "\r\n\r\n") == NULL) assert_true(talk_read(fd, &got, TALK_MS) > 0);
  assert_non_null(strstr(got.bytes, "Content-Length: 15\r\n"));
  assert_non_null(strstr(got.bytes, "Connection: keep-alive\r\n"));
  assert_true(talk_write(fd, "GET /health HTTP/1.0\r\n\r\n", 24));
  weft_text_clear(&got);
  while (talk_read(fd, &got, TALK_MS) > 0) continue;
  assert_non_null(strstr(got.bytes, "\r\n\r\n{\"status\":\"ok\"}"));
  weft_text_free(&got);
  (void)close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(half_requests_take_no_place),
      cmocka_unit_test(clients_that_send_half_and_leave),
      cmocka_unit_test(a_head_has_ten_seconds),
      cmocka_unit_test(a_body_has_time_by_its_size),
      cmocka_unit_test(an_idle_connection_is_closed),
      cmocka_unit_test(an_answer_that_nobody_takes),
      cmocka_unit_test(requests_in_one_piece),
      cmocka_unit_test(expectations),
      cmocka_unit_test(the_older_version),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
