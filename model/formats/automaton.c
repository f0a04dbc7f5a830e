/* SPDX-License-Identifier: MIT */
#include "model/formats/automaton.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/text/json_tree.h"

void automaton_close(automaton *a) {
  weft_free(a->first);
  weft_free(a->edge);
  weft_free(a->final);
  *a = (automaton){.everything = GRAMMAR_NONE};
}

bool automaton_begin_state(grammar_builder *b, automaton *a, bool final) {
  if (!builder_step(b, 2)) return false;
  if (a->n_states >= AUTOMATON_STATES_MAX) {
    builder_fail(b, WEFT_E_TOO_LARGE, "patterns and lengths that must hold together need more than %d states",
                 AUTOMATON_STATES_MAX);
    return false;
  }
  bool ok = builder_grow(b, (void **)&a->first, a->n_states + 1, &a->states_capacity, sizeof *a->first) &&
            builder_grow(b, (void **)&a->final, a->n_states, &a->finals_capacity, sizeof *a->final);
  if (!ok) return false;
  a->final[a->n_states] = final;
  a->first[a->n_states++] = a->n_edges;
  a->first[a->n_states] = a->n_edges;
  return true;
}

void automaton_add_edge(grammar_builder *b, automaton *a, uint32_t low, uint32_t high, uint32_t to) {
  automaton_edge *last = a->n_edges > a->first[a->n_states - 1] ? &a->edge[a->n_edges - 1] : NULL;
  if (last != NULL && last->to == to && last->high + 1 == low) {
    last->high = high;
    return;
  }
  if (!builder_step(b, 1) || !builder_grow(b, (void **)&a->edge, a->n_edges, &a->edges_capacity, sizeof *a->edge))
    return;
  a->edge[a->n_edges++] = (automaton_edge){low, high, to};
  a->first[a->n_states] = a->n_edges;
}

/* Whether the edges of a state leave no character out. */
static bool is_total(const automaton *a, uint32_t state) {
  uint32_t at = 0;
  for (uint32_t i = a->first[state]; i < a->first[state + 1] && a->edge[i].low == at; i++) at = a->edge[i].high + 1;
  return at > AUTOMATON_CHARACTER_MAX;
}

/* Marks the states that reach a marked one. */
static void mark_reaching(grammar_builder *b, const automaton *a, bool *marked) {
  for (bool changed = true; changed && builder_step(b, a->n_edges / 8 + 1);) {
    changed = false;
    for (uint32_t s = a->n_states; s-- > 0;) {
      for (uint32_t i = a->first[s]; i < a->first[s + 1] && !marked[s]; i++) {
        if (marked[a->edge[i].to]) marked[s] = changed = true;
      }
    }
  }
}

/* The states that are left, renumbered: GRAMMAR_NONE is none, and all that hold everything are one. */
static uint32_t number_states(const automaton *a, const bool *live, const bool *lacks, uint32_t *number) {
  uint32_t n = 0, everything = GRAMMAR_NONE;
  for (uint32_t s = 0; s < a->n_states; s++) {
    number[s] = GRAMMAR_NONE;
    if (!live[s]) continue;
    if (!lacks[s]) {
      if (everything == GRAMMAR_NONE) everything = n++;
      number[s] = everything;
    } else {
      number[s] = n++;
    }
  }
  return everything;
}

static void rebuild_states(grammar_builder *b, automaton *a, const uint32_t *number, uint32_t everything) {
  automaton made = {.everything = everything};
  for (uint32_t s = 0; s < a->n_states && builder_ok(b); s++) {
    if (number[s] == GRAMMAR_NONE || number[s] < made.n_states) continue;
    if (!automaton_begin_state(b, &made, a->final[s])) break;
    if (number[s] == everything) automaton_add_edge(b, &made, 0, AUTOMATON_CHARACTER_MAX, everything);
    for (uint32_t i = a->first[s]; i < a->first[s + 1] && number[s] != everything; i++) {
      const automaton_edge e = a->edge[i];
      if (number[e.to] != GRAMMAR_NONE) automaton_add_edge(b, &made, e.low, e.high, number[e.to]);
    }
  }
  automaton_close(a);
  if (builder_ok(b)) {
    *a = made;
  } else {
    automaton_close(&made);
  }
}

