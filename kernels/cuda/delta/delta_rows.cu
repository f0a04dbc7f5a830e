/* SPDX-License-Identifier: MIT */
/* delta_rows: a warp has a head of a row, of its queries, its keys or its values, or, where a call has many rows, of
 * two or eight: the convolution of the head's channels and, but for values, the norm of its length. One more warp
 * makes the decays and betas of its rows. Inputs of the convolution that are rows of the same call are read where the
 * call has them and rounded as they will be stored, so no warp waits for another. Where all segments have one row
 * delta_rows_one_kernel does the same with fewer steps from a load to the next. */
#include <string.h>

#include "kernels/cuda/delta/delta.cuh"

enum {
  DELTA_ROWS_WARPS = 4,
  DELTA_RUN = 8,         /* rows of a warp, in calls of many rows */
  DELTA_PAIRS_FROM = 48, /* rows of a call from which on a warp has two */
  DELTA_RUNS_FROM = 256, /* likewise: DELTA_RUN */
  ONE_ROW_BLOCKS = 8     /* on a multiprocessor, of segments of one row */
};

/* The tables on the host, as they will lie on the device. */
typedef struct host_tables {
  delta_segment *segment;
  delta_piece *piece;
  delta_short *short_segment; /* at its end those of one row, the last one first */
  uint32_t *long_segment, *long_piece;
} host_tables;

static uint32_t count_pieces(const weft_delta_view *view, const weft_delta_segment *s) {
  return (s->kv_len + s->n_rows - 1) / view->every - s->kv_len / view->every + 1;
}

/* Fills the pieces of a segment; its writes begin at *write, of which `left` are left. */
static void fill_pieces(const weft_delta_view *view, const weft_delta_segment *from, uint32_t s, delta_piece *piece,
                        const weft_delta_write **write, uint32_t *left) {
  for (uint32_t at = 0; at < from->n_rows; piece++) {
    uint32_t first = (from->kv_len + at) % view->every, n_left = from->n_rows - at, room = view->every - first;
    uint32_t border = from->kv_len + at - first, end = first + (n_left < room ? n_left : room);
    bool writes = *left > 0 && (*write)->segment == s && (*write)->position == border + view->every;
    *piece = {s, from->first_row + at, border, first, end, 0, writes || (end == view->every && n_left > room), NULL};
    if (writes) piece->pages = (*write)++->pages, *left -= 1;
    at += end - first;
  }
}

static void fill_tables(const weft_delta_view *view, const weft_delta_segment *segment, const weft_delta_write *write,
                        uint32_t n_writes, const host_tables *to, delta_tables *out) {
  for (uint32_t s = 0; s < out->n_segments; s++) {
    const weft_delta_segment *from = &segment[s];
    uint32_t first = s == 0 ? 0 : to->segment[s - 1].first_piece + to->segment[s - 1].n_pieces;
    to->segment[s] = {from->first_row,          from->n_rows, from->kv_len, first,
                      count_pieces(view, from), from->table,  from->state};
    fill_pieces(view, from, s, to->piece + first, &write, &n_writes);
    if (from->n_rows == 1)
      to->short_segment[out->n_segments - ++out->n_one] = {to->segment[s], to->piece[first]};
    else if (from->n_rows < DELTA_LONG_ROWS)
      to->short_segment[out->n_short++] = {to->segment[s], to->piece[first]};
    else
      to->long_segment[out->n_long++] = s;
  }
  for (uint32_t p = 0, tile = 0; p < out->n_pieces; p++) {
    delta_piece *piece = &to->piece[p];
    uint32_t n_rows = segment[piece->segment].n_rows;
    if (n_rows > 1 && n_rows < DELTA_LONG_ROWS && piece->crosses) out->short_crosses = true;
    if (n_rows < DELTA_LONG_ROWS) continue;
    to->long_piece[out->n_long_pieces++] = p;
    piece->tile = tile;
    tile += (piece->end + 15) / 16;
  }
}

