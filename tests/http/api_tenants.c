/* SPDX-License-Identifier: MIT */
/* The file of keys is read again while two replicas of two models are under load: tenants that come, change, go and
 * come back, places that run out, files with a fault. No running stream of anybody is touched, and nobody is shown what
 * is another's. */
#include <pthread.h>

#include "tests/support/http_conversation.h"

#include "api/runtime.h"

static const char first_file[] = "sk-red red\nsk-blue blue\nsk-op operator\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const blue = "Authorization: Bearer sk-blue\r\n";
static const char *const green = "Authorization: Bearer sk-green\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

enum { SPARE = 2, LOADS = 3, ASKED = 12 };

static talk server;
static char path[] = "/tmp/weft-tenants-XXXXXX";

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL, DEMO_MODEL};
  const weft_open_options options = {.models = models,
                                     .n_models = 2,
                                     .backend = "cpu",
                                     .threads = 2,
                                     .tenants = SPARE,
                                     .kv_bytes = 8 << 20,
                                     .context = 512,
                                     .running = 4,
                                     .queue = 32,
                                     .devices = "0,1",
                                     .split = "replicas"};
  int file = mkstemp(path);
  assert_true(file >= 0);
  (void)close(file);
  *state = talk_serve(&server, first_file, options, (weft_server_options){0});
  return 0;
}

static int close_server(void **state) {
  (void)unlink(path);
  return close_talk(state);
}

static void change_tenant(void *self, uint32_t tenant, const weft_tenant_options *options) {
  weft_server_change_tenant(self, tenant, options);
}

/* What SIGHUP does. */
static weft_status reload(const char *text, weft_error *error) {
  const weft_keys_listener listener = {.change = change_tenant, .self = server.server};
  const weft_keys_source source = {.path = path};
  weft_keys_news news;
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
  *error = (weft_error){{0}};
  return weft_keys_reload(server.keys, &source, &listener, &news, error);
}

static void hang_up(const char *text) {
  weft_error error;
  if (reload(text, &error) != WEFT_OK) fail_msg("%s", error.text);
}

/* ---- asking ---- */

static talk_answer say(const char *who, const char *model, const char *prompt, uint32_t n, const char *more) {
  char body[512];
  (void)snprintf(body, sizeof body,
                 "{\"prompt\":\"%s\",\"max_tokens\":%u,\"temperature\":0,\"seed\":7,\"model\":\"%s\"%s}", prompt, n,
                 model, more);
  return talk_ask_as(server.port, "POST", "/v1/completions", who, body);
}

static talk_answer say_ar(const char *who, uint32_t n) {
  return say(who, "weft-demo-ar", "The red boat", n, ",\"ignore_eos\":true");
}

static int code_of(const char *who) {
  talk_answer a = say_ar(who, 1);
  int code = a.code;
  talk_answer_free(&a);
  return code;
}

static double metric(const char *name) {
  return talk_metric_as(server.port, boss, name);
}

/* The object of a tenant in what the operator sees; the caller drops *root. */
static json_t *tenant_in_stats(const char *name, json_t **root) {
  talk_answer a = talk_ask_as(server.port, "GET", "/stats", boss, "");
  assert_int_equal(a.code, 200);
  *root = json_loads(a.body.bytes, 0, NULL);
  talk_answer_free(&a);
  json_t *tenants = at(*root, "tenants");
  for (size_t i = 0; i < json_array_size(tenants); i++) {
    json_t *tenant = json_array_get(tenants, i);
    if (strcmp(text_at(tenant, "name"), name) == 0) return tenant;
  }
  return NULL;
}

static void check_stats(const char *name, json_int_t weight, json_int_t tokens_per_minute) {
  json_t *root, *tenant = tenant_in_stats(name, &root);
  assert_non_null(tenant);
  assert_int_equal(int_at(tenant, "weight"), weight);
  if (tokens_per_minute > 0) assert_int_equal(int_at(tenant, "limits.tokens_per_minute"), tokens_per_minute);
  json_decref(root);
}

