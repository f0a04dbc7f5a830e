/* SPDX-License-Identifier: MIT */
/* A card that refuses: every allocation of model, pool and runner in turn, of one card, of the first or second of two, or
 * of those that have two shards, and every call of a forward pass. Each time an error with a line comes back, and all memory. */
#include <stdio.h>

#include "model/check.h"
#include "model/runner/device_runner.h"
#include "tests/support/fake_card.h"
#include "tests/support/split_of.h"
#include "tests/support/wide_model.h"

static void need(bool holds, const char *what, uint64_t site) {
  if (holds) return;
  (void)printf("FAILED: %s, site %llu\n", what, (unsigned long long)site);
  exit(1);
}

/* Opens and closes everything; the first status that is not OK. */
static weft_status open_all(const weft_gguf *gguf, const weft_split *split, weft_error *error) {
  weft_model_limits limits = {.rows_max = 64, .canvas_rows_max = 64, .segments_max = 8, .token_ranges = true};
  weft_model *model = NULL;
  weft_kv_store *store = NULL;
  weft_runner *runner = NULL;
  weft_kv_layout layout;
  weft_status status = weft_model_open(gguf, split, &limits, NULL, NULL, &model, error);
  if (status == WEFT_OK) {
    const weft_kv_geometry *geometry = &weft_model_get_info(model)->kv;
    status = weft_kv_layout_choose(&geometry, 1, 0, &layout, error);
  }
  if (status == WEFT_OK) status = weft_kv_store_open(split, &layout, 32, &store, error);
  if (status == WEFT_OK) {
    weft_device_runner_config config = {.model = model,
                                        .store = store,
                                        .layout = &layout,
                                        .name = "card",
                                        .limits = limits,
                                        .n_slots = 4,
                                        .seq_tokens_max = 64};
    status = weft_device_runner_open(&config, &runner, NULL, error);
  }
  if (runner != NULL) runner->ops->close(runner);
  weft_kv_store_close(store);
  weft_model_close(model);
  return status;
}

static uint64_t n_moved; /* allocations that found another place, in all */

/* Of n cards; `which` refuses. */
static uint64_t refuse_allocations(const weft_gguf *gguf, uint32_t n, uint32_t which, uint32_t n_shards) {
  for (uint64_t site = 1;; site++) {
    weft_split split;
    bool finds_other_place = n_shards > 1 && which > 0 && which == n - n_shards; /* the first card, which it reaches */
    fake_card *cards[WEFT_DEVICES_MAX] = {NULL};
    uint64_t before[WEFT_DEVICES_MAX];
    weft_error error = {{0}};
    need(split_of(gguf, n, n_shards, &split), "the model cannot be cut", 0);
    for (uint32_t i = 0; i < n; i++) {
      cards[i] = fake_card_open(true);
      cards[i]->base.info.index = i;
      split.device[i] = &cards[i]->base;
      before[i] = cards[i]->n_alive;
    }
    fake_card *card = cards[which];
    card->fail_alloc = card->n_allocs + site;
    card->fail_on = true;
    card->unreachable = n_shards == 1; /* no buffer finds another place; shards have none on other cards */
    weft_status status = open_all(gguf, &split, &error);
    for (uint32_t i = 0; i < n; i++) need(cards[i]->n_alive == before[i], "memory did not come back", site);
    bool reached = card->n_allocs >= card->fail_alloc;
    bool moved = status == WEFT_OK && finds_other_place; /* a buffer of the runner */
    need(!reached || moved || (status == WEFT_E_NO_MEMORY && error.text[0] != 0),
         "no error came of a refused allocation", site);
    n_moved += reached && moved;
    need(reached || status == WEFT_OK, error.text, site);
    for (uint32_t i = 0; i < n; i++) weft_device_close(split.device[i]);
    if (!reached) return site - 1;
  }
}

/* Every stride-th read of a weight from its file. */
static uint64_t refuse_reads(const weft_gguf *gguf, uint64_t stride) {
  for (uint64_t site = 1, n = 0;; site += stride, n++) {
    fake_card *card = fake_card_open(true);
    weft_error error = {{0}};
    uint64_t before = card->n_alive;
    card->fail_read = site;
    const weft_split split = weft_split_one(&card->base);
    weft_status status = open_all(gguf, &split, &error);
    bool reached = card->n_reads >= site;
    need(card->n_alive == before, "memory did not come back after a read failed", site);
    need(status == (reached ? WEFT_E_IO : WEFT_OK), "no error came of a failed read", site);
    need(!reached || error.text[0] != 0, "an error without a line", site);
    weft_device_close(&card->base);
    if (!reached) return n;
  }
}

