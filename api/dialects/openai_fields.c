/* SPDX-License-Identifier: MIT */
#include "api/dialects/field_tables.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "api/dialects/dialect.h"

#define AT(field) offsetof(weft_gen, params.field)

/* ---- readers ---- */

/* {"effort","enabled","max_tokens"}, as routers have it. */
static weft_status read_reasoning(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const json_t *effort = field_of(value, "effort"), *enabled = field_of(value, "enabled");
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  if (json_is_boolean(enabled)) gen->may_think = json_is_true(enabled);
  return effort == NULL ? WEFT_OK : weft_dialect_think_so(gen, effort, "reasoning.effort", why);
}

/* true or false; or an object whose type says so, as Anthropic and others have it. */
static weft_status read_thinking(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (json_is_object(value)) return weft_dialect_thinking(gen, value, field, why);
  if (!json_is_boolean(value)) return field_wrong(why, field, "true or false");
  gen->prompt->thinking = json_is_true(value);
  return WEFT_OK;
}

static weft_status read_template_words(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  (void)gen;
  return json_is_object(value) ? WEFT_OK : field_wrong(why, field, "an object");
}

/* Off, in the words of the servers that have it. */
static weft_status read_stray_mode(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  (void)gen;
  bool text =
      json_is_array(value) && json_array_size(value) == 1 &&
      strcmp("text", json_is_string(json_array_get(value, 0)) ? json_string_value(json_array_get(value, 0)) : "") == 0;
  if (text || (json_is_array(value) && json_array_size(value) == 0)) return WEFT_OK;
  return weft_refuse(why, 400, "unsupported", field, "%s: only text is written: [\"text\"] says so", field);
}

/* ---- rows ---- */

#define NUMBER(field, type, words, place, ...)                                                    \
  {                                                                                               \
    .name = field, .kind = FIELD_##type, .what = words, .at = AT(place), .range = { __VA_ARGS__ } \
  }
#define LATER(field, words)  FIELD_ROW(field, LATER, words)
#define MET(field, words)    FIELD_ROW(field, MET, words)
#define PASSED(field, words) FIELD_ROW(field, PASSED, words)
#define REFUSED(field, words, none) \
  { .name = field, .kind = FIELD_REFUSED, .what = words, .nothing = none }