/* ---- load: each answer is the one that it would be alone ---- */

static char *alone[2]; /* by model */

static char *text_of(talk_answer *a) {
  if (a->code != 200) fail_msg("%d %s", a->code, a->body.bytes);
  json_t *root = json_loads(a->body.bytes, 0, NULL);
  char *text = strdup(text_at(root, "choices.0.text"));
  json_decref(root);
  talk_answer_free(a);
  return text;
}

static talk_answer ask_load(uint32_t i) {
  return i % 2 == 0 ? say_ar(red, 40) : say(red, "weft-demo", "Put in falling order: 5, 120, 41", 32, "");
}

/* Gives back how many answers differ. */
static void *run_load(void *self) {
  uintptr_t n_other = 0;
  for (uint32_t i = 0; i < ASKED; i++) {
    talk_answer a = ask_load(i + (uint32_t)(uintptr_t)self);
    char *text = a.code == 200 ? text_of(&a) : NULL;
    if (text == NULL) talk_answer_free(&a);
    n_other += text == NULL || strcmp(text, alone[(i + (uint32_t)(uintptr_t)self) % 2]) != 0;
    free(text);
  }
  return (void *)n_other;
}

static pthread_t load[LOADS];

static void begin_load(void) {
  for (uint32_t i = 0; i < 2; i++) {
    talk_answer a = ask_load(i);
    alone[i] = text_of(&a);
  }
  for (uintptr_t i = 0; i < LOADS; i++) assert_int_equal(pthread_create(&load[i], NULL, run_load, (void *)i), 0);
}

static void end_load(void) {
  for (uint32_t i = 0; i < LOADS; i++) {
    void *n_other;
    assert_int_equal(pthread_join(load[i], &n_other), 0);
    assert_null(n_other);
  }
  free(alone[0]);
  free(alone[1]);
}

/* A stream whose first bytes have come. */
static int begin_stream(const char *who, weft_text *heard) {
  static const char body[] =
      "{\"prompt\":\"A blue boat\",\"max_tokens\":300,\"ignore_eos\":true,\"temperature\":0,"
      "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"model\":\"weft-demo-ar\"}";
  char head[160];
  int fd = talk_dial(server.port);
  (void)snprintf(head, sizeof head, "%sConnection: close\r\n", who);
  talk_send(fd, "POST", "/v1/completions", head, body, sizeof body - 1);
  while (heard->bytes == NULL || strstr(heard->bytes, "data: ") == NULL) assert_true(talk_read(fd, heard, TALK_MS) > 0);
  return fd;
}

/* It came to its own end. */
static void end_stream(int fd, weft_text *heard) {
  while (talk_read(fd, heard, TALK_MS) > 0) continue;
  (void)close(fd);
  if (strstr(heard->bytes, "\"completion_tokens\":300") == NULL || strstr(heard->bytes, "[DONE]") == NULL)
    fail_msg("the stream ended otherwise: %s", heard->bytes + (heard->n > 600 ? heard->n - 600 : 0));
  weft_text_free(heard);
}

/* ---- what is shown ---- */

static void test_tenants_come_change_and_go_under_load(void **state) {
  weft_text heard = {0};
  (void)state;
  begin_load();
  int fd = begin_stream(blue, &heard);
  assert_int_equal(code_of(green), 401);
  hang_up("sk-red red weight=3\nsk-blue blue\nsk-op operator\nsk-green green weight=2 tokens-per-minute=50\n");
  check_stats("red", 3, 0);
  check_stats("green", 2, 50);
  talk_check(say_ar(green, 60), 400, "more than this tenant's 50 a minute");
  assert_int_equal(code_of(green), 200);
  assert_true(metric("weft_tenant_requests_total{tenant=\"green\"}") >= 0);
  hang_up("sk-red red weight=3\nsk-op operator\nsk-green green\n"); /* blue goes, while its stream runs */
  assert_int_equal(code_of(blue), 401);
  talk_check(say_ar(green, 60), 200, "\"completion_tokens\":60");
  end_stream(fd, &heard);
  end_load();
  assert_int_equal(code_of(blue), 401);
  hang_up("sk-red red\nsk-op operator\nsk-green green\nsk-blue blue queued=3\n"); /* and is back, as who it was */
  assert_int_equal(code_of(blue), 200);
  check_stats("red", 1, 0);
  assert_true(metric("weft_tenant_completion_tokens_total{tenant=\"blue\"}") >= 300);
}

