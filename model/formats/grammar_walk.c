/* SPDX-License-Identifier: MIT */
/* Sets of configurations, byte by byte.
 *
 * Law: a configuration whose state has nothing but its end gives way to the one that its stack returns to; one that
 * cannot be completed within the depth of a stack is dropped. When a set is full, those that need fewest tokens stay.
 * What one byte costs is bounded: of a grammar that leads to it in hundreds of thousands of ways some are left out. */
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_internal.h"

uint32_t grammar_tokens(const weft_grammar *g, uint32_t state, uint32_t count) {
  const grammar_state *s = &g->state[state];
  if (grammar_may_end(s, count)) return 0;
  if (s->of == GRAMMAR_NONE) return s->tokens;
  uint64_t n = (uint64_t)(s->min - count) * g->state[g->rule[s->of].first].tokens;
  return n >= GRAMMAR_INFINITE ? GRAMMAR_INFINITE : (uint32_t)n;
}

static uint32_t depth_from(const weft_grammar *g, uint32_t state, uint32_t count) {
  return grammar_may_end(&g->state[state], count) ? 0 : g->state[state].depth;
}

static uint32_t tokens_of(const weft_grammar_scratch *w, const weft_matcher_config *c) {
  return grammar_tokens(w->grammar, c->state, c->count) + w->node[c->node].sum;
}

uint32_t walk_tokens(const weft_grammar_scratch *w, const weft_matcher_config *set, uint32_t n) {
  uint32_t best = GRAMMAR_INFINITE;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t tokens = tokens_of(w, &set[i]);
    if (tokens < best) best = tokens;
  }
  return best;
}

void walk_begin(weft_grammar_scratch *w, const weft_grammar *g, const weft_matcher_node *node, uint32_t n_nodes) {
  w->grammar = g;
  w->depth_max = GRAMMAR_DEPTH_MAX;
  w->n_configs = 0;
  w->n_done = 0;
  w->depth_seen = 0;
  w->n_nodes = n_nodes;
  memcpy(w->node, node, n_nodes * sizeof *node);
}

void walk_begin_table(weft_grammar_scratch *w, const weft_grammar *g) {
  const weft_matcher_node bottom = {0};
  walk_begin(w, g, &bottom, 1);
  w->depth_max = GRAMMAR_TABLE_DEPTH;
}

static bool is_same_stack(const weft_grammar_scratch *w, uint32_t a, uint32_t b) {
  while (a != b) {
    const weft_matcher_node *x = &w->node[a], *y = &w->node[b];
    if (a == 0 || b == 0 || x->depth != y->depth || x->sum != y->sum) return false;
    if (x->state != y->state || x->count != y->count) return false;
    a = x->parent;
    b = y->parent;
  }
  return true;
}

/* Whether so many frames may be. */
static bool is_shallow(weft_grammar_scratch *w, uint32_t depth) {
  if (depth > w->depth_seen) w->depth_seen = depth;
  return depth <= w->depth_max;
}

void walk_push(weft_grammar_scratch *w, uint32_t first, weft_matcher_config c) {
  const weft_grammar *g = w->grammar;
  while (c.node != 0 && !grammar_moves(&g->state[c.state], c.count) && grammar_may_end(&g->state[c.state], c.count)) {
    const weft_matcher_node *node = &w->node[c.node];
    c = (weft_matcher_config){node->state, node->count, node->parent};
  }
  if (tokens_of(w, &c) >= GRAMMAR_INFINITE) return;
  if (!is_shallow(w, w->node[c.node].depth + depth_from(g, c.state, c.count))) return;
  uint32_t worst = first;
  w->n_done += w->n_configs - first;
  for (uint32_t i = first; i < w->n_configs; i++) {
    const weft_matcher_config *other = &w->config[i];
    if (other->state == c.state && other->count == c.count && is_same_stack(w, other->node, c.node)) return;
    if (tokens_of(w, other) > tokens_of(w, &w->config[worst])) worst = i;
  }
  if (w->n_configs - first < WALK_SET_MAX && w->n_configs < WALK_CONFIGS) {
    w->config[w->n_configs++] = c;
  } else if (w->n_configs > first && tokens_of(w, &c) < tokens_of(w, &w->config[worst])) {
    w->config[worst] = c;
  }
}

/* A frame more; GRAMMAR_NONE: there is no room, or what it returns to could not be completed. A frame that has nothing
 * but its end is left out. */
