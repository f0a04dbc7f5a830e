/* SPDX-License-Identifier: MIT */
#include "scheduler/drafting.h"

#include <math.h>

/* ---- how often drafts are right ---------------------------------------------------------------- */

enum { OWN_MEMORY = 64, TENANT_MEMORY = 1024 }; /* drafts after which half of what is remembered goes */
enum { PRIOR = 4 };                             /* drafts that the rate known before counts for */

static void add_judged(weft_acceptance *a, uint32_t memory, uint32_t n, uint32_t n_right) {
  a->n_judged += n;
  a->n_right += n_right;
  while (a->n_judged > memory) {
    a->n_judged /= 2;
    a->n_right /= 2;
  }
}

static double rate_of(const weft_acceptance *a, double before) {
  return ((double)a->n_right + PRIOR * before) / ((double)a->n_judged + PRIOR);
}

/* What is counted on: below the rate by half of its standard error, since the depth that looks best is often the one
 * that chance made look so. */
static double careful_rate(const weft_drafting *d, const weft_acceptance *tenant) {
  double rate = rate_of(&d->own, rate_of(tenant, 0.5));
  return rate - 0.5 * sqrt(rate * (1.0 - rate) / ((double)d->own.n_judged + PRIOR));
}

/* The first draft behind the right ones was judged too. */
static void judge_run(weft_drafting *d, weft_acceptance *tenant, uint32_t n, uint32_t n_right) {
  uint32_t n_judged = n_right < n ? n_right + 1 : n;
  add_judged(&d->own, OWN_MEMORY, n_judged, n_right);
  add_judged(tenant, TENANT_MEMORY, n_judged, n_right);
}

/* ---- open ------------------------------------------------------------------------------------- */

uint64_t weft_drafting_bytes(const weft_draft *draft, uint32_t n_tokens) {
  if (draft->kind != WEFT_DRAFT_NGRAM) return 0;
  return (uint64_t)weft_ngram_entries(n_tokens, draft->ngram_least, draft->ngram_most) * sizeof(uint32_t);
}

void weft_drafting_open(weft_drafting *d, const weft_draft *draft, void *memory, const int32_t *tokens,
                        uint32_t n_prompt, uint32_t n_tokens_max) {
  bool limited = draft->n_max > 0 && draft->n_max < WEFT_DRAFTS_MAX;
  *d = (weft_drafting){
      .kind = (uint8_t)draft->kind, .n_max = limited ? (uint8_t)draft->n_max : WEFT_DRAFTS_MAX, .runs = true};
  d->pause = WEFT_DRAFTS_PAUSE;
  d->shadow = draft->shadow;
  if (draft->kind != WEFT_DRAFT_NGRAM) return;
  d->ngram = (weft_ngram){.entry = memory,
                          .n_entries = weft_ngram_entries(n_tokens_max, draft->ngram_least, draft->ngram_most),
                          .least = (uint8_t)draft->ngram_least,
                          .most = (uint8_t)draft->ngram_most};
  weft_ngram_learn(&d->ngram, tokens, n_prompt);
}

/* ---- the answer grows ------------------------------------------------------------------------- */

void weft_drafting_learn(weft_drafting *d, weft_acceptance *tenant, const int32_t *tokens, uint32_t n_tokens) {
  uint32_t n_before = d->ngram.n_known;
  if (d->kind != WEFT_DRAFT_NGRAM || n_before == n_tokens) return;
  if (d->compares && d->n_guessed > 0) {
    bool right = d->guess[0] == tokens[n_before];
    judge_run(d, tenant, 1, right);
    if (right && d->n_lost > 0) d->n_lost -= 1;
  }
  weft_ngram_learn(&d->ngram, tokens, n_tokens);
  d->n_guessed = (uint8_t)weft_ngram_guess(&d->ngram, tokens, n_tokens, d->n_max, d->guess);
  d->compares = true;
}

void weft_drafting_began(weft_drafting *d, bool trial, uint32_t n_answer) {
  d->compares = false;
  if (!trial) return;
  d->try_at = n_answer + d->pause;
  d->pause = d->pause < WEFT_DRAFTS_PAUSE_MAX ? 2 * d->pause : d->pause;
}

void weft_drafting_judge(weft_drafting *d, weft_acceptance *tenant, uint32_t n, uint32_t n_right, uint32_t n_answer) {
  judge_run(d, tenant, n, n_right);
  d->compares = false;
  if (2 * n_right >= n) d->pause = WEFT_DRAFTS_PAUSE;
  if (n_right > 0) {
    d->n_lost = 0;
  } else if (d->n_lost < WEFT_DRAFTS_LOST && ++d->n_lost == WEFT_DRAFTS_LOST) {
    d->try_at = n_answer + d->pause;
  }
}

bool weft_drafting_tries(const weft_drafting *d, const weft_acceptance *tenant, uint32_t n_answer) {
  bool known = d->own.n_judged == 0 && tenant->n_judged >= WEFT_DRAFTS_KNOWN;
  uint32_t from = known && d->try_at < WEFT_DRAFTS_PAUSE ? WEFT_DRAFTS_PAUSE : d->try_at;
  return d->kind != WEFT_DRAFT_NGRAM && n_answer >= from;
}

/* ---- how many --------------------------------------------------------------------------------- */

static const uint8_t depths[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

uint32_t weft_drafting_depth(const weft_drafting *d, const weft_acceptance *tenant, uint32_t n_max, double token_us,
                             double n_lost, weft_draft_price price, const void *self, double *n_expected) {
  double rate = careful_rate(d, tenant), right = 1.0, sum = 0.0;
  double best = (double)(d->runs ? WEFT_DRAFTS_GO_ON : WEFT_DRAFTS_BEGIN) / 100.0 + n_lost;
  uint32_t chosen = 0, k = 0;
  if (d->n_lost >= WEFT_DRAFTS_LOST) return 0;
  for (uint32_t i = 0; i < sizeof depths && k < n_max; i++) {
    for (uint32_t to = depths[i] < n_max ? depths[i] : n_max; k < to; k++) {
      right *= rate;
      sum += right;
    }
    double gain = sum - price(self, k) / token_us;
    if (gain <= best) continue;
    best = gain;
    chosen = k;
    *n_expected = sum;
  }
  return chosen;
}
