/* SPDX-License-Identifier: MIT */
/* Which text of the messages, and which tools, are missing in what a template printed of them. */
#include <string.h>

#include "base/memory.h"
#include "model/text/chat_messages.h"
#include "model/text/json_tree.h"

/* A walk through the messages and tools, in the order in which their bytes are numbered. */
typedef struct walk {
  const bool *printed; /* of each number, whether it is in the output */
  size_t n, at;        /* n: numbers; at: the next */
} walk;

/* ---- which losses are none ---- */

/* Markers around what a model thought. */
static const char *const thoughts[][2] = {{"<think>", "</think>"},
                                          {"<|channel>", "<channel|>"},
                                          {"<thinking>", "</thinking>"},
                                          {"[THINK]", "[/THINK]"},
                                          {"<seed:think>", "</seed:think>"},
                                          {"<reasoning>", "</reasoning>"},
                                          {"<|START_THINKING|>", "<|END_THINKING|>"}};

/* Where the answer begins behind what the model thought, and where a thought without an end begins. */
static void find_answer(const char *text, size_t n, size_t *from, size_t *to) {
  *from = 0;
  *to = n;
  for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++) {
    const char *behind = text;
    for (const char *at; (at = strstr(behind, thoughts[i][1])) != NULL;) behind = at + strlen(thoughts[i][1]);
    const char *open = strstr(behind, thoughts[i][0]);
    if ((size_t)(behind - text) > *from) *from = (size_t)(behind - text);
    if (open != NULL && (size_t)(open - text) < *to) *to = (size_t)(open - text);
  }
}

/* Letters, digits and signs of other scripts: what carries meaning. Blanks and punctuation are what templates cut off,
 * escape and put between parts. */
static bool is_of_word(uint32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  return c != 0x85 && c != 0xA0 && c != 0x1680 && !(c >= 0x2000 && c <= 0x200B) && c != 0x2028 && c != 0x2029 &&
         c != 0x202F && c != 0x205F && c != 0x3000 && c != 0xFEFF;
}

static bool is_printed(const walk *w, size_t i) {
  return w->at + i < w->n && w->printed[w->at + i];
}

/* Whether the bytes [from, to) of the text that is next arrived: every letter of it; where it has none, a part of it.
 * */
static bool has_arrived(const walk *w, const char *text, size_t from, size_t to) {
  bool words = false, any = false, blank = true;
  for (size_t i = from; i < to;) {
    uint32_t c = 0;
    size_t n = weft_utf8_decode(text + i, to - i, &c);
    bool word = n > 0 && is_of_word(c);
    if (word && !is_printed(w, i)) return false;
    words = words || word;
    any = any || is_printed(w, i);
    blank = blank && strchr(" \t\r\n", text[i]) != NULL;
    i += n == 0 ? 1 : n;
  }
  return words || any || blank;
}

/* ---- the walk ---- */

/* Goes on behind a value; false: some of its text did not arrive. */
static bool pass_value(walk *w, const json_t *json) {
  bool arrived = true;
  size_t i;
  const char *name;
  json_t *value;
  if (json_is_string(json)) {
    size_t n = json_string_length(json);
    arrived = has_arrived(w, json_string_value(json), 0, n);
    w->at += n;
  }
  json_array_foreach(json, i, value) arrived = pass_value(w, value) && arrived;
  if (weft_json_written(json) != NULL) return true; /* a number */
  json_object_foreach((json_t *)(uintptr_t)json, name, value) {
    arrived = has_arrived(w, name, 0, strlen(name)) && arrived;
    w->at += strlen(name);
    arrived = pass_value(w, value) && arrived;
  }
  return arrived;
}

static bool pass_content(walk *w, const json_t *content, bool answers) {
  if (!json_is_string(content) || !answers) return pass_value(w, content);
  const char *text = json_string_value(content);
  size_t n = json_string_length(content), from, to;
  find_answer(text, n, &from, &to);
  bool arrived = from >= to || has_arrived(w, text, from, to);
  w->at += n;
  return arrived;
}

/* What arrived of a call, or of a tool. */
typedef struct parts_seen {
  bool name, arguments, id;
  const char *name_text, *id_text;
} parts_seen;

