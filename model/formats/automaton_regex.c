/* SPDX-License-Identifier: MIT */
/* Regular expressions with assertions as automata.
 *
 * How. The expression becomes an automaton with empty edges, some of which hold only between certain characters. A
 * place of it is a state and what is still owed: for each assertion of what must follow that was passed, the state of
 * an automaton of its own that reads the rest of the text beside it. Sets of places, together with what kind of
 * character came last, are the states of the result. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/formats/automaton.h"

enum { NFA_STATES_MAX = 1 << 15, AHEADS_MAX = 64, BEHINDS_MAX = 8, PASTS_MAX = 1 << 13 };

/* The kind of a character beside a border. END is what comes last and first. */
typedef enum neighbour { NEXT_END, NEXT_WORD, NEXT_OTHER, NEXT_UNSURE, NEIGHBOURS } neighbour;

typedef enum edge_kind {
  TO_EMPTY,
  TO_RANGE,
  TO_SET, /* many ranges */
  TO_BEGIN,
  TO_END,
  TO_BORDER,
  TO_NO_BORDER,
  TO_AHEAD,
  TO_BEHIND
} edge_kind;

typedef struct nfa_edge {
  uint32_t from, to, kind;
  uint32_t low,
      high; /* RANGE; SET: where in range[], how many; low: AHEAD, BEHIND, which of them; high: BEHIND, negated */
} nfa_edge;

typedef struct place {
  uint32_t state, owed; /* owed: which of the sets of what is owed; 0: nothing */
} place;

typedef struct owed_part {
  uint32_t ahead, state; /* of which automaton: ahead * NEIGHBOURS + what came before it */
} owed_part;

typedef struct span {
  uint32_t at, n;
} span;

/* What came before a set: the kind of the last character; and of each look at what stands before the state that all
 * of the text so far leads to. */
typedef struct past {
  uint32_t last, behind[BEHINDS_MAX];
} past;

typedef struct regex_machine {
  grammar_builder *b;
  expressions *e;
  regex_reading reading;
  uint32_t n_states, first, last;
  nfa_edge *edge;
  uint32_t n_edges, edges_capacity;
  uint32_t *edge_at; /* [n_states + 1], once the edges are sorted */
  uint32_t (*range)[2];
  uint32_t n_ranges, ranges_capacity;
  bool borders, begins;
  automaton *ahead; /* [AHEADS_MAX * NEIGHBOURS] */
  uint32_t n_aheads;
  /* sets of what is owed */
  owed_part *part;
  span *owed;
  uint32_t n_parts, parts_capacity, n_owed, owed_capacity;
  /* sets of places, the states of the result */
  place *pool;
  span *set;
  uint32_t *before; /* of a set: which of the pasts */
  past *past;
  uint32_t n_pasts, pasts_capacity;
  automaton behind[BEHINDS_MAX];
  uint32_t n_behinds;
  uint32_t n_pool, pool_capacity, n_sets, sets_capacity, before_capacity;
  builder_slots slots;
  /* of the set that goes on */
  place *closed;
  uint32_t n_closed, closed_capacity;
  uint32_t *mark, mark_value; /* [n_states]: places that owe nothing */
  uint32_t *cut, n_cuts, cuts_capacity;
} regex_machine;

static automaton make_automaton(regex_machine *m, neighbour before);

/* ---- the expression as edges ---- */

static uint32_t add_state(regex_machine *m) {
  if (!builder_step(m->b, 1)) return 0;
  if (m->n_states >= NFA_STATES_MAX) {
    builder_fail(m->b, WEFT_E_TOO_LARGE, "a regular expression needs more than %d states", NFA_STATES_MAX);
    return 0;
  }
  return m->n_states++;
}

static void add_edge(regex_machine *m, uint32_t from, uint32_t to, edge_kind kind, uint32_t low, uint32_t high) {
  if (!builder_step(m->b, 1)) return;
  if (!builder_grow(m->b, (void **)&m->edge, m->n_edges, &m->edges_capacity, sizeof *m->edge)) return;
  m->edge[m->n_edges++] = (nfa_edge){from, to, kind, low, high};
}

static void add_expression(regex_machine *m, uint32_t at, uint32_t from, uint32_t to);

static void open_machine(regex_machine *m, grammar_builder *b, expressions *e, regex_reading reading) {
  *m = (regex_machine){.b = b, .e = e, .reading = reading};
  m->first = add_state(m);
  m->last = add_state(m);
}

