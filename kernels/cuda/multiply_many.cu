/* SPDX-License-Identifier: MIT */
/* Products for many rows: a block takes 128 outputs and 64 rows of x; weights, still packed, and rows
 * come through shared memory 128 inputs at a time, several steps ahead; two blocks share a multiprocessor.
 *
 *   stage   8 row tiles: codes | high bits | scales;  then 8 tiles of 8 rows: [i < 4][lane][16 bytes]
 *   warp    a row tile x 64 rows: it turns codes into operands once and uses them for all 64 rows */
#include "kernels/cuda/multiply.h"

enum { MANY_THREADS = 256, MANY_TILES = 8, MANY_ROWS = 64, MANY_X_BYTES = MANY_ROWS * 256 };

template <int T>
struct many_shape {
  static constexpr uint32_t tile = form_of(T).codes + form_of(T).high + form_of(T).scales;
  static constexpr uint32_t stage = MANY_TILES * tile + MANY_X_BYTES;
  static constexpr int stages = form_bits(T) == 16 ? 2 : 3;
  static constexpr uint32_t bytes = stages * stage + MANY_ROWS * 8;
};

/* Where a block's weights and rows lie. */
typedef struct many_source {
  const uint8_t *tiles; /* row tile 0 of the matrix */
  uint32_t first_tile, n_tiles;
  const uint8_t *const *x; /* shared: [64] */
} many_source;

template <int T>
static __device__ __forceinline__ void copy_stage(const multiply_args &a, const many_source &from,
                                                  uint32_t unit, uint8_t *stage) {
  constexpr form_shape f = form_of(T);
  constexpr uint32_t n_chunks = many_shape<T>::tile / 16;
  bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
  for (uint32_t at = threadIdx.x; at < MANY_TILES * n_chunks; at += MANY_THREADS) {
    uint32_t tile = at / n_chunks, byte = at % n_chunks * 16;
    uint32_t row_tile = min(from.first_tile + tile, from.n_tiles - 1);
    form_place p = place_of<T>(from.tiles + (uint64_t)row_tile * a.tile_bytes, unit, tail);
    uint32_t size = f.codes;
    const uint8_t *source = p.codes;
    uint32_t in = byte;
    if (byte >= f.codes + f.high) {
      in = byte - f.codes - f.high, size = f.scales, source = p.scales;
    } else if (byte >= f.codes) {
      in = byte - f.codes, size = f.high, source = p.high;
    }
    if (!p.tail || in < size / 2)
      copy16(shared_address(stage + tile * many_shape<T>::tile + byte), source + in);
  }
  uint8_t *rows = stage + MANY_TILES * many_shape<T>::tile;
  uint32_t lane = threadIdx.x % 32, i = threadIdx.x / 32 % 4;
#pragma unroll
  for (uint32_t at = 0; at < 4; at++) {
    uint32_t n = 2 * at + threadIdx.x / 128;
    const uint8_t *source = from.x[8 * n + lane / 4] + ((uint64_t)unit * 4 + i) * 512 + lane % 4 * 16;
    copy16(shared_address(rows + (n * 4 + i) * 512 + lane * 16), source);
  }
}

template <int T>
static __device__ __forceinline__ void multiply_stage(const multiply_args &a, const uint8_t *stage,
                                                      uint32_t unit, float raise, float (&sum)[8][4]) {
  constexpr form_shape f = form_of(T);
  uint32_t lane = threadIdx.x % 32;
  bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
  lane_codes<T> codes;
  lane_scales<T> scales;
  lane_factors factors;
  form_place p;
  p.codes = stage + threadIdx.x / 32 * many_shape<T>::tile;
  p.high = p.codes + f.codes;
  p.scales = p.high + f.high;
  p.half = f.unit == 256 ? unit & 1u : 0u;
  p.tail = f.unit == 128 && tail;
  load_codes<T>(p, lane, codes);
  load_scales<T>(p, lane / 4, lane % 4, scales);
  make_factors<T>(scales, p.half, lane % 4, raise, factors);
  const uint8_t *rows = stage + MANY_TILES * many_shape<T>::tile + lane * 16;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (i >= 2 && tail) continue;
    uint32_t w[2][4];
    operands_of<T>(codes, factors, i, w);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      uint4 b = *(const uint4 *)(const void *)(rows + (n * 4 + i) * 512);
      mma<form_is_bf16(T)>(sum[n], w[0], b.x, b.y);
      mma<form_is_bf16(T)>(sum[n], w[1], b.z, b.w);
    }
  }
}

static __device__ __forceinline__ void store_block(const multiply_args &a, const multiply_job &job,
                                                   const multiply_weight &weight, uint32_t tile,
                                                   int raise, const float (&all)[8][4]) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  float down = ldexpf(1.0f, -raise);
#pragma unroll
  for (int n = 0; n < 8; n++) {
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      uint32_t column = 8 * n + 2 * c + odd;
      if (column >= job.n) continue;
      float back = a.x_back[x_row_of(a, job, column)];
      float *y = weight.y + (uint64_t)(job.first + column) * weight.y_stride;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t out = tile * 16 + g + 8 * h;
        if (out < weight.n_out) y[out] = __fmul_rn(__fmul_rn(all[n][2 * h + odd], back), down);
      }
    }
  }
}

