/* SPDX-License-Identifier: MIT */
#include "model/text/chat_messages.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/text/json_mend.h"
#include "model/text/json_tree.h"

/* ---- reading ---- */

/* Takes value; false when memory was refused. */
static bool put_member(json_t *object, const char *name, json_t *value) {
  return json_object_set_new(object, name, value) == 0;
}

/* Bytes that are no UTF-8 become U+FFFD. */
static json_t *text_value(const char *text, size_t n) {
  if (n == 0) return json_string("");
  if (weft_utf8_valid(text, n, NULL)) return json_stringn(text, n);
  weft_text repaired = {0};
  weft_utf8_repair(text, n, &repaired);
  json_t *value = weft_text_status(&repaired) == WEFT_OK ? json_stringn(repaired.bytes, repaired.n) : NULL;
  weft_text_free(&repaired);
  return value;
}

static weft_status no_memory(weft_error *error) {
  return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while writing the prompt");
}

static weft_status read_more(const char *text, json_t *message, weft_error *error) {
  json_error_t why;
  json_t *more = weft_json_read(text, strlen(text), 0, &why);
  if (!json_is_object(more)) {
    json_decref(more);
    return weft_fail(error, WEFT_E_INVALID, "the further members of a message must be a JSON object%s%s",
                     more == NULL ? ": " : "", more == NULL ? why.text : "");
  }
  bool done = json_object_update(message, more) == 0;
  json_decref(more);
  return done ? WEFT_OK : no_memory(error);
}

/* A message with a call has room for thinking or for content, so there the content stays. */
static bool has_room(const json_t *message, const weft_chat_message *m) {
  return m->thinking != NULL && (json_object_get(message, "tool_calls") == NULL || m->n_content == 0);
}

static weft_status add_message(json_t *list, const weft_chat_message *m, const char *thinking, weft_error *error) {
  json_t *message = json_object();
  bool done = put_member(message, "role", json_string(m->role)) &&
              put_member(message, "content", text_value(m->content, m->n_content));
  if (m->thinking != NULL)
    done = done && put_member(message, "reasoning_content", text_value(m->thinking, m->n_thinking));
  weft_status status = done ? WEFT_OK : no_memory(error);
  if (status == WEFT_OK && m->more != NULL) status = read_more(m->more, message, error);
  if (status == WEFT_OK && thinking != NULL && has_room(message, m) &&
      !put_member(message, thinking, text_value(m->thinking, m->n_thinking)))
    status = no_memory(error);
  if (json_array_append_new(list, message) != 0) return no_memory(error);
  return status;
}

weft_status chat_messages_read(const weft_chat_message *messages, uint32_t n, const char *thinking, json_t **out,
                               weft_error *error) {
  json_t *list = *out = json_array();
  weft_status status = list == NULL ? no_memory(error) : WEFT_OK;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) status = add_message(list, &messages[i], thinking, error);
  if (status == WEFT_OK) return WEFT_OK;
  json_decref(list);
  *out = NULL;
  return status;
}

/* ---- asking ---- */

static const char *role_of(const json_t *message) {
  const char *role = json_string_value(json_object_get(message, "role"));
  return role == NULL ? "" : role;
}

static bool is_role(const json_t *message, const char *role) {
  return strcmp(role_of(message), role) == 0;
}

static bool is_system(const json_t *message) {
  return is_role(message, "system") || is_role(message, "developer");
}

static const char *content_of(const json_t *message) {
  const char *content = json_string_value(json_object_get(message, "content"));
  return content == NULL ? "" : content;
}

static bool is_blank_text(const char *text) {
  return text[strspn(text, " \t\r\n")] == 0;
}

static bool has_calls(const json_t *message) {
  return json_array_size(json_object_get(message, "tool_calls")) > 0;
}

static json_t *function_of(const json_t *call) {
  json_t *function = json_object_get(call, "function");
  return json_is_object(function) ? function : (json_t *)(uintptr_t)call;
}

