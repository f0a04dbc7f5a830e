/* SPDX-License-Identifier: MIT */
/* The generator: every property of request i is a function of the seed and i. */
#include <math.h>

#include "bench/lab/lab.h"
#include "bench/sim/sim.h"

enum { GAP, NORMAL_1, NORMAL_2, ANSWER, KIND, TENANT, SHARES, PREFIX, LONG, MODEL, CANCEL, CANCEL_AFTER, URGENT };

/* Uniform in (0, 1). */
static double draw_uniform(const weft_lab_config *config, uint32_t item, uint32_t what) {
  weft_draw_key key = {
      .seed = config->product.sampling.seed, .purpose = WEFT_DRAW_TEST, .position = item, .step = what};
  return ((double)(weft_draw_bits(&key) >> 11) + 0.5) * 0x1p-53;
}

static uint32_t tokens_of(double n, uint32_t most) {
  return n < 1.0 ? 1 : n > most ? most : (uint32_t)n;
}

static uint32_t draw_tenant(const weft_lab_config *c, uint32_t at) {
  double u = draw_uniform(c, at, TENANT);
  if (c->tenants == 1 || u < (double)c->skew) return 0;
  if (c->skew <= 0.0f) return (uint32_t)(u * c->tenants);
  return 1 + (uint32_t)((u - (double)c->skew) / (1.0 - (double)c->skew) * (c->tenants - 1));
}

/* Among the models that serve the kind, by their shares. */
static uint32_t draw_model(const weft_lab_config *c, const weft_sim_profile *profile, uint32_t at, bool diffusion) {
  double all = 0.0, sum = 0.0;
  uint32_t last = weft_sim_model_for(profile, diffusion);
  for (uint32_t i = 0; i < profile->n_models; i++) {
    if (weft_sim_serves(&profile->model[i], diffusion)) all += profile->model[i].share;
  }
  double u = draw_uniform(c, at, MODEL) * all;
  for (uint32_t i = 0; i < profile->n_models && sum <= u; i++) {
    if (!weft_sim_serves(&profile->model[i], diffusion)) continue;
    sum += profile->model[i].share;
    last = i;
  }
  return last;
}

/* The sums of the weights 1 / k^zipf of the first 1, 2, … prefixes, over the sum of all. */
static double *sum_weights(const weft_lab_config *c) {
  double *sum = weft_alloc(c->prefixes, sizeof *sum), all = 0.0;
  if (sum == NULL) return NULL;
  for (uint32_t k = 0; k < c->prefixes; k++) sum[k] = all += pow(k + 1.0, -(double)c->zipf);
  for (uint32_t k = 0; k < c->prefixes; k++) sum[k] /= all;
  return sum;
}

static uint32_t draw_prefix(const weft_lab_config *c, const double *sum, uint32_t at) {
  double u = draw_uniform(c, at, PREFIX);
  if (c->zipf <= 0.0f) return (uint32_t)(u * c->prefixes);
  uint32_t low = 0, high = c->prefixes - 1;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (sum[middle] <= u) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The time at which so many requests are due in the mean, with a rate of rate * (1 - swing cos(2 pi t / day)): the
 * integral of that is Kepler's equation, whose left side grows with t. */
static double due_at(const weft_lab_config *c, double even_us) {
  if (c->day_s <= 0.0f) return even_us;
  double turn = 6.283185307179586 / (1e6 * (double)c->day_s), swing = (double)c->swing;
  double low = even_us - swing / turn, high = even_us + swing / turn;
  for (uint32_t i = 0; i < 60; i++) {
    double middle = low + (high - low) / 2;
    if (middle - swing / turn * sin(turn * middle) < even_us) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return high;
}

/* The first n_shared ids are those of one of the shared prompts. */
static void draw_ids(const weft_sim_load *load, uint64_t prefix, uint32_t at, uint32_t n_shared, uint32_t n_ids,
                     uint64_t *id) {
  for (uint32_t i = 0; i < n_shared; i++) id[i] = prefix * (WEFT_SIM_TOKENS / load->block) + i;
  weft_sim_own_ids(load, at, n_shared, n_ids, id);
}

static void draw_limits(const weft_lab_config *c, uint32_t at, weft_sim_item *item) {
  if (draw_uniform(c, at, CANCEL) < (double)c->cancel) {
    item->cancel_us = 1 + (uint64_t)(-1000.0 * c->cancel_ms * log(draw_uniform(c, at, CANCEL_AFTER)));
  }
  item->deadline_us = 1000 * (uint64_t)c->deadline_ms;
  item->priority = draw_uniform(c, at, URGENT) < (double)c->urgent;
}

int weft_sim_draw(const weft_lab_config *c, const weft_sim_profile *profile, weft_sim_load *load, uint64_t *id) {
  double at_us = 0.0;
  int code = 0;
  double *weights = sum_weights(c);
  if (weights == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for %u prefixes", c->prefixes);
  bool both =
      weft_sim_model_for(profile, true) < profile->n_models && weft_sim_model_for(profile, false) < profile->n_models;
  for (uint32_t i = 0; i < c->requests && code == 0; i++) {
    if (i % c->burst == 0) at_us -= 1e6 * c->burst / (double)c->rate * log(draw_uniform(c, i, GAP));
    double normal =
        sqrt(-2.0 * log(draw_uniform(c, i, NORMAL_1))) * cos(6.283185307179586 * draw_uniform(c, i, NORMAL_2));
    weft_sim_item item = {.at_us = (uint64_t)due_at(c, at_us), .tenant = draw_tenant(c, i)};
    item.n_prompt = tokens_of(c->prompt_tokens * exp(normal), c->longest_tokens);
    item.n_answer = tokens_of(-(double)c->answer_tokens * log(draw_uniform(c, i, ANSWER)), WEFT_SIM_TOKENS / 4);
    item.diffusion =
        both ? draw_uniform(c, i, KIND) < (double)c->diffusion : weft_sim_model_for(profile, true) < profile->n_models;
    item.model = draw_model(c, profile, i, item.diffusion);
    if (draw_uniform(c, i, LONG) < (double)c->long_share) item.n_prompt = c->longest_tokens;
    uint32_t n_shared = 0;
    if (draw_uniform(c, i, SHARES) < (double)c->shared) {
      n_shared = weft_sim_blocks_of(load, c->shared_tokens);
      item.n_prompt += n_shared * load->block;
    }
    draw_limits(c, i, &item);
    draw_ids(load, draw_prefix(c, weights, i), i, n_shared, weft_sim_blocks_of(load, item.n_prompt), id);
    code = weft_sim_load_add(load, profile, &item, id);
  }
  weft_free(weights);
  return code;
}
