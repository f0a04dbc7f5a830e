/* SPDX-License-Identifier: MIT */
/* Bodies of the Anthropic dialect to weft_gen. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/dialects/field_tables.h"
#include "api/dialects/anthropic.h"
#include "api/dialects/tools.h"
#include "api/dialects/turns.h"
#include "api/dialects/unread.h"

static weft_status read_format(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(value, "type"));
  const json_t *schema = field_of(value, "schema");
  if (type == NULL || strcmp(type, "json_schema") != 0 || schema == NULL) {
    return field_wrong(why, field, "{\"type\":\"json_schema\",\"schema\":{...}}");
  }
  return weft_openai_set_format(gen, field, WEFT_FORMAT_JSON_SCHEMA, schema, why);
}

static const field_row output_rows[] = {
    {.name = "format", .kind = FIELD_READ, .what = "the format of the answer", .read = read_format},
    {.name = "effort",
     .kind = FIELD_READ,
     .what = "the variable reasoning_effort of the chat template",
     .read = weft_dialect_effort}};
const field_table anthropic_output_fields = FIELD_TABLE("/v1/messages output_config", output_rows);

static weft_status read_output(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, &anthropic_output_fields, value, "output_config.", why);
}

#define AT(member) offsetof(weft_gen, params.member)

static const field_row body_rows[] = {
    {.name = "model", .kind = FIELD_TEXT, .what = "which model answers", .at = AT(model)},
    FIELD_ROW("messages", LATER, "the conversation; roles user, assistant and system"),
    FIELD_ROW("system", LATER, "a text, or blocks of text"),
    {.name = "max_tokens",
     .kind = FIELD_U32,
     .what = "longest answer; must be given",
     .at = AT(max_tokens),
     .range = {WEFT_RANGE_MAX_TOKENS}},
    {.name = "speculative_config", .kind = FIELD_READ, .what = WEFT_DIALECT_DRAFTS, .read = weft_dialect_drafts},
    {.name = "stop_sequences", .kind = FIELD_READ, .what = "strings that end the answer", .read = weft_openai_stop},
    {.name = "stream",
     .kind = FIELD_BOOL,
     .what = "events in place of one body",
     .at = offsetof(weft_gen, wanted.stream)},
    {.name = "temperature",
     .kind = FIELD_REAL,
     .what = "sampling",
     .at = AT(sampling.temperature),
     .range = {WEFT_RANGE_TEMPERATURE}},
    {.name = "top_p", .kind = FIELD_REAL, .what = "sampling", .at = AT(sampling.top_p), .range = {WEFT_RANGE_TOP_P}},
    WEFT_DIALECT_TOP_K,
    {.name = "thinking",
     .kind = FIELD_READ,
     .what =
         "the model may think, if it can: enabled, adaptive or disabled; its budget is a wish to Anthropic's models",
     .read = weft_dialect_thinking},
    {.name = "output_config", .kind = FIELD_READ, .what = "format and effort", .read = read_output},
    {.name = "output_format", .kind = FIELD_READ, .what = "the format of the answer", .read = read_format},
    FIELD_ROW("tools", LATER, "what the model may call"),
    FIELD_ROW("tool_choice", LATER, "auto, any, tool or none; disable_parallel_tool_use"),
    FIELD_ROW("metadata", MET, "who asks: no answer depends on it"),
    FIELD_ROW("cache_control", MET, "every prefix is cached"),
    FIELD_ROW("service_tier", MET, "tiers are the operator's (api keys)"),
    FIELD_ROW("user_profile_id", MET, "who asks: no answer depends on it"),
    FIELD_ROW("workspace_id", MET, "who asks: no answer depends on it"),
    FIELD_ROW("betas", MET, "anthropic-beta: what a body has is read whatever betas are named"),
    FIELD_ROW("context_management", PASSED, "a conversation is read as it was sent"),
    FIELD_ROW("inference_geo", PASSED, "the server is where it is"),
    FIELD_ROW("diagnostics", PASSED, "the log and metrics have them"),
    FIELD_ROW("speed", PASSED, "there is one"),
    FIELD_ROW("mcp_servers", REFUSED, "this server calls no other servers"),
    FIELD_ROW("container", REFUSED, "nothing is executed here"),
    WEFT_DIALECT_CHAT_FIELDS,
    WEFT_DIALECT_FIELDS,
};
const field_table anthropic_fields = FIELD_TABLE("/v1/messages", body_rows);

/* ---- blocks ---- */

