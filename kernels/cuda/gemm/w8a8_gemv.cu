/* SPDX-License-Identifier: MIT */
/* Split-K GEMV in W8A8 (w8a8.h). A warp takes 16 outputs and one split of the spans, and leaves the exact integer sum
 * of each span in shared memory; the warps of a row tile then reduce the tile's spans in their order. So how K is
 * split is no part of the numerics.
 *
 * Blocks, work items, raw rows, gated and shared products are as in gemv.cu. Every block quantises a raw row for
 * itself (fused prologue); a warp takes a span at a time. The down projection of experts is as in moe/down_gemv.cu: a
 * warp has a rank with all its spans. */
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/gemm/gemv.cuh"

enum {
  COLUMN = 20, /* floats from a row's 16 sums to the next row's: no two lanes of a store use one bank */
  AT_ONCE = 3  /* spans of a raw row that a warp has in its registers */
};

/* Shared memory of a stage, which holds a span of a row tile: packed codes and scales, then the steps. */
__host__ __device__ constexpr uint32_t span_bytes(int type) {
  return ring_stage_bytes(gemv_piece_bytes(type) + W8A8_STEPS_BYTES);
}

/* Starts the copy of a span to a stage whose last span all lanes have read. */
template <int T>
static __device__ __forceinline__ void issue_span(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  const uint8_t *row_tile, const uint8_t *steps, uint32_t span) {
  constexpr uint32_t size = gemv_piece_bytes(T);
  ring_issue_with(ring, stage, row_tile + span * size, min(size, a.tile_bytes - span * size), size,
                  steps + span * W8A8_STEPS_BYTES, W8A8_STEPS_BYTES);
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* The fused prologue: quantises a row of f32 to numbers [span][256], scales [span]. Warp `own` of `n_warps` does
 * every n_warps-th span. */
static __device__ __forceinline__ void quantise_row(const gemm_args &a, const float *x, uint32_t own, uint32_t n_warps,
                                                    uint8_t *numbers, float *scales) {
  uint32_t lane = threadIdx.x % 32, n_spans = w8a8_spans_of(a);
#pragma unroll 1
  for (uint32_t first = own; first < n_spans; first += AT_ONCE * n_warps) {
    float v[AT_ONCE][8];
#pragma unroll
    for (uint32_t t = 0; t < AT_ONCE; t++)
      if (first + t * n_warps < n_spans) load_chunk(x, 32 * (first + t * n_warps) + lane, a.n_in, a.raw.wide, v[t]);
#pragma unroll
    for (uint32_t t = 0; t < AT_ONCE; t++) {
      uint32_t span = first + t * n_warps;
      if (span >= n_spans) break;
      float inverse, scale = w8a8_scale(__reduce_max_sync(0xFFFFFFFFu, chunk_max(v[t])), &inverse);
      *(uint2 *)(void *)(numbers + W8A8_SPAN * span + 8 * lane) =
          make_uint2(w8a8_bytes(v[t], inverse), w8a8_bytes(v[t] + 4, inverse));
      if (lane == 0) scales[span] = scale;
    }
  }
}

/* Bytes of such a row: its numbers, then its scales, up to a multiple of 16. */
static __host__ __device__ __forceinline__ uint32_t bytes_of_row(uint32_t n_spans) {
  return n_spans * W8A8_SPAN + (n_spans + 3) / 4 * 16;
}

/* The rows that a lane reads, lane / 4 of each eight; of one raw row all read the same. */
template <int NT>
struct w8a8_rows {
  const uint8_t *numbers[NT];
};

/* What the lane needs of 128 inputs of a row: operands 2 i, 2 i + 1 of product i. */
static __device__ __forceinline__ void load_numbers(const uint8_t *row, uint32_t unit, bool tail, uint32_t (&b)[8]) {
  uint32_t c = threadIdx.x % 4;
  const uint4 *from = (const uint4 *)(const void *)(row + 128 * unit + (tail ? 16 : 32) * c);
  uint4 low = from[0], high = make_uint4(0, 0, 0, 0);
  if (!tail) high = from[1];
  b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
  b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
}

/* ---- products -------------------------------------------------------------------------------------------- */

/* d += a b of 16 outputs x 8 rows x 32 inputs. */
static __device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The rows' operands of a span. Those of rows after the prologue are loaded before the span's weights are waited
 * for; a raw row lies in shared memory and is read when it is needed. */
template <int NT>
struct span_rows {
  uint32_t b[2][NT][8];
};

template <int T, int NT>
static __device__ __forceinline__ void load_rows(const gemm_args &a, uint32_t span, const w8a8_rows<NT> &rows,
                                                 span_rows<NT> &out) {
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u;
    if (unit >= a.n_units) continue;
#pragma unroll
    for (int n = 0; n < NT; n++)
      load_numbers(rows.numbers[n], unit, packed_shape_of(T).unit == 128 && is_tail_unit(a, unit), out.b[u][n]);
  }
}

