/* SPDX-License-Identifier: MIT */
/* What it takes to complete a rule.
 *
 * Law: every state has one shortest way out of its rule, in bytes that are tokens by themselves; the ways lead to ever
 * shorter ones, so they end. Tokens and frames are counted along these ways, where a token may stand for several bytes
 * of a way as long as no rule begins or ends between them. So from every state some token leads to one that needs
 * fewer. */
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_internal.h"

typedef struct way {
  uint32_t bytes; /* that complete the rule from here when it does not end here */
  uint32_t call;  /* the call that the way begins with, or NONE */
  uint8_t byte;   /* else the byte */
} way;

typedef struct measure {
  weft_grammar *g;
  way *way;
  uint8_t byte_of[256]; /* of a class: a byte that is a token by itself */
  bool has_byte[256];
  uint32_t child[256]; /* of the tree's root; 0: none */
  uint64_t n_steps;
} measure;

static void count_steps(measure *m, uint64_t n) {
  m->n_steps += n;
  (void)grammar_spend(m->g->work, n);
}

/* False: there were too many steps, or nobody wants the grammar any more. */
static bool goes_on(const measure *m) {
  return m->n_steps < GRAMMAR_VISITS_MAX && !grammar_is_stopped(m->g->work);
}

static uint32_t add_limited(uint32_t a, uint32_t b) {
  return a >= GRAMMAR_INFINITE - b || b >= GRAMMAR_INFINITE ? GRAMMAR_INFINITE : a + b;
}

static uint32_t times_limited(uint32_t n, uint32_t a) {
  uint64_t product = (uint64_t)n * a;
  return product >= GRAMMAR_INFINITE ? GRAMMAR_INFINITE : (uint32_t)product;
}

static uint32_t at_least_one(uint32_t n) {
  return n == 0 ? 1 : n;
}

static uint32_t rest_bytes(const measure *m, uint32_t state) {
  const grammar_state *s = &m->g->state[state];
  return grammar_may_end(s, 0) ? 0 : m->way[state].bytes;
}

static uint32_t rest_tokens(const measure *m, uint32_t state) {
  const grammar_state *s = &m->g->state[state];
  return grammar_may_end(s, 0) ? 0 : s->tokens;
}

static bool shorten_way(measure *m, uint32_t state) {
  weft_grammar *g = m->g;
  const grammar_state *s = &g->state[state];
  way best = m->way[state];
  uint32_t before = best.bytes;
  if (s->of != GRAMMAR_NONE) {
    best.bytes = times_limited(at_least_one(s->min), m->way[g->rule[s->of].first].bytes);
  }
  for (uint32_t c = 0; c < g->n_classes; c++) {
    uint32_t next = g->next[(size_t)state * g->n_classes + c];
    if (next == 0 || !m->has_byte[c]) continue;
    uint32_t bytes = add_limited(1, rest_bytes(m, next - 1));
    if (bytes < best.bytes) best = (way){bytes, GRAMMAR_NONE, m->byte_of[c]};
  }
  for (uint32_t i = s->calls_at; i < s->calls_at + s->n_calls; i++) {
    const grammar_call *call = &g->call[i];
    uint32_t bytes = add_limited(m->way[g->rule[call->rule].first].bytes, rest_bytes(m, call->next));
    if (bytes < best.bytes) best = (way){bytes, i, 0};
  }
  count_steps(m, g->n_classes + s->n_calls);
  m->way[state] = best;
  return best.bytes < before;
}

static uint32_t find_child(const measure *m, uint32_t node, uint8_t byte) {
  const weft_token_trie *trie = m->g->trie;
  if (node == 0) return m->child[byte];
  for (uint32_t i = node + 1; i < trie->end[node]; i = trie->end[i]) {
    if (trie->byte[i] == byte) return i;
  }
  return 0;
}

/* Fewest tokens: one that stands for the first bytes of the way, which the state keeps, then those of where it leads. */
static uint32_t count_tokens(measure *m, uint32_t state) {
  weft_grammar *g = m->g;
  const way *w = &m->way[state];
  grammar_state *s = &g->state[state];
  uint32_t best = s->tokens, node = 0;
  if (w->bytes >= GRAMMAR_INFINITE) return GRAMMAR_INFINITE;
  if (s->of != GRAMMAR_NONE) return times_limited(at_least_one(s->min), g->state[g->rule[s->of].first].tokens);
  if (w->call != GRAMMAR_NONE) {
    const grammar_call *call = &g->call[w->call];
    return add_limited(g->state[g->rule[call->rule].first].tokens, rest_tokens(m, call->next));
  }
  for (;;) {
    node = find_child(m, node, m->way[state].byte);
    if (node == 0) break;
    state = g->next[(size_t)state * g->n_classes + g->class_of[m->way[state].byte]] - 1;
    count_steps(m, 4); /* a child is looked for among up to 256 */
    uint32_t n = add_limited(1, rest_tokens(m, state));
    if (weft_token_trie_n(g->trie, node) > 0 && n < best) best = n, s->way_node = node;
    if (grammar_may_end(&g->state[state], 0) || m->way[state].call != GRAMMAR_NONE) break;
    if (m->way[state].bytes >= GRAMMAR_INFINITE || g->state[state].of != GRAMMAR_NONE) break;
  }
  return best;
}