static bool has_nameless_call(const json_t *message) {
  size_t i;
  json_t *call;
  json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
    if (!json_is_string(json_object_get(function_of(call), "name"))) return true;
  }
  return false;
}

static bool has_text_beside(const json_t *message) {
  return has_calls(message) && !is_blank_text(content_of(message));
}

/* ---- arguments ---- */

static void take_text(void *self, const char *text, size_t n) {
  weft_text_append(self, text, n);
}

/* The object that the text is, or would be if it went on; NULL: none, or memory was refused (*refused). */
static json_t *read_object(const char *text, bool inner, bool *refused) {
  size_t n = strlen(text), from = strspn(text, " \t\r\n");
  while (n > from && strchr(" \t\r\n", text[n - 1]) != NULL) n -= 1;
  if (from == n) return json_object();
  json_t *json = weft_json_read(text + from, n - from, JSON_DECODE_ANY, NULL);
  if (json_is_object(json)) return json;
  json_t *object = json_is_string(json) && inner ? read_object(json_string_value(json), false, refused) : NULL;
  json_decref(json);
  if (object != NULL || text[from] != '{' || json != NULL) return object;
  weft_text mended = {0};
  json_mend mend = {.self = &mended, .take = take_text};
  size_t n_read = json_mend_read(&mend, text + from, n - from, true);
  bool more = json_mend_done(&mend) && n_read < n - from; /* a text that goes on is no object */
  if (!json_mend_done(&mend)) json_mend_close(&mend, text + from + n_read, n - from - n_read);
  if (!more && mended.n > 0 && !mended.refused) object = weft_json_read(mended.bytes, mended.n, 0, NULL);
  *refused = *refused || mended.refused;
  weft_text_free(&mended);
  return object;
}

static json_t *wrap_text(const char *text) {
  json_t *object = json_object();
  if (put_member(object, "arguments", json_string(text))) return object;
  json_decref(object);
  return NULL;
}

/* A new value. */
static json_t *tell_arguments(json_t *given, uint8_t way) {
  const char *text = json_string_value(given);
  if (text == NULL && way != CHAT_ARGUMENTS_TEXTS) return json_incref(given);
  if (text == NULL) {
    weft_text written = {0};
    weft_json_write(given, &written);
    json_t *value = weft_text_status(&written) == WEFT_OK ? json_stringn(written.bytes, written.n) : NULL;
    weft_text_free(&written);
    return value;
  }
  if (way == CHAT_ARGUMENTS_TEXTS) return json_string(is_blank_text(text) ? "{}" : text);
  bool refused = false;
  json_t *object = read_object(text, true, &refused);
  if (object != NULL || refused) return object;
  return way == CHAT_ARGUMENTS_WRAPPED ? wrap_text(text) : json_incref(given);
}

static bool tell_calls(json_t *messages, uint8_t way) {
  size_t i, k;
  json_t *message, *call;
  json_array_foreach(messages, i, message) {
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
      json_t *given = json_object_get(function_of(call), "arguments");
      if (given != NULL && !put_member(function_of(call), "arguments", tell_arguments(given, way))) return false;
    }
  }
  return true;
}

static bool has_odd_arguments(const json_t *messages) {
  size_t i, k;
  json_t *message, *call;
  json_array_foreach(messages, i, message) {
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
      const char *text = json_string_value(json_object_get(function_of(call), "arguments"));
      bool refused = false;
      json_t *object = text == NULL ? NULL : read_object(text, true, &refused);
      bool odd = text != NULL && object == NULL && !refused;
      json_decref(object);
      if (odd) return true;
    }
  }
  return false;
}

/* ---- ids ---- */

static bool is_short_id(const char *id) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  return strlen(id) == 9 && strspn(id, letters) == 9;
}

