/* SPDX-License-Identifier: MIT */
/* delta_rows: a warp has a head of a row, of its queries, its keys or its values: the convolution of the head's
 * channels and, but for values, the norm of its length. One more warp makes the row's decays and betas. Inputs of the
 * convolution that are rows of the same call are read where the call has them and rounded as they will be stored, so no
 * warp waits for another. */
#include <string.h>

#include "kernels/cuda/delta/delta.cuh"

enum { DELTA_ROWS_WARPS = 4 };

weft_status delta_make_tables(cuda_device *d, const weft_delta_view *view, const weft_delta_segment *segment,
                              uint32_t n_segments, const weft_delta_write *write, uint32_t n_writes,
                              delta_tables *out) {
  uint32_t n_pieces = 0;
  for (uint32_t s = 0; s < n_segments; s++)
    n_pieces += (segment[s].kv_len + segment[s].n_rows - 1) / view->every - segment[s].kv_len / view->every + 1;
  uint64_t writes_at = cuda_align((uint64_t)n_segments * sizeof(delta_segment)),
           pieces_at = writes_at + cuda_align((uint64_t)n_writes * sizeof(delta_write)),
           n_bytes = pieces_at + (uint64_t)n_pieces * sizeof(delta_piece);
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* padding too, because plans are compared byte by byte */
  delta_segment *segments = (delta_segment *)(void *)plan;
  delta_write *writes = (delta_write *)(void *)(plan + writes_at);
  delta_piece *piece = (delta_piece *)(void *)(plan + pieces_at);
  for (uint32_t s = 0, w = 0; s < n_segments; s++) {
    const weft_delta_segment *from = &segment[s];
    segments[s].first_row = from->first_row, segments[s].n_rows = from->n_rows, segments[s].kv_len = from->kv_len;
    segments[s].table = from->table, segments[s].state = from->state;
    segments[s].first_write = w;
    for (; w < n_writes && write[w].segment == s; w++)
      writes[w].position = write[w].position, writes[w].pages = write[w].pages;
    segments[s].n_writes = w - segments[s].first_write;
    for (uint32_t at = 0; at < from->n_rows; piece++) {
      uint32_t first = (from->kv_len + at) % view->every, left = from->n_rows - at, room = view->every - first;
      *piece = {s, from->first_row + at, from->kv_len + at - first, first, first + (left < room ? left : room)};
      at += piece->end - first;
    }
  }
  const uint8_t *there = NULL;
  weft_status status = cuda_plan_end(d, n_bytes, &there);
  out->segment = (const delta_segment *)(const void *)there;
  out->write = (const delta_write *)(const void *)(there + writes_at);
  out->piece = (const delta_piece *)(const void *)(there + pieces_at);
  out->n_segments = n_segments, out->n_pieces = n_pieces;
  if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, &n_pieces, sizeof n_pieces);
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

/* STEPS: at most 32 STEPS dimensions. */
template <int STEPS>
static __global__ void __launch_bounds__(32 * DELTA_ROWS_WARPS)
    delta_rows_kernel(const __grid_constant__ weft_delta_rows_args a, const delta_tables t) {
  launch_dependents_and_wait();
  const weft_delta_view &view = a.view;
  uint32_t lane = threadIdx.x % 32, head = blockIdx.y * DELTA_ROWS_WARPS + threadIdx.x / 32, r = blockIdx.x;
  uint32_t n_heads = 2 * view.n_k_heads + view.n_v_heads, dim = view.dim;
  if (head > n_heads) return;
  delta_segment s = find_segment(t, r);
  uint32_t position = s.kv_len + (r - s.first_row);
  uint8_t *row = weft_delta_row(&view, s.table, position);
  if (head == n_heads) {
    make_gates(a, r, row);
    return;
  }
  delta_inputs inputs[WEFT_DELTA_TAPS];
#pragma unroll
  for (int j = 0; j < WEFT_DELTA_TAPS; j++) inputs[j] = inputs_of(a, s, (int64_t)position + j - (WEFT_DELTA_TAPS - 1));
  float y[STEPS], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    uint32_t c = lane + 32 * i;
    uint64_t channel = (uint64_t)head * dim + c;
    y[i] = 0.0f;
    if (c >= dim) continue;
#pragma unroll
    for (int j = 0; j < WEFT_DELTA_TAPS; j++) {
      float x = input_at(view.type, inputs[j], channel);
      y[i] = __fmaf_rn(a.conv[channel * WEFT_DELTA_TAPS + j], x, y[i]);
      if (j == WEFT_DELTA_TAPS - 1) delta_store(view.type, row, channel, x);
    }
    y[i] = delta_silu(y[i]);
    sum = __fmaf_rn(y[i], y[i], sum);
  }
  float factor = __fdiv_rn(1.0f, sqrtf(__fadd_rn(warp_sum(sum), 1e-6f)));
  if (head < view.n_k_heads) factor = __fdiv_rn(factor, sqrtf((float)dim));
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    uint32_t c = lane + 32 * i, key = head - view.n_k_heads, value = key - view.n_k_heads;
    if (c >= dim) continue;
    if (head < view.n_k_heads)
      a.q[r * a.q_stride + head * dim + c] = __fmul_rn(y[i], factor);
    else if (key < view.n_k_heads)
      delta_store(view.type, row, weft_delta_channels(&view) + (uint64_t)key * dim + c, __fmul_rn(y[i], factor));
    else
      a.v[r * a.v_stride + value * dim + c] = y[i];
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
  dim3 grid(args->n_rows, cuda_ceil(n_heads, DELTA_ROWS_WARPS));
  auto kernel = args->view.dim <= 128 ? delta_rows_kernel<4> : delta_rows_kernel<8>;
  cuda_start(d, kernel, grid, 32 * DELTA_ROWS_WARPS, 0, *args, tables);
  return cuda_launched(d, "delta_rows");
}
