/* SPDX-License-Identifier: MIT */
/* The prompt in the answer: echo with logprobs as evaluations send it, vLLM's prompt_logprobs, prompts without an
 * answer; by a tiny model whose logits a reference library gave, and by both demo models. */
#include <math.h>

#include "tests/support/golden_floats.h"
#include "tests/support/http_conversation.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define LONG                                                                                                      \
  "The soft drum is near the blue coat. The soft ball is behind the blue boat. The warm bell is behind the gray " \
  "cup. The new rock is near the brown lamp. The fast leaf is near the pink shoe. The red fox is near the cup."
#define WIDE        "Zo\xC3\xAB \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80 na\xC3\xAFve" /* characters of one to four bytes */
#define REPLACEMENT "\xEF\xBF\xBD"

static const char *const models[] = {TINY_AR_MODEL, DEMO_MODEL, DEMO_AR_MODEL};
static talk server;

/* Few rows a step, so that prompts come in chunks. */
static int open_server(void **state) {
  weft_open_options options = {.models = models,
                               .n_models = 3,
                               .backend = "cpu",
                               .threads = 1,
                               .kv_bytes = 8 << 20,
                               .context = 512,
                               .rows = 48,
                               .running = 6,
                               .quiet = true};
  weft_server_options where = {0};
  (void)state;
  talk_open(&server, &options, &where);
  return 0;
}

static int close_server(void **state) {
  (void)state;
  talk_close(&server);
  return 0;
}

static json_t *ask(const char *path, const char *model, const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, "{\"model\":\"%s\",%s}", model, fields);
  json_t *answer = talk_json(server.port, path, body.bytes);
  weft_text_free(&body);
  return answer;
}

static json_t *list_of(json_t *answer, const char *path, size_t n) {
  json_t *list = at(answer, path);
  assert_int_equal(json_array_size(list), n);
  return list;
}

