/* SPDX-License-Identifier: MIT */
/* What a request may cost before it runs: text that no context holds is refused before it is tokenised, JSON that
 * nobody reads before it becomes memory, stop strings and memory of requests beyond their limits with one line; and
 * another tenant is served meanwhile. */
#include "tests/support/http_conversation.h"

#include <malloc.h>
#include <stdatomic.h>

#include "api/server/keys.h"
#include "base/status.h"

enum { BODY = 8 << 20, CONTEXT = 256 };

static atomic_size_t n_json, n_json_most; /* bytes that the JSON library holds, and held at most */

static void *count_taken(size_t n) {
  void *memory = malloc(n);
  size_t now = atomic_fetch_add(&n_json, malloc_usable_size(memory)) + n, most = atomic_load(&n_json_most);
  while (now > most && !atomic_compare_exchange_weak(&n_json_most, &most, now)) continue;
  return memory;
}

static void count_given(void *memory) {
  atomic_fetch_sub(&n_json, malloc_usable_size(memory));
  free(memory);
}

static talk server;

static int open_server(void **state) {
  *state = talk_serve(&server, "key-a a\nkey-b b\nkey-op operator\n", (weft_open_options){.context = CONTEXT},
                      (weft_server_options){0});
  json_set_alloc_funcs(count_taken, count_given);
  return 0;
}

/* The answer to tenant a, whose message has these words. */
static void ask(const char *path, const char *body, int code, const char *words) {
  talk_answer a = talk_ask_as(server.port, "POST", path, "Authorization: Bearer key-a\r\n", body);
  if (a.code != code || strstr(a.body.bytes, words) == NULL) {
    fail_msg("%s gave %d and not %d with '%s': %.300s", path, a.code, code, words, a.body.bytes);
  }
  talk_answer_free(&a);
}

/* begin, then as many parts as fit 8 MiB, then end. */
static char *fill_body(const char *begin, const char *part, const char *end) {
  size_t n_begin = strlen(begin), n_part = strlen(part), n_end = strlen(end), at = n_begin;
  char *body = malloc(BODY + 1);
  memcpy(body, begin, n_begin);
  while (at + n_part + n_end <= BODY) {
    memcpy(body + at, part, n_part);
    at += n_part;
  }
  memcpy(body + at, end, n_end + 1);
  return body;
}

static void ask_filled(const char *path, const char *begin, const char *part, const char *end, const char *words) {
  char *body = fill_body(begin, part, end);
  ask(path, body, 400, words);
  free(body);
}

static void test_text_beyond_any_context_is_not_tokenised(void **state) {
  (void)state;
  const char *words = "maximum context length is 256 tokens of at most";
  ask_filled("/tokenize", "{\"prompt\":\"", "aZ q", "\"}", words);
  ask_filled("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "aZ q", "\"}]}", words);
  ask_filled("/v1/completions", "{\"prompt\":[\"x\",\"", "aZ q", "\"]}", words);
  ask_filled("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "aZ q", "\"}]}", words);
  ask("/tokenize", "{\"prompt\":\"aZ q\"}", 200, "\"count\":");
}

static void test_json_that_nobody_reads_costs_nothing(void **state) {
  (void)state;
  static const char *const parts[][3] = {
      {"{\"prompt\":\"x\",\"other\":[{}", ",{}", "]}"},     {"{\"prompt\":\"x\",\"other\":[[]", ",[]", "]}"},
      {"{\"prompt\":\"x\",\"other\":[\"\"", ",\"\"", "]}"}, {"{\"prompt\":\"x\",\"other\":[1", ",1", "]}"},
      {"{\"prompt\":\"x\",\"other\":", "[", "1"},           {"{\"prompt\":\"x\",\"other\":", "{\"a\":", "1"}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    atomic_store(&n_json_most, atomic_load(&n_json));
    size_t before = atomic_load(&n_json);
    ask_filled("/v1/completions", parts[i][0], parts[i][1], parts[i][2], "too many");
    size_t most = atomic_load(&n_json_most) - before;
    if (most > 1 << 16) fail_msg("%s…: %zu bytes", parts[i][0], most);
  }
}

/* What is within the limits is answered, however many messages and parts it has. */
static void test_honest_bodies_pass(void **state) {
  static const char part[] =
      "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"},"
      "{\"type\":\"text\",\"text\":\"\"}],\"name\":\"n\"}";
  weft_text body = {0};
  (void)state;
  weft_text_puts(&body, "{\"max_tokens\":1,\"messages\":[");
  for (uint32_t i = 0; i < 4096; i++) weft_text_printf(&body, i == 0 ? "%s" : ",%s", part);
  weft_text_puts(&body, "]}");
  ask("/v1/chat/completions", body.bytes, 400, "the prompt has");
  weft_text_clear(&body);
  weft_text_puts(&body, "{\"max_tokens\":1,\"prompt\":[");
  for (uint32_t i = 0; i < 128; i++) {
    weft_text_puts(&body, i == 0 ? "[1" : ",[1");
    for (uint32_t k = 1; k < CONTEXT; k++) weft_text_puts(&body, ",2");
    weft_text_puts(&body, "]");
  }
  weft_text_puts(&body, "]}");
  ask("/v1/completions", body.bytes, 400, "256 tokens and the prompt has 256");
  weft_text_free(&body);
}

