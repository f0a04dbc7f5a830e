/* SPDX-License-Identifier: MIT */
/* Models of a folder over HTTP: the operator loads and unloads them, requests have them loaded, the list of models says
 * what state each is in; who may do what, and what is refused with which line. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/http_conversation.h"

static const char keys_text[] = "sk-red red\nsk-blue blue\nsk-op operator\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const blue = "Authorization: Bearer sk-blue\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

static char folder[64];
static talk server;

static void link_model(const char *from, const char *name) {
  char path[128];
  (void)snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
  assert_int_equal(symlink(from, path), 0);
}

static int open_server(void **state) {
  static const char *const may[] = {"red"};
  const weft_open_options options = {.threads = 2,
                                     .kv_bytes = 8 << 20,
                                     .models_dir = folder,
                                     .models_bytes = 48 << 20,
                                     .sleep_bytes = 48 << 20,
                                     .running = 8,
                                     .load_tenants = may,
                                     .n_load_tenants = 1};
  (void)snprintf(folder, sizeof folder, "/tmp/weft-models-XXXXXX");
  if (mkdtemp(folder) == NULL) return -1;
  link_model(DEMO_AR_MODEL, "weft-demo-ar");
  link_model(WEFT_SOURCE_DIR "/tests/golden/models/ar-dense.gguf", "ar-dense");
  *state = talk_serve(&server, keys_text, options, (weft_server_options){0});
  return 0;
}

static int close_server(void **state) {
  static const char *const linked[] = {"weft-demo-ar", "ar-dense"};
  for (size_t i = 0; i < 2; i++) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s.gguf", folder, linked[i]);
    (void)unlink(path);
  }
  (void)rmdir(folder);
  return close_talk(state);
}

static json_t *ask(const char *who, const char *method, const char *path, const char *body, int code) {
  return talk_json_as(server.port, method, path, who, body, code);
}

static void refused(const char *who, const char *path, const char *body, int code, const char *words) {
  json_t *root = ask(who, "POST", path, body, code);
  const char *message = text_at(root, "error.message");
  if (strstr(message, words) == NULL) fail_msg("%s %s: '%s' lacks '%s'", path, body, message, words);
  json_decref(root);
}

static void is_in(const char *model, const char *state) {
  char path[64];
  (void)snprintf(path, sizeof path, "/v1/models/%s", model);
  json_t *root = ask(red, "GET", path, "", 200);
  assert_string_equal(text_at(root, "state"), state);
  assert_string_equal(text_at(root, "status.value"), strcmp(state, "ready") == 0 ? "loaded" : "unloaded");
  json_decref(root);
}

static void changes(const char *path, const char *model, const char *state) {
  char body[128];
  (void)snprintf(body, sizeof body, "{\"model\":\"%s\"}", model);
  json_t *root = ask(boss, "POST", path, body, 200);
  assert_string_equal(text_at(root, "model"), model);
  assert_string_equal(text_at(root, "state"), state);
  json_decref(root);
  is_in(model, state);
}

#define CHAT(model) \
  "{\"model\":\"" model "\",\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"1 + 2\"}]}"

static void test_states(void **state) {
  (void)state;
  is_in("weft-demo", "ready");
  is_in("weft-demo-ar", "absent");
  changes("/v1/models/load", "weft-demo-ar", "ready");
  changes("/v1/models/load", "weft-demo-ar", "ready"); /* it is there already */
  changes("/v1/models/unload", "weft-demo-ar", "absent");
  changes("/v1/models/unload", "weft-demo-ar", "absent");
  changes("/models/load", "weft-demo-ar", "ready"); /* llama-server's paths */
  changes("/models/unload", "weft-demo-ar", "absent");
  json_t *root = ask(red, "GET", "/v1/models", "", 200);
  assert_int_equal(json_array_size(at(root, "data")), 3);
  json_decref(root);
}

/* A request has its model loaded, of a tenant that may. */
static void test_on_call(void **state) {
  (void)state;
  refused(blue, "/v1/chat/completions", CHAT("weft-demo-ar"), 404, "may not have it loaded");
  is_in("weft-demo-ar", "absent");
  json_decref(ask(red, "POST", "/v1/chat/completions", CHAT("weft-demo-ar"), 200));
  is_in("weft-demo-ar", "ready");
  json_decref(ask(blue, "POST", "/v1/chat/completions", CHAT("weft-demo-ar"), 200));
  json_decref(ask(blue, "POST", "/v1/chat/completions", CHAT("weft-demo"), 200));
  changes("/v1/models/unload", "weft-demo-ar", "absent");
}

