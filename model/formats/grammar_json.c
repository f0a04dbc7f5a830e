/* SPDX-License-Identifier: MIT */
#include "model/formats/grammar_json.h"

#include <stdio.h>
#include <string.h>

#include "model/formats/grammar_style.h"
#include "model/text/json_tree.h"

enum { SHARED_INDENT, SHARED_STRING, SHARED_CHARACTER, SHARED_VALUE };
enum { INDENT_MAX = 32, DIGITS_MAX = 15, KEY_MAX = 1024 };

/* A rule that is made once. new: it was made now, and its inside is to be made. */
static uint32_t share_rule(grammar_builder *b, uint32_t which, bool *new) {
  which += 4 * (uint32_t)b->style;
  *new = b->shared[which] == GRAMMAR_NONE;
  if (*new) b->shared[which] = builder_rule_open(b);
  return builder_ok(b) ? b->shared[which] : 0;
}

static uint32_t indent_rule(grammar_builder *b) {
  bool new;
  uint32_t rule = share_rule(b, SHARED_INDENT, &new);
  if (!new || !builder_ok(b)) return rule;
  uint32_t last = b->rule[rule].last, at = builder_text(b, b->rule[rule].first, "\n", 1);
  for (uint32_t i = 0; i < INDENT_MAX; i++) {
    builder_empty(b, at, last);
    at = builder_text(b, at, " ", 1);
  }
  builder_empty(b, at, last);
  return rule;
}

uint32_t json_space(grammar_builder *b, uint32_t from) {
  if (b->style == STYLE_GEMMA) return from;
  uint32_t to = builder_state(b);
  builder_empty(b, from, to);
  builder_bytes(b, from, to, ' ', ' ');
  builder_call(b, from, to, indent_rule(b));
  return to;
}

uint32_t json_comma(grammar_builder *b, uint32_t from) {
  return json_space(b, builder_text(b, from, ",", 1));
}

uint32_t json_colon(grammar_builder *b, uint32_t from) {
  return json_space(b, builder_text(b, from, ":", 1));
}

/* ---- strings ---- */

static void add_hex(grammar_builder *b, uint32_t from, uint32_t to) {
  builder_bytes(b, from, to, '0', '9');
  builder_bytes(b, from, to, 'a', 'f');
  builder_bytes(b, from, to, 'A', 'F');
}

/* The characters that stand for themselves in a string, < among them or not. */
static void add_plain(grammar_builder *b, uint32_t from, uint32_t to, bool less) {
  builder_characters_but(b, from, to, less ? "\"\\" : "\"<\\");
}

/* Surrogates are left to be written as what they stand for. */
static void add_escape(grammar_builder *b, uint32_t from, uint32_t to) {
  static const char letters[] = "\"\\/bfnrt";
  uint32_t escape = builder_text(b, from, "\\", 1), u = builder_text(b, escape, "u", 1);
  for (uint32_t i = 0; letters[i] != 0; i++) builder_bytes(b, escape, to, (uint8_t)letters[i], (uint8_t)letters[i]);
  uint32_t second = builder_state(b), third = builder_state(b), fourth = builder_state(b), d = builder_state(b);
  builder_bytes(b, u, second, '0', '9');
  builder_bytes(b, u, second, 'a', 'c');
  builder_bytes(b, u, second, 'A', 'C');
  builder_bytes(b, u, second, 'e', 'f');
  builder_bytes(b, u, second, 'E', 'F');
  builder_bytes(b, u, d, 'd', 'd');
  builder_bytes(b, u, d, 'D', 'D');
  builder_bytes(b, d, third, '0', '7');
  add_hex(b, second, third);
  add_hex(b, third, fourth);
  add_hex(b, fourth, to);
}

/* One character of a string: itself, or an escape. */
static void add_string_character(grammar_builder *b, uint32_t from, uint32_t to) {
  add_plain(b, from, to, b->style != STYLE_TAGS);
  add_escape(b, from, to);
}

/* Behind a < within tags no / stands for itself. */
static void add_less(grammar_builder *b, uint32_t in, uint32_t last) {
  uint32_t less = builder_text(b, in, "<", 1);
  builder_characters_but(b, less, in, "\"/<\\");
  builder_bytes(b, less, less, '<', '<');
  add_escape(b, less, in);
  builder_bytes(b, less, last, '"', '"');
}

