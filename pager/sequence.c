/* SPDX-License-Identifier: MIT */
/* Law: a sequence begins with admit, which matches the prompt and pins the hit in one call, or with fork, which shares
 * the blocks of another sequence; it ends with release. Release lets go of all its blocks, and of the blocks that its
 * boundaries need, from its end to its start, so that eviction meets them in that order. */
#include <string.h>

#include "pager/spill.h"

static weft_seq seq_take(weft_pager *pager) {
  weft_seq seq = pager->free_seq;
  if (seq != WEFT_SEQ_NONE) {
    pager->free_seq = pager->seq[seq].next_free;
  } else if (pager->n_seqs_touched < pager->n_seqs_max) {
    seq = pager->n_seqs_touched++;
  } else {
    return WEFT_SEQ_NONE;
  }
  pager->seq[seq] = (pager_seq){.live = 1,
                                .tail = PAGER_NODE_NONE,
                                .announced_tail = PAGER_NODE_NONE,
                                .table = pager->table + seq * pager->table_stride};
  pager->stats.n_seqs += 1;
  if (pager->boundary_words != 0)
    memset(pager->boundary + (uint64_t)seq * pager->boundary_words, 0, pager->boundary_words * sizeof *pager->boundary);
  return seq;
}

/* ---- admit ----------------------------------------------------------------------------------- */

static weft_status admit_refusal(const weft_pager *pager, const weft_admit *args) {
  if (args->model >= pager->n_models || args->tokens == NULL) return WEFT_E_INVALID;
  if (args->n_tokens == 0 || args->n_prompt > args->n_tokens) return WEFT_E_INVALID;
  if (args->n_keep_rows > args->n_tokens || args->n_public > args->n_tokens) return WEFT_E_INVALID;
  for (uint32_t i = 0; i < WEFT_PARTINGS_MAX; i++)
    if (args->parting[i] > args->n_tokens) return WEFT_E_INVALID;
  if (args->retention > WEFT_RETENTION_MAX) return WEFT_E_INVALID;
  if (args->owner >= WEFT_OWNERS_MAX) return WEFT_E_INVALID;
  if (weft_key128_equal(args->domain, WEFT_DOMAIN_PUBLIC)) return WEFT_E_INVALID;
  if (args->n_tokens > pager->seq_tokens_max) return WEFT_E_TOO_LARGE;
  if (pager->stats.n_seqs == pager->n_seqs_max) return WEFT_FULL;
  return WEFT_OK;
}

/* The blocks of the hit that the next row sees are pinned and entered in the block table. For a block in host memory
 * the entry is the place of its slot, which pager_restore replaces by a page. */
static void pin_hit(weft_pager *pager, weft_seq seq, uint32_t g, uint32_t n_hit) {
  pager_seq *s = &pager->seq[seq];
  const pager_group *group = &pager->model[s->model].group[g];
  weft_page *table = pager_table(pager, seq, g);
  uint32_t first = pager_window_first(group, n_hit), end = n_hit >> group->shift;
  uint32_t n_public = pager_public_blocks(s, group), group_id = pager_group_id(s->model, g);
  for (uint32_t block = 0; block < first; block++) table[block] = WEFT_PAGE_NONE;
  for (uint32_t block = first; block < end; block++) {
    uint32_t node = pager->path[(block + 1) * group->span - 1];
    table[block] = pager_places(pager, node)[g];
    if (pager_place_is_page(table[block])) __builtin_prefetch(&pager->page[table[block]], 1);
  }
  for (uint32_t block = first; block < end; block++) {
    uint32_t owner = block < n_public ? WEFT_OWNER_OPERATOR : s->owner;
    if (!pager_place_is_page(table[block]))
      pager_restore_pick(pager, table[block]);
    else
      pager_block_pin(pager, table[block], owner, group_id);
  }
  s->first[g] = first;
  s->end[g] = end;
}

/* How many pages of a hit, from block `from` of the group on, no sequence holds: pinning or restoring takes them away
 * from what is FREE or CACHED. */
