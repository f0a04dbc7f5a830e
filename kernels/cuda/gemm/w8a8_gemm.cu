/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM (w8a8.h) of many rows, dense and grouped: persistent and warp-specialised. A work item is 128 outputs x 8
 * NT rows. The pipeline is that of pipeline.cuh; a stage is a span.
 *
 *   consumer  two warpgroups with 64 outputs each; while one scales its accumulators the other multiplies. A warp
 *             requantises the codes of a row tile to int8 once, in registers, for all rows. Where the epilogue is
 *             gated (GATED), half a row tile of the gate and the same half of up's (gated_epilogue.cuh)
 *   producer  four more warps: one lane is the tile scheduler, one copies the rows, eight copy the weights and steps
 *             of a row tile each */
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/gemm/gated_epilogue.cuh"

template <int T, int NT>
struct w8a8_shape {
  static constexpr uint32_t blocks = NT <= 4 ? 2 : 1; /* to a multiprocessor */
  static constexpr uint32_t regs = blocks == 2 ? 96 : 232, regs_producer = blocks == 2 ? 48 : 40;
  static constexpr uint32_t budget = blocks == 2 ? 112 << 10 : 226 << 10;
  static constexpr uint32_t w_units = W8A8_SPAN / packed_shape_of(T).unit; /* of the packed layout, in a span */
  static constexpr uint32_t w_codes = w_units * packed_unit_bytes(packed_shape_of(T)),
                            w_tile = w_codes + W8A8_STEPS_BYTES, w_stage = ITEM_TILES * w_tile;
  static constexpr uint32_t x_unit = NT * 1024, x_stage = 2 * x_unit, scales = NT * 32;
  static constexpr uint32_t fit = budget / (w_stage + x_stage + scales), stages = fit > 8 ? 8 : fit;
  static constexpr uint32_t bytes = stages * (w_stage + x_stage + scales);
  static_assert(stages >= 2, "two stages at least");
};

template <class S>
struct w8a8_memory {
  uint64_t w_full[S::stages], w_empty[S::stages];
  uint64_t x_full[S::stages], x_empty[S::stages];
  uint64_t item_full[SCHEDULER_STAGES], item_empty[SCHEDULER_STAGES];
  work_item item[SCHEDULER_STAGES];
};

/* ---- producer warps ------------------------------------------------------------------------------------- */

/* The rows of the block's items, and their scales. */
template <class S, class M>
static __device__ void produce_rows(const gemm_args &a, uint8_t *ring, uint8_t *scale_ring, M &m) {
  pipeline_state at = {0, 1}, item_at = {0, 0};
  const uint8_t *scales = (const uint8_t *)a.x + w8a8_scales_at(w8a8_spans_of(a), a.x_tiles);
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    uint32_t n_tiles = (item.n + 7) / 8;
    const uint8_t *from = (const uint8_t *)a.x + (uint64_t)item.first / 8 * 1024,
                  *own_scales = scales + (uint64_t)item.first / 8 * 32;
    for (uint32_t span = 0; span < w8a8_spans_of(a); span++, own_scales += (uint64_t)a.x_tiles * 32) {
      uint64_t *full = &m.x_full[at.stage];
      mbarrier_wait(&m.x_empty[at.stage], at.phase);
      mbarrier_expect(full, n_tiles * (2 * 1024 + 32));
      for (uint32_t u = 0; u < 2; u++, from += (uint64_t)a.x_tiles * 1024)
        bulk_copy(ring + at.stage * S::x_stage + u * S::x_unit, from, n_tiles * 1024, full);
      bulk_copy(scale_ring + at.stage * S::scales, own_scales, n_tiles * 32, full);
      advance(at, S::stages);
    }
  }
}

