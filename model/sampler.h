/* SPDX-License-Identifier: MIT */
/* Sampling: how logits become tokens. Pure functions over plain arrays; every random number is a stateless draw
 * keyed by (seed, choice, purpose, position, step), so that a request gives the same tokens alone, in any batch
 * and after preemption.
 *
 * Autoregressive order of operations: allowed tokens, logit bias, repetition, presence and frequency penalties,
 * then (temperature 0: argmax) temperature, top-k, top-p, min-p, draw. One uniform per token, through the CDF in
 * vocabulary order over the tokens that are left. Ties: the lower token id. The device that holds the logits computes
 * all of this (kernels/sample.h).
 *
 * Entropy-bound order (the rule of arXiv 2505.24857 as used by DiffusionGemma), for step s = 0 .. N-1 of a canvas:
 *   t = t_min + (t_max - t_min) * (N - s) / N; z = logits / t; argmax, one draw D and the entropy H (nats) of
 *   softmax(z) per position; positions sorted by H ascending (ties: lower position); rank r is accepted iff the
 *   sum of the strictly lower ranked entropies is <= entropy_bound; accepted positions take D, all others a fresh
 *   uniform token; stop when the argmax canvas equals the last `stability` argmax canvases and mean H < confidence,
 *   or after N steps. What is committed is the argmax canvas of the last step. */
#ifndef WEFT_MODEL_SAMPLER_H
#define WEFT_MODEL_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sampling.h"
#include "base/status.h"
#include "model/formats/grammar_handle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values with which nothing is cut off, penalised or reported. The defaults of requests are others: they stand in
 * base/sampling.h. */
weft_sampling weft_sampling_neutral(void);
/* What of it is defined for an answer token by token alone, by name; NULL: nothing. Sampling that was left all zero asks for
 * nothing. */
const char *weft_sampling_of_tokens(const weft_sampling *sampling);
/* The values of a diffusion model whose file does not give them. */
weft_entropy_bound weft_entropy_bound_default(void);
/* INVALID with one line that names the first number out of its range. */
weft_status weft_sampling_check(const weft_sampling *sampling, uint32_t n_vocab, weft_error *error);
weft_status weft_entropy_bound_check(const weft_entropy_bound *params, weft_error *error);

/* Whether the rows of such a request are plain: greedy or temperature alone, without penalties, bias, top-k, top-p,
 * min-p and logprobs. Plain rows go through head_stats; the others need their logits and go through head_rows and
 * sample. */
bool weft_sampling_is_plain(const weft_sampling *sampling);

typedef struct weft_logprob {
  int32_t token;
  float logprob;
} weft_logprob;

typedef struct weft_sampled {
  int32_t token;
  float logprob;
  uint32_t n_top;
  weft_logprob top[WEFT_TOP_LOGPROBS_MAX];
} weft_sampled;

/* How likely a given token was at its position by the model's own distribution: at temperature 1, with nothing
 * penalised, suppressed or cut off. */
typedef struct weft_scored {
  float logprob;
  uint32_t rank; /* among all tokens, from 1; 0: lower than WEFT_TOP_LOGPROBS_MAX */
  uint32_t n_top;
  weft_logprob top[WEFT_TOP_LOGPROBS_MAX]; /* best first; ties: the lower token */
} weft_scored;

/* weft_sampling_ask fills the request to the device for the token at this position of the sequence: all fields but
 * history, bias_at, cell and pending. weft_sampling_forgets says how many tokens at the beginning of a history of so
 * many (with one that is pending) no penalty looks at (UINT32_MAX: no penalty looks at any token), so that they need
 * not be sent. weft_sampling_take turns the device's result into a sampled token. */
struct weft_sample_row;
struct weft_sample_result;
void weft_sampling_ask(const weft_sampling *sampling, uint64_t position, struct weft_sample_row *row);
uint32_t weft_sampling_forgets(const weft_sampling *sampling, uint32_t n_history, uint32_t n_prompt);
void weft_sampling_take(const struct weft_sample_result *row, weft_sampled *out);
/* The same for the score of a given token; `logit` is the logit of that token. */
void weft_sampling_ask_score(struct weft_sample_row *row);
void weft_sampling_take_score(const struct weft_sample_result *row, int32_t token, float logit, weft_scored *out);

/* The temperature of a denoise step, counted from 0. */
float weft_entropy_bound_temperature(const weft_entropy_bound *params, uint32_t step);

/* The rule of a denoise step in the form that the device reads (kernels/canvas.h). */
struct weft_canvas_rule;
void weft_entropy_bound_rule(const weft_entropy_bound *params, uint32_t step, struct weft_canvas_rule *rule);

#ifdef __cplusplus
}
#endif
#endif
