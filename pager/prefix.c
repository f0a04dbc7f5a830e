/* SPDX-License-Identifier: MIT */
/* Law: the hash only finds a candidate; its parent and its tokens prove it. A root is proven by its parent, its model
 * and its whole domain. So which prefix a node stands for is exact, whatever the hash does.
 *
 * The index is a hash table with open addressing. Its buckets are cache lines:
 *   entry[15]  a tag (8 bits of the hash, never 0) and the number of a node + 1; 0: empty
 *   overflow   how many entries lie in later lines because this line was full when they were inserted
 * A search ends at the first line without overflow, so an entry can be erased without leaving a tombstone.
 *
 * The hash takes a secret that the pager draws when it opens. Tokens come from users: with a hash that they can
 * compute, one tenant could choose prompts whose nodes crowd a few lines, and every search of any tenant whose hash
 * falls among those lines would read thousands of lines. pager_secret_draw makes the secret. The secret never leaves
 * the process; the journal has names of its own. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/random.h"
#include "pager/spill.h"

typedef uint32_t vec4 __attribute__((vector_size(16)));

/* ---- hashes ---------------------------------------------------------------------------------- */

static pager_hash hash_bytes(const weft_pager *pager, const void *bytes, size_t n_bytes) {
  XXH128_hash_t full = XXH3_128bits_withSecret(bytes, n_bytes, pager->secret, sizeof pager->secret);
  return (pager_hash){.low = full.low64 & pager->hash_mask.low, .high = (uint32_t)full.high64 & pager->hash_mask.high};
}

/* The hash of a block takes the hash of everything before the block, then the tokens of the block. */
static inline pager_hash chain_hash(const weft_pager *pager, pager_hash parent, const int32_t *tokens,
                                    uint32_t n_tokens) {
  unsigned char bytes[12 + 4 * WEFT_BLOCK_TOKENS_MAX];
  memcpy(bytes, &parent.low, 8);
  memcpy(bytes + 8, &parent.high, 4);
  memcpy(bytes + 12, tokens, 4 * (size_t)n_tokens);
  return hash_bytes(pager, bytes, 12 + 4 * (size_t)n_tokens);
}

pager_hash pager_hash_next(const weft_pager *pager, pager_hash parent, const int32_t *tokens) {
  if (pager->base_tokens == 16) return chain_hash(pager, parent, tokens, 16);
  return chain_hash(pager, parent, tokens, pager->base_tokens);
}

static pager_hash root_hash(const weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain) {
  weft_key128 from = pager->model[model].fingerprint;
  if (parent != PAGER_NODE_NONE) {
    pager_hash hash = pager_hash_of(pager, parent);
    from = (weft_key128){hash.low, hash.high};
  }
  uint64_t key[4] = {from.low, from.high, domain.low, domain.high};
  return hash_bytes(pager, key, sizeof key);
}

pager_hash pager_hash_of(const weft_pager *pager, uint32_t node) {
  const uint32_t *hash = pager->node[node].hash;
  return (pager_hash){.low = hash[0] | (uint64_t)hash[1] << 32, .high = hash[2]};
}

weft_status pager_secret_draw(weft_pager *pager, uint64_t seed, weft_error *error) {
  _Static_assert(sizeof pager->secret >= XXH3_SECRET_SIZE_MIN, "the hash takes the whole secret");
  if (seed == 0) {
    size_t n_bytes = sizeof pager->secret;
    if (getrandom(pager->secret, n_bytes, 0) == (ssize_t)n_bytes) return WEFT_OK;
    return weft_fail(error, WEFT_E_IO, "pager: the system gave no random bytes for the secret of the prefix index: %s",
                     strerror(errno));
  }
  for (uint32_t i = 0; i < PAGER_SECRET_WORDS; i++)
    pager->secret[i] = weft_mix64(seed + (i + 1) * UINT64_C(0x9E3779B97F4A7C15));
  return WEFT_OK;
}

void pager_test_weaken_hash(weft_pager *pager, uint32_t n_bits) {
  WEFT_CHECK(n_bits < 64 && pager->n_nodes_live == 0);
  pager->hash_mask = (pager_hash){.low = n_bits == 0 ? 0 : ~(UINT64_MAX >> n_bits), .high = 0};
}

