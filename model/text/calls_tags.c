/* SPDX-License-Identifier: MIT */
/* Calls with tags. Qwen3-Coder: <function=NAME>, for each argument <parameter=KEY>, its text on lines of its own,
 * </parameter>, and </function>; what the schema of the function calls a string is one, whatever it looks like. DSML,
 * in which each of the names of tags stands behind a marker: <invoke name="NAME">, for each argument
 * <parameter name="KEY" string="true">, its text as it is, </parameter>, and </invoke>; the tag says whether the text
 * is a string. They are given as JSON. */
#include <string.h>

#include "model/text/calls_internal.h"

enum { BETWEEN, OPEN_STRING, OPEN_VALUE, OPEN_EITHER, STRING, VALUE, EITHER }; /* EITHER: a string, or null */

static const weft_call_tags *tags_of(const weft_call_reader *r) {
  return weft_call_form_tags(r->form);
}

static const char *find_types(const weft_call_reader *r, const char *name, size_t n) {
  for (uint32_t i = 0; i < r->n_callable; i++) {
    const weft_callable *c = &r->callable[i];
    if (strlen(c->name) == n && memcmp(c->name, name, n) == 0) return c->types;
  }
  return NULL;
}

/* How the text of a parameter is read. */
static uint8_t reading_of(const weft_call_reader *r, const char *name, size_t n) {
  static const uint8_t readings[] = {OPEN_STRING, OPEN_EITHER, OPEN_VALUE};
  return readings[weft_callable_reads(r->types, name, n)];
}

/* ---- reading ---- */

/* What stands behind the tag with the name: a parameter, the end, or an object of JSON (*json). */
static calls_match match_arguments(const weft_call_reader *r, size_t at, bool *json) {
  const weft_call_tags *tags = tags_of(r);
  const char *const words[] = {tags->argument, tags->close, calls_rows[r->form].close};
  calls_match best = MATCH_NO;
  *json = r->held.bytes[at] == '{';
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    calls_match match = words[i] == NULL ? MATCH_NO : calls_match_at(r, at, words[i]);
    if (match > best) best = match;
  }
  return *json ? MATCH_YES : best;
}

bool calls_tags_head(weft_call_reader *r) {
  const weft_call_tags *tags = tags_of(r);
  bool direct = calls_match_at(r, r->mark, tags->open) == MATCH_YES, json = false;
  size_t i = direct ? r->head : calls_skip_blanks(r, r->head) + strlen(tags->open);
  size_t n = calls_name_length(r, i), at = i + n + strlen(tags->open_end);
  calls_match named = calls_match_at(r, i + n, tags->open_end);
  if (named == MATCH_PART || i + n == r->held.n) return false;
  if (named == MATCH_NO) return calls_refuse_head(r);
  size_t next = calls_skip_blanks(r, at);
  if (next == r->held.n && !r->last && next - at <= CALLS_BLANKS_MAX) return false;
  calls_match match = next < r->held.n ? match_arguments(r, next, &json) : MATCH_YES;
  if (match == MATCH_PART) return false;
  if (match == MATCH_NO) return calls_refuse_head(r);
  (void)calls_begin(r, i, n, json ? next : at);
  if (r->state != CALLS_ARGUMENTS) return true;
  if (json) {
    r->alone = true;
    calls_mend_open(r, tags->close);
    return true;
  }
  r->types = find_types(r, r->held.bytes + i, n);
  r->tagged = true;
  r->inner = BETWEEN;
  calls_puts(r, "{");
  return true;
}

static bool end_call(weft_call_reader *r, size_t at) {
  calls_puts(r, "}");
  r->at = at;
  calls_finish(r, true, CALLS_TAIL);
  return true;
}

/* The n bytes between a key and the end of its tag: what they say of the text, where they do. */
static uint8_t reading_told(const char *text, size_t n, uint8_t otherwise) {
  if (memmem(text, n, "true", 4) != NULL) return OPEN_STRING;
  return memmem(text, n, "false", 5) != NULL ? OPEN_VALUE : otherwise;
}

static bool read_parameter(weft_call_reader *r, size_t i) {
  bool found, typed = tags_of(r)->typed;
  size_t key = i + strlen(tags_of(r)->argument), end = calls_find(r, key, typed ? "\"" : ">", &found);
  size_t behind = typed && found ? calls_find(r, end, ">", &found) : end;
  if (behind - key > CALLS_HELD_MAX) return end_call(r, r->at);
  if (!found) return false;
  r->inner = reading_of(r, r->held.bytes + key, end - key);
  if (typed) r->inner = reading_told(r->held.bytes + end, behind - end, r->inner);
  calls_puts(r, r->first ? "\"" : ",\"");
  calls_give_escaped(r, r->held.bytes + key, end - key);
  calls_puts(r, r->inner == OPEN_STRING ? "\":\"" : "\":");
  r->first = false;
  r->at = r->scanned = behind + 1;
  return true;
}

/* Between parameters: another one, or the end. What is neither ends the call, too, and is no part of it. */
static bool read_between(weft_call_reader *r) {
  const char *close = calls_rows[r->form].close;
  size_t i = r->at = calls_skip_blanks(r, r->at);
  if (i == r->held.n) return false;
  calls_match match = calls_match_at(r, i, tags_of(r)->argument);
  if (match == MATCH_YES) return read_parameter(r, i);
  calls_match end = calls_match_at(r, i, tags_of(r)->close),
              call_end = close == NULL ? MATCH_NO : calls_match_at(r, i, close);
  if (end != MATCH_YES && (match == MATCH_PART || end == MATCH_PART || call_end == MATCH_PART)) return false;
  return end_call(r, i + (end == MATCH_YES ? strlen(tags_of(r)->close) : 0));
}

