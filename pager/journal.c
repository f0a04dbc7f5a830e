/* SPDX-License-Identifier: MIT */
/* Law: event number n lies at index n & mask of the ring until event n + capacity overwrites it (journal.h). */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "pager/spill.h"

static weft_key128 name_of(const weft_pager *pager, uint32_t node) {
  const pager_node *record = &pager->node[node];
  struct {
    weft_key128 before;
    int32_t rest[WEFT_BLOCK_TOKENS_MAX];
  } bytes;
  size_t n_rest = record->root ? sizeof(weft_key128) : 4 * (size_t)pager->base_tokens;
  bytes.before =
      record->parent == PAGER_NODE_NONE ? pager->model[record->model].fingerprint : pager->journal_name[record->parent];
  memcpy(bytes.rest, pager_tokens(pager, node), n_rest);
  XXH128_hash_t name = XXH3_128bits(&bytes, sizeof bytes.before + n_rest);
  return (weft_key128){.low = name.low64, .high = name.high64};
}

void pager_journal_name(weft_pager *pager, uint32_t node) {
  pager_node_changed(pager, node);
  if (pager->journal != NULL) pager->journal_name[node] = name_of(pager, node);
}

bool pager_journal_name_is_right(const weft_pager *pager, uint32_t node) {
  return pager->journal == NULL || weft_key128_equal(pager->journal_name[node], name_of(pager, node));
}

void pager_journal_content(weft_pager *pager, weft_journal_kind kind, weft_tier tier, uint32_t index, uint32_t node,
                           uint32_t g) {
  pager_node_changed(pager, node);
  if (pager->journal == NULL) return;
  uint32_t model = pager->node[node].model;
  const pager_group *group = &pager->model[model].group[g];
  uint32_t start = node;
  for (uint32_t i = 0; i < group->span; i++) start = pager->node[start].parent;
  weft_journal_event *event = &pager->journal[pager->journal_next & pager->journal_mask];
  event->number = pager->journal_next++;
  event->kind = kind;
  event->model = model;
  event->group = g;
  event->tier = tier;
  event->page = index;
  event->hash = pager->journal_name[node];
  event->parent = pager->journal_name[start];
  event->first_position = pager->node[start].depth << pager->base_shift;
  event->n_tokens = group->layers.block_tokens;
}

/* To be called while the page still names its node. */
void pager_journal_block(weft_pager *pager, weft_journal_kind kind, weft_page page) {
  if (pager->journal == NULL && !pager->watched) return;
  const pager_page *record = &pager->page[page];
  pager_journal_content(pager, kind, WEFT_TIER_POOL, page, record->node, record->group);
}

/* Nothing is left to tell but that nothing is left. */
static void forget_changes(weft_pager *pager) {
  for (uint32_t i = 0; i < pager->n_changed; i++) pager->is_changed[pager->changed[i]] = 0;
  pager->n_changed = 0;
  pager->n_swept = pager->n_sweep = 0;
  pager->cleared = true;
}

void pager_journal_cleared(weft_pager *pager) {
  if (pager->watched) forget_changes(pager);
  if (pager->journal == NULL) return;
  pager->journal[pager->journal_next & pager->journal_mask] =
      (weft_journal_event){.number = pager->journal_next, .kind = WEFT_JOURNAL_CLEARED, .page = WEFT_PAGE_NONE};
  pager->journal_next += 1;
}

uint32_t weft_pager_journal_read(const weft_pager *pager, uint64_t *next, weft_journal_event *out, uint32_t max,
                                 uint64_t *n_missed) {
  uint64_t capacity = pager->journal == NULL ? 0 : pager->journal_mask + 1;
  uint64_t oldest = pager->journal_next > capacity ? pager->journal_next - capacity : 0;
  *n_missed = 0;
  if (*next < oldest) {
    *n_missed = oldest - *next;
    *next = oldest;
  }
  uint32_t n = 0;
  while (n < max && *next < pager->journal_next) {
    out[n++] = pager->journal[*next & pager->journal_mask];
    *next += 1;
  }
  return n;
}

/* ---- changes --------------------------------------------------------------------------------- */

void weft_pager_watch(weft_pager *pager, bool watch) {
  WEFT_CHECK(pager->changed != NULL);
  forget_changes(pager);
  pager->watched = watch;
  if (watch) pager->n_sweep = pager->n_nodes_touched;
}

bool weft_pager_has_changes(const weft_pager *pager) {
  return pager->watched && (pager->cleared || pager->n_changed > 0 || pager->n_swept < pager->n_sweep);
}

uint32_t weft_pager_base_tokens(const weft_pager *pager) {
  return pager->base_tokens;
}

uint32_t weft_pager_nodes_max(const weft_pager *pager) {
  return pager->n_nodes;
}

static void tell_node(const weft_pager *pager, uint32_t node, weft_prefix_change *out, int32_t *tokens) {
  const pager_node *record = &pager->node[node];
  *out = (weft_prefix_change){.node = node, .parent = WEFT_NODE_NONE, .live = record->live};
  memset(out->tier, WEFT_TIER_NOWHERE, sizeof out->tier);
  if (!record->live) return;
  if (record->parent != PAGER_NODE_NONE) out->parent = record->parent;
  out->model = record->model;
  out->depth = record->depth;
  out->root = record->root;
  if (record->root) {
    memcpy(&out->domain, pager_tokens(pager, node), sizeof out->domain);
    return;
  }
  memcpy(tokens, pager_tokens(pager, node), 4 * (size_t)pager->base_tokens);
  const uint32_t *places = pager_places(pager, node);
  for (uint32_t g = 0; g < pager->model[record->model].n_groups; g++) {
    if (pager_place_is_page(places[g])) out->tier[g] = WEFT_TIER_POOL;
    if (pager_place_is_slot(places[g])) out->tier[g] = (uint8_t)pager_spill_reach(pager, places[g]);
  }
}

uint32_t weft_pager_take_changes(weft_pager *pager, weft_prefix_change *out, int32_t *tokens, uint32_t max,
                                 bool *cleared, bool *rest) {
  uint32_t n = 0;
  *cleared = pager->watched && pager->cleared;
  pager->cleared = false;
  while (pager->watched && n < max && (pager->n_changed > 0 || pager->n_swept < pager->n_sweep)) {
    uint32_t node = pager->n_changed > 0 ? pager->changed[--pager->n_changed] : pager->n_swept++;
    bool listed = pager->is_changed[node];
    pager->is_changed[node] = 0;
    if (!listed && !pager->node[node].live) continue;
    tell_node(pager, node, &out[n], tokens + (uint64_t)n * pager->base_tokens);
    n += 1;
  }
  *rest = weft_pager_has_changes(pager);
  return n;
}
