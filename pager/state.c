/* SPDX-License-Identifier: MIT */
/* Of the borders that a reserve reaches, the next rows need the last one that the sure rows reach, and those behind it.
 * The table has states there, and snapshots at the boundaries before; the entries of the other borders are NONE.
 *
 *   border            64    128    192    256    320        reserve of 300 rows; a boundary at 128
 *   table           [ NONE | run  | NONE | run ]            the state at 256 is for the rows from 256 on */
#include "pager/pager_internal.h"

enum { WARM_PART = 2 /* WARM states hold at most one page in so many of the pool */ };

/* ---- lists ----------------------------------------------------------------------------------- */

/* One more than there is room for: a new run takes its list before what it evicts gives back its own. */
static uint64_t count_lists(const weft_pager *pager, const weft_layer_group *layers) {
  return layers->state_pages == 0 ? 0 : pager->n_pages / layers->state_pages + 1;
}

uint64_t pager_run_entries(const weft_pager *pager, const weft_layer_group *layers) {
  return count_lists(pager, layers) * (layers->state_pages + PAGER_RUN_HEAD);
}

void pager_runs_reset(weft_pager *pager) {
  weft_page *lists = pager->table + pager->run_base;
  uint32_t at = 1; /* 0: no list */
  for (uint32_t m = 0; m < pager->n_models; m++) {
    for (uint32_t g = pager->model[m].n_plain; g < pager->model[m].n_groups; g++) {
      const pager_group *group = &pager->model[m].group[g];
      uint32_t *free_run = &pager->free_run[pager_group_id(m, g)];
      *free_run = 0;
      for (uint64_t n = count_lists(pager, &group->layers); n > 0; n--) {
        lists[at] = *free_run;
        *free_run = at;
        at += group->layers.state_pages + PAGER_RUN_HEAD;
      }
    }
  }
}

static weft_page *list_at(const weft_pager *pager, uint32_t at) {
  return pager->table + pager->run_base + at;
}

weft_page pager_run_take(weft_pager *pager, uint32_t owner, uint32_t group_id) {
  const pager_group *group = &pager->model[group_id / WEFT_GROUPS_MAX].group[group_id % WEFT_GROUPS_MAX];
  uint32_t at = pager->free_run[group_id], n_pages = group->layers.state_pages;
  WEFT_CHECK(at != 0);
  weft_page *list = list_at(pager, at), *page = list + PAGER_RUN_HEAD;
  /* Before pages are taken, since that may evict runs, whose lists become free. */
  pager->free_run[group_id] = list[PAGER_RUN_N];
  list[PAGER_RUN_N] = n_pages;
  page[0] = pager_page_next(pager, owner, group_id);
  for (uint32_t i = 1; i < n_pages; i++) {
    page[i] = pager_page_next(pager, owner, group_id);
    pager->page[page[i]] =
        (pager_page){.next = page[0] & PAGER_LINK_NONE, .node = PAGER_NODE_NONE, .state = PAGER_MEMBER};
  }
  pager->run[page[0]] = at;
  pager_count_taken(pager, owner, group_id, n_pages);
  pager->usage[group_id].n_pinned -= n_pages - 1; /* counted in blocks */
  return page[0];
}

/* The id of the group in whose lists the list at `at` is: they lie one behind another. */
static uint32_t group_of_list(const weft_pager *pager, uint32_t at) {
  uint64_t end = 1;
  for (uint32_t m = 0; m < pager->n_models; m++) {
    for (uint32_t g = pager->model[m].n_plain; g < pager->model[m].n_groups; g++) {
      end += pager_run_entries(pager, &pager->model[m].group[g].layers);
      if (at < end) return pager_group_id(m, g);
    }
  }
  WEFT_CHECK(!"a list is of no group");
  return 0;
}

void pager_run_dissolve(weft_pager *pager, weft_page page) {
  uint32_t at = pager->run[page];
  if (at == 0) return;
  weft_page *list = list_at(pager, at);
  for (uint32_t i = list[PAGER_RUN_N] - 1; i >= 1; i--) pager_page_free(pager, list[PAGER_RUN_HEAD + i]);
  pager->run[page] = 0;
  uint32_t group_id = group_of_list(pager, at);
  list[PAGER_RUN_N] = pager->free_run[group_id];
  pager->free_run[group_id] = at;
}

