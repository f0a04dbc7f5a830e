/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM (w8a8.h) of many rows, dense and grouped: persistent and warp-specialised. A work item is 128 outputs x 8
 * NT rows. The pipeline is that of pipeline.cuh; a stage is a span.
 *
 *   consumer  two warpgroups with 64 outputs each; while one scales its accumulators the other multiplies. A warp
 *             requantises the codes of a row tile to int8 once, in registers, for all rows. Where the epilogue is
 *             gated (GATED), half a row tile of the gate and the same half of up's (gated_epilogue.cuh). Jobs of up to
 *             W8A8_TWICE_ROWS rows are multiplied in two halves, one after the other with the same operands, so that
 *             two blocks have registers
 *   producer  four more warps: one lane is the tile scheduler, one copies the rows, eight copy the weights and steps
 *             of a row tile each */
#include "kernels/cuda/gemm/w8a8_dense.h"
#include "kernels/cuda/gemm/w8a8_jobs.h"
#include "kernels/cuda/gemm/w8a8_pipeline.cuh"

enum { TWICE_NT = W8A8_TWICE_ROWS / 8, TWICE_X_STAGES = 3 };

template <int T, int NT>
struct w8a8_shape {
  static constexpr bool twice = NT == TWICE_NT;       /* rows are multiplied in two halves (multiply_twice) */
  static constexpr uint32_t blocks = NT <= 6 ? 2 : 1; /* to a multiprocessor */
  static constexpr uint32_t regs = blocks == 1 ? 232
                                   : twice     ? 104
                                               : 96,
                            regs_producer = blocks == 1 ? 40
                                            : twice     ? 32
                                                        : 48;
  static constexpr uint32_t budget = blocks == 2 ? 112 << 10 : 226 << 10;
  static constexpr uint32_t w_units = W8A8_SPAN / packed_shape_of(T).unit; /* of the packed layout, in a span */
  static constexpr uint32_t w_codes = w_units * packed_unit_bytes(packed_shape_of(T)),
                            w_tile = w_codes + W8A8_STEPS_BYTES, w_stage = ITEM_TILES * w_tile;
  static constexpr uint32_t x_unit = NT * 1024, x_stage = 2 * x_unit, scales = NT * 32;
  /* Rows of a job come from the cache. Where they are many, so that weights have the room, their ring is shorter. */
  static constexpr uint32_t fit =
      twice ? (budget - TWICE_X_STAGES * (x_stage + scales)) / w_stage : budget / (w_stage + x_stage + scales);
  static constexpr uint32_t stages = fit > 8 ? 8 : fit, x_stages = twice ? TWICE_X_STAGES : stages;
  static constexpr uint32_t bytes = stages * w_stage + x_stages * (x_stage + scales);
  static_assert(stages >= 2, "two stages at least");
};

template <class S>
struct w8a8_memory {
  uint64_t w_full[S::stages], w_empty[S::stages];
  uint64_t x_full[S::x_stages], x_empty[S::x_stages];
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
      advance(at, S::x_stages);
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

/* ---- the kernel ------------------------------------------------------------------------------------------ */

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
  for (uint32_t unit = 0; unit < a.n_units; unit += 2)
    multiply_span<T, N, GATED, S>(a, unit + 2, at, next, d, [&](const uint8_t *scales, const float(&step)[2]) {
      scale_sums<N>(sums, d, scales, step);
    });
  if constexpr (GATED) {
    run_gated_epilogue<N>(a, item, sums);
  } else {
    run_epilogue<N, JOBS>(a, item, own_tile, sums);
  }
}

