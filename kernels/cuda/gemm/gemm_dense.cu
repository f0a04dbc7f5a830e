/* SPDX-License-Identifier: MIT */
/* Dense GEMM of many rows: persistent, warp-specialised, with wgmma whose A operand (dequantised weights) is in
 * registers and whose B operand (activations) is in shared memory. A work item is some row tiles, of any of the
 * weights, times 8 NT rows. The pipeline is that of pipeline.cuh.
 *
 *   team      the consumer warps that share rings. One team of two warpgroups takes eight row tiles; or two teams of
 *             one warpgroup each share an item of four row tiles by split-K: one team takes splits 0, 2, .., the other
 *             one splits 1, 3, .., and reduce_split_k adds a split's sums in shared memory to those of the splits
 *             before it, in order
 *   consumer  a warp dequantises one row tile once, in registers, for all rows; four warps together issue one wgmma of
 *             64 outputs x 8 NT rows
 *   producer  the warps after the teams, which issue bulk async copies: one warp for the rows of each team, two for
 *             the weights. No kernel writes weights while steps run, so their copies begin before the rows are there */
#include "kernels/cuda/gemm/pipeline.cuh"

enum { DENSE_BYTES = 226 << 10, DENSE_STAGES = 12, DENSE_GROUPS = 2 };

__host__ __device__ constexpr uint32_t min_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* A stage of weights is a unit of their packed layout (128 or 256 inputs), a stage of rows is 128 inputs. */
template <int T, int NT, int TEAMS>
struct dense_shape {
  static constexpr uint32_t tiles = 4 * DENSE_GROUPS / TEAMS, rows = 8 * NT; /* of an item; of a team: a warp's each */
  static constexpr uint32_t w_units = packed_shape_of(T).unit / 128, w_tile = packed_unit_bytes(packed_shape_of(T));
  static constexpr uint32_t w_stage = tiles * w_tile, x_units = 1, x_unit = NT * 2048, x_stage = x_unit;
  static constexpr uint32_t threads = 128 * (DENSE_GROUPS + 1); /* registers are given to groups of four warps */
  static constexpr uint32_t regs = 232, regs_producer = 40;
  static constexpr uint32_t sums = TEAMS == 1 ? 0 : 16 * tiles * rows * 4;
  static constexpr uint32_t budget = (DENSE_BYTES - sums) / TEAMS / 1024 * 1024;
  /* The ring of weights holds about as many inputs as the ring of rows. */
  static constexpr uint32_t fit = budget / (w_stage + w_units * x_stage);
  static constexpr uint32_t w_least = fit > 1 ? fit : 2 * (w_stage + x_stage) > budget ? 1 : 2;
  static constexpr uint32_t x_stages = min_of((budget - w_least * w_stage) / x_stage, DENSE_STAGES),
                            x_ring = x_stages * x_stage;
  static constexpr uint32_t w_stages = min_of((budget - x_ring) / w_stage, DENSE_STAGES);
  static constexpr uint32_t team = (x_ring + w_stages * w_stage + 1023) / 1024 * 1024, bytes = sums + TEAMS * team;
  static_assert(x_stages >= 2, "two stages of rows at least");
};

/* What a block works on: rows [row, row + n) and row tiles from `tile` on, which are counted through all weights. */
typedef struct dense_item {
  uint32_t row, n, tile;
} dense_item;

/* The items of a call: for each S::rows rows, all groups of S::tiles row tiles, n_blocks of them. */
typedef struct dense_list {
  uint32_t n_blocks, n_items;
} dense_list;

static __host__ __device__ __forceinline__ dense_list list_of(const gemm_args &a, uint32_t tiles, uint32_t rows) {
  uint32_t n = (tiles_of(a) + tiles - 1) / tiles;
  return {n, n * ((a.n_rows + rows - 1) / rows)};
}

template <class S>
static __device__ __forceinline__ bool item_of(const gemm_args &a, const dense_list &list, uint32_t index,
                                               dense_item *item) {
  if (index >= list.n_items) return false;
  uint32_t j = index / list.n_blocks;
  *item = {j * S::rows, min(S::rows, a.n_rows - j * S::rows), (index - j * list.n_blocks) * S::tiles};
  return true;
}