/* ---- the index ------------------------------------------------------------------------------- */

static inline uint32_t home_line(const weft_pager *pager, pager_hash hash) {
  return (uint32_t)(((hash.low >> 32) * pager->n_lines) >> 32);
}

static inline uint32_t tag_of(pager_hash hash) {
  uint32_t tag = (uint32_t)hash.low & 0xFF;
  return tag == 0 ? 1 : tag;
}

static inline uint32_t *line_at(const weft_pager *pager, uint32_t line) {
  return pager->line + (uint64_t)line * PAGER_LINE_WORDS;
}

static inline uint32_t line_after(const weft_pager *pager, uint32_t line) {
  return line + 1 == pager->n_lines ? 0 : line + 1;
}

/* Bit i is set where entry i has the tag. The overflow count is below 2^24, so it looks like an entry with tag 0, which
 * no hash has. */
static inline uint32_t line_matches(const uint32_t *line, uint32_t tag) {
  const vec4 *part = (const vec4 *)(const void *)line;
  const vec4 wanted = {tag, tag, tag, tag};
  vec4 hit = (vec4)((part[0] >> 24) == wanted) & (vec4){1u << 0, 1u << 1, 1u << 2, 1u << 3};
  hit |= (vec4)((part[1] >> 24) == wanted) & (vec4){1u << 4, 1u << 5, 1u << 6, 1u << 7};
  hit |= (vec4)((part[2] >> 24) == wanted) & (vec4){1u << 8, 1u << 9, 1u << 10, 1u << 11};
  hit |= (vec4)((part[3] >> 24) == wanted) & (vec4){1u << 12, 1u << 13, 1u << 14, 1u << 15};
  return hit[0] | hit[1] | hit[2] | hit[3];
}

static inline uint32_t entry_node(uint32_t entry) {
  return (entry & 0xFFFFFFu) - 1;
}

static void index_insert(weft_pager *pager, pager_hash hash, uint32_t node) {
  uint32_t at = home_line(pager, hash);
  for (uint32_t i = 0; i < pager->n_lines; i++, at = line_after(pager, at)) {
    uint32_t *line = line_at(pager, at);
    for (uint32_t entry = 0; entry < PAGER_LINE_ENTRIES; entry++) {
      if (line[entry] != 0) continue;
      line[entry] = tag_of(hash) << 24 | (node + 1);
      return;
    }
    line[PAGER_LINE_ENTRIES] += 1;
  }
  WEFT_CHECK(!"the index has more entries than nodes");
}

static void index_erase(weft_pager *pager, pager_hash hash, uint32_t node) {
  uint32_t at = home_line(pager, hash), wanted = tag_of(hash) << 24 | (node + 1);
  for (uint32_t i = 0; i < pager->n_lines; i++, at = line_after(pager, at)) {
    uint32_t *line = line_at(pager, at);
    for (uint32_t hits = line_matches(line, tag_of(hash)); hits != 0; hits &= hits - 1) {
      uint32_t entry = (uint32_t)__builtin_ctz(hits);
      if (line[entry] != wanted) continue;
      line[entry] = 0;
      return;
    }
    WEFT_CHECK(line[PAGER_LINE_ENTRIES] != 0);
    line[PAGER_LINE_ENTRIES] -= 1;
  }
  WEFT_CHECK(!"a node was not in the index");
}

static bool node_is(const weft_pager *pager, uint32_t node, uint32_t parent, const int32_t *tokens) {
  const pager_node *record = &pager->node[node];
  if (record->parent != parent || record->root) return false;
  size_t n_bytes = 4 * (size_t)pager->base_tokens;
  if (n_bytes == 64) return memcmp(pager_tokens(pager, node), tokens, 64) == 0;
  return memcmp(pager_tokens(pager, node), tokens, n_bytes) == 0;
}