static uint32_t push_frame(weft_grammar_scratch *w, uint32_t state, uint32_t count, uint32_t parent) {
  const weft_grammar *g = w->grammar;
  const grammar_state *s = &g->state[state];
  if (!grammar_moves(s, count) && grammar_may_end(s, count)) return parent;
  uint32_t depth = w->node[parent].depth, tokens = grammar_tokens(g, state, count);
  if (w->n_nodes >= WALK_NODES || tokens >= GRAMMAR_INFINITE || !is_shallow(w, depth + 1)) return GRAMMAR_NONE;
  if (!is_shallow(w, depth + depth_from(g, state, count))) return GRAMMAR_NONE;
  uint64_t sum = (uint64_t)w->node[parent].sum + tokens;
  if (sum >= GRAMMAR_INFINITE) return GRAMMAR_NONE;
  w->node[w->n_nodes] = (weft_matcher_node){state, count, parent, depth + 1, (uint32_t)sum};
  return w->n_nodes++;
}

/* Counts beyond the last bound that matters are one. */
static uint32_t count_next(const grammar_state *s, uint32_t count) {
  return s->max == GRAMMAR_NONE && count >= s->min ? s->min : count + 1;
}

static uint32_t enter_rule(weft_grammar_scratch *w, uint32_t n_work, uint32_t rule, uint32_t node) {
  if (node == GRAMMAR_NONE || n_work == WALK_WORK) return n_work;
  w->work[n_work] = (walk_work){w->grammar->rule[rule].first, 0, node, true};
  return n_work + 1;
}

static bool begins_with(const grammar_rule *rule, uint8_t byte) {
  return (rule->begins[byte / 8] >> byte % 8 & 1) != 0;
}

/* What one item of work leads to by the byte. */
static uint32_t expand_work(weft_grammar_scratch *w, uint32_t first, walk_work at, uint8_t byte, uint32_t n_work) {
  const weft_grammar *g = w->grammar;
  const grammar_state *s = &g->state[at.state];
  uint32_t next = g->next[(size_t)at.state * g->n_classes + g->class_of[byte]];
  if (next != 0) walk_push(w, first, (weft_matcher_config){next - 1, 0, at.node});
  if (s->of != GRAMMAR_NONE && at.count < s->max && begins_with(&g->rule[s->of], byte)) {
    n_work = enter_rule(w, n_work, s->of, push_frame(w, at.state, count_next(s, at.count), at.node));
  }
  for (uint32_t i = s->calls_at; i < s->calls_at + s->n_calls; i++) {
    const grammar_call *call = &g->call[i];
    if (!begins_with(&g->rule[call->rule], byte)) continue;
    n_work = enter_rule(w, n_work, call->rule, push_frame(w, call->next, 0, at.node));
  }
  if (at.node == 0 || at.entering || !grammar_may_end(s, at.count) || n_work == WALK_WORK) return n_work;
  const weft_matcher_node *node = &w->node[at.node];
  w->work[n_work] = (walk_work){node->state, node->count, node->parent, false};
  return n_work + 1;
}

uint32_t walk_byte(weft_grammar_scratch *w, uint32_t first, uint32_t n, uint8_t byte) {
  uint32_t out = w->n_configs;
  uint64_t enough = w->n_done + WALK_BYTE_MAX;
  for (uint32_t i = 0; i < n; i++) {
    weft_matcher_config c = w->config[first + i];
    uint32_t n_work = 1;
    w->work[0] = (walk_work){c.state, c.count, c.node, false};
    while (n_work > 0 && w->n_done < enough) {
      walk_work at = w->work[n_work - 1];
      w->n_done += 1;
      n_work = expand_work(w, out, at, byte, n_work - 1);
    }
  }
  return w->n_configs - out;
}

bool walk_may_end(weft_grammar_scratch *w, const weft_matcher_config *set, uint32_t n) {
  const weft_grammar *g = w->grammar;
  for (uint32_t i = 0; i < n; i++) {
    weft_matcher_config c = set[i];
    while (grammar_may_end(&g->state[c.state], c.count)) {
      if (c.node == 0) return true;
      const weft_matcher_node *node = &w->node[c.node];
      c = (weft_matcher_config){node->state, node->count, node->parent};
    }
  }
  return false;
}

/* ---- the tree ---- */

uint64_t walk_below(weft_grammar_scratch *w, walk_tree tree, uint32_t root, uint32_t n, walk_visitor visitor,
                    void *self) {
  uint64_t n_visits = 0;
  w->set_at[0] = w->n_configs - n;
  w->set_n[0] = n;
  w->nodes_at[0] = w->n_nodes;
  for (uint32_t i = root + 1; i < tree.end[root];) {
    uint32_t d = tree.depth[i]; /* at least 1 */
    n_visits += 1;
    w->n_configs = w->set_at[d - 1] + w->set_n[d - 1];
    w->n_nodes = w->nodes_at[d - 1];
    w->set_at[d] = w->n_configs;
    w->set_n[d] = walk_byte(w, w->set_at[d - 1], w->set_n[d - 1], tree.byte[i]);
    w->nodes_at[d] = w->n_nodes;
    if (w->set_n[d] == 0) {
      i = tree.end[i];
      continue;
    }
    const walk_visit visit = {i, w->set_n[d], &w->config[w->set_at[d]]};
    if (!visitor(self, &visit)) break;
    i += 1;
  }
  w->n_configs = w->set_at[0];
  w->n_nodes = w->nodes_at[0];
  return n_visits;
}

