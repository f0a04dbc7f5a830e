/* SPDX-License-Identifier: MIT */
/* Products for more rows than a few, and for experts: a block takes 128 outputs and 8 NT rows of x; weights, still
 * packed, and rows come through shared memory 128 inputs at a time, several steps ahead.
 *
 *   stage   8 row tiles: codes | high bits | scales;  then NT tiles of 8 rows
 *   warp    a row tile: it turns codes into operands once, in registers, for all rows
 *   group   four warps: 64 outputs x 8 NT rows in one product of the matrix units
 *
 * Bulk copies fill a stage. Products are issued a step ahead of their end, so the stage that is filled in
 * a step is the one before the last. */
#include "kernels/cuda/multiply.h"
#include "kernels/cuda/wgmma.cuh"

enum { MANY_THREADS = 256, MANY_TILES = 8, MANY_BYTES = 112 << 10, MANY_BYTES_MAX = 224 << 10 };

template <int T, int NT>
struct many_shape {
  static constexpr uint32_t tile = form_of(T).codes + form_of(T).high + form_of(T).scales;
  static constexpr uint32_t stage = MANY_TILES * tile + NT * 2048;
  static constexpr uint32_t fit = MANY_BYTES / stage; /* two blocks to a multiprocessor, or one */
  static constexpr uint32_t stages = fit > 8 ? 8 : fit >= 3 ? fit : MANY_BYTES_MAX / stage > 4 ? 4 : MANY_BYTES_MAX / stage;
  static constexpr uint32_t bytes = stages * stage;
};

/* Where a block's weights and rows lie. */
typedef struct many_source {
  const uint8_t *tiles; /* row tile 0 of the matrix */
  const uint8_t *x;     /* first tile of 8 rows */
  uint32_t first_tile, n_tiles, n_x; /* n_x: tiles of 8 rows that there are */
} many_source;

/* Every warp asks for a row tile and for a tile of rows, if there is one for it: a bulk copy takes its lane some fifty
 * cycles, and the other warps would wait for one that asked for all. */
template <int T, int NT>
static __device__ __forceinline__ void fill_stage(const multiply_args &a, const many_source &from, uint32_t unit,
                                                  uint8_t *stage, uint64_t *barrier) {
  constexpr form_shape f = form_of(T);
  if (threadIdx.x % 32 != 0) return;
  uint32_t warp = threadIdx.x / 32;
  bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
  uint32_t shift = f.unit == 128 && tail ? 1 : 0, x_bytes = tail ? 1024 : 2048, tile_bytes = many_shape<T, NT>::tile >> shift;
  if (warp == 0) barrier_expect(barrier, MANY_TILES * tile_bytes + from.n_x * x_bytes);
  uint32_t row_tile = min(from.first_tile + warp, from.n_tiles - 1);
  form_place p = place_of<T>(from.tiles + (uint64_t)row_tile * a.tile_bytes, unit, tail);
  uint8_t *to = stage + warp * many_shape<T, NT>::tile;
  if constexpr (f.unit == 128) {
    copy_bulk(to, p.codes, tile_bytes, barrier);
  } else {
    copy_bulk(to, p.codes, f.codes, barrier);
    if constexpr (f.high > 0) copy_bulk(to + f.codes, p.high, f.high, barrier);
    copy_bulk(to + f.codes + f.high, p.scales, f.scales, barrier);
  }
  if (warp < from.n_x) {
    copy_bulk(stage + MANY_TILES * many_shape<T, NT>::tile + warp * 2048,
              from.x + ((uint64_t)warp * a.n_units + unit) * 2048, x_bytes, barrier);
  }
}

