/* SPDX-License-Identifier: MIT */
/* Law: the content of a block lies in one tier, and the place of its node says in which page or slot. It goes down when
 * its page is evicted, and comes back within an admit. Nothing is moved here: copies are emitted.
 *
 *                evict, WARM             few slots free
 *    CACHED ---------------> HOST: HELD ---------------> MOVING ----> FILE: HELD
 *       ^                     |    oldest first          (moved)        |
 *       +---------------------+                                         |
 *         admit: picked, PINNED   HOST <------------- MOVING <----------+
 *                                       (moved)         admit: lifted
 *
 * Content comes down in the order of eviction, tails of prefixes before their heads, and each tier lets its oldest
 * content go first. So what is left of a prefix in a tier is its head. The two slots of a move are not used for
 * anything else before weft_pager_moved. A slot is read only after the copy that fills it was taken: the result of that
 * copy is known before the next admit, so no admit relies on a copy that failed. */
#include "pager/spill.h"

/* Content sinks from the host to the file while fewer of the host's slots than the low water mark are free, so that
 * what a step evicts, which comes all at once, finds free slots. The mark is 1 / LOW_WATER_PART of the slots, but at
 * least LOW_WATER_LEAST, and never more than half of them. */
enum {
  SINKING_MAX = WEFT_MOVES_MAX / 2, /* sinks under way at the same time; the rest is left for lifts */
  LOW_WATER_PART = 8,
  LOW_WATER_LEAST = 256,
  LIFT_PART = 2 /* lifts under way fill at most 1 / LIFT_PART of the host's slots */
};

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t slot_tier(const weft_pager *pager, uint32_t s) {
  return s >= pager->n_host;
}

static uint32_t slot_number(const weft_pager *pager, uint32_t s) {
  return s >= pager->n_host ? s - pager->n_host : s;
}

static void slot_list_remove(weft_pager *pager, uint32_t s) {
  pager_slot *record = &pager->slot[s];
  pager->slot[record->older].next = record->next;
  pager->slot[record->next].older = record->older;
}

/* The slot becomes HELD, and its content the newest of its tier. */
static void slot_list_append(weft_pager *pager, uint32_t s) {
  uint32_t head = pager->n_slots + slot_tier(pager, s), newest = pager->slot[head].older;
  pager->slot[s].state = PAGER_SLOT_HELD;
  pager->slot[s].next = head;
  pager->slot[s].older = newest;
  pager->slot[newest].next = s;
  pager->slot[head].older = s;
}

static void slot_free(weft_pager *pager, uint32_t s) {
  uint32_t tier = slot_tier(pager, s);
  pager->slot[s] = (pager_slot){.next = pager->free_slot[tier], .node = PAGER_NODE_NONE, .state = PAGER_SLOT_FREE};
  pager->free_slot[tier] = s;
  pager->n_free_host += tier == 0;
}

void pager_spill_reset(weft_pager *pager) {
  for (uint32_t tier = 0; tier < 2; tier++) {
    uint32_t head = pager->n_slots + tier;
    pager->slot[head].next = pager->slot[head].older = head;
    pager->free_slot[tier] = UINT32_MAX;
  }
  pager->n_free_host = 0;
  for (uint32_t s = pager->n_slots; s-- > 0;) {
    pager->slot[s].node = PAGER_NODE_NONE;
    if (pager->slot[s].state != PAGER_SLOT_MOVING) slot_free(pager, s);
  }
  pager->stats.n_host_held = pager->stats.n_file_held = 0;
}

static void journal_slot(weft_pager *pager, weft_journal_kind kind, uint32_t s) {
  const pager_slot *record = &pager->slot[s];
  weft_tier tier = slot_tier(pager, s) ? WEFT_TIER_FILE : WEFT_TIER_HOST;
  pager_journal_content(pager, kind, tier, slot_number(pager, s), record->node, record->group);
}

/* Adds n to the counts of slots that hold content; n is 1, or UINT32_MAX to subtract 1. */
static void count_content(weft_pager *pager, uint32_t s, uint32_t node, uint32_t group, uint32_t n) {
  weft_group_usage *usage = &pager->usage[pager_group_id_at(pager, node, group)];
  *(slot_tier(pager, s) ? &pager->stats.n_file_held : &pager->stats.n_host_held) += n;
  *(slot_tier(pager, s) ? &usage->n_file : &usage->n_host) += n;
}

