/* SPDX-License-Identifier: MIT */
/* delta_rows, delta_rule: the gated delta rule, row by row, from the state at a border and the rows since then. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/delta_host.h"
#include "kernels/ref/ref.h"

/* ---- delta_rows ---- */

/* y / sqrt(sum(y^2) + 1e-6) * factor */
static void norm_length(const double *y, uint32_t n, double factor, float *out) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += y[i] * y[i];
  for (uint32_t i = 0; i < n; i++) out[i] = (float)(y[i] / sqrt(sum + 1e-6) * factor);
}

static void convolve_inputs(const weft_delta_rows_args *args, const weft_delta_segment *segment, uint32_t position,
                            float *inputs, double *y) {
  uint32_t n = weft_delta_channels(&args->view);
  memset(y, 0, n * sizeof *y);
  for (uint32_t j = 0; j < WEFT_DELTA_TAPS; j++) {
    delta_load_inputs(&args->view, segment, (int64_t)position + j - (WEFT_DELTA_TAPS - 1), inputs);
    for (uint32_t c = 0; c < n; c++) y[c] += (double)args->conv[c * WEFT_DELTA_TAPS + j] * (double)inputs[c];
  }
  for (uint32_t c = 0; c < n; c++) y[c] /= 1.0 + exp(-y[c]);
}

static void make_gates(const weft_delta_rows_args *args, uint64_t r, uint8_t *row) {
  for (uint32_t h = 0; h < args->view.n_v_heads; h++) {
    double x = (double)args->alpha[r * args->alpha_stride + h] + (double)args->dt[h];
    float g = (float)((double)args->a[h] * (x > 20.0 ? x : log1p(exp(x))));
    float *beta = &args->beta[r * args->beta_stride + h];
    memcpy(delta_decays(&args->view, row) + h * sizeof g, &g, sizeof g);
    *beta = (float)(1.0 / (1.0 + exp(-(double)*beta)));
  }
}

/* work: inputs of a position, then y of it. */
static void make_row(const weft_delta_rows_args *args, const weft_delta_segment *segment, uint32_t i, double *work) {
  const weft_delta_view *view = &args->view;
  uint32_t dim = view->dim, n = weft_delta_channels(view), position = segment->kv_len + i;
  uint64_t r = segment->first_row + i;
  uint8_t *row = weft_delta_row(view, segment->table, position);
  double *y = work + n;
  float head[WEFT_DELTA_DIM_MAX];
  delta_store(view, args->x + r * args->x_stride, 0, n, row);
  convolve_inputs(args, segment, position, (float *)(void *)work, y);
  for (uint32_t h = 0; h < view->n_k_heads; h++) {
    norm_length(y + h * dim, dim, 1.0 / sqrt((double)dim), args->q + r * args->q_stride + h * dim);
    norm_length(y + (view->n_k_heads + h) * dim, dim, 1.0, head);
    delta_store(view, head, n + h * dim, dim, row);
  }
  const double *values = y + 2 * view->n_k_heads * dim;
  for (uint32_t c = 0; c < view->n_v_heads * dim; c++) args->v[r * args->v_stride + c] = (float)values[c];
  make_gates(args, r, row);
}

weft_status ref_delta_rows(weft_device *device, const weft_delta_rows_args *args) {
  (void)device;
  double *work = weft_alloc(2 * (size_t)weft_delta_channels(&args->view), sizeof *work);
  if (work == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    for (uint32_t i = 0; i < args->segment[s].n_rows; i++) make_row(args, &args->segment[s], i, work);
  }
  weft_free(work);
  return WEFT_OK;
}

/* ---- delta ---- */

/* One value head of one segment. Positions of the block count from its border. */
typedef struct delta_head {
  const weft_delta_rule_args *args;
  const weft_delta_segment *segment;
  uint32_t head, border;
  float *state;                      /* [dim keys][dim values] at the border */
  float *key, *u;                    /* [every][dim] of the positions since the border */
  float total[WEFT_DELTA_EVERY_MAX]; /* G of each of them */
} delta_head;

/* Reads what the row of a position has stored; its u only where `has_u`. */
static void read_position(delta_head *d, uint32_t i, bool has_u) {
  const weft_delta_view *view = &d->args->view;
  uint8_t *row = weft_delta_row(view, d->segment->table, d->border + i);
  float before = i == 0 ? 0.0f : d->total[i - 1];
  delta_load(view, row, delta_key_at(view, d->head), view->dim, d->key + (uint64_t)i * view->dim);
  if (has_u) delta_load(view, row, delta_u_at(view, d->head), view->dim, d->u + (uint64_t)i * view->dim);
  d->total[i] = before + delta_decay(view, row, d->head);
}