uint32_t pager_node_find(const weft_pager *pager, pager_hash hash, uint32_t parent, const int32_t *tokens) {
  uint32_t at = home_line(pager, hash);
  for (uint32_t i = 0; i < pager->n_lines; i++, at = line_after(pager, at)) {
    const uint32_t *line = line_at(pager, at);
    for (uint32_t hits = line_matches(line, tag_of(hash)); hits != 0; hits &= hits - 1) {
      uint32_t node = entry_node(line[__builtin_ctz(hits)]);
      if (node_is(pager, node, parent, tokens)) return node;
    }
    if (line[PAGER_LINE_ENTRIES] == 0) break;
  }
  return PAGER_NODE_NONE;
}

uint32_t pager_root_find(const weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain) {
  pager_hash hash = root_hash(pager, parent, model, domain);
  uint32_t at = home_line(pager, hash);
  for (uint32_t i = 0; i < pager->n_lines; i++, at = line_after(pager, at)) {
    const uint32_t *line = line_at(pager, at);
    for (uint32_t hits = line_matches(line, tag_of(hash)); hits != 0; hits &= hits - 1) {
      uint32_t node = entry_node(line[__builtin_ctz(hits)]);
      const pager_node *record = &pager->node[node];
      if (!record->root || record->model != model || record->parent != parent) continue;
      if (memcmp(pager_tokens(pager, node), &domain, sizeof domain) == 0) return node;
    }
    if (line[PAGER_LINE_ENTRIES] == 0) break;
  }
  return PAGER_NODE_NONE;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static uint32_t node_take(weft_pager *pager, pager_hash hash) {
  uint32_t node = pager->free_node;
  if (node != PAGER_NODE_NONE) {
    pager->free_node = pager->node[node].parent;
  } else if (pager->n_nodes_touched < pager->n_nodes) {
    node = pager->n_nodes_touched++;
  } else {
    return PAGER_NODE_NONE;
  }
  pager->n_nodes_live += 1;
  if (pager->told != NULL) pager->told[node] = 0; /* nothing was decided of this one */
  pager->node[node] = (pager_node){
      .hash = {(uint32_t)hash.low, (uint32_t)(hash.low >> 32), hash.high}, .parent = PAGER_NODE_NONE, .live = 1};
  uint32_t *places = pager_places(pager, node);
  for (uint32_t i = 0; i < pager->n_places; i++) places[i] = PAGER_PLACE_NONE;
  index_insert(pager, hash, node);
  return node;
}

static bool node_is_free(const weft_pager *pager) {
  return pager->free_node != PAGER_NODE_NONE || pager->n_nodes_touched < pager->n_nodes;
}

void pager_node_make_room(weft_pager *pager) {
  for (uint32_t i = 0; !node_is_free(pager) && i < PAGER_NODE_EVICTIONS_MAX; i++) {
    if (!pager_evict_one(pager)) return;
  }
}

uint32_t pager_root_create(weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain) {
  uint32_t node = node_take(pager, root_hash(pager, parent, model, domain));
  if (node == PAGER_NODE_NONE) return node;
  pager_node *record = &pager->node[node];
  record->model = model & (WEFT_MODELS_MAX - 1);
  record->root = 1;
  record->parent = parent;
  if (parent != PAGER_NODE_NONE) {
    record->depth = pager->node[parent].depth;
    pager->node[parent].refs += 1;
  }
  memcpy(pager->node_tokens + (uint64_t)node * pager->node_stride, &domain, sizeof domain);
  pager_journal_name(pager, node);
  return node;
}

uint32_t pager_root_make(weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain) {
  uint32_t node = pager_root_find(pager, parent, model, domain);
  if (node != PAGER_NODE_NONE) return node;
  pager_node_make_room(pager);
  return pager_root_create(pager, parent, model, domain);
}

uint32_t pager_node_create(weft_pager *pager, pager_hash hash, uint32_t parent, const int32_t *tokens) {
  uint32_t node = node_take(pager, hash);
  if (node == PAGER_NODE_NONE) return node;
  pager_node *record = &pager->node[node];
  record->parent = parent;
  record->model = pager->node[parent].model;
  record->depth = (pager->node[parent].depth + 1) & PAGER_DEPTH_MAX;
  pager->node[parent].refs += 1;
  memcpy(pager->node_tokens + (uint64_t)node * pager->node_stride, tokens, 4 * (size_t)pager->base_tokens);
  pager_journal_name(pager, node);
  return node;
}

void pager_node_unref(weft_pager *pager, uint32_t node) {
  while (node != PAGER_NODE_NONE) {
    pager_node *record = &pager->node[node];
    WEFT_CHECK(record->live && record->refs != 0);
    if (--record->refs != 0) return;
    index_erase(pager, pager_hash_of(pager, node), node);
    uint32_t parent = record->parent;
    pager_node_changed(pager, node);
    record->live = 0;
    record->parent = pager->free_node;
    pager->free_node = node;
    pager->n_nodes_live -= 1;
    node = parent;
  }
}

void pager_node_raise(weft_pager *pager, uint32_t node, uint32_t worth) {
  for (; node != PAGER_NODE_NONE && pager->node[node].worth < worth; node = pager->node[node].parent)
    pager->node[node].worth = worth & 0xFF;
}

void pager_index_reset(weft_pager *pager) {
  memset(pager->line, 0, (uint64_t)pager->n_lines * PAGER_LINE_WORDS * sizeof *pager->line);
  memset(pager->node, 0, (uint64_t)pager->n_nodes_touched * sizeof *pager->node);
  pager->free_node = PAGER_NODE_NONE;
  pager->n_nodes_touched = pager->n_nodes_live = 0;
}

/* ---- the longest match ----------------------------------------------------------------------- */

/* The first node in the home line with the tag of the hash: nearly always the node of the block. */
static uint32_t guess_node(const weft_pager *pager, pager_hash hash) {
  const uint32_t *line = line_at(pager, home_line(pager, hash));
  uint32_t hits = line_matches(line, tag_of(hash));
  return hits == 0 ? PAGER_NODE_NONE : entry_node(line[__builtin_ctz(hits)]);
}

/* Follows the prompt from a root, beginning with base block n_nodes. Computing hashes needs no memory of the index, so
 * a whole batch is hashed first; then its lines, and after them its nodes, are fetched at the same time. */
static void match_nodes(weft_pager *pager, uint32_t root, const int32_t *tokens, uint32_t n_blocks,
                        pager_match *match) {
  pager_hash hash = pager_hash_of(pager, root);
  uint32_t parent = root, step = pager->base_tokens, found[PAGER_MATCH_BATCH];
  for (uint32_t start = match->n_nodes; start < n_blocks; start += PAGER_MATCH_BATCH) {
    uint32_t n = n_blocks - start < PAGER_MATCH_BATCH ? n_blocks - start : PAGER_MATCH_BATCH;
    const int32_t *batch = tokens + (uint64_t)start * step;
    for (uint32_t i = 0; i < n; i++) {
      hash = pager_hash_next(pager, hash, batch + (uint64_t)i * step);
      pager->path_hash[start + i] = hash;
      __builtin_prefetch(line_at(pager, home_line(pager, hash)));
    }
    match->n_hashed = start + n;
    for (uint32_t i = 0; i < n; i++) {
      found[i] = guess_node(pager, pager->path_hash[start + i]);
      if (found[i] == PAGER_NODE_NONE) continue;
      __builtin_prefetch(&pager->node[found[i]]);
      __builtin_prefetch(pager_tokens(pager, found[i]));
      __builtin_prefetch(pager_places(pager, found[i]));
    }
    for (uint32_t i = 0; i < n; i++) {
      const int32_t *block = batch + (uint64_t)i * step;
      uint32_t node = found[i];
      if (node == PAGER_NODE_NONE || !node_is(pager, node, parent, block))
        node = pager_node_find(pager, pager->path_hash[start + i], parent, block);
      if (node == PAGER_NODE_NONE) return;
      pager->path[match->n_nodes++] = parent = node;
    }
  }
}

/* How many adjacent blocks of one group, up to the one that ends at the present node, can be had from each tier. */
typedef struct group_run {
  uint32_t reach[PAGER_NOWHERE]; /* from the pool; the pool or host memory; these or the file */
  uint32_t promised;             /* the same, promised blocks included */
} group_run;

/* Moves the ends of the match to `position`, if every group can serve a hit that ends there: from the pool, from the
 * pool and lower tiers, and when all promises are kept. */
static void extend_match(const pager_model *model, const group_run *runs, uint32_t position, pager_match *match) {
  bool pool = true, host = true, file = true;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    uint32_t need = (position >> group->shift) - pager_window_first(group, position);
    if (runs[g].promised < need) return;
    pool = pool && runs[g].reach[PAGER_IN_POOL] >= need;
    host = host && runs[g].reach[PAGER_IN_HOST] >= need;
    file = file && runs[g].reach[PAGER_IN_FILE] >= need;
  }
  match->n_promised = position;
  if (file) match->n_filed = position;
  if (host) match->n_stored = position;
  if (pool) match->n_hit = position;
}

