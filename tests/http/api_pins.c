/* SPDX-License-Identifier: MIT */
/* The operator's pins over HTTP: declared, listed, ended; who may do it; who finds them. */
#include "tests/support/http_conversation.h"

static const char keys_text[] = "sk-red red\nsk-blue blue\nsk-op operator\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const blue = "Authorization: Bearer sk-blue\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

static talk server, open_server;

static int open_servers(void **state) {
  const weft_open_options options = {.threads = 2, .kv_bytes = 8 << 20, .pins = 3};
  talk_serve(&open_server, NULL, options, (weft_server_options){0});
  *state = talk_serve(&server, keys_text, options, (weft_server_options){0});
  return 0;
}

static int close_servers(void **state) {
  talk_close(&open_server);
  return close_talk(state);
}

/* The answer's JSON; its code must be this. */
static json_t *ask(const char *who, const char *method, const char *path, const char *body, int code) {
  return talk_json_as(server.port, method, path, who, body, code);
}

static void refused(const char *body, int code, const char *words) {
  json_t *root = ask(boss, "POST", "/admin/pins", body, code);
  const char *message = text_at(root, "error.message");
  if (strstr(message, words) == NULL) fail_msg("%s: '%s' lacks '%s'", body, message, words);
  json_decref(root);
}

static json_int_t declare(const char *body) {
  json_t *root = ask(boss, "POST", "/admin/pins", body, 200);
  json_int_t id = int_at(root, "id");
  json_decref(root);
  return id;
}

/* The pin of this number, once its blocks are in the pool. */
static json_t *held(json_int_t id) {
  for (;;) {
    json_t *root = ask(boss, "GET", "/admin/pins", "", 200), *pin;
    size_t k;
    json_array_foreach(at(root, "pins"), k, pin) {
      if (int_at(pin, "id") != id || !json_is_true(at(pin, "held"))) continue;
      json_incref(pin);
      json_decref(root);
      return pin;
    }
    json_decref(root);
    (void)usleep(5000);
  }
}

static void end(json_int_t id) {
  char path[64];
  (void)snprintf(path, sizeof path, "/admin/pins/%d", (int)id);
  json_decref(ask(boss, "DELETE", path, "", 200));
  json_decref(ask(boss, "DELETE", path, "", 404));
}

#define SYSTEM                                                                            \
  "{\"role\":\"system\",\"content\":\"You are a careful clerk who sorts numbers, adds "   \
  "them, and answers with nothing but the result. Whatever is asked, be brief, be exact." \
  "\"}"

static json_int_t cached(const char *who, const char *question) {
  char body[1024];
  (void)snprintf(body, sizeof body,
                 "{\"messages\":[" SYSTEM
                 ",{\"role\":\"user\",\"content\":\"%s\"}],"
                 "\"max_tokens\":4,\"mode\":\"autoregressive\",\"seed\":1}",
                 question);
  json_t *root = ask(who, "POST", "/v1/chat/completions", body, 200);
  json_int_t n = int_at(root, "usage.prompt_tokens_details.cached_tokens");
  json_decref(root);
  return n;
}

static void a_pin_is_its_tenants(void **state) {
  (void)state;
  json_int_t id = declare(
      "{\"tenant\":\"red\",\"ttl_seconds\":600,\"priority\":1,"
      "\"messages\":[" SYSTEM "]}");
  json_t *pin = held(id);
  json_int_t n = int_at(pin, "tokens");
  assert_true(n > 16);
  assert_string_equal(text_at(pin, "model"), "weft-demo");
  assert_string_equal(text_at(pin, "tenant"), "red");
  assert_true(json_is_false(at(pin, "public")));
  assert_int_equal(int_at(pin, "priority"), 1);
  assert_true(int_at(pin, "pages") > 0);
  assert_in_range(int_at(pin, "ttl_seconds"), 1, 600);
  json_decref(pin);
  assert_int_equal(cached(red, "What is 58 + 37?"), n);
  assert_int_equal(cached(blue, "What is 58 + 37?"), 0);
  end(id);
}

