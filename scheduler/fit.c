/* SPDX-License-Identifier: MIT */
#include "scheduler/fit.h"

#include "scheduler/policy.h"

uint32_t weft_fit_pages(const weft_engine *e, uint32_t lane, uint32_t n_tokens) {
  uint32_t rows = n_tokens < e->config.prefill_chunk ? n_tokens : e->config.prefill_chunk;
  if (rows > e->lane[lane].rows_beside) rows = e->lane[lane].rows_beside; /* a larger chunk is cut where blocks lack */
  return weft_pager_pages_for(e->pager, lane, n_tokens, rows);
}

uint32_t weft_fit_longest(const weft_engine *e, uint32_t lane, uint32_t n_rows, uint32_t n_pages) {
  uint32_t low = 0, high = e->config.seq_tokens_max;
  while (low < high) {
    uint32_t middle = low + (high - low + 1) / 2;
    if (weft_pager_pages_for(e->pager, lane, middle, n_rows) <= n_pages) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

uint32_t weft_fit_room(const weft_engine *e, uint32_t lane, uint32_t n_tokens) {
  const weft_request_pages each = {.peak = weft_pager_pages_for(e->pager, lane, n_tokens, 1),
                                   .mean = weft_pager_pages_mean(e->pager, lane, n_tokens),
                                   .prompt = weft_fit_pages(e, lane, n_tokens)};
  return weft_policy_room(&each, e->config.n_pages, e->config.running_max);
}

uint64_t weft_fit_tokens(const weft_engine *e, uint32_t lane) {
  uint32_t context = e->lane[lane].context;
  return (uint64_t)context * e->config.n_pages / weft_pager_pages_for(e->pager, lane, context, 1);
}
