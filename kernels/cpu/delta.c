/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/delta.h"

#include <math.h>

#include "kernels/cpu/rows.h"
#include "kernels/delta_host.h"

/* ---- delta_rows ---- */

typedef struct rows_run {
  const weft_delta_rows_args *args;
  const cpu_delta_code *code;
} rows_run;

enum { CHANNELS_AT_ONCE = 256 /* of the inputs of a row, as f32 */ };

static void make_gates(const weft_delta_rows_args *args, uint64_t r, uint8_t *row) {
  for (uint32_t h = 0; h < args->view.n_v_heads; h++) {
    float x = args->alpha[r * args->alpha_stride + h] + args->dt[h];
    float g = args->a[h] * (x > 20.0f ? x : log1pf(expf(x))), *beta = &args->beta[r * args->beta_stride + h];
    memcpy(delta_decays(&args->view, row) + h * sizeof g, &g, sizeof g);
    *beta = 1.0f / (1.0f + expf(-*beta));
  }
}

/* n inputs from channel `first` on, of a position; those of the segment are rounded as they are stored. */
static void load_inputs(const weft_delta_rows_args *args, const weft_delta_segment *segment, int64_t position,
                        uint32_t first, uint32_t n, float *out) {
  const weft_delta_view *view = &args->view;
  uint32_t border = segment->kv_len / view->every * view->every;
  if (position < 0) {
    memset(out, 0, n * sizeof *out);
  } else if (position < border) {
    uint64_t at = (uint64_t)(position + WEFT_DELTA_TAPS - 1 - border) * weft_delta_channels(view) + first;
    memcpy(out, weft_delta_unit(&view->tail, segment->state, 0) + at, n * sizeof *out);
  } else if (position < segment->kv_len) {
    delta_load(view, weft_delta_row(view, segment->table, (uint32_t)position), first, n, out);
  } else {
    uint64_t r = segment->first_row + (uint64_t)(position - segment->kv_len);
    const float *x = args->x + r * args->x_stride + first;
    for (uint32_t i = 0; i < n; i++)
      out[i] = view->type == WEFT_TYPE_F32 ? x[i] : weft_bf16_to_f32(weft_f32_to_bf16(x[i]));
  }
}

/* One head after the convolution. */
static void convolve_head(const rows_run *run, const weft_delta_segment *segment, uint32_t position, uint32_t first,
                          float *y) {
  const uint32_t dim = run->args->view.dim;
  float inputs[WEFT_DELTA_TAPS][CHANNELS_AT_ONCE];
  const float *input[WEFT_DELTA_TAPS];
  for (uint32_t j = 0; j < WEFT_DELTA_TAPS; j++) {
    load_inputs(run->args, segment, (int64_t)position + j - (WEFT_DELTA_TAPS - 1), first, dim, inputs[j]);
    input[j] = inputs[j];
  }
  run->code->convolve(run->args->conv + (uint64_t)first * WEFT_DELTA_TAPS, input, dim, y);
}

static void make_row(const rows_run *run, const weft_delta_segment *segment, uint32_t i) {
  const weft_delta_rows_args *args = run->args;
  const weft_delta_view *view = &args->view;
  const uint32_t dim = view->dim, position = segment->kv_len + i, n_keys = view->n_k_heads * dim;
  const float root = 1.0f / sqrtf((float)dim);
  uint64_t r = segment->first_row + (uint64_t)i;
  uint8_t *row = weft_delta_row(view, segment->table, position);
  float head[CHANNELS_AT_ONCE];
  delta_store(view, args->x + r * args->x_stride, 0, weft_delta_channels(view), row);
  for (uint32_t h = 0; h < view->n_k_heads; h++) {
    convolve_head(run, segment, position, h * dim, head);
    run->code->length(head, dim, root, args->q + r * args->q_stride + h * dim);
    convolve_head(run, segment, position, n_keys + h * dim, head);
    run->code->length(head, dim, 1.0f, head);
    delta_store(view, head, delta_key_at(view, h), dim, row);
  }
  for (uint32_t h = 0; h < view->n_v_heads; h++)
    convolve_head(run, segment, position, 2 * n_keys + h * dim, args->v + r * args->v_stride + h * dim);
  make_gates(args, r, row);
}

static void make_rows(void *arg, uint32_t first, uint32_t end) {
  const rows_run *run = arg;
  uint32_t s = 0;
  for (uint32_t r = first; r < end; r++) {
    while (r >= run->args->segment[s].first_row + run->args->segment[s].n_rows) s++;
    make_row(run, &run->args->segment[s], r - run->args->segment[s].first_row);
  }
}

weft_status cpu_delta_rows(weft_device *device, const weft_delta_rows_args *args) {
  rows_run run = {args, CPU_CODE_OF(cpu_get_isa(device), cpu_delta)};
  cpu_for_rows(device, args->n_rows, weft_delta_channels(&args->view), make_rows, &run);
  return WEFT_OK;
}

/* ---- delta_rule ---- */

