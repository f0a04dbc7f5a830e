/* SPDX-License-Identifier: MIT */
/* The grid of the pool: whose each cell is and in which state, with marks, states of several pages, cells of many
 * pages, and scans that go on in parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "pager/grid.h"
#include "tests/support/pager_kit.h"

static weft_grid open_grid(const weft_pager *pager) {
  weft_grid grid;
  assert_int_equal(weft_grid_open(&grid, pager), WEFT_OK);
  return grid;
}

static uint32_t cells_of(const weft_grid *grid, weft_grid_state state, uint32_t owner) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < grid->n_cells; i++) n += grid->cell[i].state == state && grid->cell[i].owner == owner;
  return n;
}

static void scan_all(weft_grid *grid, const weft_pager *pager) {
  weft_grid_begin(grid);
  assert_true(weft_grid_scan(grid, pager, grid->n_pages));
}

static weft_seq begin_as(weft_pager *pager, uint32_t owner, const int32_t *tokens, uint32_t n, uint32_t n_public) {
  kit_result r = kit_enter(
      pager,
      (weft_admit){
          .domain = {owner, 1}, .tokens = tokens, .n_tokens = n, .n_prompt = n, .n_public = n_public, .owner = owner});
  assert_int_equal(r.status, WEFT_OK);
  kit_compute(pager, r.seq, tokens + r.n_cached, n - r.n_cached);
  return r.seq;
}

/* A page is a cell: what the counters say of each owner is what the grid shows. */
static void test_cells_are_pages(void **state) {
  int32_t tokens[4][256];
  (void)state;
  weft_pager *pager = kit_open(64, 4, 1, (kit_group[]){{16, 0}});
  weft_grid grid = open_grid(pager);
  assert_int_equal(grid.n_cells, 64);
  assert_int_equal(grid.pages_per_cell, 1);
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_FREE, 0), 64);
  for (uint32_t i = 0; i < 4; i++) (void)kit_tokens(tokens[i], 256, 32, (int32_t)i + 1);
  weft_seq red = begin_as(pager, 1, tokens[0], 100, 0), blue = begin_as(pager, 200, tokens[1], 70, 32);
  weft_pager_release(pager, begin_as(pager, 1, tokens[2], 64, 0));
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_LIVE, 1), weft_pager_owner_usage(pager, 1).n_pinned);
  assert_int_equal(cells_of(&grid, WEFT_GRID_CACHED, 1), weft_pager_owner_usage(pager, 1).n_cached);
  assert_int_equal(cells_of(&grid, WEFT_GRID_LIVE, 200), weft_pager_owner_usage(pager, 200).n_pinned);
  assert_int_equal(cells_of(&grid, WEFT_GRID_LIVE, WEFT_OWNER_OPERATOR), 2);
  assert_int_equal(cells_of(&grid, WEFT_GRID_FREE, 0), weft_pager_get_stats(pager).n_free);
  assert_int_not_equal(weft_pager_owner_usage(pager, 1).n_cached, 0);
  /* marks: the pages of a sequence, counted once however often it is marked, until they are cleared */
  for (int i = 0; i < 2; i++) weft_grid_mark(&grid, pager, blue);
  assert_int_equal(grid.n_pinned, 5); /* 70 tokens */
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_PINNED, 200) + cells_of(&grid, WEFT_GRID_PINNED, WEFT_OWNER_OPERATOR), 5);
  assert_int_equal(cells_of(&grid, WEFT_GRID_LIVE, 200), 0);
  assert_int_equal(cells_of(&grid, WEFT_GRID_LIVE, 1), weft_pager_owner_usage(pager, 1).n_pinned);
  weft_grid_clear_marks(&grid);
  assert_int_equal(grid.n_pinned, 0);
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_PINNED, 200), 0);
  weft_pager_release(pager, blue);
  weft_grid_close(&grid);
  kit_end(pager, red);
}

