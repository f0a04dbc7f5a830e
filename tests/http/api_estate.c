/* SPDX-License-Identifier: MIT */
/* What a server leaves to the next one: tokens that tenants took, pins, stored answers and what clients delete of them,
 * part by part; what belongs to nobody there stays behind; a part with another form changes nothing. */
#include "api/server/estate.h"
#include "tests/support/http_conversation.h"

static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

static const char *const models[] = {DEMO_AR_MODEL};
static talk old, next;
static weft_estate *estate;

static int open_servers(void **state) {
  const weft_open_options options = {.models = models, .n_models = 1, .pins = 4};
  weft_error error = {{0}};
  talk_serve(&next, "sk-op operator\nsk-red red tokens-per-minute=6000\n", options, (weft_server_options){0});
  *state = talk_serve(&old, "sk-red red tokens-per-minute=6000\nsk-op operator\nsk-gone gone\n", options,
                      (weft_server_options){0});
  assert_int_equal(weft_estate_open(old.server, 1, &estate, &error), WEFT_OK);
  return 0;
}

static int close_servers(void **state) {
  weft_estate_close(estate);
  talk_close(&next);
  return close_talk(state);
}

/* The id of a stored answer; the caller frees. */
static char *store_answer(const char *who) {
  json_t *root = talk_json_as(old.port, "POST", "/v1/responses", who,
                              "{\"input\":\"What is 2 + 3?\",\"max_output_tokens\":16,\"temperature\":0}", 200);
  char *id = strdup(text_at(root, "id"));
  json_decref(root);
  return id;
}

static void check_stored(uint16_t port, const char *who, const char *id, int code) {
  char path[160];
  (void)snprintf(path, sizeof path, "/v1/responses/%s", id);
  json_decref(talk_json_as(port, "GET", path, who, "", code));
}

static void delete_stored(const char *id) {
  char path[160];
  (void)snprintf(path, sizeof path, "/v1/responses/%s", id);
  json_decref(talk_json_as(old.port, "DELETE", path, red, "", 200));
}

static void hand_part(void) {
  weft_text part = {0};
  weft_error error = {{0}};
  assert_true(weft_estate_has_news(estate));
  if (weft_estate_write(estate, &part, &error) != WEFT_OK) fail_msg("%s", error.text);
  if (weft_estate_take(next.server, part.bytes, part.n, &error) != WEFT_OK) fail_msg("%s", error.text);
  weft_text_free(&part);
}

/* Tokens that red took, less those that came back, here and there, once nothing runs that was to compute a pin. */
static int64_t taken_by_red(const talk *t, uint32_t number) {
  while (!weft_server_idle(t->server)) (void)usleep(1000);
  return weft_replicas_get_tenant_left(t->runtime->replicas, number, weft_clock_us()).tokens_taken;
}

static json_t *only_pin(uint16_t port) {
  json_t *root = talk_json_as(port, "GET", "/admin/pins", boss, "", 200);
  assert_int_equal(json_array_size(at(root, "pins")), 1);
  json_t *pin = json_incref(json_array_get(at(root, "pins"), 0));
  json_decref(root);
  return pin;
}

static void pin_on(uint16_t port, int code) {
  json_decref(talk_json_as(
      port, "POST", "/admin/pins", boss,
      "{\"tenant\":\"red\",\"ttl_seconds\":600,\"priority\":1,\"messages\":[{\"role\":\"system\","
      "\"content\":\"You sort numbers from low to high and say nothing else at all, whatever you are asked.\"}]}",
      code));
}

