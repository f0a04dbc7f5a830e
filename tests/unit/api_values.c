/* SPDX-License-Identifier: MIT */
/* Values as clients write them, in every dialect: whole numbers with a fraction of zero, empty stop strings, words of
 * effort; and refusals from below, which name places of the body that was sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/ollama.h"
#include "api/dialects/places.h"
#include "api/dialects/responses.h"
#include "base/log.h"

#define ONE "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static weft_status parse(weft_parser parser, const char *body, weft_gen *gen, weft_refusal *why) {
  const weft_body_rules rules = {.json = weft_json_limits(8192)};
  memset(why, 0, sizeof *why);
  return parser(body, strlen(body), &rules, gen, why);
}

/* ---- whole numbers ---- */

static const struct {
  weft_parser parser;
  const char *body; /* %s: the number */
  double least;     /* a whole number that the field takes */
} numbers[] = {{weft_openai_parse_chat, "{" ONE ",\"max_tokens\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"max_completion_tokens\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"n_predict\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"n\":%s}", 2},
               {weft_openai_parse_chat, "{" ONE ",\"top_k\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"seed\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"random_seed\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"min_tokens\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"priority\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"timeout_ms\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"repeat_last_n\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"truncate_prompt_tokens\":%s}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"stop_token_ids\":[%s]}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"allowed_token_ids\":[%s]}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"logprobs\":true,\"top_logprobs\":%s}", 3},
               {weft_openai_parse_chat, "{" ONE ",\"diffusion\":{\"steps\":%s}}", 7},
               {weft_openai_parse_chat, "{" ONE ",\"diffusion\":{\"seed\":%s}}", 7},
               {weft_openai_parse_completions, "{\"prompt\":\"a\",\"logprobs\":%s}", 3},
               {weft_openai_parse_completions, "{\"prompt\":\"a\",\"best_of\":%s}", 3},
               {weft_openai_parse_completions, "{\"prompt\":\"a\",\"prompt_logprobs\":%s}", 3},
               {weft_openai_parse_completions, "{\"prompt\":[%s]}", 7},
               {weft_anthropic_parse, "{" ONE ",\"max_tokens\":%s}", 7},
               {weft_anthropic_parse, "{" ONE ",\"max_tokens\":1,\"top_k\":%s}", 7},
               {weft_anthropic_parse, "{" ONE ",\"max_tokens\":1,\"seed\":%s}", 7},
               {weft_anthropic_parse, "{" ONE ",\"max_tokens\":1,\"priority\":%s}", 7},
               {weft_responses_parse, "{\"input\":\"a\",\"max_output_tokens\":%s}", 7},
               {weft_responses_parse, "{\"input\":\"a\",\"top_logprobs\":%s}", 3},
               {weft_responses_parse, "{\"input\":\"a\",\"seed\":%s}", 7},
               {weft_ollama_parse_chat, "{" ONE ",\"options\":{\"num_predict\":%s}}", 7},
               {weft_ollama_parse_chat, "{" ONE ",\"options\":{\"seed\":%s}}", 7},
               {weft_ollama_parse_chat, "{" ONE ",\"options\":{\"top_k\":%s}}", 7},
               {weft_ollama_parse_chat, "{" ONE ",\"options\":{\"repeat_last_n\":%s}}", 7},
               {weft_ollama_parse_chat, "{" ONE ",\"logprobs\":true,\"top_logprobs\":%s}", 3}};

static void whole_numbers_with_fractions(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    const char *hole = strstr(numbers[i].body, "%s");
    for (int k = 0; k < 4; k++) {
      weft_text body = {0};
      weft_gen gen;
      weft_refusal why;
      weft_text_append(&body, numbers[i].body, (size_t)(hole - numbers[i].body));
      weft_text_printf(&body, k == 0 ? "%.0f" : k == 1 ? "%.1f" : k == 2 ? "%.0fe0" : "%.0f.5", numbers[i].least);
      weft_text_puts(&body, hole + 2);
      weft_status status = parse(numbers[i].parser, body.bytes, &gen, &why);
      if ((status == WEFT_OK) != (k < 3)) fail_msg("%s: %s", body.bytes, status == WEFT_OK ? "was read" : why.message);
      if (status == WEFT_OK) weft_gen_close(&gen);
      weft_text_free(&body);
    }
  }
}

static void lengths_of_ollama(void **state) {
  static const struct {
    const char *value;
    uint32_t tokens;
  } rows[] = {{"0", UINT32_MAX},    {"-1", UINT32_MAX}, {"-2", UINT32_MAX},
              {"-1.0", UINT32_MAX}, {"12.0", 12},       {"12", 12}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_gen gen;
    weft_refusal why;
    weft_text_printf(&body, "{" ONE ",\"options\":{\"num_predict\":%s}}", rows[i].value);
    if (parse(weft_ollama_parse_chat, body.bytes, &gen, &why) != WEFT_OK) fail_msg("%s", why.message);
    assert_int_equal(gen.params.max_tokens, rows[i].tokens);
    weft_gen_close(&gen);
    weft_text_free(&body);
  }
}