weft_status delta_make_tables(cuda_device *d, const weft_delta_view *view, const weft_delta_segment *segment,
                              uint32_t n_segments, const weft_delta_write *write, uint32_t n_writes,
                              delta_tables *out) {
  *out = {};
  out->n_segments = n_segments;
  for (uint32_t s = 0; s < n_segments; s++) out->n_pieces += count_pieces(view, &segment[s]);
  uint64_t pieces_at = cuda_align((uint64_t)n_segments * sizeof(delta_segment)),
           short_at = pieces_at + cuda_align((uint64_t)out->n_pieces * sizeof(delta_piece)),
           long_at = short_at + cuda_align((uint64_t)n_segments * sizeof(delta_short)),
           long_pieces_at = long_at + cuda_align((uint64_t)n_segments * sizeof(uint32_t)),
           n_bytes = long_pieces_at + (uint64_t)out->n_pieces * sizeof(uint32_t);
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* padding too, because plans are compared byte by byte */
  const host_tables to = {(delta_segment *)(void *)plan, (delta_piece *)(void *)(plan + pieces_at),
                          (delta_short *)(void *)(plan + short_at), (uint32_t *)(void *)(plan + long_at),
                          (uint32_t *)(void *)(plan + long_pieces_at)};
  fill_tables(view, segment, write, n_writes, &to, out);
  const uint8_t *there = NULL;
  weft_status status = cuda_plan_end(d, n_bytes, &there);
  out->segment = (const delta_segment *)(const void *)there;
  out->piece = (const delta_piece *)(const void *)(there + pieces_at);
  out->short_segment = (const delta_short *)(const void *)(there + short_at);
  out->one = out->short_segment + (n_segments - out->n_one);
  out->long_segment = (const uint32_t *)(const void *)(there + long_at);
  out->long_piece = (const uint32_t *)(const void *)(there + long_pieces_at);
  const uint32_t shape[] = {out->n_pieces, out->n_one, out->n_short, out->n_long_pieces, out->short_crosses};
  if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, shape, sizeof shape);
  return status;
}

/* The segment that row r belongs to: segment r, where all before it have one row. */
static __device__ __forceinline__ delta_segment find_segment(const delta_tables &t, uint32_t r) {
  uint32_t low = 0, high = t.n_segments;
  if (r < high) {
    delta_segment s = t.segment[r];
    if (s.first_row == r) return s;
  }
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (t.segment[middle].first_row <= r)
      low = middle;
    else
      high = middle;
  }
  return t.segment[low];
}

/* Where the inputs of a position lie: among the rows of the call, in the tail, in a page, or nowhere. */
typedef struct delta_inputs {
  const uint8_t *from;
  bool plain, rounded; /* plain: f32; rounded: on its way to be stored */
} delta_inputs;

static __device__ __forceinline__ delta_inputs inputs_of(const weft_delta_rows_args &a, const delta_segment &s,
                                                         int64_t position) {
  int64_t border = s.kv_len / a.view.every * a.view.every;
  if (position < 0) return {NULL, false, false};
  if (position >= s.kv_len)
    return {(const uint8_t *)(a.x + (s.first_row + (position - s.kv_len)) * a.x_stride), true, true};
  if (position >= border) return {weft_delta_row(&a.view, s.table, (uint32_t)position), false, false};
  const float *tail = weft_delta_unit(&a.view.tail, s.state, 0);
  uint64_t back = (uint64_t)(position + WEFT_DELTA_TAPS - 1 - border);
  return {(const uint8_t *)(tail + back * weft_delta_channels(&a.view)), true, false};
}

/* Four elements of bf16 as they are stored. */
static __device__ __forceinline__ float4 widen_four(uint2 x) {
  return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xFFFF0000u), __uint_as_float(x.y << 16),
                     __uint_as_float(x.y & 0xFFFF0000u));
}

