/* SPDX-License-Identifier: MIT */
/* Rules with empty edges become deterministic ones: of every rule the sets of states that one text may lead to, where a
 * call is a letter like a byte. A rule that may be empty is passed over where it is called, so a call always takes a
 * byte. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/formats/grammar_internal.h"

typedef struct move {
  uint32_t from, to;
  uint8_t low, high;
} move;

/* One determinisation. Sets of builder states lie one behind the other in `pool`. */
typedef struct subsets {
  grammar_builder *b;
  weft_grammar *g;
  uint32_t *edge_at, *edge_of; /* edges by the state they leave */
  bool *nullable;              /* [n_rules] */
  uint32_t *rule_of;           /* [n_rules] of the builder: rule + 1 of the grammar, 0: not reached */
  uint32_t *order;             /* [n_rules] of the grammar: rule of the builder */
  uint32_t *pool, n_pool, pool_capacity;
  uint32_t *set_at, *set_n, n_sets, sets_capacity; /* of the present rule; set i is state first_state + i */
  /* By the states of sets. What is at most first_state is of an earlier rule, and the slot counts as free: so the
   * slots, which may be many, are not cleared for every rule. */
  builder_slots slots;
  uint32_t *mark, mark_value; /* [n_states of b] */
  move *moves;
  uint32_t n_moves, moves_capacity, calls_capacity, states_capacity, first_state;
} subsets;

static void sort_edges(subsets *s) {
  grammar_builder *b = s->b;
  for (uint32_t i = 0; i < b->n_edges; i++) s->edge_at[b->edge[i].from + 1] += 1;
  for (uint32_t i = 0; i < b->n_states; i++) s->edge_at[i + 1] += s->edge_at[i];
  for (uint32_t i = b->n_edges; i-- > 0;) {
    uint32_t from = b->edge[i].from;
    s->edge_of[s->edge_at[from + 1] - 1] = i;
    s->edge_at[from + 1] -= 1;
  }
  /* every bound moved down to where its edges begin */
  for (uint32_t i = 0; i < b->n_states; i++) s->edge_at[i] = s->edge_at[i + 1];
  s->edge_at[b->n_states] = b->n_edges;
}

/* ---- sets ---- */

static void push_member(subsets *s, uint32_t state) {
  if (s->mark[state] == s->mark_value) return;
  s->mark[state] = s->mark_value;
  if (!builder_grow(s->b, (void **)&s->pool, s->n_pool, &s->pool_capacity, sizeof *s->pool)) return;
  s->pool[s->n_pool++] = state;
}

static bool is_passed_over(const subsets *s, const grammar_edge *e) {
  return e->kind == EDGE_EMPTY || (e->kind == EDGE_CALL && s->nullable[e->rule]);
}

/* Adds what the members from `at` on reach by nothing. */
static void close_members(subsets *s, uint32_t at) {
  for (uint32_t i = at; i < s->n_pool && builder_ok(s->b); i++) {
    uint32_t state = s->pool[i];
    uint32_t from = s->edge_at[state], to = s->edge_at[state + 1];
    if (!builder_step(s->b, 1 + to - from)) return;
    for (uint32_t k = from; k < to; k++) {
      const grammar_edge *e = &s->b->edge[s->edge_of[k]];
      if (is_passed_over(s, e)) push_member(s, e->to);
    }
  }
}

