/* SPDX-License-Identifier: MIT */
#include "api/dialects/tools.h"

#include <stdio.h>
#include <string.h>

#include "api/dialects/dialect.h"

enum { TOOLS_MAX = 512, LEVELS_MAX = 16 };

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

/* ---- names ---- */

weft_status tools_name(const json_t *value, const char *field, const char **out, weft_refusal *why) {
  *out = json_string_value(value);
  if (*out == NULL) return field_wrong(why, field, "a string");
  size_t n = strlen(*out);
  if (n > 0 && n <= TOOLS_NAME_MAX && strspn(*out, letters) == n) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", field,
                     "%s is '%.80s'; the name of a function has 1 to %d of A-Z a-z 0-9 _ -", field, *out,
                     TOOLS_NAME_MAX);
}

/* Letters that a name may not have become "_"; of what is too long the end stays, in which names differ. */
const char *tools_join(weft_gen *gen, const char *group, const char *name) {
  size_t n_group = group == NULL ? 0 : strlen(group), n_name = strlen(name);
  bool parted = n_group == 0 || (n_group >= 2 && group[n_group - 1] == '_' && group[n_group - 2] == '_');
  char *joined = weft_gen_alloc(gen, n_group + 2 + n_name + 1, 1);
  if (joined == NULL) return NULL;
  (void)snprintf(joined, n_group + 2 + n_name + 1, "%s%s%s", group == NULL ? "" : group, parted ? "" : "__", name);
  size_t n = strlen(joined);
  if (n > TOOLS_NAME_MAX) joined += n - TOOLS_NAME_MAX;
  for (char *at = joined; *at != 0; at++) *at = strchr(letters, *at) == NULL ? '_' : *at;
  return joined;
}

weft_status tools_called(weft_gen *gen, const json_t *value, const char *field, const char **out, weft_refusal *why) {
  const char *name = json_string_value(value);
  if (name == NULL || *name == 0) return tools_name(value, field, out, why);
  if (strlen(name) <= TOOLS_NAME_MAX && strspn(name, letters) == strlen(name)) {
    *out = name;
    return WEFT_OK;
  }
  *out = tools_join(gen, NULL, name);
  return *out == NULL ? field_no_memory(why) : WEFT_OK;
}

static uint32_t find_shown(const tool_list *list, const char *name) {
  uint32_t i = 0;
  while (i < list->n && strcmp(list->tool[i].name, name) != 0) i++;
  return i;
}

/* ---- the list ---- */

static weft_status grow_list(tool_list *list, weft_refusal *why) {
  uint32_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
  weft_tool *tool = weft_gen_alloc(list->gen, capacity, sizeof *tool);
  weft_tool_origin *origin = weft_gen_alloc(list->gen, capacity, sizeof *origin);
  bool *later = weft_gen_alloc(list->gen, capacity, sizeof *later);
  if (tool == NULL || origin == NULL || later == NULL) return field_no_memory(why);
  if (list->n > 0) {
    memcpy(tool, list->tool, list->n * sizeof *tool);
    memcpy(origin, list->origin, list->n * sizeof *origin);
    memcpy(later, list->later, list->n * sizeof *later);
  }
  list->tool = tool;
  list->origin = origin;
  list->later = later;
  list->capacity = capacity;
  return WEFT_OK;
}

weft_status tools_add(tool_list *list, const char *name, const char *field, weft_tool **out, weft_refusal *why) {
  if (list->n == TOOLS_MAX) {
    return weft_refuse(why, 400, "invalid_value", field, "%s is one tool more than the %d that are read", field,
                       TOOLS_MAX);
  }
  if (name == NULL) return field_no_memory(why);
  if (find_shown(list, name) < list->n) {
    return weft_refuse(why, 400, "invalid_value", field, "%s has the same name, '%s', as a tool before it", field,
                       name);
  }
  weft_status status = list->n == list->capacity ? grow_list(list, why) : WEFT_OK;
  if (status != WEFT_OK) return status;
  list->tool[list->n] = (weft_tool){.name = name};
  list->origin[list->n] = (weft_tool_origin){.name = name};
  list->later[list->n] = false;
  *out = &list->tool[list->n++];
  return WEFT_OK;
}