uint32_t json_string_any(grammar_builder *b, uint32_t from) {
  bool new;
  uint32_t rule = share_rule(b, SHARED_STRING, &new), to = builder_state(b);
  if (new &&builder_ok(b)) {
    uint32_t first = b->rule[rule].first, last = b->rule[rule].last;
    if (b->style == STYLE_GEMMA) {
      builder_empty(b, style_string_any(b, first), last);
    } else {
      uint32_t in = builder_text(b, first, "\"", 1);
      add_string_character(b, in, in);
      builder_bytes(b, in, last, '"', '"');
      if (b->style == STYLE_TAGS) add_less(b, in, last);
    }
  }
  builder_call(b, from, to, rule);
  return to;
}

uint32_t json_string_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max) {
  bool new;
  if (min == 0 && max == GRAMMAR_NONE) return json_string_any(b, from);
  if (b->style == STYLE_GEMMA) return style_string_sized(b, from, min, max);
  uint32_t rule = share_rule(b, SHARED_CHARACTER, &new), at = builder_text(b, from, "\"", 1);
  if (new &&builder_ok(b)) add_string_character(b, b->rule[rule].first, b->rule[rule].last);
  if (max == GRAMMAR_NONE) {
    if (min > 1) at = builder_count(b, at, rule, min - 1, min - 1);
    uint32_t loop = builder_state(b);
    add_string_character(b, at, loop);
    add_string_character(b, loop, loop);
    at = loop;
  } else {
    at = builder_count(b, at, rule, min, max);
  }
  return builder_text(b, at, "\"", 1);
}

/* Names [low, high) share their first `skip` bytes, which led to `from`; every one of them is to be avoided. */
static void add_other_keys(grammar_builder *b, uint32_t from, const char *const *name, uint32_t low, uint32_t high,
                           size_t skip, const uint32_t to[2]) {
  uint32_t at = 0x20;
  bool is_name = low < high && name[low][skip] == 0;
  if (!is_name) builder_bytes(b, from, to[1], '"', '"');
  if (!builder_step(b, 1 + 2 * (uint64_t)(high - low))) return;
  for (uint32_t i = low + (is_name ? 1 : 0), end; i < high && builder_ok(b); i = end) {
    uint32_t c = 0, other = 0;
    size_t n = weft_utf8_decode(name[i] + skip, strlen(name[i] + skip), &c);
    for (end = i + 1; end < high; end++) {
      if (weft_utf8_decode(name[end] + skip, strlen(name[end] + skip), &other) != n || other != c) break;
    }
    bool written = c >= 0x20 && c != '"' && c != '\\'; /* others would need an escape, and keys here have none */
    if (skip > KEY_MAX) builder_fail(b, WEFT_E_TOO_LARGE, "a property's name is longer than %d bytes", KEY_MAX);
    if (!written || n == 0) continue;
    for (uint32_t part = at; part < c;) {
      uint32_t stop = part <= '"' && c > '"' ? '"' : part <= '\\' && c > '\\' ? '\\' : c;
      if (part < stop) builder_characters(b, from, to[0], part, stop - 1);
      part = stop == c ? c : stop + 1;
    }
    at = c + 1;
    uint32_t next = builder_state(b);
    builder_characters(b, from, next, c, c);
    add_other_keys(b, next, name, i, end, skip + n, to);
  }
  static const uint32_t edges[] = {'"', '\\', 0x110000};
  for (uint32_t i = 0; i < 3; i++) {
    if (at < edges[i]) builder_characters(b, from, to[0], at, edges[i] - 1);
    if (at <= edges[i]) at = edges[i] + 1;
  }
}

uint32_t json_key_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n) {
  if (b->style == STYLE_GEMMA) return style_key_other(b, from, name, n);
  if (b->style == STYLE_TAGS) {
    automaton names = automaton_sized(b, 0, GRAMMAR_NONE), declared = automaton_texts(b, name, n);
    automaton_exclude(b, &names, &declared);
    uint32_t to = json_string_of(b, from, &names);
    automaton_close(&names);
    return to;
  }
  uint32_t in = builder_text(b, from, "\"", 1), free_state = builder_state(b), end = builder_state(b);
  const uint32_t to[2] = {free_state, end};
  add_other_keys(b, in, name, 0, n, 0, to);
  builder_characters_but(b, free_state, free_state, "\"\\");
  builder_bytes(b, free_state, end, '"', '"');
  return end;
}