static int compare_members(const void *a, const void *b) {
  const uint32_t *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

static uint64_t hash_members(const uint32_t *member, uint32_t n) {
  uint64_t hash = n;
  for (uint32_t i = 0; i < n; i++) hash = weft_mix64(hash ^ member[i]);
  return hash;
}

static uint64_t hash_set(const void *self, uint32_t i) {
  const subsets *s = self;
  return hash_members(s->pool + s->set_at[i], s->set_n[i]);
}

/* The members from `at` on as a set: its number, an old one if there is one like it. */
static uint32_t intern_members(subsets *s, uint32_t at) {
  uint32_t n = s->n_pool - at, capacity = s->sets_capacity;
  uint32_t compares = 1; /* of a member while it is sorted */
  while (n >> compares > 0) compares += 1;
  if (!builder_step(s->b, (uint64_t)n * compares / 2 + 1)) return 0;
  if (n > 1) qsort(s->pool + at, n, sizeof *s->pool, compare_members);
  if (!builder_slots_grow(s->b, &s->slots, 2048, s->n_sets, s->first_state, hash_set, s)) return 0;
  uint64_t hash = hash_members(s->pool + at, n);
  for (;; hash++) {
    uint32_t found = s->slots.slot[hash % s->slots.n];
    if (found <= s->first_state) break;
    found -= s->first_state + 1;
    if (s->set_n[found] != n || memcmp(s->pool + s->set_at[found], s->pool + at, n * sizeof *s->pool) != 0) continue;
    s->n_pool = at;
    return found;
  }
  if (s->first_state + s->n_sets >= GRAMMAR_STATES_MAX) {
    builder_fail(s->b, WEFT_E_TOO_LARGE, "the grammar is too large: it needs more than %d states", GRAMMAR_STATES_MAX);
    return 0;
  }
  if (!builder_grow(s->b, (void **)&s->set_at, s->n_sets, &capacity, sizeof *s->set_at)) return 0;
  if (!builder_grow(s->b, (void **)&s->set_n, s->n_sets, &s->sets_capacity, sizeof *s->set_n)) return 0;
  s->set_at[s->n_sets] = at;
  s->set_n[s->n_sets] = n;
  s->slots.slot[hash % s->slots.n] = s->first_state + s->n_sets + 1;
  return s->n_sets++;
}

/* ---- rules ---- */

static bool is_rule_nullable(subsets *s, uint32_t rule) {
  const builder_rule *r = &s->b->rule[rule];
  if (r->of != GRAMMAR_NONE) return r->min == 0 || s->nullable[r->of];
  s->n_pool = 0;
  s->mark_value += 1;
  push_member(s, r->first);
  close_members(s, 0);
  return builder_ok(s->b) && s->mark[r->last] == s->mark_value;
}

static void find_nullable(subsets *s) {
  bool changed = true;
  while (changed && builder_ok(s->b)) {
    changed = false;
    for (uint32_t i = 0; i < s->b->n_rules && builder_step(s->b, 1); i++) {
      if (s->nullable[i] || !is_rule_nullable(s, i)) continue;
      s->nullable[i] = changed = true;
    }
  }
}

/* The grammar's number of a rule, which is to be made if it is new. */
static uint32_t reach_rule(subsets *s, uint32_t rule) {
  if (s->rule_of[rule] == 0) {
    s->order[s->g->n_rules] = rule;
    s->rule_of[rule] = ++s->g->n_rules;
  }
  return s->rule_of[rule] - 1;
}

static grammar_state *new_state(subsets *s) {
  weft_grammar *g = s->g;
  if (!builder_grow(s->b, (void **)&g->state, g->n_states, &s->states_capacity, sizeof *g->state)) return NULL;
  grammar_state *state = &g->state[g->n_states++];
  *state = (grammar_state){.calls_at = g->n_calls, .of = GRAMMAR_NONE, .allowed = GRAMMAR_NONE};
  return state;
}

static void add_move(subsets *s, move m) {
  move *last = s->n_moves > 0 ? &s->moves[s->n_moves - 1] : NULL;
  if (last != NULL && last->from == m.from && last->to == m.to && last->high + 1 == m.low) {
    last->high = m.high;
    return;
  }
  if (builder_grow(s->b, (void **)&s->moves, s->n_moves, &s->moves_capacity, sizeof *s->moves))
    s->moves[s->n_moves++] = m;
}

/* The set that a letter leads to: bytes low..high when rule is NONE, else a call. */
static uint32_t follow_letter(subsets *s, uint32_t set, uint8_t byte, uint32_t rule) {
  uint32_t at = s->n_pool;
  s->mark_value += 1;
  for (uint32_t i = 0; i < s->set_n[set] && builder_ok(s->b); i++) {
    uint32_t state = s->pool[s->set_at[set] + i];
    for (uint32_t k = s->edge_at[state]; k < s->edge_at[state + 1]; k++) {
      const grammar_edge *e = &s->b->edge[s->edge_of[k]];
      bool is = rule == GRAMMAR_NONE ? e->kind == EDGE_BYTES && e->low <= byte && byte <= e->high
                                     : e->kind == EDGE_CALL && e->rule == rule;
      if (is) push_member(s, e->to);
    }
    if (!builder_step(s->b, 1 + s->edge_at[state + 1] - s->edge_at[state])) return 0;
  }
  close_members(s, at);
  return builder_ok(s->b) ? intern_members(s, at) : 0;
}

static void follow_bytes(subsets *s, uint32_t set, uint32_t state) {
  bool cut[257] = {false}, has[257] = {false};
  for (uint32_t i = 0; i < s->set_n[set]; i++) {
    uint32_t member = s->pool[s->set_at[set] + i];
    for (uint32_t k = s->edge_at[member]; k < s->edge_at[member + 1]; k++) {
      const grammar_edge *e = &s->b->edge[s->edge_of[k]];
      if (e->kind != EDGE_BYTES) continue;
      cut[e->low] = cut[e->high + 1] = true;
      for (uint32_t byte = e->low; byte <= e->high; byte++) has[byte] = true;
    }
  }
  for (uint32_t low = 0, high; low < 256 && builder_ok(s->b); low = high) {
    for (high = low + 1; high < 256 && !cut[high];) high += 1;
    if (!has[low]) continue;
    uint32_t to = s->first_state + follow_letter(s, set, (uint8_t)low, GRAMMAR_NONE);
    add_move(s, (move){.from = state, .to = to, .low = (uint8_t)low, .high = (uint8_t)(high - 1)});
  }
}

static void follow_calls(subsets *s, uint32_t set, uint32_t state) {
  weft_grammar *g = s->g;
  uint32_t begin = g->n_calls;
  for (uint32_t i = 0; i < s->set_n[set] && builder_ok(s->b); i++) {
    uint32_t member = s->pool[s->set_at[set] + i];
    for (uint32_t k = s->edge_at[member]; k < s->edge_at[member + 1] && builder_ok(s->b); k++) {
      const grammar_edge *e = &s->b->edge[s->edge_of[k]];
      if (e->kind != EDGE_CALL) continue;
      uint32_t rule = reach_rule(s, e->rule);
      bool known = false;
      if (!builder_step(s->b, 1 + (g->n_calls - begin) / 4)) return;
      for (uint32_t c = begin; c < g->n_calls && !known; c++) known = g->call[c].rule == rule;
      if (known) continue;
      uint32_t to = s->first_state + follow_letter(s, set, 0, e->rule);
      if (!builder_grow(s->b, (void **)&g->call, g->n_calls, &s->calls_capacity, sizeof *g->call)) return;
      g->call[g->n_calls++] = (grammar_call){rule, to};
    }
  }
  g->state[state].calls_at = begin;
  g->state[state].n_calls = g->n_calls - begin;
}

static void make_repeat(subsets *s, const builder_rule *r) {
  grammar_state *state = new_state(s);
  if (state == NULL) return;
  state->min = s->nullable[r->of] ? 0 : r->min;
  state->max = r->max;
  uint32_t at = s->g->n_states - 1;
  s->g->state[at].of = reach_rule(s, r->of);
}

static void make_rule(subsets *s, uint32_t rule) {
  const builder_rule *r = &s->b->rule[s->order[rule]];
  weft_grammar *g = s->g;
  s->first_state = g->n_states;
  g->rule[rule] = (grammar_rule){.first = g->n_states, .nullable = s->nullable[s->order[rule]]};
  if (r->of != GRAMMAR_NONE) {
    make_repeat(s, r);
    return;
  }
  s->n_pool = s->n_sets = 0;
  s->mark_value += 1;
  push_member(s, r->first);
  close_members(s, 0);
  (void)intern_members(s, 0);
  for (uint32_t set = 0; set < s->n_sets && builder_ok(s->b); set++) {
    grammar_state *state = new_state(s);
    if (state == NULL) return;
    for (uint32_t i = 0; i < s->set_n[set]; i++) {
      if (s->pool[s->set_at[set] + i] == r->last) state->final = true;
    }
    uint32_t at = g->n_states - 1;
    follow_bytes(s, set, at);
    follow_calls(s, set, at);
  }
}

/* ---- the table ---- */

static weft_status fill_table(subsets *s) {
  weft_grammar *g = s->g;
  bool cut[257] = {true};
  for (uint32_t i = 0; i < s->n_moves; i++) cut[s->moves[i].low] = cut[s->moves[i].high + 1] = true;
  g->n_classes = 0;
  for (uint32_t byte = 0; byte < 256; byte++) {
    if (cut[byte]) g->n_classes += 1;
    g->class_of[byte] = (uint8_t)(g->n_classes - 1);
  }
  uint64_t n_bytes = ((uint64_t)g->n_states + 1) * g->n_classes * sizeof *g->next;
  if (n_bytes > GRAMMAR_BYTES_MAX) {
    builder_fail(s->b, WEFT_E_TOO_LARGE, "the grammar is too large: it needs more than %d bytes", GRAMMAR_BYTES_MAX);
    return WEFT_E_TOO_LARGE;
  }
  if (!builder_step(s->b, n_bytes / sizeof *g->next / 8)) return s->b->status;
  g->next = weft_alloc(((size_t)g->n_states + 1) * g->n_classes, sizeof *g->next);
  if (g->next == NULL) {
    builder_fail(s->b, WEFT_E_NO_MEMORY, "no memory for the grammar");
    return WEFT_E_NO_MEMORY;
  }
  for (uint32_t i = 0; i < s->n_moves; i++) {
    const move *m = &s->moves[i];
    for (uint32_t c = g->class_of[m->low]; c <= g->class_of[m->high]; c++) {
      g->next[(size_t)m->from * g->n_classes + c] = m->to + 1;
    }
    g->state[m->from].moves = true;
  }
  for (uint32_t i = 0; i < g->n_states; i++) {
    if (g->state[i].n_calls > 0) g->state[i].moves = true;
  }
  return WEFT_OK;
}

/* In how many ways a state leads to each byte, through the rules that it calls and those that they begin with; the most
 * of them. Rules that call each other by two names double them with every level. */
static uint32_t count_ways(const weft_grammar *g, uint32_t state, const uint32_t (*of_rule)[256], uint32_t *ways) {
  const grammar_state *s = &g->state[state];
  uint32_t most = 0;
  for (uint32_t byte = 0; byte < 256; byte++) ways[byte] = 1 + (s->of != GRAMMAR_NONE ? of_rule[s->of][byte] : 0);
  for (uint32_t c = s->calls_at; c < s->calls_at + s->n_calls; c++) {
    const uint32_t *more = of_rule[g->call[c].rule];
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint32_t sum = ways[byte] + more[byte];
      ways[byte] = sum > GRAMMAR_FAN_MAX ? GRAMMAR_FAN_MAX + 1 : sum;
    }
  }
  for (uint32_t byte = 0; byte < 256; byte++) most = ways[byte] > most ? ways[byte] : most;
  return most;
}