static void close_machine(regex_machine *m) {
  for (uint32_t i = 0; i < m->n_aheads * NEIGHBOURS; i++) automaton_close(&m->ahead[i]);
  for (uint32_t i = 0; i < m->n_behinds; i++) automaton_close(&m->behind[i]);
  void *const all[] = {m->past, m->range, m->edge,   m->edge_at,    m->ahead, m->part,   m->owed,
                       m->pool, m->set,   m->before, m->slots.slot, m->mark,  m->closed, m->cut};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
}

static void add_any(regex_machine *m, uint32_t at) {
  add_edge(m, at, at, TO_RANGE, 0, AUTOMATON_CHARACTER_MAX);
}

/* What follows must match, or must not: the automaton of the texts that may follow, for each kind of character
 * before. */
static void add_ahead(regex_machine *m, expression x, uint32_t from, uint32_t to) {
  regex_machine inner;
  if (m->ahead == NULL) m->ahead = weft_alloc((size_t)AHEADS_MAX * NEIGHBOURS, sizeof *m->ahead);
  if (m->ahead == NULL) builder_fail(m->b, WEFT_E_NO_MEMORY, "no memory for the grammar");
  if (m->n_aheads == AHEADS_MAX) {
    builder_fail(m->b, WEFT_E_TOO_LARGE, "a regular expression has more than %d assertions", AHEADS_MAX);
  }
  if (!builder_ok(m->b)) return;
  regex_reading flipped = m->reading == REGEX_SURELY ? REGEX_PERHAPS : REGEX_SURELY;
  open_machine(&inner, m->b, m->e, !x.negated || m->reading == REGEX_PLAIN ? m->reading : flipped);
  uint32_t end = add_state(&inner), number = m->n_aheads++;
  add_expression(&inner, x.child, inner.first, end);
  add_edge(&inner, end, inner.last, TO_EMPTY, 0, 0);
  add_any(&inner, inner.last);
  for (uint32_t i = 0; i < NEIGHBOURS && builder_ok(m->b); i++) {
    automaton *a = &m->ahead[number * NEIGHBOURS + i];
    *a = make_automaton(&inner, (neighbour)i);
    if (x.negated && builder_ok(m->b)) {
      automaton all = automaton_sized(m->b, 0, GRAMMAR_NONE);
      automaton_exclude(m->b, &all, a);
      *a = all;
    }
  }
  m->borders = m->borders || inner.borders;
  m->begins = m->begins || inner.begins;
  close_machine(&inner);
  add_edge(m, from, to, TO_AHEAD, number, 0);
}

/* What stands before must match, or must not: the automaton of the texts that end so, which reads all of the text
 * beside this one. */
static void add_behind(regex_machine *m, expression x, uint32_t from, uint32_t to) {
  regex_machine inner;
  if (m->n_behinds == BEHINDS_MAX) {
    builder_fail(m->b, WEFT_E_TOO_LARGE, "a regular expression has more than %d looks at what stands before",
                 BEHINDS_MAX);
  }
  if (!builder_ok(m->b)) return;
  regex_reading flipped = m->reading == REGEX_SURELY ? REGEX_PERHAPS : REGEX_SURELY;
  open_machine(&inner, m->b, m->e, !x.negated || m->reading == REGEX_PLAIN ? m->reading : flipped);
  uint32_t begin = add_state(&inner), number = m->n_behinds++;
  add_any(&inner, inner.first);
  add_edge(&inner, inner.first, begin, TO_EMPTY, 0, 0);
  add_expression(&inner, x.child, begin, inner.last);
  m->behind[number] = make_automaton(&inner, NEXT_END);
  close_machine(&inner);
  add_edge(m, from, to, TO_BEHIND, number, x.negated ? 1 : 0);
}

static void add_set(regex_machine *m, expression x, uint32_t from, uint32_t to) {
  enum { FEW = 8 };
  uint32_t n = expression_sort_set(m->e, &x, m->reading), at = m->n_ranges;
  for (uint32_t i = 0; i < n && builder_ok(m->b); i++) {
    if (n <= FEW) add_edge(m, from, to, TO_RANGE, m->e->sorted[i][0], m->e->sorted[i][1]);
    if (n <= FEW || !builder_step(m->b, 1)) continue;
    if (!builder_grow(m->b, (void **)&m->range, m->n_ranges, &m->ranges_capacity, sizeof *m->range)) return;
    memcpy(m->range[m->n_ranges++], m->e->sorted[i], sizeof *m->range);
  }
  if (n > FEW) add_edge(m, from, to, TO_SET, at, n);
}