/* The words that a model is told of a text: the client's, and the grammar that OpenAI's own models are held to. */
static weft_status describe_text(tool_list *list, const json_t *tool, weft_tool *out, weft_refusal *why) {
  const json_t *format = field_of(tool, "format"), *grammar = field_of(format, "grammar");
  const json_t *rules = grammar != NULL ? grammar : format;
  const char *definition = json_string_value(field_of(rules, "definition")),
             *syntax = json_string_value(field_of(rules, "syntax"));
  out->description = json_string_value(field_of(tool, "description"));
  if (definition == NULL) return WEFT_OK;
  weft_text text = {0};
  weft_text_printf(&text, "%s\n\nThe input follows this grammar (%s):\n",
                   out->description == NULL ? "" : out->description, syntax == NULL ? "of its own" : syntax);
  weft_text_puts(&text, definition);
  weft_status status = weft_dialect_keep(list->gen, &text, &out->description, why);
  weft_text_free(&text);
  return status;
}

weft_status tools_add_text(tool_list *list, const json_t *tool, const char *field, weft_refusal *why) {
  char part[96];
  const char *name;
  weft_tool *out = NULL;
  (void)snprintf(part, sizeof part, "%.80s.name", field);
  weft_status status = tools_name(json_object_get(tool, "name"), part, &name, why);
  if (status == WEFT_OK) status = tools_add(list, name, field, &out, why);
  if (status != WEFT_OK) return status;
  list->origin[list->n - 1].kind = WEFT_TOOL_TEXT;
  out->parameters =
      "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],"
      "\"additionalProperties\":false}";
  return describe_text(list, tool, out, why);
}

weft_status tools_pass(const tool_list *list, const char *where, const char *type, const char *field,
                       weft_refusal *why) {
  char what[80];
  (void)snprintf(what, sizeof what, "a tool of type %.48s", type);
  return fields_pass(list->gen, where, what, field, why);
}

weft_status tools_read(tool_list *list, const json_t *tools, const char *field, tool_reader read, weft_refusal *why) {
  weft_status status = WEFT_OK;
  if (tools == NULL || json_is_null(tools)) return WEFT_OK;
  if (!json_is_array(tools)) return field_wrong(why, field, "a list of tools");
  for (size_t i = 0; i < json_array_size(tools) && status == WEFT_OK; i++) {
    char place[112];
    (void)snprintf(place, sizeof place, "%.80s[%zu]", field, i);
    status = read(list, json_array_get(tools, i), place, why);
  }
  return status;
}

/* ---- what is shown ---- */

/* Collects the names to which a conversation points, or which it has called. */
static bool collect_names(const json_t *value, uint32_t level, json_t *names) {
  size_t i;
  const char *key;
  json_t *item;
  bool done = true;
  if (level == LEVELS_MAX) return true;
  if (json_is_array(value)) {
    json_array_foreach((json_t *)(uintptr_t)value, i, item) done = done && collect_names(item, level + 1, names);
    return done;
  }
  const char *type = json_string_value(json_object_get(value, "type"));
  bool points = type != NULL && strcmp(type, "tool_reference") == 0;
  bool calls = type != NULL && (strcmp(type, "tool_use") == 0 || strcmp(type, "function_call") == 0);
  const json_t *name = points ? json_object_get(value, "tool_name") : calls ? json_object_get(value, "name") : NULL;
  if (json_is_string(name)) done = json_object_set_new(names, json_string_value(name), json_true()) == 0;
  json_object_foreach((json_t *)(uintptr_t)value, key, item) done = done && collect_names(item, level + 1, names);
  return done;
}

/* Takes out the tools that are not shown. */
static void hide_tools(tool_list *list, const json_t *names) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < list->n; i++) {
    bool known =
        json_object_get(names, list->origin[i].name) != NULL || json_object_get(names, list->tool[i].name) != NULL;
    if (list->later[i] && !known) continue;
    list->tool[n] = list->tool[i];
    list->origin[n] = list->origin[i];
    n += 1;
  }
  list->n = n;
}