/* A place in the grammar looks at every way for every byte, so they are few, or the grammar is refused. */
static void check_ways(subsets *s, const uint32_t (*of_rule)[256]) {
  uint32_t ways[256];
  for (uint32_t i = 0; i < s->g->n_states && builder_step(s->b, 1 + 16 * (uint64_t)s->g->state[i].n_calls); i++) {
    if (count_ways(s->g, i, of_rule, ways) <= GRAMMAR_FAN_MAX) continue;
    builder_fail(s->b, WEFT_E_TOO_LARGE,
                 "the grammar is too ambiguous: its rules lead to one character in more than %d ways", GRAMMAR_FAN_MAX);
  }
}

/* What a rule begins with, in an order in which those that it begins with come first; none is left when there is no
 * circle. */
static void find_beginnings(subsets *s) {
  weft_grammar *g = s->g;
  bool *done = weft_alloc(g->n_rules, sizeof *done);
  uint32_t n_done = 0, before = UINT32_MAX, (*ways)[256] = weft_alloc(g->n_rules, sizeof *ways);
  if (done == NULL || ways == NULL) builder_fail(s->b, WEFT_E_NO_MEMORY, "no memory for the grammar");
  while (builder_ok(s->b) && n_done < g->n_rules && n_done != before) {
    before = n_done;
    for (uint32_t i = g->n_rules; i-- > 0 && builder_step(s->b, 1);) {
      const grammar_state *first = &g->state[g->rule[i].first];
      bool ready = !done[i] && (first->of == GRAMMAR_NONE || done[first->of]);
      uint32_t n_looked = 0;
      for (; n_looked < first->n_calls && ready; n_looked++) ready = done[g->call[first->calls_at + n_looked].rule];
      if (!builder_step(s->b, n_looked / 8) || !ready || !builder_step(s->b, 16 * (uint64_t)first->n_calls + 256))
        continue;
      uint8_t *begins = g->rule[i].begins;
      for (uint32_t byte = 0; byte < 256; byte++) {
        bool has = g->next[(size_t)g->rule[i].first * g->n_classes + g->class_of[byte]] != 0;
        if (has) begins[byte / 8] |= (uint8_t)(1u << byte % 8);
      }
      for (uint32_t k = 0; k < 32; k++) {
        if (first->of != GRAMMAR_NONE) begins[k] |= g->rule[first->of].begins[k];
        for (uint32_t c = 0; c < first->n_calls; c++) begins[k] |= g->rule[g->call[first->calls_at + c].rule].begins[k];
      }
      (void)count_ways(g, g->rule[i].first, (const uint32_t(*)[256])ways, ways[i]);
      for (uint32_t byte = 0; byte < 256; byte++) ways[i][byte] *= begins[byte / 8] >> byte % 8 & 1;
      done[i] = true;
      n_done += 1;
    }
  }
  if (builder_ok(s->b) && n_done < g->n_rules) {
    builder_fail(s->b, WEFT_E_INVALID,
                 "the grammar has a rule that begins with itself: write it so that it begins with "
                 "something else (left recursion)");
  }
  check_ways(s, (const uint32_t(*)[256])ways);
  weft_free(ways);
  weft_free(done);
}

