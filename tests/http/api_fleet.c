/* SPDX-License-Identifier: MIT */
/* What routers ask of a worker: who it is, how large its cache is, how much it has to do, what a prompt's tokens are;
 * who may ask that; and for whom a trusted router asks. */
#include "tests/support/http_conversation.h"

#include "api/runtime.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

static const char keys_text[] =
    "sk-red red\nsk-blue blue queued=1 running=1\nsk-op operator\nsk-look metrics\nsk-gate router\n";
static const char *const red = "Authorization: Bearer sk-red\r\n";
static const char *const boss = "Authorization: Bearer sk-op\r\n";
static const char *const looker = "Authorization: Bearer sk-look\r\n";

static const char hi[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}";

static int code_as(const talk *t, const char *header, const char *method, const char *path, const char *body) {
  talk_answer a = talk_ask_as(t->port, method, path, header, body);
  int code = a.code;
  talk_answer_free(&a);
  return code;
}

static json_t *ask_json(const talk *t, const char *header, const char *method, const char *path, const char *body) {
  talk_answer a = talk_ask_as(t->port, method, path, header, body);
  if (a.code != 200) fail_msg("%s: %d %s", path, a.code, a.body.bytes);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  assert_non_null(root);
  talk_answer_free(&a);
  return root;
}

/* ---- who may read counters ---- */

static void test_metrics_key(void **state) {
  static const char *const counters[] = {"/metrics", "/load", "/get_load", "/loads", "/v1/loads"};
  static const char *const about[] = {"/v1/models",       "/v1/models/weft-demo", "/server_info",
                                      "/get_server_info", "/model_info",          "/get_model_info"};
  talk server;
  (void)state;
  talk_serve(&server, keys_text, (weft_open_options){0}, (weft_server_options){0});
  for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
    assert_int_equal(code_as(&server, "", "GET", counters[i], ""), 401);
    assert_int_equal(code_as(&server, red, "GET", counters[i], ""), 403);
    assert_int_equal(code_as(&server, looker, "GET", counters[i], ""), 200);
    assert_int_equal(code_as(&server, boss, "GET", counters[i], ""), 200);
  }
  for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
    assert_int_equal(code_as(&server, "", "GET", about[i], ""), 401);
    assert_int_equal(code_as(&server, red, "GET", about[i], ""), 200);
    assert_int_equal(code_as(&server, looker, "GET", about[i], ""), 200);
  }
  assert_int_equal(code_as(&server, looker, "POST", CHAT, hi), 403);
  assert_int_equal(code_as(&server, looker, "POST", CHAT "/render", hi), 403);
  assert_int_equal(code_as(&server, looker, "GET", "/admin/trace", ""), 403);
  assert_int_equal(code_as(&server, looker, "POST", "/reset_prefix_cache", ""), 403);
  talk_close(&server);
}

/* A key of metrics beside those of one tenant takes nothing from it. */
static void test_metrics_key_beside_one_tenant(void **state) {
  talk server;
  (void)state;
  talk_serve(&server, "sk-red red\nsk-look metrics\n", (weft_open_options){0}, (weft_server_options){0});
  assert_int_equal(code_as(&server, red, "GET", "/metrics", ""), 200);
  assert_int_equal(code_as(&server, looker, "GET", "/metrics", ""), 200);
  talk_close(&server);
}

static void test_public_metrics(void **state) {
  talk server;
  (void)state;
  talk_serve(&server, keys_text, (weft_open_options){0}, (weft_server_options){.public_metrics = true});
  assert_int_equal(code_as(&server, "", "GET", "/metrics", ""), 200);
  assert_int_equal(code_as(&server, "", "GET", "/v1/loads", ""), 200);
  assert_int_equal(code_as(&server, "", "GET", "/v1/models", ""), 401);
  assert_int_equal(code_as(&server, "", "POST", CHAT, hi), 401);
  talk_close(&server);
}

/* ---- what they read ---- */

static double label_number(const char *text, const char *label) {
  const char *at = strstr(text, label);
  if (at == NULL) fail_msg("no %s in the metrics", label);
  return strtod(at + strlen(label), NULL);
}

/* The product of the two labels is how many tokens really fit: requests of the whole context are put into the pool one
 * beside the other, and what they hold together is at most a request less. */
