/* SPDX-License-Identifier: MIT */
#include "api/events/kv_mirror.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"

enum { NONE = UINT32_MAX, N_TIERS = WEFT_TIER_NOWHERE, NOWHERE = WEFT_TIER_NOWHERE };

/* What a node is: a prefix. */
typedef struct mirror_place {
  uint32_t parent, depth, model;
  bool live, root;
} mirror_place;

typedef struct mirror_node {
  mirror_place now;       /* as the pager has it */
  bool touched, replaced; /* since the last settle; replaced: another prefix than the one that was shown */
  /* As it is shown: linked into the trie here. */
  mirror_place shown;
  uint32_t child, next, previous; /* the first of its children; its sisters */
  uint32_t domain_root;           /* the root that its domain begins with */
  uint32_t unit_before;           /* the last end of a unit before it */
  uint32_t same_next;             /* the next end of a unit with the same bucket of names */
  /* Of the end of a unit. n_served[t]: whether a hit that ends here can be had from tier t or above it, and how many
   * units right behind it have one that runs through them. */
  uint32_t n_served[N_TIERS];
  uint8_t served;         /* the highest tier of a hit that ends here */
  uint8_t told, was_told; /* the medium that is told, and was before; NOWHERE: none */
  bool queued, telling;
  kv_name name;
} mirror_node;

typedef struct mirror_group {
  weft_layer_group layers;
  uint32_t span, shift; /* base blocks of a block; log2 of its tokens */
  uint16_t most;        /* adjacent blocks that are counted: as many as a window ever needs */
} mirror_group;

typedef struct mirror_model {
  uint32_t n_groups, span;
  mirror_group group[WEFT_GROUPS_MAX];
} mirror_model;

struct kv_mirror {
  uint32_t n_nodes, base_tokens, n_tiers, n_models, n_places;
  const kv_names *names;
  mirror_model model[WEFT_MODELS_MAX];
  mirror_node *node;
  uint8_t *tier;    /* [n_nodes][n_places] where the block of each group that ends here is */
  uint16_t *value;  /* [n_nodes][n_places][n_tiers] adjacent blocks up to here; of other groups whether all are there */
  int32_t *tokens;  /* [n_nodes][stride]; of a root: its domain */
  uint32_t stride;  /* of tokens */
  uint32_t *list;   /* [n_nodes] touched nodes */
  uint32_t *unit;   /* [n_nodes] ends of units to look at */
  uint64_t *order;  /* [n_nodes] to sort: how deep, and which node */
  uint64_t *chain;  /* [n_nodes] chains to tell: how deep their tops are, and their bottoms */
  uint32_t *path;   /* [n_nodes] of one chain */
  uint32_t *bucket; /* [n_buckets], a power of two: ends of units by their names */
  uint32_t n_buckets;
  uint32_t n_list, n_unit;
  bool cleared;
  weft_key128 last; /* the domain of `domain` */
  kv_domain domain;
  bool has_domain;
  kv_name *chain_name; /* [KV_CHAIN_MAX] */
  int32_t *chain_tokens;
  uint32_t n_removed, removed_model; /* waiting in chain_name to be told */
  weft_tier removed_medium;
};

/* ---- open and close -------------------------------------------------------------------------- */

static void open_model(kv_mirror *m, const kv_mirror_model *config, mirror_model *out) {
  out->n_groups = config->n_groups;
  if (config->n_groups > m->n_places) m->n_places = config->n_groups;
  for (uint32_t g = 0; g < config->n_groups; g++) {
    mirror_group *group = &out->group[g];
    group->layers = config->group[g];
    group->span = config->group[g].block_tokens / m->base_tokens;
    group->shift = (uint32_t)__builtin_ctz(config->group[g].block_tokens);
    uint32_t most = config->group[g].window / config->group[g].block_tokens + 2;
    group->most = most > UINT16_MAX ? UINT16_MAX : (uint16_t)most;
    if (group->span > out->span) out->span = group->span;
  }
}

