/* SPDX-License-Identifier: MIT */
/* Bodies of the Anthropic dialect to weft_gen. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/turns.h"

/* {"type":"enabled","budget_tokens":N}, {"type":"adaptive"} or {"type":"disabled"}. The budget is a wish to the model
 * that Anthropic's own models may exceed; no model here knows of it. */
static weft_status read_thinking(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(value, "type"));
  bool on = type != NULL && (strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0);
  if (!on && (type == NULL || strcmp(type, "disabled") != 0)) {
    return field_wrong(why, field, "an object of type enabled, adaptive or disabled");
  }
  gen->prompt->thinking = on;
  return WEFT_OK;
}

static weft_status read_format(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(value, "type"));
  const json_t *schema = field_of(value, "schema");
  if (type == NULL || strcmp(type, "json_schema") != 0 || schema == NULL) {
    return field_wrong(why, field, "{\"type\":\"json_schema\",\"schema\":{...}}");
  }
  return weft_openai_set_format(gen, field, WEFT_FORMAT_JSON_SCHEMA, schema, why);
}

static weft_status read_output(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  static const field_row rows[] = {{.name = "format", .kind = FIELD_READ, .read = read_format},
                                   {.name = "effort", .kind = FIELD_READ, .read = weft_dialect_effort}};
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, rows, FIELDS_COUNT(rows), value, "output_config.", why);
}

#define AT(member) offsetof(weft_gen, params.member)

static const field_row fields[] = {
    {.name = "model", .kind = FIELD_TEXT, .at = AT(model)},
    {.name = "messages", .kind = FIELD_LATER},
    {.name = "system", .kind = FIELD_LATER},
    {.name = "max_tokens", .kind = FIELD_U32, .at = AT(max_tokens), .range = {WEFT_RANGE_MAX_TOKENS}},
    {.name = "stop_sequences", .kind = FIELD_READ, .read = weft_openai_stop},
    {.name = "stream", .kind = FIELD_BOOL, .at = offsetof(weft_gen, stream)},
    {.name = "temperature", .kind = FIELD_REAL, .at = AT(sampling.temperature), .range = {WEFT_RANGE_TEMPERATURE}},
    {.name = "top_p", .kind = FIELD_REAL, .at = AT(sampling.top_p), .range = {WEFT_RANGE_TOP_P}},
    {.name = "top_k", .kind = FIELD_I32, .at = AT(sampling.top_k), .range = {WEFT_RANGE_TOP_K}},
    {.name = "thinking", .kind = FIELD_READ, .read = read_thinking},
    {.name = "output_config", .kind = FIELD_READ, .read = read_output},
    {.name = "output_format", .kind = FIELD_READ, .read = read_format},
    {.name = "tools", .kind = FIELD_LATER},
    {.name = "tool_choice", .kind = FIELD_LATER},
    {.name = "mcp_servers", .kind = FIELD_REFUSED, .instead = "this server calls no other servers"},
    {.name = "container", .kind = FIELD_REFUSED, .instead = "nothing is executed here"},
    {.name = "context_management", .kind = FIELD_REFUSED, .instead = "a conversation is read as it was sent"},
    {.name = "metadata", .kind = FIELD_KNOWN},
    {.name = "service_tier", .kind = FIELD_KNOWN},
    {.name = "inference_geo", .kind = FIELD_KNOWN},
    {.name = "diagnostics", .kind = FIELD_KNOWN},
    {.name = "speed", .kind = FIELD_KNOWN},
    {.name = "user_profile_id", .kind = FIELD_KNOWN},
    {.name = "workspace_id", .kind = FIELD_KNOWN},
    {.name = "cache_control", .kind = FIELD_KNOWN}, /* prefixes are cached without being told */
    WEFT_DIALECT_FIELDS,
};

/* ---- the conversation ---- */

static const field_row text_fields[] = {{.name = "type", .kind = FIELD_LATER},
                                        {.name = "text", .kind = FIELD_LATER},
                                        {.name = "cache_control", .kind = FIELD_KNOWN},
                                        {.name = "citations", .kind = FIELD_KNOWN}};

