/* SPDX-License-Identifier: MIT */
#include "scheduler/own_drafts.h"

#include <string.h>

#include "pager/resize.h"
#include "scheduler/runs.h"

/* How many drafts the request should have in the step that is planned; 0: none, or they are there. */
static uint32_t wanted_drafts(const weft_planning *p, const weft_request *r) {
  const weft_drafting *d = &r->drafting;
  uint32_t n = d->n_max, n_left = r->n_end - r->n_tokens;
  if (!r->drafts || !d->by_runner || r->prefilling || r->n_in_flight > 0 || n_left <= 1) return 0;
  if (d->guessed_at == r->n_tokens || r->n_planned + 1 != r->n_tokens) return 0;
  if (!p->engine->config.drafts_always) return weft_runs_depth(p->lane, r);
  if (n > n_left - 1) n = n_left - 1;
  return n < p->draft_rows_left ? n : p->draft_rows_left;
}

/* Writes the requests to lane->drafted, and returns the most drafts that one of them wants. */
static uint32_t choose_requests(weft_planning *p, uint32_t *n) {
  weft_lane *lane = p->lane;
  const weft_batcher *b = &lane->batcher;
  uint32_t most = 0, n_max = b->segments_max < b->rows_max ? b->segments_max : b->rows_max;
  if (n_max > lane->info->n_slots) n_max = lane->info->n_slots;
  *n = 0;
  for (uint32_t i = 0; i < lane->ready.n && *n < n_max; i++) {
    weft_request *r = lane->ready.at[i];
    uint32_t wanted = r == NULL ? 0 : wanted_drafts(p, r);
    if (wanted == 0) continue;
    r->drafting.n_guessed = (uint8_t)wanted;
    lane->drafted[(*n)++] = r;
    if (wanted > most) most = wanted;
  }
  return most;
}

/* Where a drafter stands in for the runner's, to measure: as many drafts, which are its own. */
static void replace_drafts(const weft_engine *e, weft_request *r) {
  const weft_drafter *drafter = e->config.drafter;
  const weft_draft_text text = {
      .model = r->lane, .slot = r->slot, .params = &r->params, .tokens = r->tokens, .n_tokens = r->n_tokens};
  if (drafter == NULL || !drafter->replaces_own || r->drafting.n_guessed == 0) return;
  uint32_t n = drafter->guess(drafter->self, &text, r->drafting.n_guessed, r->drafting.guess);
  r->drafting.n_guessed = n == WEFT_DRAFTS_COMING ? 0 : (uint8_t)n;
}

void weft_own_drafts_make(weft_planning *p) {
  weft_engine *e = p->engine;
  weft_lane *lane = p->lane;
  bool can =
      lane->info->drafts && weft_pager_copies_waiting(e->pager) == 0; /* else keys are not yet where tables say */
  uint32_t n = 0, most = can ? choose_requests(p, &n) : 0;
  if (n == 0) return;
  uint64_t start_ns = weft_clock_ns();
  const weft_batch batch = weft_batcher_drafts(&lane->batcher, lane->drafted, n, e->pager, lane->info);
  weft_status status = lane->runner->ops->draft(lane->runner, &batch, most, lane->draft);
  for (uint32_t i = 0; i < n; i++) {
    weft_drafting *d = &lane->drafted[i]->drafting;
    if (status != WEFT_OK) d->n_guessed = 0;
    d->guessed_at = lane->drafted[i]->n_tokens;
    memcpy(d->guess, lane->draft + (size_t)i * most, d->n_guessed * sizeof *d->guess);
    replace_drafts(e, lane->drafted[i]);
  }
  uint64_t took_ns = weft_clock_ns() - start_ns;
  for (uint32_t i = 0; i < n; i++) lane->drafted[i]->usage.drafts.draft_ns += took_ns;
  e->runner_ns += took_ns;
  e->requests[lane->index].drafts.draft_ns += took_ns;
}
