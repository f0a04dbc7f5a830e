/* SPDX-License-Identifier: MIT */
/* What docs/examples asks of a server is there: every option of `weft serve` that an example gives, every metric that
 * it reads, every path that it asks, every member that it takes of an answer. The examples themselves run elsewhere,
 * or nowhere, as docs/fleet.md says. */
#include "tests/support/http_conversation.h"

#ifndef WEFT_KV_EVENTS
int main(void) {
  puts("left out: built without libzmq and libmsgpack");
  return 77;
}
#else
#include <regex.h>

#include "api/config.h"
#include "api/events/kv_events.h"
#include "api/server/router.h"

enum { WORD_MAX = 128 };

static weft_runtime *runtime;
static weft_server *server;
static kv_events *events;
static uint16_t port;

static int open_server(void **state) {
  static const char *const models[] = {DEMO_MODEL};
  const weft_open_options options = {.models = models,
                                     .n_models = 1,
                                     .threads = 1,
                                     .kv_bytes = 4 << 20,
                                     .context = 256,
                                     .quiet = true,
                                     .prefix_feed = true};
  weft_error error = {{0}};
  char line[512] = "";
  (void)state;
  (void)signal(SIGPIPE, SIG_IGN);
  if (weft_open(&options, &runtime, line, sizeof line) != 0) fail_msg("%s", line);
  const kv_events_options where = {.endpoint = "tcp://127.0.0.1:*", .replay = "tcp://127.0.0.1:*"};
  if (kv_events_open(&where, runtime, &events, &error) != WEFT_OK) fail_msg("%s", error.text);
  if (weft_server_open(&(weft_server_options){.events = events}, runtime, &server, &error) != WEFT_OK)
    fail_msg("%s", error.text);
  port = (uint16_t)weft_server_port(server);
  return 0;
}

static int close_server(void **state) {
  (void)state;
  weft_server_close(server);
  kv_events_close(events);
  weft_close(runtime);
  return 0;
}

/* The text of a file of docs/examples. */
static weft_text read_example(const char *name) {
  char path[256], part[4096];
  weft_text text = {0};
  (void)snprintf(path, sizeof path, "%s/docs/examples/%s", WEFT_SOURCE_DIR, name);
  FILE *f = fopen(path, "r");
  if (f == NULL) fail_msg("%s: %s", path, strerror(errno));
  for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) weft_text_append(&text, part, n);
  (void)fclose(f);
  assert_int_equal(weft_text_status(&text), WEFT_OK);
  return text;
}

/* Calls check with the first group of each place where the pattern stands. At least n_least: an example that says
 * nothing of a kind any more is to be looked at, too. */
static void check_all(const char *text, const char *pattern, uint32_t n_least, void (*check)(const char *word)) {
  regex_t re;
  regmatch_t m[2];
  uint32_t n = 0;
  assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NEWLINE), 0);
  for (; regexec(&re, text, 2, m, 0) == 0; text += m[0].rm_eo, n++) {
    char word[WORD_MAX];
    int length = (int)(m[1].rm_eo - m[1].rm_so);
    assert_true(length > 0 && length < WORD_MAX);
    (void)snprintf(word, sizeof word, "%.*s", length, text + m[1].rm_so);
    check(word);
  }
  regfree(&re);
  if (n < n_least) fail_msg("%s: %u times, of %u at least", pattern, n, n_least);
}

/* ---- what a word may be ---- */

static void is_option(const char *name) {
  const weft_option *o;
  uint32_t at = 0;
  while ((o = weft_config_next(NULL, WEFT_CMD_SERVE, &at)) != NULL)
    if (strcmp(o->name, name) == 0) return;
  fail_msg("weft serve has no option --%s", name);
}

static void is_metric(const char *name) {
  char line[WORD_MAX + 4];
  talk_answer a = talk_ask(port, "GET", "/metrics", "");
  (void)snprintf(line, sizeof line, "\n%s{", name);
  if (strstr(a.body.bytes, line) == NULL) fail_msg("/metrics has no %s", name);
  talk_answer_free(&a);
}

/* A path that is asked for, or, with a slash at its end, the beginning of some. */
static void is_path(const char *path) {
  size_t n = strlen(path);
  bool found = false;
  for (uint32_t i = 0; i < weft_n_endpoints; i++) {
    const char *there = weft_endpoints[i].path;
    found = found || (path[n - 1] == '/' ? strncmp(there, path, n) == 0 : strcmp(there, path) == 0);
  }
  if (!found) fail_msg("nothing is served at %s", path);
}

static void has_member(const char *path, const char *at, const char *name) {
  talk_answer a = talk_ask(port, "GET", path, "");
  json_t *root = json_loads(a.body.bytes, 0, NULL), *of = *at == 0 ? root : json_object_get(root, at);
  if (json_object_get(of, name) == NULL) fail_msg("%s says no %s", path, name);
  json_decref(root);
  talk_answer_free(&a);
}

static void is_of_server_info(const char *name) {
  has_member("/server_info", "", name);
}

static void is_of_event_source(const char *name) {
  has_member("/kv_event_sources", "0", name);
}

/* ---- the examples ---- */

static void test_ray_serve(void **state) {
  weft_text text = read_example("ray_serve/weft_serve.py");
  (void)state;
  check_all(text.bytes, "\"--([a-z-]+)\"", 7, is_option);
  check_all(text.bytes, "(vllm:[a-z_]+)", 3, is_metric);
  check_all(text.bytes, "\"(/[a-z0-9_/]+)\"", 5, is_path);
  check_all(text.bytes, "about\\[\"([a-z_]+)\"\\]", 1, is_of_server_info);
  check_all(text.bytes, "source\\[\"0\"\\]\\[\"([a-z_]+)\"\\]", 2, is_of_event_source);
  weft_text_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ray_serve)};
  return cmocka_run_group_tests(tests, open_server, close_server);
}
#endif