/* The same for up to twice 8 N rows, whose operands are made once. */
template <int T, int N, class S>
static __device__ __forceinline__ void multiply_twice(const gemm_args &a, const work_item &item, w8a8_warp<S> &at) {
  float sums[2][N][4];
  int32_t d[N][4] = {};
  w8a8_next_span<T> next;
  const bool more = item.n > 8 * N;
  load_stage<T, true, S>(at, is_tail_of<T>(a, 0), next.own);
  prepare_next_span<T, true, S>(a, 0, at, next);
#pragma unroll
  for (int n = 0; n < 2 * N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n / N][n % N][i] = 0.0f;
  for (uint32_t unit = 0; unit < a.n_units; unit += 2)
    multiply_span<T, N, true, S>(
        a, unit + 2, at, next, d, more,
        [&](const uint8_t *scales, const float(&step)[2]) { scale_sums<N>(sums[0], d, scales, step); },
        [&](const uint8_t *scales, const float(&step)[2]) {
          if (more)
            scale_sums<N>(sums[1], d, scales + 32 * N, step);
          else
            scale_sums<N>(sums[0], d, scales, step);
        });
  work_item half = item;
  half.n = min(item.n, 8u * N);
  run_gated_epilogue<N>(a, half, sums[0]);
  if (!more) return;
  half.first += half.n, half.n = item.n - half.n;
  run_gated_epilogue<N>(a, half, sums[1]);
}

template <class S>
static __device__ __forceinline__ void init_mbarriers(w8a8_memory<S> &m) {
  for (uint32_t i = 0; i < S::stages; i++)
    mbarrier_init(&m.w_full[i], ITEM_TILES), mbarrier_init(&m.w_empty[i], ITEM_TILES * WARP_ARRIVALS);
  for (uint32_t i = 0; i < S::x_stages; i++)
    mbarrier_init(&m.x_full[i], 1), mbarrier_init(&m.x_empty[i], ITEM_TILES * WARP_ARRIVALS);
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
  uint8_t *x_ring = memory, *w_ring = x_ring + S::x_stages * S::x_stage, *scale_ring = w_ring + S::stages * S::w_stage;
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
    } else if constexpr (S::twice) {
      multiply_twice<T, NT / 2, S>(a, item, at);
    } else {
      multiply_item<T, NT, GATED, NT <= 3, S>(a, item, warp, at);
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
  const uint32_t n_blocks = (uint32_t)(n_items < n_fit ? n_items : n_fit);
  if (a->jobs != NULL && (NT == 3 || S::twice)) /* the jobs of canvases */
    cuda_start(d, kernel, n_blocks, ITEM_THREADS, S::bytes, *a);
  else /* blocks that start before the kernel before has ended would crowd each other */
    kernel<<<n_blocks, ITEM_THREADS, S::bytes, d->stream>>>(*a);
  return cuda_launched(d, "a product of 8 bits");
}

/* The rows of the items of a call with jobs, in eights. */
static uint32_t jobs_nt(const gemm_args *a) {
  return a->job_rows <= 16 ? 2 : a->job_rows <= 24 ? 3 : a->job_rows <= W8A8_TWICE_ROWS && a->gated ? TWICE_NT : 16;
}

bool w8a8_has_gated_epilogue(const cuda_device *d, const gemm_args *args) {
  return gemm_pairs_up(args) && (args->jobs != NULL || dense_items_of(d, args).nt == 16);
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *a) {
  if (a == NULL) {
    weft_status status = launch_gemm<T, 2>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 3>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 4>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 8>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 16>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 2, true>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, 3, true>(d, NULL);
    if (status == WEFT_OK) status = launch_gemm<T, TWICE_NT, true>(d, NULL);
    return status == WEFT_OK ? launch_gemm<T, 16, true>(d, NULL) : status;
  }
  if (a->gated) {
    const uint32_t nt = a->jobs != NULL ? jobs_nt(a) : 16;
    return nt == 2          ? launch_gemm<T, 2, true>(d, a)
           : nt == 3        ? launch_gemm<T, 3, true>(d, a)
           : nt == TWICE_NT ? launch_gemm<T, TWICE_NT, true>(d, a)
                            : launch_gemm<T, 16, true>(d, a);
  }
  const dense_items items = a->jobs != NULL ? dense_items{jobs_nt(a), ITEM_TILES, 1, 1} : dense_items_of(d, a);
  if (items.tiles < ITEM_TILES) return w8a8_dense(d, a, items.nt);
  return items.nt == 2   ? launch_gemm<T, 2>(d, a)
         : items.nt == 3 ? launch_gemm<T, 3>(d, a)
         : items.nt == 4 ? launch_gemm<T, 4>(d, a)
         : items.nt == 8 ? launch_gemm<T, 8>(d, a)
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
