/* SPDX-License-Identifier: MIT */
/* Law: no counter and no link is trusted. References of pages are counted again from the block tables, states from the
 * lists, references of nodes from children, pages, slots and sequences; then all must agree with the records. This is
 * the only place that allocates after open; it frees before it returns. */
#include <string.h>

#include "base/memory.h"
#include "pager/spill.h"

typedef struct recount {
  const pager_model *model;
  uint32_t *page_refs; /* from the tables */
  uint32_t n_pinned[WEFT_OWNERS_MAX], n_cached[WEFT_OWNERS_MAX];
  weft_group_usage *usage; /* by group id */
  uint32_t *rank;          /* 0: in no list; else 1 + how many pages would be evicted sooner */
  uint32_t *node_refs;
  uint32_t *root_of;   /* 1 + the root where the domain of the node begins; 0: not looked up yet */
  uint64_t n_promises; /* found by walking the sequences */
  uint32_t n_kept;     /* pages of the states in WARM lists */
} recount;

#define BROKEN(...) (weft_fail(error, WEFT_E_INVALID, "pager check: " __VA_ARGS__), false)

/* The root above a node, itself included. */
static uint32_t root_of(const weft_pager *pager, recount *now, uint32_t node) {
  uint32_t root = node;
  while (now->root_of[root] == 0 && !pager->node[root].root && pager->node[root].parent < pager->n_nodes_touched)
    root = pager->node[root].parent;
  if (now->root_of[root] != 0) root = now->root_of[root] - 1;
  for (; node != root && now->root_of[node] == 0; node = pager->node[node].parent) now->root_of[node] = root + 1;
  return root;
}