static void test_sleep(void **state) {
  (void)state;
  changes("/v1/models/load", "ar-dense", "ready");
  json_decref(ask(boss, "POST", "/sleep", "", 200));
  json_t *root = ask(red, "GET", "/is_sleeping", "", 200);
  assert_true(json_is_true(at(root, "is_sleeping")));
  json_decref(root);
  root = ask(red, "GET", "/v1/models/ar-dense", "", 200);
  assert_string_equal(text_at(root, "state"), "sleeping");
  assert_string_equal(text_at(root, "status.value"), "sleeping");
  json_decref(root);
  json_decref(ask(red, "POST", "/v1/chat/completions", CHAT("weft-demo"), 200)); /* that of --model stays */
  json_decref(ask(boss, "POST", "/wake_up", "", 200));
  is_in("ar-dense", "ready");
  is_in("weft-demo-ar", "absent");
  changes("/v1/models/unload", "ar-dense", "absent");
  json_decref(ask(boss, "POST", "/v1/models/sleep", "{\"model\":\"ar-dense\"}", 200));
  changes("/v1/models/wake", "ar-dense", "ready");
  changes("/v1/models/unload", "ar-dense", "absent");
  /* levels: weights stay in host memory, or are dropped */
  static const struct {
    const char *path, *body;
    bool stays;
  } sleeps[] = {{"/sleep?level=1", "", true},
                {"/sleep?mode=abort&level=2", "", false},
                {"/v1/models/sleep", "{\"model\":\"ar-dense\",\"level\":1}", true},
                {"/v1/models/sleep", "{\"level\":2,\"model\":\"ar-dense\"}", false}};
  for (size_t i = 0; i < sizeof sleeps / sizeof *sleeps; i++) {
    changes("/v1/models/load", "ar-dense", "ready");
    json_decref(ask(boss, "POST", sleeps[i].path, sleeps[i].body, 200));
    root = ask(boss, "POST", "/v1/models/sleep",
               sleeps[i].stays ? "{\"model\":\"ar-dense\"}" : "{\"model\":\"ar-dense\",\"level\":2}", 200);
    assert_true((json_integer_value(at(root, "kept_bytes")) > 0) == sleeps[i].stays);
    json_decref(root);
    json_decref(ask(boss, "POST", "/wake_up?tags=weights", "", 200));
  }
  changes("/v1/models/unload", "ar-dense", "absent");
  static const char *const bad[] = {"?level=0", "?level=3", "?level=", "?level=12", "?level=x"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char path[32];
    (void)snprintf(path, sizeof path, "/sleep%s", bad[i]);
    refused(boss, path, "", 400, "level must be 1");
  }
  refused(boss, "/v1/models/sleep", "{\"model\":\"ar-dense\",\"level\":\"1\"}", 400, "level must be 1");
  refused(boss, "/v1/models/sleep", "{\"model\":\"ar-dense\",\"tags\":1}", 400, "model and level");
  refused(boss, "/v1/models/wake", "{\"model\":\"ar-dense\",\"level\":1}", 400, "level is unknown");
  refused(red, "/sleep", "", 403, "operator");
  refused(red, "/wake_up", "", 403, "operator");
}

static void says_reason(const char *who, const char *body, const char *reason) {
  json_t *root = ask(who, "POST", "/api/generate", body, 200);
  assert_string_equal(text_at(root, "done_reason"), reason);
  assert_true(json_is_true(at(root, "done")));
  json_decref(root);
}

static void await_absent(const char *model) {
  char path[64];
  (void)snprintf(path, sizeof path, "/v1/models/%s", model);
  for (bool gone = false; !gone;) {
    json_t *root = ask(red, "GET", path, "", 200);
    gone = strcmp(text_at(root, "state"), "absent") == 0;
    json_decref(root);
    if (!gone) (void)usleep(1000);
  }
}

static size_t n_loaded(void) {
  json_t *root = ask(red, "GET", "/api/ps", "", 200);
  size_t n = json_array_size(at(root, "models"));
  json_decref(root);
  return n;
}