static inline pager_reach place_reach(const weft_pager *pager, uint32_t place) {
  if (pager_place_is_page(place)) return PAGER_IN_POOL;
  return pager_place_is_slot(place) ? pager_spill_reach(pager, place) : PAGER_NOWHERE;
}

/* A sequence that has promised a block which ends with base block `end`, and will be there; NONE: there is none. */
static weft_seq promiser_at(const pager_model *model, const uint32_t *places, uint32_t end) {
  for (uint32_t g = 0; g < model->n_plain; g++)
    if ((end & (model->group[g].span - 1)) == 0 && pager_place_is_promise(places[g]))
      return places[g] & ~PAGER_PLACE_PROMISE;
  return WEFT_SEQ_NONE;
}

/* Counts of the groups of states at a node that ends with base block `end`. A state can be had, too, where a block that
 * ends with it is promised by a sequence that will have the state. */
static void match_states(const weft_pager *pager, const pager_model *model, const uint32_t *places, uint32_t end,
                         group_run *runs) {
  weft_seq promiser = promiser_at(model, places, end);
  for (uint32_t g = model->n_plain; g < model->n_groups; g++) {
    if ((end & (model->group[g].span - 1)) != 0) continue;
    pager_reach reach = place_reach(pager, places[g]);
    bool any = reach != PAGER_NOWHERE ||
               (promiser != WEFT_SEQ_NONE && pager_state_is_coming(pager, promiser, g, end << pager->base_shift));
    for (uint32_t tier = 0; tier < PAGER_NOWHERE; tier++) runs[g].reach[tier] = reach <= tier;
    runs[g].promised = any;
  }
}

