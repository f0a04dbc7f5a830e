/* SPDX-License-Identifier: MIT */
/* The page at / and its files: who gets which, with which headers, with and without keys, and where it is off. */
#include "api/server/page.h"
#include "tests/support/http_conversation.h"

static const char line[] = "weft is here. For programs that look for it: Ollama is running\n";
static const char keys_text[] = "sk-red red\nsk-op operator\n";

static const weft_page_file *first_file(void) {
  const weft_page_file *file = weft_page_find("/index.html");
  assert_non_null(file);
  return file;
}

static bool is_file(const talk_answer *a, const weft_page_file *file) {
  return a->body.n == file->n && memcmp(a->body.bytes, file->bytes, file->n) == 0;
}

static void check_head(const talk_answer *a, const weft_page_file *file) {
  static const char *const rows[][2] = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri "
       "'none'; frame-ancestors 'none'; form-action 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cache-Control", "no-cache"}};
  char value[256];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_string_equal(talk_header(a, rows[i][0], value, sizeof value), rows[i][1]);
  assert_string_equal(talk_header(a, "ETag", value, sizeof value), file->tag);
}

/* The page is for who says that it reads HTML; Ollama's clients, curl and the like get the line that they look for. */
static void test_root(void **state) {
  static const struct {
    const char *headers;
    bool page;
  } rows[] = {{"", false},
              {"Accept: */*\r\n", false},
              {"Accept: application/json, text/plain, */*\r\n", false},
              {"Accept: text/html;q=0, */*\r\n", false},
              {"Accept: text/html ;q=0.000\r\n", false},
              {"Accept: text/htmlx\r\n", false},
              {"Accept: text/htm\r\n", false},
              {"Accept: ,,;q,\r\n", false},
              {"Accept: text/html\r\n", true},
              {"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n", true},
              {"Accept: application/json, TEXT/HTML;q=0.01\r\n", true}};
  talk *t = *state;
  char value[128];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    talk_answer a = talk_ask_as(t->port, "GET", "/", rows[i].headers, "");
    assert_int_equal(a.code, 200);
    assert_string_equal(talk_header(&a, "Vary", value, sizeof value), "Accept, Origin");
    if (is_file(&a, first_file()) != rows[i].page) fail_msg("'%s' gave: %.80s", rows[i].headers, a.body.bytes);
    if (rows[i].page) check_head(&a, first_file());
    if (!rows[i].page) assert_string_equal(a.body.bytes, line);
    talk_answer_free(&a);
  }
}

/* HEAD says what GET would, without a body: the next request on the connection is answered in its place. */
static void test_head(void **state) {
  talk *t = *state;
  for (int page = 0; page < 2; page++) {
    char value[64];
    int fd = talk_dial(t->port);
    talk_send(fd, "HEAD", "/", page == 1 ? "Accept: text/html\r\n" : "", "", 0);
    weft_text raw = {0};
    while (raw.n == 0 || strstr(raw.bytes, "\r\n\r\n") == NULL) assert_true(talk_read(fd, &raw, TALK_MS) > 0);
    talk_answer a = {.head = raw};
    assert_memory_equal(raw.bytes, "HTTP/1.1 200 OK\r\n", 17);
    assert_string_equal(strstr(raw.bytes, "\r\n\r\n"), "\r\n\r\n");
    size_t n = strtoul(talk_header(&a, "Content-Length", value, sizeof value), NULL, 10);
    assert_int_equal(n, page == 1 ? first_file()->n : sizeof line - 1);
    talk_check(talk_ask_on(fd, "GET", "/version", "", ""), 200, "version");
    weft_text_free(&raw);
  }
}

