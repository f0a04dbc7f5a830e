/* SPDX-License-Identifier: MIT */
/* What a state allows by itself, found once, when a grammar is compiled.
 *
 * Law: a table holds for every stack of at most GRAMMAR_DEPTH_MAX - depth frames; that of a repetition is made of a state that
 * has no bounds, so it holds for every count. Of a token that leads out of the rule, the part behind the rule's end stands
 * in a tree, if its first byte can follow the rule at all. Tables are bounded in steps and bytes; where a table would have
 * too many groups, the state has none. */
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_internal.h"
#include "model/text/triples.h"

enum {
  GROUPS_MAX = 1 << 12,
  SOURCES_MAX = 1 << 22,
  LEAVES_MANY = 1 << 10 /* of a tree of ends that is too large to be walked for every mask */
};

/* A node of the vocabulary's tree at which the rule may end, or one behind it. */
typedef struct end_source {
  uint32_t node, used;
} end_source;

typedef struct tabulation {
  weft_grammar *g;
  weft_grammar_scratch *w;
  uint8_t (*follow)[32]; /* [n_rules] bitset of the bytes that may come behind the rule */
  uint32_t *of_rule;     /* [n_rules] the table of the rule's repetitions, + 1 */
  triples keys;          /* what the groups of the present state have in common: after, used */
  uint32_t *token, *group, n_entries, n_entries_max;
  uint32_t *ordered;            /* [n_entries_max] tokens in the order of their groups */
  uint32_t *size, *size_before; /* [GROUPS_MAX] entries of a group; where the next one of a group goes */
  uint32_t *outside;            /* [n_tokens + 1] of the first tokens of the tree, how many the state does not allow */
  bool *inside;                 /* [n_vocab] the state allows the token */
  end_source *source, *sorted;
  uint32_t n_sources, sources_capacity, sorted_capacity;
  const uint8_t *behind;                          /* the bytes that may come behind the rule of the present state */
  uint32_t *returns, n_returns, returns_capacity; /* states that the present state's rule may return to */
  uint32_t *queue;                                /* [n_rules] */
  bool *seen, *rests;                             /* [n_rules], [n_states] */
  bool repeats, full, refused;
} tabulation;

/* ---- what may follow a rule ---- */

static uint32_t end_of_rule(const weft_grammar *g, uint32_t rule) {
  return rule + 1 < g->n_rules ? g->rule[rule + 1].first : g->n_states;
}

static void add_bytes(uint8_t *to, const uint8_t *from, bool *changed) {
  for (uint32_t k = 0; k < 32; k++) {
    *changed = *changed || (from[k] & ~to[k]) != 0;
    to[k] |= from[k];
  }
}

/* The bytes that a state goes on with itself. */
static void add_next(weft_grammar *g, uint32_t state, uint8_t *to, bool *changed) {
  const grammar_state *s = &g->state[state];
  uint8_t own[32] = {0};
  for (uint32_t byte = 0; byte < 256; byte++) {
    if (g->next[(size_t)state * g->n_classes + g->class_of[byte]] != 0) own[byte / 8] |= (uint8_t)(1u << byte % 8);
  }
  add_bytes(to, own, changed);
  if (s->of != GRAMMAR_NONE) add_bytes(to, g->rule[s->of].begins, changed);
  for (uint32_t c = s->calls_at; c < s->calls_at + s->n_calls; c++)
    add_bytes(to, g->rule[g->call[c].rule].begins, changed);
  (void)grammar_count(g, 8 + s->n_calls);
}

/* What follows the rules that the states of a rule call. first: with the bytes that the states go on with, which do not
 * change. */
