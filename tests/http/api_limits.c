/* SPDX-License-Identifier: MIT */
/* What vLLM's clients ask for: shortest answers, stop tokens and why an answer stopped, words and tokens that an answer may
 * not or may only have, prompts that are cut or continued, salts of the cache, strict fields; on both demo models. */
#include "api/answer_limits.h"
#include "tests/support/http_conversation.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define SEEDED      "{s:s, s:s, s:s, s:i, s:b, s:f, s:i}"
#define AR          "\"mode\":\"autoregressive\",\"temperature\":0,\"return_token_ids\":true,"

static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL};
static const char *const names[] = {"weft-demo", "weft-demo-ar"};
static talk server;

static int open_server(void **state) {
  weft_open_options options = {.models = models, .n_models = 2, .kv_bytes = 8 << 20};
  *state = talk_serve(&server, NULL, options, (weft_server_options){0});
  return 0;
}

/* The answer to a prompt by model i. */
static json_t *complete(int i, const char *fields) {
  char body[1024];
  (void)snprintf(body, sizeof body, "{\"model\":\"%s\"," AR "%s}", names[i], fields);
  return talk_json(server.port, COMPLETIONS, body);
}

static json_t *ids_of(json_t *answer) {
  return at(answer, "choices.0.token_ids");
}

static json_int_t id_at(json_t *answer, size_t i) {
  return json_integer_value(json_array_get(ids_of(answer), i));
}

static bool has_id(json_t *answer, json_int_t id) {
  for (size_t i = 0; i < json_array_size(ids_of(answer)); i++) {
    if (id_at(answer, i) == id) return true;
  }
  return false;
}

static void refused(const char *path, const char *body, const char *words) {
  talk_answer a = talk_ask(server.port, "POST", path, body);
  if (a.code != 400 || strstr(a.body.bytes, words) == NULL) fail_msg("%s: %d %s", body, a.code, a.body.bytes);
  talk_answer_free(&a);
}

/* A greedy answer without limits is what the others are compared with. */
static void test_stop_tokens(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    char fields[256];
    json_t *free_run = complete(i, "\"prompt\":\"a frog\",\"max_tokens\":12,\"ignore_eos\":true");
    assert_true(json_is_null(at(free_run, "choices.0.stop_reason")));
    json_int_t stop = id_at(free_run, 4);
    size_t first = 0;
    while (id_at(free_run, first) != stop) first++;
    (void)snprintf(fields, sizeof fields,
                   "\"prompt\":\"a frog\",\"max_tokens\":12,\"ignore_eos\":true,\"stop_token_ids\":[%lld]",
                   (long long)stop);
    json_t *stopped = complete(i, fields);
    assert_string_equal(text_at(stopped, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(stopped, "choices.0.stop_reason"), stop);
    assert_int_equal(json_array_size(ids_of(stopped)), first); /* it is no part of the answer */
    for (size_t k = 0; k < first; k++) assert_int_equal(id_at(stopped, k), id_at(free_run, k));
    json_decref(stopped);
    json_decref(free_run);
  }
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"stop_token_ids\":[99999999]}", "stop_token_ids has token 99999999");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"stop_token_ids\":\"5\"}", "stop_token_ids");
  weft_text many = {0}; /* before every one of the answers has a copy */
  weft_text_puts(&many, "{\"prompt\":\"a\",\"n\":8,\"stop_token_ids\":[0");
  for (int i = 0; i < 1024; i++) weft_text_puts(&many, ",1");
  weft_text_puts(&many, "]}");
  refused(COMPLETIONS, many.bytes, "stop_token_ids has 1025 tokens; at most 1024");
  weft_text_free(&many);
}

/* Whatever of a conversation a template may print counts, before anything is made of it. */
static void test_long_ids(void **state) {
  weft_text body = {0};
  (void)state;
  weft_text_puts(&body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\","
                 "\"tool_call_id\":\"");
  for (int i = 0; i < 100000; i++) weft_text_puts(&body, "x");
  weft_text_puts(&body, "\"}]}");
  refused(CHAT, body.bytes, "the text has 100002 bytes");
  weft_text_free(&body);
}

