/* SPDX-License-Identifier: MIT */
/* Bodies of /v1/responses to weft_gen. */
#include <stdio.h>
#include <string.h>

#include "api/dialects/responses.h"
#include "api/dialects/turns.h"
#include "api/json.h"
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

static weft_status read_text(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  static const field_row rows[] = {{.name = "format", .kind = FIELD_READ, .read = read_format},
                                   {.name = "verbosity", .kind = FIELD_KNOWN}}; /* no model here knows of it */
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, rows, FIELDS_COUNT(rows), value, "text.", why);
}

/* Asking for effort lets the model think. */
static weft_status read_effort(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *word = json_string_value(value);
  gen->prompt->thinking = word == NULL || strcmp(word, "none") != 0;
  return weft_dialect_effort(gen, value, field, why);
}

static weft_status read_reasoning(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  static const field_row rows[] = {{.name = "effort", .kind = FIELD_READ, .read = read_effort},
                                   {.name = "summary", .kind = FIELD_KNOWN}, /* thinking is given as it is */
                                   {.name = "generate_summary", .kind = FIELD_KNOWN}};
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  return fields_read(gen, rows, FIELDS_COUNT(rows), value, "reasoning.", why);
}

static weft_status read_include(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  size_t i;
  json_t *item;
  if (!json_is_array(value)) return field_wrong(why, field, "a list of strings");
  json_array_foreach(value, i, item) {
    const char *word = json_string_value(item);
    if (word == NULL) return field_wrong(why, field, "a list of strings");
    if (strcmp(word, "reasoning.encrypted_content") == 0) continue; /* thinking is given in the open */
    if (strcmp(word, "message.output_text.logprobs") != 0) {
      return weft_refuse(why, 400, "unsupported", field, "%s: '%.64s' is not there to be included", field, word);
    }
    gen->params.sampling.logprobs = true;
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

static const field_row fields[] = {
    {.name = "model", .kind = FIELD_TEXT, .at = AT(model)},
    {.name = "input", .kind = FIELD_LATER},
    {.name = "instructions", .kind = FIELD_READ, .read = read_words},
    {.name = "previous_response_id", .kind = FIELD_READ, .read = read_words},
    {.name = "store", .kind = FIELD_READ, .read = read_flag},
    {.name = "max_output_tokens", .kind = FIELD_U32, .at = AT(max_tokens), .range = {WEFT_RANGE_MAX_TOKENS}},
    {.name = "temperature", .kind = FIELD_REAL, .at = AT(sampling.temperature), .range = {WEFT_RANGE_TEMPERATURE}},
    {.name = "top_p", .kind = FIELD_REAL, .at = AT(sampling.top_p), .range = {WEFT_RANGE_TOP_P}},
    {.name = "stream", .kind = FIELD_BOOL, .at = offsetof(weft_gen, stream)},
    {.name = "text", .kind = FIELD_READ, .read = read_text},
    {.name = "reasoning", .kind = FIELD_READ, .read = read_reasoning},
    {.name = "include", .kind = FIELD_READ, .read = read_include},
    {.name = "top_logprobs", .kind = FIELD_U32, .at = AT(sampling.n_top_logprobs), .range = {WEFT_RANGE_TOP_LOGPROBS}},
    {.name = "tools", .kind = FIELD_LATER},
    {.name = "tool_choice", .kind = FIELD_LATER},
    {.name = "parallel_tool_calls", .kind = FIELD_LATER},
    {.name = "background", .kind = FIELD_REFUSED, .instead = "a response is made while its client waits"},
    {.name = "conversation", .kind = FIELD_REFUSED, .instead = "name the response before it: previous_response_id"},
    {.name = "prompt", .kind = FIELD_REFUSED, .instead = "no prompts are stored here: send input"},
    {.name = "context_management", .kind = FIELD_REFUSED, .instead = "a conversation is read as it was sent"},
    {.name = "moderation", .kind = FIELD_REFUSED, .instead = "nothing is moderated here"},
    {.name = "image", .kind = FIELD_REFUSED, .instead = "no images are made here"},
    {.name = "max_tool_calls", .kind = FIELD_KNOWN}, /* of tools that OpenAI's servers have */
    {.name = "metadata", .kind = FIELD_KNOWN},
    {.name = "truncation", .kind = FIELD_KNOWN}, /* a prompt that is too long is refused, and not cut */
    {.name = "stream_options", .kind = FIELD_KNOWN},
    {.name = "background_options", .kind = FIELD_KNOWN},
    {.name = "prompt_cache_key", .kind = FIELD_KNOWN}, /* prefixes are cached without being told */
    {.name = "prompt_cache_options", .kind = FIELD_KNOWN},
    {.name = "prompt_cache_retention", .kind = FIELD_KNOWN},
    {.name = "safety_identifier", .kind = FIELD_KNOWN},
    {.name = "access_programs", .kind = FIELD_KNOWN},
    {.name = "service_tier", .kind = FIELD_KNOWN},
    {.name = "user", .kind = FIELD_KNOWN},
    WEFT_DIALECT_FIELDS,
};

/* ---- items to turns ---- */

static const field_row part_fields[] = {{.name = "type", .kind = FIELD_LATER},
                                        {.name = "text", .kind = FIELD_LATER},
                                        {.name = "annotations", .kind = FIELD_KNOWN},
                                        {.name = "logprobs", .kind = FIELD_KNOWN}};

static const field_row message_fields[] = {
    {.name = "type", .kind = FIELD_LATER},    {.name = "role", .kind = FIELD_LATER},
    {.name = "content", .kind = FIELD_LATER}, {.name = "id", .kind = FIELD_KNOWN},
    {.name = "status", .kind = FIELD_KNOWN},  {.name = "phase", .kind = FIELD_KNOWN}};

static weft_status read_part(weft_gen *gen, const json_t *part, const char *field, weft_text *text, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(part, "type"));
  const json_t *words = json_object_get(part, "text");
  char prefix[128];
  if (type == NULL) return field_wrong(why, field, "an object with a type");
  if (strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 && strcmp(type, "text") != 0) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only text is read", field, type);
  }
  if (!json_is_string(words)) return field_wrong(why, field, "{\"type\":\"input_text\",\"text\":\"...\"}");
  weft_text_append(text, json_string_value(words), json_string_length(words));
  (void)snprintf(prefix, sizeof prefix, "%.100s.", field);
  return fields_read(gen, part_fields, FIELDS_COUNT(part_fields), part, prefix, why);
}

