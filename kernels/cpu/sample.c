/* SPDX-License-Identifier: MIT */
/* sample: a task is a row.
 *
 * Law: the result is that of sample.h, but only candidates that the cuts may leave are sorted. Values are counted by
 * their distance from the largest, in steps of 1/64; the counts, or the sums of weights, tell beyond which distance the
 * cuts leave nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { STEPS = 2048 };

typedef weft_sample_ranked ranked;

typedef struct sample_run {
  const weft_sample_args *args;
  uint64_t own_bytes;
} sample_run;

/* Scratch of each thread: counts of tokens, then candidates. */
uint64_t cpu_sample_scratch(weft_device *device, const weft_sample_args *args) {
  return weft_thread_pool_size(cpu_thread_pool(device)) * (uint64_t)args->n_vocab * sizeof(ranked);
}

/* ---- logits as they are asked for ---- */

static void suppress_tokens(const uint32_t *allowed, uint32_t n_vocab, float *logits) {
  for (uint32_t first = 0; allowed != NULL && first < n_vocab; first += 32) {
    uint32_t bits = ~allowed[first / 32];
    for (uint32_t v = first; bits != 0 && v < n_vocab; v++, bits >>= 1) {
      if ((bits & 1u) != 0) logits[v] = -INFINITY;
    }
  }
}

/* Each distinct token of the history once, with how often the answer holds it. */
static void penalise_history(const weft_sample_args *args, const weft_sample_row *row, float *logits, uint32_t *times) {
  const uint32_t seen = 1u << 31;
  uint32_t n = row->n_history + (row->pending != 0 ? 1 : 0), n_vocab = args->n_vocab;
  if (n == 0) return;
  memset(times, 0, (size_t)n_vocab * sizeof *times);
  for (uint32_t pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < n; i++) {
      int32_t token = i < row->n_history ? args->history[row->history_at + i] : args->cells[row->cell];
      if (token < 0 || (uint32_t)token >= n_vocab) continue;
      if (pass == 0) {
        times[token] = (times[token] | seen) + (i >= row->n_prompt ? 1 : 0);
      } else if ((times[token] & seen) != 0) {
        times[token] &= ~seen;
        logits[token] = weft_sample_penalised(logits[token], row, times[token]);
      }
    }
  }
}

static int32_t find_argmax(const float *logits, uint32_t n) {
  int32_t best = -1;
  for (uint32_t v = 0; v < n; v++) {
    if (isfinite(logits[v]) && (best < 0 || logits[v] > logits[best])) best = (int32_t)v;
  }
  return best;
}

static void take_logprobs(const weft_sample_row *row, const float *logits, uint32_t n, weft_sample_result *out) {
  for (uint32_t v = 0; v < n; v++) {
    if (!isfinite(logits[v])) continue;
    out->total += weft_sample_weight(logits[v] - out->most);
    uint32_t at = out->n_top;
    if (at == row->n_top && (at == 0 || logits[v] <= out->top[at - 1].logit)) continue;
    if (at == row->n_top) at -= 1;
    for (; at > 0 && out->top[at - 1].logit < logits[v]; at--) out->top[at] = out->top[at - 1];
    out->top[at] = (weft_sample_top){(int32_t)v, logits[v]};
    if (out->n_top < row->n_top) out->n_top += 1;
  }
}

/* ---- cuts and draw ---- */

static uint32_t step_of(float below) {
  float steps = -below * 64.0f;
  return steps < (float)STEPS - 1.0f ? (uint32_t)steps : STEPS - 1;
}

static uint64_t total_of(const ranked *list, uint32_t n, float most) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; i++) total += weft_sample_weight(list[i].value - most);
  return total;
}

/* The last step that the cuts may leave anything of. */
static uint32_t last_step(const weft_sample_row *row, const ranked *list, uint32_t n, float most) {
  uint64_t sums[STEPS] = {0}, wanted = row->top_k, sum = 0;
  bool by_count = row->top_k > 0 && row->top_k < n;
  if (!by_count && row->top_p >= 1.0f) return STEPS - 1;
  if (!by_count) wanted = weft_sample_wanted(row->top_p, total_of(list, n, most));
  for (uint32_t i = 0; i < n; i++) {
    float below = list[i].value - most;
    sums[step_of(below)] += by_count ? 1 : weft_sample_weight(below);
  }
  uint32_t step = 0;
  while (step < STEPS - 1 && (sum += sums[step]) < wanted) step++;
  return step;
}