/* The weights and steps of one row tile, by one lane. */
template <int T, bool GATED, class S, class M>
static __device__ void produce_weights(const gemm_args &a, uint8_t *ring, M &m, uint32_t own) {
  pipeline_state at = {0, 1}, item_at = {0, 0};
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    weight_tile t = GATED ? find_gated_tile(a, item.tile, own) : find_tile(a, item.tile + own);
    const gemm_weight &weight = a.weight[t.w];
    uint64_t tile = (uint64_t)item.matrix * weight.n_tiles + min(t.tile, weight.n_tiles - 1);
    const uint8_t *from = weight.data + PACKED_HEADER_BYTES + tile * a.tile_bytes;
    const uint8_t *steps = weight.steps + tile * w8a8_spans_of(a) * W8A8_STEPS_BYTES;
    uint8_t *to = ring + own * S::w_tile;
    for (uint32_t left = a.tile_bytes, n_bytes; left > 0; left -= n_bytes) {
      n_bytes = min(left, S::w_codes);
      uint64_t *full = &m.w_full[at.stage];
      mbarrier_wait(&m.w_empty[at.stage], at.phase);
      mbarrier_expect(full, n_bytes + W8A8_STEPS_BYTES);
      if (S::blocks == 2)
        bulk_copy_streamed(to + at.stage * S::w_stage, from, n_bytes,
                           full); /* most experts have one job, which reads it */
      else
        bulk_copy(to + at.stage * S::w_stage, from, n_bytes, full);
      bulk_copy(to + at.stage * S::w_stage + S::w_codes, steps, W8A8_STEPS_BYTES, full);
      from += n_bytes, steps += W8A8_STEPS_BYTES;
      advance(at, S::stages);
    }
  }
}

/* ---- products -------------------------------------------------------------------------------------------- */

#define W8A8_PRODUCT(shape, n, inputs, operand, flag, ...)                                                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag ", 0;\nwgmma.mma_async.sync.aligned." shape ".s32.s8.s8 {" n \
               "}, {" inputs "}, " operand ", p;\n}\n"                                                               \
               : __VA_ARGS__                                                                                         \
               : WGMMA_A, "l"(b), "r"(add))

/* d (+)= a b of 64 outputs x 8 N rows x 32 inputs; add 0: from zero. */
template <int N>
static __device__ __forceinline__ void w8a8_wgmma(int32_t (&d)[N][4], const uint32_t (&a)[4], uint64_t b, int32_t add) {
  if constexpr (N == 3) {
    W8A8_PRODUCT("m64n24k32", WGMMA_24, "%12, %13, %14, %15", "%16", "%17", W8A8_SUMS_3);
  } else if constexpr (N == 4) {
    W8A8_PRODUCT("m64n32k32", WGMMA_32, "%16, %17, %18, %19", "%20", "%21", W8A8_SUMS_4);
  } else if constexpr (N == 8) {
    W8A8_PRODUCT("m64n64k32", WGMMA_64, "%32, %33, %34, %35", "%36", "%37", W8A8_SUMS_8);
  } else {
    static_assert(N == 16, "24, 32, 64 or 128 rows");
    W8A8_PRODUCT("m64n128k32", WGMMA_128, "%64, %65, %66, %67", "%68", "%69", W8A8_SUMS_16);
  }
}

/* A warp's view of the rings: its row tile in the first stage of weights, or that of the gate; rows and scales of the
 * first stage; barriers; its position in both rings. */
template <class S>
struct w8a8_warp {
  const uint8_t *w, *x, *scales;
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  pipeline_state w_at, x_at;
};

/* What a lane holds of a span's weights: codes of 128 inputs, their scales, the steps of rows g and g + 8. */
template <int T>
struct w8a8_unit {
  lane_codes<T> codes;
  lane_scales<T> scales;
  float step[2];
};

/* Loads codes, and scales if they are wanted, of half u of a span. */
template <int T, bool GATED, class S>
static __device__ __forceinline__ void load_half(const uint8_t *stage, uint32_t u, bool tail, bool scales,
                                                 w8a8_unit<T> &own) {
  uint32_t lane = threadIdx.x % 32;
  packed_block p = packed_block_of<T>(stage, u, tail);
  if constexpr (GATED) {
    const gated_tiles tiles = gated_tiles_of(threadIdx.x / 32, S::w_tile);
    load_codes_gated<T>(p, tiles, lane, own.codes);
    if (scales) load_scales_gated<T>(p, tiles, lane / 4, lane % 4, own.scales);
  } else {
    load_codes<T>(p, lane, own.codes);
    if (scales) load_scales<T>(p, lane / 4, lane % 4, own.scales);
  }
}