static bool take_memory(kv_mirror *m) {
  size_t n = m->n_nodes == 0 ? 1 : m->n_nodes;
  m->node = weft_alloc(n, sizeof *m->node);
  m->tier = weft_alloc(n * m->n_places, sizeof *m->tier);
  m->value = weft_alloc(n * m->n_places * m->n_tiers, sizeof *m->value);
  m->tokens = weft_alloc(n * m->stride, sizeof *m->tokens);
  m->list = weft_alloc(n, sizeof *m->list);
  m->unit = weft_alloc(n, sizeof *m->unit);
  m->order = weft_alloc(n, sizeof *m->order);
  m->chain = weft_alloc(n, sizeof *m->chain);
  m->path = weft_alloc(n, sizeof *m->path);
  m->n_buckets = 1;
  while (m->n_buckets < n) m->n_buckets *= 2;
  m->bucket = weft_alloc(m->n_buckets, sizeof *m->bucket);
  m->chain_name = weft_alloc(KV_CHAIN_MAX, sizeof *m->chain_name);
  m->chain_tokens = weft_alloc((size_t)KV_CHAIN_MAX * WEFT_BLOCK_TOKENS_MAX, sizeof *m->chain_tokens);
  return m->node && m->tier && m->value && m->tokens && m->list && m->unit && m->order && m->chain && m->path &&
         m->bucket && m->chain_name && m->chain_tokens;
}

weft_status kv_mirror_open(const kv_mirror_config *config, kv_mirror **out) {
  *out = NULL;
  kv_mirror *m = weft_alloc(1, sizeof *m);
  if (m == NULL) return WEFT_E_NO_MEMORY;
  m->n_nodes = config->n_nodes;
  m->base_tokens = config->base_tokens;
  m->stride = m->base_tokens < 4 ? 4 : m->base_tokens;
  m->n_tiers = config->n_tiers;
  m->n_models = config->n_models;
  m->names = config->names;
  for (uint32_t i = 0; i < config->n_models; i++) open_model(m, &config->model[i], &m->model[i]);
  if (!take_memory(m)) {
    kv_mirror_close(m);
    return WEFT_E_NO_MEMORY;
  }
  kv_mirror_clear(m);
  *out = m;
  return WEFT_OK;
}

void kv_mirror_close(kv_mirror *m) {
  if (m == NULL) return;
  void *const memory[] = {m->node,  m->tier,  m->value, m->tokens, m->list,       m->unit,
                          m->order, m->chain, m->path,  m->bucket, m->chain_name, m->chain_tokens};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) weft_free(memory[i]);
  weft_free(m);
}

uint32_t kv_mirror_unit_tokens(const kv_mirror *m, uint32_t model) {
  return m->model[model].span * m->base_tokens;
}

void kv_mirror_clear(kv_mirror *m) {
  memset(m->node, 0, (size_t)m->n_nodes * sizeof *m->node);
  memset(m->bucket, 0xFF, m->n_buckets * sizeof *m->bucket);
  m->n_list = m->n_unit = 0;
  m->cleared = true;
}

/* ---- what the pager tells --------------------------------------------------------------------- */

static int32_t *tokens_of(const kv_mirror *m, uint32_t node) {
  return m->tokens + (size_t)node * m->stride;
}

static bool same_place(const mirror_place *a, const mirror_place *b) {
  return a->parent == b->parent && a->depth == b->depth && a->model == b->model && a->root == b->root;
}

