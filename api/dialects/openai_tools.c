/* SPDX-License-Identifier: MIT */
/* What a body of the OpenAI dialect says of tools: declarations, which of them the answer must call, and in messages
 * the calls that were made and what came of them.
 *
 * Law: JSON inside of strings (arguments) is looked at where the prompt is made (api/prompt_tools.c), for all
 * dialects alike. */
#include <stdio.h>
#include <string.h>

#include "api/dialects/field_tables.h"
#include "api/dialects/openai.h"
#include "api/dialects/turns.h"

enum { CALLS_MAX = 128 };

/* ---- declarations ---- */

static const field_row function_rows[] = {FIELD_ROW("name", LATER, "1 to 128 of A-Z a-z 0-9 _ -"),
                                          FIELD_ROW("description", LATER, "shown to the model"),
                                          FIELD_ROW("parameters", LATER, "the schema of the arguments"),
                                          FIELD_ROW("strict", LATER, "calls are held to the schema"),
                                          FIELD_ROW("defer_loading", LATER, "shown once the conversation points to it"),
                                          FIELD_ROW("type", MET, "of the form"),
                                          FIELD_ROW("cache_control", MET, "every prefix is cached"),
                                          FIELD_ROW("allowed_callers", PASSED, "the model alone calls tools here"),
                                          FIELD_ROW("output_schema", PASSED, "results are read as they are")};
const field_table openai_function_fields = FIELD_TABLE("a function among tools", function_rows);

weft_status weft_openai_function(tool_list *list, const json_t *function, const char *group, const char *field,
                                 weft_refusal *why) {
  char part[112];
  const char *name;
  weft_tool *out = NULL;
  if (!json_is_object(function)) return field_wrong(why, field, "an object with a name");
  (void)snprintf(part, sizeof part, "%.80s.", field);
  weft_status status = fields_read(list->gen, &openai_function_fields, function, part, why);
  (void)snprintf(part, sizeof part, "%.80s.name", field);
  if (status == WEFT_OK) status = tools_name(json_object_get(function, "name"), part, &name, why);
  if (status == WEFT_OK) {
    status = tools_add(list, group == NULL ? name : tools_join(list->gen, group, name), field, &out, why);
  }
  if (status != WEFT_OK) return status;
  list->origin[list->n - 1] = (weft_tool_origin){.name = name, .group = group};
  const json_t *description = field_of(function, "description"), *parameters = field_of(function, "parameters"),
               *strict = field_of(function, "strict");
  (void)snprintf(part, sizeof part, "%.80s.description", field);
  if (description != NULL && !json_is_string(description)) return field_wrong(why, part, "a string");
  out->description = json_string_value(description);
  (void)snprintf(part, sizeof part, "%.80s.strict", field);
  if (strict != NULL && !json_is_boolean(strict)) return field_wrong(why, part, "true or false");
  out->strict = json_is_true(strict);
  list->later[list->n - 1] = json_is_true(json_object_get(function, "defer_loading"));
  (void)snprintf(part, sizeof part, "%.80s.parameters", field);
  if (parameters == NULL) return WEFT_OK;
  if (!json_is_object(parameters)) return field_wrong(why, part, "a JSON schema of an object");
  return field_json(list->gen, parameters, &out->parameters, why);
}

static const field_row tool_rows[] = {
    FIELD_ROW("type", LATER, "function or custom; what another server would run is passed over"),
    FIELD_ROW("function", LATER, "the function"),
    FIELD_ROW("custom", LATER, "a tool of free text: name, description, format"),
    FIELD_ROW("cache_control", MET, "every prefix is cached")};
const field_table openai_tool_fields = FIELD_TABLE("/v1/chat/completions tools[]", tool_rows);

static weft_status read_tool(tool_list *list, const json_t *tool, const char *field, weft_refusal *why) {
  char place[96];
  const char *type = json_string_value(json_object_get(tool, "type"));
  const json_t *function = json_object_get(tool, "function");
  if (type == NULL && !json_is_object(function)) {
    return field_wrong(why, field, "an object with \"type\": \"function\" and a function");
  }
  bool text = type != NULL && strcmp(type, "custom") == 0;
  if (!text && type != NULL && strcmp(type, "function") != 0) {
    return tools_pass(list, openai_tool_fields.where, type, field, why);
  }
  (void)snprintf(place, sizeof place, "%.80s.", field);
  weft_status status = fields_read(list->gen, &openai_tool_fields, tool, place, why);
  (void)snprintf(place, sizeof place, "%.80s.%s", field, text ? "custom" : "function");
  if (status != WEFT_OK) return status;
  return text ? tools_add_text(list, json_object_get(tool, "custom"), place, why)
              : weft_openai_function(list, function, NULL, place, why);
}

