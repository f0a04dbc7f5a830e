/* SPDX-License-Identifier: MIT */
/* Bodies of /v1/responses to weft_gen. */
#include <stdio.h>
#include <string.h>

#include "api/dialects/field_tables.h"
#include "api/dialects/responses.h"
#include "api/dialects/places.h"
#include "api/dialects/tools.h"
#include "api/dialects/turns.h"
#include "api/dialects/unread.h"
#include "model/text/json_tree.h"

static const char previous_key[] = "the items before"; /* where the parsed body keeps them; no field has this name */

#define AT(member) offsetof(weft_gen, params.member)

/* ---- fields ---- */

static weft_status read_format(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(value, "type"));
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  if (strcmp(type, "text") == 0) return WEFT_OK;
  if (strcmp(type, "json_object") == 0) {
    return weft_openai_set_format(gen, field, WEFT_FORMAT_JSON_OBJECT, NULL, why);
  }
  const json_t *schema = field_of(value, "schema");
  if (strcmp(type, "json_schema") != 0 || schema == NULL) {
    return field_wrong(why, field, "of type text, json_object, or json_schema with a schema");
  }
  return weft_openai_set_format(gen, "text.format.schema", WEFT_FORMAT_JSON_SCHEMA, schema, why);
}

static const field_row text_rows[] = {
    {.name = "format", .kind = FIELD_READ, .what = "text, json_object or json_schema", .read = read_format},
    FIELD_ROW("verbosity", PASSED, "no model here knows of it")};
const field_table responses_text_fields = FIELD_TABLE("/v1/responses text", text_rows);

static weft_status read_text(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, &responses_text_fields, value, "text.", why);
}

static const field_row reasoning_rows[] = {
    {.name = "effort",
     .kind = FIELD_READ,
     .what = "lets the model think unless none; the variable reasoning_effort of the chat template",
     .read = weft_dialect_think_so},
    FIELD_ROW("summary", MET, "thinking is given as it is"),
    FIELD_ROW("generate_summary", MET, "thinking is given as it is")};
const field_table responses_reasoning_fields = FIELD_TABLE("/v1/responses reasoning", reasoning_rows);

static weft_status read_reasoning(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, &responses_reasoning_fields, value, "reasoning.", why);
}