static uint32_t count_unheld(const weft_pager *pager, uint32_t model, uint32_t g, uint32_t from, uint32_t n_hit) {
  const pager_group *group = &pager->model[model].group[g];
  uint32_t block = pager_window_first(group, n_hit), n_unheld = 0;
  for (block = block < from ? from : block; block < n_hit >> group->shift; block++) {
    uint32_t node = pager->path[(block + 1) * group->span - 1];
    uint32_t place = pager_places(pager, node)[g];
    n_unheld += !pager_place_is_page(place) || pager->page[place].state == PAGER_CACHED;
  }
  return n_unheld * pager_group_pages(group);
}

/* How many of them the owner of the sequence would have to pay for: all but those of the public prefix. */
static uint32_t count_hit_own(const weft_pager *pager, const weft_admit *args, const pager_match *match) {
  const pager_model *model = &pager->model[args->model];
  uint32_t n_own = 0;
  for (uint32_t g = 0; g < model->n_groups; g++)
    n_own += count_unheld(pager, args->model, g, match->public_end / model->group[g].span, match->n_hit);
  return n_own;
}

/* The boundaries that are known at admit. When the sequence passes them, it keeps the blocks that a hit there needs. */
static void set_boundaries(weft_pager *pager, weft_seq seq, const weft_admit *args, const pager_match *match) {
  const pager_model *model = &pager->model[args->model];
  if (model->n_windowed == 0) return;
  pager_boundary_set(pager, seq, match->n_hit);
  pager_boundary_set(pager, seq, match->public_end << pager->base_shift);
  pager_boundary_set(pager, seq, pager_boundary_below(model, args->n_prompt));
  if (args->n_prompt > 0) /* a hit of the same prompt may end before its last row, which must be computed */
    pager_boundary_set(pager, seq, pager_boundary_below(model, args->n_prompt - 1));
  for (uint32_t i = 0; i < WEFT_PARTINGS_MAX; i++)
    pager_boundary_set(pager, seq, pager_boundary_below(model, args->parting[i]));
  uint32_t parting = pager_boundary_below(model, match->n_nodes << pager->base_shift);
  if (parting > match->n_hit) pager->node[pager->path[(parting >> pager->base_shift) - 1]].boundary = 1;
  if (!pager_has_states(model)) return;
  for (uint64_t end = model->snapshot_every; end != 0 && end <= args->n_prompt; end += model->snapshot_every)
    pager_boundary_set(pager, seq, (uint32_t)end);
  /* Which states are taken is decided when rows are reserved, so the nodes ahead are asked now where prefixes part. */
  for (uint32_t end = match->n_hit + model->block_max; end <= parting; end += model->block_max)
    if (pager->node[pager->path[(end >> pager->base_shift) - 1]].boundary) pager_boundary_set(pager, seq, end);
}

static weft_key128 first_domain(const weft_admit *args, const pager_match *match) {
  return match->public_end != 0 ? WEFT_DOMAIN_PUBLIC : args->domain;
}

static void begin_cached(weft_pager *pager, weft_seq seq, const weft_admit *args, pager_match *match) {
  pager_seq *s = &pager->seq[seq];
  if (match->root == PAGER_NODE_NONE)
    match->root = pager_root_make(pager, PAGER_NODE_NONE, args->model, first_domain(args, match));
  if (match->root == PAGER_NODE_NONE) { /* no node could be had: the sequence publishes nothing */
    s->public_end = 0;
    return;
  }
  uint32_t n_nodes_hit = match->n_hit >> pager->base_shift;
  s->tail = n_nodes_hit == 0 ? match->root : pager->path[n_nodes_hit - 1];
  pager->node[s->tail].refs += 1;
  pager_node_raise(pager, s->tail, s->retention);
  set_boundaries(pager, seq, args, match);
  pager_announce(pager, seq, args, match);
}

/* Whether the pages that the sequence will need besides its hit can be had. *n_wanted is their number, with the margin.
 * Nothing was pinned yet, so a request that tries again and again does not make its prefix the most recently used. */