static void test_capacity(void **state) {
  talk server;
  (void)state;
  talk_serve(&server, NULL, (weft_open_options){.kv_bytes = 4 << 20, .context = 512}, (weft_server_options){0});
  talk_answer a = talk_ask(server.port, "GET", "/metrics", "");
  double block = label_number(a.body.bytes, "block_size=\""), n = label_number(a.body.bytes, "num_gpu_blocks=\"");
  const weft_kv_layout *layout = &server.runtime->model[0].layout;
  double pages = 0;
  for (uint32_t g = 0; g < layout->n_groups; g++) {
    const weft_layer_group *group = &layout->group[g];
    uint32_t seen = group->window == 0 || group->window > 512 ? 512 : group->window; /* of one row at the end */
    pages +=
        group->window == 0 ? 512.0 / group->block_tokens : (seen + group->block_tokens - 1.0) / group->block_tokens;
    assert_true(group->block_tokens <= block);
  }
  double fit = server.runtime->n_pages * 512.0 / pages;
  if (block * n < 0.8 * fit || block * n > 1.2 * fit) fail_msg("%g tokens, and %g are told", fit, block * n);
  json_t *info = ask_json(&server, "", "GET", "/server_info", "");
  assert_int_equal(int_at(info, "block_size"), (json_int_t)block);
  assert_int_equal(int_at(info, "num_gpu_blocks"), (json_int_t)n);
  assert_string_equal(text_at(info, "served_model_name"), "weft-demo");
  assert_string_equal(text_at(info, "model_path"), "weft-demo");
  assert_int_equal(int_at(info, "dp_size"), 1);
  assert_int_equal(int_at(info, "max_model_len"), 512);
  json_decref(info);
  assert_non_null(
      strstr(a.body.bytes, "vllm:num_requests_waiting_by_reason{model_name=\"weft-demo\",reason=\"capacity\"} 0"));
  assert_non_null(
      strstr(a.body.bytes, "vllm:num_requests_waiting_by_reason{model_name=\"weft-demo\",reason=\"deferred\"} 0"));
  assert_non_null(strstr(a.body.bytes, "vllm:admission_rejections_total{model_name=\"weft-demo\",reason=\"queue\"} 0"));
  talk_answer_free(&a);
  json_t *loads = ask_json(&server, "", "GET", "/loads?model=weft-demo", "");
  assert_int_equal(int_at(loads, "load"), 0);
  assert_int_equal(int_at(loads, "loads.0.max_total_num_tokens"), (json_int_t)(block * n));
  assert_int_equal(int_at(loads, "aggregate.num_running_reqs"), 0);
  json_decref(loads);
  talk_close(&server);
}

/* ---- the load in the head of an answer ---- */

static void test_load_header(void **state) {
  static const char text[] = "endpoint-load-metrics-format: TEXT\r\n",
                    json[] = "endpoint-load-metrics-format: json\r\n";
  char value[256], header[160];
  talk server;
  (void)state;
  talk_serve(&server, keys_text, (weft_open_options){0}, (weft_server_options){0});
  (void)snprintf(header, sizeof header, "%s%s", boss, text);
  talk_answer a = talk_ask_as(server.port, "POST", CHAT, header, hi);
  assert_int_equal(a.code, 200);
  (void)talk_header(&a, "endpoint-load-metrics", value, sizeof value);
  assert_non_null(strstr(value, "TEXT named_metrics.kv_cache_usage_perc=0."));
  talk_answer_free(&a);
  (void)snprintf(header, sizeof header, "%s%s", boss, json);
  a = talk_ask_as(server.port, "POST", CHAT, header, hi);
  (void)talk_header(&a, "endpoint-load-metrics", value, sizeof value);
  assert_memory_equal(value, "JSON {", 6);
  json_t *root = json_loads(value + 5, 0, NULL);
  assert_int_equal(int_at(root, "named_metrics.num_requests_waiting"), 0);
  json_decref(root);
  talk_answer_free(&a);
  (void)snprintf(header, sizeof header, "%s%s", red, text); /* it may not read counts of all */
  a = talk_ask_as(server.port, "POST", CHAT, header, hi);
  assert_int_equal(a.code, 200);
  assert_string_equal(talk_header(&a, "endpoint-load-metrics", value, sizeof value), "");
  talk_answer_free(&a);
  talk_close(&server);
}

/* ---- prompts without answers ---- */

static json_int_t cached_of(const talk *t, const char *path, const char *body) {
  json_t *root = ask_json(t, "", "POST", path, body);
  json_int_t n = int_at(root, "usage.prompt_tokens");
  json_decref(root);
  return n;
}

