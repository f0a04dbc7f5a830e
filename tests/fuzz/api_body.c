/* SPDX-License-Identifier: MIT */
/* Any bytes as the body of a request. The first byte chooses the endpoint. Either a request comes
 * out whose pieces can be read to their ends and whose numbers are in their ranges, or a refusal: a
 * 4xx with one line of valid UTF-8, as JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/json_tree.h"
#include "api/dialects/anthropic.h"
#include "api/dialects/ollama.h"
#include "api/dialects/responses.h"
#include "model/sampler.h"
#include "tests/support/fuzz_require.h"

static volatile size_t sink; /* what is read must not be optimised away */

static void read_text(const char *text) {
  size_t n = strlen(text);
  REQUIRE(weft_utf8_valid(text, n, NULL));
  sink += n;
}

static void read_name(const char *name) {
  read_text(name);
  REQUIRE(name[0] != 0 && strlen(name) <= 64);
}

static void read_prompt(const weft_prompt *p) {
  REQUIRE((p->turns != NULL) + (p->text != NULL) + (p->tokens != NULL) == 1);
  for (uint32_t i = 0; i < p->n_turns; i++) {
    read_text(p->turns[i].role);
    read_text(p->turns[i].content);
    for (uint32_t k = 0; k < p->turns[i].n_calls; k++) {
      const weft_tool_call *call = &p->turns[i].calls[k];
      read_name(call->name);
      if (call->id != NULL) read_text(call->id);
      if (call->arguments != NULL) read_text(call->arguments);
    }
    if (p->turns[i].call_id != NULL) read_text(p->turns[i].call_id);
    if (p->turns[i].name != NULL) read_name(p->turns[i].name);
    if (p->turns[i].thinking != NULL) read_text(p->turns[i].thinking);
  }
  for (uint32_t i = 0; i < p->n_tools; i++) {
    read_name(p->tools[i].name);
    if (p->tools[i].description != NULL) read_text(p->tools[i].description);
    if (p->tools[i].parameters != NULL) read_text(p->tools[i].parameters);
  }
  if (p->text != NULL) {
    read_text(p->text);
    REQUIRE(strlen(p->text) == p->n_text);
  }
  for (uint32_t i = 0; i < p->n_tokens; i++) REQUIRE(p->tokens[i] >= 0);
}

/* empty: Ollama has requests that ask for no answer. */
static void read_gen(const weft_gen *gen, bool empty) {
  const weft_generate_params *p = &gen->params;
  REQUIRE((gen->n_prompts >= 1 || empty) && gen->wanted.n_choices >= 1 &&
          gen->n_prompts * gen->wanted.n_choices <= WEFT_ANSWERS_MAX);
  for (uint32_t i = 0; i < gen->n_prompts; i++) read_prompt(&gen->prompt[i]);
  if (p->model != NULL) read_text(p->model);
  for (uint32_t i = 0; i < p->n_stop; i++) {
    read_text(p->stop[i]);
    REQUIRE(p->stop[i][0] != 0);
  }
  REQUIRE(p->sampling.n_bias <= WEFT_LOGIT_BIAS_MAX);
  for (uint32_t i = 0; i < p->sampling.n_bias; i++) {
    REQUIRE(p->sampling.bias[i].token >= 0 && fabsf(p->sampling.bias[i].bias) <= 100.0f);
  }
  REQUIRE(p->sampling.temperature <= 100.0f && p->sampling.top_p <= 1.0f && p->sampling.top_k >= -1 &&
          p->sampling.min_p >= 0.0f && p->sampling.min_p <= 1.0f);
  REQUIRE(p->sampling.repetition_penalty > 0.0f && fabsf(p->sampling.presence_penalty) <= 2.0f &&
          fabsf(p->sampling.frequency_penalty) <= 2.0f);
  REQUIRE(p->sampling.n_top_logprobs <= WEFT_TOP_LOGPROBS_MAX && p->entropy_bound.stability <= WEFT_STABILITY_MAX);
  REQUIRE(p->entropy_bound.max_steps <= 4096);
  REQUIRE(p->n_prompt_top <= WEFT_TOP_LOGPROBS_MAX && gen->wanted.n_prompt_logprobs <= p->n_prompt_top);
  REQUIRE(p->echo || !p->prompt_only);
  REQUIRE(!gen->wanted.prompt_logprobs || (p->prompt_logprobs && !gen->wanted.stream));
  REQUIRE(!(p->echo && p->sampling.logprobs) || p->prompt_logprobs);
}

static void read_refusal(const weft_refusal *why) {
  weft_text out = {0};
  REQUIRE(why->http >= 400 && why->http < 500);
  REQUIRE(why->message[0] != 0 && strchr(why->message, '\n') == NULL);
  weft_refusal_json(why, &out);
  json_t *root = json_loadb(out.bytes, out.n, 0, NULL);
  REQUIRE(json_is_string(json_object_get(json_object_get(root, "error"), "message")));
  json_decref(root);
  weft_text_free(&out);
}

/* Also with a conversation before it, and what is kept of both: it is JSON again. */
static weft_status parse_response(const char *body, size_t n, const weft_body_rules *limits, weft_gen *gen,
                                  weft_refusal *why) {
  static const char before[] = "{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"reasoning\"}";
  const weft_text items = {.bytes = (char *)(uintptr_t)before, .n = sizeof before - 1};
  weft_text kept = {0};
  weft_status status = weft_responses_parse(body, n, limits, gen, why);
  if (status != WEFT_OK) return status;
  weft_text_puts(&kept, "{");
  weft_responses_put_echo(gen, &kept);
  weft_text_puts(&kept, "\"items\":[");
  weft_responses_put_items(gen, &kept);
  weft_text_puts(&kept, "]}");
  json_t *root = weft_json_read(kept.bytes, kept.n, JSON_DECODE_ANY, NULL);
  REQUIRE(json_array_size(json_object_get(root, "items")) > 0);
  json_decref(root);
  weft_text_free(&kept);
  uint32_t n_turns = gen->prompt->n_turns;
  status = weft_responses_continue(gen, &items, limits, why);
  REQUIRE(status != WEFT_OK || gen->prompt->n_turns == n_turns + 1);
  return status;
}

/* By the letters A, B, .. of the committed inputs. */
static const weft_parser parsers[] = {
    weft_openai_parse_completions, weft_openai_parse_chat,     weft_anthropic_parse, weft_anthropic_parse_count,
    weft_ollama_parse_chat,        weft_ollama_parse_generate, parse_response};
enum { N_PARSERS = sizeof parsers / sizeof *parsers };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n == 0) return 0;
  weft_gen gen;
  weft_refusal why = {0};
  const weft_body_rules limits = {.json = weft_json_limits(8192)};
  /* a copy of its own length, so that reading past its end is seen */
  char *body = malloc(n);
  memcpy(body, data + 1, n - 1);
  weft_parser parse = parsers[(data[0] + 256u - 'A') % N_PARSERS];
  if (parse(body, n - 1, &limits, &gen, &why) == WEFT_OK) {
    memset(body, '#', n); /* nothing points into the body */
    read_gen(&gen, parse == weft_ollama_parse_chat || parse == weft_ollama_parse_generate);
    weft_gen_close(&gen);
  } else {
    read_refusal(&why);
  }
  free(body);
  return 0;
}
