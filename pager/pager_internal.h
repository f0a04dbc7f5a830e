/* SPDX-License-Identifier: MIT */
/* What the files of the pager offer each other. Only its files and tests include this header. */
#ifndef WEFT_PAGER_INTERNAL_H
#define WEFT_PAGER_INTERNAL_H

#include "pager/records.h"
#include "pager/state.h"

/* ---- pool.c: pages --------------------------------------------------------------------------- */

void pager_copies_cancel(weft_pager *pager, weft_page to); /* table.c */
void pager_copy_emit(weft_pager *pager, weft_copy_kind kind, uint32_t from, uint32_t to);

/* A copy that fills a page of the pool. */
static inline bool pager_copy_fills_page(uint32_t kind) {
  return kind == WEFT_PAGE_TO_PAGE || kind == WEFT_HOST_TO_PAGE;
}

/* A page where the free list begins with none that is open: a later one, one that was never used, or one that is
 * evicted for it. */
weft_page pager_page_find(weft_pager *pager);
/* An open page that is FREE, of which there must be one; it is nobody's yet, and is not counted as FREE any more. */
weft_page pager_page_pop(weft_pager *pager);
/* Evicts the block that is due next, whose pages become FREE; its content goes to host memory where that takes it. */
void pager_evict_due(weft_pager *pager);
/* The block in the page, which is CACHED, and its place in its list lie in `to` from now on. */
void pager_page_relink(weft_pager *pager, weft_page page, weft_page to);
/* A published page that no sequence holds any more becomes CACHED: in the COLD list if `list` says so and page.keep is
 * not set, else in the WARM list of its node's worth. */
void pager_page_cache(weft_pager *pager, weft_page page, pager_list list);

/* A page that no sequence holds and no node names becomes FREE. */
static inline void pager_page_free(weft_pager *pager, weft_page page) {
  if (pager->page[page].copy) pager_copies_cancel(pager, page);
  pager->page[page] = (pager_page){.next = pager->free_page, .node = PAGER_NODE_NONE, .state = PAGER_FREE};
  pager->free_page = page;
  pager->stats.n_free += page < pager->n_open;
}

/* A page with one reference and meaningless content. There must be headroom. The caller calls pager_count_taken. */
static inline weft_page pager_page_next(weft_pager *pager, uint32_t owner, uint32_t group_id) {
  weft_page page = pager->free_page;
  if (page < pager->n_open) {
    pager->free_page = pager->page[page].next;
    pager->stats.n_free -= 1;
  } else {
    page = pager_page_find(pager);
  }
  pager->page[page] = (pager_page){.owner = owner & 0xFF,
                                   .pinned = {.references = 1, .group_id = group_id & 0xFF},
                                   .node = PAGER_NODE_NONE,
                                   .state = PAGER_PINNED};
  return page;
}

/* n pages were taken, and the owner pays for them. */
static inline void pager_count_taken(weft_pager *pager, uint32_t owner, uint32_t group_id, uint32_t n) {
  pager->owner[owner].n_pinned += n;
  pager->usage[group_id].n_pinned += n;
  pager->stats.n_pinned += n;
  pager->stats.n_taken += n;
}

static inline weft_page pager_page_take(weft_pager *pager, uint32_t owner, uint32_t group_id) {
  pager_count_taken(pager, owner, group_id, 1);
  return pager_page_next(pager, owner, group_id);
}

/* Takes away one reference. Without any, a published page becomes CACHED (pager_page_cache), another FREE. */
static inline void pager_page_unpin(weft_pager *pager, weft_page page, pager_list list) {
  pager_page *record = &pager->page[page];
  WEFT_CHECK(record->state == PAGER_PINNED);
  if (--record->pinned.references != 0) return;
  pager->usage[record->pinned.group_id].n_pinned -= 1;
  pager->owner[record->owner].n_pinned -= 1;
  pager->stats.n_pinned -= 1;
  if (record->node != PAGER_NODE_NONE)
    pager_page_cache(pager, page, list);
  else
    pager_page_free(pager, page);
}

/* Adds one reference to a published page. If no sequence held the page, the owner pays for it from now on. */
void pager_page_pin(weft_pager *pager, weft_page page, uint32_t owner, uint32_t group_id);
/* Both for the block whose first page this is, whether it is a state or not. */
static inline void pager_block_pin(weft_pager *pager, weft_page page, uint32_t owner, uint32_t group_id) {
  if (pager_is_state(pager, page))
    pager_run_pin(pager, page, owner, group_id);
  else
    pager_page_pin(pager, page, owner, group_id);
}