static bool follow_calls_of(tabulation *t, uint32_t rule, bool first) {
  weft_grammar *g = t->g;
  bool changed = false;
  for (uint32_t i = g->rule[rule].first; i < end_of_rule(g, rule) && grammar_goes_on(g, 0); i++) {
    const grammar_state *s = &g->state[i];
    if (s->of != GRAMMAR_NONE) {
      add_bytes(t->follow[s->of], g->rule[s->of].begins, &changed);
      add_bytes(t->follow[s->of], t->follow[rule], &changed);
    }
    for (uint32_t c = s->calls_at; c < s->calls_at + s->n_calls; c++) {
      uint32_t next = g->call[c].next;
      if (first) add_next(g, next, t->follow[g->call[c].rule], &changed);
      if (g->state[next].final) add_bytes(t->follow[g->call[c].rule], t->follow[rule], &changed);
    }
    (void)grammar_count(g, 1 + s->n_calls);
  }
  return changed;
}

static void find_follow(tabulation *t) {
  bool changed = true;
  for (bool first = true; changed && grammar_goes_on(t->g, 0); first = false) {
    changed = false;
    for (uint32_t rule = 0; rule < t->g->n_rules; rule++) changed = follow_calls_of(t, rule, first) || changed;
  }
}

/* ---- one state: what its tokens need ---- */

static void note_tokens(tabulation *t, uint32_t node, uint32_t after, uint32_t used) {
  const weft_token_trie *trie = t->g->trie;
  uint32_t n = weft_token_trie_n(trie, node), before = t->keys.n, group = triples_number(&t->keys, after, used, 0);
  t->full = t->full || group == TRIPLES_FULL || n > t->n_entries_max - t->n_entries;
  if (t->full) return;
  if (group == before) t->size[group] = 0;
  t->size[group] += n;
  for (uint32_t i = 0; i < n; i++) {
    t->token[t->n_entries] = (uint32_t)trie->token[trie->first[node] + i];
    t->group[t->n_entries++] = group;
  }
}

static bool push_source(tabulation *t, end_source source) {
  end_source *all = weft_grow(t->source, t->n_sources, &t->sources_capacity, 4096, sizeof *all);
  t->refused = t->refused || all == NULL || t->n_sources >= SOURCES_MAX;
  if (all != NULL) t->source = all;
  if (!t->refused) t->source[t->n_sources++] = source;
  return !t->refused;
}

/* Of a repetition's table: how many repetitions a configuration has begun. */
static uint32_t count_used(const weft_grammar_scratch *w, const weft_matcher_config *c) {
  uint32_t node = c->node, used = c->count;
  for (; node != 0; node = w->node[node].parent) used = w->node[node].count;
  return used;
}

/* Configurations that have begun equally many repetitions are one, the one that is completed soonest. */
static void note_repeats(tabulation *t, const walk_visit *visit, bool has_tokens, bool may_lead_out) {
  uint32_t used[WALK_SET_MAX], after[WALK_SET_MAX], n = 0;
  bool ends[WALK_SET_MAX];
  for (uint32_t i = 0; i < visit->n; i++) {
    uint32_t own = count_used(t->w, &visit->set[i]), tokens = walk_tokens(t->w, &visit->set[i], 1), k = 0;
    bool end = may_lead_out && walk_may_end(t->w, &visit->set[i], 1);
    while (k < n && used[k] != own) k += 1;
    after[k] = k < n && after[k] < tokens ? after[k] : tokens;
    ends[k] = (k < n && ends[k]) || end;
    used[k] = own;
    n = k == n ? n + 1 : n;
  }
  for (uint32_t k = 0; k < n; k++) {
    if (has_tokens) note_tokens(t, visit->node, after[k], used[k]);
    if (ends[k]) (void)push_source(t, (end_source){visit->node, used[k]});
  }
}

static bool note_node(void *self, const walk_visit *visit) {
  tabulation *t = self;
  const weft_token_trie *trie = t->g->trie;
  bool has_tokens = weft_token_trie_n(trie, visit->node) > 0;
  bool may_lead_out = t->behind != NULL && trie->end[visit->node] > visit->node + 1;
  if (t->repeats) {
    note_repeats(t, visit, has_tokens, may_lead_out);
  } else {
    if (has_tokens) note_tokens(t, visit->node, walk_tokens(t->w, visit->set, visit->n), 0);
    if (may_lead_out && walk_may_end(t->w, visit->set, visit->n)) (void)push_source(t, (end_source){visit->node, 0});
  }
  return !t->full && !t->refused && grammar_goes_on(t->g, walk_cost(t->w));
}