static void test_files(void **state) {
  talk *t = *state;
  for (const weft_page_file *file = weft_page_files; file->name != NULL; file++) {
    char path[256], tag[128], value[256];
    (void)snprintf(path, sizeof path, "/%s", file->name);
    talk_answer a = talk_ask(t->port, "GET", path, "");
    assert_int_equal(a.code, 200);
    assert_true(is_file(&a, file));
    check_head(&a, file);
    assert_string_equal(talk_header(&a, "Content-Type", value, sizeof value), file->type);
    talk_answer_free(&a);
    /* the same file again: no body, and the connection goes on */
    (void)snprintf(tag, sizeof tag, "If-None-Match: \"other\", W/%s\r\n", file->tag);
    int fd = talk_dial(t->port);
    talk_send(fd, "GET", path, tag, "", 0);
    weft_text raw = {0};
    while (raw.n == 0 || strstr(raw.bytes, "\r\n\r\n") == NULL) assert_true(talk_read(fd, &raw, TALK_MS) > 0);
    assert_memory_equal(raw.bytes, "HTTP/1.1 304 Not Modified\r\n", 27);
    assert_null(strstr(raw.bytes, "Content-Length"));
    assert_string_equal(strstr(raw.bytes, "\r\n\r\n"), "\r\n\r\n");
    weft_text_free(&raw);
    a = talk_ask_on(fd, "GET", path, "If-None-Match: \"0123\"\r\n", "");
    assert_int_equal(a.code, 200);
    talk_answer_free(&a);
    talk_check(talk_ask(t->port, "POST", path, "{}"), 405, "method_not_allowed");
  }
  talk_check(talk_ask(t->port, "GET", "/page.exe", ""), 404, "unknown_url");
  talk_check(talk_ask(t->port, "GET", "/../api/page/index.html", ""), 404, "unknown_url");
}

/* A page behind a proxy's path, and one that asks nobody else: all that it loads is named relative to itself. */
static void test_addresses_are_relative(void **state) {
  static const char *const names[] = {"src=\"", "href=\""};
  const weft_page_file *file = first_file();
  char *text = strndup((const char *)file->bytes, file->n);
  (void)state;
  assert_non_null(text);
  for (size_t i = 0; i < 2; i++) {
    for (const char *at = text; (at = strstr(at, names[i])) != NULL;) {
      at += strlen(names[i]);
      size_t n = strcspn(at, "\"");
      if (*at == '/' || memmem(at, n, "//", 2) != NULL) fail_msg("index.html loads %.*s", (int)n, at);
    }
  }
  free(text);
}

/* The files need no key, whatever the client sends for one; what they ask for does. */
static void test_keys(void **state) {
  talk t;
  (void)state;
  (void)talk_serve(&t, keys_text, (weft_open_options){0}, (weft_server_options){0});
  static const char *const headers[] = {"Accept: text/html\r\n",
                                        "Accept: text/html\r\nAuthorization: Bearer wrong\r\n"};
  for (size_t i = 0; i < 2; i++) {
    talk_answer a = talk_ask_as(t.port, "GET", "/", headers[i], "");
    assert_int_equal(a.code, 200);
    assert_true(is_file(&a, first_file()));
    talk_answer_free(&a);
    talk_answer b = talk_ask_as(t.port, "GET", "/v1/models", headers[i], "");
    assert_int_equal(b.code, 401);
    talk_answer_free(&b);
  }
  /* a page of another site neither loads it nor reads it */
  talk_check(talk_ask_as(t.port, "GET", "/", "Accept: text/html\r\nOrigin: https://evil.example\r\n", ""), 403,
             "cross_origin");
  /* but a person may follow its link */
#define VISIT "Accept: text/html\r\nSec-Fetch-Site: cross-site\r\n"
  talk_check(talk_ask_as(t.port, "GET", "/", VISIT "Sec-Fetch-Dest: document\r\n", ""), 200, "<html");
  talk_check(talk_ask_as(t.port, "GET", "/", VISIT "Sec-Fetch-Dest: iframe\r\n", ""), 403, "cross_origin");
  talk_check(talk_ask_as(t.port, "GET", "/", VISIT, ""), 403, "cross_origin");
  talk_check(talk_ask_as(t.port, "GET", "/metrics", VISIT "Sec-Fetch-Dest: document\r\n", ""), 403, "cross_origin");
  talk_close(&t);
}

static void test_off(void **state) {
  talk t;
  (void)state;
  (void)talk_serve(&t, NULL, (weft_open_options){0}, (weft_server_options){.no_page = true});
  talk_check(talk_ask_as(t.port, "GET", "/", "Accept: text/html\r\n", ""), 200, line);
  talk_check(talk_ask(t.port, "GET", "/index.html", ""), 404, "--no-page");
  talk_close(&t);
}

static int open_server(void **state) {
  static talk t;
  *state = talk_serve(&t, NULL, (weft_open_options){0}, (weft_server_options){0});
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_root), cmocka_unit_test(test_head),
                                     cmocka_unit_test(test_files)};
  const struct CMUnitTest alone[] = {cmocka_unit_test(test_addresses_are_relative), cmocka_unit_test(test_keys),
                                     cmocka_unit_test(test_off)};
  int failed = cmocka_run_group_tests_name("http/api_page", tests, open_server, close_talk);
  return failed + cmocka_run_group_tests_name("http/api_page alone", alone, NULL, NULL);
}