static void apply_change(kv_mirror *m, const weft_prefix_change *c, const int32_t *tokens) {
  WEFT_CHECK(c->node < m->n_nodes && (!c->live || c->model < m->n_models));
  mirror_node *node = &m->node[c->node];
  const mirror_place now = {
      .parent = c->parent, .depth = c->depth, .model = c->model, .live = c->live, .root = c->root};
  const void *words = c->root ? (const void *)&c->domain : (const void *)tokens;
  size_t n_words = c->root ? sizeof c->domain : m->base_tokens * sizeof *tokens;
  bool same =
      node->now.live && now.live && same_place(&node->now, &now) && memcmp(tokens_of(m, c->node), words, n_words) == 0;
  if (!same && (node->now.live || now.live)) node->replaced = true;
  node->now = now;
  if (now.live) {
    memcpy(tokens_of(m, c->node), words, n_words);
    memcpy(m->tier + (size_t)c->node * m->n_places, c->tier, m->n_places);
  }
  if (node->touched) return;
  node->touched = true;
  m->list[m->n_list++] = c->node;
}

void kv_mirror_apply(kv_mirror *m, const weft_prefix_change *change, const int32_t *tokens, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) apply_change(m, &change[i], tokens + (size_t)i * m->base_tokens);
}

/* ---- which units can be had ------------------------------------------------------------------- */

static bool is_unit_end(const kv_mirror *m, const mirror_place *p) {
  return !p->root && p->depth % m->model[p->model].span == 0;
}

static uint16_t *values_of(const kv_mirror *m, uint32_t node) {
  return m->value + (size_t)node * m->n_places * m->n_tiers;
}

/* The value of a group behind a block that can be had (or not), given the value before the block. */
static uint16_t next_value(const mirror_group *group, bool there, uint16_t before) {
  if (!there) return 0;
  if (group->layers.state_pages != 0) return 1;
  if (group->layers.window == 0) return before;
  return before < group->most ? (uint16_t)(before + 1) : before;
}

/* True: a value is another one than before. */
static bool renew_values(kv_mirror *m, uint32_t node) {
  const mirror_place *p = &m->node[node].shown;
  const mirror_model *model = &m->model[p->model];
  const uint16_t *parent = p->parent == NONE ? NULL : values_of(m, p->parent);
  const uint8_t *tier = m->tier + (size_t)node * m->n_places;
  uint16_t *value = values_of(m, node);
  bool changed = false;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const mirror_group *group = &model->group[g];
    bool whole = group->layers.window == 0 && group->layers.state_pages == 0; /* nothing before a first block lacks */
    for (uint32_t t = 0; t < m->n_tiers; t++) {
      uint32_t at = g * m->n_tiers + t;
      uint16_t now = parent == NULL ? whole : parent[at];
      if (!p->root && p->depth % group->span == 0) now = next_value(group, tier[g] <= t, now);
      changed = changed || value[at] != now;
      value[at] = now;
    }
  }
  return changed;
}

/* Adjacent blocks that a row at the position sees. */
static uint32_t needed_blocks(const mirror_group *group, uint32_t position) {
  if (group->layers.window == 0) return 1; /* of all blocks, and of states, whether they are there */
  return (position >> group->shift) - (weft_layer_group_first(&group->layers, position) >> group->shift);
}

/* The highest tier that can serve a hit which ends here. */
static uint8_t served_tier(const kv_mirror *m, uint32_t node) {
  const mirror_place *p = &m->node[node].shown;
  const mirror_model *model = &m->model[p->model];
  const uint16_t *value = values_of(m, node);
  for (uint32_t t = 0; t < m->n_tiers; t++) {
    bool all = true;
    for (uint32_t g = 0; g < model->n_groups; g++)
      all = all && value[g * m->n_tiers + t] >= needed_blocks(&model->group[g], p->depth * m->base_tokens);
    if (all) return (uint8_t)t;
  }
  return NOWHERE;
}

/* The highest tier of a hit that runs through the unit. */
static uint8_t level_of(const mirror_node *unit) {
  uint8_t t = 0;
  while (t < NOWHERE && unit->n_served[t] == 0) t++;
  return t;
}

/* To be looked at once the trie is as it should be. */
static void queue_unit(kv_mirror *m, uint32_t at) {
  if (!m->node[at].queued) m->unit[m->n_unit++] = at;
  m->node[at].queued = true;
}

