/* SPDX-License-Identifier: MIT */
/* The parts of `weft prove` that decide: what is of a schema and what is not, with the place that is named; every file
 * of tests/proof is of its schema; which contract takes which suite; which answers are equal, and where they first
 * differ; the states of an owner of weights. The program as a whole: tests/proof.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>

#include "bench/prove/answers.h"
#include "bench/prove/contracts.h"
#include "bench/prove/files.h"
#include "bench/prove/owner.h"
#include "bench/prove/schema.h"

static json_t *read_text(const char *text) {
  json_error_t why;
  json_t *value = json_loads(text, JSON_DECODE_ANY, &why);
  if (value == NULL) fail_msg("%s: %s", text, why.text);
  return value;
}

/* ---- schemas -------------------------------------------------------------------------------------------------- */

static void test_schema(void **state) {
  static const struct {
    const char *schema, *value, *line; /* line NULL: it is of the schema */
  } cases[] = {
      {"{\"type\":\"integer\"}", "3", NULL},
      {"{\"type\":\"integer\"}", "3.0", "/: it must be of the type integer"},
      {"{\"type\":\"number\"}", "3", NULL},
      {"{\"type\":[\"string\",\"null\"]}", "null", NULL},
      {"{\"type\":[\"string\",\"null\"]}", "false", "/: it must be of the type string or null"},
      {"{\"enum\":[\"a\",1]}", "1", NULL},
      {"{\"enum\":[\"a\",1]}", "\"b\"", "/: it must be one of [\"a\",1]"},
      {"{\"const\":true}", "false", "/: it must be true"},
      {"{\"minimum\":2}", "1", "/: it must be at least 2"},
      {"{\"maximum\":2}", "2.5", "/: it must be at most 2"},
      {"{\"minLength\":1}", "\"\"", "/: it must not be empty"},
      {"{\"minItems\":1}", "[]", "/: it must not be empty"},
      {"{\"items\":{\"type\":\"string\"}}", "[\"a\",[]]", "/1: it must be of the type string"},
      {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":false}", "{\"a\":null}", NULL},
      {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":false}", "{\"b\":1}",
       "/: the name 'b' is unknown"},
      {"{\"properties\":{\"a\":{\"properties\":{\"b\":{\"type\":\"null\"}}}}}", "{\"a\":{\"b\":2}}",
       "/a/b: it must be of the type null"},
      {"{\"properties\":{},\"required\":[\"x\"]}", "{}", "/: 'x' is missing"},
      {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}", "{\"k\":1}",
       "/k: it must be of the type string"},
      {"{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]}", "\"a\"", NULL},
      {"{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]}", "1", "/: it must be of the type string"},
      {"{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", "1",
       "/: it fits several of the forms that exclude each other"},
      {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"null\"}}}", "null", NULL},
      {"{\"$ref\":\"#/$defs/b\",\"$defs\":{}}", "null", "/: the schema refers to '#/$defs/b', which it has not"},
      {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}}}", "null",
       "/: it is more than 32 levels deep"},
      {"{\"pattern\":\"a\"}", "\"a\"", "/: the schema has the keyword 'pattern', which is not known here"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *schema = read_text(cases[i].schema), *value = read_text(cases[i].value);
    weft_text why = {0};
    bool good = prove_schema_check(schema, value, &why);
    if (good != (cases[i].line == NULL)) fail_msg("%s of %s: %d", cases[i].value, cases[i].schema, good);
    if (!good) assert_string_equal(why.bytes, cases[i].line);
    weft_text_free(&why);
    json_decref(schema);
    json_decref(value);
  }
}

/* Every committed file is of its schema, and suites, profiles and matrices name files that there are. */
static void test_files(void **state) {
  static const char *const kinds[] = {"profiles",  "suites",   "prompts",       "budgets",
                                      "contracts", "matrices", "weight-servers"};
  const char *folder = WEFT_SOURCE_DIR "/tests/proof";
  (void)state;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char path[512];
    uint32_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", folder, kinds[i]);
    DIR *list = opendir(path);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
      char *end = strstr(entry->d_name, ".json");
      weft_error error = {{0}};
      json_t *file = NULL;
      if (end == NULL) continue;
      *end = 0;
      if (prove_file_read(folder, kinds[i], entry->d_name, &file, &error) != WEFT_OK) fail_msg("%s", error.text);
      json_decref(file);
      n += 1;
    }
    (void)closedir(list);
    assert_true(n > 0);
  }
}

/* ---- contracts ------------------------------------------------------------------------------------------------ */