static void add_repeat(regex_machine *m, expression x, uint32_t from, uint32_t to) {
  for (uint32_t i = 0; i < x.min && builder_ok(m->b); i++) {
    uint32_t next = add_state(m);
    add_expression(m, x.child, from, next);
    from = next;
  }
  if (x.max == GRAMMAR_NONE) {
    uint32_t in = add_state(m);
    add_edge(m, from, in, TO_EMPTY, 0, 0);
    uint32_t out = add_state(m);
    add_expression(m, x.child, in, out);
    add_edge(m, out, in, TO_EMPTY, 0, 0);
    from = in;
  }
  for (uint32_t i = x.min; x.max != GRAMMAR_NONE && i < x.max && builder_ok(m->b); i++) {
    uint32_t next = add_state(m);
    add_edge(m, from, to, TO_EMPTY, 0, 0);
    add_expression(m, x.child, from, next);
    from = next;
  }
  add_edge(m, from, to, TO_EMPTY, 0, 0);
}

static void add_expression(regex_machine *m, uint32_t at, uint32_t from, uint32_t to) {
  if (!builder_step(m->b, 1)) return;
  expression x = m->e->at[at];
  if (x.kind == EXPR_SET) {
    add_set(m, x, from, to);
  } else if (x.kind == EXPR_REPEAT) {
    add_repeat(m, x, from, to);
  } else if (x.kind == EXPR_AHEAD) {
    add_ahead(m, x, from, to);
  } else if (x.kind == EXPR_BEHIND) {
    add_behind(m, x, from, to);
  } else if (x.kind >= EXPR_BEGIN) {
    m->begins = m->begins || x.kind == EXPR_BEGIN;
    m->borders = m->borders || x.kind == EXPR_BORDER || x.kind == EXPR_NO_BORDER;
    add_edge(m, from, to, (edge_kind)(TO_BEGIN + (x.kind - EXPR_BEGIN)), 0, 0);
  } else if (x.kind == EXPR_CHOICE) {
    for (uint32_t i = x.child; i != GRAMMAR_NONE && builder_ok(m->b); i = m->e->at[i].next) {
      uint32_t in = add_state(m), out = add_state(m);
      add_edge(m, from, in, TO_EMPTY, 0, 0);
      add_expression(m, i, in, out);
      add_edge(m, out, to, TO_EMPTY, 0, 0);
    }
  } else {
    for (uint32_t i = x.child; i != GRAMMAR_NONE && builder_ok(m->b); i = m->e->at[i].next) {
      uint32_t next = add_state(m);
      add_expression(m, i, from, next);
      from = next;
    }
    add_edge(m, from, to, TO_EMPTY, 0, 0);
  }
}

/* ---- what is owed ---- */

static int compare_parts(const void *a, const void *b) {
  return memcmp(a, b, sizeof(owed_part));
}

/* The set of the parts from `at` on, an old one if there is one like it. */
static uint32_t number_owed(regex_machine *m, uint32_t at) {
  uint32_t n = m->n_parts - at, kept = 0;
  if (n > 1) qsort(m->part + at, n, sizeof *m->part, compare_parts);
  for (uint32_t i = 0; i < n; i++) {
    if (i == 0 || compare_parts(&m->part[at + i], &m->part[at + kept - 1]) != 0) m->part[at + kept++] = m->part[at + i];
  }
  m->n_parts = at + kept;
  for (uint32_t i = 0; i < m->n_owed && builder_step(m->b, 1); i++) {
    if (m->owed[i].n != kept) continue;
    if (kept > 0 && memcmp(m->part + m->owed[i].at, m->part + at, kept * sizeof *m->part) != 0) continue;
    m->n_parts = at;
    return i;
  }
  if (!builder_grow(m->b, (void **)&m->owed, m->n_owed, &m->owed_capacity, sizeof *m->owed)) return 0;
  m->owed[m->n_owed] = (span){at, kept};
  return m->n_owed++;
}

static void push_part(regex_machine *m, owed_part part) {
  if (m->ahead[part.ahead].everything == part.state) return; /* paid */
  if (builder_grow(m->b, (void **)&m->part, m->n_parts, &m->parts_capacity, sizeof *m->part))
    m->part[m->n_parts++] = part;
}

