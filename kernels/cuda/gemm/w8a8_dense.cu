/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM (w8a8.h) of a dense weight that would give w8a8_gemm too few items: persistent and warp-specialised, with
 * items of 64 outputs x 8 NT rows. The mainloop is that of w8a8_pipeline.cuh, the teams are those of gemm_dense.cu.
 *
 *   team      two, of a warpgroup each, share an item by split-K: one team takes spans 0, 2, .., the other one spans 1,
 *             3, .. Each multiplies its span, then adds it in shared memory to the sums of the spans before it, when a
 *             token says that these are there. So the order of the sums is that of one team
 *   producer  four more warps, which issue bulk async copies: one for the rows of each team, one for the weights. No
 *             kernel writes weights while steps run, so their copies begin before the rows are there
 *
 * Law: a block lets the next kernel start when it has waited for its rows, or has found them there
 * (gemm_raw_rows.is_there); in that case it waits before it ends. */
#include "kernels/cuda/gemm/acquire.cuh"
#include "kernels/cuda/gemm/w8a8_dense.h"
#include "kernels/cuda/gemm/w8a8_pipeline.cuh"
#include "kernels/cuda/weights/int8_weights.h"

enum { TEAMS = 2, TEAM_TILES = 4, TEAM_THREADS = 128, DENSE_BYTES = 226 << 10, DENSE_STAGES = 8 };

template <int T, int NT>
struct w8a8_dense_shape {
  static constexpr uint32_t rows = 8 * NT, regs = 216, regs_producer = 72;
  static constexpr uint32_t w_units = W8A8_SPAN / packed_shape_of(T).unit; /* of the packed layout, in a span */
  static constexpr uint32_t w_codes = w_units * packed_unit_bytes(packed_shape_of(T)),
                            w_tile = w_codes + W8A8_STEPS_BYTES, w_stage = TEAM_TILES * w_tile;
  static constexpr uint32_t x_unit = NT * 1024, x_stage = 2 * x_unit, scales = NT * 32;
  static constexpr uint32_t sums = TEAM_THREADS * NT * 16, budget = (DENSE_BYTES - sums) / TEAMS / 1024 * 1024;
  static constexpr uint32_t fit = budget / (w_stage + x_stage + scales),
                            stages = fit > DENSE_STAGES ? DENSE_STAGES : fit, x_stages = stages;
  static constexpr uint32_t team = (stages * (w_stage + x_stage + scales) + 1023) / 1024 * 1024;
  static constexpr uint32_t bytes = sums + TEAMS * team;
  static_assert(stages >= 2, "two stages at least");
};

template <class S>
struct w8a8_dense_barriers {
  uint64_t w_full[TEAMS][S::stages], w_empty[TEAMS][S::stages];
  uint64_t x_full[TEAMS][S::stages], x_empty[TEAMS][S::stages];
  uint64_t token[TEAMS][TEAM_TILES]; /* a warp's turn to add its span */
};

/* A team's rings in shared memory: rows, weights, scales of rows. */
template <class S>
struct w8a8_dense_rings {
  uint8_t *x, *w, *scales;
};

template <class S>
static __device__ __forceinline__ w8a8_dense_rings<S> rings_of(uint8_t *memory, uint32_t team) {
  uint8_t *x = memory + S::sums + team * S::team, *w = x + S::stages * S::x_stage;
  return {x, w, w + S::stages * S::w_stage};
}

/* Item `index` of the call: for each S::rows rows, all groups of TEAM_TILES row tiles. False: there is none. */
template <class S>
static __device__ __forceinline__ bool item_of(const gemm_args &a, uint32_t index, work_item *item) {
  uint32_t n_groups = (tiles_of(a) + TEAM_TILES - 1) / TEAM_TILES, j = index / n_groups;
  item->matrix = 0, item->first = j * S::rows, item->tile = (index - j * n_groups) * TEAM_TILES;
  if (item->first >= a.n_rows) return false;
  item->n = min(S::rows, a.n_rows - item->first);
  return true;
}