/* ---- WARM states ------------------------------------------------------------------------------ */

/* They are chained through the heads of their lists, in the order in which they were let go. */
static void chain_append(weft_pager *pager, weft_page page) {
  uint32_t at = pager->run[page], last = pager->kept[1];
  list_at(pager, at)[PAGER_RUN_BEFORE] = last;
  list_at(pager, at)[PAGER_RUN_AFTER] = 0;
  *(last == 0 ? &pager->kept[0] : &list_at(pager, last)[PAGER_RUN_AFTER]) = at;
  pager->kept[1] = at;
  pager->n_kept_pages += pager_run_length(pager, page);
}

static void chain_remove(weft_pager *pager, weft_page page) {
  const weft_page *list = list_at(pager, pager->run[page]);
  uint32_t before = list[PAGER_RUN_BEFORE], after = list[PAGER_RUN_AFTER];
  *(before == 0 ? &pager->kept[0] : &list_at(pager, before)[PAGER_RUN_AFTER]) = after;
  *(after == 0 ? &pager->kept[1] : &list_at(pager, after)[PAGER_RUN_BEFORE]) = before;
  pager->n_kept_pages -= pager_run_length(pager, page);
}

/* The state, which is in a WARM list, is chained. While WARM states hold more than their share of the pool, the one
 * that was let go first goes to host memory, or becomes COLD where that has no room. */
static void keep_warm(weft_pager *pager, weft_page page) {
  pager->page[page].keep = 1;
  chain_append(pager, page);
  while (pager->n_kept_pages > pager->n_open / WARM_PART) {
    weft_page first = list_at(pager, pager->kept[0])[PAGER_RUN_HEAD];
    chain_remove(pager, first);
    pager->page[first].keep = 0;
    if (!pager_block_sink(pager, first)) pager_page_cool(pager, first);
  }
}

/* ---- changes of state ------------------------------------------------------------------------- */

/* The first page is counted where every page is (pool.c); what follows counts the members. */
static uint32_t count_members(const weft_pager *pager, weft_page page) {
  return pager_run_length(pager, page) - 1;
}

static bool is_warm(const weft_pager *pager, weft_page page) {
  return pager->page[page].state == PAGER_CACHED && pager->page[page].keep;
}

void pager_run_pin(weft_pager *pager, weft_page page, uint32_t owner, uint32_t group_id) {
  pager_page *record = &pager->page[page];
  uint32_t n = count_members(pager, page), before = record->owner;
  bool cached = record->state == PAGER_CACHED;
  if (is_warm(pager, page)) chain_remove(pager, page);
  pager_page_pin(pager, page, owner, group_id);
  if (cached) {
    pager->stats.n_cached -= n;
    pager->stats.n_pinned += n;
  }
  *(cached ? &pager->owner[before].n_cached : &pager->owner[before].n_pinned) -= n;
  pager->owner[record->owner].n_pinned += n;
}

void pager_run_unpin(weft_pager *pager, weft_page page, pager_list list) {
  pager_page *record = &pager->page[page];
  uint32_t n = count_members(pager, page), owner = record->owner;
  bool last = record->pinned.references == 1, published = record->node != PAGER_NODE_NONE;
  if (last) {
    pager->owner[owner].n_pinned -= n;
    pager->stats.n_pinned -= n;
  }
  if (last && !published) pager_run_dissolve(pager, page);
  pager_page_unpin(pager, page, list);
  if (!last || !published) return;
  pager->owner[owner].n_cached += n;
  pager->stats.n_cached += n;
  if (record->keep || list != PAGER_COLD) keep_warm(pager, page);
}

void pager_run_keep(weft_pager *pager, weft_page page) {
  if (is_warm(pager, page)) chain_remove(pager, page);
  pager->page[page].keep = 1;
  if (pager->page[page].state != PAGER_CACHED) return;
  pager_page_touch(pager, page);
  keep_warm(pager, page);
}

void pager_run_evicted(weft_pager *pager, weft_page page) {
  uint32_t n = count_members(pager, page);
  weft_owner_usage *payer = &pager->owner[pager->page[page].owner];
  if (is_warm(pager, page)) chain_remove(pager, page);
  payer->n_cached -= n;
  payer->n_evicted += n;
  pager->stats.n_cached -= n;
  pager->stats.n_evicted += n;
}