static weft_status read_include(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  size_t i;
  json_t *item;
  if (!json_is_array(value)) return field_wrong(why, field, "a list of strings");
  json_array_foreach(value, i, item) {
    const char *word = json_string_value(item);
    if (word == NULL) return field_wrong(why, field, "a list of strings");
    if (strcmp(word, "reasoning.encrypted_content") == 0) continue; /* thinking is given in the open */
    if (strcmp(word, "message.output_text.logprobs") == 0) {
      gen->params.sampling.logprobs = true;
      continue;
    }
    weft_status status = fields_pass(gen, "/v1/responses include", word, field, why); /* of tools of OpenAI's servers */
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static weft_status read_flag(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  (void)gen;
  return json_is_boolean(value) ? WEFT_OK : field_wrong(why, field, "true or false");
}

static weft_status read_words(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  (void)gen;
  return json_is_string(value) ? WEFT_OK : field_wrong(why, field, "a string");
}

/* clang-format off */
static const field_row body_rows[] = {
    {.name = "model", .kind = FIELD_TEXT, .what = "which model answers", .at = AT(model)},
    FIELD_ROW("input", LATER, "a text, or items"),
    {.name = "speculative_config", .kind = FIELD_READ, .what = WEFT_DIALECT_DRAFTS, .read = weft_dialect_drafts},
    {.name = "instructions", .kind = FIELD_READ, .what = "the system's message", .read = read_words},
    {.name = "previous_response_id", .kind = FIELD_READ, .what = "the conversation that goes on", .read = read_words},
    {.name = "store", .kind = FIELD_READ, .what = "false: the response is not kept", .read = read_flag},
    {.name = "max_output_tokens", .kind = FIELD_COUNT, .what = "longest answer; -1: no limit", .at = AT(max_tokens),
     .range = {WEFT_RANGE_MAX_TOKENS}},
    {.name = "temperature", .kind = FIELD_REAL, .what = "sampling", .at = AT(sampling.temperature),
     .range = {WEFT_RANGE_TEMPERATURE}},
    {.name = "top_p", .kind = FIELD_REAL, .what = "sampling", .at = AT(sampling.top_p), .range = {WEFT_RANGE_TOP_P}},
    WEFT_DIALECT_TOP_K,
    {.name = "stream",
     .kind = FIELD_BOOL,
     .what = "events in place of one body",
     .at = offsetof(weft_gen, wanted.stream)},
    {.name = "text", .kind = FIELD_READ, .what = "format and verbosity", .read = read_text},
    {.name = "reasoning", .kind = FIELD_READ, .what = "effort and summary", .read = read_reasoning},
    {.name = "include", .kind = FIELD_READ, .what = "message.output_text.logprobs", .read = read_include},
    {.name = "top_logprobs", .kind = FIELD_U32, .what = "logprobs of so many likely tokens",
     .at = AT(sampling.n_top_logprobs), .range = {WEFT_RANGE_TOP_LOGPROBS}},
    FIELD_ROW("tools", LATER, "what the model may call"),
    FIELD_ROW("tool_choice", LATER, "auto, none, required, a tool, or allowed_tools"),
    FIELD_ROW("parallel_tool_calls", LATER, "several calls in one answer"),
    FIELD_ROW("metadata", MET, "given back"),
    FIELD_ROW("client_metadata", MET, "for the client's own lists"),
    FIELD_ROW("user", MET, "who asks: no answer depends on it"),
    FIELD_ROW("safety_identifier", MET, "who asks: no answer depends on it"),
    FIELD_ROW("service_tier", MET, "tiers are the operator's (api keys)"),
    FIELD_ROW("stream_options", MET, "events have no padding"),
    FIELD_ROW("prompt_cache_key", MET, "equal prefixes are found by themselves"),
    FIELD_ROW("prompt_cache_options", MET, "how long prefixes stay is the server's"),
    FIELD_ROW("prompt_cache_retention", MET, "how long prefixes stay is the server's"),
    FIELD_ROW("max_tool_calls", MET, "of tools that OpenAI's servers run"),
    FIELD_ROW("truncation", PASSED, "a prompt that is too long is refused, and not cut"),
    FIELD_ROW("context_management", PASSED, "a conversation is read as it was sent"),
    FIELD_ROW("moderation", PASSED, "nothing is moderated here"),
    FIELD_ROW("access_programs", PASSED, "keys say who may do what"),
    FIELD_ROW("background_options", PASSED, "of background"),
    FIELD_ROW("background", REFUSED, "a response is made while its client waits"),
    FIELD_ROW("conversation", REFUSED, "name the response before it: previous_response_id"),
    FIELD_ROW("prompt", REFUSED, "no prompts are stored here: send input"),
    FIELD_ROW("image", REFUSED, "no images are made here"),
    FIELD_ROW("max_tokens", REFUSED, "it is max_output_tokens here"),
    FIELD_ROW("messages", REFUSED, "it is input here"),
    WEFT_DIALECT_CHAT_FIELDS,
    WEFT_DIALECT_FIELDS,
};
/* clang-format on */
const field_table responses_fields = FIELD_TABLE("/v1/responses", body_rows);

/* ---- items to turns ---- */

static const field_row part_rows[] = {FIELD_ROW("type", LATER, "input_text, output_text, text or refusal"),
                                      FIELD_ROW("text", LATER, "what is said"),
                                      FIELD_ROW("refusal", LATER, "what is said, of a refusal"),
                                      FIELD_ROW("annotations", MET, "of an answer that comes back"),
                                      FIELD_ROW("logprobs", MET, "of an answer that comes back"),
                                      FIELD_ROW("cache_control", MET, "every prefix is cached")};
const field_table responses_part_fields = FIELD_TABLE("/v1/responses input[].content[]", part_rows);

/* Of messages, calls and results alike; what an item of another kind holds is its call's arguments. */
static const field_row item_rows[] = {
    FIELD_ROW("type", LATER,
              "message, reasoning, any call (..._call) and its result (..._call_output), tool_search_output"),
    FIELD_ROW("role", LATER, "of a message"),
    FIELD_ROW("content", LATER, "of a message"),
    FIELD_ROW("call_id", LATER, "of a call and its result"),
    FIELD_ROW("name", LATER, "of a call"),
    FIELD_ROW("namespace", LATER, "the group of the tool that is called"),
    FIELD_ROW("arguments", LATER, "of a call"),
    FIELD_ROW("input", LATER, "of a call of free text"),
    FIELD_ROW("output", LATER, "of a result: a text, parts or any JSON"),
    FIELD_ROW("tools", LATER, "of tool_search_output: tools that are shown from then on"),
    FIELD_ROW("id", MET, "of an answer that comes back"),
    FIELD_ROW("status", MET, "of an answer that comes back"),
    FIELD_ROW("phase", MET, "of an answer that comes back"),
    FIELD_ROW("execution", MET, "of a search among tools"),
    FIELD_ROW("caller", MET, "the model called"),
    FIELD_ROW("end_turn", MET, "of an answer that comes back"),
    FIELD_ROW("internal_chat_message_metadata_passthrough", MET, "for the client's own lists")};
const field_table responses_item_fields = FIELD_TABLE("/v1/responses input[]", item_rows);

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), n_end = strlen(end);
  return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* Where a part with words has them. */
static const json_t *words_of(const json_t *part, const char *type) {
  static const char *const types[] = {"input_text", "output_text", "text", "summary_text", "reasoning_text"};
  if (strcmp(type, "refusal") == 0) return json_object_get(part, "refusal");
  for (size_t i = 0; i < FIELDS_COUNT(types); i++) {
    if (strcmp(type, types[i]) == 0) return json_object_get(part, "text");
  }
  return NULL;
}

static weft_status read_part(weft_gen *gen, const json_t *part, const char *field, weft_text *text, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(part, "type"));
  char prefix[128];
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  const json_t *words = words_of(part, type);
  if (words == NULL && json_is_string(json_object_get(part, "text"))) words = json_object_get(part, "text");
  if (words == NULL && strcmp(type, "input_text") == 0) {
    return field_wrong(why, field, "{\"type\":\"input_text\",\"text\":\"...\"}");
  }
  if (!json_is_string(words)) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only text is read", field, type);
  }
  weft_text_append(text, json_string_value(words), json_string_length(words));
  (void)snprintf(prefix, sizeof prefix, "%.100s.", field);
  return fields_read(gen, &responses_part_fields, part, prefix, why);
}

