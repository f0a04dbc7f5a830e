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
 * The content of a state has a slot for each of its pages. The first speaks for all; the others are its MEMBERs. They
 * are taken and given back together, and content has moved when all its moves have ended. A state that would take more
 * than half of a tier does not go there.
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
  pager->slot[s] = (pager_slot){
      .next = pager->free_slot[tier], .more = UINT32_MAX, .node = PAGER_NODE_NONE, .state = PAGER_SLOT_FREE};
  pager->free_slot[tier] = s;
  pager->n_free_host += tier == 0;
}

/* All slots of the content whose first one this is become free. */
static void content_free(weft_pager *pager, uint32_t first) {
  for (uint32_t s = first, more; s != UINT32_MAX; s = more) {
    more = pager->slot[s].more;
    slot_free(pager, s);
  }
}

/* The first slot of the content that slot s is of. */
static uint32_t first_slot(const weft_pager *pager, uint32_t s) {
  return pager->slot[s].state == PAGER_SLOT_MEMBER ? pager->slot[s].older : s;
}

static uint32_t content_slots(const weft_pager *pager, uint32_t node, uint32_t group) {
  return pager_group_pages(&pager->model[pager->node[node].model].group[group]);
}

/* Content of so many slots may lie in the tier. */
static bool fits_tier(const weft_pager *pager, uint32_t tier, uint32_t n) {
  return n == 1 || n <= (tier == 0 ? pager->n_host : pager->n_slots - pager->n_host) / 2;
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
    pager_slot_state state = pager->slot[first_slot(pager, s)].state;
    if (state != PAGER_SLOT_MOVING && state != PAGER_SLOT_LENT) slot_free(pager, s);
  }
  pager->stats.n_host_held = pager->stats.n_file_held = 0;
}

static void journal_slot(weft_pager *pager, weft_journal_kind kind, uint32_t s) {
  const pager_slot *record = &pager->slot[s];
  weft_tier tier = slot_tier(pager, s) ? WEFT_TIER_FILE : WEFT_TIER_HOST;
  pager_journal_content(pager, kind, tier, slot_number(pager, s), record->node, record->group);
}

/* Adds n to the counts of contents; n is 1, or UINT32_MAX to subtract 1. */
static void count_content(weft_pager *pager, uint32_t s, uint32_t node, uint32_t group, uint32_t n) {
  weft_group_usage *usage = &pager->usage[pager_group_id_at(pager, node, group)];
  uint32_t n_slots = n * content_slots(pager, node, group);
  *(slot_tier(pager, s) ? &pager->stats.n_file_held : &pager->stats.n_host_held) += n_slots;
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
  if (record->state != PAGER_SLOT_MOVING) content_free(pager, s);
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

/* The first of n slots for one content; UINT32_MAX: they cannot be had. */
static uint32_t content_take(weft_pager *pager, uint32_t tier, uint32_t n) {
  uint32_t first = UINT32_MAX, last = UINT32_MAX;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t s = slot_take(pager, tier);
    if (s == UINT32_MAX) {
      content_free(pager, first);
      return UINT32_MAX;
    }
    pager->slot[s].more = UINT32_MAX;
    if (i == 0) {
      first = s;
    } else {
      pager->slot[s].state = PAGER_SLOT_MEMBER;
      pager->slot[s].older = first;
      pager->slot[last].more = s;
    }
    last = s;
  }
  return first;
}

/* True: n more copies from and to lower tiers can wait to be taken. */
static bool has_room_for_copies(const weft_pager *pager, uint32_t n) {
  return n <= pager->spill_capacity - pager->n_spills_waiting;
}

/* ---- moves between host and file ------------------------------------------------------------- */