uint32_t json_written_constant(grammar_builder *b, uint32_t from, const json_t *value) {
  weft_text text = {0};
  weft_json_write(value, &text);
  if (weft_text_status(&text) != WEFT_OK) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for a constant of the schema");
  for (size_t i = 0; i < text.n && builder_ok(b); i++) {
    bool tag = b->style == STYLE_TAGS && text.bytes[i] == '/' && i > 0 && text.bytes[i - 1] == '<';
    from = builder_text(b, from, tag ? "\\/" : text.bytes + i, tag ? 2 : 1);
  }
  weft_text_free(&text);
  return from;
}

uint32_t json_constant(grammar_builder *b, uint32_t from, const json_t *value) {
  return b->style == STYLE_GEMMA ? style_constant(b, from, value) : json_written_constant(b, from, value);
}

uint32_t json_key(grammar_builder *b, uint32_t from, const char *name) {
  if (b->style == STYLE_GEMMA) return style_key(b, from, name);
  json_t *value = json_string(name);
  if (value == NULL) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for a name of the schema");
  if (value != NULL) from = json_written_constant(b, from, value);
  json_decref(value);
  return from;
}

uint32_t json_string_of(grammar_builder *b, uint32_t from, automaton *texts) {
  if (b->style == STYLE_GEMMA) return style_string_of(b, from, texts);
  uint32_t in = builder_text(b, from, "\"", 1), out = builder_state(b);
  automaton_emit(b, texts, b->style == STYLE_TAGS ? WRITING_TAGS : WRITING_JSON, in, out);
  return builder_text(b, out, "\"", 1);
}

/* ---- numbers ---- */

static void add_digits(grammar_builder *b, uint32_t from, uint32_t to, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t next = i + 1 == n ? to : builder_state(b);
    builder_bytes(b, from, next, '0', '9');
    from = next;
  }
  if (n == 0) builder_empty(b, from, to);
}

/* Digits between two texts of n digits each. */
static void add_between(grammar_builder *b, uint32_t from, uint32_t to, const char *low, const char *high, uint32_t n) {
  static const char zeros[] = "00000000000000000000", nines[] = "99999999999999999999";
  if (n == 0) {
    builder_empty(b, from, to);
    return;
  }
  if (memcmp(low, zeros, n) == 0 && memcmp(high, nines, n) == 0) {
    add_digits(b, from, to, n);
    return;
  }
  uint32_t next = builder_state(b);
  builder_bytes(b, from, next, (uint8_t)low[0], (uint8_t)low[0]);
  if (low[0] == high[0]) {
    add_between(b, next, to, low + 1, high + 1, n - 1);
    return;
  }
  add_between(b, next, to, low + 1, nines, n - 1);
  if (low[0] + 1 < high[0]) {
    uint32_t middle = builder_state(b);
    builder_bytes(b, from, middle, (uint8_t)(low[0] + 1), (uint8_t)(high[0] - 1));
    add_digits(b, middle, to, n - 1);
  }
  uint32_t last = builder_state(b);
  builder_bytes(b, from, last, (uint8_t)high[0], (uint8_t)high[0]);
  add_between(b, last, to, zeros, high + 1, n - 1);
}

/* Whole numbers low to high, both from 0 and of at most 15 digits. */
static void add_naturals(grammar_builder *b, uint32_t from, uint32_t to, uint64_t low, uint64_t high) {
  uint64_t least = 0, most = 9;
  for (uint32_t n = 1; n <= DIGITS_MAX && least <= high; n++) {
    uint64_t l = low > least ? low : least, h = high < most ? high : most;
    if (l <= h) {
      char first[24], last[24];
      (void)snprintf(first, sizeof first, "%llu", (unsigned long long)l);
      (void)snprintf(last, sizeof last, "%llu", (unsigned long long)h);
      add_between(b, from, to, first, last, n);
    }
    least = most + 1;
    most = most * 10 + 9;
  }
}

static const int64_t largest = 999999999999999;

/* Adds the whole numbers low to high, both from 0, as far as they can be written; false: none can. */
static bool add_clipped(grammar_builder *b, uint32_t from, uint32_t to, int64_t low, int64_t high) {
  if (low < 0) low = 0;
  if (high > largest) high = largest;
  if (low > high) return false;
  add_naturals(b, from, to, (uint64_t)low, (uint64_t)high);
  return true;
}

