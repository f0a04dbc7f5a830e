/* SPDX-License-Identifier: MIT */
/* Bodies of the OpenAI dialect to requests, without a server: every field lands where it belongs,
 * defaults are the neutral ones, refused memory is an error and leaks nothing. And the writers:
 * JSON, events, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/config.h"
#include "api/dialects/openai.h"
#include "api/http/sse.h"
#include "api/json.h"
#include "base/memory.h"

static const weft_body_rules limits = {.json = {.depth = 32, .values = 1000, .scalars = 1000}};

static void parse(weft_openai_kind kind, const char *body, weft_gen *gen) {
  weft_refusal why = {0};
  weft_status status = kind == WEFT_OPENAI_CHAT ? weft_openai_parse_chat(body, strlen(body), &limits, gen, &why)
                                                : weft_openai_parse_completions(body, strlen(body), &limits, gen, &why);
  if (status != WEFT_OK) fail_msg("%s: %s", body, why.message);
}

static const char full[] =
    "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
    "\"content\":[{\"type\":\"text\","
    "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null}"
    "],\"temperature\":0.5,"
    "\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"repetition_penalty\":1.5,\"presence_penalty\":-1,"
    "\"frequency_penalty\":1,"
    "\"max_tokens\":5,\"max_completion_tokens\":6,\"seed\":-1,\"ignore_eos\":true,\"priority\":-3,"
    "\"timeout_ms\":9,\"n\":2,\"min_tokens\":2,\"stop_token_ids\":[8,9],\"bad_words\":[\"w\"],"
    "\"allowed_token_ids\":[1,2,3],\"include_stop_str_in_output\":true,\"truncate_prompt_tokens\":-1,"
    "\"cache_salt\":\"pepper\",\"add_generation_prompt\":false,"
    "\"stop\":[\"x\",\"yz\"],\"logit_bias\":{\"3\":-100,\"4\":1.5},\"logprobs\":true,\"top_"
    "logprobs\":4,\"stream\":true,"
    "\"stream_options\":{\"include_usage\":true},\"return_token_ids\":true,\"stream_canvas\":true,"
    "\"skip_special_tokens\":false,\"mode\":\"diffusion\",\"chat_template_kwargs\":{\"enable_"
    "thinking\":true,\"other\":1},"
    "\"diffusion\":{\"steps\":10,\"blocks\":2,\"t_min\":0.25,\"t_max\":0.5,\"entropy_bound\":0.75,"
    "\"stability\":2,"
    "\"confidence\":0.0625,\"seed\":77,\"self_conditioning\":false}}";

static void every_field_lands(void **state) {
  weft_gen gen;
  (void)state;
  parse(WEFT_OPENAI_CHAT, full, &gen);
  const weft_generate_params *p = &gen.params;
  assert_string_equal(p->model, "m");
  assert_int_equal(gen.n_prompts, 1);
  assert_int_equal(gen.wanted.n_choices, 2);
  assert_int_equal(gen.prompt[0].n_turns, 3);
  assert_string_equal(gen.prompt[0].turns[0].role, "system");
  assert_string_equal(gen.prompt[0].turns[1].content, "ab");
  assert_string_equal(gen.prompt[0].turns[2].content, "");
  assert_true(p->sampling.temperature == 0.5f && p->sampling.top_p == 0.25f && p->sampling.min_p == 0.125f &&
              p->sampling.top_k == 7);
  assert_true(p->sampling.repetition_penalty == 1.5f && p->sampling.presence_penalty == -1.0f &&
              p->sampling.frequency_penalty == 1.0f);
  assert_int_equal(p->max_tokens, 6);
  assert_true(p->has_seed && p->sampling.seed == 77);
  assert_true(p->ignore_eos && p->priority == 3 && p->timeout_ms == 9 && gen.prompt->thinking && p->with_special);
  assert_true(p->min_tokens == 2 && p->n_stop_tokens == 2 && p->stop_tokens[1] == 9 && p->keep_stop);
  assert_true(p->n_allowed_tokens == 3 && p->allowed_tokens[2] == 3 && p->n_bad_words == 1);
  assert_string_equal(p->bad_words[0], "w");
  assert_string_equal(p->cache_salt, "pepper");
  assert_true(p->truncate_prompt == -1 && gen.prompt->closed && !gen.prompt->continues);
  assert_int_equal(p->n_stop, 2);
  assert_string_equal(p->stop[1], "yz");
  assert_int_equal(p->sampling.n_bias, 2);
  assert_true((p->sampling.bias[0].token == 3 && p->sampling.bias[0].bias == -100.0f) ||
              (p->sampling.bias[1].token == 3 && p->sampling.bias[1].bias == -100.0f));
  assert_true(p->sampling.logprobs && p->sampling.n_top_logprobs == 4);
  assert_true(gen.wanted.stream && gen.wanted.include_usage && gen.wanted.token_ids && gen.params.canvas_deltas);
  assert_true(p->whole_tokens && p->canvas_deltas);
  assert_int_equal(p->mode, WEFT_MODE_DIFFUSION);
  assert_true(p->entropy_bound.max_steps == 10 && p->canvases == 2 && p->entropy_bound.stability == 2);
  assert_true(p->entropy_bound.t_min == 0.25f && p->entropy_bound.t_max == 0.5f &&
              p->entropy_bound.entropy_bound == 0.75f);
  assert_true(p->entropy_bound.confidence == 0.0625f && p->entropy_bound.no_self_conditioning);
  weft_gen_close(&gen);
}

static void what_is_left_out_is_neutral(void **state) {
  static const char *const bodies[] = {
      "{\"prompt\":\"a\"}",
      "{\"prompt\":\"a\",\"temperature\":null,\"seed\":null,\"stop\":null,\"n\":null,\"logprobs\":"
      "null,\"stream\":null,\"mode\":null,"
      "\"diffusion\":null,\"model\":null,\"logit_bias\":null,\"max_tokens\":null,\"best_of\":null,"
      "\"echo\":false,\"suffix\":\"\"}"};
  weft_generate_params neutral;
  (void)state;
  weft_generate_defaults(&neutral);
  for (int i = 0; i < 2; i++) {
    weft_gen gen;
    parse(WEFT_OPENAI_COMPLETIONS, bodies[i], &gen);
    assert_memory_equal(&gen.params.mode, &neutral.mode, sizeof neutral.mode);
    assert_true(gen.params.sampling.temperature == neutral.sampling.temperature &&
                gen.params.sampling.top_k == neutral.sampling.top_k);
    assert_true(gen.params.sampling.top_p == neutral.sampling.top_p && gen.params.sampling.repetition_penalty == 1.0f);
    assert_false(gen.params.has_seed || gen.wanted.stream || gen.params.sampling.logprobs || gen.params.n_stop > 0);
    assert_int_equal(gen.wanted.n_choices, 1);
    assert_int_equal(gen.params.max_tokens, 0);
    assert_null(gen.params.model);
    weft_gen_close(&gen);
  }
}

static weft_status parse_option(const char *name, const char *value) {
  weft_config config;
  weft_error error;
  char flag[64], text[32], *argv[] = {flag, text};
  (void)snprintf(flag, sizeof flag, "--%s", name);
  (void)snprintf(text, sizeof text, "%s", value);
  weft_status status = weft_config_parse(&config, NULL, WEFT_CMD_GENERATE, 2, argv, &error);
  weft_config_free(&config);
  return status;
}

static weft_status parse_field(const char *name, const char *value) {
  weft_gen gen;
  weft_refusal why = {0};
  char body[160];
  bool diffusion = strncmp(name, "diffusion.", 10) == 0;
  int n = snprintf(body, sizeof body,
                   diffusion ? "{\"prompt\":\"a\",\"diffusion\":{\"%s\":%s}}" : "{\"prompt\":\"a\",\"%s\":%s}",
                   diffusion ? name + 10 : name, value);
  weft_status status = weft_openai_parse_completions(body, (size_t)n, &limits, &gen, &why);
  if (status == WEFT_OK) weft_gen_close(&gen);
  return status;
}

/* What an option of the command line may be, a field of a body may be, and the other way round. */
static void options_and_fields_have_the_same_bounds(void **state) {
  static const struct {
    const char *option, *field, *good[2], *bad[2];
  } rows[] = {
      {"temperature", "temperature", {"0", "100"}, {"-0.1", "100.1"}},
      {"top-k", "top_k", {"0", "2147483647"}, {"-2", "2147483648"}},
      {"top-p", "top_p", {"1e-9", "1"}, {"0", "1.01"}},
      {"min-p", "min_p", {"0", "1"}, {"-0.1", "1.01"}},
      {"repetition-penalty", "repetition_penalty", {"1e-9", "100"}, {"0", "100.1"}},
      {"presence-penalty", "presence_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"frequency-penalty", "frequency_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"max-tokens", "max_tokens", {"1", "4294967295"}, {"-2", "4294967296"}},
      {"logprobs", "logprobs", {"0", "20"}, {"-1", "21"}},
      {"diffusion-steps", "diffusion.steps", {"1", "4096"}, {"-1", "4097"}},
      {"diffusion-blocks", "diffusion.blocks", {"1", "65536"}, {"-1", "65537"}},
      {"diffusion-t-min", "diffusion.t_min", {"1e-9", "100"}, {"0", "100.1"}},
      {"diffusion-t-max", "diffusion.t_max", {"1e-9", "100"}, {"0", "100.1"}},
      {"diffusion-entropy-bound", "diffusion.entropy_bound", {"0", "1e9"}, {"-0.1", "1.1e9"}},
      {"diffusion-stability", "diffusion.stability", {"0", "8"}, {"-1", "9"}},
      {"diffusion-confidence", "diffusion.confidence", {"0", "1e9"}, {"-0.1", "1.1e9"}},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int k = 0; k < 2; k++) {
      if (parse_option(rows[i].option, rows[i].good[k]) != WEFT_OK)
        fail_msg("--%s %s", rows[i].option, rows[i].good[k]);
      if (parse_field(rows[i].field, rows[i].good[k]) != WEFT_OK) fail_msg("%s: %s", rows[i].field, rows[i].good[k]);
      if (parse_option(rows[i].option, rows[i].bad[k]) == WEFT_OK) fail_msg("--%s %s", rows[i].option, rows[i].bad[k]);
      if (parse_field(rows[i].field, rows[i].bad[k]) == WEFT_OK) fail_msg("%s: %s", rows[i].field, rows[i].bad[k]);
    }
  }
}

