/* SPDX-License-Identifier: MIT */
/* Bodies of the Ollama dialect to weft_gen. */
#include "api/dialects/ollama.h"

#include <stdio.h>
#include <string.h>

#include "api/dialects/turns.h"

#define AT(member) offsetof(weft_gen, params.member)

/* ---- options ---- */

/* -1 and -2: as long as the context lasts. */
static weft_status read_num_predict(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  json_int_t n = json_integer_value(value);
  if (!json_is_integer(value) || n < -2 || n == 0 || n > UINT32_MAX) {
    return field_wrong(why, field, "a whole number from 1, or -1: as long as the context lasts");
  }
  gen->params.max_tokens = n < 0 ? UINT32_MAX : (uint32_t)n;
  return WEFT_OK;
}

/* Negative: a fresh one. */
static weft_status read_seed(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_integer(value)) return field_wrong(why, field, "a whole number of at most 63 bits");
  gen->params.has_seed = json_integer_value(value) >= 0;
  gen->params.sampling.seed = (uint64_t)json_integer_value(value);
  return WEFT_OK;
}

static weft_status read_newline_penalty(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  (void)gen;
  if (json_is_true(value)) return WEFT_OK;
  return weft_refuse(why, 400, "unsupported", field, "%s: penalties are of all tokens", field);
}

static const field_row option_fields[] = {
    {.name = "num_predict", .kind = FIELD_READ, .read = read_num_predict},
    {.name = "temperature", .kind = FIELD_REAL, .at = AT(sampling.temperature), .range = {WEFT_RANGE_TEMPERATURE}},
    {.name = "top_k", .kind = FIELD_I32, .at = AT(sampling.top_k), .range = {WEFT_RANGE_TOP_K}},
    {.name = "top_p", .kind = FIELD_REAL, .at = AT(sampling.top_p), .range = {WEFT_RANGE_TOP_P}},
    {.name = "min_p", .kind = FIELD_REAL, .at = AT(sampling.min_p), .range = {WEFT_RANGE_MIN_P}},
    {.name = "seed", .kind = FIELD_READ, .read = read_seed},
    {.name = "stop", .kind = FIELD_READ, .read = weft_openai_stop},
    {.name = "repeat_penalty",
     .kind = FIELD_REAL,
     .at = AT(sampling.repetition_penalty),
     .range = {WEFT_RANGE_REPETITION_PENALTY}},
    {.name = "presence_penalty",
     .kind = FIELD_REAL,
     .at = AT(sampling.presence_penalty),
     .range = {WEFT_RANGE_PRESENCE_PENALTY}},
    {.name = "frequency_penalty",
     .kind = FIELD_REAL,
     .at = AT(sampling.frequency_penalty),
     .range = {WEFT_RANGE_FREQUENCY_PENALTY}},
    {.name = "repeat_last_n", .kind = FIELD_LATER},
    {.name = "penalize_newline", .kind = FIELD_READ, .read = read_newline_penalty},
    {.name = "typical_p",
     .kind = FIELD_REFUSED,
     .nothing = 1,
     .instead = "typical sampling is not supported; 1 is off"},
    {.name = "tfs_z", .kind = FIELD_REFUSED, .nothing = 1, .instead = "tail-free sampling is not supported; 1 is off"},
    {.name = "mirostat", .kind = FIELD_REFUSED, .instead = "mirostat is not supported; 0 is off"},
    {.name = "embedding_only", .kind = FIELD_REFUSED, .instead = "embeddings are not made here"},
    {.name = "mirostat_tau", .kind = FIELD_KNOWN}, /* of mirostat */
    {.name = "mirostat_eta", .kind = FIELD_KNOWN},
    {.name = "num_ctx", .kind = FIELD_KNOWN}, /* the server's, for all: a prompt that is too long is refused, not cut */
    {.name = "num_keep", .kind = FIELD_KNOWN},
    {.name = "num_batch", .kind = FIELD_KNOWN}, /* the rest says how a model is loaded, which the server decided */
    {.name = "num_gpu", .kind = FIELD_KNOWN},
    {.name = "main_gpu", .kind = FIELD_KNOWN},
    {.name = "num_thread", .kind = FIELD_KNOWN},
    {.name = "numa", .kind = FIELD_KNOWN},
    {.name = "low_vram", .kind = FIELD_KNOWN},
    {.name = "f16_kv", .kind = FIELD_KNOWN},
    {.name = "logits_all", .kind = FIELD_KNOWN},
    {.name = "vocab_only", .kind = FIELD_KNOWN},
    {.name = "use_mmap", .kind = FIELD_KNOWN},
    {.name = "use_mlock", .kind = FIELD_KNOWN},
};