/* The integer sums of the span in the ring's stage, and the steps of the lane's outputs g and g + 8. */
template <int T, int NT, bool RAW>
static __device__ __forceinline__ void multiply_span(const gemm_args &a, const gemv_ring &ring, uint32_t span,
                                                     const w8a8_rows<NT> &rows, span_rows<NT> &x, int32_t (&d)[NT][4],
                                                     float (&step)[2]) {
  uint32_t lane = threadIdx.x % 32;
  const uint16_t *steps = (const uint16_t *)(const void *)ring_steps(ring, gemv_piece_bytes(T));
  float over[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    step[r] = __uint_as_float((uint32_t)steps[lane / 4 + 8 * r] << 16);
    over[r] = inverse_of(step[r]);
  }
  int32_t half[2][NT][4] = {}; /* of 128 inputs each: shorter chains */
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u;
    if (unit >= a.n_units) continue;
    bool tail = is_tail_unit(a, unit);
    packed_block block = packed_block_of<T>(ring_piece(ring), u, tail);
    lane_codes<T> codes;
    lane_scales<T> scales;
    dequant_factors factors;
    if constexpr (RAW) load_numbers(rows.numbers[0], unit, block.tail, x.b[u][0]);
    load_codes<T>(block, lane, codes);
    load_scales<T>(block, lane / 4, lane % 4, scales);
    w8a8_factors<T>(scales, u, lane % 4, over, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t w[4];
      requantise_operands<T>(codes, factors, i, w);
#pragma unroll
      for (int n = 0; n < NT; n++) mma_s8(half[u][n], w, x.b[u][n][2 * i], x.b[u][n][2 * i + 1]);
    }
  }
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) d[at / 4][at % 4] = half[0][at / 4][at % 4] + half[1][at / 4][at % 4];
}

/* ---- sums of a row tile's spans: [span][column][16 outputs, then unused ones up to COLUMN], [16] steps --- */

template <int COLUMNS>
static __host__ __device__ constexpr uint32_t floats_of_span(void) {
  return COLUMNS * COLUMN + 16;
}

/* COLUMNS 1: of eight equal rows. */
template <int NT, int COLUMNS>
static __device__ __forceinline__ void store_span(float *to, const int32_t (&d)[NT][4], const float (&step)[2]) {
  uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      uint32_t column = 8 * n + 2 * c + e % 2;
      if (column < COLUMNS) to[column * COLUMN + g + e / 2 * 8] = (float)d[n][e];
    }
  }
  if (c == 0) to[COLUMNS * COLUMN + g] = step[0], to[COLUMNS * COLUMN + g + 8] = step[1];
}

template <int COLUMNS>
static __device__ __forceinline__ float add_spans(const float *spans, uint32_t n_spans, uint32_t column, uint32_t out,
                                                  const float *scales) {
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t span = 0; span < n_spans; span++, spans += floats_of_span<COLUMNS>())
    sum = __fmaf_rn(spans[column * COLUMN + out], __fmul_rn(scales[span], spans[COLUMNS * COLUMN + out]), sum);
  return sum;
}

/* ---- few rows -------------------------------------------------------------------------------------------- */

template <int T, int NT>
static __device__ __forceinline__ void issue_next_span(const gemm_args &a, const gemv_items &items, uint32_t slot,
                                                       uint32_t first, uint32_t end, gemv_ring &ring, uint32_t stage,
                                                       gemv_cursor *at) {
  if (!find_next_piece<NT>(a, items, slot, first, end, at)) return;
  issue_span<T>(a, ring, stage, at->row_tile, at->steps, at->unit / 2);
  at->unit += 2;
}