/* Of what the model said: what is neither text nor a picture of any kind says nothing to it again. */
static weft_status read_said_part(weft_gen *gen, const json_t *part, const char *field, weft_text *text,
                                  weft_refusal *why) {
  const char *type = json_string_value(json_object_get(part, "type"));
  const json_t *said = json_object_get(part, "transcript");
  char what[80];
  if (json_is_string(said)) {
    weft_text_append(text, json_string_value(said), json_string_length(said));
    return WEFT_OK;
  }
  if (unread_kind(type) != NULL || json_is_string(part)) {
    return unread_part(gen, responses_part_fields.where, part, field, text, why);
  }
  if (type != NULL && (words_of(part, type) != NULL || json_is_string(json_object_get(part, "text")))) {
    return read_part(gen, part, field, text, why);
  }
  (void)snprintf(what, sizeof what, "a part of type %.32s of the assistant", type == NULL ? "none" : type);
  return fields_pass(gen, responses_part_fields.where, what, field, why);
}

static weft_status read_content(weft_gen *gen, const json_t *content, const char *field, bool said, const char **out,
                                weft_refusal *why) {
  if (said && (content == NULL || json_is_null(content))) return WEFT_OK;
  return weft_dialect_text(gen, content, field, "a string or a list of parts", said ? read_said_part : read_part, out,
                           why);
}

/* A text, parts, or any JSON; NULL: nothing. */
static weft_status read_output(weft_gen *gen, const json_t *output, const char *field, const char **out,
                               weft_refusal *why) {
  weft_text text = {0};
  weft_status status = unread_result(gen, responses_part_fields.where, output, field, &text, why);
  if (status == WEFT_OK) status = weft_dialect_keep(gen, &text, out, why);
  weft_text_free(&text);
  return status;
}

/* Names members of an item that its table does not have. */
static weft_status check_item(weft_gen *gen, const json_t *item, const char *field, weft_refusal *why) {
  char prefix[64];
  (void)snprintf(prefix, sizeof prefix, "%.40s.", field);
  return fields_read(gen, &responses_item_fields, item, prefix, why);
}