static void test_stop_strings(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    json_t *ask = json_pack(SEEDED, "model", names[i], "prompt", "a", "mode", "autoregressive", "max_tokens", 24,
                            "ignore_eos", 1, "temperature", 1.0, "seed", 2);
    char *line = json_dumps(ask, 0);
    json_t *free_run = talk_json(server.port, COMPLETIONS, line);
    free(line);
    const char *text = text_at(free_run, "choices.0.text");
    char stop[3] = {0};
    size_t n = strlen(text);
    assert_true(n > 4);
    memcpy(stop, text + n / 2, 2);
    size_t kept = (size_t)(strstr(text, stop) - text);
    for (int keep = 0; keep < 2; keep++) {
      assert_int_equal(json_object_set_new(ask, "stop", json_string(stop)), 0);
      assert_int_equal(json_object_set_new(ask, "include_stop_str_in_output", json_boolean(keep)), 0);
      line = json_dumps(ask, 0);
      json_t *stopped = talk_json(server.port, COMPLETIONS, line);
      assert_string_equal(text_at(stopped, "choices.0.stop_reason"), stop);
      assert_int_equal(strlen(text_at(stopped, "choices.0.text")), kept + (keep ? strlen(stop) : 0));
      assert_memory_equal(text_at(stopped, "choices.0.text"), text, kept + (keep ? strlen(stop) : 0));
      json_decref(stopped);
      free(line);
    }
    json_decref(ask);
    json_decref(free_run);
  }
}

static void test_shortest_answers(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    char fields[256];
    json_t *free_run = complete(i, "\"prompt\":\"a frog\",\"max_tokens\":12,\"ignore_eos\":true");
    long long first = (long long)id_at(free_run, 0); /* ends an answer at once, were there no least length */
    for (int n = 1; n < 8; n += 3) {
      (void)snprintf(fields, sizeof fields,
                     "\"prompt\":\"a frog\",\"max_tokens\":20,\"stop_token_ids\":[%lld],\"min_tokens\":%d", first, n);
      json_t *answer = complete(i, fields);
      assert_true(int_at(answer, "usage.completion_tokens") >= n);
      for (size_t k = 0; k < (size_t)n; k++) assert_true(id_at(answer, k) != first);
      json_decref(answer);
    }
    json_decref(free_run);
  }
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"max_tokens\":3,\"min_tokens\":4}",
          "it may be at most that");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"mode\":\"diffusion\",\"min_tokens\":4}", "not defined for a canvas");
}

static void test_allowed_tokens(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    json_t *answer =
        complete(i, "\"prompt\":\"a frog\",\"max_tokens\":8,\"ignore_eos\":true,\"allowed_token_ids\":[40,41,42]");
    assert_int_equal(json_array_size(ids_of(answer)), 8);
    for (size_t k = 0; k < 8; k++) assert_in_range(id_at(answer, k), 40, 42);
    json_decref(answer);
  }
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"allowed_token_ids\":[]}", "at least one token");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"allowed_token_ids\":[-1]}", "no token id");
  refused(COMPLETIONS,
          "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"allowed_token_ids\":[7],\"guided_choice\":[\"a\"]}",
          "together with a format");
}

/* The word that the free answer has is not in the next one, whose beginning is the same up to there. */
static void test_bad_words(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    char body[256];
    json_t *free_run = complete(i, "\"prompt\":\"a frog\",\"max_tokens\":10,\"ignore_eos\":true");
    json_int_t id = id_at(free_run, 0);
    (void)snprintf(body, sizeof body, "{\"model\":\"%s\",\"tokens\":[%lld]}", names[i], (long long)id);
    json_t *word = talk_json(server.port, "/detokenize", body);
    const char *text = text_at(word, "content");
    while (*text == ' ') text++;
    assert_true(*text != 0);
    json_t *ask = json_pack("{s:s, s:s, s:s, s:i, s:b, s:i, s:b, s:[s]}", "model", names[i], "prompt", "a frog", "mode",
                            "autoregressive", "max_tokens", 10, "ignore_eos", 1, "temperature", 0, "return_token_ids",
                            1, "bad_words", text);
    char *line = json_dumps(ask, 0);
    json_t *answer = talk_json(server.port, COMPLETIONS, line);
    assert_false(has_id(answer, id));
    json_decref(answer);
    free(line);
    json_decref(ask);
    json_decref(word);
    json_decref(free_run);
  }
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"mode\":\"autoregressive\",\"bad_words\":[\"\"]}", "1 to 256 bytes");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"bad_words\":[5]}", "list of words");
}

