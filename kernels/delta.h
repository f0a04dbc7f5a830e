/* SPDX-License-Identifier: MIT */
/* The ops delta_rows and delta_rule: a layer with a gated delta rule (Yang et al., arXiv 2412.06464) in place of
 * attention, and the short convolution before it. Part of kernels/ops.h, whose laws hold.
 *
 * A value head keeps a matrix S of dim keys x dim values. With decay a = e^g, a row at position t makes of it
 *
 *   S_t = a_t S_(t-1) + k_t u_t^T,   u_t = beta_t (v_t - a_t S_(t-1)^T k_t),   o_t = S_t^T q_t
 *
 * Law. S lies in memory only at borders, the multiples of `every`. Between them each position keeps a row: the inputs
 * of its convolution, its key, its u and its g; and every row is computed from the state at the last border at or
 * before it and the rows since then, in one order of sums. So the bits of a row do not depend on the calls that the
 * rows before it came in, and rows that turn out to be void are written over and leave nothing behind. What is stored
 * is rounded to the type of the rows, and every reader takes it as stored, the row itself and its own call among
 * them. A border that a call crosses is rounded as one that is written.
 *
 * With G_t = the sum of g from the border B up to t, one after another in f32, i ascending, each sum in one order:
 *
 *   u_t  = beta_t (v_t - (e^(G_t) S_B^T k_t + sum over B <= i < t of e^(G_t - G_i) (k_i . k_t) u_i))
 *   o_t  =                e^(G_t) S_B^T q_t + sum over B <= i <= t of e^(G_t - G_i) (k_i . q_t) u_i
 *   S_B' = e^(G_(B'-1)) S_B + sum over B <= i < B' of e^(G_(B'-1) - G_i) k_i u_i^T      B' = B + every */
#ifndef WEFT_KERNELS_DELTA_H
#define WEFT_KERNELS_DELTA_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define WEFT_DELTA_FN static __host__ __device__ inline
#else
#define WEFT_DELTA_FN static inline
#endif

enum {
  WEFT_DELTA_TAPS = 4,      /* positions that the convolution reads, its own among them */
  WEFT_DELTA_DIM_MAX = 256, /* of a head: a multiple of 8 up to this */
  WEFT_DELTA_EVERY_MAX = 256
};

/* Units of equal size in a run of pages: no unit is cut by the end of a page. The run has a list of its pages. */
typedef struct weft_run_view {
  void *base;          /* page 0 of the pool */
  uint64_t page_bytes; /* of a page of the pool */
  uint64_t offset;     /* of unit 0, in the pages of the run one behind another */
  uint64_t unit_bytes;
} weft_run_view;

/* Where a unit lies: in which page of the list, and where in that page. */
typedef struct weft_run_place {
  uint32_t page;
  uint64_t offset;
} weft_run_place;

WEFT_DELTA_FN weft_run_place weft_run_unit(const weft_run_view *view, uint32_t unit) {
  uint64_t page = view->offset / view->page_bytes, offset = view->offset % view->page_bytes;
  uint64_t n_first = (view->page_bytes - offset) / view->unit_bytes; /* units of the first page; then of the others */
  uint64_t n_page = view->page_bytes / view->unit_bytes, behind = unit - n_first;
  weft_run_place place;
  place.page = (uint32_t)(unit < n_first ? page : page + 1 + behind / n_page);
  place.offset = unit < n_first ? offset + unit * view->unit_bytes : behind % n_page * view->unit_bytes;
  return place;
}

/* The memory of a layer. The row of a position, in the pages of a windowed group, is
 *   [n_channels] inputs of the convolution: of queries, of keys, of values   `type`
 *   [n_k_heads][dim] keys, [n_v_heads][dim] u                                `type`
 *   [n_v_heads] g, the logarithm of the decay                                f32
 * The state at a border has n_v_heads units, S of a value head as f32 [keys][values]; the tail at a border is one unit,
 * f32 [WEFT_DELTA_TAPS - 1][n_channels]: inputs of the convolution of the last positions before it, oldest first. At
 * border 0 both are zeros, and not in memory. Value head h reads the queries and keys of head h % n_k_heads. */
typedef struct weft_delta_view {
  weft_type type; /* F32 or BF16 */
  uint32_t dim, n_k_heads, n_v_heads;
  uint32_t every;        /* a power of two, at least WEFT_DELTA_TAPS - 1 */
  uint32_t block_tokens; /* rows in a page */
  void *base;            /* row of position p: base + page * page_bytes + offset + p % block_tokens * row bytes */
  uint64_t page_bytes, offset;
  weft_run_view state, tail;
} weft_delta_view;