static double number_at(json_t *list, size_t i) {
  json_t *value = json_array_get(list, i);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

static void refused(const char *path, const char *body, const char *words) {
  talk_answer a = talk_ask(server.port, "POST", path, body);
  if (a.code != 400 || strstr(a.body.bytes, words) == NULL) fail_msg("%s: %d %s", body, a.code, a.body.bytes);
  talk_answer_free(&a);
}

/* ---- against transformers ---- */

/* The log-softmax of a row of logits, in doubles. */
static double reference_logprob(const float *logits, uint32_t n, int token) {
  double most = -INFINITY, sum = 0;
  for (uint32_t i = 0; i < n; i++) most = fmax(most, (double)logits[i]);
  for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
  return (double)logits[token] - most - log(sum);
}

static uint32_t reference_rank(const float *logits, uint32_t n, int token) {
  uint32_t rank = 1;
  for (uint32_t i = 0; i < n; i++) rank += logits[i] > logits[token];
  return rank;
}

/* One prompt of the file of cases: tokens "2,9,55,..." and the reference's logits of each. */
static void check_case(const char *tokens, uint32_t n, const float *logits, uint32_t n_vocab) {
  int ids[64];
  weft_text fields = {0};
  const char *at_id = tokens;
  assert_true(n <= 64);
  for (uint32_t i = 0; i < n; i++, at_id = strchr(at_id, ',') + 1) ids[i] = atoi(at_id);
  weft_text_printf(&fields, "\"prompt\":[%.*s],\"max_tokens\":0,\"echo\":true,\"logprobs\":2,\"prompt_logprobs\":3",
                   (int)strcspn(tokens, "\n"), tokens);
  json_t *answer = ask(COMPLETIONS, "ar-base", fields.bytes);
  json_t *own = list_of(answer, "choices.0.logprobs.token_logprobs", n);
  json_t *top = list_of(answer, "choices.0.logprobs.top_logprobs", n);
  json_t *places = list_of(answer, "choices.0.prompt_logprobs", n);
  assert_true(json_is_null(json_array_get(own, 0)));
  assert_true(json_is_null(json_array_get(top, 0)));
  assert_true(json_is_null(json_array_get(places, 0)));
  for (uint32_t i = 1; i < n; i++) {
    char key[16];
    const float *row = logits + (size_t)(i - 1) * n_vocab;
    double wanted = reference_logprob(row, n_vocab, ids[i]);
    uint32_t rank = reference_rank(row, n_vocab, ids[i]);
    (void)snprintf(key, sizeof key, "%d", ids[i]);
    json_t *entry = json_object_get(json_array_get(places, i), key);
    if (fabs(number_at(own, i) - wanted) > 1e-4)
      fail_msg("token %u of %.40s: %.7g, the reference has %.7g", i, tokens, number_at(own, i), wanted);
    assert_true(json_number_value(at(entry, "logprob")) == number_at(own, i));
    assert_true(rank <= 20 ? int_at(entry, "rank") == rank : json_is_null(at(entry, "rank")));
    assert_int_equal(json_object_size(json_array_get(places, i)), 3 + (rank > 3));
    const char *name;
    json_t *other;
    json_object_foreach(json_array_get(places, i), name, other) {
      wanted = reference_logprob(row, n_vocab, atoi(name));
      assert_true(fabs(json_number_value(at(other, "logprob")) - wanted) <= 1e-4);
    }
  }
  json_decref(answer);
  weft_text_free(&fields);
}

static void test_reference(void **state) {
  char line[4096];
  unsigned n, n_vocab = 0, n_cases = 0, n_floats = 0;
  unsigned long long offset;
  bool began = false;
  (void)state;
  FILE *cases = fopen(WEFT_SOURCE_DIR "/tests/golden/models/ar-base.cases.txt", "r");
  float *floats = NULL;
  assert_non_null(cases);
  while (fgets(line, sizeof line, cases) != NULL) {
    int from = 0;
    (void)sscanf(line, "n_vocab %u", &n_vocab);
    if (sscanf(line, "n_floats %u", &n_floats) == 1) {
      floats = golden_floats_read(WEFT_SOURCE_DIR "/tests/golden/models/ar-base", n_floats);
      assert_non_null(floats);
    }
    bool first = began; /* the lines after it go on where it ended */
    began = strncmp(line, "case", 4) == 0;
    bool whole = first && strncmp(line, "encode", 6) == 0 && sscanf(line, "encode %u %llu %n", &n, &offset, &from) == 2;
    if (!whole || n > 64) continue;
    assert_true(offset + (uint64_t)n * n_vocab <= n_floats);
    check_case(line + from, n, floats + offset, n_vocab);
    n_cases += 1;
  }
  assert_true(n_cases >= 4);
  free(floats);
  (void)fclose(cases);
}

/* ---- shapes ---- */

/* As lm_eval asks: the token after the prompt is one more entry, also where it is the end of the answer. */
static void test_log_likelihood(void **state) {
  static const char *const names[] = {"weft-demo", "weft-demo-ar"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    json_t *prompt = ask("/tokenize", names[i], "\"prompt\":\"a frog sat\"");
    json_t *answer = ask(COMPLETIONS, names[i],
                         "\"prompt\":\"a frog sat\",\"temperature\":0,\"max_tokens\":1,\"logprobs\":1,\"seed\":1234,"
                         "\"echo\":true");
    size_t n = json_array_size(at(prompt, "tokens"));
    json_t *tokens = list_of(answer, "choices.0.logprobs.tokens", n + 1);
    json_t *own = list_of(answer, "choices.0.logprobs.token_logprobs", n + 1);
    json_t *top = list_of(answer, "choices.0.logprobs.top_logprobs", n + 1);
    json_t *offsets = list_of(answer, "choices.0.logprobs.text_offset", n + 1);
    const char *text = text_at(answer, "choices.0.text");
    assert_memory_equal(text, "a frog sat", 10);
    for (size_t k = 1; k < n; k++) {
      const char *token = json_string_value(json_array_get(tokens, k)), *name;
      json_t *likeliest;
      assert_memory_equal(text + json_integer_value(json_array_get(offsets, k)), token, strlen(token));
      json_object_foreach(json_array_get(top, k), name, likeliest) {
        double logprob = number_at(own, k), best = json_number_value(likeliest);
        assert_true(strcmp(name, token) == 0 ? logprob == best : logprob <= best);
      }
    }
    assert_int_equal(json_integer_value(json_array_get(offsets, n)), 10);
    bool ended = int_at(answer, "usage.completion_tokens") == 0; /* by its end token: an entry all the same */
    assert_string_equal(text_at(answer, "choices.0.finish_reason"), ended ? "stop" : "length");
    assert_true(number_at(own, n) <= 0);
    json_decref(answer);
    json_decref(prompt);
  }
}

/* How many bytes the first n characters of the text are; the text has as many. */
static size_t bytes_of(const char *text, json_int_t n) {
  size_t at = 0;
  for (; n > 0; n--) {
    uint32_t c;
    size_t length = weft_utf8_decode(text + at, strlen(text + at), &c);
    assert_true(length > 0);
    at += length;
  }
  return at;
}

/* Offsets count characters: between two of them is the token's text, behind U+FFFD where bytes before it were no
 * character; or nothing, where the token is not printed or a later one completes its character. Gives how many tokens
 * print nothing. */
static uint32_t check_offsets(json_t *choice) {
  json_t *tokens = at(choice, "logprobs.tokens"), *offsets = at(choice, "logprobs.text_offset");
  const char *text = text_at(choice, "text");
  size_t n = json_array_size(tokens), from = 0;
  uint32_t n_silent = 0;
  assert_int_equal(json_array_size(offsets), n);
  assert_int_equal(json_integer_value(json_array_get(offsets, 0)), 0);
  for (size_t i = 0; i < n; i++) {
    const char *token = json_string_value(json_array_get(tokens, i));
    size_t to = i + 1 < n ? bytes_of(text, json_integer_value(json_array_get(offsets, i + 1))) : strlen(text);
    assert_true(from <= to);
    n_silent += from == to;
    bool part = strstr(token, REPLACEMENT) != NULL, after = strncmp(text + from, REPLACEMENT, 3) == 0;
    size_t n_token = strlen(token), n_here = to - from;
    bool same = n_here >= n_token && memcmp(text + to - n_token, token, n_token) == 0 && (n_here == n_token || after);
    if (n_here > 0 && !part && !same)
      fail_msg("token %zu is '%s', and the text there '%.*s'", i, token, (int)n_here, text + from);
    from = to;
  }
  return n_silent;
}

/* Characters of several bytes, in one token and in several; tokens that are not printed, in the prompt and between
 * the answer's; bytes that are no text. */
static void test_offsets(void **state) {
  static const char strange[] =
      "\"logprobs\":2,\"max_tokens\":24,\"temperature\":100,\"seed\":1,\"ignore_eos\":true,"
      "\"allowed_token_ids\":[1,206,182,251,300,296]";
  char fields[512];
  (void)state;
  json_t *text = ask(COMPLETIONS, "weft-demo-ar",
                     "\"prompt\":\"" WIDE
                     "\",\"echo\":true,\"logprobs\":0,\"max_tokens\":4,\"ignore_eos\":true,"
                     "\"allowed_token_ids\":[300,296]");
  assert_memory_equal(text_at(text, "choices.0.text"), WIDE, strlen(WIDE));
  (void)check_offsets(at(text, "choices.0"));
  for (int echo = 0; echo < 2; echo++) {
    (void)snprintf(fields, sizeof fields, "\"prompt\":[2,300,1,206,182,5,206,296],\"echo\":%s,%s",
                   echo ? "true" : "false", strange);
    json_t *ids = ask(COMPLETIONS, "weft-demo-ar", fields);
    assert_true(check_offsets(at(ids, "choices.0")) > (echo ? 7 : 2));
    json_decref(ids);
  }
  json_decref(text);
}

/* The likeliest tokens of a place, and its own token: each name once, for the likeliest token of that name, since tokens
 * of one byte have the same name where they are no character. */
static void test_top_logprobs(void **state) {
  enum { FIRST = 100, N = 150, N_TOP = 20 };
  weft_text body = {0};
  (void)state;
  weft_text_puts(&body, "{\"model\":\"weft-demo-ar\",\"echo\":true,\"max_tokens\":0,\"logprobs\":20,\"prompt\":[");
  for (int i = 0; i < N; i++) weft_text_printf(&body, i == 0 ? "%d" : ",%d", FIRST + i);
  weft_text_puts(&body, "]}");
  talk_answer a = talk_ask(server.port, "POST", COMPLETIONS, body.bytes);
  assert_int_equal(a.code, 200);
  json_t *answer = json_loadb(a.body.bytes, a.body.n, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(answer);
  json_t *own = list_of(answer, "choices.0.logprobs.token_logprobs", N);
  uint32_t n_shared = 0;
  for (size_t i = 1; i < N; i++) {
    const char *token = json_string_value(json_array_get(at(answer, "choices.0.logprobs.tokens"), i));
    json_t *top = json_array_get(at(answer, "choices.0.logprobs.top_logprobs"), i);
    assert_true(json_number_value(json_object_get(top, token)) >= number_at(own, i));
    assert_true(json_object_size(top) <= N_TOP + 1);
    n_shared += json_number_value(json_object_get(top, token)) > number_at(own, i);
  }
  assert_true(n_shared > 0);
  json_decref(answer);
  talk_answer_free(&a);
  weft_text_free(&body);
}

static weft_text joined_text(json_t *events, json_int_t index) {
  weft_text text = {0};
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event) {
    if (at(event, "data.choices.0") == NULL || int_at(event, "data.choices.0.index") != index) continue;
    weft_text_puts(&text, text_at(event, "data.choices.0.text"));
  }
  return text;
}

static json_t *joined_list(json_t *events, json_int_t index, const char *name) {
  json_t *all = json_array(), *event;
  char path[64];
  size_t i;
  (void)snprintf(path, sizeof path, "data.choices.0.logprobs.%s", name);
  json_array_foreach(events, i, event) {
    if (at(event, "data.choices.0") == NULL || int_at(event, "data.choices.0.index") != index) continue;
    if (json_is_object(at(event, "data.choices.0.logprobs"))) (void)json_array_extend(all, at(event, path));
  }
  return all;
}

/* Batches of texts and of ids, several choices, whole and streamed: one prompt's values are the same in each, and the
 * same as alone. Token 10 ends a turn, which prints nothing and is all that the demo would say after a text. */
static void test_choices_and_streams(void **state) {
  static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
  static const char fields[] =
      "\"prompt\":[\"" LONG
      "\",\"a "
      "frog\"],\"n\":2,\"echo\":true,\"logprobs\":2,\"max_tokens\":12,\"temperature\":2,\"logit_bias\":{\"10\":-100},"
      "\"seed\":3,\"ignore_eos\":true";
  weft_text body = {0};
  (void)state;
  json_t *whole = ask(COMPLETIONS, "weft-demo-ar", fields);
  weft_text_printf(&body, "{\"model\":\"weft-demo-ar\",%s,\"stream\":true}", fields);
  json_t *events = talk_stream(server.port, COMPLETIONS, body.bytes);
  json_t *alone = ask(COMPLETIONS, "weft-demo-ar",
                      "\"prompt\":\"" LONG "\",\"echo\":true,\"logprobs\":2,\"max_tokens\":0,\"seed\":3");
  size_t n = json_array_size(at(alone, "choices.0.logprobs.tokens"));
  assert_true(n > 48); /* more than a step */
  assert_string_equal(text_at(alone, "choices.0.text"), LONG);
  for (json_int_t i = 0; i < 4; i++) {
    json_t *choice = json_array_get(at(whole, "choices"), (size_t)i);
    weft_text text = joined_text(events, i);
    assert_string_equal(text.bytes, text_at(choice, "text"));
    assert_memory_equal(text.bytes, i < 2 ? LONG : "a frog", i < 2 ? strlen(LONG) : 6);
    weft_text_free(&text);
    for (int k = 0; k < 4; k++) {
      char path[64];
      (void)snprintf(path, sizeof path, "logprobs.%s", names[k]);
      json_t *streamed = joined_list(events, i, names[k]);
      assert_true(json_equal(streamed, at(choice, path)));
      json_decref(streamed);
      (void)snprintf(path, sizeof path, "choices.0.logprobs.%s", names[k]);
      for (size_t t = 0; t < n && i < 2; t++) {
        (void)snprintf(path, sizeof path, "choices.0.logprobs.%s", names[k]);
        json_t *value = json_array_get(at(alone, path), t);
        (void)snprintf(path, sizeof path, "logprobs.%s", names[k]);
        assert_true(json_equal(value, json_array_get(at(choice, path), t)));
      }
    }
  }
  assert_string_not_equal(text_at(whole, "choices.0.text"), text_at(whole, "choices.1.text"));
  assert_int_equal(int_at(alone, "usage.completion_tokens"), 0);
  assert_int_equal(int_at(alone, "usage.prompt_tokens"), (json_int_t)n);
  assert_string_equal(text_at(alone, "choices.0.finish_reason"), "length");
  json_decref(alone);
  json_decref(events);
  json_decref(whole);
  weft_text_free(&body);
}

/* A cached prefix changes no value, and the request counts no cached tokens; the next one finds what it left. */
static void test_cached_prefix(void **state) {
  static const char plain[] = "\"prompt\":\"" LONG "\",\"max_tokens\":2,\"temperature\":0,\"cache_salt\":\"echo\"";
  static const char list[] = "\"prompt\":\"" LONG
                             "\",\"max_tokens\":2,\"temperature\":0,\"cache_salt\":\"%s\","
                             "\"prompt_logprobs\":1";
  char fields[2][512];
  (void)state;
  (void)snprintf(fields[0], sizeof fields[0], list, "other");
  (void)snprintf(fields[1], sizeof fields[1], list, "echo");
  json_decref(ask(COMPLETIONS, "weft-demo-ar", plain));
  json_t *hit = ask(COMPLETIONS, "weft-demo-ar", plain);
  assert_true(int_at(hit, "usage.prompt_tokens_details.cached_tokens") > 0);
  json_t *cold = ask(COMPLETIONS, "weft-demo-ar", fields[0]), *warm = ask(COMPLETIONS, "weft-demo-ar", fields[1]);
  assert_int_equal(int_at(warm, "usage.prompt_tokens_details.cached_tokens"), 0);
  assert_true(json_equal(at(cold, "choices.0.prompt_logprobs"), at(warm, "choices.0.prompt_logprobs")));
  assert_string_equal(text_at(warm, "choices.0.text"), text_at(hit, "choices.0.text"));
  json_t *again = ask(COMPLETIONS, "weft-demo-ar", plain);
  assert_true(int_at(again, "usage.prompt_tokens_details.cached_tokens") > 0);
  json_decref(again);
  json_decref(warm);
  json_decref(cold);
  json_decref(hit);
}

/* In chat the list lies beside the choices, over the prompt as the template made it. */
static void test_chat(void **state) {
  (void)state;
  json_t *chat = ask(CHAT, "weft-demo-ar",
                     "\"messages\":[{\"role\":\"user\",\"content\":\"What is 5?\"}],\"prompt_logprobs\":0,\"n\":2,"
                     "\"max_tokens\":3,\"return_token_ids\":true");
  json_t *ids = at(chat, "prompt_token_ids");
  json_t *places = list_of(chat, "prompt_logprobs", json_array_size(ids));
  assert_true(json_is_null(json_array_get(places, 0)));
  for (size_t i = 1; i < json_array_size(ids); i++) {
    char key[16];
    (void)snprintf(key, sizeof key, "%d", (int)json_integer_value(json_array_get(ids, i)));
    json_t *place = json_array_get(places, i);
    assert_int_equal(json_object_size(place), 1);
    assert_true(json_number_value(at(json_object_get(place, key), "logprob")) <= 0);
    (void)text_at(json_object_get(place, key), "decoded_token");
  }
  json_decref(chat);
}

/* A prompt of several parts: each place has its own token, as in the lists of echo, whatever else is given back. */
static void test_list_of_a_long_prompt(void **state) {
  enum { N = 300 };
  static const char *const more[] = {"", ",\"echo\":true", ",\"n\":2", ",\"echo\":true,\"n\":2,\"logprobs\":1"};
  weft_text prompt = {0}, fields = {0};
  (void)state;
  for (int i = 0; i < N; i++) weft_text_printf(&prompt, "%s%d", i == 0 ? "" : ",", 260 + i * 7 % 300);
  weft_text_printf(&fields, "\"prompt\":[%s],\"max_tokens\":1,\"echo\":true,\"logprobs\":0", prompt.bytes);
  json_t *echo = ask(COMPLETIONS, "weft-demo-ar", fields.bytes), *own = at(echo, "choices.0.logprobs.token_logprobs");
  for (size_t k = 0; k < sizeof more / sizeof *more; k++) {
    weft_text_clear(&fields);
    weft_text_printf(&fields, "\"prompt\":[%s],\"max_tokens\":1,\"prompt_logprobs\":0%s", prompt.bytes, more[k]);
    json_t *answer = ask(COMPLETIONS, "weft-demo-ar", fields.bytes), *choice;
    size_t c;
    json_array_foreach(at(answer, "choices"), c, choice) {
      json_t *places = list_of(choice, "prompt_logprobs", N);
      assert_true(json_is_null(json_array_get(places, 0)));
      for (size_t i = 1; i < N; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", 260 + (int)i * 7 % 300);
        json_t *entry = json_object_get(json_array_get(places, i), key);
        if (entry == NULL) fail_msg("%s: place %zu is of another token than %s", more[k], i, key);
        assert_true(json_number_value(at(entry, "logprob")) == number_at(own, i));
      }
    }
    json_decref(answer);
  }
  json_decref(echo);
  weft_text_free(&prompt);
  weft_text_free(&fields);
}

/* Without logprobs the prompt is text alone, also in front of a canvas. */
static void test_text_alone(void **state) {
  (void)state;
  json_t *canvas = ask(COMPLETIONS, "weft-demo",
                       "\"prompt\":\"a frog\",\"echo\":true,\"mode\":\"diffusion\",\"max_tokens\":4,\"seed\":1");
  assert_memory_equal(text_at(canvas, "choices.0.text"), "a frog", 6);
  assert_true(json_is_null(at(canvas, "choices.0.logprobs")));
  assert_int_equal(int_at(canvas, "usage.completion_tokens_details.canvases"), 1);
  json_t *ids = ask(COMPLETIONS, "weft-demo-ar",
                    "\"prompt\":[300,296,10],\"echo\":true,\"max_tokens\":0,\"return_token_ids\":true");
  assert_int_equal(json_array_size(at(ids, "choices.0.prompt_token_ids")), 3);
  assert_int_equal(json_array_size(at(ids, "choices.0.token_ids")), 0);
  assert_null(at(ids, "choices.0.prompt_logprobs"));
  json_decref(ids);
  json_decref(canvas);
}

static void test_refusals(void **state) {
  (void)state;
  refused(COMPLETIONS, "{\"model\":\"weft-demo\",\"prompt\":\"a\",\"mode\":\"diffusion\",\"prompt_logprobs\":1}",
          "not defined for an answer by diffusion");
  refused(COMPLETIONS,
          "{\"model\":\"weft-demo\",\"prompt\":\"a\",\"mode\":\"diffusion\",\"echo\":true,\"max_tokens\":0}",
          "not defined for an answer by diffusion");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens is 0");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":21}", "prompt_logprobs is 21");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":-1}", "prompt_logprobs is -1");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":1,\"stream\":true}", "leave it or stream out");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"echo\":1}", "echo must be true or false");
  refused(COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true,\"max_tokens\":0,\"min_tokens\":2}", "min_tokens is 2");
  refused(COMPLETIONS, "{\"prompt\":[99999999],\"echo\":true}", "vocabulary");
  refused(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"echo\":true}", "belongs to /v1/completions");
}