/* Waits for the next stage of weights and loads its first 128 inputs. */
template <int T, bool GATED, class S>
static __device__ __forceinline__ void load_stage(const w8a8_warp<S> &at, bool tail, w8a8_unit<T> &own) {
  const uint8_t *stage = at.w + at.w_at.stage * S::w_stage;
  uint32_t row = threadIdx.x % 32 / 4 + (GATED ? threadIdx.x / 32 % 2 * 8 : 0);
  mbarrier_wait(&at.w_full[at.w_at.stage], at.w_at.phase);
  load_half<T, GATED, S>(stage, 0, tail, true, own);
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint16_t *steps = (const uint16_t *)(const void *)(stage + S::w_codes + (GATED ? r * S::w_tile : r * 16));
    own.step[r] = __uint_as_float((uint32_t)steps[row] << 16);
  }
}

template <int T, bool GATED, class S>
static __device__ __forceinline__ void load_second(const w8a8_warp<S> &at, bool tail, w8a8_unit<T> &own) {
  bool scales = packed_shape_of(T).unit == 128 || T == WEFT_TYPE_Q6_K;
  load_half<T, GATED, S>(at.w + at.w_at.stage * S::w_stage, 1, tail, scales, own);
}

/* Operands of the products of 128 inputs. */
typedef uint32_t w8a8_operands[4][4];

/* Names operands as used, after the wait that ends the products which read them: fence_operands of pipeline.cuh says
 * why. */
static __device__ __forceinline__ void fence_operands(const w8a8_operands &w) {
#pragma unroll
  for (int i = 0; i < 4; i++) asm volatile("" ::"r"(w[i][0]), "r"(w[i][1]), "r"(w[i][2]), "r"(w[i][3]));
}

/* Requantises the codes of 128 inputs, which are half u of the span. */
template <int T>
static __device__ __forceinline__ void make_operands(const w8a8_unit<T> &own, uint32_t u, const float (&over)[2],
                                                     w8a8_operands &w) {
  dequant_factors factors;
  w8a8_factors<T>(own.scales, u, threadIdx.x % 4, over, factors);
#pragma unroll
  for (int i = 0; i < 4; i++) requantise_operands<T>(own.codes, factors, i, w[i]);
}

/* Starts the products of 128 inputs. add 0: from zero. */
template <int N>
static __device__ __forceinline__ void start_products(int32_t (&d)[N][4], const w8a8_operands &w, uint64_t rows,
                                                      int32_t add) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; i++) w8a8_wgmma<N>(d, w[i], rows + (uint64_t)(32 * i >> 4), i == 0 ? add : 1);
  wgmma_commit();
}

/* sums += the span's s32 accumulators times their scales. */
template <int N>
static __device__ __forceinline__ void scale_sums(float (&sums)[N][4], const int32_t (&d)[N][4], const uint8_t *scales,
                                                  const float (&step)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    float2 row = *(const float2 *)(const void *)(scales + 32 * n + threadIdx.x % 4 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++)
      sums[n][i] = __fmaf_rn((float)d[n][i], __fmul_rn(i % 2 == 0 ? row.x : row.y, step[i / 2]), sums[n][i]);
  }
}

/* What a warp makes of a span before the products of the span before it have ended: the operands of the first 128
 * inputs, and the codes of the second 128. */
template <int T>
struct w8a8_next_span {
  w8a8_unit<T> own;
  float step[2], over[2];
  w8a8_operands first;
};

/* Software pipelining of the mainloop: waits for the next stage of weights and prepares its span. */
template <int T, bool GATED, class S>
static __device__ __forceinline__ void prepare_next_span(const gemm_args &a, uint32_t first_unit,
                                                         const w8a8_warp<S> &at, w8a8_next_span<T> &next) {
#pragma unroll
  for (int r = 0; r < 2; r++) next.step[r] = next.own.step[r], next.over[r] = inverse_of(next.step[r]);
  make_operands<T>(next.own, 0, next.over, next.first);
  load_second<T, GATED, S>(at, is_tail_of<T>(a, first_unit + 1), next.own);
}

