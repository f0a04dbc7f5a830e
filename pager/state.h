/* SPDX-License-Identifier: MIT */
/* States: blocks in runs of pages.
 *
 * Law: a state is a block that ends at its border and lies in a run of pages, which are taken, paid for, evicted and
 * moved as one. The record of the first page speaks for the run: its state, references, owner, node and place in a
 * list. The other pages are its members and name it. A list says which pages a run has; the pages may lie anywhere, so
 * a pool cannot be too fragmented for a state. The lists lie behind the block tables, in the same array, so that a
 * batch can name them by their offset. They never move while the run exists. */
#ifndef WEFT_PAGER_STATE_H
#define WEFT_PAGER_STATE_H

#include "pager/records.h"

/* A list of pages begins with a head: how many they are (of a free list: the next free one), and while the state is
 * WARM the lists of the states that were let go before and after it, 0 for none. */
enum { PAGER_RUN_N = 0, PAGER_RUN_BEFORE = 1, PAGER_RUN_AFTER = 2, PAGER_RUN_HEAD = 3 };

/* The pages of the state whose first one this is; before them lies the head. */
static inline const weft_page *pager_run_list(const weft_pager *pager, weft_page page) {
  return pager->table + pager->run_base + pager->run[page] + PAGER_RUN_HEAD;
}

static inline uint32_t pager_run_length(const weft_pager *pager, weft_page page) {
  return pager->table[pager->run_base + pager->run[page] + PAGER_RUN_N];
}

static inline bool pager_has_states(const pager_model *model) {
  return model->n_plain != model->n_groups;
}

static inline uint32_t pager_group_pages(const pager_group *group) {
  return group->layers.state_pages == 0 ? 1 : group->layers.state_pages;
}

/* Whether the page is the first one of a state. */
static inline bool pager_is_state(const weft_pager *pager, weft_page page) {
  return pager->run != NULL && pager->run[page] != 0;
}

/* The pages of the block whose first page this is: more than one only of a state. */
static inline uint32_t pager_block_pages(const weft_pager *pager, weft_page page) {
  return pager_is_state(pager, page) ? pager_run_length(pager, page) : 1;
}

/* How many entries the lists of a group need. */
uint64_t pager_run_entries(const weft_pager *pager, const weft_layer_group *layers);
/* All lists of all groups become free. */
void pager_runs_reset(weft_pager *pager);
/* A run with one reference and meaningless content, counted as taken. There must be headroom. Returns its first page.
 * */
weft_page pager_run_take(weft_pager *pager, uint32_t owner, uint32_t group_id);
/* If the page is the first of a run, the others become FREE, and the page is one like any other. */
void pager_run_dissolve(weft_pager *pager, weft_page page);
/* What pin, unpin and keep are for a page (pool.c, window.c), for a state by its first page. */
void pager_run_pin(weft_pager *pager, weft_page page, uint32_t owner, uint32_t group_id);
void pager_run_unpin(weft_pager *pager, weft_page page, pager_list list);
void pager_run_keep(weft_pager *pager, weft_page page);
/* The first page of a state left the lists of CACHED pages and was counted as evicted; now the state is. */
void pager_run_evicted(weft_pager *pager, weft_page page);

/* Pages that a reserve up to `end` takes for states that the next rows may need, where the rows before `sure` are not
 * void, and for snapshots at boundaries; and how many of them the owner of the sequence pays for. */
typedef struct pager_state_need {
  uint32_t n_next, n_next_own, n_snapshots, n_snapshots_own;
  bool snapshots; /* whether there is room for all of them: the caller says it before it takes anything */
} pager_state_need;
pager_state_need pager_states_need(const weft_pager *pager, weft_seq seq, uint32_t end, uint32_t sure);
/* The caller must not commit to where there is no state for the next row. */
void pager_states_require(const weft_pager *pager, weft_seq seq);
/* Returns the states beyond n_valid. */
void pager_states_trim(weft_pager *pager, weft_seq seq);
/* Lets go of the states that end at base block `end`. */
void pager_states_release(weft_pager *pager, weft_seq seq, uint32_t end);
/* Takes what pager_states_need found; keys and values were taken since. */
void pager_states_take(weft_pager *pager, weft_seq seq, uint32_t end, uint32_t sure, const pager_state_need *need);
/* True: the running sequence holds a state at the position, or can still be made to keep one there. */
bool pager_state_is_coming(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t position);
bool pager_runs_check(const weft_pager *pager, weft_error *error);

#endif
