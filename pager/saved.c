/* SPDX-License-Identifier: MIT */
/* While the index is told, told[node] says what was decided of a node: 0 nothing yet, NOT_TOLD, or its number + 1. It
 * is decided at the root of the node's domain, once for each node; a node that is made meanwhile begins with 0, so that
 * a number which is used again never stands for the node that had it before. Nodes of a public prefix are told with the
 * first prefix that needs them. */
#include "pager/saved.h"

#include <string.h>

#include "pager/spill.h"

enum { LOOK_MAX = 4096, PASS_MAX = 1 << 16 }; /* slots, and pages, that one call looks at */

#define NOT_TOLD UINT32_MAX

static weft_key128 domain_of(const weft_pager *pager, uint32_t root) {
  weft_key128 domain;
  memcpy(&domain, pager_tokens(pager, root), sizeof domain);
  return domain;
}

/* The root of the domain that the node is in. */
static uint32_t root_of(const weft_pager *pager, uint32_t node) {
  while (!pager->node[node].root) node = pager->node[node].parent;
  return node;
}

static bool rule_keeps(const weft_pager *pager, const weft_domain_rule *rule, uint32_t root) {
  weft_key128 domain = domain_of(pager, root);
  return weft_key128_equal(domain, WEFT_DOMAIN_PUBLIC) || rule->keeps(rule->self, domain);
}

/* ---- telling --------------------------------------------------------------------------------- */

void weft_pager_save_begin(weft_pager *pager, const weft_domain_rule *rule) {
  WEFT_CHECK(pager->told != NULL);
  memset(pager->told, 0, (uint64_t)pager->n_nodes * sizeof *pager->told);
  pager->n_told = pager->told_slot = 0;
  pager->tells = *rule;
}

/* Whether blocks of the node are told. What was not decided before becomes so for it and all nodes up to its root, if
 * they are not. */
static bool node_is_kept(weft_pager *pager, uint32_t node) {
  uint32_t at = node;
  while (pager->told[at] == 0 && !pager->node[at].root) at = pager->node[at].parent;
  if (pager->told[at] != 0) {
    if (pager->told[at] != NOT_TOLD) return true;
  } else if (rule_keeps(pager, &pager->tells, at)) {
    return true;
  }
  for (uint32_t n = node;; n = pager->node[n].parent) {
    pager->told[n] = NOT_TOLD;
    if (n == at) return false;
  }
}

static void tell_one(weft_pager *pager, uint32_t node, weft_saved_part *part, uint32_t at) {
  const pager_node *record = &pager->node[node];
  weft_saved_node *out = &part->node[at];
  *out = (weft_saved_node){.parent = WEFT_NODE_NONE, .model = record->model, .root = record->root};
  if (record->parent != PAGER_NODE_NONE) out->parent = pager->told[record->parent] - 1;
  if (record->root)
    out->domain = domain_of(pager, node);
  else
    memcpy(part->tokens + (uint64_t)at * pager->base_tokens, pager_tokens(pager, node),
           pager->base_tokens * sizeof *part->tokens);
}

/* Tells the node and what it hangs on, as far as the part has room, the first ones first. True: all of it is told. */
static bool tell_chain(weft_pager *pager, uint32_t node, weft_saved_part *part) {
  uint32_t n = 0, room = part->nodes_max - part->n_nodes;
  for (uint32_t at = node; at != PAGER_NODE_NONE && pager->told[at] == 0; at = pager->node[at].parent) n += 1;
  bool whole = n <= room;
  for (; n > room; n--) node = pager->node[node].parent;
  for (uint32_t at = node, i = n; i-- > 0; at = pager->node[at].parent) pager->told[at] = pager->n_told + i + 1;
  for (uint32_t at = node, i = n; i-- > 0; at = pager->node[at].parent) tell_one(pager, at, part, part->n_nodes + i);
  part->n_nodes += n;
  pager->n_told += n;
  return whole;
}

/* True: the slot needs no more telling. */
static bool tell_slot(weft_pager *pager, uint32_t slot, weft_saved_part *part) {
  uint32_t node, group;
  if (!pager_file_content(pager, slot, &node, &group) || !node_is_kept(pager, node)) return true;
  uint32_t n = pager_group_pages(&pager->model[pager->node[node].model].group[group]);
  if (part->n_blocks == part->blocks_max || n > part->slots_max - part->n_slots) return false;
  if (!tell_chain(pager, node, part)) return false;
  part->block[part->n_blocks++] = (weft_saved_block){.node = pager->told[node] - 1, .group = group, .n_slots = n};
  part->n_slots += pager_file_slots(pager, slot, part->slot + part->n_slots);
  return true;
}