/* What a new tenant is shown is its own: no counts, no cached prefix, no kept response of anybody. */
static void test_a_new_tenant_begins_with_nothing(void **state) {
  static const char *const white = "Authorization: Bearer sk-white\r\n";
  static const char ask[] =
      "{\"input\":\"The red boat and the soft ball went on for a long way, and the blue boat came "
      "after them all\",\"max_output_tokens\":8,\"model\":\"weft-demo-ar\",\"temperature\":0}";
  char get[128];
  (void)state;
  talk_answer a = talk_ask_as(server.port, "POST", "/v1/responses", red, ask);
  assert_int_equal(a.code, 200);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  const char *id = text_at(root, "id");
  (void)snprintf(get, sizeof get, "/v1/responses/%s", id == NULL ? "" : id);
  json_decref(root);
  talk_answer_free(&a);
  hang_up("sk-red red\nsk-op operator\nsk-green green\nsk-white white\n");
  talk_check(talk_ask_as(server.port, "GET", get, red, ""), 200, "\"id\"");
  a = talk_ask_as(server.port, "GET", get, white, "");
  assert_int_equal(a.code, 404);
  talk_answer_free(&a);
  a = talk_ask_as(server.port, "GET", "/stats", white, "");
  assert_int_equal(a.code, 200);
  assert_null(strstr(a.body.bytes, "\"red\""));
  root = json_loads(a.body.bytes, 0, NULL);
  assert_int_equal(int_at(root, "tenants.0.prompt_tokens"), 0);
  assert_int_equal(int_at(root, "tenants.0.pages_cached"), 0);
  json_decref(root);
  talk_answer_free(&a);
  a = talk_ask_as(server.port, "POST", "/v1/responses", white, ask);
  assert_int_equal(a.code, 200);
  root = json_loads(a.body.bytes, 0, NULL);
  assert_int_equal(int_at(root, "usage.input_tokens_details.cached_tokens"), 0);
  json_decref(root);
  talk_answer_free(&a);
}

static void test_what_cannot_be_taken_changes_nothing(void **state) {
  static const struct {
    const char *text, *words;
  } rows[] = {{"sk-red red weight=9\nsk-op operator\nsk-a one\n", ":3: there is no place for the new tenant one"},
              {"sk-red red weight=9\nsk-op operator class=best\n", ":2: class is low, normal or high"},
              {"sk-red red weight=9\nsk-op operator\nsk-op red\n", ":3: this key is there twice"}};
  weft_text heard = {0};
  (void)state;
  int fd = begin_stream(red, &heard);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_error error;
    assert_true(reload(rows[i].text, &error) != WEFT_OK);
    if (strstr(error.text, rows[i].words) == NULL) fail_msg("'%s' does not say '%s'", error.text, rows[i].words);
    check_stats("red", 1, 0);
    assert_int_equal(code_of(green), 200);
    assert_int_equal(code_of("Authorization: Bearer sk-a\r\n"), 401);
  }
  end_stream(fd, &heard);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_tenants_come_change_and_go_under_load),
                                     cmocka_unit_test(test_a_new_tenant_begins_with_nothing),
                                     cmocka_unit_test(test_what_cannot_be_taken_changes_nothing)};
  return cmocka_run_group_tests(tests, open_server, close_server);
}