static bool add_whole(grammar_builder *b, uint32_t from, uint32_t to, const json_bounds *d) {
  bool exact = false;
  int64_t low = d->has_low ? decimal_round(&d->low, true, &exact) : -largest;
  if (d->has_low && exact && d->low_open) low += 1;
  int64_t high = d->has_high ? decimal_round(&d->high, false, &exact) : largest;
  if (d->has_high && exact && d->high_open) high -= 1;
  bool any = add_clipped(b, from, to, low, high);
  if (low < 0 && (high < 0 ? -high : 1) <= largest) {
    any = add_clipped(b, builder_text(b, from, "-", 1), to, high < 0 ? -high : 1, -low) || any;
  }
  return any;
}

uint32_t json_integer_within(grammar_builder *b, uint32_t from, const json_bounds *bounds) {
  uint32_t to = builder_state(b);
  return add_whole(b, from, to, bounds) ? to : GRAMMAR_NONE;
}

/* A point and digits. */
static void add_fraction(grammar_builder *b, uint32_t from, uint32_t to) {
  uint32_t at = builder_text(b, from, ".", 1);
  for (uint32_t i = 0; i < DIGITS_MAX; i++) {
    uint32_t next = builder_state(b);
    builder_bytes(b, at, to, '0', '9');
    builder_bytes(b, at, next, '0', '9');
    at = next;
  }
}

uint32_t json_number_any(grammar_builder *b, uint32_t from) {
  uint32_t to = builder_state(b), whole = builder_state(b), end = builder_state(b);
  uint32_t e = builder_state(b), sign = builder_state(b), one = builder_state(b);
  const json_bounds all = {0}, natural = {.has_low = true};
  (void)add_whole(b, from, to, &all);
  (void)add_whole(b, from, whole, &natural);
  (void)add_whole(b, builder_text(b, from, "-", 1), whole, &natural);
  add_fraction(b, whole, to);
  builder_empty(b, to, end);
  builder_bytes(b, to, e, 'e', 'e');
  builder_bytes(b, to, e, 'E', 'E');
  builder_empty(b, e, sign);
  builder_bytes(b, e, sign, '+', '+');
  builder_bytes(b, e, sign, '-', '-');
  builder_bytes(b, sign, one, '0', '9');
  builder_bytes(b, one, end, '0', '9');
  builder_empty(b, one, end);
  return end;
}

/* ---- any value ---- */

/* What stands between brackets: nothing, or items with commas between them. */
static void add_list(grammar_builder *b, uint32_t from, uint32_t to, bool object, uint32_t value) {
  uint32_t open = json_space(b, builder_text(b, from, object ? "{" : "[", 1));
  uint32_t item = builder_state(b), at = item, end = builder_state(b);
  builder_empty(b, open, item);
  if (object)
    at = json_colon(b, b->style == STYLE_GEMMA ? style_key_other(b, item, NULL, 0) : json_string_any(b, item));
  builder_call(b, at, end, value);
  builder_empty(b, json_comma(b, end), item);
  uint32_t close = json_space(b, end);
  uint8_t bracket = object ? '}' : ']';
  builder_bytes(b, open, to, bracket, bracket);
  builder_bytes(b, close, to, bracket, bracket);
}

static uint32_t value_rule(grammar_builder *b) {
  bool new;
  uint32_t rule = share_rule(b, SHARED_VALUE, &new);
  static const char *const words[] = {"true", "false", "null"};
  if (!new || !builder_ok(b)) return rule;
  uint32_t first = b->rule[rule].first, last = b->rule[rule].last;
  builder_empty(b, json_string_any(b, first), last);
  builder_empty(b, json_number_any(b, first), last);
  for (uint32_t i = 0; i < 3; i++) builder_empty(b, builder_text(b, first, words[i], strlen(words[i])), last);
  add_list(b, first, last, true, rule);
  add_list(b, first, last, false, rule);
  return rule;
}

uint32_t json_value_any(grammar_builder *b, uint32_t from) {
  uint32_t to = builder_state(b);
  builder_call(b, from, to, value_rule(b));
  return to;
}

uint32_t json_object_any(grammar_builder *b, uint32_t from) {
  uint32_t to = builder_state(b);
  add_list(b, from, to, true, value_rule(b));
  return to;
}

void grammar_read_object(grammar_builder *b) {
  b->root = builder_rule_open(b);
  if (builder_ok(b)) builder_empty(b, json_object_any(b, b->rule[b->root].first), b->rule[b->root].last);
}
