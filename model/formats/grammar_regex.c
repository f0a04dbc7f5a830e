/* SPDX-License-Identifier: MIT */
/* Regular expressions, as far as they describe regular languages: characters, classes, groups, alternatives,
 * repetitions, anchors, borders of words, what must or must not follow or stand before. Lazy repetitions match the same
 * texts as others. Backward references are refused by name. */
#include <string.h>

#include "model/formats/automaton.h"
#include "model/formats/unicode_class.h"

static uint32_t read_choice(expressions *e, uint32_t depth);

static uint32_t fail_at(expressions *e, const char *what) {
  builder_fail(e->b, WEFT_E_UNSUPPORTED, "regular expression, byte %zu: %s", e->i, what);
  return 0;
}

static uint32_t hex_value(expressions *e, uint32_t n) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t c = expression_take(e), lower = c | 0x20;
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      return fail_at(e, "a character's number needs more hexadecimal digits");
    }
  }
  return value;
}

/* \d, \w, \s and their complements; 0: the letter is none of them. */
static uint8_t find_class(uint32_t letter) {
  static const char letters[] = "dDwWsS";
  const char *at = letter < 0x80 && letter != 0 ? strchr(letters, (int)letter) : NULL;
  return at == NULL ? 0 : (uint8_t)(1u << (at - letters));
}

/* \u0041, \u{1F600}, or two surrogates, which are one character. */
static uint32_t read_unicode(expressions *e) {
  uint32_t value = 0;
  if (expression_peek(e) == '{') {
    (void)expression_take(e);
    for (uint32_t n = 0; expression_peek(e) != '}' && builder_ok(e->b); n++) {
      if (n >= 8) return fail_at(e, "there is no such character");
      value = value * 16 + hex_value(e, 1);
    }
    (void)expression_take(e);
  } else {
    value = hex_value(e, 4);
    bool pair = value >= 0xD800 && value < 0xDC00 && e->n_text - e->i >= 6 && memcmp(e->text + e->i, "\\u", 2) == 0;
    if (pair) {
      e->i += 2;
      uint32_t low = hex_value(e, 4);
      value = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00) : value;
    }
  }
  if (value >= 0xD800 && value <= 0xDFFF) return fail_at(e, "a surrogate is no character: write the character itself");
  return value <= 0x10FFFF ? value : fail_at(e, "there is no such character");
}

/* The character that an escape stands for, GRAMMAR_NONE when it is a class or fails. */
static uint32_t escaped_character(expressions *e, uint32_t c) {
  static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v";
  const char *at = c < 0x80 && c != 0 ? strchr(letters, (int)c) : NULL;
  if (at != NULL) return (uint8_t)values[at - letters];
  if (c == 'x') return hex_value(e, 2);
  if (c == 'u') return read_unicode(e);
  bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (letter || c == GRAMMAR_NONE) return fail_at(e, "this escape is not supported");
  return c;
}

/* \p{NAME}, \P{NAME} or \pL, behind the letter: the characters that are surely in it. */
static void add_property(expressions *e, uint32_t set, bool negated) {
  char name[UNICODE_NAME_MAX] = {0};
  size_t n = 0;
  uint32_t c = expression_take(e);
  bool braces = c == '{';
  if (braces) c = expression_take(e);
  if (braces && c == '^') negated = !negated, c = expression_take(e);
  for (; c < 0x80 && c != '}' && n + 1 < sizeof name; c = braces ? expression_take(e) : '}') name[n++] = (char)c;
  const unicode_class *class = c == '}' ? unicode_class_of(e->b, name) : NULL, *none = NULL;
  if (class != NULL) none = unicode_class_of(e->b, "Cn");
  if (class == NULL || none == NULL) {
    builder_fail(e->b, WEFT_E_UNSUPPORTED, "regular expression, byte %zu: there is no class \\p{%.40s}", e->i, name);
    return;
  }
  uint32_t at = 0, k = 0, m = 0; /* each stretch of characters that lie alike in both */
  while (at <= 0x10FFFF && builder_step(e->b, 1)) {
    while (k < class->n && class->range[k][1] < at) k += 1;
    while (m < none->n && none->range[m][1] < at) m += 1;
    bool in = k < class->n && class->range[k][0] <= at, open = m < none->n && none->range[m][0] <= at;
    uint32_t end = in ? class->range[k][1] : k < class->n ? class->range[k][0] - 1 : 0x10FFFF;
    uint32_t stop = open ? none->range[m][1] : m < none->n ? none->range[m][0] - 1 : 0x10FFFF;
    if (stop < end) end = stop;
    if (!open && in != negated) expression_range(e, set, at, end);
    at = end + 1;
  }
  if (builder_ok(e->b)) e->at[set].classes |= CLASS_PROPERTY;
}

