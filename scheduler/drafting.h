/* SPDX-License-Identifier: MIT */
/* When a request has drafts, and how many: the state of one request, and what it learns from its own answer.
 *
 * Law. Drafts never change an answer (draft.h), only what it costs. A run of k drafts is planned where it gains: the
 * tokens that it is expected to give beyond the one of a plain row must be worth more than the rows of the drafts
 * cost, both counted in the predicted time of the step (cost.h), in which a token is worth the time of the step
 * divided by the tokens that it is expected to give. Where drafts take time to make, the wait for them counts in the
 * same way. What is expected follows from the rate at which drafts were right, less half of its standard error: of the
 * request, which begins with that of its tenant. A request has runs from its first token on while the gain is above
 * WEFT_DRAFTS_GO_ON. Once it has none, it begins again where the gain is above WEFT_DRAFTS_BEGIN. It ends them at once
 * after WEFT_DRAFTS_LOST runs in a row of which no draft was right. What follows is tried again:
 *   of its own n-grams   each token is compared with what was guessed, whether a run was planned or not; a right
 *                        guess takes back one lost run
 *   of another drafter   a run of WEFT_DRAFTS_TRIAL drafts after WEFT_DRAFTS_PAUSE tokens of the answer, then after
 *                        twice as many, up to WEFT_DRAFTS_PAUSE_MAX; a run of which half were right makes the pause
 *                        short again. The first one is at once, but after a pause where WEFT_DRAFTS_KNOWN drafts of
 *                        the tenant's other requests were judged
 * The same answers and the same times of steps give the same decisions. Engine thread, but for open. */
#ifndef WEFT_SCHEDULER_DRAFTING_H
#define WEFT_SCHEDULER_DRAFTING_H

#include <stdbool.h>

#include "base/sampling.h"
#include "scheduler/draft.h"
#include "scheduler/ngram.h"

/* In hundredths of a token for each run. A step is not planned ahead of the results of runs, so where steps overlap
 * both are higher by WEFT_DRAFTS_AHEAD, and by what a request loses that waits for its rows in flight. */
enum { WEFT_DRAFTS_BEGIN = 20, WEFT_DRAFTS_GO_ON = 4, WEFT_DRAFTS_AHEAD = 8 };
enum {
  WEFT_DRAFTS_LOST = 6,
  WEFT_DRAFTS_TRIAL = 2,
  WEFT_DRAFTS_PAUSE = 64,
  WEFT_DRAFTS_PAUSE_MAX = 4096,
  WEFT_DRAFTS_KNOWN = 32
};

/* How often drafts were right, over about the last few. A draft behind a wrong one is not judged. */
typedef struct weft_acceptance {
  uint32_t n_judged, n_right;
} weft_acceptance;

typedef struct weft_drafting {
  uint8_t kind;   /* weft_draft_kind: NGRAM, or DEFAULT: the engine's drafter */
  bool runs;      /* it has runs now */
  bool shadow;    /* what runs give is only compared with what rows give one by one */
  bool compares;  /* the next token is to be compared with the first guess, since no run does that */
  uint8_t n_max;  /* drafts of a run, at most */
  uint8_t n_lost; /* runs in a row without a right draft, less the guesses that were right since */
  uint8_t n_guessed;
  weft_acceptance own;
  uint32_t pause, try_at; /* tokens of the answer: until the next trial, and when it is */
  weft_ngram ngram;
  /* Of a shadow's last run: the tokens that it foretold, [n_foretold] from token foretold_at of the text on. */
  uint32_t foretold_at, n_foretold;
  int32_t foretold[1 + WEFT_DRAFTS_MAX];
  int32_t guess[WEFT_DRAFTS_MAX]; /* [n_guessed] what may come after the last token that is known */
} weft_drafting;

/* Bytes of memory that n-grams of a text of at most n_tokens tokens need; 0: the request has none. */
uint64_t weft_drafting_bytes(const weft_draft *draft, uint32_t n_tokens);
/* The prompt's n-grams are entered here, in the thread of the submitter. memory: of so many bytes, zeroed. */
void weft_drafting_open(weft_drafting *drafting, const weft_draft *draft, void *memory, const int32_t *tokens,
                        uint32_t n_prompt, uint32_t n_tokens_max);

/* More of the text is known, or the same: it is compared with what was guessed, and the next tokens are guessed. */
void weft_drafting_learn(weft_drafting *drafting, weft_acceptance *tenant, const int32_t *tokens, uint32_t n_tokens);
/* A run is planned, at which so many tokens of the answer are known. trial: as weft_drafting_tries said. */
void weft_drafting_began(weft_drafting *drafting, bool trial, uint32_t n_answer);
/* Of a run's n drafts the first n_right were right. */
void weft_drafting_judge(weft_drafting *drafting, weft_acceptance *tenant, uint32_t n, uint32_t n_right,
                         uint32_t n_answer);
/* Whether a drafter may be tried again though a run is not expected to gain. */
bool weft_drafting_tries(const weft_drafting *drafting, const weft_acceptance *tenant, uint32_t n_answer);

/* The predicted microseconds that the rows of n drafts add to the step. */
typedef double (*weft_draft_price)(const void *self, uint32_t n);
/* How many of at most n_max drafts a run should have; 0: none. token_us: what a token is worth. n_lost: tokens that
 * are lost because without a run rows would be planned ahead. *n_expected: tokens that such a run is expected to
 * give beyond one. */
uint32_t weft_drafting_depth(const weft_drafting *drafting, const weft_acceptance *tenant, uint32_t n_max,
                             double token_us, double n_lost, weft_draft_price price, const void *self,
                             double *n_expected);

#endif