/* ---- producer warps ------------------------------------------------------------------------------------- */

/* The rows of a team's items, and their scales. */
template <class S, class B>
static __device__ void produce_team_rows(const gemm_args &a, const w8a8_dense_rings<S> &rings, B &b, uint32_t team) {
  pipeline_state at = {0, 1};
  const uint8_t *x = (const uint8_t *)a.x, *scales = x + w8a8_scales_at(w8a8_spans_of(a), a.x_tiles);
  work_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, index, &item); index += gridDim.x) {
    uint32_t n_tiles = (item.n + 7) / 8;
    for (uint32_t span = team; span < w8a8_spans_of(a); span += TEAMS) {
      uint64_t *full = &b.x_full[team][at.stage], first = (uint64_t)span * a.x_tiles + item.first / 8;
      const uint8_t *from = x + ((uint64_t)2 * span * a.x_tiles + item.first / 8) * 1024;
      mbarrier_wait(&b.x_empty[team][at.stage], at.phase);
      mbarrier_expect(full, n_tiles * (2 * 1024 + 32));
      for (uint32_t u = 0; u < 2; u++, from += (uint64_t)a.x_tiles * 1024)
        bulk_copy(rings.x + at.stage * S::x_stage + u * S::x_unit, from, n_tiles * 1024, full);
      bulk_copy(rings.scales + at.stage * S::scales, scales + first * 32, n_tiles * 32, full);
      advance(at, S::stages);
    }
  }
}

/* The weights and steps of row tile `own` of a team's items, by one lane. */
template <class S, class B>
static __device__ void produce_team_weights(const gemm_args &a, const w8a8_dense_rings<S> &rings, B &b, uint32_t team,
                                            uint32_t own) {
  pipeline_state at = {0, 1};
  work_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, index, &item); index += gridDim.x) {
    weight_tile t = find_tile(a, item.tile + own);
    const gemm_weight &weight = a.weight[t.w];
    uint64_t tile = min(t.tile, weight.n_tiles - 1);
    const uint8_t *from = weight.data + PACKED_HEADER_BYTES + tile * a.tile_bytes;
    const uint8_t *steps = weight.steps + tile * w8a8_spans_of(a) * W8A8_STEPS_BYTES;
    for (uint32_t span = team; span < w8a8_spans_of(a); span += TEAMS) {
      uint32_t n_bytes = min(S::w_codes, a.tile_bytes - span * S::w_codes);
      uint8_t *to = rings.w + at.stage * S::w_stage + own * S::w_tile;
      uint64_t *full = &b.w_full[team][at.stage];
      mbarrier_wait(&b.w_empty[team][at.stage], at.phase);
      mbarrier_expect(full, n_bytes + W8A8_STEPS_BYTES);
      bulk_copy(to, from + span * S::w_codes, n_bytes, full);
      bulk_copy(to + S::w_codes, steps + span * W8A8_STEPS_BYTES, W8A8_STEPS_BYTES, full);
      advance(at, S::stages);
    }
  }
}

/* ---- consumer teams ------------------------------------------------------------------------------------- */

/* A warp of a team: its row tile in an item, and the parity to wait for at its token. joined: the lane's sums of the
 * spans so far, in shared memory, TEAM_THREADS from one to the next. */
template <class S>
struct w8a8_dense_warp {
  w8a8_warp<S> rings;
  uint32_t team, warp, token;
  float4 *joined;
};

/* Adds a span: waits for the warp's token, adds to the sums of the spans before it, and passes the token to the team of
 * the next span or, after the last one, to the team of the next item's first. After the last span `sum` is the whole
 * sum. */
