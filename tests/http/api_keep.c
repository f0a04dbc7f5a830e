/* SPDX-License-Identifier: MIT */
/* Kept prefixes over HTTP: who may save and load them, what is refused, and what is told. */
#include "tests/support/http_conversation.h"

static const char keys_text[] = "sk-red red\nsk-op operator\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

static talk server, plain;
static char path[256];

static int open_servers(void **state) {
  static const char *const kept[] = {"red"};
  (void)snprintf(path, sizeof path, "%s/http-kept-%d", WEFT_BINARY_DIR, (int)getpid());
  const weft_open_options options = {.threads = 2,
                                     .kv_bytes = 8 << 20,
                                     .host_bytes = 4 << 20,
                                     .spill_file = path,
                                     .spill_bytes = 8 << 20,
                                     .keep = kept,
                                     .n_keep = 1};
  talk_serve(&plain, NULL, (weft_open_options){.threads = 1, .kv_bytes = 8 << 20}, (weft_server_options){0});
  *state = talk_serve(&server, keys_text, options, (weft_server_options){0});
  return 0;
}

static int close_servers(void **state) {
  char copy[300];
  talk_close(&plain);
  int bad = close_talk(state);
  (void)snprintf(copy, sizeof copy, "%s.monday", path);
  (void)unlink(copy);
  (void)unlink(path);
  return bad;
}

static json_t *ask(const talk *t, const char *who, const char *where, const char *body, int code) {
  return talk_json_as(t->port, "POST", where, who, body, code);
}

static void refused(const talk *t, const char *who, const char *where, const char *body, int code, const char *words) {
  json_t *root = ask(t, who, where, body, code);
  const char *message = text_at(root, "error.message");
  if (strstr(message, words) == NULL) fail_msg("%s: '%s' lacks '%s'", body, message, words);
  json_decref(root);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  refused(&server, red, "/admin/prefixes/save", "", 403, "operator");
  refused(&server, red, "/admin/prefixes/load", "{\"name\":\"x\"}", 403, "operator");
  refused(&server, boss, "/admin/prefixes/save", "[]", 400, "object");
  refused(&server, boss, "/admin/prefixes/save", "{\"path\":\"x\"}", 400, "path is unknown");
  refused(&server, boss, "/admin/prefixes/save", "{\"name\":7}", 400, "name must be a string");
  refused(&server, boss, "/admin/prefixes/save", "{\"name\":\"../keys\"}", 400, "begins with a letter");
  refused(&server, boss, "/admin/prefixes/load", "", 400, "name the copy");
  refused(&server, boss, "/admin/prefixes/load", "{\"name\":\"sunday\"}", 500, "No such file");
  refused(&plain, "", "/admin/prefixes/save", "", 409, "start the server with --keep");
}

static void prefixes_are_saved_and_loaded(void **state) {
  (void)state;
  const char *question =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Put in falling order: 5, 120, 41, 7, 99, 12, 81, 6, 44, 19, 3, "
      "77, 28, 64, 35, 50, 91, 16, 2, 70\"}],\"mode\":\"autoregressive\",\"temperature\":0,\"max_tokens\":8}";
  json_t *first = ask(&server, red, "/v1/chat/completions", question, 200);
  json_t *saved = ask(&server, boss, "/admin/prefixes/save", "{\"name\":\"monday\"}", 200);
  assert_true(int_at(saved, "blocks") > 0 && int_at(saved, "bytes") > 0);
  json_t *again = ask(&server, boss, "/admin/prefixes/save", "", 200);
  assert_int_equal(int_at(again, "blocks"), int_at(saved, "blocks"));
  json_decref(ask(&server, boss, "/reset_prefix_cache", "", 200));
  json_t *empty = ask(&server, boss, "/admin/prefixes/save", "", 200);
  assert_int_equal(int_at(empty, "blocks"), 0);
  json_t *loaded = ask(&server, boss, "/admin/prefixes/load", "{\"name\":\"monday\"}", 200);
  assert_int_equal(int_at(loaded, "blocks"), int_at(saved, "blocks"));
  json_t *second = ask(&server, red, "/v1/chat/completions", question, 200);
  assert_string_equal(text_at(first, "choices.0.message.content"), text_at(second, "choices.0.message.content"));
  json_t *all[] = {first, saved, again, empty, loaded, second};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) json_decref(all[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_cannot_be_is_refused),
                                     cmocka_unit_test(prefixes_are_saved_and_loaded)};
  return cmocka_run_group_tests(tests, open_servers, close_servers);
}
