/* SPDX-License-Identifier: MIT */
/* Law: event number n lies at index n & mask of the ring until event n + capacity overwrites it (journal.h). */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "pager/pager_internal.h"

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
  if (pager->journal != NULL) pager->journal_name[node] = name_of(pager, node);
}

bool pager_journal_name_is_right(const weft_pager *pager, uint32_t node) {
  return pager->journal == NULL || weft_key128_equal(pager->journal_name[node], name_of(pager, node));
}

void pager_journal_content(weft_pager *pager, weft_journal_kind kind, weft_tier tier, uint32_t index, uint32_t node,
                           uint32_t g) {
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
  if (pager->journal == NULL) return;
  const pager_page *record = &pager->page[page];
  pager_journal_content(pager, kind, WEFT_TIER_POOL, page, record->node, record->group);
}

void pager_journal_cleared(weft_pager *pager) {
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
