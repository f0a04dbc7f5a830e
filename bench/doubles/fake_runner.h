/* SPDX-License-Identifier: MIT */
/* A runner without a device, for tests, simulation and benchmarks. It reads keys and values through
 * the block tables of the batch and writes them through kv_slot, into a store that all fake runners
 * over one pool share.
 *
 * Law. It trusts nothing: what breaks the contract of model/batch.h or of the pool is remembered as
 * a violation, the first one in words: a row that reads a cell of another position, group or
 * runner, or one that this batch lets another request write; positions that do not follow kv_len; a
 * token wanted, or scored, where the slot's history has none; a step of a canvas out of order; a slot that
 * is not open. With `lazy` a batch is computed at collect, from copies taken at submit, so pages
 * that are handed on too early show; over one store batches are computed in the order of
 * submission. Faults come at chosen calls. */
#ifndef WEFT_BENCH_DOUBLES_FAKE_RUNNER_H
#define WEFT_BENCH_DOUBLES_FAKE_RUNNER_H

#include "bench/doubles/fake_model.h"

/* Keys and values of one pool. */
typedef struct weft_fake_store weft_fake_store;
weft_status weft_fake_store_open(uint32_t n_pages, uint32_t block_tokens_max, weft_fake_store **out);
/* Slots of lower tiers; of copies to the host and moves of the file about one in fail_one_in fails, by seed (0:
 * none). Once, before any runner. */
weft_status weft_fake_store_add_tiers(weft_fake_store *store, uint32_t n_host, uint32_t n_file, uint64_t seed,
                                      uint32_t fail_one_in);
/* A move of the file ends after up to `looks` calls of copies_ended [0: at the first]; UINT32_MAX: some never do. */
void weft_fake_store_slow_moves(weft_fake_store *store, uint32_t looks);
uint32_t weft_fake_store_n_moving(const weft_fake_store *store);
void weft_fake_store_end_moves(weft_fake_store *store);             /* all, at the next call */
void weft_fake_store_fail(weft_fake_store *store, uint32_t one_in); /* from now on */
/* The memory of pages from n_pages on is gone, or there again without content; who uses one that is gone breaks the
 * contract. And copies outside of any batch. */
void weft_fake_store_resize(weft_fake_store *store, uint32_t n_pages);
void weft_fake_store_copy(weft_fake_store *store, const weft_page_copy *copy, uint32_t n);
void weft_fake_store_close(weft_fake_store *store);

typedef struct weft_fake_config {
  const char *name;
  weft_fake_model model;
  bool autoregressive;
  uint32_t n_slots, rows_max, depth, context_length;
  uint32_t n_stages;        /* 0: one */
  uint32_t scored_rows_max; /* rows of prompts that one step may score; 0: none */
  bool graphs;              /* as in model/runner/runner.h; steps take what law says all the same */
  uint32_t draft_rows_max;  /* rows with drafts that one step may have; 0: none; needs a store */
  bool drafts;              /* it makes drafts itself, of keys alone; not where a group has states */
  uint32_t drafts_right;    /* percent of these that are right */
  uint32_t n_saves;         /* canvases kept outside their slots; needs a store */
  uint32_t id;              /* tells the runners of one store apart */
  weft_fake_store *store;   /* NULL: a token is a hash of its position; no memory is read (for benchmarks) */
  bool lazy;
  uint32_t n_experts, n_experts_used;
  uint64_t (*law)(void *self, const weft_batch *batch); /* device time in us; NULL: always 1000 */
  void *law_self;
  uint64_t fail_submit_at, fail_collect_at, fail_slot_at, fail_draft_at; /* 1-based call; 0: never */
  bool peeks_lie;           /* the last token of a run that is only told is another one */
  uint64_t leave_format_at; /* 1-based token that it gives, which is told to be none of its answer's format; 0: never */
} weft_fake_config;

weft_status weft_fake_runner_open(const weft_fake_config *config, weft_runner **out);
/* The first violation of the contract, NULL when there was none. */
const char *weft_fake_runner_violation(const weft_runner *runner);
uint32_t weft_fake_runner_open_slots(const weft_runner *runner);
void weft_fake_runner_break(weft_runner *runner); /* its device is lost */

#endif
