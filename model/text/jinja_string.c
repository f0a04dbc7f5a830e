/* SPDX-License-Identifier: MIT */
/* Strings and their marks. Positions are counted in characters, as templates do; bytes are valid UTF-8. */
#include <string.h>

#include "model/text/jinja_internal.h"

bool jinja_is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* From small to capital letters: those of first..last are `by` above their capitals, or every second one is (by 1). */
static const struct {
  uint32_t first, last, by;
} small_letters[] = {{'a', 'z', 32},    {0xE0, 0xF6, 32},   {0xF8, 0xFE, 32},   {0x100, 0x137, 1},  {0x139, 0x148, 1},
                     {0x14A, 0x177, 1}, {0x3B1, 0x3C1, 32}, {0x3C3, 0x3CB, 32}, {0x430, 0x44F, 32}, {0x450, 0x45F, 80},
                     {0x460, 0x481, 1}, {0x48A, 0x4BF, 1},  {0x561, 0x586, 48}, {0x1E00, 0x1E95, 1}};
enum { N_SMALL = sizeof small_letters / sizeof *small_letters };

/* In 0x139..0x148 the odd ones are capitals, elsewhere the even ones. */
static bool is_small_of_pair(uint32_t c) {
  return (c & 1u) == (c >= 0x139 && c <= 0x148 ? 0 : 1);
}

uint32_t jinja_upper(uint32_t c) {
  if (c == 0x131) return 'I';
  for (size_t i = 0; i < N_SMALL; i++) {
    uint32_t by = small_letters[i].by;
    if (c < small_letters[i].first || c > small_letters[i].last) continue;
    return by > 1 || is_small_of_pair(c) ? c - by : c;
  }
  return c == 0xFF ? 0x178 : c == 0xB5 ? 0x39C : c == 0x3C2 ? 0x3A3 : c;
}

uint32_t jinja_lower(uint32_t c) {
  if (c == 0x130) return c; /* becomes two characters elsewhere */
  for (size_t i = 0; i < N_SMALL; i++) {
    uint32_t by = small_letters[i].by, first = small_letters[i].first, last = small_letters[i].last;
    if (by == 1 && c >= first && c <= last) return is_small_of_pair(c) ? c : c + 1;
    if (by > 1 && c >= first - by && c <= last - by && !(c >= first && c <= last)) return c == 0xD7 ? c : c + by;
  }
  return c == 0x178 ? 0xFF : c;
}

static bool is_letter(uint32_t c) {
  return jinja_upper(c) != c || jinja_lower(c) != c || c == 0xDF || c >= 0x250;
}

/* ---- growing --------------------------------------------------------------------------------- */

static bool reserve_bytes(jinja_run *run, jinja_buffer *out, size_t n) {
  if (n <= out->capacity - out->n) return true;
  size_t capacity = (out->n + n) * 2 < 64 ? 64 : (out->n + n) * 2;
  char *bytes = jinja_take(run, capacity);
  weft_jinja_mark *marks = jinja_take(run, capacity * sizeof *marks);
  if (bytes == NULL || marks == NULL) return false;
  if (out->n > 0) {
    (void)jinja_charge(run, out->n / 64);
    memcpy(bytes, out->bytes, out->n);
    memcpy(marks, out->marks, out->n * sizeof *marks);
  }
  out->bytes = bytes;
  out->marks = marks;
  out->capacity = capacity;
  return true;
}

static void append_marked(jinja_run *run, jinja_buffer *out, const char *bytes, const weft_jinja_mark *marks,
                          size_t n) {
  if (n == 0 || !jinja_charge(run, n / 64) || !reserve_bytes(run, out, n)) return;
  memcpy(out->bytes + out->n, bytes, n);
  if (marks == NULL) {
    memset(out->marks + out->n, 0, n * sizeof *marks);
  } else {
    memcpy(out->marks + out->n, marks, n * sizeof *marks);
  }
  out->n += n;
}

void jinja_append(jinja_run *run, jinja_buffer *out, const jinja_string *s) {
  append_marked(run, out, s->bytes, s->marks, s->n);
}

void jinja_append_text(jinja_run *run, jinja_buffer *out, const char *computed, size_t n) {
  append_marked(run, out, computed, NULL, n);
}

