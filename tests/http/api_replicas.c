/* SPDX-License-Identifier: MIT */
/* A server of two replicas: what /metrics and /health say of each; limits of a tenant over both; a stream and one that
 * its client leaves; pins and the end of the prefix cache in both; a tenant beside another one's flood; and, last, a
 * replica that breaks, and then the other. */
#include "tests/support/http_conversation.h"

#include "api/runtime.h"
#include "base/log.h"
#include "kernels/device_internal.h"

static const char keys_text[] = "sk-red red\nsk-blue blue queued=2 running=2\nsk-op operator\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const blue = "Authorization: Bearer sk-blue\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";

enum { FLOOD = 20 };

static talk server;

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  const weft_open_options options = {.models = models,
                                     .n_models = 1,
                                     .backend = "cpu",
                                     .threads = 2,
                                     .kv_bytes = 4 << 20,
                                     .context = 512,
                                     .running = 4,
                                     .queue = 32,
                                     .pins = 2,
                                     .devices = "0,1",
                                     .split = "replicas"};
  *state = talk_serve(&server, keys_text, options, (weft_server_options){0});
  return 0;
}

static talk_answer say(const char *who, const char *prompt, uint32_t n, const char *more) {
  char body[512];
  (void)snprintf(
      body, sizeof body,
      "{\"prompt\":\"%s\",\"max_tokens\":%u,\"ignore_eos\":true,\"temperature\":0,\"model\":\"weft-demo-ar\"%s}",
      prompt, n, more);
  return talk_ask_as(server.port, "POST", "/v1/completions", who, body);
}

static double metric(const char *name) {
  return talk_metric_as(server.port, boss, name);
}

static double of_both(const char *name) {
  char line[96];
  double sum = 0;
  for (int i = 0; i < 2; i++) {
    (void)snprintf(line, sizeof line, "%s{device=\"%d\"}", name, i);
    double value = metric(line);
    assert_true(value >= 0);
    sum += value;
  }
  return sum;
}

static void await(const char *line, double value) {
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  while (metric(line) != value) {
    if (weft_clock_us() > until) fail_msg("%s never became %g", line, value);
    (void)poll(NULL, 0, 1);
  }
}

static void check_health(int code, const char *words) {
  static const char *const paths[] = {"/health", "/readyz", "/livez"};
  for (size_t i = 0; i < 3; i++) {
    talk_answer a = talk_ask(server.port, "GET", paths[i], "");
    if (a.code != code || strstr(a.body.bytes, words) == NULL) fail_msg("%s: %d %s", paths[i], a.code, a.body.bytes);
    talk_answer_free(&a);
  }
}

/* Who watches sees each pool by itself, and a pin in both: its pages; a model as broken once no replica has it. */
static void check_stats(json_int_t n_pinned, bool broken) {
  talk_answer a = talk_ask_as(server.port, "GET", "/stats", boss, "");
  assert_int_equal(a.code, 200);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  json_int_t n_seen = 0;
  assert_int_equal(json_array_size(at(root, "replicas")), 2);
  assert_int_equal(json_is_true(at(root, "models.0.broken")), broken);
  assert_int_equal(int_at(root, "queue.running_max"), 8);
  for (size_t i = 0; i < 2; i++) {
    json_t *pool = json_object_get(json_array_get(at(root, "replicas"), i), "pool");
    assert_int_equal(int_at(pool, "free") + int_at(pool, "cached") + int_at(pool, "live") + int_at(pool, "pinned"),
                     int_at(pool, "pages"));
    n_seen += int_at(pool, "pinned");
    if (!broken) assert_true(json_array_size(at(root, i == 0 ? "replicas.0.steps" : "replicas.1.steps")) > 0);
  }
  assert_int_equal(n_seen, n_pinned);
  json_decref(root);
  talk_answer_free(&a);
}

