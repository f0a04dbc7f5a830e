/* SPDX-License-Identifier: MIT */
/* Which tokens may come next. What a state allows by itself is a table, in groups of tokens that need the same to be
 * completed; what tokens have behind the end of the state's rule is a tree, which is walked with the stack in hand. The whole
 * vocabulary is walked only where a table does not hold: near the deepest stack, and near the end of an answer whose
 * grammar reads a token in two ways. */
#include <string.h>

#include "model/formats/grammar_internal.h"

/* ---- a mask ---- */

typedef struct marking {
  const weft_grammar *g;
  const weft_grammar_scratch *w;
  uint32_t *mask, n_after; /* tokens that may follow the next one */
  uint32_t low, high;      /* how many further repetitions a rule may end with */
} marking;

static void mark_token(uint32_t *mask, uint32_t token) {
  mask[token / 32] |= 1u << token % 32;
}

/* A grammar must not delay the other requests of a step: a mask that took too much work is left with the allowed
 * tokens that it has found so far, and with the next token of the shortest way. */
static bool has_enough(const marking *m) {
  return m->w->n_done > m->w->n_enough;
}

/* Whether an answer can be completed in time from the set; what lies below it may close more than it opens. */
static bool is_in_time(const marking *m, const walk_visit *visit) {
  return walk_tokens(m->w, visit->set, visit->n) <= m->n_after;
}

static bool mark_node(void *self, const walk_visit *visit) {
  marking *m = self;
  const weft_token_trie *trie = m->g->trie;
  uint32_t n = weft_token_trie_n(trie, visit->node), first = trie->first[visit->node];
  if (n == 0 || !is_in_time(m, visit)) return !has_enough(m);
  for (uint32_t i = 0; i < n; i++) mark_token(m->mask, (uint32_t)trie->token[first + i]);
  return !has_enough(m);
}

static bool mark_end(void *self, const walk_visit *visit) {
  marking *m = self;
  const grammar_ends *ends = &m->g->ends;
  uint32_t from = ends->first[visit->node], to = ends->first[visit->node + 1];
  if (from == to || !is_in_time(m, visit)) return !has_enough(m);
  for (uint32_t i = from; i < to; i++) {
    const grammar_leaf *leaf = &ends->leaf[i];
    if (leaf->used < m->low || leaf->used > m->high) continue;
    mark_token(m->mask, leaf->token);
  }
  return !has_enough(m);
}

static void mark_group(marking *m, const grammar_group *group) {
  const uint32_t *from = m->g->list + group->tokens_at;
  if (group->n_tokens != GRAMMAR_NONE) {
    for (uint32_t i = 0; i < group->n_tokens; i++) mark_token(m->mask, from[i]);
    return;
  }
  uint32_t n_words = (m->g->trie->n_vocab + 31) / 32;
  for (uint32_t i = 0; i < n_words; i++) m->mask[i] |= from[i];
}

/* A table that holds for a configuration. */
typedef struct table_use {
  const grammar_allowed *allowed; /* NULL: none does */
  const grammar_state *repeat;    /* the repetition whose counts it speaks of, and how many are done; NULL: none */
  uint32_t count, node;           /* the stack below what the table covers */
} table_use;

static table_use find_table(const weft_grammar *g, const weft_grammar_scratch *w, const weft_matcher_config *c) {
  const grammar_state *s = &g->state[c->state];
  const weft_matcher_node *frame = &w->node[c->node];
  table_use use = {.node = c->node, .repeat = s->of != GRAMMAR_NONE ? s : NULL, .count = c->count};
  if (s->allowed != GRAMMAR_NONE) use.allowed = &g->allowed[s->allowed];
  for (uint32_t i = s->pairs_at; i < s->pairs_at + s->n_pairs && c->node != 0; i++) {
    if (g->pair[i].above != frame->state) continue;
    const grammar_state *above = &g->state[frame->state];
    return (table_use){&g->allowed[g->pair[i].allowed], above->of != GRAMMAR_NONE ? above : NULL, frame->count,
                       frame->parent};
  }
  return use;
}

/* Whether the tokens of a group are allowed where `sum` tokens complete the stack. */
static bool group_fits(const marking *m, const grammar_state *repeat, uint32_t used, uint32_t after, uint32_t sum) {
  uint64_t owed = m->low > used ? m->low - used : 0;
  if (owed > 0) owed *= m->g->state[m->g->rule[repeat->of].first].tokens;
  return used <= m->high && after + owed + sum <= m->n_after;
}