/* Of a call its name and its arguments are text; its id and its type are not. */
static void pass_parts(walk *w, const json_t *json, parts_seen *seen) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)json, name, value) {
    w->at += strlen(name);
    if (strcmp(name, "function") == 0 && json_is_object(value)) {
      pass_parts(w, value, seen);
      continue;
    }
    bool passed = pass_value(w, value);
    if (strcmp(name, "name") == 0) {
      seen->name = passed;
      seen->name_text = json_string_value(value);
    } else if (strcmp(name, "arguments") == 0) {
      seen->arguments = passed;
    } else if (strcmp(name, "id") == 0) {
      seen->id = passed;
      seen->id_text = json_string_value(value);
    }
  }
}

/* Where ids of calls have their names in them, a template may print the id alone. */
static bool pass_call(walk *w, const json_t *call) {
  parts_seen seen = {.name = true, .arguments = true};
  if (!json_is_object(call)) return pass_value(w, call);
  pass_parts(w, call, &seen);
  bool by_id = seen.id && seen.id_text != NULL && seen.name_text != NULL &&
               chat_messages_is_function_id(seen.id_text, seen.name_text);
  return seen.arguments && (seen.name || by_id);
}

/* other: no way of telling can help; that is what is named. */
static void mark_lost(chat_lost *out, uint32_t i, const char *role, const char *what, bool other) {
  if (!out->any || (other && !out->other)) {
    out->message = i;
    out->role = role;
    out->what = what;
  }
  out->any = true;
  out->other = out->other || other;
}

static void pass_message(walk *w, const json_t *message, uint32_t i, chat_lost *out) {
  const char *role = json_string_value(json_object_get(message, "role")), *name;
  bool answers = role != NULL && strcmp(role, "assistant") == 0;
  bool system = role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
  bool result = role != NULL && strcmp(role, "tool") == 0;
  bool beside = json_array_size(json_object_get(message, "tool_calls")) > 0;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)message, name, value) {
    w->at += strlen(name);
    if (strcmp(name, "content") == 0) {
      if (pass_content(w, value, answers)) continue;
      mark_lost(out, i, role, "its text", !(system || beside || result));
      out->dimension[CHAT_SYSTEM] = out->dimension[CHAT_SYSTEM] || system;
      out->dimension[CHAT_CALLS] = out->dimension[CHAT_CALLS] || result;
      out->dimension[CHAT_BESIDE] = out->dimension[CHAT_BESIDE] || beside;
    } else if (strcmp(name, "tool_calls") == 0 && json_is_array(value)) {
      for (size_t k = 0; k < json_array_size(value); k++) {
        if (pass_call(w, json_array_get(value, k))) continue;
        mark_lost(out, i, role, "a call", false);
        out->dimension[CHAT_ARGUMENTS] = out->dimension[CHAT_CALLS] = out->dimension[CHAT_IDS] = true;
      }
    } else {
      (void)pass_value(w, value);
    }
  }
}

/* Of a tool its name is what the model calls it by; how much of the rest is shown is for the template to say. */
static void pass_tool(walk *w, const json_t *tool, chat_lost *out) {
  parts_seen seen = {.name = true};
  pass_parts(w, tool, &seen);
  if (!seen.name && out->tool == NULL) out->tool = seen.name_text == NULL ? "" : seen.name_text;
}

weft_status chat_messages_lost(const json_t *messages, const json_t *tools, const weft_jinja_text *text,
                               chat_lost *out) {
  size_t n = 0;
  *out = (chat_lost){0};
  for (size_t i = 0; i < text->n; i++) {
    if (text->marks[i] >= WEFT_JINJA_TRACED + n) n = text->marks[i] - WEFT_JINJA_TRACED + 1;
  }
  bool *printed = weft_alloc(n + 1, sizeof *printed);
  if (printed == NULL) return WEFT_E_NO_MEMORY;
  for (size_t i = 0; i < text->n; i++) {
    if (text->marks[i] >= WEFT_JINJA_TRACED) printed[text->marks[i] - WEFT_JINJA_TRACED] = true;
  }
  walk w = {.printed = printed, .n = n};
  for (size_t i = 0; i < json_array_size(messages); i++) {
    pass_message(&w, json_array_get(messages, i), (uint32_t)i, out);
  }
  for (size_t i = 0; i < json_array_size(tools); i++) pass_tool(&w, json_array_get(tools, i), out);
  weft_free(printed);
  return WEFT_OK;
}