static weft_status check_room(const weft_pager *pager, const weft_admit *args, const pager_match *match,
                              uint32_t *n_wanted) {
  const pager_model *model = &pager->model[args->model];
  uint32_t n_held = 0, n_taken = 0, limit = pager->owner[args->owner].limit;
  for (uint32_t g = 0; g < model->n_groups; g++)
    n_held += ((match->n_hit >> model->group[g].shift) - pager_window_first(&model->group[g], match->n_hit)) *
              pager_group_pages(&model->group[g]);
  uint32_t n_more = args->room_pages > n_held ? args->room_pages - n_held : 0;
  if (args->room_in_limit && limit != 0) {
    uint64_t n_paid = (uint64_t)pager->owner[args->owner].n_pinned + n_more;
    if (n_paid + n_held > limit && n_paid + count_hit_own(pager, args, match) > limit) return WEFT_QUOTA;
  }
  *n_wanted = n_more + args->room_margin;
  uint64_t n_room = (uint64_t)weft_pager_headroom(pager) + args->room_spare;
  if ((uint64_t)*n_wanted + n_held <= n_room) return WEFT_OK;
  for (uint32_t g = 0; g < model->n_groups; g++) n_taken += count_unheld(pager, args->model, g, 0, match->n_hit);
  return (uint64_t)*n_wanted + n_taken <= n_room ? WEFT_OK : WEFT_NO_BLOCKS;
}

weft_status weft_pager_admit(weft_pager *pager, const weft_admit *args, weft_seq *out, uint32_t *n_cached,
                             weft_seq *waits_for) {
  weft_status refusal = admit_refusal(pager, args);
  if (refusal != WEFT_OK) return refusal;
  const pager_model *model = &pager->model[args->model];
  bool cache = pager->cache && !args->no_cache;
  pager_match match = {.root = PAGER_NODE_NONE};
  if (cache) {
    match.public_end = pager_boundary_below(model, args->n_public) >> pager->base_shift;
    match.root = pager_root_find(pager, PAGER_NODE_NONE, args->model, first_domain(args, &match));
  }
  if (match.root != PAGER_NODE_NONE) pager_match_prompt(pager, args, &match);
  if (match.n_promised > match.n_filed && !args->follow_none) {
    WEFT_CHECK(match.promiser < pager->n_seqs_touched);
    /* The promiser must keep the windows for a hit that ends there, or the wait would be in vain. */
    pager->node[pager->path[(match.n_promised >> pager->base_shift) - 1]].boundary = 1;
    if (pager_has_states(model)) pager_boundary_set(pager, match.promiser, match.n_promised);
    pager->stats.n_waits += 1;
    *waits_for = match.promiser;
    return WEFT_AGAIN;
  }
  if (pager_lift(pager, args, &match, n_cached)) {
    *waits_for = WEFT_SEQ_NONE;
    return WEFT_AGAIN;
  }
  bool restore = pager_restore_pays(pager, args, &match);
  if (restore) match.n_hit = match.n_stored;
  if (match.n_hit < args->n_cached_least) return WEFT_E_NOT_FOUND;
  if (pager->owner[args->owner].limit != 0 && pager_over_limit(pager, args->owner, count_hit_own(pager, args, &match)))
    return WEFT_QUOTA;
  weft_status room = args->room_pages == 0 ? WEFT_OK : check_room(pager, args, &match, n_cached);
  if (room != WEFT_OK) return room;
  weft_seq seq = seq_take(pager);
  pager_seq *s = &pager->seq[seq];
  s->model = args->model;
  s->owner = args->owner;
  s->retention = args->retention;
  s->domain = args->domain;
  s->public_end = match.public_end;
  s->n_valid = s->n_reserved = match.n_hit;
  for (uint32_t g = 0; g < model->n_groups; g++) pin_hit(pager, seq, g, match.n_hit);
  if (restore) {
    pager_restore(pager, seq);
    pager_match_prompt(pager, args, &match); /* the evictions that made room may have ended nodes beyond the hit */
    match.n_hit = s->n_valid;
  }
  if (cache) begin_cached(pager, seq, args, &match);
  s->n_sought = cache ? args->n_tokens : 0;
  s->n_found = match.n_hit;
  *out = seq;
  *n_cached = match.n_hit;
  return WEFT_OK;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* True: the block tables still hold all blocks before n that a row at n sees. */
static bool sees_all(const weft_pager *pager, const pager_seq *s, uint32_t n) {
  const pager_model *model = &pager->model[s->model];
  for (uint32_t i = 0; i < model->n_windowed; i++) {
    uint32_t g = model->windowed[i], first = pager_window_first(&model->group[g], n);
    if (first < s->first[g] && first < pager_blocks(&model->group[g], n)) return false;
  }
  return true;
}

/* Sets the fork's tail, the node of the last whole base block of its n_tokens, and its pending tokens, those after that
 * node. A fork of less than the public prefix publishes nothing, because its next tokens may be others. */
static void fork_chain(weft_pager *pager, weft_seq fork, weft_seq seq, uint32_t n_tokens) {
  uint32_t tail = pager->seq[seq].tail, depth = n_tokens >> pager->base_shift;
  const int32_t *rest = pager->pending + (uint64_t)seq * pager->base_tokens;
  if (depth < pager->seq[fork].public_end) {
    pager->seq[fork].public_end = 0;
    return;
  }
  pager->seq[fork].tail = tail;
  if (tail == PAGER_NODE_NONE) return;
  for (; pager->node[tail].depth > depth; tail = pager->node[tail].parent) rest = pager_tokens(pager, tail);
  pager->seq[fork].tail = tail;
  pager->node[tail].refs += 1;
  memcpy(pager->pending + (uint64_t)fork * pager->base_tokens, rest, pager->base_tokens * sizeof *rest);
}

weft_status weft_pager_fork(weft_pager *pager, weft_seq seq, uint32_t n_tokens, weft_seq *out) {
  const pager_seq *parent = pager_seq_of(pager, seq);
  const pager_model *model = &pager->model[parent->model];
  if (n_tokens > parent->n_valid) return WEFT_E_INVALID;
  if (!sees_all(pager, parent, n_tokens)) return WEFT_E_NOT_FOUND;
  weft_seq fork = seq_take(pager);
  if (fork == WEFT_SEQ_NONE) return WEFT_FULL;
  pager_seq *s = &pager->seq[fork];
  s->model = parent->model;
  s->owner = parent->owner;
  s->retention = parent->retention;
  s->domain = parent->domain;
  s->public_end = parent->public_end;
  s->n_valid = s->n_reserved = n_tokens;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    uint32_t first = pager_window_first(&model->group[g], n_tokens);
    uint32_t end = pager_blocks(&model->group[g], n_tokens);
    weft_page *table = pager_table(pager, fork, g);
    memcpy(table, pager_table(pager, seq, g), end * sizeof *table);
    for (uint32_t block = first; block < end; block++)
      if (table[block] != WEFT_PAGE_NONE) /* NONE: a state that was not taken */
        pager_block_pin(pager, table[block], s->owner, pager_group_id(s->model, g)); /* PINNED: its payer stays */
    s->first[g] = first;
    s->end[g] = end;
  }
  fork_chain(pager, fork, seq, n_tokens);
  if (pager->boundary_words != 0)
    memcpy(pager->boundary + (uint64_t)fork * pager->boundary_words,
           pager->boundary + (uint64_t)seq * pager->boundary_words, pager->boundary_words * sizeof *pager->boundary);
  s->forked = true;
  s->n_found = n_tokens;
  *out = fork;
  return WEFT_OK;
}