void automaton_finish(grammar_builder *b, automaton *a) {
  bool *live = weft_alloc(a->n_states + 1u, sizeof *live), *lacks = weft_alloc(a->n_states + 1u, sizeof *lacks);
  uint32_t *number = weft_alloc(a->n_states + 1u, sizeof *number);
  if (live == NULL || lacks == NULL || number == NULL) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
  } else if (builder_step(b, a->n_states)) {
    for (uint32_t s = 0; s < a->n_states; s++) {
      live[s] = a->final[s];
      lacks[s] = !a->final[s] || !is_total(a, s);
    }
    mark_reaching(b, a, live);
    mark_reaching(b, a, lacks);
    uint32_t everything = number_states(a, live, lacks, number);
    if (a->n_states > 0 && !live[0]) {
      automaton_close(a);
    } else {
      rebuild_states(b, a, number, everything);
    }
  }
  if (!builder_ok(b)) automaton_close(a);
  weft_free(live);
  weft_free(lacks);
  weft_free(number);
}

automaton automaton_sized(grammar_builder *b, uint32_t min, uint32_t max) {
  automaton a = {.everything = GRAMMAR_NONE};
  uint32_t last = max == GRAMMAR_NONE ? min : max;
  if (max < min) return a;
  for (uint32_t i = 0; i <= last && automaton_begin_state(b, &a, i >= min); i++) {
    if (i < last || max == GRAMMAR_NONE) {
      automaton_add_edge(b, &a, 0, AUTOMATON_CHARACTER_MAX, i < last ? i + 1 : i);
    }
  }
  automaton_finish(b, &a);
  return a;
}

/* ---- texts ---- */

typedef struct text_node {
  uint32_t character, child, next; /* GRAMMAR_NONE: none; the children of a node are sorted */
  bool final;
} text_node;

static bool add_text(grammar_builder *b, text_node **node, uint32_t *n, uint32_t *capacity, const char *text) {
  uint32_t at = 0, c;
  for (size_t left = strlen(text), size; left > 0; left -= size, text += size) {
    size = weft_utf8_decode(text, left, &c);
    if (size == 0 || !builder_step(b, 1)) return false;
    if (c == WEFT_JSON_ZERO_CHARACTER) c = 0;
    uint32_t before = GRAMMAR_NONE, child = (*node)[at].child;
    while (child != GRAMMAR_NONE && (*node)[child].character < c && builder_step(b, 1)) {
      before = child;
      child = (*node)[child].next;
    }
    if (child == GRAMMAR_NONE || (*node)[child].character != c) {
      if (!builder_grow(b, (void **)node, *n, capacity, sizeof **node)) return false;
      (*node)[*n] = (text_node){c, GRAMMAR_NONE, child, false};
      child = (*n)++;
      *(before == GRAMMAR_NONE ? &(*node)[at].child : &(*node)[before].next) = child;
    }
    at = child;
  }
  (*node)[at].final = true;
  return true;
}

automaton automaton_texts(grammar_builder *b, const char *const *text, uint32_t n) {
  automaton a = {.everything = GRAMMAR_NONE};
  text_node *node = NULL;
  uint32_t n_nodes = 0, capacity = 0;
  if (builder_grow(b, (void **)&node, 0, &capacity, sizeof *node)) {
    node[n_nodes++] = (text_node){0, GRAMMAR_NONE, GRAMMAR_NONE, false};
    for (uint32_t i = 0; i < n && add_text(b, &node, &n_nodes, &capacity, text[i]); i++) {
    }
    for (uint32_t i = 0; i < n_nodes && automaton_begin_state(b, &a, node[i].final); i++) {
      for (uint32_t k = node[i].child; k != GRAMMAR_NONE; k = node[k].next) {
        automaton_add_edge(b, &a, node[k].character, node[k].character, k);
      }
    }
  }
  weft_free(node);
  automaton_finish(b, &a);
  return a;
}

/* ---- two as one ---- */

typedef struct pairing {
  grammar_builder *b;
  const automaton *x, *y;
  bool minus;
  uint32_t (*pair)[2]; /* of the states made: a state of x, one of y or GRAMMAR_NONE */
  builder_slots slots;
  uint32_t n_pairs, capacity;
} pairing;

static uint64_t hash_pair(const void *self, uint32_t i) {
  const pairing *p = self;
  return weft_mix64((uint64_t)p->pair[i][0] << 32 | p->pair[i][1]);
}

