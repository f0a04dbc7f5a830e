/* SPDX-License-Identifier: MIT */
#include "model/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/random.h"

weft_sampling weft_sampling_default(void) {
  return (weft_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

weft_entropy_bound weft_entropy_bound_default(void) {
  return (weft_entropy_bound){.max_steps = 48,
                              .t_min = 0.4f,
                              .t_max = 0.8f,
                              .entropy_bound = 0.1f,
                              .stability = 1,
                              .confidence = 0.005f};
}

typedef struct float_range {
  const char *name;
  float value, low, high;
  bool low_is_out; /* the interval is open at low */
} float_range;

static weft_status check_ranges(const float_range *rows, uint32_t n, weft_error *error) {
  for (uint32_t i = 0; i < n; i++) {
    const float_range *r = &rows[i];
    bool inside = isfinite(r->value) && r->value <= r->high &&
                  (r->low_is_out ? r->value > r->low : r->value >= r->low);
    if (inside) continue;
    return weft_fail(error, WEFT_E_INVALID, "%s is %g; it must be %s %g and at most %g", r->name, (double)r->value,
                     r->low_is_out ? "greater than" : "at least", (double)r->low, (double)r->high);
  }
  return WEFT_OK;
}

weft_status weft_sampling_check(const weft_sampling *s, uint32_t n_vocab, weft_error *error) {
  const float_range rows[] = {
      {"temperature", s->temperature, 0.0f, 100.0f, false},
      {"top_p", s->top_p, 0.0f, 1.0f, true},
      {"min_p", s->min_p, 0.0f, 1.0f, false},
      {"repetition_penalty", s->repetition_penalty, 0.0f, 100.0f, true},
      {"presence_penalty", s->presence_penalty, -2.0f, 2.0f, false},
      {"frequency_penalty", s->frequency_penalty, -2.0f, 2.0f, false},
  };
  weft_status status = check_ranges(rows, sizeof rows / sizeof *rows, error);
  if (status != WEFT_OK) return status;
  if (s->n_top_logprobs > WEFT_TOP_LOGPROBS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "top_logprobs is %u; it must be at most %d", s->n_top_logprobs,
                     WEFT_TOP_LOGPROBS_MAX);
  }
  if (s->n_bias > WEFT_LOGIT_BIAS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "logit_bias has %u entries; at most %d are allowed", s->n_bias,
                     WEFT_LOGIT_BIAS_MAX);
  }
  for (uint32_t i = 0; i < s->n_bias; i++) {
    if (s->bias[i].token < 0 || (uint32_t)s->bias[i].token >= n_vocab) {
      return weft_fail(error, WEFT_E_INVALID, "logit_bias names token %d; the vocabulary has %u tokens",
                       s->bias[i].token, n_vocab);
    }
    if (!(s->bias[i].bias >= -100.0f && s->bias[i].bias <= 100.0f)) {
      return weft_fail(error, WEFT_E_INVALID, "logit_bias of token %d is %g; it must be from -100 to 100",
                       s->bias[i].token, (double)s->bias[i].bias);
    }
  }
  return WEFT_OK;
}

weft_status weft_entropy_bound_check(const weft_entropy_bound *p, weft_error *error) {
  if (p->max_steps < 1 || p->max_steps > 4096) {
    return weft_fail(error, WEFT_E_INVALID, "diffusion steps is %u; it must be from 1 to 4096", p->max_steps);
  }
  if (p->stability > WEFT_STABILITY_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "diffusion stability is %u; it must be at most %d", p->stability,
                     WEFT_STABILITY_MAX);
  }
  const float_range rows[] = {
      {"diffusion t_min", p->t_min, 0.0f, 100.0f, true},
      {"diffusion t_max", p->t_max, p->t_min, 100.0f, false},
      {"diffusion entropy_bound", p->entropy_bound, 0.0f, 1e9f, false},
      {"diffusion confidence", p->confidence, 0.0f, 1e9f, false},
  };
  return check_ranges(rows, sizeof rows / sizeof *rows, error);
}

bool weft_sampling_is_plain(const weft_sampling *s) {
  if (s->logprobs || s->n_bias > 0) return false;
  if (s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f) return false;
  if (s->temperature == 0.0f) return true;
  return s->top_k == 0 && s->top_p >= 1.0f && s->min_p <= 0.0f;
}

/* ---- autoregressive ------------------------------------------------------------------------------------- */