/* Nine letters and digits that stand for the id; where there is none, for the place of the call. */
static json_t *short_id(const char *id, uint64_t place) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  char out[10] = {0};
  if (id != NULL && is_short_id(id)) return json_string(id);
  uint64_t hash = weft_mix64(place + 1);
  for (const char *at = id; at != NULL && *at != 0; at++) hash = weft_mix64(hash ^ (unsigned char)*at);
  for (int i = 0; i < 9; i++, hash /= 36) out[i] = letters[hash % 36];
  return json_string(out);
}

/* The k-th result without an id, since the last calls, answers the k-th of them. */
static bool tell_ids(json_t *messages) {
  size_t i, k;
  uint64_t calls_at = 0, n_results = 0;
  json_t *message, *call;
  json_array_foreach(messages, i, message) {
    bool calls = has_calls(message), result = is_role(message, "tool");
    if (calls) calls_at = (uint64_t)(i + 1) << 32;
    if (calls) n_results = 0;
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
      const char *id = json_string_value(json_object_get(call, "id"));
      if (!put_member(call, "id", short_id(id, id == NULL ? calls_at + k : 0))) return false;
    }
    if (!result) continue;
    const char *id = json_string_value(json_object_get(message, "tool_call_id"));
    if (!put_member(message, "tool_call_id", short_id(id, id == NULL ? calls_at + n_results : 0))) return false;
    n_results += 1;
  }
  return true;
}

bool chat_messages_is_function_id(const char *id, const char *name) {
  static const char head[] = "functions.";
  size_t n = strlen(name), n_head = sizeof head - 1;
  if (strncmp(id, head, n_head) != 0 || strncmp(id + n_head, name, n) != 0 || id[n_head + n] != ':') return false;
  const char *index = id + n_head + n + 1;
  return *index != 0 && index[strspn(index, "0123456789")] == 0;
}

/* The id of the call that is number `at` of the conversation. */
static bool tell_function_id(json_t *call, uint64_t at, json_t *of_id) {
  const char *name = json_string_value(json_object_get(function_of(call), "name")),
             *id = json_string_value(json_object_get(call, "id"));
  if (name == NULL) return true;
  weft_text text = {0};
  if (id != NULL && chat_messages_is_function_id(id, name)) {
    weft_text_puts(&text, id);
  } else {
    weft_text_printf(&text, "functions.%s:%llu", name, (unsigned long long)at);
  }
  json_t *told = weft_text_status(&text) == WEFT_OK ? json_stringn(text.bytes, text.n) : NULL;
  weft_text_free(&text);
  bool done =
      told != NULL && (id == NULL || json_object_set(of_id, id, told) == 0); /* the id lives in the call until then */
  return put_member(call, "id", told) && done;
}

/* Equal ids stay equal; the k-th result without one, since the last calls, answers the k-th of them. */
static bool tell_function_ids(json_t *messages) {
  json_t *of_id = json_object(), *message, *call, *calls = NULL;
  uint64_t n_calls = 0;
  size_t i, k, n_results = 0;
  bool done = of_id != NULL;
  json_array_foreach(messages, i, message) {
    if (has_calls(message)) {
      calls = json_object_get(message, "tool_calls");
      n_results = 0;
      json_array_foreach(calls, k, call) done = tell_function_id(call, n_calls++, of_id) && done;
    }
    if (!is_role(message, "tool")) continue;
    const char *id = json_string_value(json_object_get(message, "tool_call_id"));
    json_t *told = id != NULL ? json_object_get(of_id, id) : json_object_get(json_array_get(calls, n_results), "id");
    n_results += 1;
    if (told != NULL) done = json_object_set(message, "tool_call_id", told) == 0 && done;
  }
  json_decref(of_id);
  return done;
}

/* ---- moving text ---- */

/* A list of messages that is being made. The text of its last message may go on, so that joining many costs no more
 * than their length. */
typedef struct telling {
  json_t *list, *last; /* last: of the list, borrowed */
  weft_text text;      /* of the last message, where others were joined to it */
  bool joined;         /* they were */
  bool failed;         /* memory was refused */
} telling;