/* Ollama's way: an empty prompt loads, keep_alive says how long the model stays after its last use. */
static void test_ollama(void **state) {
  (void)state;
  assert_int_equal(n_loaded(), 1);
  talk_check(talk_ask_as(server.port, "POST", "/api/generate", blue, "{\"model\":\"ar-dense\"}"), 404, "may not");
  says_reason(red, "{\"model\":\"ar-dense\"}", "load");
  is_in("ar-dense", "ready");
  assert_int_equal(n_loaded(), 2);
  says_reason(red, "{\"model\":\"ar-dense\",\"keep_alive\":\"1h30m\"}", "load");
  json_t *root = ask(red, "GET", "/api/ps", "", 200), *model;
  size_t k;
  json_array_foreach(at(root, "models"), k, model) {
    bool stays = strcmp(text_at(model, "expires_at"), "9999-12-31T23:59:59Z") == 0;
    assert_true(stays == (strcmp(text_at(model, "name"), "ar-dense") != 0));
  }
  json_decref(root);
  says_reason(blue, "{\"model\":\"ar-dense\",\"keep_alive\":0}", "load"); /* passed over: blue may not */
  is_in("ar-dense", "ready");
  says_reason(red, "{\"model\":\"ar-dense\",\"keep_alive\":0}", "unload");
  await_absent("ar-dense");
  static const char asks[] =
      "{\"model\":\"ar-dense\",\"prompt\":\"a\",\"raw\":true,\"stream\":false,\"keep_alive\":-1,"
      "\"options\":{\"num_predict\":2}}";
  json_decref(ask(red, "POST", "/api/generate", asks, 200));
  is_in("ar-dense", "ready");
  static const char *const bad[] = {"\"soon\"", "\"5x\"", "\"\"", "\"m\"", "true", "\"1h5\"", "[]"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char body[128];
    (void)snprintf(body, sizeof body, "{\"model\":\"ar-dense\",\"keep_alive\":%s}", bad[i]);
    talk_check(talk_ask_as(server.port, "POST", "/api/generate", red, body), 400, "keep_alive");
  }
  changes("/v1/models/unload", "ar-dense", "absent");
}

static void test_counters(void **state) {
  (void)state;
  changes("/v1/models/load", "ar-dense", "ready");
  talk_answer a = talk_ask_as(server.port, "GET", "/metrics", boss, "");
  static const char *const lines[] = {
      "weft_model_ready{model_name=\"ar-dense\"} 1", "weft_model_ready{model_name=\"weft-demo-ar\"} 0",
      "weft_model_load_failures_total{model_name=\"ar-dense\"} 0", "weft_models_bytes 50331648"};
  assert_int_equal(a.code, 200);
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    if (strstr(a.body.bytes, lines[i]) == NULL) fail_msg("/metrics lacks '%s'", lines[i]);
  }
  assert_null(strstr(a.body.bytes, "weft_model_ready{model_name=\"weft-demo\"}"));
  talk_answer_free(&a);
  changes("/v1/models/unload", "ar-dense", "absent");
}

static void test_refusals(void **state) {
  (void)state;
  static const char *const paths[] = {"/v1/models/load", "/v1/models/unload"};
  for (size_t i = 0; i < 2; i++) {
    refused(red, paths[i], "{\"model\":\"weft-demo-ar\"}", 403, "operator");
    refused(boss, paths[i], "{\"model\":\"nobody\"}", 404, "no model is named 'nobody'");
    refused(boss, paths[i], "{}", 400, "model must be the name");
    refused(boss, paths[i], "[]", 400, "the body must be a JSON object");
    refused(boss, paths[i], "{\"model\":7}", 400, "model must be the name");
    refused(boss, paths[i], "{\"model\":\"weft-demo-ar\",\"now\":true}", 400, "now is unknown");
    refused(boss, paths[i], "", 400, "");
  }
  refused(boss, "/v1/models/unload", "{\"model\":\"weft-demo\"}", 400, "stays");
  is_in("weft-demo", "ready");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_states),   cmocka_unit_test(test_on_call),
                                     cmocka_unit_test(test_sleep),    cmocka_unit_test(test_ollama),
                                     cmocka_unit_test(test_counters), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, open_server, close_server);
}