/* ---- enter ----------------------------------------------------------------------------------- */

static void count_prompt(weft_pager *pager, const pager_seq *s) {
  const pager_model *model = &pager->model[s->model];
  weft_pager_stats *all = &pager->stats;
  weft_owner_usage *own = &pager->owner[s->owner];
  all->n_admits += 1, own->n_admits += 1;
  all->n_hits += s->n_found > 0, own->n_hits += s->n_found > 0;
  all->n_hit_tokens += s->n_found, own->n_hit_tokens += s->n_found;
  all->n_prompt_tokens += s->n_sought, own->n_prompt_tokens += s->n_sought;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    pager->usage[pager_group_id(s->model, g)].n_hits +=
        (s->n_found >> group->shift) - pager_window_first(group, s->n_found);
  }
}

void weft_pager_enter(weft_pager *pager, weft_seq seq, bool resumes) {
  pager_seq *s = pager_seq_of(pager, seq);
  WEFT_CHECK(!s->entered);
  s->entered = true;
  if (s->forked) {
    pager->stats.n_forks += 1;
    pager->stats.n_forked_tokens += s->n_found;
  } else if (resumes) {
    pager->stats.n_resumes += 1;
    pager->stats.n_resumed_tokens += s->n_sought;
    pager->stats.n_resumed_hit_tokens += s->n_found;
  } else {
    count_prompt(pager, s);
  }
}

/* ---- release --------------------------------------------------------------------------------- */

