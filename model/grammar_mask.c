/* SPDX-License-Identifier: MIT */
/* Which tokens may come next. What a state allows by itself is a table; what leaves its rule is walked with the stack
 * in hand; so is everything where the tokens left are so few that what a token opens might not be closed in time. */
#include <string.h>

#include "base/memory.h"
#include "model/grammar_internal.h"

/* ---- tables ---- */

typedef struct tabulation {
  weft_grammar *g;
  const weft_grammar_scratch *w;
  uint32_t *token, *end; /* [n_tokens], [n_nodes]: of the present state */
  uint32_t n_tokens, n_ends, after;
} tabulation;

static bool note_node(void *self, const walk_visit *visit) {
  tabulation *t = self;
  const weft_token_trie *trie = t->g->trie;
  uint32_t n = weft_token_trie_n(trie, visit->node), first = trie->first[visit->node];
  for (uint32_t i = 0; i < n; i++) t->token[t->n_tokens++] = (uint32_t)trie->token[first + i];
  if (n > 0 && visit->tokens > t->after) t->after = visit->tokens;
  if (visit->may_end) t->end[t->n_ends++] = visit->node;
  return t->g->cost + walk_cost(t->w) <= GRAMMAR_COST_MAX;
}

static bool grow_words(weft_grammar *g, uint64_t n) {
  uint64_t wanted = (uint64_t)g->n_list + n, capacity = g->list_capacity == 0 ? 4096 : g->list_capacity;
  if (wanted * sizeof *g->list > GRAMMAR_BYTES_MAX) return false;
  while (capacity < wanted) capacity *= 2;
  if (capacity == g->list_capacity) return true;
  uint32_t *list = weft_realloc(g->list, capacity, sizeof *list);
  if (list == NULL) return false;
  g->list = list;
  g->list_capacity = (uint32_t)capacity;
  return true;
}

/* Tokens as a list, or as a mask where that is shorter. */
static bool keep_tokens(tabulation *t, grammar_allowed *allowed) {
  weft_grammar *g = t->g;
  uint32_t n_words = (g->trie->n_vocab + 31) / 32;
  bool masked = t->n_tokens >= n_words;
  if (!grow_words(g, (uint64_t)t->n_ends + (masked ? n_words : t->n_tokens))) return false;
  *allowed = (grammar_allowed){.tokens_at = g->n_list, .n_tokens = masked ? GRAMMAR_NONE : t->n_tokens};
  uint32_t *to = g->list + g->n_list;
  if (masked) {
    memset(to, 0, n_words * sizeof *to);
    for (uint32_t i = 0; i < t->n_tokens; i++) to[t->token[i] / 32] |= 1u << t->token[i] % 32;
    g->n_list += n_words;
  } else {
    memcpy(to, t->token, t->n_tokens * sizeof *to);
    g->n_list += t->n_tokens;
  }
  allowed->ends_at = g->n_list;
  allowed->n_ends = t->n_ends;
  allowed->after = t->after;
  memcpy(g->list + g->n_list, t->end, t->n_ends * sizeof *t->end);
  g->n_list += t->n_ends;
  return true;
}

static weft_status tabulate_states(tabulation *t, weft_grammar_scratch *w, weft_error *error) {
  weft_grammar *g = t->g;
  for (uint32_t i = 0; i < g->n_states; i++) {
    if (!grammar_moves(&g->state[i], 0) || grammar_tokens(g, i, 0) >= GRAMMAR_INFINITE) continue;
    if (g->state[i].depth > GRAMMAR_TABLE_DEPTH) continue;
    walk_begin_table(w, g);
    walk_push(w, 0, (weft_matcher_config){.state = i});
    t->n_tokens = t->n_ends = t->after = 0;
    uint64_t n_visits = walk_trie(w, 0, w->n_configs, note_node, t);
    g->cost += n_visits + walk_cost(w);
    if (g->cost > GRAMMAR_COST_MAX) {
      return weft_fail(error, WEFT_E_TOO_LARGE,
                       "the grammar is too large: finding the tokens that its %u states allow takes too many steps",
                       g->n_states);
    }
    if (!keep_tokens(t, &g->allowed[g->n_allowed])) {
      return weft_fail(error, WEFT_E_TOO_LARGE, "the grammar is too large: its tables need more than %d bytes",
                       GRAMMAR_BYTES_MAX);
    }
    g->state[i].allowed = g->n_allowed++;
  }
  return WEFT_OK;
}

