/* SPDX-License-Identifier: MIT */
/* An index that knows a pager from its cache events alone equals the pager's trie, at every quiet moment of
 * thousands of random worlds: with evictions, tiers, moves that fail, windows, states, public prefixes, several
 * models and domains, resets, a reader that comes seldom and takes little, one that forgets all and begins again,
 * and a second index that comes late and begins with what all told units are.
 *
 * What must be told is found by brute force from the law in kv_mirror.h: every end of a unit is asked whether each
 * group has what a row there sees, in each tier, and a unit is told if it lies on the way to such an end. Beside
 * that, what a prompt finds by the pager's own search is never longer than the index says, and equal where no group
 * has a window. */
int pager_model_main(int argc, char **argv);
#define main pager_model_main /* its worlds and their operations are those of prop/pager_model */
#include "tests/prop/pager_model.c"
#undef main

#include "api/events/kv_mirror.h"

enum { UNITS_MAX = 4096, UNIT_TOKENS_MAX = 16, TAKEN = 7 };

/* ---- the index: what a router has ---- */

typedef struct index_unit {
  bool used;
  uint32_t model, n_tokens;
  weft_tier medium;
  kv_name name, before;
  bool has_before, is_private;
  int32_t token[UNIT_TOKENS_MAX];
} index_unit;

typedef struct kv_index {
  index_unit unit[UNITS_MAX];
  uint32_t n;
} kv_index;

typedef struct world {
  mirror *m;
  kv_mirror *events;
  kv_index first, late;
  kv_index *to[2];
  uint32_t n_to;
  kv_names names;
  kv_told_domain told;
  uint32_t unit_tokens[MODELS];
} world;

static struct {
  uint64_t n_stored, n_removed, n_compared, n_units, n_private, n_late, n_cleared, n_tiers, n_prompts, n_twins;
} seen;

static index_unit *find_unit(kv_index *index, uint32_t model, const kv_name *name) {
  for (uint32_t i = 0; i < index->n; i++) {
    index_unit *u = &index->unit[i];
    if (u->model == model && memcmp(&u->name, name, sizeof *name) == 0) return u;
  }
  return NULL;
}

static void take_cleared(void *self, uint32_t model) {
  world *w = self;
  for (uint32_t k = 0; k < w->n_to; k++) {
    kv_index *index = w->to[k];
    uint32_t n = 0;
    for (uint32_t i = 0; i < index->n; i++)
      if (index->unit[i].model != model) index->unit[n++] = index->unit[i];
    index->n = n;
  }
  seen.n_cleared += 1;
}

static void store_unit(world *w, kv_index *index, const kv_chain *chain, uint32_t i) {
  const mirror *m = w->m;
  const kv_name *before = i > 0 ? &chain->name[i - 1] : chain->before;
  index_unit *u = find_unit(index, chain->model, &chain->name[i]);
  REQUIRE(u == NULL || u->medium != chain->medium, "a unit is stored twice in one medium");
  REQUIRE(before == NULL || find_unit(index, chain->model, before) != NULL, "a unit is stored before its parent");
  if (u == NULL) {
    REQUIRE(index->n < UNITS_MAX, "too many units");
    u = &index->unit[index->n++];
  }
  *u = (index_unit){.used = true,
                    .model = chain->model,
                    .medium = chain->medium,
                    .name = chain->name[i],
                    .has_before = before != NULL,
                    .is_private = chain->tokens == NULL,
                    .n_tokens = chain->unit_tokens};
  if (before != NULL) u->before = *before;
  if (chain->tokens != NULL)
    memcpy(u->token, chain->tokens + (size_t)i * chain->unit_tokens, chain->unit_tokens * sizeof *u->token);
}

static void take_stored(void *self, const kv_chain *chain) {
  world *w = self;
  for (uint32_t k = 0; k < w->n_to; k++)
    for (uint32_t i = 0; i < chain->n; i++) store_unit(w, w->to[k], chain, i);
  seen.n_stored += chain->n;
}

/* What has moved to another medium meanwhile stays. */
static void take_removed(void *self, uint32_t model, weft_tier medium, const kv_name *name, uint32_t n) {
  world *w = self;
  const mirror *m = w->m;
  for (uint32_t k = 0; k < w->n_to; k++) {
    kv_index *index = w->to[k];
    for (uint32_t i = 0; i < n; i++) {
      index_unit *u = find_unit(index, model, &name[i]);
      REQUIRE(u != NULL, "a unit is removed that was not stored");
      if (u->medium == medium) *u = index->unit[--index->n];
    }
  }
  seen.n_removed += n;
}