/* Elements [i, i + 4). wide: they may be read at once. */
static __device__ __forceinline__ float4 load_four_of(weft_type type, const uint8_t *row, uint64_t i, bool wide) {
  if (!wide)
    return make_float4(delta_load(type, row, i), delta_load(type, row, i + 1), delta_load(type, row, i + 2),
                       delta_load(type, row, i + 3));
  if (type == WEFT_TYPE_F32) return *(const float4 *)(const void *)((const float *)(const void *)row + i);
  return widen_four(*(const uint2 *)(const void *)(row + 2 * i));
}

/* Stores four elements; `wide` as above. */
static __device__ __forceinline__ void store_four_of(weft_type type, uint8_t *row, uint64_t i, const float *x,
                                                     bool wide) {
  if (!wide) {
#pragma unroll
    for (int e = 0; e < 4; e++) delta_store(type, row, i + e, x[e]);
  } else if (type == WEFT_TYPE_F32) {
    *(float4 *)(void *)((float *)(void *)row + i) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
    *(uint2 *)(void *)(row + 2 * i) = make_uint2(pair_bf16(x[0], x[1]), pair_bf16(x[2], x[3]));
  }
}

static __device__ __forceinline__ void put_four(float4 from, float *to) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

static __device__ __forceinline__ void load_inputs(weft_type type, const delta_inputs &inputs, uint64_t channel,
                                                   bool wide, float *to) {
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (inputs.from != NULL) x = load_four_of(inputs.plain ? WEFT_TYPE_F32 : type, inputs.from, channel, wide);
  put_four(x, to);
#pragma unroll
  for (int e = 0; e < 4; e++) to[e] = inputs.rounded ? delta_round(type, to[e]) : to[e];
}

/* Decays and betas of row r. */
static __device__ __forceinline__ void make_gates(const weft_delta_rows_args &a, uint32_t r, uint8_t *row) {
  float *decays = delta_decays(a.view, row);
  for (uint32_t h = threadIdx.x % 32; h < a.view.n_v_heads; h += 32) {
    float x = __fadd_rn(a.alpha[r * a.alpha_stride + h], a.dt[h]), *beta = &a.beta[r * a.beta_stride + h];
    decays[h] = __fmul_rn(a.a[h], x > 20.0f ? x : log1pf(expf(x)));
    *beta = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-*beta)));
  }
}

/* The channels of a lane: four neighbours in each 128 of a head. Whether it has those of 128 number g. */
static __device__ __forceinline__ bool has_four(const weft_delta_view &view, int g) {
  return 128u * g + threadIdx.x % 32 * 4 < view.dim;
}

/* A head of a row after the convolution: rounded and stored, or to be read by the rule. */
template <int N>
static __device__ __forceinline__ void finish_head(const weft_delta_rows_args &a, uint32_t head, uint32_t r,
                                                   uint8_t *row, bool wide, float (&y)[N][4]) {
  const weft_delta_view &view = a.view;
  uint32_t lane = threadIdx.x % 32, dim = view.dim, key = head - view.n_k_heads, value = key - view.n_k_heads;
  float sum = 0.0f;
#pragma unroll
  for (int g = 0; g < N; g++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      y[g][e] = delta_silu(y[g][e]);
      if (has_four(view, g)) sum = __fmaf_rn(y[g][e], y[g][e], sum);
    }
  }
  float factor = __fdiv_rn(1.0f, sqrtf(__fadd_rn(warp_sum(sum), 1e-6f)));
  if (head < view.n_k_heads) factor = __fdiv_rn(factor, sqrtf((float)dim));
#pragma unroll
  for (int g = 0; g < N; g++) {
    uint32_t c = 128 * g + 4 * lane;
    if (!has_four(view, g)) continue;
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (key < view.n_k_heads || head < view.n_k_heads) y[g][e] = __fmul_rn(y[g][e], factor);
    if (head < view.n_k_heads)
      store_four_of(WEFT_TYPE_F32, (uint8_t *)(a.q + r * a.q_stride), head * dim + c, y[g], wide);
    else if (key < view.n_k_heads)
      store_four_of(view.type, row, weft_delta_channels(&view) + (uint64_t)key * dim + c, y[g], wide);
    else
      store_four_of(WEFT_TYPE_F32, (uint8_t *)(a.v + r * a.v_stride), value * dim + c, y[g], wide);
  }
}