/* The node's place of the group names s from now on. It named the content before, so the node keeps its reference. */
static void slot_attach(weft_pager *pager, uint32_t s, uint32_t node, uint32_t group) {
  pager->slot[s].node = node & PAGER_NODE_NONE;
  pager->slot[s].group = group & (WEFT_GROUPS_MAX - 1);
  pager_places(pager, node)[group] = PAGER_PLACE_SLOT | s;
  count_content(pager, s, node, group, 1);
  journal_slot(pager, WEFT_JOURNAL_STORED, s);
}

/* s has no node any more. It becomes free, unless a move uses it. */
static void slot_detach(weft_pager *pager, uint32_t s) {
  pager_slot *record = &pager->slot[s];
  journal_slot(pager, WEFT_JOURNAL_REMOVED, s);
  count_content(pager, s, record->node, record->group, UINT32_MAX);
  record->node = PAGER_NODE_NONE;
  if (record->state == PAGER_SLOT_HELD) slot_list_remove(pager, s);
  if (record->state != PAGER_SLOT_MOVING) slot_free(pager, s);
}

void pager_spill_forget(weft_pager *pager, uint32_t place) {
  uint32_t s = place & ~PAGER_PLACE_SLOT, node = pager->slot[s].node;
  pager_places(pager, node)[pager->slot[s].group] = PAGER_PLACE_NONE;
  slot_detach(pager, s);
  pager_node_unref(pager, node);
}

static bool tier_forget_oldest(weft_pager *pager, uint32_t tier) {
  uint32_t head = pager->n_slots + tier, oldest = pager->slot[head].next;
  if (oldest == head) return false;
  pager_spill_forget(pager, PAGER_PLACE_SLOT | oldest);
  *(tier ? &pager->stats.n_file_dropped : &pager->stats.n_spill_dropped) += 1;
  return true;
}

bool pager_spill_forget_oldest(weft_pager *pager) {
  return tier_forget_oldest(pager, 1) || tier_forget_oldest(pager, 0);
}

/* A free slot of the tier; if there is none, the oldest content gives up its slot. UINT32_MAX: moves use all slots. */
static uint32_t slot_take(weft_pager *pager, uint32_t tier) {
  if (pager->free_slot[tier] == UINT32_MAX && !tier_forget_oldest(pager, tier)) return UINT32_MAX;
  uint32_t s = pager->free_slot[tier];
  pager->free_slot[tier] = pager->slot[s].next;
  pager->n_free_host -= tier == 0;
  pager->slot[s].waiting = 0;
  return s;
}

static bool tier_copies_full(const weft_pager *pager) {
  return pager->n_spills_waiting == pager->spill_capacity;
}

/* ---- moves between host and file ------------------------------------------------------------- */

static bool moves_full(const weft_pager *pager) {
  return pager->stats.n_lifting + pager->stats.n_sinking == WEFT_MOVES_MAX;
}

static bool move_begin(weft_pager *pager, uint32_t from) {
  uint32_t tier = slot_tier(pager, from);
  if (moves_full(pager) || tier_copies_full(pager)) return false;
  slot_list_remove(pager, from);
  pager->slot[from].state = PAGER_SLOT_MOVING;
  uint32_t to = slot_take(pager, !tier);
  if (to == UINT32_MAX) {
    slot_list_append(pager, from);
    return false;
  }
  pager->slot[to].state = PAGER_SLOT_MOVING;
  *(tier ? &pager->stats.n_lifting : &pager->stats.n_sinking) += 1;
  pager_copy_emit(pager, tier ? WEFT_FILE_TO_HOST : WEFT_HOST_TO_FILE, slot_number(pager, from),
                  slot_number(pager, to));
  return true;
}

void weft_pager_moved(weft_pager *pager, const weft_page_copy *move, bool ok) {
  bool up = move->kind == WEFT_FILE_TO_HOST;
  uint32_t *n_moving = up ? &pager->stats.n_lifting : &pager->stats.n_sinking;
  WEFT_CHECK(*n_moving > 0 && (up || move->kind == WEFT_HOST_TO_FILE));
  uint32_t from = move->from + (up ? pager->n_host : 0), to = move->to + (up ? 0 : pager->n_host);
  pager_slot *record = &pager->slot[from];
  WEFT_CHECK(record->state == PAGER_SLOT_MOVING && pager->slot[to].state == PAGER_SLOT_MOVING);
  *n_moving -= 1;
  uint32_t node = record->node, group = record->group;
  record->state = PAGER_SLOT_PICKED; /* not MOVING any more, so that detach frees it */
  pager->slot[to].state = PAGER_SLOT_PICKED;
  if (!ok) pager->stats.n_file_lost += 1;
  if (!ok && node != PAGER_NODE_NONE) {
    pager_spill_forget(pager, PAGER_PLACE_SLOT | from);
  } else if (node != PAGER_NODE_NONE) {
    slot_detach(pager, from);
    slot_attach(pager, to, node, group);
    slot_list_append(pager, to);
    *(up ? &pager->stats.n_from_file : &pager->stats.n_to_file) += 1;
    return;
  } else {
    slot_free(pager, from);
  }
  slot_free(pager, to);
}