/* ---- what must be told ---- */

static pager_reach reach_of(const weft_pager *p, uint32_t place) {
  if (pager_place_is_page(place)) return PAGER_IN_POOL;
  return pager_place_is_slot(place) ? pager_spill_reach(p, place) : PAGER_NOWHERE;
}

static uint32_t ancestor(const weft_pager *p, uint32_t node, uint32_t depth) {
  while (p->node[node].depth > depth || p->node[node].root) node = p->node[node].parent;
  return node;
}

static pager_reach serves(const weft_pager *p, uint32_t node) {
  const pager_model *model = &p->model[p->node[node].model];
  uint32_t position = p->node[node].depth << p->base_shift;
  pager_reach worst = PAGER_IN_POOL;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    for (uint32_t block = pager_window_first(group, position); block < position >> group->shift; block++) {
      pager_reach reach = reach_of(p, pager_places(p, ancestor(p, node, (block + 1) * group->span))[g]);
      if (reach > worst) worst = reach;
    }
  }
  return worst;
}

static void expect_names(const world *w, const weft_pager *p, uint32_t node, kv_name *out) {
  uint32_t span = p->model[p->node[node].model].block_max / p->base_tokens, depth = p->node[node].depth;
  int32_t tokens[UNIT_TOKENS_MAX];
  kv_name before;
  weft_key128 key;
  uint32_t root = node, at = node;
  while (!p->node[root].root) root = p->node[root].parent;
  memcpy(&key, pager_tokens(p, root), sizeof key);
  for (uint32_t i = span; i-- > 0; at = p->node[at].parent)
    memcpy(tokens + (size_t)i * p->base_tokens, pager_tokens(p, at), p->base_tokens * sizeof *tokens);
  bool first = at == root;
  if (depth > span) expect_names(w, p, ancestor(p, node, depth - span), &before);
  const kv_domain domain = kv_names_domain(&w->names, key);
  kv_names_next(&w->names, &domain, first, depth > span ? &before : NULL, tokens, span * p->base_tokens, out);
}

/* A unit that must be told: the best of the nodes with this name. */
typedef struct expected_unit {
  uint32_t model, node;
  kv_name name;
  pager_reach level;
} expected_unit;

static expected_unit expected[UNITS_MAX];
static uint32_t n_expected;

static void expect_unit(world *w, const weft_pager *p, uint32_t node, pager_reach level) {
  const mirror *m = w->m;
  expected_unit e = {.model = p->node[node].model, .node = node, .level = level};
  expect_names(w, p, node, &e.name);
  for (uint32_t i = 0; i < n_expected; i++) {
    if (expected[i].model != e.model || memcmp(&expected[i].name, &e.name, sizeof e.name) != 0) continue;
    if (level < expected[i].level) expected[i].level = level;
    seen.n_twins += 1;
    return;
  }
  REQUIRE(n_expected < UNITS_MAX, "too many units");
  expected[n_expected++] = e;
}

static void compare_unit(world *w, const weft_pager *p, const expected_unit *e) {
  const mirror *m = w->m;
  uint32_t node = e->node;
  pager_reach level = e->level;
  for (uint32_t k = 0; k < 2; k++) {
    kv_index *index = k == 0 ? &w->first : &w->late;
    index_unit *u = find_unit(index, e->model, &e->name);
    REQUIRE(u != NULL && u->used, "a unit of depth %u, which can be had, is not told", p->node[node].depth);
    REQUIRE((uint32_t)u->medium == (uint32_t)level, "a unit is told in medium %d and is in %d", (int)u->medium,
            (int)level);
    u->used = false; /* seen */
    if (!u->is_private) {
      uint32_t span = u->n_tokens / p->base_tokens, at = node;
      for (uint32_t i = span; i-- > 0; at = p->node[at].parent)
        REQUIRE(memcmp(u->token + (size_t)i * p->base_tokens, pager_tokens(p, at), 4 * (size_t)p->base_tokens) == 0,
                "a unit is told with other tokens");
    }
    seen.n_private += u->is_private;
  }
  seen.n_units += 1;
  seen.n_tiers += level != PAGER_IN_POOL;
}