/* A member of all blocks has a row in one table: which of them a kind of block needs is asked where it is read. */
static const field_row block_rows[] = {
    FIELD_ROW("type", LATER,
              "text, thinking, redacted_thinking, tool_use, tool_result; document, search_result and compaction of "
              "text; what "
              "tools of Anthropic's servers called and gave"),
    FIELD_ROW("text", LATER, "of text"),
    FIELD_ROW("thinking", LATER, "of thinking; whether it is shown again is for the chat template to say"),
    FIELD_ROW("id", LATER, "of a call"),
    FIELD_ROW("name", LATER, "of a call"),
    FIELD_ROW("input", LATER, "of a call"),
    FIELD_ROW("tool_use_id", LATER, "of a result"),
    FIELD_ROW("tool_name", LATER, "of a reference to a tool, which is shown from then on"),
    FIELD_ROW("content", LATER, "of a result or a document: a text or blocks"),
    FIELD_ROW("source", LATER, "of a document or a search result"),
    FIELD_ROW("title", LATER, "of a document or a search result"),
    FIELD_ROW("context", LATER, "of a document"),
    FIELD_ROW("is_error", MET, "the content of a result says so, too"),
    FIELD_ROW("signature", MET, "thinking is taken as it is"),
    FIELD_ROW("data", MET, "of redacted_thinking, which no model here can read"),
    FIELD_ROW("caller", MET, "the model called"),
    FIELD_ROW("server_name", MET, "of a call of another server"),
    FIELD_ROW("cache_control", MET, "every prefix is cached"),
    FIELD_ROW("citations", PASSED, "answers have none"),
    FIELD_ROW("encrypted_content", PASSED, "only its maker can read it")};
const field_table anthropic_block_fields = FIELD_TABLE("/v1/messages messages[].content[]", block_rows);

static const field_row message_rows[] = {FIELD_ROW("role", LATER, "user, assistant or system"),
                                         FIELD_ROW("content", LATER, "a text or blocks"),
                                         FIELD_ROW("id", MET, "of an answer that comes back"),
                                         FIELD_ROW("type", MET, "of an answer that comes back"),
                                         FIELD_ROW("model", MET, "of an answer that comes back"),
                                         FIELD_ROW("stop_reason", MET, "of an answer that comes back"),
                                         FIELD_ROW("stop_sequence", MET, "of an answer that comes back"),
                                         FIELD_ROW("usage", MET, "of an answer that comes back"),
                                         FIELD_ROW("cache_control", MET, "every prefix is cached")};
const field_table anthropic_message_fields = FIELD_TABLE("/v1/messages messages[]", message_rows);

static bool is_type(const json_t *block, const char *type) {
  return field_is(block, "type", type);
}

static bool type_ends(const json_t *block, const char *end) {
  const char *type = json_string_value(json_object_get(block, "type"));
  size_t n = type == NULL ? 0 : strlen(type), n_end = strlen(end);
  return n >= n_end && strcmp(type + n - n_end, end) == 0;
}

static weft_status check_members(weft_gen *gen, const field_table *table, const json_t *object, const char *field,
                                 weft_refusal *why) {
  char prefix[112];
  (void)snprintf(prefix, sizeof prefix, "%.100s.", field);
  return fields_read(gen, table, object, prefix, why);
}

/* Whether it is a list of blocks, and no list of values. */
static bool has_types(const json_t *list) {
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item) {
    if (json_is_string(json_object_get(item, "type"))) return true;
  }
  return json_is_array(list) && json_array_size(list) == 0;
}

static weft_status read_block(weft_gen *gen, const json_t *block, const char *field, weft_text *out, weft_refusal *why);
static weft_status read_told_block(weft_gen *gen, const json_t *block, const char *field, weft_text *out,
                                   weft_refusal *why);

