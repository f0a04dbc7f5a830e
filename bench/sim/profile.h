/* SPDX-License-Identifier: MIT */
/* The profile of a device: which models it serves, and how long a step of each takes.
 *
 * Law. A step takes
 *
 *   step_us + row_us * rows + output_us * outputs + key_us / 1000 * keys + expert_us * experts
 *           + copy_us * copies
 *
 * rows      of all segments
 * outputs   rows whose logits are wanted: the row of a decode, the last row of an autoregressive prompt, scored rows,
 *           all rows of a canvas step
 * keys      for each segment and layer group, those that it reads: before it and in it
 * copies    pages copied before it, also to and from host memory
 * experts   of one layer, expected to be touched: E (1 - (1 - k / E)^rows) */
#ifndef WEFT_BENCH_SIM_PROFILE_H
#define WEFT_BENCH_SIM_PROFILE_H

#include "bench/lab/lab.h"

enum { WEFT_SIM_MODELS = 8, WEFT_SIM_VOCAB = 262144 };

typedef struct weft_sim_model {
  char name[64];
  bool autoregressive;
  uint32_t canvas; /* positions; 0: no diffusion */
  double share;    /* drawn requests: weight among the models that serve the kind */
  double step_us, row_us, output_us, key_us, expert_us;
  uint32_t n_experts, n_top; /* per layer, per row; 0: none */
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
} weft_sim_model;

typedef struct weft_sim_profile {
  uint32_t page_kib;
  double copy_us; /* of a page */
  uint32_t n_models;
  weft_sim_model model[WEFT_SIM_MODELS];
} weft_sim_profile;

/* What a step holds, as far as its time depends on it. */
typedef struct weft_sim_step {
  uint32_t n_rows, n_outputs;
  uint64_t n_keys;
} weft_sim_step;

/* The built-in one, or --profile; --step-us and its like replace the value of every model. 0, or an
 * exit code after one line. */
int weft_sim_profile_open(const weft_lab_config *config, weft_sim_profile *out);
/* Keys that n_rows rows of a sequence read together, `before` of its positions lying before them: summed over layer
 * groups, of which those of states have none. */
uint64_t weft_sim_keys(const weft_sim_model *model, uint32_t before, uint32_t n_rows);
double weft_sim_step_us(const weft_sim_model *model, const weft_sim_step *step);
/* The first model that serves the kind; n_models: none. */
uint32_t weft_sim_model_for(const weft_sim_profile *profile, bool diffusion);
bool weft_sim_serves(const weft_sim_model *model, bool diffusion);

#endif