static weft_status read_message(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  static const char *const roles[] = {"user", "assistant", "system", "developer"};
  char name[64];
  bool known = false;
  weft_status status = check_item(list->gen, item, field, why);
  if (status != WEFT_OK) return status;
  const char *role = json_string_value(json_object_get(item, "role"));
  for (size_t i = 0; i < FIELDS_COUNT(roles); i++) known = known || (role != NULL && strcmp(role, roles[i]) == 0);
  (void)snprintf(name, sizeof name, "%.40s.%s", field, known ? "content" : "role");
  if (!known) return field_wrong(why, name, "user, assistant, system or developer");
  status = turns_add(list, role, why);
  if (status != WEFT_OK) return status;
  bool said = strcmp(role, "assistant") == 0;
  return read_content(list->gen, json_object_get(item, "content"), name, said, &list->turn[list->n - 1].content, why);
}

/* Adds a call to the turn of the model that it follows, or to one of its own. */
static weft_status add_call(turn_list *list, const char *id, const char *group, const json_t *name,
                            const char *arguments, const char *field, weft_refusal *why) {
  weft_status status = turns_end_with_answer(list) ? WEFT_OK : turns_add(list, "assistant", why);
  if (status == WEFT_OK) status = turns_add_call(list, id, name, arguments, field, why);
  if (status != WEFT_OK || group == NULL) return status;
  const weft_chat_turn *turn = &list->turn[list->n - 1];
  weft_tool_call *call = (weft_tool_call *)(uintptr_t)&turn->calls[turn->n_calls - 1];
  call->name = tools_join(list->gen, group, call->name);
  return call->name == NULL ? field_no_memory(why) : WEFT_OK;
}

/* Which call an item is, or is of: by either of the names that items have for it. */
static const char *id_of(const json_t *item) {
  const char *id = json_string_value(field_of(item, "call_id"));
  return id != NULL ? id : json_string_value(field_of(item, "id"));
}

/* A call of the client's tools: function_call, custom_tool_call and tool_search_call. */
static weft_status read_call(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  const json_t *given = field_of(item, "arguments"), *text = field_of(item, "input");
  const char *id = id_of(item), *arguments = json_string_value(given),
             *group = json_string_value(field_of(item, "namespace"));
  bool search = field_is(item, "type", "tool_search_call"), free_text = field_is(item, "type", "custom_tool_call");
  weft_status status = check_item(list->gen, item, field, why);
  if (status != WEFT_OK) return status;
  if (id == NULL || (free_text && !json_is_string(text))) {
    return field_wrong(why, field,
                       free_text ? "an object with call_id, name and input, which is a string"
                                 : "an object with call_id, name and arguments, which are a string");
  }
  if (free_text) status = turns_text_arguments(list->gen, json_string_value(text), &arguments, why);
  if (!free_text && arguments == NULL && given != NULL) status = field_json(list->gen, given, &arguments, why);
  if (status != WEFT_OK) return status;
  json_t *name = search ? json_string("tool_search") : json_incref(json_object_get(item, "name"));
  status = search && name == NULL ? field_no_memory(why) : add_call(list, id, group, name, arguments, field, why);
  if (status == WEFT_OK && search) {
    weft_chat_turn *turn = &list->turn[list->n - 1];
    ((weft_tool_call *)(uintptr_t)&turn->calls[turn->n_calls - 1])->name = "tool_search";
  }
  json_decref(name);
  return status;
}

static weft_status add_result(turn_list *list, const char *id, const json_t *output, const char *field,
                              weft_refusal *why) {
  weft_status status = turns_add(list, "tool", why);
  if (status != WEFT_OK) return status;
  list->turn[list->n - 1].call_id = id;
  return read_output(list->gen, output, field, &list->turn[list->n - 1].content, why);
}

static weft_status read_result(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  char name[64];
  bool found = field_is(item, "type", "tool_search_output");
  const char *id = id_of(item);
  weft_status status = check_item(list->gen, item, field, why);
  if (status == WEFT_OK && id == NULL && !found) {
    status = field_wrong(why, field, "an object with call_id and output");
  }
  if (status != WEFT_OK) return status;
  const json_t *output = field_of(item, found ? "tools" : "output");
  if (output == NULL) output = field_of(item, "status"); /* how it ended is all that is known */
  (void)snprintf(name, sizeof name, "%.40s.%s", field, found ? "tools" : "output");
  return add_result(list, id, output, name, why);
}