weft_status weft_openai_tools(weft_gen *gen, const json_t *tools, const json_t *conversation, weft_prompt *out,
                              weft_refusal *why) {
  tool_list list = {.gen = gen};
  weft_status status = tools_read(&list, tools, "tools", read_tool, why);
  return status == WEFT_OK ? tools_finish(&list, conversation, out, why) : status;
}

/* ---- which are called ---- */

/* The name in {"type":T,T:{"name":...}}, as chat has it, or in {"type":T,"name":...}, as responses do. */
static const char *name_of(const json_t *tool) {
  const json_t *inner = json_object_get(tool, "function");
  if (inner == NULL) inner = json_object_get(tool, "custom");
  return json_string_value(json_object_get(inner != NULL ? inner : tool, "name"));
}

static weft_status read_named(weft_gen *gen, const json_t *choice, weft_prompt *prompt, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(choice, "type"));
  if (type == NULL) {
    return field_wrong(why, "tool_choice", "\"none\", \"auto\", \"required\" (or \"any\") or an object with a type");
  }
  if (strcmp(type, "allowed_tools") == 0) {
    const json_t *inner = json_object_get(choice, "allowed_tools");
    return tools_allow(gen, prompt, inner != NULL ? inner : choice,
                       inner != NULL ? "tool_choice.allowed_tools" : "tool_choice", name_of, why);
  }
  bool known = strcmp(type, "function") == 0 || strcmp(type, "custom") == 0;
  if (!known && json_object_size(choice) == 1) return tools_choose(gen, prompt, type, "tool_choice.type", why);
  if (!known) {
    return weft_refuse(why, 400, "unsupported", "tool_choice",
                       "tool_choice is of type '%.48s', and no such tool can be called here", type);
  }
  char field[48];
  bool wrapped = json_is_object(json_object_get(choice, type));
  (void)snprintf(field, sizeof field, "tool_choice.%s%sname", wrapped ? type : "", wrapped ? "." : "");
  return tools_require(gen, prompt, json_string_value(field_of(choice, "namespace")), name_of(choice), field, why);
}

weft_status weft_openai_tool_choice(weft_gen *gen, const json_t *root, weft_prompt *prompt, weft_refusal *why) {
  const json_t *choice = field_of(root, "tool_choice"), *parallel = field_of(root, "parallel_tool_calls");
  const char *word = json_string_value(choice);
  if (parallel != NULL && !json_is_boolean(parallel)) return field_wrong(why, "parallel_tool_calls", "true or false");
  gen->params.one_call = json_is_false(parallel);
  if (choice == NULL) return WEFT_OK;
  return word != NULL ? tools_choose(gen, prompt, word, "tool_choice", why) : read_named(gen, choice, prompt, why);
}

/* ---- messages ---- */

/* A call of free text, as the function that the model is shown in its place. */
static weft_status read_text_call(weft_gen *gen, const json_t *custom, const char *field, weft_tool_call *out,
                                  weft_refusal *why) {
  char part[80];
  const char *input = json_string_value(field_of(custom, "input"));
  (void)snprintf(part, sizeof part, "%.48s.custom.input", field);
  if (input == NULL) return field_wrong(why, part, "a string");
  (void)snprintf(part, sizeof part, "%.48s.custom.name", field);
  weft_status status = tools_called(gen, json_object_get(custom, "name"), part, &out->name, why);
  return status == WEFT_OK ? turns_text_arguments(gen, input, &out->arguments, why) : status;
}

