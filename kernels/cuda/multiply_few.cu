/* SPDX-License-Identifier: MIT */
/* Products for few rows: a warp takes 16 outputs and one segment of the inputs, and reads its weights
 * straight from memory into the registers of the matrix units; segments meet in shared memory.
 *
 *   block   up to 8 warps = row tiles x segments, for one job (8 NT rows of x)
 *   raw     one row of f32: every block prepares it for itself while its first weights are on
 *           their way, which saves a kernel before this one */
#include "kernels/cuda/multiply.h"

enum { RAW_KEPT = 3 }; /* chunks of a row that a thread keeps between the row's maximum and their rounding */

/* Units that are asked for at once. */
template <int T>
__host__ __device__ constexpr int batch_units() {
  return form_bits(T) == 16 ? 2 : 4;
}

template <int T>
struct unit_batch {
  lane_codes<T> codes[batch_units<T>()];
  lane_scales<T> scales[batch_units<T>()];
};

static __device__ __forceinline__ bool is_tail_unit(const multiply_args &a, uint32_t unit) {
  return a.is_tail != 0 && unit + 1 == a.n_units;
}

template <int T>
static __device__ __forceinline__ void load_batch(const multiply_args &a, const uint8_t *row_tile, uint32_t unit,
                                                  uint32_t end, unit_batch<T> &out) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < batch_units<T>(); b++) {
    if (unit + b >= end) continue;
    form_place place = place_of<T>(row_tile, unit + b, is_tail_unit(a, unit + b));
    load_codes<T>(place, lane, out.codes[b]);
    load_scales<T>(place, lane / 4, lane % 4, out.scales[b]);
  }
}

/* ---- raw rows ------------------------------------------------------------------------------------------- */

/* Inputs 8 chunk .. of the row. */
static __device__ __forceinline__ void load_chunk(const multiply_args &a, const float *row, uint32_t chunk, float (&v)[8]) {
  uint32_t k = 8 * chunk;
  float u[8];
  if (a.raw.wide && k + 8 <= a.n_in) {
    ((float4 *)(void *)v)[0] = ((const float4 *)(const void *)(row + k))[0];
    ((float4 *)(void *)v)[1] = ((const float4 *)(const void *)(row + k))[1];
    if (!a.raw.gated) return;
    ((float4 *)(void *)u)[0] = ((const float4 *)(const void *)(row + k + a.n_in))[0];
    ((float4 *)(void *)u)[1] = ((const float4 *)(const void *)(row + k + a.n_in))[1];
  } else {
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) {
      v[e] = k + e < a.n_in ? row[k + e] : 0.0f;
      u[e] = a.raw.gated && k + e < a.n_in ? row[k + e + a.n_in] : 0.0f;
    }
    if (!a.raw.gated) return;
  }
#pragma unroll
  for (uint32_t e = 0; e < 8; e++) v[e] = gate_product(a.raw.activation, v[e], u[e]);
}

/* The row into shared memory, 16 bytes for 8 inputs, ascending; the power of two that it was multiplied by. The same
 * rule as prepare_kernel. most_of: [8]. */
template <int T>
static __device__ __forceinline__ int prepare_raw(const multiply_args &a, uint32_t r, uint32_t *most_of, uint4 *to) {
  const float *row = a.raw.x + (uint64_t)r * a.raw.x_stride;
  uint32_t n_chunks = a.n_units * 16, most = 0;
  float kept[RAW_KEPT][8], v[8];
#pragma unroll
  for (uint32_t t = 0; t < RAW_KEPT; t++)
    if (threadIdx.x + t * blockDim.x < n_chunks) load_chunk(a, row, threadIdx.x + t * blockDim.x, kept[t]);
  if (!form_is_bf16(T)) {
#pragma unroll
    for (uint32_t t = 0; t < RAW_KEPT; t++) {
      if (threadIdx.x + t * blockDim.x >= n_chunks) continue;
#pragma unroll
      for (int e = 0; e < 8; e++) most = max(most, __float_as_uint(kept[t][e]) & 0x7FFFFFFFu);
    }
    for (uint32_t chunk = threadIdx.x + RAW_KEPT * blockDim.x; chunk < n_chunks; chunk += blockDim.x) {
      load_chunk(a, row, chunk, v);
      for (int e = 0; e < 8; e++) most = max(most, __float_as_uint(v[e]) & 0x7FFFFFFFu);
    }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) most_of[threadIdx.x / 32] = most;
    __syncthreads();
    for (uint32_t w = 0; w < blockDim.x / 32; w++) most = max(most, most_of[w]);
  }
  int lift = form_is_bf16(T) ? 0 : lift_of(most);
  float up = ldexpf(1.0f, lift);
