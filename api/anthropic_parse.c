/* SPDX-License-Identifier: MIT */
/* Bodies of the Anthropic dialect to weft_gen. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/anthropic.h"

enum { TURNS_MAX = 4096 };

/* {"type":"enabled","budget_tokens":N}, {"type":"adaptive"} or {"type":"disabled"}. The budget is a wish to the model that
 * Anthropic's own models may exceed; no model here knows of it. */
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

static weft_status read_tool_choice(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(value, "type"));
  (void)gen;
  if (type != NULL && (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)) return WEFT_OK;
  return weft_refuse(why, 400, "unsupported", field, "%s: tool calls are not supported", field);
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
    {.name = "tool_choice", .kind = FIELD_READ, .read = read_tool_choice},
    {.name = "tools", .kind = FIELD_REFUSED, .instead = "tool calls are not supported"},
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

static const field_row block_fields[] = {{.name = "type", .kind = FIELD_LATER},
                                         {.name = "text", .kind = FIELD_LATER},
                                         {.name = "cache_control", .kind = FIELD_KNOWN},
                                         {.name = "citations", .kind = FIELD_KNOWN}};

/* What the blocks of a message hold. */
typedef struct block_texts {
  weft_text text, thinking;
} block_texts;

/* Appends one block. Whether earlier thinking is shown to the model is for its template to say. */
static weft_status read_block(weft_gen *gen, const json_t *block, const char *field, bool of_model, block_texts *out,
                              weft_refusal *why) {
  const char *type = json_string_value(json_object_get(block, "type"));
  const json_t *words = json_object_get(block, "text"), *thought = json_object_get(block, "thinking");
  char prefix[96];
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  if (of_model && strcmp(type, "redacted_thinking") == 0) return WEFT_OK; /* no model here can read it */
  if (of_model && strcmp(type, "thinking") == 0) {
    if (!json_is_string(thought)) return field_wrong(why, field, "{\"type\":\"thinking\",\"thinking\":\"...\"}");
    weft_text_append(&out->thinking, json_string_value(thought), json_string_length(thought));
    return WEFT_OK;
  }
  if (strcmp(type, "tool_use") == 0 || strcmp(type, "tool_result") == 0) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%s': tool calls are not supported", field, type);
  }
  if (strcmp(type, "text") != 0) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only text is read", field, type);
  }
  if (!json_is_string(words)) return field_wrong(why, field, "{\"type\":\"text\",\"text\":\"...\"}");
  weft_text_append(&out->text, json_string_value(words), json_string_length(words));
  (void)snprintf(prefix, sizeof prefix, "%.90s.", field);
  return fields_read(gen, block_fields, FIELDS_COUNT(block_fields), block, prefix, why);
}

/* A string, or blocks. */
static weft_status read_content(weft_gen *gen, const json_t *content, const char *field, weft_chat_turn *turn,
                                weft_refusal *why) {
  bool of_model = strcmp(turn->role, "assistant") == 0;
  turn->content = json_string_value(content);
  if (turn->content != NULL) return WEFT_OK;
  if (!json_is_array(content)) return field_wrong(why, field, "a string or a list of blocks");
  block_texts texts = {0};
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < json_array_size(content) && status == WEFT_OK; i++) {
    char name[96];
    (void)snprintf(name, sizeof name, "%.64s[%zu]", field, i);
    status = read_block(gen, json_array_get(content, i), name, of_model, &texts, why);
  }
  if (status == WEFT_OK) status = weft_dialect_keep(gen, &texts.text, &turn->content, why);
  if (status == WEFT_OK && texts.thinking.n > 0) status = weft_dialect_keep(gen, &texts.thinking, &turn->thinking, why);
  weft_text_free(&texts.text);
  weft_text_free(&texts.thinking);
  return status;
}

static weft_status read_message(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn,
                                weft_refusal *why) {
  static const field_row rows[] = {{.name = "role", .kind = FIELD_LATER}, {.name = "content", .kind = FIELD_LATER}};
  char field[96], prefix[96];
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  (void)snprintf(prefix, sizeof prefix, "messages[%zu].", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  weft_status status = fields_read(gen, rows, FIELDS_COUNT(rows), message, prefix, why);
  if (status != WEFT_OK) return status;
  turn->role = json_string_value(json_object_get(message, "role"));
  if (turn->role == NULL || (strcmp(turn->role, "assistant") != 0 && strcmp(turn->role, "user") != 0)) {
    (void)snprintf(field, sizeof field, "messages[%zu].role", i);
    return field_wrong(why, field, "user or assistant; what the system says is the field system");
  }
  (void)snprintf(field, sizeof field, "messages[%zu].content", i);
  return read_content(gen, json_object_get(message, "content"), field, turn, why);
}

static weft_status read_messages(weft_gen *gen, weft_refusal *why) {
  const json_t *messages = field_of(gen->json, "messages"), *system = field_of(gen->json, "system");
  size_t n = json_array_size(messages), n_system = system != NULL;
  if (n == 0) return field_wrong(why, "messages", "a list of at least one message");
  if (n > TURNS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "messages", "messages has %zu entries; at most %d are read", n,
                       TURNS_MAX);
  }
  weft_chat_turn *turns = weft_gen_alloc(gen, n + n_system, sizeof *turns);
  if (turns == NULL) return field_no_memory(why);
  weft_status status = WEFT_OK;
  turns->role = "system";
  if (system != NULL) status = read_content(gen, system, "system", turns, why);
  for (size_t i = 0; i < n && status == WEFT_OK; i++) {
    status = read_message(gen, json_array_get(messages, i), i, &turns[i + n_system], why);
  }
  if (status != WEFT_OK) return status;
  if (strcmp(turns[n + n_system - 1].role, "assistant") == 0) {
    return weft_refuse(why, 400, "unsupported", "messages",
                       "the last message is the assistant's: an answer cannot be continued here");
  }
  gen->prompt->turns = turns;
  gen->prompt->n_turns = (uint32_t)(n + n_system);
  return WEFT_OK;
}

weft_status weft_anthropic_parse_count(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                       weft_refusal *why) {
  weft_status status = weft_dialect_open(body, n, limits, fields, FIELDS_COUNT(fields), gen, why);
  if (status != WEFT_OK) return status;
  status = read_messages(gen, why);
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

weft_status weft_anthropic_parse(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                 weft_refusal *why) {
  weft_status status = weft_anthropic_parse_count(body, n, limits, gen, why);
  if (status != WEFT_OK || gen->params.max_tokens > 0) return status;
  weft_gen_close(gen);
  return field_wrong(why, "max_tokens", "given: the most tokens that the answer may have");
}
