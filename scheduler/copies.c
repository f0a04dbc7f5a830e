/* SPDX-License-Identifier: MIT */
#include "scheduler/copies.h"

enum { MEAN_OF_MOVES = 8 };

static void hear_one(weft_engine *e, const weft_copy_end *end) {
  const weft_page_copy *copy = &end->copy;
  if (copy->kind == WEFT_PAGE_TO_HOST) {
    if (!end->ok) weft_pager_spill_lost(e->pager, copy->to);
    return;
  }
  weft_pager_moved(e->pager, copy, end->ok);
  e->file_waits.heard_us = e->now_us;
  e->n_changes += 1;
  if (end->ok) e->file_waits.page_us += ((double)end->us - e->file_waits.page_us) / MEAN_OF_MOVES;
}

void weft_copies_hear(weft_engine *e) {
  enum { AT_ONCE = 32 };
  weft_copy_end ended[AT_ONCE];
  weft_runner *runner = e->lane[0].runner; /* any runner tells of all */
  uint32_t n = AT_ONCE;
  if (e->config.n_host_pages == 0 || runner->ops->copies_ended == NULL) return;
  while (n == AT_ONCE) {
    n = runner->ops->copies_ended(runner, ended, AT_ONCE);
    for (uint32_t i = 0; i < n; i++) hear_one(e, &ended[i]);
  }
}