/* A hit that ends in or behind the unit is served from another tier than before; so the units before it may be. */
static void count_served(kv_mirror *m, uint32_t at, uint8_t old, uint8_t new) {
  while (at != NONE && old != new) {
    mirror_node *unit = &m->node[at];
    uint8_t before = level_of(unit);
    for (uint32_t t = old; t < NOWHERE; t++) unit->n_served[t] -= 1;
    for (uint32_t t = new; t < NOWHERE; t++) unit->n_served[t] += 1;
    queue_unit(m, at);
    old = before;
    new = level_of(unit);
    at = unit->unit_before;
  }
}

static void set_served(kv_mirror *m, uint32_t node, uint8_t served) {
  uint8_t old = m->node[node].served;
  m->node[node].served = served;
  count_served(m, node, old, served);
}

/* The node's blocks changed: renews what depends on them, in the nodes behind it as far as it does. */
static void renew_from(kv_mirror *m, uint32_t top) {
  for (uint32_t at = top;;) {
    mirror_node *node = &m->node[at];
    bool changed = renew_values(m, at);
    if (is_unit_end(m, &node->shown)) set_served(m, at, served_tier(m, at));
    if (changed && node->child != NONE) {
      at = node->child;
      continue;
    }
    while (at != top && m->node[at].next == NONE) at = m->node[at].shown.parent;
    if (at == top) return;
    at = m->node[at].next;
  }
}

/* ---- the trie as it is shown ------------------------------------------------------------------- */

static const kv_domain *domain_of(kv_mirror *m, uint32_t node) {
  weft_key128 key;
  memcpy(&key, tokens_of(m, m->node[node].domain_root), sizeof key);
  if (!m->has_domain || !weft_key128_equal(key, m->last)) m->domain = kv_names_domain(m->names, key);
  m->has_domain = true;
  m->last = key;
  return &m->domain;
}

/* The tokens of the unit that ends with the node, to out. */
static void copy_unit(const kv_mirror *m, uint32_t node, int32_t *out) {
  for (uint32_t i = m->model[m->node[node].shown.model].span; i-- > 0; node = m->node[node].shown.parent)
    memcpy(out + (size_t)i * m->base_tokens, tokens_of(m, node), m->base_tokens * sizeof *out);
}

/* The unit is the first of its domain. */
static bool is_first(const kv_mirror *m, uint32_t node) {
  uint32_t before = m->node[node].unit_before;
  return before == NONE || m->node[before].domain_root != m->node[node].domain_root;
}

static void name_unit(kv_mirror *m, uint32_t at) {
  mirror_node *node = &m->node[at];
  const kv_name *before = node->unit_before == NONE ? NULL : &m->node[node->unit_before].name;
  copy_unit(m, at, m->chain_tokens);
  kv_names_next(m->names, domain_of(m, at), is_first(m, at), before, m->chain_tokens,
                kv_mirror_unit_tokens(m, node->shown.model), &node->name);
}

/* ---- units with one name: a public prefix and a domain whose tokens may be told can have the same tokens --------- */

static uint32_t *bucket_of(const kv_mirror *m, const kv_name *name) {
  return &m->bucket[kv_name_number(name) & (m->n_buckets - 1)];
}

static bool same_name(const kv_mirror *m, uint32_t a, uint32_t b) {
  return m->node[a].shown.model == m->node[b].shown.model &&
         memcmp(&m->node[a].name, &m->node[b].name, sizeof(kv_name)) == 0;
}

/* Another unit of its name; NONE: there is none. */
static uint32_t find_twin(const kv_mirror *m, uint32_t at) {
  uint32_t twin = *bucket_of(m, &m->node[at].name);
  while (twin != NONE && (twin == at || !same_name(m, twin, at))) twin = m->node[twin].same_next;
  return twin;
}

