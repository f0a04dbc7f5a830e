/* SPDX-License-Identifier: MIT */
#include "model/batch.h"

/* The rows that draw tokens are the last ones. No host knows the token after them, so they have nothing to be scored
 * by; and drafts are tokens that the host knows. */
static bool outputs_are_sound(const weft_segment *s) {
  if (s->first_output > s->n_rows || s->n_outputs > s->n_rows - s->first_output) return false;
  if (s->n_outputs == 0) return s->ask == WEFT_ASK_SAMPLE;
  if ((s->ask == WEFT_ASK_CANVAS) != (s->pass == WEFT_PASS_DECODER)) return false;
  bool at_end = s->first_output + s->n_outputs == s->n_rows, host = s->token_source == WEFT_TOKENS_HOST;
  switch (s->ask) {
    case WEFT_ASK_SAMPLE:
      return at_end && (s->n_outputs == 1 || host);
    case WEFT_ASK_SCORE:
      return host;
    case WEFT_ASK_SCORE_THEN_SAMPLE:
      return at_end && host && s->n_outputs > 1;
    case WEFT_ASK_CANVAS:
      return s->n_outputs == s->n_rows;
  }
  return false;
}

/* Whether the rows of the segment, which begin at `row`, are where their kind has its place. */
static bool is_in_place(const weft_batch *batch, const weft_segment *s, uint32_t row) {
  bool scratch = s->stores == WEFT_STORES_SCRATCH, decoder = s->pass == WEFT_PASS_DECODER;
  if (s->mask > WEFT_MASK_WHOLE || s->stores > WEFT_STORES_SCRATCH || s->pass > WEFT_PASS_DECODER) return false;
  if (decoder && !(scratch && s->mask == WEFT_MASK_WHOLE)) return false;
  if (scratch != (row >= batch->n_stored) || decoder != (row >= batch->n_encoder)) return false;
  uint32_t end = scratch ? batch->n_encoder : batch->n_stored;
  return decoder || s->n_rows <= end - row;
}

static bool segment_is_sound(const weft_batch *batch, const weft_batch_bounds *bounds, const weft_segment *s,
                             uint32_t row) {
  if (s->slot >= bounds->n_slots || s->first_row != row) return false;
  if (s->n_rows == 0 || s->n_rows > batch->n_rows - row) return false;
  if (!is_in_place(batch, s, row)) return false;
  if (s->token_source == WEFT_TOKENS_SAMPLED && s->n_rows != 1) return false;
  if (!outputs_are_sound(s)) return false;
  bool is_whole_canvas = s->pass == WEFT_PASS_DECODER || s->token_source == WEFT_TOKENS_ARGMAX;
  return !is_whole_canvas || (bounds->canvas_length > 0 && s->n_rows == bounds->canvas_length);
}

bool weft_batch_is_sound(const weft_batch *batch, const weft_batch_bounds *bounds) {
  uint32_t row = 0, n_scored = 0, n_drafts = 0;
  if (batch->n_rows > bounds->rows_max || batch->n_segments > bounds->segments_max) return false;
  if (batch->n_stored > batch->n_encoder || batch->n_encoder > batch->n_rows || batch->n_groups != bounds->n_groups)
    return false;
  if (batch->n_rows - batch->n_stored > bounds->canvas_rows_max) return false;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    if (!segment_is_sound(batch, bounds, &batch->segment[i], row)) return false;
    uint32_t n_sampled = weft_segment_n_sampled(&batch->segment[i]);
    row += batch->segment[i].n_rows;
    n_scored += weft_segment_n_scored(&batch->segment[i]);
    n_drafts += n_sampled > 0 ? n_sampled - 1 : 0;
  }
  if (n_scored > bounds->scored_rows_max || n_drafts > bounds->draft_rows_max) return false;
  return row == batch->n_rows;
}
