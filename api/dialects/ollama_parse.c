/* SPDX-License-Identifier: MIT */
/* Bodies of the Ollama dialect to weft_gen. */
#include "api/dialects/field_tables.h"
#include "api/dialects/ollama.h"

#include <stdio.h>
#include <string.h>

#include "api/dialects/places.h"
#include "api/dialects/tools.h"
#include "api/dialects/turns.h"
#include "api/dialects/unread.h"

#define AT(member) offsetof(weft_gen, params.member)

/* ---- options ---- */

/* What is not above 0 is no limit to Ollama: as long as the context lasts. */
static weft_status read_num_predict(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  json_int_t n = 0;
  if (!field_whole(value, &n) || n > UINT32_MAX) {
    return field_wrong(why, field, "a whole number from 1, or -1: as long as the context lasts");
  }
  gen->params.max_tokens = n <= 0 ? UINT32_MAX : (uint32_t)n;
  return WEFT_OK;
}

/* Negative: a fresh one. */
static weft_status read_seed(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  json_int_t seed = 0;
  if (!field_whole(value, &seed)) return field_wrong(why, field, "a whole number of at most 63 bits");
  gen->params.has_seed = seed >= 0;
  gen->params.sampling.seed = (uint64_t)seed;
  return WEFT_OK;
}

static const field_row option_rows[] = {
    {.name = "num_predict",
     .kind = FIELD_READ,
     .what = "longest answer; 0, -1 and -2: as long as the context lasts",
     .read = read_num_predict},
    {.name = "temperature",
     .kind = FIELD_REAL,
     .what = "sampling",
     .at = AT(sampling.temperature),
     .range = {WEFT_RANGE_TEMPERATURE}},
    WEFT_DIALECT_TOP_K,
    {.name = "top_p", .kind = FIELD_REAL, .what = "sampling", .at = AT(sampling.top_p), .range = {WEFT_RANGE_TOP_P}},
    {.name = "min_p", .kind = FIELD_REAL, .what = "sampling", .at = AT(sampling.min_p), .range = {WEFT_RANGE_MIN_P}},
    {.name = "seed",
     .kind = FIELD_READ,
     .what = "equal seeds give equal answers; negative: a random one",
     .read = read_seed},
    {.name = "stop", .kind = FIELD_READ, .what = "strings that end the answer", .read = weft_openai_stop},
    {.name = "repeat_penalty",
     .kind = FIELD_REAL,
     .what = "sampling",
     .at = AT(sampling.repetition_penalty),
     .range = {WEFT_RANGE_REPETITION_PENALTY}},
    {.name = "presence_penalty",
     .kind = FIELD_REAL,
     .what = "sampling",
     .at = AT(sampling.presence_penalty),
     .range = {WEFT_RANGE_PRESENCE_PENALTY}},
    {.name = "frequency_penalty",
     .kind = FIELD_REAL,
     .what = "sampling",
     .at = AT(sampling.frequency_penalty),
     .range = {WEFT_RANGE_FREQUENCY_PENALTY}},
    {.name = "repeat_last_n",
     .kind = FIELD_READ,
     .what = "penalties look at so many of the last tokens; -1: at all; 0: off",
     .read = weft_dialect_window},
    {.name = "speculative_config", .kind = FIELD_READ, .what = WEFT_DIALECT_DRAFTS, .read = weft_dialect_drafts},
    {.name = "mode", .kind = FIELD_READ, .what = "autoregressive, diffusion or auto", .read = weft_openai_mode},
    {.name = "diffusion", .kind = FIELD_READ, .what = "how a canvas is denoised", .read = weft_openai_diffusion},
    {.name = "typical_p",
     .kind = FIELD_REFUSED,
     .what = "typical sampling is not supported; 1 is off",
     .nothing = "1 0"},
    FIELD_ROW("num_ctx", MET, "the server's, for all: a prompt that is too long is refused, not cut"),
    FIELD_ROW("num_keep", MET, "a prompt that is too long is refused, not cut"),
    FIELD_ROW("num_batch", MET, "how a model is loaded is the operator's"),
    FIELD_ROW("num_gpu", MET, "how a model is loaded is the operator's"),
    FIELD_ROW("main_gpu", MET, "how a model is loaded is the operator's"),
    FIELD_ROW("num_thread", MET, "how a model is loaded is the operator's"),
    FIELD_ROW("use_mmap", MET, "how a model is loaded is the operator's"),
    FIELD_ROW("use_mlock", PASSED, "Ollama passes it over"),
    FIELD_ROW("numa", PASSED, "Ollama passes it over"),
    FIELD_ROW("low_vram", PASSED, "Ollama passes it over"),
    FIELD_ROW("f16_kv", PASSED, "Ollama passes it over"),
    FIELD_ROW("logits_all", PASSED, "Ollama passes it over"),
    FIELD_ROW("vocab_only", PASSED, "Ollama passes it over"),
    FIELD_ROW("embedding_only", PASSED, "Ollama passes it over"),
    FIELD_ROW("penalize_newline", PASSED, "Ollama passes it over"),
    FIELD_ROW("tfs_z", PASSED, "Ollama passes it over"),
    FIELD_ROW("mirostat", PASSED, "Ollama passes it over"),
    FIELD_ROW("mirostat_tau", PASSED, "Ollama passes it over"),
    FIELD_ROW("mirostat_eta", PASSED, "Ollama passes it over"),
};
const field_table ollama_option_fields = FIELD_TABLE("/api options", option_rows);