static bool move_begin(weft_pager *pager, uint32_t from) {
  pager_slot *record = &pager->slot[from];
  uint32_t tier = slot_tier(pager, from), n = content_slots(pager, record->node, record->group);
  if (n > WEFT_MOVES_MAX - pager->stats.n_lifting - pager->stats.n_sinking || !has_room_for_copies(pager, n))
    return false;
  slot_list_remove(pager, from);
  record->state = PAGER_SLOT_MOVING;
  uint32_t to = content_take(pager, !tier, n);
  if (to == UINT32_MAX) {
    slot_list_append(pager, from);
    return false;
  }
  pager->slot[to].state = PAGER_SLOT_MOVING;
  record->older = pager->slot[to].older = n;
  record->next = 0;
  *(tier ? &pager->stats.n_lifting : &pager->stats.n_sinking) += n;
  for (uint32_t a = from, b = to; a != UINT32_MAX; a = pager->slot[a].more, b = pager->slot[b].more)
    pager_copy_emit(pager, tier ? WEFT_FILE_TO_HOST : WEFT_HOST_TO_FILE, slot_number(pager, a), slot_number(pager, b));
  return true;
}

void weft_pager_moved(weft_pager *pager, const weft_page_copy *move, bool ok) {
  bool up = move->kind == WEFT_FILE_TO_HOST;
  uint32_t *n_moving = up ? &pager->stats.n_lifting : &pager->stats.n_sinking;
  WEFT_CHECK(*n_moving > 0 && (up || move->kind == WEFT_HOST_TO_FILE));
  uint32_t from = first_slot(pager, move->from + (up ? pager->n_host : 0));
  uint32_t to = first_slot(pager, move->to + (up ? 0 : pager->n_host));
  pager_slot *record = &pager->slot[from];
  WEFT_CHECK(record->state == PAGER_SLOT_MOVING && pager->slot[to].state == PAGER_SLOT_MOVING);
  *n_moving -= 1;
  if (!ok) record->next = 1;
  pager->slot[to].older -= 1;
  if (--record->older != 0) return; /* the rest of a state is still on its way */
  ok = record->next == 0;
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
    *(up ? &pager->stats.n_from_file : &pager->stats.n_to_file) += content_slots(pager, node, group);
    return;
  } else {
    content_free(pager, from);
  }
  content_free(pager, to);
}

static uint32_t low_water(const weft_pager *pager) {
  uint32_t low = pager->n_host / LOW_WATER_PART;
  if (low < LOW_WATER_LEAST) low = LOW_WATER_LEAST;
  return low < pager->n_host / 2 ? low : pager->n_host / 2;
}

static bool sinks_ever(const weft_pager *pager, uint32_t s) {
  uint32_t n = content_slots(pager, pager->slot[s].node, pager->slot[s].group);
  return n <= WEFT_MOVES_MAX && fits_tier(pager, 1, n);
}

/* Begins sinks until `low` slots of the host are free, or will be. */
static void sink_oldest_slots(weft_pager *pager, uint32_t low) {
  const weft_pager_stats *stats = &pager->stats;
  uint32_t head = pager->n_slots;
  if (pager->n_slots == pager->n_host) return;
  while (stats->n_sinking < SINKING_MAX && pager->n_free_host + stats->n_sinking <= low) {
    uint32_t oldest = pager->slot[head].next;
    if (oldest == head) return;
    if (!sinks_ever(pager, oldest))
      (void)tier_forget_oldest(pager, 0); /* it must not keep others from sinking */
    else if (!move_begin(pager, oldest))
      return;
  }
}

/* ---- out of the pool ------------------------------------------------------------------------- */

/* A waiting copy that fills the page must stay, because the copy to the host reads the page. */
static void copy_out(weft_pager *pager, weft_page page, uint32_t s) {
  pager_copy_emit(pager, WEFT_PAGE_TO_HOST, page, s);
  pager->slot[s].waiting = 1;
  pager->page[page].copy = 0;
}