/* prescale_exponent of the weight that a row tile belongs to. */
template <int T>
static __device__ __forceinline__ int prescale_of(const gemm_args &a, uint32_t tile) {
  return prescale_exponent(T, (const packed_header *)(const void *)a.weight[find_tile(a, tile).w].header);
}

template <class S, int TEAMS>
struct dense_barriers {
  uint64_t w_full[TEAMS][S::w_stages], w_empty[TEAMS][S::w_stages];
  uint64_t x_full[TEAMS][S::x_stages], x_empty[TEAMS][S::x_stages];
  uint64_t token[TEAMS][S::tiles]; /* a warp's turn to reduce its split's sums */
};

/* ---- producer warps -------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void copy_rows(const gemm_args &a, const dense_item &item, uint32_t unit, uint8_t *to,
                                                 uint64_t *full) {
  uint32_t n_bytes = (item.n + 7) / 8 * 2048;
  mbarrier_expect(full, n_bytes);
  bulk_copy(to, (const uint8_t *)a.x + ((uint64_t)unit * a.x_tiles + item.row / 8) * 2048, n_bytes, full);
}

/* The rows of a team's items. */
template <int TEAMS, class S, class B>
static __device__ void produce_rows(const gemm_args &a, uint8_t *ring, B &barriers, const dense_list &list,
                                    uint32_t team) {
  pipeline_state at = {0, 1};
  dense_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, list, index, &item); index += gridDim.x) {
    for (uint32_t first = team * a.split_units; first < a.n_units; first += TEAMS * a.split_units) {
      for (uint32_t unit = first; unit < min(first + a.split_units, a.n_units); unit++) {
        mbarrier_wait(&barriers.x_empty[team][at.stage], at.phase);
        copy_rows(a, item, unit, ring + at.stage * S::x_stage, &barriers.x_full[team][at.stage]);
        advance(at, S::x_stages);
      }
    }
  }
}

/* The weights of row tile `own` of a team's items. */
template <int T, int TEAMS, class S, class B>
static __device__ void produce_weights(const gemm_args &a, uint8_t *ring, B &barriers, const dense_list &list,
                                       uint32_t team, uint32_t own) {
  pipeline_state at = {0, 1};
  dense_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, list, index, &item); index += gridDim.x) {
    weight_tile t = find_tile(a, item.tile + own);
    const gemm_weight &weight = a.weight[t.w];
    const uint8_t *from = weight.data + PACKED_HEADER_BYTES + (uint64_t)min(t.tile, weight.n_tiles - 1) * a.tile_bytes;
    for (uint32_t first = team * a.split_units; first < a.n_units; first += TEAMS * a.split_units) {
      for (uint32_t unit = first; unit < min(first + a.split_units, a.n_units); unit += S::w_units) {
        uint32_t n_bytes = stage_bytes<T>(a, unit);
        mbarrier_wait(&barriers.w_empty[team][at.stage], at.phase);
        mbarrier_expect(&barriers.w_full[team][at.stage], n_bytes);
        bulk_copy(ring + at.stage * S::w_stage + own * S::w_tile, from + (uint64_t)(unit / S::w_units) * S::w_tile,
                  n_bytes, &barriers.w_full[team][at.stage]);
        advance(at, S::w_stages);
      }
    }
  }
}

/* ---- consumer teams -------------------------------------------------------------------------------------- */

/* A warp of a team. token: the parity to wait for at the barrier that gives the warp its turn to reduce. */
template <class S>
struct dense_warp {
  consumer_warp<S> rings;
  uint32_t team, warp, token;
};

/* The split-K reduction where there are several teams: waits for the warp's token, adds the split's sums to those of
 * the splits before it, and passes the token to the team of the next split or, after the last one, to the team of
 * the next item's first. After the last split `sum` is the whole sum. all: the warp's own partial sums in shared
 * memory. */
template <int N, int TEAMS, class S, class B>
static __device__ __forceinline__ void reduce_split_k(const gemm_args &a, dense_warp<S> &at, B &barriers,
                                                      uint32_t split, float4 *all, uint32_t stride,
                                                      float (&sum)[N][4]) {
  bool is_last = split + 1 == a.n_splits;
  mbarrier_wait(&barriers.token[at.team][at.warp], at.token);
  at.token ^= 1;
#pragma unroll
  for (int n = 0; n < N; n++) {
    float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (split > 0) before = all[n * stride];
    sum[n][0] = __fadd_rn(before.x, sum[n][0]);
    sum[n][1] = __fadd_rn(before.y, sum[n][1]);
    sum[n][2] = __fadd_rn(before.z, sum[n][2]);
    sum[n][3] = __fadd_rn(before.w, sum[n][3]);
    if (!is_last) all[n * stride] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
  }
  __syncwarp();
  mbarrier_arrive_warp(&barriers.token[is_last ? 0 : (at.team + 1) % TEAMS][at.warp]);
}