weft_status tools_finish(tool_list *list, const json_t *conversation, weft_prompt *out, weft_refusal *why) {
  bool hides = false;
  for (uint32_t i = 0; i < list->n; i++) hides = hides || (list->later[i] && !list->shows_all);
  if (hides) {
    json_t *names = json_object();
    bool done = names != NULL && collect_names(conversation, 0, names);
    if (done) hide_tools(list, names);
    json_decref(names);
    if (!done) return field_no_memory(why);
  }
  out->tools = list->n == 0 ? NULL : list->tool;
  out->n_tools = list->n;
  list->gen->tool = list->n == 0 ? NULL : list->origin;
  return WEFT_OK;
}

/* ---- which are called ---- */

weft_status tools_choose(weft_gen *gen, const weft_prompt *prompt, const char *word, const char *field,
                         weft_refusal *why) {
  gen->params.tool_choice = WEFT_TOOLS_AUTO;
  if (strcmp(word, "auto") == 0) return WEFT_OK;
  if (strcmp(word, "none") == 0) {
    gen->params.tool_choice = WEFT_TOOLS_NONE;
    return WEFT_OK;
  }
  if (strcmp(word, "required") != 0 && strcmp(word, "any") != 0) {
    return field_wrong(why, field, "\"none\", \"auto\", \"required\" (or \"any\") or a function");
  }
  if (prompt->n_tools == 0) {
    return weft_refuse(why, 400, "invalid_value", field, "%s asks for a call, and tools declares nothing to call",
                       field);
  }
  gen->params.tool_choice = WEFT_TOOLS_REQUIRED;
  return WEFT_OK;
}

/* Of the prompt's tools; n_tools: none has this name. */
static uint32_t find_named(const weft_gen *gen, const weft_prompt *prompt, const char *group, const char *name) {
  for (uint32_t i = 0; i < prompt->n_tools; i++) {
    const weft_tool_origin *o = gen->tool == NULL ? NULL : &gen->tool[i];
    bool other_group = group != NULL && (o == NULL || o->group == NULL || strcmp(o->group, group) != 0);
    if (other_group) continue;
    if (strcmp(prompt->tools[i].name, name) == 0 || (o != NULL && strcmp(o->name, name) == 0)) return i;
  }
  return prompt->n_tools;
}

weft_status tools_require(weft_gen *gen, const weft_prompt *prompt, const char *group, const char *name,
                          const char *field, weft_refusal *why) {
  if (name == NULL) return field_wrong(why, field, "a string");
  uint32_t i = find_named(gen, prompt, group, name);
  if (i == prompt->n_tools) {
    return weft_refuse(why, 400, "invalid_value", field,
                       "%s names '%.64s', which is not among the tools that can be called here", field, name);
  }
  gen->params.tool_choice = WEFT_TOOLS_NAMED;
  gen->params.named_tool = i;
  return WEFT_OK;
}

weft_status tools_allow(weft_gen *gen, weft_prompt *prompt, const json_t *allowed, const char *field,
                        tool_namer name_of, weft_refusal *why) {
  const json_t *tools = json_object_get(allowed, "tools"), *mode = field_of(allowed, "mode");
  size_t n = json_array_size(tools);
  weft_tool *kept = weft_gen_alloc(gen, n + 1, sizeof *kept);
  weft_tool_origin *origin = weft_gen_alloc(gen, n + 1, sizeof *origin);
  uint32_t n_kept = 0;
  if (!json_is_array(tools) || (mode != NULL && !json_is_string(mode))) {
    return field_wrong(why, field, "an object with a mode and a list of tools");
  }
  if (kept == NULL || origin == NULL) return field_no_memory(why);
  for (uint32_t i = 0; i < prompt->n_tools; i++) {
    bool named = false;
    for (size_t k = 0; k < n && !named; k++) {
      const char *name = name_of(json_array_get(tools, k));
      named = name != NULL &&
              (strcmp(prompt->tools[i].name, name) == 0 || (gen->tool != NULL && strcmp(gen->tool[i].name, name) == 0));
    }
    if (!named || n_kept > n) continue;
    kept[n_kept] = prompt->tools[i];
    origin[n_kept++] = gen->tool == NULL ? (weft_tool_origin){.name = prompt->tools[i].name} : gen->tool[i];
  }
  prompt->tools = kept;
  prompt->n_tools = n_kept;
  gen->tool = origin;
  return tools_choose(gen, prompt, mode == NULL ? "auto" : json_string_value(mode), field, why);
}
