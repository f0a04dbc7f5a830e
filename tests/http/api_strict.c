/* SPDX-License-Identifier: MIT */
/* What two programs could read differently is refused, once, and the connection ends: no request hides in another. And
 * who asks through a browser for somebody else is refused: by the host that was asked for, by its origin. */
#include "tests/support/http_conversation.h"

static talk server, friendly;
static const char *const origins[] = {"https://chat.example", "http://localhost:3000", "https://*.pages.example",
                                      "http://dev.example:*", "app-view://*"};

static int open_servers(void **state) {
  *state = talk_serve(&server, NULL, (weft_open_options){0}, (weft_server_options){.body_mib = 1});
  talk_serve(&friendly, NULL, (weft_open_options){0}, (weft_server_options){.origins = origins, .n_origins = 5});
  return 0;
}

static int close_servers(void **state) {
  talk_close(&friendly);
  return close_talk(state);
}

/* All that comes until the server closes. */
static weft_text say(uint16_t port, const char *bytes, size_t n) {
  weft_text got = {0};
  int fd = talk_dial(port);
  (void)talk_write(fd, bytes, n); /* a server that refuses may close before it has all */
  while (talk_read(fd, &got, TALK_MS) > 0) continue;
  weft_text_append(&got, "", 0);
  (void)close(fd);
  return got;
}

static int n_of(const char *text, const char *word) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, word)) != NULL; at++) n++;
  return n;
}

#define HIDDEN "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define POST   "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"