/* ---- groups ---- */

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

/* Tokens as a list, or as a bitmask where that is shorter. */
static bool keep_tokens(weft_grammar *g, const uint32_t *token, uint32_t n, grammar_group *group) {
  uint32_t n_words = (g->trie->n_vocab + 31) / 32;
  bool masked = n >= n_words;
  if (!grow_words(g, masked ? n_words : n)) return false;
  uint32_t *to = g->list + g->n_list;
  group->tokens_at = g->n_list;
  group->n_tokens = masked ? GRAMMAR_NONE : n;
  if (masked) {
    memset(to, 0, n_words * sizeof *to);
    for (uint32_t i = 0; i < n; i++) to[token[i] / 32] |= 1u << token[i] % 32;
  } else if (n > 0) {
    memcpy(to, token, n * sizeof *to);
  }
  g->n_list += masked ? n_words : n;
  return true;
}

static bool keep_group(tabulation *t, const uint32_t *token, uint32_t key) {
  weft_grammar *g = t->g;
  grammar_group *group = weft_grow(g->group, g->n_groups, &g->groups_capacity, 256, sizeof *group);
  if (group == NULL) return false;
  g->group = group;
  group += g->n_groups++;
  group->after = t->keys.key[key][0];
  group->used = t->keys.key[key][1];
  return keep_tokens(g, token, t->size[key], group);
}

/* All tokens, and, where they need different things, each group of them. */
static bool keep_groups(tabulation *t, grammar_allowed *allowed) {
  weft_grammar *g = t->g;
  uint32_t n = t->keys.n, at = 0;
  *allowed = (grammar_allowed){.groups_at = g->n_groups, .n_groups = n > 1 ? n : 0, .ends = GRAMMAR_NONE};
  for (uint32_t k = 0; k < n; k++) {
    t->size_before[k] = at;
    at += t->size[k];
    if (t->keys.key[k][0] > allowed->all.after) allowed->all.after = t->keys.key[k][0];
    if (t->keys.key[k][1] > allowed->all.used) allowed->all.used = t->keys.key[k][1];
  }
  for (uint32_t i = 0; i < t->n_entries; i++) t->ordered[t->size_before[t->group[i]]++] = t->token[i];
  if (!keep_tokens(g, t->ordered, t->n_entries, &allowed->all)) return false;
  for (uint32_t k = 0; k < allowed->n_groups; k++) {
    if (!keep_group(t, t->ordered + t->size_before[k] - t->size[k], k)) return false;
  }
  return true;
}

/* ---- what tokens have behind the end of the rule ---- */

/* Which tokens the state allows by itself, and how many it does not, in the order of the tree. */
static void find_outside(tabulation *t) {
  const weft_token_trie *trie = t->g->trie;
  memset(t->inside, 0, trie->n_vocab * sizeof *t->inside);
  for (uint32_t i = 0; i < t->n_entries; i++) t->inside[t->token[i]] = true;
  t->outside[0] = 0;
  for (uint32_t i = 0; i < trie->n_tokens; i++) t->outside[i + 1] = t->outside[i] + (t->inside[trie->token[i]] ? 0 : 1);
  (void)grammar_count(t->g, trie->n_tokens / 32);
}

