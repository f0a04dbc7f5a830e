/* SPDX-License-Identifier: MIT */
/* Products for few rows: a warp takes 16 outputs and one segment of the inputs, and reads its weights
 * straight from memory into the registers of the matrix units; segments meet in shared memory.
 *
 *   block   up to 8 warps = row tiles x segments, for one job (8 NT rows of x) */
#include "kernels/cuda/multiply.h"

template <int T, int NT>
static __device__ __forceinline__ void multiply_segment(const multiply_args &a, const uint8_t *row_tile,
                                                        const uint8_t *const (&x)[NT], uint32_t segment,
                                                        float raise, float (&sum)[NT][4]) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  uint32_t begin = segment * a.segment_units, end = min(a.n_units, begin + a.segment_units);
  lane_codes<T> codes, next_codes;
  lane_scales<T> scales, next_scales;
  form_place place = place_of<T>(row_tile, begin, a.is_tail != 0 && begin + 1 == a.n_units);
  load_codes<T>(place, lane, codes);
  load_scales<T>(place, g, c, scales);
  for (uint32_t unit = begin; unit < end; unit++) {
    bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
    uint32_t half = place.half;
    if (unit + 1 < end) {
      place = place_of<T>(row_tile, unit + 1, a.is_tail != 0 && unit + 2 == a.n_units);
      load_codes<T>(place, lane, next_codes);
      load_scales<T>(place, g, c, next_scales);
    }
    lane_factors factors;
    make_factors<T>(scales, half, c, raise, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= 2 && tail) continue;
      uint4 b[NT];
#pragma unroll
      for (int n = 0; n < NT; n++)
        b[n] = __ldg((const uint4 *)(const void *)(x[n] + ((uint64_t)unit * 4 + i) * 512));
      uint32_t w[2][4];
      operands_of<T>(codes, factors, i, w);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        mma<form_is_bf16(T)>(sum[n], w[0], b[n].x, b[n].y);
        mma<form_is_bf16(T)>(sum[n], w[1], b[n].z, b[n].w);
      }
    }
    codes = next_codes;
    scales = next_scales;
  }
}

/* Segments ascending, from 0; then out. part: [warps][NT][lane][4]. */
template <int NT>
static __device__ __forceinline__ void finish_tile(const multiply_args &a, const multiply_job &job,
                                                   const multiply_weight &weight, uint32_t tile,
                                                   const float *part, int raise) {
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
      float back = a.x_back[x_row_of(a, job, column)];
      weight.y[(uint64_t)(job.first + column) * weight.y_stride + out] =
          __fmul_rn(__fmul_rn(sum, back), down);
    }
  }
}

template <int T, int NT>
static __global__ void __launch_bounds__(256) few_kernel(const __grid_constant__ multiply_args a) {
  extern __shared__ float part[]; /* [row tiles of the block][segments][NT][32][4] */
  multiply_job job;
  if (!job_of(a, blockIdx.y, 8 * NT, &job)) return;
  uint32_t warp = threadIdx.x / 32, segment = warp % a.n_segments;
  uint32_t n_slots = blockDim.x / 32 / a.n_segments;
  uint32_t tile = blockIdx.x * n_slots + warp / a.n_segments, w = 0;
  while (w < a.n_weights && tile >= a.weight[w].n_tiles) tile -= a.weight[w++].n_tiles;
  bool active = w < a.n_weights;
  int raise = 0;
  if (active) {
    const uint8_t *data = a.weight[w].data;
    const uint8_t *x[NT];
    float sum[NT][4];
    raise = raise_exponent(T, (const form_header *)(const void *)data);
    const uint8_t *row_tile = data + FORM_HEADER_BYTES +
                              ((uint64_t)job.matrix * a.weight[w].n_tiles + tile) * a.tile_bytes;
#pragma unroll
    for (int n = 0; n < NT; n++) {
      uint32_t row = x_row_of(a, job, 8 * n + threadIdx.x % 32 / 4);
      x[n] = (const uint8_t *)a.x + x_at(a, row, threadIdx.x % 4);
#pragma unroll
      for (int e = 0; e < 4; e++) sum[n][e] = 0.0f;
    }
    multiply_segment<T, NT>(a, row_tile, x, segment, ldexpf(1.0f, raise), sum);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float4 v = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
      ((float4 *)(void *)part)[(warp * NT + n) * 32 + threadIdx.x % 32] = v;
    }
  }
  __syncthreads();
  if (!active || segment != 0) return;
  finish_tile<NT>(a, job, a.weight[w], tile, part + (uint64_t)warp * NT * 128, raise);
}

template <int T, int NT>
static weft_status launch(cuda_device *d, const multiply_args &a) {
  uint32_t n_tiles = 0, n_slots = 8 / a.n_segments, width = 8 * NT;
  for (uint32_t w = 0; w < a.n_weights; w++) n_tiles += a.weight[w].n_tiles;
  uint32_t n_jobs = a.jobs != NULL ? a.jobs_max : cuda_ceil(a.n_rows, width);
  uint32_t n_warps = n_slots * a.n_segments;
  multiply_args step = a;
  for (uint32_t first = 0; first < n_jobs; first += 65535) {
    uint32_t n = n_jobs - first < 65535 ? n_jobs - first : 65535;
    few_kernel<T, NT><<<dim3(cuda_ceil(n_tiles, n_slots), n), 32 * n_warps, n_warps * NT * 512,
                        d->stream>>>(step);
    if (a.jobs != NULL) break; /* jobs_max stays below 65536 (multiply_job_rows) */
    uint64_t rows = (uint64_t)n * width;
    step.x = (const uint8_t *)step.x + rows / 8 * a.n_units * 2048;
    step.x_back += rows;
    step.n_rows -= rows < step.n_rows ? (uint32_t)rows : step.n_rows;
    for (uint32_t w = 0; w < a.n_weights; w++) step.weight[w].y += rows * a.weight[w].y_stride;
  }
  return cuda_launched(d, "a product of few rows");
}

template <int T>
static weft_status launch_rows(cuda_device *d, const multiply_args &a, uint32_t rows) {
  if (rows <= 8) return launch<T, 1>(d, a);
  if (rows <= 16) return launch<T, 2>(d, a);
  return launch<T, 4>(d, a);
}

weft_status multiply_few(cuda_device *d, const multiply_args *args, uint32_t rows) {
  switch (args->type) {
    case WEFT_TYPE_F16: return launch_rows<WEFT_TYPE_F16>(d, *args, rows);
    case WEFT_TYPE_BF16: return launch_rows<WEFT_TYPE_BF16>(d, *args, rows);
    case WEFT_TYPE_Q8_0: return launch_rows<WEFT_TYPE_Q8_0>(d, *args, rows);
    case WEFT_TYPE_Q4_0: return launch_rows<WEFT_TYPE_Q4_0>(d, *args, rows);
    case WEFT_TYPE_Q5_0: return launch_rows<WEFT_TYPE_Q5_0>(d, *args, rows);
    case WEFT_TYPE_MXFP4: return launch_rows<WEFT_TYPE_MXFP4>(d, *args, rows);
    case WEFT_TYPE_Q4_K: return launch_rows<WEFT_TYPE_Q4_K>(d, *args, rows);
    case WEFT_TYPE_Q5_K: return launch_rows<WEFT_TYPE_Q5_K>(d, *args, rows);
    case WEFT_TYPE_Q6_K: return launch_rows<WEFT_TYPE_Q6_K>(d, *args, rows);
    default: return WEFT_E_UNSUPPORTED;
  }
}