/* Issues the products of a unit; the last two may still run. STEPS: 4, or 2 for a unit of 64 inputs. */
template <int T, int NT, int STEPS>
static __device__ __forceinline__ void multiply_stage(const uint8_t *stage, uint32_t unit, float raise,
                                                      float (&sum)[NT][4]) {
  constexpr form_shape f = form_of(T);
  uint32_t lane = threadIdx.x % 32;
  lane_codes<T> codes;
  lane_scales<T> scales;
  lane_factors factors;
  form_place p;
  p.tail = STEPS == 2;
  p.half = f.unit == 256 ? unit & 1u : 0u;
  p.codes = stage + threadIdx.x / 32 * many_shape<T, NT>::tile;
  p.high = p.codes + (f.codes >> (p.tail ? 1 : 0));
  p.scales = p.high + (f.high >> (p.tail ? 1 : 0));
  load_codes<T>(p, lane, codes);
  load_scales<T>(p, lane / 4, lane % 4, scales);
  make_factors<T>(scales, p.half, lane % 4, raise, factors);
  uint64_t rows = wgmma_operand(stage + MANY_TILES * many_shape<T, NT>::tile, 2048);
  uint32_t w[2][2][4];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    operands_of<T>(codes, factors, i, w[i % 2]);
    wgmma_fence();
    wgmma<NT, form_is_bf16(T)>(sum, w[i % 2][0], rows + (uint64_t)(i * 512 >> 4));
    wgmma<NT, form_is_bf16(T)>(sum, w[i % 2][1], rows + (uint64_t)((i * 512 + 256) >> 4));
    wgmma_commit();
    wgmma_wait<1>();
  }
}

template <int NT>
static __device__ __forceinline__ void store_block(const multiply_args &a, const multiply_job &job,
                                                   const multiply_weight &weight, uint32_t tile, int raise,
                                                   const float (&all)[NT][4]) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  float down = ldexpf(1.0f, -raise);
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      uint32_t column = 8 * n + 2 * c + odd;
      if (column >= job.n) continue;
      float back = a.x_back[job.first + column];
      float *y = weight.y + (uint64_t)(job.first + column) * weight.y_stride;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t out = tile * 16 + g + 8 * h;
        if (out < weight.n_out) y[out] = __fmul_rn(__fmul_rn(all[n][2 * h + odd], back), down);
      }
    }
  }
}

template <int T, int NT>
static __global__ void __launch_bounds__(MANY_THREADS, 2) many_kernel(const __grid_constant__ multiply_args a) {
  inputs_ready();
  using shape = many_shape<T, NT>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[shape::stages];
  multiply_job job;
  if (!job_of(a, blockIdx.x, 8 * NT, &job)) return;
  uint32_t block = blockIdx.y, w = 0;
  while (block >= (a.weight[w].n_tiles + MANY_TILES - 1) / MANY_TILES)
    block -= (a.weight[w++].n_tiles + MANY_TILES - 1) / MANY_TILES;
  const uint8_t *data = a.weight[w].data;
  many_source from;
  from.n_tiles = a.weight[w].n_tiles;
  from.tiles = data + FORM_HEADER_BYTES + (uint64_t)job.matrix * from.n_tiles * a.tile_bytes;
  from.first_tile = block * MANY_TILES;
  from.x = (const uint8_t *)a.x + (uint64_t)(job.first / 8) * a.n_units * 2048;
  from.n_x = (job.n + 7) / 8;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < shape::stages; i++) barrier_init(&filled[i]);
    barriers_ready();
  }
  __syncthreads();
  for (uint32_t s = 0; s + 2 < shape::stages && s < a.n_units; s++)
    fill_stage<T, NT>(a, from, s, memory + s * shape::stage, &filled[s]);
  int raise = raise_exponent(T, (const form_header *)(const void *)data);
  float raised = ldexpf(1.0f, raise), all[NT][4];
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) all[at / 4][at % 4] = 0.0f;
  uint32_t slot = 0, turn = 0;
  for (uint32_t unit = 0; unit < a.n_units;) {
    float sum[NT][4];
#pragma unroll
    for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = 0.0f;
    uint32_t end = min(unit + a.segment_units, a.n_units);
    bool tail = form_of(T).unit == 128 && a.is_tail != 0 && end == a.n_units;
    for (; unit < end - (tail ? 1 : 0); unit++) {
      __syncthreads(); /* the step before the last has been read by all */
      uint32_t ahead = unit + shape::stages - 2;
      if (ahead < a.n_units)
        fill_stage<T, NT>(a, from, ahead, memory + ahead % shape::stages * shape::stage, &filled[ahead % shape::stages]);
      barrier_wait(&filled[slot], turn);
      multiply_stage<T, NT, 4>(memory + slot * shape::stage, unit, raised, sum);
      if (++slot == shape::stages) slot = 0, turn ^= 1;
    }
    wgmma_wait<0>();
    if (tail) {
      barrier_wait(&filled[slot], turn);
      multiply_stage<T, NT, 2>(memory + slot * shape::stage, unit++, raised, sum);
      wgmma_wait<0>();
    }
#pragma unroll
    for (int at = 0; at < 4 * NT; at++) all[at / 4][at % 4] = __fadd_rn(all[at / 4][at % 4], sum[at / 4][at % 4]);
  }
  store_block<NT>(a, job, a.weight[w], from.first_tile + threadIdx.x / 32, raise, all);
}