/* A model that was taught conversations gives padding to a bare text: the answer says so, streamed and whole. */
static void test_an_answer_without_text_says_why(void **state) {
  static const char body[] =
      "{\"model\":\"weft-demo\",\"mode\":\"diffusion\",\"prompt\":\"What is 58 + 37?\",\"seed\":1,\"stream\":%s}";
  char text[256];
  (void)state;
  (void)snprintf(text, sizeof text, body, "false");
  json_t *answer = talk_json(server.port, COMPLETIONS, text);
  assert_string_equal(text_at(answer, "choices.0.text"), "");
  assert_true(int_at(answer, "usage.completion_tokens") > 0);
  assert_non_null(strstr(text_at(answer, "choices.0.warning"), "ask /v1/chat/completions"));
  json_decref(answer);
  (void)snprintf(text, sizeof text, body, "true");
  json_t *events = talk_stream(server.port, COMPLETIONS, text);
  size_t n = json_array_size(events);
  assert_non_null(strstr(text_at(json_array_get(events, n - 2), "data.choices.0.warning"), "padding"));
  json_decref(events);
  answer =
      talk_json(server.port, COMPLETIONS,
                "{\"model\":\"weft-demo\",\"prompt\":\"cat\",\"seed\":1,\"mode\":\"autoregressive\",\"max_tokens\":8}");
  assert_string_not_equal(text_at(answer, "choices.0.text"), "");
  assert_null(at(answer, "choices.0.warning"));
  json_decref(answer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_answer_without_text_says_why),
      cmocka_unit_test(test_reference),
      cmocka_unit_test(test_log_likelihood),
      cmocka_unit_test(test_offsets),
      cmocka_unit_test(test_top_logprobs),
      cmocka_unit_test(test_choices_and_streams),
      cmocka_unit_test(test_cached_prefix),
      cmocka_unit_test(test_chat),
      cmocka_unit_test(test_list_of_a_long_prompt),
      cmocka_unit_test(test_text_alone),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, open_server, close_server);
}