static weft_status read_content(weft_gen *gen, const json_t *content, const char *field, const char **out,
                                weft_refusal *why) {
  return weft_dialect_text(gen, content, field, "a string or a list of parts", read_part, out, why);
}

/* Refuses members of an item that its table does not have. */
static weft_status check_item(weft_gen *gen, const field_row *rows, size_t n_rows, const json_t *item,
                              const char *field, weft_refusal *why) {
  char prefix[64];
  (void)snprintf(prefix, sizeof prefix, "%.40s.", field);
  return fields_read(gen, rows, n_rows, item, prefix, why);
}

static weft_status read_message(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  static const char *const roles[] = {"user", "assistant", "system", "developer"};
  char name[64];
  bool known = false;
  weft_status status = check_item(list->gen, message_fields, FIELDS_COUNT(message_fields), item, field, why);
  if (status != WEFT_OK) return status;
  const char *role = json_string_value(json_object_get(item, "role"));
  for (size_t i = 0; i < FIELDS_COUNT(roles); i++) known = known || (role != NULL && strcmp(role, roles[i]) == 0);
  (void)snprintf(name, sizeof name, "%.40s.%s", field, known ? "content" : "role");
  if (!known) return field_wrong(why, name, "user, assistant, system or developer");
  status = turns_add(list, role, "input", why);
  if (status != WEFT_OK) return status;
  return read_content(list->gen, json_object_get(item, "content"), name, &list->turn[list->n - 1].content, why);
}

