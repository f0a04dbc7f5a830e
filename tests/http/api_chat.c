/* SPDX-License-Identifier: MIT */
/* The endpoints as a well-behaved client meets them, over the demo model. Nothing here depends on
 * what the model says: answers are compared with each other and with their own tokens. */
#include "tests/support/http_conversation.h"

static talk server;

static int open_server(void **state) {
  *state = talk_serve(&server, NULL, (weft_open_options){.threads = 2, .kv_bytes = 16 << 20, .context = 1024},
                      (weft_server_options){0});
  return 0;
}

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define ASK                                                    \
  "\"messages\":[{\"role\":\"user\",\"content\":\"Write 4711 " \
  "backwards.\"}],\"temperature\":0,\"seed\":5"

static void test_small_endpoints(void **state) {
  (void)state;
  json_t *root = talk_json(server.port, "/health", NULL);
  assert_string_equal(text_at(root, "status"), "ok");
  json_decref(root);
  root = talk_json(server.port, "/version", NULL);
  assert_string_equal(text_at(root, "version"), weft_version());
  json_decref(root);
  root = talk_json(server.port, "/v1/models", NULL);
  assert_string_equal(text_at(root, "object"), "list");
  assert_string_equal(text_at(root, "data.0.id"), "weft-demo");
  assert_int_equal(int_at(root, "data.0.max_model_len"), 1024);
  assert_true(json_is_true(at(root, "data.0.diffusion")));
  json_decref(root);
  root = talk_json(server.port, "/v1/models/weft-demo", NULL);
  assert_string_equal(text_at(root, "object"), "model");
  json_decref(root);
}

static void check_usage(json_t *usage, bool canvas) {
  json_int_t prompt = int_at(usage, "prompt_tokens"), completion = int_at(usage, "completion_tokens");
  assert_true(prompt > 0);
  assert_int_equal(int_at(usage, "total_tokens"), prompt + completion);
  assert_true(int_at(usage, "prompt_tokens_details.cached_tokens") >= 0);
  assert_true((int_at(usage, "completion_tokens_details.denoise_steps") > 0) == canvas);
  assert_true((int_at(usage, "completion_tokens_details.canvases") > 0) == canvas);
}

static void test_chat_whole(void **state) {
  static const char *const modes[] = {"autoregressive", "diffusion", "auto"};
  (void)state;
  for (int i = 0; i < 3; i++) {
    char body[512];
    (void)snprintf(body, sizeof body,
                   "{\"model\":\"anything\",\"user\":\"u\",\"unknown_field\":{},\"mode\":\"%s\","
                   "\"max_tokens\":40," ASK "}",
                   modes[i]);
    json_t *root = talk_json(server.port, CHAT, body);
    assert_string_equal(text_at(root, "object"), "chat.completion");
    assert_string_equal(text_at(root, "model"), "weft-demo");
    assert_true(strncmp(text_at(root, "id"), "chatcmpl-", 9) == 0);
    assert_int_equal(int_at(root, "choices.0.index"), 0);
    assert_string_equal(text_at(root, "choices.0.message.role"), "assistant");
    (void)text_at(root, "choices.0.message.content");
    const char *finish = text_at(root, "choices.0.finish_reason");
    assert_true(strcmp(finish, "stop") == 0 || strcmp(finish, "length") == 0);
    check_usage(at(root, "usage"), i > 0);
    json_decref(root);
  }
}

/* Joins what the chunks of one choice say. */
static weft_text joined(json_t *events, const char *field, json_int_t index) {
  weft_text out = {0};
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event) {
    json_t *choice = at(event, "data.choices.0");
    if (choice == NULL || int_at(choice, "index") != index) continue;
    const char *text = json_string_value(at(choice, field));
    if (text != NULL) weft_text_puts(&out, text);
  }
  weft_text_append(&out, "", 0);
  return out;
}