/* Where a text ends that reaches to held[end]: the line end before the mark that closes it may be none of it. */
static size_t text_end(const weft_call_reader *r, size_t end) {
  return !tags_of(r)->typed && end > r->at && r->held.bytes[end - 1] == '\n' ? end - 1 : end;
}

/* A string as it comes. */
static bool read_string(weft_call_reader *r) {
  bool found;
  const char *behind = tags_of(r)->behind;
  size_t mark = calls_find(r, r->at, behind, &found), end = text_end(r, mark);
  calls_give_escaped(r, r->held.bytes + r->at, end - r->at);
  r->at = end;
  if (!found) return false;
  r->at = mark + strlen(behind);
  r->inner = BETWEEN;
  calls_puts(r, "\"");
  return true;
}

static void take_text(void *self, const char *text, size_t n) {
  weft_text_append(self, text, n);
}

/* Gives the value held[from .. to) as JSON, without blanks around it: a JSON value, one of Python's words, or an object
 * or a list that is written in another way. False: it is none of them. */
static bool give_value(weft_call_reader *r, size_t from, size_t to) {
  const char *b = r->held.bytes;
  while (from < to && calls_is_blank(b[from])) from += 1;
  while (to > from && calls_is_blank(b[to - 1])) to -= 1;
  if (from == to || b[from] == '"') {
    if (!json_mend_is_value(b + from, to - from, true)) return false;
    calls_give(r, b + from, to - from);
    return true;
  }
  weft_text text = {0};
  json_mend mend = {.self = &text, .take = take_text};
  bool given = false;
  if (b[from] == '{' || b[from] == '[') {
    given = json_mend_read(&mend, b + from, to - from, true) == to - from && json_mend_done(&mend);
    if (given) calls_give(r, text.bytes, text.n);
  } else if (memchr(b + from, ',', to - from) == NULL) { /* as the one item of a list */
    weft_text_puts(&text, "[");
    weft_text_append(&text, b + from, to - from);
    weft_text_puts(&text, "]");
    weft_text word = {0};
    mend.self = &word;
    if (text.n > 0) (void)json_mend_read(&mend, text.bytes, text.n, true);
    given = json_mend_done(&mend) && word.n > 2 && word.bytes[1] != '"';
    if (given) calls_give(r, word.bytes + 1, word.n - 2);
    if (word.refused) r->held.refused = true;
    weft_text_free(&word);
  }
  if (text.refused) r->held.refused = true;
  weft_text_free(&text);
  return given;
}

/* The value held[at .. end) is whole. */
static void give_whole(weft_call_reader *r, size_t end) {
  const char *b = r->held.bytes;
  end = text_end(r, end);
  bool null = end - r->at == 4 && memcmp(b + r->at, "null", 4) == 0;
  if ((r->inner == VALUE || null) && give_value(r, r->at, end)) return;
  calls_puts(r, "\"");
  calls_give_escaped(r, b + r->at, end - r->at);
  calls_puts(r, "\"");
}

/* Anything else is looked at when it is whole. */
static bool read_whole(weft_call_reader *r) {
  bool found;
  size_t mark = calls_find(r, r->scanned, tags_of(r)->behind, &found);
  r->scanned = mark;
  if (!found) return false;
  give_whole(r, mark);
  r->at = mark + strlen(tags_of(r)->behind);
  r->inner = BETWEEN;
  return true;
}

bool calls_tags_arguments(weft_call_reader *r) {
  if (r->inner == BETWEEN) return read_between(r);
  if (r->inner == STRING) return read_string(r);
  if (r->inner == VALUE || r->inner == EITHER) return read_whole(r);
  if (!tags_of(r)->typed && r->held.bytes[r->at] == '\n') r->at += 1; /* the line of its own */
  r->inner = r->inner == OPEN_STRING ? STRING : r->inner == OPEN_VALUE ? VALUE : EITHER;
  r->scanned = r->at;
  return true;
}

/* The beginning of a value whose end never came: as it is written where it begins a JSON value, else as a string. */
static void give_cut_value(weft_call_reader *r) {
  const char *b = r->held.bytes;
  size_t from = calls_skip_blanks(r, r->at), to = r->held.n;
  while (to > from && calls_is_blank(b[to - 1])) to -= 1;
  if (from == to) return;
  bool null = to - from <= 4 && memcmp(b + from, "null", to - from) == 0;
  if (null || (r->inner == VALUE && json_mend_is_value(b + from, to - from, false))) {
    calls_give(r, b + from, to - from);
  } else {
    calls_puts(r, "\"");
    calls_give_escaped(r, b + from, to - from);
  }
}

void calls_tags_end(weft_call_reader *r, bool cut) {
  bool string = r->inner == STRING || r->inner == OPEN_STRING;
  if (cut) {
    if (r->inner != BETWEEN && !string) give_cut_value(r);
  } else {
    if (string) calls_puts(r, "\"");
    if (!string && r->inner != BETWEEN) give_whole(r, r->held.n);
    calls_puts(r, "}");
  }
  r->at = r->held.n;
}

bool calls_tags_tail(weft_call_reader *r) {
  r->at = calls_skip_blanks(r, r->at);
  if (r->at == r->held.n) return false;
  const weft_call_tags *tags = tags_of(r);
  calls_match tag = calls_match_at(r, r->at, tags->close), next = calls_match_at(r, r->at, tags->open);
  if (tag == MATCH_YES) r->at += strlen(tags->close);
  if (next == MATCH_YES) { /* two calls in one pair of markers */
    r->mark = r->at;
    r->head = r->at + strlen(tags->open);
    r->state = CALLS_HEAD;
  }
  if (tag == MATCH_YES || next == MATCH_YES) return true;
  if (tag == MATCH_PART || next == MATCH_PART) return false;
  return calls_close(r);
}