/* A picture that another server made. */
static weft_status add_image(turn_list *list, const char *id, const char *field, weft_refusal *why) {
  weft_text text = {0};
  weft_status status = add_result(list, id, NULL, field, why);
  if (status == WEFT_OK) {
    status = unread_note(list->gen, responses_item_fields.where, "an image", NULL, field, &text, why);
  }
  if (status == WEFT_OK) status = weft_dialect_keep(list->gen, &text, &list->turn[list->n - 1].content, why);
  weft_text_free(&text);
  return status;
}

/* A call of a tool that OpenAI's servers run, or that its models know by heart: its name is its type, and what it holds
 * are its arguments. What came of it stands in it, or in an item of its own. */
static weft_status read_other_call(turn_list *list, const json_t *item, const char *type, const char *field,
                                   weft_refusal *why) {
  static const char *const outputs[] = {"output", "outputs", "result", "results", "error"}, *const marks[] = {
                                                                                                "type", "id", "call_id",
                                                                                                "status", "name"};
  const json_t *name = field_of(item, "name"), *given = field_of(item, "arguments"), *output = NULL;
  const char *id = id_of(item), *arguments = json_string_value(given);
  json_t *held = json_copy((json_t *)(uintptr_t)item), *words = json_stringn(type, strlen(type) - strlen("_call"));
  for (size_t i = 0; i < FIELDS_COUNT(outputs); i++) {
    if (output == NULL) output = field_of(item, outputs[i]);
    (void)json_object_del(held, outputs[i]);
  }
  for (size_t i = 0; i < FIELDS_COUNT(marks); i++) (void)json_object_del(held, marks[i]);
  weft_status status = held == NULL || words == NULL ? field_no_memory(why) : WEFT_OK;
  if (status == WEFT_OK && arguments == NULL) status = field_json(list->gen, held, &arguments, why);
  if (status == WEFT_OK && name == NULL) {
    char *kept = weft_gen_alloc(list->gen, json_string_length(words) + 1, 1);
    status = kept == NULL ? field_no_memory(why) : add_call(list, id, NULL, words, arguments, field, why);
    if (status == WEFT_OK) {
      memcpy(kept, json_string_value(words), json_string_length(words));
      weft_chat_turn *turn = &list->turn[list->n - 1];
      ((weft_tool_call *)(uintptr_t)&turn->calls[turn->n_calls - 1])->name = kept;
    }
  } else if (status == WEFT_OK) {
    status = add_call(list, id, NULL, name, arguments, field, why);
  }
  json_decref(held);
  json_decref(words);
  if (status != WEFT_OK || output == NULL) return status;
  if (strcmp(type, "image_generation_call") == 0) return add_image(list, id, field, why);
  return add_result(list, id, output, field, why);
}

/* What the model thought, joined as it is: of the last turn, and before the item that comes. A turn keeps its thoughts
 * when it is over, so each of them is copied once, however many items they came in. */
typedef struct thoughts {
  weft_text turn, next;
} thoughts;

/* The texts of an item's content. Summaries and what is encrypted say nothing to a model here. */
static void read_reasoning_item(const json_t *item, weft_text *out) {
  size_t i;
  json_t *part;
  json_array_foreach(json_object_get(item, "content"), i, part) {
    const json_t *words = json_object_get(part, "text");
    if (json_is_string(words)) weft_text_append(out, json_string_value(words), json_string_length(words));
  }
}

/* The first n turns are over. */
static weft_status keep_thoughts(const turn_list *list, uint32_t n, weft_text *text, weft_refusal *why) {
  if (text->n == 0 && !text->refused) return WEFT_OK;
  weft_status status = weft_dialect_keep(list->gen, text, &list->turn[n - 1].thinking, why);
  weft_text_clear(text);
  return status;
}

/* Items that say nothing to a model: what another server offered, and what a client notes of its own files. */
static bool says_nothing(const char *type) {
  static const char *const types[] = {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
                                      "ghost_snapshot", "compaction_trigger",   "other"};
  for (size_t i = 0; i < FIELDS_COUNT(types); i++) {
    if (strcmp(type, types[i]) == 0) return true;
  }
  return false;
}