static const field_row use_fields[] = {
    {.name = "type", .kind = FIELD_LATER},   {.name = "id", .kind = FIELD_LATER},
    {.name = "name", .kind = FIELD_LATER},   {.name = "input", .kind = FIELD_LATER},
    {.name = "caller", .kind = FIELD_KNOWN}, {.name = "cache_control", .kind = FIELD_KNOWN}};

static const field_row result_fields[] = {{.name = "type", .kind = FIELD_LATER},
                                          {.name = "tool_use_id", .kind = FIELD_LATER},
                                          {.name = "content", .kind = FIELD_LATER},
                                          {.name = "is_error", .kind = FIELD_KNOWN}, /* its content says so, too */
                                          {.name = "cache_control", .kind = FIELD_KNOWN}};

static bool is_type(const json_t *block, const char *type) {
  const char *word = json_string_value(json_object_get(block, "type"));
  return word != NULL && strcmp(word, type) == 0;
}

/* Refuses members of a block that its table does not have. */
static weft_status check_block(weft_gen *gen, const field_row *rows, size_t n_rows, const json_t *block,
                               const char *field, weft_refusal *why) {
  char prefix[112];
  (void)snprintf(prefix, sizeof prefix, "%.100s.", field);
  return fields_read(gen, rows, n_rows, block, prefix, why);
}

/* Appends a block of text. */
static weft_status read_text(weft_gen *gen, const json_t *block, const char *field, weft_text *out, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(block, "type"));
  const json_t *words = json_object_get(block, "text");
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  if (strcmp(type, "text") != 0) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only text is read here", field, type);
  }
  if (!json_is_string(words)) return field_wrong(why, field, "{\"type\":\"text\",\"text\":\"...\"}");
  weft_text_append(out, json_string_value(words), json_string_length(words));
  return check_block(gen, text_fields, FIELDS_COUNT(text_fields), block, field, why);
}

/* A string, or blocks of text alone. */
static weft_status read_texts(weft_gen *gen, const json_t *content, const char *field, const char **out,
                              weft_refusal *why) {
  return weft_dialect_text(gen, content, field, "a string or a list of blocks", read_text, out, why);
}

/* A turn of the user with the text so far, which is taken. */
static weft_status add_user(turn_list *list, weft_text *text, weft_refusal *why) {
  weft_status status = turns_add(list, "user", "messages", why);
  if (status == WEFT_OK) status = weft_dialect_keep(list->gen, text, &list->turn[list->n - 1].content, why);
  weft_text_clear(text);
  return status;
}

static weft_status add_result(turn_list *list, const json_t *block, const char *field, weft_refusal *why) {
  const json_t *content = field_of(block, "content");
  const char *id = json_string_value(json_object_get(block, "tool_use_id"));
  char name[112];
  if (id == NULL) return field_wrong(why, field, "an object with a tool_use_id");
  weft_status status = check_block(list->gen, result_fields, FIELDS_COUNT(result_fields), block, field, why);
  if (status == WEFT_OK) status = turns_add(list, "tool", "messages", why);
  if (status != WEFT_OK) return status;
  weft_chat_turn *turn = &list->turn[list->n - 1];
  turn->call_id = id;
  (void)snprintf(name, sizeof name, "%.100s.content", field);
  return content == NULL ? WEFT_OK : read_texts(list->gen, content, name, &turn->content, why);
}

/* Results of tools are turns of their own; what is said between and after them is the user's. */
static weft_status read_user(turn_list *list, const json_t *blocks, const char *field, weft_refusal *why) {
  weft_text text = {0};
  weft_status status = WEFT_OK;
  size_t i;
  json_t *block;
  bool results = false;
  json_array_foreach((json_t *)blocks, i, block) {
    char name[96];
    (void)snprintf(name, sizeof name, "%.64s[%zu]", field, i);
    if (!is_type(block, "tool_result")) {
      status = read_text(list->gen, block, name, &text, why);
    } else {
      results = true;
      if (text.n > 0) status = add_user(list, &text, why);
      if (status == WEFT_OK) status = add_result(list, block, name, why);
    }
    if (status != WEFT_OK) break;
  }
  if (status == WEFT_OK && (text.n > 0 || !results)) status = add_user(list, &text, why);
  weft_text_free(&text);
  return status;
}

