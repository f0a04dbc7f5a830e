/* SPDX-License-Identifier: MIT */
/* Drafts as a user sees them: every dialect's field, answers that are the same bytes with and without, what usage and
 * /metrics tell of them, and the lines of what is refused. */
#include <fcntl.h>

#include "api/runtime.h"
#include "base/log.h"
#include "tests/support/http_conversation.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define OFF         "\"speculative_config\":{\"num_speculative_tokens\":0},"
#define NGRAM(k) \
  "\"speculative_config\":{\"method\":\"ngram\",\"num_speculative_tokens\":" #k ",\"prompt_lookup_min\":1},"

static const char *const models[] = {DEMO_AR_MODEL};
static talk server;

/* As many drafts as there can be, whatever steps cost on this machine. */
static int open_with(void **state, const char *how) {
  static const char *drafts[1];
  drafts[0] = how;
  weft_open_options options = {.models = models, .n_models = 1, .kv_bytes = 8 << 20, .drafts = drafts, .n_drafts = 1};
  *state = talk_serve(&server, NULL, options, (weft_server_options){0});
  weft_engine_set_drafter(weft_replicas_at(server.runtime->replicas, 0), NULL, true);
  return 0;
}

static int open_ngram(void **state) {
  return open_with(state, "ngram:6");
}

static int open_asked(void **state) {
  return open_with(state, "weft-demo-ar=asked");
}

static int open_shadow(void **state) {
  return open_with(state, "shadow:4");
}

static int open_off(void **state) {
  return open_with(state, "off");
}

/* A number of /metrics, of the one model. */
static uint64_t metric(const char *name) {
  talk_answer a = talk_ask(server.port, "GET", "/metrics", "");
  const char *line = a.body.bytes;
  size_t n = strlen(name);
  uint64_t value = UINT64_MAX;
  while (line != NULL && value == UINT64_MAX) {
    if (strncmp(line, name, n) == 0 && line[n] == '{') value = strtoull(strchr(line, '}') + 2, NULL, 10);
    line = strchr(line, '\n');
    if (line != NULL) line += 1;
  }
  talk_answer_free(&a);
  return value;
}

/* Counters are copied at the end of a turn, so an answer can be read before the counts of its last step: they are whole
 * in the copy that has no request left. */
static uint64_t n_drafted(void) {
  for (uint32_t i = 0; i < 10000 && metric("vllm:num_requests_running") != 0; i++) (void)usleep(1000);
  assert_int_equal(metric("vllm:num_requests_running"), 0);
  return metric("vllm:spec_decode_num_draft_tokens_total");
}

static json_t *ask(const char *path, const char *draft, const char *fields) {
  char body[2048];
  (void)snprintf(body, sizeof body, "{%s%s}", draft, fields);
  return talk_json(server.port, path, body);
}

static void same_answers(const char *path, const char *fields, const char *text) {
  static const char *const drafts[] = {NGRAM(1), NGRAM(3), NGRAM(6), ""};
  json_t *plain = ask(path, OFF, fields);
  const char *wanted = json_string_value(at(plain, text));
  assert_non_null(wanted);
  for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
    json_t *answer = ask(path, drafts[i], fields);
    assert_string_equal(json_string_value(at(answer, text)), wanted);
    json_decref(answer);
  }
  json_decref(plain);
}

#define REPEATS "\"7 23 41 7 23 41 7 23 41 7 23 41 7 23\""
#define ASKS    "\"messages\":[{\"role\":\"user\",\"content\":\"List all numbers from 34 to 49.\"}],"

static void test_answers_are_the_same(void **state) {
  (void)state;
  same_answers(COMPLETIONS, "\"prompt\":" REPEATS ",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true",
               "choices.0.text");
  same_answers(COMPLETIONS,
               "\"prompt\":" REPEATS
               ",\"max_tokens\":60,\"temperature\":1,\"seed\":5,\"ignore_eos\":true,"
               "\"repetition_penalty\":1.1,\"logprobs\":3",
               "choices.0.text");
  same_answers(CHAT, ASKS "\"max_tokens\":60,\"temperature\":0", "choices.0.message.content");
  same_answers(
      CHAT,
      ASKS
      "\"max_tokens\":80,\"seed\":3,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
      "\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"maximum\":9,\"minimum\":0},"
      "\"minItems\":12,\"maxItems\":12}}}",
      "choices.0.message.content");
  same_answers("/v1/messages", ASKS "\"model\":\"weft-demo-ar\",\"max_tokens\":60,\"temperature\":0", "content.0.text");
  same_answers("/v1/responses", "\"input\":" REPEATS ",\"max_output_tokens\":40,\"temperature\":0",
               "output.0.content.0.text");
  assert_true(n_drafted() > 0);
}

