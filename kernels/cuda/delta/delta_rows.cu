/* SPDX-License-Identifier: MIT */
/* delta_rows: a warp has a head of a row, of its queries, its keys or its values, or, where a call has many rows, of
 * eight: the convolution of the head's channels and, but for values, the norm of its length. One more warp makes the
 * decays and betas of its rows. Inputs of the convolution that are rows of the same call are read where the call has
 * them and rounded as they will be stored, so no warp waits for another. */
#include <string.h>

#include "kernels/cuda/delta/delta.cuh"

enum { DELTA_ROWS_WARPS = 4, DELTA_RUN = 8 /* rows of a warp */, DELTA_RUNS_FROM = 128 /* rows of a call */ };

/* The tables on the host, as they will lie on the device. */
typedef struct host_tables {
  delta_segment *segment;
  delta_piece *piece;
  uint32_t *order, *long_piece;
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
    if (from->n_rows < DELTA_LONG_ROWS) to->order[out->n_short++] = s;
  }
  uint32_t tile = 0;
  for (uint32_t s = 0; s < out->n_segments; s++) {
    bool is_long = segment[s].n_rows >= DELTA_LONG_ROWS;
    if (is_long) to->order[out->n_short + out->n_long++] = s;
    for (uint32_t i = 0; i < to->segment[s].n_pieces; i++) {
      uint32_t p = to->segment[s].first_piece + i;
      delta_piece *piece = &to->piece[p];
      if (!is_long && piece->crosses) out->short_crosses = true;
      if (!is_long) continue;
      to->long_piece[out->n_long_pieces++] = p;
      piece->tile = tile;
      tile += (piece->end + 15) / 16;
    }
  }
}

weft_status delta_make_tables(cuda_device *d, const weft_delta_view *view, const weft_delta_segment *segment,
                              uint32_t n_segments, const weft_delta_write *write, uint32_t n_writes,
                              delta_tables *out) {
  *out = {};
  out->n_segments = n_segments;
  for (uint32_t s = 0; s < n_segments; s++) out->n_pieces += count_pieces(view, &segment[s]);
  uint64_t pieces_at = cuda_align((uint64_t)n_segments * sizeof(delta_segment)),
           order_at = pieces_at + cuda_align((uint64_t)out->n_pieces * sizeof(delta_piece)),
           long_at = order_at + cuda_align((uint64_t)n_segments * sizeof(uint32_t)),
           n_bytes = long_at + (uint64_t)out->n_pieces * sizeof(uint32_t);
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* padding too, because plans are compared byte by byte */
  const host_tables to = {(delta_segment *)(void *)plan, (delta_piece *)(void *)(plan + pieces_at),
                          (uint32_t *)(void *)(plan + order_at), (uint32_t *)(void *)(plan + long_at)};
  fill_tables(view, segment, write, n_writes, &to, out);
  const uint8_t *there = NULL;
  weft_status status = cuda_plan_end(d, n_bytes, &there);
  out->segment = (const delta_segment *)(const void *)there;
  out->piece = (const delta_piece *)(const void *)(there + pieces_at);
  out->order = (const uint32_t *)(const void *)(there + order_at);
  out->long_piece = (const uint32_t *)(const void *)(there + long_at);
  const uint32_t shape[] = {out->n_pieces, out->n_short, out->n_long_pieces, out->short_crosses};
  if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, shape, sizeof shape);
  return status;
}

/* The segment that row r belongs to. */
static __device__ __forceinline__ delta_segment find_segment(const delta_tables &t, uint32_t r) {
  uint32_t low = 0, high = t.n_segments;
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

static __device__ __forceinline__ float input_at(weft_type type, const delta_inputs &inputs, uint64_t channel) {
  if (inputs.from == NULL) return 0.0f;
  float x = delta_load(inputs.plain ? WEFT_TYPE_F32 : type, inputs.from, channel);
  return inputs.rounded ? delta_round(type, x) : x;
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

/* A head of a row after the convolution: rounded and stored, or to be read by the rule. */
template <int STEPS>
static __device__ __forceinline__ void finish_head(const weft_delta_rows_args &a, uint32_t head, uint32_t r,
                                                   uint8_t *row, float (&y)[STEPS]) {
  const weft_delta_view &view = a.view;
  uint32_t lane = threadIdx.x % 32, dim = view.dim, key = head - view.n_k_heads, value = key - view.n_k_heads;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    if (lane + 32 * i >= dim) continue;
    y[i] = delta_silu(y[i]);
    sum = __fmaf_rn(y[i], y[i], sum);
  }
  float factor = __fdiv_rn(1.0f, sqrtf(__fadd_rn(warp_sum(sum), 1e-6f)));
  if (head < view.n_k_heads) factor = __fdiv_rn(factor, sqrtf((float)dim));
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    uint32_t c = lane + 32 * i;
    if (c >= dim) continue;
    if (head < view.n_k_heads)
      a.q[r * a.q_stride + head * dim + c] = __fmul_rn(y[i], factor);
    else if (key < view.n_k_heads)
      delta_store(view.type, row, weft_delta_channels(&view) + (uint64_t)key * dim + c, __fmul_rn(y[i], factor));
    else
      a.v[r * a.v_stride + value * dim + c] = y[i];
  }
}

/* Inputs of a head at the positions before a row, oldest first. */
template <int STEPS>
struct head_window {
  float x[WEFT_DELTA_TAPS - 1][STEPS];
};