weft_status grammar_tabulate(weft_grammar *g, weft_error *error) {
  tabulation t = {.g = g};
  weft_grammar_scratch *w = NULL;
  g->allowed = weft_alloc(g->n_states, sizeof *g->allowed);
  t.token = weft_alloc(g->trie->n_tokens, sizeof *t.token);
  t.end = weft_alloc(g->trie->n_nodes, sizeof *t.end);
  weft_status status = weft_grammar_scratch_open(&w);
  if (g->allowed == NULL || t.token == NULL || t.end == NULL) status = WEFT_E_NO_MEMORY;
  t.w = w;
  status = status == WEFT_OK ? tabulate_states(&t, w, error)
                             : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tables of the grammar");
  weft_grammar_scratch_close(w);
  weft_free(t.token);
  weft_free(t.end);
  return status;
}

/* ---- a mask ---- */

typedef struct marking {
  const weft_token_trie *trie;
  const weft_grammar_scratch *w;
  uint32_t *mask, n_after; /* tokens that may follow the next one */
  bool any;                /* the mask has a token */
} marking;

static void mark_token(uint32_t *mask, uint32_t token) {
  mask[token / 32] |= 1u << token % 32;
}

/* A grammar must not delay the other requests of a step: a mask that took too much work is left with the allowed
 * tokens that it has found so far or, where it found none, with the next token of the shortest way. */
static bool has_enough(const marking *m) {
  return m->w->n_done > WALK_MASK_MAX;
}

static bool mark_node(void *self, const walk_visit *visit) {
  marking *m = self;
  uint32_t n = weft_token_trie_n(m->trie, visit->node), first = m->trie->first[visit->node];
  if (visit->tokens > m->n_after) return !has_enough(m); /* what lies below may close more than it opens */
  for (uint32_t i = 0; i < n; i++) mark_token(m->mask, (uint32_t)m->trie->token[first + i]);
  m->any = m->any || n > 0;
  return !has_enough(m);
}

static void mark_table(const weft_grammar *g, const grammar_allowed *allowed, uint32_t *mask) {
  const uint32_t *from = g->list + allowed->tokens_at;
  if (allowed->n_tokens != GRAMMAR_NONE) {
    for (uint32_t i = 0; i < allowed->n_tokens; i++) mark_token(mask, from[i]);
    return;
  }
  uint32_t n_words = (g->trie->n_vocab + 31) / 32;
  for (uint32_t i = 0; i < n_words; i++) mask[i] |= from[i];
}

/* The table of a state, if what it says holds for this count: of a repetition, where no bound is near. */
static const grammar_allowed *table_of(const weft_grammar *g, const weft_matcher_config *c) {
  const grammar_state *s = &g->state[c->state];
  if (s->allowed == GRAMMAR_NONE) return NULL;
  if (s->of == GRAMMAR_NONE || c->count == 0) return &g->allowed[s->allowed];
  bool far_below = s->max == GRAMMAR_NONE || s->max - c->count > g->trie->depth_max;
  bool same = s->min == 0 || (c->count < s->min && s->min - c->count > g->trie->depth_max);
  return far_below && same ? &g->allowed[s->allowed] : NULL;
}

/* The configuration that stands after a rule's end, at the end of w->config. */
static void push_return(weft_grammar_scratch *w, uint32_t node) {
  const weft_matcher_node *n = &w->node[node];
  walk_push(w, w->n_configs, (weft_matcher_config){n->state, n->count, n->parent});
}