/* Of the units with its name the one that can be had from the highest tier. */
static uint32_t best_twin(const kv_mirror *m, uint32_t at) {
  uint32_t best = NONE;
  for (uint32_t twin = *bucket_of(m, &m->node[at].name); twin != NONE; twin = m->node[twin].same_next) {
    if (!same_name(m, twin, at)) continue;
    if (best == NONE || level_of(&m->node[twin]) < level_of(&m->node[best])) best = twin;
  }
  return best;
}

static void set_told(kv_mirror *m, uint32_t at, uint8_t told) {
  for (uint32_t twin = *bucket_of(m, &m->node[at].name); twin != NONE; twin = m->node[twin].same_next)
    if (same_name(m, twin, at)) m->node[twin].told = told;
}

static void enter_bucket(kv_mirror *m, uint32_t at) {
  uint32_t *bucket = bucket_of(m, &m->node[at].name), twin = find_twin(m, at);
  if (twin != NONE) m->node[at].told = m->node[twin].told;
  m->node[at].same_next = *bucket;
  *bucket = at;
}

static void leave_bucket(kv_mirror *m, uint32_t at) {
  uint32_t *from = bucket_of(m, &m->node[at].name);
  while (*from != at) from = &m->node[*from].same_next;
  *from = m->node[at].same_next;
}

static void link_node(kv_mirror *m, uint32_t at) {
  mirror_node *node = &m->node[at];
  uint32_t parent = node->now.parent;
  node->shown = node->now;
  node->child = node->next = node->previous = node->unit_before = NONE;
  node->domain_root = node->now.root ? at : NONE;
  node->served = node->told = NOWHERE;
  memset(node->n_served, 0, sizeof node->n_served);
  if (parent != NONE) {
    mirror_node *before = &m->node[parent];
    WEFT_CHECK(before->shown.live && before->shown.model == node->shown.model);
    node->next = before->child;
    if (before->child != NONE) m->node[before->child].previous = at;
    before->child = at;
    if (!node->now.root) node->domain_root = before->domain_root;
    node->unit_before = is_unit_end(m, &before->shown) ? parent : before->unit_before;
  }
  WEFT_CHECK(node->domain_root != NONE);
  memset(values_of(m, at), 0, (size_t)m->n_places * m->n_tiers * sizeof(uint16_t));
  if (is_unit_end(m, &node->shown)) {
    name_unit(m, at);
    enter_bucket(m, at);
  }
  renew_from(m, at);
}

static void flush_removed(kv_mirror *m, const kv_sink *sink) {
  if (m->n_removed > 0) sink->removed(sink->self, m->removed_model, m->removed_medium, m->chain_name, m->n_removed);
  m->n_removed = 0;
}

/* The unit is told no more. */
static void tell_removed(kv_mirror *m, mirror_node *unit, uint8_t medium, const kv_sink *sink) {
  bool other = m->removed_model != unit->shown.model || m->removed_medium != (weft_tier)medium;
  if (other || m->n_removed == KV_CHAIN_MAX) flush_removed(m, sink);
  m->removed_model = unit->shown.model;
  m->removed_medium = (weft_tier)medium;
  m->chain_name[m->n_removed++] = unit->name;
}

static void unlink_node(kv_mirror *m, uint32_t at, const kv_sink *sink) {
  mirror_node *node = &m->node[at];
  WEFT_CHECK(node->child == NONE);
  if (is_unit_end(m, &node->shown)) {
    set_served(m, at, NOWHERE);
    leave_bucket(m, at);
    uint32_t twin = find_twin(m, at);
    if (twin != NONE)
      queue_unit(m, twin);
    else if (node->told != NOWHERE)
      tell_removed(m, node, node->told, sink);
    node->told = NOWHERE;
  }
  if (node->previous != NONE)
    m->node[node->previous].next = node->next;
  else if (node->shown.parent != NONE)
    m->node[node->shown.parent].child = node->next;
  if (node->next != NONE) m->node[node->next].previous = node->previous;
  node->shown.live = false;
}

/* ---- telling ---------------------------------------------------------------------------------- */

