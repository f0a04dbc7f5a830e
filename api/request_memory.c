/* SPDX-License-Identifier: MIT */
#include "api/request_memory.h"

#include "api/delta_logprobs.h"

static const uint64_t generation_bytes = 4096, besides_bytes_max = 2 << 20; /* fixed parts; of one that runs */

static uint64_t smaller_of(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

uint64_t weft_generation_bytes(const weft_served_model *m, const weft_generate_params *asked,
                               const weft_generation_size *size) {
  bool logprobs = asked->sampling.logprobs;
  uint64_t entries = logprobs ? 1 + (uint64_t)asked->sampling.n_top_logprobs : 0;
  uint64_t token_bytes = WEFT_TEXT_BYTES + entries * WEFT_JSON_BYTES;
  uint64_t n = generation_bytes + size->n_prompt * sizeof(int32_t) + size->format_bytes;
  uint64_t delta = size->delta_tokens_max;
  if (logprobs) delta = smaller_of(delta, delta_logprobs_tokens_max(asked->sampling.n_top_logprobs));
  n += delta * (token_bytes + entries * sizeof(weft_token_logprob));
  if (logprobs) n += delta * 2 * sizeof(uint32_t); /* where each token begins, how many likely ones it has */
  if (asked->echo) n += size->n_prompt * (WEFT_TEXT_BYTES + 2 * sizeof(uint32_t));
  if (asked->prompt_logprobs) {
    uint64_t part = smaller_of(size->n_prompt, delta_logprobs_tokens_max(asked->n_prompt_top));
    n += part * (1 + (uint64_t)asked->n_prompt_top) * (WEFT_JSON_BYTES + sizeof(weft_token_logprob));
    n += part * sizeof(uint32_t);
  }
  if (asked->collected) n += size->answer_max * token_bytes;
  /* the stream that is searched holds a token as it is, unfinished and printed with replacements */
  if (size->stop_bytes > 0) n += size->stop_bytes + 8 * (uint64_t)weft_tokenizer_longest(m->tokenizer);
  return n;
}

/* Of the longest answers of a model, collected: plain, and with all that can be asked besides. */
static uint64_t longest_request(const weft_served_model *m, bool all) {
  const weft_model_info *info = weft_model_get_info(m->model);
  const weft_generation_size size = {.n_prompt = 1, .answer_max = m->context - 1};
  weft_request_params params = {.n_tokens = 1, .asked = {.collected = true, .draft = m->draft}};
  if (all) {
    params.asked.sampling.logprobs = true;
    params.asked.sampling.n_top_logprobs = WEFT_TOP_LOGPROBS_MAX;
    params.asked.sampling.n_bias = WEFT_LOGIT_BIAS_MAX;
  }
  params.caller_bytes = weft_generation_bytes(m, &params.asked, &size);
  uint64_t n = weft_engine_request_bytes(&params, size.answer_max, 0);
  if (!all || info->canvas_length == 0) return n;
  params = (weft_request_params){
      .n_tokens = 1, .canvas = true, .asked = {.collected = true, .trace = true, .entropy_bound = m->entropy_bound}};
  params.caller_bytes = weft_generation_bytes(m, &params.asked, &size);
  uint64_t n_canvas = weft_engine_request_bytes(&params, size.answer_max, info->canvas_length);
  return n > n_canvas ? n : n_canvas;
}

/* Over all models. */
static uint64_t longest_of_all(const weft_runtime *rt, bool all) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    uint64_t n = longest_request(&rt->model[i], all);
    if (n > most) most = n;
  }
  return most;
}

uint64_t weft_request_memory_default(const weft_runtime *rt) {
  uint64_t plain = longest_of_all(rt, false), largest = longest_of_all(rt, true);
  uint64_t besides = largest - plain < besides_bytes_max ? largest - plain : besides_bytes_max;
  uint64_t n_running = (uint64_t)rt->n_replicas * rt->options.running, n_all = n_running + rt->options.queue;
  return n_all * plain + n_running * besides + 2 * largest;
}

void weft_request_memory_print(const weft_runtime *rt, weft_text *out) {
  const double mib = 1024.0 * 1024.0;
  weft_text_printf(
      out,
      "requests at most %.1f MiB of host memory, running or waiting: one of the longest context has %.2f MiB, "
      "with all that can be asked besides %.2f MiB%s\n",
      (double)rt->options.request_bytes / mib, (double)longest_of_all(rt, false) / mib,
      (double)longest_of_all(rt, true) / mib,
      rt->options.tenants > 1 ? "; a tenant holds at most what it leaves free" : "");
}