/* Penalties here look at the whole text: a window of the last tokens is said to be missing where it would matter. */
static weft_status read_window(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  weft_sampling *s = &gen->params.sampling;
  bool penalties = s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
  json_int_t n = json_integer_value(value);
  if (!json_is_integer(value) || n < -1) return field_wrong(why, field, "a whole number from -1");
  if (n > 0 && penalties) {
    return weft_refuse(why, 400, "unsupported", field,
                       "%s: penalties look at the whole text: -1 says so, 0 turns them off", field);
  }
  if (n != 0) return WEFT_OK;
  s->repetition_penalty = 1.0f;
  s->presence_penalty = s->frequency_penalty = 0.0f;
  return WEFT_OK;
}

static weft_status read_options(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const json_t *window = field_of(value, "repeat_last_n");
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  weft_status status = fields_read(gen, option_fields, FIELDS_COUNT(option_fields), value, "options.", why);
  if (status != WEFT_OK || window == NULL) return status;
  return read_window(gen, window, "options.repeat_last_n", why);
}

/* ---- fields of both ---- */

/* "json", or a JSON schema. */
static weft_status read_format(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *word = json_string_value(value);
  if (word != NULL && word[0] == 0) return WEFT_OK;
  if (word != NULL && strcmp(word, "json") == 0) {
    return weft_openai_set_format(gen, field, WEFT_FORMAT_JSON_OBJECT, NULL, why);
  }
  if (!json_is_object(value)) return field_wrong(why, field, "\"json\" or a JSON schema");
  return weft_openai_set_format(gen, field, WEFT_FORMAT_JSON_SCHEMA, value, why);
}

static weft_status read_think(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_boolean(value) && !json_is_string(value)) return field_wrong(why, field, "true, false or how hard");
  gen->prompt->thinking = !json_is_false(value);
  return json_is_string(value) ? weft_dialect_effort(gen, value, field, why) : WEFT_OK;
}

#define COMMON_FIELDS                                                                                      \
  {.name = "model", .kind = FIELD_TEXT, .at = AT(model)},                                                  \
      {.name = "stream", .kind = FIELD_BOOL, .at = offsetof(weft_gen, stream)},                            \
      {.name = "options", .kind = FIELD_READ, .read = read_options},                                       \
      {.name = "format", .kind = FIELD_READ, .read = read_format},                                         \
      {.name = "think", .kind = FIELD_READ, .read = read_think},                                           \
      {.name = "logprobs", .kind = FIELD_BOOL, .at = AT(sampling.logprobs)},                               \
      {.name = "top_logprobs",                                                                             \
       .kind = FIELD_U32,                                                                                  \
       .at = AT(sampling.n_top_logprobs),                                                                  \
       .range = {WEFT_RANGE_TOP_LOGPROBS}},                                                                \
      {.name = "keep_alive", .kind = FIELD_KNOWN}, /* models stay */                                       \
      {.name = "truncate", .kind = FIELD_KNOWN},   /* a prompt that is too long is refused, and not cut */ \
  {                                                                                                        \
    .name = "shift", .kind = FIELD_KNOWN                                                                   \
  } /* an answer ends where the context does */

static weft_status check_common(weft_gen *gen, weft_refusal *why) {
  if (field_of(gen->json, "stream") == NULL) gen->stream = true;
  if (gen->params.sampling.n_top_logprobs == 0 || gen->params.sampling.logprobs) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", "top_logprobs", "top_logprobs needs \"logprobs\": true");
}

/* ---- chat ---- */

static const field_row chat_fields[] = {
    COMMON_FIELDS,
    {.name = "messages", .kind = FIELD_LATER},
    {.name = "tools", .kind = FIELD_LATER},
    WEFT_DIALECT_FIELDS,
};