/* The epilogue of a row tile, which its warps share: this is own_warp of n_warps. spans: the tile's sums, followed
 * by those of the tile that it is gated with. raw_scales: the scales of the one raw row, or NULL where the rows come
 * quantised. */
template <int COLUMNS>
static __device__ __forceinline__ void run_epilogue(const gemm_args &a, const gemm_job &job, gemv_tile tile,
                                                    const float *spans, const float *raw_scales, uint32_t own_warp,
                                                    uint32_t n_warps) {
  const gemm_weight &weight = a.weight[tile.weight];
  float scale = scale_of(weight, job.matrix), up_scale = scale_of(a.weight[gated_with(a, tile)], job.matrix);
  uint32_t n_spans = w8a8_spans_of(a);
  const float *scales = (const float *)(const void *)((const uint8_t *)a.x + w8a8_scales_at(n_spans, a.x_tiles));
#pragma unroll 1
  for (uint32_t i = 32 * own_warp + threadIdx.x % 32; i < 16 * COLUMNS; i += 32 * n_warps) {
    uint32_t column = i / 16, out = tile.tile * 16 + i % 16;
    if (column >= job.n || out >= weight.n_out) continue;
    const float *own = raw_scales != NULL ? raw_scales : scales + (uint64_t)x_row_of(a, job, column) * n_spans;
    float value = __fmul_rn(add_spans<COLUMNS>(spans, n_spans, column, i % 16, own), scale);
    if (a.gated) {
      float up = add_spans<COLUMNS>(spans + n_spans * floats_of_span<COLUMNS>(), n_spans, column, i % 16, own);
      value = gate_product(a.activation, value, __fmul_rn(up, up_scale));
    }
    weight.y[(uint64_t)(job.first + column) * weight.y_stride + out] = value;
  }
}

template <int T, int NT, bool RAW>
static __global__ void __maxnreg__(NT == 1 ? 80 : 128)
    w8a8_gemv_kernel(const __grid_constant__ gemm_args a, const gemv_items items) {
  /* Stages of the warps; spans of the items' tiles, of two items in turn; a raw row, its scales. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * GEMV_STAGES];
  constexpr uint32_t columns = RAW ? 1 : 8 * NT;
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t split = warp % a.n_splits, slot = warp / a.n_splits, n_slots = n_warps / a.n_splits;
  uint32_t first = split * a.split_units, end = min(a.n_units, first + a.split_units), n_spans = w8a8_spans_of(a);
  uint32_t tile_floats = n_spans * floats_of_span<columns>();
  gemv_ring ring =
      ring_init(memory + warp * GEMV_STAGES * span_bytes(T), filled + warp * GEMV_STAGES, GEMV_STAGES, span_bytes(T));
  float *sums = (float *)(void *)(memory + n_warps * GEMV_STAGES * span_bytes(T));
  float *scales = sums + 2 * n_slots * tile_floats;
  uint8_t *numbers = (uint8_t *)(scales + (n_spans + 3) / 4 * 4);
  const float *row_of_raw = NULL;
  gemm_job job = {};
  gemv_tile tile;
  bool of_choice = a.ids != NULL && blockIdx.x >= items.n_shared, exists = true;
  bool active = find_own(a, items, blockIdx.x, slot, &tile);
  if (of_choice) wait_for_prior_grids();
  gemv_cursor ahead = {blockIdx.x, 0, NULL, NULL};
  enter_item<NT>(a, items, slot, first, &ahead);
  uint32_t stage = 0;
  for (; stage < GEMV_STAGES && ahead.unit < end; stage++)
    issue_next_span<T, NT>(a, items, slot, first, end, ring, stage, &ahead);
  exists = find_job(a, items, blockIdx.x, 8 * NT, &job);
  if (!of_choice) wait_for_prior_grids();
  launch_dependent_grids();
  for (; stage < GEMV_STAGES; stage++) issue_next_span<T, NT>(a, items, slot, first, end, ring, stage, &ahead);
  for (uint32_t index = blockIdx.x; index < items.n; index += gridDim.x) {
    if (index != blockIdx.x) {
      exists = find_job(a, items, index, 8 * NT, &job);
      active = find_own(a, items, index, slot, &tile);
    }
    if (!exists) continue; /* the same for all warps */
    w8a8_rows<NT> rows;
    if constexpr (RAW) {
      const float *row = index < items.n_shared ? a.shared_x : a.raw.x + x_row_of(a, job, 0) * a.raw.x_stride;
      if (row != row_of_raw) {
        if (row_of_raw != NULL) __syncthreads(); /* all warps have read the row before, and its scales */
        quantise_row(a, row, warp, n_warps, numbers, scales);
        __syncthreads();
        row_of_raw = row;
      }
      rows.numbers[0] = numbers;
    } else {
#pragma unroll
      for (int n = 0; n < NT; n++)
        rows.numbers[n] = (const uint8_t *)a.x + (uint64_t)x_row_of(a, job, 8 * n + lane / 4) * n_spans * W8A8_SPAN;
    }
    float *own = sums + (buffer * n_slots + slot) * tile_floats;
    for (uint32_t unit = active ? first : end; unit < end; unit += 2) {
      int32_t d[NT][4];
      float step[2];
      span_rows<NT> x;
      if constexpr (!RAW) load_rows<T>(a, unit / 2, rows, x);
      ring_wait(ring);
      multiply_span<T, NT, RAW>(a, ring, unit / 2, rows, x, d, step);
      store_span<NT, columns>(own + unit / 2 * floats_of_span<columns>(), d, step);
      uint32_t at = ring.at;
      ring_advance(ring);
      issue_next_span<T, NT>(a, items, slot, first, end, ring, at, &ahead);
    }
    __syncthreads(); /* it also says that the spans of the item before have been read */
    if (a.gated) own = sums + buffer * n_slots * tile_floats, active = find_own(a, items, index, 0, &tile);
    if (active)
      run_epilogue<columns>(a, job, tile, own, RAW ? scales : NULL, a.gated ? warp : split,
                            a.gated ? n_warps : a.n_splits);
    buffer ^= 1;
  }
}

