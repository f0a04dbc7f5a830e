/* SPDX-License-Identifier: MIT */
/* What clients and supervisors take for granted: names of models that the operator chose, when a model was made, probes of
 * life and of readiness, the load, headers for pages of browsers. */
#include <time.h>

#include "tests/support/http_conversation.h"

#define CHAT "/v1/chat/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2"

static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL};

static weft_open_options small(uint32_t n_models) {
  return (weft_open_options){
      .models = models, .n_models = n_models, .threads = 1, .kv_bytes = 8 << 20, .context = 256, .quiet = true};
}

/* The name that an answer carries; the caller's body asks for a model. */
static void check_answers_as(uint16_t port, const char *asked, const char *carried) {
  char body[256];
  (void)snprintf(body, sizeof body, "{\"model\":\"%s\"," USER "}", asked);
  json_t *root = talk_json(port, CHAT, body);
  assert_string_equal(text_at(root, "model"), carried);
  json_decref(root);
}

static void test_names_that_were_chosen(void **state) {
  static const char *const names[] = {"weft-demo=acme/writer", "weft-demo-ar=reader", "weft-demo=gpt-4o"};
  static const char *const listed[] = {"acme/writer", "gpt-4o", "reader"};
  weft_open_options options = small(2);
  talk server;
  (void)state;
  options.served_names = names;
  options.n_served_names = 3;
  (void)talk_serve(&server, NULL, options, (weft_server_options){0});
  json_t *list = talk_json(server.port, "/v1/models", NULL);
  assert_int_equal(json_array_size(at(list, "data")), 3);
  for (size_t i = 0; i < 3; i++) {
    json_t *model = json_array_get(at(list, "data"), i);
    assert_string_equal(text_at(model, "id"), listed[i]);
    assert_string_equal(text_at(model, "root"), i < 2 ? "acme/writer" : "reader");
    assert_in_range(int_at(model, "created"), 1600000000, time(NULL)); /* when the file was written */
  }
  json_decref(list);
  json_decref(talk_json(server.port, "/v1/models/acme/writer", NULL));
  json_decref(talk_json(server.port, "/v1/models/gpt-4o", NULL));
  check_answers_as(server.port, "acme/writer", "acme/writer");
  check_answers_as(server.port, "gpt-4o", "acme/writer");
  check_answers_as(server.port, "reader", "reader");
  /* the file's name is no name for clients any more */
  talk_check(talk_ask(server.port, "POST", CHAT, "{\"model\":\"weft-demo\"," USER "}"), 404, "");
  talk_close(&server);
}

static void check_names_fail(uint32_t n_models, const char *const *names, uint32_t n, const char *words) {
  weft_open_options options = small(n_models);
  weft_runtime *rt = NULL;
  char line[512];
  options.served_names = names;
  options.n_served_names = n;
  assert_true(weft_open(&options, &rt, line, sizeof line) < 0);
  if (strstr(line, words) == NULL) fail_msg("'%s' does not say '%s'", line, words);
}

static void test_names_that_lead_nowhere(void **state) {
  (void)state;
  check_names_fail(2, (const char *const[]){"both"}, 1, "MODEL=NAME");
  check_names_fail(1, (const char *const[]){"other=a"}, 1, "no model's file");
  check_names_fail(1, (const char *const[]){"weft-demo="}, 1, "empty");
  check_names_fail(2, (const char *const[]){"weft-demo=a", "weft-demo-ar=b", "weft-demo-ar=a"}, 3,
                   "would both be served as 'a'");
}

/* A template that was asked for is used, or the start fails: one for a model that is not there is not left out. */
static void test_templates_that_lead_nowhere(void **state) {
  static const char *const entry[] = {"weft-dem0=" WEFT_SOURCE_DIR "/tests/golden/chat/gemma4.jinja"};
  weft_open_options options = small(1);
  weft_runtime *rt = NULL;
  char line[512] = "";
  (void)state;
  options.chat_templates = entry;
  options.n_chat_templates = 1;
  assert_true(weft_open(&options, &rt, line, sizeof line) < 0);
  if (strstr(line, "no model's file is named 'weft-dem0'") == NULL) fail_msg("%s", line);
}

static int code_of(uint16_t port, const char *method, const char *path) {
  talk_answer a = talk_ask(port, method, path, "");
  int code = a.code;
  talk_answer_free(&a);
  return code;
}

