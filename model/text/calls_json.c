/* SPDX-License-Identifier: MIT */
/* Calls written as JSON: HERMES, LLAMA, MISTRAL and JSON. */
#include <string.h>

#include "model/text/calls_internal.h"

/* Where the value that begins at i ends. */
typedef enum value_look { VALUE_WHOLE, VALUE_MORE, VALUE_NONE } value_look;

static value_look find_value_end(const weft_call_reader *r, size_t i, size_t *end) {
  json_steps steps = {0};
  const char *b = r->held.bytes;
  if (b[i] == '"' || b[i] == '{' || b[i] == '[') {
    for (; i < r->held.n; i++) {
      json_step step = json_steps_take(&steps, b[i]);
      *end = i + 1;
      if (step == JSON_STEP_BAD) return VALUE_NONE;
      if (step == JSON_STEP_DONE) return VALUE_WHOLE;
    }
    return VALUE_MORE;
  }
  for (; i < r->held.n; i++) {
    *end = i;
    if (b[i] == ',' || b[i] == '}' || b[i] == ']' || calls_is_blank(b[i])) return VALUE_WHOLE;
  }
  return VALUE_MORE;
}

/* A member of an object: "name": value, from i to end. */
typedef struct member {
  size_t name, n_name, value, end;
} member;

/* open: the value need not be whole, its first byte is enough. */
static value_look find_member(const weft_call_reader *r, size_t i, member *m) {
  const char *b = r->held.bytes;
  size_t end;
  if (i == r->held.n) return VALUE_MORE;
  if (b[i] != '"') return VALUE_NONE;
  value_look look = find_value_end(r, i, &end);
  if (look != VALUE_WHOLE) return look;
  m->name = i + 1;
  m->n_name = end - i - 2;
  i = calls_skip_blanks(r, end);
  if (i == r->held.n) return VALUE_MORE;
  if (b[i] != ':') return VALUE_NONE;
  m->value = calls_skip_blanks(r, i + 1);
  return m->value == r->held.n ? VALUE_MORE : VALUE_WHOLE;
}

static bool member_is(const weft_call_reader *r, const member *m, const char *name) {
  return m->n_name == strlen(name) && memcmp(r->held.bytes + m->name, name, m->n_name) == 0;
}

/* What a head has so far. */
typedef struct head_parts {
  size_t name, n_name, arguments, n_arguments;
} head_parts;

/* The object is whole and its arguments stood before the name, or it has none. */
static bool begin_whole(weft_call_reader *r, const head_parts *h, size_t end) {
  if (h->n_name == 0) return calls_refuse_head(r);
  (void)calls_begin(r, h->name, h->n_name, end);
  if (r->state != CALLS_ARGUMENTS) return true;
  if (h->n_arguments > 0) calls_give(r, r->held.bytes + h->arguments, h->n_arguments);
  if (h->n_arguments == 0) calls_puts(r, "{}");
  calls_finish(r, true, CALLS_TAIL);
  r->inner = 1;
  return true;
}

/* Members from i on, up to the arguments. */
static bool read_members(weft_call_reader *r, size_t i) {
  head_parts h = {0};
  const char *b = r->held.bytes;
  for (;;) {
    member m;
    value_look look = find_member(r, calls_skip_blanks(r, i), &m);
    if (look != VALUE_WHOLE) return look == VALUE_NONE && calls_refuse_head(r);
    bool arguments = member_is(r, &m, "arguments") || member_is(r, &m, "parameters");
    if (arguments && b[m.value] != '{') return calls_refuse_head(r);
    if (arguments && h.n_name > 0) return calls_begin(r, h.name, h.n_name, m.value);
    look = find_value_end(r, m.value, &m.end);
    if (look != VALUE_WHOLE) return look == VALUE_NONE && calls_refuse_head(r);
    if (arguments) {
      h.arguments = m.value;
      h.n_arguments = m.end - m.value;
    } else if (member_is(r, &m, "name")) {
      if (b[m.value] != '"' || m.end - m.value < 3) return calls_refuse_head(r);
      h.name = m.value + 1;
      h.n_name = m.end - m.value - 2;
    }
    i = calls_skip_blanks(r, m.end);
    if (i == r->held.n) return false;
    if (b[i] == '}') return begin_whole(r, &h, i + 1);
    if (b[i] != ',') return calls_refuse_head(r);
    i += 1;
  }
}

/* MISTRAL's newer way: NAME[ARGS]{...}, perhaps with [CALL_ID]... between. */
static bool read_named(weft_call_reader *r, size_t i) {
  size_t n_name = calls_name_length(r, i), at = calls_skip_blanks(r, i + n_name);
  static const char id[] = "[CALL_ID]", arguments[] = "[ARGS]";
  if (at == r->held.n) return false;
  calls_match match = calls_match_at(r, at, id);
  if (match == MATCH_PART) return false;
  if (match == MATCH_YES) {
    bool found;
    at = calls_find(r, at, arguments, &found);
    if (!found) return false;
  }
  match = calls_match_at(r, at, arguments);
  if (match == MATCH_PART) return false;
  if (match == MATCH_YES) at = calls_skip_blanks(r, at + strlen(arguments));
  if (at == r->held.n) return false;
  if (r->held.bytes[at] != '{') return calls_refuse_head(r);
  (void)calls_begin(r, i, n_name, at);
  r->depth = 1; /* no object is around the arguments */
  return true;
}