static inline void pager_block_unpin(weft_pager *pager, weft_page page, pager_list list) {
  if (pager_is_state(pager, page))
    pager_run_unpin(pager, page, list);
  else
    pager_page_unpin(pager, page, list);
}

/* A CACHED page becomes the most recently used one of its WARM list. */
void pager_page_touch(weft_pager *pager, weft_page page);
/* A CACHED page becomes the last one of the COLD list; or, the first of its block, goes to host memory (false: cannot).
 */
void pager_page_cool(weft_pager *pager, weft_page page);
bool pager_block_sink(weft_pager *pager, weft_page page);
/* Makes the node of some content free: forgets the oldest content of the lowest tier, or else evicts a block, whose
 * pages become FREE. False: there is neither. */
bool pager_evict_one(weft_pager *pager);
/* The list from which to evict next, given the page that each list would evict (its head, if the list is empty). */
pager_list pager_first_due(const weft_pager *pager, const weft_page oldest[PAGER_N_LISTS]);
void pager_lists_reset(weft_pager *pager);

/* ---- prefix.c: nodes and the index ----------------------------------------------------------- */

/* How far the index knows a prompt. The four counts of tokens are multiples of the model's largest block, each at least
 * as large as the one before. */
typedef struct pager_match {
  uint32_t public_end; /* base blocks of the prompt's public prefix */
  uint32_t root;       /* where the prompt begins; NONE: nothing of its domain is known */
  uint32_t n_nodes;    /* base blocks of the prompt that have a node: path[0, n_nodes) */
  uint32_t n_hashed;   /* base blocks whose hash was computed: path_hash[0, n_hashed) */
  uint32_t n_hit;      /* tokens that every group can serve from the pool */
  uint32_t n_stored;   /* the same from the pool and host memory */
  uint32_t n_filed;    /* the same from the pool, host memory and the file */
  uint32_t n_promised; /* the same once all promises are kept */
  weft_seq promiser;   /* the sequence that computes the last block of n_promised, if that is more than n_filed */
} pager_match;

/* Fills the secret of the index's hash from the seed, or, where the seed is 0, from the system. IO: it gave none. */
weft_status pager_secret_draw(weft_pager *pager, uint64_t seed, weft_error *error);
pager_hash pager_hash_next(const weft_pager *pager, pager_hash parent, const int32_t *tokens);
pager_hash pager_hash_of(const weft_pager *pager, uint32_t node);
/* The node where a domain begins: at the root of a model (parent NONE), or behind a public prefix (its last node). */
uint32_t pager_root_find(const weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain);
uint32_t pager_root_create(weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain);
uint32_t pager_node_find(const weft_pager *pager, pager_hash hash, uint32_t parent, const int32_t *tokens);
/* The root, found or created; content is evicted for it if no node is free. NONE: that did not help. */
uint32_t pager_root_make(weft_pager *pager, uint32_t parent, uint32_t model, weft_key128 domain);
/* Evicts content while no node is free, and gives up after PAGER_NODE_EVICTIONS_MAX pages or when nothing is left to
 * evict. */
void pager_node_make_room(weft_pager *pager);
/* Creates a node that pager_node_find does not know. It has no references yet. NONE: no node is free. */
uint32_t pager_node_create(weft_pager *pager, pager_hash hash, uint32_t parent, const int32_t *tokens);
void pager_node_unref(weft_pager *pager, uint32_t node);
/* Raises the node and all nodes before it to at least this worth: a block must never outlive the blocks before it. */
void pager_node_raise(weft_pager *pager, uint32_t node, uint32_t worth);
/* True: the node is the last of a public prefix of public_end base blocks, so what follows begins with the root of the
 * tenant's domain. */
static inline bool pager_domain_changes(const weft_pager *pager, uint32_t node, uint32_t public_end) {
  return public_end != 0 && pager->node[node].depth == public_end && !pager->node[node].root;
}

/* Follows the prompt through the index, from match->root on, whose first match->public_end base blocks are public.
 * Fills the path and all other fields of *match. */
void pager_match_prompt(weft_pager *pager, const weft_admit *args, pager_match *match);
/* True: the lines of the index, the live nodes and the counts agree. */
bool pager_index_check(const weft_pager *pager, weft_error *error);
void pager_index_reset(weft_pager *pager);

static inline uint32_t *pager_places(const weft_pager *pager, uint32_t node) {
  return pager->place + (uint64_t)node * pager->n_places;
}

static inline uint32_t pager_group_id_at(const weft_pager *pager, uint32_t node, uint32_t group) {
  return pager_group_id(pager->node[node].model, group);
}

static inline bool pager_place_is_page(uint32_t place) {
  return place < PAGER_PLACE_SLOT;
}