/* GRAMMAR_NONE: it cannot be paid any more. */
static uint32_t follow_owed(regex_machine *m, uint32_t owed, uint32_t character) {
  uint32_t at = m->n_parts;
  span s = m->owed[owed];
  for (uint32_t i = 0; i < s.n && builder_step(m->b, 1); i++) {
    owed_part part = m->part[s.at + i];
    part.state = automaton_next(&m->ahead[part.ahead], part.state, character);
    if (part.state == GRAMMAR_NONE) {
      m->n_parts = at;
      return GRAMMAR_NONE;
    }
    push_part(m, part);
  }
  return number_owed(m, at);
}

static uint32_t owe_more(regex_machine *m, uint32_t owed, uint32_t ahead) {
  uint32_t at = m->n_parts;
  span s = m->owed[owed];
  if (automaton_is_empty(&m->ahead[ahead])) return GRAMMAR_NONE;
  for (uint32_t i = 0; i < s.n && builder_ok(m->b); i++) push_part(m, m->part[s.at + i]);
  push_part(m, (owed_part){ahead, 0});
  return number_owed(m, at);
}

static bool is_paid(const regex_machine *m, uint32_t owed) {
  span s = m->owed[owed];
  for (uint32_t i = 0; i < s.n; i++) {
    owed_part part = m->part[s.at + i];
    if (!m->ahead[part.ahead].final[part.state]) return false;
  }
  return true;
}

/* ---- sets of places ---- */

static bool is_ascii_word(uint32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= 'a' && c <= 'z');
}

static neighbour kind_of(const regex_machine *m, uint32_t c) {
  if (c >= 0x80 && m->reading != REGEX_PLAIN) return NEXT_UNSURE;
  return is_ascii_word(c) ? NEXT_WORD : NEXT_OTHER;
}

/* What is remembered of the character before: no more than some assertion asks for. */
static neighbour limit_memory(const regex_machine *m, neighbour before) {
  if (m->borders) return before;
  return m->begins && before != NEXT_END ? NEXT_OTHER : NEXT_END;
}

static bool allows_edge(const regex_machine *m, uint32_t kind, neighbour before, neighbour after, bool line_feed) {
  if (kind == TO_BEGIN) return before == NEXT_END;
  if (kind == TO_END) return after == NEXT_END || (line_feed && m->reading == REGEX_PERHAPS);
  if (before == NEXT_UNSURE || after == NEXT_UNSURE) return m->reading == REGEX_PERHAPS;
  return ((before == NEXT_WORD) != (after == NEXT_WORD)) == (kind == TO_BORDER);
}

/* Whether the text so far ends as a look asks. */
static bool stands_before(const regex_machine *m, const past *p, const nfa_edge *e) {
  const automaton *a = &m->behind[e->low];
  bool matches = p->behind[e->low] != GRAMMAR_NONE && a->final[p->behind[e->low]];
  return matches == (e->high == 0);
}

static uint32_t number_past(regex_machine *m, const past *p) {
  for (uint32_t i = 0; i < m->n_pasts && builder_step(m->b, 1); i++) {
    if (memcmp(&m->past[i], p, sizeof *p) == 0) return i;
  }
  if (m->n_pasts == PASTS_MAX) builder_fail(m->b, WEFT_E_TOO_LARGE, "what stands before is of too many kinds");
  if (!builder_ok(m->b) || !builder_grow(m->b, (void **)&m->past, m->n_pasts, &m->pasts_capacity, sizeof *p)) return 0;
  m->past[m->n_pasts] = *p;
  return m->n_pasts++;
}

/* The past before all of the text; after one more character. */
static past first_past(const regex_machine *m, neighbour before) {
  past p = {.last = limit_memory(m, before)};
  for (uint32_t i = 0; i < m->n_behinds; i++) p.behind[i] = automaton_is_empty(&m->behind[i]) ? GRAMMAR_NONE : 0;
  return p;
}

static past next_past(const regex_machine *m, past p, uint32_t c) {
  p.last = limit_memory(m, kind_of(m, c));
  for (uint32_t i = 0; i < m->n_behinds; i++) {
    if (p.behind[i] != GRAMMAR_NONE) p.behind[i] = automaton_next(&m->behind[i], p.behind[i], c);
  }
  return p;
}

