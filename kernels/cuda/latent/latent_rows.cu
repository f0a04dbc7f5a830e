/* SPDX-License-Identifier: MIT */
/* latent_rows and latent_press.
 *
 * latent_rows: a warp has one head of a row, of its queries or its index queries, or the row's vector. It stays in
 * registers from load to store. The squares of a lane ascend, then a tree over lanes. Of parted queries, of which a few
 * numbers rotate and all others stay, a warp has some heads, for which it makes sines and cosines once.
 *
 * latent_press: a block has a row, and stores its pending numbers; where a block of positions ends with the row it
 * makes the row of that block. What positions of the same call have as pending numbers is made anew from the inputs,
 * with the bits that are stored, so no block waits for another. A thread has some of the numbers: the largest score
 * first, then both sums, positions ascending. Where nothing is pending the row's own numbers are all. */
#include <string.h>

#include "kernels/cuda/latent/latent.cuh"

enum { ROWS_WARPS = 4, PARTED_HEADS = 5, PRESS_THREADS = 512, PRESS_ROWS = 2 * WEFT_LATENT_RATIO_MAX };

void latent_copy_segments(const weft_latent_segment *segment, uint32_t n, weft_latent_segment *to) {
  for (uint32_t s = 0; s < n; s++) {
    to[s].first_row = segment[s].first_row, to[s].n_rows = segment[s].n_rows, to[s].kv_len = segment[s].kv_len;
    for (uint32_t i = 0; i < WEFT_LATENT_SETS; i++) to[s].table[i] = segment[s].table[i];
  }
}

weft_status latent_push_segments(cuda_device *d, const weft_latent_segment *segment, uint32_t n_segments,
                                 const weft_latent_segment **out) {
  uint64_t n_bytes = (uint64_t)n_segments * sizeof *segment;
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* padding too, because plans are compared byte by byte */
  latent_copy_segments(segment, n_segments, (weft_latent_segment *)(void *)plan);
  const uint8_t *there = NULL;
  weft_status status = cuda_plan_end(d, n_bytes, &there);
  *out = (const weft_latent_segment *)(const void *)there;
  return status;
}

/* ---- latent_rows ---- */

/* Of the first n numbers. STEPS: at most 32 STEPS numbers. */
template <int STEPS>
static __device__ __forceinline__ void norm_of_warp(float (&x)[STEPS], const float *weight, uint32_t n, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < STEPS; i++)
    if (threadIdx.x % 32 + 32 * i < n) sum = __fmaf_rn(x[i], x[i], sum);
  float factor = __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(warp_sum(sum), (float)n), eps)));
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    if (threadIdx.x % 32 + 32 * i >= n) continue;
    x[i] = __fmul_rn(x[i], factor);
    if (weight != NULL) x[i] = __fmul_rn(x[i], weight[threadIdx.x % 32 + 32 * i]);
  }
}

/* Rotates heads [first, first + PARTED_HEADS) of a row's parted queries. */
static __device__ __forceinline__ void turn_heads(const weft_latent_rows_args &a, uint32_t r, uint32_t first,
                                                  uint32_t position) {
  const uint32_t lane = threadIdx.x % 32, n = a.near.width, kept = n - a.turn.n_rotated;
  const uint32_t end = min(first + PARTED_HEADS, a.n_heads);
  for (uint32_t base = kept / 32 * 32; base < n; base += 32) {
    const uint32_t d = base + lane;
    const bool turns = d >= kept && d < n;
    float2 both = make_float2(0.0f, 1.0f);
    if (turns) both = latent_sine_and_cosine(__fmul_rn((float)position, a.turn.inv_freq[(d - kept) / 2]));
    const float sine = d % 2 == 0 ? -both.x : both.x;
#pragma unroll
    for (uint32_t i = 0; i < PARTED_HEADS; i++) {
      float *own = a.q + r * a.q_stride + (uint64_t)(first + i) * n + d;
      const bool is_there = turns && first + i < end;
      const float x = is_there ? *own : 0.0f, other = __shfl_xor_sync(0xFFFFFFFFu, x, 1);
      if (is_there) *own = __fmaf_rn(x, both.y, __fmul_rn(other, sine));
    }
  }
}

/* How many warps have queries of a row. */
static __host__ __device__ __forceinline__ uint32_t query_warps(const weft_latent_rows_args &a) {
  return a.parted ? (a.n_heads + PARTED_HEADS - 1) / PARTED_HEADS : a.n_heads;
}

