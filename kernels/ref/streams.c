/* SPDX-License-Identifier: MIT */
/* mix and spread: hyper-connections (kernels/streams.h). */
#include "kernels/ref/ref.h"

#include <math.h>

static double apply_sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}

static void scale_columns(double turn[WEFT_STREAMS_MAX][WEFT_STREAMS_MAX], uint32_t n, double floor) {
  for (uint32_t c = 0; c < n; c++) {
    double sum = floor;
    for (uint32_t r = 0; r < n; r++) sum += turn[r][c];
    for (uint32_t r = 0; r < n; r++) turn[r][c] /= sum;
  }
}

static void scale_rows(double turn[WEFT_STREAMS_MAX][WEFT_STREAMS_MAX], uint32_t n, double floor) {
  for (uint32_t r = 0; r < n; r++) {
    double sum = floor;
    for (uint32_t c = 0; c < n; c++) sum += turn[r][c];
    for (uint32_t c = 0; c < n; c++) turn[r][c] /= sum;
  }
}

/* Softmax of each row, then rounds of columns and rows. */
static void make_turn(const weft_mix_args *args, const float *mixes, double length, float *out) {
  const uint32_t n = args->n_streams;
  const double floor = (double)args->floor;
  double turn[WEFT_STREAMS_MAX][WEFT_STREAMS_MAX];
  for (uint32_t r = 0; r < n; r++) {
    double most = -INFINITY, sum = 0.0;
    for (uint32_t c = 0; c < n; c++) {
      uint32_t i = 2 * n + r * n + c;
      turn[r][c] = (double)mixes[i] / length * (double)args->scale[2] + (double)args->base[i];
      if (!(turn[r][c] <= most)) most = turn[r][c];
    }
    for (uint32_t c = 0; c < n; c++) sum += turn[r][c] = exp(turn[r][c] - most);
    for (uint32_t c = 0; c < n; c++) turn[r][c] = turn[r][c] / sum + floor;
  }
  scale_columns(turn, n, floor);
  for (uint32_t i = 1; i < args->n_rounds; i++) {
    scale_rows(turn, n, floor);
    scale_columns(turn, n, floor);
  }
  for (uint32_t r = 0; r < n; r++)
    for (uint32_t c = 0; c < n; c++) out[r * n + c] = (float)turn[r][c];
}

/* Gives rms(x). */
static double find_take(const weft_mix_args *args, const float *x, const float *mixes, double *take) {
  const uint64_t n_all = (uint64_t)args->n_streams * args->n_cols;
  double squares = 0.0;
  for (uint64_t i = 0; i < n_all; i++) squares += (double)x[i] * (double)x[i];
  double length = sqrt(squares / (double)n_all + (double)args->eps);
  for (uint32_t i = 0; i < args->n_streams; i++)
    take[i] =
        apply_sigmoid((double)mixes[i] / length * (double)args->scale[0] + (double)args->base[i]) + (double)args->floor;
  return length;
}

/* Own take is left for the sublayer that follows, and that of the one before comes in its place. */
static void carry_take(const weft_mix_args *args, uint64_t row, double *take) {
  float *carry = args->carry + row * args->carry_stride;
  for (uint32_t i = 0; i < args->n_streams; i++) {
    double before = args->first ? (i == 0 ? 1.0 : 0.0) : (double)carry[i];
    if (args->mixes != NULL) carry[i] = (float)take[i];
    take[i] = before;
  }
}

static void mix_row(const weft_mix_args *args, uint64_t row) {
  const uint32_t n = args->n_streams, n_cols = args->n_cols;
  const float *x = args->x + row * args->x_stride,
              *mixes = args->mixes == NULL ? NULL : args->mixes + row * args->mixes_stride;
  double take[WEFT_STREAMS_MAX], length = 1.0;
  if (mixes != NULL) length = find_take(args, x, mixes, take);
  if (args->carry != NULL) carry_take(args, row, take);
  for (uint32_t c = 0; c < n_cols; c++) {
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += take[i] * (double)x[(uint64_t)i * n_cols + c];
    args->y[row * args->y_stride + c] = (float)sum;
  }
  if (args->shares == NULL) return;
  float *shares = args->shares + row * args->shares_stride;
  for (uint32_t i = 0; i < n; i++)
    shares[i] = (float)(2.0 * apply_sigmoid((double)mixes[n + i] / length * (double)args->scale[1] +
                                            (double)args->base[n + i]));
  make_turn(args, mixes, length, shares + n);
}

void ref_mix_rows(const weft_mix_args *args, uint32_t first, uint32_t end) {
  for (uint64_t r = first; r < end; r++) mix_row(args, r);
}

weft_status ref_mix(weft_device *device, const weft_mix_args *args) {
  (void)device;
  ref_mix_rows(args, 0, args->n_rows);
  return WEFT_OK;
}

static void spread_row(const weft_spread_args *args, uint64_t row) {
  const uint32_t n = args->n_streams;
  const float *shares = args->shares + row * args->shares_stride, *y = args->y + row * args->y_stride;
  float *x = args->x + row * args->x_stride;
  for (uint32_t c = 0; c < args->n_cols; c++) {
    double part[WEFT_STREAMS_MAX];
    for (uint32_t to = 0; to < n; to++) {
      part[to] = (double)shares[to] * (double)y[c];
      for (uint32_t from = 0; from < n; from++)
        part[to] += (double)shares[n + from * n + to] * (double)x[(uint64_t)from * args->n_cols + c];
    }
    for (uint32_t to = 0; to < n; to++) x[(uint64_t)to * args->n_cols + c] = (float)part[to];
  }
}

void ref_spread_rows(const weft_spread_args *args, uint32_t first, uint32_t end) {
  for (uint64_t r = first; r < end; r++) spread_row(args, r);
}

weft_status ref_spread(weft_device *device, const weft_spread_args *args) {
  (void)device;
  ref_spread_rows(args, 0, args->n_rows);
  return WEFT_OK;
}