static void push_closed(regex_machine *m, place p) {
  if (p.owed == 0) {
    if (m->mark[p.state] == m->mark_value) return;
    m->mark[p.state] = m->mark_value;
  } else {
    if (!builder_step(m->b, 1 + m->n_closed / 8)) return;
    for (uint32_t i = 0; i < m->n_closed; i++) {
      if (m->closed[i].state == p.state && m->closed[i].owed == p.owed) return;
    }
  }
  if (builder_grow(m->b, (void **)&m->closed, m->n_closed, &m->closed_capacity, sizeof *m->closed))
    m->closed[m->n_closed++] = p;
}

/* What a set reaches by nothing, between two kinds of characters. */
static void close_set(regex_machine *m, uint32_t set, neighbour after, bool line_feed) {
  span s = m->set[set];
  const past before_all = m->past[m->before[set]];
  neighbour before = (neighbour)before_all.last;
  m->n_closed = 0;
  m->mark_value += 1;
  for (uint32_t i = 0; i < s.n && builder_ok(m->b); i++) push_closed(m, m->pool[s.at + i]);
  for (uint32_t i = 0; i < m->n_closed && builder_ok(m->b); i++) {
    place p = m->closed[i];
    if (!builder_step(m->b, 1 + m->edge_at[p.state + 1] - m->edge_at[p.state])) return;
    for (uint32_t k = m->edge_at[p.state]; k < m->edge_at[p.state + 1] && builder_ok(m->b); k++) {
      const nfa_edge *e = &m->edge[k];
      uint32_t owed = p.owed;
      if (e->kind == TO_RANGE || e->kind == TO_SET) continue;
      if (e->kind == TO_AHEAD) {
        owed = owe_more(m, owed, e->low * NEIGHBOURS + before);
      } else if (e->kind == TO_BEHIND) {
        if (!stands_before(m, &before_all, e)) continue;
      } else if (e->kind != TO_EMPTY && !allows_edge(m, e->kind, before, after, line_feed)) {
        continue;
      }
      if (owed != GRAMMAR_NONE) push_closed(m, (place){e->to, owed});
    }
  }
}

static int compare_places(const void *a, const void *b) {
  return memcmp(a, b, sizeof(place));
}

static uint64_t hash_places(const place *p, uint32_t n, uint32_t before) {
  uint64_t hash = weft_mix64(before + 1);
  for (uint32_t i = 0; i < n; i++) hash = weft_mix64(hash ^ ((uint64_t)p[i].state << 32 | p[i].owed));
  return hash;
}

static uint64_t hash_set(const void *self, uint32_t i) {
  const regex_machine *m = self;
  return hash_places(m->pool + m->set[i].at, m->set[i].n, m->before[i]);
}

/* The set of the places from `at` on, an old one if there is one like it. */
static uint32_t number_set(regex_machine *m, uint32_t at, const past *p) {
  uint32_t n = m->n_pool - at, kept = 0, capacity = m->sets_capacity, before = number_past(m, p);
  if (!builder_step(m->b, 2 + 4 * (uint64_t)n) || !builder_slots_grow(m->b, &m->slots, 256, m->n_sets, 0, hash_set, m))
    return 0;
  if (n > 1) qsort(m->pool + at, n, sizeof *m->pool, compare_places);
  for (uint32_t i = 0; i < n; i++) {
    if (i == 0 || compare_places(&m->pool[at + i], &m->pool[at + kept - 1]) != 0)
      m->pool[at + kept++] = m->pool[at + i];
  }
  uint64_t hash = hash_places(m->pool + at, kept, before);
  for (;; hash++) {
    uint32_t found = m->slots.slot[hash % m->slots.n];
    if (found == 0) break;
    span s = m->set[found - 1];
    if (s.n != kept || m->before[found - 1] != before) continue;
    if (memcmp(m->pool + s.at, m->pool + at, kept * sizeof *m->pool) != 0) continue;
    m->n_pool = at;
    return found - 1;
  }
  if (!builder_grow(m->b, (void **)&m->set, m->n_sets, &capacity, sizeof *m->set)) return 0;
  if (!builder_grow(m->b, (void **)&m->before, m->n_sets, &m->sets_capacity, sizeof *m->before)) return 0;
  m->n_pool = at + kept;
  m->set[m->n_sets] = (span){at, kept};
  m->before[m->n_sets] = before;
  m->slots.slot[hash % m->slots.n] = m->n_sets + 1;
  return m->n_sets++;
}

