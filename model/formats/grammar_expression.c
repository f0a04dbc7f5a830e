/* SPDX-License-Identifier: MIT */
#include "model/formats/grammar_expression.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/unicode_class.h"
#include "model/text/json_tree.h"

enum { CHARACTER_MAX = 0x10FFFF };

void expressions_close(expressions *e) {
  weft_free(e->at);
  weft_free(e->range);
  weft_free(e->sorted);
}

static bool grow_list(expressions *e, void **list, uint32_t n, uint32_t *capacity, size_t size) {
  return builder_step(e->b, 1) && builder_grow(e->b, list, n, capacity, size);
}

uint32_t expression_new(expressions *e, expression_kind kind) {
  if (!grow_list(e, (void **)&e->at, e->n, &e->capacity, sizeof *e->at)) return 0;
  e->at[e->n] = (expression){.kind = (uint8_t)kind, .child = GRAMMAR_NONE, .next = GRAMMAR_NONE, .ranges = e->n_ranges};
  return e->n++;
}

void expression_append(expressions *e, uint32_t parent, uint32_t *last, uint32_t child) {
  if (!builder_ok(e->b)) return;
  if (*last == GRAMMAR_NONE) {
    e->at[parent].child = child;
  } else {
    e->at[*last].next = child;
  }
  *last = child;
}

void expression_range(expressions *e, uint32_t set, uint32_t low, uint32_t high) {
  if (!grow_list(e, (void **)&e->range, e->n_ranges + 1, &e->ranges_capacity, sizeof *e->range)) return;
  e->range[e->n_ranges] = low;
  e->range[e->n_ranges + 1] = high;
  e->n_ranges += 2;
  e->at[set].n_ranges += 1;
}

uint32_t expression_character(expressions *e, uint32_t c) {
  uint32_t set = expression_new(e, EXPR_SET);
  if (builder_ok(e->b)) expression_range(e, set, c, c);
  return set;
}

uint32_t expression_repeat(expressions *e, uint32_t child, uint32_t min, uint32_t max) {
  uint32_t at = expression_new(e, EXPR_REPEAT);
  if (!builder_ok(e->b)) return 0;
  e->at[at].child = child;
  e->at[at].min = min;
  e->at[at].max = max;
  return at;
}

uint32_t expression_peek(const expressions *e) {
  uint32_t c;
  if (e->i >= e->n_text || weft_utf8_decode(e->text + e->i, e->n_text - e->i, &c) == 0) return GRAMMAR_NONE;
  return c == WEFT_JSON_ZERO_CHARACTER ? 0 : c;
}

uint32_t expression_take(expressions *e) {
  uint32_t c;
  size_t n = e->i >= e->n_text ? 0 : weft_utf8_decode(e->text + e->i, e->n_text - e->i, &c);
  e->i += n;
  if (n == 0 || !builder_step(e->b, 1)) return GRAMMAR_NONE;
  return c == WEFT_JSON_ZERO_CHARACTER ? 0 : c;
}

static bool take_number(expressions *e, uint32_t *out) {
  uint64_t value = 0;
  size_t before = e->i;
  for (uint32_t c; (c = expression_peek(e)) >= '0' && c <= '9';) {
    (void)expression_take(e);
    if (value <= GRAMMAR_COUNT_MAX) value = value * 10 + (c - '0');
  }
  if (value > GRAMMAR_COUNT_MAX) {
    builder_fail(e->b, WEFT_E_TOO_LARGE, "a repetition of %.*s at byte %zu; at most %d are allowed",
                 (int)(e->i - before < 24 ? e->i - before : 24), e->text + before, before, GRAMMAR_COUNT_MAX);
  }
  *out = (uint32_t)value;
  return e->i > before;
}

bool expression_counts(expressions *e, uint32_t *min, uint32_t *max) {
  size_t before = e->i;
  uint32_t c = expression_peek(e);
  if (c == '*' || c == '+' || c == '?') {
    (void)expression_take(e);
    *min = c == '+' ? 1 : 0;
    *max = c == '?' ? 1 : GRAMMAR_NONE;
    return true;
  }
  if (c != '{') return false;
  (void)expression_take(e);
  bool has_min = take_number(e, min), comma = expression_peek(e) == ',';
  *max = *min;
  if (comma) {
    (void)expression_take(e);
    if (!take_number(e, max)) *max = GRAMMAR_NONE;
  }
  if ((has_min || comma) && expression_peek(e) == '}' && builder_ok(e->b)) {
    (void)expression_take(e);
    if (!has_min) *min = 0;
    if (*max < *min) {
      builder_fail(e->b, WEFT_E_INVALID, "a repetition of {%u,%u} at byte %zu: the second count is less than the first",
                   *min, *max, before);
    }
    return true;
  }
  e->i = before;
  return false;
}