typedef struct ranked {
  float value;
  int32_t token;
} ranked;
_Static_assert(sizeof(ranked) == 8, "scratch of weft_sample_args is 8 bytes per vocabulary entry");

static int by_value(const void *a, const void *b) { /* largest first; ties: lower token first */
  const ranked *x = a, *y = b;
  if (x->value != y->value) return x->value > y->value ? -1 : 1;
  return (x->token > y->token) - (x->token < y->token);
}

static int by_token(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return (x->token > y->token) - (x->token < y->token);
}


/* Each distinct token of the history once, with how often the answer holds it. */
static void penalise(const weft_sample_args *args) {
  const weft_sampling *s = args->sampling;
  bool repeat = s->repetition_penalty != 1.0f;
  bool count = s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
  uint32_t first = repeat ? 0 : args->n_prompt;
  if ((!repeat && !count) || args->n_history <= first) return;
  /* A count per vocabulary entry: [n_vocab] seen anywhere, [n_vocab] times in the answer. */
  int32_t *seen = args->scratch, *times = seen + args->n_vocab;
  memset(seen, 0, (size_t)args->n_vocab * 8);
  for (uint32_t i = first; i < args->n_history; i++) {
    int32_t token = args->history[i];
    if (token < 0 || (uint32_t)token >= args->n_vocab) continue;
    seen[token] = 1;
    if (i >= args->n_prompt) times[token] += 1;
  }
  for (uint32_t v = 0; v < args->n_vocab; v++) {
    if (seen[v] == 0) continue;
    float logit = args->logits[v];
    if (repeat) logit = logit > 0.0f ? logit / s->repetition_penalty : logit * s->repetition_penalty;
    if (times[v] > 0) logit -= s->presence_penalty + s->frequency_penalty * (float)times[v];
    args->logits[v] = logit;
  }
}

static void suppress(const weft_sample_args *args) {
  for (uint32_t i = 0; i < args->n_suppressed; i++) {
    int32_t token = args->suppressed[i];
    if (token >= 0 && (uint32_t)token < args->n_vocab) args->logits[token] = -INFINITY;
  }
  const weft_sampling *s = args->sampling;
  for (uint32_t i = 0; i < s->n_bias; i++) args->logits[s->bias[i].token] += s->bias[i].bias;
}

static int32_t argmax(const float *logits, uint32_t n) {
  int32_t best = -1;
  for (uint32_t v = 0; v < n; v++) {
    if (!isfinite(logits[v])) continue;
    if (best < 0 || logits[v] > logits[best]) best = (int32_t)v;
  }
  return best;
}

static double log_total(const float *logits, uint32_t n, float max) {
  double total = 0.0;
  for (uint32_t v = 0; v < n; v++) {
    if (isfinite(logits[v])) total += exp((double)logits[v] - (double)max);
  }
  return (double)max + log(total);
}

/* The n most likely tokens, by repeated selection: n is at most 20. */
static void top_logprobs(const float *logits, uint32_t n_vocab, double lse, uint32_t n, weft_sampled *out) {
  out->n_top = 0;
  for (uint32_t v = 0; v < n_vocab; v++) {
    if (!isfinite(logits[v])) continue;
    float value = (float)((double)logits[v] - lse);
    uint32_t at = out->n_top;
    while (at > 0 && out->top[at - 1].logprob < value) at -= 1;
    if (at >= n) continue;
    uint32_t last = out->n_top < n ? out->n_top : n - 1;
    for (uint32_t i = last; i > at; i--) out->top[i] = out->top[i - 1];
    out->top[at] = (weft_logprob){(int32_t)v, value};
    if (out->n_top < n) out->n_top += 1;
  }
}

/* Keeps the best entries of list (sorted best first) by top-k, top-p, min-p; returns how many. */
static uint32_t keep_best(const weft_sampling *s, ranked *list, uint32_t n, float max) {
  if (s->top_k > 0 && s->top_k < n) n = s->top_k;
  if (s->top_p < 1.0f) {
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < n; i++) total += exp((double)list[i].value - (double)max);
    for (uint32_t i = 0; i < n; i++) {
      sum += exp((double)list[i].value - (double)max);
      if (sum >= (double)s->top_p * total) {
        n = i + 1;
        break;
      }
    }
  }
  if (s->min_p > 0.0f) {
    double least = (double)max + log((double)s->min_p);
    while (n > 1 && (double)list[n - 1].value < least) n -= 1;
  }
  return n;
}

