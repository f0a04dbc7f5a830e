/* SPDX-License-Identifier: MIT */
#include "scheduler/drafting.h"

#include <math.h>

/* ---- how often drafts are right ---------------------------------------------------------------- */

enum { LOST_MAX = 32 };
enum { FADE = 256 }; /* tokens of the answer after which half of it goes, while nothing is judged */
enum { OWN_MEMORY = 64, TENANT_MEMORY = 256 }; /* drafts after which half of what is remembered goes */
enum { PRIOR = 4, TENANT_PRIOR = 32 };         /* drafts that what is known before counts for: nothing; of the tenant */

static void add_judged(weft_acceptance *a, uint32_t memory, uint32_t n, uint32_t n_right) {
  a->n_judged += n;
  a->n_right += n_right;
  while (a->n_judged > memory) {
    a->n_judged /= 2;
    a->n_right /= 2;
  }
}

static double rate_of(const weft_acceptance *a, double weight, double before) {
  return ((double)a->n_right + weight * before) / ((double)a->n_judged + weight);
}

/* What was judged long ago counts less, so that a request is not without runs for ever after some bad luck. */
static weft_acceptance fade_own(const weft_drafting *d, uint32_t n_answer) {
  uint32_t age = n_answer > d->judged_at ? (n_answer - d->judged_at) / FADE : 0;
  if (age > 31) age = 31;
  return (weft_acceptance){.n_judged = d->own.n_judged >> age, .n_right = d->own.n_right >> age};
}

static double known_rate(const weft_drafting *d, const weft_acceptance *tenant, uint32_t n_answer) {
  const weft_acceptance own = fade_own(d, n_answer);
  double weight = tenant->n_judged < TENANT_PRIOR ? PRIOR + tenant->n_judged / 2 : TENANT_PRIOR;
  return rate_of(&own, weight, rate_of(tenant, PRIOR, 0.5));
}

double weft_drafting_rate(const weft_drafting *d, const weft_acceptance *tenant, uint32_t n_answer) {
  bool back = d->kind != WEFT_DRAFT_NGRAM && n_answer >= d->back_at;
  return d->lost && !back ? 0.0 : known_rate(d, tenant, n_answer);
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
  *d = (weft_drafting){.kind = (uint8_t)draft->kind,
                       .n_max = limited ? (uint8_t)draft->n_max : WEFT_DRAFTS_MAX,
                       .pause = WEFT_DRAFTS_PAUSE};
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
    if (right && d->n_lost > 0) d->lost = --d->n_lost > 0 && d->lost;
  }
  weft_ngram_learn(&d->ngram, tokens, n_tokens);
  d->n_guessed = (uint8_t)weft_ngram_guess(&d->ngram, tokens, n_tokens, d->n_max, d->guess);
  d->compares = true;
}

void weft_drafting_began(weft_drafting *d) {
  d->compares = false;
}

static void count_loss(weft_drafting *d, double rate, uint32_t n_answer) {
  if (d->lost) d->n_lost = 0; /* it was back, and begins anew */
  d->lost = false;
  if (d->n_lost == 0) d->rate_before = (float)rate;
  if (d->n_lost < LOST_MAX) d->n_lost += 1;
  if (pow(1.0 - (double)d->rate_before, d->n_lost) * WEFT_DRAFTS_CREDIBLE > 1.0 && d->n_lost < LOST_MAX) return;
  d->lost = true;
  d->own = (weft_acceptance){0}; /* what was right before tells nothing of what comes now */
  d->back_at = n_answer + d->pause;
  if (d->pause < WEFT_DRAFTS_PAUSE_MAX) d->pause *= 2;
}

void weft_drafting_judge(weft_drafting *d, weft_acceptance *tenant, uint32_t n, uint32_t n_right, uint32_t n_answer) {
  double rate = known_rate(d, tenant, n_answer);
  judge_run(d, tenant, n, n_right);
  d->judged_at = n_answer;
  d->compares = false;
  if (n_right == 0) {
    count_loss(d, rate, n_answer);
    return;
  }
  if (2 * n_right >= n) d->pause = WEFT_DRAFTS_PAUSE;
  d->lost = false;
  d->n_lost = 0;
}