WEFT_DELTA_FN uint32_t weft_delta_channels(const weft_delta_view *view) {
  return (2 * view->n_k_heads + view->n_v_heads) * view->dim;
}
/* Elements of `type` in a row, g left out. */
WEFT_DELTA_FN uint64_t weft_delta_elements(const weft_delta_view *view) {
  return weft_delta_channels(view) + (uint64_t)(view->n_k_heads + view->n_v_heads) * view->dim;
}
WEFT_DELTA_FN uint64_t weft_delta_row_bytes(const weft_delta_view *view) {
  return weft_delta_elements(view) * (view->type == WEFT_TYPE_F32 ? 4 : 2) + 4ull * view->n_v_heads;
}
/* The row of a position, found through the segment's table. */
WEFT_DELTA_FN uint8_t *weft_delta_row(const weft_delta_view *view, const uint32_t *table, uint32_t position) {
  return (uint8_t *)view->base + table[position / view->block_tokens] * view->page_bytes + view->offset +
         position % view->block_tokens * weft_delta_row_bytes(view);
}
/* A unit of the state or of the tail, in the run of `pages`. */
WEFT_DELTA_FN float *weft_delta_unit(const weft_run_view *view, const uint32_t *pages, uint32_t unit) {
  weft_run_place place = weft_run_unit(view, unit);
  return (float *)(void *)((uint8_t *)view->base + pages[place.page] * view->page_bytes + place.offset);
}

/* Row i of a segment is at position kv_len + i, and is stored in the pool. Host memory; lists are device memory. */
typedef struct weft_delta_segment {
  uint32_t first_row, n_rows, kv_len;
  const uint32_t *table; /* page of logical block i of the rows */
  const uint32_t *state; /* pages of the state at the last border at or before kv_len; NULL where that is 0 */
} weft_delta_segment;

/* ---- delta_rows: what stands before the delta rule, row by row ------------------------------------------------- *
 *   x is rounded and stored; y_c = silu(sum over j = 0 .. 3, ascending, of conv[c][j] * input of position p - 3 + j)
 *   q = y / sqrt(sum(y^2) + 1e-6) / sqrt(dim), k = y / sqrt(sum(y^2) + 1e-6) per head; v = y; k is stored
 *   g = a softplus(alpha + dt), stored; beta = 1 / (1 + e^-beta), in place. softplus(x) = x > 20 ? x : log(1 + e^x)
 * Inputs of positions below 0 are 0; those below the border that a segment begins at are the tail's.              */
typedef struct weft_delta_rows_args {
  weft_delta_view view;
  const float *x;      /* [n_rows, channels]: of queries, of keys, of values */
  const float *alpha;  /* [n_rows, n_v_heads] */
  float *beta;         /* [n_rows, n_v_heads] */
  const float *conv;   /* [channels][WEFT_DELTA_TAPS] */
  const float *a, *dt; /* [n_v_heads] */
  float *q, *v;        /* [n_rows, n_k_heads * dim], [n_rows, n_v_heads * dim] */
  const weft_delta_segment *segment;
  uint32_t n_segments, n_rows;
  uint64_t x_stride, alpha_stride, beta_stride, q_stride, v_stride;
} weft_delta_rows_args;

/* ---- delta_rule: of the rows that delta_rows has stored, then the norm and gate of its result -------------- *
 *   out = o / sqrt(mean(o^2) + eps) * norm * silu(z), per value head
 * A write names a border that the rows of a segment reach, kv_len < position <= kv_len + n_rows, and the pages for the
 * state and the tail there. Writes ascend by segment, then by position. Host memory.                               */
typedef struct weft_delta_write {
  uint32_t segment, position;
  const uint32_t *pages;
} weft_delta_write;
typedef struct weft_delta_rule_args {
  weft_delta_view view;
  const float *q, *v, *beta; /* as delta_rows leaves them */
  const float *z;            /* [n_rows, n_v_heads * dim] */
  const float *norm;         /* [dim] */
  float *out;                /* [n_rows, n_v_heads * dim] */
  const weft_delta_segment *segment;
  const weft_delta_write *write;
  uint32_t n_segments, n_writes, n_rows;
  float eps;
  uint64_t q_stride, v_stride, beta_stride, z_stride, out_stride;
  void *scratch;
  uint64_t scratch_bytes;
} weft_delta_rule_args;

#ifdef __cplusplus
}
#endif
#endif