static const struct {
  int code;
  const char *bytes;
} rows[] = {
    /* where a body ends */
    {400, POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Content-Length: 0\r\nContent-Length: 43\r\n\r\n" HIDDEN},
    {400, POST "Content-Length: 0\r\nContent-Length: 0\r\n\r\n" HIDDEN},
    {400, POST "Content-Length: 0, 0\r\n\r\n" HIDDEN},
    {400, POST "Content-Length: +0\r\n\r\n" HIDDEN},
    {400, POST "Content-Length: -1\r\n\r\n" HIDDEN},
    {400, POST "Content-Length: 0x2\r\n\r\n" HIDDEN},
    {400, POST "Content-Length:\r\n\r\n" HIDDEN},
    {400, POST "Content-Length : 0\r\n\r\n" HIDDEN},
    {413, POST "Content-Length: 99999999999999999999999999\r\n\r\n" HIDDEN},
    {413, POST "Content-Length: 18446744073709551616\r\n\r\n" HIDDEN},
    {501, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" HIDDEN},
    {501, POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" HIDDEN},
    {501, POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN},
    {400, "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN},
    /* chunks */
    {400, POST "Transfer-Encoding: chunked\r\n\r\nzz\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n0x1\r\nA\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n1 \r\nA\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n1\nA\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n1\r\nABC\r\n0\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n\r\n" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r" HIDDEN},
    {400, POST "Transfer-Encoding: chunked\r\n\r\n0\r\n: x\r\n\r\n" HIDDEN},
    {413, POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" HIDDEN},
    {413, POST "Transfer-Encoding: chunked\r\n\r\n0000000000000000000000000\r\n\r\n" HIDDEN},
    /* lines */
    {400, "GET /health HTTP/1.1\nHost: localhost\n\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nX Y: x\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: \x01\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: \x7f\r\n\r\n"},
    {400, "\r\n\r\n\r\n" HIDDEN},
    /* who is asked */
    {400, "GET /health HTTP/1.1\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"},
    {400, "GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"},
    /* the first line */
    {400, "GET\r\n\r\n"},
    {400, "GET /health\r\n\r\n"},
    {400, "GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET /health HTTP/1.1 \r\nHost: localhost\r\n\r\n"},
    {400, "GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET health HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET /health http/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET /a%00b HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET /a%0d%0aX-Evil:%201 HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "GET /a#b HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {400, "\x16\x03\x01\x02"},
    {501, "GETGETGETGETGETGETGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {505, "GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n"},
    {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
    {417, POST "Expect: the unexpected\r\nContent-Length: 2\r\n\r\n{}"},
};

/* Refused before anything behind it is looked at: one answer, and nothing of the request that hides in it. */
static void check_refused(const char *bytes, size_t n, int code) {
  weft_text got = say(server.port, bytes, n);
  if (strtol(got.n < 9 ? "" : got.bytes + 9, NULL, 10) != code) fail_msg("not %d: %.120s\n%s", code, bytes, got.bytes);
  if (n_of(got.bytes, "\r\nDate: ") != 1) fail_msg("answered more than once: %.120s\n%s", bytes, got.bytes);
  assert_null(strstr(got.bytes, "\"version\""));
  assert_non_null(strstr(got.bytes, "\r\nConnection: close\r\n"));
  assert_non_null(strstr(got.bytes, "{\"error\":{\"message\":"));
  weft_text_free(&got);
}

static void what_is_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    check_refused(rows[i].bytes, strlen(rows[i].bytes), rows[i].code);
  static const char nul[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n";
  check_refused(nul, sizeof nul - 1, 400);
}

static void what_is_too_much(void **state) {
  (void)state;
  weft_text big = {0};
  weft_text_puts(&big, "GET /");
  for (int i = 0; i < 9000; i++) weft_text_puts(&big, "a");
  weft_text_puts(&big, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  check_refused(big.bytes, big.n, 414);
  weft_text_clear(&big);
  weft_text_puts(&big, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
  for (int i = 0; i < 40000; i++) weft_text_puts(&big, "a");
  weft_text_puts(&big, "\r\n\r\n");
  check_refused(big.bytes, big.n, 431);
  weft_text_clear(&big);
  weft_text_puts(&big, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 200; i++) weft_text_puts(&big, "X: a\r\n");
  weft_text_puts(&big, "\r\n");
  check_refused(big.bytes, big.n, 431);
  weft_text_clear(&big);
  weft_text_puts(&big, POST "Transfer-Encoding: chunked\r\n\r\n1;");
  for (int i = 0; i < 9000; i++) weft_text_puts(&big, "a");
  check_refused(big.bytes, big.n, 431);
  weft_text_free(&big);
}

/* What is unusual and says one thing only is served. */
static void what_is_served(void **state) {
  static const char *const fine[] = {
      "\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
      "GET /health?x=y%zz HTTP/1.1\r\nhOsT:localhost\r\nConnection: x , CLOSE\r\n\r\n",
      "GET /%68ealth HTTP/1.1\r\nHost: \t localhost \t\r\nX:\r\nY: \xc3\xa4\r\nConnection: close\r\n\r\n",
      "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
      "GET /health HTTP/1.0\r\n\r\n",
      "GET /health HTTP/1.9\r\nHost: localhost\r\nConnection: close\r\n\r\n",
  };
  (void)state;
  for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
    weft_text got = say(server.port, fine[i], strlen(fine[i]));
    if (strstr(got.bytes, "{\"status\":\"ok\"}") == NULL) fail_msg("%s\n%s", fine[i], got.bytes);
    weft_text_free(&got);
  }
  static const char chunks[] = POST
      "Transfer-Encoding: Chunked\r\nConnection: close\r\n\r\n"
      "00a;x=\"y\"\r\n{\"prompt\":\r\n4\r\n\"a\"}\r\n0\r\nTrailer: x\r\n\r\n";
  weft_text got = say(server.port, chunks, sizeof chunks - 1);
  assert_non_null(strstr(got.bytes, "{\"count\":"));
  weft_text_free(&got);
}

/* One head to an answer, each field once, whatever the request and its answer are. */
static void one_head_to_an_answer(void **state) {
  static const char *const fields[] = {
      "\r\nDate: ", "\r\nContent-Type: ", "\r\nX-Request-Id: ", "\r\nContent-Length: "};
  static const char *const asks[] = {
      "HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
      "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\tb\r\nConnection: close\r\n\r\n",
      "DELETE /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: fine\r\nConnection: close\r\n\r\n",
      POST "Content-Length: 9999999\r\n\r\n"};
  (void)state;
  for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
    weft_text got = say(server.port, asks[i], strlen(asks[i]));
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) assert_int_equal(n_of(got.bytes, fields[k]), 1);
    weft_text_free(&got);
  }
}

/* ---- who asks ---- */

static talk_answer ask_as(uint16_t port, const char *method, const char *path, const char *host, const char *headers) {
  weft_text head = {0};
  int fd = talk_dial(port);
  weft_text_printf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, path, host, headers);
  assert_true(talk_write(fd, head.bytes, head.n));
  weft_text_free(&head);
  talk_answer a = talk_receive(fd);
  (void)close(fd);
  return a;
}

static void expect(uint16_t port, const char *path, const char *host, const char *headers, int code, const char *word) {
  talk_answer a = ask_as(port, "GET", path, host, headers);
  if (a.code != code) fail_msg("%s, Host: %s, %s: %d %s", path, host, headers, a.code, a.body.bytes);
  if (word != NULL) assert_non_null(strstr(a.body.bytes, word));
  talk_answer_free(&a);
}

/* A name that somebody else can give to this machine is no name of a server that only this machine reaches. */
static void hosts(void **state) {
  static const char *const own[] = {"localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:1", "127.3.2.1", "[::1]:80",
                                    /* names that containers and homes use, under suffixes that public DNS never has */
                                    "host.docker.internal:8080", "host.containers.internal", "weft.svc.cluster.local",
                                    "Server.Local", "box.home.arpa", "a.test", "app.localhost:3000", "localhost.",
                                    "a.invalid", "a.example:80", "abc.onion", "a.alt", "box.lan", "0.0.0.0:8080",
                                    "[::]",
                                    /* services of docker compose, by one label */
                                    "weft", "ollama:11434", "llm_server", "notinternal", "evil-internal", "gpu0"};
  static const char *const others[] = {"evil.com",
                                       "evil.com:8080",
                                       "127.0.0.1.evil.com",
                                       "localhost.evil.com",
                                       "10.0.0.1",
                                       "[::2]",
                                       "",
                                       "example.com",
                                       "internal.evil.com",
                                       "io",
                                       "0x7f000001",
                                       "2130706433",
                                       "evilinternal.com",
                                       "a.notinternal.com",
                                       "local.evil.com",
                                       "weft.default.svc"};
  (void)state;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) expect(server.port, "/admin/trace", own[i], "", 200, NULL);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    expect(server.port, "/admin/trace", others[i], "", 403, "host_not_allowed");
    expect(server.port, "/v1/models", others[i], "", 403, "host_not_allowed");
  }
  expect(server.port, "http://evil.com/admin/trace", "localhost", "", 403, "host_not_allowed");
  expect(friendly.port, "/v1/models", "chat.example", "", 200, NULL);
  expect(friendly.port, "/v1/models", "a.pages.example", "", 200, NULL);
  expect(friendly.port, "/v1/models", "evil.com", "", 403,
         "host_not_allowed"); /* an app of its own scheme is no host */
}

/* Bodies that are packed, said in the head or seen in the first bytes: the line says what to do. */
static void packed_bodies(void **state) {
  static const char *const codings[] = {"gzip", "deflate", "br", "zstd", "GZIP", "x-gzip", "gzip, br"};
  (void)state;
  for (size_t i = 0; i < sizeof codings / sizeof *codings; i++) {
    char header[64];
    (void)snprintf(header, sizeof header, "Content-Encoding: %s\r\n", codings[i]);
    expect(server.port, "/v1/models", "localhost", header, 415, "send it as it is, without that header field");
  }
  expect(server.port, "/v1/models", "localhost", "Content-Encoding: identity\r\n", 200, NULL);
  expect(server.port, "/v1/models", "localhost", "Content-Encoding:\r\n", 200, NULL);
  static const char *const bodies[] = {"\x1F\x8B\x08", "\x28\xB5\x2F\xFD", "\x78\x9C\x03", "\xEF\xBB\xBF\x1F\x8B"};
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    talk_check(talk_ask(server.port, "POST", "/v1/chat/completions", bodies[i]), 415, "send the JSON as it is");
  }
  /* the mark before a text in UTF-8 is no part of it */
  talk_check(talk_ask(server.port, "POST", "/tokenize", "\xEF\xBB\xBF{\"prompt\":\"a\"}"), 200, "\"count\"");
}

static void origins_of_pages(void **state) {
  char value[64];
  (void)state;
  expect(server.port, "/v1/models", "localhost", "Sec-Fetch-Site: cross-site\r\n", 403, "cross_origin");
  expect(server.port, "/v1/models", "localhost", "Origin: https://chat.example\r\n", 403, "cross_origin");
  expect(server.port, "/v1/models", "localhost", "Origin: null\r\n", 403, "cross_origin");
  expect(server.port, "/v1/models", "localhost", "Sec-Fetch-Site: same-origin\r\n", 200, NULL);
  expect(server.port, "/v1/models", "localhost:80", "Origin: http://localhost:80\r\n", 200, NULL);
  expect(friendly.port, "/v1/models", "localhost", "Origin: https://evil.example\r\n", 403, "cross_origin");
  expect(friendly.port, "/v1/models", "localhost", "Sec-Fetch-Site: cross-site\r\n", 403, "cross_origin");
  talk_answer a = ask_as(friendly.port, "GET", "/v1/models", "localhost",
                         "Origin: https://chat.example\r\nSec-Fetch-Site: cross-site\r\n");
  assert_int_equal(a.code, 200);
  assert_string_equal(talk_header(&a, "Access-Control-Allow-Origin", value, sizeof value), "https://chat.example");
  talk_answer_free(&a);
  const char *preflight = "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n";
  a = ask_as(friendly.port, "OPTIONS", "/v1/chat/completions", "localhost", preflight);
  assert_int_equal(a.code, 204);
  assert_string_equal(talk_header(&a, "Access-Control-Allow-Methods", value, sizeof value), "GET, POST, DELETE");
  talk_answer_free(&a);
  talk_check(ask_as(server.port, "OPTIONS", "/v1/chat/completions", "localhost", preflight), 403, "");
  weft_server *none = NULL;
  weft_error error = {{0}};
  const char *const bad[] = {"chat.example/"};
  weft_server_options where = {.origins = bad, .n_origins = 1};
  assert_int_equal(weft_server_open(&where, server.runtime, &none, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "SCHEME://HOST"));
}

/* A pattern lets in what it says and no more, or the server does not start. */
static void patterns_of_origins(void **state) {
  static const struct {
    const char *origin;
    bool allowed;
  } cases[] = {{"https://a.pages.example", true},    {"https://a.b.pages.example", true},
               {"https://A.Pages.Example", true},    {"https://pages.example", false},
               {"http://a.pages.example", false},    {"https://a.pages.example:8443", false},
               {"https://evilpages.example", false}, {"https://a.pages.example.evil.example", false},
               {"http://dev.example:5173", true},    {"http://dev.example", true},
               {"http://dev.example:5x", false},     {"https://dev.example:5173", false},
               {"app-view://3f2a-b1", true},         {"app-view2://x", false},
               {"http://localhost:3000", true},      {"null", false}};
  static const char *const bad[] = {
      "*",           "https://*",           "http://*:*",         "https://a.*.example", "https://",
      "https://a b", "https://a.example/x", "https://a.example:", "https://*.",          "https://a.example:8x"};
  char value[64];
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weft_text header = {0};
    weft_text_printf(&header, "Origin: %s\r\nSec-Fetch-Site: cross-site\r\n", cases[i].origin);
    talk_answer a = ask_as(friendly.port, "GET", "/v1/models", "localhost", header.bytes);
    if ((a.code == 200) != cases[i].allowed) fail_msg("%s: %d", cases[i].origin, a.code);
    if (a.code == 200) {
      assert_string_equal(talk_header(&a, "Access-Control-Allow-Origin", value, sizeof value), cases[i].origin);
    }
    talk_answer_free(&a);
    weft_text_free(&header);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_server *none = NULL;
    weft_error error = {{0}};
    weft_server_options where = {.origins = &bad[i], .n_origins = 1};
    if (weft_server_open(&where, server.runtime, &none, &error) != WEFT_E_INVALID) fail_msg("%s was taken", bad[i]);
    assert_non_null(strstr(error.text, "SCHEME://HOST"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(patterns_of_origins),   cmocka_unit_test(what_is_refused),
                                     cmocka_unit_test(what_is_too_much),      cmocka_unit_test(what_is_served),
                                     cmocka_unit_test(one_head_to_an_answer), cmocka_unit_test(hosts),
                                     cmocka_unit_test(packed_bodies),         cmocka_unit_test(origins_of_pages)};
  return cmocka_run_group_tests(tests, open_servers, close_servers);
}