/* Shared memory of a block of w8a8_gemv_kernel. */
static uint32_t bytes_of(int type, uint32_t n_slots, uint32_t n_splits, uint32_t n_spans, uint32_t n_columns) {
  uint32_t raw = n_columns == 1 ? bytes_of_row(n_spans) : 0;
  return n_slots * n_splits * GEMV_STAGES * span_bytes(type) + 8 * n_slots * n_spans * (n_columns * COLUMN + 16) + raw;
}

bool w8a8_gemv_takes(int type, uint32_t n_rows, uint32_t n_in, bool gated) {
  uint32_t n_columns = n_rows == 1 ? 1 : n_rows <= 8 ? 8 : 16;
  return n_rows <= 16 && w8a8_takes(type) &&
         bytes_of(type, gated ? 2 : 1, GEMV_SPLITS_MAX, cuda_ceil(n_in, W8A8_SPAN), n_columns) <= GEMV_SHARED_BYTES_MAX;
}

/* How many row tiles a block takes at once, by the rule of slots_of in gemv.cu. */
static uint32_t slots_of(cuda_device *d, const gemm_args &a, uint32_t n_columns) {
  uint32_t n = a.gated ? 2 : GEMV_SPLITS_MAX / a.n_splits, n_tiles = gemv_tiles(a);
  while (n_columns == 1 && !a.gated && (n + 1) * a.n_splits <= GEMV_WARPS_MAX &&
         n_tiles > n * d->n_multiprocessors / 2 &&
         bytes_of(a.type, n + 1, a.n_splits, w8a8_spans_of(a), 1) <= GEMV_SHARED_BYTES_MAX)
    n++;
  return n;
}

template <int T, int NT, bool RAW>
static weft_status launch_gemv(cuda_device *d, const gemm_args &a) {
  constexpr uint32_t n_columns = RAW ? 1 : 8 * NT;
  uint32_t n_slots = slots_of(d, a, n_columns), n_warps = n_slots * a.n_splits;
  gemv_items items = gemv_items_of(a, n_slots);
  uint32_t bytes = bytes_of(T, n_slots, a.n_splits, w8a8_spans_of(a), n_columns);
  cuda_start(d, w8a8_gemv_kernel<T, NT, RAW>, gemv_blocks_of(d, items, n_warps, bytes), 32 * n_warps, bytes,
             gemv_args_of(a), items);
  return cuda_launched(d, "a product of few rows in 8 bits");
}