/* What a document holds: read as what it stands in is read. */
static weft_status read_blocks(weft_gen *gen, const json_t *blocks, const char *field, weft_part_reader read,
                               weft_text *out, weft_refusal *why) {
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < json_array_size(blocks) && status == WEFT_OK; i++) {
    char name[112];
    (void)snprintf(name, sizeof name, "%.88s[%zu]", field, i);
    status = read(gen, json_array_get(blocks, i), name, out, why);
  }
  return status;
}

static void put_words(const json_t *words, const char *end, weft_text *out) {
  if (!json_is_string(words)) return;
  weft_text_append(out, json_string_value(words), json_string_length(words));
  weft_text_puts(out, end);
}

/* Whether a document or a search result has its text in it. */
static bool has_text_in_it(const json_t *block) {
  const json_t *source = json_object_get(block, "source"), *content = field_of(block, "content");
  if (is_type(source, "content")) content = json_object_get(source, "content");
  bool listed = json_is_array(content) && has_types(content), whole = json_is_string(content);
  return listed || whole || (is_type(source, "text") && json_is_string(json_object_get(source, "data")));
}

/* Whether read_block has a reader for it. */
static bool is_readable(const json_t *block) {
  if (is_type(block, "document") || is_type(block, "search_result")) return has_text_in_it(block);
  if (is_type(block, "tool_reference")) return json_is_string(json_object_get(block, "tool_name"));
  return is_type(block, "compaction") || (is_type(block, "text") && json_is_string(json_object_get(block, "text")));
}

/* A document or a search result: its title and what it says of itself, and its text. */
static weft_status read_document(weft_gen *gen, const json_t *block, const char *field, weft_part_reader read,
                                 weft_text *out, weft_refusal *why) {
  const json_t *source = json_object_get(block, "source"), *content = field_of(block, "content");
  char name[112];
  put_words(json_object_get(block, "title"), "\n", out);
  put_words(json_object_get(block, "context"), "\n", out);
  put_words(source, "\n", out); /* of a search result: where it is from */
  if (is_type(source, "content")) content = json_object_get(source, "content");
  (void)snprintf(name, sizeof name, "%.90s.content", field);
  if (json_is_string(content)) {
    put_words(content, "\n", out);
  } else if (json_is_array(content)) {
    return read_blocks(gen, content, name, read, out, why);
  } else if (is_type(source, "text") && json_is_string(json_object_get(source, "data"))) {
    put_words(json_object_get(source, "data"), "\n", out);
  } else {
    return weft_refuse(why, 400, "unsupported", field, "%s: of documents only those of text are read", field);
  }
  return WEFT_OK;
}

/* Appends a block that holds text. read: of the blocks in it. */
static weft_status read_text_block(weft_gen *gen, const json_t *block, const char *field, weft_part_reader read,
                                   weft_text *out, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(block, "type"));
  bool compaction = is_type(block, "compaction");
  const json_t *words = field_of(block, compaction ? "content" : "text");
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  weft_status status = check_members(gen, &anthropic_block_fields, block, field, why);
  if (status != WEFT_OK) return status;
  if (is_type(block, "document") || is_type(block, "search_result")) {
    return read_document(gen, block, field, read, out, why);
  }
  if (is_type(block, "tool_reference") && json_is_string(json_object_get(block, "tool_name"))) {
    weft_text_puts(out, "The tool ");
    put_words(json_object_get(block, "tool_name"), " can be called from now on.\n", out);
    return WEFT_OK;
  }
  if (json_is_string(words)) {
    put_words(words, "", out);
    return WEFT_OK;
  }
  if (compaction && words == NULL && json_string_length(json_object_get(block, "encrypted_content")) == 0) {
    return WEFT_OK; /* it failed, and what it would have been made of is there */
  }
  if (is_type(block, "text")) return field_wrong(why, field, "{\"type\":\"text\",\"text\":\"...\"}");
  return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only text is read here", field, type);
}

/* What a person or the system shows: text alone. */
static weft_status read_block(weft_gen *gen, const json_t *block, const char *field, weft_text *out,
                              weft_refusal *why) {
  return read_text_block(gen, block, field, read_block, out, why);
}

/* What a tool gave, and what the model said: what is no text is told for what it is (unread.h). */
static weft_status read_told_block(weft_gen *gen, const json_t *block, const char *field, weft_text *out,
                                   weft_refusal *why) {
  if (!is_readable(block)) return unread_part(gen, anthropic_block_fields.where, block, field, out, why);
  return read_text_block(gen, block, field, read_told_block, out, why);
}