#pragma unroll
  for (uint32_t t = 0; t < RAW_KEPT; t++) {
    if (threadIdx.x + t * blockDim.x >= n_chunks) continue;
#pragma unroll
    for (int e = 0; e < 8; e++) kept[t][e] = __fmul_rn(kept[t][e], up);
    to[threadIdx.x + t * blockDim.x] = eight_16<form_is_bf16(T)>(kept[t]);
  }
  for (uint32_t chunk = threadIdx.x + RAW_KEPT * blockDim.x; chunk < n_chunks; chunk += blockDim.x) {
    load_chunk(a, row, chunk, v);
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] = __fmul_rn(v[e], up);
    to[chunk] = eight_16<form_is_bf16(T)>(v);
  }
  __syncthreads();
  return lift;
}

/* ---- a segment ------------------------------------------------------------------------------------------ */

/* Where the lane's share of x lies: prepared rows in memory, or the block's own in shared memory. */
template <int NT>
struct x_source {
  const uint8_t *prepared[NT];
  const uint4 *raw; /* of row g; NULL where there is none: zeros */
};

template <int NT, bool RAW>
static __device__ __forceinline__ void load_x(const multiply_args &a, const x_source<NT> &x, uint32_t unit, int i,
                                              uint4 (&b)[NT]) {
  if constexpr (RAW) {
    uint32_t c = threadIdx.x % 4, in = is_tail_unit(a, unit) ? 2 * c + i : 4 * c + i;
    b[0] = x.raw == NULL ? make_uint4(0, 0, 0, 0) : x.raw[unit * 16 + in];
  } else {
#pragma unroll
    for (int n = 0; n < NT; n++)
      b[n] = __ldg((const uint4 *)(const void *)(x.prepared[n] + ((uint64_t)unit * 4 + i) * 512));
  }
}

template <int T, int NT, bool RAW>
static __device__ __forceinline__ void multiply_batch(const multiply_args &a, const unit_batch<T> &batch,
                                                      uint32_t unit, uint32_t end, const x_source<NT> &x, float raise,
                                                      float (&sum)[NT][4]) {
#pragma unroll
  for (int u = 0; u < batch_units<T>(); u++) {
    if (unit + u >= end) continue;
    lane_factors factors;
    make_factors<T>(batch.scales[u], form_of(T).unit == 256 ? (unit + u) & 1u : 0u, threadIdx.x % 4, raise, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= 2 && is_tail_unit(a, unit + u)) continue;
      uint4 b[NT];
      load_x<NT, RAW>(a, x, unit + u, i, b);
      uint32_t w[2][4];
      operands_of<T>(batch.codes[u], factors, i, w);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        mma<form_is_bf16(T)>(sum[n], w[0], b[n].x, b[n].y);
        mma<form_is_bf16(T)>(sum[n], w[1], b[n].z, b[n].w);
      }
    }
  }
}

/* Segments ascending, from 0; then out. part: [segments][NT][lane][4]. */
template <int NT, bool RAW>
static __device__ __forceinline__ void finish_tile(const multiply_args &a, const multiply_job &job,
                                                   const multiply_weight &weight, uint32_t tile, const float *part,
                                                   int raise, int lift) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  float down = ldexpf(1.0f, -raise);
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float sum = 0.0f;
      for (uint32_t s = 0; s < a.n_segments; s++)
        sum = __fadd_rn(sum, part[((s * NT + n) * 32 + lane) * 4 + e]);
      uint32_t column = 8 * n + 2 * c + e % 2, out = tile * 16 + g + e / 2 * 8;
      if (column >= job.n || out >= weight.n_out) continue;
      float back = RAW ? ldexpf(1.0f, -lift) : a.x_back[x_row_of(a, job, column)];
      weight.y[(uint64_t)(job.first + column) * weight.y_stride + out] = __fmul_rn(__fmul_rn(sum, back), down);
    }
  }
}