static void mark_config(weft_grammar_scratch *w, weft_matcher_config c, marking *m) {
  const weft_grammar *g = w->grammar;
  const grammar_allowed *allowed = table_of(g, &c);
  const weft_matcher_node *node = &w->node[c.node];
  uint32_t before = w->n_configs;
  bool deep = node->depth > GRAMMAR_DEPTH_MAX - GRAMMAR_TABLE_DEPTH;
  if (allowed == NULL || deep || (uint64_t)allowed->after + node->sum > m->n_after) {
    w->config[w->n_configs++] = c;
    (void)walk_trie(w, 0, 1, mark_node, m);
    w->n_configs = before;
    return;
  }
  mark_table(g, allowed, m->mask);
  m->any = m->any || allowed->n_tokens > 0;
  for (uint32_t i = 0; i < allowed->n_ends && c.node != 0 && !has_enough(m); i++) {
    push_return(w, c.node);
    uint32_t n = w->n_configs - before;
    if (n > 0) (void)walk_trie(w, g->list[allowed->ends_at + i], n, mark_node, m);
    w->n_configs = before;
  }
}

/* The token that the shortest completion goes on with, where it needs one. */
static void mark_way(const weft_grammar_scratch *w, weft_matcher_config c, uint32_t *mask) {
  const weft_grammar *g = w->grammar;
  const weft_token_trie *trie = g->trie;
  while (grammar_may_end(&g->state[c.state], c.count)) {
    const weft_matcher_node *node = &w->node[c.node];
    if (c.node == 0) return;
    c = (weft_matcher_config){node->state, node->count, node->parent};
  }
  const grammar_state *s = &g->state[c.state];
  while (s->way_rule != GRAMMAR_NONE) s = &g->state[g->rule[s->way_rule].first];
  uint32_t n = weft_token_trie_n(trie, s->way_node);
  for (uint32_t i = 0; i < n; i++) mark_token(mask, (uint32_t)trie->token[trie->first[s->way_node] + i]);
}

/* Fills w->closed with the matcher's set, and with the configurations that follow where a rule may end; how many. */
static uint32_t close_set(weft_grammar_scratch *w, const weft_matcher *matcher) {
  const weft_grammar *g = matcher->grammar;
  uint32_t n = 0;
  for (uint32_t i = 0; i < matcher->n_configs; i++) {
    weft_matcher_config c = matcher->config[i];
    for (;;) {
      bool known = false;
      for (uint32_t k = 0; k < n && !known; k++) known = memcmp(&w->closed[k], &c, sizeof c) == 0;
      if (!known && n < sizeof w->closed / sizeof *w->closed) w->closed[n++] = c;
      if (c.node == 0 || !grammar_may_end(&g->state[c.state], c.count)) break;
      const weft_matcher_node *node = &w->node[c.node];
      c = (weft_matcher_config){node->state, node->count, node->parent};
    }
  }
  return n;
}

void weft_matcher_mask(const weft_matcher *matcher, weft_grammar_scratch *w, uint32_t n_left, uint32_t *mask) {
  const weft_grammar *g = matcher->grammar;
  if (g == NULL) return;
  const weft_token_trie *trie = g->trie;
  marking m = {.trie = trie, .w = w, .mask = mask, .n_after = n_left > 0 ? n_left - 1 : 0};
  memset(mask, 0, (size_t)((trie->n_vocab + 31) / 32) * sizeof *mask);
  walk_begin(w, g, matcher->node, matcher->n_nodes);
  if (walk_may_end(w, matcher->config, matcher->n_configs)) {
    for (uint32_t i = 0; i < trie->n_ends; i++) mark_token(mask, (uint32_t)trie->ends[i]);
    m.any = trie->n_ends > 0;
  }
  uint32_t n = close_set(w, matcher);
  for (uint32_t i = 0; i < n && n_left > 0 && !has_enough(&m); i++) mark_config(w, w->closed[i], &m);
  if (!m.any && has_enough(&m)) mark_way(w, matcher->config[0], mask);
}
