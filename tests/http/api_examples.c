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

enum { ARGS_MAX = 64 };

/* The arguments of the container, as its process gets them: one a line, between `args:` and `env:`. */
static uint32_t read_args(const char *yaml, char arg[ARGS_MAX][WORD_MAX]) {
  const char *at = strstr(yaml, "args:\n"), *end = strstr(yaml, "env:\n");
  uint32_t n = 0;
  assert_true(at != NULL && end > at);
  for (at = strchr(at, '\n') + 1; at < end; at = strchr(at, '\n') + 1) {
    int length = 0;
    if (sscanf(at, " - %127s%n", arg[n], &length) != 1 || length == 0) continue;
    assert_true(n + 1 < ARGS_MAX);
    size_t size = strlen(arg[n]);
    if (arg[n][0] == '"') { /* a number must be text there */
      memmove(arg[n], arg[n] + 1, size);
      arg[n][size - 2] = 0;
    }
    n += 1;
  }
  return n;
}

/* The number behind a word of a file, wherever it stands; it is the same everywhere. */
static uint32_t number_of(const char *yaml, const char *pattern) {
  regex_t re;
  regmatch_t m[2];
  uint32_t number = 0, n = 0;
  assert_int_equal(regcomp(&re, pattern, REG_EXTENDED), 0);
  for (; regexec(&re, yaml, 2, m, 0) == 0; yaml += m[0].rm_eo, n++) {
    uint32_t this = (uint32_t)strtoul(yaml + m[1].rm_so, NULL, 10);
    if (n > 0 && this != number) fail_msg("%s: %u and %u", pattern, number, this);
    number = this;
  }
  regfree(&re);
  if (n == 0) fail_msg("no %s", pattern);
  return number;
}

static uint32_t port_of(const char *endpoint) {
  return (uint32_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
}

/* The server's options are those of the program, their values are taken, and all that names a port means theirs. */
static void check_pods(const weft_config *c, const char *pods, const char *router) {
  assert_int_equal(number_of(pods, "name: http\n +containerPort: ([0-9]+)"), c->port);
  assert_int_equal(number_of(pods, "name: events\n +containerPort: ([0-9]+)"), port_of(c->kv_events));
  assert_int_equal(number_of(pods, "name: replay\n +containerPort: ([0-9]+)"), port_of(c->kv_events_replay));
  assert_int_equal(number_of(pods, "[^a-zA-Z]port: ([0-9]+)"), c->port);
  assert_int_equal(number_of(router, "targetPorts:\n +- number: ([0-9]+)"), c->port);
  assert_int_equal(number_of(router, "url: http://weft:([0-9]+)"), c->port);
  assert_int_equal(number_of(router, "[^a-z]socketPort: ([0-9]+)"), port_of(c->kv_events));
  assert_int_equal(number_of(router, "replaySocketPort: ([0-9]+)"), port_of(c->kv_events_replay));
  assert_true(number_of(pods, "terminationGracePeriodSeconds: ([0-9]+)") > c->lame_duck_seconds + c->drain_seconds);
  assert_true(c->public_metrics); /* who scrapes has no key */
}

/* What the endpoint picker takes topics apart by: kv@POD:PORT@MODEL. */
static void check_topic(const weft_config *c, const char *router) {
  char filter[WORD_MAX], model[WORD_MAX];
  const char *at = strstr(router, "topicFilter:"), *name = strstr(router, "modelName:");
  assert_true(at != NULL && sscanf(at, "topicFilter: %127s", filter) == 1);
  assert_true(strncmp(c->kv_events_topic, filter, strlen(filter)) == 0);
  assert_string_equal(c->kv_events_topic, "kv@$(POD_IP):8000@{model}");
  assert_int_equal(port_of(c->kv_events_topic), c->port);
  assert_true(name != NULL && sscanf(name, "modelName: %127s", model) == 1 && c->served_names.n == 1);
  assert_string_equal(model, c->served_names.item[0]);
}

static void is_label_of_cache(const char *name) {
  char label[WORD_MAX + 4];
  talk_answer a = talk_ask(port, "GET", "/metrics", "");
  const char *at = strstr(a.body.bytes, "\nvllm:cache_config_info{"), *found;
  (void)snprintf(label, sizeof label, "%s=\"", name);
  assert_non_null(at);
  found = strstr(at + 1, label);
  if (found == NULL || found > strchr(at + 1, '\n')) fail_msg("vllm:cache_config_info has no label %s", name);
  talk_answer_free(&a);
}

static void test_kubernetes(void **state) {
  weft_text pods = read_example("kubernetes/weft.yaml"), router = read_example("kubernetes/llm-d.yaml");
  char arg[ARGS_MAX][WORD_MAX], *argv[ARGS_MAX + 2] = {(char[]){"--config"}, (char[]){"/dev/null"}};
  weft_config config;
  weft_error error = {{0}};
  (void)state;
  uint32_t n = read_args(pods.bytes, arg);
  assert_true(n > 10);
  for (uint32_t i = 0; i < n; i++) argv[2 + i] = arg[i];
  weft_status status = weft_config_parse(&config, NULL, WEFT_CMD_SERVE, (int)n + 2, argv, &error);
  if (status != WEFT_OK) fail_msg("%s", error.text);
  check_pods(&config, pods.bytes, router.bytes);
  check_topic(&config, router.bytes);
  check_all(pods.bytes, "path: (/[a-z/]+)", 4, is_path);
  check_all(router.bytes, "path: (/[a-z/]+)", 1, is_path);
  check_all(router.bytes, "[ \"](/v1/[a-z/]*)", 3, is_path);
  check_all(router.bytes, "(vllm:[a-z_]+)", 4, is_metric);
  check_all(router.bytes, "LabelName: ([a-z_]+)", 2, is_label_of_cache);
  weft_config_free(&config);
  weft_text_free(&pods);
  weft_text_free(&router);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ray_serve), cmocka_unit_test(test_kubernetes)};
  return cmocka_run_group_tests(tests, open_server, close_server);
}
#endif