/* Multiplies the span that is prepared. Afterwards the next one is, if there is one. */
template <int T, int N, bool GATED, class S>
static __device__ __forceinline__ void multiply_span(const gemm_args &a, uint32_t first_unit, w8a8_warp<S> &at,
                                                     w8a8_next_span<T> &next, int32_t (&d)[N][4], float (&sums)[N][4]) {
  w8a8_operands second;
  const float step[2] = {next.step[0], next.step[1]};
  mbarrier_wait(&at.x_full[at.x_at.stage], at.x_at.phase);
  uint64_t rows = wgmma_descriptor_swizzled(at.x + at.x_at.stage * S::x_stage, 1024);
  start_products<N>(d, next.first, rows, 0);
  make_operands<T>(next.own, 1, next.over, second);
  __syncwarp();
  mbarrier_arrive_warp(&at.w_empty[at.w_at.stage]);
  advance(at.w_at, S::stages);
  start_products<N>(d, second, rows + (S::x_unit >> 4), 1);
  if (first_unit + 2 < a.n_units) {
    load_stage<T, GATED, S>(at, is_tail_of<T>(a, first_unit + 2), next.own);
    wgmma_wait<1>();
    fence_operands(next.first);
    prepare_next_span<T, GATED, S>(a, first_unit + 2, at, next);
  }
  wgmma_wait<0>();
  fence_operands(second);
  scale_sums<N>(sums, d, at.scales + at.x_at.stage * S::scales, step);
  __syncwarp();
  mbarrier_arrive_warp(&at.x_empty[at.x_at.stage]);
  advance(at.x_at, S::stages);
}

/* Stores a warp's sums in y and below. Lane 4 g + c has, of every eight rows, rows 2 c and 2 c + 1 of outputs g and
 * g + 8. WHOLE: all n rows and all outputs of the row tile exist, and no number needs a condition. */
template <int N, bool WHOLE>
static __device__ __forceinline__ void store_rows(float *y, uint64_t stride, uint32_t n, uint32_t n_outputs,
                                                  float scale, const float (&sums)[N][4]) {
  const uint32_t row = threadIdx.x % 4 * 2, out = threadIdx.x % 32 / 4;
  y += row * stride + out;
#pragma unroll
  for (int i = 0; i < N; i++, y += 8 * stride) {
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      if (!WHOLE && 8 * i + row + j >= n) continue;
      if (WHOLE || out < n_outputs) y[j * stride] = __fmul_rn(sums[i][j], scale);
      if (WHOLE || out + 8 < n_outputs) y[j * stride + 8] = __fmul_rn(sums[i][j + 2], scale);
    }
  }
}

/* The same in bf16. PAIRS: all outputs of the row tile exist, and outputs 2 i and 2 i + 1 lie in one word. The two
 * lanes that have such a pair for two rows store one row each. */
template <int N, bool PAIRS>
static __device__ __forceinline__ void store_rows_bf16(__nv_bfloat16 *y, uint64_t stride, uint32_t n,
                                                       uint32_t n_outputs, float scale, const float (&sums)[N][4]) {
  const uint32_t row = threadIdx.x % 4 * 2, out = threadIdx.x % 32 / 4, odd = out % 2;
  y += PAIRS ? (row + odd) * stride + out - odd : row * stride + out;
#pragma unroll
  for (int i = 0; i < N; i++, y += 8 * stride) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) { /* outputs out and out + 8 */
      float v[2] = {__fmul_rn(sums[i][2 * h], scale), __fmul_rn(sums[i][2 * h + 1], scale)};
      if constexpr (PAIRS) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, odd ? v[0] : v[1], 4);
        uint32_t pair = odd ? pair_bf16(other, v[1]) : pair_bf16(v[0], other);
        if (8 * i + row + odd < n) *(uint32_t *)(void *)(y + 8 * h) = pair;
      } else {
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
          if (8 * i + row + j < n && out + 8 * h < n_outputs) y[j * stride + 8 * h] = __float2bfloat16_rn(v[j]);
      }
    }
  }
}

template <int N>
static __device__ __forceinline__ void run_epilogue_bf16(const gemm_weight &weight, const work_item &item,
                                                         uint32_t tile, const float (&sums)[N][4]) {
  const uint32_t n_outputs = weight.n_out - tile * 16;
  const float scale = scale_of(weight, item.matrix);
  __nv_bfloat16 *y = (__nv_bfloat16 *)(void *)weight.y + item.first * weight.y_stride + tile * 16;
  if (n_outputs >= 16 && weight.y_stride % 2 == 0)
    store_rows_bf16<N, true>(y, weight.y_stride, item.n, n_outputs, scale, sums);
  else
    store_rows_bf16<N, false>(y, weight.y_stride, item.n, n_outputs, scale, sums);
}

