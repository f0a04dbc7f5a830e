/* SPDX-License-Identifier: MIT */
#include "api/dialects/openai_fields.h"

#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

enum { CHAT = WEFT_OPENAI_CHAT, PLAIN = WEFT_OPENAI_COMPLETIONS, BOTH = CHAT | PLAIN, NAMED_MAX = 64, NAME_BYTES = 64 };

typedef struct openai_field {
  const char *name, *type;
  unsigned kinds; /* weft_openai_kind: the endpoints that read it */
  const char *what;
} openai_field;

static const openai_field fields[] = {
    {"model", "string", BOTH, "which model answers"},
    {"messages", "list", CHAT, "the conversation"},
    {"prompt", "string or list", PLAIN, "text or token ids, one prompt or several"},
    {"temperature", "number", BOTH, "sampling"},
    {"top_p", "number", BOTH, "sampling"},
    {"top_k", "integer", BOTH, "sampling; -1 or 0: off"},
    {"min_p", "number", BOTH, "sampling"},
    {"repetition_penalty", "number", BOTH, "sampling"},
    {"presence_penalty", "number", BOTH, "sampling"},
    {"frequency_penalty", "number", BOTH, "sampling"},
    {"logit_bias", "object", BOTH, "sampling"},
    {"seed", "integer", BOTH, "equal seeds give equal answers"},
    {"max_tokens", "integer", BOTH, "longest answer"},
    {"max_completion_tokens", "integer", CHAT, "the newer name of max_tokens"},
    {"min_tokens", "integer", BOTH, "the answer does not end before so many tokens"},
    {"ignore_eos", "boolean", BOTH, "the model's ends do not end the answer"},
    {"stop", "string or list", BOTH, "strings that end the answer"},
    {"stop_token_ids", "list", BOTH, "tokens that end the answer"},
    {"include_stop_str_in_output", "boolean", BOTH, "the stop string is part of the text"},
    {"bad_words", "list", BOTH, "words that the answer does not have"},
    {"allowed_token_ids", "list", BOTH, "the only tokens that the answer may have"},
    {"n", "integer", BOTH, "answers to each prompt"},
    {"best_of", "integer", BOTH, "answers that are made, of which the n most likely ones are given"},
    {"logprobs", "boolean or integer", BOTH, "logprobs of the answer's tokens"},
    {"top_logprobs", "integer", CHAT, "and of the most likely ones"},
    {"prompt_logprobs", "integer", BOTH,
     "logprobs of the prompt's tokens, and of so many likely ones; not with stream"},
    {"echo", "boolean", BOTH, "the prompt in front of the answer; only in completions"},
    {"suffix", "string", PLAIN, "refused unless empty"},
    {"stream", "boolean", BOTH, "events in place of one body"},
    {"stream_options", "object", BOTH, "include_usage"},
    {"stream_canvas", "boolean", BOTH, "an event after every denoise step"},
    {"return_token_ids", "boolean", BOTH, "token ids beside the text"},
    {"skip_special_tokens", "boolean", BOTH, "false: print control tokens"},
    {"response_format", "object", BOTH, "format of the answer"},
    {"structured_outputs", "object", BOTH, "format of the answer"},
    {"guided_json", "schema", BOTH, "format of the answer"},
    {"guided_regex", "string", BOTH, "format of the answer"},
    {"guided_choice", "list", BOTH, "format of the answer"},
    {"guided_grammar", "string", BOTH, "format of the answer"},
    {"json_schema", "schema", BOTH, "format of the answer"},
    {"grammar", "string", BOTH, "format of the answer"},
    {"tools", "list", BOTH, "what the model may call; only in chat"},
    {"tool_choice", "string or object", BOTH, "whether and what it calls; only in chat"},
    {"parallel_tool_calls", "boolean", BOTH, "several calls in one answer; only in chat"},
    {"functions", "list", BOTH, "refused unless empty: tools is the newer name"},
    {"function_call", "string or object", BOTH, "refused unless none: tool_choice is the newer name"},
    {"thinking", "boolean", CHAT, "the model may think before it answers"},
    {"chat_template_kwargs", "object", CHAT, "variables of the chat template"},
    {"add_generation_prompt", "boolean", CHAT, "false: the model's turn is not opened"},
    {"continue_final_message", "boolean", CHAT, "the answer goes on with the last message"},
    {"truncate_prompt_tokens", "integer", BOTH, "keep so many of the prompt's last tokens"},
    {"cache_salt", "string", BOTH, "only equal salts share cached prefixes"},
    {"priority", "integer", BOTH, "lower starts first, among requests of the tenant"},
    {"timeout_ms", "integer", BOTH, "the request ends after so long"},
    {"mode", "string", BOTH, "autoregressive, diffusion or auto"},
    {"diffusion", "object", BOTH, "how a canvas is denoised"},
    {"use_beam_search", "boolean", BOTH, "refused unless false"},
    {"logits_processors", "list", BOTH, "refused unless empty"},
    {"audio", "object", CHAT, "refused"},
    {"user", "string", BOTH, "no effect"},
    {"safety_identifier", "string", BOTH, "no effect"},
    {"prompt_cache_key", "string", BOTH, "no effect: equal prefixes are found by themselves"},
    {"prompt_cache_retention", "string", BOTH, "no effect"},
    {"metadata", "object", BOTH, "no effect"},
    {"store", "boolean", BOTH, "no effect: nothing is stored"},
    {"service_tier", "string", BOTH, "no effect"},
    {"request_id", "string", BOTH, "no effect: X-Request-Id is the id"},
};

static bool is_known(weft_openai_kind kind, const char *name) {
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (strcmp(fields[i].name, name) == 0) return (fields[i].kinds & (unsigned)kind) != 0;
  }
  return false;
}

/* Names that the log has already; when there is no room for more, no more are told. */
static pthread_mutex_t named_lock = PTHREAD_MUTEX_INITIALIZER;
static char named[NAMED_MAX][NAME_BYTES];
static uint32_t n_named;

/* Whether this is the first time; cut names are one name. */
static bool is_news(const char *name) {
  char cut[NAME_BYTES] = {0};
  memcpy(cut, name, strnlen(name, NAME_BYTES - 1));
  (void)pthread_mutex_lock(&named_lock);
  bool news = n_named < NAMED_MAX;
  for (uint32_t i = 0; i < n_named && news; i++) news = memcmp(named[i], cut, NAME_BYTES) != 0;
  if (news) memcpy(named[n_named++], cut, NAME_BYTES);
  (void)pthread_mutex_unlock(&named_lock);
  return news;
}

weft_status weft_openai_check_fields(weft_openai_kind kind, const json_t *root, bool strict, weft_refusal *why) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)root, name, value) {
    if (json_is_null(value) || is_known(kind, name)) continue;
    if (strict) {
      return weft_refuse(why, 400, "unknown_field", name,
                         "%.64s: %s knows no such field, and this server ignores none (--strict-fields)", name,
                         kind == WEFT_OPENAI_CHAT ? "/v1/chat/completions" : "/v1/completions");
    }
    if (is_news(name))
      weft_log(WEFT_LOG_WARN,
               "a request has the unknown field '%.64s', which is ignored: --strict-fields refuses such "
               "requests; told once",
               name);
  }
  return WEFT_OK;
}