/* Room for a node more, and for the sentinel behind it. */
static bool grow_ends(grammar_ends *e) {
  uint32_t capacity = e->nodes_capacity == 0 ? 1024 : 2 * e->nodes_capacity;
  if (e->n_nodes + 2 <= e->nodes_capacity) return true;
  uint8_t *byte = weft_realloc(e->byte, capacity, sizeof *byte);
  if (byte != NULL) e->byte = byte;
  uint16_t *depth = weft_realloc(e->depth, capacity, sizeof *depth);
  if (depth != NULL) e->depth = depth;
  uint32_t *end = weft_realloc(e->end, capacity, sizeof *end);
  if (end != NULL) e->end = end;
  uint32_t *first = weft_realloc(e->first, capacity, sizeof *first);
  if (first != NULL) e->first = first;
  if (byte == NULL || depth == NULL || end == NULL || first == NULL) return false;
  e->nodes_capacity = capacity;
  return true;
}

static uint32_t add_end_node(tabulation *t, uint8_t byte, uint32_t depth) {
  grammar_ends *e = &t->g->ends;
  t->refused = t->refused || grammar_tables_bytes(t->g) > GRAMMAR_BYTES_MAX || !grow_ends(e);
  if (t->refused) return 0;
  e->byte[e->n_nodes] = byte;
  e->depth[e->n_nodes] = (uint16_t)depth;
  e->first[e->n_nodes] = e->n_leaves;
  return e->n_nodes++;
}

static void add_leaves(tabulation *t, const end_source *s, grammar_allowed *allowed) {
  const weft_token_trie *trie = t->g->trie;
  grammar_ends *e = &t->g->ends;
  uint32_t n = weft_token_trie_n(trie, s->node), first = trie->first[s->node];
  for (uint32_t i = 0; i < n && !t->refused; i++) {
    uint32_t token = (uint32_t)trie->token[first + i];
    allowed->twice = allowed->twice || t->inside[token];
    if (t->inside[token]) continue;
    grammar_leaf *leaf = weft_grow(e->leaf, e->n_leaves, &e->leaves_capacity, 1024, sizeof *leaf);
    t->refused = leaf == NULL;
    if (leaf == NULL) return;
    e->leaf = leaf;
    e->leaf[e->n_leaves++] = (grammar_leaf){token, s->used};
  }
}

/* The children of the sources from `from` on, behind them, by their bytes. Those below which there are none but tokens that
 * the state allows are left out. */
static uint32_t push_children(tabulation *t, uint32_t from, uint32_t n, bool at_root, grammar_allowed *allowed,
                              uint32_t count[257]) {
  const weft_token_trie *trie = t->g->trie;
  uint32_t begin = t->n_sources;
  memset(count, 0, 257 * sizeof *count);
  for (uint32_t i = from; i < from + n; i++) {
    const end_source s = t->source[i];
    for (uint32_t child = s.node + 1; child < trie->end[s.node]; child = trie->end[child]) {
      uint8_t byte = trie->byte[child];
      (void)grammar_count(t->g, 1);
      if (at_root && (t->behind[byte / 8] >> byte % 8 & 1) == 0) continue;
      bool all_inside = t->outside[trie->first[child]] == t->outside[trie->first[trie->end[child]]];
      allowed->twice = allowed->twice || all_inside;
      if (all_inside) continue;
      if (!grammar_goes_on(t->g, 0) || !push_source(t, (end_source){child, s.used})) return 0;
      count[byte + 1] += 1;
    }
  }
  n = t->n_sources - begin;
  if (n > t->sorted_capacity) {
    end_source *sorted = weft_realloc(t->sorted, n, sizeof *sorted);
    t->refused = sorted == NULL;
    if (sorted == NULL) return 0;
    t->sorted = sorted;
    t->sorted_capacity = n;
  }
  for (uint32_t b = 0; b < 256; b++) count[b + 1] += count[b];
  for (uint32_t i = 0; i < n; i++) {
    const end_source s = t->source[begin + i];
    t->sorted[count[trie->byte[s.node]]++] = s;
  }
  if (n > 0) memcpy(t->source + begin, t->sorted, n * sizeof *t->sorted);
  return n;
}