/* ---- which states a sequence takes ------------------------------------------------------------ */

/* Whether a boundary of the sequence lies at the end of this block, so that the state there is worth a snapshot. */
static bool is_snapshot(const weft_pager *pager, weft_seq seq, const pager_group *group, uint32_t block) {
  return pager->seq[seq].tail != PAGER_NODE_NONE &&
         pager_boundary_at(pager, seq, (block + 1) * group->layers.block_tokens);
}

/* A row may follow on the state of this block: it is at the last border that the sure rows reach, or behind it. */
static bool is_next(const pager_group *group, uint32_t block, uint32_t sure) {
  return block + 1 >= sure >> group->shift;
}

pager_state_need pager_states_need(const weft_pager *pager, weft_seq seq, uint32_t end, uint32_t sure) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  pager_state_need need = {0};
  for (uint32_t g = model->n_plain; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    uint32_t n_pages = group->layers.state_pages, n_public = pager_public_blocks(s, group);
    uint32_t n_blocks = pager_blocks(group, end);
    for (uint32_t block = s->end[g]; block < n_blocks; block++) {
      uint32_t n_own = block < n_public ? 0 : n_pages;
      if (is_next(group, block, sure)) {
        need.n_next += n_pages;
        need.n_next_own += n_own;
      } else if (is_snapshot(pager, seq, group, block)) {
        need.n_snapshots += n_pages;
        need.n_snapshots_own += n_own;
      }
    }
  }
  return need;
}

void pager_states_take(weft_pager *pager, weft_seq seq, uint32_t end, uint32_t sure, const pager_state_need *need) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = model->n_plain; g < model->n_groups; g++) {
    const pager_group *group = &model->group[g];
    weft_page *table = pager_table(pager, seq, g);
    uint32_t n_blocks = pager_blocks(group, end);
    for (uint32_t block = s->end[g]; block < n_blocks; block++) {
      bool takes = is_next(group, block, sure) || (need->snapshots && is_snapshot(pager, seq, group, block));
      table[block] =
          takes ? pager_run_take(pager, pager_payer(s, group, block), pager_group_id(s->model, g)) : WEFT_PAGE_NONE;
    }
    s->end[g] = n_blocks;
  }
}

void pager_states_require(const weft_pager *pager, weft_seq seq) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = model->n_plain; g < model->n_groups; g++)
    WEFT_CHECK(s->n_valid < model->group[g].layers.block_tokens ||
               pager_table(pager, seq, g)[s->first[g]] != WEFT_PAGE_NONE);
}

void pager_states_trim(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = model->n_plain; g < model->n_groups; g++) {
    const weft_page *table = pager_table(pager, seq, g);
    uint32_t n_kept = pager_blocks(&model->group[g], s->n_valid), block = s->end[g];
    s->end[g] = n_kept;
    while (block-- > n_kept)
      if (table[block] != WEFT_PAGE_NONE) pager_run_unpin(pager, table[block], PAGER_WARM);
  }
}

void pager_states_release(weft_pager *pager, weft_seq seq, uint32_t end) {
  const pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = model->n_plain; g < model->n_groups; g++) {
    uint32_t span = model->group[g].span, block = end / span - 1;
    if ((end & (span - 1)) != 0 || block < s->first[g] || block >= s->end[g]) continue;
    weft_page page = pager_table(pager, seq, g)[block];
    if (page != WEFT_PAGE_NONE)
      pager_run_unpin(pager, page, pager_block_is_needed(pager, seq, g, block) ? PAGER_WARM : PAGER_COLD);
  }
}

bool pager_state_is_coming(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t position) {
  const pager_seq *s = &pager->seq[seq];
  if (position > s->n_reserved) return true;
  uint32_t block = (position >> pager->model[s->model].group[group].shift) - 1;
  return pager_table(pager, seq, group)[block] != WEFT_PAGE_NONE;
}

const weft_page *weft_pager_state(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t position) {
  const pager_seq *s = pager_seq_of(pager, seq);
  const pager_model *model = &pager->model[s->model];
  WEFT_CHECK(group >= model->n_plain && group < model->n_groups);
  const pager_group *of = &model->group[group];
  WEFT_CHECK((position & (of->layers.block_tokens - 1)) == 0);
  uint32_t block = (position >> of->shift) - 1; /* of position 0 a number that no table reaches */
  if (block < s->first[group] || block >= s->end[group]) return NULL;
  weft_page page = pager_table(pager, seq, group)[block];
  return page == WEFT_PAGE_NONE ? NULL : pager_run_list(pager, page);
}