template <int STEPS>
static __global__ void __launch_bounds__(32 * ROWS_WARPS) rows_kernel(const __grid_constant__ weft_latent_rows_args a) {
  launch_dependents_and_wait();
  const uint32_t lane = threadIdx.x % 32, r = blockIdx.x, item = blockIdx.y * ROWS_WARPS + threadIdx.x / 32;
  const uint32_t n_index = a.index_q == NULL ? 0 : a.n_index_heads, n_q = query_warps(a);
  if (item > n_q + n_index) return;
  const weft_latent_segment &s = latent_find_segment(a.segment, a.n_segments, r);
  const uint32_t position = s.kv_len + (r - s.first_row), index = item - n_q - 1;
  const bool is_q = item > 0 && item <= n_q, is_index = item > n_q;
  if (is_q && a.parted) {
    turn_heads(a, r, (item - 1) * PARTED_HEADS, position);
    return;
  }
  const uint32_t n = is_index ? a.index_dim : a.near.width;
  float *own = is_index ? a.index_q + r * a.index_q_stride + (uint64_t)index * n
               : is_q   ? a.q + r * a.q_stride + (uint64_t)(item - 1) * n
                        : NULL;
  const float *from = own != NULL ? own : a.kv + r * a.kv_stride;
  float x[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) x[i] = lane + 32 * i < n ? from[lane + 32 * i] : 0.0f;
  if (!is_index && !(is_q && a.plain_q))
    norm_of_warp(x, is_q ? NULL : a.kv_norm, a.parted ? n - a.turn.n_rotated : n, a.eps);
  uint8_t *near = own != NULL ? NULL : latent_row_at(a.near, a.near.offset, s.table[WEFT_LATENT_NEAR], position);
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    if (32 * i >= n) break;
    if (32 * i + 32 > n - a.turn.n_rotated) x[i] = latent_rotate(a.turn, x[i], lane + 32 * i, n, position, 1.0f);
    if (own == NULL)
      latent_store(a.near.type, near, x[i], lane + 32 * i, n);
    else if (lane + 32 * i < n)
      own[lane + 32 * i] = x[i];
  }
}

weft_status cuda_latent_rows_walk(weft_device *device, const weft_latent_rows_args *args) {
  return latent_walk_segments(device, args->segment, args->n_segments);
}

weft_status cuda_latent_rows(weft_device *device, const weft_latent_rows_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_latent_rows_args a = *args;
  weft_status status = latent_push_segments(d, args->segment, args->n_segments, &a.segment);
  if (status != WEFT_OK) return status;
  uint32_t n_items = 1 + query_warps(a) + (a.index_q == NULL ? 0 : a.n_index_heads),
           widest = a.index_q != NULL && a.index_dim > a.near.width ? a.index_dim : a.near.width;
  if (widest > WEFT_HEAD_DIM_MAX || cuda_ceil(n_items, ROWS_WARPS) > 65535) return WEFT_E_UNSUPPORTED;
  cuda_start(d,
             widest <= 128   ? rows_kernel<4>
             : widest <= 512 ? rows_kernel<16>
             : widest <= 576 ? rows_kernel<18>
                             : rows_kernel<32>,
             dim3(a.n_rows, cuda_ceil(n_items, ROWS_WARPS)), 32 * ROWS_WARPS, 0, a);
  return cuda_launched(d, "latent_rows");
}

/* ---- latent_press ---- */

/* Pending numbers of a position: in a page, or made anew of row `row` of the call. */
struct pending_numbers {
  const float *values, *scores, *ape; /* ape NULL: scores are stored, and have it, or there is none */
  __device__ __forceinline__ float score(uint32_t i) const {
    return ape == NULL ? scores[i] : __fadd_rn(scores[i], ape[i]);
  }
};

static __device__ __forceinline__ float *pending_row(const weft_latent_press_args &a, const weft_latent_segment &s,
                                                     uint64_t offset, uint32_t position) {
  return (float *)(void *)latent_row_at(a.pending, offset, s.table[a.pending_set], position);
}

static __device__ __forceinline__ pending_numbers pending_at(const weft_latent_press_args &a,
                                                             const weft_latent_segment &s, uint32_t position) {
  if (position < s.kv_len)
    return {pending_row(a, s, a.pending.offset, position), pending_row(a, s, a.pending.scores_offset, position), NULL};
  uint64_t row = s.first_row + (position - s.kv_len);
  return {a.x + row * a.x_stride, a.scores + row * a.scores_stride,
          a.ape == NULL ? NULL : a.ape + (uint64_t)(position % a.out.positions) * a.pending.width};
}

