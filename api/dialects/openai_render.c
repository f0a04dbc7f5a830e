/* SPDX-License-Identifier: MIT */
/* What a request would be computed from, without computing it: routers ask for the tokens of a prompt before they
 * choose who computes it. Answers have the members of vLLM's: one object for a conversation, a list of them, one for
 * each prompt, for completions.
 *
 * Law: token_ids are those that the same body sent for an answer is computed from, also where it is cut. */
#include <stdio.h>

#include "api/answer_limits.h"
#include "api/dialects/dialect.h"
#include "api/generation.h"
#include "api/json.h"

static void put_number(const char *name, double value, weft_text *out) {
  weft_text_printf(out, ",\"%s\":", name);
  weft_json_real(out, value);
}

static void put_flag(const char *name, bool value, weft_text *out) {
  weft_text_printf(out, ",\"%s\":%s", name, value ? "true" : "false");
}

static void put_stops(const weft_generate_params *p, weft_text *out) {
  weft_text_puts(out, ",\"stop\":[");
  for (uint32_t i = 0; i < p->n_stop; i++) {
    weft_text_puts(out, i > 0 ? "," : "");
    weft_json_words(out, p->stop[i]);
  }
  weft_text_puts(out, "],\"stop_token_ids\":");
  weft_json_ids(out, p->stop_tokens, p->n_stop_tokens);
}

/* What the body says; what it leaves to the model is left out. */
static void put_sampling(const weft_gen *gen, weft_text *out) {
  const weft_generate_params *p = &gen->params;
  const weft_sampling *s = &p->sampling;
  weft_text_printf(out, "{\"n\":%u", gen->wanted.n_given);
  if (s->temperature >= 0) put_number("temperature", (double)s->temperature, out);
  if (s->top_p >= 0) put_number("top_p", (double)s->top_p, out);
  if (s->top_k >= 0) weft_text_printf(out, ",\"top_k\":%d", s->top_k);
  put_number("min_p", (double)s->min_p, out);
  put_number("presence_penalty", (double)s->presence_penalty, out);
  put_number("frequency_penalty", (double)s->frequency_penalty, out);
  put_number("repetition_penalty", (double)s->repetition_penalty, out);
  if (p->has_seed) weft_text_printf(out, ",\"seed\":%llu", (unsigned long long)s->seed);
  if (p->max_tokens > 0 && p->max_tokens != UINT32_MAX) weft_text_printf(out, ",\"max_tokens\":%u", p->max_tokens);
  weft_text_printf(out, ",\"min_tokens\":%u", p->min_tokens);
  if (s->logprobs) weft_text_printf(out, ",\"logprobs\":%u", s->n_top_logprobs);
  if (gen->wanted.prompt_logprobs) weft_text_printf(out, ",\"prompt_logprobs\":%u", gen->wanted.n_prompt_logprobs);
  put_stops(p, out);
  put_flag("ignore_eos", p->ignore_eos, out);
  put_flag("skip_special_tokens", !p->with_special, out);
  put_flag("include_stop_str_in_output", p->keep_stop, out);
  weft_text_puts(out, "}");
}

