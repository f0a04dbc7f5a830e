/* SPDX-License-Identifier: MIT */
#include "api/prompt_tools.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/text/json_tree.h"

static weft_status no_memory(weft_error *error) {
  return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the prompt");
}

/* Takes what the text has, read as JSON, off *left: nobody has looked at it yet. */
static weft_status count_json(const char *text, weft_json_size *left, const char *where, weft_error *error) {
  weft_json_size size;
  size_t at = 0;
  const char *what = NULL;
  if (!weft_json_scan(text, strlen(text), left, &size, &at, &what)) {
    if (size.depth > left->depth) {
      return weft_fail(error, WEFT_E_INVALID, "%s is nested more than %u levels deep", where, left->depth);
    }
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s, with the tools and calls before, has too many %s at byte %zu", where,
                     what, at);
  }
  left->values -= size.values;
  left->scalars -= size.scalars;
  return WEFT_OK;
}

/* A JSON object out of a text that came inside of a string. */
static weft_status read_object(const char *text, weft_json_size *left, json_t **out, const char *where,
                               weft_error *error) {
  json_error_t why;
  *out = NULL;
  if (text[strspn(text, " \t\r\n")] == 0) {
    *out = json_object();
    return *out == NULL ? no_memory(error) : WEFT_OK;
  }
  weft_status status = count_json(text, left, where, error);
  if (status != WEFT_OK) return status;
  *out = weft_json_read(text, strlen(text), 0, &why);
  if (json_is_object(*out)) return WEFT_OK;
  bool parsed = *out != NULL;
  json_decref(*out);
  *out = NULL;
  return weft_fail(error, WEFT_E_INVALID, "%s must be a JSON object as text%s%.120s", where, parsed ? "" : ": ",
                   parsed ? "" : why.text);
}

/* Takes value; false when memory was refused. A NULL text is left out. */
static bool put_value(json_t *object, const char *name, json_t *value) {
  return json_object_set_new(object, name, value) == 0;
}

static bool put_text(json_t *object, const char *name, const char *text) {
  return text == NULL || put_value(object, name, json_string(text));
}

/* Takes json; *out is its text. */
static weft_status write_json(json_t *json, char **out, weft_error *error) {
  weft_text text = {0};
  weft_json_write(json, &text);
  *out = weft_text_status(&text) == WEFT_OK ? weft_strndup(text.bytes, text.n) : NULL;
  weft_text_free(&text);
  json_decref(json);
  return *out == NULL ? no_memory(error) : WEFT_OK;
}

/* ---- declarations ---- */

static weft_status add_tool(json_t *list, const weft_tool *t, weft_json_size *left, weft_error *error) {
  char where[192];
  json_t *parameters = NULL, *tool = json_object(), *function = json_object();
  (void)snprintf(where, sizeof where, "the parameters of the tool '%.128s'", t->name);
  weft_status status = WEFT_OK;
  bool done = put_value(tool, "type", json_string("function")) && json_object_set(tool, "function", function) == 0 &&
              put_text(function, "name", t->name) && put_text(function, "description", t->description);
  if (t->parameters != NULL) status = read_object(t->parameters, left, &parameters, where, error);
  if (parameters != NULL) done = put_value(function, "parameters", parameters) && done;
  json_decref(function);
  done = json_array_append_new(list, tool) == 0 && done;
  return status == WEFT_OK && !done ? no_memory(error) : status;
}

weft_status prompt_tools_json(const weft_prompt *prompt, weft_json_size *left, char **out, weft_error *error) {
  *out = NULL;
  if (prompt->n_tools == 0) return WEFT_OK;
  json_t *list = json_array();
  weft_status status = list == NULL ? no_memory(error) : WEFT_OK;
  for (uint32_t i = 0; i < prompt->n_tools && status == WEFT_OK; i++) {
    status = add_tool(list, &prompt->tools[i], left, error);
  }
  if (status == WEFT_OK) return write_json(list, out, error);
  json_decref(list);
  return status;
}

/* ---- turns ---- */

