/* SPDX-License-Identifier: MIT */
/* Regular expressions, as far as they describe regular languages: characters, classes, groups, alternatives,
 * repetitions, anchors at the ends. Lazy repetitions match the same texts as others. Backward references, assertions
 * and word boundaries are refused by name. */
#include <string.h>

#include "model/formats/grammar_expression.h"

static uint32_t read_choice(expressions *e, uint32_t depth, bool *begins, bool *ends);

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

/* The ranges of \d, \w and \s; false: the letter is none of them. */
static bool add_class(expressions *e, uint32_t set, uint32_t letter) {
  static const struct {
    char letter;
    uint8_t range[5][2];
  } classes[] = {
      {'d', {{'0', '9'}}}, {'w', {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}}, {'s', {{'\t', '\r'}, {' ', ' '}}}};
  for (uint32_t i = 0; i < sizeof classes / sizeof *classes; i++) {
    if ((uint32_t)classes[i].letter != letter) continue;
    for (uint32_t k = 0; k < 5 && classes[i].range[k][1] != 0; k++) {
      expression_range(e, set, classes[i].range[k][0], classes[i].range[k][1]);
    }
    return true;
  }
  return false;
}

/* What is not in \d, \w or \s; in a pattern of a schema of ASCII only: beyond it validators disagree. */
static bool add_class_complement(expressions *e, uint32_t set, uint32_t letter) {
  uint32_t other = expression_new(e, EXPR_SET);
  if (letter < 'A' || letter > 'Z' || !add_class(e, other, letter | 0x20)) return false;
  uint32_t at = 0;
  expression x = e->at[other];
  for (uint32_t i = 0; i < x.n_ranges && builder_ok(e->b); i++) {
    uint32_t low = e->range[x.ranges + 2 * i], high = e->range[x.ranges + 2 * i + 1];
    if (low > at) expression_range(e, set, at, low - 1);
    at = high + 1;
  }
  expression_range(e, set, at, e->json ? 0x7F : 0x10FFFF);
  if (builder_ok(e->b) && e->at[set].n_ranges > 0) {
    /* those of `other` stand between: the set's own begin after them */
    e->at[set].ranges = e->n_ranges - 2 * e->at[set].n_ranges;
  }
  return true;
}

/* The character that an escape stands for, GRAMMAR_NONE when it is a class or fails. */
static uint32_t escaped_character(expressions *e, uint32_t c) {
  static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v";
  const char *at = c < 0x80 && c != 0 ? strchr(letters, (int)c) : NULL;
  if (at != NULL) return (uint8_t)values[at - letters];
  if (c == 'x') return hex_value(e, 2);
  if (c == 'u') {
    uint32_t value = hex_value(e, 4);
    if (value >= 0xD800 && value <= 0xDFFF)
      return fail_at(e, "a surrogate is no character: write the character itself");
    return value;
  }
  bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (letter || c == GRAMMAR_NONE) return fail_at(e, "this escape is not supported");
  return c;
}

/* A set of its own for \d and the like, or a character. */
static uint32_t read_escape(expressions *e) {
  uint32_t c = expression_take(e), set = expression_new(e, EXPR_SET);
  if (!builder_ok(e->b) || add_class(e, set, c) || add_class_complement(e, set, c)) return set;
  if (c >= '1' && c <= '9') return fail_at(e, "backward references are not supported");
  if (c == 'b' || c == 'B') return fail_at(e, "word boundaries are not supported");
  if (c == 'p' || c == 'P') return fail_at(e, "classes by Unicode properties are not supported: write the ranges");
  c = escaped_character(e, c);
  if (!builder_ok(e->b)) return 0;
  e->at[set].ranges = e->n_ranges; /* what was tried before left none */
  expression_range(e, set, c, c);
  return set;
}

/* One end of a range in brackets: a character, or NONE when a class was added to the set. */
static uint32_t read_member(expressions *e, uint32_t set, bool *has_class) {
  uint32_t c = expression_take(e);
  if (c != '\\') return c;
  c = expression_take(e);
  if (c == 'b') return '\b';
  bool upper = c == 'D' || c == 'W' || c == 'S';
  if (upper) {
    (void)fail_at(e, "\\D, \\W and \\S within brackets are not supported: write the ranges");
    return GRAMMAR_NONE;
  }
  if (add_class(e, set, c)) {
    *has_class = true;
    return GRAMMAR_NONE;
  }
  return escaped_character(e, c);
}

static uint32_t read_brackets(expressions *e) {
  uint32_t set = expression_new(e, EXPR_SET);
  bool negated = expression_peek(e) == '^', first = true, has_class = false;
  if (negated) (void)expression_take(e);
  for (; builder_ok(e->b) && (first || expression_peek(e) != ']'); first = false) {
    if (expression_peek(e) == GRAMMAR_NONE) return fail_at(e, "a bracket [ is not closed");
    if (first && expression_peek(e) == ']') return fail_at(e, "empty brackets");
    uint32_t low = read_member(e, set, &has_class), high = low;
    if (!builder_ok(e->b)) return 0;
    if (low == GRAMMAR_NONE) continue;
    bool range = e->i + 1 < e->n_text && e->text[e->i] == '-' && e->text[e->i + 1] != ']';
    if (range) {
      (void)expression_take(e);
      high = read_member(e, set, &has_class);
      if (!builder_ok(e->b)) return 0;
      if (high == GRAMMAR_NONE || high < low) return fail_at(e, "a range in brackets ends before it begins");
    }
    expression_range(e, set, low, high);
  }
  (void)expression_take(e);
  if (!builder_ok(e->b)) return 0;
  e->at[set].negated = negated;
  e->at[set].ascii = has_class && e->json;
  return set;
}