static int32_t draw(const ranked *list, uint32_t n, float max, float u) {
  double total = 0.0, sum = 0.0;
  for (uint32_t i = 0; i < n; i++) total += exp((double)list[i].value - (double)max);
  for (uint32_t i = 0; i < n; i++) {
    sum += exp((double)list[i].value - (double)max);
    if (sum > (double)u * total) return list[i].token;
  }
  return list[n - 1].token;
}

static int32_t sample_tempered(const weft_sample_args *args, float max) {
  const weft_sampling *s = args->sampling;
  ranked *list = args->scratch;
  uint32_t n = 0;
  for (uint32_t v = 0; v < args->n_vocab; v++) {
    if (!isfinite(args->logits[v])) continue;
    list[n++] = (ranked){args->logits[v] / s->temperature, (int32_t)v};
  }
  bool cut = (s->top_k > 0 && s->top_k < n) || s->top_p < 1.0f || s->min_p > 0.0f;
  max /= s->temperature;
  if (cut) {
    qsort(list, n, sizeof *list, by_value);
    n = keep_best(s, list, n, max);
    qsort(list, n, sizeof *list, by_token); /* the CDF runs in vocabulary order */
  }
  weft_draw_key key = {s->seed, s->choice, WEFT_DRAW_TOKEN, args->position, 0};
  return draw(list, n, max, weft_draw_uniform(&key));
}

weft_status weft_sample_row(const weft_sample_args *args, weft_sampled *out) {
  const weft_sampling *s = args->sampling;
  suppress(args);
  penalise(args);
  int32_t best = argmax(args->logits, args->n_vocab);
  if (best < 0) return WEFT_E_FORMAT;
  float max = args->logits[best];
  memset(out, 0, sizeof *out);
  double lse = 0.0;
  if (s->logprobs) {
    lse = log_total(args->logits, args->n_vocab, max);
    if (s->n_top_logprobs > 0) top_logprobs(args->logits, args->n_vocab, lse, s->n_top_logprobs, out);
  }
  out->token = s->temperature == 0.0f ? best : sample_tempered(args, max);
  if (s->logprobs) out->logprob = (float)((double)args->logits[out->token] - lse);
  return WEFT_OK;
}

/* ---- entropy bound ---------------------------------------------------------------------------------------- */

float weft_entropy_bound_temperature(const weft_entropy_bound *p, uint32_t step) {
  float left = (float)(p->max_steps - step) / (float)p->max_steps;
  return p->t_min + (p->t_max - p->t_min) * left;
}

/* Positions by entropy ascending, ties by position: a stable merge sort without allocation would need a second
 * array; canvases are short, so binary insertion does. */
static void order_by_entropy(const float *entropy, uint32_t n, uint32_t *order) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t low = 0, high = i;
    while (low < high) {
      uint32_t middle = (low + high) / 2;
      if (entropy[order[middle]] <= entropy[i]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    memmove(order + low + 1, order + low, (i - low) * sizeof *order);
    order[low] = i;
  }
}

void weft_entropy_bound_step(weft_canvas_step *s) {
  WEFT_CHECK(s->n >= 1);
  order_by_entropy(s->entropy, s->n, s->order);
  float sum = 0.0f; /* f32 and inclusive minus own, as the reference sums */
  s->n_accepted = 0;
  for (uint32_t r = 0; r < s->n; r++) {
    uint32_t i = s->order[r];
    sum += s->entropy[i];
    bool accepted = sum - s->entropy[i] <= s->params->entropy_bound;
    s->accepted[i] = accepted;
    s->n_accepted += accepted;
    s->next[i] = accepted ? s->drawn[i] : s->renoise[i];
  }
  bool stable = s->n_history >= s->params->stability;
  for (uint32_t h = 0; stable && h < s->params->stability; h++) {
    stable = memcmp(s->argmax, s->history + (size_t)h * s->n, s->n * sizeof *s->argmax) == 0;
  }
  float total = 0.0f;
  for (uint32_t i = 0; i < s->n; i++) total += s->entropy[i];
  s->mean_entropy = total / (float)s->n;
  bool confident = s->mean_entropy < s->params->confidence;
  s->stopped = stable && confident;
  s->done = s->stopped || s->step + 1 >= s->params->max_steps;
}