static void settle_last(telling *t) {
  if (t->joined && !t->failed) {
    bool written = weft_text_status(&t->text) == WEFT_OK;
    t->failed = !written || !put_member(t->last, "content", json_stringn(t->text.bytes, t->text.n));
  }
  weft_text_clear(&t->text);
  t->joined = false;
}

/* Takes message. */
static void add_told(telling *t, json_t *message) {
  settle_last(t);
  t->last = message;
  t->failed = json_array_append_new(t->list, message) != 0 || t->failed;
}

/* The text becomes a paragraph at the end of the last message. */
static void join_text(telling *t, const char *text) {
  if (!t->joined) weft_text_puts(&t->text, content_of(t->last));
  t->joined = true;
  if (is_blank_text(text)) return;
  if (t->text.n > 0) weft_text_puts(&t->text, "\n\n");
  weft_text_puts(&t->text, text);
}

/* A message as it is but for its role. */
static void add_as(telling *t, json_t *message, const char *role) {
  json_t *copy = json_copy(message);
  t->failed = !put_member(copy, "role", json_string(role)) || t->failed;
  add_told(t, copy);
}

/* A message of the system in the midst of a conversation, as the user's: with what the user says beside it. */
static void add_late(telling *t, json_t *message) {
  if (t->last != NULL && is_role(t->last, "user")) {
    join_text(t, content_of(message));
  } else {
    add_as(t, message, "user");
    join_text(t, "");
  }
}

static void add_system(telling *t, json_t *message, uint8_t way) {
  bool leads = json_array_size(t->list) == 0 || (json_array_size(t->list) == 1 && is_role(t->last, "system"));
  bool is_users = way == CHAT_SYSTEM_USER || (way == CHAT_SYSTEM_LATE && !leads);
  if (is_users) {
    add_late(t, message);
  } else if (way == CHAT_SYSTEM_LATE && t->last != NULL) {
    join_text(t, content_of(message));
  } else {
    add_as(t, message, "system");
  }
}

/* All that the system says becomes one message at the beginning. */
static void add_all_systems(telling *t, const json_t *messages, const char *role) {
  size_t i;
  json_t *message;
  json_array_foreach(messages, i, message) {
    if (!is_system(message)) continue;
    if (t->last == NULL) {
      add_as(t, message, role);
      if (strcmp(role, "user") == 0) join_text(t, "");
    } else {
      join_text(t, content_of(message));
    }
  }
}

static void tell_system(telling *t, const json_t *messages, uint8_t way) {
  size_t i;
  json_t *message;
  bool first = way == CHAT_SYSTEM_JOINED || way == CHAT_SYSTEM_OPENS;
  if (first) add_all_systems(t, messages, way == CHAT_SYSTEM_JOINED ? "system" : "user");
  json_array_foreach(messages, i, message) {
    bool joins = t->joined && is_role(message, "user") && is_role(t->last, "user");
    if (is_system(message) && way != CHAT_SYSTEM_AS_GIVEN) {
      if (!first) add_system(t, message, way);
    } else if (joins) { /* to what was the system's */
      join_text(t, content_of(message));
    } else {
      add_told(t, json_incref(message));
    }
  }
}

static void tell_beside(telling *t, const json_t *messages, uint8_t way) {
  size_t i;
  json_t *message;
  json_array_foreach(messages, i, message) {
    if (way == CHAT_BESIDE_AS_GIVEN || !has_text_beside(message)) {
      add_told(t, json_incref(message));
      continue;
    }
    json_t *calls = json_copy(message);
    t->failed = !put_member(calls, "content", json_string("")) || t->failed;
    if (way == CHAT_BESIDE_JOINED && t->last != NULL) {
      join_text(t, content_of(message));
    } else {
      json_t *apart = json_object();
      t->failed = !put_member(apart, "role", json_string("assistant")) ||
                  json_object_set(apart, "content", json_object_get(message, "content")) != 0 || t->failed;
      add_told(t, apart);
    }
    add_told(t, calls);
  }
}