/* out = e^(G_t) S^T x + sum over i < n of e^(G_t - G_i) (k_i . x) u_i */
static void read_out(const delta_head *d, uint32_t t, uint32_t n, const float *x, double *out) {
  uint32_t dim = d->args->view.dim;
  double decay = exp((double)d->total[t]);
  memset(out, 0, dim * sizeof *out);
  for (uint32_t i = 0; i < dim; i++)
    for (uint32_t j = 0; j < dim; j++) out[j] += (double)d->state[(uint64_t)i * dim + j] * (double)x[i];
  for (uint32_t j = 0; j < dim; j++) out[j] *= decay;
  for (uint32_t i = 0; i < n; i++) {
    double w = exp((double)d->total[t] - (double)d->total[i]) * ref_dot(d->key + (uint64_t)i * dim, x, dim);
    for (uint32_t j = 0; j < dim; j++) out[j] += w * (double)d->u[(uint64_t)i * dim + j];
  }
}

static void compute_row(delta_head *d, uint32_t t, uint64_t r) {
  const weft_delta_rule_args *args = d->args;
  const weft_delta_view *view = &args->view;
  uint32_t dim = view->dim, h = d->head;
  float *u = d->u + (uint64_t)t * dim;
  uint8_t *row = weft_delta_row(view, d->segment->table, d->border + t);
  double o[WEFT_DELTA_DIM_MAX], beta = (double)args->beta[r * args->beta_stride + h], sum = 0.0;
  read_position(d, t, false);
  read_out(d, t, t, d->key + (uint64_t)t * dim, o);
  const float *v = args->v + r * args->v_stride + h * dim, *z = args->z + r * args->z_stride + h * dim;
  for (uint32_t j = 0; j < dim; j++) u[j] = (float)(beta * ((double)v[j] - o[j]));
  delta_store(view, u, delta_u_at(view, d->head), dim, row);
  delta_load(view, row, delta_u_at(view, d->head), dim, u);
  read_out(d, t, t + 1, args->q + r * args->q_stride + h % view->n_k_heads * dim, o);
  for (uint32_t j = 0; j < dim; j++) sum += o[j] * o[j];
  double factor = 1.0 / sqrt(sum / dim + (double)args->eps);
  for (uint32_t j = 0; j < dim; j++) {
    double gate = (double)z[j] / (1.0 + exp(-(double)z[j]));
    args->out[r * args->out_stride + h * dim + j] = (float)(o[j] * factor * (double)args->norm[j] * gate);
  }
}

/* The state at the next border takes the place of the state at this one. */
static void cross_border(delta_head *d) {
  uint32_t dim = d->args->view.dim, n = d->args->view.every;
  double last = (double)d->total[n - 1], decay = exp(last), since[WEFT_DELTA_EVERY_MAX], sum[WEFT_DELTA_DIM_MAX];
  for (uint32_t i = 0; i < n; i++) since[i] = exp(last - (double)d->total[i]);
  for (uint32_t a = 0; a < dim; a++) {
    float *at = &d->state[(uint64_t)a * dim];
    for (uint32_t b = 0; b < dim; b++) sum[b] = decay * (double)at[b];
    for (uint32_t i = 0; i < n; i++) {
      double w = since[i] * (double)d->key[(uint64_t)i * dim + a];
      for (uint32_t b = 0; b < dim; b++) sum[b] += w * (double)d->u[(uint64_t)i * dim + b];
    }
    for (uint32_t b = 0; b < dim; b++) at[b] = (float)sum[b];
  }
  d->border += n;
}

static void compute_head(delta_head *d, uint32_t s, float *inputs) {
  const weft_delta_view *view = &d->args->view;
  const weft_delta_segment *segment = d->segment;
  uint64_t n_bytes = (uint64_t)view->dim * view->dim * sizeof(float);
  d->border = segment->kv_len / view->every * view->every;
  if (segment->state != NULL)
    memcpy(d->state, weft_delta_unit(&view->state, segment->state, d->head), n_bytes);
  else
    memset(d->state, 0, n_bytes);
  for (uint32_t i = 0; d->border + i < segment->kv_len; i++) read_position(d, i, true);
  for (uint32_t i = 0; i < segment->n_rows; i++) {
    uint32_t position = segment->kv_len + i;
    compute_row(d, position - d->border, (uint64_t)segment->first_row + i);
    if ((position + 1) % view->every != 0) continue;
    cross_border(d);
    delta_write_state(d->args, segment, delta_find_write(d->args, s, position + 1), d->head, d->state, inputs);
  }
}

uint64_t ref_delta_rule_scratch(weft_device *device, const weft_delta_rule_args *args) {
  (void)device;
  const weft_delta_view *view = &args->view;
  uint64_t dim = view->dim;
  return (dim * dim + 2 * view->every * dim + weft_delta_channels(view)) * sizeof(float);
}

weft_status ref_delta_rule(weft_device *device, const weft_delta_rule_args *args) {
  (void)device;
  const weft_delta_view *view = &args->view;
  uint64_t dim = view->dim;
  float *state = args->scratch, *key = state + dim * dim, *u = key + view->every * dim;
  for (uint32_t s = 0; s < args->n_segments; s++) {
    for (uint32_t h = 0; h < view->n_v_heads; h++) {
      delta_head d = {.args = args, .segment = &args->segment[s], .head = h, .state = state, .key = key, .u = u};
      compute_head(&d, s, u + view->every * dim);
    }
  }
  return WEFT_OK;
}
