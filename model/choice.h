/* SPDX-License-Identifier: MIT */
/* How the experts of a model are chosen where it is not by the op route: by the op assign (kernels/experts.h). */
#ifndef WEFT_MODEL_CHOICE_H
#define WEFT_MODEL_CHOICE_H

#include "kernels/experts.h"

/* From the keys of its file (hyper.h), checked. */
typedef struct model_choice {
  weft_expert_scores scores; /* 0: by route */
  bool as_scored;
  float factor;
  uint32_t n_groups, n_groups_used; /* 0: there are none */
} model_choice;

#endif