static weft_status add_call(json_t *list, const weft_tool_call *c, weft_json_size *left, const char *where,
                            weft_error *error) {
  json_t *call = json_object(), *function = json_object();
  const char *arguments = c->arguments == NULL ? "" : c->arguments;
  weft_status status = count_json(arguments, left, where, error);
  bool done = put_text(call, "id", c->id) && put_value(call, "type", json_string("function")) &&
              json_object_set(call, "function", function) == 0 && put_text(function, "name", c->name);
  done = put_text(function, "arguments", arguments) && done;
  json_decref(function);
  done = json_array_append_new(list, call) == 0 && done;
  return status == WEFT_OK && !done ? no_memory(error) : status;
}

static weft_status add_calls(json_t *more, const weft_chat_turn *t, uint32_t turn, weft_json_size *left,
                             weft_error *error) {
  char where[96];
  json_t *list = json_array();
  weft_status status = put_value(more, "tool_calls", list) ? WEFT_OK : no_memory(error);
  for (uint32_t i = 0; i < t->n_calls && status == WEFT_OK; i++) {
    (void)snprintf(where, sizeof where, "messages[%u].tool_calls[%u].function.arguments", turn, i);
    status = add_call(list, &t->calls[i], left, where, error);
  }
  return status;
}

/* Sorts by id, and equal ids by their place in the conversation. */
static int compare_calls(const void *a, const void *b) {
  const prompt_call *x = a, *y = b;
  int by_id = strcmp(x->id, y->id);
  if (by_id != 0) return by_id;
  return x->place < y->place ? -1 : x->place > y->place;
}

weft_status prompt_calls_open(const weft_prompt *prompt, prompt_calls *out, weft_error *error) {
  size_t n = 0;
  *out = (prompt_calls){0};
  for (uint32_t i = 0; i < prompt->n_turns; i++) n += prompt->turns[i].n_calls;
  if (n == 0) return WEFT_OK;
  out->call = weft_alloc(n, sizeof *out->call);
  if (out->call == NULL) return no_memory(error);
  for (uint32_t i = 0; i < prompt->n_turns; i++) {
    const weft_chat_turn *t = &prompt->turns[i];
    for (uint32_t k = 0; k < t->n_calls; k++) {
      if (t->calls[k].id == NULL) continue;
      out->call[out->n++] = (prompt_call){t->calls[k].id, t->calls[k].name, (uint64_t)i << 32 | k};
    }
  }
  qsort(out->call, out->n, sizeof *out->call, compare_calls);
  return WEFT_OK;
}

void prompt_calls_close(prompt_calls *calls) {
  weft_free(calls->call);
  *calls = (prompt_calls){0};
}

const char *prompt_calls_name(const prompt_calls *calls, const char *id, uint32_t turn) {
  const prompt_call sought = {id, NULL, (uint64_t)turn << 32};
  size_t from = 0, to = calls->n; /* the last call below `sought` is searched for */
  while (from < to) {
    size_t middle = from + (to - from) / 2;
    if (compare_calls(&calls->call[middle], &sought) < 0) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  bool found = from > 0 && strcmp(calls->call[from - 1].id, id) == 0;
  return found ? calls->call[from - 1].name : NULL;
}

weft_status prompt_turn_json(const weft_prompt *prompt, const prompt_calls *calls, uint32_t turn, weft_json_size *left,
                             char **out, weft_error *error) {
  const weft_chat_turn *t = &prompt->turns[turn];
  const char *name = t->name;
  if (name == NULL && t->call_id != NULL) name = prompt_calls_name(calls, t->call_id, turn);
  *out = NULL;
  if (t->n_calls == 0 && t->call_id == NULL && name == NULL) return WEFT_OK;
  json_t *more = json_object();
  bool done = more != NULL && put_text(more, "tool_call_id", t->call_id) && put_text(more, "name", name);
  weft_status status = done ? WEFT_OK : no_memory(error);
  if (status == WEFT_OK && t->n_calls > 0) status = add_calls(more, t, turn, left, error);
  if (status == WEFT_OK) return write_json(more, out, error);
  json_decref(more);
  return status;
}
