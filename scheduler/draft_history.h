/* SPDX-License-Identifier: MIT */
/* How often drafts were right in texts that ended: the next turn of a conversation, whose prompt begins with such a
 * text, begins with what was learned in it.
 *
 * Law. It is a memory of bounded size on which speed depends and no answer does. A text is known by a hash of its
 * tokens up to the last whole block of its prompt, and of prompt and answer, with its model and its sharing domain: so
 * no domain learns of another one's. A place is taken by what came last. Requests that use no cached prefix (no_cache)
 * do not ask. find runs in the thread of a submitter, all else in the engine's; they share words that are read and
 * written whole, so a reader that meets a writer takes another text's numbers at worst. The hash of the text says
 * nothing of its domain or its model, whose numbers may be others after a restart: what is learned can be told, kept
 * (api/keep.h) and learned again. */
#ifndef WEFT_SCHEDULER_DRAFT_HISTORY_H
#define WEFT_SCHEDULER_DRAFT_HISTORY_H

#include <stdatomic.h>

#include "base/segment.h"
#include "pager/pager.h"
#include "scheduler/drafting.h"

enum { WEFT_DRAFT_BLOCK = 32, WEFT_DRAFT_TEXTS = 4096 };

/* What was learned of a text. */
typedef struct weft_draft_learned {
  uint64_t text; /* hash of its tokens */
  weft_key128 domain;
  uint32_t model, kind; /* weft_draft_kind */
  uint32_t judged;      /* drafts that were right, and in the upper half those that were judged */
} weft_draft_learned;

typedef struct weft_draft_past {
  _Atomic uint64_t key; /* 0: empty */
  _Atomic uint32_t judged;
  weft_draft_learned of; /* engine thread */
} weft_draft_past;

typedef struct weft_draft_history {
  weft_draft_past at[WEFT_DRAFT_TEXTS];
} weft_draft_history;

/* The prompt of a request: sets what its drafting begins with. */
void weft_draft_history_find(const weft_draft_history *history, weft_drafting *drafting, weft_key128 domain,
                             uint32_t model, const int32_t *tokens, uint32_t n_prompt);
/* Its text when it has ended. */
void weft_draft_history_keep(weft_draft_history *history, weft_drafting *drafting, weft_key128 domain, uint32_t model,
                             const int32_t *tokens, uint32_t n_tokens);
/* What place i has; false: nothing. */
bool weft_draft_history_tell(const weft_draft_history *history, uint32_t i, weft_draft_learned *out);
void weft_draft_history_learn(weft_draft_history *history, const weft_draft_learned *learned);

struct weft_engine;
/* NULL: none of its models has drafts. */
weft_draft_history *weft_engine_draft_history(struct weft_engine *engine);

#endif