/* JOBS: the kernel takes jobs. */
template <int N, bool JOBS>
static __device__ __forceinline__ void run_epilogue(const gemm_args &a, const work_item &item, uint32_t own,
                                                    const float (&sums)[N][4]) {
  weight_tile t = find_tile(a, item.tile + own);
  const gemm_weight &weight = a.weight[t.w];
  if (t.tile >= weight.n_tiles) return;
  if (JOBS && a.y_is_bf16) {
    run_epilogue_bf16<N>(weight, item, t.tile, sums);
    return;
  }
  const uint32_t n_outputs = weight.n_out - t.tile * 16;
  const float scale = scale_of(weight, item.matrix);
  float *y = weight.y + item.first * weight.y_stride + t.tile * 16;
  if (item.n == 8 * N && n_outputs >= 16)
    store_rows<N, true>(y, weight.y_stride, item.n, n_outputs, scale, sums);
  else
    store_rows<N, false>(y, weight.y_stride, item.n, n_outputs, scale, sums);
}

/* The mainloop and epilogue of a work item. N: rows in eights, enough for it. */
template <int T, int N, bool GATED, bool JOBS, class S>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, const work_item &item, uint32_t own_tile,
                                                     w8a8_warp<S> &at) {
  float sums[N][4];
  int32_t d[N][4] = {};
  w8a8_next_span<T> next;
  load_stage<T, GATED, S>(at, is_tail_of<T>(a, 0), next.own);
  prepare_next_span<T, GATED, S>(a, 0, at, next);
#pragma unroll
  for (int n = 0; n < N; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
  for (uint32_t unit = 0; unit < a.n_units; unit += 2) multiply_span<T, N, GATED, S>(a, unit, at, next, d, sums);
  if constexpr (GATED) {
    run_gated_epilogue<N>(a, item, sums);
  } else {
    run_epilogue<N, JOBS>(a, item, own_tile, sums);
  }
}

template <class S>
static __device__ __forceinline__ void init_mbarriers(w8a8_memory<S> &m) {
  for (uint32_t i = 0; i < S::stages; i++) {
    mbarrier_init(&m.w_full[i], ITEM_TILES), mbarrier_init(&m.w_empty[i], ITEM_TILES * WARP_ARRIVALS);
    mbarrier_init(&m.x_full[i], 1), mbarrier_init(&m.x_empty[i], ITEM_TILES * WARP_ARRIVALS);
  }
  for (uint32_t i = 0; i < SCHEDULER_STAGES; i++)
    mbarrier_init(&m.item_full[i], 1), mbarrier_init(&m.item_empty[i], ITEM_CONSUMERS);
  mbarrier_init_fence();
}

template <int T, int NT, bool GATED>
static __global__ void __launch_bounds__(ITEM_THREADS, w8a8_shape<T, NT>::blocks)
    w8a8_gemm_kernel(const __grid_constant__ gemm_args a) {
  using S = w8a8_shape<T, NT>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* rows; weights; scales of rows */
  __shared__ w8a8_memory<S> m;
  uint8_t *x_ring = memory, *w_ring = x_ring + S::stages * S::x_stage, *scale_ring = w_ring + S::stages * S::w_stage;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) init_mbarriers(m);
  __syncthreads();
  if (group == ITEM_TILES / 4) {
    setmaxnreg_dec<S::regs_producer>();
    launch_dependents_and_wait();
    uint32_t warp = threadIdx.x / 32 - ITEM_TILES, lane = threadIdx.x % 32;
    if (warp == 0 && lane == 0) schedule_items(a, m, 8 * NT, (tiles_of(a) + ITEM_TILES - 1) / ITEM_TILES, ITEM_TILES);
    if (warp == 1 && lane == 0) produce_rows<S>(a, x_ring, scale_ring, m);
    if (warp >= 2 && lane < ITEM_TILES / 2)
      produce_weights<T, GATED, S>(a, w_ring, m, ITEM_TILES / 2 * (warp - 2) + lane);
    return;
  }
  setmaxnreg_inc<S::regs>();
  uint32_t warp = threadIdx.x / 32;
  pipeline_state item_at = {0, 0};
  const uint8_t *own = w_ring + (GATED ? warp / 2 * 2 : warp) * S::w_tile;
  w8a8_warp<S> at = {own, x_ring, scale_ring, m.w_full, m.w_empty, m.x_full, m.x_empty, {0, 0}, {0, 0}};
  launch_dependents_and_wait();
  for (work_item item; (item = acquire_item(m, item_at, true)).n > 0;) {
    if constexpr (NT == 16) {
      if (item.n > 64)
        multiply_item<T, 16, GATED, true, S>(a, item, warp, at);
      else if (item.n > 32)
        multiply_item<T, 8, GATED, true, S>(a, item, warp, at);
      else
        multiply_item<T, 4, GATED, true, S>(a, item, warp, at);
    } else {
      multiply_item<T, NT, GATED, NT == 3, S>(a, item, warp, at);
    }
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* a NULL: sets the kernel up. */
template <int T, int NT, bool GATED = false>
static weft_status launch_gemm(cuda_device *d, const gemm_args *a) {
  using S = w8a8_shape<T, NT>;
  auto kernel = w8a8_gemm_kernel<T, NT, GATED>;
  if (a == NULL) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up products of 8 bits");
  }
  uint64_t n_jobs = a->jobs != NULL ? a->jobs_max : cuda_ceil(a->n_rows, 8 * NT);
  uint64_t n_items = n_jobs * cuda_ceil(tiles_of(*a), ITEM_TILES), n_fit = d->n_multiprocessors * S::blocks;
  /* An ordinary launch: blocks that start before the kernel before has ended would crowd each other. */
  kernel<<<(uint32_t)(n_items < n_fit ? n_items : n_fit), ITEM_THREADS, S::bytes, d->stream>>>(*a);
  return cuda_launched(d, "a product of 8 bits");
}

/* The rows of a dense product's items, in eights: the size with which the multiprocessors are done first, if each takes
 * one item after another. work: the time of an item relative to the others. */
static uint32_t dense_nt(const cuda_device *d, const gemm_args *a) {
  static const struct { uint32_t nt, at_once, work; } shapes[] = {{16, 1, 16}, {8, 1, 10}, {4, 2, 12}};
  uint32_t best = 16, least = UINT32_MAX, n_blocks = cuda_ceil(tiles_of(*a), ITEM_TILES);
  for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    uint32_t n_items = n_blocks * cuda_ceil(a->n_rows, 8 * shapes[i].nt);
    uint32_t work = cuda_ceil(n_items, d->n_multiprocessors * shapes[i].at_once) * shapes[i].work;
    if (work < least) best = shapes[i].nt, least = work;
  }
  return best;
}

