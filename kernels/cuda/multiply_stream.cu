/* SPDX-License-Identifier: MIT */
/* Products of few rows with many outputs, as of experts and of the head: a block keeps its rows in shared
 * memory and its warps stream row tiles past them, each warp on its own.
 *
 *   block   8 warps, one job (8 NT rows of x, all inputs: [NT][unit][i < 4][lane][16 bytes])
 *   warp    row tiles w, w + 8 gridDim.x, ...: all units of one after another, two ahead of the products */
#include "kernels/cuda/multiply.h"

enum { STREAM_THREADS = 256, STREAM_BYTES_MAX = 200 << 10, STREAM_BLOCKS = 528 };

/* The next unit that a warp will ask for. */
typedef struct stream_cursor {
  uint32_t tile, unit;
} stream_cursor;

template <int T>
static __device__ __forceinline__ void load_next(const multiply_args &a, const uint8_t *matrix, stream_cursor &at,
                                                 lane_codes<T> &codes, lane_scales<T> &scales) {
  if (at.tile >= a.weight[0].n_tiles) return;
  uint32_t lane = threadIdx.x % 32;
  bool tail = a.is_tail != 0 && at.unit + 1 == a.n_units;
  form_place place = place_of<T>(matrix + (uint64_t)at.tile * a.tile_bytes, at.unit, tail);
  load_codes<T>(place, lane, codes);
  load_scales<T>(place, lane / 4, lane % 4, scales);
  if (++at.unit < a.n_units) return;
  at.unit = 0;
  at.tile += gridDim.x * (STREAM_THREADS / 32);
}

template <int T, int NT>
static __device__ __forceinline__ void multiply_unit(const multiply_args &a, const uint8_t *rows, uint32_t unit,
                                                     const lane_codes<T> &codes, const lane_scales<T> &scales,
                                                     float raise, float (&sum)[NT][4]) {
  uint32_t lane = threadIdx.x % 32;
  bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
  lane_factors factors;
  make_factors<T>(scales, form_of(T).unit == 256 ? unit & 1u : 0u, lane % 4, raise, factors);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (i >= 2 && tail) continue;
    uint32_t w[2][4];
    operands_of<T>(codes, factors, i, w);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const uint8_t *from = rows + (((uint64_t)n * a.n_units + unit) * 4 + i) * 512 + lane * 16;
      uint4 b = *(const uint4 *)(const void *)from;
      mma<form_is_bf16(T)>(sum[n], w[0], b.x, b.y);
      mma<form_is_bf16(T)>(sum[n], w[1], b.z, b.w);
    }
  }
}

template <int NT>
static __device__ __forceinline__ void store_tile(const multiply_args &a, const multiply_job &job, uint32_t tile,
                                                  float down, const float *back, const float (&all)[NT][4]) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      uint32_t column = 8 * n + 2 * c + e % 2, out = tile * 16 + g + e / 2 * 8;
      if (column >= job.n || out >= a.weight[0].n_out) continue;
      a.weight[0].y[(uint64_t)(job.first + column) * a.weight[0].y_stride + out] =
          __fmul_rn(__fmul_rn(all[n][e], back[column]), down);
    }
  }
}

/* The job's rows into shared memory. */
template <int NT>
static __device__ __forceinline__ void copy_rows(const multiply_args &a, const multiply_job &job, uint8_t *rows,
                                                 float *back) {
  uint32_t n_chunks = NT * a.n_units * 128, per_tile = a.n_units * 128;
  for (uint32_t at = threadIdx.x; at < n_chunks; at += STREAM_THREADS) {
    uint32_t n = at / per_tile, in = at % per_tile, lane = in % 32;
    uint32_t row = x_row_of(a, job, 8 * n + lane / 4);
    const uint8_t *from = (const uint8_t *)a.x + x_at(a, row, lane % 4) + (uint64_t)(in / 32) * 512;
    copy16(shared_address(rows + (uint64_t)at * 16), from);
  }
  if (threadIdx.x < 8 * NT) back[threadIdx.x] = a.x_back[x_row_of(a, job, threadIdx.x)];
  copies_commit();
}