void jinja_append_escape(jinja_run *run, jinja_buffer *out, const jinja_string *of, size_t at, const char *escape) {
  weft_jinja_mark mark = of->marks == NULL || of->marks[at] < WEFT_JINJA_TRACED ? WEFT_JINJA_COMPUTED : of->marks[at];
  size_t n = strlen(escape);
  append_marked(run, out, escape, NULL, n);
  for (size_t i = 0; i < n && !jinja_failed(run); i++) out->marks[out->n - n + i] = mark;
}

void jinja_puts(jinja_run *run, jinja_buffer *out, const char *computed) {
  append_marked(run, out, computed, NULL, strlen(computed));
}

jinja_value jinja_string_value(jinja_run *run, jinja_string string) {
  static const jinja_string empty = {.bytes = ""};
  jinja_string *s = jinja_take(run, sizeof *s);
  if (s == NULL) return (jinja_value){.kind = JINJA_STRING, .string = &empty};
  *s = string;
  if (s->bytes == NULL) *s = empty;
  return (jinja_value){.kind = JINJA_STRING, .string = s};
}

jinja_value jinja_word(jinja_run *run, const char *zero_ended) {
  return jinja_string_value(run, (jinja_string){.bytes = zero_ended, .n = strlen(zero_ended)});
}

jinja_value jinja_buffer_value(jinja_run *run, jinja_buffer *buffer) {
  return jinja_string_value(run, (jinja_string){buffer->bytes, buffer->marks, buffer->n, buffer});
}

jinja_string jinja_part(const jinja_string *s, size_t from, size_t to) {
  return (jinja_string){s->bytes + from, s->marks == NULL ? NULL : s->marks + from, to - from, s->buffer};
}

/* A string that ends where its buffer ends grows in place, so that a text put together piece by piece costs no more
 * than its length. Values that share the buffer see no difference, since their bytes stay. */
jinja_value jinja_concat(jinja_run *run, const jinja_string *a, const jinja_string *b) {
  jinja_buffer *buffer = a->buffer;
  if (b->n == 0) return jinja_string_value(run, *a);
  if (a->n == 0) return jinja_string_value(run, *b);
  bool grows = buffer != NULL && a->bytes + a->n == buffer->bytes + buffer->n && buffer->capacity - buffer->n >= b->n;
  if (!grows) {
    buffer = jinja_take(run, sizeof *buffer);
    if (buffer == NULL || !reserve_bytes(run, buffer, a->n + b->n)) return jinja_word(run, "");
    jinja_append(run, buffer, a);
  }
  jinja_append(run, buffer, b);
  if (jinja_failed(run)) return jinja_word(run, "");
  size_t n = a->n + b->n, from = buffer->n - n;
  return jinja_string_value(run, (jinja_string){buffer->bytes + from, buffer->marks + from, n, buffer});
}

/* ---- measuring ------------------------------------------------------------------------------- */

int64_t jinja_string_length(jinja_run *run, const jinja_string *s) {
  int64_t n = 0;
  (void)jinja_charge(run, s->n / 64);
  for (size_t i = 0; i < s->n; i++) n += ((unsigned char)s->bytes[i] & 0xC0) != 0x80;
  return n;
}

size_t jinja_string_offset(const jinja_string *s, size_t k) {
  size_t at = 0;
  while (at < s->n && k > 0) {
    at += 1;
    while (at < s->n && ((unsigned char)s->bytes[at] & 0xC0) == 0x80) at += 1;
    k -= 1;
  }
  return at;
}

static bool is_stripped(uint32_t c, const char *bytes, size_t n, const jinja_string *set) {
  return set == NULL ? jinja_is_space(c) : memmem(set->bytes, set->n, bytes, n) != NULL;
}

jinja_string jinja_strip(const jinja_string *s, const jinja_string *set, bool left, bool right) {
  size_t from = 0, to = s->n;
  uint32_t c;
  while (left && from < to) {
    size_t n = weft_utf8_decode(s->bytes + from, to - from, &c);
    if (n == 0 || !is_stripped(c, s->bytes + from, n, set)) break;
    from += n;
  }
  while (right && to > from) {
    size_t n = 1;
    while (n < 4 && n < to - from && ((unsigned char)s->bytes[to - n] & 0xC0) == 0x80) n += 1;
    if (weft_utf8_decode(s->bytes + to - n, n, &c) != n || !is_stripped(c, s->bytes + to - n, n, set)) break;
    to -= n;
  }
  return jinja_part(s, from, to);
}