static weft_status read_options(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, &ollama_option_fields, value, "options.", why);
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
  if (json_is_string(value)) return weft_dialect_think_so(gen, value, field, why);
  if (!json_is_boolean(value)) return field_wrong(why, field, "true, false or how hard");
  gen->prompt->thinking = json_is_true(value);
  return WEFT_OK;
}

/* A number with a unit, as in "1h30m"; false: the text is none. */
static bool read_duration(const char *text, double *seconds) {
  static const struct {
    const char *unit;
    double seconds;
  } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  bool negative = text[0] == '-';
  const char *at = text + negative;
  *seconds = 0.0;
  if (*at == 0) return false;
  while (*at != 0) {
    double number;
    const char *end;
    size_t i = 0, n;
    if (*at < '0' || *at > '9' || !weft_range_read(at, &number, &end)) return false;
    n = strspn(end, "nmush");
    while (i < FIELDS_COUNT(units) && (strlen(units[i].unit) != n || strncmp(end, units[i].unit, n) != 0)) i++;
    bool bare = n == 0 && end[0] == 0 && at == text + negative; /* a number alone is of seconds */
    if (i == FIELDS_COUNT(units) && !bare) return false;
    *seconds += number * (bare ? 1.0 : units[i].seconds);
    at = end + n;
  }
  if (negative) *seconds = -*seconds;
  return true;
}

/* Negative: for ever. */
static weft_status read_keep_alive(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  double seconds = json_number_value(value);
  if (!json_is_number(value) && !(json_is_string(value) && read_duration(json_string_value(value), &seconds)))
    return field_wrong(why, field, "seconds, or a duration such as \"5m\"; negative: for ever");
  gen->wanted.has_keep_alive = true;
  gen->wanted.keep_alive_us = seconds < 0 || seconds > 1e12 ? UINT64_MAX : (uint64_t)(seconds * 1e6);
  return WEFT_OK;
}

/* clang-format off */
#define COMMON_FIELDS \
  {.name = "model", .kind = FIELD_TEXT, .what = "which model answers; NAME:diffusion and NAME:autoregressive say how", \
   .at = AT(model)}, \
  {.name = "stream", .kind = FIELD_BOOL, .what = "left out: true", .at = offsetof(weft_gen, wanted.stream)}, \
  {.name = "options", .kind = FIELD_READ, .what = "how the answer is drawn", .read = read_options}, \
  {.name = "format", .kind = FIELD_READ, .what = "\"json\" or a JSON schema", .read = read_format}, \
  {.name = "think", .kind = FIELD_READ, .what = "true, false, or how hard", .read = read_think}, \
  {.name = "logprobs", .kind = FIELD_BOOL, .what = "logprobs of the answer's tokens", .at = AT(sampling.logprobs)}, \
  {.name = "top_logprobs", .kind = FIELD_U32, .what = "and of the most likely ones", \
   .at = AT(sampling.n_top_logprobs), .range = {WEFT_RANGE_TOP_LOGPROBS}}, \
  {.name = "keep_alive", .kind = FIELD_READ, .read = read_keep_alive, \
   .what = "how long a model of --models-dir stays without use; others stay"}, \
  FIELD_ROW("truncate", MET, "a prompt that is too long is refused, and not cut"), \
  FIELD_ROW("shift", MET, "an answer ends where the context does")

