/* SPDX-License-Identifier: MIT */
/* Law: a sequence begins by admit (match and pin in one call) or by fork (all blocks shared), and
 * ends by release. It lets go of all its blocks, and of the windows it keeps, from its end to its
 * start, so that eviction meets them in that order. */
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
  if (args->space >= pager->n_spaces || args->tokens == NULL) return WEFT_E_INVALID;
  if (args->n_tokens == 0 || args->n_prompt > args->n_tokens) return WEFT_E_INVALID;
  if (args->n_keep_rows > args->n_tokens || args->n_public > args->n_tokens) return WEFT_E_INVALID;
  if (args->retention > WEFT_RETENTION_MAX) return WEFT_E_INVALID;
  if (args->owner >= WEFT_OWNERS_MAX) return WEFT_E_INVALID;
  if (weft_key128_equal(args->domain, WEFT_DOMAIN_PUBLIC)) return WEFT_E_INVALID;
  if (args->n_tokens > pager->seq_tokens_max) return WEFT_E_TOO_LARGE;
  if (pager->stats.n_seqs == pager->n_seqs_max) return WEFT_FULL;
  return WEFT_OK;
}

/* The blocks of the hit that the next row sees come into the table, pinned; those in host memory by
 * the number of their slot, for pager_restore. */
static void pin_hit(weft_pager *pager, weft_seq seq, uint32_t g, uint32_t n_hit) {
  pager_seq *s = &pager->seq[seq];
  const pager_group *group = &pager->space[s->space].group[g];
  weft_page *table = pager_table(pager, seq, g);
  uint32_t first = pager_window_first(group, n_hit), end = n_hit >> group->shift;
  uint32_t n_public = pager_public_blocks(s, group), kind = pager_kind(s->space, g);
  for (uint32_t block = 0; block < first; block++) table[block] = WEFT_PAGE_NONE;
  for (uint32_t block = first; block < end; block++) {
    uint32_t node = pager->path[(block + 1) * group->span - 1];
    table[block] = pager_slots(pager, node)[g];
    if (pager_slot_is_page(table[block])) __builtin_prefetch(&pager->page[table[block]], 1);
  }
  for (uint32_t block = first; block < end; block++) {
    if (pager_slot_is_page(table[block]))
      pager_page_pin(pager, table[block], block < n_public ? WEFT_OWNER_OPERATOR : s->owner, kind);
    else
      pager_restore_pick(pager, table[block]);
  }
  pager->usage[kind].n_hits += end - first;
  s->first[g] = first;
  s->end[g] = end;
}

/* The blocks of the hit that nobody holds, or that come back, and that the owner would have to pay for. */
static uint32_t count_own(const weft_pager *pager, const weft_admit *args, const pager_match *match) {
  const pager_space *space = &pager->space[args->space];
  uint32_t n_own = 0;
  for (uint32_t g = 0; g < space->n_groups; g++) {
    const pager_group *group = &space->group[g];
    uint32_t block = pager_window_first(group, match->n_hit);
    if (block < match->public_end / group->span) block = match->public_end / group->span;
    for (; block < match->n_hit >> group->shift; block++) {
      uint32_t node = pager->path[(block + 1) * group->span - 1];
      uint32_t slot = pager_slots(pager, node)[g];
      n_own += !pager_slot_is_page(slot) || pager->page[slot].state == PAGER_CACHED;
    }
  }
  return n_own;
}

/* Boundaries that this sequence will keep windows for when it passes them. */
static void set_boundaries(weft_pager *pager, weft_seq seq, const weft_admit *args, const pager_match *match) {
  const pager_space *space = &pager->space[args->space];
  if (space->n_windowed == 0) return;
  pager_boundary_set(pager, seq, match->n_hit);
  pager_boundary_set(pager, seq, match->public_end << pager->base_shift);
  pager_boundary_set(pager, seq, pager_boundary_below(space, args->n_prompt));
  if (args->n_prompt > 0) /* the same prompt again must compute its last row */
    pager_boundary_set(pager, seq, pager_boundary_below(space, args->n_prompt - 1));
  uint32_t parting = pager_boundary_below(space, match->n_nodes << pager->base_shift);
  if (parting > match->n_hit) pager->node[pager->path[(parting >> pager->base_shift) - 1]].boundary = 1;
}

static weft_key128 first_domain(const weft_admit *args, const pager_match *match) {
  return match->public_end != 0 ? WEFT_DOMAIN_PUBLIC : args->domain;
}