static uint32_t add_assertion(expressions *e, expression_kind kind) {
  e->n_assertions += 1;
  return expression_new(e, kind);
}

/* A set of its own for \d and the like, a border, or a character. */
static uint32_t read_escape(expressions *e) {
  uint32_t c = expression_take(e);
  uint8_t class = find_class(c);
  if (class != 0) {
    uint32_t set = expression_new(e, EXPR_SET);
    if (builder_ok(e->b)) e->at[set].classes = class;
    return set;
  }
  if (c == 'b' || c == 'B') return add_assertion(e, c == 'b' ? EXPR_BORDER : EXPR_NO_BORDER);
  if (c >= '1' && c <= '9') return fail_at(e, "backward references are not supported");
  if (c == 'k') return fail_at(e, "backward references are not supported");
  if (c == 'p' || c == 'P') {
    uint32_t set = expression_new(e, EXPR_SET);
    if (builder_ok(e->b)) add_property(e, set, c == 'P');
    return set;
  }
  c = escaped_character(e, c);
  return builder_ok(e->b) ? expression_character(e, c) : 0;
}

/* One end of a range in brackets: a character, or NONE when a class was added to the set. */
static uint32_t read_member(expressions *e, uint32_t set) {
  uint32_t c = expression_take(e);
  if (c != '\\') return c;
  c = expression_take(e);
  if (c == 'b') return '\b';
  if (c == 'p' || c == 'P') {
    add_property(e, set, c == 'P');
    return GRAMMAR_NONE;
  }
  uint8_t class = find_class(c);
  e->at[set].classes |= class;
  return class != 0 ? GRAMMAR_NONE : escaped_character(e, c);
}

static uint32_t read_brackets(expressions *e) {
  uint32_t set = expression_new(e, EXPR_SET);
  bool negated = expression_peek(e) == '^';
  if (negated) (void)expression_take(e);
  if (!negated && expression_peek(e) == ']') return fail_at(e, "empty brackets");
  while (builder_ok(e->b) && expression_peek(e) != ']') {
    if (expression_peek(e) == GRAMMAR_NONE) return fail_at(e, "a bracket [ is not closed");
    uint32_t low = read_member(e, set), high = low;
    if (!builder_ok(e->b)) return 0;
    if (low == GRAMMAR_NONE) continue;
    bool range = e->i + 1 < e->n_text && e->text[e->i] == '-' && e->text[e->i + 1] != ']';
    if (range) {
      (void)expression_take(e);
      high = read_member(e, set);
      if (!builder_ok(e->b)) return 0;
      if (high == GRAMMAR_NONE || high < low) return fail_at(e, "a range in brackets ends before it begins");
    }
    expression_range(e, set, low, high);
  }
  (void)expression_take(e);
  if (!builder_ok(e->b)) return 0;
  e->at[set].negated = negated;
  return set;
}

/* Whether an assertion stands in the expression that may not stand within a look at what stands before, or, where it
 * is one at what follows, a look at what stands before. */
static bool has_assertion(const expressions *e, uint32_t at, bool behind) {
  for (; at != GRAMMAR_NONE; at = e->at[at].next) {
    const expression *x = &e->at[at];
    if (behind ? x->kind > EXPR_BEGIN : x->kind == EXPR_BEHIND) return true;
    if (has_assertion(e, x->child, behind)) return true;
  }
  return false;
}

/* (?=...), (?!...), (?<=...) or (?<!...), behind its mark. */
static uint32_t read_look(expressions *e, uint32_t depth, bool behind, bool negated) {
  uint32_t look = add_assertion(e, behind ? EXPR_BEHIND : EXPR_AHEAD), inner = read_choice(e, depth + 1);
  if (builder_ok(e->b) && expression_take(e) != ')') return fail_at(e, "a group ( is not closed");
  if (!builder_ok(e->b) || !builder_step(e->b, e->n)) return 0;
  if (has_assertion(e, inner, behind)) {
    return fail_at(e, behind ? "within (?<= and (?<! no assertion but ^ is supported"
                             : "(?<= and (?<! are not supported within (?= and (?!");
  }
  e->at[look].child = inner;
  e->at[look].negated = negated;
  return look;
}