static bool domain_is(const weft_pager *pager, uint32_t root, weft_key128 domain) {
  return memcmp(pager_tokens(pager, root), &domain, sizeof domain) == 0;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The links of one list, oldest page first. */
static bool list_check(const weft_pager *pager, recount *now, pager_list list, uint32_t *n_cached, weft_error *error) {
  uint32_t head = pager->n_pages + (uint32_t)list, before = head, wait = 0;
  for (weft_page page = pager->page[head].next; page != head; page = pager->page[page].next) {
    if (page >= pager->n_pages_touched || now->rank[page] != 0)
      return BROKEN("page %u is in the cached lists twice, or was never used", page);
    const pager_page *record = &pager->page[page];
    if (record->state != PAGER_CACHED || record->cached.older != before)
      return BROKEN("page %u is in a cached list with state %u, older page %u", page, record->state,
                    record->cached.older);
    if (list == PAGER_COLD && record->keep) return BROKEN("page %u is worth keeping and COLD", page);
    bool state = pager_is_state(pager, page);
    if (list != PAGER_COLD && state && !record->keep) return BROKEN("page %u begins a state kept for nobody", page);
    uint32_t due = (uint8_t)(record->cached.due - pager->clock);
    if (list != PAGER_COLD && (due < wait || due > 1u << (list - PAGER_WARM)))
      return BROKEN("page %u of worth %u is due in %u", page, list - PAGER_WARM, due);
    if (list != PAGER_COLD) wait = due;
    now->rank[page] = UINT32_MAX;
    *n_cached += pager_block_pages(pager, page);
    if (list != PAGER_COLD && state) now->n_kept += pager_block_pages(pager, page);
    before = page;
  }
  if (pager->page[head].cached.older != before) return BROKEN("a cached list ends at the wrong page");
  return true;
}

/* The order in which the pages of all lists would be evicted if nothing else happened. */
static void rank_pages(const weft_pager *pager, recount *now, uint32_t n_cached) {
  weft_page oldest[PAGER_N_LISTS];
  for (uint32_t list = 0; list < PAGER_N_LISTS; list++) oldest[list] = pager->page[pager->n_pages + list].next;
  for (uint32_t rank = 1; n_cached > 0; rank++) {
    pager_list list = pager_first_due(pager, oldest);
    now->rank[oldest[list]] = rank;
    n_cached -= pager_block_pages(pager, oldest[list]);
    oldest[list] = pager->page[oldest[list]].next;
  }
}

/* The free list has every free page that was ever used, but for closed ones that say that they left it. */
static bool free_check(const weft_pager *pager, weft_error *error) {
  uint32_t open_touched = pager->n_pages_touched < pager->n_open ? pager->n_pages_touched : pager->n_open;
  uint32_t n_free = pager->n_open - open_touched, n_closed = 0, n_listed = 0;
  for (weft_page page = pager->free_page; page != PAGER_LINK_NONE; page = pager->page[page].next) {
    if (page >= pager->n_pages_touched || pager->page[page].state != PAGER_FREE || pager->page[page].keep)
      return BROKEN("page %u is in the free list and not free, or says that it left the list", page);
    *(page < pager->n_open ? &n_free : &n_closed) += 1;
    if (++n_listed > pager->n_pages) return BROKEN("the free list has a loop");
  }
  for (weft_page page = open_touched; page < pager->n_pages_touched; page++) {
    if (pager->page[page].state != PAGER_FREE || pager->page[page].copy)
      return BROKEN("page %u is closed and has state %u", page, pager->page[page].state);
    n_closed += pager->page[page].keep;
  }
  if (n_closed != pager->n_pages_touched - open_touched)
    return BROKEN("%u closed pages were used, %u are in the free list or left it",
                  pager->n_pages_touched - open_touched, n_closed);
  if (n_free != pager->stats.n_free) return BROKEN("%u pages are free, counted %u", n_free, pager->stats.n_free);
  if (pager->stats.n_pages != pager->n_open || pager->n_open > pager->n_pages)
    return BROKEN("%u pages are open, counted %u of %u", pager->n_open, pager->stats.n_pages, pager->n_pages);
  return true;
}

static bool lists_check(const weft_pager *pager, recount *now, weft_error *error) {
  uint32_t n_cached = 0;
  for (uint32_t list = 0; list < PAGER_N_LISTS; list++)
    if (!list_check(pager, now, (pager_list)list, &n_cached, error)) return false;
  rank_pages(pager, now, n_cached);
  if (n_cached != pager->stats.n_cached)
    return BROKEN("%u pages in the cached lists, counted %u", n_cached, pager->stats.n_cached);
  if (now->n_kept != pager->n_kept_pages)
    return BROKEN("WARM states have %u pages, counted %u", now->n_kept, pager->n_kept_pages);
  return free_check(pager, error);
}

static bool page_check(const weft_pager *pager, recount *now, weft_page page, weft_error *error) {
  const pager_page *record = &pager->page[page];
  uint32_t refs = now->page_refs[page], n_pages = pager_block_pages(pager, page);
  bool cached = now->rank[page] != 0;
  if (record->state == PAGER_MEMBER) return refs == 0 && !cached ? true : BROKEN("page %u is a member and held", page);
  if (cached != (record->state == PAGER_CACHED) || (refs != 0) != (record->state == PAGER_PINNED))
    return BROKEN("page %u has state %u, %u references, rank %u", page, record->state, refs, now->rank[page]);
  if (refs != 0 && record->pinned.references != refs)
    return BROKEN("page %u has %u references, counted %u", page, refs, record->pinned.references);
  if (record->state == PAGER_FREE) return true;
  now->n_pinned[record->owner] += refs != 0 ? n_pages : 0;
  now->n_cached[record->owner] += cached ? n_pages : 0;
  if (cached && record->node < pager->n_nodes_touched)
    now->usage[pager_group_id_at(pager, record->node, record->group)].n_cached += 1;
  if (record->node == PAGER_NODE_NONE) {
    if (cached || record->keep) return BROKEN("page %u is cached and published nowhere", page);
    return true;
  }
  if (record->node >= pager->n_nodes_touched || !pager->node[record->node].live ||
      pager_places(pager, record->node)[record->group] != page)
    return BROKEN("page %u names node %u, which does not name it", page, record->node);
  if (domain_is(pager, root_of(pager, now, record->node), WEFT_DOMAIN_PUBLIC) && record->owner != WEFT_OWNER_OPERATOR)
    return BROKEN("page %u is public and owner %u pays for it", page, record->owner);
  return true;
}

static bool owners_check(const weft_pager *pager, const recount *now, weft_error *error) {
  for (uint32_t i = 0; i < WEFT_OWNERS_MAX; i++)
    if (now->n_pinned[i] != pager->owner[i].n_pinned || now->n_cached[i] != pager->owner[i].n_cached)
      return BROKEN("owner %u pays for %u pages and has %u cached, counted %u and %u", i, now->n_pinned[i],
                    now->n_cached[i], pager->owner[i].n_pinned, pager->owner[i].n_cached);
  return true;
}

static bool groups_check(const weft_pager *pager, const recount *now, weft_error *error) {
  for (uint32_t i = 0; i < WEFT_MODELS_MAX * WEFT_GROUPS_MAX; i++) {
    const weft_group_usage *a = &now->usage[i], *b = &pager->usage[i];
    if (a->n_pinned != b->n_pinned || a->n_cached != b->n_cached || a->n_host != b->n_host || a->n_file != b->n_file)
      return BROKEN("model %u, group %u: %u pinned, %u cached, %u and %u below, counted %u, %u, %u and %u",
                    i / WEFT_GROUPS_MAX, i % WEFT_GROUPS_MAX, a->n_pinned, a->n_cached, a->n_host, a->n_file,
                    b->n_pinned, b->n_cached, b->n_host, b->n_file);
  }
  return true;
}

/* In a group that keeps every token, the block before a published block is published too and is not evicted sooner. */
static bool order_check(const weft_pager *pager, const recount *now, weft_page page, weft_error *error) {
  const pager_page *record = &pager->page[page];
  if (record->state == PAGER_FREE || record->state == PAGER_MEMBER || record->node == PAGER_NODE_NONE) return true;
  const pager_group *group = &now->model[pager->node[record->node].model].group[record->group];
  if (group->layers.window != 0 || pager->node[record->node].depth == group->span) return true;
  uint32_t before = record->node;
  for (uint32_t i = 0; i < group->span; i++) before = pager->node[before].parent;
  if (pager->node[before].root) before = pager->node[before].parent; /* the public prefix */
  uint32_t place = pager_places(pager, before)[record->group];
  if (!pager_place_is_page(place)) return BROKEN("page %u of group %u has no block before it", page, record->group);
  if (record->state == PAGER_PINNED && pager->page[place].state != PAGER_PINNED)
    return BROKEN("page %u is pinned, page %u before it is not", page, place);
  if (record->state == PAGER_CACHED && pager->page[place].state == PAGER_CACHED && now->rank[place] < now->rank[page])
    return BROKEN("page %u would be evicted before page %u, which follows it", place, page);
  return true;
}

static bool pages_check(const weft_pager *pager, recount *now, weft_error *error) {
  uint32_t n_pinned = 0, n_targets = 0;
  for (weft_page page = 0; page < pager->n_pages_touched; page++) {
    if (!page_check(pager, now, page, error)) return false;
    if (!order_check(pager, now, page, error)) return false;
    n_pinned += pager->page[page].state == PAGER_PINNED ? pager_block_pages(pager, page) : 0;
    n_targets += pager->page[page].copy;
  }
  const weft_pager_stats *stats = &pager->stats;
  if (n_pinned != stats->n_pinned || n_pinned + stats->n_free + stats->n_cached != pager->n_open)
    return BROKEN("%u pages pinned, counted %u + %u free + %u cached of %u", n_pinned, stats->n_pinned, stats->n_free,
                  stats->n_cached, pager->n_open);
  uint32_t n_named = 0, n_spills = 0, n_moves = 0;
  for (uint32_t i = 0; i < pager->n_copies_waiting; i++) {
    weft_page to = pager->copy[i].to;
    n_spills += pager->copy[i].kind != WEFT_PAGE_TO_PAGE;
    n_moves += weft_copy_is_move(pager->copy[i].kind);
    if (!pager_copy_fills_page(pager->copy[i].kind)) continue;
    bool last = true; /* a page that was taken again may be the target of two copies */
    for (uint32_t j = i + 1; j < pager->n_copies_waiting; j++)
      last = last && !(pager_copy_fills_page(pager->copy[j].kind) && pager->copy[j].to == to);
    n_named += last && pager->page[to].copy;
  }
  if (n_spills != pager->n_spills_waiting || n_moves != pager->n_moves_waiting)
    return BROKEN("%u copies of lower tiers wait, %u of them moves, counted %u and %u", n_spills, n_moves,
                  pager->n_spills_waiting, pager->n_moves_waiting);
  if (n_targets != n_named) return BROKEN("%u pages wait for a copy, copies go to %u of them", n_targets, n_named);
  return true;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static bool table_check(const weft_pager *pager, recount *now, weft_seq seq, uint32_t g, weft_error *error) {
  const pager_seq *s = &pager->seq[seq];
  const pager_group *group = &now->model[s->model].group[g];
  const weft_page *table = pager_table(pager, seq, g);
  uint32_t n_blocks = pager_blocks(group, s->n_reserved);
  if (s->end[g] != n_blocks)
    return BROKEN("sequence %u, group %u: %u entries for %u tokens", seq, g, s->end[g], s->n_reserved);
  if (s->first[g] != pager_window_first(group, s->n_valid))
    return BROKEN("sequence %u holds group %u from block %u, its window begins at %u", seq, g, s->first[g],
                  pager_window_first(group, s->n_valid));
  for (uint32_t block = 0; block < n_blocks; block++) {
    if (block < s->first[g] && table[block] != WEFT_PAGE_NONE)
      return BROKEN("sequence %u, group %u: block %u is before the window and held", seq, g, block);
    if (block < s->first[g]) continue;
    bool is_state = g >= now->model[s->model].n_plain;
    uint32_t valid = pager_blocks(group, s->n_valid);
    if (is_state && table[block] == WEFT_PAGE_NONE && block + 1 != valid && block + 1 != n_blocks) continue;
    if (table[block] >= pager->n_pages_touched)
      return BROKEN("sequence %u, group %u: block %u has no page", seq, g, block);
    if (pager->page[table[block]].pinned.group_id != pager_group_id(s->model, g))
      return BROKEN("sequence %u, group %u: page %u is of group id %u", seq, g, table[block],
                    pager->page[table[block]].pinned.group_id);
    if (is_state != pager_is_state(pager, table[block]))
      return BROKEN("sequence %u, group %u: page %u begins a state, or none", seq, g, table[block]);
    now->usage[pager_group_id(s->model, g)].n_pinned += now->page_refs[table[block]] == 0;
    now->page_refs[table[block]] += 1;
    if (block < valid) continue;
    const pager_page *record = &pager->page[table[block]];
    if (record->pinned.references != 1 || record->node != PAGER_NODE_NONE)
      return BROKEN("sequence %u will write to page %u, which is shared", seq, table[block]);
  }
  return true;
}

/* From the tail to the root: the block table and the nodes name the same pages, and every node is of the sequence's own
 * domain or within the public prefix that it asked for. */
static bool chain_check(const weft_pager *pager, recount *now, weft_seq seq, weft_error *error) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &now->model[s->model];
  if (s->tail == PAGER_NODE_NONE) return true;
  now->node_refs[s->tail] += 1;
  if (pager->node[s->tail].depth != s->n_valid >> pager->base_shift)
    return BROKEN("sequence %u has %u valid tokens and a tail at depth %u", seq, s->n_valid,
                  pager->node[s->tail].depth);
  for (uint32_t node = s->tail; node != PAGER_NODE_NONE; node = pager->node[node].parent) {
    if (node >= pager->n_nodes_touched || !pager->node[node].live)
      return BROKEN("sequence %u stands on node %u, which is not live", seq, node);
    if (pager->node[node].root) continue;
    bool in_public = pager->node[node].depth <= s->public_end;
    if (!domain_is(pager, root_of(pager, now, node), in_public ? WEFT_DOMAIN_PUBLIC : s->domain))
      return BROKEN("sequence %u reaches node %u of another domain", seq, node);
    for (uint32_t g = 0; g < model->n_groups; g++) {
      uint32_t span = model->group[g].span, depth = pager->node[node].depth;
      if ((depth & (span - 1)) != 0 || depth / span - 1 < s->first[g]) continue;
      weft_page page = pager_table(pager, seq, g)[depth / span - 1];
      if (g >= model->n_plain && page == WEFT_PAGE_NONE) continue;
      if (pager_places(pager, node)[g] != page)
        return BROKEN("sequence %u, group %u: its page at depth %u is not the node's", seq, g, depth);
    }
  }
  return true;
}

static bool promises_check(const weft_pager *pager, recount *now, weft_seq seq, weft_error *error) {
  const pager_seq *s = &pager->seq[seq];
  if (s->announced_tail == PAGER_NODE_NONE) return true;
  now->node_refs[s->announced_tail] += 1;
  if (s->tail == PAGER_NODE_NONE || pager->node[s->announced_tail].depth != s->announced_end ||
      s->n_valid >> pager->base_shift >= s->announced_end)
    return BROKEN("sequence %u has open promises that it passed", seq);
  uint32_t node = s->announced_tail;
  for (; pager->node[node].depth > s->announced_from; node = pager->node[node].parent)
    for (uint32_t g = 0; g < pager->n_places; g++)
      now->n_promises += pager_places(pager, node)[g] == (PAGER_PLACE_PROMISE | seq);
  return true;
}

static bool seqs_check(const weft_pager *pager, recount *now, weft_error *error) {
  uint32_t n_live = 0;
  for (weft_seq seq = 0; seq < pager->n_seqs_touched; seq++) {
    const pager_seq *s = &pager->seq[seq];
    if (!s->live) continue;
    n_live += 1;
    if (s->n_valid > s->n_reserved || s->n_reserved > pager->seq_tokens_max)
      return BROKEN("sequence %u: %u valid, %u reserved", seq, s->n_valid, s->n_reserved);
    for (uint32_t g = 0; g < now->model[s->model].n_groups; g++)
      if (!table_check(pager, now, seq, g, error)) return false;
    if (!chain_check(pager, now, seq, error)) return false;
    if (!promises_check(pager, now, seq, error)) return false;
  }
  if (n_live != pager->stats.n_seqs) return BROKEN("%u sequences live, counted %u", n_live, pager->stats.n_seqs);
  return true;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool node_check(const weft_pager *pager, recount *now, uint32_t node, uint64_t *n_promises, weft_error *error) {
  const pager_node *record = &pager->node[node];
  if ((record->parent == PAGER_NODE_NONE) != (record->depth == 0))
    return BROKEN("node %u begins a chain at depth %u, or none at 0", node, record->depth);
  if (record->parent != PAGER_NODE_NONE) {
    const pager_node *parent = &pager->node[record->parent];
    if (record->parent >= pager->n_nodes_touched || !parent->live || parent->depth + !record->root != record->depth ||
        parent->model != record->model)
      return BROKEN("node %u does not follow its parent %u", node, record->parent);
    if (record->worth > parent->worth || record->worth >= PAGER_N_WORTHS)
      return BROKEN("node %u is worth more than its parent", node);
    now->node_refs[record->parent] += 1;
  }
  if (!record->root) {
    pager_hash hash = pager_hash_next(pager, pager_hash_of(pager, record->parent), pager_tokens(pager, node));
    if (pager_node_find(pager, hash, record->parent, pager_tokens(pager, node)) != node)
      return BROKEN("node %u is not what its parent and tokens find", node);
  } else {
    weft_key128 domain;
    memcpy(&domain, pager_tokens(pager, node), sizeof domain);
    if (pager_root_find(pager, record->parent, record->model, domain) != node)
      return BROKEN("node %u is not the root that its domain finds", node);
    if (record->parent != PAGER_NODE_NONE && !domain_is(pager, root_of(pager, now, record->parent), WEFT_DOMAIN_PUBLIC))
      return BROKEN("node %u begins a domain below a prefix that is not public", node);
  }
  if (!pager_journal_name_is_right(pager, node)) return BROKEN("the journal has another name for node %u", node);
  const pager_model *model = &now->model[record->model];
  for (uint32_t g = 0; g < pager->n_places; g++) {
    uint32_t place = pager_places(pager, node)[g];
    if (place == PAGER_PLACE_NONE) continue;
    if (record->root || g >= model->n_groups || (record->depth & (model->group[g].span - 1)) != 0)
      return BROKEN("node %u: no block of group %u ends there", node, g);
    *n_promises += pager_place_is_promise(place);
    if (pager_place_is_promise(place)) continue;
    now->node_refs[node] += 1;
    if (pager_place_is_slot(place)) {
      uint32_t slot = place & ~PAGER_PLACE_SLOT;
      if (slot >= pager->n_slots || pager->slot[slot].node != node || pager->slot[slot].group != g)
        return BROKEN("node %u names slot %u, which does not name it", node, slot);
      weft_group_usage *usage = &now->usage[pager_group_id(record->model, g)];
      *(slot < pager->n_host ? &usage->n_host : &usage->n_file) += 1;
      continue;
    }
    if (place >= pager->n_pages_touched || pager->page[place].state == PAGER_FREE || pager->page[place].node != node ||
        pager->page[place].group != g)
      return BROKEN("node %u names page %u, which does not name it", node, place);
  }
  return true;
}

static bool nodes_check(const weft_pager *pager, recount *now, weft_error *error) {
  uint32_t n_live = 0;
  uint64_t n_promises = 0;
  for (uint32_t node = 0; node < pager->n_nodes_touched; node++) {
    if (!pager->node[node].live) continue;
    n_live += 1;
    if (!node_check(pager, now, node, &n_promises, error)) return false;
  }
  if (n_live != pager->n_nodes_live) return BROKEN("%u nodes live, counted %u", n_live, pager->n_nodes_live);
  for (uint32_t node = 0; node < pager->n_nodes_touched; node++)
    if (pager->node[node].live && pager->node[node].refs != now->node_refs[node])
      return BROKEN("node %u has %u references, counted %u", node, now->node_refs[node], pager->node[node].refs);
  if (n_promises != now->n_promises)
    return BROKEN("%llu blocks promised, %llu of them by a running sequence", (unsigned long long)n_promises,
                  (unsigned long long)now->n_promises);
  return true;
}

bool weft_pager_check(const weft_pager *pager, weft_error *error) {
  recount now = {.model = pager->model,
                 .page_refs = weft_alloc(pager->n_pages, sizeof(uint32_t)),
                 .rank = weft_alloc(pager->n_pages, sizeof(uint32_t)),
                 .node_refs = weft_alloc(pager->n_nodes, sizeof(uint32_t)),
                 .root_of = weft_alloc(pager->n_nodes, sizeof(uint32_t)),
                 .usage = weft_alloc(WEFT_MODELS_MAX * WEFT_GROUPS_MAX, sizeof *now.usage)};
  bool good =
      now.page_refs != NULL && now.rank != NULL && now.node_refs != NULL && now.root_of != NULL && now.usage != NULL;
  if (!good) weft_fail(error, WEFT_E_NO_MEMORY, "pager check: no memory to count again");
  good = good && lists_check(pager, &now, error) && seqs_check(pager, &now, error) && pages_check(pager, &now, error) &&
         owners_check(pager, &now, error) && nodes_check(pager, &now, error) && groups_check(pager, &now, error) &&
         pager_index_check(pager, error) && pager_spill_check(pager, error) && pager_runs_check(pager, error);
  weft_free(now.page_refs);
  weft_free(now.rank);
  weft_free(now.node_refs);
  weft_free(now.root_of);
  weft_free(now.usage);
  return good;
}
