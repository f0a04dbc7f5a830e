/* SPDX-License-Identifier: MIT */
/* Drafts: guesses at the next tokens of an answer that is made token by token (speculative decoding, Leviathan et al.,
 * arXiv 2211.17192). A run of rows (model/batch.h) computes the last token and its drafts in one pass.
 *
 * Law. A guess costs time and never changes an answer: the runner draws a token of its own at every row of the run, and
 * of the run only what equals those draws is taken. A drafter is asked for a request of which nothing is in flight, so
 * that it sees all tokens there are. It is called on the engine thread while a step is planned, must not block, and
 * allocates nothing. */
#ifndef WEFT_SCHEDULER_DRAFT_H
#define WEFT_SCHEDULER_DRAFT_H

#include <stdint.h>

enum { WEFT_DRAFTS_MAX = 32 }; /* of one run */

typedef struct weft_drafter {
  /* Writes at most n_max tokens that may come after tokens[0, n_tokens), prompt and answer so far, and returns how
   * many. model: index of the model that answers. */
  uint32_t (*guess)(void *self, uint32_t model, const int32_t *tokens, uint32_t n_tokens, uint32_t n_max, int32_t *out);
  void *self;
} weft_drafter;

#endif