static uint32_t read_group(expressions *e, uint32_t depth) {
  if (depth >= GRAMMAR_NEST_MAX) return fail_at(e, "groups are nested too deeply");
  if (expression_peek(e) == '?') {
    (void)expression_take(e);
    uint32_t c = expression_take(e);
    if (c == '=' || c == '!') return read_look(e, depth, false, c == '!');
    bool behind = c == '<' && (expression_peek(e) == '=' || expression_peek(e) == '!');
    if (behind) return read_look(e, depth, true, expression_take(e) == '!');
    bool named = c == 'P' || c == '<';
    if (named) {
      while (expression_peek(e) != '>' && expression_peek(e) != GRAMMAR_NONE) (void)expression_take(e);
      if (expression_take(e) != '>') return fail_at(e, "a group's name is not closed");
    } else if (c != ':') {
      return fail_at(e, "flags in groups are not supported");
    }
  }
  uint32_t inner = read_choice(e, depth + 1);
  if (builder_ok(e->b) && expression_take(e) != ')') return fail_at(e, "a group ( is not closed");
  return inner;
}

static uint32_t read_atom(expressions *e, uint32_t depth) {
  size_t before = e->i;
  uint32_t c = expression_take(e), min, max;
  if (c == '(') return read_group(e, depth);
  if (c == '[') return read_brackets(e);
  if (c == '\\') return read_escape(e);
  if (c == '^' || c == '$') return add_assertion(e, c == '^' ? EXPR_BEGIN : EXPR_END);
  if (c == '{') e->i = before;
  if (c == '*' || c == '+' || c == '?' || (c == '{' && expression_counts(e, &min, &max))) {
    return fail_at(e, "a repetition of nothing");
  }
  e->i = before;
  (void)expression_take(e);
  if (c != '.') return expression_character(e, c);
  uint32_t set = expression_new(e, EXPR_SET);
  if (builder_ok(e->b)) e->at[set].classes = CLASS_DOT;
  return set;
}

static uint32_t read_repeated(expressions *e, uint32_t depth) {
  uint32_t at = read_atom(e, depth), n = 0;
  for (; builder_ok(e->b); n++) {
    uint32_t min, max;
    if (!expression_counts(e, &min, &max)) break;
    if (n > 0) return fail_at(e, "a repetition of a repetition: put it in a group");
    if (e->at[at].kind >= EXPR_BEGIN) return fail_at(e, "a repetition of nothing");
    at = expression_repeat(e, at, min, max);
    if (expression_peek(e) == '+') return fail_at(e, "possessive repetitions are not supported");
    if (expression_peek(e) == '?') (void)expression_take(e);
  }
  return at;
}

static uint32_t read_sequence(expressions *e, uint32_t depth) {
  uint32_t sequence = expression_new(e, EXPR_SEQUENCE), last = GRAMMAR_NONE;
  while (builder_ok(e->b)) {
    uint32_t c = expression_peek(e);
    if (c == GRAMMAR_NONE || c == '|' || c == ')') break;
    expression_append(e, sequence, &last, read_repeated(e, depth));
  }
  return sequence;
}

static uint32_t read_choice(expressions *e, uint32_t depth) {
  uint32_t choice = expression_new(e, EXPR_CHOICE), last = GRAMMAR_NONE;
  for (;;) {
    uint32_t sequence = read_sequence(e, depth);
    if (!builder_ok(e->b)) return 0;
    expression_append(e, choice, &last, sequence);
    if (expression_peek(e) != '|') return choice;
    (void)expression_take(e);
  }
}

uint32_t regex_read(expressions *e) {
  uint32_t at = read_choice(e, 0);
  if (builder_ok(e->b) && e->i < e->n_text) (void)fail_at(e, "a ) without its (");
  return at;
}

/* ---- anchors at the ends ---- */

