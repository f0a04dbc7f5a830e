/* SPDX-License-Identifier: MIT */
/* GBNF, the grammars of llama.cpp: `name ::= alternatives`, texts in quotes, classes in brackets, groups, repetitions,
 * comments from # to the end of a line. A rule goes on over lines inside of parentheses and after a |; else it ends
 * with its line unless the next one begins with |. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_expression.h"

/* Others write grammars in Lark or EBNF: the line says what is meant here. */
#define WHOLE "grammar (in GBNF, llama.cpp's notation)"

typedef struct gbnf_rule {
  size_t at, n; /* its name in the text */
  uint32_t rule;
  bool defined;
} gbnf_rule;

typedef struct gbnf {
  expressions e;
  gbnf_rule *name;
  uint32_t n_names, names_capacity;
} gbnf;

static uint32_t fail_at(gbnf *g, const char *what) {
  uint32_t line = 1;
  for (size_t i = 0; i < g->e.i && i < g->e.n_text; i++) line += g->e.text[i] == '\n' ? 1 : 0;
  builder_fail(g->e.b, WEFT_E_INVALID, WHOLE ", line %u: %s", line, what);
  return 0;
}

static bool is_name(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Blanks and comments; newlines too where a rule may go on. */
static void skip_blanks(gbnf *g, bool newlines) {
  for (;;) {
    uint32_t c = expression_peek(&g->e);
    if (c == '#') {
      while ((c = expression_peek(&g->e)) != '\n' && c != GRAMMAR_NONE) (void)expression_take(&g->e);
    } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
      (void)expression_take(&g->e);
    } else {
      return;
    }
  }
}

static gbnf_rule *find_rule(gbnf *g) {
  expressions *e = &g->e;
  size_t at = e->i;
  while (is_name(expression_peek(e))) (void)expression_take(e);
  size_t n = e->i - at;
  for (uint32_t i = 0; i < g->n_names; i++) {
    if (!builder_step(e->b, 1 + (g->name[i].n == n ? n / 32 : 0))) return NULL;
    if (g->name[i].n == n && memcmp(e->text + g->name[i].at, e->text + at, n) == 0) return &g->name[i];
  }
  if (!builder_grow(e->b, (void **)&g->name, g->n_names, &g->names_capacity, sizeof *g->name)) return NULL;
  g->name[g->n_names] = (gbnf_rule){.at = at, .n = n, .rule = builder_rule_open(e->b)};
  return builder_ok(e->b) ? &g->name[g->n_names++] : NULL;
}