/* How far a hit can reach. It needs, of every group, all blocks that a row at its end sees, so the group that can serve
 * least decides. */
static void match_groups(const weft_pager *pager, const pager_model *model, uint32_t limit, pager_match *match) {
  group_run runs[WEFT_GROUPS_MAX] = {{{0}, 0}};
  const uint32_t n_plain = model->n_plain;
  const bool has_states = pager_has_states(model);
  match->n_hit = match->n_stored = match->n_filed = match->n_promised = 0;
  for (uint32_t i = 0; i < match->n_nodes; i++) {
    const uint32_t *places = pager_places(pager, pager->path[i]);
    for (uint32_t g = 0; g < n_plain; g++) {
      if (((i + 1) & (model->group[g].span - 1)) != 0) continue;
      pager_reach reach = place_reach(pager, places[g]);
      bool any = reach != PAGER_NOWHERE || pager_place_is_promise(places[g]);
      for (uint32_t tier = 0; tier < PAGER_NOWHERE; tier++)
        runs[g].reach[tier] = reach <= tier ? runs[g].reach[tier] + 1 : 0;
      runs[g].promised = any ? runs[g].promised + 1 : 0;
      if (runs[g].promised == 0 && model->group[g].layers.window == 0) return;
    }
    if (has_states) match_states(pager, model, places, i + 1, runs);
    uint32_t position = (i + 1) << pager->base_shift;
    if (position > limit) return;
    if ((position & (model->block_max - 1)) != 0) continue;
    extend_match(model, runs, position, match);
  }
}