template <int T, int NT>
static weft_status launch(cuda_device *d, const multiply_args &a) {
  uint32_t n_blocks = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n_blocks += cuda_ceil(a.weight[w].n_tiles, MANY_TILES);
  uint32_t n_jobs = a.jobs != NULL ? a.jobs_max : cuda_ceil(a.n_rows, 8 * NT);
  many_kernel<T, NT><<<dim3(n_jobs, n_blocks), MANY_THREADS, many_shape<T, NT>::bytes, d->stream>>>(a);
  return cuda_launched(d, "a product of many rows");
}

template <int T, int NT>
static weft_status set_up(cuda_device *d) {
  cudaError_t error = cudaFuncSetAttribute(many_kernel<T, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)many_shape<T, NT>::bytes);
  return cuda_judge(d, error, "setting up products");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *a, uint32_t rows) {
  if (a == NULL) {
    weft_status status = set_up<T, 1>(d);
    if (status == WEFT_OK) status = set_up<T, 2>(d);
    if (status == WEFT_OK) status = set_up<T, 4>(d);
    return status == WEFT_OK ? set_up<T, 8>(d) : status;
  }
  if (rows <= 8) return launch<T, 1>(d, *a);
  if (rows <= 16) return launch<T, 2>(d, *a);
  if (rows <= 32) return launch<T, 4>(d, *a);
  return launch<T, 8>(d, *a);
}

static weft_status of_type(cuda_device *d, int type, const multiply_args *a, uint32_t rows) {
  switch (type) {
    case WEFT_TYPE_F16: return of_rows<WEFT_TYPE_F16>(d, a, rows);
    case WEFT_TYPE_BF16: return of_rows<WEFT_TYPE_BF16>(d, a, rows);
    case WEFT_TYPE_Q8_0: return of_rows<WEFT_TYPE_Q8_0>(d, a, rows);
    case WEFT_TYPE_Q4_0: return of_rows<WEFT_TYPE_Q4_0>(d, a, rows);
    case WEFT_TYPE_Q5_0: return of_rows<WEFT_TYPE_Q5_0>(d, a, rows);
    case WEFT_TYPE_MXFP4: return of_rows<WEFT_TYPE_MXFP4>(d, a, rows);
    case WEFT_TYPE_Q4_K: return of_rows<WEFT_TYPE_Q4_K>(d, a, rows);
    case WEFT_TYPE_Q5_K: return of_rows<WEFT_TYPE_Q5_K>(d, a, rows);
    case WEFT_TYPE_Q6_K: return of_rows<WEFT_TYPE_Q6_K>(d, a, rows);
    default: return WEFT_E_UNSUPPORTED;
  }
}

weft_status multiply_many(cuda_device *d, const multiply_args *args, uint32_t rows) {
  return of_type(d, args->type, args, rows);
}

weft_status multiply_many_setup(cuda_device *d) {
  static const int types[] = {WEFT_TYPE_F16,   WEFT_TYPE_BF16, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0,
                              WEFT_TYPE_MXFP4, WEFT_TYPE_Q4_K, WEFT_TYPE_Q5_K, WEFT_TYPE_Q6_K};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < sizeof types / sizeof types[0] && status == WEFT_OK; i++)
    status = of_type(d, types[i], NULL, 0);
  return status;
}
