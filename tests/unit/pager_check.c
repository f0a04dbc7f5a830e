/* SPDX-License-Identifier: MIT */
/* The check itself: each thing that could go wrong is made wrong, by hand, and must be named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "tests/support/pager_kit.h"

/* A pager with a bit of everything: cached chains, COLD and FREE pages, a running sequence with
 * promises and rows in flight (1), its fork with a copy waiting (2). */
typedef struct scene {
  weft_pager *pager;
  pager_seq *running, *fork;
  weft_page free, cached, own, writable; /* own: published and held; writable: reserved */
  uint32_t tail, promised, root;         /* nodes */
} scene;

static scene make_scene(void) {
  int32_t tokens[200];
  scene s = {.pager = kit_open(64, 4, 2, (kit_group[]){{16, 0}, {8, 20}})};
  kit_run(s.pager, kit_tokens(tokens, 200, 32, 1), 100);
  kit_tokens(tokens, 200, 32, 2);
  kit_result r = kit_admit(s.pager, tokens, 150, 1);
  kit_is_cached(r, 32);
  kit_compute(s.pager, r.seq, tokens + 32, 50);
  weft_seq fork;
  assert_int_equal(weft_pager_fork(s.pager, r.seq, weft_pager_n_valid(s.pager, r.seq), &fork), WEFT_OK);
  assert_int_equal(weft_pager_reserve(s.pager, r.seq, 20, 20), WEFT_OK);
  s.running = &s.pager->seq[r.seq];
  s.fork = &s.pager->seq[fork];
  s.own = kit_page(s.pager, r.seq, 0, 1);
  s.writable = kit_page(s.pager, r.seq, 0, 6);
  s.free = s.pager->n_pages_touched - 1;
  s.cached = s.pager->page[s.pager->n_pages + PAGER_WARM].next;
  s.tail = s.running->tail;
  s.promised = s.running->announced_tail;
  s.root = pager_root_find(s.pager, PAGER_NODE_NONE, 0, (weft_key128){1, 2});
  weft_page given_back = kit_hold(s.pager, 1);
  s.free = kit_page(s.pager, given_back, 0, 0);
  weft_pager_release(s.pager, given_back);
  assert_int_equal(s.pager->page[s.free].state, PAGER_FREE);
  assert_int_equal(s.pager->n_copies_waiting, 2);
  kit_check(s.pager);
  return s;
}