/* The first part has everything; the next ones what came since, from each request's end on. */
static void parts_add_up(void **state) {
  (void)state;
  char *first = store_answer(red), *second = store_answer(red),
       *nobodys = store_answer("Authorization: Bearer sk-gone\r\n");
  pin_on(old.port, 200);
  hand_part();
  assert_false(weft_estate_has_news(estate));
  check_stored(next.port, red, first, 200);
  check_stored(next.port, boss, first, 404); /* another tenant's, there as here */
  assert_true(taken_by_red(&old, 0) > 0);
  assert_true(taken_by_red(&next, 1) > 0);
  int64_t before = taken_by_red(&old, 0), there = taken_by_red(&next, 1);
  json_t *pin = only_pin(old.port), *same = only_pin(next.port);
  for (const char *const *name = (const char *const[]){"id", "tokens", "priority", NULL}; *name != NULL; name++)
    assert_int_equal(int_at(pin, *name), int_at(same, *name));
  assert_string_equal(text_at(same, "tenant"), "red");
  assert_in_range(int_at(same, "ttl_seconds"), 1, 600);
  json_decref(pin);
  json_decref(same);
  char *third = store_answer(red);
  delete_stored(first);
  delete_stored(second);
  hand_part();
  check_stored(next.port, red, first, 404);
  check_stored(next.port, red, second, 404);
  check_stored(next.port, red, third, 200);
  assert_int_equal(taken_by_red(&next, 1) - there, taken_by_red(&old, 0) - before);
  assert_false(weft_estate_has_news(estate));
  free(first);
  free(second);
  free(third);
  free(nobodys);
}

/* Pins that are told neither come nor go. */
static void pins_wait(void **state) {
  (void)state;
  weft_server_hold_pins(old.server, true);
  pin_on(old.port, 503);
  json_decref(talk_json_as(old.port, "DELETE", "/admin/pins/1", boss, "", 503));
  weft_server_hold_pins(old.server, false);
  json_decref(talk_json_as(old.port, "DELETE", "/admin/pins/1", boss, "", 200));
}

static void refused(const char *part) {
  weft_error error = {{0}};
  weft_status status = weft_estate_take(next.server, part, strlen(part), &error);
  if (status != WEFT_E_FORMAT || strstr(error.text, "has another form") == NULL) fail_msg("%s: %s", part, error.text);
}

/* Judged whole: the good count before the bad pin is not taken. */
static void another_form_changes_nothing(void **state) {
  (void)state;
#define COUNT "{\"tenant\":\"red\",\"tokens\":5}"
#define PIN(more)                                                          \
  "{\"weft_estate\":1,\"tokens\":[" COUNT                                  \
  "],\"pins\":[{\"tenant\":\"red\",\"model\":\"m\",\"fingerprint\":\"f\"," \
  "\"public\":false,\"priority\":1" more "}],\"responses\":[]}"
  int64_t before = taken_by_red(&next, 1);
  refused("");
  refused("[]");
  refused("{\"weft_estate\":2,\"tokens\":[],\"pins\":[],\"responses\":[]}");
  refused("{\"weft_estate\":1,\"tokens\":[],\"pins\":[]}");
  refused("{\"weft_estate\":1,\"tokens\":[" COUNT "],\"pins\":[1],\"responses\":[]}");
  refused("{\"weft_estate\":1,\"tokens\":[{\"tenant\":\"red\"}],\"pins\":[],\"responses\":[]}");
  refused("{\"weft_estate\":1,\"tokens\":[" COUNT "],\"pins\":[],\"responses\":[{\"tenant\":\"red\"}]}");
  refused("{\"weft_estate\":1,\"tokens\":[" COUNT
          "],\"pins\":[],\"responses\":[{\"tenant\":\"red\",\"id\":\"a\",\"body\":1,\"items\":\"\"}]}");
  refused(PIN(",\"id\":0,\"ttl_seconds\":1,\"tokens\":[1]"));
  refused(PIN(",\"id\":1,\"ttl_seconds\":-1,\"tokens\":[1]"));
  refused(PIN(",\"id\":1,\"ttl_seconds\":1,\"tokens\":[]"));
  refused(PIN(",\"id\":1,\"ttl_seconds\":1,\"tokens\":[-1]"));
  refused(PIN(",\"id\":1,\"ttl_seconds\":1,\"tokens\":[1],\"more\":1"));
  assert_int_equal(taken_by_red(&next, 1), before);
  /* a pin of another model's file is judged good and stays behind */
  weft_error error = {{0}};
  const char *other = PIN(",\"id\":1,\"ttl_seconds\":1,\"tokens\":[1]");
  assert_int_equal(weft_estate_take(next.server, other, strlen(other), &error), WEFT_OK);
  assert_int_equal(taken_by_red(&next, 1), before + 5);
  json_decref(only_pin(next.port));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(parts_add_up), cmocka_unit_test(pins_wait),
                                     cmocka_unit_test(another_form_changes_nothing)};
  return cmocka_run_group_tests(tests, open_servers, close_servers);
}