static weft_status add_call(turn_list *list, const json_t *block, const char *field, weft_refusal *why) {
  const json_t *input = json_object_get(block, "input");
  const char *arguments, *id = json_string_value(json_object_get(block, "id"));
  if (id == NULL || !json_is_object(input)) return field_wrong(why, field, "an object with id, name and input");
  weft_status status = check_block(list->gen, use_fields, FIELDS_COUNT(use_fields), block, field, why);
  if (status == WEFT_OK) status = field_json(list->gen, input, &arguments, why);
  if (status != WEFT_OK) return status;
  return turns_add_call(list, id, json_object_get(block, "name"), arguments, field, why);
}

/* What the model said, thought and called. Whether thinking is shown to it again is for its template to say. */
static weft_status read_answer(turn_list *list, const json_t *blocks, const char *field, weft_refusal *why) {
  weft_text text = {0}, thinking = {0};
  weft_status status = turns_add(list, "assistant", "messages", why);
  for (size_t i = 0; i < json_array_size(blocks) && status == WEFT_OK; i++) {
    const json_t *block = json_array_get(blocks, i), *thought = json_object_get(block, "thinking");
    char name[96];
    (void)snprintf(name, sizeof name, "%.64s[%zu]", field, i);
    if (is_type(block, "redacted_thinking")) continue; /* no model here can read it */
    if (is_type(block, "thinking") && json_is_string(thought)) {
      weft_text_append(&thinking, json_string_value(thought), json_string_length(thought));
    } else if (is_type(block, "tool_use")) {
      status = add_call(list, block, name, why);
    } else {
      status = read_text(list->gen, block, name, &text, why);
    }
  }
  if (status == WEFT_OK) status = weft_dialect_keep(list->gen, &text, &list->turn[list->n - 1].content, why);
  if (status == WEFT_OK && thinking.n > 0) {
    status = weft_dialect_keep(list->gen, &thinking, &list->turn[list->n - 1].thinking, why);
  }
  weft_text_free(&text);
  weft_text_free(&thinking);
  return status;
}

static weft_status read_message(turn_list *list, const json_t *message, size_t i, weft_refusal *why) {
  static const field_row rows[] = {{.name = "role", .kind = FIELD_LATER}, {.name = "content", .kind = FIELD_LATER}};
  char field[64];
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  weft_status status = check_block(list->gen, rows, FIELDS_COUNT(rows), message, field, why);
  if (status != WEFT_OK) return status;
  const json_t *content = json_object_get(message, "content");
  const char *role = json_string_value(json_object_get(message, "role"));
  bool of_model = role != NULL && strcmp(role, "assistant") == 0;
  if (!of_model && (role == NULL || strcmp(role, "user") != 0)) {
    (void)snprintf(field, sizeof field, "messages[%zu].role", i);
    return field_wrong(why, field, "user or assistant; what the system says is the field system");
  }
  (void)snprintf(field, sizeof field, "messages[%zu].content", i);
  if (json_is_array(content)) {
    return of_model ? read_answer(list, content, field, why) : read_user(list, content, field, why);
  }
  status = turns_add(list, role, "messages", why);
  return status == WEFT_OK ? read_texts(list->gen, content, field, &list->turn[list->n - 1].content, why) : status;
}

static weft_status read_messages(weft_gen *gen, weft_refusal *why) {
  const json_t *messages = field_of(gen->json, "messages"), *system = field_of(gen->json, "system");
  turn_list list = {.gen = gen};
  weft_status status = WEFT_OK;
  if (json_array_size(messages) == 0) return field_wrong(why, "messages", "a list of at least one message");
  if (system != NULL) status = turns_add(&list, "system", "messages", why);
  if (system != NULL && status == WEFT_OK) status = read_texts(gen, system, "system", &list.turn->content, why);
  for (size_t i = 0; i < json_array_size(messages) && status == WEFT_OK; i++) {
    status = read_message(&list, json_array_get(messages, i), i, why);
  }
  if (status != WEFT_OK) return status;
  if (turns_end_with_answer(&list)) {
    return weft_refuse(why, 400, "unsupported", "messages",
                       "the last message is the assistant's: an answer cannot be continued here");
  }
  turns_finish(&list);
  return WEFT_OK;
}

/* ---- tools ---- */