/* ---- check ----------------------------------------------------------------------------------- */

#define BROKEN(...) (weft_fail(error, WEFT_E_INVALID, "pager check: " __VA_ARGS__), false)

/* The list of a run names its first page and its members, and they name it. *n_members: how many. */
static bool run_check(const weft_pager *pager, weft_page first, uint32_t *n_members, weft_error *error) {
  const weft_page *list = pager_run_list(pager, first);
  const pager_page *record = &pager->page[first];
  if (record->state != PAGER_CACHED && record->state != PAGER_PINNED)
    return BROKEN("page %u begins a state and is in state %u", first, record->state);
  uint32_t id =
      record->state == PAGER_PINNED ? record->pinned.group_id : pager_group_id_at(pager, record->node, record->group);
  uint32_t n = pager_run_length(pager, first);
  if (n != pager->model[id / WEFT_GROUPS_MAX].group[id % WEFT_GROUPS_MAX].layers.state_pages || list[0] != first)
    return BROKEN("the state in page %u has %u pages, page %u first", first, n, list[0]);
  for (uint32_t i = 1; i < n; i++) {
    if (list[i] >= pager->n_pages_touched || pager->page[list[i]].state != PAGER_MEMBER ||
        pager->page[list[i]].next != first)
      return BROKEN("page %u is in the list of page %u and no member of its state", list[i], first);
    for (uint32_t k = 1; k < i; k++)
      if (list[k] == list[i]) return BROKEN("page %u is in the state of page %u twice", list[i], first);
  }
  *n_members += n - 1;
  return true;
}

/* The chain of the WARM states has all of them. */
static bool kept_check(const weft_pager *pager, weft_error *error) {
  uint32_t n_pages = 0, before = 0;
  for (uint32_t at = pager->kept[0]; at != 0; at = list_at(pager, at)[PAGER_RUN_AFTER]) {
    weft_page first = list_at(pager, at)[PAGER_RUN_HEAD];
    if (first >= pager->n_pages || pager->run[first] != at || list_at(pager, at)[PAGER_RUN_BEFORE] != before ||
        pager->page[first].state != PAGER_CACHED || !pager->page[first].keep)
      return BROKEN("the chain of states that are kept is broken at page %u", first);
    n_pages += list_at(pager, at)[PAGER_RUN_N];
    if (n_pages > pager->n_kept_pages) break;
    before = at;
  }
  if (n_pages != pager->n_kept_pages || before != pager->kept[1])
    return BROKEN("the chain of states that are kept has %u pages, counted %u", n_pages, pager->n_kept_pages);
  return true;
}

bool pager_runs_check(const weft_pager *pager, weft_error *error) {
  uint32_t n_members = 0, n_found = 0;
  uint64_t n_lists = 0, n_free = 0, n_used = 0;
  for (uint32_t m = 0; m < pager->n_models; m++) {
    for (uint32_t g = pager->model[m].n_plain; g < pager->model[m].n_groups; g++) {
      n_lists += count_lists(pager, &pager->model[m].group[g].layers);
      for (uint32_t at = pager->free_run[pager_group_id(m, g)]; at != 0; at = list_at(pager, at)[PAGER_RUN_N])
        if (++n_free > n_lists) return BROKEN("the free lists of runs have a loop");
    }
  }
  for (weft_page page = 0; page < pager->n_pages_touched; page++) {
    n_found += pager->page[page].state == PAGER_MEMBER;
    if (!pager_is_state(pager, page)) continue;
    n_used += 1;
    if (!run_check(pager, page, &n_members, error)) return false;
  }
  if (n_members != n_found) return BROKEN("%u pages are members of states, %u of them in a list", n_found, n_members);
  if (!kept_check(pager, error)) return false;
  if (n_used + n_free != n_lists)
    return BROKEN("%llu lists of runs, %llu in use and %llu free", (unsigned long long)n_lists,
                  (unsigned long long)n_used, (unsigned long long)n_free);
  return true;
}