static void push_place(regex_machine *m, place p) {
  if (builder_grow(m->b, (void **)&m->pool, m->n_pool, &m->pool_capacity, sizeof *m->pool)) m->pool[m->n_pool++] = p;
}

/* ---- cuts: characters from which on a set may lead elsewhere ---- */

static void push_cut(regex_machine *m, uint32_t c) {
  if (c > AUTOMATON_CHARACTER_MAX) return;
  if (builder_grow(m->b, (void **)&m->cut, m->n_cuts, &m->cuts_capacity, sizeof *m->cut)) m->cut[m->n_cuts++] = c;
}

static void cut_at_automaton(regex_machine *m, const automaton *a, uint32_t state) {
  if (automaton_is_empty(a)) return;
  for (uint32_t i = a->first[state]; i < a->first[state + 1] && builder_step(m->b, 1); i++) {
    push_cut(m, a->edge[i].low);
    push_cut(m, a->edge[i].high + 1);
  }
}

static void cut_at_edge(regex_machine *m, const nfa_edge *e) {
  if (e->kind == TO_RANGE) push_cut(m, e->low);
  if (e->kind == TO_RANGE) push_cut(m, e->high + 1);
  for (uint32_t i = 0; e->kind == TO_SET && i < e->high && builder_step(m->b, 1); i++) {
    push_cut(m, m->range[e->low + i][0]);
    push_cut(m, m->range[e->low + i][1] + 1);
  }
}