/* The message with the results of several calls, from `from` to `to`: that of the call, or NULL. *taken: which were. */
static json_t *find_result(const json_t *messages, size_t from, size_t to, const json_t *call, size_t place,
                           const bool *taken, size_t *at) {
  const char *id = json_string_value(json_object_get(call, "id"));
  *at = from + place;
  for (size_t i = from; i <= to && from < to; i++) {
    size_t k = i == from && from + place < to ? from + place : i - 1; /* first where it is usually */
    json_t *result = k < from ? NULL : json_array_get(messages, k);
    const char *of = json_string_value(json_object_get(result, "tool_call_id"));
    *at = k;
    if (result != NULL && !taken[k - from] && (id == NULL || of == NULL ? k == from + place : strcmp(id, of) == 0))
      return result;
  }
  return NULL;
}

/* Results that no call has asked for come behind the last one. */
static void add_each(telling *t, const json_t *messages, size_t i, size_t to) {
  json_t *message = json_array_get(messages, i), *call;
  size_t k, at, n = to - i - 1;
  bool *taken = weft_alloc(n + 1, sizeof *taken);
  t->failed = taken == NULL || t->failed;
  json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
    json_t *one = json_copy(message), *list = json_array();
    if (t->failed || json_array_append(list, call) != 0 || !put_member(one, "tool_calls", list) ||
        (k > 0 && !put_member(one, "content", json_string("")))) {
      t->failed = true;
      json_decref(one);
      break;
    }
    add_told(t, one);
    json_t *result = find_result(messages, i + 1, to, call, k, taken, &at);
    if (result == NULL) continue;
    taken[at - i - 1] = true;
    add_told(t, json_incref(result));
  }
  for (k = 0; k < n && !t->failed; k++) {
    if (!taken[k]) add_told(t, json_incref(json_array_get(messages, i + 1 + k)));
  }
  weft_free(taken);
}

static void tell_each(telling *t, const json_t *messages) {
  for (size_t i = 0, to; i < json_array_size(messages); i = to) {
    json_t *message = json_array_get(messages, i);
    to = i + 1;
    if (json_array_size(json_object_get(message, "tool_calls")) < 2) {
      add_told(t, json_incref(message));
      continue;
    }
    while (to < json_array_size(messages) && is_role(json_array_get(messages, to), "tool")) to += 1;
    add_each(t, messages, i, to);
  }
}

/* Whether a call of the message before (NULL: there is none) has asked for the result, the n-th behind it. */
static bool is_asked_for(const json_t *result, const json_t *calls, size_t n) {
  const char *id = json_string_value(json_object_get(result, "tool_call_id"));
  size_t i;
  json_t *call;
  if (id == NULL) return n < json_array_size(calls);
  json_array_foreach(calls, i, call) {
    const char *of = json_string_value(json_object_get(call, "id"));
    if (of == NULL ? i == n : strcmp(of, id) == 0) return true;
  }
  return false;
}

/* A result as the user's words. */
static void add_result_text(telling *t, const json_t *result) {
  const char *name = json_string_value(json_object_get(result, "name"));
  weft_text text = {0};
  weft_text_puts(&text, name == NULL ? "Result:\n" : "Result of ");
  weft_text_puts(&text, name == NULL ? "" : name);
  weft_text_puts(&text, name == NULL ? "" : ":\n");
  weft_text_puts(&text, content_of(result));
  json_t *message = json_object();
  bool made = weft_text_status(&text) == WEFT_OK && put_member(message, "role", json_string("user")) &&
              put_member(message, "content", json_stringn(text.bytes, text.n));
  t->failed = t->failed || !made;
  if (made) add_late(t, message);
  json_decref(message);
  weft_text_free(&text);
}