static void a_public_pin_is_everybodys(void **state) {
  (void)state;
  json_int_t id = declare("{\"public\":true,\"messages\":[" SYSTEM "]}");
  json_t *pin = held(id);
  json_int_t n = int_at(pin, "tokens");
  assert_true(json_is_null(at(pin, "tenant")));
  assert_true(json_is_null(at(pin, "ttl_seconds")));
  json_decref(pin);
  assert_int_equal(cached(red, "Sort 9 4 1"), n);
  assert_int_equal(cached(blue, "Sort 9 4 1"), n); /* and no more than that of red's */
  end(id);
}

static void texts_and_tokens_too(void **state) {
  (void)state;
  json_t *text =
      held(declare("{\"public\":true,\"text\":\"A frog sat on a log and looked at the "
                   "bog, as frogs do when they are done with the day\"}"));
  json_t *tokens =
      held(declare("{\"tenant\":\"red\",\"tokens\":[300,296,10,300,296,11,300,296,12,"
                   "300,296,13,300,296,14,300,296,15,300,296,16,300,296,17,300,296,"
                   "18,300,296,19,300,296,20,300,296,21]}"));
  assert_int_equal(int_at(tokens, "tokens") % 16, 0);
  end(int_at(text, "id"));
  end(int_at(tokens, "id"));
  json_decref(text);
  json_decref(tokens);
}

static void a_pin_ends_in_time(void **state) {
  (void)state;
  /* held or not: on a machine with much else to do its second may be over before it was computed */
  (void)declare("{\"tenant\":\"red\",\"ttl_seconds\":1,\"messages\":[" SYSTEM "]}");
  for (size_t n = 1; n > 0;) { /* the engine sleeps meanwhile, and wakes for it */
    json_t *root = ask(boss, "GET", "/admin/pins", "", 200);
    n = json_array_size(at(root, "pins"));
    json_decref(root);
    (void)usleep(10000);
  }
}

static void what_is_refused(void **state) {
  (void)state;
  refused("{", 400, "not valid JSON");
  refused("{\"public\":true}", 400, "exactly one");
  refused("{\"public\":true,\"text\":\"a\",\"tokens\":[1]}", 400, "exactly one");
  refused("{\"public\":true,\"text\":5}", 400, "a string");
  refused("{\"text\":\"abc\"}", 400, "name the tenant");
  refused("{\"tenant\":\"red\",\"public\":true,\"text\":\"abc\"}", 400, "name the tenant");
  refused("{\"tenant\":\"green\",\"text\":\"abc\"}", 400, "no tenant is named 'green'");
  refused("{\"public\":true,\"text\":\"abc\"}", 400, "whole blocks");
  refused("{\"public\":true,\"colour\":1,\"text\":\"abc\"}", 400, "colour is unknown");
  refused("{\"public\":1,\"text\":\"abc\"}", 400, "true or false");
  refused("{\"public\":true,\"ttl_seconds\":0,\"text\":\"abc\"}", 400, "from 1");
  refused("{\"public\":true,\"priority\":101,\"text\":\"abc\"}", 400, "to 100");
  refused("{\"public\":true,\"tokens\":[-1]}", 400, "no token id");
  refused("{\"public\":true,\"messages\":[{\"role\":\"clerk\",\"content\":\"a\"}]}", 400, "clerk");
  json_int_t id[3];
  for (uint32_t i = 0; i < 3; i++) id[i] = declare("{\"public\":true,\"messages\":[" SYSTEM "]}");
  refused("{\"public\":true,\"messages\":[" SYSTEM "]}", 409, "3 pins");
  for (uint32_t i = 0; i < 3; i++) end(id[i]);
  json_decref(ask(boss, "DELETE", "/admin/pins/x", "", 404));
  json_decref(ask(boss, "DELETE", "/admin/pins/99999999999", "", 404));
  talk_answer a = talk_ask_as(server.port, "PUT", "/admin/pins", boss, "{}");
  char allow[64];
  assert_int_equal(a.code, 405);
  assert_string_equal(talk_header(&a, "Allow", allow, sizeof allow), "GET, HEAD, POST");
  talk_answer_free(&a);
}