/* The nodes below a node of the tree of ends, which n sources lead to. A node without a token below it is taken back. */
static void merge_below(tabulation *t, uint32_t from, uint32_t n, uint32_t depth, grammar_allowed *allowed) {
  const weft_token_trie *trie = t->g->trie;
  grammar_ends *e = &t->g->ends;
  uint32_t count[257], begin = t->n_sources, end = begin + push_children(t, from, n, depth == 0, allowed, count);
  for (uint32_t i = begin, next; i < end && !t->refused && grammar_goes_on(t->g, 0); i = next) {
    uint8_t byte = trie->byte[t->source[i].node];
    uint32_t n_leaves = e->n_leaves, node = add_end_node(t, byte, depth + 1);
    for (next = i; next < end && trie->byte[t->source[next].node] == byte; next++) {
      const end_source s = t->source[next];
      add_leaves(t, &s, allowed);
    }
    if (t->refused) return;
    merge_below(t, i, next - i, depth + 1, allowed);
    if (e->n_leaves == n_leaves) e->n_nodes = node;
    e->end[node] = e->n_nodes;
  }
  t->n_sources = begin;
}

static void keep_ends(tabulation *t, grammar_allowed *allowed) {
  grammar_ends *e = &t->g->ends;
  if (t->n_sources == 0) return;
  find_outside(t);
  uint32_t root = add_end_node(t, 0, 0), n_leaves = e->n_leaves;
  if (t->refused) return;
  merge_below(t, 0, t->n_sources, 0, allowed);
  if (e->n_leaves == n_leaves) {
    e->n_nodes = root;
  } else {
    allowed->ends = root;
    e->end[root] = e->n_nodes;
    e->first[e->n_nodes] = e->n_leaves;
  }
}

/* ---- one table ---- */

static weft_status refuse_tables(const tabulation *t, weft_error *error) {
  if (t->g->cost > GRAMMAR_COST_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     "the grammar is too large: finding the tokens that its %u states allow takes too many steps",
                     t->g->n_states);
  }
  if (grammar_tables_bytes(t->g) <= GRAMMAR_BYTES_MAX && t->n_sources < SOURCES_MAX) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the grammar");
  }
  return weft_fail(error, WEFT_E_TOO_LARGE, "the grammar is too large: its tables need more than %d bytes",
                   GRAMMAR_BYTES_MAX);
}

/* The place of one table more. */
static grammar_allowed *new_table(tabulation *t) {
  weft_grammar *g = t->g;
  grammar_allowed *all = weft_grow(g->allowed, g->n_allowed, &g->allowed_capacity, 64, sizeof *all);
  t->refused = t->refused || all == NULL;
  if (all == NULL) return NULL;
  g->allowed = all;
  return &all[g->n_allowed];
}

/* The table of a state, or of a state with one to return to, `above`, if that is not NONE; *number: its place, NONE: there
 * is none. The grammar's last state stands for all repetitions of a rule. */
static bool make_table(tabulation *t, uint32_t state, uint32_t above, const uint8_t *behind, uint32_t *number) {
  weft_grammar *g = t->g;
  grammar_allowed *allowed = new_table(t);
  triples_clear(&t->keys);
  t->n_entries = t->n_sources = 0;
  t->full = false;
  t->repeats = state == g->n_states || above == g->n_states;
  t->behind = NULL;
  *number = GRAMMAR_NONE;
  for (uint32_t k = 0; k < 32 && t->behind == NULL; k++) t->behind = behind[k] != 0 ? behind : NULL;
  walk_begin_table(t->w, g);
  if (above != GRAMMAR_NONE) {
    t->w->node[t->w->n_nodes++] = (weft_matcher_node){above, 0, 0, 1, grammar_tokens(g, above, 0)};
  }
  walk_push(t->w, 0, (weft_matcher_config){.state = state, .node = above != GRAMMAR_NONE ? 1 : 0});
  uint64_t n_visits = walk_trie(t->w, t->w->n_configs, note_node, t);
  if (!grammar_count(g, n_visits + walk_cost(t->w)) || t->refused) return false;
  if (t->full) return true;
  if (!keep_groups(t, allowed)) return false;
  allowed->depth = t->w->depth_seen < GRAMMAR_TABLE_DEPTH ? t->w->depth_seen : GRAMMAR_TABLE_DEPTH;
  keep_ends(t, allowed);
  *number = g->n_allowed++;
  return !t->refused && grammar_goes_on(g, 0) && grammar_tables_bytes(g) <= GRAMMAR_BYTES_MAX;
}