/* Limits that wait for tokens and those that do not, beside others and in a queue: the same answers. */
static void test_limits_beside_others(void **state) {
  static const char fields[] =
      "\"prompt\":\"a frog\",\"max_tokens\":10,\"ignore_eos\":true,\"seed\":5,\"n\":3,"
      "\"bad_words\":[\"the frog\",\"is\"],\"min_tokens\":3";
  (void)state;
  json_t *alone = complete(0, fields), *again = complete(0, fields);
  for (size_t i = 0; i < 3; i++) {
    json_t *a = json_array_get(at(alone, "choices"), i), *b = json_array_get(at(again, "choices"), i);
    assert_true(json_equal(at(a, "token_ids"), at(b, "token_ids")));
  }
  json_decref(alone);
  json_decref(again);
}

static void test_prompts_cut_and_continued(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    char body[512];
    json_t *cut = complete(i, "\"prompt\":[300,301,5,6,7],\"truncate_prompt_tokens\":3,\"max_tokens\":4"),
           *whole = complete(i, "\"prompt\":[5,6,7],\"max_tokens\":4");
    assert_int_equal(int_at(cut, "usage.prompt_tokens"), 3);
    assert_true(json_equal(ids_of(cut), ids_of(whole)));
    json_decref(cut);
    json_decref(whole);
    /* the prompt ends with the message, and the answer goes on with it */
    (void)snprintf(body, sizeof body,
                   "{\"model\":\"%s\"," AR
                   "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
                   "\"content\":\"Good\"}],\"continue_final_message\":true,\"add_generation_prompt\":false,"
                   "\"max_tokens\":3}",
                   names[i]);
    json_t *on = talk_json(server.port, CHAT, body);
    (void)snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"Good\",\"add_special_tokens\":false}", names[i]);
    json_t *tokens = talk_json(server.port, "/tokenize", body);
    size_t n = json_array_size(at(on, "prompt_token_ids")), m = json_array_size(at(tokens, "tokens"));
    assert_true(m > 0 && n > m);
    for (size_t k = 0; k < m; k++) {
      assert_true(
          json_equal(json_array_get(at(on, "prompt_token_ids"), n - m + k), json_array_get(at(tokens, "tokens"), k)));
    }
    json_decref(tokens);
    json_decref(on);
  }
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":0}", "-1, or at least 1");
  refused(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"continue_final_message\":true}",
          "a last message of the assistant");
}

/* Which domain a salt has is not known without the process's secret, so nobody can search for one like another's. */
static void test_salts_are_secret(void **state) {
  const uint8_t one[WEFT_SALT_SECRET] = {1}, other[WEFT_SALT_SECRET] = {2};
  const weft_key128 tenant = {1, 2}, second = {2, 2};
  (void)state;
  weft_key128 a = answer_limits_domain(one, tenant, "a");
  assert_true(weft_key128_equal(a, answer_limits_domain(one, tenant, "a")));
  assert_false(weft_key128_equal(a, answer_limits_domain(one, tenant, "b")));
  assert_false(weft_key128_equal(a, answer_limits_domain(one, second, "a")));
  assert_false(weft_key128_equal(a, answer_limits_domain(other, tenant, "a")));
  assert_true(weft_key128_equal(tenant, answer_limits_domain(one, tenant, "")));
}