static uint32_t low_water(const weft_pager *pager) {
  uint32_t low = pager->n_host / LOW_WATER_PART;
  if (low < LOW_WATER_LEAST) low = LOW_WATER_LEAST;
  return low < pager->n_host / 2 ? low : pager->n_host / 2;
}

/* Begins sinks before the host is full. */
static void sink_oldest_slots(weft_pager *pager) {
  const weft_pager_stats *stats = &pager->stats;
  uint32_t head = pager->n_slots, low = low_water(pager);
  if (pager->n_slots == pager->n_host) return;
  while (stats->n_sinking < SINKING_MAX && pager->n_free_host + stats->n_sinking <= low) {
    uint32_t oldest = pager->slot[head].next;
    if (oldest == head || !move_begin(pager, oldest)) return;
  }
}

/* ---- out of the pool ------------------------------------------------------------------------- */

bool pager_spill_out(weft_pager *pager, weft_page page) {
  pager_page *record = &pager->page[page];
  if (tier_copies_full(pager)) return false;
  uint32_t s = slot_take(pager, 0);
  if (s == UINT32_MAX) return false;
  pager_copy_emit(pager, WEFT_PAGE_TO_HOST, page, s);
  pager->slot[s].waiting = 1;
  pager_journal_block(pager, WEFT_JOURNAL_REMOVED, page);
  slot_attach(pager, s, record->node, record->group);
  slot_list_append(pager, s);
  record->node = PAGER_NODE_NONE;
  record->keep = 0;
  record->copy = 0; /* a waiting copy that fills the page must stay, because the copy to the host reads the page */
  pager->stats.n_spilled += 1;
  sink_oldest_slots(pager);
  return true;
}

void weft_pager_spill_lost(weft_pager *pager, uint32_t host_slot) {
  WEFT_CHECK(host_slot < pager->n_host);
  if (pager->slot[host_slot].node == PAGER_NODE_NONE) return; /* its content was given up meanwhile */
  pager->stats.n_spill_lost += 1;
  pager_spill_forget(pager, PAGER_PLACE_SLOT | host_slot);
}

/* ---- back into it ---------------------------------------------------------------------------- */

pager_reach pager_spill_reach(const weft_pager *pager, uint32_t place) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  if (slot_tier(pager, s)) return PAGER_IN_FILE;
  return pager->slot[s].waiting ? PAGER_NOWHERE : PAGER_IN_HOST;
}

/* How many of the blocks that a hit at `position` needs are CACHED, in host memory and in the file. */
typedef struct needed_blocks {
  uint32_t n_cached, n_host, n_file;
} needed_blocks;

typedef void (*place_visitor)(weft_pager *pager, uint32_t place, void *self);

static void each_needed(weft_pager *pager, const weft_admit *args, uint32_t position, place_visitor call, void *self) {
  const pager_model *model = &pager->model[args->model];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    for (uint32_t block = pager_window_first(group, position); block < position >> group->shift; block++)
      call(pager, pager_places(pager, pager->path[(block + 1) * group->span - 1])[g], self);
  }
}

static void count_needed(weft_pager *pager, uint32_t place, void *self) {
  needed_blocks *n = (needed_blocks *)self;
  if (pager_place_is_page(place))
    n->n_cached += pager->page[place].state == PAGER_CACHED;
  else if (pager_place_is_slot(place))
    *(slot_tier(pager, place & ~PAGER_PLACE_SLOT) ? &n->n_file : &n->n_host) += 1;
}

/* True: starting at `position` instead of the end of the hit saves more than bringing the blocks back costs, and there
 * are pages and room among the waiting copies for it. */