/* Inputs of a head at the positions before a row, oldest first. */
template <int N>
struct head_window {
  float x[WEFT_DELTA_TAPS - 1][N][4];
};

template <int N>
static __device__ __forceinline__ void load_window(const weft_delta_rows_args &a, const delta_segment &s,
                                                   uint32_t position, uint64_t channel, bool wide,
                                                   head_window<N> &window) {
#pragma unroll
  for (int j = 0; j < WEFT_DELTA_TAPS - 1; j++) {
    delta_inputs inputs = inputs_of(a, s, (int64_t)position + j - (WEFT_DELTA_TAPS - 1));
#pragma unroll
    for (int g = 0; g < N; g++)
      if (has_four(a.view, g)) load_inputs(a.view.type, inputs, channel + 128 * g, wide, window.x[j][g]);
  }
}

/* The inputs of some rows are loaded at a time, so that these loads wait together. */
template <int N, int ROWS>
struct head_rows {
  float x[ROWS][N][4];
  uint8_t *row[ROWS];
  uint32_t position[ROWS];
  bool begins[ROWS]; /* a segment */
};

/* Rows [r, r + n) of the call; s: the segment of the row before, then of the last. */
template <int N, int ROWS>
static __device__ __forceinline__ void load_rows(const weft_delta_rows_args &a, const delta_tables &t, uint32_t r,
                                                 uint32_t n, uint64_t channel, bool wide, delta_segment &s,
                                                 head_rows<N, ROWS> &rows) {
#pragma unroll
  for (uint32_t k = 0; k < ROWS; k++) {
    if (k >= n) break;
    rows.begins[k] = r + k >= s.first_row + s.n_rows;
    if (rows.begins[k]) s = find_segment(t, r + k);
    rows.position[k] = s.kv_len + (r + k - s.first_row);
    rows.row[k] = weft_delta_row(&a.view, s.table, rows.position[k]);
#pragma unroll
    for (int g = 0; g < N; g++)
      if (has_four(a.view, g))
        put_four(load_four_of(WEFT_TYPE_F32, (const uint8_t *)(a.x + (r + k) * a.x_stride), channel + 128 * g, wide),
                 rows.x[k][g]);
  }
}

/* One row, whose inputs are there: y, and the window of the next row. */
template <int N>
static __device__ __forceinline__ void convolve_row(weft_type type, const float (&conv)[N][4][WEFT_DELTA_TAPS],
                                                    const float (&x)[N][4], head_window<N> &window, float (&y)[N][4],
                                                    float (&stored)[N][4]) {
#pragma unroll
  for (int i = 0; i < 4 * N; i++) {
    int g = i / 4, e = i % 4;
    stored[g][e] = delta_round(type, x[g][e]);
    y[g][e] = __fmaf_rn(conv[g][e][0], window.x[0][g][e], 0.0f);
    y[g][e] = __fmaf_rn(conv[g][e][1], window.x[1][g][e], y[g][e]);
    y[g][e] = __fmaf_rn(conv[g][e][2], window.x[2][g][e], y[g][e]);
    y[g][e] = __fmaf_rn(conv[g][e][3], stored[g][e], y[g][e]);
    window.x[0][g][e] = window.x[1][g][e], window.x[1][g][e] = window.x[2][g][e], window.x[2][g][e] = stored[g][e];
  }
}