static void test_chat_stream_says_what_whole_says(void **state) {
  static const char *const modes[] = {"autoregressive", "diffusion"};
  (void)state;
  for (int m = 0; m < 2; m++) {
    char body[512];
    (void)snprintf(body, sizeof body, "{\"mode\":\"%s\",\"max_tokens\":40," ASK "}", modes[m]);
    json_t *whole = talk_json(server.port, CHAT, body);
    (void)snprintf(body, sizeof body,
                   "{\"mode\":\"%s\",\"max_tokens\":40,\"stream\":true,\"stream_options\":{"
                   "\"include_usage\":true}," ASK "}",
                   modes[m]);
    json_t *events = talk_stream(server.port, CHAT, body);
    size_t n = json_array_size(events);
    assert_true(n >= 4);
    weft_text text = joined(events, "delta.content", 0);
    assert_string_equal(text.bytes, text_at(whole, "choices.0.message.content"));
    assert_string_equal(text_at(events, "0.data.object"), "chat.completion.chunk");
    assert_string_equal(text_at(events, "0.data.choices.0.delta.role"), "assistant");
    assert_string_equal(text_at(json_array_get(events, n - 1), "data"), "[DONE]");
    json_t *last = json_array_get(events, n - 2), *end = json_array_get(events, n - 3);
    assert_int_equal(json_array_size(at(last, "data.choices")), 0);
    check_usage(at(last, "data.usage"), m == 1);
    assert_int_equal(int_at(last, "data.usage.completion_tokens"), int_at(whole, "usage.completion_tokens"));
    assert_string_equal(text_at(end, "data.choices.0.finish_reason"), text_at(whole, "choices.0.finish_reason"));
    for (size_t i = 0; i + 3 < n; i++)
      assert_true(json_is_null(at(json_array_get(events, i), "data.choices.0.finish_reason")));
    weft_text_free(&text);
    json_decref(events);
    json_decref(whole);
  }
}

/* Every chunk's ids decode to that chunk's text, and together they are the answer's ids. */
static void check_token_ids(const char *mode, const char *prompt) {
  char body[1024];
  (void)snprintf(body, sizeof body,
                 "{\"prompt\":%s,\"mode\":\"%s\",\"max_tokens\":48,\"ignore_eos\":true,"
                 "\"temperature\":1.5,\"seed\":9,"
                 "\"return_token_ids\":true,\"skip_special_tokens\":false}",
                 prompt, mode);
  json_t *whole = talk_json(server.port, COMPLETIONS, body);
  body[strlen(body) - 1] = 0;
  (void)strncat(body, ",\"stream\":true}", sizeof body - strlen(body) - 1);
  json_t *events = talk_stream(server.port, COMPLETIONS, body), *ids = json_array(), *event;
  size_t i;
  json_array_foreach(events, i, event) {
    json_t *list = at(event, "data.choices.0.token_ids");
    if (list == NULL) continue;
    json_t *ask = json_pack("{s:O}", "tokens", list);
    char *line = json_dumps(ask, 0);
    json_t *decoded = talk_json(server.port, "/detokenize", line);
    assert_string_equal(text_at(decoded, "prompt"), text_at(event, "data.choices.0.text"));
    (void)json_array_extend(ids, list);
    json_decref(decoded);
    json_decref(ask);
    free(line);
  }
  assert_true(json_equal(ids, at(whole, "choices.0.token_ids")));
  assert_int_equal(json_array_size(ids), int_at(whole, "usage.completion_tokens"));
  assert_true(json_equal(at(events, "0.data.choices.0.prompt_token_ids"), at(whole, "choices.0.prompt_token_ids")));
  assert_null(at(events, "1.data.choices.0.prompt_token_ids"));
  json_decref(ids);
  json_decref(events);
  json_decref(whole);
}

static void test_token_ids(void **state) {
  (void)state;
  check_token_ids("autoregressive", "\"a green \\ud83d\\ude00 frog\"");
  check_token_ids("diffusion", "\"a green frog\"");
}

/* A character spread over byte tokens comes in one chunk with all of its ids: a bias forces the
 * four bytes. */