static void test_what_is_told(void **state) {
  (void)state;
  uint64_t before = n_drafted();
  const char *fields = "\"prompt\":" REPEATS ",\"max_tokens\":240,\"temperature\":0,\"ignore_eos\":true";
  json_t *plain = ask(COMPLETIONS, OFF, fields);
  assert_null(at(plain, "usage.completion_tokens_details.accepted_prediction_tokens"));
  assert_int_equal(n_drafted(), before);
  json_t *answer = ask(COMPLETIONS, NGRAM(6), fields);
  uint64_t accepted = (uint64_t)int_at(answer, "usage.completion_tokens_details.accepted_prediction_tokens");
  uint64_t rejected = (uint64_t)int_at(answer, "usage.completion_tokens_details.rejected_prediction_tokens");
  assert_int_equal(accepted + rejected, n_drafted() - before);
  assert_true(accepted > 0);
  assert_true(metric("vllm:spec_decode_num_drafts_total") > 0);
  assert_true(metric("vllm:spec_decode_num_accepted_tokens_total") >= accepted);
  assert_true(metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") > 0);
  assert_true(metric("weft_draft_verify_microseconds_total") > 0);
  assert_null(at(plain, "usage.draft_timings"));
  assert_true(int_at(answer, "usage.draft_timings.runs") > 0);
  assert_true(json_number_value(at(answer, "usage.draft_timings.verify_ms")) > 0);
  assert_true(json_number_value(at(answer, "usage.draft_timings.draft_ms")) > 0);
  assert_true(json_number_value(at(answer, "usage.draft_timings.commit_ms")) >=
              json_number_value(at(answer, "usage.draft_timings.rollback_ms")));
  assert_true(metric("weft_request_verify_seconds_count") > 0);
  assert_int_equal(metric("weft_request_rollback_seconds_count"), metric("weft_request_draft_seconds_count"));
  json_decref(plain);
  json_decref(answer);
}

/* The line of the request, once it is whole: that of the one before, whose answer has come, may be written late. */
static const char *find_line(const char *lines) {
  const char *at = strstr(lines, " path=" COMPLETIONS " ");
  return at != NULL && strchr(at, '\n') != NULL ? at : NULL;
}

/* The log's line of a request says what its drafts were and took. */
static void test_what_the_log_tells(void **state) {
  const char *fields = "\"prompt\":" REPEATS ",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true";
  const char *const words[] = {" drafted=", " accepted=", " draft_ms=", " verify_ms=", " commit_ms=", " rollback_ms="};
  const weft_log_settings before = weft_log_get();
  char line[4096] = "";
  int ends[2], own = dup(STDERR_FILENO);
  (void)state;
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  weft_log_set_level(WEFT_LOG_INFO);
  json_decref(ask(COMPLETIONS, NGRAM(6), fields));
  struct pollfd wait = {.fd = ends[0], .events = POLLIN};
  for (size_t n = 0; find_line(line) == NULL && poll(&wait, 1, TALK_MS) > 0 && n + 1 < sizeof line;) {
    ssize_t got = read(ends[0], line + n, sizeof line - 1 - n);
    assert_true(got > 0);
    n += (size_t)got;
  }
  weft_log_set(before);
  assert_int_equal(dup2(own, STDERR_FILENO), STDERR_FILENO);
  (void)close(own);
  (void)close(ends[0]);
  (void)close(ends[1]);
  assert_non_null(find_line(line));
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strstr(find_line(line), words[i]) == NULL) fail_msg("'%s' lacks '%s'", line, words[i]);
}