static int compare_order(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* A root lies behind its parent, which is as deep. */
static uint64_t order_of(const mirror_place *p, uint32_t node) {
  return (uint64_t)(2 * p->depth + p->root) << 32 | node;
}

/* Sorts what is in `order`: parents before their children. */
static void sort_order(uint64_t *order, uint32_t n) {
  if (n > 1) qsort(order, n, sizeof *order, compare_order);
}

static bool joins_before(const kv_mirror *m, uint32_t at) {
  uint32_t before = m->node[at].unit_before;
  return before != NONE && m->node[before].telling && m->node[before].told == m->node[at].told &&
         m->node[before].domain_root == m->node[at].domain_root;
}

/* A part of `path`, whose first unit is `first`, from there on n units towards its end. */
static void tell_part(kv_mirror *m, uint32_t first, uint32_t n, const kv_sink *sink) {
  const mirror_node *top = &m->node[m->path[first]];
  const kv_domain *domain = domain_of(m, m->path[first]);
  uint32_t unit_tokens = kv_mirror_unit_tokens(m, top->shown.model);
  for (uint32_t i = 0; i < n; i++) {
    m->chain_name[i] = m->node[m->path[first - i]].name;
    if (!domain->is_private) copy_unit(m, m->path[first - i], m->chain_tokens + (size_t)i * unit_tokens);
  }
  const kv_chain chain = {.model = top->shown.model,
                          .medium = (weft_tier)top->told,
                          .name = m->chain_name,
                          .n = n,
                          .before = top->unit_before == NONE ? NULL : &m->node[top->unit_before].name,
                          .tokens = domain->is_private ? NULL : m->chain_tokens,
                          .unit_tokens = unit_tokens,
                          .domain = domain,
                          .first = is_first(m, m->path[first])};
  sink->stored(sink->self, &chain);
}

/* Tells the n units of `order`, which are told in the medium `told` from now on, as chains. */
static void tell_stored(kv_mirror *m, uint32_t n, const kv_sink *sink) {
  uint32_t n_chains = 0;
  sort_order(m->order, n);
  for (uint32_t i = 0; i < n; i++) m->node[(uint32_t)m->order[i]].telling = true;
  for (uint32_t i = n; i-- > 0;) { /* from the ends of chains */
    uint32_t bottom = (uint32_t)m->order[i], top = bottom;
    if (m->node[bottom].queued) continue; /* in a chain already */
    m->node[top].queued = true;
    while (joins_before(m, top) && !m->node[m->node[top].unit_before].queued) {
      top = m->node[top].unit_before;
      m->node[top].queued = true;
    }
    m->chain[n_chains++] = order_of(&m->node[top].shown, bottom);
    m->path[bottom] = top; /* kept there until the chain is told */
  }
  sort_order(m->chain, n_chains);
  for (uint32_t i = 0; i < n; i++) m->node[(uint32_t)m->order[i]].queued = false;
  for (uint32_t i = 0; i < n_chains; i++) m->order[i] = m->path[(uint32_t)m->chain[i]];
  for (uint32_t i = 0; i < n_chains; i++) {
    uint32_t top = (uint32_t)m->order[i], at = (uint32_t)m->chain[i], length = 0;
    for (;; at = m->node[at].unit_before) {
      m->path[length++] = at;
      m->node[at].telling = false;
      if (at == top) break;
    }
    for (uint32_t left = length; left > 0;) {
      uint32_t part = left < KV_CHAIN_MAX ? left : KV_CHAIN_MAX;
      tell_part(m, left - 1, part, sink);
      left -= part;
    }
  }
}

/* Sorts into `order` the nodes that leave the trie. A node is another prefix, too, where one before it is; then it was
 * new since the last settle, and is touched, even if it looks as the node did that had its number before. */
static uint32_t sort_leaving(kv_mirror *m) {
  uint32_t n_shown = 0, n = 0;
  for (uint32_t i = 0; i < m->n_list; i++) {
    const mirror_node *node = &m->node[m->list[i]];
    if (node->shown.live) m->order[n_shown++] = order_of(&node->shown, m->list[i]);
  }
  sort_order(m->order, n_shown);
  for (uint32_t i = 0; i < n_shown; i++) {
    mirror_node *node = &m->node[(uint32_t)m->order[i]];
    uint32_t parent = node->shown.parent;
    node->replaced = node->replaced || (parent != NONE && m->node[parent].replaced);
    if (node->replaced) m->order[n++] = m->order[i];
  }
  return n;
}

/* Sorts into `order` the nodes that come into it. */
static uint32_t sort_coming(kv_mirror *m) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->n_list; i++) {
    const mirror_node *node = &m->node[m->list[i]];
    if (node->now.live && !node->shown.live) m->order[n++] = order_of(&node->now, m->list[i]);
  }
  sort_order(m->order, n);
  return n;
}