/* What only the cache held is dropped; a pin stays declared, and is not held until its prefix is computed again. */
static void the_prefix_cache_is_reset(void **state) {
  (void)state;
  json_int_t id = declare("{\"public\":true,\"messages\":[" SYSTEM "]}");
  json_decref(held(id));
  json_t *done = ask(boss, "POST", "/reset_prefix_cache", "", 200);
  assert_true(json_is_true(at(done, "reset")));
  json_decref(done);
  bool is_held = true;
  for (uint32_t i = 0; i < 6000 && is_held; i++) { /* at the next step boundary */
    json_t *root = ask(boss, "GET", "/admin/pins", "", 200);
    assert_int_equal(json_array_size(at(root, "pins")), 1);
    is_held = json_is_true(at(json_array_get(at(root, "pins"), 0), "held"));
    json_decref(root);
    (void)usleep(10000);
  }
  assert_false(is_held);
  end(id);
  json_decref(ask("", "POST", "/reset_prefix_cache", "", 401));
  json_decref(ask(red, "POST", "/reset_prefix_cache", "", 403));
}

static void only_the_operator(void **state) {
  static const char body[] = "{\"public\":true,\"messages\":[" SYSTEM "]}";
  (void)state;
  json_decref(ask("", "POST", "/admin/pins", body, 401));
  json_decref(ask(red, "POST", "/admin/pins", body, 403));
  json_decref(ask(red, "GET", "/admin/pins", "", 403));
  json_decref(ask(red, "DELETE", "/admin/pins/1", "", 403));
}

/* Without keys a program on this machine may, but neither a page in its browser nor a proxy. */
static void without_keys_only_this_machine(void **state) {
  static const char *const through[] = {"Origin: http://evil.example\r\n", "Via: 1.1 x\r\n",
                                        "X-Forwarded-For: 10.0.0.1\r\n", "Forwarded: for=x\r\n"};
  static const char body[] = "{\"messages\":[" SYSTEM "]}";
  (void)state;
  for (size_t i = 0; i < sizeof through / sizeof *through; i++) {
    talk_check(talk_ask_as(open_server.port, "POST", "/admin/pins", through[i], body), 403, "");
  }
  talk_answer a = talk_ask_as(open_server.port, "POST", "/admin/pins", "", body);
  if (a.code != 200) fail_msg("%s", a.body.bytes);
  talk_answer_free(&a);
}

/* A series that comes twice makes a scraper refuse or drop what it read. */
static void no_counter_comes_twice(void **state) {
  (void)state;
  talk_check(talk_ask(open_server.port, "GET", "/admin/pins", ""), 200, "");
  talk_answer a = talk_ask(open_server.port, "GET", "/metrics", "");
  assert_non_null(strstr(a.body.bytes, "{method=\"GET\",path=\"/admin/pins\",code=\"200\"} 1\n"));
  assert_non_null(strstr(a.body.bytes, "{method=\"POST\",path=\"/admin/pins\",code=\"200\"} 1\n"));
  assert_non_null(strstr(a.body.bytes, "{method=\"POST\",path=\"/admin/pins\",code=\"403\"} 4\n"));
  for (char *line = a.body.bytes, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    char series[512];
    const char *value = memrchr(line, ' ', (size_t)(end - line));
    if (line[0] == '#' || value == NULL) continue;
    (void)snprintf(series, sizeof series, "\n%.*s ", (int)(value - line), line);
    if (strstr(end, series) != NULL) fail_msg("twice:%s", series);
  }
  talk_answer_free(&a);
}

/* The last: this server takes nothing afterwards. */
static void none_while_it_drains(void **state) {
  (void)state;
  weft_server_drain(open_server.server);
  talk_check(talk_ask(open_server.port, "POST", "/admin/pins", "{\"messages\":[" SYSTEM "]}"), 503, "\"draining\"");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_prefix_cache_is_reset),
      cmocka_unit_test(only_the_operator),
      cmocka_unit_test(without_keys_only_this_machine),
      cmocka_unit_test(a_pin_is_its_tenants),
      cmocka_unit_test(a_public_pin_is_everybodys),
      cmocka_unit_test(texts_and_tokens_too),
      cmocka_unit_test(a_pin_ends_in_time),
      cmocka_unit_test(what_is_refused),
      cmocka_unit_test(no_counter_comes_twice),
      cmocka_unit_test(none_while_it_drains),
  };
  return cmocka_run_group_tests(tests, open_servers, close_servers);
}