static weft_status read_any_call(turn_list *list, const json_t *item, const char *type, const char *field,
                                 weft_refusal *why) {
  static const char *const own[] = {"function_call", "custom_tool_call", "tool_search_call"};
  if (ends_with(type, "_call_output")) return read_result(list, item, field, why);
  for (size_t i = 0; i < FIELDS_COUNT(own); i++) {
    if (strcmp(type, own[i]) == 0) return read_call(list, item, field, why);
  }
  return read_other_call(list, item, type, field, why);
}

/* What one program of a client says to another, and what a conversation was made into, where that can be read. */
static weft_status read_words_of(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  char name[64];
  weft_status status = check_item(list->gen, item, field, why);
  if (status == WEFT_OK) status = turns_add(list, "user", why);
  if (status != WEFT_OK) return status;
  (void)snprintf(name, sizeof name, "%.40s.content", field);
  return read_content(list->gen, field_of(item, "content"), name, false, &list->turn[list->n - 1].content, why);
}

static weft_status read_item(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(item, "type"));
  bool role = json_is_string(json_object_get(item, "role"));
  if (type == NULL || strcmp(type, "message") == 0 || role) return read_message(list, item, field, why);
  if (ends_with(type, "_call_output") || ends_with(type, "_call")) return read_any_call(list, item, type, field, why);
  if (strcmp(type, "tool_search_output") == 0) return read_result(list, item, field, why);
  if (says_nothing(type)) {
    char what[80];
    (void)snprintf(what, sizeof what, "an item of type %.40s", type);
    return fields_pass(list->gen, responses_item_fields.where, what, field, why);
  }
  if (field_of(item, "content") != NULL) return read_words_of(list, item, field, why);
  return weft_refuse(why, 400, "unsupported", field,
                     "%s is of type '%.32s', which only the server that made it can read: send messages, reasoning, "
                     "calls and their outputs",
                     field, type);
}

/* Adds the turns of a list. What the model thought belongs to the turn of the item after it. */
static weft_status read_items(turn_list *list, const json_t *items, bool before, thoughts *t, weft_refusal *why) {
  size_t i;
  json_t *item;
  json_array_foreach((json_t *)items, i, item) {
    char field[40];
    const char *type = json_string_value(json_object_get(item, "type"));
    (void)snprintf(field, sizeof field, "input[%zu]", i);
    if (!json_is_object(item)) return field_wrong(why, field, "an object");
    list->at = before ? (weft_turn_place){"previous_response_id", -1} : (weft_turn_place){"input", (int32_t)i};
    if (type != NULL && strcmp(type, "reasoning") == 0) {
      read_reasoning_item(item, &t->next);
      continue;
    }
    uint32_t n = list->n;
    weft_status status = read_item(list, item, field, why);
    if (status == WEFT_OK && list->n > n) status = keep_thoughts(list, n, &t->turn, why);
    if (status == WEFT_OK && t->next.refused) status = field_no_memory(why);
    if (status != WEFT_OK) return status;
    if (turns_end_with_answer(list) && t->next.n > 0) weft_text_append(&t->turn, t->next.bytes, t->next.n);
    weft_text_clear(&t->next);
  }
  return WEFT_OK;
}

static weft_status read_history(turn_list *list, const json_t *before, const json_t *input, weft_refusal *why) {
  thoughts t = {0};
  weft_status status = read_items(list, before, true, &t, why);
  if (status == WEFT_OK) status = read_items(list, input, false, &t, why);
  if (status == WEFT_OK) status = keep_thoughts(list, list->n, &t.turn, why);
  weft_text_free(&t.turn);
  weft_text_free(&t.next);
  return status;
}

/* Names of lines from below. */
static const weft_place_word own_words[] = {{"max_tokens", "max_output_tokens"}, {NULL, NULL}};