static void test_metrics(void **state) {
  (void)state;
  char *text[2];
  for (int i = 0; i < 6; i++) {
    talk_answer a = say(red, i % 2 == 0 ? "The soft ball" : "A blue boat", 12, "");
    assert_int_equal(a.code, 200);
    json_t *root = json_loads(a.body.bytes, 0, NULL);
    const char *said = text_at(root, "choices.0.text");
    if (i < 2)
      text[i] = strdup(said);
    else
      assert_string_equal(said, text[i % 2]); /* whichever replica it was */
    json_decref(root);
    talk_answer_free(&a);
  }
  free(text[0]);
  free(text[1]);
  await("vllm:num_requests_running{model_name=\"weft-demo-ar\"}", 0);
  assert_true(of_both("weft_replica_requests_submitted_total") == 6);
  assert_true(of_both("weft_replica_steps_total") == metric("weft_steps_total"));
  assert_true(of_both("weft_replica_rows_total") == metric("weft_rows_total"));
  assert_true(of_both("weft_replica_pool_pages_cached") == metric("weft_pool_pages_cached"));
  assert_true(metric("vllm:request_success_total{model_name=\"weft-demo-ar\",finished_reason=\"length\"}") == 6);
  assert_true(metric("weft_tenant_requests_total{tenant=\"red\"}") == 6);
  check_health(200, "{\"status\":\"ok\"}");
  check_stats(0, false);
}

/* Two that run and two that wait are the tenant's limit, over both replicas; and a client that leaves ends what it had on
 * either. */
static void test_limit_of_a_tenant(void **state) {
  static const char body[] =
      "{\"prompt\":\"The red\",\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true,\"model\":\"weft-demo-ar\"}";
  char head[160];
  int fd[4];
  (void)state;
  talk_check(say(blue, "The red", 3, ",\"n\":4"), 200, "\"index\":3");
  talk_check(say(blue, "The red", 3, ",\"n\":5"), 400,
             "5 answers at once are more than this tenant's limits allow (2 running and 2 waiting): ask for at most 4");
  talk_check(say(red, "The red", 3, ",\"n\":41"), 400, "41 answers at once are more than this server takes (8 running");
  (void)snprintf(head, sizeof head, "%sConnection: close\r\n", blue);
  for (int i = 0; i < 4; i++) {
    fd[i] = talk_dial(server.port);
    talk_send(fd[i], "POST", "/v1/completions", head, body, sizeof body - 1);
  }
  for (int i = 0; i < 4; i++) (void)close(fd[i]);
  talk_answer a = say(blue, "The red", 1, ",\"n\":4"); /* all four places come free, sooner or later */
  for (uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000; a.code != 200;
       a = say(blue, "The red", 1, ",\"n\":4")) {
    assert_int_equal(a.code, 429);
    assert_true(weft_clock_us() < until);
    talk_answer_free(&a);
  }
  talk_answer_free(&a);
}

static void *flood(void *i) {
  char prompt[64];
  (void)snprintf(prompt, sizeof prompt, "%d boats and a long way to go", (int)(intptr_t)i);
  talk_answer a = say(red, prompt, 300, "");
  int code = a.code;
  talk_answer_free(&a);
  return (void *)(intptr_t)code;
}

/* How many of tenant 0's requests ended between the submission and the end of the last one of tenant 1 that ended, on the
 * replica that had it. */
static uint32_t count_between(uint32_t replica, const weft_request_record *late) {
  weft_request_record *record = calloc(WEFT_RECORDED_REQUESTS, sizeof *record);
  uint32_t n = weft_engine_get_requests(weft_replicas_at(server.runtime->replicas, replica), record,
                                        WEFT_RECORDED_REQUESTS),
           n_between = 0;
  for (uint32_t i = 0; i < n; i++)
    n_between += record[i].tenant == 0 && record[i].finished_us >= late->submitted_us &&
                 record[i].finished_us < late->finished_us;
  free(record);
  return n_between;
}

static bool find_late(uint32_t replica, weft_request_record *late) {
  weft_request_record *record = calloc(WEFT_RECORDED_REQUESTS, sizeof *record);
  uint32_t n =
      weft_engine_get_requests(weft_replicas_at(server.runtime->replicas, replica), record, WEFT_RECORDED_REQUESTS);
  bool found = false;
  for (uint32_t i = 0; i < n; i++) {
    if (record[i].tenant != 1 || record[i].submitted_us <= late->submitted_us) continue;
    *late = record[i];
    found = true;
  }
  free(record);
  return found;
}

/* Another tenant asks for two and a half times what may run: who comes then waits for a place and a few steps, by the
 * engine's own count. */
