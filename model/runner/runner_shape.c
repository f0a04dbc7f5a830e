/* SPDX-License-Identifier: MIT */
/* Steps of few shapes: what makes a step one that comes again, and rows that fill it up. */
#include <string.h>

#include "model/runner/runner_internal.h"

static bool is_decode(const weft_segment *s) {
  return s->n_rows == 1 && weft_segment_n_sampled(s) == 1;
}

static bool is_plain_decode(const device_runner *r, const weft_segment *s) {
  return is_decode(s) && runner_is_plain(&r->slots[s->slot]);
}

/* Rows of a run, if all of the segment are; else 0. */
static uint32_t run_rows(const weft_segment *s) {
  return s->n_rows > 1 && weft_segment_n_sampled(s) == s->n_rows ? s->n_rows : 0;
}

bool runner_is_steady(const device_runner *r, const weft_batch *batch) {
  uint32_t n_run = 0; /* rows of each run so far */
  if (!r->graphs) return false;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    uint32_t n = run_rows(s);
    if (n > 0 && (n_run == 0 || n_run == n)) {
      n_run = n;
      continue;
    }
    if (s->pass != WEFT_PASS_DECODER && !is_decode(s) && s->token_source != WEFT_TOKENS_ARGMAX) return false;
  }
  return true;
}

/* n copies of an element of array at index `at`, before the elements from `border` on. to may be from. */
static void insert_copies(void *to, const void *from, uint64_t n_all, uint64_t border, uint64_t at, uint64_t n,
                          size_t size) {
  uint8_t *out = to;
  const uint8_t *in = from;
  memmove(out + (border + n) * size, in + border * size, (n_all - border) * size);
  if (out != in) memcpy(out, in, border * size);
  for (uint64_t i = 0; i < n; i++) memcpy(out + (border + i) * size, in + at * size, size);
}

static uint32_t count_filling(const device_runner *r, const weft_batch *batch, uint32_t *last) {
  const weft_model_limits *limits = &r->config.limits;
  uint32_t n = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    if (!is_plain_decode(r, &batch->segment[i])) continue;
    n += 1;
    *last = i;
  }
  uint32_t more = weft_device_bucket(n) - n, rows = limits->rows_max - batch->n_rows;
  uint32_t segments = limits->segments_max - batch->n_segments;
  if (more > rows) more = rows;
  return more < segments ? more : segments;
}

const weft_batch *runner_fill_up(device_runner *r, const weft_batch *batch, uint32_t *n_filled) {
  uint32_t last = 0, n = count_filling(r, batch, &last), n_groups = batch->n_groups, border = 0;
  *n_filled = n;
  if (n == 0) return batch;
  uint32_t row = batch->segment[last].first_row, n_stored = batch->n_stored;
  while (border < batch->n_segments && batch->segment[border].stores == WEFT_STORES_POOL) border++;
  r->filled = *batch;
  r->filled.n_rows += n;
  r->filled.n_stored += n;
  r->filled.n_encoder += n;
  r->filled.n_segments += n;
  r->filled.segment = r->segment;
  r->filled.position = r->position;
  r->filled.table_at = r->table_at;
  insert_copies(r->segment, batch->segment, batch->n_segments, border, last, n, sizeof *r->segment);
  for (uint32_t i = 0; i < n; i++) r->segment[border + i].first_row = n_stored + i;
  for (uint32_t i = border + n; i < r->filled.n_segments; i++) r->segment[i].first_row += n;
  insert_copies(r->table_at, batch->table_at, batch->n_segments, border, last, n, n_groups * sizeof *r->table_at);
  insert_copies(r->position, batch->position, batch->n_rows, n_stored, row, n, sizeof *r->position);
  for (uint32_t g = 0; g < n_groups; g++) {
    int64_t *to = r->kv_slot + (uint64_t)g * r->config.limits.rows_max;
    if (batch->kv_slot[g] == NULL) continue; /* of states; what fills up writes none */
    insert_copies(to, batch->kv_slot[g], batch->n_rows, n_stored, row, n, sizeof *to);
    r->filled.kv_slot[g] = to;
  }
  insert_copies(r->token, r->token, batch->n_rows, n_stored, row, n, sizeof *r->token);
  insert_copies(r->cell_of, r->cell_of, batch->n_rows, n_stored, row, n, sizeof *r->cell_of);
  return &r->filled;
}
