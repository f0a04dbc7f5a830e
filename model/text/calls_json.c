/* SPDX-License-Identifier: MIT */
/* Calls whose arguments are one text: HERMES, LLAMA, MISTRAL and JSON; and what stands behind any such call. */
#include <string.h>

#include "model/text/calls_internal.h"
#include "model/text/json_steps.h"

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
  size_t begin, name, n_name, arguments, n_arguments, n_others;
} head_parts;

/* The object is whole and its arguments stood before the name, or it has none. */
static bool begin_whole(weft_call_reader *r, const head_parts *h, size_t end) {
  const char *b = r->held.bytes;
  if (h->n_name == 0 || (h->n_arguments == 0 && h->n_others > 0)) return calls_drift_head(r, h->begin);
  if (calls_name_length(r, h->name) < h->n_name) return calls_refuse_head(r);
  bool given = h->n_arguments > 0;
  return calls_give_whole(r, b + h->name, h->n_name, given ? b + h->arguments : "{}", given ? h->n_arguments : 2, end);
}

/* The members of the object at held[begin], up to the arguments. */
static bool read_members(weft_call_reader *r, size_t begin) {
  head_parts h = {.begin = begin};
  const char *b = r->held.bytes;
  for (size_t i = begin + 1;;) {
    member m;
    value_look look = find_member(r, calls_skip_blanks(r, i), &m);
    if (look != VALUE_WHOLE) return look == VALUE_NONE && calls_drift_head(r, begin);
    bool arguments = member_is(r, &m, "arguments") || member_is(r, &m, "parameters");
    if (arguments && b[m.value] != '{') return calls_drift_head(r, begin);
    if (arguments && h.n_name > 0) return calls_begin(r, h.name, h.n_name, m.value);
    look = find_value_end(r, m.value, &m.end);
    if (look != VALUE_WHOLE) return look == VALUE_NONE && calls_drift_head(r, begin);
    if (arguments) {
      h.arguments = m.value;
      h.n_arguments = m.end - m.value;
    } else if (member_is(r, &m, "name")) {
      if (b[m.value] != '"' || m.end - m.value < 3) return calls_refuse_head(r);
      h.name = m.value + 1;
      h.n_name = m.end - m.value - 2;
    } else if (!member_is(r, &m, "id") && !member_is(r, &m, "type") && !member_is(r, &m, "index")) {
      h.n_others += 1;
    }
    i = calls_skip_blanks(r, m.end);
    if (i == r->held.n) return false;
    if (b[i] == '}') return begin_whole(r, &h, i + 1);
    if (b[i] != ',') return calls_drift_head(r, begin);
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
  r->alone = true;
  return true;
}

bool calls_json_head(weft_call_reader *r) {
  size_t i = calls_skip_blanks(r, r->head), n = r->held.n;
  const char *b = r->held.bytes;
  const char *open = weft_call_form_tags(r->form)->open;
  bool marked = r->head > r->mark;
  if (marked && calls_match_at(r, r->mark, open) == MATCH_YES) return calls_tags_head(r);
  if (i == n) return false;
  calls_match tags = marked ? calls_match_at(r, i, open) : MATCH_NO;
  if (tags != MATCH_NO) return tags == MATCH_YES && calls_tags_head(r);
  if (b[i] == '[') i = calls_skip_blanks(r, i + 1);
  if (i == n) return false;
  if (b[i] == '{') return read_members(r, i);
  return r->form == WEFT_CALLS_MISTRAL ? read_named(r, i) : calls_refuse_head(r);
}

bool calls_json_arguments(weft_call_reader *r) {
  json_mend *mend = calls_mender(r);
  r->at += json_mend_read(mend, r->held.bytes + r->at, r->held.n - r->at, r->last);
  if (!json_mend_done(mend)) return false;
  calls_finish(r, true, CALLS_TAIL);
  return true;
}

void calls_json_end(weft_call_reader *r, bool cut) {
  const char *rest = r->held.bytes + r->at;
  size_t n = r->held.n - r->at;
  if (cut) {
    json_mend_cut(calls_mender(r), rest, n);
  } else {
    json_mend_close(calls_mender(r), rest, n);
  }
  r->at = r->held.n;
}

/* A further member of the object around the arguments, which nobody wants: taken, waited for, or none. */
static calls_match skip_member(weft_call_reader *r) {
  member m;
  value_look look = find_member(r, calls_skip_blanks(r, r->at + 1), &m);
  if (look == VALUE_WHOLE) look = find_value_end(r, m.value, &m.end);
  if (look == VALUE_MORE && !r->last && r->held.n - r->at <= CALLS_HELD_MAX) return MATCH_PART;
  if (look != VALUE_WHOLE || m.end - r->at > CALLS_HELD_MAX) return MATCH_NO;
  r->at = m.end;
  return MATCH_YES;
}

/* What stands behind a call up to its closing mark: the end of the object around the arguments, brackets of a list, one
 * bracket too many; and perhaps another call. */
bool calls_json_tail(weft_call_reader *r) {
  const char *b = r->held.bytes, *close = weft_call_form_tags(r->form)->close;
  r->at = calls_skip_blanks(r, r->at);
  if (r->at == r->held.n) return false;
  char c = b[r->at];
  calls_match further = !r->alone && c == ',' ? skip_member(r) : MATCH_NO;
  if (further != MATCH_NO) return further == MATCH_YES;
  calls_match tag = calls_match_at(r, r->at, close),
              call = r->form == WEFT_CALLS_GEMMA ? calls_match_at(r, r->at, "call:") : MATCH_NO;
  if (tag == MATCH_YES || strchr("},;]", c) != NULL) {
    r->alone = r->alone || c == '}';
    r->at += tag == MATCH_YES ? strlen(close) : 1;
    return true;
  }
  if (call == MATCH_YES || c == '{') {
    r->mark = r->head = r->at;
    r->state = CALLS_HEAD;
    return true;
  }
  if (tag == MATCH_PART || call == MATCH_PART) return false;
  return calls_close(r);
}
