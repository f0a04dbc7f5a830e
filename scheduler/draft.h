/* SPDX-License-Identifier: MIT */
/* Drafts: guesses at the next tokens of an answer that is made token by token (speculative decoding, Leviathan et al.,
 * arXiv 2211.17192). A run of rows (model/batch.h) computes the last token and its drafts in one pass.
 *
 * Law. A guess costs time and never changes an answer: the runner draws a token of its own at every row of the run, and
 * of the run only what equals those draws is taken. A drafter is asked for a request of which nothing is in flight, so
 * that it sees all tokens there are. It is called on the engine thread while a step is planned, must not block, and
 * allocates nothing. One that needs time says that its drafts are coming: the request then has no rows until the
 * drafter, asked again for the same text, gives them or says that there are none. It must do so within a bounded time,
 * and wake the engine (weft_engine_wake) where the engine may have nothing else to do. Drafts of a model's own runner
 * do not come this way (own_drafts.h). */
#ifndef WEFT_SCHEDULER_DRAFT_H
#define WEFT_SCHEDULER_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_DRAFTS_MAX = 32 }; /* of one run */
#define WEFT_DRAFTS_COMING UINT32_MAX

struct weft_request_params;

/* A text that may go on. */
typedef struct weft_draft_text {
  uint32_t model, slot; /* of the request that answers: its model's index, and its place among those that run there */
  const struct weft_request_params *params; /* what it asked for; until end */
  const int32_t *tokens; /* [n_tokens] prompt and answer so far. They stay where and what they are until end */
  uint32_t n_tokens;
} weft_draft_text;

typedef struct weft_drafter {
  /* Writes at most n_max tokens that may come next, and returns how many, or WEFT_DRAFTS_COMING. */
  uint32_t (*guess)(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out);
  /* The request has left its place: nothing of it may be read any more. NULL: the drafter keeps nothing of a text. */
  void (*end)(void *self, uint32_t model, uint32_t slot);
  /* Microseconds that a request waits for the drafts of a run, about; NULL: none. */
  double (*wait_us)(void *self, uint32_t model);
  /* Its guesses take the places of drafts that a model's own runner made: what making them costs is then measured at a
   * rate of right ones that is set by hand. */
  bool replaces_own;
  void *self;
} weft_drafter;

#endif