/* Base URLs with a slash or a version too many or too few lead where they mean; what is the operator's has one path. */
static void test_paths_that_clients_make(void **state) {
  static const struct {
    const char *method, *path;
    int code;
  } rows[] = {{"POST", "/chat/completions", 200},
              {"POST", "/v1/chat/completions/", 200},
              {"POST", "//v1//chat/completions", 200},
              {"POST", "/v1/v1/chat/completions", 200},
              {"GET", "/models", 200},
              {"GET", "/v1/models/", 200},
              {"GET", "/models/weft-demo", 200},
              {"GET", "/v1/models/weft-demo:latest", 200},
              {"GET", "/v1/models/weft-demo:newest", 404},
              {"GET", "/api/tags/", 200},
              {"GET", "/", 200},
              {"GET", "/chat/completions", 405},
              {"GET", "//admin/trace", 404},
              {"GET", "/admin/trace/", 404},
              {"GET", "/v1/admin/trace", 404},
              {"GET", "/v2/models", 404},
              {"GET", "/v1", 404}};
  talk server;
  (void)state;
  (void)talk_serve(&server, NULL, small(2), (weft_server_options){0});
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    talk_answer a =
        talk_ask(server.port, rows[i].method, rows[i].path, strcmp(rows[i].method, "POST") == 0 ? "{" USER "}" : "");
    if (a.code != rows[i].code) fail_msg("%s %s: %d", rows[i].method, rows[i].path, a.code);
    talk_answer_free(&a);
  }
  talk_close(&server);
}

/* NAME:TAG is the model of that name, and its tag may say how it writes; a name itself goes before one with a tag. */
static void test_names_with_tags(void **state) {
  static const char *const names[] = {"weft-demo=w", "weft-demo-ar=w:latest"};
  static const struct {
    const char *name, *carried;
    uint32_t canvases;
  } rows[] = {{"w", "w", 1},
              {"w:diffusion", "w", 1},
              {"w:autoregressive", "w", 0},
              {"w:auto", "w", 1},
              {"w:latest", "w:latest", 0},
              {"w:latest:latest", "w:latest", 0},
              /* in capitals, where nothing has these very letters */
              {"W", "w", 1},
              {"W:Autoregressive", "w", 0},
              {"w:DIFFUSION", "w", 1},
              {"W:Latest", "w:latest", 0}};
  weft_open_options options = small(2);
  talk server;
  (void)state;
  options.served_names = names;
  options.n_served_names = 2;
  (void)talk_serve(&server, NULL, options, (weft_server_options){0});
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char body[256];
    (void)snprintf(body, sizeof body, "{\"model\":\"%s\"," USER "}", rows[i].name);
    json_t *root = talk_json(server.port, CHAT, body);
    assert_string_equal(text_at(root, "model"), rows[i].carried);
    assert_int_equal(int_at(root, "usage.completion_tokens_details.canvases"), rows[i].canvases);
    json_decref(root);
  }
  talk_check(talk_ask(server.port, "POST", CHAT, "{\"model\":\"w:other\"," USER "}"), 404, "w:other");
  talk_check(talk_ask(server.port, "GET", "/v1/models/W:Diffusion", ""), 200, "\"root\":\"w\"");
  /* a tag and a mode that say different things */
  static const struct {
    const char *name, *mode, *path, *rest;
    int code;
  } ways[] = {{"w:diffusion", "autoregressive", CHAT, USER, 400},
              {"w:autoregressive", "diffusion", CHAT, USER, 400},
              {"W:Diffusion", "autoregressive", "/v1/messages", "\"max_tokens\":2," USER, 400},
              {"w:diffusion", "autoregressive", "/v1/responses", "\"input\":\"a\"", 400},
              {"w:diffusion", "autoregressive", "/api/chat", "\"stream\":false," USER, 400},
              {"w:diffusion", "diffusion", CHAT, USER, 200},
              {"w:autoregressive", "auto", CHAT, USER, 200},
              {"w", "autoregressive", CHAT, USER, 200}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    char body[256];
    (void)snprintf(body, sizeof body, "{\"model\":\"%s\",\"mode\":\"%s\",%s}", ways[i].name, ways[i].mode,
                   ways[i].rest);
    talk_answer a = talk_ask(server.port, "POST", ways[i].path, body);
    if (a.code != ways[i].code) fail_msg("%s: %d %s", body, a.code, a.body.bytes);
    bool both = strstr(a.body.bytes, ways[i].name) != NULL && strstr(a.body.bytes, ways[i].mode) != NULL;
    if (a.code == 400 && !both) fail_msg("%s", a.body.bytes);
    talk_answer_free(&a);
  }
  talk_close(&server);
}