typedef struct rule_run {
  const weft_delta_rule_args *args;
  const cpu_delta_code *code;
  const cpu_rows *rows;
  uint64_t floats; /* of scratch for each thread */
} rule_run;

/* One value head of one segment. Positions of the block count from its border. */
typedef struct rule_head {
  const rule_run *run;
  const weft_delta_segment *segment;
  uint32_t head, border;
  cpu_delta_block block;
} rule_head;

static void read_position(rule_head *d, uint32_t i, bool has_u) {
  const weft_delta_view *view = &d->run->args->view;
  uint8_t *row = weft_delta_row(view, d->segment->table, d->border + i);
  float before = i == 0 ? 0.0f : d->block.total[i - 1];
  delta_load(view, row, delta_key_at(view, d->head), view->dim, d->block.key + (uint64_t)i * view->dim);
  if (has_u) delta_load(view, row, delta_u_at(view, d->head), view->dim, d->block.u + (uint64_t)i * view->dim);
  d->block.total[i] = before + delta_decay(view, row, d->head);
}

static void compute_row(rule_head *d, uint32_t t, uint64_t r) {
  const weft_delta_rule_args *args = d->run->args;
  const weft_delta_view *view = &args->view;
  const uint32_t dim = view->dim, h = d->head;
  float o[WEFT_DELTA_DIM_MAX], *u = d->block.u + (uint64_t)t * dim;
  uint8_t *row = weft_delta_row(view, d->segment->table, d->border + t);
  const float *v = args->v + r * args->v_stride + h * dim, beta = args->beta[r * args->beta_stride + h];
  read_position(d, t, false);
  d->run->code->read(&d->block, t, t, d->block.key + (uint64_t)t * dim, o);
  for (uint32_t j = 0; j < dim; j++) u[j] = beta * (v[j] - o[j]);
  delta_store(view, u, delta_u_at(view, h), dim, row);
  delta_load(view, row, delta_u_at(view, h), dim, u);
  d->run->code->read(&d->block, t, t + 1, args->q + r * args->q_stride + h % view->n_k_heads * dim, o);
  float *out = args->out + r * args->out_stride + h * dim;
  const cpu_norm_row norm = {.x = o, .weight = args->norm, .y = o, .row_scale = 1.0f, .eps = args->eps, .n = dim};
  d->run->rows->norm(&norm);
  d->run->rows->gate(WEFT_SILU, args->z + r * args->z_stride + h * dim, o, out, dim);
}

static void run_head(void *arg, uint32_t task, uint32_t thread) {
  const rule_run *run = arg;
  const weft_delta_rule_args *args = run->args;
  const weft_delta_view *view = &args->view;
  const uint32_t s = task / view->n_v_heads, every = view->every;
  const uint64_t n_state = (uint64_t)view->dim * view->dim;
  const weft_delta_segment *segment = &args->segment[s];
  float *scratch = (float *)args->scratch + thread * run->floats;
  rule_head d = {.run = run, .segment = segment, .head = task % view->n_v_heads};
  d.border = segment->kv_len / every * every;
  d.block.dim = view->dim;
  d.block.state = scratch;
  d.block.key = scratch + n_state;
  d.block.u = d.block.key + (uint64_t)every * view->dim;
  if (segment->state != NULL)
    memcpy(scratch, weft_delta_unit(&view->state, segment->state, d.head), n_state * sizeof *scratch);
  else
    memset(scratch, 0, n_state * sizeof *scratch);
  for (uint32_t i = 0; d.border + i < segment->kv_len; i++) read_position(&d, i, true);
  for (uint32_t i = 0; i < segment->n_rows; i++) {
    uint32_t position = segment->kv_len + i;
    compute_row(&d, position - d.border, segment->first_row + (uint64_t)i);
    if ((position + 1) % every != 0) continue;
    run->code->cross(&d.block, every);
    d.border += every;
    delta_write_state(args, segment, delta_find_write(args, s, position + 1), d.head, scratch,
                      d.block.u + (uint64_t)every * view->dim);
  }
}

/* Of a thread: a state, keys, u, and the inputs of a row; a multiple of 16. */
static uint64_t thread_floats(const weft_delta_view *view) {
  uint64_t dim = view->dim, n = dim * dim + 2 * view->every * dim + weft_delta_channels(view);
  return (n + 15) / 16 * 16;
}

uint64_t cpu_delta_rule_scratch(weft_device *device, const weft_delta_rule_args *args) {
  return weft_thread_pool_size(cpu_thread_pool(device)) * thread_floats(&args->view) * sizeof(float);
}

weft_status cpu_delta_rule(weft_device *device, const weft_delta_rule_args *args) {
  rule_run run = {args, CPU_CODE_OF(cpu_get_isa(device), cpu_delta), cpu_rows_of(device), thread_floats(&args->view)};
  weft_thread_pool_run(cpu_thread_pool(device), run_head, &run, args->n_segments * args->view.n_v_heads);
  return WEFT_OK;
}