static void test_fits(void **state) {
  static const struct {
    const char *kind, *mode;
    double temperature;
    bool fits;
  } cases[] = {
      {"argmax_generation", "autoregressive", 0, true},
      {"argmax_generation", "autoregressive", 0.5, false},
      {"sampled_generation", "autoregressive", 0.5, true},
      {"sampled_generation", "autoregressive", 0, false},
      {"canvas_generation", "diffusion", 0, true},
      {"canvas_generation", "autoregressive", 0, false},
      {"speculative", "autoregressive", 0, true},
      {"speculative", "autoregressive", 0.5, true},
      {"speculative", "diffusion", 0, false},
      {"logits_within", "diffusion", 0, false},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *contract = json_pack("{s:s}", "kind", cases[i].kind);
    json_t *suite = json_pack("{s:s, s:f}", "mode", cases[i].mode, "temperature", cases[i].temperature);
    prove_outcome outcome = {.verdict = PROVE_PROVEN};
    prove_verdict verdict = prove_contract_fits(contract, suite, &outcome);
    assert_int_equal(verdict, cases[i].fits ? PROVE_PROVEN : PROVE_BAD_FILE);
    json_decref(contract);
    json_decref(suite);
  }
}

#define ANSWER(tokens, finish, canvases)                                                            \
  "{\"prompt\":\"p\",\"seed\":1,\"format\":0,\"repeat\":0,\"prompt_tokens\":[7],\"tokens\":" tokens \
  ",\"finish\":\"" finish "\",\"denoise_steps\":3,\"canvases\":[" canvases "]}"
#define CANVAS(step, text) "{\"block\":0,\"step\":" step ",\"text\":\"" text "\",\"token_ids\":[1]}"
#define IDS(step, ids)     "{\"block\":0,\"step\":" step ",\"text\":\"\",\"token_ids\":" ids "}"

static void test_differences(void **state) {
  static const struct {
    const char *baseline, *candidate, *what;
    int position;
  } cases[] = {
      {"[" ANSWER("[1,2]", "stop", "") "]", "[" ANSWER("[1,2]", "stop", "") "]", NULL, 0},
      {"[" ANSWER("[1,2]", "stop", "") "]", "[" ANSWER("[1,3]", "stop", "") "]", "token", 1},
      {"[" ANSWER("[1,2]", "stop", "") "]", "[" ANSWER("[1]", "stop", "") "]", "token", 1},
      {"[" ANSWER("[1]", "stop", "") "]", "[" ANSWER("[1,2]", "length", "") "]", "token", 1},
      {"[" ANSWER("[1]", "stop", "") "]", "[" ANSWER("[1]", "length", "") "]", "finish", -1},
      {"[" ANSWER("[1]", "stop", CANVAS("0", "a")) "]", "[" ANSWER("[1]", "stop", CANVAS("0", "b")) "]", "canvas", -1},
      {"[" ANSWER("[1]", "stop", CANVAS("0", "a")) "]", "[" ANSWER("[1]", "stop", "") "]", "canvas", -1},
      {"[" ANSWER("[1]", "stop", CANVAS("0", "a")) "]", "[" ANSWER("[2]", "stop", CANVAS("0", "b")) "]", "canvas", -1},
      {"[" ANSWER("[1]", "stop", CANVAS("0", "a")) "]", "[" ANSWER("[2]", "stop", CANVAS("0", "a")) "]", "token", 0},
      {"[" ANSWER("[1]", "stop", IDS("0", "[4,5,6]")) "]", "[" ANSWER("[1]", "stop", IDS("0", "[4,7,6]")) "]", "canvas",
       1},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *ours = read_text(cases[i].baseline), *theirs = read_text(cases[i].candidate);
    prove_outcome outcome = {.verdict = PROVE_PROVEN};
    json_t *d = prove_compare_answers(ours, theirs, &outcome);
    assert_int_equal(outcome.verdict, cases[i].what == NULL ? PROVE_PROVEN : PROVE_DIFFERS);
    assert_true((d == NULL) == (cases[i].what == NULL));
    if (d != NULL) assert_string_equal(prove_text(d, "what", ""), cases[i].what);
    if (d != NULL && cases[i].position >= 0) assert_int_equal(prove_number(d, "position", 99), cases[i].position);
    if (d != NULL && cases[i].position < 0) assert_true(json_is_null(json_object_get(d, "position")));
    json_decref(d);
    json_decref(ours);
    json_decref(theirs);
  }
}

static json_t *score_rows(double second) {
  return json_pack("[[{s:{s:f}, s:{s:f}}]]", "5", "logprob", -0.5, "6", "logprob", second);
}