/* The rows of a call's items, in eights. */
static uint32_t nt_of(const cuda_device *d, const gemm_args *a) {
  return a->jobs == NULL ? dense_nt(d, a) : a->job_rows <= 24 ? 3 : 16;
}

bool w8a8_has_gated_epilogue(const cuda_device *d, const gemm_args *args) {
  return gemm_pairs_up(args) && nt_of(d, args) == 16;
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *a) {
  if (a == NULL) {
    weft_status status = launch_gemm<T, 3>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 4>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 8>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 16>(d, NULL);
    return status == WEFT_OK ? launch_gemm<T, 16, true>(d, NULL) : status;
  }
  uint32_t nt = nt_of(d, a);
  return a->gated  ? launch_gemm<T, 16, true>(d, a)
         : nt == 3 ? launch_gemm<T, 3>(d, a)
         : nt == 4 ? launch_gemm<T, 4>(d, a)
         : nt == 8 ? launch_gemm<T, 8>(d, a)
                   : launch_gemm<T, 16>(d, a);
}

/* Only types that w8a8_takes have kernels. a NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_type(cuda_device *d, const gemm_args *a) {
  if constexpr (w8a8_takes(T)) return launch_for_rows<T>(d, a);
  return a == NULL ? WEFT_OK : WEFT_E_UNSUPPORTED;
}

weft_status w8a8_gemm(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_type<decltype(type)::value>(d, args); });
}

weft_status w8a8_gemm_setup(cuda_device *d) {
  return each_packed_type([&](auto type) { return launch_for_type<decltype(type)::value>(d, NULL); });
}