template <int T, int NT, bool RAW>
static weft_status set_up_gemv(cuda_device *d) {
  cudaError_t error = cudaFuncSetAttribute(w8a8_gemv_kernel<T, NT, RAW>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           GEMV_SHARED_BYTES_MAX);
  return cuda_judge(d, error, "setting up products of 8 bits");
}

weft_status w8a8_gemv(cuda_device *d, const gemm_args *args) {
  const gemm_args &a = *args;
  return dispatch_packed_type(a.type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T)) {
      if (a.raw.x != NULL) return launch_gemv<T, 1, true>(d, a);
      if (a.ids != NULL || a.n_rows <= 8) return launch_gemv<T, 1, false>(d, a);
      return launch_gemv<T, 2, false>(d, a);
    }
    return WEFT_E_UNSUPPORTED;
  });
}

/* ---- the down projection of experts ---------------------------------------------------------------------- */

/* The next span whose copy a warp issues: those of its ranks whose experts are here come one after another. */
typedef struct down_cursor {
  const int32_t *ids;
  uint32_t tile, rank, k, span;
} down_cursor;

template <int T>
static __device__ __forceinline__ void issue_down(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  down_cursor &at) {
  uint32_t matrix = UINT32_MAX, n_spans = w8a8_spans_of(a);
  for (; at.rank < at.k; at.rank += DOWN_WARPS)
    if ((matrix = matrix_of(a, __ldcg(at.ids + at.rank))) < a.n_matrices) break;
  if (at.rank >= at.k) return;
  uint64_t tile = (uint64_t)matrix * a.weight[0].n_tiles + at.tile;
  issue_span<T>(a, ring, stage, a.weight[0].data + PACKED_HEADER_BYTES + tile * a.tile_bytes,
                a.weight[0].steps + tile * n_spans * W8A8_STEPS_BYTES, at.span);
  if (++at.span < n_spans) return;
  at.span = 0;
  at.rank += DOWN_WARPS;
}

/* Computes 16 outputs of one rank, whose row is `numbers` with `scales`, to done [16]. */
template <int T>
static __device__ __forceinline__ void multiply_rank(const gemm_args &a, uint32_t matrix, const uint8_t *numbers,
                                                     const float *scales, gemv_ring &ring, down_cursor &ahead,
                                                     float *done) {
  uint32_t lane = threadIdx.x % 32;
  float sum[2] = {0.0f, 0.0f};
  w8a8_rows<1> rows = {{numbers}};
  for (uint32_t span = 0; span < w8a8_spans_of(a); span++) {
    int32_t d[1][4];
    float step[2];
    span_rows<1> x;
    ring_wait(ring);
    multiply_span<T, 1, true>(a, ring, span, rows, x, d, step);
    uint32_t stage = ring.at;
    ring_advance(ring);
    issue_down<T>(a, ring, stage, ahead);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = __fmaf_rn((float)d[0][2 * h], __fmul_rn(scales[span], step[h]), sum[h]);
  }
  if (lane % 4 != 0) return; /* column 0 */
  float down = scale_of(a.weight[0], matrix);
#pragma unroll
  for (int h = 0; h < 2; h++) done[lane / 4 + 8 * h] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(sum[h], down)));
}

/* A warp's tasks in a block's row tiles of the shared MLP: task t is span t % n_spans of tile t / n_spans. */
template <int T>
static __device__ __forceinline__ void issue_task(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  uint32_t first_tile, uint32_t task) {
  uint32_t n_spans = w8a8_spans_of(a), tile = first_tile + task / n_spans;
  if (task >= DOWN_SHARED_TILES * n_spans || tile >= a.weight[0].n_tiles) return;
  issue_span<T>(a, ring, stage, a.weight[0].data + PACKED_HEADER_BYTES + (uint64_t)tile * a.tile_bytes,
                a.weight[0].steps + (uint64_t)tile * n_spans * W8A8_STEPS_BYTES, task % n_spans);
}