static void compare(world *w) {
  static pager_reach level[65536];
  const mirror *m = w->m;
  const weft_pager *p = m->pager;
  REQUIRE(p->n_nodes_touched <= 65536, "too many nodes");
  n_expected = 0;
  for (uint32_t i = 0; i < p->n_nodes_touched; i++) level[i] = PAGER_NOWHERE;
  for (uint32_t i = 0; i < p->n_nodes_touched; i++) {
    const pager_node *node = &p->node[i];
    if (!node->live || node->root || (node->depth << p->base_shift) % p->model[node->model].block_max != 0) continue;
    pager_reach reach = serves(p, i);
    for (uint32_t at = i; at != PAGER_NODE_NONE; at = p->node[at].parent)
      if (reach < level[at]) level[at] = reach;
  }
  for (uint32_t i = 0; i < p->n_nodes_touched; i++) {
    const pager_node *node = &p->node[i];
    if (!node->live || node->root || (node->depth << p->base_shift) % p->model[node->model].block_max != 0) continue;
    if (level[i] != PAGER_NOWHERE) expect_unit(w, p, i, level[i]);
  }
  for (uint32_t i = 0; i < n_expected; i++) compare_unit(w, p, &expected[i]);
  for (uint32_t k = 0; k < 2; k++) {
    kv_index *index = k == 0 ? &w->first : &w->late;
    for (uint32_t i = 0; i < index->n; i++) {
      REQUIRE(!index->unit[i].used, "a unit is told that cannot be had");
      index->unit[i].used = true;
    }
  }
  seen.n_compared += 1;
}

/* What a prompt finds, by the pager and by the index. */
static void compare_prompt(world *w) {
  const mirror *m = w->m;
  const history *h = &m->history[below(w->m, HISTORIES)];
  if (h->n == 0 || h->n_public != 0 || m->config.no_prefix_cache) return;
  const weft_key128 domain = {h->domain, h->domain == 0 ? 5 : 4};
  pager_match match = {.root = pager_root_find(m->pager, PAGER_NODE_NONE, h->model, domain)};
  if (match.root == PAGER_NODE_NONE) return;
  const weft_admit args = {.model = h->model, .domain = domain, .tokens = h->token, .n_tokens = h->n, .n_prompt = h->n};
  pager_match_prompt(m->pager, &args, &match);
  const kv_domain how = kv_names_domain(&w->names, domain);
  uint32_t unit = m->block_max[h->model], n = 0;
  kv_name name, before;
  for (; n + unit <= h->n; n += unit, before = name) {
    kv_names_next(&w->names, &how, n == 0, n == 0 ? NULL : &before, h->token + n, unit, &name);
    const index_unit *u = find_unit(&w->first, h->model, &name);
    if (u == NULL || u->medium != WEFT_TIER_POOL) break;
  }
  bool plain = how.is_private || how.salt[0] != 0; /* else a public prefix may have the names of this domain */
  for (uint32_t g = 0; g < m->model[h->model].n_groups; g++)
    plain = plain && m->model[h->model].group[g].window == 0 && m->model[h->model].group[g].state_pages == 0;
  REQUIRE(n >= match.n_hit && (!plain || n == match.n_hit), "a prompt finds %u tokens, and the index says %u",
          match.n_hit, n);
  seen.n_prompts += 1;
}

/* ---- worlds ---- */

static void settle(world *w) {
  const mirror *m = w->m;
  weft_prefix_change change[TAKEN];
  int32_t tokens[TAKEN * BLOCK_MAX];
  bool cleared, rest = true;
  const kv_sink sink = {take_cleared, take_stored, take_removed, w};
  for (uint32_t n_takes = 0; rest; n_takes++) {
    uint32_t n = weft_pager_take_changes(w->m->pager, change, tokens, TAKEN, &cleared, &rest);
    if (cleared) kv_mirror_clear(w->events);
    kv_mirror_apply(w->events, change, tokens, n);
    REQUIRE(n == 0 || !kv_mirror_is_settled(w->events), "a mirror says halfway that it is whole");
    if (n_takes > 2 && below(w->m, 4) == 0) return; /* it is slow: the pager goes on meanwhile */
  }
  kv_mirror_settle(w->events, &sink);
  REQUIRE(kv_mirror_is_settled(w->events), "a mirror is never whole");
  if (below(w->m, 6) == 0) { /* it comes late */
    w->late.n = 0;
    w->to[0] = &w->late;
    w->n_to = 1;
    for (uint32_t i = 0; i < w->m->config.n_models; i++) kv_mirror_tell_all(w->events, i, &sink);
    w->to[0] = &w->first;
    w->n_to = 2;
    seen.n_late += 1;
  }
  compare(w);
  compare_prompt(w);
}

