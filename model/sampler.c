/* SPDX-License-Identifier: MIT */
#include "model/sampler.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "base/range.h"
#include "kernels/canvas.h"
#include "kernels/sample.h"

weft_sampling weft_sampling_neutral(void) {
  return (weft_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

const char *weft_sampling_of_tokens(const weft_sampling *s) {
  bool repetition = s->repetition_penalty != 1.0f && s->repetition_penalty != 0.0f;
  if (s->logprobs) return "logprobs";
  if (s->n_bias > 0) return "logit_bias";
  if (repetition || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f) return "penalties";
  return s->min_p != 0.0f ? "min_p" : NULL;
}

weft_entropy_bound weft_entropy_bound_default(void) {
  return (weft_entropy_bound){
      .max_steps = 48, .t_min = 0.4f, .t_max = 0.8f, .entropy_bound = 0.1f, .stability = 1, .confidence = 0.005f};
}

typedef struct ranged_value {
  const char *name;
  double value;
  weft_range range;
} ranged_value;

static weft_status check_ranges(const ranged_value *rows, uint32_t n, weft_error *error) {
  char allowed[WEFT_RANGE_TEXT];
  for (uint32_t i = 0; i < n; i++) {
    const ranged_value *r = &rows[i];
    if (weft_range_has(&r->range, r->value)) continue;
    return weft_fail(error, WEFT_E_INVALID, "%s is %g; it must be %s", r->name, r->value,
                     weft_range_text(&r->range, allowed));
  }
  return WEFT_OK;
}

weft_status weft_sampling_check(const weft_sampling *s, uint32_t n_vocab, weft_error *error) {
  static const weft_range bias_range = {WEFT_RANGE_LOGIT_BIAS};
  char allowed[WEFT_RANGE_TEXT];
  const ranged_value rows[] = {{"temperature", s->temperature, {WEFT_RANGE_TEMPERATURE}},
                               {"top_k", s->top_k, {WEFT_RANGE_TOP_K}},
                               {"top_p", s->top_p, {WEFT_RANGE_TOP_P}},
                               {"min_p", s->min_p, {WEFT_RANGE_MIN_P}},
                               {"repetition_penalty", s->repetition_penalty, {WEFT_RANGE_REPETITION_PENALTY}},
                               {"presence_penalty", s->presence_penalty, {WEFT_RANGE_PRESENCE_PENALTY}},
                               {"frequency_penalty", s->frequency_penalty, {WEFT_RANGE_FREQUENCY_PENALTY}},
                               {"top_logprobs", s->n_top_logprobs, {WEFT_RANGE_TOP_LOGPROBS}}};
  weft_status status = check_ranges(rows, sizeof rows / sizeof *rows, error);
  if (status != WEFT_OK) return status;
  if (s->n_bias > WEFT_LOGIT_BIAS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "logit_bias has %u entries; at most %d are allowed", s->n_bias,
                     WEFT_LOGIT_BIAS_MAX);
  }
  if (s->n_bias > 0 && s->bias == NULL) {
    return weft_fail(error, WEFT_E_INVALID, "logit_bias has %u entries without tokens or values", s->n_bias);
  }
  for (uint32_t i = 0; i < s->n_bias; i++) {
    if (s->bias[i].token < 0 || (uint32_t)s->bias[i].token >= n_vocab) {
      return weft_fail(error, WEFT_E_INVALID, "logit_bias names token %d; the vocabulary has %u tokens",
                       s->bias[i].token, n_vocab);
    }
    if (!weft_range_has(&bias_range, s->bias[i].bias)) {
      return weft_fail(error, WEFT_E_INVALID, "logit_bias of token %d is %g; it must be %s", s->bias[i].token,
                       (double)s->bias[i].bias, weft_range_text(&bias_range, allowed));
    }
  }
  return WEFT_OK;
}

weft_status weft_entropy_bound_check(const weft_entropy_bound *p, weft_error *error) {
  const ranged_value rows[] = {{"diffusion steps", p->max_steps, {WEFT_RANGE_MAX_STEPS}},
                               {"diffusion stability", p->stability, {WEFT_RANGE_STABILITY}},
                               {"diffusion t_min", p->t_min, {WEFT_RANGE_T_MIN}},
                               {"diffusion t_max", p->t_max, {WEFT_RANGE_T_MAX}},
                               {"diffusion entropy_bound", p->entropy_bound, {WEFT_RANGE_ENTROPY_BOUND}},
                               {"diffusion confidence", p->confidence, {WEFT_RANGE_CONFIDENCE}}};
  weft_status status = check_ranges(rows, sizeof rows / sizeof *rows, error);
  if (status != WEFT_OK || p->t_max >= p->t_min) return status;
  return weft_fail(error, WEFT_E_INVALID, "diffusion t_max is %g; it must be at least t_min, which is %g",
                   (double)p->t_max, (double)p->t_min);
}

bool weft_sampling_is_plain(const weft_sampling *s) {
  if (s->logprobs || s->n_bias > 0) return false;
  if (s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f) return false;
  if (s->temperature == 0.0f) return true;
  return s->top_k <= 0 && s->top_p >= 1.0f && s->min_p <= 0.0f;
}

/* ---- autoregressive ------------------------------------------------------------------------------------- */

void weft_sampling_ask(const weft_sampling *s, uint64_t position, weft_sample_row *row) {
  weft_draw_key key = {s->seed, s->choice, WEFT_DRAW_TOKEN, position, 0};
  *row = (weft_sample_row){.temperature = s->temperature,
                           .u = weft_draw_uniform(&key),
                           .top_k = s->top_k > 0 ? (uint32_t)s->top_k : 0,
                           .top_p = s->top_p,
                           .min_log = s->min_p > 0.0f ? (float)log((double)s->min_p) : -INFINITY,
                           .repetition = s->repetition_penalty,
                           .presence = s->presence_penalty,
                           .frequency = s->frequency_penalty,
                           .n_bias = s->n_bias,
                           .cell = -1,
                           .logprobs = s->logprobs ? 1 : 0,
                           .n_top = s->logprobs ? s->n_top_logprobs : 0};
}

uint32_t weft_sampling_forgets(const weft_sampling *s, uint32_t n_history, uint32_t n_prompt) {
  bool repetition = s->repetition_penalty != 1.0f;
  if (!repetition && s->presence_penalty == 0.0f && s->frequency_penalty == 0.0f) return UINT32_MAX;
  uint32_t window = s->penalty_window, first = repetition ? 0 : n_prompt < n_history ? n_prompt : n_history;
  bool cuts = window > 0 && window < n_history - first;
  return cuts ? n_history - window : first;
}

static float logprob_of(const weft_sample_result *row, float logit) {
  double log_total = (double)row->most + log((double)row->total * 0x1p-40);
  return (float)((double)logit - log_total);
}

static void take_top(const weft_sample_result *row, weft_logprob *out) {
  for (uint32_t i = 0; i < row->n_top; i++) {
    out[i] = (weft_logprob){row->top[i].token, logprob_of(row, row->top[i].logit)};
  }
}

void weft_sampling_take(const weft_sample_result *row, weft_sampled *out) {
  memset(out, 0, sizeof *out);
  out->token = row->token;
  out->n_top = row->n_top;
  if (row->total == 0) return;
  out->logprob = logprob_of(row, row->logit);
  take_top(row, out->top);
}

void weft_sampling_ask_score(weft_sample_row *row) {
  weft_sampling neutral = weft_sampling_neutral();
  neutral.temperature = 0.0f;
  neutral.logprobs = true;
  neutral.n_top_logprobs = WEFT_TOP_LOGPROBS_MAX;
  weft_sampling_ask(&neutral, 0, row);
}

void weft_sampling_take_score(const weft_sample_result *row, int32_t token, float logit, weft_scored *out) {
  memset(out, 0, sizeof *out);
  out->n_top = row->n_top;
  if (row->total == 0) return;
  out->logprob = logprob_of(row, logit);
  take_top(row, out->top);
  for (uint32_t i = 0; i < row->n_top; i++) {
    if (row->top[i].token == token) out->rank = i + 1;
  }
}

/* ---- entropy bound ---------------------------------------------------------------------------------------- */

float weft_entropy_bound_temperature(const weft_entropy_bound *p, uint32_t step) {
  float left = (float)(p->max_steps - step) / (float)p->max_steps;
  return p->t_min + (p->t_max - p->t_min) * left;
}

void weft_entropy_bound_rule(const weft_entropy_bound *p, uint32_t step, weft_canvas_rule *rule) {
  *rule = (weft_canvas_rule){step, p->max_steps, (uint32_t)p->stability, p->entropy_bound, p->confidence, 0};
}