/* One corruption per case, a line each; false when there are no more. */
/* clang-format off */
static bool corrupt(const scene *s, uint32_t which) {
  weft_pager *p = s->pager;
  weft_page pages = p->n_pages;
  switch (which) {
    case 0: p->stats.n_free += 1; return true;
    case 1: p->stats.n_cached -= 1; return true;
    case 2: p->stats.n_pinned += 1; return true;
    case 3: p->stats.n_seqs += 1; return true;
    case 4: p->page[s->own].pinned.references += 1; return true;
    case 5: p->page[s->own].state = PAGER_CACHED; return true;
    case 6: p->page[s->own].node = PAGER_NODE_NONE; return true;
    case 7: p->page[s->own].group = 1; return true;
    case 8: p->page[s->free].state = PAGER_PINNED; return true;
    case 9: p->page[s->cached].state = PAGER_FREE; return true;
    case 10: p->page[s->cached].cached.older = s->own; return true;
    case 11: p->page[pages + PAGER_WARM].cached.older = s->cached; return true;
    case 12: p->page[pages + PAGER_WARM].next = p->page[s->cached].next; return true;
    case 13: p->page[p->page[pages + PAGER_COLD].next].keep = 1; return true;
    case 14: s->running->end[0] += 1; return true;
    case 15: s->running->first[1] -= 1; return true;
    case 16: s->running->n_valid = s->running->n_reserved + 1; return true;
    case 17: s->running->n_reserved = p->seq_tokens_max + 1; return true;
    case 18: s->running->table[0] = s->cached; return true;
    case 19: s->running->table[0] = WEFT_PAGE_NONE; return true;
    case 20: s->fork->table[5] = s->writable; return true;
    case 21: p->page[s->writable].node = s->tail; return true;
    case 22: s->running->tail = p->node[s->tail].parent; return true;
    case 23: s->running->announced_end -= 1; return true;
    case 24: s->running->live = 0; return true;
    case 25: p->node[s->tail].refs += 1; return true;
    case 26: p->node[s->tail].depth += 1; return true;
    case 27: p->node[s->tail].model = 1; return true;
    case 28: p->node[s->tail].hash[0] ^= 1; return true;
    case 29: p->node[s->tail].hash[1] ^= 0x80000000; return true;
    case 30: p->node[s->promised].live = 0; return true;
    case 31: p->node_tokens[(uint64_t)s->tail * p->node_stride] ^= 1; return true;
    case 32: pager_places(p, s->promised)[1] = s->free; return true;
    case 33: pager_places(p, s->promised)[1] = PAGER_PLACE_PROMISE | 3; return true;
    case 34: pager_places(p, p->page[s->own].node)[0] = PAGER_PLACE_NONE; return true;
    case 35: pager_places(p, s->running->tail)[0] = s->cached; return true;
    case 36: p->n_nodes_live += 1; return true;
    case 37: p->line[PAGER_LINE_ENTRIES] += 1; return true;
    case 38: p->copy[0].to = s->own; return true;
    case 39: p->n_copies_waiting = 1; return true;
    case 40: p->free_page = s->cached; return true;
    case 41: p->page[s->free].next = s->free; return true;
    case 42: p->node_tokens[(uint64_t)s->root * p->node_stride] ^= 1; return true;
    case 43: p->node[s->root].depth = 1; return true;
    case 44: p->page[s->own].owner = 9; return true;
    case 45: p->page[s->cached].owner = 9; return true;
    case 46: p->owner[0].n_cached += 1; return true;
    case 47: p->owner[9].n_pinned += 1; return true;
    case 48: s->running->domain.low += 1; return true;
    case 49: s->running->public_end = 1; return true;
    case 51: p->node[s->tail].worth = 1; return true;
    case 52: p->page[s->cached].cached.due += 3; return true;
    case 53: p->clock += 2; return true;
    case 50: memset(p->node_tokens + (uint64_t)s->root * p->node_stride, 0xFF, 16); return true;
    case 54: p->page[s->own].pinned.group_id += 1; return true;
    case 55: p->usage[0].n_pinned += 1; return true;
    case 56: p->usage[1].n_cached -= 1; return true;
    case 57: p->usage[0].n_host += 1; return true;
    case 58: p->usage[WEFT_GROUPS_MAX].n_file += 1; return true;
    case 59: p->journal_name[s->tail].low ^= 1; return true;
    default: return false;
  }
}
/* clang-format on */

static void every_corruption_is_named(void **state) {
  (void)state;
  bool more = true;
  for (uint32_t which = 0; more; which++) {
    scene s = make_scene();
    weft_error error = {{0}};
    more = corrupt(&s, which);
    bool good = weft_pager_check(s.pager, &error);
    if (good == more) fail_msg("corruption %u: %s", which, good ? "not noticed" : error.text);
    if (more && strlen(error.text) < 10) fail_msg("corruption %u has no words", which);
    weft_pager_close(s.pager);
  }
}

/* In a group that keeps all tokens, a head may not be evicted before its tail. */
static void wrong_order_is_named(void **state) {
  (void)state;
  scene s = make_scene();
  weft_error error = {{0}};
  weft_pager_release(s.pager, (weft_seq)(s.running - s.pager->seq));
  weft_pager_release(s.pager, (weft_seq)(s.fork - s.pager->seq));
  kit_check(s.pager);
  pager_page *page = s.pager->page;
  uint32_t list = s.pager->n_pages + PAGER_WARM;
  weft_page head = page[list].cached.older; /* of a chain: the newest of its group */
  while (page[head].group != 0) head = page[head].cached.older;
  page[page[head].cached.older].next = page[head].next; /* moved to the end that is evicted first */
  page[page[head].next].cached.older = page[head].cached.older;
  weft_page oldest = page[list].next;
  page[head].cached.older = list;
  page[head].next = oldest;
  page[oldest].cached.older = page[list].next = head;
  assert_false(weft_pager_check(s.pager, &error));
  assert_non_null(strstr(error.text, "evicted before"));
  weft_pager_close(s.pager);
}

static void check_without_memory_says_so(void **state) {
  (void)state;
  scene s = make_scene();
  weft_error error = {{0}};
  (void)weft_memory_fail_at(2);
  assert_false(weft_pager_check(s.pager, &error));
  (void)weft_memory_fail_at(0);
  assert_non_null(strstr(error.text, "memory"));
  kit_check(s.pager);
  weft_pager_close(s.pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_corruption_is_named),
                                     cmocka_unit_test(wrong_order_is_named),
                                     cmocka_unit_test(check_without_memory_says_so)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
