/* SPDX-License-Identifier: MIT */
#include "api/keep_drafts.h"

weft_visit_answer keep_drafts_tell(void *self, weft_pager *pager) {
  keep_drafts *k = self;
  weft_draft_learned d;
  (void)pager;
  for (uint32_t i = 0; k->history != NULL && i < WEFT_DRAFT_TEXTS && k->good; i++) {
    if (!weft_draft_history_tell(k->history, i, &d) || !k->rule.keeps(k->rule.self, d.domain)) continue;
    const keep_domain domain = k->name(k->runtime, d.domain);
    d.domain = (weft_key128){keep_index_domain(k->index, &domain), 0};
    k->good = d.domain.low != UINT32_MAX && keep_index_add_draft(k->index, &d);
  }
  return WEFT_VISIT_DONE;
}

void keep_drafts_learn(const keep_index *x, const weft_key128 *domain, const bool *known, weft_draft_history *history) {
  for (uint32_t i = 0; history != NULL && i < x->n_drafts; i++) {
    weft_draft_learned learned = x->draft[i];
    const uint64_t number = x->draft[i].domain.low;
    learned.domain = domain[number];
    if (known[number]) weft_draft_history_learn(history, &learned);
  }
}