/* A text, blocks or any JSON. */
static weft_status read_result(weft_gen *gen, const json_t *content, const char *field, const char **out,
                               weft_refusal *why) {
  if (json_is_string(content) || has_types(content)) {
    return weft_dialect_text(gen, content, field, "a string or a list of blocks", read_told_block, out, why);
  }
  weft_text text = {0};
  weft_status status = unread_result(gen, anthropic_block_fields.where, content, field, &text, why);
  if (status == WEFT_OK) status = weft_dialect_keep(gen, &text, out, why);
  weft_text_free(&text);
  return status;
}

/* A string, or blocks of text alone. */
static weft_status read_texts(weft_gen *gen, const json_t *content, const char *field, const char **out,
                              weft_refusal *why) {
  return weft_dialect_text(gen, content, field, "a string or a list of blocks", read_block, out, why);
}

/* ---- the conversation ---- */

/* A turn with the text so far, which is taken. */
static weft_status add_turn(turn_list *list, const char *role, weft_text *text, weft_refusal *why) {
  weft_status status = turns_add(list, role, why);
  if (status == WEFT_OK) status = weft_dialect_keep(list->gen, text, &list->turn[list->n - 1].content, why);
  weft_text_clear(text);
  return status;
}

static weft_status add_result(turn_list *list, const json_t *block, const char *field, weft_refusal *why) {
  const json_t *content = field_of(block, "content");
  const char *id = json_string_value(json_object_get(block, "tool_use_id"));
  char name[112];
  if (id == NULL) return field_wrong(why, field, "an object with a tool_use_id");
  weft_status status = check_members(list->gen, &anthropic_block_fields, block, field, why);
  if (status == WEFT_OK) status = turns_add(list, "tool", why);
  if (status != WEFT_OK) return status;
  weft_chat_turn *turn = &list->turn[list->n - 1];
  turn->call_id = id;
  (void)snprintf(name, sizeof name, "%.100s.content", field);
  if (content == NULL) return WEFT_OK;
  return read_result(list->gen, content, name, &turn->content, why);
}

/* Results of tools are turns of their own; what is said between and after them is the user's. */
static weft_status read_user(turn_list *list, const char *role, const json_t *blocks, const char *field,
                             weft_refusal *why) {
  weft_text text = {0};
  weft_status status = WEFT_OK;
  size_t i;
  json_t *block;
  bool results = false;
  json_array_foreach((json_t *)(uintptr_t)blocks, i, block) {
    char name[96];
    (void)snprintf(name, sizeof name, "%.64s[%zu]", field, i);
    if (!type_ends(block, "tool_result")) {
      status = read_block(list->gen, block, name, &text, why);
    } else {
      results = true;
      if (text.n > 0) status = add_turn(list, role, &text, why);
      if (status == WEFT_OK) status = add_result(list, block, name, why);
    }
    if (status != WEFT_OK) break;
  }
  if (status == WEFT_OK && (text.n > 0 || !results)) status = add_turn(list, role, &text, why);
  weft_text_free(&text);
  return status;
}

static weft_status add_call(turn_list *list, const json_t *block, const char *field, weft_refusal *why) {
  const json_t *input = field_of(block, "input");
  const char *arguments, *id = json_string_value(json_object_get(block, "id"));
  if (id == NULL) return field_wrong(why, field, "an object with id, name and input");
  weft_status status = check_members(list->gen, &anthropic_block_fields, block, field, why);
  arguments = json_string_value(input); /* as clients keep what was cut; NULL: none */
  if (status == WEFT_OK && input != NULL && arguments == NULL) status = field_json(list->gen, input, &arguments, why);
  if (status != WEFT_OK) return status;
  return turns_add_call(list, id, json_object_get(block, "name"), arguments, field, why);
}

/* A turn of the model while its blocks are read. */
typedef struct answer_so_far {
  uint32_t turn; /* from 1; 0: none was begun */
  weft_text text, thinking;
} answer_so_far;

