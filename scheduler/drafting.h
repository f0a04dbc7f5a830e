/* SPDX-License-Identifier: MIT */
/* Drafts of one request: what may come next, and how often that was right.
 *
 * Law. Drafts never change an answer (draft.h), only what it costs. Whether the request has a run in a step is decided
 * for the step as a whole (depth.h), from the rate at which its drafts were right: of the request, which begins with
 * that of the text that it goes on with (draft_history.h), and before that of its tenant. A request has lost where runs
 * in a row gave no right draft and the chance of that, at its rate before, is below one in WEFT_DRAFTS_CREDIBLE: its
 * rate is then 0. What follows brings it back:
 *   of its own n-grams   each token is compared with what was guessed, whether a run was planned or not; a right
 *                        guess takes back one lost run, the last of them the loss
 *   of another drafter   a trial (depth.h) of which a draft was right; or WEFT_DRAFTS_PAUSE tokens of its answer, after
 *                        the next loss twice as many, up to WEFT_DRAFTS_PAUSE_MAX
 * The same answers and the same times of steps give the same decisions. Engine thread, but for open. */
#ifndef WEFT_SCHEDULER_DRAFTING_H
#define WEFT_SCHEDULER_DRAFTING_H

#include <stdbool.h>

#include "base/sampling.h"
#include "scheduler/draft.h"
#include "scheduler/ngram.h"

enum { WEFT_DRAFTS_CREDIBLE = 1 << 16, WEFT_DRAFTS_PAUSE = 64, WEFT_DRAFTS_PAUSE_MAX = 4096 };

/* How often drafts were right, over about the last few. A draft behind a wrong one is not judged. */
typedef struct weft_acceptance {
  uint32_t n_judged, n_right;
} weft_acceptance;

typedef struct weft_drafting {
  uint8_t kind;   /* weft_draft_kind: NGRAM, or DEFAULT: the engine's drafter */
  bool shadow;    /* what runs give is only compared with what rows give one by one */
  bool compares;  /* the next token is to be compared with the first guess, since no run does that */
  bool by_runner; /* its guesses come from its lane's runner (own_drafts.h) */
  uint8_t n_max;  /* drafts of a run, at most */
  bool lost;
  uint8_t n_lost;    /* runs in a row without a right draft, less the guesses that were right since */
  float rate_before; /* the first of these runs */
  uint8_t n_guessed;
  uint32_t guessed_at;     /* of those by the runner: tokens of the text that they follow */
  uint64_t waits_since_us; /* drafts are coming since then; 0: it waits for none */
  weft_acceptance own;
  uint32_t judged_at;      /* tokens of the answer when it was judged last, by a run */
  uint32_t pause, back_at; /* tokens of the answer: how long the next loss holds, and when the present one ends */
  uint64_t prompt_key,
      text_key; /* draft_history.h: hashes of whole blocks; of the prompt, of the first n_keyed tokens */
  uint32_t n_keyed;
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
/* A run is planned. */
void weft_drafting_began(weft_drafting *drafting);
/* Of a run's n drafts the first n_right were right. */
void weft_drafting_judge(weft_drafting *drafting, weft_acceptance *tenant, uint32_t n, uint32_t n_right,
                         uint32_t n_answer);
/* How often its next drafts are expected to be right; 0: it has lost. */
double weft_drafting_rate(const weft_drafting *drafting, const weft_acceptance *tenant, uint32_t n_answer);

#endif
