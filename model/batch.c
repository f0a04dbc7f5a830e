/* SPDX-License-Identifier: MIT */
#include "model/batch.h"

/* The token that a segment samples is not known, so its last row has nothing to be scored by. */
static bool scores_are_sound(const weft_segment *s) {
  if (s->n_scored == 0) return s->output != WEFT_OUTPUT_SCORES;
  if (s->canvas || s->token_source != WEFT_TOKENS_HOST) return false;
  if (s->output != WEFT_OUTPUT_SCORES && s->output != WEFT_OUTPUT_TOKEN) return false;
  uint32_t n = s->n_rows - (s->output == WEFT_OUTPUT_TOKEN ? 1 : 0);
  return s->first_scored <= n && s->n_scored <= n - s->first_scored;
}

static bool segment_is_sound(const weft_batch *batch, const weft_batch_bounds *bounds, const weft_segment *s,
                             uint32_t row) {
  if (s->slot >= bounds->n_slots || s->first_row != row) return false;
  if (s->n_rows == 0 || s->n_rows > batch->n_rows - row) return false;
  if (s->canvas != (row >= batch->n_causal)) return false;
  if (!s->canvas && s->n_rows > batch->n_causal - row) return false;
  if (s->token_source == WEFT_TOKENS_SAMPLED && s->n_rows != 1) return false;
  if (!scores_are_sound(s)) return false;
  bool is_whole_canvas = s->canvas || s->token_source == WEFT_TOKENS_ARGMAX;
  return !is_whole_canvas || (bounds->canvas_length > 0 && s->n_rows == bounds->canvas_length);
}

bool weft_batch_is_sound(const weft_batch *batch, const weft_batch_bounds *bounds) {
  uint32_t row = 0, n_scored = 0;
  if (batch->n_rows > bounds->rows_max || batch->n_segments > bounds->segments_max) return false;
  if (batch->n_causal > batch->n_rows || batch->n_groups != bounds->n_groups) return false;
  if (batch->n_rows - batch->n_causal > bounds->canvas_rows_max) return false;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    if (!segment_is_sound(batch, bounds, &batch->segment[i], row)) return false;
    row += batch->segment[i].n_rows;
    n_scored += batch->segment[i].n_scored;
  }
  return row == batch->n_rows && n_scored <= bounds->scored_rows_max;
}