/* Equal salts find each other's prefixes, other salts and none do not. */
static void test_salts(void **state) {
  static const char *const salts[] = {"\"cache_salt\":\"a\",", "\"cache_salt\":\"b\",", "", "\"cache_salt\":\"a\","};
  (void)state;
  for (int k = 0; k < 4; k++) {
    weft_text body = {0};
    weft_text_printf(&body, "{%s\"max_tokens\":1,\"prompt\":\"", salts[k]);
    for (int i = 0; i < 25; i++) weft_text_printf(&body, "salt %d, ", i);
    weft_text_puts(&body, "\"}");
    json_t *answer = talk_json(server.port, COMPLETIONS, body.bytes);
    assert_true((int_at(answer, "usage.prompt_tokens_details.cached_tokens") > 0) == (k == 3));
    json_decref(answer);
    weft_text_free(&body);
  }
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"cache_salt\":\"\"}", "not empty");
}

static void test_tokenizers(void **state) {
  (void)state;
  json_t *info = talk_json(server.port, "/tokenizer_info", NULL);
  assert_true(json_is_string(at(info, "eos_token")) && json_is_string(at(info, "chat_template")));
  assert_int_equal(int_at(info, "model_max_length"), 256);
  json_decref(info);
  json_t *plain = talk_json(server.port, "/tokenize", "{\"content\":\"a frog\"}"),
         *with = talk_json(server.port, "/tokenize", "{\"content\":\"a frog\",\"add_special\":true}"),
         *usual = talk_json(server.port, "/tokenize", "{\"prompt\":\"a frog\"}"),
         *parts = talk_json(server.port, "/tokenize",
                            "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a \"},"
                            "{\"type\":\"text\",\"text\":\"frog\"}]}]}"),
         *joined = talk_json(server.port, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a frog\"}]}");
  assert_true(json_equal(at(with, "tokens"), at(usual, "tokens")));
  assert_true(json_array_size(at(plain, "tokens")) <= json_array_size(at(with, "tokens")));
  assert_true(json_equal(at(parts, "tokens"), at(joined, "tokens")));
  json_decref(plain);
  json_decref(with);
  json_decref(usual);
  json_decref(parts);
  json_decref(joined);
}

static void test_strict_fields(void **state) {
  talk strict;
  (void)state;
  (void)talk_serve(&strict, NULL, (weft_open_options){0}, (weft_server_options){.strict_fields = true});
  static const char misspelt[] = "{\"prompt\":\"a\",\"max_tokens\":1,\"temprature\":0}";
  talk_answer a = talk_ask(strict.port, "POST", COMPLETIONS, misspelt);
  assert_int_equal(a.code, 400);
  assert_non_null(strstr(a.body.bytes, "temprature"));
  assert_non_null(strstr(a.body.bytes, "\"unknown_field\""));
  talk_answer_free(&a);
  /* null is no field */
  talk_check(talk_ask(strict.port, "POST", COMPLETIONS,
                      "{\"prompt\":\"a\",\"max_tokens\":1,\"user\":\"u\",\"temprature\":null,\"top_k\":1}"),
             200, "");
  talk_check(talk_ask(server.port, "POST", COMPLETIONS, misspelt), 200, ""); /* named in the log */
  static const char *const others[][2] = {
      {"/tokenize", "{\"prompt\":\"a\",\"new\":1}"},
      {"/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"new\":1}]}"},
      {"/detokenize", "{\"tokens\":[5],\"new\":1}"}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    talk_check(talk_ask(strict.port, "POST", others[i][0], others[i][1]), 400, "\"unknown_field\"");
    talk_check(talk_ask(server.port, "POST", others[i][0], others[i][1]), 200, "");
  }
  talk_check(talk_ask(server.port, "POST", "/tokenize", "{\"prompt\":\"a\",\"chat_template\":\"x\"}"), 400,
             "chat_template");
  talk_close(&strict);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop_tokens),
                                     cmocka_unit_test(test_long_ids),
                                     cmocka_unit_test(test_stop_strings),
                                     cmocka_unit_test(test_shortest_answers),
                                     cmocka_unit_test(test_allowed_tokens),
                                     cmocka_unit_test(test_bad_words),
                                     cmocka_unit_test(test_limits_beside_others),
                                     cmocka_unit_test(test_prompts_cut_and_continued),
                                     cmocka_unit_test(test_salts),
                                     cmocka_unit_test(test_salts_are_secret),
                                     cmocka_unit_test(test_tokenizers),
                                     cmocka_unit_test(test_strict_fields)};
  (void)signal(SIGPIPE, SIG_IGN);
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
