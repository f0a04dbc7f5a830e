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

static weft_status add_message(json_t *list, const weft_chat_message *m, weft_error *error) {
  json_t *message = json_object();
  bool done = put_member(message, "role", json_string(m->role)) &&
              put_member(message, "content", text_value(m->content, m->n_content));
  if (m->thinking != NULL)
    done = done && put_member(message, "reasoning_content", text_value(m->thinking, m->n_thinking));
  weft_status status = done ? WEFT_OK : no_memory(error);
  if (status == WEFT_OK && m->more != NULL) status = read_more(m->more, message, error);
  if (json_array_append_new(list, message) != 0) return no_memory(error);
  return status;
}

weft_status chat_messages_read(const weft_chat_message *messages, uint32_t n, json_t **out, weft_error *error) {
  json_t *list = *out = json_array();
  weft_status status = list == NULL ? no_memory(error) : WEFT_OK;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) status = add_message(list, &messages[i], error);
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

static json_t *function_of(const json_t *call) {
  json_t *function = json_object_get(call, "function");
  return json_is_object(function) ? function : (json_t *)(uintptr_t)call;
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

static void tell_each(telling *t, const json_t *messages, uint8_t way) {
  (void)way;
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
  if (told != NULL && ((short_ids && !tell_ids(told)) || !tell_calls(told, way.level[CHAT_ARGUMENTS]))) {
    json_decref(told);
    return NULL;
  }
  told = tell_again(told, tell_system, way.level[CHAT_SYSTEM]);
  told = tell_again(told, tell_beside, way.level[CHAT_BESIDE]);
  return tell_again(told, tell_each, way.level[CHAT_CALLS]);
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
  bool developer = false, system = false, late = false, calls = false, beside = false, several = false;
  json_array_foreach(messages, i, message) {
    developer = developer || is_role(message, "developer");
    late = late || (is_system(message) && i > 0);
    system = system || is_system(message);
    calls = calls || has_calls(message);
    beside = beside || has_text_beside(message);
    several = several || json_array_size(json_object_get(message, "tool_calls")) > 1;
  }
  memset(out, 0, sizeof(chat_ways));
  out[CHAT_SYSTEM][CHAT_SYSTEM_DEVELOPER] = developer;
  out[CHAT_SYSTEM][CHAT_SYSTEM_LATE] = out[CHAT_SYSTEM][CHAT_SYSTEM_JOINED] = late;
  out[CHAT_SYSTEM][CHAT_SYSTEM_USER] = out[CHAT_SYSTEM][CHAT_SYSTEM_OPENS] = system;
  out[CHAT_ARGUMENTS][CHAT_ARGUMENTS_WRAPPED] = calls && has_odd_arguments(messages);
  out[CHAT_ARGUMENTS][CHAT_ARGUMENTS_TEXTS] = calls;
  out[CHAT_BESIDE][CHAT_BESIDE_APART] = out[CHAT_BESIDE][CHAT_BESIDE_JOINED] = beside;
  out[CHAT_CALLS][CHAT_CALLS_EACH] = several;
}