/* {"name":...,"arguments":...}, in a list where there are several. */
static void write_calls(const json_t *calls, weft_text *out) {
  size_t i;
  json_t *call;
  bool several = json_array_size(calls) > 1;
  weft_text_puts(out, several ? "[" : "");
  json_array_foreach(calls, i, call) {
    json_t *told = json_object(), *function = function_of(call), *arguments = json_object_get(function, "arguments");
    if (told == NULL || json_object_set(told, "name", json_object_get(function, "name")) != 0 ||
        (arguments != NULL && json_object_set(told, "arguments", arguments) != 0)) {
      out->refused = true;
    } else {
      weft_text_puts(out, i > 0 ? ", " : "");
      weft_json_write(told, out);
    }
    json_decref(told);
  }
  weft_text_puts(out, several ? "]" : "");
}

/* Calls as text of the assistant, behind what it said beside them. */
static void add_calls_text(telling *t, const json_t *message) {
  weft_text text = {0};
  json_t *copy = json_copy((json_t *)(uintptr_t)message);
  weft_text_puts(&text, content_of(message));
  weft_text_puts(&text, is_blank_text(content_of(message)) ? "" : "\n");
  write_calls(json_object_get(message, "tool_calls"), &text);
  bool made = weft_text_status(&text) == WEFT_OK && put_member(copy, "content", json_stringn(text.bytes, text.n)) &&
              json_object_del(copy, "tool_calls") == 0;
  t->failed = t->failed || !made;
  if (copy != NULL) add_told(t, copy);
  weft_text_free(&text);
}

/* Calls and results of which a template knows nothing, as text; CHAT_CALLS_ORPHANS: results without their calls. */
static void tell_as_text(telling *t, const json_t *messages, uint8_t way) {
  const json_t *calls = NULL;
  size_t i, n_results = 0;
  json_t *message;
  json_array_foreach(messages, i, message) {
    bool result = is_role(message, "tool"), asked = result && is_asked_for(message, calls, n_results);
    n_results = result ? n_results + 1 : 0;
    if (!result) calls = json_object_get(message, "tool_calls");
    if (result && (way == CHAT_CALLS_TEXT || !asked)) {
      add_result_text(t, message);
    } else if (has_calls(message) && way == CHAT_CALLS_TEXT) {
      add_calls_text(t, message);
    } else if (t->joined && is_role(message, "user") && is_role(t->last, "user")) { /* behind a result */
      join_text(t, content_of(message));
    } else {
      add_told(t, json_incref(message));
    }
  }
}

static void tell_calls_so(telling *t, const json_t *messages, uint8_t way) {
  if (way == CHAT_CALLS_EACH) {
    tell_each(t, messages);
  } else {
    tell_as_text(t, messages, way);
  }
}

/* What one of the two says in a row becomes one message; calls stay in messages of their own. */
static bool goes_on(const json_t *before, const json_t *message) {
  const char *role = role_of(message);
  bool speaks = strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0;
  return before != NULL && speaks && is_role(before, role) && !has_calls(before) && !has_calls(message);
}

static void tell_rows(telling *t, const json_t *messages, uint8_t way) {
  size_t i;
  json_t *message;
  (void)way;
  json_array_foreach(messages, i, message) {
    if (!goes_on(t->last, message)) {
      add_told(t, json_incref(message));
      continue;
    }
    if (!t->joined) { /* the list's own from here on: it changes */
      json_t *copy = json_copy(t->last);
      t->failed = copy == NULL || json_array_set_new(t->list, json_array_size(t->list) - 1, copy) != 0 || t->failed;
      if (!t->failed) t->last = copy;
    }
    join_text(t, content_of(message));
  }
}

/* A new list; takes messages. */
static json_t *tell_again(json_t *messages, void (*tell)(telling *, const json_t *, uint8_t), uint8_t way) {
  telling t = {.list = json_array()};
  if (messages == NULL || t.list == NULL || way == 0) {
    json_decref(t.list);
    return messages;
  }
  tell(&t, messages, way);
  settle_last(&t);
  weft_text_free(&t.text);
  json_decref(messages);
  if (!t.failed) return t.list;
  json_decref(t.list);
  return NULL;
}