/* Every stride-th call; the check runs the whole forward pass, the head and statistics. */
static uint64_t refuse_calls(const weft_gguf *gguf, uint64_t stride) {
  const int32_t tokens[] = {5, 9, 2, 14};
  for (uint64_t site = 1, n = 0;; site += stride, n++) {
    fake_card *card = fake_card_open(false);
    weft_device_config config = {.backend = "ref"};
    weft_device *ref;
    weft_check_report report;
    weft_error error = {{0}};
    need(weft_device_open(&config, &ref, &error) == WEFT_OK, error.text, site);
    card->fail_call = site;
    const weft_split split = weft_split_one(&card->base), ref_split = weft_split_one(ref);
    weft_check_args args = {
        .gguf = gguf, .split = &split, .ref = &ref_split, .tokens = tokens, .n_tokens = 4, .tolerance = 1e-3f};
    weft_status status = weft_check(&args, &report, &error);
    need(card->n_alive == 0, "memory did not come back after a lost device", site);
    need(card->lost == (status != WEFT_OK), "a lost device was not told", site);
    need(status == WEFT_OK || error.text[0] != 0, "an error without a line", site);
    bool lost = card->lost;
    weft_device_close(&card->base);
    weft_device_close(ref);
    if (!lost) return n;
  }
}

/* Three cards, each with a range of the tokens. */
static void refuse_ranges(void) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  need(weft_gguf_open(wide_model_file("ranges", false, true), &gguf, &error) == WEFT_OK, error.text, 0);
  need(refuse_allocations(gguf, 3, 2, 3) > 15, "too few of three shards", 0);
  weft_gguf_close(gguf);
  gguf_edit_clean();
}

/* Two shards that add up in one call, with a head each: alone, and as parts of four and of eight cards, where the last
 * part has the heads. */
static void refuse_shards(void) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  need(weft_gguf_open(WEFT_SOURCE_DIR "/tests/golden/models/dg-deep.gguf", &gguf, &error) == WEFT_OK, error.text, 0);
  uint64_t n_first = refuse_allocations(gguf, 2, 0, 2), n_second = refuse_allocations(gguf, 2, 1, 2);
  (void)printf("two shards: %llu and %llu allocations refused\n", (unsigned long long)n_first,
               (unsigned long long)n_second);
  need(n_first > 15 && n_second > 15, "too few of two shards", 0);
  uint64_t n_cut = refuse_allocations(gguf, 4, 1, 2), n_head = refuse_allocations(gguf, 4, 2, 2);
  uint64_t n_eight = refuse_allocations(gguf, 8, 7, 2);
  (void)printf("parts of two shards: %llu, %llu and %llu allocations refused\n", (unsigned long long)n_cut,
               (unsigned long long)n_head, (unsigned long long)n_eight);
  need(n_cut > 10 && n_head > 15 && n_eight > 10, "too few of parts of shards", 0);
  need(n_moved > 5, "no buffer of the part with the head went to the first card", 0);
  weft_gguf_close(gguf);
  refuse_ranges();
}

int main(void) {
  refuse_shards();
  static const char *const names[] = {"ar-base", "dg-base"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[512];
    weft_gguf *gguf;
    weft_error error = {{0}};
    (void)snprintf(path, sizeof path, "%s/tests/golden/models/%s.gguf", WEFT_SOURCE_DIR, names[i]);
    need(weft_gguf_open(path, &gguf, &error) == WEFT_OK, error.text, 0);
    uint64_t n_allocs = refuse_allocations(gguf, 1, 0, 1), n_calls = refuse_calls(gguf, 7),
             n_reads = refuse_reads(gguf, 5);
    (void)printf("%s: %llu allocations, %llu calls and %llu reads refused\n", names[i], (unsigned long long)n_allocs,
                 (unsigned long long)n_calls, (unsigned long long)n_reads);
    uint64_t n_first = refuse_allocations(gguf, 2, 0, 1), n_second = refuse_allocations(gguf, 2, 1, 1);
    need(n_first > 15 && n_second > 15, "too few on two cards", 0);
    if (i == 0) need(refuse_allocations(gguf, 3, 1, 1) > 10, "too few on the second of three cards", 0);
    need(n_allocs > 20 && n_calls > 10 && n_reads > 5, "too few", 0);
    weft_gguf_close(gguf);
  }
  return 0;
}