static void prompts_have_four_shapes(void **state) {
  weft_gen gen;
  (void)state;
  parse(WEFT_OPENAI_COMPLETIONS, "{\"prompt\":\"text\"}", &gen);
  assert_int_equal(gen.n_prompts, 1);
  assert_int_equal(gen.prompt[0].n_text, 4);
  weft_gen_close(&gen);
  parse(WEFT_OPENAI_COMPLETIONS, "{\"prompt\":[\"a\",\"bc\"]}", &gen);
  assert_int_equal(gen.n_prompts, 2);
  assert_string_equal(gen.prompt[1].text, "bc");
  weft_gen_close(&gen);
  parse(WEFT_OPENAI_COMPLETIONS, "{\"prompt\":[1,2,2147483647]}", &gen);
  assert_int_equal(gen.n_prompts, 1);
  assert_int_equal(gen.prompt[0].n_tokens, 3);
  assert_int_equal(gen.prompt[0].tokens[2], INT32_MAX);
  weft_gen_close(&gen);
  parse(WEFT_OPENAI_COMPLETIONS, "{\"prompt\":[[1,2],[3]],\"top_k\":-1,\"logprobs\":0}", &gen);
  assert_int_equal(gen.n_prompts, 2);
  assert_int_equal(gen.prompt[1].tokens[0], 3);
  assert_int_equal(gen.params.sampling.top_k, 0);
  assert_true(gen.params.sampling.logprobs && gen.params.sampling.n_top_logprobs == 0);
  weft_gen_close(&gen);
}