/* The pages of a state are like its first one. */
static void test_pages_of_states(void **state) {
  const weft_pager_model model = {.n_groups = 2,
                                  .group = {{.block_tokens = 16}, {.block_tokens = 64, .state_pages = 3}}};
  int32_t tokens[256];
  (void)state;
  weft_pager *pager =
      kit_open_config((weft_pager_config){.n_pages = 40, .n_seqs = 2, .model = &model, .journal_capacity = 64});
  weft_grid grid = open_grid(pager);
  weft_seq seq = begin_as(pager, 9, kit_tokens(tokens, 128, 0, 3), 128, 0);
  uint32_t n_pinned = weft_pager_owner_usage(pager, 9).n_pinned;
  assert_true(n_pinned >= 8 + 3);
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_LIVE, 9), n_pinned);
  weft_grid_mark(&grid, pager, seq);
  assert_int_equal(grid.n_pinned, n_pinned);
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_PINNED, 9), n_pinned);
  weft_grid_clear_marks(&grid);
  weft_pager_release(pager, seq);
  scan_all(&grid, pager);
  assert_int_equal(cells_of(&grid, WEFT_GRID_CACHED, 9), weft_pager_owner_usage(pager, 9).n_cached);
  assert_true(weft_pager_owner_usage(pager, 9).n_cached > 8);
  weft_grid_close(&grid);
  kit_close(pager);
}

/* A cell of several pages is what most of them are, the last cell too, which has fewer; a scan in parts comes to the
 * same. */
static void test_cells_of_many_pages(void **state) {
  enum { PAGES = 3 * WEFT_GRID_CELLS_MAX + 2 };
  int32_t tokens[1024];
  weft_seq seq[300];
  uint32_t n = 0;
  (void)state;
  weft_pager *pager = kit_open(PAGES, 300, 1, (kit_group[]){{16, 0}});
  weft_grid grid = open_grid(pager), parts = open_grid(pager);
  assert_int_equal(grid.pages_per_cell, 4);
  assert_int_equal(grid.n_cells, (PAGES + 3) / 4);
  while (weft_pager_headroom(pager) >= 41) {
    uint32_t n_tokens = 16 * (1 + n * 7 % 41);
    seq[n] = begin_as(pager, n % 5, kit_tokens(tokens, n_tokens, 0, (int32_t)n + 1), n_tokens, 0);
    if (n % 3 == 0) weft_grid_mark(&grid, pager, seq[n]), weft_grid_mark(&parts, pager, seq[n]);
    if (++n == 300) break;
  }
  for (uint32_t i = 0; i < n; i += 4) weft_pager_release(pager, seq[i]);
  scan_all(&grid, pager);
  uint32_t n_scans = 1;
  weft_grid_begin(&parts);
  while (!weft_grid_scan(&parts, pager, 100)) n_scans += 1;
  assert_true(n_scans > PAGES / 100 / 2);
  assert_memory_equal(parts.cell, grid.cell, grid.n_cells * sizeof *grid.cell);
  for (uint32_t i = 0; i < grid.n_cells; i++) {
    uint32_t count[WEFT_GRID_STATES][WEFT_OWNERS_MAX] = {{0}}, most = 0;
    for (weft_page page = 4 * i; page < 4 * i + 4 && page < PAGES; page++) {
      const pager_page *record = &pager->page[page];
      bool marked = (grid.mark[page / 64] >> page % 64 & 1) != 0;
      uint32_t what = record->state == PAGER_FREE     ? WEFT_GRID_FREE
                      : record->state == PAGER_CACHED ? WEFT_GRID_CACHED
                      : marked                        ? WEFT_GRID_PINNED
                                                      : WEFT_GRID_LIVE;
      uint32_t *at = &count[what][what == WEFT_GRID_FREE ? 0 : record->owner];
      if (++*at > most) most = *at;
    }
    assert_int_equal(count[grid.cell[i].state][grid.cell[i].owner], most);
  }
  for (uint32_t i = 0; i < n; i++)
    if (i % 4 != 0) weft_pager_release(pager, seq[i]);
  weft_grid_close(&grid);
  weft_grid_close(&parts);
  kit_close(pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cells_are_pages), cmocka_unit_test(test_pages_of_states),
                                     cmocka_unit_test(test_cells_of_many_pages)};
  return cmocka_run_group_tests_name("unit/pager_grid", tests, NULL, NULL);
}
