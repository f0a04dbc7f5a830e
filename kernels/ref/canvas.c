/* SPDX-License-Identifier: MIT */
/* canvas: the rule on the host, and what a slot keeps. The cpu backend uses this file too. */
#include "kernels/canvas.h"

#include <string.h>

#include "base/check.h"
#include "kernels/ref/ref.h"

/* Orders positions by entropy ascending, ties by position, by binary insertion: a stable merge sort would need a second
 * array, and canvases are short. */
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

void weft_canvas_judge(weft_canvas_trial *t) {
  WEFT_CHECK(t->n >= 1);
  weft_canvas_result *out = &t->result;
  order_by_entropy(t->entropy, t->n, t->order);
  float sum = 0.0f, total = 0.0f;
  out->n_accepted = 0;
  for (uint32_t r = 0; r < t->n; r++) { /* the sum with its own entropy, less that: the bits of the reference's rule */
    uint32_t i = t->order[r];
    sum += t->entropy[i];
    bool accepted = sum - t->entropy[i] <= t->rule.entropy_bound;
    if (t->rule.agree != 0 && t->drawn[i] != t->argmax[i]) accepted = false;
    t->accepted[i] = accepted;
    out->n_accepted += accepted;
    t->next[i] = accepted ? t->drawn[i] : t->fresh[i];
  }
  bool stable = t->n_history >= t->rule.stability;
  for (uint32_t h = 0; stable && h < t->rule.stability; h++) {
    stable = memcmp(t->argmax, t->history + (size_t)h * t->n, t->n * sizeof *t->argmax) == 0;
  }
  for (uint32_t i = 0; i < t->n; i++) total += t->entropy[i];
  out->mean_entropy = total / (float)t->n;
  out->stopped = stable && out->mean_entropy < t->rule.confidence;
  out->done = out->stopped || t->rule.step + 1 >= t->rule.max_steps;
}

uint64_t ref_canvas_scratch(weft_device *device, const weft_canvas_args *args) {
  (void)device;
  return (uint64_t)args->n * sizeof(uint32_t);
}

static void step_canvas(const weft_canvas_args *a, uint32_t r) {
  const weft_canvas_row *row = &a->row[r];
  int32_t *tokens = a->state + row->slot * weft_canvas_state_words(a->n), *history = tokens + a->n;
  int32_t *n_history = history + (size_t)WEFT_STABILITY_MAX * a->n, *done = n_history + 1;
  if (row->rule.step == 0) *n_history = *done = 0;
  a->out[r] = (weft_canvas_result){.is_void = 1};
  if (*done != 0) return;
  weft_canvas_trial t = {.rule = row->rule,
                         .n = a->n,
                         .n_history = (uint32_t)*n_history,
                         .argmax = a->argmax + row->first,
                         .drawn = a->drawn + row->first,
                         .fresh = a->fresh + row->first,
                         .history = history,
                         .entropy = a->entropy + row->first,
                         .order = a->scratch,
                         .next = a->next + row->first,
                         .accepted = a->accepted + row->first};
  weft_canvas_judge(&t);
  for (uint32_t i = 0; i < a->n; i++) t.result.bad |= a->bad[row->first + i] != 0 ? 1 : 0;
  memcpy(tokens, t.next, a->n * sizeof *tokens);
  memmove(history + a->n, history, (size_t)(WEFT_STABILITY_MAX - 1) * a->n * sizeof *history);
  memcpy(history, t.argmax, a->n * sizeof *history);
  if (*n_history < WEFT_STABILITY_MAX) *n_history += 1;
  *done = (int32_t)t.result.done;
  a->out[r] = t.result;
}

weft_status ref_canvas(weft_device *device, const weft_canvas_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) step_canvas(args, r);
  return WEFT_OK;
}