static void test_token_ids_keep_characters_whole(void **state) {
  (void)state;
  json_t *bytes = talk_json(server.port, "/tokenize", "{\"prompt\":\"\\ud83d\\ude00\",\"add_special_tokens\":false}");
  assert_int_equal(int_at(bytes, "count"), 4);
  json_t *bias = json_object();
  for (int i = 0; i < 4; i++) {
    char key[32];
    (void)snprintf(key, sizeof key, "%lld",
                   (long long)json_integer_value(json_array_get(at(bytes, "tokens"), (size_t)i)));
    (void)json_object_set_new(bias, key, json_real(100));
  }
  json_t *ask = json_pack("{s:s, s:o, s:b, s:b, s:i, s:s, s:b, s:i, s:f}", "prompt", "a", "logit_bias", bias, "stream",
                          1, "return_token_ids", 1, "max_tokens", 60, "mode", "autoregressive", "ignore_eos", 1, "seed",
                          3, "temperature", 2.0);
  char *line = json_dumps(ask, 0);
  json_t *events = talk_stream(server.port, COMPLETIONS, line), *event;
  size_t i, n_ids = 0;
  json_array_foreach(events, i, event) {
    json_t *list = at(event, "data.choices.0.token_ids");
    if (list == NULL) continue;
    n_ids += json_array_size(list);
    json_t *again = json_pack("{s:O}", "tokens", list);
    char *words = json_dumps(again, 0);
    json_t *decoded = talk_json(server.port, "/detokenize", words);
    assert_string_equal(text_at(decoded, "prompt"), text_at(event, "data.choices.0.text"));
    json_decref(decoded);
    json_decref(again);
    free(words);
  }
  assert_int_equal(n_ids, 60);
  free(line);
  json_decref(events);
  json_decref(ask);
  json_decref(bytes);
}

static void test_replace_events(void **state) {
  (void)state;
  json_t *events = talk_stream(server.port, CHAT,
                               "{\"stream\":true,\"stream_canvas\":true,\"mode\":\"diffusion\",\"max_tokens\":64,"
                               "\"stream_options\":{\"include_usage\":true}," ASK "}");
  size_t i, n_replace = 0, n = json_array_size(events);
  json_int_t block = -1, step = -1;
  json_t *event;
  json_array_foreach(events, i, event) {
    if (strcmp(text_at(event, "event"), "replace") != 0) continue;
    json_int_t b = int_at(event, "data.block"), s = int_at(event, "data.step");
    assert_true(b == block ? s == step + 1 : b == block + 1 && s == 0);
    block = b;
    step = s;
    assert_int_equal(int_at(event, "data.index"), 0);
    assert_int_equal(int_at(event, "data.positions"), 32);
    (void)text_at(event, "data.text");
    (void)int_at(event, "data.accepted");
    assert_true(json_is_boolean(at(event, "data.stopped")));
    n_replace += 1;
  }
  assert_int_equal(n_replace,
                   int_at(json_array_get(events, n - 2), "data.usage.completion_tokens_details.denoise_steps"));
  json_decref(events);
}

static void test_choices_and_prompts(void **state) {
  const char *body =
      "{\"prompt\":[\"a "
      "frog\",[300,296,10]],\"n\":3,\"max_tokens\":12,\"temperature\":1.3,\"seed\":11,"
      "\"ignore_eos\":true,\"mode\":\"autoregressive\"%s}";
  char line[512];
  (void)state;
  (void)snprintf(line, sizeof line, body, "");
  json_t *first = talk_json(server.port, COMPLETIONS, line), *second = talk_json(server.port, COMPLETIONS, line);
  assert_int_equal(json_array_size(at(first, "choices")), 6);
  assert_true(json_equal(at(first, "choices"), at(second, "choices"))); /* the same seed, the same answers */
  assert_string_not_equal(text_at(first, "choices.0.text"), text_at(first, "choices.1.text"));
  assert_int_equal(int_at(first, "usage.completion_tokens"), 72);
  (void)snprintf(line, sizeof line, body, ",\"stream\":true");
  json_t *events = talk_stream(server.port, COMPLETIONS, line);
  for (json_int_t i = 0; i < 6; i++) {
    json_t *choice = json_array_get(at(first, "choices"), (size_t)i);
    weft_text text = joined(events, "text", i);
    assert_int_equal(int_at(choice, "index"), i);
    assert_string_equal(text.bytes, text_at(choice, "text"));
    weft_text_free(&text);
  }
  json_decref(events);
  json_decref(first);
  json_decref(second);
}

