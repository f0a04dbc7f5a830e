/* SPDX-License-Identifier: MIT */
/* Gemma 4's calls: call:NAME{key:<|"|>text<|"|>,n:3,list:[1,2],object:{...}}. They are given as JSON. */
#include <string.h>

#include "model/text/calls_internal.h"

#define QUOTE "<|\"|>"

/* Where in the arguments. KEY and ITEM come after a comma. */
enum { FIRST_KEY, KEY, VALUE, FIRST_ITEM, ITEM, AFTER, STRING };
enum { DEPTH_MAX = 64 };

static bool in_object(const weft_call_reader *r) {
  return (r->objects >> (r->depth - 1) & 1) != 0;
}

static bool open_level(weft_call_reader *r, bool object) {
  if (r->depth == DEPTH_MAX) return calls_break(r);
  uint64_t bit = (uint64_t)1 << r->depth++;
  r->objects = object ? r->objects | bit : r->objects & ~bit;
  r->inner = object ? FIRST_KEY : FIRST_ITEM;
  calls_puts(r, object ? "{" : "[");
  return true;
}

static bool close_level(weft_call_reader *r) {
  calls_puts(r, in_object(r) ? "}" : "]");
  r->depth -= 1;
  r->inner = AFTER;
  if (r->depth == 0) calls_finish(r, true, CALLS_TAIL);
  return true;
}

bool calls_gemma_head(weft_call_reader *r) {
  static const char word[] = "call:";
  size_t i = calls_skip_blanks(r, r->head);
  calls_match match = calls_match_at(r, i, word);
  if (match == MATCH_PART) return false;
  if (match == MATCH_NO) return calls_refuse_head(r);
  i += strlen(word);
  size_t n_name = calls_name_length(r, i), at = calls_skip_blanks(r, i + n_name);
  if (at == r->held.n) return false;
  if (r->held.bytes[at] != '{') return calls_refuse_head(r);
  (void)calls_begin(r, i, n_name, at + 1);
  return r->state != CALLS_ARGUMENTS || open_level(r, true);
}

static bool give_key(weft_call_reader *r, size_t key, size_t end, size_t next) {
  calls_puts(r, r->inner == KEY ? ",\"" : "\"");
  calls_give_escaped(r, r->held.bytes + key, end - key);
  calls_puts(r, "\":");
  r->at = next;
  r->inner = VALUE;
  return true;
}

/* A key is bare, or between Gemma's quotes or JSON's. */
static bool read_key(weft_call_reader *r, size_t i) {
  const char *b = r->held.bytes;
  size_t key = i, end, n = r->held.n;
  calls_match match = calls_match_at(r, i, QUOTE);
  if (match == MATCH_PART) return false;
  if (match == MATCH_YES || b[i] == '"') {
    size_t n_quote = match == MATCH_YES ? strlen(QUOTE) : 1;
    bool found;
    key = i + n_quote;
    end = calls_find(r, key, match == MATCH_YES ? QUOTE : "\"", &found);
    size_t colon = found ? calls_skip_blanks(r, end + n_quote) : n;
    if (colon - i > CALLS_HELD_MAX) return calls_break(r);
    if (colon == n) return false;
    return b[colon] == ':' ? give_key(r, key, end, colon + 1) : calls_break(r);
  }
  for (end = i; end < n && strchr(":{}[],<\"", b[end]) == NULL;) end += 1;
  if (end - i > CALLS_HELD_MAX) return calls_break(r);
  if (end == n) return false;
  if (b[end] != ':' || end == i) return calls_break(r);
  size_t next = end + 1;
  while (calls_is_blank(b[end - 1])) end -= 1;
  return give_key(r, key, end, next);
}

static void give_string(weft_call_reader *r, size_t from, size_t to) {
  while (to > from && calls_is_blank(r->held.bytes[to - 1])) to -= 1;
  calls_puts(r, "\"");
  calls_give_escaped(r, r->held.bytes + from, to - from);
  calls_puts(r, "\"");
}