template <int T, int N, int TEAMS, class S, class B>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, const dense_item &item, int prescale,
                                                     dense_warp<S> &at, B &barriers, uint8_t *memory) {
  constexpr uint32_t lanes = 32 * S::tiles;
  float4 *joined = (float4 *)(void *)memory + threadIdx.x % lanes;
  weight_tile to = find_tile(a, item.tile + at.warp);
  prescale_powers powers = powers_of<T>(prescale, a.values);
  float all[TEAMS == 1 ? N : 1][4], sum[N][4];
  operand_buffers<T, N> operands;
  lane_unit<T> own;
  if (at.team >= a.n_splits) return;
  rows_unscale<N> unscale = load_unscale<N>(a, item.row, item.n);
  load_stage<T, S>(at.rings, is_tail_of<T>(a, at.team * a.split_units), own);
#pragma unroll
  for (int n = 0; n < (TEAMS == 1 ? N : 1); n++) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0.0f;
  for (uint32_t split = at.team; split < a.n_splits; split += TEAMS) {
    uint32_t unit = split * a.split_units, end = min(unit + a.split_units, a.n_units);
    uint32_t after = unit + TEAMS * a.split_units; /* where the team goes on, if it does */
    bool tail = packed_shape_of(T).unit == 128 && a.is_tail != 0 && end == a.n_units;
#pragma unroll
    for (int n = 0; n < N; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (uint32_t next; unit < end - (tail ? 1 : 0); unit = next) {
      next = unit + S::w_units;
      uint32_t then = next < end ? next : after;
      multiply_stage<T, N, 4, S>(at.rings, operands, powers, then < a.n_units, is_tail_of<T>(a, then), own, sum);
    }
    if (packed_shape_of(T).unit == 128 && tail)
      multiply_stage<T, N, 2, S>(at.rings, operands, powers, false, false, own, sum);
    end_products<T, N, S>(at.rings, operands);
    if constexpr (TEAMS == 1) {
#pragma unroll
      for (int k = 0; k < 4 * N; k++) all[k / 4][k % 4] = __fadd_rn(all[k / 4][k % 4], sum[k / 4][k % 4]);
    } else {
      reduce_split_k<N, TEAMS>(a, at, barriers, split, joined, lanes, sum);
    }
  }
  float w_unscale = weight_unscale_of(a.weight[to.w], 0, prescale);
  if constexpr (TEAMS == 1) {
    run_epilogue(a.weight[to.w], to.tile, item.row, item.n, w_unscale, unscale, all);
  } else if ((a.n_splits - 1) % TEAMS == at.team) {
    run_epilogue(a.weight[to.w], to.tile, item.row, item.n, w_unscale, unscale, sum);
  }
}

template <class S, int TEAMS>
static __device__ __forceinline__ void init_mbarriers(dense_barriers<S, TEAMS> &b) {
  for (uint32_t t = 0; t < TEAMS; t++) {
    for (uint32_t i = 0; i < S::w_stages; i++) mbarrier_init(&b.w_full[t][i], S::tiles);
    for (uint32_t i = 0; i < S::w_stages; i++) mbarrier_init(&b.w_empty[t][i], S::tiles * WARP_ARRIVALS);
    for (uint32_t i = 0; i < S::x_stages; i++) mbarrier_init(&b.x_full[t][i]);
    for (uint32_t i = 0; i < S::x_stages; i++) mbarrier_init(&b.x_empty[t][i], S::tiles * WARP_ARRIVALS);
    for (uint32_t i = 0; i < S::tiles; i++) mbarrier_init(&b.token[t][i], WARP_ARRIVALS);
  }
  mbarrier_init_fence();
}

template <int T, int NT, int TEAMS>
static __global__ void __launch_bounds__(dense_shape<T, NT, TEAMS>::threads, 1)
    gemm_dense_kernel(const __grid_constant__ gemm_args a) {
  using S = dense_shape<T, NT, TEAMS>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* sums of splits; by team: rows, weights */
  __shared__ dense_barriers<S, TEAMS> barriers;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) init_mbarriers<S, TEAMS>(barriers);
  launch_dependent_grids();
  __syncthreads();
  dense_list list = list_of(a, S::tiles, S::rows);
  if (group == DENSE_GROUPS) {
    setmaxnreg_dec<S::regs_producer>();
    uint32_t warp = threadIdx.x / 32 - 4 * DENSE_GROUPS, lane = threadIdx.x % 32;
    uint32_t team = TEAMS == 1 ? 0 : warp % 2, tile = TEAMS == 1 ? warp % 2 * 4 + lane : lane;
    uint8_t *ring = memory + S::sums + team * S::team;
    if (warp >= 2 && lane < 4) produce_weights<T, TEAMS, S>(a, ring + S::x_ring, barriers, list, team, tile);
    if (warp < TEAMS && lane == 0) {
      wait_for_prior_grids();
      produce_rows<TEAMS, S>(a, ring, barriers, list, team);
    }
    return;
  }
  setmaxnreg_inc<S::regs>();
  uint32_t team = TEAMS == 1 ? 0 : group, warp = threadIdx.x / 32 % S::tiles;
  uint8_t *x_ring = memory + S::sums + team * S::team;
  dense_warp<S> at = {{x_ring + S::x_ring + warp * S::w_tile,
                       x_ring,
                       barriers.w_full[team],
                       barriers.w_empty[team],
                       barriers.x_full[team],
                       barriers.x_empty[team],
                       {0, 0},
                       {0, 0},
                       0},
                      team,
                      warp,
                      team == 0 ? 1u : 0u}; /* the first split waits for none */
  dense_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, list, index, &item); index += gridDim.x) {
    int prescale = prescale_of<T>(a, item.tile + at.warp);
    if (index == blockIdx.x) wait_for_prior_grids();
    multiply_item<T, NT, TEAMS, S>(a, item, prescale, at, barriers, memory);
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* a NULL: sets the kernel up. */
template <int T, int NT, int TEAMS>
static weft_status launch_dense(cuda_device *d, const gemm_args *a) {
  using S = dense_shape<T, NT, TEAMS>;
  if (a == NULL) {
    cudaError_t error = cudaFuncSetAttribute(gemm_dense_kernel<T, NT, TEAMS>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up dense products");
  }
  gemm_args own = *a;
  if (!d->deterministic) gemm_set_split_k(&own, TEAMS);
  uint32_t n_items = list_of(*a, S::tiles, S::rows).n_items;
  cuda_start(d, gemm_dense_kernel<T, NT, TEAMS>, min_of(n_items, d->n_multiprocessors), S::threads, S::bytes, own);
  return cuda_launched(d, "a dense product");
}

/* The sizes of items that there are kernels for, and the measured time of an item relative to the others. */
static const struct {
  uint32_t tiles, rows, work;
} items[] = {{8, 128, 16}, {8, 64, 12}, {4, 88, 9}, {4, 64, 7}, {4, 32, 5}};
enum { N_ITEMS = sizeof items / sizeof items[0] };

/* The size with which the multiprocessors are done first, if each takes one item after another. */
static uint32_t best_items(const cuda_device *d, const gemm_args &a) {
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t i = 0; i < N_ITEMS; i++) {
    uint32_t work = cuda_ceil(list_of(a, items[i].tiles, items[i].rows).n_items, d->n_multiprocessors) * items[i].work;
    if (work < least) best = i, least = work;
  }
  return best;
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *a) {
  static weft_status (*const launches[N_ITEMS])(cuda_device *, const gemm_args *) = {
      launch_dense<T, 16, 1>, launch_dense<T, 8, 1>, launch_dense<T, 11, 2>, launch_dense<T, 8, 2>,
      launch_dense<T, 4, 2>};
  if (a != NULL) return launches[best_items(d, *a)](d, a);
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < N_ITEMS && status == WEFT_OK; i++) status = launches[i](d, NULL);
  return status;
}

weft_status gemm_dense(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args); });
}

weft_status gemm_dense_setup(cuda_device *d) {
  return each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL); });
}