static void refused(const char *config, const char *words) {
  char body[512];
  (void)snprintf(body, sizeof body, "{\"prompt\":\"a\",\"speculative_config\":%s}", config);
  talk_answer a = talk_ask(server.port, "POST", COMPLETIONS, body);
  if (a.code != 400 || strstr(a.body.bytes, words) == NULL) fail_msg("%s: %d %s", body, a.code, a.body.bytes);
  talk_answer_free(&a);
}

static void test_refusals(void **state) {
  (void)state;
  refused("true", "must be an object");
  refused("{\"method\":\"eagle3\"}", "\\\"ngram\\\"");
  refused("{\"model\":\"other\"}", "speculative_config.model");
  refused("{\"num_speculative_tokens\":33}", "num_speculative_tokens is 33");
  refused("{\"prompt_lookup_max\":17}", "prompt_lookup_max is 17");
  refused("{\"prompt_lookup_max\":2,\"prompt_lookup_min\":3}", "it may be at most that");
}

static void test_only_who_asks(void **state) {
  (void)state;
  const char *fields = "\"prompt\":" REPEATS ",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true";
  json_decref(ask(COMPLETIONS, "", fields));
  assert_int_equal(n_drafted(), 0);
  same_answers(COMPLETIONS, fields, "choices.0.text");
  assert_true(n_drafted() > 0);
}

/* Both are computed, and what the rows give one by one is the answer. */
static void test_shadow(void **state) {
  (void)state;
  const char *fields = "\"prompt\":" REPEATS ",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true";
  same_answers(COMPLETIONS, fields, "choices.0.text");
  same_answers(CHAT, ASKS "\"max_tokens\":60,\"seed\":4,\"repetition_penalty\":1.2", "choices.0.message.content");
  assert_true(n_drafted() > 0 && metric("weft_draft_shadow_tokens_total") > 20);
  assert_int_equal(metric("weft_draft_shadow_differences_total"), 0);
}

/* Without drafts no request has any, and none is counted. */
static void test_off(void **state) {
  (void)state;
  const char *fields = "\"prompt\":" REPEATS ",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true";
  same_answers(COMPLETIONS, fields, "choices.0.text");
  assert_int_equal(n_drafted(), 0);
  assert_int_equal(metric("weft_draft_nanoseconds_total"), 0);
}

static void test_options(void **state) {
  static const struct {
    const char *how, *words;
  } rows[] = {{"eagle", "--draft eagle: give off, ngram, ngram:K"},
              {"ngram:0", "1 to 32"},
              {"ngram:33", "1 to 32"},
              {"ngram:4x", "1 to 32"},
              {"off:3", "give off"},
              {"other=ngram", "no model's file is named 'other'"}};
  (void)state;
  for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
    bool last = i == sizeof rows / sizeof *rows;
    const char *how = last ? "ngram" : rows[i].how;
    char error[512] = "";
    weft_runtime *rt = NULL;
    weft_open_options options = {.models = models,
                                 .n_models = 1,
                                 .kv_bytes = 8 << 20,
                                 .drafts = &how,
                                 .n_drafts = 1,
                                 .no_deterministic = last,
                                 .backend = "cpu",
                                 .quiet = true};
    assert_int_not_equal(weft_open(&options, &rt, error, sizeof error), 0);
    if (strstr(error, last ? "leave out --no-deterministic" : rows[i].words) == NULL) fail_msg("%s: %s", how, error);
  }
}

int main(void) {
  const struct CMUnitTest ngram[] = {cmocka_unit_test(test_answers_are_the_same), cmocka_unit_test(test_what_is_told),
                                     cmocka_unit_test(test_what_the_log_tells), cmocka_unit_test(test_refusals)};
  const struct CMUnitTest asked[] = {cmocka_unit_test(test_only_who_asks)};
  const struct CMUnitTest shadow[] = {cmocka_unit_test(test_shadow)};
  const struct CMUnitTest off[] = {cmocka_unit_test(test_off)};
  const struct CMUnitTest options[] = {cmocka_unit_test(test_options)};
  int failed = cmocka_run_group_tests(ngram, open_ngram, close_talk);
  failed += cmocka_run_group_tests(asked, open_asked, close_talk);
  failed += cmocka_run_group_tests(shadow, open_shadow, close_talk);
  failed += cmocka_run_group_tests(off, open_off, close_talk);
  return failed + cmocka_run_group_tests(options, NULL, NULL);
}