/* The sequence that computes the last block missing up to `position`. It computes all blocks before that, too. */
static weft_seq last_promiser(const weft_pager *pager, const pager_model *model, uint32_t position) {
  const uint32_t *last = pager_places(pager, pager->path[(position >> pager->base_shift) - 1]);
  for (uint32_t g = model->n_plain; g < model->n_groups; g++)
    if (place_reach(pager, last[g]) == PAGER_NOWHERE) return promiser_at(model, last, position >> pager->base_shift);
  for (uint32_t end = position >> pager->base_shift; end > 0; end--) {
    const uint32_t *places = pager_places(pager, pager->path[end - 1]);
    for (uint32_t g = 0; g < model->n_groups; g++) {
      const pager_group *group = &model->group[g];
      if ((end & (group->span - 1)) != 0 || !pager_place_is_promise(places[g])) continue;
      if (end / group->span - 1 < pager_window_first(group, position)) continue;
      return places[g] & ~PAGER_PLACE_PROMISE;
    }
  }
  return WEFT_SEQ_NONE;
}

void pager_match_prompt(weft_pager *pager, const weft_admit *args, pager_match *match) {
  const pager_model *model = &pager->model[args->model];
  uint32_t n_blocks = args->n_tokens >> pager->base_shift, n_public = match->public_end;
  match->n_nodes = match->n_hashed = 0;
  match_nodes(pager, match->root, args->tokens, n_public != 0 ? n_public : n_blocks, match);
  if (n_public != 0 && match->n_nodes == n_public) {
    uint32_t root = pager_root_find(pager, pager->path[n_public - 1], args->model, args->domain);
    if (root != PAGER_NODE_NONE) match_nodes(pager, root, args->tokens, n_blocks, match);
  }
  match_groups(pager, model, args->n_tokens - args->n_keep_rows, match);
  match->promiser = WEFT_SEQ_NONE;
  if (match->n_promised > match->n_filed) match->promiser = last_promiser(pager, model, match->n_promised);
}

/* ---- check ----------------------------------------------------------------------------------- */

/* True: the entry's node is live and a search for its hash finds this line. */
static bool entry_check(const weft_pager *pager, uint32_t at, uint32_t entry, weft_error *error) {
  uint32_t node = entry_node(entry);
  if (node >= pager->n_nodes_touched || !pager->node[node].live) {
    weft_fail(error, WEFT_E_INVALID, "index: line %u names node %u, which is not live", at, node);
    return false;
  }
  pager_hash hash = pager_hash_of(pager, node);
  if (entry >> 24 != tag_of(hash)) {
    weft_fail(error, WEFT_E_INVALID, "index: node %u has the wrong tag", node);
    return false;
  }
  for (uint32_t line = home_line(pager, hash); line != at; line = line_after(pager, line)) {
    if (line_at(pager, line)[PAGER_LINE_ENTRIES] != 0) continue;
    weft_fail(error, WEFT_E_INVALID, "index: node %u cannot be reached from its line", node);
    return false;
  }
  return true;
}

bool pager_index_check(const weft_pager *pager, weft_error *error) {
  uint64_t n_entries = 0, n_passed = 0, n_overflow = 0;
  for (uint32_t at = 0; at < pager->n_lines; at++) {
    const uint32_t *line = line_at(pager, at);
    n_overflow += line[PAGER_LINE_ENTRIES];
    for (uint32_t i = 0; i < PAGER_LINE_ENTRIES; i++) {
      if (line[i] == 0) continue;
      if (!entry_check(pager, at, line[i], error)) return false;
      uint32_t home = home_line(pager, pager_hash_of(pager, entry_node(line[i])));
      n_passed += at >= home ? at - home : at + pager->n_lines - home;
      n_entries += 1;
    }
  }
  if (n_entries != pager->n_nodes_live || n_overflow != n_passed) {
    weft_fail(error, WEFT_E_INVALID, "index: %llu entries for %u nodes, overflow %llu for %llu",
              (unsigned long long)n_entries, pager->n_nodes_live, (unsigned long long)n_overflow,
              (unsigned long long)n_passed);
    return false;
  }
  return true;
}