/* clang-format on */

/* Names of lines from below. */
static const weft_place_word own_words[] = {{"max_tokens", "options.num_predict"},
                                            {"repetition_penalty", "options.repeat_penalty"},
                                            {"presence_penalty", "options.presence_penalty"},
                                            {"frequency_penalty", "options.frequency_penalty"},
                                            {"temperature", "options.temperature"},
                                            {"top_k", "options.top_k"},
                                            {"top_p", "options.top_p"},
                                            {"min_p", "options.min_p"},
                                            {"say tool_choice required or none", "leave tools out"},
                                            {NULL, NULL}};

static weft_status check_common(weft_gen *gen, weft_refusal *why) {
  gen->place_words = own_words;
  if (field_of(gen->json, "stream") == NULL) gen->wanted.stream = true;
  if (gen->params.sampling.n_top_logprobs == 0 || gen->params.sampling.logprobs) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", "top_logprobs", "top_logprobs needs \"logprobs\": true");
}

/* ---- chat ---- */

static const field_row chat_rows[] = {
    COMMON_FIELDS,
    FIELD_ROW("messages", LATER, "the conversation"),
    FIELD_ROW("tools", LATER, "what the model may call"),
    WEFT_DIALECT_FIELDS,
};
const field_table ollama_chat_fields = FIELD_TABLE("/api/chat", chat_rows);