static void test_workers_charge_the_tenant(void **state) {
  (void)state;
  talk_answer a = talk_ask_as(server.port, "GET", "/metrics", "Authorization: Bearer key-op\r\n", "");
  assert_int_equal(a.code, 200);
  double busy = talk_metric_of(a.body.bytes, "weft_http_worker_microseconds_total{tenant=\"a\"}");
  double idle = talk_metric_of(a.body.bytes, "weft_http_worker_microseconds_total{tenant=\"b\"}");
  if (!(busy > 0 && idle == 0)) fail_msg("a: %f us, b: %f us", busy, idle);
  talk_answer_free(&a);
}

static void test_stop_strings_have_limits(void **state) {
  char body[8192] = "{\"prompt\":\"x\",\"max_tokens\":1,\"stop\":[\"y\"";
  size_t at = strlen(body);
  (void)state;
  for (uint32_t i = 0; i < 60; i++) at += (size_t)snprintf(body + at, sizeof body - at, ",\"%040u\"", i);
  (void)snprintf(body + at, sizeof body - at, "]}");
  ask("/v1/completions", body, 400, "the stop strings have 2401 bytes together; at most 2048");
}

/* ---- memory of requests ---------------------------------------------------------------------------- */

static int submit(weft_runtime *rt, uint32_t tenant, uint32_t top_logprobs, uint32_t max_tokens, weft_generation **g,
                  char line[512]) {
  static const int32_t prompt[] = {2, 17, 30};
  weft_generate_params p;
  weft_generate_defaults(&p);
  p.tenant = tenant;
  p.prompt.tokens = prompt;
  p.prompt.n_tokens = 3;
  p.max_tokens = max_tokens;
  p.mode = WEFT_MODE_AUTOREGRESSIVE;
  p.sampling.logprobs = true;
  p.sampling.n_top_logprobs = top_logprobs;
  p.collected = true;
  return weft_submit(rt, &p, g, line, 512);
}

static void test_memory_of_requests_is_shared(void **state) {
  const char *models[] = {DEMO_MODEL};
  weft_open_options options = {.models = models,
                               .n_models = 1,
                               .threads = 1,
                               .kv_bytes = 4 << 20,
                               .context = 1024,
                               .request_bytes = 8 << 20,
                               .tenants = 2,
                               .quiet = true};
  weft_runtime *rt;
  weft_generation *g[256] = {NULL}, *other = NULL;
  char line[512];
  uint32_t n = 0;
  (void)state;
  assert_int_equal(weft_open(&options, &rt, line, sizeof line), 0);
  assert_non_null(strstr(weft_plan(rt), "requests at most 8.0 MiB of host memory"));
  int status = 0;
  while (n < 256 && (status = submit(rt, 0, 20, 1000, &g[n], line)) == 0) n += 1;
  if (status != WEFT_FULL || strstr(line, "this tenant's requests hold") == NULL)
    fail_msg("%u, %d: %s", n, status, line);
  assert_int_equal(submit(rt, 1, 20, 500, &other, line), 0); /* the other tenant's is as good as ever */
  weft_generation_free(other);
  assert_true(n >= 1 && n <= 3); /* of 2 MiB each half of the memory has room for one or two */
  for (uint32_t i = 0; i < n; i++) weft_generation_free(g[i]);
  for (n = 0; n < 16; n++) { /* fewer logprobs, less memory; the engine gives back what was freed at its next step */
    while ((status = submit(rt, 0, 0, 1000, &g[n], line)) == WEFT_FULL && strstr(line, "bytes") != NULL) continue;
    if (status != 0) fail_msg("%u: %s", n, line);
  }
  for (uint32_t i = 0; i < n; i++) weft_generation_free(g[i]);
  weft_close(rt);
  options.request_bytes = 2 << 20;
  assert_int_equal(weft_open(&options, &rt, line, sizeof line), 0);
  assert_int_equal(submit(rt, 0, 20, 1000, &other, line), WEFT_E_LIMIT);
  assert_non_null(strstr(line, "--request-mib"));
  weft_close(rt);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_text_beyond_any_context_is_not_tokenised),
                                     cmocka_unit_test(test_json_that_nobody_reads_costs_nothing),
                                     cmocka_unit_test(test_honest_bodies_pass),
                                     cmocka_unit_test(test_workers_charge_the_tenant),
                                     cmocka_unit_test(test_stop_strings_have_limits),
                                     cmocka_unit_test(test_memory_of_requests_is_shared)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