static weft_status end_answer(turn_list *list, answer_so_far *a, weft_refusal *why) {
  weft_status status = WEFT_OK;
  if (a->turn == 0) return WEFT_OK;
  weft_chat_turn *turn = &list->turn[a->turn - 1];
  if (a->text.n > 0) status = weft_dialect_keep(list->gen, &a->text, &turn->content, why);
  if (status == WEFT_OK && a->thinking.n > 0) status = weft_dialect_keep(list->gen, &a->thinking, &turn->thinking, why);
  weft_text_clear(&a->text);
  weft_text_clear(&a->thinking);
  a->turn = 0;
  return status;
}

/* Of what the model said: what is neither text nor a picture of any kind says nothing to it again. */
static weft_status read_said_block(weft_gen *gen, const json_t *block, const char *field, weft_text *out,
                                   weft_refusal *why) {
  const char *type = json_string_value(json_object_get(block, "type"));
  const json_t *words = json_object_get(block, "text");
  char what[80];
  if (json_is_string(block) || json_is_string(words) || unread_kind(type) != NULL || is_readable(block)) {
    return read_told_block(gen, block, field, out, why);
  }
  (void)snprintf(what, sizeof what, "a block of type %.32s of the assistant", type == NULL ? "none" : type);
  return fields_pass(gen, anthropic_block_fields.where, what, field, why);
}

static weft_status read_answer_block(turn_list *list, answer_so_far *a, const json_t *block, const char *field,
                                     weft_refusal *why) {
  const json_t *thought = json_object_get(block, "thinking");
  if (is_type(block, "redacted_thinking")) return WEFT_OK; /* no model here can read it */
  if (type_ends(block, "tool_result")) { /* of a tool that Anthropic's servers ran within the answer */
    weft_status status = end_answer(list, a, why);
    return status == WEFT_OK ? add_result(list, block, field, why) : status;
  }
  weft_status status = a->turn == 0 ? turns_add(list, "assistant", why) : WEFT_OK;
  if (status != WEFT_OK) return status;
  a->turn = list->n;
  if (is_type(block, "thinking") && json_is_string(thought)) {
    put_words(thought, "", &a->thinking);
    return check_members(list->gen, &anthropic_block_fields, block, field, why);
  }
  if (type_ends(block, "tool_use")) return add_call(list, block, field, why);
  return read_said_block(list->gen, block, field, &a->text, why);
}

/* What the model said, thought and called. Whether thinking is shown to it again is for its template to say. */
static weft_status read_answer(turn_list *list, const json_t *blocks, const char *field, weft_refusal *why) {
  answer_so_far a = {0};
  uint32_t before = list->n;
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < json_array_size(blocks) && status == WEFT_OK; i++) {
    char name[96];
    (void)snprintf(name, sizeof name, "%.64s[%zu]", field, i);
    status = read_answer_block(list, &a, json_array_get(blocks, i), name, why);
  }
  if (status == WEFT_OK) status = end_answer(list, &a, why);
  if (status == WEFT_OK && list->n == before) status = turns_add(list, "assistant", why);
  weft_text_free(&a.text);
  weft_text_free(&a.thinking);
  return status;
}

static weft_status read_message(turn_list *list, const json_t *message, size_t i, weft_refusal *why) {
  static const char *const roles[] = {"user", "assistant", "system"};
  char field[64];
  const char *role = NULL;
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  weft_status status = check_members(list->gen, &anthropic_message_fields, message, field, why);
  if (status != WEFT_OK) return status;
  const json_t *content = json_object_get(message, "content");
  for (size_t k = 0; k < FIELDS_COUNT(roles); k++) role = field_is(message, "role", roles[k]) ? roles[k] : role;
  (void)snprintf(field, sizeof field, "messages[%zu].%s", i, role == NULL ? "role" : "content");
  if (role == NULL) return field_wrong(why, field, "user, assistant or system");
  if (json_is_array(content)) {
    return strcmp(role, "assistant") == 0 ? read_answer(list, content, field, why)
                                          : read_user(list, role, content, field, why);
  }
  status = turns_add(list, role, why);
  if (status == WEFT_OK && field_of(message, "content") == NULL && strcmp(role, "assistant") == 0) return WEFT_OK;
  return status == WEFT_OK ? read_texts(list->gen, content, field, &list->turn[list->n - 1].content, why) : status;
}