static void refused_memory_is_an_error(void **state) {
  (void)state;
  for (uint64_t n = 1;; n++) {
    weft_gen gen;
    weft_refusal why = {0};
    (void)weft_memory_fail_at(n);
    weft_status status = weft_openai_parse_chat(full, sizeof full - 1, &limits, &gen, &why);
    (void)weft_memory_fail_at(0);
    if (status == WEFT_OK) {
      assert_true(n > 4);
      weft_gen_close(&gen);
      break;
    }
    assert_int_equal(why.http, 503);
  }
}

static void check_text(weft_text *text, const char *want) {
  assert_int_equal(weft_text_status(text), WEFT_OK);
  assert_string_equal(text->bytes, want);
  weft_text_free(text);
}

static void json_is_always_valid(void **state) {
  weft_text out = {0};
  (void)state;
  weft_json_string(&out, "a\"\\\n\r\t\x01\x7F\xC3\xA9\xF0\x9F\x98\x80\xFF\xC3", 16);
  check_text(&out, "\"a\\\"\\\\\\n\\r\\t\\u0001\\u007f\xC3\xA9\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD\"");
  weft_json_string(&out, NULL, 0);
  check_text(&out, "\"\"");
  weft_json_real(&out, 0.5);
  weft_text_puts(&out, ",");
  weft_json_real(&out, 0.0 / 0.0);
  weft_text_puts(&out, ",");
  weft_json_real(&out, 1e300 * 1e300);
  check_text(&out, "0.5,null,null");
  weft_json_ids(&out, (const int32_t[]){1, -2, INT32_MAX}, 3);
  weft_json_ids(&out, NULL, 0);
  check_text(&out, "[1,-2,2147483647][]");
  weft_sse_begin(&out, NULL);
  weft_text_puts(&out, "{}");
  weft_sse_end(&out);
  weft_sse_begin(&out, "replace");
  weft_text_puts(&out, "{}");
  weft_sse_end(&out);
  weft_sse_done(&out);
  check_text(&out, "data: {}\n\nevent: replace\ndata: {}\n\ndata: [DONE]\n\n");
}

