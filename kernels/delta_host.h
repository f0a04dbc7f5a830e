/* SPDX-License-Identifier: MIT */
/* The rows of the delta rule (kernels/delta.h) for backends whose device memory is host memory.
 *
 * Law: nothing here adds; what is read is what was stored, as f32. */
#ifndef WEFT_KERNELS_DELTA_HOST_H
#define WEFT_KERNELS_DELTA_HOST_H

#include <string.h>

#include "kernels/ops.h"

static inline uint64_t delta_element_bytes(const weft_delta_view *view) {
  return view->type == WEFT_TYPE_F32 ? 4 : 2;
}

/* n elements of a row, from element `first` on. */
static inline void delta_load(const weft_delta_view *view, const uint8_t *row, uint64_t first, uint32_t n, float *out) {
  weft_kv_row_load(view->type, row + first * delta_element_bytes(view), n, out);
}

static inline void delta_store(const weft_delta_view *view, const float *x, uint64_t first, uint32_t n, uint8_t *row) {
  weft_kv_row_store(view->type, x, n, row + first * delta_element_bytes(view));
}

/* The decays of a row: one float for each value head. */
static inline uint8_t *delta_decays(const weft_delta_view *view, uint8_t *row) {
  return row + weft_delta_elements(view) * delta_element_bytes(view);
}

static inline float delta_decay(const weft_delta_view *view, uint8_t *row, uint32_t head) {
  float g;
  memcpy(&g, delta_decays(view, row) + head * sizeof g, sizeof g);
  return g;
}

/* Where the key that value head `head` reads, and its u, begin in a row. */
static inline uint64_t delta_key_at(const weft_delta_view *view, uint32_t head) {
  return weft_delta_channels(view) + (uint64_t)(head % view->n_k_heads) * view->dim;
}
static inline uint64_t delta_u_at(const weft_delta_view *view, uint32_t head) {
  return weft_delta_channels(view) + (uint64_t)(view->n_k_heads + head) * view->dim;
}

/* The inputs of the convolution at a position before or in the segment, which are stored by now. */
static inline void delta_load_inputs(const weft_delta_view *view, const weft_delta_segment *segment, int64_t position,
                                     float *out) {
  uint32_t n = weft_delta_channels(view), border = segment->kv_len / view->every * view->every;
  if (position < 0) {
    memset(out, 0, n * sizeof *out);
  } else if (position < border) {
    const float *tail = weft_delta_unit(&view->tail, segment->state, 0);
    memcpy(out, tail + (uint64_t)(position + WEFT_DELTA_TAPS - 1 - border) * n, n * sizeof *out);
  } else {
    delta_load(view, weft_delta_row(view, segment->table, (uint32_t)position), 0, n, out);
  }
}

/* The write of segment s at a position, NULL where there is none. */
static inline const weft_delta_write *delta_find_write(const weft_delta_rule_args *args, uint32_t s,
                                                       uint32_t position) {
  for (uint32_t i = 0; i < args->n_writes; i++)
    if (args->write[i].segment == s && args->write[i].position == position) return &args->write[i];
  return NULL;
}

/* Writes S of a head at a border; head 0 writes the tail, too. inputs: scratch of channels floats. */
static inline void delta_write_state(const weft_delta_rule_args *args, const weft_delta_segment *segment,
                                     const weft_delta_write *write, uint32_t head, const float *state, float *inputs) {
  const weft_delta_view *view = &args->view;
  uint32_t n = weft_delta_channels(view);
  if (write == NULL) return;
  memcpy(weft_delta_unit(&view->state, write->pages, head), state, (size_t)view->dim * view->dim * sizeof(float));
  for (uint32_t j = 0; head == 0 && j < WEFT_DELTA_TAPS - 1; j++) {
    delta_load_inputs(view, segment, (int64_t)write->position + j - (WEFT_DELTA_TAPS - 1), inputs);
    memcpy(weft_delta_unit(&view->tail, write->pages, 0) + (uint64_t)j * n, inputs, n * sizeof *inputs);
  }
}

#endif