/* vLLM's two words for off, as routers write them into whatever body they hand on; left out, it is the model's. */
static void top_k_is_off(void **state) {
  static const struct {
    weft_parser parser;
    const char *body; /* %s: a member, or nothing */
  } rows[] = {{weft_openai_parse_chat, "{" ONE "%s}"},
              {weft_openai_parse_completions, "{\"prompt\":\"a\"%s}"},
              {weft_anthropic_parse, "{\"max_tokens\":1," ONE "%s}"},
              {weft_responses_parse, "{\"input\":\"a\"%s}"},
              {weft_ollama_parse_chat, "{" ONE ",\"options\":{\"seed\":1%s}}"},
              {weft_ollama_parse_generate, "{\"prompt\":\"a\",\"options\":{\"seed\":1%s}}"}};
  static const struct {
    const char *member;
    int32_t top_k; /* -2: refused */
  } values[] = {{"", -1},
                {",\"top_k\":null", -1},
                {",\"top_k\":-1", 0},
                {",\"top_k\":-1.0", 0},
                {",\"top_k\":0", 0},
                {",\"top_k\":7", 7},
                {",\"top_k\":-2", -2}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
      const char *hole = strstr(rows[i].body, "%s");
      weft_text body = {0};
      weft_gen gen;
      weft_refusal why;
      weft_text_append(&body, rows[i].body, (size_t)(hole - rows[i].body));
      weft_text_puts(&body, values[k].member);
      weft_text_puts(&body, hole + 2);
      weft_status status = parse(rows[i].parser, body.bytes, &gen, &why);
      bool good = (status == WEFT_OK) == (values[k].top_k != -2);
      if (!good) fail_msg("%s: %s", body.bytes, status == WEFT_OK ? "was read" : why.message);
      if (status == WEFT_OK) {
        if (gen.params.sampling.top_k != values[k].top_k) fail_msg("%s: %d", body.bytes, gen.params.sampling.top_k);
        weft_gen_close(&gen);
      } else {
        assert_non_null(strstr(why.message, "top_k is -2; it must be from 0 to 2147483647, or -1: off"));
      }
      weft_text_free(&body);
    }
  }
}

/* ---- stop strings ---- */

static void empty_stop_strings(void **state) {
  static const struct {
    weft_parser parser;
    const char *body;
    uint32_t n;
  } rows[] = {{weft_openai_parse_chat, "{" ONE ",\"stop\":\"\"}", 0},
              {weft_openai_parse_chat, "{" ONE ",\"stop\":[\"\"]}", 0},
              {weft_openai_parse_chat, "{" ONE ",\"stop\":[\"\",\"ab\",\"\",\"c\"]}", 2},
              {weft_openai_parse_completions, "{\"prompt\":\"a\",\"stop\":[\"\"]}", 0},
              {weft_anthropic_parse, "{\"max_tokens\":1," ONE ",\"stop_sequences\":[\"\",\"x\"]}", 1},
              {weft_responses_parse, "{\"input\":\"a\",\"stop\":[\"\"]}", 0},
              {weft_ollama_parse_chat, "{" ONE ",\"options\":{\"stop\":[\"\"]}}", 0},
              {weft_ollama_parse_generate, "{\"prompt\":\"a\",\"options\":{\"stop\":\"\"}}", 0}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_gen gen;
    weft_refusal why;
    if (parse(rows[i].parser, rows[i].body, &gen, &why) != WEFT_OK) fail_msg("%s: %s", rows[i].body, why.message);
    assert_int_equal(gen.params.n_stop, rows[i].n);
    for (uint32_t k = 0; k < rows[i].n; k++) assert_int_not_equal(gen.params.stop[k][0], 0);
    weft_gen_close(&gen);
  }
}

/* ---- effort ---- */