/* After a backslash. */
static uint32_t read_escape(gbnf *g) {
  static const char letters[] = "nrt\"\\[]-^/'", values[] = "\n\r\t\"\\[]-^/'";
  uint32_t c = expression_take(&g->e), value = 0, n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  const char *at = c < 0x80 && c != 0 ? strchr(letters, (int)c) : NULL;
  if (at != NULL) return (uint8_t)values[at - letters];
  if (n == 0) return fail_at(g, "this escape is unknown");
  for (uint32_t i = 0; i < n; i++) {
    uint32_t d = expression_take(&g->e), lower = d | 0x20;
    bool digit = d >= '0' && d <= '9', letter = lower >= 'a' && lower <= 'f';
    if (!digit && !letter) return fail_at(g, "a character's number needs more hexadecimal digits");
    value = value * 16 + (digit ? d - '0' : lower - 'a' + 10);
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return fail_at(g, "no character has this number");
  return value;
}

static uint32_t read_text(gbnf *g) {
  uint32_t sequence = expression_new(&g->e, EXPR_SEQUENCE), last = GRAMMAR_NONE, c;
  while (builder_ok(g->e.b) && (c = expression_take(&g->e)) != '"') {
    if (c == GRAMMAR_NONE || c == '\n') return fail_at(g, "a text in quotes is not closed");
    if (c == '\\') c = read_escape(g);
    if (builder_ok(g->e.b)) expression_append(&g->e, sequence, &last, expression_character(&g->e, c));
  }
  return sequence;
}

static uint32_t read_class(gbnf *g) {
  expressions *e = &g->e;
  uint32_t set = expression_new(e, EXPR_SET);
  bool negated = expression_peek(e) == '^';
  if (negated) (void)expression_take(e);
  while (builder_ok(e->b) && expression_peek(e) != ']') {
    uint32_t low = expression_take(e), high;
    if (low == GRAMMAR_NONE || low == '\n') return fail_at(g, "a bracket [ is not closed");
    if (low == '\\') low = read_escape(g);
    high = low;
    if (expression_peek(e) == '-' && e->i + 1 < e->n_text && e->text[e->i + 1] != ']') {
      (void)expression_take(e);
      high = expression_take(e);
      if (high == '\\') high = read_escape(g);
      if (high == GRAMMAR_NONE || high < low) return fail_at(g, "a range in brackets ends before it begins");
    }
    if (builder_ok(e->b)) expression_range(e, set, low, high);
  }
  (void)expression_take(e);
  if (builder_ok(e->b)) e->at[set].negated = negated;
  return set;
}

static uint32_t read_alternatives(gbnf *g, uint32_t depth);

static uint32_t read_item(gbnf *g, uint32_t depth) {
  expressions *e = &g->e;
  uint32_t c = expression_peek(e);
  if (is_name(c)) {
    gbnf_rule *rule = find_rule(g);
    uint32_t at = expression_new(e, EXPR_RULE);
    if (rule != NULL && builder_ok(e->b)) e->at[at].rule = rule->rule;
    return at;
  }
  (void)expression_take(e);
  if (c == '"') return read_text(g);
  if (c == '[') return read_class(g);
  if (c == '.') {
    uint32_t set = expression_new(e, EXPR_SET);
    if (builder_ok(e->b)) e->at[set].negated = true;
    return set;
  }
  if (c != '(') return fail_at(g, "a name, a text in quotes, [, ( or . is expected");
  if (depth >= GRAMMAR_NEST_MAX) return fail_at(g, "parentheses are nested too deeply");
  uint32_t inner = read_alternatives(g, depth + 1);
  skip_blanks(g, true);
  if (builder_ok(e->b) && expression_take(e) != ')') return fail_at(g, "a parenthesis ( is not closed");
  return inner;
}

static uint32_t read_repeated(gbnf *g, uint32_t depth) {
  expressions *e = &g->e;
  uint32_t at = read_item(g, depth), n = 0;
  while (builder_ok(e->b)) {
    uint32_t min, max;
    if (!expression_counts(e, &min, &max)) break;
    if (++n > GRAMMAR_NEST_MAX) return fail_at(g, "too many repetitions of repetitions");
    at = expression_repeat(e, at, min, max);
  }
  return at;
}

/* Whether an item begins here; a name that ::= follows begins the next rule. */
static bool has_item(gbnf *g) {
  uint32_t c = expression_peek(&g->e);
  return c != GRAMMAR_NONE && c != '|' && c != ')' && c != '\n' && c != '\r';
}

/* Moves to a | that stands here or at the beginning of the next line that is not empty. */
static bool take_bar(gbnf *g, bool newlines) {
  size_t before = g->e.i;
  skip_blanks(g, true);
  (void)newlines;
  if (expression_peek(&g->e) == '|') {
    (void)expression_take(&g->e);
    skip_blanks(g, true);
    return true;
  }
  g->e.i = before;
  return false;
}

static uint32_t read_alternatives(gbnf *g, uint32_t depth) {
  expressions *e = &g->e;
  uint32_t choice = expression_new(e, EXPR_CHOICE), last = GRAMMAR_NONE;
  do {
    uint32_t sequence = expression_new(e, EXPR_SEQUENCE), in = GRAMMAR_NONE;
    skip_blanks(g, depth > 0);
    while (builder_ok(e->b) && has_item(g)) {
      expression_append(e, sequence, &in, read_repeated(g, depth));
      skip_blanks(g, depth > 0);
    }
    expression_append(e, choice, &last, sequence);
  } while (builder_ok(e->b) && take_bar(g, depth > 0));
  return choice;
}

static void read_rule(gbnf *g) {
  expressions *e = &g->e;
  grammar_builder *b = e->b;
  if (!is_name(expression_peek(e))) {
    (void)fail_at(g, "a rule begins with its name");
    return;
  }
  gbnf_rule *found = find_rule(g);
  if (found == NULL) return;
  uint32_t index = (uint32_t)(found - g->name), rule = found->rule;
  skip_blanks(g, false);
  bool sign = e->n_text - e->i >= 3 && memcmp(e->text + e->i, "::=", 3) == 0;
  if (!sign || g->name[index].defined) {
    (void)fail_at(g, sign ? "a rule of this name exists already" : "after a rule's name ::= is expected");
    return;
  }
  e->i += 3;
  g->name[index].defined = true;
  skip_blanks(g, true);
  uint32_t at = read_alternatives(g, 0);
  if (builder_ok(b)) expression_emit(e, at, b->rule[rule].first, b->rule[rule].last);
  skip_blanks(g, false);
  uint32_t c = expression_peek(e);
  if (c != GRAMMAR_NONE && c != '\n' && c != '\r') (void)fail_at(g, "the end of the line is expected");
}

void grammar_read_gbnf(grammar_builder *b, const char *text, size_t n) {
  gbnf g = {.e = {.b = b, .text = text, .n_text = n}};
  bool has_root = false;
  skip_blanks(&g, true);
  while (builder_ok(b) && expression_peek(&g.e) != GRAMMAR_NONE) {
    read_rule(&g);
    skip_blanks(&g, true);
  }
  for (uint32_t i = 0; i < g.n_names && builder_ok(b); i++) {
    const gbnf_rule *r = &g.name[i];
    bool root = r->n == 4 && memcmp(text + r->at, "root", 4) == 0;
    if (root) b->root = r->rule;
    has_root = has_root || root;
    if (!r->defined) {
      builder_fail(b, WEFT_E_INVALID, WHOLE ": the rule %.*s is used and not defined", (int)(r->n < 64 ? r->n : 64),
                   text + r->at);
    }
  }
  if (builder_ok(b) && !has_root) builder_fail(b, WEFT_E_INVALID, WHOLE ": there is no rule named root");
  expressions_close(&g.e);
  weft_free(g.name);
}