static void begin_cached(weft_pager *pager, weft_seq seq, const weft_admit *args, pager_match *match) {
  pager_seq *s = &pager->seq[seq];
  if (match->root == PAGER_NODE_NONE)
    match->root = pager_root_make(pager, PAGER_NODE_NONE, args->space, first_domain(args, match));
  if (match->root == PAGER_NODE_NONE) { /* no node left: it computes and publishes nothing */
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

static void count_admit(weft_pager_stats *all, weft_owner_usage *own, uint32_t n_tokens, uint32_t n_hit) {
  all->n_admits += 1, own->n_admits += 1;
  all->n_hits += n_hit > 0, own->n_hits += n_hit > 0;
  all->n_hit_tokens += n_hit, own->n_hit_tokens += n_hit;
  all->n_prompt_tokens += n_tokens, own->n_prompt_tokens += n_tokens;
}

weft_status weft_pager_admit(weft_pager *pager, const weft_admit *args, weft_seq *out, uint32_t *n_cached,
                             weft_seq *waits_for) {
  weft_status refusal = admit_refusal(pager, args);
  if (refusal != WEFT_OK) return refusal;
  const pager_space *space = &pager->space[args->space];
  bool cache = pager->cache && !args->no_cache;
  pager_match match = {.root = PAGER_NODE_NONE};
  if (cache) {
    match.public_end = pager_boundary_below(space, args->n_public) >> pager->base_shift;
    match.root = pager_root_find(pager, PAGER_NODE_NONE, args->space, first_domain(args, &match));
  }
  if (match.root != PAGER_NODE_NONE) pager_match_prompt(pager, args, &match);
  if (match.n_promised > match.n_filed) {
    WEFT_CHECK(match.promiser < pager->n_seqs_touched);
    /* Whoever computes it keeps the windows there, or the wait would be in vain. */
    pager->node[pager->path[(match.n_promised >> pager->base_shift) - 1]].boundary = 1;
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
  weft_owner_usage *usage = &pager->owner[args->owner];
  if (usage->limit != 0 && pager_over_limit(pager, args->owner, count_own(pager, args, &match))) return WEFT_QUOTA;
  weft_seq seq = seq_take(pager);
  pager_seq *s = &pager->seq[seq];
  s->space = args->space;
  s->owner = args->owner;
  s->retention = args->retention;
  s->domain = args->domain;
  s->public_end = match.public_end;
  s->n_valid = s->n_reserved = match.n_hit;
  for (uint32_t g = 0; g < space->n_groups; g++) pin_hit(pager, seq, g, match.n_hit);
  if (restore) {
    pager_restore(pager, seq);
    pager_match_prompt(pager, args, &match); /* what made room may be nodes beyond the hit */
    match.n_hit = s->n_valid;
  }
  if (cache) begin_cached(pager, seq, args, &match);
  count_admit(&pager->stats, usage, args->n_tokens, match.n_hit);
  *out = seq;
  *n_cached = match.n_hit;
  return WEFT_OK;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* True: the table still holds the blocks before n that a row at n sees or shares. */
static bool sees_all(const weft_pager *pager, const pager_seq *s, uint32_t n) {
  const pager_space *space = &pager->space[s->space];
  for (uint32_t i = 0; i < space->n_windowed; i++) {
    uint32_t g = space->windowed[i], first = pager_window_first(&space->group[g], n);
    if (first < s->first[g] && first < pager_blocks(&space->group[g], n)) return false;
  }
  return true;
}

/* Where the first n_tokens end: the node of their last whole base block, and the tokens after it. A
 * fork of less than the public prefix publishes nothing. */
static void fork_chain(weft_pager *pager, weft_seq fork, weft_seq seq, uint32_t n_tokens) {
  uint32_t tail = pager->seq[seq].tail, depth = n_tokens >> pager->base_shift;
  const int32_t *rest = pager->pending + (uint64_t)seq * pager->base_tokens;
  if (depth < pager->seq[fork].public_end) { /* what follows may be no longer what is public */
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
  const pager_space *space = &pager->space[parent->space];
  if (n_tokens > parent->n_valid) return WEFT_E_INVALID;
  if (!sees_all(pager, parent, n_tokens)) return WEFT_E_NOT_FOUND;
  weft_seq fork = seq_take(pager);
  if (fork == WEFT_SEQ_NONE) return WEFT_FULL;
  pager_seq *s = &pager->seq[fork];
  s->space = parent->space;
  s->owner = parent->owner;
  s->retention = parent->retention;
  s->domain = parent->domain;
  s->public_end = parent->public_end;
  s->n_valid = s->n_reserved = n_tokens;
  for (uint32_t g = 0; g < space->n_groups; g++) {
    uint32_t first = pager_window_first(&space->group[g], n_tokens);
    uint32_t end = pager_blocks(&space->group[g], n_tokens);
    weft_page *table = pager_table(pager, fork, g);
    memcpy(table, pager_table(pager, seq, g), end * sizeof *table);
    for (uint32_t block = first; block < end; block++)
      pager_page_pin(pager, table[block], s->owner, pager_kind(s->space, g)); /* held: its payer stays */
    s->first[g] = first;
    s->end[g] = end;
  }
  fork_chain(pager, fork, seq, n_tokens);
  if (pager->boundary_words != 0)
    memcpy(pager->boundary + (uint64_t)fork * pager->boundary_words,
           pager->boundary + (uint64_t)seq * pager->boundary_words, pager->boundary_words * sizeof *pager->boundary);
  pager->stats.n_forks += 1;
  pager->stats.n_forked_tokens += n_tokens;
  *out = fork;
  return WEFT_OK;
}

/* ---- release --------------------------------------------------------------------------------- */

/* The class of the blocks of a sequence: retention, and the logarithm of what a token at its end
 * costs to compute. */
static uint32_t worth_of(const weft_pager *pager, const pager_seq *s) {
  const pager_space *space = &pager->space[s->space];
  uint64_t cost = space->token_cost;
  if (space->cost_doubles != 0) cost += cost * s->n_valid / space->cost_doubles;
  uint32_t log = 63 - (uint32_t)__builtin_clzll(cost);
  return s->retention + (log < PAGER_COST_LOG_MAX ? log : PAGER_COST_LOG_MAX);
}

/* The blocks of all groups that end at base block `end`, or reach beyond it at the very end. */
static void let_go_at(weft_pager *pager, weft_seq seq, uint32_t end, bool last) {
  const pager_seq *s = &pager->seq[seq];
  const pager_space *space = &pager->space[s->space];
  for (uint32_t g = 0; g < space->n_groups; g++) {
    uint32_t span = space->group[g].span, block = (end - 1) / span;
    if (((end & (span - 1)) != 0 && !last) || block < s->first[g]) continue;
    weft_page page = pager_table(pager, seq, g)[block];
    if (pager->page[page].node != PAGER_NODE_NONE) pager->page[page].keep = 1;
    pager_page_unpin(pager, page, PAGER_WARM);
  }
}

/* Those that left the table and that a boundary after them needs are used again, too. */
static void keep_at(weft_pager *pager, weft_seq seq, uint32_t node, const uint32_t *low) {
  const pager_seq *s = &pager->seq[seq];
  const pager_space *space = &pager->space[s->space];
  uint32_t end = pager->node[node].depth;
  for (uint32_t i = 0; i < space->n_windowed; i++) {
    uint32_t g = space->windowed[i], span = space->group[g].span, block = end / span - 1;
    if ((end & (span - 1)) != 0 || block >= s->first[g] || block < low[i]) continue;
    pager_slot_keep(pager, pager_slots(pager, node)[g]);
  }
}

/* Lets go of everything from the end backwards, position by position, so that what is evicted first
 * is what a shorter hit can do without. */
static void let_go(weft_pager *pager, weft_seq seq) {
  const pager_seq *s = &pager->seq[seq];
  const pager_space *space = &pager->space[s->space];
  uint32_t low[WEFT_GROUPS_MAX], lowest = UINT32_MAX, node = s->tail;
  uint32_t last = (uint32_t)(((uint64_t)s->n_reserved + pager->base_tokens - 1) >> pager->base_shift);
  for (uint32_t end = last; end > 0; end--) {
    let_go_at(pager, seq, end, end == last);
    if (space->n_windowed == 0 || node == PAGER_NODE_NONE) continue;
    uint32_t position = end << pager->base_shift;
    if (pager_boundary_at(pager, seq, position)) {
      for (uint32_t i = 0; i < space->n_windowed; i++) {
        low[i] = pager_window_first(&space->group[space->windowed[i]], position);
        uint32_t first = low[i] * space->group[space->windowed[i]].span;
        if (i == 0 || first < lowest) lowest = first;
      }
    }
    while (pager->node[node].depth > end || pager->node[node].root) {
      node = pager->node[node].parent;
      if (node == PAGER_NODE_NONE) break;
    }
    if (node != PAGER_NODE_NONE && end > lowest && pager->node[node].depth == end) keep_at(pager, seq, node, low);
  }
}

void weft_pager_release(weft_pager *pager, weft_seq seq) {
  pager_seq *s = pager_seq_of(pager, seq);
  const pager_space *space = &pager->space[s->space];
  if (s->tail != PAGER_NODE_NONE) {
    pager_boundary_set(pager, seq, pager_boundary_below(space, s->n_valid));
    pager_node_raise(pager, s->tail, worth_of(pager, s));
  }
  let_go(pager, seq);
  pager_detach(pager, seq);
  s->live = 0;
  s->next_free = pager->free_seq;
  pager->free_seq = seq;
  pager->stats.n_seqs -= 1;
}