bool pager_spill_out(weft_pager *pager, weft_page page) {
  pager_page *record = &pager->page[page];
  uint32_t n = pager_block_pages(pager, page);
  if (!has_room_for_copies(pager, n) || !fits_tier(pager, 0, n)) return false;
  uint32_t s = content_take(pager, 0, n);
  if (s == UINT32_MAX) return false;
  const weft_page *list = n == 1 ? NULL : pager_run_list(pager, page);
  for (uint32_t i = 1, more = pager->slot[s].more; i < n; i++, more = pager->slot[more].more)
    copy_out(pager, list[i], more);
  copy_out(pager, page, s); /* the last one: while it waits, the content is not there */
  pager_journal_block(pager, WEFT_JOURNAL_REMOVED, page);
  slot_attach(pager, s, record->node, record->group);
  slot_list_append(pager, s);
  record->node = PAGER_NODE_NONE;
  record->keep = 0;
  pager->stats.n_spilled += n;
  sink_oldest_slots(pager, low_water(pager)); /* before the host is full */
  return true;
}

void weft_pager_spill_lost(weft_pager *pager, uint32_t host_slot) {
  WEFT_CHECK(host_slot < pager->n_host);
  uint32_t s = first_slot(pager, host_slot);
  if (pager->slot[s].node == PAGER_NODE_NONE) return; /* its content was given up meanwhile */
  pager->stats.n_spill_lost += 1;
  pager_spill_forget(pager, PAGER_PLACE_SLOT | s);
}

/* ---- back into it ---------------------------------------------------------------------------- */

pager_reach pager_spill_reach(const weft_pager *pager, uint32_t place) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  if (slot_tier(pager, s)) return PAGER_IN_FILE;
  return pager->slot[s].waiting ? PAGER_NOWHERE : PAGER_IN_HOST;
}

/* How many pages of the blocks that a hit at `position` needs are CACHED, in host memory and in the file. */
typedef struct needed_blocks {
  uint32_t n_cached, n_host, n_file;
} needed_blocks;

typedef void (*place_visitor)(weft_pager *pager, uint32_t place, uint32_t n_pages, void *self);

static void each_needed(weft_pager *pager, const weft_admit *args, uint32_t position, place_visitor call, void *self) {
  const pager_model *model = &pager->model[args->model];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    for (uint32_t block = pager_window_first(group, position); block < position >> group->shift; block++)
      call(pager, pager_places(pager, pager->path[(block + 1) * group->span - 1])[g], pager_group_pages(group), self);
  }
}

