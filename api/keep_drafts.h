/* SPDX-License-Identifier: MIT */
/* What was learned of drafts (scheduler/draft_history.h), beside the prefixes that are kept.
 *
 * Law. It goes with the prefixes: of the same tenants, found by the same names, dropped with them. On it speed depends,
 * and no answer. */
#ifndef WEFT_API_KEEP_DRAFTS_H
#define WEFT_API_KEEP_DRAFTS_H

#include "api/keep_index.h"
#include "api/weft.h"
#include "scheduler/engine.h"

typedef struct keep_drafts {
  const weft_draft_history *history; /* NULL: nothing is learned */
  const weft_runtime *runtime;
  weft_domain_rule rule; /* whose are kept */
  keep_domain (*name)(const weft_runtime *runtime, weft_key128 domain);
  keep_index *index;
  bool good; /* false: there was no memory */
} keep_drafts;

/* weft_visit: tells the index what the history has. self: keep_drafts. */
weft_visit_answer keep_drafts_tell(void *self, weft_pager *pager);
/* The other way, of known domains. domain, known: [index->n_domains]. Engine thread. */
void keep_drafts_learn(const keep_index *index, const weft_key128 *domain, const bool *known,
                       weft_draft_history *history);

#endif
