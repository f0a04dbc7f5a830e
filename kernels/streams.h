/* SPDX-License-Identifier: MIT */
/* The ops mix and spread: hyper-connections (Xie et al., arXiv 2512.24880), a residual stream of several parts. Part of
 * kernels/ops.h, whose laws hold.
 *
 * Law. A row of the stream is n_streams parts of n_cols numbers, one behind another. Before a sublayer mix makes one
 * part of them; after it spread adds what the sublayer made to every part, and mixes the parts among one another. How
 * much of what comes of n_mixes numbers of the row, which are a product of the stream with a matrix; with m = mixes /
 * rms(x), rms(x) = sqrt(mean(x^2) + eps) over all parts, S = n_streams and i, r, c < S:
 *
 *   take[i]    = sigmoid(m[i] scale[0] + base[i]) + floor
 *   give[i]    = 2 sigmoid(m[S + i] scale[1] + base[S + i])
 *   turn[r][c] = softmax over c of (m[2 S + r S + c] scale[2] + base[2 S + r S + c]), + floor; then each is divided by
 *                floor + the sum of its column, and n_rounds - 1 times by floor + the sum of its row, then its column
 *
 * so that rows and columns of turn have sums of 1 (Sinkhorn and Knopp). Sums run over parts ascending. In a model
 * that carries (DeepSeek-V4.1) parts are taken by what the sublayer before made of its mixes, and part 0 by the
 * first. */
#ifndef WEFT_KERNELS_STREAMS_H
#define WEFT_KERNELS_STREAMS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_STREAMS_MAX = 8 };

/* ---- mix: y = sum over i of take[i] * part i of x ----------------------------------------------------------------- *
 * shares[r] is give, then turn, for spread. NULL: only take is made, of n_streams mixes and one scale. With carry y is
 * made by what it has, or, with first, by 1, 0, 0 .., and take is left there. Without mixes only y is made.          */
typedef struct weft_mix_args {
  const float *x;            /* [n_rows, n_streams * n_cols] */
  const float *mixes;        /* [n_rows, n_mixes]: n_streams * (2 + n_streams), or n_streams without shares; or NULL */
  const float *base, *scale; /* [n_mixes], [3]; [1] without shares */
  float *y;                  /* [n_rows, n_cols] */
  float *shares;             /* optional [n_rows, n_streams * (1 + n_streams)] */
  float *carry;              /* optional [n_rows, n_streams] */
  bool first;
  uint32_t n_rows, n_cols, n_streams, n_rounds;
  float eps, floor;
  uint64_t x_stride, y_stride, mixes_stride, shares_stride, carry_stride;
} weft_mix_args;

/* ---- spread: part c of x = give[c] * y + sum over r of turn[r][c] * part r of x, in place ----------------------- */
typedef struct weft_spread_args {
  float *x;
  const float *y, *shares;
  uint32_t n_rows, n_cols, n_streams;
  uint64_t x_stride, y_stride, shares_stride;
} weft_spread_args;

#ifdef __cplusplus
}
#endif
#endif