uint64_t walk_trie(weft_grammar_scratch *w, uint32_t n, walk_visitor visitor, void *self) {
  const weft_token_trie *trie = w->grammar->trie;
  return walk_below(w, (walk_tree){trie->byte, trie->depth, trie->end}, 0, n, visitor, self);
}

/* ---- an answer's place ---- */

weft_status weft_grammar_scratch_open(weft_grammar_scratch **out) {
  *out = weft_alloc(1, sizeof **out);
  if (*out == NULL) return WEFT_E_NO_MEMORY;
  (*out)->n_enough = WALK_MASK_MAX;
  return WEFT_OK;
}

void weft_grammar_scratch_close(weft_grammar_scratch *scratch) {
  weft_free(scratch);
}

void weft_matcher_begin(weft_matcher *m, const weft_grammar *g) {
  *m = (weft_matcher){.grammar = g, .n_nodes = 1};
  if (g == NULL) return;
  m->config[0] = (weft_matcher_config){.state = g->rule[g->root].first};
  m->n_configs = 1;
}

/* Copies a stack of the scratch; as much as is there already is shared. GRAMMAR_NONE: there is no room. */
static uint32_t keep_stack(weft_matcher *m, const weft_grammar_scratch *w, uint32_t node) {
  uint32_t path[GRAMMAR_DEPTH_MAX], n = 0, at = 0;
  for (; node != 0; node = w->node[node].parent) path[n++] = node;
  while (n > 0) {
    weft_matcher_node wanted = w->node[path[--n]];
    uint32_t found = 1;
    wanted.parent = at;
    while (found < m->n_nodes && memcmp(&m->node[found], &wanted, sizeof wanted) != 0) found += 1;
    if (found == WEFT_MATCHER_NODES) return GRAMMAR_NONE;
    if (found == m->n_nodes) m->node[m->n_nodes++] = wanted;
    at = found;
  }
  return at;
}

/* The set becomes the matcher's, the configuration that is completed soonest first. */
static void keep_set(weft_matcher *m, const weft_grammar_scratch *w, const weft_matcher_config *set, uint32_t n) {
  uint32_t best = 0;
  m->n_configs = 0;
  m->n_nodes = 1;
  for (uint32_t i = 1; i < n; i++) {
    if (tokens_of(w, &set[i]) < tokens_of(w, &set[best])) best = i;
  }
  for (uint32_t i = 0; i < n; i++) {
    weft_matcher_config c = set[i == 0 ? best : i == best ? 0 : i];
    c.node = keep_stack(m, w, c.node);
    if (c.node != GRAMMAR_NONE) m->config[m->n_configs++] = c;
  }
}

/* The scratch with the place in it: its set begins at 0. */
static void load_place(weft_grammar_scratch *w, const weft_matcher *m) {
  walk_begin(w, m->grammar, m->node, m->n_nodes);
  memcpy(w->config, m->config, m->n_configs * sizeof *m->config);
  w->n_configs = m->n_configs;
}

bool weft_matcher_take(weft_matcher *m, weft_grammar_scratch *w, int32_t token) {
  uint8_t bytes[WEFT_TRIE_BYTES_MAX];
  if (m->grammar == NULL) return true;
  uint32_t n_bytes = weft_token_trie_bytes(m->grammar->trie, token, bytes);
  load_place(w, m);
  uint32_t first = 0, n = m->n_configs;
  for (uint32_t i = 0; i < n_bytes && n > 0; i++) {
    uint32_t next = w->n_configs;
    n = walk_byte(w, first, n, bytes[i]);
    first = next;
  }
  if (n_bytes == 0 || n == 0) return false;
  keep_set(m, w, &w->config[first], n);
  return true;
}

bool weft_matcher_is_done(const weft_matcher *m) {
  if (m->grammar == NULL) return false;
  for (uint32_t i = 0; i < m->n_configs; i++) {
    const weft_matcher_config *c = &m->config[i];
    const grammar_state *s = &m->grammar->state[c->state];
    if (c->node != 0 || grammar_moves(s, c->count) || !grammar_may_end(s, c->count)) return false;
  }
  return true;
}

bool weft_matcher_may_end(const weft_matcher *m, weft_grammar_scratch *w) {
  if (m->grammar == NULL) return true;
  load_place(w, m);
  return walk_may_end(w, w->config, w->n_configs);
}
