/* SPDX-License-Identifier: MIT */
/* Law: a sequence that publishes holds, in every group, exactly the pages that its nodes name. Where two sequences
 * computed the same block, the node has the page of the first; the second changes over to that page and returns its
 * own. So a sequence that holds a block holds all blocks before it, and eviction can rely on the order in which pages
 * were let go.
 *
 * A promise in a place of a node says that a running sequence will compute this block. A state has no promise of its
 * own: the promise of keys that end with it stands for it (pager_state_is_coming). Publishing the block keeps the
 * promise; the end of the sequence withdraws it. A promise never outlives its sequence, so no request waits for ever.
 */
#include <string.h>

#include "pager/spill.h"

void pager_unpublish(weft_pager *pager, weft_page page) {
  pager_page *record = &pager->page[page];
  if (record->node == PAGER_NODE_NONE) return;
  pager_journal_block(pager, WEFT_JOURNAL_REMOVED, page);
  uint32_t node = record->node;
  pager_places(pager, node)[record->group] = PAGER_PLACE_NONE;
  record->node = PAGER_NODE_NONE;
  record->keep = 0;
  pager_node_unref(pager, node);
}

/* ---- promises -------------------------------------------------------------------------------- */

void pager_announce(weft_pager *pager, weft_seq seq, const weft_admit *args, const pager_match *match) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  uint32_t n_blocks = args->n_tokens >> pager->base_shift, first = s->n_valid >> pager->base_shift;
  uint32_t parent = s->tail, root = PAGER_NODE_NONE;
  pager_hash hash = pager_hash_of(pager, parent);
  s->announced_from = s->announced_end = first;
  for (uint32_t i = first; i < n_blocks; i++) {
    if (pager_domain_changes(pager, parent, s->public_end)) {
      root = pager_root_find(pager, parent, s->model, s->domain);
      if (root == PAGER_NODE_NONE) root = pager_root_create(pager, parent, s->model, s->domain);
      if (root == PAGER_NODE_NONE) break;
      pager->node[root].refs += 1; /* holds the root until a node follows it */
      parent = root;
      hash = pager_hash_of(pager, root);
    }
    const int32_t *tokens = args->tokens + ((uint64_t)i << pager->base_shift);
    if (i < match->n_hashed)
      hash = pager->path_hash[i];
    else
      hash = pager_hash_next(pager, hash, tokens);
    uint32_t node = i < match->n_nodes ? pager->path[i] : pager_node_create(pager, hash, parent, tokens);
    if (node == PAGER_NODE_NONE) break; /* no node is free: fewer followers will wait */
    uint32_t *places = pager_places(pager, node);
    for (uint32_t g = 0; g < model->n_plain; g++) {
      if (((i + 1) & (model->group[g].span - 1)) != 0 || places[g] != PAGER_PLACE_NONE) continue;
      places[g] = PAGER_PLACE_PROMISE | seq;
    }
    s->announced_tail = parent = node;
    s->announced_end = i + 1;
  }
  if (s->announced_tail != PAGER_NODE_NONE) pager->node[s->announced_tail].refs += 1;
  pager_node_unref(pager, root);
}

static void withdraw_promises(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  if (s->announced_tail == PAGER_NODE_NONE) return;
  uint32_t node = s->announced_tail;
  while (pager->node[node].depth > s->announced_from) {
    uint32_t *places = pager_places(pager, node);
    for (uint32_t g = 0; g < pager->n_places; g++)
      if (places[g] == (PAGER_PLACE_PROMISE | seq)) places[g] = PAGER_PLACE_NONE;
    node = pager->node[node].parent;
  }
  pager_node_unref(pager, s->announced_tail);
  s->announced_tail = PAGER_NODE_NONE;
}