static weft_status read_call(weft_gen *gen, const json_t *call, const char *field, weft_tool_call *out,
                             weft_refusal *why) {
  char part[80];
  const json_t *function = json_object_get(call, "function"), *arguments = field_of(function, "arguments"),
               *id = field_of(call, "id");
  bool text = field_is(call, "type", "custom");
  if (text) function = json_object_get(call, "custom");
  if (!json_is_object(function)) return field_wrong(why, field, "an object with an id and a function");
  (void)snprintf(part, sizeof part, "%.48s.id", field);
  if (id != NULL && !json_is_string(id)) return field_wrong(why, part, "a string");
  out->id = json_string_value(id);
  if (text) return read_text_call(gen, function, field, out, why);
  (void)snprintf(part, sizeof part, "%.48s.function.name", field);
  weft_status status = tools_called(gen, json_object_get(function, "name"), part, &out->name, why);
  if (status != WEFT_OK) return status;
  (void)snprintf(part, sizeof part, "%.48s.function.arguments", field);
  if (arguments != NULL && !json_is_string(arguments)) {
    status = field_json(gen, arguments, &out->arguments, why);
    return status == WEFT_OK ? turns_check_arguments(out->arguments, part, why) : status;
  }
  out->arguments = json_string_value(arguments);
  return turns_check_arguments(out->arguments, part, why);
}

/* The call of a message as it was before there were several of them: without an id, and without a list. */
static weft_status read_older_call(weft_gen *gen, const json_t *function, size_t i, weft_chat_turn *turn,
                                   weft_refusal *why) {
  char field[64];
  weft_tool_call *call = weft_gen_alloc(gen, 1, sizeof *call);
  json_t *wrapped = json_object();
  bool made = wrapped != NULL && json_object_set(wrapped, "function", (json_t *)(uintptr_t)function) == 0;
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  weft_status status = call == NULL || !made ? field_no_memory(why) : WEFT_OK;
  if (status == WEFT_OK && strcmp(turn->role, "assistant") != 0) {
    status = weft_refuse(why, 400, "invalid_value", field, "%s.function_call: only the assistant calls tools", field);
  }
  if (status == WEFT_OK) status = read_call(gen, wrapped, field, call, why); /* its texts live as long as the body */
  json_decref(wrapped);
  turn->calls = call;
  turn->n_calls = status == WEFT_OK;
  return status;
}

weft_status weft_openai_calls(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  char field[64];
  const json_t *calls = field_of(message, "tool_calls"), *older = field_of(message, "function_call");
  size_t n = json_array_size(calls);
  if (older != NULL && n == 0) return read_older_call(gen, older, i, turn, why);
  (void)snprintf(field, sizeof field, "messages[%zu].tool_calls", i);
  if (calls == NULL) return WEFT_OK;
  if (!json_is_array(calls)) return field_wrong(why, field, "a list of calls");
  if (n > 0 && strcmp(turn->role, "assistant") != 0) {
    return weft_refuse(why, 400, "invalid_value", field, "%s: only the assistant calls tools", field);
  }
  if (n > CALLS_MAX) {
    return weft_refuse(why, 400, "invalid_value", field, "%s has %zu entries; at most %d are read", field, n,
                       CALLS_MAX);
  }
  weft_tool_call *list = weft_gen_alloc(gen, n == 0 ? 1 : n, sizeof *list);
  if (list == NULL) return field_no_memory(why);
  for (size_t k = 0; k < n; k++) {
    (void)snprintf(field, sizeof field, "messages[%zu].tool_calls[%zu]", i, k);
    weft_status status = read_call(gen, json_array_get(calls, k), field, &list[k], why);
    if (status != WEFT_OK) return status;
  }
  turn->calls = list;
  turn->n_calls = (uint32_t)n;
  return WEFT_OK;
}

weft_status weft_openai_result(const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  char field[64];
  const json_t *id = field_of(message, "tool_call_id");
  (void)snprintf(field, sizeof field, "messages[%zu].tool_call_id", i);
  if (id != NULL && !json_is_string(id)) return field_wrong(why, field, "a string");
  turn->call_id = json_string_value(id);
  return WEFT_OK;
}

weft_status weft_openai_speaker(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn,
                                weft_refusal *why) {
  char field[64];
  const json_t *name = field_of(message, "name");
  (void)snprintf(field, sizeof field, "messages[%zu].name", i);
  if (name == NULL) return WEFT_OK;
  if (strcmp(turn->role, "tool") == 0) return tools_called(gen, name, field, &turn->name, why);
  turn->name = json_string_value(name);
  return turn->name == NULL ? field_wrong(why, field, "a string") : WEFT_OK;
}