static void words_of_effort(void **state) {
  static const char *const bodies[] = {"{" ONE ",\"reasoning_effort\":%s}", "{" ONE ",\"reasoning\":{\"effort\":%s}}",
                                       "{\"max_tokens\":1," ONE ",\"output_config\":{\"effort\":%s}}",
                                       "{\"input\":\"a\",\"reasoning\":{\"effort\":%s}}", "{" ONE ",\"think\":%s}"};
  static const weft_parser parsers[] = {weft_openai_parse_chat, weft_openai_parse_chat, weft_anthropic_parse,
                                        weft_responses_parse, weft_ollama_parse_chat};
  static const struct {
    const char *word, *variables; /* NULL: none */
    bool thinks, refused;
  } rows[] = {{"\"high\"", "{\"reasoning_effort\":\"high\"}", true, false},
              {"\"xhigh\"", "{\"reasoning_effort\":\"xhigh\"}", true, false},
              {"\"max\"", "{\"reasoning_effort\":\"max\"}", true, false},
              {"\"minimal\"", "{\"reasoning_effort\":\"minimal\"}", true, false},
              {"\"none\"", "{\"reasoning_effort\":\"none\"}", false, false},
              /* left to the model, as where nothing is said */
              {"\"default\"", NULL, false, false},
              {"\"auto\"", NULL, false, false},
              {"\"\"", NULL, false, false},
              {"null", NULL, false, false},
              {"\"hard\"", NULL, false, true},
              {"7", NULL, false, true}};
  (void)state;
  for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      const char *hole = strstr(bodies[b], "%s");
      weft_text body = {0};
      weft_gen gen;
      weft_refusal why;
      weft_text_append(&body, bodies[b], (size_t)(hole - bodies[b]));
      weft_text_puts(&body, rows[i].word);
      weft_text_puts(&body, hole + 2);
      weft_status status = parse(parsers[b], body.bytes, &gen, &why);
      if ((status == WEFT_OK) == rows[i].refused) fail_msg("%s: %s", body.bytes, why.message);
      if (status == WEFT_OK) {
        const char *variables = gen.prompt->variables;
        if (rows[i].variables == NULL) assert_null(variables);
        if (rows[i].variables != NULL) assert_string_equal(variables, rows[i].variables);
        if (b != 2) assert_int_equal(gen.may_think, rows[i].thinks); /* Anthropic's has a field of its own for it */
        weft_gen_close(&gen);
      }
      weft_text_free(&body);
    }
  }
}

/* ---- places ---- */

static void check_line(const weft_gen *gen, const char *line, const char *want, const char *param) {
  weft_refusal why;
  (void)weft_refuse(&why, 400, "invalid_value", NULL, "%s", line);
  places_name(gen, &why);
  assert_string_equal(why.message, want);
  assert_string_equal(why.param, param);
}

static void refusals_name_places_of_the_body(void **state) {
  weft_gen gen;
  weft_refusal why;
  (void)state;
  assert_int_equal(parse(weft_responses_parse,
                         "{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":"
                         "\"reasoning\",\"summary\":[]},"
                         "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},"
                         "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}]}",
                         &gen, &why),
                   WEFT_OK);
  check_line(&gen, "too short: raise max_tokens", "too short: raise max_output_tokens", "max_output_tokens");
  check_line(&gen, "message 3 is a result", "input[3] is a result", "input[3]");
  check_line(&gen, "message 0, of the role system: x", "instructions, of the role system: x", "instructions");
  check_line(&gen, "messages[2].tool_calls[0].function.arguments, with", "input[2], with", "input[2]");
  check_line(&gen, "a message 9 and my_max_tokens", "a message 9 and my_max_tokens", "");
  (void)weft_refuse(&why, 400, "context_length_exceeded", NULL, "prompt and max_tokens together");
  places_name(&gen, &why);
  assert_string_equal(why.message, "prompt and max_output_tokens together");
  assert_string_equal(why.param, "");
  weft_gen_close(&gen);
  assert_int_equal(
      parse(weft_anthropic_parse,
            "{\"max_tokens\":5,\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
            "\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]},{"
            "\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"x\"},{"
            "\"type\":\"text\",\"text\":\"b\"}]}]}",
            &gen, &why),
      WEFT_OK);
  check_line(&gen, "message 4, of the role user", "messages[2], of the role user", "messages[2]");
  check_line(&gen, "message 0, of", "system, of", "system");
  check_line(&gen, "raise max_tokens", "raise max_tokens", "");
  weft_gen_close(&gen);
  assert_int_equal(parse(weft_ollama_parse_generate, "{\"system\":\"s\",\"prompt\":\"a\"}", &gen, &why), WEFT_OK);
  check_line(&gen, "message 1: raise max_tokens", "prompt: raise options.num_predict", "prompt");
  check_line(&gen, "temperature is 3", "options.temperature is 3", "options.temperature");
  weft_gen_close(&gen);
  assert_int_equal(parse(weft_openai_parse_chat, "{" ONE "}", &gen, &why), WEFT_OK);
  check_line(&gen, "message 0: raise max_tokens", "message 0: raise max_tokens", "");
  weft_gen_close(&gen);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(whole_numbers_with_fractions),
                                     cmocka_unit_test(lengths_of_ollama),
                                     cmocka_unit_test(top_k_is_off),
                                     cmocka_unit_test(empty_stop_strings),
                                     cmocka_unit_test(words_of_effort),
                                     cmocka_unit_test(refusals_name_places_of_the_body)};
  weft_log_set_level((weft_log_level)-1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