static void put_request(const weft_gen *gen, const weft_served_model *model, const char *prefix, const char *id,
                        const weft_tokens *tokens, weft_text *out) {
  weft_text name = {0};
  weft_text_printf(&name, "%s%s", prefix, id);
  weft_text_puts(out, "{\"request_id\":");
  weft_json_words(out, weft_text_status(&name) == WEFT_OK ? name.bytes : id);
  weft_text_free(&name);
  weft_text_puts(out, ",\"token_ids\":");
  weft_json_ids(out, tokens->ids, tokens->n);
  weft_text_puts(out, ",\"features\":null,\"sampling_params\":");
  put_sampling(gen, out);
  weft_text_puts(out, ",\"model\":");
  weft_json_words(out, model->name);
  put_flag("stream", gen->wanted.stream, out);
  weft_text_puts(out, ",\"stream_options\":");
  weft_text_puts(out, gen->wanted.include_usage ? "{\"include_usage\":true}" : "null");
  weft_text_puts(out, ",\"cache_salt\":");
  if (gen->params.cache_salt != NULL) {
    weft_json_words(out, gen->params.cache_salt);
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_printf(out, ",\"priority\":%d,\"kv_transfer_params\":null,\"token_offsets\":null}", -gen->params.priority);
}

/* Refuses a prompt that no answer could be computed from, as asking for one does. */
static weft_status check_tokens(const weft_served_model *model, const weft_tokens *tokens, weft_refusal *why) {
  uint32_t n_vocab = weft_tokenizer_n_vocab(model->tokenizer);
  if (tokens->n > model->context) {
    char line[96];
    (void)snprintf(line, sizeof line, "it has %u tokens and the context is %u", tokens->n, model->context);
    return weft_refuse_status(why, WEFT_E_TOO_LARGE, line, false);
  }
  for (uint32_t i = 0; i < tokens->n; i++) {
    if (tokens->ids[i] >= 0 && (uint32_t)tokens->ids[i] < n_vocab) continue;
    return weft_refuse(why, 400, "invalid_value", "prompt", "token %u of the prompt is %d; the vocabulary has %u", i,
                       tokens->ids[i], n_vocab);
  }
  return WEFT_OK;
}

/* Appends the request of prompt number i. */
static weft_status render_prompt(const weft_server *s, const weft_gen *gen, uint32_t i, const char *prefix,
                                 const char *id, weft_text *out, weft_refusal *why) {
  uint32_t index;
  const weft_served_model *model = weft_runtime_model(s->runtime, gen->params.model, &index, NULL);
  weft_gen one = *gen;
  encoded_prompt encoded = {0};
  one.prompt = &gen->prompt[i];
  weft_status status = weft_dialect_encode(s, &one, &encoded, why); /* refuses an unknown model */
  if (status == WEFT_OK) {
    weft_tokens kept = encoded.tokens;
    bool canvas = generation_by_canvas(model, &gen->params);
    const uint32_t n_canvas = canvas ? weft_model_get_info(model->model)->canvas_length : 0;
    kept.n = answer_limits_prompt(&gen->params, kept.n, model->context, n_canvas);
    kept.ids += encoded.tokens.n - kept.n;
    status = check_tokens(model, &kept, why);
    if (status == WEFT_OK) put_request(gen, model, prefix, id, &kept, out);
  }
  prompt_close(&encoded);
  return status;
}

weft_status weft_openai_render(const weft_server *s, const weft_gen *gen, weft_openai_kind kind, const char *id,
                               weft_text *out, weft_refusal *why) {
  bool list = kind == WEFT_OPENAI_COMPLETIONS;
  weft_status status = WEFT_OK;
  weft_text_puts(out, list ? "[" : "");
  for (uint32_t i = 0; i < gen->n_prompts && status == WEFT_OK; i++) {
    weft_text_puts(out, i > 0 ? "," : "");
    status = render_prompt(s, gen, i, list ? "cmpl-" : "chatcmpl-", id, out, why);
  }
  weft_text_puts(out, list ? "]" : "");
  return status;
}

static void answer_render(weft_server *s, weft_exchange *x, weft_openai_kind kind) {
  weft_gen gen;
  weft_refusal why;
  weft_text body = {0};
  weft_parser parse = kind == WEFT_OPENAI_CHAT ? weft_openai_parse_chat : weft_openai_parse_completions;
  if (weft_dialect_read(s, x, parse, &gen) != WEFT_OK) return;
  if (weft_openai_render(s, &gen, kind, weft_exchange_id(x), &body, &why) == WEFT_OK) {
    weft_exchange_answer(x, 200, "application/json", &body);
  } else {
    weft_text_free(&body);
    weft_exchange_refuse(x, &why);
  }
  weft_gen_close(&gen);
}

void weft_handle_render_chat(weft_server *s, weft_exchange *x) {
  answer_render(s, x, WEFT_OPENAI_CHAT);
}

void weft_handle_render_completions(weft_server *s, weft_exchange *x) {
  answer_render(s, x, WEFT_OPENAI_COMPLETIONS);
}