static inline bool pager_place_is_slot(uint32_t place) {
  return (place & (PAGER_PLACE_PROMISE | PAGER_PLACE_SLOT)) == PAGER_PLACE_SLOT;
}

static inline bool pager_place_is_promise(uint32_t place) {
  return place >= PAGER_PLACE_PROMISE && place != PAGER_PLACE_NONE;
}

static inline const int32_t *pager_tokens(const weft_pager *pager, uint32_t node) {
  return pager->node_tokens + (uint64_t)node * pager->node_stride;
}

/* ---- publish.c: what a sequence tells the index ---------------------------------------------- */

void pager_publish(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n);
/* Promises the blocks of the prompt that are not valid yet. match is the match of the admit that calls. */
void pager_announce(weft_pager *pager, weft_seq seq, const weft_admit *args, const pager_match *match);
/* The sequence leaves the index: open promises are withdrawn, nothing more is published. */
void pager_detach(weft_pager *pager, weft_seq seq);
/* The block in the page leaves the index, and the journal says so. The node ends too if nothing else refers to it. */
void pager_unpublish(weft_pager *pager, weft_page page);

/* ---- window.c: what windowed groups keep ----------------------------------------------------- */

/* The first block of the group that a row at `position` can see. */
static inline uint32_t pager_window_first(const pager_group *group, uint32_t position) {
  return weft_layer_group_first(&group->layers, position) >> group->shift;
}

static inline uint32_t pager_boundary_below(const pager_model *model, uint32_t position) {
  return position & ~(model->block_max - 1);
}

void pager_boundary_set(weft_pager *pager, weft_seq seq, uint32_t position);
bool pager_boundary_at(const weft_pager *pager, weft_seq seq, uint32_t position);
/* True: the group keeps every token, or a hit that ends at a boundary of the sequence needs this block. */
bool pager_block_is_needed(const weft_pager *pager, weft_seq seq, uint32_t g, uint32_t block);
void pager_window_drop(weft_pager *pager, weft_seq seq);
/* The block at this place, which left the block table, is needed by a boundary: it is kept and counts as used now. */
void pager_window_keep_block(weft_pager *pager, uint32_t place);

/* ---- which owner pays ------------------------------------------------------------------------- */

/* How many blocks of the group are in the public prefix: the operator pays for them. */
static inline uint32_t pager_public_blocks(const pager_seq *s, const pager_group *group) {
  return s->public_end == 0 ? 0 : s->public_end / group->span;
}

static inline uint32_t pager_payer(const pager_seq *s, const pager_group *group, uint32_t block) {
  return block < pager_public_blocks(s, group) ? WEFT_OWNER_OPERATOR : s->owner;
}

static inline bool pager_over_limit(const weft_pager *pager, uint32_t owner, uint32_t n_more) {
  const weft_owner_usage *usage = &pager->owner[owner];
  if (usage->limit == 0 || n_more == 0) return false;
  return (uint64_t)usage->n_pinned + n_more > usage->limit;
}

/* ---- journal.c, tables ----------------------------------------------------------------------- */

void pager_journal_block(weft_pager *pager, weft_journal_kind kind, weft_page page);
void pager_journal_content(weft_pager *pager, weft_journal_kind kind, weft_tier tier, uint32_t index, uint32_t node,
                           uint32_t group);
void pager_journal_cleared(weft_pager *pager);
/* Gives a new node the name by which events speak of it; nothing without a journal. */
void pager_journal_name(weft_pager *pager, uint32_t node);
/* True: there is no journal, or the node has the name that its parent and its tokens give. */
bool pager_journal_name_is_right(const weft_pager *pager, uint32_t node);

static inline weft_page *pager_table(const weft_pager *pager, weft_seq seq, uint32_t group) {
  const pager_seq *s = &pager->seq[seq];
  return s->table + pager->model[s->model].group[group].table_offset;
}

/* How many blocks n_tokens tokens have. A state is there once its last token is. */
static inline uint32_t pager_blocks(const pager_group *group, uint32_t n_tokens) {
  return (uint32_t)(((uint64_t)n_tokens + group->rest) >> group->shift);
}

static inline pager_seq *pager_seq_of(const weft_pager *pager, weft_seq seq) {
  WEFT_CHECK(seq < pager->n_seqs_touched && pager->seq[seq].live);
  return &pager->seq[seq];
}

/* ---- for tests ------------------------------------------------------------------------------- */

/* Keeps only n_bits of every hash, so that nearly all of them collide. To be called right after open. */
void pager_test_weaken_hash(weft_pager *pager, uint32_t n_bits);

#endif