static const field_row message_fields[] = {
    {.name = "role", .kind = FIELD_LATER},
    {.name = "content", .kind = FIELD_LATER},
    {.name = "thinking", .kind = FIELD_LATER},
    {.name = "images", .kind = FIELD_REFUSED, .instead = "only text is read"},
    {.name = "tool_calls", .kind = FIELD_LATER},
    {.name = "tool_name", .kind = FIELD_LATER},
    {.name = "tool_call_id", .kind = FIELD_LATER},
};

/* Calls have arguments that are objects, where OpenAI's have them as text. */
static weft_status read_calls(turn_list *list, const json_t *calls, size_t message, weft_refusal *why) {
  size_t i;
  json_t *call;
  char field[96];
  (void)snprintf(field, sizeof field, "messages[%zu].tool_calls", message);
  if (calls != NULL && !json_is_array(calls)) return field_wrong(why, field, "a list of calls");
  json_array_foreach((json_t *)calls, i, call) {
    const json_t *function = json_object_get(call, "function"), *arguments = field_of(function, "arguments");
    const char *text = "{}";
    (void)snprintf(field, sizeof field, "messages[%zu].tool_calls[%zu].function", message, i);
    if (!json_is_object(function) || (arguments != NULL && !json_is_object(arguments))) {
      return field_wrong(why, field, "an object with a name and arguments, which are an object");
    }
    weft_status status = arguments == NULL ? WEFT_OK : field_json(list->gen, arguments, &text, why);
    const char *id = json_string_value(field_of(call, "id"));
    if (status == WEFT_OK) status = turns_add_call(list, id, json_object_get(function, "name"), text, field, why);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static const char *role_of(const json_t *message) {
  static const char *const roles[] = {"system", "user", "assistant", "tool"};
  const char *role = json_string_value(json_object_get(message, "role"));
  for (size_t i = 0; i < FIELDS_COUNT(roles) && role != NULL; i++) {
    if (strcmp(role, roles[i]) == 0) return role;
  }
  return NULL;
}

/* A member of a message that is a string; NULL where it is left out. */
static weft_status read_string(const json_t *message, const char *name, size_t i, const char **out, weft_refusal *why) {
  const json_t *value = field_of(message, name);
  char field[64];
  (void)snprintf(field, sizeof field, "messages[%zu].%s", i, name);
  *out = json_string_value(value);
  return value == NULL || *out != NULL ? WEFT_OK : field_wrong(why, field, "a string");
}

static weft_status read_message(turn_list *list, const json_t *message, size_t i, weft_refusal *why) {
  char field[64], prefix[64];
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  (void)snprintf(prefix, sizeof prefix, "messages[%zu].", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  weft_status status = fields_read(list->gen, message_fields, FIELDS_COUNT(message_fields), message, prefix, why);
  if (status != WEFT_OK) return status;
  const json_t *content = field_of(message, "content"), *calls = field_of(message, "tool_calls");
  const char *role = role_of(message);
  (void)snprintf(field, sizeof field, "messages[%zu].%s", i, role != NULL ? "content" : "role");
  if (role == NULL) return field_wrong(why, field, "system, user, assistant or tool");
  if (content != NULL && !json_is_string(content)) return field_wrong(why, field, "a string");
  status = turns_add(list, role, "messages", why);
  if (status != WEFT_OK) return status;
  weft_chat_turn *turn = &list->turn[list->n - 1];
  if (content != NULL) turn->content = json_string_value(content);
  status = read_string(message, "thinking", i, &turn->thinking, why);
  if (status == WEFT_OK) status = read_string(message, "tool_call_id", i, &turn->call_id, why);
  if (status != WEFT_OK) return status;
  const json_t *name = field_of(message, "tool_name");
  (void)snprintf(field, sizeof field, "messages[%zu].tool_name", i);
  if (name != NULL) status = weft_openai_name(name, field, &turn->name, why);
  if (status != WEFT_OK) return status;
  if (json_array_size(calls) > 0 && strcmp(role, "assistant") != 0) {
    return field_wrong(why, "tool_calls", "in a message of the assistant");
  }
  return read_calls(list, calls, i, why);
}

static weft_status read_messages(weft_gen *gen, weft_refusal *why) {
  const json_t *messages = field_of(gen->json, "messages");
  turn_list list = {.gen = gen};
  if (messages != NULL && !json_is_array(messages)) return field_wrong(why, "messages", "a list of messages");
  gen->n_prompts = json_array_size(messages) > 0;
  for (size_t i = 0; i < json_array_size(messages); i++) {
    weft_status status = read_message(&list, json_array_get(messages, i), i, why);
    if (status != WEFT_OK) return status;
  }
  turns_finish(&list);
  return weft_openai_tools(gen, field_of(gen->json, "tools"), gen->prompt, why);
}

static weft_status read_chat(weft_gen *gen, weft_refusal *why) {
  weft_status status = check_common(gen, why);
  return status == WEFT_OK ? read_messages(gen, why) : status;
}

weft_status weft_ollama_parse_chat(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                   weft_refusal *why) {
  return weft_dialect_open(body, n, limits, chat_fields, FIELDS_COUNT(chat_fields), read_chat, gen, why);
}

/* ---- generate ---- */

static const field_row generate_fields[] = {
    COMMON_FIELDS,
    {.name = "prompt", .kind = FIELD_LATER},
    {.name = "system", .kind = FIELD_LATER},
    {.name = "raw", .kind = FIELD_LATER},
    {.name = "suffix", .kind = FIELD_REFUSED, .instead = "filling in before a suffix is not supported"},
    {.name = "images", .kind = FIELD_REFUSED, .instead = "only text is read"},
    {.name = "template", .kind = FIELD_REFUSED, .instead = "the template is the model's: send raw, or messages"},
    {.name = "context", .kind = FIELD_REFUSED, .instead = "send the conversation to /api/chat"},
    {.name = "width", .kind = FIELD_REFUSED, .instead = "no images are made here"},
    {.name = "height", .kind = FIELD_REFUSED, .instead = "no images are made here"},
    {.name = "steps", .kind = FIELD_REFUSED, .instead = "no images are made here; diffusion.steps is of canvases"},
    WEFT_DIALECT_FIELDS,
};

/* A raw prompt is what the template would have made: its control tokens are tokens. Another one is a turn of the
 * user. */
static weft_status read_prompt(weft_gen *gen, weft_refusal *why) {
  const json_t *prompt = field_of(gen->json, "prompt"), *system = field_of(gen->json, "system"),
               *raw = field_of(gen->json, "raw");
  if (prompt != NULL && !json_is_string(prompt)) return field_wrong(why, "prompt", "a string");
  if (system != NULL && !json_is_string(system)) return field_wrong(why, "system", "a string");
  if (raw != NULL && !json_is_boolean(raw)) return field_wrong(why, "raw", "true or false");
  gen->n_prompts = json_string_length(prompt) > 0;
  if (gen->n_prompts == 0) return WEFT_OK;
  bool has_system = json_string_length(system) > 0;
  if (json_is_true(raw)) {
    if (has_system) return weft_refuse(why, 400, "invalid_value", "system", "system: a raw prompt holds it already");
    if (gen->prompt->thinking) {
      return weft_refuse(why, 400, "invalid_value", "think",
                         "think: a raw prompt says itself whether the model thinks");
    }
    gen->prompt->text = json_string_value(prompt);
    gen->prompt->n_text = json_string_length(prompt);
    gen->prompt->control_tokens = true;
    return WEFT_OK;
  }
  weft_chat_turn *turns = weft_gen_alloc(gen, 2, sizeof *turns);
  if (turns == NULL) return field_no_memory(why);
  turns[0] = (weft_chat_turn){.role = "system", .content = json_string_value(system)};
  turns[has_system] = (weft_chat_turn){.role = "user", .content = json_string_value(prompt)};
  gen->prompt->turns = turns;
  gen->prompt->n_turns = 1u + has_system;
  return WEFT_OK;
}

static weft_status read_generate(weft_gen *gen, weft_refusal *why) {
  weft_status status = check_common(gen, why);
  return status == WEFT_OK ? read_prompt(gen, why) : status;
}

weft_status weft_ollama_parse_generate(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                       weft_refusal *why) {
  return weft_dialect_open(body, n, limits, generate_fields, FIELDS_COUNT(generate_fields), read_generate, gen, why);
}