bool weft_pager_save_next(weft_pager *pager, weft_saved_part *part) {
  uint32_t n_file = pager->n_slots - pager->n_host, end = n_file;
  WEFT_CHECK(part->nodes_max > 0 && part->blocks_max > 0 && part->slots_max >= WEFT_STATE_PAGES_MAX);
  part->n_nodes = part->n_blocks = part->n_slots = 0;
  if (end - pager->told_slot > LOOK_MAX) end = pager->told_slot + LOOK_MAX;
  while (pager->told_slot < end && tell_slot(pager, pager->told_slot, part)) pager->told_slot += 1;
  return pager->told_slot < n_file;
}

/* ---- down to the file ------------------------------------------------------------------------ */

uint32_t weft_pager_put_down(weft_pager *pager, const weft_domain_rule *rule, uint32_t max) {
  uint32_t n = 0, n_seen = 0;
  pager_sink_all(pager);
  for (uint32_t list = pager->n_pages + PAGER_WARM; list < pager->n_pages + PAGER_N_LISTS; list++) {
    weft_page next, page = pager->page[list].next;
    for (; page != list; page = next) {
      next = pager->page[page].next;
      if (n == max || ++n_seen > PASS_MAX) return n;
      if (!rule_keeps(pager, rule, root_of(pager, pager->page[page].node))) continue;
      if (!pager_spill_has_room(pager, pager_block_pages(pager, page))) return n;
      if (!pager_block_sink(pager, page)) continue; /* it never goes */
      pager_sink_all(pager);
      n += 1;
    }
  }
  return n;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static bool has_free_node(const weft_pager *pager) {
  return pager->free_node != PAGER_NODE_NONE || pager->n_nodes_touched < pager->n_nodes;
}

static uint32_t adopt_root(weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain) {
  bool below = parent != PAGER_NODE_NONE;
  if (below && (pager->node[parent].root || pager->node[parent].model != model)) return PAGER_NODE_NONE;
  if (below && weft_key128_equal(domain, WEFT_DOMAIN_PUBLIC)) return PAGER_NODE_NONE;
  uint32_t node = pager_root_find(pager, parent, model, domain);
  if (node != PAGER_NODE_NONE || !has_free_node(pager)) return node;
  return pager_root_create(pager, parent, model, domain);
}

static uint32_t adopt_tokens(weft_pager *pager, uint32_t parent, const int32_t *tokens) {
  if (parent == PAGER_NODE_NONE) return PAGER_NODE_NONE;
  if (pager->node[parent].depth >= pager->seq_tokens_max >> pager->base_shift) return PAGER_NODE_NONE;
  pager_hash hash = pager_hash_next(pager, pager_hash_of(pager, parent), tokens);
  uint32_t node = pager_node_find(pager, hash, parent, tokens);
  if (node != PAGER_NODE_NONE || !has_free_node(pager)) return node;
  return pager_node_create(pager, hash, parent, tokens);
}

uint32_t weft_pager_adopt_node(weft_pager *pager, uint32_t parent, uint32_t model, const weft_key128 *domain,
                               const int32_t *tokens) {
  WEFT_CHECK(parent == WEFT_NODE_NONE || (parent < pager->n_nodes_touched && pager->node[parent].live));
  uint32_t above = parent == WEFT_NODE_NONE ? PAGER_NODE_NONE : parent;
  if (model >= pager->n_models || !pager->cache) return WEFT_NODE_NONE;
  uint32_t node = domain != NULL ? adopt_root(pager, above, model, *domain) : adopt_tokens(pager, above, tokens);
  if (node == PAGER_NODE_NONE) return WEFT_NODE_NONE;
  pager->node[node].refs += 1;
  return node;
}

void weft_pager_adopt_end(weft_pager *pager, const uint32_t *node, uint32_t n) {
  while (n-- > 0)
    if (node[n] != WEFT_NODE_NONE) pager_node_unref(pager, node[n]);
}

uint64_t weft_pager_n_resets(const weft_pager *pager) {
  return pager->n_resets;
}