/* Finds the n rows that a block of positions is made of, each from the number on that it gives first. */
static __device__ __forceinline__ void find_pending(const weft_latent_press_args &a, const weft_latent_segment &s,
                                                    uint32_t first, uint32_t begin, uint32_t n, pending_numbers *rows) {
  for (uint32_t i = threadIdx.x; i < n; i += PRESS_THREADS) {
    const uint32_t skipped = a.overlaps && first + i >= begin ? a.out.width : 0;
    pending_numbers p = pending_at(a, s, first + i);
    rows[i] = {p.values + skipped, p.scores + skipped, p.ape == NULL ? NULL : p.ape + skipped};
  }
}

/* Number d of the block that the rows make, before its norm. */
static __device__ __forceinline__ float press_number(const pending_numbers *rows, uint32_t n, uint32_t d) {
  float most = -INFINITY, total = 0.0f, sum = 0.0f;
#pragma unroll 8
  for (uint32_t i = 0; i < n; i++) most = fmaxf(most, rows[i].score(d));
#pragma unroll 8
  for (uint32_t i = 0; i < n; i++) {
    float share = expf(__fsub_rn(rows[i].score(d), most));
    total = __fadd_rn(total, share);
    sum = __fmaf_rn(share, rows[i].values[d], sum);
  }
  return __fdiv_rn(sum, total);
}

static __device__ __forceinline__ float sum_of_press(float x) {
  __shared__ float part[PRESS_THREADS / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < PRESS_THREADS / 32 ? part[threadIdx.x % 32] : 0.0f);
}

static __device__ __forceinline__ void store_pending(const weft_latent_press_args &a, const weft_latent_segment &s,
                                                     uint32_t position) {
  const pending_numbers own = pending_at(a, s, position);
  float *values = pending_row(a, s, a.pending.offset, position),
        *scores = pending_row(a, s, a.pending.scores_offset, position);
  for (uint32_t i = threadIdx.x; i < a.pending.width; i += PRESS_THREADS)
    values[i] = own.values[i], scores[i] = own.score(i);
}

static __global__ void __launch_bounds__(PRESS_THREADS) press_kernel(const __grid_constant__ weft_latent_press_args a) {
  constexpr uint32_t STEPS = WEFT_HEAD_DIM_MAX / PRESS_THREADS;
  launch_dependents_and_wait();
  __shared__ pending_numbers rows[PRESS_ROWS];
  const bool pends = a.pending.base != NULL;
  const uint32_t r = blockIdx.x, n = a.out.width, ratio = a.out.positions;
  const weft_latent_segment &s = latent_find_segment(a.segment, a.n_segments, r);
  const uint32_t position = s.kv_len + (r - s.first_row);
  const float *x = a.x + (uint64_t)r * a.x_stride;
  float *latent = a.latent == NULL ? NULL : a.latent + (uint64_t)r * n;
  if (pends) store_pending(a, s, position);
  if ((position + 1) % ratio != 0) {
    for (uint32_t d = threadIdx.x; latent != NULL && d < n; d += PRESS_THREADS) latent[d] = 0.0f;
    return;
  }
  const uint32_t begin = position + 1 - ratio, first = a.overlaps && begin > 0 ? begin - ratio : begin;
  const uint32_t n_rows = position + 1 - first;
  float y[STEPS], squares = 0.0f;
  if (pends) find_pending(a, s, first, begin, n_rows, rows);
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i < STEPS; i++) {
    uint32_t d = threadIdx.x + PRESS_THREADS * i;
    y[i] = d >= n ? 0.0f : pends ? press_number(rows, n_rows, d) : x[d];
    squares = __fmaf_rn(y[i], y[i], squares);
  }
  float factor = __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(sum_of_press(squares), (float)n), a.eps)));
  uint8_t *out = latent_row_at(a.out, a.out.offset, s.table[a.out_set], position);
#pragma unroll
  for (uint32_t i = 0; i < STEPS; i++) {
    uint32_t d = threadIdx.x + PRESS_THREADS * i;
    if (d / 32 * 32 >= n) break; /* the same for all lanes of a warp */
    float number = __fmul_rn(__fmul_rn(y[i], factor), d < n ? a.norm[d] : 0.0f);
    if (latent != NULL && d < n) latent[d] = number;
    latent_store(a.out.type, out, latent_rotate(a.turn, number, d, n, begin, 1.0f), d, n);
  }
}

weft_status cuda_latent_press_walk(weft_device *device, const weft_latent_press_args *args) {
  return latent_walk_segments(device, args->segment, args->n_segments);
}

weft_status cuda_latent_press(weft_device *device, const weft_latent_press_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_latent_press_args a = *args;
  weft_status status = latent_push_segments(d, args->segment, args->n_segments, &a.segment);
  if (status != WEFT_OK) return status;
  cuda_start(d, press_kernel, a.n_rows, PRESS_THREADS, 0, a);
  return cuda_launched(d, "latent_press");
}
