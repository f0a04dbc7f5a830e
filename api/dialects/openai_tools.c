/* SPDX-License-Identifier: MIT */
/* What a body of the OpenAI dialect says of tools: declarations, which of them the answer must call, and in messages
 * the calls that were made and what came of them.
 *
 * Law: names of functions are checked here and nowhere else, so what follows may print them as they are. JSON inside of strings
 * (arguments) is looked at where the prompt is made (api/prompt_tools.c), for all dialects alike. */
#include <stdio.h>
#include <string.h>

#include "api/dialects/fields.h"
#include "api/dialects/openai.h"
#include "api/dialects/turns.h"

enum { CALLS_MAX = 128, LETTERS_MAX = 64 };

weft_status weft_openai_name(const json_t *value, const char *field, const char **out, weft_refusal *why) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  *out = json_string_value(value);
  if (*out == NULL) return field_wrong(why, field, "a string");
  size_t n = strlen(*out);
  if (n > 0 && n <= LETTERS_MAX && strspn(*out, letters) == n) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", field,
                     "%s is '%.80s'; the name of a function has 1 to %d of A-Z a-z 0-9 _ -", field, *out, LETTERS_MAX);
}

/* ---- declarations ---- */

weft_status weft_openai_function(weft_gen *gen, const json_t *function, const char *field, weft_tool *out,
                                 weft_refusal *why) {
  char part[80];
  if (!json_is_object(function)) return field_wrong(why, field, "an object with a name");
  (void)snprintf(part, sizeof part, "%.40s.name", field);
  weft_status status = weft_openai_name(json_object_get(function, "name"), part, &out->name, why);
  if (status != WEFT_OK) return status;
  const json_t *description = field_of(function, "description"), *parameters = field_of(function, "parameters"),
               *strict = field_of(function, "strict");
  (void)snprintf(part, sizeof part, "%.40s.description", field);
  if (description != NULL && !json_is_string(description)) return field_wrong(why, part, "a string");
  out->description = json_string_value(description);
  (void)snprintf(part, sizeof part, "%.40s.strict", field);
  if (strict != NULL && !json_is_boolean(strict)) return field_wrong(why, part, "true or false");
  out->strict = json_is_true(strict);
  (void)snprintf(part, sizeof part, "%.40s.parameters", field);
  if (parameters == NULL) return WEFT_OK;
  if (!json_is_object(parameters)) return field_wrong(why, part, "a JSON schema of an object");
  return field_json(gen, parameters, &out->parameters, why);
}

static weft_status read_tool(weft_gen *gen, const json_t *tool, const char *field, weft_tool *out, weft_refusal *why) {
  char function[64];
  const char *type = json_string_value(json_object_get(tool, "type"));
  if (type == NULL) return field_wrong(why, field, "an object with \"type\": \"function\" and a function");
  if (strcmp(type, "function") != 0) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only functions are supported", field,
                       type);
  }
  (void)snprintf(function, sizeof function, "%.40s.function", field);
  return weft_openai_function(gen, json_object_get(tool, "function"), function, out, why);
}

weft_status weft_openai_tools(weft_gen *gen, const json_t *tools, weft_prompt *out, weft_refusal *why) {
  return turns_tools(gen, tools, read_tool, out, why);
}

/* ---- which are called ---- */

static weft_status find_named(weft_gen *gen, const json_t *choice, const weft_prompt *prompt, weft_refusal *why) {
  static const char field[] = "tool_choice";
  const char *type = json_string_value(json_object_get(choice, "type"));
  if (type == NULL || strcmp(type, "function") != 0) {
    return weft_refuse(why, 400, "unsupported", field,
                       "%s may be \"none\", \"auto\", \"required\" or "
                       "{\"type\":\"function\",\"function\":{\"name\":...}}",
                       field);
  }
  const json_t *function = json_object_get(choice, "function");
  const char *name = json_string_value(json_object_get(function != NULL ? function : choice, "name"));
  if (name == NULL) return field_wrong(why, "tool_choice.function.name", "a string");
  for (uint32_t i = 0; i < prompt->n_tools; i++) {
    if (strcmp(prompt->tools[i].name, name) != 0) continue;
    gen->params.tool_choice = WEFT_TOOLS_NAMED;
    gen->params.named_tool = i;
    return WEFT_OK;
  }
  return weft_refuse(why, 400, "invalid_value", "tool_choice.function.name",
                     "tool_choice names the function '%.64s', which is not among tools", name);
}

weft_status weft_openai_tool_choice(weft_gen *gen, const json_t *root, const weft_prompt *prompt, weft_refusal *why) {
  static const char field[] = "tool_choice";
  const json_t *choice = field_of(root, field), *parallel = field_of(root, "parallel_tool_calls");
  const char *word = json_string_value(choice);
  if (parallel != NULL && !json_is_boolean(parallel)) return field_wrong(why, "parallel_tool_calls", "true or false");
  gen->params.one_call = json_is_false(parallel);
  if (choice == NULL || (word != NULL && strcmp(word, "auto") == 0)) return WEFT_OK;
  if (word != NULL && strcmp(word, "none") == 0) {
    gen->params.tool_choice = WEFT_TOOLS_NONE;
    return WEFT_OK;
  }
  if (prompt->n_tools == 0) {
    return weft_refuse(why, 400, "invalid_value", field, "%s asks for a call, and tools declares nothing to call",
                       field);
  }
  if (word == NULL) return find_named(gen, choice, prompt, why);
  if (strcmp(word, "required") != 0) return field_wrong(why, field, "\"none\", \"auto\", \"required\" or a function");
  gen->params.tool_choice = WEFT_TOOLS_REQUIRED;
  return WEFT_OK;
}

/* ---- messages ---- */

static weft_status read_call(const json_t *call, const char *field, weft_tool_call *out, weft_refusal *why) {
  char part[80];
  const json_t *function = json_object_get(call, "function"), *arguments = field_of(function, "arguments"),
               *id = field_of(call, "id");
  if (!json_is_object(function)) return field_wrong(why, field, "an object with an id and a function");
  (void)snprintf(part, sizeof part, "%.48s.id", field);
  if (id != NULL && !json_is_string(id)) return field_wrong(why, part, "a string");
  out->id = json_string_value(id);
  (void)snprintf(part, sizeof part, "%.48s.function.name", field);
  weft_status status = weft_openai_name(json_object_get(function, "name"), part, &out->name, why);
  if (status != WEFT_OK) return status;
  (void)snprintf(part, sizeof part, "%.48s.function.arguments", field);
  if (arguments != NULL && !json_is_string(arguments)) return field_wrong(why, part, "a JSON object as a string");
  out->arguments = json_string_value(arguments);
  return WEFT_OK;
}

weft_status weft_openai_calls(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  char field[64];
  const json_t *calls = field_of(message, "tool_calls");
  size_t n = json_array_size(calls);
  if (field_of(message, "function_call") != NULL) {
    (void)snprintf(field, sizeof field, "messages[%zu].function_call", i);
    return weft_refuse(why, 400, "unsupported", field, "%s: the newer name is tool_calls: give the call there", field);
  }
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
    weft_status status = read_call(json_array_get(calls, k), field, &list[k], why);
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

weft_status weft_openai_speaker(const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  char field[64];
  const json_t *name = field_of(message, "name");
  (void)snprintf(field, sizeof field, "messages[%zu].name", i);
  if (name == NULL) return WEFT_OK;
  if (strcmp(turn->role, "tool") == 0) return weft_openai_name(name, field, &turn->name, why);
  turn->name = json_string_value(name);
  return turn->name == NULL ? field_wrong(why, field, "a string") : WEFT_OK;
}