/* Computes DOWN_SHARED_TILES row tiles of the shared MLP. All warps share the row (numbers, scales) and spans, where
 * the tiles' sums are left. */
template <int T>
static __device__ __forceinline__ void shared_tiles(const gemm_args &a, uint32_t first_tile, gemv_ring &ring,
                                                    uint8_t *numbers, float *scales, float *spans) {
  uint32_t n_spans = w8a8_spans_of(a), warp = threadIdx.x / 32, n_tasks = DOWN_SHARED_TILES * n_spans;
  if (first_tile + 1 >= a.weight[0].n_tiles) n_tasks = n_spans;
  uint32_t ahead = warp;
  for (uint32_t stage = 0; stage < ring.n; stage++, ahead += DOWN_WARPS)
    issue_task<T>(a, ring, stage, first_tile, ahead);
  wait_for_prior_grids();
  launch_dependent_grids();
  quantise_row(a, a.raw.x, warp, DOWN_WARPS, numbers, scales);
  __syncthreads();
  w8a8_rows<1> rows = {{numbers}};
  for (uint32_t task = warp; task < n_tasks; task += DOWN_WARPS, ahead += DOWN_WARPS) {
    int32_t d[1][4];
    float step[2];
    span_rows<1> x;
    ring_wait(ring);
    multiply_span<T, 1, true>(a, ring, task % n_spans, rows, x, d, step);
    store_span<1, 1>(spans + task * floats_of_span<1>(), d, step);
    uint32_t stage = ring.at;
    ring_advance(ring);
    issue_task<T>(a, ring, stage, first_tile, ahead);
  }
  __syncthreads();
  uint32_t out = first_tile * 16 + threadIdx.x;
  if (threadIdx.x >= 16 * DOWN_SHARED_TILES || out >= a.weight[0].n_out) return;
  float sum =
      add_spans<1>(spans + threadIdx.x / 16 * n_spans * floats_of_span<1>(), n_spans, 0, threadIdx.x % 16, scales);
  a.weight[0].y[out] = __fmul_rn(sum, scale_of(a.weight[0], 0));
}

template <int T>
static __global__ void __launch_bounds__(32 * DOWN_WARPS)
    w8a8_down_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args shared,
                     const float *weights, uint32_t k, uint32_t n_stages) {
  /* Stages of the warps; then of each warp a row and its scales; 16 results of ranks, or the spans of the shared MLP,
   * whose row lies where all warps' do. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[DOWN_WARPS * DOWN_STAGES_MAX];
  __shared__ down_ranks ranks;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_spans = w8a8_spans_of(a);
  uint64_t r = blockIdx.y;
  gemv_ring ring =
      ring_init(memory + warp * n_stages * span_bytes(T), filled + warp * DOWN_STAGES_MAX, n_stages, span_bytes(T));
  uint8_t *rows = memory + DOWN_WARPS * n_stages * span_bytes(T);
  float *done = (float *)(void *)(rows + DOWN_WARPS * bytes_of_row(n_spans));
  if (blockIdx.x >= a.weight[0].n_tiles) {
    float *scales = (float *)(void *)(rows + w8a8_spans_of(shared) * W8A8_SPAN);
    return shared_tiles<T>(shared, (blockIdx.x - a.weight[0].n_tiles) * DOWN_SHARED_TILES, ring, rows, scales, done);
  }
  uint8_t *numbers = rows + warp * bytes_of_row(n_spans);
  float *scales = (float *)(void *)(numbers + n_spans * W8A8_SPAN);
  const int32_t *ids = a.ids + r * k;
  down_cursor ahead = {ids, blockIdx.x, warp, k, 0};
  for (uint32_t stage = 0; stage < n_stages; stage++) issue_down<T>(a, ring, stage, ahead);
  uint32_t matrix = warp < k ? matrix_of(a, __ldcg(ids + warp)) : 0;
  load_ranks(a, weights, r, k, ranks);
  wait_for_prior_grids();
  launch_dependent_grids();
  for (uint32_t j = warp; j < k; j += DOWN_WARPS) {
    if (matrix < a.n_matrices) {
      __syncwarp(); /* all lanes have read the row before */
      quantise_row(a, a.raw.x + (r * k + j) * a.raw.x_stride, 0, 1, numbers, scales);
      __syncwarp();
      multiply_rank<T>(a, matrix, numbers, scales, ring, ahead, done + 16 * j);
    } else if (lane < 16) {
      done[16 * j + lane] = not_a_number();
    }
    if (j + DOWN_WARPS < k) matrix = matrix_of(a, __ldcg(ids + j + DOWN_WARPS));
  }
  __syncthreads();
  combine_ranks_store(a, ranks, r, k, done);
}