static void refusals_have_one_shape(void **state) {
  static const struct {
    int status, http;
    const char *type;
  } rows[] = {{WEFT_E_INVALID, 400, "invalid_request_error"},
              {WEFT_E_UNSUPPORTED, 400, "invalid_request_error"},
              {WEFT_E_TOO_LARGE, 400, "invalid_request_error"},
              {WEFT_E_FORMAT, 400, "invalid_request_error"},
              {WEFT_E_LIMIT, 400, "invalid_request_error"},
              {WEFT_E_NOT_FOUND, 404, "not_found_error"},
              {WEFT_FULL, 429, "rate_limit_error"},
              {WEFT_RATE_LIMIT, 429, "tokens"},
              {WEFT_E_NO_MEMORY, 503, "unavailable_error"},
              {WEFT_E_DEVICE, 500, "server_error"}};
  weft_refusal why = {0};
  weft_text out = {0};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(weft_refuse_status(&why, rows[i].status, "a \"line\"", false), WEFT_E_INVALID);
    assert_int_equal(why.http, rows[i].http);
    weft_refusal_json(&why, &out);
    json_t *root = json_loads(out.bytes, 0, NULL);
    json_t *error = json_object_get(root, "error");
    const char *says = rows[i].status == WEFT_E_TOO_LARGE ? "prompt is too long: a \"line\"" : "a \"line\"";
    assert_string_equal(json_string_value(json_object_get(error, "message")), says);
    assert_string_equal(json_string_value(json_object_get(error, "type")), rows[i].type);
    assert_true(json_is_string(json_object_get(error, "code")));
    json_decref(root);
    weft_text_free(&out);
  }
  (void)weft_refuse_status(&why, WEFT_FULL, "", true);
  assert_int_equal(why.http, 503);
  (void)weft_refuse(&why, 405, NULL, "field", "%s", "x");
  weft_refusal_json(&why, &out);
  check_text(&out,
             "{\"error\":{\"message\":\"x\",\"type\":\"invalid_request_error\",\"param\":\"field\","
             "\"code\":null}}");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field_lands),          cmocka_unit_test(what_is_left_out_is_neutral),
      cmocka_unit_test(prompts_have_four_shapes),   cmocka_unit_test(options_and_fields_have_the_same_bounds),
      cmocka_unit_test(refused_memory_is_an_error), cmocka_unit_test(json_is_always_valid),
      cmocka_unit_test(refusals_have_one_shape),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