template <int T, int NT>
static __global__ void __launch_bounds__(STREAM_THREADS, 2) stream_kernel(const __grid_constant__ multiply_args a) {
  extern __shared__ __align__(128) uint8_t rows[];
  __shared__ float back[8 * NT];
  multiply_job job;
  if (!job_of(a, blockIdx.y, 8 * NT, &job)) return;
  const uint8_t *data = a.weight[0].data;
  const uint8_t *matrix = data + FORM_HEADER_BYTES + (uint64_t)job.matrix * a.weight[0].n_tiles * a.tile_bytes;
  stream_cursor ask = {blockIdx.x * (STREAM_THREADS / 32) + threadIdx.x / 32, 0};
  uint32_t tile = ask.tile;
  lane_codes<T> codes[3];
  lane_scales<T> scales[3];
  load_next<T>(a, matrix, ask, codes[0], scales[0]);
  load_next<T>(a, matrix, ask, codes[1], scales[1]);
  copy_rows<NT>(a, job, rows, back);
  int raise = raise_exponent(T, (const form_header *)(const void *)data);
  float raised = ldexpf(1.0f, raise), down = ldexpf(1.0f, -raise), sum[NT][4], all[NT][4];
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = all[at / 4][at % 4] = 0.0f;
  copies_wait<0>();
  __syncthreads();
  for (; tile < a.weight[0].n_tiles; tile += gridDim.x * (STREAM_THREADS / 32)) {
    uint32_t left = a.segment_units;
    for (uint32_t unit = 0; unit < a.n_units; unit++) {
      load_next<T>(a, matrix, ask, codes[2], scales[2]);
      multiply_unit<T, NT>(a, rows, unit, codes[0], scales[0], raised, sum);
      codes[0] = codes[1], codes[1] = codes[2];
      scales[0] = scales[1], scales[1] = scales[2];
      if (--left > 0 && unit + 1 < a.n_units) continue;
      left = a.segment_units;
#pragma unroll
      for (int at = 0; at < 4 * NT; at++) {
        all[at / 4][at % 4] = __fadd_rn(all[at / 4][at % 4], sum[at / 4][at % 4]);
        sum[at / 4][at % 4] = 0.0f;
      }
    }
    store_tile<NT>(a, job, tile, down, back, all);
#pragma unroll
    for (int at = 0; at < 4 * NT; at++) all[at / 4][at % 4] = 0.0f;
  }
}

static uint32_t rows_bytes(const multiply_args *a, uint32_t rows) {
  return (rows <= 8 ? 1 : rows <= 16 ? 2 : 4) * a->n_units * 2048;
}

bool multiply_stream_fits(const multiply_args *a, uint32_t rows) {
  return a->n_weights == 1 && rows <= 32 && rows_bytes(a, rows) <= STREAM_BYTES_MAX;
}

template <int T, int NT>
static weft_status launch(cuda_device *d, const multiply_args &a) {
  uint32_t n_jobs = a.jobs != NULL ? a.jobs_max : cuda_ceil(a.n_rows, 8 * NT);
  uint32_t most = cuda_ceil(a.weight[0].n_tiles, STREAM_THREADS / 32), n_blocks = cuda_ceil(STREAM_BLOCKS, n_jobs);
  if (n_blocks > most) n_blocks = most;
  stream_kernel<T, NT><<<dim3(n_blocks, n_jobs), STREAM_THREADS, NT * a.n_units * 2048, d->stream>>>(a);
  return cuda_launched(d, "a product of few rows");
}

template <int T, int NT>
static weft_status set_up(cuda_device *d) {
  return cuda_judge(
      d, cudaFuncSetAttribute(stream_kernel<T, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, STREAM_BYTES_MAX),
      "setting up products");
}

/* What to do with the kernels of one type. */
template <int T>
static weft_status each(cuda_device *d, const multiply_args *a, uint32_t rows) {
  if (a == NULL) {
    weft_status status = set_up<T, 1>(d);
    if (status == WEFT_OK) status = set_up<T, 2>(d);
    return status == WEFT_OK ? set_up<T, 4>(d) : status;
  }
  if (rows <= 8) return launch<T, 1>(d, *a);
  if (rows <= 16) return launch<T, 2>(d, *a);
  return launch<T, 4>(d, *a);
}

static weft_status of_type(cuda_device *d, int type, const multiply_args *a, uint32_t rows) {
  switch (type) {
    case WEFT_TYPE_F16: return each<WEFT_TYPE_F16>(d, a, rows);
    case WEFT_TYPE_BF16: return each<WEFT_TYPE_BF16>(d, a, rows);
    case WEFT_TYPE_Q8_0: return each<WEFT_TYPE_Q8_0>(d, a, rows);
    case WEFT_TYPE_Q4_0: return each<WEFT_TYPE_Q4_0>(d, a, rows);
    case WEFT_TYPE_Q5_0: return each<WEFT_TYPE_Q5_0>(d, a, rows);
    case WEFT_TYPE_MXFP4: return each<WEFT_TYPE_MXFP4>(d, a, rows);
    case WEFT_TYPE_Q4_K: return each<WEFT_TYPE_Q4_K>(d, a, rows);
    case WEFT_TYPE_Q5_K: return each<WEFT_TYPE_Q5_K>(d, a, rows);
    case WEFT_TYPE_Q6_K: return each<WEFT_TYPE_Q6_K>(d, a, rows);
    default: return WEFT_E_UNSUPPORTED;
  }
}

weft_status multiply_stream(cuda_device *d, const multiply_args *args, uint32_t rows) {
  return of_type(d, args->type, args, rows);
}

weft_status multiply_stream_setup(cuda_device *d) {
  static const int types[] = {WEFT_TYPE_F16, WEFT_TYPE_BF16,  WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0,
                              WEFT_TYPE_MXFP4, WEFT_TYPE_Q4_K, WEFT_TYPE_Q5_K, WEFT_TYPE_Q6_K};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < sizeof types / sizeof types[0] && status == WEFT_OK; i++)
    status = of_type(d, types[i], NULL, 0);
  return status;
}