/* ---- to automata ---- */

static void push_range(expressions *e, uint32_t *n, uint32_t low, uint32_t high) {
  if (low > high || !grow_list(e, (void **)&e->sorted, *n, &e->sorted_capacity, sizeof *e->sorted)) return;
  e->sorted[*n][0] = low;
  e->sorted[(*n)++][1] = high;
}

static int compare_ranges(const void *a, const void *b) {
  const uint32_t *x = a, *y = b;
  return (x[0] > y[0]) - (x[0] < y[0]);
}

/* Ranges sorted, without overlaps; `negated`: what is outside of them. */
static uint32_t settle_ranges(expressions *e, uint32_t n, bool negated) {
  uint32_t kept = 0, at = 0;
  if (!builder_step(e->b, 2 * (uint64_t)n) || n == 0) {
    if (negated) push_range(e, &kept, 0, CHARACTER_MAX);
    return kept;
  }
  qsort(e->sorted, n, sizeof *e->sorted, compare_ranges);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t low = e->sorted[i][0], high = e->sorted[i][1];
    if (kept > 0 && low <= e->sorted[kept - 1][1] + 1) {
      if (high > e->sorted[kept - 1][1]) e->sorted[kept - 1][1] = high;
    } else {
      e->sorted[kept][0] = low;
      e->sorted[kept++][1] = high;
    }
  }
  if (!negated) return kept;
  n = kept;
  kept = 0;
  for (uint32_t i = 0; i < n; i++) { /* a gap is written where the range before it stood */
    uint32_t low = e->sorted[i][0], high = e->sorted[i][1];
    if (low > at) {
      e->sorted[kept][0] = at;
      e->sorted[kept++][1] = low - 1;
    }
    at = high + 1;
  }
  if (at <= CHARACTER_MAX) push_range(e, &kept, at, CHARACTER_MAX);
  return kept;
}

/* What \d, \w and \s hold, and what they hold for some and not for others. */
static const struct {
  uint8_t bit, not_bit;
  uint32_t sure[5][2], unsure[3][2];
} classes[] = {{CLASS_DIGIT, CLASS_NOT_DIGIT, {{'0', '9'}}, {{0x80, CHARACTER_MAX}}},
               {CLASS_WORD, CLASS_NOT_WORD, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, {{0x80, CHARACTER_MAX}}},
               {CLASS_SPACE, CLASS_NOT_SPACE, {{'\t', '\r'}, {' ', ' '}}, {{0x1C, 0x1F}, {0x80, CHARACTER_MAX}}}};

/* What lies outside of a class, and of what it may hold, which begins with the first character that it may. */
static void push_outside(expressions *e, uint32_t *n, uint32_t class, bool sure) {
  for (uint32_t at = 0; at < 0x80; at++) {
    bool in = false;
    for (uint32_t k = 0; k < 5; k++) {
      in = in || (classes[class].sure[k][1] > 0 && classes[class].sure[k][0] <= at && at <= classes[class].sure[k][1]);
    }
    for (uint32_t k = 0; sure && k < 3; k++) {
      in = in ||
           (classes[class].unsure[k][1] > 0 && classes[class].unsure[k][0] <= at && at <= classes[class].unsure[k][1]);
    }
    if (!in) push_range(e, n, at, at);
  }
  if (!sure) push_range(e, n, 0x80, CHARACTER_MAX);
}

static void push_classes(expressions *e, uint32_t *n, uint8_t bits, regex_reading reading) {
  for (uint32_t i = 0; i < sizeof classes / sizeof *classes; i++) {
    bool has = (bits & classes[i].bit) != 0, has_not = (bits & classes[i].not_bit) != 0;
    if (has && has_not) push_range(e, n, 0, CHARACTER_MAX);
    if (has_not) push_outside(e, n, i, reading == REGEX_SURELY);
    for (uint32_t k = 0; has && k < 5 && classes[i].sure[k][1] > 0; k++) {
      push_range(e, n, classes[i].sure[k][0], classes[i].sure[k][1]);
    }
    for (uint32_t k = 0; has && reading == REGEX_PERHAPS && k < 3 && classes[i].unsure[k][1] > 0; k++) {
      push_range(e, n, classes[i].unsure[k][0], classes[i].unsure[k][1]);
    }
  }
  if ((bits & CLASS_DOT) == 0) return;
  bool sure = reading == REGEX_SURELY; /* JavaScript has four ends of a line */
  if (reading == REGEX_PERHAPS) {
    push_range(e, n, 0, '\n' - 1);
    push_range(e, n, '\n' + 1, CHARACTER_MAX);
    return;
  }
  push_range(e, n, '\t', '\t'); /* of control characters those that text has */
  if (!sure) push_range(e, n, '\r', '\r');
  push_range(e, n, 0x20, sure ? 0x2027 : CHARACTER_MAX);
  if (sure) push_range(e, n, 0x202A, CHARACTER_MAX);
}