/* false: perhaps not; then groups are looked at one by one. */
static bool all_fit(const marking *m, const table_use *use, uint32_t sum) {
  const grammar_group *all = &use->allowed->all;
  return all->used <= m->high &&
         group_fits(m, use->repeat, use->allowed->n_groups > 0 ? 0 : all->used, all->after, sum);
}

static void mark_walked(weft_grammar_scratch *w, weft_matcher_config c, marking *m) {
  uint32_t before = w->n_configs;
  w->config[w->n_configs++] = c;
  (void)walk_trie(w, 1, mark_node, m);
  w->n_configs = before;
}

static void mark_ends(weft_grammar_scratch *w, const table_use *use, marking *m) {
  const grammar_ends *ends = &m->g->ends;
  const weft_matcher_node *node = &w->node[use->node];
  uint32_t before = w->n_configs;
  walk_push(w, before, (weft_matcher_config){node->state, node->count, node->parent});
  const walk_tree tree = {ends->byte, ends->depth, ends->end};
  if (w->n_configs > before) (void)walk_below(w, tree, use->allowed->ends, w->n_configs - before, mark_end, m);
  w->n_configs = before;
}

static void mark_config(weft_grammar_scratch *w, weft_matcher_config c, marking *m) {
  const weft_grammar *g = m->g;
  if (!grammar_moves(&g->state[c.state], c.count)) return;
  const table_use use = find_table(g, w, &c);
  const weft_matcher_node *node = &w->node[use.node];
  m->low = use.repeat != NULL && use.repeat->min > use.count ? use.repeat->min - use.count : 0;
  m->high = use.repeat != NULL ? use.repeat->max - use.count : 0;
  bool fits = use.allowed != NULL && all_fit(m, &use, node->sum);
  bool deep = use.allowed == NULL || node->depth + use.allowed->depth > GRAMMAR_DEPTH_MAX;
  if (deep || (!fits && use.allowed->twice)) {
    mark_walked(w, c, m);
    return;
  }
  if (fits) mark_group(m, &use.allowed->all);
  for (uint32_t i = 0; i < use.allowed->n_groups && !fits; i++) {
    const grammar_group *group = &g->group[use.allowed->groups_at + i];
    if (group_fits(m, use.repeat, group->used, group->after, node->sum)) mark_group(m, group);
  }
  if (use.node != 0 && use.allowed->ends != GRAMMAR_NONE) mark_ends(w, &use, m);
}

/* The token that the shortest completion goes on with, where it needs one; -1: it needs none. */
static int32_t find_way(const weft_grammar_scratch *w, weft_matcher_config c) {
  const weft_grammar *g = w->grammar;
  while (grammar_may_end(&g->state[c.state], c.count)) {
    const weft_matcher_node *node = &w->node[c.node];
    if (c.node == 0) return -1;
    c = (weft_matcher_config){node->state, node->count, node->parent};
  }
  const grammar_state *s = &g->state[c.state];
  while (s->way_rule != GRAMMAR_NONE) s = &g->state[g->rule[s->way_rule].first];
  return weft_token_trie_n(g->trie, s->way_node) > 0 ? g->trie->token[g->trie->first[s->way_node]] : -1;
}

/* In a mask that is left as it is: that token, if the matcher takes it, which looks at so many ways and no more, or if there is
 * no other. */
static void mark_way(weft_grammar_scratch *w, const weft_matcher *matcher, uint32_t *mask) {
  uint32_t n_words = (w->grammar->trie->n_vocab + 31) / 32, at = 0;
  uint64_t n_done = w->n_done;
  int32_t token = find_way(w, matcher->config[0]);
  weft_matcher next = *matcher;
  if (token < 0) return;
  while (at < n_words && mask[at] == 0) at += 1;
  if (at == n_words || weft_matcher_take(&next, w, token)) mark_token(mask, (uint32_t)token);
  w->n_done = n_done;
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
  marking m = {.g = g, .w = w, .mask = mask, .n_after = n_left > 0 ? n_left - 1 : 0};
  memset(mask, 0, (size_t)((trie->n_vocab + 31) / 32) * sizeof *mask);
  walk_begin(w, g, matcher->node, matcher->n_nodes);
  if (walk_may_end(w, matcher->config, matcher->n_configs)) {
    for (uint32_t i = 0; i < trie->n_ends; i++) mark_token(mask, (uint32_t)trie->ends[i]);
  }
  uint32_t n = close_set(w, matcher);
  for (uint32_t i = 0; i < n && n_left > 0 && !has_enough(&m); i++) mark_config(w, w->closed[i], &m);
  if (has_enough(&m)) mark_way(w, matcher, mask);
}