static void open_world(world *w, mirror *m) {
  kv_mirror_model models[MODELS];
  weft_error error;
  for (uint32_t i = 0; i < m->config.n_models; i++) {
    models[i] = (kv_mirror_model){.n_groups = m->model[i].n_groups};
    memcpy(models[i].group, m->model[i].group, sizeof models[i].group);
  }
  w->m = m;
  w->first.n = w->late.n = 0;
  w->to[0] = &w->first;
  w->to[1] = &w->late;
  w->n_to = 2;
  REQUIRE(kv_names_draw(&w->names, &error) == WEFT_OK, "%s", error.text);
  w->told = (kv_told_domain){.domain = {0, 5}, .salt = below(m, 2) == 0 ? "red" : NULL};
  w->names.told = &w->told;
  w->names.n_told = below(m, 2);
  const kv_mirror_config config = {.n_nodes = weft_pager_nodes_max(m->pager),
                                   .base_tokens = weft_pager_base_tokens(m->pager),
                                   .n_tiers = m->config.n_host_pages == 0   ? 1
                                              : m->config.n_file_pages == 0 ? 2
                                                                            : 3,
                                   .model = models,
                                   .n_models = m->config.n_models,
                                   .names = &w->names};
  REQUIRE(kv_mirror_open(&config, &w->events) == WEFT_OK, "no memory");
}

static void play(world *w, mirror *m, uint64_t seed, uint32_t n_ops) {
  *m = (mirror){.seed = seed, .random = seed * 0xD6E8FEB86659FD93ull, .n_ops = n_ops};
  weft_error error;
  make_config(m);
  m->config.changes = true;
  REQUIRE(weft_pager_open(&m->config, &m->pager, &error) == WEFT_OK, "%s", error.text);
  if (below(m, 2) == 0) pager_test_weaken_hash(m->pager, below(m, 6));
  open_world(w, m);
  bool watched = false;
  uint32_t seldom = 1 + below(m, 12);
  for (m->op = 0; m->op < n_ops; m->op++) {
    operate(m);
    read_journal(m);
    follow_payers(m);
    if (!watched || below(m, 1500) == 0) { /* it begins, or begins again with nothing known */
      watched = below(m, 8) == 0;
      weft_pager_watch(m->pager, watched);
      if (watched) kv_mirror_clear(w->events);
    }
    if (watched && below(m, seldom) == 0) settle(w);
  }
  kv_mirror_close(w->events);
  weft_pager_close(m->pager);
}

int main(int argc, char **argv) {
  static mirror m;
  static world w;
  uint32_t n_worlds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : test_amount(100, 150, 30000);
  uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  for (uint32_t i = 0; i < n_worlds; i++) play(&w, &m, first + i, 600);
  printf(
      "%u worlds: %llu units stored, %llu removed, %llu times cleared; compared %llu times, %llu units, %llu private, "
      "%llu in lower tiers, %llu with a name of another; %llu late readers, %llu prompts\n",
      n_worlds, (unsigned long long)seen.n_stored, (unsigned long long)seen.n_removed,
      (unsigned long long)seen.n_cleared, (unsigned long long)seen.n_compared, (unsigned long long)seen.n_units,
      (unsigned long long)seen.n_private, (unsigned long long)seen.n_tiers, (unsigned long long)seen.n_twins,
      (unsigned long long)seen.n_late, (unsigned long long)seen.n_prompts);
  bool all = seen.n_removed > 0 && seen.n_units > 0 && seen.n_private > 0 && seen.n_tiers > 0 && seen.n_late > 0 &&
             seen.n_prompts > 0 && seen.n_twins > 0 && seen.n_cleared > n_worlds;
  return all || argc > 2 ? 0 : 1;
}