/* What classes by properties hold for some and not for others. */
static void push_unassigned(expressions *e, uint32_t *n) {
  const unicode_class *none = unicode_class_of(e->b, "Cn");
  for (uint32_t i = 0; none != NULL && i < none->n; i++) push_range(e, n, none->range[i][0], none->range[i][1]);
}

/* The sorted ranges without the character that is avoided. */
static uint32_t cut_out(expressions *e, uint32_t n) {
  uint32_t c = e->avoids, before = n;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t low = e->sorted[i][0], high = e->sorted[i][1];
    if (c < low || c > high) continue;
    if (low == c && high == c) {
      memmove(e->sorted[i], e->sorted[i + 1], (n - i - 1) * sizeof *e->sorted);
      n -= 1;
    } else if (low == c) {
      e->sorted[i][0] = c + 1;
    } else {
      e->sorted[i][1] = c - 1;
      if (high > c) push_range(e, &n, c + 1, high);
      for (uint32_t k = n; high > c && k-- > i + 2;) { /* to its place */
        e->sorted[k][0] = e->sorted[k - 1][0];
        e->sorted[k][1] = e->sorted[k - 1][1];
      }
      if (high > c && i + 1 < n) {
        e->sorted[i + 1][0] = c + 1;
        e->sorted[i + 1][1] = high;
      }
    }
    break;
  }
  e->lost = e->lost || (n == 0 && before > 0);
  return n;
}

uint32_t expression_sort_set(expressions *e, const expression *set, regex_reading reading) {
  uint32_t n = 0;
  regex_reading inner = !set->negated || reading == REGEX_PLAIN ? reading
                        : reading == REGEX_SURELY               ? REGEX_PERHAPS
                                                                : REGEX_SURELY;
  for (uint32_t i = 0; i < set->n_ranges && builder_ok(e->b); i++) {
    push_range(e, &n, e->range[set->ranges + 2 * i], e->range[set->ranges + 2 * i + 1]);
  }
  push_classes(e, &n, set->classes, inner);
  if ((set->classes & CLASS_PROPERTY) != 0 && inner == REGEX_PERHAPS) push_unassigned(e, &n);
  n = settle_ranges(e, n, set->negated);
  return e->avoids == 0 ? n : cut_out(e, n);
}

static void emit_set(expressions *e, const expression *set, uint32_t from, uint32_t to) {
  uint32_t n = expression_sort_set(e, set, e->reading);
  for (uint32_t i = 0; i < n && builder_ok(e->b); i++) {
    builder_written(e->b, from, to, e->sorted[i][0], e->sorted[i][1], e->writing);
  }
}

static void emit_repeat(expressions *e, expression x, uint32_t from, uint32_t to) {
  grammar_builder *b = e->b;
  if (x.max == GRAMMAR_NONE && x.min <= 1) {
    uint32_t in = builder_state(b), out = builder_state(b);
    builder_empty(b, from, in);
    expression_emit(e, x.child, in, out);
    builder_empty(b, out, in);
    builder_empty(b, out, to);
    if (x.min == 0) builder_empty(b, from, to);
  } else if (x.max == 1) {
    expression_emit(e, x.child, from, to);
    if (x.min == 0) builder_empty(b, from, to);
  } else {
    uint32_t rule = builder_rule_open(b);
    if (!builder_ok(b)) return;
    expression_emit(e, x.child, b->rule[rule].first, b->rule[rule].last);
    builder_empty(b, builder_count(b, from, rule, x.min, x.max), to);
  }
}

void expression_emit(expressions *e, uint32_t at, uint32_t from, uint32_t to) {
  grammar_builder *b = e->b;
  if (!builder_step(b, 1)) return;
  expression x = e->at[at];
  if (x.kind == EXPR_SET) {
    emit_set(e, &x, from, to);
  } else if (x.kind == EXPR_RULE) {
    builder_call(b, from, to, x.rule);
  } else if (x.kind == EXPR_REPEAT) {
    emit_repeat(e, x, from, to);
  } else if (x.kind == EXPR_CHOICE) {
    for (uint32_t i = x.child; i != GRAMMAR_NONE && builder_ok(b); i = e->at[i].next) {
      uint32_t in = builder_state(b); /* a loop at the beginning of one is not one of all */
      uint32_t out = builder_state(b);
      builder_empty(b, from, in);
      expression_emit(e, i, in, out);
      builder_empty(b, out, to);
    }
  } else {
    for (uint32_t i = x.child; i != GRAMMAR_NONE && builder_ok(b); i = e->at[i].next) {
      uint32_t next = builder_state(b);
      expression_emit(e, i, from, next);
      from = next;
    }
    builder_empty(b, from, to);
  }
}