/* clang-format off */
#define BOTH_READ \
  {.name = "model", .kind = FIELD_TEXT, .what = "which model answers; NAME:diffusion and NAME:autoregressive say how", \
   .at = AT(model)}, \
  NUMBER("temperature", REAL, "sampling", sampling.temperature, WEFT_RANGE_TEMPERATURE), \
  NUMBER("top_p", REAL, "sampling", sampling.top_p, WEFT_RANGE_TOP_P), \
  WEFT_DIALECT_TOP_K, \
  NUMBER("min_p", REAL, "sampling", sampling.min_p, WEFT_RANGE_MIN_P), \
  NUMBER("repetition_penalty", REAL, "sampling", sampling.repetition_penalty, WEFT_RANGE_REPETITION_PENALTY), \
  NUMBER("repeat_penalty", REAL, "repetition_penalty, as llama-server calls it", sampling.repetition_penalty, \
         WEFT_RANGE_REPETITION_PENALTY), \
  {.name = "repeat_last_n", .kind = FIELD_READ, .what = "penalties look at so many of the last tokens; -1: at all; " \
   "0: off", .read = weft_dialect_window}, \
  NUMBER("presence_penalty", REAL, "sampling", sampling.presence_penalty, WEFT_RANGE_PRESENCE_PENALTY), \
  NUMBER("frequency_penalty", REAL, "sampling", sampling.frequency_penalty, WEFT_RANGE_FREQUENCY_PENALTY), \
  LATER("logit_bias", "sampling: an object from token ids to numbers"), \
  LATER("max_tokens", "longest answer; -1: no limit"), \
  LATER("max_completion_tokens", "the newer name of max_tokens, which wins"), \
  LATER("n_predict", "max_tokens, as llama-server calls it"), \
  LATER("min_tokens", "the answer does not end before so many tokens"), \
  {.name = "ignore_eos", .kind = FIELD_BOOL, .what = "the model's ends do not end the answer", .at = AT(ignore_eos)}, \
  {.name = "seed", .kind = FIELD_SEED, .what = "equal seeds give equal answers"}, \
  {.name = "random_seed", .kind = FIELD_SEED, .what = "seed, as Mistral's API calls it"}, \
  {.name = "speculative_config", .kind = FIELD_READ, .what = WEFT_DIALECT_DRAFTS, .read = weft_dialect_drafts}, \
  {.name = "timeout_ms", .kind = FIELD_U32, .what = "the request ends after so long", .at = AT(timeout_ms), \
   .range = {0, 1, UINT32_MAX, false}}, \
  LATER("stop", "strings that end the answer"), \
  LATER("stop_token_ids", "tokens that end the answer"), \
  LATER("include_stop_str_in_output", "the stop string is part of the text"), \
  LATER("bad_words", "words that the answer does not have"), \
  LATER("allowed_token_ids", "the only tokens that the answer may have"), \
  LATER("n", "answers to each prompt"), \
  LATER("best_of", "answers that are made, of which the n most likely ones are given; only in completions"), \
  LATER("logprobs", "logprobs of the answer's tokens"), \
  LATER("prompt_logprobs", "logprobs of the prompt's tokens, and of so many likely ones; not with stream"), \
  LATER("echo", "the prompt in front of the answer; only in completions"), \
  LATER("stream", "events in place of one body"), \
  LATER("stream_options", "include_usage"), \
  LATER("stream_canvas", "an event after every denoise step; `\"tokens\"`: with every position in it"), \
  LATER("return_token_ids", "token ids beside the text"), \
  LATER("skip_special_tokens", "false: print control tokens"), \
  LATER("response_format", "format of the answer"), \
  LATER("structured_outputs", "format of the answer"), \
  LATER("guided_json", "format of the answer"), \
  LATER("guided_regex", "format of the answer"), \
  LATER("guided_choice", "format of the answer"), \
  LATER("guided_grammar", "format of the answer"), \
  LATER("json_schema", "format of the answer"), \
  LATER("grammar", "format of the answer"), \
  LATER("truncate_prompt_tokens", "keep so many of the prompt's last tokens"), \
  LATER("cache_salt", "only equal salts share cached prefixes"), \
  LATER("priority", "lower starts first, among requests of the tenant"), \
  LATER("mode", "autoregressive, diffusion or auto"), \
  LATER("diffusion", "how a canvas is denoised")