/* A call belongs to the turn of the model that it follows, or is one of its own. */
static weft_status read_call(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  static const field_row rows[] = {{.name = "type", .kind = FIELD_LATER},      {.name = "call_id", .kind = FIELD_LATER},
                                   {.name = "name", .kind = FIELD_LATER},      {.name = "id", .kind = FIELD_KNOWN},
                                   {.name = "arguments", .kind = FIELD_LATER}, {.name = "status", .kind = FIELD_KNOWN}};
  const char *arguments = json_string_value(json_object_get(item, "arguments")),
             *id = json_string_value(json_object_get(item, "call_id"));
  weft_status status = check_item(list->gen, rows, FIELDS_COUNT(rows), item, field, why);
  if (status == WEFT_OK && (arguments == NULL || id == NULL)) {
    status = field_wrong(why, field, "an object with call_id, name and arguments, which are a string");
  }
  if (status == WEFT_OK && !turns_end_with_answer(list)) status = turns_add(list, "assistant", "input", why);
  if (status != WEFT_OK) return status;
  return turns_add_call(list, id, json_object_get(item, "name"), arguments, field, why);
}

static weft_status read_result(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  static const field_row rows[] = {{.name = "type", .kind = FIELD_LATER},
                                   {.name = "call_id", .kind = FIELD_LATER},
                                   {.name = "output", .kind = FIELD_LATER},
                                   {.name = "id", .kind = FIELD_KNOWN},
                                   {.name = "status", .kind = FIELD_KNOWN}};
  char name[64];
  const char *id = json_string_value(json_object_get(item, "call_id"));
  weft_status status = check_item(list->gen, rows, FIELDS_COUNT(rows), item, field, why);
  if (status == WEFT_OK && id == NULL) status = field_wrong(why, field, "an object with call_id and output");
  if (status == WEFT_OK) status = turns_add(list, "tool", "input", why);
  if (status != WEFT_OK) return status;
  (void)snprintf(name, sizeof name, "%.40s.output", field);
  list->turn[list->n - 1].call_id = id;
  return read_content(list->gen, json_object_get(item, "output"), name, &list->turn[list->n - 1].content, why);
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

static weft_status read_item(turn_list *list, const json_t *item, const char *field, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(item, "type"));
  if (type == NULL || strcmp(type, "message") == 0) return read_message(list, item, field, why);
  if (strcmp(type, "function_call") == 0) return read_call(list, item, field, why);
  if (strcmp(type, "function_call_output") == 0) return read_result(list, item, field, why);
  return weft_refuse(why, 400, "unsupported", field,
                     "%s is of type '%.32s'; only messages, reasoning, calls of functions and their outputs are read",
                     field, type);
}