json_t *chat_messages_tell(const json_t *messages, chat_way way, bool short_ids) {
  json_t *told = json_deep_copy(messages);
  if (told == NULL) return NULL;
  bool done = (!short_ids || tell_ids(told)) && tell_calls(told, way.level[CHAT_ARGUMENTS]);
  if (!done || (way.level[CHAT_IDS] == CHAT_IDS_FUNCTIONS && !tell_function_ids(told))) {
    json_decref(told);
    return NULL;
  }
  told = tell_again(told, tell_system, way.level[CHAT_SYSTEM]);
  told = tell_again(told, tell_beside, way.level[CHAT_BESIDE]);
  told = tell_again(told, tell_calls_so, way.level[CHAT_CALLS]);
  return tell_again(told, tell_rows, way.level[CHAT_ROWS]);
}

uint64_t chat_messages_cost(const json_t *json) {
  enum { PART = 64 };
  uint64_t cost = PART + (json_is_string(json) ? json_string_length(json) : 0);
  size_t i;
  const char *name;
  json_t *value;
  json_array_foreach(json, i, value) cost += chat_messages_cost(value);
  json_object_foreach((json_t *)(uintptr_t)json, name, value) cost += strlen(name) + chat_messages_cost(value);
  return cost;
}

void chat_messages_ways(const json_t *messages, chat_ways out) {
  size_t i;
  json_t *message;
  const json_t *asking = NULL; /* calls of the message before results */
  size_t n_results = 0;
  bool developer = false, system = false, late = false, calls = false, beside = false, several = false;
  bool results = false, orphans = false, nameless = false, rows = false;
  json_array_foreach(messages, i, message) {
    developer = developer || is_role(message, "developer");
    late = late || (is_system(message) && i > 0);
    system = system || is_system(message);
    calls = calls || has_calls(message);
    beside = beside || has_text_beside(message);
    several = several || json_array_size(json_object_get(message, "tool_calls")) > 1;
    nameless = nameless || has_nameless_call(message);
    const char *role = role_of(message);
    bool speaks = strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0; /* calls may become text */
    rows = rows || (i > 0 && speaks && is_role(json_array_get(messages, i - 1), role));
    bool result = is_role(message, "tool");
    orphans = orphans || (result && !is_asked_for(message, asking, n_results));
    results = results || result;
    n_results = result ? n_results + 1 : 0;
    if (!result) asking = json_object_get(message, "tool_calls");
  }
  memset(out, 0, sizeof(chat_ways));
  out[CHAT_SYSTEM][CHAT_SYSTEM_DEVELOPER] = developer;
  out[CHAT_SYSTEM][CHAT_SYSTEM_LATE] = out[CHAT_SYSTEM][CHAT_SYSTEM_JOINED] = late;
  out[CHAT_SYSTEM][CHAT_SYSTEM_USER] = out[CHAT_SYSTEM][CHAT_SYSTEM_OPENS] = system;
  out[CHAT_ARGUMENTS][CHAT_ARGUMENTS_WRAPPED] = calls && has_odd_arguments(messages);
  out[CHAT_ARGUMENTS][CHAT_ARGUMENTS_TEXTS] = calls;
  out[CHAT_BESIDE][CHAT_BESIDE_APART] = out[CHAT_BESIDE][CHAT_BESIDE_JOINED] = beside;
  out[CHAT_CALLS][CHAT_CALLS_EACH] = several;
  out[CHAT_CALLS][CHAT_CALLS_ORPHANS] = orphans;
  out[CHAT_CALLS][CHAT_CALLS_TEXT] = (calls || results) && !nameless;
  out[CHAT_IDS][CHAT_IDS_FUNCTIONS] = calls;
  out[CHAT_ROWS][CHAT_ROWS_JOINED] = rows;
}