#define BOTH_NOT_READ \
  MET("user", "who asks: no answer depends on it"), \
  MET("safety_identifier", "who asks: no answer depends on it"), \
  MET("metadata", "for the client's own lists"), \
  MET("request_id", "X-Request-Id is the id"), \
  MET("store", "nothing is stored, and nothing is asked for again"), \
  MET("service_tier", "tiers are the operator's (api keys)"), \
  MET("prompt_cache_key", "equal prefixes are found by themselves"), \
  MET("prompt_cache_retention", "how long prefixes stay is the server's"), \
  MET("cache_prompt", "every prefix is cached"), \
  MET("cache_control", "every prefix is cached"), \
  PASSED("prediction", "a guess at the answer, to write it faster"), \
  PASSED("id_slot", "slots are the scheduler's"), \
  PASSED("n_keep", "a prompt that is too long is refused, and not cut"), \
  PASSED("n_discard", "a prompt that is too long is refused, and not cut"), \
  PASSED("timings_per_token", "usage has counts; metrics have times"), \
  PASSED("return_progress", "a stream begins with the answer"), \
  PASSED("guided_decoding_backend", "there is one"), \
  PASSED("data_parallel_rank", "the scheduler chooses the replica"), \
  PASSED("mirostat_tau", "of mirostat"), \
  PASSED("mirostat_eta", "of mirostat"), \
  PASSED("dry_base", "of dry_multiplier"), \
  PASSED("dry_allowed_length", "of dry_multiplier"), \
  PASSED("dry_penalty_last_n", "of dry_multiplier"), \
  PASSED("dry_sequence_breakers", "of dry_multiplier"), \
  PASSED("xtc_threshold", "of xtc_probability"), \
  PASSED("dynatemp_exponent", "of dynatemp_range"), \
  PASSED("early_stopping", "of beam search"), \
  REFUSED("use_beam_search", "beam search is not supported", NULL), \
  REFUSED("length_penalty", "beam search is not supported; 1 is off", "1"), \
  REFUSED("logits_processors", "processors of logits are not supported", NULL), \
  REFUSED("vllm_xargs", "processors of logits are not supported", NULL), \
  REFUSED("lora", "adapters are not supported", NULL), \
  REFUSED("mirostat", "mirostat is not supported; 0 is off", NULL), \
  REFUSED("typical_p", "typical sampling is not supported; 1 is off", "1"), \
  REFUSED("tfs_z", "tail-free sampling is not supported; 1 is off", "1"), \
  REFUSED("top_a", "top-a sampling is not supported; 0 is off", NULL), \
  REFUSED("top_n_sigma", "top-n-sigma sampling is not supported; -1 is off", "-1 0"), \
  REFUSED("dry_multiplier", "DRY sampling is not supported; 0 is off", NULL), \
  REFUSED("xtc_probability", "XTC sampling is not supported; 0 is off", NULL), \
  REFUSED("dynatemp_range", "a temperature that moves is not supported; 0 is off", NULL), \
  REFUSED("samplers", "the order of samplers is fixed: leave it out", NULL), \
  REFUSED("min_keep", "cuts keep what they keep; 0 is off", "0 1"), \
  REFUSED("n_probs", "logprobs and top_logprobs ask for them; 0 is off", NULL), \
  REFUSED("post_sampling_probs", "logprobs are those before the cuts", NULL), \
  REFUSED("n_indent", "answers are not cut by their indent; 0 is off", NULL), \
  REFUSED("t_max_predict_ms", "timeout_ms ends a request; 0 is off", "0 -1"), \
  REFUSED("response_fields", "answers have all of their fields", NULL), \
  REFUSED("grammar_lazy", "grammars hold from the first token", NULL), \
  REFUSED("grammar_triggers", "grammars hold from the first token", NULL), \
  REFUSED("guided_whitespace_pattern", "blanks between values are fixed", NULL), \
  REFUSED("structural_tag", "response_format and tools say what is held", NULL), \
  REFUSED("spaces_between_special_tokens", "tokens are printed as they are", "true"), \
  REFUSED("return_tokens_as_token_ids", "return_token_ids gives them beside the text", NULL), \
  REFUSED("detokenize", "answers are text", "true"), \
  REFUSED("prompt_embeds", "prompts are text or token ids", NULL), \
  REFUSED("kv_transfer_params", "keys and values stay on this server", NULL), \
  MET("stream_reasoning", "thinking is streamed as it comes"), \
  REFUSED("no_stop_trim", "include_stop_str_in_output keeps the stop string", NULL), \
  REFUSED("regex", "guided_regex holds an answer to an expression", NULL), \
  REFUSED("ebnf", "guided_grammar holds an answer to a grammar", NULL), \
  REFUSED("lora_path", "adapters are not supported", NULL), \
  REFUSED("return_hidden_states", "answers are text", NULL), \
  MET("session_params", "equal prefixes are found by themselves"), \
  {.name = "sampling_seed", .kind = FIELD_SEED, .what = "seed, as SGLang calls it"}, \
  REFUSED("repetition_detection", "answers end by their own ends, stop strings and max_tokens", NULL)