/* Makes the last state that of all repetitions of a rule; the bytes that may come behind them. */
static void begin_repeats(tabulation *t, uint32_t of, uint8_t behind[32]) {
  weft_grammar *g = t->g;
  bool changed = false;
  memset(behind, 0, 32);
  for (uint32_t rule = 0; rule < g->n_rules; rule++) {
    if (g->state[g->rule[rule].first].of == of) add_bytes(behind, t->follow[rule], &changed);
  }
  (void)grammar_count(g, g->n_rules / 8);
  g->state[g->n_states] = (grammar_state){.of = of, .max = GRAMMAR_COUNT_MAX, .allowed = GRAMMAR_NONE};
}

/* The table of all repetitions of a rule. */
static bool tabulate_repeats(tabulation *t, uint32_t of, uint32_t *number) {
  uint8_t behind[32];
  if (t->of_rule[of] == 0) {
    begin_repeats(t, of, behind);
    if (!make_table(t, t->g->n_states, GRAMMAR_NONE, behind, number)) return false;
    t->of_rule[of] = *number == GRAMMAR_NONE ? 0 : *number + 1;
  }
  *number = t->of_rule[of] - 1;
  return true;
}

/* ---- states together with the one to return to ---- */

static bool add_return(tabulation *t, uint32_t state) {
  uint32_t *all = weft_grow(t->returns, t->n_returns, &t->returns_capacity, 64, sizeof *all);
  t->refused = t->refused || all == NULL;
  if (all == NULL) return false;
  t->returns = all;
  (void)grammar_count(t->g, 1 + t->n_returns / 16);
  for (uint32_t i = 0; i < t->n_returns; i++) {
    if (all[i] == state) return true;
  }
  all[t->n_returns++] = state;
  return true;
}

/* The states that may be at the top of the stack in a rule. A state that has nothing but its end is on no stack: there, the
 * top is what its own rule returns to. */
static bool find_returns(tabulation *t, uint32_t rule) {
  weft_grammar *g = t->g;
  uint32_t n = 1;
  t->n_returns = 0;
  memset(t->seen, 0, g->n_rules * sizeof *t->seen);
  t->queue[0] = rule;
  t->seen[rule] = true;
  for (uint32_t k = 0; k < n && grammar_goes_on(g, 0); k++) {
    for (uint32_t from = 0; from < g->n_rules; from++) {
      for (uint32_t i = g->rule[from].first; i < end_of_rule(g, from); i++) {
        const grammar_state *s = &g->state[i];
        if (s->of == t->queue[k] && !add_return(t, i)) return false;
        for (uint32_t c = s->calls_at; c < s->calls_at + s->n_calls; c++) {
          const grammar_state *next = &g->state[g->call[c].next];
          if (g->call[c].rule != t->queue[k]) continue;
          if (next->moves || !next->final) {
            if (!add_return(t, g->call[c].next)) return false;
          } else if (!t->seen[from]) {
            t->seen[from] = true;
            t->queue[n++] = from;
          }
        }
        (void)grammar_count(g, 1 + s->n_calls / 8);
      }
    }
  }
  return true;
}