/* What clients look for in lists of models. */
static void test_lists_of_models(void **state) {
  talk server;
  (void)state;
  (void)talk_serve(&server, NULL, small(1), (weft_server_options){0});
  json_t *list = talk_json(server.port, "/v1/models?client_version=1.0.0", NULL);
  assert_string_equal(text_at(list, "data.0.type"), "base"); /* Mistral's */
  assert_true(json_is_boolean(at(list, "data.0.capabilities.function_calling")));
  assert_string_equal(text_at(list, "models.0.slug"), "weft-demo"); /* Codex's */
  assert_int_equal(int_at(list, "models.0.context_window"), 256);
  assert_string_equal(text_at(list, "models.0.name"), "weft-demo"); /* Ollama's */
  assert_true(json_is_array(at(list, "models.0.capabilities")));
  json_decref(list);
  talk_answer a = talk_ask_as(server.port, "GET", "/v1/models", "anthropic-version: 2023-06-01\r\n", "");
  list = json_loads(a.body.bytes, 0, NULL);
  assert_string_equal(text_at(list, "data.0.type"), "model");
  assert_string_equal(text_at(list, "last_id"), "weft-demo");
  json_decref(list);
  talk_answer_free(&a);
  talk_close(&server);
}

/* While it drains a server lives, and wants no new requests. */
static void test_alive_is_not_ready(void **state) {
  static const char *const ready[] = {"/health", "/readyz", "/ping"};
  weft_open_options options = small(1);
  talk server;
  (void)state;
  (void)talk_serve(&server, NULL, options, (weft_server_options){0});
  for (int i = 0; i < 3; i++) assert_int_equal(code_of(server.port, "GET", ready[i]), 200);
  assert_int_equal(code_of(server.port, "POST", "/ping"), 200);
  assert_int_equal(code_of(server.port, "GET", "/livez"), 200);
  json_t *load = talk_json(server.port, "/load", NULL);
  assert_int_equal(int_at(load, "server_load"), 0);
  json_decref(load);
  weft_server_leave(server.server); /* a router is told, and what it still sends is answered */
  for (int i = 0; i < 3; i++) assert_int_equal(code_of(server.port, "GET", ready[i]), 503);
  assert_int_equal(code_of(server.port, "GET", "/livez"), 200);
  talk_answer answer = talk_ask(server.port, "POST", "/v1/completions", "{\"prompt\":\"1 2\",\"max_tokens\":2}");
  assert_int_equal(answer.code, 200);
  talk_answer_free(&answer);
  weft_server_drain(server.server);
  for (int i = 0; i < 3; i++) assert_int_equal(code_of(server.port, "GET", ready[i]), 503);
  assert_int_equal(code_of(server.port, "GET", "/livez"), 200);
  talk_close(&server);
}

/* A page's client sends headers of its own, and wants to read when to come again. */
static void test_headers_of_pages(void **state) {
  static const char *const origins[] = {"https://chat.example"};
  static const char preflight[] =
      "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n";
  weft_open_options options = small(1);
  talk server;
  char value[128];
  (void)state;
  (void)talk_serve(&server, NULL, options, (weft_server_options){.origins = origins, .n_origins = 1});
  talk_answer a = talk_ask_as(server.port, "OPTIONS", CHAT, preflight, "");
  assert_int_equal(a.code, 204);
  assert_string_equal(talk_header(&a, "Access-Control-Allow-Headers", value, sizeof value),
                      "authorization,content-type,x-stainless-os");
  talk_answer_free(&a);
  a = talk_ask_as(server.port, "POST", CHAT, "Origin: https://chat.example\r\n", "{" USER "}");
  assert_int_equal(a.code, 200);
  assert_non_null(strstr(talk_header(&a, "Access-Control-Expose-Headers", value, sizeof value), "Retry-After"));
  talk_answer_free(&a);
  talk_check(talk_ask_as(server.port, "OPTIONS", CHAT,
                         "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n", ""),
             403, "");
  talk_close(&server);
}