/* Any text, as what may stand before and after what is found anywhere. */
static uint32_t any_text(expressions *e) {
  uint32_t set = expression_new(e, EXPR_SET);
  if (builder_ok(e->b)) e->at[set].negated = true;
  return expression_repeat(e, set, 0, GRAMMAR_NONE);
}

/* How many anchors an alternative begins and ends with, 0 or 1 each. */
static uint32_t find_anchors(const expressions *e, uint32_t sequence, uint32_t *before_last) {
  uint32_t child = e->at[sequence].child, last = child, n = 0;
  *before_last = GRAMMAR_NONE;
  if (child == GRAMMAR_NONE) return 0;
  if (e->at[child].kind == EXPR_BEGIN) n = 1;
  for (; e->at[last].next != GRAMMAR_NONE; last = e->at[last].next) *before_last = last;
  return e->at[last].kind == EXPR_END ? n | 2 : n;
}

bool regex_drop_anchors(expressions *e, uint32_t choice, bool search) {
  uint32_t n = 0, before_last;
  if (!builder_step(e->b, e->n)) return false;
  for (uint32_t i = e->at[choice].child; i != GRAMMAR_NONE; i = e->at[i].next) {
    uint32_t anchors = find_anchors(e, i, &before_last);
    n += (anchors & 1) + (anchors >> 1);
  }
  if (n != e->n_assertions) return false;
  for (uint32_t i = e->at[choice].child; i != GRAMMAR_NONE && builder_ok(e->b); i = e->at[i].next) {
    uint32_t anchors = find_anchors(e, i, &before_last), inner = expression_new(e, EXPR_SEQUENCE);
    uint32_t last = GRAMMAR_NONE, before = search && (anchors & 1) == 0 ? any_text(e) : GRAMMAR_NONE;
    uint32_t after = search && (anchors & 2) == 0 ? any_text(e) : GRAMMAR_NONE;
    if (!builder_ok(e->b)) return true;
    uint32_t first = e->at[i].child;
    if ((anchors & 2) != 0 && before_last != GRAMMAR_NONE) e->at[before_last].next = GRAMMAR_NONE;
    if ((anchors & 2) != 0 && before_last == GRAMMAR_NONE) first = GRAMMAR_NONE;
    if ((anchors & 1) != 0 && first != GRAMMAR_NONE) first = e->at[first].next;
    e->at[inner].child = first;
    e->at[i].child = GRAMMAR_NONE;
    if (before != GRAMMAR_NONE) expression_append(e, i, &last, before);
    expression_append(e, i, &last, inner);
    if (after != GRAMMAR_NONE) expression_append(e, i, &last, after);
  }
  return true;
}

static void read_whole(expressions *e, bool search, uint32_t from, uint32_t to) {
  uint32_t at = regex_read(e);
  if (builder_ok(e->b) && regex_drop_anchors(e, at, search)) {
    expression_emit(e, at, from, to);
  } else if (builder_ok(e->b)) {
    automaton a = automaton_regex(e, at, search);
    if (builder_ok(e->b) && automaton_is_empty(&a)) (void)fail_at(e, "nothing fits this expression");
    automaton_emit(e->b, &a, e->writing, from, to);
    automaton_close(&a);
  }
  expressions_close(e);
}

void grammar_read_regex(grammar_builder *b, const char *text, size_t n) {
  expressions e = {.b = b, .text = text, .n_text = n, .reading = REGEX_PLAIN};
  b->root = builder_rule_open(b);
  if (builder_ok(b)) read_whole(&e, false, b->rule[b->root].first, b->rule[b->root].last);
}

bool grammar_read_pattern(grammar_builder *b, const char *text, size_t n, const pattern_writing *how, uint32_t from,
                          uint32_t to) {
  expressions e = {
      .b = b, .text = text, .n_text = n, .writing = how->writing, .reading = REGEX_SURELY, .avoids = how->avoids};
  builder_mark before = builder_mark_here(b);
  if (builder_ok(b)) read_whole(&e, true, from, to);
  bool failed = b->status == WEFT_E_UNSUPPORTED || b->status == WEFT_E_TOO_LARGE;
  bool lost = how->avoids != 0 && (e.lost || failed) && b->n_steps <= GRAMMAR_STEPS_MAX;
  if (lost) builder_take_back(b, before);
  return !lost;
}