/* The worth of the blocks of a sequence: its retention, plus the logarithm of what a token at its end costs. */
static uint32_t worth_of(const weft_pager *pager, const pager_seq *s) {
  const pager_model *model = &pager->model[s->model];
  uint64_t cost = 1;
  if (model->cost_doubles != 0) cost += s->n_valid / model->cost_doubles;
  uint32_t log = 63 - (uint32_t)__builtin_clzll(cost);
  return s->retention + (log < PAGER_COST_LOG_MAX ? log : PAGER_COST_LOG_MAX);
}

/* Lets go of the blocks of all groups that end at base block `end`. `last`: of those that reach beyond it, too. The
 * states first: once anything that ends there is evicted no hit does, and a state frees the most pages. */
static void let_go_at(weft_pager *pager, weft_seq seq, uint32_t end, bool last) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  if (pager->run != NULL) pager_states_release(pager, seq, end);
  for (uint32_t g = 0; g < model->n_plain; g++) {
    uint32_t span = model->group[g].span, block = (end - 1) / span;
    if (((end & (span - 1)) != 0 && !last) || block < s->first[g]) continue;
    weft_page page = pager_table(pager, seq, g)[block];
    bool is_needed = pager_block_is_needed(pager, seq, g, block);
    if (is_needed && pager->page[page].node != PAGER_NODE_NONE) pager->page[page].keep = 1;
    pager_page_unpin(pager, page, is_needed ? PAGER_WARM : PAGER_COLD);
  }
}

/* Blocks that left the block table and that a boundary behind them needs count as used now, too. low[i] is the first
 * block that the boundary needs of the i-th windowed group. */
static void keep_windows_at(weft_pager *pager, weft_seq seq, uint32_t node, const uint32_t *low) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  uint32_t end = pager->node[node].depth;
  for (uint32_t i = 0; i < model->n_windowed; i++) {
    uint32_t g = model->windowed[i], span = model->group[g].span, block = end / span - 1;
    if ((end & (span - 1)) != 0 || block >= s->first[g] || block < low[i]) continue;
    pager_window_keep_block(pager, pager_places(pager, node)[g]);
  }
}

/* Lets go of all blocks from the end to the start, position by position and in all groups, so that a hit on what is
 * left gets shorter from its end while pages are evicted. */
static void let_go_of_all(weft_pager *pager, weft_seq seq, bool keeps_windows) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  uint32_t low[WEFT_GROUPS_MAX], lowest = UINT32_MAX, node = s->tail;
  uint32_t last = (uint32_t)(((uint64_t)s->n_reserved + pager->base_tokens - 1) >> pager->base_shift);
  for (uint32_t end = last; end > 0; end--) {
    let_go_at(pager, seq, end, end == last);
    if (model->n_windowed == 0 || node == PAGER_NODE_NONE || !keeps_windows) continue;
    uint32_t position = end << pager->base_shift;
    if (pager_boundary_at(pager, seq, position)) {
      for (uint32_t i = 0; i < model->n_windowed; i++) {
        low[i] = pager_window_first(&model->group[model->windowed[i]], position);
        uint32_t first = low[i] * model->group[model->windowed[i]].span;
        if (i == 0 || first < lowest) lowest = first;
      }
    }
    while (pager->node[node].depth > end || pager->node[node].root) {
      node = pager->node[node].parent;
      if (node == PAGER_NODE_NONE) break;
    }
    if (node != PAGER_NODE_NONE && end > lowest && pager->node[node].depth == end)
      keep_windows_at(pager, seq, node, low);
  }
}

void weft_pager_release(weft_pager *pager, weft_seq seq) {
  pager_seq *s = pager_seq_of(pager, seq);
  const pager_model *model = &pager->model[s->model];
  bool unused = s->forked && !s->entered; /* it found no room: that is no use of its prefix */
  if (s->tail != PAGER_NODE_NONE && !unused) {
    pager_boundary_set(pager, seq, pager_boundary_below(model, s->n_valid));
    pager_node_raise(pager, s->tail, worth_of(pager, s));
  }
  let_go_of_all(pager, seq, !unused);
  pager_detach(pager, seq);
  s->live = 0;
  s->next_free = pager->free_seq;
  pager->free_seq = seq;
  pager->stats.n_seqs -= 1;
}