static int compare_cuts(const void *a, const void *b) {
  const uint32_t *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

/* Of all that may be reached without a character, whatever stands beside it. */
static void find_cuts(regex_machine *m, uint32_t set) {
  static const uint32_t fixed[] = {'\n', '\n' + 1, '0', '9' + 1, 'A', 'Z' + 1, '_', '_' + 1, 'a', 'z' + 1, 0x80};
  m->n_cuts = 0;
  push_cut(m, 0);
  for (uint32_t i = 0; i < m->n_behinds && builder_ok(m->b); i++) {
    uint32_t state = m->past[m->before[set]].behind[i];
    if (state != GRAMMAR_NONE) cut_at_automaton(m, &m->behind[i], state);
  }
  for (uint32_t i = 0; i < sizeof fixed / sizeof *fixed && m->e->n_assertions > 0; i++) push_cut(m, fixed[i]);
  for (uint32_t kind = 0; kind < NEIGHBOURS && builder_ok(m->b); kind++) {
    close_set(m, set, (neighbour)kind, kind == NEXT_OTHER);
    for (uint32_t i = 0; i < m->n_closed && builder_ok(m->b); i++) {
      place p = m->closed[i];
      for (uint32_t k = m->edge_at[p.state]; k < m->edge_at[p.state + 1]; k++) {
        cut_at_edge(m, &m->edge[k]);
      }
      span s = m->owed[p.owed];
      for (uint32_t k = 0; k < s.n; k++) {
        cut_at_automaton(m, &m->ahead[m->part[s.at + k].ahead], m->part[s.at + k].state);
      }
    }
    if (m->e->n_assertions == 0) break;
  }
  uint32_t kept = 0;
  if (!builder_step(m->b, 4 * (uint64_t)m->n_cuts)) return;
  qsort(m->cut, m->n_cuts, sizeof *m->cut, compare_cuts);
  for (uint32_t i = 0; i < m->n_cuts; i++) {
    if (i == 0 || m->cut[i] != m->cut[kept - 1]) m->cut[kept++] = m->cut[i];
  }
  m->n_cuts = kept;
}

/* ---- the result ---- */

static bool takes_character(const regex_machine *m, const nfa_edge *e, uint32_t c) {
  if (e->kind != TO_SET) return e->kind == TO_RANGE && e->low <= c && c <= e->high;
  uint32_t low = e->low, end = e->low + e->high, high = end;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (m->range[middle][1] < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < end && m->range[low][0] <= c;
}

/* The set that a character leads to from the places that are closed; GRAMMAR_NONE: none. */
static uint32_t follow_character(regex_machine *m, uint32_t before, uint32_t c) {
  uint32_t at = m->n_pool;
  for (uint32_t i = 0; i < m->n_closed && builder_ok(m->b); i++) {
    place p = m->closed[i];
    uint32_t owed = GRAMMAR_NONE;
    if (!builder_step(m->b, 1 + m->edge_at[p.state + 1] - m->edge_at[p.state])) return GRAMMAR_NONE;
    for (uint32_t k = m->edge_at[p.state]; k < m->edge_at[p.state + 1]; k++) {
      const nfa_edge *e = &m->edge[k];
      if (!takes_character(m, e, c)) continue;
      if (owed == GRAMMAR_NONE) owed = p.owed == 0 ? 0 : follow_owed(m, p.owed, c);
      if (owed == GRAMMAR_NONE) break;
      push_place(m, (place){e->to, owed});
    }
  }
  if (!builder_ok(m->b) || m->n_pool == at) return GRAMMAR_NONE;
  const past p = next_past(m, m->past[before], c);
  return number_set(m, at, &p);
}

static int compare_edges(const void *a, const void *b) {
  const nfa_edge *x = a, *y = b;
  return (x->from > y->from) - (x->from < y->from);
}

/* Sorts the edges, once, and takes what is counted by states. */
static bool prepare_machine(regex_machine *m) {
  if (m->edge_at != NULL) return true;
  m->edge_at = weft_alloc((size_t)m->n_states + 1, sizeof *m->edge_at);
  m->mark = weft_alloc(m->n_states, sizeof *m->mark);
  if (m->edge_at == NULL || m->mark == NULL) {
    builder_fail(m->b, WEFT_E_NO_MEMORY, "no memory for the grammar");
    return false;
  }
  if (!builder_step(m->b, 4 * (uint64_t)m->n_edges)) return false;
  if (m->n_edges > 1) qsort(m->edge, m->n_edges, sizeof *m->edge, compare_edges);
  for (uint32_t i = 0; i < m->n_edges; i++) m->edge_at[m->edge[i].from + 1] += 1;
  for (uint32_t i = 0; i < m->n_states; i++) m->edge_at[i + 1] += m->edge_at[i];
  return number_owed(m, 0) == 0 && builder_ok(m->b);
}

static automaton make_automaton(regex_machine *m, neighbour before) {
  automaton a = {.everything = GRAMMAR_NONE};
  if (!builder_ok(m->b) || !prepare_machine(m)) return a;
  m->n_pool = m->n_sets = 0;
  if (m->slots.n > 0) memset(m->slots.slot, 0, m->slots.n * sizeof *m->slots.slot);
  push_place(m, (place){m->first, 0});
  const past begin = first_past(m, before);
  m->n_pasts = 0;
  if (builder_ok(m->b)) (void)number_set(m, 0, &begin);
  for (uint32_t set = 0; set < m->n_sets && builder_ok(m->b); set++) {
    bool final = false;
    close_set(m, set, NEXT_END, false);
    for (uint32_t i = 0; i < m->n_closed && !final; i++) {
      final = m->closed[i].state == m->last && is_paid(m, m->closed[i].owed);
    }
    if (!automaton_begin_state(m->b, &a, final)) break;
    find_cuts(m, set);
    for (uint32_t i = 0; i < m->n_cuts && builder_ok(m->b); i++) {
      uint32_t low = m->cut[i], high = i + 1 < m->n_cuts ? m->cut[i + 1] - 1 : AUTOMATON_CHARACTER_MAX;
      if (i == 0 || m->e->n_assertions > 0) close_set(m, set, kind_of(m, low), low == '\n');
      uint32_t to = follow_character(m, m->before[set], low);
      if (to != GRAMMAR_NONE) automaton_add_edge(m->b, &a, low, high, to);
    }
  }
  automaton_finish(m->b, &a);
  return a;
}

automaton automaton_regex(expressions *e, uint32_t at, bool search) {
  regex_machine m;
  open_machine(&m, e->b, e, e->reading);
  uint32_t in = add_state(&m), out = add_state(&m);
  add_edge(&m, m.first, in, TO_EMPTY, 0, 0);
  add_edge(&m, out, m.last, TO_EMPTY, 0, 0);
  if (search) add_any(&m, m.first);
  if (search) add_any(&m, m.last);
  add_expression(&m, at, in, out);
  automaton a = make_automaton(&m, NEXT_END);
  close_machine(&m);
  return a;
}

automaton automaton_found(grammar_builder *b, const char *text, size_t n, regex_reading reading) {
  expressions e = {.b = b, .text = text, .n_text = n, .reading = reading};
  automaton a = {.everything = GRAMMAR_NONE};
  uint32_t at = regex_read(&e);
  if (builder_ok(b)) a = automaton_regex(&e, at, true);
  expressions_close(&e);
  return a;
}
