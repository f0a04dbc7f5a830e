/* SPDX-License-Identifier: MIT */
/* A request of many answers is one request, and a full queue is shared: limits of tenants as clients of a server meet
 * them. */
#include "tests/support/http_conversation.h"

static const char keys_text[] =
    "sk-small small running=2 queued=3\n"
    "sk-minute minute tokens-per-minute=100\n"
    "sk-red red\n"
    "sk-blue blue\n";
enum { WAIT_MS = 300000 };

static talk server;

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  *state =
      talk_serve(&server, keys_text,
                 (weft_open_options){
                     .models = models, .n_models = 1, .kv_bytes = 64 << 20, .context = 2048, .running = 2, .queue = 4},
                 (weft_server_options){0});
  return 0;
}

static talk_answer ask_as(const char *key, const char *body) {
  char header[64];
  (void)snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
  return talk_ask_as(server.port, "POST", "/v1/completions", header, body);
}

/* The request is sent; its answer is read later. */
static int send_as(const char *key, const char *body) {
  char header[64];
  int fd = talk_dial(server.port);
  (void)snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
  talk_send(fd, "POST", "/v1/completions", header, body, strlen(body));
  return fd;
}

static double tenant_metric(const char *name, const char *tenant) {
  char line[128];
  char *text = weft_metrics(server.runtime);
  (void)snprintf(line, sizeof line, "%s{tenant=\"%s\"} ", name, tenant);
  const char *found = strstr(text, line);
  assert_non_null(found);
  double value = strtod(found + strlen(line), NULL);
  weft_release(text);
  return value;
}

static void await(const char *name, const char *tenant, double value) {
  uint64_t until = weft_clock_us() + (uint64_t)WAIT_MS * 1000;
  while (tenant_metric(name, tenant) != value) {
    if (weft_clock_us() > until) fail_msg("%s of %s never was %.0f", name, tenant, value);
    (void)poll(NULL, 0, 1);
  }
}

static void refused(const char *key, const char *body, int code, const char *words) {
  talk_answer a = ask_as(key, body);
  if (a.code != code || strstr(a.body.bytes, words) == NULL)
    fail_msg("%s: %d %s; wanted %d with '%s'", body, a.code, a.body.bytes, code, words);
  talk_answer_free(&a);
}

#define SHORT "\"max_tokens\":8,\"ignore_eos\":true,\"temperature\":1"

static void served(const char *body, uint32_t n_choices) {
  talk_answer a = ask_as("sk-small", body);
  if (a.code != 200) fail_msg("%s: %d %s", body, a.code, a.body.bytes);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  assert_int_equal(json_array_size(at(root, "choices")), n_choices);
  json_decref(root);
  talk_answer_free(&a);
}

/* Two may run and three may wait: that is five answers at once, whatever they are answers to. */
static void many_answers_are_one_request(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 30; i++) served("{\"prompt\":\"abc\",\"n\":4," SHORT "}", 4);
  served("{\"prompt\":\"abc\",\"n\":5," SHORT "}", 5);
  served("{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"]," SHORT "}", 5);
  served("{\"prompt\":\"abc\",\"n\":1,\"best_of\":5," SHORT "}", 1);
  await("weft_tenant_requests_total", "small", 30 * 4 + 15);
}

static void too_many_answers_are_refused_for_good(void **state) {
  (void)state;
  refused("sk-small", "{\"prompt\":\"abc\",\"n\":8," SHORT "}", 400, "ask for at most 5");
  refused("sk-small", "{\"prompt\":\"abc\",\"best_of\":6," SHORT "}", 400, "ask for at most 5");
  refused("sk-small", "{\"prompt\":[\"a\",\"b\"],\"n\":3," SHORT "}", 400, "ask for at most 5");
  refused("sk-small", "{\"prompt\":\"abc\",\"n\":3,\"stream\":true," SHORT "}", 200, "[DONE]");
  refused("sk-red", "{\"prompt\":\"abc\",\"n\":7," SHORT "}", 400, "ask for at most 6");
  refused("sk-minute", "{\"prompt\":[1,2],\"n\":4,\"max_tokens\":28,\"ignore_eos\":true}", 400, "ask for at most 3");
}

#define LONG "{\"prompt\":\"abc\",\"max_tokens\":2000,\"ignore_eos\":true,\"temperature\":1,\"no_cache\":true"

/* Red has two that run and four that wait. Blue comes with two answers, which is its half: red's newest two give way,
 * of which one hears it as an answer, the other, whose headers were sent, as an event. */
static void the_newest_gives_way(void **state) {
  (void)state;
  int red[6];
  for (uint32_t i = 0; i < 6; i++) {
    red[i] = send_as("sk-red", i == 4 ? LONG ",\"stream\":true}" : LONG "}");
    await(i < 2 ? "weft_tenant_requests_running" : "weft_tenant_requests_waiting", "red", i < 2 ? i + 1 : i - 1);
  }
  refused("sk-red", "{\"prompt\":\"abc\"," SHORT "}", 429, "the queue is full");
  refused("sk-blue", "{\"prompt\":\"abc\",\"n\":2," SHORT "}", 200, "\"index\":1");
  char seconds[32];
  talk_answer a = talk_receive(red[5]), b = talk_receive(red[4]);
  assert_int_equal(a.code, 429);
  assert_non_null(strstr(a.body.bytes, "gave its place to another tenant"));
  assert_string_equal(talk_header(&a, "X-Limit-Scope", seconds, sizeof seconds), "server");
  assert_true(strtoul(talk_header(&a, "Retry-After", seconds, sizeof seconds), NULL, 10) > 0);
  assert_int_equal(b.code, 200);
  json_t *events = talk_events(&b.body);
  assert_int_equal(json_array_size(events), 3); /* a stream begins as soon as it waits */
  assert_string_equal(text_at(json_array_get(events, 0), "data.choices.0.text"), "");
  assert_string_equal(text_at(json_array_get(events, 1), "data.error.code"), "queue_full");
  assert_true(int_at(json_array_get(events, 1), "data.error.retry_after") > 0);
  json_decref(events);
  talk_answer_free(&a);
  talk_answer_free(&b);
  for (uint32_t i = 0; i < 6; i++) (void)close(red[i]); /* what is left is cancelled */
  await("weft_tenant_requests_waiting", "red", 0);
  assert_true(tenant_metric("weft_tenant_evicted_total", "red") == 2);
  assert_true(tenant_metric("weft_tenant_evicted_total", "blue") == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(many_answers_are_one_request),
                                     cmocka_unit_test(too_many_answers_are_refused_for_good),
                                     cmocka_unit_test(the_newest_gives_way)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