template <int T>
static __global__ void __launch_bounds__(MANY_THREADS, 2) many_kernel(const __grid_constant__ multiply_args a) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int stages = many_shape<T>::stages;
  const uint8_t **x = (const uint8_t **)(void *)(memory + stages * many_shape<T>::stage);
  multiply_job job;
  if (!job_of(a, blockIdx.y, MANY_ROWS, &job)) return;
  uint32_t block = blockIdx.x, w = 0;
  while (block >= (a.weight[w].n_tiles + MANY_TILES - 1) / MANY_TILES)
    block -= (a.weight[w++].n_tiles + MANY_TILES - 1) / MANY_TILES;
  const uint8_t *data = a.weight[w].data;
  int raise = raise_exponent(T, (const form_header *)(const void *)data);
  float raised = ldexpf(1.0f, raise);
  many_source from;
  from.n_tiles = a.weight[w].n_tiles;
  from.tiles = data + FORM_HEADER_BYTES + (uint64_t)job.matrix * from.n_tiles * a.tile_bytes;
  from.first_tile = block * MANY_TILES;
  from.x = x;
  if (threadIdx.x < MANY_ROWS)
    x[threadIdx.x] = (const uint8_t *)a.x + x_at(a, x_row_of(a, job, threadIdx.x), 0);
  __syncthreads();
#pragma unroll
  for (uint32_t s = 0; s + 1 < stages; s++) {
    if (s < a.n_units) copy_stage<T>(a, from, s, memory + s * many_shape<T>::stage);
    copies_commit();
  }
  float sum[8][4], all[8][4];
#pragma unroll
  for (int at = 0; at < 32; at++) sum[at / 4][at % 4] = all[at / 4][at % 4] = 0.0f;
  uint32_t left = a.segment_units;
  for (uint32_t unit = 0; unit < a.n_units; unit++) {
    copies_wait<stages - 2>();
    __syncthreads();
    uint32_t ahead = unit + stages - 1;
    if (ahead < a.n_units) copy_stage<T>(a, from, ahead, memory + ahead % stages * many_shape<T>::stage);
    copies_commit();
    multiply_stage<T>(a, memory + unit % stages * many_shape<T>::stage, unit, raised, sum);
    if (--left > 0 && unit + 1 < a.n_units) continue;
    left = a.segment_units;
#pragma unroll
    for (int at = 0; at < 32; at++) {
      all[at / 4][at % 4] = __fadd_rn(all[at / 4][at % 4], sum[at / 4][at % 4]);
      sum[at / 4][at % 4] = 0.0f;
    }
  }
  store_block(a, job, a.weight[w], from.first_tile + threadIdx.x / 32, raise, all);
}

template <int T>
static weft_status launch(cuda_device *d, const multiply_args &a) {
  uint32_t n_blocks = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n_blocks += cuda_ceil(a.weight[w].n_tiles, MANY_TILES);
  uint32_t n_jobs = a.jobs != NULL ? a.jobs_max : cuda_ceil(a.n_rows, MANY_ROWS);
  many_kernel<T><<<dim3(n_blocks, n_jobs), MANY_THREADS, many_shape<T>::bytes, d->stream>>>(a);
  return cuda_launched(d, "a product of many rows");
}

template <int T>
static weft_status set_up(cuda_device *d) {
  cudaError_t error = cudaFuncSetAttribute(many_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)many_shape<T>::bytes);
  return cuda_judge(d, error, "setting up products");
}

weft_status multiply_many_setup(cuda_device *d) {
  weft_status status = set_up<WEFT_TYPE_F16>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_BF16>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q8_0>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q4_0>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q5_0>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_MXFP4>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q4_K>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q5_K>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q6_K>(d);
  return status;
}

weft_status multiply_many(cuda_device *d, const multiply_args *args) {
  switch (args->type) {
    case WEFT_TYPE_F16: return launch<WEFT_TYPE_F16>(d, *args);
    case WEFT_TYPE_BF16: return launch<WEFT_TYPE_BF16>(d, *args);
    case WEFT_TYPE_Q8_0: return launch<WEFT_TYPE_Q8_0>(d, *args);
    case WEFT_TYPE_Q4_0: return launch<WEFT_TYPE_Q4_0>(d, *args);
    case WEFT_TYPE_Q5_0: return launch<WEFT_TYPE_Q5_0>(d, *args);
    case WEFT_TYPE_MXFP4: return launch<WEFT_TYPE_MXFP4>(d, *args);
    case WEFT_TYPE_Q4_K: return launch<WEFT_TYPE_Q4_K>(d, *args);
    case WEFT_TYPE_Q5_K: return launch<WEFT_TYPE_Q5_K>(d, *args);
    case WEFT_TYPE_Q6_K: return launch<WEFT_TYPE_Q6_K>(d, *args);
    default: return WEFT_E_UNSUPPORTED;
  }
}