static uint32_t count_depth(const measure *m, uint32_t state) {
  const weft_grammar *g = m->g;
  const grammar_state *s = &g->state[state];
  const way *w = &m->way[state];
  if (w->bytes >= GRAMMAR_INFINITE) return GRAMMAR_INFINITE;
  if (s->of != GRAMMAR_NONE) return add_limited(1, g->state[g->rule[s->of].first].depth);
  uint32_t next, depth = 0;
  if (w->call != GRAMMAR_NONE) {
    next = g->call[w->call].next;
    depth = add_limited(1, g->state[g->rule[g->call[w->call].rule].first].depth);
  } else {
    next = g->next[(size_t)state * g->n_classes + g->class_of[w->byte]] - 1;
  }
  uint32_t rest = grammar_may_end(&g->state[next], 0) ? 0 : g->state[next].depth;
  return depth > rest ? depth : rest;
}

static void keep_way_rule(measure *m, uint32_t state) {
  grammar_state *s = &m->g->state[state];
  uint32_t call = m->way[state].call;
  s->way_rule = s->of != GRAMMAR_NONE ? s->of : call != GRAMMAR_NONE ? m->g->call[call].rule : GRAMMAR_NONE;
}

/* Values only fall; states come in the order in which they were found, so most ways lead to later ones. */
static bool relax_all(measure *m) {
  weft_grammar *g = m->g;
  bool changed = true;
  while (changed && goes_on(m)) {
    changed = false;
    for (uint32_t i = g->n_states; i-- > 0 && goes_on(m);) changed = shorten_way(m, i) || changed;
  }
  bool counting = !changed;
  for (uint32_t i = 0; i < g->n_states; i++) keep_way_rule(m, i);
  while (counting && goes_on(m)) {
    counting = false;
    for (uint32_t i = g->n_states; i-- > 0 && goes_on(m);) {
      uint32_t tokens = count_tokens(m, i), depth = count_depth(m, i);
      grammar_state *s = &g->state[i];
      counting = counting || tokens < s->tokens || depth < s->depth;
      if (tokens < s->tokens) s->tokens = tokens;
      if (depth < s->depth) s->depth = depth;
      count_steps(m, 2);
    }
    changed = counting;
  }
  return !changed && goes_on(m);
}

static void open_measure(measure *m) {
  weft_grammar *g = m->g;
  const weft_token_trie *trie = g->trie;
  for (uint32_t byte = 0; byte < 256; byte++) {
    if ((trie->alone[byte / 8] >> byte % 8 & 1) == 0 || m->has_byte[g->class_of[byte]]) continue;
    m->has_byte[g->class_of[byte]] = true;
    m->byte_of[g->class_of[byte]] = (uint8_t)byte;
  }
  for (uint32_t i = 1; i < trie->n_nodes; i = trie->end[i]) m->child[trie->byte[i]] = i;
  for (uint32_t i = 0; i < g->n_states; i++) {
    m->way[i] = (way){.bytes = GRAMMAR_INFINITE, .call = GRAMMAR_NONE};
    g->state[i].tokens = g->state[i].depth = GRAMMAR_INFINITE;
  }
}

weft_status grammar_measure(weft_grammar *g, weft_error *error) {
  measure m = {.g = g, .way = weft_alloc(g->n_states, sizeof(way))};
  if (m.way == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  open_measure(&m);
  bool settled = relax_all(&m);
  g->cost += m.n_steps;
  weft_free(m.way);
  if (!settled)
    return weft_fail(error, WEFT_E_TOO_LARGE, "the grammar is too large: its shortest text is too hard to find");
  const grammar_state *first = &g->state[g->rule[g->root].first];
  g->shortest = grammar_may_end(first, 0) ? 0 : first->tokens;
  if (g->shortest > GRAMMAR_SHORTEST_MAX) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "nothing fits: there is no text of at most %d tokens that matches it and that this vocabulary can write",
        GRAMMAR_SHORTEST_MAX);
  }
  uint32_t depth = grammar_may_end(first, 0) ? 0 : first->depth;
  if (depth <= GRAMMAR_DEPTH_MAX) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE, "the shortest text that fits has %u levels; at most %d are allowed", depth,
                   GRAMMAR_DEPTH_MAX);
}