static const field_row chat_rows[] = {
    BOTH_READ,
    LATER("messages", "the conversation"),
    LATER("top_logprobs", "and of the most likely ones"),
    LATER("tools", "what the model may call"),
    LATER("tool_choice", "auto, none, required (or any), a tool, or allowed_tools"),
    LATER("parallel_tool_calls", "several calls in one answer"),
    {.name = "thinking", .kind = FIELD_READ, .what = "the model may think before it answers", .read = read_thinking},
    {.name = "enable_thinking", .kind = FIELD_READ, .what = "thinking, by another name", .read = read_thinking},
    {.name = "reasoning_effort", .kind = FIELD_READ,
     .what = "lets the model think unless none; the variable reasoning_effort of the chat template",
     .read = weft_dialect_think_so},
    {.name = "reasoning", .kind = FIELD_READ, .what = "its effort; enabled", .read = read_reasoning},
    {.name = "chat_template_kwargs", .kind = FIELD_READ, .what = "variables of the chat template",
     .read = read_template_words},
    LATER("add_generation_prompt", "false: the model's turn is not opened"),
    LATER("continue_final_message", "the answer goes on with the last message"),
    {.name = "modalities", .kind = FIELD_READ, .what = "text alone", .read = read_stray_mode},
    BOTH_NOT_READ,
    MET("parse_tool_calls", "calls are read from answers"),
    MET("chat_template_caps", "what the template can is seen in it"),
    PASSED("verbosity", "no model here knows of it"),
    PASSED("web_search_options", "nothing is searched here"),
    PASSED("mm_processor_kwargs", "of images and sounds, which are not read"),
    PASSED("moderation", "nothing is moderated here"),
    REFUSED("functions", "the newer names are tools and tool_choice: give the functions there", NULL),
    REFUSED("function_call", "the newer names are tools and tool_choice: give the choice there", "\"none\" \"auto\""),
    REFUSED("audio", "audio is not supported", NULL),
    REFUSED("chat_template", "the template is the model's, or the operator's (--chat-template)", NULL),
    REFUSED("documents", "send documents as messages, or as a variable by chat_template_kwargs", NULL),
    REFUSED("add_special_tokens", "the chat template writes them", NULL),
    REFUSED("thinking_token_budget", "thinking is not cut; max_tokens holds for it, too", "-1"),
    REFUSED("thinking_budget_tokens", "thinking is not cut; max_tokens holds for it, too", "-1"),
    REFUSED("reasoning_budget", "thinking is not cut; max_tokens holds for it, too", "-1"),
    REFUSED("separate_reasoning", "thinking is given as reasoning_content", "true"),
    REFUSED("include_reasoning", "thinking is given; thinking false asks for none", "true"),
    REFUSED("reasoning_format", "thinking is given as reasoning_content", "\"auto\" \"deepseek\""),
    REFUSED("safe_prompt", "no prompts are added here: send a system message", NULL),
    REFUSED("prompt_mode", "thinking or reasoning_effort say whether the model thinks", NULL),
};
const field_table openai_chat_fields = FIELD_TABLE("/v1/chat/completions", chat_rows);

static const field_row completions_rows[] = {
    BOTH_READ,
    LATER("prompt", "text or token ids, one prompt or several"),
    REFUSED("tools", "tools belong to /v1/chat/completions", NULL),
    BOTH_NOT_READ,
    REFUSED("continue_final_message", "a conversation is continued at /v1/chat/completions", NULL),
    REFUSED("suffix", "filling in before a suffix is not supported", NULL),
    REFUSED("add_special_tokens", "a prompt of token ids has those that it names", "true"),
    REFUSED("input_prefix", "filling in is not supported", NULL),
    REFUSED("input_suffix", "filling in is not supported", NULL),
    REFUSED("input_extra", "filling in is not supported", NULL),
};
const field_table openai_completions_fields = FIELD_TABLE("/v1/completions", completions_rows);
/* clang-format on */