/* A warp has a head of RUN rows one behind another. N: at most 128 N dimensions. */
template <int N, int RUN>
static __global__ void __launch_bounds__(32 * DELTA_ROWS_WARPS)
    delta_rows_kernel(const __grid_constant__ weft_delta_rows_args a, const delta_tables t, bool wide) {
  constexpr int ROWS = RUN < 4 ? RUN : 4;
  const weft_delta_view &view = a.view;
  uint32_t lane = threadIdx.x % 32, head = blockIdx.y * DELTA_ROWS_WARPS + threadIdx.x / 32;
  uint32_t n_heads = 2 * view.n_k_heads + view.n_v_heads, first = blockIdx.x * RUN, end = min(first + RUN, a.n_rows);
  uint64_t channel = (uint64_t)head * view.dim + 4 * lane;
  float conv[N][4][WEFT_DELTA_TAPS] = {};
  launch_dependent_grids();
#pragma unroll
  for (int i = 0; i < 4 * N; i++)
    if (head < n_heads && has_four(view, i / 4))
      put_four(load_four_of(WEFT_TYPE_F32, (const uint8_t *)a.conv, (channel + 128 * (i / 4) + i % 4) * WEFT_DELTA_TAPS,
                            wide),
               conv[i / 4][i % 4]);
  delta_segment s = find_segment(t, first);
  wait_for_prior_grids();
  if (head > n_heads) return;
  if (head == n_heads) {
    for (uint32_t r = first; r < end; r++) {
      if (r >= s.first_row + s.n_rows) s = find_segment(t, r);
      make_gates(a, r, weft_delta_row(&view, s.table, s.kv_len + (r - s.first_row)));
    }
    return;
  }
  head_window<N> window = {};
  load_window(a, s, s.kv_len + (first - s.first_row), channel, wide, window);
  for (uint32_t r = first; r < end; r += ROWS) {
    head_rows<N, ROWS> rows = {};
    uint32_t n = min(end - r, (uint32_t)ROWS);
    load_rows<N, ROWS>(a, t, r, n, channel, wide, s, rows);
#pragma unroll
    for (uint32_t k = 0; k < ROWS; k++) {
      if (k >= n) break;
      float y[N][4], stored[N][4];
      if (rows.begins[k]) load_window(a, find_segment(t, r + k), rows.position[k], channel, wide, window);
      convolve_row<N>(view.type, conv, rows.x[k], window, y, stored);
#pragma unroll
      for (int g = 0; g < N; g++)
        if (has_four(view, g)) store_four_of(view.type, rows.row[k], channel + 128 * g, stored[g], wide);
      finish_head<N>(a, head, r + k, rows.row[k], wide, y);
    }
  }
}

/* Rows of bf16 whose segments have one row each, where all may be read wide and heads have at most 128 dimensions:
 * row r is that of segment r. All that a lane reads is asked for before any of it is looked at. */
static __global__ void __launch_bounds__(32 * DELTA_ROWS_WARPS, ONE_ROW_BLOCKS)
    delta_rows_one_kernel(const __grid_constant__ weft_delta_rows_args a, const delta_tables t) {
  constexpr uint32_t n_before = WEFT_DELTA_TAPS - 1;
  const weft_delta_view &view = a.view;
  uint32_t lane = threadIdx.x % 32, head = blockIdx.y * DELTA_ROWS_WARPS + threadIdx.x / 32, r = blockIdx.x;
  uint32_t n_heads = 2 * view.n_k_heads + view.n_v_heads;
  uint64_t channel = (uint64_t)head * view.dim + 4 * lane;
  bool has_head = head < n_heads && has_four(view, 0);
  float conv[1][4][WEFT_DELTA_TAPS] = {}, x[1][4] = {}, y[1][4], stored[1][4];
  launch_dependent_grids();
  const delta_segment s = t.segment[r];
#pragma unroll
  for (uint32_t e = 0; e < 4; e++)
    if (has_head) put_four(*(const float4 *)(const void *)(a.conv + (channel + e) * WEFT_DELTA_TAPS), conv[0][e]);
  uint32_t at = s.kv_len % view.every;
  uint8_t *row[WEFT_DELTA_TAPS];
#pragma unroll
  for (uint32_t j = 0; j <= n_before; j++)
    row[j] = at + j >= n_before ? weft_delta_row(&view, s.table, s.kv_len - n_before + j) : NULL;
  const float *tail = at < n_before && s.kv_len >= view.every ? weft_delta_unit(&view.tail, s.state, 0) : NULL;
  wait_for_prior_grids();
  if (head == n_heads) make_gates(a, r, row[n_before]);
  if (head >= n_heads) return;
  uint2 before[n_before] = {};
#pragma unroll
  for (uint32_t j = 0; j < n_before; j++)
    if (has_head && row[j] != NULL) before[j] = *(const uint2 *)(const void *)(row[j] + 2 * channel);
  if (has_head) put_four(*(const float4 *)(const void *)(a.x + r * a.x_stride + channel), x[0]);
  head_window<1> window = {};
#pragma unroll
  for (uint32_t j = 0; j < n_before; j++) {
    put_four(widen_four(before[j]), window.x[j][0]);
    if (has_head && at + j < n_before && tail != NULL)
      put_four(*(const float4 *)(const void *)(tail + (at + j) * weft_delta_channels(&view) + channel), window.x[j][0]);
  }
  convolve_row<1>(WEFT_TYPE_BF16, conv, x, window, y, stored);
  if (has_head) store_four_of(WEFT_TYPE_BF16, row[n_before], channel, stored[0], true);
  finish_head<1>(a, head, r, row[n_before], true, y);
}

