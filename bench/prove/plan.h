/* SPDX-License-Identifier: MIT */
/* What a proof is to do: cells, of which each is a profile, a suite, prompts, a budget and a contract.
 *
 * Law: every file of every cell but its profile has been read and held to its schema before anything is started; a
 * profile that is wrong or refused is the verdict of its cells alone. A set is what is asked: a suite with its prompts.
 * The baseline answers each set once, however many cells have it. */
#ifndef WEFT_BENCH_PROVE_PLAN_H
#define WEFT_BENCH_PROVE_PLAN_H

#include <jansson.h>

#include "bench/lab/lab.h"
#include "bench/prove/verdict.h"

enum { PROVE_SETS_MAX = 64 };

typedef struct prove_set {
  const char *suite_name, *prompts_name; /* of cells; borrowed */
  json_t *suite, *prompts, *requests, *budget;
  bool scored;               /* a cell wants log probabilities */
  bool kept;                 /* the answers are those of a run before (kept.h) */
  json_t *baseline, *scores; /* the baseline's answers, and their log probabilities */
  prove_outcome outcome;     /* of the baseline */
  uint32_t n_used;           /* cells that compared with these answers */
} prove_set;

typedef struct prove_cell {
  const char *candidate, *suite, *prompts, *contract_name, *budget_name; /* of the matrix; borrowed */
  prove_verdict expected;
  json_t *contract, *budget;
  prove_set *set;
  prove_outcome outcome;
  json_t *difference, *scores, *candidate_facts, *timing, *acceptance, *owner, *owner_validation;
  uint64_t n_tokens;
} prove_cell;

typedef struct prove_plan {
  const char *baseline, *name; /* of the matrix; "options" where there is none */
  json_t *matrix;
  prove_cell *cell; /* [n] */
  uint32_t n, room, n_sets;
  prove_set set[PROVE_SETS_MAX];
} prove_plan;

/* From --matrix, or from the other options. */
prove_verdict prove_plan_open(prove_plan *plan, const weft_lab_config *config, prove_outcome *outcome);
void prove_plan_close(prove_plan *plan);

#endif
