/* SPDX-License-Identifier: MIT */
/* Calls that are not written as the form has them: in single quotes or without, with arguments as JSON inside of a
 * string, inside of "function", or as members beside the name. They are read once they are whole. */
#include <string.h>

#include "model/text/calls_internal.h"
#include "model/text/json_tree.h"

static void take_text(void *self, const char *text, size_t n) {
  weft_text_append(self, text, n);
}

/* The first of the members that the object has. */
static const json_t *find_member(const json_t *object, const char *const *names) {
  const json_t *value = NULL;
  for (; *names != NULL && value == NULL; names++) value = json_object_get(object, *names);
  return value;
}

static bool is_name(const json_t *value) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  const char *name = json_string_value(value);
  return name != NULL && name[0] != 0 && strspn(name, letters) == json_string_length(value);
}

/* Arguments as a string: they are its text, if that is an object. */
static bool read_string(const char *bytes, size_t n, const char *mark, weft_text *out) {
  json_mend mend = {.mark = mark, .self = out, .take = take_text};
  while (n > 0 && calls_is_blank(bytes[n - 1])) n -= 1;
  while (n > 0 && calls_is_blank(*bytes)) bytes += 1, n -= 1;
  if (n == 0) weft_text_puts(out, "{}");
  if (n == 0 || bytes[0] != '{') return n == 0;
  return json_mend_read(&mend, bytes, n, true) == n && json_mend_done(&mend);
}

/* Members beside the name, where nothing is called the arguments. */
static void read_others(json_t *call, weft_text *out) {
  static const char *const own[] = {"name", "tool", "tool_name", "function", "id", "type", "index"};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) (void)json_object_del(call, own[i]);
  weft_json_write(call, out);
}

/* The name and the arguments of a call; NULL: it is none. */
static const char *read_call(json_t *call, const char *mark, weft_text *out) {
  static const char *const names[] = {"name", "tool", "tool_name", "function", NULL}, *const places[] = {
                                                                                          "arguments", "parameters",
                                                                                          "args",      "kwargs",
                                                                                          "input",     NULL};
  json_t *function = json_object_get(call, "function");
  if (json_is_object(function)) call = function;
  const json_t *name = find_member(call, names), *arguments = find_member(call, places);
  if (!is_name(name)) return NULL;
  if (json_is_string(arguments)) {
    bool object = read_string(json_string_value(arguments), json_string_length(arguments), mark, out);
    return object ? json_string_value(name) : NULL;
  }
  if (json_is_object(arguments)) {
    weft_json_write(arguments, out);
  } else if (arguments != NULL && !json_is_null(arguments)) {
    return NULL;
  } else if (arguments != NULL) {
    weft_text_puts(out, "{}");
  } else {
    name = json_incref((json_t *)(uintptr_t)name);
    read_others(call, out);
    (void)json_object_set_new(call, "name", (json_t *)(uintptr_t)name);
  }
  return json_string_value(name);
}

bool calls_drift_head(weft_call_reader *r, size_t from) {
  weft_text text = {0}, arguments = {0};
  if (r->held.n - from > CALLS_HELD_MAX) return calls_refuse_head(r);
  calls_mend_open(r, NULL);
  json_mend mend = r->mend;
  mend.self = &text;
  mend.take = take_text;
  size_t n = json_mend_read(&mend, r->held.bytes + from, r->held.n - from, r->last);
  bool whole = json_mend_done(&mend), taken = false;
  json_t *call = whole && text.n > 0 ? weft_json_read(text.bytes, text.n, WEFT_JSON_ZEROS, NULL) : NULL;
  const char *name = call == NULL ? NULL : read_call(call, mend.mark, &arguments);
  if (text.refused || arguments.refused) r->held.refused = true;
  if (name != NULL && !arguments.refused) {
    taken = calls_give_whole(r, name, strlen(name), arguments.bytes, arguments.n, from + n);
  } else if (whole || r->last) {
    taken = calls_refuse_head(r);
  }
  json_decref(call);
  weft_text_free(&text);
  weft_text_free(&arguments);
  return taken;
}
