/* SPDX-License-Identifier: MIT */
/* A drafter that is a client of the engine it drafts for: the drafts of an answer are the answer of a second request,
 * whose prompt is the text so far. It goes to another model of the same vocabulary (Leviathan et al., arXiv
 * 2211.17192), or to the same model by diffusion, where a few denoise steps guess a canvas of tokens that the model's
 * own causal pass then verifies. So drafts are computed in the same loop over the same pool: a text's keys are found
 * again in the prefix cache, steps hold drafts of many requests, and rows are charged to the tenant whom they serve.
 *
 * Law: the engine thread asks and reads (scheduler/draft.h); it waits for nobody but for a copy of a text. A thread of
 * the drafter submits and releases, since both need memory. Drafts that stand still, since the engine has no place or
 * no pages for their request, are given up: the answer goes on without. One text of a request is drafted at a time, and
 * what was not asked for again is cancelled. Drafts take places of running requests as others do. */
#ifndef WEFT_API_MODEL_DRAFTER_H
#define WEFT_API_MODEL_DRAFTER_H

#include "scheduler/engine.h"

typedef struct model_drafter model_drafter;

/* Who drafts for a model. */
typedef struct model_drafter_lane {
  bool drafts;               /* false: nobody, and the rest is void */
  uint32_t model;            /* index of the one that drafts */
  weft_entropy_bound canvas; /* max_steps 0: it drafts token by token */
} model_drafter_lane;

/* lane: [n_models], copied. n_slots: requests of a model that run at once; n_tokens_max: the longest. The engine must
 * not have requests yet, and outlives the drafter. NO_MEMORY with a line. */
weft_status model_drafter_open(weft_engine *engine, const model_drafter_lane *lane, uint32_t n_models, uint32_t n_slots,
                               uint32_t n_tokens_max, model_drafter **out, weft_error *error);
/* For weft_engine_set_drafter; lives as long as the drafter. */
const weft_drafter *model_drafter_calls(const model_drafter *drafter);
/* After the engine's thread has ended. NULL is fine. */
void model_drafter_close(model_drafter *drafter);

#endif