/* Leaves in the list the candidates that top_k and top_p keep, best first, and returns how many they are. */
static uint32_t keep_best(const weft_sample_row *row, ranked *list, uint32_t n, float most) {
  uint32_t step = last_step(row, list, n, most), n_near = 0;
  bool has_k = row->top_k > 0 && row->top_k < n;
  uint64_t total = row->top_p < 1.0f && !has_k ? total_of(list, n, most) : 0, sum = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (step_of(list[i].value - most) <= step) list[n_near++] = list[i];
  }
  qsort(list, n_near, sizeof *list, weft_sample_by_value);
  n = has_k ? row->top_k : n_near;
  if (row->top_p >= 1.0f) return n;
  if (has_k) total = total_of(list, n, most);
  uint64_t wanted = weft_sample_wanted(row->top_p, total);
  uint32_t i = 0;
  while (sum < wanted) sum += weft_sample_weight(list[i++].value - most);
  return i;
}

static int32_t draw_token(const weft_sample_row *row, const float *logits, uint32_t n_vocab, float most, ranked *list) {
  uint32_t n = 0, n_kept = 0, i = 0;
  for (uint32_t v = 0; v < n_vocab; v++) {
    float value = logits[v] / row->temperature;
    if (isfinite(value)) list[n++] = (ranked){value, (int32_t)v};
  }
  if ((row->top_k > 0 && row->top_k < n) || row->top_p < 1.0f) {
    n = keep_best(row, list, n, most);
    qsort(list, n, sizeof *list, weft_sample_by_token);
  }
  for (uint32_t k = 0; k < n; k++) {
    if (list[k].value - most >= row->min_log) list[n_kept++] = list[k];
  }
  uint64_t threshold = weft_sample_threshold(row->u, total_of(list, n_kept, most)), sum = 0;
  while ((sum += weft_sample_weight(list[i].value - most)) <= threshold) i += 1;
  return list[i].token;
}

static void row_task(void *arg, uint32_t r, uint32_t thread) {
  const sample_run *run = arg;
  const weft_sample_args *args = run->args;
  const weft_sample_row *row = &args->row[r];
  weft_sample_result *out = &args->out[r];
  float *logits = args->logits + r * args->logits_stride;
  uint8_t *own = (uint8_t *)args->scratch + thread * run->own_bytes;
  memset(out, 0, sizeof *out);
  suppress_tokens(args->allowed, args->n_vocab, logits);
  suppress_tokens(weft_sample_mask(args, row), args->n_vocab, logits);
  for (uint32_t i = 0; i < row->n_bias; i++) {
    const weft_logit_bias *bias = &args->bias[row->bias_at + i];
    logits[bias->token] += bias->bias;
  }
  penalise_history(args, row, logits, (uint32_t *)(void *)own);
  int32_t best = find_argmax(logits, args->n_vocab);
  out->bad = best < 0 || (args->bad != NULL && args->bad[r] != 0) ? 1 : 0;
  if (out->bad == 0) {
    out->most = logits[best];
    out->token = best;
    if (row->logprobs != 0) take_logprobs(row, logits, args->n_vocab, out);
    float most = out->most / row->temperature;
    if (row->temperature != 0.0f && isfinite(most)) {
      out->token = draw_token(row, logits, args->n_vocab, most, (ranked *)(void *)own);
    }
    out->logit = logits[out->token];
  }
  if (row->cell >= 0) args->cells[row->cell] = out->token;
}

weft_status cpu_sample(weft_device *device, const weft_sample_args *args) {
  sample_run run = {args, (uint64_t)args->n_vocab * sizeof(ranked)};
  weft_thread_pool_run(cpu_thread_pool(device), row_task, &run, args->n_rows);
  return WEFT_OK;
}
