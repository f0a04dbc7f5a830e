/* SPDX-License-Identifier: MIT */
#include "model/text/json_mend.h"

#include <stdio.h>
#include <string.h>

#include "model/text/json_steps.h"

/* ITEM: a name or an item is due, and its comma was given. AFTER: a value ended. */
enum { BEGIN, FIRST, ITEM, COLON, VALUE, AFTER, STRING, BARE, DONE };
static const char marked = 'm'; /* the quote of a string between marks */

/* What is being read: text[at .. n). */
typedef struct window {
  const char *text;
  size_t n, at;
  bool last;
} window;

/* ---- giving ---- */

static void give_bytes(json_mend *m, const char *text, size_t n) {
  if (n > 0) m->take(m->self, text, n);
}

static void put_word(json_mend *m, const char *text) {
  give_bytes(m, text, strlen(text));
}

void json_mend_escape(const char *text, size_t n, json_mend_take take, void *self) {
  static const char plain[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
  size_t from = 0;
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    char escape[8];
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    const char *known = c == 0 ? NULL : strchr(plain, c);
    int length = known != NULL ? snprintf(escape, sizeof escape, "\\%c", letter[known - plain])
                               : snprintf(escape, sizeof escape, "\\u%04x", c);
    if (i > from) take(self, text + from, i - from);
    take(self, escape, (size_t)length);
    from = i + 1;
  }
  if (n > from) take(self, text + from, n - from);
}

static void give_escaped(json_mend *m, const char *text, size_t n) {
  json_mend_escape(text, n, m->take, m->self);
}

/* ---- looking ---- */

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_one_of(char c, const char *set) {
  return c != 0 && strchr(set, c) != NULL;
}

/* A word stands at text[i], or may: 1, or -1. */
static int match_at(const window *w, size_t i, const char *word) {
  size_t n = word == NULL ? 0 : strlen(word), there = w->n - i;
  if (n == 0 || memcmp(w->text + i, word, there < n ? there : n) != 0) return 0;
  return there >= n ? 1 : w->last ? 0 : -1;
}

static size_t skip_blanks(const window *w, size_t i) {
  while (i < w->n && is_blank(w->text[i])) i += 1;
  return i;
}

static void trim_blanks(const char *text, size_t *from, size_t *to) {
  while (*from < *to && is_blank(text[*from])) *from += 1;
  while (*to > *from && is_blank(text[*to - 1])) *to -= 1;
}

/* As the one item of a list, since numbers do not show their own end. */
bool json_mend_is_value(const char *text, size_t n, bool whole) {
  json_steps steps = {0};
  json_step step = json_steps_take(&steps, '[');
  for (size_t i = 0; i < n && step == JSON_STEP_MORE; i++) {
    bool comma = text[i] == ',' && steps.depth == 1 && !json_steps_in_string(&steps);
    step = comma ? JSON_STEP_BAD : json_steps_take(&steps, text[i]);
  }
  if (n == 0 || step != JSON_STEP_MORE) return false;
  return !whole || json_steps_take(&steps, ']') == JSON_STEP_DONE;
}

/* The JSON of a word without quotes; NULL: it is a text. *n: its length. */
static const char *find_scalar(const char *text, size_t *n) {
  static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (*n != strlen(words[i][0]) || memcmp(text, words[i][0], *n) != 0) continue;
    *n = strlen(words[i][1]);
    return words[i][1];
  }
  bool quoted = *n > 0 && is_one_of(text[0], "\"{[");
  return !quoted && json_mend_is_value(text, *n, true) ? text : NULL;
}

static bool in_object(const json_mend *m) {
  return m->depth > 0 && (m->objects >> (m->depth - 1) & 1) != 0;
}

/* ---- levels ---- */

static void open_level(json_mend *m, bool object) {
  uint64_t bit = (uint64_t)1 << m->depth++;
  m->objects = object ? m->objects | bit : m->objects & ~bit;
  m->state = FIRST;
  put_word(m, object ? "{" : "[");
}

static void close_level(json_mend *m) {
  put_word(m, in_object(m) ? "}" : "]");
  m->depth -= 1;
  m->state = m->depth == 0 ? DONE : AFTER;
}

/* Closes the innermost level of the bracket's kind, and what is open in it; where there is none, the bracket is one too
 * many. */
static void take_bracket(json_mend *m, char c) {
  uint64_t levels = m->depth == 64 ? ~(uint64_t)0 : ((uint64_t)1 << m->depth) - 1;
  if (((c == '}' ? m->objects : ~m->objects) & levels) == 0) return;
  while (in_object(m) != (c == '}')) close_level(m);
  close_level(m);
}

static void close_all(json_mend *m) {
  while (m->depth > 0) close_level(m);
}

/* ---- strings ---- */

static void begin_string(json_mend *m, char quote, bool key) {
  m->quote = quote;
  m->key = key;
  m->state = STRING;
  put_word(m, "\"");
}

static void end_string(json_mend *m) {
  put_word(m, "\"");
  m->state = m->key ? COLON : AFTER;
}