static void count_needed(weft_pager *pager, uint32_t place, uint32_t n_pages, void *self) {
  needed_blocks *n = (needed_blocks *)self;
  if (pager_place_is_page(place))
    n->n_cached += pager->page[place].state == PAGER_CACHED ? n_pages : 0;
  else if (pager_place_is_slot(place))
    *(slot_tier(pager, place & ~PAGER_PLACE_SLOT) ? &n->n_file : &n->n_host) += n_pages;
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

/* Takes pages for the content of slot s, which is published there as it was before and has one reference. */
static weft_page restore_block(weft_pager *pager, uint32_t s, uint32_t owner) {
  uint32_t node = pager->slot[s].node, group = pager->slot[s].group, id = pager_group_id_at(pager, node, group);
  bool plain = group < pager->model[pager->node[node].model].n_plain;
  weft_page page = plain ? pager_page_take(pager, owner, id) : pager_run_take(pager, owner, id);
  uint32_t n = pager_block_pages(pager, page), more = pager->slot[s].more;
  pager_copy_emit(pager, WEFT_HOST_TO_PAGE, s, page);
  for (uint32_t i = 1; i < n; i++, more = pager->slot[more].more)
    pager_copy_emit(pager, WEFT_HOST_TO_PAGE, more, pager_run_list(pager, page)[i]);
  pager->page[page].node = node & PAGER_NODE_NONE;
  pager->page[page].group = group & (WEFT_GROUPS_MAX - 1);
  pager_places(pager, node)[group] = page;
  slot_detach(pager, s);
  pager_journal_block(pager, WEFT_JOURNAL_STORED, page);
  pager->stats.n_restored += n;
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
static void touch_host_slot(weft_pager *pager, uint32_t place, uint32_t n_pages, void *self) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  (void)self, (void)n_pages;
  if (!pager_place_is_slot(place) || slot_tier(pager, s)) return;
  if (pager->slot[s].state != PAGER_SLOT_HELD) return;
  slot_list_remove(pager, s);
  slot_list_append(pager, s);
}

static void count_held(weft_pager *pager, uint32_t place, uint32_t n_pages, void *self) {
  uint32_t s = place & ~PAGER_PLACE_SLOT;
  if (!pager_place_is_slot(place) || !slot_tier(pager, s)) return;
  if (pager->slot[s].state == PAGER_SLOT_HELD) *(uint32_t *)self += n_pages;
}

static void lift_slot(weft_pager *pager, uint32_t place, uint32_t n_pages, void *self) {
  uint32_t s = place & ~PAGER_PLACE_SLOT, *n_moving = (uint32_t *)self;
  if (!pager_place_is_slot(place) || !slot_tier(pager, s)) return;
  if (pager->slot[s].state == PAGER_SLOT_HELD) (void)move_begin(pager, s);
  if (pager->slot[s].state == PAGER_SLOT_MOVING) *n_moving += n_pages;
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

/* ---- what outlives the process ----------------------------------------------------------------- */

bool pager_spill_has_room(const weft_pager *pager, uint32_t n) {
  return n <= pager->n_free_host && has_room_for_copies(pager, 2 * n); /* the sinks are copies, too */
}

void pager_sink_all(weft_pager *pager) {
  sink_oldest_slots(pager, pager->n_host);
}

bool pager_file_content(const weft_pager *pager, uint32_t slot, uint32_t *node, uint32_t *group) {
  const pager_slot *record = &pager->slot[pager->n_host + slot];
  if (record->state != PAGER_SLOT_HELD) return false;
  *node = record->node;
  *group = record->group;
  return true;
}

uint32_t pager_file_slots(const weft_pager *pager, uint32_t slot, uint32_t *out) {
  uint32_t n = 0;
  for (uint32_t s = pager->n_host + slot; s != UINT32_MAX; s = pager->slot[s].more) out[n++] = slot_number(pager, s);
  return n;
}

/* All FREE slots of the file, the first one first. */
static void list_free_slots(weft_pager *pager) {
  pager->free_slot[1] = UINT32_MAX;
  for (uint32_t s = pager->n_slots; s-- > pager->n_host;) {
    if (pager->slot[s].state != PAGER_SLOT_FREE) continue;
    pager->slot[s].next = pager->free_slot[1];
    pager->free_slot[1] = s;
  }
}

static void slot_lend(weft_pager *pager, uint32_t s) {
  pager->slot[s].state = PAGER_SLOT_LENT;
  pager->slot[s].more = UINT32_MAX;
  pager->slot[s].node = PAGER_NODE_NONE;
}

bool weft_pager_slots_claim(weft_pager *pager, const uint32_t *slot, uint32_t n) {
  uint32_t n_file = pager->n_slots - pager->n_host, i = 0;
  for (; i < n && slot[i] < n_file && pager->slot[pager->n_host + slot[i]].state == PAGER_SLOT_FREE; i++)
    slot_lend(pager, pager->n_host + slot[i]);
  for (uint32_t k = 0; i < n && k < i; k++) slot_free(pager, pager->n_host + slot[k]);
  list_free_slots(pager);
  return i == n;
}

uint32_t weft_pager_slots_take(weft_pager *pager, uint32_t *slot, uint32_t max) {
  uint32_t n = 0, s = UINT32_MAX;
  while (n < max && pager->n_slots > pager->n_host && (s = slot_take(pager, 1)) != UINT32_MAX) {
    slot_lend(pager, s);
    slot[n++] = slot_number(pager, s);
  }
  return n;
}

void weft_pager_slots_give_back(weft_pager *pager, const uint32_t *slot, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    WEFT_CHECK(pager->slot[pager->n_host + slot[i]].state == PAGER_SLOT_LENT);
    slot_free(pager, pager->n_host + slot[i]);
  }
}

static bool can_be_block(const weft_pager *pager, uint32_t node, uint32_t g, uint32_t n_slots) {
  const pager_node *record = &pager->node[node];
  const pager_model *model = &pager->model[record->model];
  if (record->root || g >= model->n_groups || (record->depth & (model->group[g].span - 1)) != 0) return false;
  if (n_slots != pager_group_pages(&model->group[g]) || !fits_tier(pager, 1, n_slots)) return false;
  return pager_places(pager, node)[g] == PAGER_PLACE_NONE;
}

bool weft_pager_adopt_block(weft_pager *pager, uint32_t node, uint32_t group, const uint32_t *slot, uint32_t n_slots) {
  WEFT_CHECK(node < pager->n_nodes_touched && pager->node[node].live);
  if (n_slots == 0 || !can_be_block(pager, node, group, n_slots)) {
    weft_pager_slots_give_back(pager, slot, n_slots);
    return false;
  }
  uint32_t first = pager->n_host + slot[0], last = first;
  for (uint32_t i = 0; i < n_slots; i++) {
    uint32_t s = pager->n_host + slot[i];
    WEFT_CHECK(pager->slot[s].state == PAGER_SLOT_LENT);
    pager->slot[s] =
        (pager_slot){.older = first, .more = UINT32_MAX, .node = PAGER_NODE_NONE, .state = PAGER_SLOT_MEMBER};
    if (i > 0) pager->slot[last].more = s;
    last = s;
  }
  pager->node[node].refs += 1;
  slot_attach(pager, first, node, group);
  slot_list_append(pager, first);
  return true;
}

/* ---- check ----------------------------------------------------------------------------------- */

#define BROKEN(...) (weft_fail(error, WEFT_E_INVALID, "pager check: " __VA_ARGS__), false)

static bool slot_check(const weft_pager *pager, uint32_t s, uint32_t *n_members, weft_error *error) {
  const pager_slot *record = &pager->slot[s];
  bool held = record->state == PAGER_SLOT_HELD;
  if (record->state == PAGER_SLOT_PICKED) return BROKEN("slot %u is still picked", s);
  if (record->state == PAGER_SLOT_MEMBER) return true;
  if (record->state == PAGER_SLOT_FREE)
    return record->node == PAGER_NODE_NONE ? true : BROKEN("slot %u is free and held", s);
  uint32_t n = 1;
  for (uint32_t more = record->more; more != UINT32_MAX; more = pager->slot[more].more, n++)
    if (more >= pager->n_slots || pager->slot[more].state != PAGER_SLOT_MEMBER || pager->slot[more].older != s ||
        slot_tier(pager, more) != slot_tier(pager, s))
      return BROKEN("slot %u is among those of slot %u and no member", more, s);
  *n_members += n - 1;
  if (record->node == PAGER_NODE_NONE) return held ? BROKEN("slot %u is held for no node", s) : true;
  if (record->node >= pager->n_nodes_touched || !pager->node[record->node].live ||
      pager_places(pager, record->node)[record->group] != (PAGER_PLACE_SLOT | s))
    return BROKEN("slot %u names node %u, which does not name it", s, record->node);
  if (n != content_slots(pager, record->node, record->group))
    return BROKEN("the content in slot %u has %u slots", s, n);
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
  uint32_t n_of[2][6] = {{0}}, n_held[2] = {0}, n_moving[2] = {0}, n_members = 0;
  for (uint32_t s = 0; s < pager->n_slots; s++) {
    if (!slot_check(pager, s, &n_members, error)) return false;
    const pager_slot *record = &pager->slot[s];
    uint32_t tier = slot_tier(pager, s), moves = record->state == PAGER_SLOT_MOVING ? record->older : 0;
    n_of[tier][record->state] += 1;
    n_moving[tier] += moves;
    n_held[tier] += pager->slot[first_slot(pager, s)].node != PAGER_NODE_NONE;
  }
  if (n_members != n_of[0][PAGER_SLOT_MEMBER] + n_of[1][PAGER_SLOT_MEMBER])
    return BROKEN("%u slots are members of contents", n_members);
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
  if (n_moving[0] != n_moves || n_moving[1] != n_moves)
    return BROKEN("%u moves, %u and %u of them counted by slots", n_moves, n_moving[0], n_moving[1]);
  return waiting_check(pager, error);
}