static bool restore_is_worth_it(const weft_pager *pager, const weft_admit *args, const pager_match *match,
                                uint32_t position, const needed_blocks *n) {
  uint64_t n_pages = (uint64_t)n->n_host + n->n_file;
  if (n_pages > args->restore_max_pages) return false;
  uint64_t n_copies = 2 * n_pages; /* each may evict a page, whose content is copied out first */
  if (n_copies > pager->spill_capacity - pager->n_spills_waiting) return false;
  if (n_pages > pager->stats.n_free + pager->stats.n_cached - n->n_cached) return false;
  uint64_t cost = n_pages * args->restore_cost + (uint64_t)n->n_file * args->lift_cost;
  return (uint64_t)(position - match->n_hit) * 256 > cost;
}

bool pager_restore_pays(weft_pager *pager, const weft_admit *args, const pager_match *match) {
  needed_blocks n = {0};
  if (args->restore_max_pages == 0 || match->n_stored <= match->n_hit) return false;
  each_needed(pager, args, match->n_stored, count_needed, &n);
  return restore_is_worth_it(pager, args, match, match->n_stored, &n);
}

void pager_restore_pick(weft_pager *pager, uint32_t place) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  if (pager->slot[s].state != PAGER_SLOT_HELD) return; /* it is sinking to the file, and its content is still here */
  slot_list_remove(pager, s);
  pager->slot[s].state = PAGER_SLOT_PICKED;
}

/* Takes a page for the content of slot s, which is published there as it was before and has one reference. */
static weft_page restore_block(weft_pager *pager, uint32_t s, uint32_t owner) {
  uint32_t node = pager->slot[s].node, group = pager->slot[s].group;
  weft_page page = pager_page_take(pager, owner, pager_group_id_at(pager, node, group));
  pager_copy_emit(pager, WEFT_HOST_TO_PAGE, s, page);
  pager->page[page].node = node & PAGER_NODE_NONE;
  pager->page[page].group = group & (WEFT_GROUPS_MAX - 1);
  pager_places(pager, node)[group] = page;
  slot_detach(pager, s);
  pager_journal_block(pager, WEFT_JOURNAL_STORED, page);
  pager->stats.n_restored += 1;
  return page;
}

void pager_restore(weft_pager *pager, weft_seq seq) {
  const pager_seq *s = &pager->seq[seq];
  for (uint32_t g = 0; g < pager->model[s->model].n_groups; g++) {
    const pager_group *group = &pager->model[s->model].group[g];
    weft_page *table = pager_table(pager, seq, g);
    for (uint32_t block = s->first[g]; block < s->end[g]; block++)
      if (!pager_place_is_page(table[block]))
        table[block] = restore_block(pager, table[block] & ~PAGER_PLACE_SLOT, pager_payer(s, group, block));
  }
}

/* The content of the prefix in host memory becomes the newest there, so that other content makes room for the lifts. */
static void touch_host_slot(weft_pager *pager, uint32_t place, void *self) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  (void)self;
  if (!pager_place_is_slot(place) || slot_tier(pager, s)) return;
  if (pager->slot[s].state != PAGER_SLOT_HELD) return;
  slot_list_remove(pager, s);
  slot_list_append(pager, s);
}

static void count_held(weft_pager *pager, uint32_t place, void *self) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  if (!pager_place_is_slot(place) || !slot_tier(pager, s)) return;
  *(uint32_t *)self += pager->slot[s].state == PAGER_SLOT_HELD;
}

static void lift_slot(weft_pager *pager, uint32_t place, void *self) {
  uint32_t s = place & ~PAGER_PLACE_SLOT, *n_moving = (uint32_t *)self;
  if (!pager_place_is_slot(place) || !slot_tier(pager, s)) return;
  if (pager->slot[s].state == PAGER_SLOT_HELD) (void)move_begin(pager, s);
  *n_moving += pager->slot[s].state == PAGER_SLOT_MOVING;
}

bool pager_lift(weft_pager *pager, const weft_admit *args, const pager_match *match, uint32_t *n_left) {
  needed_blocks n = {0};
  uint32_t n_moving = 0, n_held = 0, n_lifting = pager->stats.n_lifting;
  if (!args->restore_wait || match->n_filed <= match->n_stored) return false;
  each_needed(pager, args, match->n_filed, count_needed, &n);
  if (n.n_host + n.n_file > pager->n_host / LIFT_PART) return false;
  if (!restore_is_worth_it(pager, args, match, match->n_filed, &n)) return false;
  each_needed(pager, args, match->n_filed, touch_host_slot, NULL);
  each_needed(pager, args, match->n_filed, count_held, &n_held);
  *n_left = n_held;
  bool full = n_lifting > 0 && n_lifting + n_held > pager->n_host / LIFT_PART;
  if (full || args->lift_none) return n_lifting > 0; /* the caller waits for the lifts under way */
  each_needed(pager, args, match->n_filed, lift_slot, &n_moving);
  *n_left = n.n_file - n_moving;
  return n_moving > 0 || n_lifting > 0;
}

