/* SPDX-License-Identifier: MIT */
/* The inside of a fake store, for fake_runner.c and fake_store.c only: the cells of all pages and slots, and copies
 * between them. */
#ifndef WEFT_BENCH_DOUBLES_FAKE_STORE_H
#define WEFT_BENCH_DOUBLES_FAKE_STORE_H

#include "pager/pager.h"
#include "bench/doubles/fake_runner.h"

typedef struct cell {
  uint64_t value;
  uint32_t position;
  uint16_t group, runner; /* runner + 1; 0: never written */
} cell;

typedef struct page_note {
  uint64_t batch; /* serial of the batch that last wrote the page */
  uint32_t slot, runner;
} page_note;

struct fake_runner;
struct fake_flight;

/* Submitted and not computed, over all runners, in order. */
typedef struct pending {
  struct fake_runner *runner;
  struct fake_flight *flight;
} pending;

/* A move of the file under way: it copies when it begins, or when it ends. */
typedef struct fake_move {
  weft_copy_end end;
  bool copied;
  uint64_t due; /* look */
} fake_move;

enum { PENDING_MAX = 64, COPIES_MAX = 4096, LOOKS_OF_SOME = 8 };

struct weft_fake_store {
  uint32_t n_open;                          /* pages with memory */
  uint32_t n_pages, stride, n_host, n_file; /* cells of the host's slots and the file's follow the pages' */
  uint64_t fail_seed, n_rolls;
  uint32_t fail_one_in;
  weft_copy_end ended[COPIES_MAX];
  uint32_t n_ended;
  fake_move move[WEFT_MOVES_MAX];
  uint32_t n_moves, looks_max;
  uint64_t n_looks;
  uint64_t n_batches;
  cell *cell;
  page_note *note;
  pending pending[PENDING_MAX];
  uint32_t n_pending;
};

/* A state: its pages, of which every one says whose it is, and at which border. */
typedef struct fake_state {
  const uint32_t *page; /* [n_pages] */
  uint32_t n_pages, group, border, runner;
} fake_state;

void weft_fake_state_write(weft_fake_store *store, const fake_state *state, uint64_t value);
/* False: some page is not of this state. */
bool weft_fake_state_read(const weft_fake_store *store, const fake_state *state, uint64_t *value);
/* Copies to the host that will fail are known at submit. */
void weft_fake_store_judge_copies(weft_fake_store *store, weft_page_copy *copy, uint32_t n);
void weft_fake_store_run_copies(weft_fake_store *store, const weft_page_copy *copy, uint32_t n);
/* What ended since the last call; some moves end by being asked for. */
uint32_t weft_fake_store_copies_ended(weft_fake_store *store, weft_copy_end *out, uint32_t max);

#endif
