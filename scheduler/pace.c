/* SPDX-License-Identifier: MIT */
#include "scheduler/pace.h"

void weft_pace_open(weft_pace *p, const weft_cost_model *model, double budget_us, uint32_t n_decode,
                    uint32_t keys_per_decode, const weft_pace_late *late) {
  *p = (weft_pace){.model = model,
                   .budget_us = budget_us,
                   .shape = weft_cost_decode(&model->layers, n_decode, keys_per_decode),
                   .prompt_due = late->n_prompts >= WEFT_PACE_HELD,
                   .canvas_due = late->n_canvases >= WEFT_PACE_HELD};
}

void weft_pace_owe_first(weft_pace *p) {
  p->prompt_due = p->canvas_due = p->decode_due = true;
}

static bool fits_time(const weft_pace *p, uint32_t n, uint32_t kv_len, bool canvas, uint32_t n_outputs) {
  weft_cost_shape shape = p->shape;
  if (n_outputs > n) n_outputs = n;
  weft_cost_add(&p->model->layers, &shape, n, kv_len, canvas, n_outputs);
  return weft_cost_step(p->model, &shape) <= p->budget_us;
}

uint32_t weft_pace_chunk(weft_pace *p, uint32_t n, uint32_t kv_len, uint32_t n_outputs) {
  if (p->budget_us <= 0.0 || fits_time(p, n, kv_len, false, n_outputs)) return n;
  uint32_t low = 0, high = n - 1; /* low fits */
  while (low < high) {
    uint32_t middle = low + (high - low + 1) / 2;
    if (fits_time(p, middle, kv_len, false, n_outputs)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low >= WEFT_PACE_CHUNK) return low;
  p->prompt_held = !p->prompt_due;
  return p->prompt_held ? 0 : n < WEFT_PACE_CHUNK ? n : WEFT_PACE_CHUNK;
}

bool weft_pace_canvas(weft_pace *p, uint32_t n, uint32_t kv_len, uint32_t n_outputs) {
  if (p->budget_us <= 0.0 || p->canvas_due || fits_time(p, n, kv_len, true, n_outputs)) return true;
  p->canvas_held = true;
  return false;
}

bool weft_pace_decode(weft_pace *p, uint32_t kv_len) {
  if (p->budget_us > 0.0 && !p->decode_due && !fits_time(p, 1, kv_len, false, 1)) {
    p->decode_held = true;
    return false;
  }
  weft_cost_add(&p->model->layers, &p->shape, 1, kv_len, false, 1);
  if (p->decode_due) p->prompt_due = p->canvas_due = p->decode_due = false;
  return true;
}

void weft_pace_spend(weft_pace *p, uint32_t n, uint32_t kv_len, bool canvas, uint32_t n_outputs) {
  weft_cost_add(&p->model->layers, &p->shape, n, kv_len, canvas, n_outputs);
  p->prompt_due = p->canvas_due = p->decode_due = false;
}

uint32_t weft_pace_drafts(const weft_pace *p, uint32_t n, uint32_t kv_len) {
  if (p->budget_us <= 0.0) return n;
  while (n > 0 && !fits_time(p, n, kv_len, false, n)) n /= 2;
  return n;
}

void weft_pace_spend_drafts(weft_pace *p, uint32_t n, uint32_t kv_len) {
  weft_cost_add(&p->model->layers, &p->shape, n, kv_len, false, n);
}