static void test_flood(void **state) {
  static const char *const counts[] = {"weft_tenant_requests_running{tenant=\"red\"}",
                                       "weft_tenant_requests_waiting{tenant=\"red\"}",
                                       "weft_tenant_requests_total{tenant=\"red\"}"};
  pthread_t thread[FLOOD];
  weft_request_record late = {.submitted_us = 0};
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  (void)state;
  double before = metric(counts[2]), n = 0;
  for (intptr_t i = 0; i < FLOOD; i++) assert_int_equal(pthread_create(&thread[i], NULL, flood, (void *)i), 0);
  while (n < 12) { /* most are there, or were */
    n = metric(counts[0]) + metric(counts[1]) + metric(counts[2]) - before;
    assert_true(weft_clock_us() < until);
  }
  talk_check(say(blue, "A green tree", 4, ""), 200, "\"finish_reason\":\"length\"");
  for (int i = 0; i < FLOOD; i++) {
    void *code;
    assert_int_equal(pthread_join(thread[i], &code), 0);
    assert_int_equal((intptr_t)code, 200);
  }
  uint32_t at = find_late(0, &late) ? 0 : 2;
  if (find_late(1, &late)) at = 1;
  assert_true(at < 2);
  assert_true(count_between(at, &late) <= 8); /* those that ran there, and as many more */
}

static void test_pins_and_reset(void **state) {
  char path[64];
  (void)state;
  talk_answer a = talk_ask_as(server.port, "POST", "/admin/pins", boss,
                              "{\"tenant\":\"red\",\"text\":\"The soft ball is behind the blue boat. The red ball is "
                              "in the green tree. The small cat is under the old house, and nobody knows where the "
                              "other big dog of the old man went.\"}");
  if (a.code != 200) fail_msg("%s", a.body.bytes);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  (void)snprintf(path, sizeof path, "/admin/pins/%lld", (long long)int_at(root, "id"));
  json_decref(root);
  talk_answer_free(&a);
  await("weft_pins_held", 1); /* it is one pin */
  double pages = metric("weft_pin_pages");
  assert_true(pages >= 2 && (int)pages % 2 == 0); /* in two pools */
  talk_check(talk_ask_as(server.port, "GET", "/admin/pins", boss, ""), 200, "\"held\":true");
  await("weft_pool_pages_pinned", pages);
  check_stats((json_int_t)pages, false);
  talk_check(talk_ask_as(server.port, "DELETE", path, boss, ""), 200, "");
  await("weft_pins", 0);
  assert_true(metric("weft_pool_pages_cached") > 0);
  talk_check(talk_ask_as(server.port, "POST", "/reset_prefix_cache", boss, ""), 200, "");
  await("weft_pool_pages_cached", 0);
}

#define X(op)                                                                        \
  static weft_status break_##op(weft_device *device, const weft_##op##_args *args) { \
    (void)device;                                                                    \
    (void)args;                                                                      \
    return WEFT_E_DEVICE;                                                            \
  }
WEFT_OPS(X)
#undef X

static void break_device(uint32_t index) {
  static weft_kernels broken;
  broken = *server.runtime->devices.device[index]->kernels; /* both are of one backend */
#define X(op) broken.op = break_##op;
  WEFT_OPS(X)
#undef X
  server.runtime->devices.device[index]->kernels = &broken;
}

static void test_broken(void **state) {
  (void)state;
  uint32_t n_failed = 0;
  weft_log_set_level((weft_log_level)-1);
  break_device(1);
  for (int i = 0; i < 100 && n_failed == 0; i++) { /* it had been given more, so the other one gets some first */
    talk_answer a = say(red, "The soft ball", 400, "");
    n_failed += a.code != 200;
    talk_answer_free(&a);
  }
  for (int i = 0; i < 6; i++) {
    talk_answer a = say(red, i % 2 == 0 ? "The soft ball" : "A blue boat", 12, "");
    n_failed += a.code != 200;
    talk_answer_free(&a);
  }
  assert_int_equal(n_failed, 1);
  check_health(200, "{\"status\":\"degraded\",\"message\":\"device 1 (");
  assert_true(metric("weft_well") == 1);
  assert_true(metric("weft_replica_well{device=\"0\"}") == 1);
  assert_true(metric("weft_replica_well{device=\"1\"}") == 0);
  break_device(0);
  talk_answer a = say(red, "The soft ball", 12, "");
  assert_int_not_equal(a.code, 200);
  talk_answer_free(&a);
  check_health(503, "{\"status\":\"unwell\",\"message\":\"device ");
  assert_true(metric("weft_well") == 0);
  check_stats(0, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_metrics), cmocka_unit_test(test_limit_of_a_tenant),
                                     cmocka_unit_test(test_flood), cmocka_unit_test(test_pins_and_reset),
                                     cmocka_unit_test(test_broken)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