/* ---- check ----------------------------------------------------------------------------------- */

#define BROKEN(...) (weft_fail(error, WEFT_E_INVALID, "pager check: " __VA_ARGS__), false)

static bool slot_check(const weft_pager *pager, uint32_t s, weft_error *error) {
  const pager_slot *record = &pager->slot[s];
  bool held = record->state == PAGER_SLOT_HELD;
  if (record->state == PAGER_SLOT_PICKED) return BROKEN("slot %u is still picked", s);
  if (record->node == PAGER_NODE_NONE) return held ? BROKEN("slot %u is held for no node", s) : true;
  if (record->state == PAGER_SLOT_FREE) return BROKEN("slot %u is free and held", s);
  if (record->node >= pager->n_nodes_touched || !pager->node[record->node].live ||
      pager_places(pager, record->node)[record->group] != (PAGER_PLACE_SLOT | s))
    return BROKEN("slot %u names node %u, which does not name it", s, record->node);
  return true;
}

/* A host slot is marked as waiting exactly while a copy that fills it was not taken; a slot used again may have two. */
static bool waiting_check(const weft_pager *pager, weft_error *error) {
  uint32_t n_marked = 0, n_found = 0;
  for (uint32_t s = 0; s < pager->n_slots; s++) n_marked += pager->slot[s].waiting;
  for (uint32_t i = 0; i < pager->n_copies_waiting; i++) {
    if (pager->copy[i].kind != WEFT_PAGE_TO_HOST) continue;
    bool last = true;
    for (uint32_t j = i + 1; j < pager->n_copies_waiting; j++)
      last = last && !(pager->copy[j].kind == WEFT_PAGE_TO_HOST && pager->copy[j].to == pager->copy[i].to);
    n_found += last && pager->slot[pager->copy[i].to].waiting;
  }
  return n_marked == n_found ? true : BROKEN("%u slots wait for a copy, copies go to %u of them", n_marked, n_found);
}

bool pager_spill_check(const weft_pager *pager, weft_error *error) {
  uint32_t n_of[2][4] = {{0}}, n_held[2] = {0};
  for (uint32_t s = 0; s < pager->n_slots; s++) {
    if (!slot_check(pager, s, error)) return false;
    n_of[slot_tier(pager, s)][pager->slot[s].state] += 1;
    n_held[slot_tier(pager, s)] += pager->slot[s].node != PAGER_NODE_NONE;
  }
  for (uint32_t tier = 0; tier < 2; tier++) {
    uint32_t n = 0, head = pager->n_slots + tier, before = head;
    for (uint32_t s = pager->slot[head].next; s != head; s = pager->slot[s].next) {
      if (s >= pager->n_slots || slot_tier(pager, s) != tier || pager->slot[s].older != before ||
          pager->slot[s].state != PAGER_SLOT_HELD || ++n > pager->n_slots)
        return BROKEN("the list of tier %u is broken at slot %u", tier, s);
      before = s;
    }
    uint32_t n_free = 0;
    for (uint32_t s = pager->free_slot[tier]; s != UINT32_MAX; s = pager->slot[s].next)
      if (++n_free > pager->n_slots) return BROKEN("the free list of tier %u has a loop", tier);
    if (n != n_of[tier][PAGER_SLOT_HELD] || n_free != n_of[tier][PAGER_SLOT_FREE])
      return BROKEN("tier %u: %u slots listed, %u free", tier, n, n_free);
  }
  if (n_held[0] != pager->stats.n_host_held || n_held[1] != pager->stats.n_file_held ||
      n_of[0][PAGER_SLOT_FREE] != pager->n_free_host)
    return BROKEN("%u and %u slots hold content, counted %u and %u", n_held[0], n_held[1], pager->stats.n_host_held,
                  pager->stats.n_file_held);
  uint32_t n_moves = pager->stats.n_lifting + pager->stats.n_sinking;
  if (n_of[0][PAGER_SLOT_MOVING] != n_moves || n_of[1][PAGER_SLOT_MOVING] != n_moves)
    return BROKEN("%u moves, %u and %u slots moving", n_moves, n_of[0][PAGER_SLOT_MOVING], n_of[1][PAGER_SLOT_MOVING]);
  return waiting_check(pager, error);
}