/* Whether the quote at text[i] ends its string, by what stands behind it: 1, 0, or -1 where that is not here yet. */
static int is_closing(const json_mend *m, const window *w, size_t i) {
  size_t next = skip_blanks(w, i + 1);
  if (next - i > JSON_MEND_BLANKS) return 1;
  if (next == w->n) return w->last ? 1 : -1;
  char c = w->text[next];
  if (is_one_of(c, m->key ? ":=,}" : ",}]")) return 1;
  bool line = memchr(w->text + i, '\n', next - i) != NULL;
  if (line && is_one_of(c, "\"'") && !m->key) return 1; /* a comma is missing */
  int end = match_at(w, next, m->end);
  return end;
}

/* The escape at text[i] is given; false: it is not whole yet. */
static bool take_escape(json_mend *m, window *w, size_t i) {
  size_t n = w->n - i, digits = 0;
  if (n < 2) {
    if (w->last) w->at = w->n;
    return w->last;
  }
  char c = w->text[i + 1];
  while (c == 'u' && digits < 4 && digits + 2 < n && is_one_of(w->text[i + 2 + digits], "0123456789abcdefABCDEF"))
    digits += 1;
  if (c == 'u' && digits + 2 == n && digits < 4) {
    if (w->last) w->at = w->n;
    return w->last;
  }
  if (c == '\'') {
    put_word(m, "'");
    w->at = i + 2;
  } else if (is_one_of(c, "\"\\/bfnrt") || (c == 'u' && digits == 4)) {
    size_t length = c == 'u' ? 6 : 2;
    give_bytes(m, w->text + i, length);
    w->at = i + length;
  } else { /* JSON has no such escape: the backslash is one */
    put_word(m, "\\\\");
    w->at = i + 1;
  }
  return true;
}

/* Gives the string up to what needs a decision, and makes that. False: more text is needed. */
static bool read_string(json_mend *m, window *w) {
  size_t i = w->at;
  bool escapes = m->quote != marked;
  for (; i < w->n; i++) {
    char c = w->text[i];
    bool stops = (escapes && (c == '\\' || c == m->quote)) || (!escapes && match_at(w, i, m->mark) != 0);
    if (stops) break;
  }
  give_escaped(m, w->text + w->at, i - w->at);
  w->at = i;
  if (i == w->n) return false;
  if (escapes && w->text[i] == '\\') return take_escape(m, w, i);
  int closes = escapes ? is_closing(m, w, i) : match_at(w, i, m->mark);
  if (closes < 0) return false;
  w->at = i + (escapes ? 1 : strlen(m->mark));
  if (closes > 0) {
    end_string(m);
  } else {
    give_escaped(m, w->text + i, 1);
  }
  return true;
}

/* ---- words without quotes ---- */

/* Where the word that begins at w->at ends; false: perhaps it goes on. */
static bool find_word_end(const json_mend *m, const window *w, bool key, size_t *end) {
  size_t i = w->at;
  bool asked = key;
  for (; i < w->n; i++) {
    int ends = match_at(w, i, m->end);
    *end = i;
    if (ends < 0) return false;
    if (ends > 0 || is_one_of(w->text[i], key ? ":=,}]" : ",}]")) return true;
    if (asked || i == w->at || !is_one_of(w->text[i], "\"'")) continue;
    size_t from = w->at, to = i;
    asked = true;
    trim_blanks(w->text, &from, &to);
    size_t n = to - from;
    if (to < i && find_scalar(w->text + from, &n) != NULL) return true; /* a comma is missing */
  }
  *end = w->n;
  return false;
}

/* A whole word, from and to without the blanks around it. */
static void give_word(json_mend *m, const char *text, size_t n, bool key) {
  size_t from = 0, length;
  trim_blanks(text, &from, &n);
  length = n - from;
  const char *scalar = key ? NULL : find_scalar(text + from, &length);
  if (scalar != NULL) {
    give_bytes(m, scalar, length);
  } else {
    put_word(m, "\"");
    give_escaped(m, text + from, n - from);
    put_word(m, "\"");
  }
  m->state = key ? COLON : AFTER;
}

/* The beginning of a word that is too long to be held, or whose end never came. */
static void open_word(json_mend *m, const char *text, size_t n, bool key) {
  size_t from = 0;
  trim_blanks(text, &from, &n);
  if (!key && !is_one_of(text[from], "\"{[") && json_mend_is_value(text + from, n - from, false)) {
    give_bytes(m, text + from, n - from);
    return;
  }
  m->key = key;
  put_word(m, "\"");
  give_escaped(m, text + from, n - from);
  m->state = BARE;
}

/* A text without quotes, of which the beginning was given. */
static bool read_bare(json_mend *m, window *w) {
  size_t from = w->at, end;
  bool ended = find_word_end(m, w, m->key, &end);
  give_escaped(m, w->text + from, end - from);
  w->at = end;
  if (ended) end_string(m);
  return ended;
}

static bool read_word(json_mend *m, window *w, bool key) {
  size_t end;
  if (find_word_end(m, w, key, &end)) {
    while (end > w->at + 1 && is_blank(w->text[end - 1])) end -= 1;
    give_word(m, w->text + w->at, end - w->at, key);
  } else if (end - w->at > JSON_MEND_HELD) {
    m->key = key;
    put_word(m, "\"");
    give_escaped(m, w->text + w->at, end - w->at);
    m->state = BARE;
  } else {
    return false;
  }
  w->at = end;
  return true;
}