static uint32_t read_group(expressions *e, uint32_t depth) {
  if (depth >= GRAMMAR_NEST_MAX) return fail_at(e, "groups are nested too deeply");
  if (expression_peek(e) == '?') {
    (void)expression_take(e);
    uint32_t c = expression_take(e);
    bool named = c == 'P' || (c == '<' && expression_peek(e) != '=' && expression_peek(e) != '!');
    if (named) {
      while (expression_peek(e) != '>' && expression_peek(e) != GRAMMAR_NONE) (void)expression_take(e);
      if (expression_take(e) != '>') return fail_at(e, "a group's name is not closed");
    } else if (c != ':') {
      return fail_at(e, "assertions and flags in groups are not supported");
    }
  }
  uint32_t inner = read_choice(e, depth + 1, NULL, NULL);
  if (builder_ok(e->b) && expression_take(e) != ')') return fail_at(e, "a group ( is not closed");
  return inner;
}

static uint32_t read_atom(expressions *e, uint32_t depth) {
  uint32_t c = expression_take(e);
  if (c == '(') return read_group(e, depth);
  if (c == '[') return read_brackets(e);
  if (c == '\\') return read_escape(e);
  if (c == '*' || c == '+' || c == '?') return fail_at(e, "a repetition of nothing");
  if (c == '^' || c == '$')
    return fail_at(e, "an anchor in the middle is not supported: ^ and $ may stand at the ends");
  if (c != '.') return expression_character(e, c);
  uint32_t set = expression_character(e, '\n');
  if (builder_ok(e->b)) e->at[set].negated = true;
  return set;
}

static uint32_t read_repeated(expressions *e, uint32_t depth) {
  uint32_t at = read_atom(e, depth), n = 0;
  for (; builder_ok(e->b); n++) {
    uint32_t min, max;
    if (!expression_counts(e, &min, &max)) break;
    if (n > 0) return fail_at(e, "a repetition of a repetition: put it in a group");
    at = expression_repeat(e, at, min, max);
    if (expression_peek(e) == '+') return fail_at(e, "possessive repetitions are not supported");
    if (expression_peek(e) == '?') (void)expression_take(e);
  }
  return at;
}

static uint32_t read_sequence(expressions *e, uint32_t depth, bool *begins, bool *ends) {
  uint32_t sequence = expression_new(e, EXPR_SEQUENCE), last = GRAMMAR_NONE;
  *begins = expression_peek(e) == '^' && depth == 0;
  *ends = false;
  if (*begins) (void)expression_take(e);
  while (builder_ok(e->b)) {
    uint32_t c = expression_peek(e);
    if (c == GRAMMAR_NONE || c == '|' || c == ')') break;
    char after = e->i + 1 < e->n_text ? e->text[e->i + 1] : '|';
    if (c == '$' && depth == 0 && after == '|') {
      (void)expression_take(e);
      *ends = true;
      break;
    }
    expression_append(e, sequence, &last, read_repeated(e, depth));
  }
  return sequence;
}

/* Any text, as what may stand before and after a pattern that is found anywhere. */
static uint32_t any_text(expressions *e) {
  uint32_t set = expression_new(e, EXPR_SET);
  if (builder_ok(e->b)) e->at[set].negated = true;
  return expression_repeat(e, set, 0, GRAMMAR_NONE);
}

/* begins, ends: not NULL where a pattern is searched for: any text is added where an anchor is missing. */
static uint32_t read_choice(expressions *e, uint32_t depth, bool *begins, bool *ends) {
  uint32_t choice = expression_new(e, EXPR_CHOICE), last = GRAMMAR_NONE;
  bool search = begins != NULL && ends != NULL;
  for (;;) {
    bool at_begin, at_end;
    uint32_t outer = expression_new(e, EXPR_SEQUENCE), in_outer = GRAMMAR_NONE;
    uint32_t sequence = read_sequence(e, depth, &at_begin, &at_end);
    if (!builder_ok(e->b)) return 0;
    if (search && !at_begin) expression_append(e, outer, &in_outer, any_text(e));
    expression_append(e, outer, &in_outer, sequence);
    if (search && !at_end) expression_append(e, outer, &in_outer, any_text(e));
    expression_append(e, choice, &last, outer);
    if (expression_peek(e) != '|') return choice;
    (void)expression_take(e);
  }
}

static void read_whole(expressions *e, bool search, uint32_t from, uint32_t to) {
  bool begins = search, ends = search;
  uint32_t at = read_choice(e, 0, search ? &begins : NULL, search ? &ends : NULL);
  if (builder_ok(e->b) && e->i < e->n_text) (void)fail_at(e, "a ) without its (");
  if (builder_ok(e->b)) expression_emit(e, at, from, to);
  expressions_close(e);
}

void grammar_read_regex(grammar_builder *b, const char *text, size_t n) {
  expressions e = {.b = b, .text = text, .n_text = n};
  b->root = builder_rule_open(b);
  if (builder_ok(b)) read_whole(&e, false, b->rule[b->root].first, b->rule[b->root].last);
}

void grammar_read_pattern(grammar_builder *b, const char *text, size_t n, uint32_t from, uint32_t to) {
  expressions e = {.b = b, .text = text, .n_text = n, .json = true};
  if (builder_ok(b)) read_whole(&e, true, from, to);
}