template <int N, class S, class B>
static __device__ __forceinline__ void add_span(w8a8_dense_warp<S> &at, B &b, uint32_t span, bool is_last,
                                                const int32_t (&d)[N][4], const uint8_t *scales, const float (&step)[2],
                                                float (&sum)[N][4]) {
  float factor[N][4];
#pragma unroll
  for (int n = 0; n < N; n++) {
    float2 row = *(const float2 *)(const void *)(scales + 32 * n + threadIdx.x % 4 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) factor[n][i] = __fmul_rn(i % 2 == 0 ? row.x : row.y, step[i / 2]);
  }
  mbarrier_wait(&b.token[at.team][at.warp], at.token);
  at.token ^= 1;
#pragma unroll
  for (int n = 0; n < N; n++) {
    float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (span > 0) before = at.joined[n * TEAM_THREADS];
    sum[n][0] = __fmaf_rn((float)d[n][0], factor[n][0], before.x);
    sum[n][1] = __fmaf_rn((float)d[n][1], factor[n][1], before.y);
    sum[n][2] = __fmaf_rn((float)d[n][2], factor[n][2], before.z);
    sum[n][3] = __fmaf_rn((float)d[n][3], factor[n][3], before.w);
    if (!is_last) at.joined[n * TEAM_THREADS] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
  }
  __syncwarp();
  mbarrier_arrive_warp(&b.token[is_last ? 0 : (at.team + 1) % TEAMS][at.warp]);
}

template <int T, int N, class S, class B>
static __device__ __forceinline__ void multiply_team_item(const gemm_args &a, const work_item &item,
                                                          w8a8_dense_warp<S> &at, B &b) {
  const uint32_t n_spans = w8a8_spans_of(a);
  float sum[N][4];
  int32_t d[N][4] = {};
  w8a8_next_span<T> next;
  if (at.team >= n_spans) return;
  load_stage<T, false, S>(at.rings, is_tail_of<T>(a, 2 * at.team), next.own);
  prepare_next_span<T, false, S>(a, 2 * at.team, at.rings, next);
  for (uint32_t span = at.team; span < n_spans; span += TEAMS) {
    multiply_span<T, N, false, S>(a, 2 * (span + TEAMS), at.rings, next, d,
                                  [&](const uint8_t *scales, const float(&step)[2]) {
                                    add_span<N>(at, b, span, span + 1 == n_spans, d, scales, step, sum);
                                  });
  }
  if ((n_spans - 1) % TEAMS == at.team) run_epilogue<N, false>(a, item, at.warp, sum);
}

template <class S>
static __device__ __forceinline__ void init_mbarriers(w8a8_dense_barriers<S> &b) {
  for (uint32_t t = 0; t < TEAMS; t++) {
    for (uint32_t i = 0; i < S::stages; i++) {
      mbarrier_init(&b.w_full[t][i], TEAM_TILES), mbarrier_init(&b.w_empty[t][i], TEAM_TILES * WARP_ARRIVALS);
      mbarrier_init(&b.x_full[t][i], 1), mbarrier_init(&b.x_empty[t][i], TEAM_TILES * WARP_ARRIVALS);
    }
    for (uint32_t i = 0; i < TEAM_TILES; i++) mbarrier_init(&b.token[t][i], WARP_ARRIVALS);
  }
  mbarrier_init_fence();
}