void pager_detach(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  withdraw_promises(pager, seq);
  if (s->tail != PAGER_NODE_NONE) pager_node_unref(pager, s->tail);
  s->tail = PAGER_NODE_NONE;
  s->public_end = 0; /* what it computes now is not shared */
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static inline void publish_page(weft_pager *pager, const pager_seq *s, uint32_t node, uint32_t group, uint32_t block) {
  uint32_t *place = &pager_places(pager, node)[group];
  weft_page *entry = &s->table[pager->model[s->model].group[group].table_offset + block];
  if (pager_place_is_page(*place)) {
    WEFT_CHECK(*place != *entry);
    pager_block_pin(pager, *place, pager_payer(s, &pager->model[s->model].group[group], block),
                    pager_group_id(s->model, group));
    pager_block_unpin(pager, *entry, PAGER_WARM);
    *entry = *place;
    pager->stats.n_duplicates += 1;
    return;
  }
  pager_page *record = &pager->page[*entry];
  WEFT_CHECK(record->state == PAGER_PINNED && record->node == PAGER_NODE_NONE);
  if (pager_place_is_slot(*place)) pager_spill_forget(pager, *place); /* the node is the tail: it stays */
  *place = *entry;
  record->node = node & PAGER_NODE_NONE;
  record->group = group & (WEFT_GROUPS_MAX - 1);
  pager->node[node].refs += 1;
  pager->stats.n_published += 1;
  pager_journal_block(pager, WEFT_JOURNAL_STORED, *entry);
}

static uint32_t node_find_or_create(weft_pager *pager, uint32_t parent, const int32_t *tokens) {
  pager_hash hash = pager_hash_next(pager, pager_hash_of(pager, parent), tokens);
  uint32_t node = pager_node_find(pager, hash, parent, tokens);
  if (node != PAGER_NODE_NONE) return node;
  pager_node_make_room(pager);
  return pager_node_create(pager, hash, parent, tokens);
}

static void seq_move_tail(weft_pager *pager, pager_seq *s, uint32_t node) {
  pager->node[node].refs += 1;
  pager_node_unref(pager, s->tail);
  s->tail = node;
}

/* One more base block of the sequence is valid. False: no node could be had for it, so the sequence left the index. */
static bool publish_block(weft_pager *pager, weft_seq seq, const int32_t *tokens) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  uint32_t node = s->tail;
  if (pager_domain_changes(pager, node, s->public_end)) {
    node = pager_root_make(pager, node, s->model, s->domain);
    if (node != PAGER_NODE_NONE) seq_move_tail(pager, s, node);
  }
  if (node != PAGER_NODE_NONE) node = node_find_or_create(pager, node, tokens);
  if (node == PAGER_NODE_NONE) {
    pager_detach(pager, seq);
    return false;
  }
  seq_move_tail(pager, s, node);
  pager_node_raise(pager, node, s->retention);
  uint32_t depth = pager->node[node].depth;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    if ((depth & (model->group[g].span - 1)) != 0) continue;
    uint32_t block = (depth >> (model->group[g].shift - pager->base_shift)) - 1;
    if (g >= model->n_plain && pager_table(pager, seq, g)[block] == WEFT_PAGE_NONE) continue; /* no state was taken */
    publish_page(pager, s, node, g, block);
  }
  if (pager->node[node].boundary) pager_boundary_set(pager, seq, depth << pager->base_shift);
  if (s->announced_tail == node) { /* all promises are kept, so none has to be withdrawn */
    s->announced_tail = PAGER_NODE_NONE;
    pager_node_unref(pager, node);
  } else if (depth >= s->announced_end) {
    withdraw_promises(pager, seq);
  }
  return true;
}

void pager_publish(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n) {
  const uint32_t base = pager->base_tokens;
  int32_t *pending = pager->pending + (uint64_t)seq * base;
  uint32_t n_pending = pager->seq[seq].n_valid & (base - 1);
  while (n > 0) {
    uint32_t n_now = n < base - n_pending ? n : base - n_pending;
    const int32_t *block = tokens;
    if (n_now < base) {
      memcpy(pending + n_pending, tokens, 4 * (size_t)n_now);
      block = pending;
    }
    n_pending += n_now;
    tokens += n_now;
    n -= n_now;
    if (n_pending < base) return;
    if (!publish_block(pager, seq, block)) return;
    n_pending = 0;
  }
}