/* Each character is looked for in the whole set; without one, a step is as many bytes as elsewhere. */
jinja_value jinja_strip_counted(jinja_run *run, const jinja_string *s, const jinja_string *set, bool left, bool right) {
  if (!jinja_charge(run, set == NULL ? 1 : (s->n / 64 + 1) * (set->n + 1))) return jinja_nothing();
  jinja_string stripped = jinja_strip(s, set, left, right);
  (void)jinja_charge(run, (s->n - stripped.n) / 8);
  return jinja_string_value(run, stripped);
}

/* ---- changing -------------------------------------------------------------------------------- */

jinja_value jinja_replace(jinja_run *run, const jinja_string *s, const jinja_string *old, const jinja_string *with,
                          int64_t n_max) {
  jinja_buffer *out = jinja_take(run, sizeof *out);
  size_t at = 0;
  if (out == NULL) return jinja_nothing();
  for (; n_max != 0 && at <= s->n && jinja_charge(run, 1); n_max -= n_max > 0) {
    const char *found = memmem(s->bytes + at, s->n - at, old->bytes, old->n);
    if (found == NULL) break;
    size_t to = (size_t)(found - s->bytes);
    jinja_string before = jinja_part(s, at, to);
    jinja_append(run, out, &before);
    jinja_append(run, out, with);
    at = to + old->n;
    if (old->n > 0) continue;
    if (at == s->n) break;
    jinja_string rest = jinja_part(s, at, s->n), one = jinja_part(s, at, at + jinja_string_offset(&rest, 1));
    jinja_append(run, out, &one); /* between all characters */
    at += one.n;
  }
  jinja_string rest = jinja_part(s, at < s->n ? at : s->n, s->n);
  jinja_append(run, out, &rest);
  return jinja_buffer_value(run, out);
}

/* What a character becomes: `first` of a word or of the string, as the case has it. */
static uint32_t recase_character(uint32_t c, jinja_case as, bool first) {
  bool upper = as == CASE_UPPER || (as != CASE_LOWER && first);
  return upper ? jinja_upper(c) : jinja_lower(c);
}

jinja_value jinja_recase(jinja_run *run, const jinja_string *s, jinja_case as) {
  jinja_buffer *out = jinja_take(run, sizeof *out);
  bool first = true;
  if (out == NULL || !jinja_charge(run, s->n)) return jinja_nothing();
  for (size_t at = 0; at < s->n && !jinja_failed(run);) {
    char changed[4];
    uint32_t c = 0;
    size_t n = weft_utf8_decode(s->bytes + at, s->n - at, &c);
    if (n == 0) break;
    size_t n_changed = weft_utf8_encode(recase_character(c, as, first), changed);
    if (c == 0xDF && (as == CASE_UPPER || first) && as != CASE_LOWER) { /* the only one that becomes two letters here */
      n_changed = 2;
      memcpy(changed, as == CASE_UPPER ? "SS" : "Ss", 2);
    }
    weft_jinja_mark mark = s->marks == NULL ? WEFT_JINJA_COMPUTED : s->marks[at], marks[] = {mark, mark, mark, mark};
    append_marked(run, out, changed, marks, n_changed);
    if (as == CASE_TITLE) {
      first = !is_letter(c);
    } else if (as == CASE_HEADLINE) {
      first = jinja_is_space(c) || (c < 128 && strchr("-({[<", (int)c) != NULL);
    } else {
      first = false;
    }
    at += n;
  }
  return jinja_buffer_value(run, out);
}

/* The bytes of the line break at `at`; 0: none is here. */
static size_t line_break(const jinja_string *s, size_t at) {
  uint32_t c = 0;
  size_t n = weft_utf8_decode(s->bytes + at, s->n - at, &c);
  if (c == '\r' && at + 1 < s->n && s->bytes[at + 1] == '\n') return 2;
  bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  return breaks ? n : 0;
}

jinja_value jinja_split_lines(jinja_run *run, const jinja_string *s) {
  jinja_items lines = {0};
  size_t from = 0;
  if (!jinja_charge(run, s->n / 8)) return jinja_nothing();
  for (size_t at = 0; at < s->n && !jinja_failed(run);) {
    size_t n = line_break(s, at);
    if (n > 0) {
      jinja_items_add(run, &lines, jinja_string_value(run, jinja_part(s, from, at)));
      from = at + n;
    }
    at += n > 0 ? n : 1;
    while (at < s->n && ((unsigned char)s->bytes[at] & 0xC0) == 0x80) at += 1;
  }
  if (from < s->n) jinja_items_add(run, &lines, jinja_string_value(run, jinja_part(s, from, s->n)));
  return jinja_items_value(run, &lines, JINJA_FLAVOUR_LIST);
}
