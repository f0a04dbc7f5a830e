/* SPDX-License-Identifier: MIT */
#include "model/formats/grammar_expression.h"

#include <string.h>

#include "base/memory.h"

void expressions_close(expressions *e) {
  weft_free(e->at);
  weft_free(e->range);
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
  return c;
}

uint32_t expression_take(expressions *e) {
  uint32_t c;
  size_t n = e->i >= e->n_text ? 0 : weft_utf8_decode(e->text + e->i, e->n_text - e->i, &c);
  e->i += n;
  return n == 0 || !builder_step(e->b, 1) ? GRAMMAR_NONE : c;
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

static void emit_range(expressions *e, uint32_t from, uint32_t to, uint32_t low, uint32_t high) {
  if (low > high) return;
  if (e->json) {
    builder_json_characters(e->b, from, to, low, high);
  } else {
    builder_characters(e->b, from, to, low, high);
  }
}

/* What is not in the set, between bounds: the ranges are looked through for the next one each time. */
static void emit_complement(expressions *e, const expression *set, uint32_t from, uint32_t to) {
  uint32_t at = e->json ? 0x20 : 0, end = set->ascii ? 0x7F : 0x10FFFF;
  while (at <= end && builder_step(e->b, set->n_ranges + 1)) {
    uint32_t next = end + 1, after = at;
    for (uint32_t i = 0; i < set->n_ranges; i++) {
      uint32_t low = e->range[set->ranges + 2 * i], high = e->range[set->ranges + 2 * i + 1];
      if (low <= at && high >= after) after = high + 1;
      if (low > at && low < next) next = low;
    }
    if (after > at) {
      at = after;
      continue;
    }
    emit_range(e, from, to, at, next - 1);
    at = next;
  }
}

static void emit_set(expressions *e, const expression *set, uint32_t from, uint32_t to) {
  if (set->negated) {
    emit_complement(e, set, from, to);
    return;
  }
  for (uint32_t i = 0; i < set->n_ranges && builder_ok(e->b); i++) {
    emit_range(e, from, to, e->range[set->ranges + 2 * i], e->range[set->ranges + 2 * i + 1]);
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