static weft_status read_messages(weft_gen *gen, weft_refusal *why) {
  const json_t *messages = field_of(gen->json, "messages"), *system = field_of(gen->json, "system");
  turn_list list = {.gen = gen, .at = {"system", -1}};
  weft_status status = WEFT_OK;
  if (json_array_size(messages) == 0) return field_wrong(why, "messages", "a list of at least one message");
  if (system != NULL) status = turns_add(&list, "system", why);
  if (system != NULL && status == WEFT_OK) status = read_texts(gen, system, "system", &list.turn->content, why);
  for (size_t i = 0; i < json_array_size(messages) && status == WEFT_OK; i++) {
    list.at = (weft_turn_place){"messages", (int32_t)i};
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

static const field_row tool_rows[] = {
    FIELD_ROW("type", LATER, "custom, or a tool that the client runs: bash, text_editor, memory"),
    FIELD_ROW("name", LATER, "1 to 128 of A-Z a-z 0-9 _ -"),
    FIELD_ROW("description", LATER, "shown to the model"),
    FIELD_ROW("input_schema", LATER, "the schema of the arguments"),
    FIELD_ROW("strict", LATER, "calls are held to the schema"),
    FIELD_ROW("defer_loading", LATER, "shown once the conversation points to it"),
    FIELD_ROW("cache_control", MET, "every prefix is cached"),
    FIELD_ROW("input_examples", PASSED, "examples of arguments"),
    FIELD_ROW("eager_input_streaming", MET, "arguments are streamed as they are written"),
    FIELD_ROW("allowed_callers", PASSED, "the model alone calls tools here"),
    FIELD_ROW("max_characters", PASSED, "of a tool of Anthropic's")};
const field_table anthropic_tool_fields = FIELD_TABLE("/v1/messages tools[]", tool_rows);

/* Tools that clients run and whose schema Anthropic's models know by heart. */
static const struct {
  const char *type, *description, *schema;
} known_tools[] = {
    {"bash_", "Runs a command in a shell that stays open between calls.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\"},\"restart\":{\"type\":\"boolean\"}}}"},
    {"text_editor_", "Looks at files and changes them.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"enum\":[\"view\",\"create\",\"str_replace\",\"insert\"]},"
     "\"path\":{\"type\":\"string\"},\"file_text\":{\"type\":\"string\"},\"old_str\":{\"type\":\"string\"},\"new_str\":"
     "{"
     "\"type\":\"string\"},\"insert_line\":{\"type\":\"integer\"},\"view_range\":{\"type\":\"array\",\"items\":{"
     "\"type\":"
     "\"integer\"}}},\"required\":[\"command\",\"path\"]}"},
    {"memory_", "Keeps notes as files between conversations.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"enum\":[\"view\",\"create\",\"str_replace\",\"insert\","
     "\"delete\","
     "\"rename\"]},\"path\":{\"type\":\"string\"},\"file_text\":{\"type\":\"string\"},\"old_str\":{\"type\":\"string\"}"
     ","
     "\"new_str\":{\"type\":\"string\"},\"insert_line\":{\"type\":\"integer\"},\"insert_text\":{\"type\":\"string\"},"
     "\"old_path\":{\"type\":\"string\"},\"new_path\":{\"type\":\"string\"}},\"required\":[\"command\"]}"}};

/* A tool with a type of Anthropic's: one that the client runs, or one that only Anthropic's servers have. */
static weft_status read_typed_tool(tool_list *list, const json_t *tool, const char *type, const char *field,
                                   weft_refusal *why) {
  char name[96];
  const char *shown;
  weft_tool *out = NULL;
  for (size_t i = 0; i < FIELDS_COUNT(known_tools); i++) {
    if (strncmp(type, known_tools[i].type, strlen(known_tools[i].type)) != 0) continue;
    (void)snprintf(name, sizeof name, "%.80s.name", field);
    weft_status status = tools_name(json_object_get(tool, "name"), name, &shown, why);
    if (status == WEFT_OK) status = tools_add(list, shown, field, &out, why);
    if (status != WEFT_OK) return status;
    out->description = known_tools[i].description;
    out->parameters = known_tools[i].schema;
    return WEFT_OK;
  }
  list->shows_all = list->shows_all || strncmp(type, "tool_search", strlen("tool_search")) == 0;
  return tools_pass(list, anthropic_tool_fields.where, type, field, why);
}

static weft_status read_tool(tool_list *list, const json_t *tool, const char *field, weft_refusal *why) {
  const json_t *schema = field_of(tool, "input_schema"), *description = field_of(tool, "description"),
               *strict = field_of(tool, "strict");
  const char *type = json_string_value(field_of(tool, "type")), *shown;
  char name[96];
  weft_tool *out = NULL;
  if (!json_is_object(tool)) return field_wrong(why, field, "an object with a name");
  if (type != NULL && strcmp(type, "custom") != 0 && strcmp(type, "function") != 0) {
    return read_typed_tool(list, tool, type, field, why);
  }
  weft_status status = check_members(list->gen, &anthropic_tool_fields, tool, field, why);
  if (status != WEFT_OK) return status;
  if (!json_is_object(schema)) return field_wrong(why, field, "an object with a name and an input_schema");
  if (description != NULL && !json_is_string(description)) return field_wrong(why, field, "described by a string");
  if (strict != NULL && !json_is_boolean(strict)) return field_wrong(why, field, "strict or not: true or false");
  (void)snprintf(name, sizeof name, "%.80s.name", field);
  status = tools_name(json_object_get(tool, "name"), name, &shown, why);
  if (status == WEFT_OK) status = tools_add(list, shown, field, &out, why);
  if (status != WEFT_OK) return status;
  out->description = json_string_value(description);
  out->strict = json_is_true(strict);
  list->later[list->n - 1] = json_is_true(json_object_get(tool, "defer_loading"));
  return field_json(list->gen, schema, &out->parameters, why);
}

static const field_row choice_rows[] = {FIELD_ROW("type", LATER, "auto, any, tool or none"),
                                        FIELD_ROW("name", LATER, "of the tool"),
                                        FIELD_ROW("disable_parallel_tool_use", LATER, "one call at most")};
const field_table anthropic_choice_fields = FIELD_TABLE("/v1/messages tool_choice", choice_rows);

static weft_status read_tool_choice(weft_gen *gen, weft_refusal *why) {
  const json_t *choice = field_of(gen->json, "tool_choice");
  const char *type = json_string_value(json_object_get(choice, "type"));
  if (choice == NULL) return WEFT_OK;
  if (type == NULL) return field_wrong(why, "tool_choice", "an object of type auto, any, tool or none");
  weft_status status = check_members(gen, &anthropic_choice_fields, choice, "tool_choice", why);
  if (status == WEFT_OK) status = field_flag(choice, "disable_parallel_tool_use", &gen->params.one_call, why);
  if (status != WEFT_OK) return status;
  if (strcmp(type, "tool") != 0) return tools_choose(gen, gen->prompt, type, "tool_choice", why);
  return tools_require(gen, gen->prompt, NULL, json_string_value(json_object_get(choice, "name")), "tool_choice.name",
                       why);
}

static weft_status read_rest(weft_gen *gen, weft_refusal *why) {
  tool_list list = {.gen = gen};
  weft_status status = read_messages(gen, why);
  if (status == WEFT_OK) status = tools_read(&list, field_of(gen->json, "tools"), "tools", read_tool, why);
  if (status == WEFT_OK) status = tools_finish(&list, field_of(gen->json, "messages"), gen->prompt, why);
  return status == WEFT_OK ? read_tool_choice(gen, why) : status;
}

static weft_status read_rest_to_answer(weft_gen *gen, weft_refusal *why) {
  weft_status status = read_rest(gen, why);
  if (status != WEFT_OK || gen->params.max_tokens > 0) return status;
  return field_wrong(why, "max_tokens", "given: the most tokens that the answer may have");
}

weft_status weft_anthropic_parse_count(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                       weft_refusal *why) {
  return weft_dialect_open(body, n, rules, &anthropic_fields, read_rest, gen, why);
}

weft_status weft_anthropic_parse(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                 weft_refusal *why) {
  return weft_dialect_open(body, n, rules, &anthropic_fields, read_rest_to_answer, gen, why);
}