static void renew_touched(kv_mirror *m) {
  for (uint32_t i = 0; i < m->n_list; i++) {
    mirror_node *node = &m->node[m->list[i]];
    if (node->now.live && node->shown.live && !node->replaced) renew_from(m, m->list[i]);
    node->touched = node->replaced = false;
  }
  m->n_list = 0;
}

/* Units whose medium is another one than was told: those that are stored, then those that are no more where they
 * were. */
static void tell_units(kv_mirror *m, const kv_sink *sink) {
  uint32_t n_stored = 0, n_left = 0;
  for (uint32_t i = 0; i < m->n_unit; i++) {
    uint32_t at = m->unit[i];
    m->node[at].queued = false;
    if (!m->node[at].shown.live || !is_unit_end(m, &m->node[at].shown)) continue;
    at = best_twin(m, at);
    mirror_node *unit = &m->node[at];
    uint8_t level = level_of(unit);
    if (level == unit->told) continue;
    unit->was_told = unit->told;
    if (unit->told != NOWHERE) m->unit[n_left++] = at;
    set_told(m, at, level);
    if (level == NOWHERE) continue;
    m->order[n_stored++] = order_of(&unit->shown, at);
  }
  m->n_unit = 0;
  tell_stored(m, n_stored, sink);
  for (uint32_t i = 0; i < n_left; i++) m->order[i] = order_of(&m->node[m->unit[i]].shown, m->unit[i]);
  sort_order(m->order, n_left);
  for (uint32_t i = n_left; i-- > 0;) {
    mirror_node *unit = &m->node[(uint32_t)m->order[i]];
    tell_removed(m, unit, unit->was_told, sink);
  }
  flush_removed(m, sink);
}

void kv_mirror_settle(kv_mirror *m, const kv_sink *sink) {
  for (uint32_t i = 0; i < m->n_models && m->cleared; i++) sink->cleared(sink->self, i);
  m->cleared = false;
  for (uint32_t n = sort_leaving(m); n-- > 0;) unlink_node(m, (uint32_t)m->order[n], sink);
  flush_removed(m, sink);
  uint32_t n_new = sort_coming(m);
  for (uint32_t i = 0; i < n_new; i++) link_node(m, (uint32_t)m->order[i]);
  renew_touched(m);
  tell_units(m, sink);
}

bool kv_mirror_is_settled(const kv_mirror *m) {
  return m->n_list == 0 && !m->cleared;
}

void kv_mirror_tell_all(kv_mirror *m, uint32_t model, const kv_sink *sink) {
  uint32_t n = 0;
  WEFT_CHECK(kv_mirror_is_settled(m));
  for (uint32_t at = 0; at < m->n_nodes; at++) {
    const mirror_node *node = &m->node[at];
    bool told = node->shown.live && node->shown.model == model && is_unit_end(m, &node->shown) && node->told != NOWHERE;
    if (told && best_twin(m, at) == at) m->order[n++] = order_of(&node->shown, at);
  }
  tell_stored(m, n, sink);
}