template <int STEPS>
static __device__ __forceinline__ void load_window(const weft_delta_rows_args &a, const delta_segment &s,
                                                   uint32_t position, uint64_t channel, uint32_t n,
                                                   head_window<STEPS> &window) {
#pragma unroll
  for (int j = 0; j < WEFT_DELTA_TAPS - 1; j++) {
    delta_inputs inputs = inputs_of(a, s, (int64_t)position + j - (WEFT_DELTA_TAPS - 1));
#pragma unroll
    for (int i = 0; i < STEPS; i++)
      window.x[j][i] = 32 * (uint32_t)i < n ? input_at(a.view.type, inputs, channel + 32 * i) : 0.0f;
  }
}

/* The inputs of N rows are loaded at a time, so that these loads wait together. */
template <int STEPS, int N>
struct head_rows {
  float x[N][STEPS];
  uint8_t *row[N];
  uint32_t position[N];
  bool begins[N]; /* a segment */
};

/* Rows [r, r + n) of the call; s: the segment of the row before, then of the last. */
template <int STEPS, int N>
static __device__ __forceinline__ void load_rows(const weft_delta_rows_args &a, const delta_tables &t, uint32_t r,
                                                 uint32_t n, uint64_t channel, uint32_t n_own, delta_segment &s,
                                                 head_rows<STEPS, N> &rows) {
#pragma unroll
  for (uint32_t k = 0; k < N; k++) {
    if (k >= n) break;
    rows.begins[k] = r + k >= s.first_row + s.n_rows;
    if (rows.begins[k]) s = find_segment(t, r + k);
    rows.position[k] = s.kv_len + (r + k - s.first_row);
    rows.row[k] = weft_delta_row(&a.view, s.table, rows.position[k]);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
      rows.x[k][i] = 32 * (uint32_t)i < n_own ? a.x[(r + k) * a.x_stride + channel + 32 * i] : 0.0f;
  }
}

/* A warp has a head of RUN rows one behind another. STEPS: at most 32 STEPS dimensions. */
template <int STEPS, int RUN>
static __global__ void __launch_bounds__(32 * DELTA_ROWS_WARPS)
    delta_rows_kernel(const __grid_constant__ weft_delta_rows_args a, const delta_tables t) {
  constexpr int N = RUN < 4 ? RUN : 4;
  const weft_delta_view &view = a.view;
  uint32_t lane = threadIdx.x % 32, head = blockIdx.y * DELTA_ROWS_WARPS + threadIdx.x / 32, dim = view.dim;
  uint32_t n_heads = 2 * view.n_k_heads + view.n_v_heads, first = blockIdx.x * RUN, end = min(first + RUN, a.n_rows);
  uint32_t n_own = dim > lane ? dim - lane : 0; /* the lane's dimensions: 32 i < n_own */
  uint64_t channel = (uint64_t)head * dim + lane;
  float conv[WEFT_DELTA_TAPS][STEPS];
  launch_dependent_grids();
#pragma unroll
  for (int i = 0; i < STEPS; i++)
#pragma unroll
    for (int j = 0; j < WEFT_DELTA_TAPS; j++)
      conv[j][i] = head < n_heads && 32 * (uint32_t)i < n_own ? a.conv[(channel + 32 * i) * WEFT_DELTA_TAPS + j] : 0.0f;
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
  head_window<STEPS> window;
  load_window(a, s, s.kv_len + (first - s.first_row), channel, n_own, window);
  for (uint32_t r = first; r < end; r += N) {
    head_rows<STEPS, N> rows;
    uint32_t n = min(end - r, (uint32_t)N);
    load_rows<STEPS, N>(a, t, r, n, channel, n_own, s, rows);
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
      if (k >= n) break;
      float y[STEPS];
      if (rows.begins[k]) load_window(a, find_segment(t, r + k), rows.position[k], channel, n_own, window);
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        float x = delta_round(view.type, rows.x[k][i]);
        y[i] = __fmaf_rn(conv[0][i], window.x[0][i], 0.0f);
        y[i] = __fmaf_rn(conv[1][i], window.x[1][i], y[i]);
        y[i] = __fmaf_rn(conv[2][i], window.x[2][i], y[i]);
        y[i] = __fmaf_rn(conv[3][i], x, y[i]);
        if (32 * (uint32_t)i < n_own) delta_store(view.type, rows.row[k], channel + 32 * i, x);
        window.x[0][i] = window.x[1][i], window.x[1][i] = window.x[2][i], window.x[2][i] = x;
      }
      finish_head<STEPS>(a, head, r + k, rows.row[k], y);
    }
  }
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
  bool runs = args->n_rows >= DELTA_RUNS_FROM;
  dim3 grid(cuda_ceil(args->n_rows, runs ? DELTA_RUN : 1), cuda_ceil(n_heads, DELTA_ROWS_WARPS));
  auto kernel = args->view.dim <= 128 ? runs ? delta_rows_kernel<4, DELTA_RUN> : delta_rows_kernel<4, 1>
                : runs ? delta_rows_kernel<8, DELTA_RUN>
                                      : delta_rows_kernel<8, 1>;
  cuda_start(d, kernel, grid, 32 * DELTA_ROWS_WARPS, 0, *args, tables);
  return cuda_launched(d, "delta_rows");
}