/* Whether all that the kernel reads and writes lies at multiples of four numbers. */
static bool is_wide(const weft_delta_rows_args *a) {
  const weft_delta_view *view = &a->view;
  uint64_t memory = (uint64_t)(uintptr_t)view->base | view->offset | view->page_bytes | weft_delta_row_bytes(view) |
                    (uint64_t)(uintptr_t)view->tail.base | view->tail.offset | view->tail.page_bytes,
           rows = (uint64_t)(uintptr_t)a->x | (uint64_t)(uintptr_t)a->q | (uint64_t)(uintptr_t)a->v |
                  (uint64_t)(uintptr_t)a->conv | 4 * (a->x_stride | a->q_stride | a->v_stride);
  return (memory | rows) % 16 == 0;
}

weft_status cuda_delta_rows_walk(weft_device *device, const weft_delta_rows_args *args) {
  delta_tables tables;
  return delta_make_tables(cuda_of(device), &args->view, args->segment, args->n_segments, NULL, 0, &tables);
}

weft_status cuda_delta_rows(weft_device *device, const weft_delta_rows_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  delta_tables tables;
  weft_status status = delta_make_tables(d, &args->view, args->segment, args->n_segments, NULL, 0, &tables);
  if (status != WEFT_OK) return status;
  uint32_t n_heads = 2 * args->view.n_k_heads + args->view.n_v_heads + 1;
  uint32_t run = args->n_rows < DELTA_PAIRS_FROM ? 1 : args->n_rows < DELTA_RUNS_FROM ? 2 : DELTA_RUN;
  dim3 grid(cuda_ceil(args->n_rows, run), cuda_ceil(n_heads, DELTA_ROWS_WARPS));
  bool is_small = args->view.dim <= 128;
  auto kernel = run == 1   ? is_small ? delta_rows_kernel<1, 1> : delta_rows_kernel<2, 1>
                  : run == 2 ? is_small ? delta_rows_kernel<1, 2> : delta_rows_kernel<2, 2>
                  : is_small ? delta_rows_kernel<1, DELTA_RUN>
                           : delta_rows_kernel<2, DELTA_RUN>;
  if (args->view.type == WEFT_TYPE_BF16 && is_small && tables.n_one == args->n_segments && is_wide(args))
    cuda_start(d, delta_rows_one_kernel, dim3(args->n_rows, cuda_ceil(n_heads, DELTA_ROWS_WARPS)),
               32 * DELTA_ROWS_WARPS, 0, *args, tables);
  else
    cuda_start(d, kernel, grid, 32 * DELTA_ROWS_WARPS, 0, *args, tables, is_wide(args));
  return cuda_launched(d, "delta_rows");
}