bool calls_json_head(weft_call_reader *r) {
  size_t i = calls_skip_blanks(r, r->head), n = r->held.n;
  const char *b = r->held.bytes;
  if (i < n && b[i] == '[' && calls_rows[r->form].listed) i = calls_skip_blanks(r, i + 1);
  if (i == n) return false;
  if (b[i] == '{') return read_members(r, i + 1);
  return r->form == WEFT_CALLS_MISTRAL ? read_named(r, i) : calls_refuse_head(r);
}

/* Control characters in strings, which models write and JSON wants escaped, are escaped. */
bool calls_json_arguments(weft_call_reader *r) {
  const char *b = r->held.bytes;
  size_t from = r->at, i = from;
  json_step step = JSON_STEP_MORE;
  for (; i < r->held.n && step == JSON_STEP_MORE; i++) {
    if (json_steps_in_string(&r->steps) && (unsigned char)b[i] < 0x20) {
      calls_give(r, b + from, i - from);
      calls_give_escaped(r, b + i, 1);
      from = i + 1;
      continue;
    }
    step = json_steps_take(&r->steps, b[i]);
    if (step == JSON_STEP_BAD) break;
  }
  calls_give(r, b + from, i - from);
  r->at = i;
  if (step == JSON_STEP_BAD) return calls_break(r);
  if (step != JSON_STEP_DONE) return false;
  uint8_t inner = (uint8_t)r->depth;
  calls_finish(r, true, CALLS_TAIL);
  r->inner = inner;
  return true;
}

/* inner 0: the object around the arguments is open and may have more members, which nobody wants. */
bool calls_json_tail(weft_call_reader *r) {
  const char *b = r->held.bytes;
  bool listed = calls_rows[r->form].listed;
  r->at = calls_skip_blanks(r, r->at);
  if (r->at == r->held.n) return false;
  char c = b[r->at];
  if (r->inner == 0 && c == '}') {
    r->at += 1;
    r->inner = 1;
    return true;
  }
  if (r->inner == 0 && c == ',') {
    member m;
    value_look look = find_member(r, calls_skip_blanks(r, r->at + 1), &m);
    if (look == VALUE_WHOLE) look = find_value_end(r, m.value, &m.end);
    if (look == VALUE_WHOLE && m.end - r->at <= CALLS_HELD_MAX) {
      r->at = m.end;
      return true;
    }
    if (look == VALUE_MORE && !r->last && r->held.n - r->at <= CALLS_HELD_MAX) return false;
  }
  if (r->inner == 1 && listed && (c == ',' || c == ';' || c == ']')) {
    r->at += 1;
    return true;
  }
  if (r->inner == 1 && listed && c == '{') {
    r->mark = r->head = r->at;
    r->state = CALLS_HEAD;
    return true;
  }
  return calls_close(r);
}

/* Whether b[from .. to) is a JSON value, or, where it need not be whole, the beginning of one. */
static bool begins_value(const char *b, size_t from, size_t to, bool whole) {
  /* as the one item of a list, since numbers do not show their own end */
  json_steps steps = {0};
  json_step step = json_steps_take(&steps, '[');
  for (size_t i = from; i < to && step == JSON_STEP_MORE; i++) {
    bool comma = b[i] == ',' && steps.depth == 1 && !json_steps_in_string(&steps);
    step = comma ? JSON_STEP_BAD : json_steps_take(&steps, b[i]);
  }
  if (from == to || step != JSON_STEP_MORE) return false;
  return !whole || json_steps_take(&steps, ']') == JSON_STEP_DONE;
}

bool calls_give_value(weft_call_reader *r, size_t from, size_t to) {
  static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
  const char *b = r->held.bytes;
  while (from < to && calls_is_blank(b[from])) from += 1;
  while (to > from && calls_is_blank(b[to - 1])) to -= 1;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (to - from != strlen(words[i][0]) || memcmp(b + from, words[i][0], to - from) != 0) continue;
    calls_puts(r, words[i][1]);
    return true;
  }
  bool begins = begins_value(b, from, to, true);
  if (begins) calls_give(r, b + from, to - from);
  return begins;
}

void calls_give_cut_value(weft_call_reader *r, size_t from, size_t to) {
  while (to > from && calls_is_blank(r->held.bytes[to - 1])) to -= 1;
  if (begins_value(r->held.bytes, from, to, false)) {
    calls_give(r, r->held.bytes + from, to - from);
  } else {
    calls_puts(r, "\"");
    calls_give_escaped(r, r->held.bytes + from, to - from);
  }
}
