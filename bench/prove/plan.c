/* SPDX-License-Identifier: MIT */
#include "bench/prove/plan.h"

#include <string.h>

#include "bench/prove/answers.h"
#include "bench/prove/contracts.h"
#include "bench/prove/files.h"

enum { CELLS_MAX = 4096 };

static json_t *list_of(const weft_text_list *texts) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < texts->n; i++) (void)json_array_append_new(list, json_string(texts->item[i]));
  return list; /* a shorter one fails the schema, or has fewer cells: memory for names is never refused alone */
}

/* The options of the command line as a matrix of one row. */
static json_t *matrix_of_options(const weft_lab_config *c) {
  json_t *proof = json_pack("{s:s, s:s}", "suite", c->suite, "contract", c->contract);
  if (c->prompt_files.n > 0) (void)json_object_set_new(proof, "prompts", list_of(&c->prompt_files));
  return json_pack("{s:s, s:s, s:[{s:o, s:[o]}]}", "baseline", c->baseline != NULL ? c->baseline : "default", "budget",
                   c->budget != NULL ? c->budget : "short", "rows", "candidates", list_of(&c->candidates), "proofs",
                   proof);
}

static prove_verdict read_matrix(prove_plan *plan, const weft_lab_config *c, prove_outcome *outcome) {
  weft_error error = {{0}};
  bool options = c->candidates.n > 0 || c->suite != NULL || c->contract != NULL || c->prompt_files.n > 0;
  if (c->matrix != NULL && (options || c->baseline != NULL || c->budget != NULL))
    return prove_end(outcome, PROVE_BAD_FILE, "prove: --matrix names the profiles, suites and contracts itself");
  if (c->matrix == NULL && (c->candidates.n == 0 || c->suite == NULL || c->contract == NULL))
    return prove_end(outcome, PROVE_BAD_FILE, "prove: name a --matrix, or a --candidate, a --suite and a --contract");
  plan->name = c->matrix != NULL ? c->matrix : "options";
  if (c->matrix == NULL) plan->matrix = matrix_of_options(c);
  if (c->matrix != NULL && prove_file_read(c->proofs, "matrices", c->matrix, &plan->matrix, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_BAD_FILE, "%s", error.text);
  if (plan->matrix == NULL) return prove_end(outcome, PROVE_NO_START, "no memory for the plan");
  plan->baseline = prove_text(plan->matrix, "baseline", "default");
  return PROVE_PROVEN;
}

static prove_verdict verdict_of(const char *name) {
#define X(value, number, text) \
  if (strcmp(name, text) == 0) return value;
  PROVE_VERDICTS(X)
#undef X
  return PROVE_PROVEN;
}

/* The set of a suite with its prompts, made where there is none yet. */
static prove_set *find_set(prove_plan *plan, const weft_lab_config *c, prove_cell *cell, prove_outcome *outcome) {
  weft_error error = {{0}};
  for (uint32_t i = 0; i < plan->n_sets; i++) {
    prove_set *set = &plan->set[i];
    if (strcmp(set->suite_name, cell->suite) == 0 && strcmp(set->prompts_name, cell->prompts) == 0) return set;
  }
  if (plan->n_sets == PROVE_SETS_MAX) {
    (void)prove_end(outcome, PROVE_BAD_FILE, "%s has more than %d suites with prompts", plan->name, PROVE_SETS_MAX);
    return NULL;
  }
  prove_set *set = &plan->set[plan->n_sets++];
  *set = (prove_set){.suite_name = cell->suite, .prompts_name = cell->prompts, .budget = json_incref(cell->budget)};
  if (prove_file_read(c->proofs, "suites", cell->suite, &set->suite, &error) != WEFT_OK ||
      prove_file_read(c->proofs, "prompts", cell->prompts, &set->prompts, &error) != WEFT_OK) {
    (void)prove_end(outcome, PROVE_BAD_FILE, "%s", error.text);
    return NULL;
  }
  set->requests = prove_requests_make(set->suite, set->prompts);
  if (set->requests == NULL) (void)prove_end(outcome, PROVE_NO_START, "no memory for the requests");
  return set->requests == NULL ? NULL : set;
}

static prove_verdict fill_cell(prove_plan *plan, const weft_lab_config *c, prove_cell *cell, prove_outcome *outcome) {
  weft_error error = {{0}};
  if (prove_file_read(c->proofs, "contracts", cell->contract_name, &cell->contract, &error) != WEFT_OK ||
      prove_file_read(c->proofs, "budgets", cell->budget_name, &cell->budget, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_BAD_FILE, "%s", error.text);
  cell->set = find_set(plan, c, cell, outcome);
  if (cell->set == NULL) return outcome->verdict;
  cell->set->scored = cell->set->scored || prove_contract_scores(cell->contract);
  return prove_contract_fits(cell->contract, cell->set->suite, outcome);
}

static prove_verdict add_cell(prove_plan *plan, const weft_lab_config *c, const prove_cell *of,
                              prove_outcome *outcome) {
  prove_cell *grown = plan->n < CELLS_MAX ? weft_grow(plan->cell, plan->n, &plan->room, 16, sizeof *grown) : NULL;
  if (grown == NULL) return prove_end(outcome, PROVE_NO_START, "%s has too many cells", plan->name);
  plan->cell = grown;
  plan->cell[plan->n] = *of;
  return fill_cell(plan, c, &plan->cell[plan->n++], outcome);
}

/* The prompts of a suite where a proof names none. */
static json_t *prompts_of(const weft_lab_config *c, const json_t *proof, prove_outcome *outcome) {
  weft_error error = {{0}};
  json_t *suite = NULL, *list = json_object_get(proof, "prompts");
  if (list != NULL) return json_incref(list);
  if (prove_file_read(c->proofs, "suites", prove_text(proof, "suite", ""), &suite, &error) != WEFT_OK)
    (void)prove_end(outcome, PROVE_BAD_FILE, "%s", error.text);
  list = json_incref(json_object_get(suite, "prompts"));
  json_decref(suite);
  return list;
}

static prove_verdict expand_proof(prove_plan *plan, const weft_lab_config *c, const json_t *row, json_t *proof,
                                  prove_outcome *outcome) {
  const json_t *candidates = json_object_get(row, "candidates");
  json_t *prompts = prompts_of(c, proof, outcome);
  if (prompts != NULL)
    (void)json_object_set_new(proof, "prompts", prompts); /* kept by the matrix: cells borrow names */
  for (size_t i = 0; i < json_array_size(candidates); i++) {
    for (size_t k = 0; k < json_array_size(prompts); k++) {
      const prove_cell cell = {.candidate = json_string_value(json_array_get(candidates, i)),
                               .suite = prove_text(proof, "suite", ""),
                               .prompts = json_string_value(json_array_get(prompts, k)),
                               .contract_name = prove_text(proof, "contract", ""),
                               .budget_name = prove_text(row, "budget", prove_text(plan->matrix, "budget", "short")),
                               .expected = verdict_of(prove_text(proof, "expect", "proven"))};
      if (outcome->verdict == PROVE_PROVEN) (void)add_cell(plan, c, &cell, outcome);
    }
  }
  return outcome->verdict;
}

prove_verdict prove_plan_open(prove_plan *plan, const weft_lab_config *config, prove_outcome *outcome) {
  *plan = (prove_plan){.n = 0};
  if (read_matrix(plan, config, outcome) != PROVE_PROVEN) return outcome->verdict;
  const json_t *rows = json_object_get(plan->matrix, "rows");
  for (size_t i = 0; i < json_array_size(rows); i++) {
    const json_t *row = json_array_get(rows, i), *proofs = json_object_get(row, "proofs");
    for (size_t k = 0; k < json_array_size(proofs); k++) {
      if (expand_proof(plan, config, row, json_array_get(proofs, k), outcome) != PROVE_PROVEN) return outcome->verdict;
    }
  }
  return PROVE_PROVEN;
}

void prove_plan_close(prove_plan *plan) {
  for (uint32_t i = 0; i < plan->n; i++) {
    prove_cell *cell = &plan->cell[i];
    json_t *owned[] = {cell->contract, cell->budget,     cell->difference, cell->scores,          cell->candidate_facts,
                       cell->timing,   cell->acceptance, cell->owner,      cell->owner_validation};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) json_decref(owned[k]);
  }
  for (uint32_t i = 0; i < plan->n_sets; i++) {
    prove_set *set = &plan->set[i];
    json_t *owned[] = {set->suite, set->prompts, set->requests, set->budget, set->baseline, set->scores};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) json_decref(owned[k]);
  }
  weft_free(plan->cell);
  json_decref(plan->matrix);
  *plan = (prove_plan){.n = 0};
}