static uint32_t number_pair(pairing *p, uint32_t s, uint32_t t) {
  if (!builder_step(p->b, 2) || !builder_slots_grow(p->b, &p->slots, 256, p->n_pairs, 0, hash_pair, p)) return 0;
  uint64_t at = weft_mix64((uint64_t)s << 32 | t);
  for (;; at++) {
    uint32_t found = p->slots.slot[at % p->slots.n];
    if (found == 0) break;
    if (p->pair[found - 1][0] == s && p->pair[found - 1][1] == t) return found - 1;
  }
  if (!builder_grow(p->b, (void **)&p->pair, p->n_pairs, &p->capacity, sizeof *p->pair)) return 0;
  p->pair[p->n_pairs][0] = s;
  p->pair[p->n_pairs][1] = t;
  p->slots.slot[at % p->slots.n] = p->n_pairs + 1;
  return p->n_pairs++;
}

static void add_pair_edge(pairing *p, automaton *made, uint32_t low, uint32_t high, uint32_t s, uint32_t t) {
  if (t == GRAMMAR_NONE && !p->minus) return;
  uint32_t to = number_pair(p, s, t);
  if (builder_ok(p->b)) automaton_add_edge(p->b, made, low, high, to);
}

/* The edges of x, cut where those of y begin and end. */
static void follow_pair(pairing *p, automaton *made, uint32_t s, uint32_t t) {
  const automaton *x = p->x, *y = p->y;
  uint32_t k = t == GRAMMAR_NONE ? 0 : y->first[t], end = t == GRAMMAR_NONE ? 0 : y->first[t + 1];
  for (uint32_t i = x->first[s]; i < x->first[s + 1] && builder_ok(p->b); i++) {
    const automaton_edge e = x->edge[i];
    uint32_t at = e.low;
    while (k < end && y->edge[k].high < at) k += 1;
    for (uint32_t m = k; m < end && y->edge[m].low <= e.high && builder_step(p->b, 1); m++) {
      uint32_t low = y->edge[m].low > at ? y->edge[m].low : at;
      uint32_t high = y->edge[m].high < e.high ? y->edge[m].high : e.high;
      if (low > at) add_pair_edge(p, made, at, low - 1, e.to, GRAMMAR_NONE);
      add_pair_edge(p, made, low, high, e.to, y->edge[m].to);
      at = high + 1;
    }
    if (at <= e.high) add_pair_edge(p, made, at, e.high, e.to, GRAMMAR_NONE);
  }
}

static automaton pair_states(grammar_builder *b, const automaton *x, const automaton *y, bool minus) {
  automaton made = {.everything = GRAMMAR_NONE};
  pairing p = {.b = b, .x = x, .y = y, .minus = minus};
  bool none = automaton_is_empty(x) || (automaton_is_empty(y) && !minus);
  if (!none) (void)number_pair(&p, 0, automaton_is_empty(y) ? GRAMMAR_NONE : 0);
  for (uint32_t i = 0; i < p.n_pairs && builder_ok(b); i++) {
    uint32_t s = p.pair[i][0], t = p.pair[i][1];
    bool other = t != GRAMMAR_NONE && y->final[t];
    if (!automaton_begin_state(b, &made, x->final[s] && other != minus)) break;
    follow_pair(&p, &made, s, t);
  }
  weft_free(p.pair);
  weft_free(p.slots.slot);
  automaton_finish(b, &made);
  return made;
}

automaton automaton_both(grammar_builder *b, const automaton *x, const automaton *y) {
  return pair_states(b, x, y, false);
}

automaton automaton_without(grammar_builder *b, const automaton *x, const automaton *y) {
  return pair_states(b, x, y, true);
}

static void replace_pair(automaton *x, automaton *y, automaton made) {
  automaton_close(x);
  automaton_close(y);
  *x = made;
}

void automaton_narrow(grammar_builder *b, automaton *x, automaton *y) {
  replace_pair(x, y, automaton_both(b, x, y));
}

void automaton_exclude(grammar_builder *b, automaton *x, automaton *y) {
  replace_pair(x, y, automaton_without(b, x, y));
}

/* ---- texts of it ---- */