static bool open_subsets(subsets *s) {
  grammar_builder *b = s->b;
  s->edge_at = weft_alloc((size_t)b->n_states + 2, sizeof *s->edge_at);
  s->edge_of = weft_alloc(b->n_edges, sizeof *s->edge_of);
  s->nullable = weft_alloc(b->n_rules, sizeof *s->nullable);
  s->rule_of = weft_alloc(b->n_rules, sizeof *s->rule_of);
  s->order = weft_alloc(b->n_rules, sizeof *s->order);
  s->mark = weft_alloc(b->n_states, sizeof *s->mark);
  s->g->rule = weft_alloc(b->n_rules, sizeof *s->g->rule);
  bool ok = s->edge_at != NULL && s->edge_of != NULL && s->nullable != NULL && s->rule_of != NULL && s->order != NULL &&
            s->mark != NULL && s->g->rule != NULL;
  if (!ok) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
  return ok;
}

weft_status grammar_determinise(grammar_builder *b, weft_grammar *g) {
  subsets s = {.b = b, .g = g};
  if (builder_ok(b) && open_subsets(&s)) {
    sort_edges(&s);
    find_nullable(&s);
    g->root = builder_ok(b) ? reach_rule(&s, b->root) : 0;
    for (uint32_t i = 0; i < g->n_rules && builder_ok(b); i++) make_rule(&s, i);
    if (builder_ok(b) && fill_table(&s) == WEFT_OK) find_beginnings(&s);
  }
  void *const all[] = {s.edge_at, s.edge_of, s.nullable,   s.rule_of, s.order, s.pool,
                       s.set_at,  s.set_n,   s.slots.slot, s.mark,    s.moves};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  g->cost += b->n_steps;
  return b->status;
}