/* The value of a line; -1: there is none. */
static double line_value(const char *text, const char *line) {
  const char *found = strstr(text, line);
  while (found != NULL && found != text && found[-1] != '\n')
    found = strstr(found + 1, line); /* its help names it, too */
  return found == NULL ? -1 : strtod(found + strlen(line), NULL);
}

static double metric_of(uint16_t port, const char *name, const char *model) {
  char line[160];
  (void)snprintf(line, sizeof line, "%s{model_name=\"%s\"} ", name, model);
  talk_answer a = talk_ask(port, "GET", "/metrics", "");
  double value = line_value(a.body.bytes, line);
  talk_answer_free(&a);
  return value;
}

static void await_metric(uint16_t port, const char *name, const char *model, double value) {
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  while (metric_of(port, name, model) != value) {
    if (weft_clock_us() > until) fail_msg("%s of %s is %g, not %g", name, model, metric_of(port, name, model), value);
    (void)poll(NULL, 0, 5);
  }
}

/* Two requests of one model and one of the other: each is counted under its own name, in every series. */
static void test_series_by_model(void **state) {
  static const char *const counted[] = {"vllm:time_to_first_token_seconds_count",
                                        "vllm:time_per_output_token_seconds_count",
                                        "vllm:e2e_request_latency_seconds_count",
                                        "vllm:request_queue_time_seconds_count",
                                        "vllm:request_prefill_time_seconds_count",
                                        "vllm:request_decode_time_seconds_count",
                                        "vllm:request_prompt_tokens_count",
                                        "vllm:request_generation_tokens_count",
                                        "vllm:request_max_num_generation_tokens_count"};
  static const char *const process[] = {"process_cpu_seconds_total ", "process_start_time_seconds ",
                                        "process_open_fds ", "process_max_fds ", "process_resident_memory_bytes "};
  weft_open_options options = small(2);
  talk server;
  char body[256];
  (void)state;
  (void)talk_serve(&server, NULL, options, (weft_server_options){0});
  for (int i = 0; i < 3; i++) {
    (void)snprintf(body, sizeof body,
                   "{\"model\":\"%s\",\"prompt\":[5,6,7],\"max_tokens\":4,\"ignore_eos\":true,"
                   "\"mode\":\"autoregressive\"}",
                   i < 2 ? "weft-demo" : "weft-demo-ar");
    json_decref(talk_json(server.port, "/v1/completions", body));
  }
  for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) {
    await_metric(server.port, counted[i], "weft-demo", 2);
    await_metric(server.port, counted[i], "weft-demo-ar", 1);
  }
  await_metric(server.port, "vllm:prompt_tokens_total", "weft-demo", 6);
  await_metric(server.port, "vllm:generation_tokens_total", "weft-demo", 8);
  await_metric(server.port, "vllm:generation_tokens_total", "weft-demo-ar", 4);
  await_metric(server.port, "vllm:request_prompt_tokens_sum", "weft-demo-ar", 3);
  await_metric(server.port, "vllm:prefix_cache_queries_total", "weft-demo-ar", 3);
  await_metric(server.port, "vllm:num_requests_running", "weft-demo", 0);
  talk_answer a = talk_ask(server.port, "GET", "/metrics", "");
  assert_null(strstr(a.body.bytes, "weft-demo,weft-demo-ar"));
  for (size_t i = 0; i < sizeof process / sizeof *process; i++) assert_true(line_value(a.body.bytes, process[i]) > 0);
  double began = line_value(a.body.bytes, "process_start_time_seconds ");
  assert_true(began > 1.6e9 && began <= (double)time(NULL) + 1);
  talk_answer_free(&a);
  talk_close(&server);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_names_that_were_chosen),
                                     cmocka_unit_test(test_names_that_lead_nowhere),
                                     cmocka_unit_test(test_templates_that_lead_nowhere),
                                     cmocka_unit_test(test_paths_that_clients_make),
                                     cmocka_unit_test(test_names_with_tags),
                                     cmocka_unit_test(test_lists_of_models),
                                     cmocka_unit_test(test_alive_is_not_ready),
                                     cmocka_unit_test(test_headers_of_pages),
                                     cmocka_unit_test(test_series_by_model)};
  (void)signal(SIGPIPE, SIG_IGN);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