/* As routers write bodies again: what the client left out is false or null. */
static const char rewritten[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\",\"name\":null}],\"max_tokens\":2,\"temperature\":0.5,"
    "\"stream\":false,\"logprobs\":false,\"no_stop_trim\":false,\"ignore_eos\":false,\"continue_final_message\":false,"
    "\"skip_special_tokens\":true,\"separate_reasoning\":true,\"stream_reasoning\":true,\"tools\":null,\"stop\":null,"
    "\"regex\":null,\"ebnf\":null,\"lora_path\":null,\"session_params\":null,\"return_hidden_states\":false,"
    "\"top_k\":-1,\"user\":null,\"response_format\":null,\"stream_options\":null,\"seed\":7,\"cache_salt\":\"s\"}";
static const char rewritten_plain[] =
    "{\"prompt\":\"one two three\",\"max_tokens\":2,\"stream\":false,\"echo\":false,\"logprobs\":null,\"suffix\":null,"
    "\"no_stop_trim\":false,\"ignore_eos\":false,\"skip_special_tokens\":true,\"continue_final_message\":false,"
    "\"return_hidden_states\":false,\"best_of\":null,\"lora_path\":null}";

static void test_render(void **state) {
  talk server;
  (void)state;
  talk_serve(&server, NULL, (weft_open_options){0}, (weft_server_options){.strict_fields = true});
  json_t *root = ask_json(&server, "", "POST", CHAT "/render", rewritten);
  json_t *tokenized =
      ask_json(&server, "", "POST", "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
  assert_true(json_equal(json_object_get(root, "token_ids"), json_object_get(tokenized, "tokens")));
  assert_int_equal((json_int_t)json_array_size(json_object_get(root, "token_ids")),
                   cached_of(&server, CHAT, rewritten));
  assert_memory_equal(text_at(root, "request_id"), "chatcmpl-", 9);
  assert_string_equal(text_at(root, "model"), "weft-demo");
  assert_string_equal(text_at(root, "cache_salt"), "s");
  assert_int_equal(int_at(root, "sampling_params.max_tokens"), 2);
  assert_int_equal(int_at(root, "sampling_params.seed"), 7);
  assert_true(json_is_null(json_object_get(root, "features")));
  assert_true(json_is_false(json_object_get(root, "stream")));
  json_decref(root);
  json_decref(tokenized);
  root = ask_json(&server, "", "POST", COMPLETIONS "/render", rewritten_plain);
  assert_int_equal((json_int_t)json_array_size(root), 1);
  assert_int_equal((json_int_t)json_array_size(json_object_get(json_array_get(root, 0), "token_ids")),
                   cached_of(&server, COMPLETIONS, rewritten_plain));
  json_decref(root);
  root = ask_json(&server, "", "POST", COMPLETIONS "/render",
                  "{\"prompt\":[[5,6,7,8],[9,10]],\"truncate_prompt_tokens\":3}");
  assert_int_equal((json_int_t)json_array_size(root), 2);
  json_t *kept = json_loads("[6,7,8]", 0, NULL);
  assert_true(json_equal(json_object_get(json_array_get(root, 0), "token_ids"), kept));
  json_decref(kept);
  json_decref(root);
  talk_answer metrics = talk_ask(server.port, "GET", "/metrics", "");
  assert_non_null(strstr(metrics.body.bytes, "\nweft_requests_submitted_total 2\n")); /* nothing was computed for it */
  talk_answer_free(&metrics);
  assert_int_equal(code_as(&server, "", "POST", CHAT "/render", "{\"messages\":[]}"), 400);
  assert_int_equal(code_as(&server, "", "POST", CHAT "/render", "{"), 400);
  assert_int_equal(code_as(&server, "", "POST", COMPLETIONS "/render", "{\"prompt\":[5,6,99999]}"), 400);
  talk_close(&server);
}

/* ---- tenants of a trusted router ---- */

static json_int_t found_as(const talk *t, const char *header) {
  static const char body[] =
      "{\"prompt\":[5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,"
      "33,34,35,36,37,38,39,40,41,42],\"max_tokens\":1,\"mode\":\"autoregressive\"}";
  json_t *root = ask_json(t, header, "POST", COMPLETIONS, body);
  json_int_t n = int_at(root, "usage.prompt_tokens_details.cached_tokens");
  json_decref(root);
  return n;
}

static void test_router_speaks_for_tenants(void **state) {
  static const char as_red[] = "Authorization: Bearer sk-gate\r\nX-Tenant-ID: red\r\n";
  static const char as_blue[] = "X-Router-Key: sk-gate\r\nx-llm-d-inference-fairness-id: blue\r\n";
  static const char *const refused[] = {"Authorization: Bearer sk-gate\r\nX-Tenant-ID: operator\r\n",
                                        "Authorization: Bearer sk-gate\r\nX-Tenant-ID: nobody\r\n",
                                        "Authorization: Bearer sk-gate\r\nX-Tenant-ID: metrics\r\n"};
  talk server;
  (void)state;
  talk_serve(&server, keys_text, (weft_open_options){.kv_bytes = 8 << 20, .context = 512}, (weft_server_options){0});
  assert_int_equal(found_as(&server, as_red), 0);
  assert_true(found_as(&server, red) > 0); /* the same tenant, by its own key */
  assert_int_equal(found_as(&server, as_blue), 0);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    assert_int_equal(code_as(&server, refused[i], "POST", CHAT, hi), 403);
  assert_int_equal(code_as(&server, "X-Router-Key: sk-red\r\nX-Tenant-ID: blue\r\n", "POST", CHAT, hi), 401);
  assert_int_equal(code_as(&server, "X-Router-Key: wrong\r\nX-Tenant-ID: blue\r\n", "POST", CHAT, hi), 401);
  /* who is no router is the tenant of its key, whatever it says */
  assert_true(found_as(&server, "Authorization: Bearer sk-red\r\nX-Tenant-ID: blue\r\n") > 0);
  assert_int_equal(found_as(&server, "Authorization: Bearer sk-gate\r\n"), 0); /* a tenant of its own */
  talk_close(&server);
}

/* What a client puts beside what a router says, and what else a router may say that is wrong. */
static void test_router_is_lied_to(void **state) {
  static const char gate[] = "Authorization: Bearer sk-gate\r\n";
  static const struct {
    const char *headers;
    int code;
  } row[] = {
      {"X-Tenant-ID: red\r\nX-Tenant-ID: blue\r\n", 400},
      {"X-Tenant-ID: blue\r\nx-tenant-id: red\r\n", 400},
      {"X-Tenant-ID: red\r\nx-llm-d-inference-fairness-id: blue\r\n", 400},
      {"x-gateway-inference-fairness-id: red\r\nx-llm-d-inference-fairness-id: operator\r\n", 400},
      {"X-Tenant-ID: red, blue\r\n", 403},
      {"X-Tenant-ID: Red\r\n", 403},
      {"X-Tenant-ID: red\r\nX-Tenant-ID:\r\nx-llm-d-inference-fairness-id: red\r\n", 200},
      {"X-Tenant-ID:\r\nx-llm-d-inference-fairness-id: operator\r\n", 403},
      {"X-Router-Key: sk-gate\r\nX-Router-Key: sk-gate\r\nX-Tenant-ID: red\r\n", 400},
      {"X-Router-Key: sk-gat\r\nX-Tenant-ID: red\r\n", 401},
      {"X-Router-Key: sk-gatee\r\nX-Tenant-ID: red\r\n", 401},
      {"X-Router-Key:\r\nX-Tenant-ID: red\r\n", 401},
  };
  char headers[4096], name[2048];
  talk server;
  (void)state;
  talk_serve(&server, keys_text, (weft_open_options){.kv_bytes = 8 << 20, .context = 512}, (weft_server_options){0});
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    (void)snprintf(headers, sizeof headers, "%s%s", gate, row[i].headers);
    int code = code_as(&server, headers, "POST", CHAT, hi);
    if (code != row[i].code) fail_msg("%s: %d, and not %d", row[i].headers, code, row[i].code);
  }
  for (int last = 0; last < 2; last++) { /* what is quoted of a name is cut before a character, never in one */
    memset(name, 'a', sizeof name);
    for (int i = 63; i + 2 < (int)sizeof name && last == 1; i += 2) memcpy(name + i, "\xc3\xa9", 2);
    name[sizeof name - 1] = 0;
    (void)snprintf(headers, sizeof headers, "%sX-Tenant-ID: %s\r\n", gate, name);
    talk_answer a = talk_ask_as(server.port, "POST", CHAT, headers, hi);
    json_t *root = json_loads(a.body.bytes, 0, NULL);
    if (a.code != 403 || root == NULL) fail_msg("%d %s", a.code, a.body.bytes);
    assert_string_equal(text_at(root, "error.code"), "unknown_tenant");
    json_decref(root);
    talk_answer_free(&a);
  }
  /* from who is no router it is nothing */
  assert_int_equal(
      code_as(&server, "Authorization: Bearer sk-red\r\nX-Tenant-ID: a\r\nX-Tenant-ID: b\r\n", "POST", CHAT, hi), 200);
  talk_close(&server);
}

/* ---- whose limit it was ---- */

static void test_scope_of_a_limit(void **state) {
  static const char key[] = "Authorization: Bearer sk-red\r\n";
  static const char ask[] = "{\"prompt\":[5,6,7,8],\"max_tokens\":90,\"ignore_eos\":true,\"mode\":\"autoregressive\"}";
  char scope[32];
  talk server;
  (void)state;
  talk_serve(&server, "sk-red red tokens-per-minute=100\nsk-op operator\n", (weft_open_options){0},
             (weft_server_options){0});
  talk_answer a = talk_ask_as(server.port, "POST", COMPLETIONS, key, ask);
  for (int i = 0; i < 4 && a.code == 200; i++) {
    talk_answer_free(&a);
    a = talk_ask_as(server.port, "POST", COMPLETIONS, key, ask);
  }
  assert_int_equal(a.code, 429);
  assert_string_equal(talk_header(&a, "X-Limit-Scope", scope, sizeof scope), "tenant");
  talk_answer_free(&a);
  a = talk_ask_as(server.port, "GET", "/metrics", boss, "");
  assert_null(strstr(a.body.bytes, "vllm:admission_rejections_total{model_name=\"weft-demo\",reason=\"tokens\"} 0"));
  talk_answer_free(&a);
  talk_close(&server);
}

/* ---- HTTP/2's preface ---- */

static void test_preface(void **state) {
  talk server;
  (void)state;
  talk_serve(&server, NULL, (weft_open_options){0}, (weft_server_options){0});
  int fd = talk_dial(server.port);
  static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  assert_int_equal(write(fd, preface, sizeof preface - 1), sizeof preface - 1);
  char bytes[4096];
  size_t n = 0;
  ssize_t more;
  while (n + 1 < sizeof bytes && (more = read(fd, bytes + n, sizeof bytes - 1 - n)) > 0) n += (size_t)more;
  bytes[n] = 0;
  assert_memory_equal(bytes, "HTTP/1.1 505 ", 13); /* and the connection is at its end */
  (void)close(fd);
  talk_close(&server);
}

/* Thousands of probes, some of which connect and say nothing: each that asks is answered, and a stream beside them has
 * its tokens. */
static void test_health_probes(void **state) {
  enum { PROBES = 3000 };
  static const char body[] =
      "{\"prompt\":\"hi\",\"max_tokens\":120,\"ignore_eos\":true,\"temperature\":0,\"mode\":\"autoregressive\","
      "\"stream\":true,"
      "\"stream_options\":{\"include_usage\":true}}";
  weft_text heard = {0};
  talk server;
  (void)state;
  talk_serve(&server, NULL, (weft_open_options){0}, (weft_server_options){0});
  int stream = talk_dial(server.port);
  talk_send(stream, "POST", COMPLETIONS, "Connection: close\r\n", body, sizeof body - 1);
  while (heard.bytes == NULL || strstr(heard.bytes, "data: ") == NULL)
    assert_true(talk_read(stream, &heard, TALK_MS) > 0);
  for (uint32_t i = 0; i < PROBES; i++) {
    if (i % 3 == 0) (void)close(talk_dial(server.port));
    assert_int_equal(code_as(&server, "", "GET", "/health", ""), 200);
  }
  while (talk_read(stream, &heard, TALK_MS) > 0) continue;
  assert_non_null(strstr(heard.bytes, "\"completion_tokens\":120"));
  assert_non_null(strstr(heard.bytes, "[DONE]"));
  (void)close(stream);
  weft_text_free(&heard);
  talk_close(&server);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_metrics_key),       cmocka_unit_test(test_metrics_key_beside_one_tenant),
      cmocka_unit_test(test_public_metrics),    cmocka_unit_test(test_capacity),
      cmocka_unit_test(test_load_header),       cmocka_unit_test(test_render),
      cmocka_unit_test(test_preface),           cmocka_unit_test(test_health_probes),
      cmocka_unit_test(test_scope_of_a_limit),  cmocka_unit_test(test_router_speaks_for_tenants),
      cmocka_unit_test(test_router_is_lied_to),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