/* The conversation: instructions, what was before, the input. */
static weft_status read_turns(weft_gen *gen, weft_refusal *why) {
  const json_t *input = field_of(gen->json, "input"), *before = json_object_get(gen->json, previous_key);
  const char *text = json_string_value(input), *instructions = json_string_value(field_of(gen->json, "instructions"));
  turn_list list = {.gen = gen, .at = {"instructions", -1}};
  weft_status status = WEFT_OK;
  gen->place_words = own_words;
  if (text == NULL && json_array_size(input) == 0) return field_wrong(why, "input", "a text or a list of items");
  if (instructions != NULL) {
    status = turns_add(&list, "system", why);
    if (status == WEFT_OK) list.turn->content = instructions;
  }
  if (status == WEFT_OK) status = read_history(&list, before, text == NULL ? input : NULL, why);
  list.at = (weft_turn_place){"input", -1};
  if (status == WEFT_OK && text != NULL) {
    status = turns_add(&list, "user", why);
    if (status == WEFT_OK) list.turn[list.n - 1].content = text;
  }
  if (status != WEFT_OK) return status;
  if (list.n == 0 || turns_end_with_answer(&list)) {
    return weft_refuse(why, 400, "unsupported", "input",
                       "input must end with an item that is not the assistant's: an answer cannot be continued here");
  }
  turns_finish(&list);
  return WEFT_OK;
}

/* ---- tools ---- */

static weft_status read_tool(tool_list *list, const json_t *tool, const char *field, weft_refusal *why);

/* Tools under one name. What the group says of itself stands with its first tool. */
static weft_status read_group(tool_list *list, const json_t *group, const char *field, weft_refusal *why) {
  const char *name = json_string_value(json_object_get(group, "name")),
             *words = json_string_value(field_of(group, "description"));
  const json_t *tools = json_object_get(group, "tools");
  char place[112];
  uint32_t first = list->n;
  weft_status status = WEFT_OK;
  if (name == NULL || !json_is_array(tools)) return field_wrong(why, field, "an object with a name and tools");
  for (size_t i = 0; i < json_array_size(tools) && status == WEFT_OK; i++) {
    const json_t *tool = json_array_get(tools, i);
    (void)snprintf(place, sizeof place, "%.70s.tools[%zu]", field, i);
    status = field_is(tool, "type", "function") ? weft_openai_function(list, tool, name, place, why)
                                                : read_tool(list, tool, place, why);
  }
  if (status != WEFT_OK || words == NULL || words[0] == 0 || list->n == first) return status;
  weft_text text = {0};
  const char *own = list->tool[first].description;
  weft_text_printf(&text, "%s: ", name);
  weft_text_puts(&text, words);
  weft_text_puts(&text, own == NULL ? "" : "\n");
  weft_text_puts(&text, own == NULL ? "" : own);
  status = weft_dialect_keep(list->gen, &text, &list->tool[first].description, why);
  weft_text_free(&text);
  return status;
}

/* The client's own search among tools that are shown later. */
static weft_status read_search(tool_list *list, const json_t *tool, const char *field, weft_refusal *why) {
  const json_t *schema = field_of(tool, "parameters");
  weft_tool *out = NULL;
  weft_status status = tools_add(list, "tool_search", field, &out, why);
  if (status != WEFT_OK) return status;
  list->origin[list->n - 1].kind = WEFT_TOOL_SEARCH;
  out->description = json_string_value(field_of(tool, "description"));
  return json_is_object(schema) ? field_json(list->gen, schema, &out->parameters, why) : WEFT_OK;
}

static weft_status read_tool(tool_list *list, const json_t *tool, const char *field, weft_refusal *why) {
  if (!json_is_object(tool)) return field_wrong(why, field, "an object with a name");
  const char *type = json_string_value(json_object_get(tool, "type"));
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  if (strcmp(type, "function") == 0) return weft_openai_function(list, tool, NULL, field, why);
  if (strcmp(type, "custom") == 0) return tools_add_text(list, tool, field, why);
  if (strcmp(type, "namespace") == 0) return read_group(list, tool, field, why);
  bool search = strcmp(type, "tool_search") == 0;
  if (search && field_is(tool, "execution", "client")) return read_search(list, tool, field, why);
  list->shows_all = list->shows_all || search;
  return tools_pass(list, "/v1/responses tools[]", type, field, why);
}

/* One that was declared to be shown later, and has been found: not declared twice. */
static weft_status read_found(tool_list *list, const json_t *tool, const char *field, weft_refusal *why) {
  const char *name = json_string_value(json_object_get(tool, "name"));
  bool known = false;
  for (uint32_t i = 0; i < list->n && name != NULL; i++) {
    const weft_tool_origin *o = &list->origin[i];
    if (strcmp(o->group != NULL ? o->group : o->name, name) != 0) continue;
    list->later[i] = false;
    known = true;
  }
  return known ? WEFT_OK : read_tool(list, tool, field, why);
}