/* Within the bound, at it, beyond it, in the mean alone, and of a token that is too rare to count. */
static void test_scores(void **state) {
  static const struct {
    double baseline, candidate;
    prove_verdict verdict;
  } cases[] = {{-1.0, -1.0, PROVE_PROVEN},
               {-1.0, -1.25, PROVE_PROVEN},
               {-1.0, -1.5, PROVE_DIFFERS},
               {-9.0, -12.0, PROVE_PROVEN},
               {-1.0, -1e308 * 10.0, PROVE_DIFFERS}};
  json_t *answers = read_text("[" ANSWER("[5]", "stop", "") "]");
  json_t *contract = read_text("{\"bound\":{\"largest\":0.25,\"mean\":0.125,\"at_least\":-7}}");
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *ours = score_rows(cases[i].baseline);
    json_t *theirs = i == 4 ? json_pack("[[{s:{s:f}, s:{s:n}}]]", "5", "logprob", -0.5, "6", "logprob")
                            : score_rows(cases[i].candidate);
    prove_outcome outcome = {.verdict = PROVE_PROVEN};
    json_t *found = prove_compare_scores(contract, answers, ours, theirs, &outcome);
    assert_non_null(found);
    assert_int_equal(outcome.verdict, cases[i].verdict);
    assert_true(json_is_null(json_object_get(found, "at")) == (cases[i].verdict == PROVE_PROVEN));
    json_decref(found);
    json_decref(ours);
    json_decref(theirs);
  }
  json_decref(answers);
  json_decref(contract);
}

/* One request for each prompt, seed, format and repeat, in that order. */
static void test_requests(void **state) {
  json_t *suite = read_text(
      "{\"mode\":\"autoregressive\",\"temperature\":0,\"seeds\":[3,4],\"max_tokens\":5,"
      "\"repeats\":2,\"formats\":[null,{\"type\":\"json_object\"}]}");
  json_t *prompts = read_text("{\"prompts\":[{\"name\":\"a\",\"text\":\"x\"},{\"name\":\"b\",\"messages\":[]}]}");
  json_t *list = prove_requests_make(suite, prompts);
  (void)state;
  assert_int_equal(json_array_size(list), 16);
  for (size_t i = 0; i < 16; i++) {
    const json_t *one = json_array_get(list, i);
    assert_string_equal(prove_text(one, "prompt", ""), i < 8 ? "a" : "b");
    assert_string_equal(prove_text(one, "path", ""), i < 8 ? "/v1/completions" : "/v1/chat/completions");
    assert_int_equal(prove_number(one, "seed", 0), i / 4 % 2 == 0 ? 3 : 4);
    assert_int_equal(prove_number(one, "format", 9), i / 2 % 2);
    assert_int_equal(prove_number(one, "repeat", 9), i % 2);
    assert_true((strstr(prove_text(one, "body", ""), "response_format") != NULL) == (i / 2 % 2 == 1));
  }
  json_decref(list);
  json_decref(suite);
  json_decref(prompts);
}

/* ---- an owner of weights --------------------------------------------------------------------------------------- */

typedef prove_verdict (*owner_step)(prove_owner *owner, prove_outcome *outcome);

/* In a state that it is not for, a step fails, and so does the owner. */
static void test_turns(void **state) {
  static const owner_step steps[] = {prove_owner_start, prove_owner_wait, prove_owner_stop};
  json_t *file =
      read_text("{\"description\":\"x\",\"backend\":\"file\",\"command\":[\"true\",\"{folder}/{model}{x}\"]}");
  (void)state;
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    prove_owner owner;
    prove_outcome outcome = {.verdict = PROVE_PROVEN};
    assert_int_equal(prove_owner_open(&owner, file, "M", "/tmp", &outcome), PROVE_PROVEN);
    assert_string_equal(json_string_value(json_array_get(owner.args, 1)), "/tmp/M{x}");
    assert_int_equal(steps[i](&owner, &outcome), PROVE_OWNER_BROKEN);
    assert_int_equal(owner.state, PROVE_OWNER_FAILED);
    json_t *said = prove_owner_validation(&owner);
    assert_false(json_is_true(json_object_get(said, "valid")));
    assert_true(json_is_null(json_object_get(said, "plans"))); /* of vmm alone */
    json_decref(said);
    prove_owner_close(&owner);
  }
  json_decref(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_schema),      cmocka_unit_test(test_files),  cmocka_unit_test(test_fits),
      cmocka_unit_test(test_differences), cmocka_unit_test(test_scores), cmocka_unit_test(test_requests),
      cmocka_unit_test(test_turns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