/* Many answers with large events: much more is there at once than one pull takes. The network thread gets all of it
 * out, and others are served. */
static void test_many_answers_stream(void **state) {
  (void)state;
  json_t *events =
      talk_stream(server.port, COMPLETIONS,
                  "{\"prompt\":\"a frog\",\"n\":32,\"logprobs\":20,\"max_tokens\":24,\"ignore_eos\":true,"
                  "\"mode\":\"autoregressive\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
  size_t n = json_array_size(events);
  assert_int_equal(int_at(json_array_get(events, n - 2), "data.usage.completion_tokens"), 32 * 24);
  json_decref(events);
  json_decref(talk_json(server.port, "/health", NULL));
}

/* Of five answers the two most likely per token, in that order; all are paid for. */
static void test_best_of(void **state) {
  static const char body[] =
      "{\"prompt\":\"a frog\",\"max_tokens\":12,\"temperature\":1.3,\"seed\":11,"
      "\"mode\":\"autoregressive\",%s}";
  char line[512];
  double mean[5];
  (void)state;
  (void)snprintf(line, sizeof line, body, "\"n\":5,\"logprobs\":0");
  json_t *all = talk_json(server.port, COMPLETIONS, line);
  for (size_t i = 0; i < 5; i++) {
    json_t *list = at(json_array_get(at(all, "choices"), i), "logprobs.token_logprobs");
    mean[i] = 0;
    for (size_t k = 0; k < json_array_size(list); k++)
      mean[i] += json_number_value(json_array_get(list, k)) / (double)json_array_size(list);
  }
  (void)snprintf(line, sizeof line, body, "\"n\":2,\"best_of\":5");
  json_t *best = talk_json(server.port, COMPLETIONS, line);
  assert_int_equal(json_array_size(at(best, "choices")), 2);
  for (size_t rank = 0; rank < 2; rank++) {
    size_t likeliest = 0;
    for (size_t i = 1; i < 5; i++) likeliest = mean[i] > mean[likeliest] ? i : likeliest;
    mean[likeliest] = -1e9;
    json_t *choice = json_array_get(at(best, "choices"), rank);
    assert_int_equal(int_at(choice, "index"), rank);
    assert_true(json_is_null(at(choice, "logprobs")));
    assert_string_equal(text_at(choice, "text"), text_at(json_array_get(at(all, "choices"), likeliest), "text"));
  }
  assert_int_equal(int_at(best, "usage.completion_tokens"), int_at(all, "usage.completion_tokens"));
  (void)snprintf(line, sizeof line, body, "\"n\":2,\"best_of\":2,\"stream\":true");
  json_decref(talk_stream(server.port, COMPLETIONS, line)); /* nothing to choose */
  json_decref(best);
  json_decref(all);
}

static void test_logprobs(void **state) {
  (void)state;
  json_t *chat = talk_json(server.port, CHAT,
                           "{\"mode\":\"autoregressive\",\"logprobs\":true,\"top_logprobs\":3,"
                           "\"max_tokens\":5,\"ignore_eos\":true," ASK "}");
  json_t *list = at(chat, "choices.0.logprobs.content");
  assert_int_equal(json_array_size(list), 5);
  for (size_t i = 0; i < 5; i++) {
    json_t *token = json_array_get(list, i);
    double logprob = json_real_value(at(token, "logprob"));
    assert_true(logprob <= 0);
    assert_int_equal(json_array_size(at(token, "bytes")), strlen(text_at(token, "token")));
    assert_int_equal(json_array_size(at(token, "top_logprobs")), 3);
    assert_true(json_real_value(at(token, "top_logprobs.0.logprob")) >= logprob - 1e-6); /* greedy: the likeliest */
  }
  json_decref(chat);
  json_t *whole = talk_json(server.port, COMPLETIONS,
                            "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"logprobs\":2,\"max_"
                            "tokens\":6,\"ignore_eos\":true,\"temperature\":0}");
  json_t *lists = at(whole, "choices.0.logprobs");
  static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
  for (int i = 0; i < 4; i++) assert_int_equal(json_array_size(at(lists, names[i])), 6);
  assert_int_equal(int_at(lists, "text_offset.0"), 0);
  assert_int_equal(json_object_size(at(lists, "top_logprobs.0")), 2);
  json_decref(whole);
}

static void test_stop_strings(void **state) {
  (void)state;
  json_t *free_run = talk_json(server.port, COMPLETIONS,
                               "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"max_tokens\":24,"
                               "\"ignore_eos\":true,\"temperature\":1,\"seed\":2}");
  const char *text = text_at(free_run, "choices.0.text");
  size_t n = strlen(text);
  assert_true(n > 8);
  char stop[8] = {0};
  memcpy(stop, text + n / 2, 3);
  for (int i = 0; i < 3; i++) assert_true(stop[i] > 0); /* ASCII, so that it is a string of its own */
  json_t *ask = json_pack("{s:s, s:s, s:i, s:b, s:f, s:i, s:[s, s]}", "prompt", "a", "mode", "autoregressive",
                          "max_tokens", 24, "ignore_eos", 1, "temperature", 1.0, "seed", 2, "stop", "\x01never", stop);
  assert_non_null(ask);
  char *line = json_dumps(ask, 0);
  json_t *stopped = talk_json(server.port, COMPLETIONS, line);
  size_t kept = (size_t)(strstr(text, stop) - text);
  assert_string_equal(text_at(stopped, "choices.0.finish_reason"), "stop");
  assert_int_equal(strlen(text_at(stopped, "choices.0.text")), kept);
  assert_memory_equal(text_at(stopped, "choices.0.text"), text, kept);
  assert_true(int_at(stopped, "usage.completion_tokens") < 24); /* it ended there, and was not only cut */
  json_decref(stopped);
  free(line);
  json_decref(ask);
  json_decref(free_run);
}

static void test_cached_tokens(void **state) {
  (void)state;
  weft_text body = {0};
  weft_text_puts(&body, "{\"max_tokens\":1,\"mode\":\"autoregressive\",\"temperature\":0,\"prompt\":\"");
  for (int i = 0; i < 60; i++) weft_text_printf(&body, "frog %d, ", i);
  weft_text_puts(&body, "\"}");
  json_t *cold = talk_json(server.port, COMPLETIONS, body.bytes),
         *warm = talk_json(server.port, COMPLETIONS, body.bytes);
  assert_int_equal(int_at(cold, "usage.prompt_tokens_details.cached_tokens"), 0);
  assert_true(int_at(warm, "usage.prompt_tokens_details.cached_tokens") > int_at(warm, "usage.prompt_tokens") / 2);
  assert_string_equal(text_at(cold, "choices.0.text"), text_at(warm, "choices.0.text"));
  talk_grows(server.port, "vllm:prefix_cache_hits_total", 0);
  weft_text_free(&body);
  json_decref(cold);
  json_decref(warm);
}

static void test_tokenize(void **state) {
  (void)state;
  json_t *tokens = talk_json(server.port, "/tokenize", "{\"prompt\":\"a green frog\",\"return_token_strs\":true}");
  assert_int_equal(int_at(tokens, "count"), json_array_size(at(tokens, "tokens")));
  assert_int_equal(int_at(tokens, "count"), json_array_size(at(tokens, "token_strs")));
  assert_int_equal(int_at(tokens, "max_model_len"), 1024);
  json_t *ask = json_pack("{s:O}", "tokens", at(tokens, "tokens"));
  char *line = json_dumps(ask, 0);
  json_t *text = talk_json(server.port, "/detokenize", line);
  assert_non_null(strstr(text_at(text, "prompt"), "a green frog"));
  json_decref(text);
  free(line);
  json_decref(ask);
  json_decref(tokens);
  /* messages become exactly the prompt that the chat endpoint uses */
  json_t *messages =
      talk_json(server.port, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"Write 4711 backwards.\"}]}");
  json_t *chat = talk_json(server.port, CHAT, "{\"return_token_ids\":true,\"max_tokens\":1," ASK "}");
  assert_true(json_equal(at(messages, "tokens"), at(chat, "prompt_token_ids")));
  json_decref(messages);
  json_decref(chat);
}

static void test_content_parts_and_roles(void **state) {
  (void)state;
  json_t *whole = talk_json(server.port, CHAT,
                            "{\"return_token_ids\":true,\"max_tokens\":1,\"messages\":[{\"role\":"
                            "\"system\",\"content\":\"Be short.\"},"
                            "{\"role\":\"user\",\"content\":\"Hi there\"}]}");
  json_t *parts = talk_json(server.port, CHAT,
                            "{\"return_token_ids\":true,\"max_completion_tokens\":1,\"messages\":[{"
                            "\"role\":\"system\",\"content\":\"Be short.\"},"
                            "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi "
                            "\"},{\"type\":\"text\",\"text\":\"there\"}]}]}");
  assert_true(json_equal(at(whole, "prompt_token_ids"), at(parts, "prompt_token_ids")));
  json_decref(whole);
  json_decref(parts);
}

static void test_request_ids(void **state) {
  char id[160];
  (void)state;
  talk_answer a = talk_ask_as(server.port, "POST", CHAT, "X-Request-Id: my-id.42\r\n", "{\"max_tokens\":1," ASK "}");
  assert_string_equal(talk_header(&a, "X-Request-Id", id, sizeof id), "my-id.42");
  assert_non_null(strstr(a.body.bytes, "\"chatcmpl-my-id.42\""));
  talk_answer_free(&a);
  a = talk_ask_as(server.port, "GET", "/health", "X-Request-Id: bad id\r\n", "");
  assert_int_equal(strlen(talk_header(&a, "X-Request-Id", id, sizeof id)), 32);
  talk_answer_free(&a);
}

/* Several requests on one connection, streams among them. */
static void test_keep_alive(void **state) {
  (void)state;
  int fd = talk_dial(server.port);
  for (int i = 0; i < 6; i++) {
    const char *body = i % 2 == 0 ? "{\"max_tokens\":4,\"stream\":true," ASK "}" : "{\"max_tokens\":4," ASK "}";
    talk_send(fd, "POST", CHAT, "", body, strlen(body));
    talk_answer a = talk_receive(fd);
    assert_int_equal(a.code, 200);
    assert_true(a.complete);
    talk_answer_free(&a);
    talk_send(fd, "GET", "/health", "", "", 0);
    talk_check(talk_receive(fd), 200, "");
  }
  (void)close(fd);
}

/* Chrome's format: every event has a phase, a row and a time; the request that was answered is in it. */
static void test_trace(void **state) {
  (void)state;
  json_decref(talk_json(server.port, CHAT, "{\"max_tokens\":8," ASK "}"));
  json_t *root = talk_json(server.port, "/admin/trace", NULL), *event;
  size_t i, n_steps = 0, n_begun = 0, n_ended = 0;
  json_array_foreach(at(root, "traceEvents"), i, event) {
    const char *phase = text_at(event, "ph");
    assert_true(json_is_integer(at(event, "pid")) && json_is_integer(at(event, "tid")));
    assert_true(int_at(event, "ts") >= 0);
    if (strcmp(phase, "X") == 0) assert_true(int_at(event, "dur") >= 0);
    n_steps += strcmp(phase, "X") == 0 && json_is_integer(at(event, "args.canvas"));
    n_begun += strcmp(phase, "b") == 0;
    n_ended += strcmp(phase, "e") == 0;
  }
  assert_true(n_steps > 0 && n_begun >= 2);
  assert_int_equal(n_begun, n_ended);
  json_decref(root);
}

static void test_metrics(void **state) {
  static const char *const names[] = {"vllm:num_requests_running",
                                      "vllm:num_requests_waiting",
                                      "vllm:kv_cache_usage_perc",
                                      "vllm:gpu_cache_usage_perc",
                                      "vllm:prompt_tokens_total",
                                      "vllm:generation_tokens_total",
                                      "vllm:prefix_cache_queries_total",
                                      "vllm:prefix_cache_hits_total",
                                      "vllm:num_preemptions_total",
                                      "vllm:request_success_total",
                                      "vllm:time_to_first_token_seconds_count",
                                      "vllm:inter_token_latency_seconds_sum",
                                      "vllm:time_per_output_token_seconds_bucket",
                                      "vllm:e2e_request_latency_seconds_count",
                                      "vllm:request_queue_time_seconds_count",
                                      "weft_steps_total",
                                      "weft_steps_mixed_total",
                                      "weft_switches_total",
                                      "weft_canvases_total",
                                      "weft_denoise_steps_total",
                                      "weft_rows_void_total",
                                      "weft_pool_pages_pinned",
                                      "weft_pool_evicted_total",
                                      "weft_pool_copies_total",
                                      "weft_pool_waits_total",
                                      "process_resident_memory_bytes",
                                      "weft_tenant_requests_total",
                                      "weft_model_busy_microseconds_total",
                                      "weft_group_blocks_cached",
                                      "weft_group_hit_blocks_total",
                                      "weft_tenant_charged_microseconds_total",
                                      "weft_http_requests_total"};
  (void)state;
  json_decref(talk_json(server.port, CHAT, "{\"max_tokens\":8," ASK "}"));
  talk_answer a = talk_ask(server.port, "GET", "/metrics", "");
  char type[80];
  assert_non_null(strstr(talk_header(&a, "Content-Type", type, sizeof type), "version=0.0.4"));
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (talk_metric_of(a.body.bytes, names[i]) < 0) fail_msg("/metrics has no %s", names[i]);
  }
  assert_true(talk_metric_of(a.body.bytes, "weft_steps_total") > 0);
  assert_true(talk_metric_of(a.body.bytes, "weft_tenant_charged_microseconds_total") > 0);
  assert_true(talk_metric_of(a.body.bytes, "weft_canvases_total") > 0);
  assert_true(talk_metric_of(a.body.bytes, "vllm:generation_tokens_total") > 0);
  talk_answer_free(&a);
  char *text = weft_stats_json(server.runtime);
  json_t *stats = json_loads(text, 0, NULL);
  assert_true(int_at(stats, "weft_steps_total") > 0);
  assert_true(json_is_true(at(stats, "well")));
  json_decref(stats);
  weft_release(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small_endpoints),
      cmocka_unit_test(test_chat_whole),
      cmocka_unit_test(test_chat_stream_says_what_whole_says),
      cmocka_unit_test(test_token_ids),
      cmocka_unit_test(test_token_ids_keep_characters_whole),
      cmocka_unit_test(test_replace_events),
      cmocka_unit_test(test_choices_and_prompts),
      cmocka_unit_test(test_many_answers_stream),
      cmocka_unit_test(test_best_of),
      cmocka_unit_test(test_logprobs),
      cmocka_unit_test(test_stop_strings),
      cmocka_unit_test(test_cached_tokens),
      cmocka_unit_test(test_tokenize),
      cmocka_unit_test(test_content_parts_and_roles),
      cmocka_unit_test(test_request_ids),
      cmocka_unit_test(test_keep_alive),
      cmocka_unit_test(test_metrics),
      cmocka_unit_test(test_trace),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