/* ---- the grammar ---- */

/* A name or a value begins. */
static bool read_begin(json_mend *m, window *w, bool key) {
  char c = w->text[w->at];
  int match = match_at(w, w->at, m->mark);
  if (match < 0) return false;
  if (match > 0 || is_one_of(c, "\"'")) {
    w->at += match > 0 ? strlen(m->mark) : 1;
    begin_string(m, match > 0 ? marked : c, key);
    return true;
  }
  if (!key && is_one_of(c, "{[") && m->depth < WEFT_JSON_DEPTH) {
    w->at += 1;
    open_level(m, c == '{');
    return true;
  }
  return read_word(m, w, key);
}

/* Whether a name or an item of the innermost level may begin with the byte. */
static bool may_begin(const json_mend *m, char c) {
  return !is_one_of(c, in_object(m) ? ",}]{[:=" : ",}]");
}

/* A comma is given where something follows it. */
static bool read_comma(json_mend *m, window *w) {
  size_t next = skip_blanks(w, w->at + 1);
  int end = next < w->n ? match_at(w, next, m->end) : 0;
  if ((next == w->n && (w->last || next - w->at <= JSON_MEND_BLANKS)) || end < 0) return false;
  bool more = next < w->n && end == 0 && may_begin(m, w->text[next]);
  w->at += 1;
  if (more) {
    put_word(m, ",");
    m->state = ITEM;
  }
  return true;
}

static bool read_after(json_mend *m, window *w) {
  char c = w->text[w->at];
  if (c == ',') return read_comma(m, w);
  if (is_one_of(c, "}]")) take_bracket(m, c);
  if (!may_begin(m, c) || is_one_of(c, "}]")) {
    w->at += 1;
    return true;
  }
  put_word(m, ",");
  m->state = ITEM;
  return true;
}

/* The first name or item of a level. */
static bool read_first(json_mend *m, window *w) {
  char c = w->text[w->at];
  if (may_begin(m, c)) return read_begin(m, w, in_object(m));
  w->at += 1;
  if (is_one_of(c, "}]")) take_bracket(m, c);
  return true;
}

static bool read_colon(json_mend *m, window *w) {
  char c = w->text[w->at];
  put_word(m, ":");
  m->state = VALUE;
  if (is_one_of(c, ":=")) w->at += 1;
  return true;
}

static bool read_value(json_mend *m, window *w) {
  char c = w->text[w->at];
  if (!is_one_of(c, ",}]")) return read_begin(m, w, false);
  put_word(m, "null");
  m->state = AFTER;
  return true;
}

/* One step; false: more text is needed. */
static bool read_some(json_mend *m, window *w) {
  if (m->state == STRING) return read_string(m, w);
  if (m->state == BARE) return read_bare(m, w);
  if (m->state == BEGIN) return read_begin(m, w, false);
  size_t next = skip_blanks(w, w->at);
  if (next > w->at) {
    if (!m->drops_blanks) give_bytes(m, w->text + w->at, next - w->at);
    w->at = next;
    return true;
  }
  int end = match_at(w, w->at, m->end);
  if (end < 0) return false;
  if (end > 0) {
    json_mend_close(m, "", 0);
    return false;
  }
  switch (m->state) {
    case FIRST:
      return read_first(m, w);
    case ITEM:
      return read_begin(m, w, in_object(m));
    case COLON:
      return read_colon(m, w);
    case VALUE:
      return read_value(m, w);
    default:
      return read_after(m, w);
  }
}

size_t json_mend_read(json_mend *m, const char *text, size_t n, bool last) {
  window w = {.text = text, .n = n, .last = last};
  while (w.at < n && m->state != DONE && read_some(m, &w)) continue;
  return w.at;
}

bool json_mend_done(const json_mend *m) {
  return m->state == DONE;
}

/* ---- the end ---- */

static bool is_word_due(const json_mend *m) {
  return m->state == FIRST || m->state == ITEM || m->state == VALUE;
}

void json_mend_cut(json_mend *m, const char *rest, size_t n) {
  size_t from = 0;
  trim_blanks(rest, &from, &n);
  if (from < n && m->state == AFTER) put_word(m, ","); /* nothing else waits there */
  if (from < n && is_word_due(m)) open_word(m, rest + from, n - from, m->state != VALUE && in_object(m));
}

void json_mend_close(json_mend *m, const char *rest, size_t n) {
  size_t from = 0;
  trim_blanks(rest, &from, &n);
  if (from < n && is_word_due(m)) give_word(m, rest + from, n - from, m->state != VALUE && in_object(m));
  if (m->state == STRING || m->state == BARE) end_string(m);
  if (m->state == ITEM) put_word(m, in_object(m) ? "\"\":null" : "null");
  if (m->state == COLON) put_word(m, ":null");
  if (m->state == VALUE) put_word(m, "null");
  close_all(m);
  m->state = DONE;
}