/* A number, a word of JSON, or text without quotes. */
static bool read_bare(weft_call_reader *r, size_t i) {
  const char *b = r->held.bytes;
  size_t end = i, n = r->held.n;
  for (; end < n && strchr(",}]", b[end]) == NULL; end++) {
    calls_match match = calls_match_at(r, end, calls_rows[WEFT_CALLS_GEMMA].close);
    if (match == MATCH_PART) return false;
    if (match == MATCH_YES) break;
  }
  if (end - i > CALLS_HELD_MAX) return calls_break(r);
  if (end == n) return false;
  if (end == i) return calls_break(r);
  if (r->inner == ITEM) calls_puts(r, ",");
  if (!calls_give_value(r, i, end)) give_string(r, i, end);
  r->at = end;
  r->inner = AFTER;
  return true;
}

/* A string in the quotes of JSON. */
static bool read_json_string(weft_call_reader *r, size_t i) {
  json_steps steps = {0};
  json_step step = JSON_STEP_MORE;
  size_t end = i;
  while (end < r->held.n && step == JSON_STEP_MORE) step = json_steps_take(&steps, r->held.bytes[end++]);
  if (step == JSON_STEP_BAD || end - i > CALLS_HELD_MAX) return calls_break(r);
  if (step == JSON_STEP_MORE) return false;
  if (r->inner == ITEM) calls_puts(r, ",");
  calls_give(r, r->held.bytes + i, end - i);
  r->at = end;
  r->inner = AFTER;
  return true;
}

static bool read_value(weft_call_reader *r, size_t i) {
  char c = r->held.bytes[i];
  calls_match match = calls_match_at(r, i, QUOTE);
  if (match == MATCH_PART) return false;
  if (match != MATCH_YES && c == '"') return read_json_string(r, i);
  if (match != MATCH_YES && c != '{' && c != '[') return read_bare(r, i);
  if (r->inner == ITEM) calls_puts(r, ",");
  r->at = i + (match == MATCH_YES ? strlen(QUOTE) : 1);
  if (match != MATCH_YES) return open_level(r, c == '{');
  calls_puts(r, "\"");
  r->inner = STRING;
  return true;
}

static bool read_string(weft_call_reader *r) {
  bool found;
  size_t end = calls_find(r, r->at, QUOTE, &found);
  calls_give_escaped(r, r->held.bytes + r->at, end - r->at);
  r->at = end;
  if (!found) return false;
  r->at += strlen(QUOTE);
  r->inner = AFTER;
  calls_puts(r, "\"");
  return true;
}

bool calls_gemma_arguments(weft_call_reader *r) {
  if (r->inner == STRING) return read_string(r);
  size_t i = r->at = calls_skip_blanks(r, r->at);
  if (i == r->held.n) return false;
  calls_match match = calls_match_at(r, i, calls_rows[WEFT_CALLS_GEMMA].close);
  if (match == MATCH_PART) return false;
  if (match == MATCH_YES) return calls_break(r);
  char c = r->held.bytes[i], end = in_object(r) ? '}' : ']';
  if (c == end && r->inner != VALUE) {
    r->at = i + 1;
    return close_level(r);
  }
  if (r->inner == AFTER) {
    if (c != ',') return calls_break(r);
    r->at = i + 1;
    r->inner = in_object(r) ? KEY : ITEM;
    return true;
  }
  return r->inner == KEY || r->inner == FIRST_KEY ? read_key(r, i) : read_value(r, i);
}

/* A key or a value that no end came for. */
void calls_gemma_cut(weft_call_reader *r) {
  size_t i = r->at;
  bool key = r->inner == FIRST_KEY || r->inner == KEY, quoted = calls_match_at(r, i, QUOTE) == MATCH_YES;
  if (r->inner == KEY || r->inner == ITEM) calls_puts(r, ",");
  if (!key) {
    calls_give_cut_value(r, i, r->held.n);
    return;
  }
  if (quoted || r->held.bytes[i] == '"') i += quoted ? strlen(QUOTE) : 1;
  calls_puts(r, "\"");
  calls_give_escaped(r, r->held.bytes + i, r->held.n - i);
}

bool calls_gemma_tail(weft_call_reader *r) {
  r->at = calls_skip_blanks(r, r->at);
  return r->at < r->held.n && calls_close(r);
}