/* A tool of the client's own; those that Anthropic's servers have are not here. */
static weft_status read_tool(weft_gen *gen, const json_t *tool, const char *field, weft_tool *out, weft_refusal *why) {
  static const field_row rows[] = {
      {.name = "type", .kind = FIELD_LATER},           {.name = "name", .kind = FIELD_LATER},
      {.name = "description", .kind = FIELD_LATER},    {.name = "input_schema", .kind = FIELD_LATER},
      {.name = "strict", .kind = FIELD_LATER},         {.name = "cache_control", .kind = FIELD_KNOWN},
      {.name = "input_examples", .kind = FIELD_KNOWN}, {.name = "eager_input_streaming", .kind = FIELD_KNOWN}};
  const json_t *type = field_of(tool, "type"), *schema = field_of(tool, "input_schema"),
               *description = field_of(tool, "description"), *strict = field_of(tool, "strict");
  char name[96];
  if (!json_is_object(tool)) return field_wrong(why, field, "an object with a name");
  if (type != NULL && !is_type(tool, "custom")) {
    return weft_refuse(why, 400, "unsupported", field, "%s: only tools with a name and an input_schema are known here",
                       field);
  }
  weft_status status = check_block(gen, rows, FIELDS_COUNT(rows), tool, field, why);
  if (status != WEFT_OK) return status;
  if (!json_is_object(schema)) return field_wrong(why, field, "an object with a name and an input_schema");
  if (description != NULL && !json_is_string(description)) return field_wrong(why, field, "described by a string");
  if (strict != NULL && !json_is_boolean(strict)) return field_wrong(why, field, "strict or not: true or false");
  out->description = json_string_value(description);
  out->strict = json_is_true(strict);
  (void)snprintf(name, sizeof name, "%.80s.name", field);
  status = weft_openai_name(json_object_get(tool, "name"), name, &out->name, why);
  return status == WEFT_OK ? field_json(gen, schema, &out->parameters, why) : status;
}

/* Said in OpenAI's words, which are read in one place. */
static weft_status read_tool_choice(weft_gen *gen, weft_refusal *why) {
  const json_t *choice = field_of(gen->json, "tool_choice");
  const char *type = json_string_value(json_object_get(choice, "type"));
  json_t *said;
  if (choice == NULL) return WEFT_OK;
  if (type == NULL) return field_wrong(why, "tool_choice", "an object of type auto, any, tool or none");
  bool one = false;
  weft_status status = field_flag(choice, "disable_parallel_tool_use", &one, why);
  if (status != WEFT_OK) return status;
  if (strcmp(type, "tool") == 0) {
    const char *name = json_string_value(json_object_get(choice, "name"));
    said = json_pack("{s:{s:s,s:s}}", "tool_choice", "type", "function", "name", name == NULL ? "" : name);
  } else {
    said = json_pack("{s:s}", "tool_choice", strcmp(type, "any") == 0 ? "required" : type);
  }
  if (said == NULL) return field_no_memory(why);
  status = one && json_object_set_new(said, "parallel_tool_calls", json_false()) != 0
               ? field_no_memory(why)
               : weft_openai_tool_choice(gen, said, gen->prompt, why);
  json_decref(said);
  return status;
}

static weft_status read_rest(weft_gen *gen, weft_refusal *why) {
  weft_status status = read_messages(gen, why);
  if (status == WEFT_OK) status = turns_tools(gen, field_of(gen->json, "tools"), read_tool, gen->prompt, why);
  return status == WEFT_OK ? read_tool_choice(gen, why) : status;
}

static weft_status read_rest_to_answer(weft_gen *gen, weft_refusal *why) {
  weft_status status = read_rest(gen, why);
  if (status != WEFT_OK || gen->params.max_tokens > 0) return status;
  return field_wrong(why, "max_tokens", "given: the most tokens that the answer may have");
}

weft_status weft_anthropic_parse_count(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                       weft_refusal *why) {
  return weft_dialect_open(body, n, limits, fields, FIELDS_COUNT(fields), read_rest, gen, why);
}

weft_status weft_anthropic_parse(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                 weft_refusal *why) {
  return weft_dialect_open(body, n, limits, fields, FIELDS_COUNT(fields), read_rest_to_answer, gen, why);
}