static bool keep_pair(tabulation *t, uint32_t state, uint32_t above, uint32_t number) {
  weft_grammar *g = t->g;
  grammar_pair *pair = weft_grow(g->pair, g->n_pairs, &g->pairs_capacity, 64, sizeof *pair);
  t->refused = t->refused || pair == NULL;
  if (pair == NULL) return false;
  g->pair = pair;
  g->pair[g->n_pairs++] = (grammar_pair){above, number};
  g->state[state].n_pairs += 1;
  return true;
}

static uint32_t rule_of(const weft_grammar *g, uint32_t state) {
  uint32_t low = 0, high = g->n_rules;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (g->rule[middle].first <= state) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Tables of a state that many tokens lead out of, one for each state to return to. */
static bool tabulate_pairs(tabulation *t, uint32_t state, uint32_t rule) {
  weft_grammar *g = t->g;
  uint32_t of_repeats[2] = {GRAMMAR_NONE, GRAMMAR_NONE}; /* a rule; the table where one of its repetitions is above */
  g->state[state].pairs_at = g->n_pairs;
  if (!find_returns(t, rule)) return false;
  for (uint32_t i = 0; i < t->n_returns && grammar_goes_on(g, GRAMMAR_COST_MAX / 2); i++) {
    uint32_t above = t->returns[i], of = g->state[above].of, number = GRAMMAR_NONE;
    uint8_t behind[32];
    if (grammar_tokens(g, above, 0) >= GRAMMAR_INFINITE || g->state[above].depth >= GRAMMAR_TABLE_DEPTH) continue;
    if (of == GRAMMAR_NONE) {
      if (!make_table(t, state, above, t->follow[rule_of(g, above)], &number)) return false;
    } else if (of == of_repeats[0]) {
      number = of_repeats[1];
    } else {
      begin_repeats(t, of, behind);
      if (!make_table(t, state, g->n_states, behind, &number)) return false;
      of_repeats[0] = of;
      of_repeats[1] = number;
    }
    if (number != GRAMMAR_NONE && !keep_pair(t, state, above, number)) return false;
  }
  return true;
}

/* ---- all states ---- */

/* States at which an answer can be between two bytes: not the first of a rule that nothing leads back to. */
static void find_rests(tabulation *t) {
  weft_grammar *g = t->g;
  uint64_t n_next = (uint64_t)g->n_states * g->n_classes;
  for (uint64_t i = 0; i < n_next; i++) {
    if (g->next[i] != 0) t->rests[g->next[i] - 1] = true;
  }
  for (uint32_t i = 0; i < g->n_calls; i++) t->rests[g->call[i].next] = true;
  for (uint32_t i = 0; i < g->n_states; i++) t->rests[i] = t->rests[i] || g->state[i].of != GRAMMAR_NONE;
  t->rests[g->rule[g->root].first] = true;
  (void)grammar_count(g, n_next / 16 + g->n_calls / 8);
}

static bool tabulate_state(tabulation *t, uint32_t state, uint32_t rule) {
  weft_grammar *g = t->g;
  uint32_t number = GRAMMAR_NONE, n_leaves = g->ends.n_leaves;
  if (g->state[state].of != GRAMMAR_NONE) {
    if (!tabulate_repeats(t, g->state[state].of, &number)) return false;
  } else {
    if (!make_table(t, state, GRAMMAR_NONE, t->follow[rule], &number)) return false;
    if (g->ends.n_leaves - n_leaves > LEAVES_MANY && !tabulate_pairs(t, state, rule)) return false;
  }
  g->state[state].allowed = number;
  return true;
}

static bool tabulate_states(tabulation *t) {
  weft_grammar *g = t->g;
  find_follow(t);
  find_rests(t);
  for (uint32_t rule = 0; rule < g->n_rules; rule++) {
    for (uint32_t i = g->rule[rule].first; i < end_of_rule(g, rule); i++) {
      const grammar_state *s = &g->state[i];
      if (!grammar_goes_on(g, 0)) return false;
      if (!t->rests[i] || !grammar_moves(s, 0) || grammar_tokens(g, i, 0) >= GRAMMAR_INFINITE) continue;
      if (s->depth <= GRAMMAR_TABLE_DEPTH && !tabulate_state(t, i, rule)) return false;
    }
  }
  return true;
}

static bool take_memory(tabulation *t) {
  weft_grammar *g = t->g;
  grammar_state *state = weft_realloc(g->state, (size_t)g->n_states + 1, sizeof *state);
  if (state != NULL) g->state = state;
  t->n_entries_max = 2 * g->trie->n_tokens;
  t->follow = weft_alloc(g->n_rules, sizeof *t->follow);
  t->of_rule = weft_alloc(g->n_rules, sizeof *t->of_rule);
  t->seen = weft_alloc(g->n_rules, sizeof *t->seen);
  t->queue = weft_alloc(g->n_rules, sizeof *t->queue);
  t->rests = weft_alloc(g->n_states, sizeof *t->rests);
  t->token = weft_alloc(t->n_entries_max, sizeof *t->token);
  t->group = weft_alloc(t->n_entries_max, sizeof *t->group);
  t->ordered = weft_alloc(t->n_entries_max, sizeof *t->ordered);
  t->size = weft_alloc(GROUPS_MAX, sizeof *t->size);
  t->size_before = weft_alloc(GROUPS_MAX, sizeof *t->size_before);
  t->outside = weft_alloc((size_t)g->trie->n_tokens + 1, sizeof *t->outside);
  t->inside = weft_alloc(g->trie->n_vocab, sizeof *t->inside);
  bool ok = triples_open(&t->keys, GROUPS_MAX) && weft_grammar_scratch_open(&t->w) == WEFT_OK && state != NULL &&
            t->seen != NULL && t->queue != NULL && t->rests != NULL && t->follow != NULL && t->of_rule != NULL &&
            t->token != NULL && t->group != NULL && t->ordered != NULL && t->size != NULL && t->size_before != NULL &&
            t->outside != NULL && t->inside != NULL;
  return ok;
}

weft_status grammar_tabulate(weft_grammar *g, weft_error *error) {
  tabulation t = {.g = g};
  weft_status status = WEFT_OK;
  (void)grammar_count(g, g->trie->n_vocab / 16); /* for memory of the vocabulary's size, whatever the grammar */
  if (!take_memory(&t)) {
    status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tables of the grammar");
  } else if (!tabulate_states(&t)) {
    status = refuse_tables(&t, error);
  }
  void *const all[] = {t.follow, t.of_rule, t.token,  t.group, t.ordered, t.size,  t.size_before, t.outside,
                       t.inside, t.source,  t.sorted, t.seen,  t.queue,   t.rests, t.returns};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  triples_close(&t.keys);
  weft_grammar_scratch_close(t.w);
  return status;
}

void grammar_tables_close(weft_grammar *g) {
  void *const all[] = {g->allowed,    g->group,    g->pair,       g->list,     g->ends.byte,
                       g->ends.depth, g->ends.end, g->ends.first, g->ends.leaf};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  g->allowed = NULL;
  g->group = NULL;
  g->pair = NULL;
  g->list = NULL;
  g->ends = (grammar_ends){0};
  g->n_allowed = g->n_groups = g->n_pairs = g->n_list = 0;
  g->allowed_capacity = g->groups_capacity = g->pairs_capacity = g->list_capacity = 0;
}

uint64_t grammar_tables_bytes(const weft_grammar *g) {
  const grammar_ends *e = &g->ends;
  return (uint64_t)g->allowed_capacity * sizeof *g->allowed + (uint64_t)g->groups_capacity * sizeof *g->group +
         (uint64_t)g->pairs_capacity * sizeof *g->pair + (uint64_t)g->list_capacity * sizeof *g->list +
         (uint64_t)e->leaves_capacity * sizeof *e->leaf +
         (uint64_t)e->nodes_capacity * (sizeof *e->byte + sizeof *e->depth + sizeof *e->end + sizeof *e->first);
}