uint32_t automaton_next(const automaton *a, uint32_t state, uint32_t character) {
  uint32_t low = a->first[state], high = a->first[state + 1];
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (a->edge[middle].high < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  bool found = low < a->first[state + 1] && a->edge[low].low <= character;
  return found ? a->edge[low].to : GRAMMAR_NONE;
}

bool automaton_has(grammar_builder *b, const automaton *a, const char *text, size_t n) {
  uint32_t state = 0, c;
  if (automaton_is_empty(a) || !builder_step(b, 1 + n / 4)) return false;
  for (size_t size; n > 0; n -= size, text += size) {
    size = weft_utf8_decode(text, n, &c);
    if (size == 0) return false;
    state = automaton_next(a, state, c == WEFT_JSON_ZERO_CHARACTER ? 0 : c);
    if (state == GRAMMAR_NONE) return false;
  }
  return a->final[state];
}

/* Many ranges from one state to another are a rule of their own, which is made once. */
typedef struct range_rules {
  const automaton *a;
  grammar_writing writing;
  uint32_t *made; /* pairs: the state whose ranges they are, and where they lead; the rule is beside them */
  uint32_t n, capacity;
} range_rules;

enum { RANGES_APART = 24, MADE = 3 };

static uint32_t count_ranges(const automaton *a, uint32_t state, uint32_t to) {
  uint32_t n = 0;
  for (uint32_t i = a->first[state]; i < a->first[state + 1]; i++) n += a->edge[i].to == to ? 1 : 0;
  return n;
}

static bool has_same_ranges(grammar_builder *b, const automaton *a, const uint32_t *x, uint32_t state, uint32_t to) {
  uint32_t i = a->first[x[0]], k = a->first[state], end = a->first[x[0] + 1], stop = a->first[state + 1];
  if (!builder_step(b, 1 + (stop - k) / 4)) return false;
  for (;; i++, k++) {
    while (i < end && a->edge[i].to != x[1]) i += 1;
    while (k < stop && a->edge[k].to != to) k += 1;
    if (i == end || k == stop) return i == end && k == stop;
    if (a->edge[i].low != a->edge[k].low || a->edge[i].high != a->edge[k].high) return false;
  }
}

static uint32_t rule_of_ranges(grammar_builder *b, range_rules *r, uint32_t state, uint32_t to) {
  for (uint32_t i = 0; i < r->n && builder_ok(b); i++) {
    if (has_same_ranges(b, r->a, r->made + i * MADE, state, to)) return r->made[i * MADE + 2];
  }
  uint32_t rule = builder_rule_open(b);
  if (!builder_ok(b)) return 0;
  for (uint32_t i = r->a->first[state]; i < r->a->first[state + 1] && builder_ok(b); i++) {
    const automaton_edge e = r->a->edge[i];
    if (e.to == to) builder_written(b, b->rule[rule].first, b->rule[rule].last, e.low, e.high, r->writing);
  }
  if (!builder_grow(b, (void **)&r->made, r->n, &r->capacity, MADE * sizeof *r->made)) return 0;
  const uint32_t made[MADE] = {state, to, rule};
  memcpy(r->made + (size_t)r->n++ * MADE, made, sizeof made);
  return rule;
}

static void emit_state(grammar_builder *b, range_rules *r, uint32_t first, uint32_t s) {
  const automaton *a = r->a;
  uint32_t last = GRAMMAR_NONE;
  bool many = a->first[s + 1] - a->first[s] > RANGES_APART, apart = false;
  for (uint32_t i = a->first[s]; i < a->first[s + 1] && builder_ok(b); i++) {
    const automaton_edge e = a->edge[i];
    if (many && e.to != last) {
      bool before = false; /* whether the ranges that lead there were written */
      for (uint32_t k = a->first[s]; k < i && !before; k++) before = a->edge[k].to == e.to;
      apart = builder_step(b, 1 + (i - a->first[s]) / 16) && count_ranges(a, s, e.to) > RANGES_APART;
      if (apart && !before) builder_call(b, first + s, first + e.to, rule_of_ranges(b, r, s, e.to));
      last = e.to;
    }
    if (!many || !apart) builder_written(b, first + s, first + e.to, e.low, e.high, r->writing);
  }
}

void automaton_emit(grammar_builder *b, const automaton *a, grammar_writing writing, uint32_t from, uint32_t to) {
  uint32_t first = b->n_states;
  range_rules rules = {.a = a, .writing = writing};
  for (uint32_t s = 0; s < a->n_states; s++) (void)builder_state(b);
  if (!builder_ok(b) || automaton_is_empty(a)) return;
  builder_empty(b, from, first);
  for (uint32_t s = 0; s < a->n_states && builder_ok(b); s++) {
    if (a->final[s]) builder_empty(b, first + s, to);
    emit_state(b, &rules, first, s);
  }
  weft_free(rules.made);
}