template <int T, int NT, bool RAW>
static __global__ void __launch_bounds__(256) few_kernel(const __grid_constant__ multiply_args a) {
  inputs_ready();
  extern __shared__ __align__(16) float part[]; /* [row tiles of the block][segments][NT][32][4], then raw rows */
  __shared__ uint32_t most_of[8];
  int lift = 0;
  multiply_job job;
  if (!job_of(a, blockIdx.y, 8 * NT, &job)) return;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, segment = warp % a.n_segments;
  uint32_t n_slots = blockDim.x / 32 / a.n_segments, w = 0;
  uint32_t tile = blockIdx.x * n_slots + warp / a.n_segments;
  while (w < a.n_weights && tile >= a.weight[w].n_tiles) tile -= a.weight[w++].n_tiles;
  bool active = w < a.n_weights;
  const multiply_weight &weight = a.weight[active ? w : 0];
  const uint8_t *row_tile =
      weight.data + FORM_HEADER_BYTES + ((uint64_t)job.matrix * weight.n_tiles + (active ? tile : 0)) * a.tile_bytes;
  uint32_t unit = segment * a.segment_units, end = min(a.n_units, unit + a.segment_units);
  unit_batch<T> batch;
  load_batch<T>(a, row_tile, unit, end, batch);
  x_source<NT> x;
  if (RAW) {
    uint4 *rows = (uint4 *)(void *)(part + blockDim.x / 32 * NT * 128);
    lift = prepare_raw<T>(a, x_row_of(a, job, 0), most_of, rows);
    x.raw = lane / 4 == 0 ? rows : NULL;
  } else {
#pragma unroll
    for (int n = 0; n < NT; n++)
      x.prepared[n] = (const uint8_t *)a.x + x_at(a, x_row_of(a, job, 8 * n + lane / 4), lane % 4);
  }
  int raise = raise_exponent(T, (const form_header *)(const void *)weight.data);
  float raised = ldexpf(1.0f, raise), sum[NT][4];
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = 0.0f;
  for (;;) {
    multiply_batch<T, NT, RAW>(a, batch, unit, end, x, raised, sum);
    unit += batch_units<T>();
    if (unit >= end) break;
    load_batch<T>(a, row_tile, unit, end, batch);
  }
#pragma unroll
  for (int n = 0; n < NT; n++)
    ((float4 *)(void *)part)[(warp * NT + n) * 32 + lane] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
  __syncthreads();
  if (!active || segment != 0) return;
  finish_tile<NT, RAW>(a, job, weight, tile, part + (uint64_t)warp * NT * 128, raise, lift);
}

template <int T, int NT, bool RAW>
static weft_status launch(cuda_device *d, const multiply_args &a) {
  uint32_t n_tiles = 0, n_slots = 8 / a.n_segments, n_warps = n_slots * a.n_segments;
  for (uint32_t w = 0; w < a.n_weights; w++) n_tiles += a.weight[w].n_tiles;
  uint32_t n_jobs = a.ids != NULL ? a.jobs_max : 1, bytes = n_warps * NT * 512 + (RAW ? a.n_units * 256 : 0);
  multiply_args k = a;
  k.raw.wide = ((uintptr_t)a.raw.x & 15u) == 0 && a.raw.x_stride % 4 == 0 && a.n_in % 4 == 0;
  cuda_start(d, few_kernel<T, NT, RAW>, dim3(cuda_ceil(n_tiles, n_slots), n_jobs), 32 * n_warps, bytes, k);
  return cuda_launched(d, "a product of few rows");
}

template <int T>
static weft_status launch_rows(cuda_device *d, const multiply_args &a) {
  return a.raw.x != NULL ? launch<T, 1, true>(d, a) : launch<T, 1, false>(d, a);
}

weft_status multiply_few(cuda_device *d, const multiply_args *args) {
  switch (args->type) {
    case WEFT_TYPE_F16: return launch_rows<WEFT_TYPE_F16>(d, *args);
    case WEFT_TYPE_BF16: return launch_rows<WEFT_TYPE_BF16>(d, *args);
    case WEFT_TYPE_Q8_0: return launch_rows<WEFT_TYPE_Q8_0>(d, *args);
    case WEFT_TYPE_Q4_0: return launch_rows<WEFT_TYPE_Q4_0>(d, *args);
    case WEFT_TYPE_Q5_0: return launch_rows<WEFT_TYPE_Q5_0>(d, *args);
    case WEFT_TYPE_MXFP4: return launch_rows<WEFT_TYPE_MXFP4>(d, *args);
    case WEFT_TYPE_Q4_K: return launch_rows<WEFT_TYPE_Q4_K>(d, *args);
    case WEFT_TYPE_Q5_K: return launch_rows<WEFT_TYPE_Q5_K>(d, *args);
    case WEFT_TYPE_Q6_K: return launch_rows<WEFT_TYPE_Q6_K>(d, *args);
    default: return WEFT_E_UNSUPPORTED;
  }
}