template <int T, int NT>
static __global__ void __launch_bounds__(TEAM_THREADS *(TEAMS + 1), 1)
    w8a8_dense_kernel(const __grid_constant__ gemm_args a) {
  using S = w8a8_dense_shape<T, NT>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* sums of spans; the rings of each team */
  __shared__ w8a8_dense_barriers<S> b;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / TEAM_THREADS, 0), warp = threadIdx.x / 32 % TEAM_TILES;
  if (threadIdx.x == 0) init_mbarriers(b);
  __syncthreads();
  if (group == TEAMS) {
    setmaxnreg_dec<S::regs_producer>();
    uint32_t lane = threadIdx.x % 32, team = warp % 2;
    if (warp >= 2 && lane < TEAM_TILES) produce_team_weights(a, rings_of<S>(memory, team), b, team, lane);
    if (warp < 2 && lane == 0) {
      if (a.raw.is_there)
        acquire_prior_writes();
      else
        wait_for_prior_grids();
      produce_team_rows(a, rings_of<S>(memory, team), b, team);
    }
    return;
  }
  setmaxnreg_inc<S::regs>();
  const w8a8_dense_rings<S> rings = rings_of<S>(memory, group);
  w8a8_dense_warp<S> at = {{rings.w + warp * S::w_tile,
                            rings.x,
                            rings.scales,
                            b.w_full[group],
                            b.w_empty[group],
                            b.x_full[group],
                            b.x_empty[group],
                            {0, 0},
                            {0, 0}},
                           group,
                           warp,
                           group == 0 ? 1u : 0u, /* the first span waits for none */
                           (float4 *)(void *)memory + threadIdx.x % TEAM_THREADS};
  work_item item;
  if (!a.raw.is_there) wait_for_prior_grids();
  launch_dependent_grids();
  for (uint32_t index = blockIdx.x; item_of<S>(a, index, &item); index += gridDim.x)
    multiply_team_item<T, NT>(a, item, at, b);
  if (a.raw.is_there) wait_for_prior_grids(); /* who waits for this kernel waits for those before it too */
}

/* ---- host ------------------------------------------------------------------------------------------------ */

dense_items dense_items_of(const cuda_device *d, const gemm_args *a) {
  static const dense_items shapes[] = {{16, 8, 1, 32}, {8, 8, 1, 21}, {4, 8, 2, 26}, {8, 4, 1, 12}, {4, 4, 1, 10}};
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    uint32_t n_items = cuda_ceil(tiles_of(*a), shapes[i].tiles) * cuda_ceil(a->n_rows, 8 * shapes[i].nt);
    uint32_t work = cuda_ceil(n_items, d->n_multiprocessors * shapes[i].at_once) * shapes[i].work;
    if (work < least) best = i, least = work;
  }
  return shapes[best];
}

bool w8a8_is_narrow(const cuda_device *d, const gemm_args *a) {
  return a->is_w8a8 && a->is_tiled && a->jobs == NULL && !int8_gemm_takes(a) &&
         dense_items_of(d, a).tiles == TEAM_TILES;
}

/* a NULL: sets the kernel up. */
template <int T, int NT>
static weft_status launch_dense(cuda_device *d, const gemm_args *a) {
  using S = w8a8_dense_shape<T, NT>;
  if (a == NULL) {
    cudaError_t error =
        cudaFuncSetAttribute(w8a8_dense_kernel<T, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up dense products of 8 bits");
  }
  uint32_t n_items = cuda_ceil(tiles_of(*a), TEAM_TILES) * cuda_ceil(a->n_rows, S::rows);
  uint32_t n_blocks = n_items < d->n_multiprocessors ? n_items : d->n_multiprocessors;
  cuda_start(d, w8a8_dense_kernel<T, NT>, n_blocks, TEAM_THREADS * (TEAMS + 1), S::bytes, *a);
  return cuda_launched(d, "a dense product of 8 bits");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *a, uint32_t nt) {
  if constexpr (!w8a8_takes(T)) {
    return a == NULL ? WEFT_OK : WEFT_E_UNSUPPORTED;
  } else {
    if (a != NULL) return nt == 4 ? launch_dense<T, 4>(d, a) : launch_dense<T, 8>(d, a);
    weft_status status = launch_dense<T, 4>(d, NULL);
    return status == WEFT_OK ? launch_dense<T, 8>(d, NULL) : status;
  }
}

weft_status w8a8_dense(cuda_device *d, const gemm_args *args, uint32_t nt) {
  return dispatch_packed_type(args->type,
                              [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args, nt); });
}

weft_status w8a8_dense_setup(cuda_device *d) {
  return each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL, 0); });
}