static const field_row message_rows[] = {
    FIELD_ROW("role", LATER, "system, developer, user, assistant or tool"),
    FIELD_ROW("content", LATER, "a text"),
    FIELD_ROW("thinking", LATER, "for templates that show it"),
    FIELD_ROW("images", LATER, "of the assistant and of results: told that they are there; a person's are refused"),
    FIELD_ROW("tool_calls", LATER, "calls, whose arguments are objects"),
    FIELD_ROW("tool_name", LATER, "the function whose result it is"),
    FIELD_ROW("name", LATER, "tool_name of a result; else who speaks"),
    FIELD_ROW("tool_call_id", LATER, "the call whose result it is"),
};
const field_table ollama_message_fields = FIELD_TABLE("/api/chat messages[]", message_rows);

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
    if (!json_is_object(function)) return field_wrong(why, field, "an object with a name and arguments");
    if (json_is_string(arguments)) text = json_string_value(arguments); /* as OpenAI's clients have them */
    weft_status status =
        arguments == NULL || json_is_string(arguments) ? WEFT_OK : field_json(list->gen, arguments, &text, why);
    const char *id = json_string_value(field_of(call, "id"));
    if (status == WEFT_OK) status = turns_add_call(list, id, json_object_get(function, "name"), text, field, why);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static const char *role_of(const json_t *message) {
  static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
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

/* Of a result the function's name, by either of the names that clients have for it; else who speaks. */
static weft_status read_name(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  const char *word = field_of(message, "tool_name") != NULL ? "tool_name" : "name";
  const json_t *name = field_of(message, word);
  char field[64];
  (void)snprintf(field, sizeof field, "messages[%zu].%s", i, word);
  if (name == NULL || (json_is_string(name) && json_string_length(name) == 0)) return WEFT_OK;
  if (strcmp(turn->role, "tool") == 0) return tools_called(gen, name, field, &turn->name, why);
  return read_string(message, word, i, &turn->name, why);
}

/* The text of a message; of a result any JSON. What it shows beside that is refused of a person, and else told. */
static weft_status read_content(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn,
                                weft_refusal *why) {
  const json_t *content = field_of(message, "content"), *images = field_of(message, "images");
  bool result = strcmp(turn->role, "tool") == 0, machine = result || strcmp(turn->role, "assistant") == 0;
  char field[64];
  weft_text text = {0};
  (void)snprintf(field, sizeof field, "messages[%zu].content", i);
  if (content != NULL && !json_is_string(content) && !result) return field_wrong(why, field, "a string");
  weft_status status = unread_result(gen, ollama_message_fields.where, content, field, &text, why);
  (void)snprintf(field, sizeof field, "messages[%zu].images", i);
  if (status == WEFT_OK && !machine && images != NULL && json_array_size(images) + !json_is_array(images) > 0) {
    status = weft_refuse(why, 400, "unsupported", field, "%s: only text is read", field);
  }
  for (size_t k = 0; k < json_array_size(images) && status == WEFT_OK; k++) {
    weft_text_puts(&text, text.n == 0 ? "" : "\n");
    status = unread_note(gen, ollama_message_fields.where, "an image", NULL, field, &text, why);
  }
  if (status == WEFT_OK) status = weft_dialect_keep(gen, &text, &turn->content, why);
  weft_text_free(&text);
  return status;
}

static weft_status read_message(turn_list *list, const json_t *message, size_t i, weft_refusal *why) {
  char field[64], prefix[64];
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  (void)snprintf(prefix, sizeof prefix, "messages[%zu].", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  weft_status status = fields_read(list->gen, &ollama_message_fields, message, prefix, why);
  if (status != WEFT_OK) return status;
  const json_t *calls = field_of(message, "tool_calls");
  const char *role = role_of(message);
  (void)snprintf(field, sizeof field, "messages[%zu].role", i);
  if (role == NULL) return field_wrong(why, field, "system, developer, user, assistant or tool");
  status = turns_add(list, role, why);
  if (status != WEFT_OK) return status;
  weft_chat_turn *turn = &list->turn[list->n - 1];
  status = read_content(list->gen, message, i, turn, why);
  if (status == WEFT_OK) status = read_string(message, "thinking", i, &turn->thinking, why);
  if (status == WEFT_OK) status = read_string(message, "tool_call_id", i, &turn->call_id, why);
  if (status != WEFT_OK) return status;
  status = read_name(list->gen, message, i, turn, why);
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
    list.at = (weft_turn_place){"messages", (int32_t)i};
    weft_status status = read_message(&list, json_array_get(messages, i), i, why);
    if (status != WEFT_OK) return status;
  }
  turns_finish(&list);
  return weft_openai_tools(gen, field_of(gen->json, "tools"), messages, gen->prompt, why);
}

static weft_status read_chat(weft_gen *gen, weft_refusal *why) {
  weft_status status = check_common(gen, why);
  return status == WEFT_OK ? read_messages(gen, why) : status;
}

weft_status weft_ollama_parse_chat(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                   weft_refusal *why) {
  return weft_dialect_open(body, n, rules, &ollama_chat_fields, read_chat, gen, why);
}

/* ---- generate ---- */

static const field_row generate_rows[] = {
    COMMON_FIELDS,
    FIELD_ROW("prompt", LATER, "a turn of the user; with raw the whole prompt"),
    FIELD_ROW("system", LATER, "the system's message"),
    FIELD_ROW("raw", LATER, "no template is used"),
    FIELD_ROW("suffix", REFUSED, "filling in before a suffix is not supported"),
    FIELD_ROW("images", REFUSED, "only text is read"),
    FIELD_ROW("template", REFUSED, "the template is the model's: send raw, or messages"),
    FIELD_ROW("context", REFUSED, "send the conversation to /api/chat"),
    FIELD_ROW("width", REFUSED, "no images are made here"),
    FIELD_ROW("height", REFUSED, "no images are made here"),
    FIELD_ROW("steps", REFUSED, "no images are made here; diffusion.steps is of canvases"),
    WEFT_DIALECT_FIELDS,
};
const field_table ollama_generate_fields = FIELD_TABLE("/api/generate", generate_rows);

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
  static const weft_turn_place places[] = {{"system", -1}, {"prompt", -1}};
  weft_chat_turn *turns = weft_gen_alloc(gen, 2, sizeof *turns);
  if (turns == NULL) return field_no_memory(why);
  gen->turn_place = has_system ? places : places + 1;
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

weft_status weft_ollama_parse_generate(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                       weft_refusal *why) {
  return weft_dialect_open(body, n, rules, &ollama_generate_fields, read_generate, gen, why);
}