/* Adds the turns of a list. What the model thought belongs to the turn of the item after it. */
static weft_status read_items(turn_list *list, const json_t *items, thoughts *t, weft_refusal *why) {
  size_t i;
  json_t *item;
  json_array_foreach((json_t *)items, i, item) {
    char field[40];
    const char *type = json_string_value(json_object_get(item, "type"));
    (void)snprintf(field, sizeof field, "input[%zu]", i);
    if (!json_is_object(item)) return field_wrong(why, field, "an object");
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
  weft_status status = read_items(list, before, &t, why);
  if (status == WEFT_OK) status = read_items(list, input, &t, why);
  if (status == WEFT_OK) status = keep_thoughts(list, list->n, &t.turn, why);
  weft_text_free(&t.turn);
  weft_text_free(&t.next);
  return status;
}

/* The conversation: instructions, what was before, the input. */
static weft_status read_turns(weft_gen *gen, weft_refusal *why) {
  const json_t *input = field_of(gen->json, "input"), *before = json_object_get(gen->json, previous_key);
  const char *text = json_string_value(input), *instructions = json_string_value(field_of(gen->json, "instructions"));
  turn_list list = {.gen = gen};
  weft_status status = WEFT_OK;
  if (text == NULL && json_array_size(input) == 0) return field_wrong(why, "input", "a text or a list of items");
  if (instructions != NULL) {
    status = turns_add(&list, "system", "input", why);
    if (status == WEFT_OK) list.turn->content = instructions;
  }
  if (status == WEFT_OK) status = read_history(&list, before, text == NULL ? input : NULL, why);
  if (status == WEFT_OK && text != NULL) {
    status = turns_add(&list, "user", "input", why);
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

/* A function, without the object around it that chat has. */
static weft_status read_tool(weft_gen *gen, const json_t *tool, const char *field, weft_tool *out, weft_refusal *why) {
  static const field_row rows[] = {{.name = "type", .kind = FIELD_LATER},
                                   {.name = "name", .kind = FIELD_LATER},
                                   {.name = "description", .kind = FIELD_LATER},
                                   {.name = "parameters", .kind = FIELD_LATER},
                                   {.name = "strict", .kind = FIELD_LATER}};
  if (!json_is_object(tool)) return field_wrong(why, field, "an object with a name");
  const char *type = json_string_value(json_object_get(tool, "type"));
  if (type == NULL || strcmp(type, "function") != 0) {
    return weft_refuse(why, 400, "unsupported", field, "%s: only tools of type function are known here", field);
  }
  weft_status status = check_item(gen, rows, FIELDS_COUNT(rows), tool, field, why);
  return status == WEFT_OK ? weft_openai_function(gen, tool, field, out, why) : status;
}

static weft_status read_rest(weft_gen *gen, weft_refusal *why) {
  weft_sampling *s = &gen->params.sampling;
  if (s->n_top_logprobs > 0) s->logprobs = true;
  weft_status status = read_turns(gen, why);
  if (status == WEFT_OK) status = turns_tools(gen, field_of(gen->json, "tools"), read_tool, gen->prompt, why);
  return status == WEFT_OK ? weft_openai_tool_choice(gen, gen->json, gen->prompt, why) : status;
}

weft_status weft_responses_parse(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                 weft_refusal *why) {
  return weft_dialect_open(body, n, limits, fields, FIELDS_COUNT(fields), read_rest, gen, why);
}

weft_status weft_responses_continue(weft_gen *gen, const weft_text *items, const weft_json_size *limits,
                                    weft_refusal *why) {
  weft_text list = {0};
  weft_json_size size;
  size_t at;
  const char *what;
  weft_text_puts(&list, "[");
  weft_text_append(&list, items->bytes, items->n);
  weft_text_puts(&list, "]");
  bool small = weft_text_status(&list) == WEFT_OK && weft_json_scan(list.bytes, list.n, limits, &size, &at, &what);
  json_t *before = small ? weft_json_read(list.bytes, list.n, 0, NULL) : NULL;
  weft_text_free(&list);
  weft_status status;
  if (!small) {
    status = weft_refuse(why, 400, "too_many_values", "previous_response_id", "the conversation has become too long");
  } else if (before == NULL || json_object_set_new(gen->json, previous_key, before) != 0) {
    status = field_no_memory(why);
  } else {
    status = read_turns(gen, why);
  }
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

/* ---- what is kept of a request ---- */

static void put_value(const json_t *value, weft_text *out) {
  weft_json_write(value, out);
}

void weft_responses_put_items(const weft_gen *gen, weft_text *out) {
  const json_t *input = field_of(gen->json, "input");
  size_t i;
  json_t *item;
  if (json_is_string(input)) {
    weft_text_puts(out, "{\"type\":\"message\",\"role\":\"user\",\"content\":");
    put_value(input, out);
    weft_text_puts(out, "}");
  }
  json_array_foreach((json_t *)input, i, item) {
    if (i > 0) weft_text_puts(out, ",");
    put_value(item, out);
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
      put_value(value, out);
    }
    weft_text_puts(out, ",");
  }
}