/* Shared memory of a block. shared_spans: spans of the shared MLP's row; 0: there is no shared MLP. */
static uint32_t bytes_of_down(int type, uint32_t n_spans, uint32_t shared_spans, uint32_t k, uint32_t n_stages) {
  uint32_t results = 64 * k, of_shared = 4 * DOWN_SHARED_TILES * shared_spans * floats_of_span<1>();
  return DOWN_WARPS * (n_stages * span_bytes(type) + bytes_of_row(n_spans)) +
         (results > of_shared ? results : of_shared);
}

bool w8a8_gemv_down_fits(int type, uint32_t n_in, uint32_t k) {
  return bytes_of_down(type, cuda_ceil(n_in, W8A8_SPAN), 0, k, 2) <= GEMV_SHARED_BYTES_MAX;
}

bool w8a8_gemv_down_shares(const gemm_args *args, const gemm_args *shared, uint32_t k) {
  uint32_t n_spans = w8a8_spans_of(*args), shared_spans = w8a8_spans_of(*shared);
  return args->type == shared->type && shared->is_w8a8 && args->n_rows == 1 && shared->n_rows == 1 &&
         bytes_of_row(shared_spans) <= DOWN_WARPS * bytes_of_row(n_spans) &&
         bytes_of_down(args->type, n_spans, shared_spans, k, 2) <= GEMV_SHARED_BYTES_MAX;
}

template <int T>
static weft_status launch_down(cuda_device *d, const gemm_args &a, const gemm_args &shared, const float *weights,
                               uint32_t k) {
  bool shares = shared.weight[0].n_tiles > 0;
  uint32_t n_spans = w8a8_spans_of(a), shared_spans = shares ? w8a8_spans_of(shared) : 0, n_stages = 2;
  while (n_stages < n_spans && n_stages < DOWN_STAGES_MAX &&
         bytes_of_down(T, n_spans, shared_spans, k, n_stages + 1) <= DOWN_BYTES_OF_TWO)
    n_stages++;
  dim3 grid(a.weight[0].n_tiles + cuda_ceil(shared.weight[0].n_tiles, DOWN_SHARED_TILES), a.n_rows);
  cuda_start(d, w8a8_down_kernel<T>, grid, 32 * DOWN_WARPS, bytes_of_down(T, n_spans, shared_spans, k, n_stages), a,
             shared, weights, k, n_stages);
  return cuda_launched(d, "the down side of experts in 8 bits");
}

weft_status w8a8_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                           uint32_t k) {
  gemm_args a = *args, b = *shared;
  a.raw.wide = gemm_is_wide(a.raw.x, a.raw.x_stride);
  b.raw.wide = gemm_is_wide(b.raw.x, b.raw.x_stride);
  return dispatch_packed_type(a.type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return launch_down<T>(d, a, b, weights, k);
    else
      return WEFT_E_UNSUPPORTED;
  });
}

template <int T>
static weft_status set_up(cuda_device *d) {
  weft_status status = set_up_gemv<T, 1, true>(d);
  if (status == WEFT_OK) status = set_up_gemv<T, 1, false>(d);
  if (status == WEFT_OK) status = set_up_gemv<T, 2, false>(d);
  if (status != WEFT_OK) return status;
  cudaError_t error =
      cudaFuncSetAttribute(w8a8_down_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, GEMV_SHARED_BYTES_MAX);
  return cuda_judge(d, error, "setting up experts in 8 bits");
}

weft_status w8a8_gemv_setup(cuda_device *d) {
  return each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return set_up<T>(d);
    else
      return WEFT_OK;
  });
}