static weft_status read_found_tools(tool_list *list, const json_t *items, weft_refusal *why) {
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < json_array_size(items) && status == WEFT_OK; i++) {
    const json_t *item = json_array_get(items, i);
    char field[48];
    (void)snprintf(field, sizeof field, "input[%zu].tools", i);
    if (!field_is(item, "type", "tool_search_output")) continue;
    status = tools_read(list, json_object_get(item, "tools"), field, read_found, why);
  }
  return status;
}

/* What is said and what can be called; read again when the conversation before it is known. */
static weft_status read_conversation(weft_gen *gen, weft_refusal *why) {
  tool_list list = {.gen = gen};
  weft_status status = read_turns(gen, why);
  if (status == WEFT_OK) status = tools_read(&list, field_of(gen->json, "tools"), "tools", read_tool, why);
  if (status == WEFT_OK) status = read_found_tools(&list, json_object_get(gen->json, previous_key), why);
  if (status == WEFT_OK) status = read_found_tools(&list, field_of(gen->json, "input"), why);
  if (status == WEFT_OK) status = tools_finish(&list, gen->json, gen->prompt, why);
  return status == WEFT_OK ? weft_openai_tool_choice(gen, gen->json, gen->prompt, why) : status;
}

static weft_status read_rest(weft_gen *gen, weft_refusal *why) {
  weft_sampling *s = &gen->params.sampling;
  if (s->n_top_logprobs > 0) s->logprobs = true;
  return read_conversation(gen, why);
}

weft_status weft_responses_parse(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                 weft_refusal *why) {
  return weft_dialect_open(body, n, rules, &responses_fields, read_rest, gen, why);
}

weft_status weft_responses_continue(weft_gen *gen, const weft_text *items, const weft_body_rules *rules,
                                    weft_refusal *why) {
  weft_text list = {0};
  weft_json_size size;
  size_t at;
  const char *what;
  weft_text_puts(&list, "[");
  weft_text_append(&list, items->bytes, items->n);
  weft_text_puts(&list, "]");
  bool small =
      weft_text_status(&list) == WEFT_OK && weft_json_scan(list.bytes, list.n, &rules->json, &size, &at, &what);
  json_t *before = small ? weft_json_read(list.bytes, list.n, 0, NULL) : NULL;
  weft_text_free(&list);
  weft_status status;
  if (!small) {
    status = weft_refuse(why, 400, "too_many_values", "previous_response_id", "the conversation has become too long");
  } else if (before == NULL || json_object_set_new(gen->json, previous_key, before) != 0) {
    status = field_no_memory(why);
  } else {
    status = read_conversation(gen, why);
  }
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

/* ---- what is kept of a request ---- */

void weft_responses_put_items(const weft_gen *gen, weft_text *out) {
  const json_t *input = field_of(gen->json, "input");
  size_t i;
  json_t *item;
  if (json_is_string(input)) {
    weft_text_puts(out, "{\"type\":\"message\",\"role\":\"user\",\"content\":");
    weft_json_write(input, out);
    weft_text_puts(out, "}");
  }
  json_array_foreach((json_t *)input, i, item) {
    if (i > 0) weft_text_puts(out, ",");
    weft_json_write(item, out);
  }
}

void weft_responses_put_echo(const weft_gen *gen, weft_text *out) {
  static const struct {
    const char *name, *otherwise;
  } rows[] = {{"instructions", "null"},
              {"max_output_tokens", "null"},
              {"metadata", "{}"},
              {"parallel_tool_calls", "true"},
              {"previous_response_id", "null"},
              {"reasoning", "{\"effort\":null,\"summary\":null}"},
              {"store", "true"},
              {"temperature", "null"},
              {"text", "{\"format\":{\"type\":\"text\"}}"},
              {"tool_choice", "\"auto\""},
              {"tools", "[]"},
              {"top_logprobs", "0"},
              {"top_p", "null"},
              {"truncation", "\"disabled\""},
              {"user", "null"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const json_t *value = field_of(gen->json, rows[i].name);
    weft_text_printf(out, "\"%s\":", rows[i].name);
    if (value == NULL) {
      weft_text_puts(out, rows[i].otherwise);
    } else {
      weft_json_write(value, out);
    }
    weft_text_puts(out, ",");
  }
}
