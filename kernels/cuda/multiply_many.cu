/* SPDX-License-Identifier: MIT */
/* Dense products of many rows. Blocks stay on the card and take one item after another. An item is some row tiles, of
 * any of the weights, times 8 NT rows. The rings are those of rings.cuh.
 *
 *   team      the warps that share rings. One team of two groups of four warps takes eight row tiles; or two teams of
 *             one group each share an item of four row tiles, where one team takes segments 0, 2, .., the other one
 *             segments 1, 3, .., and the sums of a segment are added in shared memory to those of the segments before
 *             it, in order
 *   warp      one row tile: the warp turns codes into operands once, in registers, for all rows; four warps together
 *             make one product of the matrix units, of 64 outputs x 8 NT rows
 *   producer  the warps after the teams, which copy: one warp for the rows of each team, two for the weights. No kernel
 *             writes weights while steps run, so they are asked for before the rows are there */
#include "kernels/cuda/rings.cuh"

enum { MANY_BYTES = 226 << 10, MANY_STAGES = 12, MANY_GROUPS = 2 };

__host__ __device__ constexpr uint32_t least_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* A stage of weights is a unit of their form (128 or 256 inputs), a stage of rows is 128 inputs. */
template <int T, int NT, int TEAMS>
struct many_shape {
  static constexpr uint32_t tiles = 4 * MANY_GROUPS / TEAMS, rows = 8 * NT; /* of an item; of a team: a warp's each */
  static constexpr uint32_t w_units = form_of(T).unit / 128, w_tile = form_unit_bytes(form_of(T));
  static constexpr uint32_t w_stage = tiles * w_tile, x_units = 1, x_unit = NT * 2048, x_stage = x_unit;
  static constexpr uint32_t threads = 128 * (MANY_GROUPS + 1); /* registers are given to groups of four warps */
  static constexpr uint32_t regs = 232, regs_producer = 40;
  static constexpr uint32_t sums = TEAMS == 1 ? 0 : 16 * tiles * rows * 4;
  static constexpr uint32_t budget = (MANY_BYTES - sums) / TEAMS / 1024 * 1024;
  /* The ring of weights holds about as many inputs as the ring of rows. */
  static constexpr uint32_t fit = budget / (w_stage + w_units * x_stage);
  static constexpr uint32_t w_least = fit > 1 ? fit : 2 * (w_stage + x_stage) > budget ? 1 : 2;
  static constexpr uint32_t x_stages = least_of((budget - w_least * w_stage) / x_stage, MANY_STAGES),
                            x_ring = x_stages * x_stage;
  static constexpr uint32_t w_stages = least_of((budget - x_ring) / w_stage, MANY_STAGES);
  static constexpr uint32_t team = (x_ring + w_stages * w_stage + 1023) / 1024 * 1024, bytes = sums + TEAMS * team;
  static_assert(x_stages >= 2, "two stages of rows at least");
};

/* What a block works on: rows [row, row + n) and row tiles from `tile` on, which are counted through all weights. */
typedef struct many_item {
  uint32_t row, n, tile;
} many_item;

/* The items of a call: for each S::rows rows, all groups of S::tiles row tiles, n_blocks of them. */
typedef struct many_list {
  uint32_t n_blocks, n_items;
} many_list;

static __host__ __device__ __forceinline__ many_list list_of(const multiply_args &a, uint32_t tiles, uint32_t rows) {
  uint32_t n = (tiles_of(a) + tiles - 1) / tiles;
  return {n, n * ((a.n_rows + rows - 1) / rows)};
}

template <class S>
static __device__ __forceinline__ bool item_of(const multiply_args &a, const many_list &list, uint32_t index,
                                               many_item *item) {
  if (index >= list.n_items) return false;
  uint32_t j = index / list.n_blocks;
  *item = {j * S::rows, min(S::rows, a.n_rows - j * S::rows), (index - j * list.n_blocks) * S::tiles};
  return true;
}

/* raise_exponent of the weight that a row tile belongs to. */
template <int T>
static __device__ __forceinline__ int raise_of(const multiply_args &a, uint32_t tile) {
  return raise_exponent(T, (const form_header *)(const void *)a.weight[find_tile(a, tile).w].data);
}

template <class S, int TEAMS>
struct many_barriers {
  uint64_t w_full[TEAMS][S::w_stages], w_empty[TEAMS][S::w_stages];
  uint64_t x_full[TEAMS][S::x_stages], x_empty[TEAMS][S::x_stages];
  uint64_t token[TEAMS][S::tiles]; /* a warp's turn to add its segment's sums */
};

/* ---- the producer ---------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void bring_rows(const multiply_args &a, const many_item &item, uint32_t unit,
                                                  uint8_t *to, uint64_t *full) {
  uint32_t n_bytes = (item.n + 7) / 8 * 2048;
  barrier_expect(full, n_bytes);
  copy_bulk(to, (const uint8_t *)a.x + ((uint64_t)unit * a.x_tiles + item.row / 8) * 2048, n_bytes, full);
}

/* The rows of a team's items. */
template <int TEAMS, class S, class B>
static __device__ void produce_rows(const multiply_args &a, uint8_t *ring, B &barriers, const many_list &list,
                                    uint32_t team) {
  ring_cursor at = {0, 1};
  many_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, list, index, &item); index += gridDim.x) {
    for (uint32_t first = team * a.segment_units; first < a.n_units; first += TEAMS * a.segment_units) {
      for (uint32_t unit = first; unit < min(first + a.segment_units, a.n_units); unit++) {
        barrier_wait(&barriers.x_empty[team][at.slot], at.turn);
        bring_rows(a, item, unit, ring + at.slot * S::x_stage, &barriers.x_full[team][at.slot]);
        step_on(at, S::x_stages);
      }
    }
  }
}

/* The weights of row tile `own` of a team's items. */
template <int T, int TEAMS, class S, class B>
static __device__ void produce_weights(const multiply_args &a, uint8_t *ring, B &barriers, const many_list &list,
                                       uint32_t team, uint32_t own) {
  ring_cursor at = {0, 1};
  many_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, list, index, &item); index += gridDim.x) {
    weight_tile t = find_tile(a, item.tile + own);
    const multiply_weight &weight = a.weight[t.w];
    const uint8_t *from = weight.data + FORM_HEADER_BYTES + (uint64_t)min(t.tile, weight.n_tiles - 1) * a.tile_bytes;
    for (uint32_t first = team * a.segment_units; first < a.n_units; first += TEAMS * a.segment_units) {
      for (uint32_t unit = first; unit < min(first + a.segment_units, a.n_units); unit += S::w_units) {
        uint32_t n_bytes = stage_bytes<T>(a, unit);
        barrier_wait(&barriers.w_empty[team][at.slot], at.turn);
        barrier_expect(&barriers.w_full[team][at.slot], n_bytes);
        copy_bulk(ring + at.slot * S::w_stage + own * S::w_tile, from + (uint64_t)(unit / S::w_units) * S::w_tile,
                  n_bytes, &barriers.w_full[team][at.slot]);
        step_on(at, S::w_stages);
      }
    }
  }
}

/* ---- the teams ------------------------------------------------------------------------------------------- */

/* A warp of a team. token: the parity to wait for at the barrier that gives the warp its turn to add sums. */
template <class S>
struct many_warp {
  ring_warp<S> rings;
  uint32_t team, warp, token;
};

/* Where there are several teams: waits for the warp's turn, adds the segment's sums to those of the segments before it,
 * and passes the turn on to the team of the next segment or, after the last one, to the team of the next item's first.
 * After the last segment `sum` is the whole sum. all: the warp's own place in shared memory. */
template <int N, int TEAMS, class S, class B>
static __device__ __forceinline__ void join_segment(const multiply_args &a, many_warp<S> &at, B &barriers,
                                                    uint32_t segment, float4 *all, uint32_t stride,
                                                    float (&sum)[N][4]) {
  bool is_last = segment + 1 == a.n_segments;
  barrier_wait(&barriers.token[at.team][at.warp], at.token);
  at.token ^= 1;
#pragma unroll
  for (int n = 0; n < N; n++) {
    float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (segment > 0) before = all[n * stride];
    sum[n][0] = __fadd_rn(before.x, sum[n][0]);
    sum[n][1] = __fadd_rn(before.y, sum[n][1]);
    sum[n][2] = __fadd_rn(before.z, sum[n][2]);
    sum[n][3] = __fadd_rn(before.w, sum[n][3]);
    if (!is_last) all[n * stride] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
  }
  __syncwarp();
  barrier_arrive_warp(&barriers.token[is_last ? 0 : (at.team + 1) % TEAMS][at.warp]);
}

template <int T, int N, int TEAMS, class S, class B>
static __device__ __forceinline__ void multiply_item(const multiply_args &a, const many_item &item, int raise,
                                                     many_warp<S> &at, B &barriers, uint8_t *memory) {
  constexpr uint32_t lanes = 32 * S::tiles;
  float4 *joined = (float4 *)(void *)memory + threadIdx.x % lanes;
  weight_tile to = find_tile(a, item.tile + at.warp);
  raise_powers powers = powers_of<T>(raise, a.values);
  float all[TEAMS == 1 ? N : 1][4], sum[N][4];
  ring_operands<T, N> operands;
  lane_unit<T> own;
  if (at.team >= a.n_segments) return;
  rows_back<N> back = load_back<N>(a, item.row, item.n);
  load_stage<T, S>(at.rings, is_tail_of<T>(a, at.team * a.segment_units), own);
#pragma unroll
  for (int n = 0; n < (TEAMS == 1 ? N : 1); n++) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0.0f;
  for (uint32_t segment = at.team; segment < a.n_segments; segment += TEAMS) {
    uint32_t unit = segment * a.segment_units, end = min(unit + a.segment_units, a.n_units);
    uint32_t after = unit + TEAMS * a.segment_units; /* where the team goes on, if it does */
    bool tail = form_of(T).unit == 128 && a.is_tail != 0 && end == a.n_units;
#pragma unroll
    for (int n = 0; n < N; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (uint32_t next; unit < end - (tail ? 1 : 0); unit = next) {
      next = unit + S::w_units;
      uint32_t then = next < end ? next : after;
      multiply_stage<T, N, 4, S>(at.rings, operands, powers, then < a.n_units, is_tail_of<T>(a, then), own, sum);
    }
    if (form_of(T).unit == 128 && tail) multiply_stage<T, N, 2, S>(at.rings, operands, powers, false, false, own, sum);
    end_products<T, N, S>(at.rings, operands);
    if constexpr (TEAMS == 1) {
#pragma unroll
      for (int k = 0; k < 4 * N; k++) all[k / 4][k % 4] = __fadd_rn(all[k / 4][k % 4], sum[k / 4][k % 4]);
    } else {
      join_segment<N, TEAMS>(a, at, barriers, segment, joined, lanes, sum);
    }
  }
  float down = lower_by(a.weight[to.w], 0, raise);
  if constexpr (TEAMS == 1) {
    store_sums(a.weight[to.w], to.tile, item.row, item.n, down, back, all);
  } else if ((a.n_segments - 1) % TEAMS == at.team) {
    store_sums(a.weight[to.w], to.tile, item.row, item.n, down, back, sum);
  }
}

template <class S, int TEAMS>
static __device__ __forceinline__ void make_barriers(many_barriers<S, TEAMS> &b) {
  for (uint32_t t = 0; t < TEAMS; t++) {
    for (uint32_t i = 0; i < S::w_stages; i++) barrier_init(&b.w_full[t][i], S::tiles);
    for (uint32_t i = 0; i < S::w_stages; i++) barrier_init(&b.w_empty[t][i], S::tiles * WARP_ARRIVALS);
    for (uint32_t i = 0; i < S::x_stages; i++) barrier_init(&b.x_full[t][i]);
    for (uint32_t i = 0; i < S::x_stages; i++) barrier_init(&b.x_empty[t][i], S::tiles * WARP_ARRIVALS);
    for (uint32_t i = 0; i < S::tiles; i++) barrier_init(&b.token[t][i], WARP_ARRIVALS);
  }
  barriers_ready();
}

template <int T, int NT, int TEAMS>
static __global__ void __launch_bounds__(many_shape<T, NT, TEAMS>::threads, 1)
    many_kernel(const __grid_constant__ multiply_args a) {
  using S = many_shape<T, NT, TEAMS>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* sums of segments; by team: rows, weights */
  __shared__ many_barriers<S, TEAMS> barriers;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) make_barriers<S, TEAMS>(barriers);
  next_may_start();
  __syncthreads();
  many_list list = list_of(a, S::tiles, S::rows);
  if (group == MANY_GROUPS) {
    registers_shrink<S::regs_producer>();
    uint32_t warp = threadIdx.x / 32 - 4 * MANY_GROUPS, lane = threadIdx.x % 32;
    uint32_t team = TEAMS == 1 ? 0 : warp % 2, tile = TEAMS == 1 ? warp % 2 * 4 + lane : lane;
    uint8_t *ring = memory + S::sums + team * S::team;
    if (warp >= 2 && lane < 4) produce_weights<T, TEAMS, S>(a, ring + S::x_ring, barriers, list, team, tile);
    if (warp < TEAMS && lane == 0) {
      inputs_wait();
      produce_rows<TEAMS, S>(a, ring, barriers, list, team);
    }
    return;
  }
  registers_grow<S::regs>();
  uint32_t team = TEAMS == 1 ? 0 : group, warp = threadIdx.x / 32 % S::tiles;
  uint8_t *x_ring = memory + S::sums + team * S::team;
  many_warp<S> at = {{x_ring + S::x_ring + warp * S::w_tile,
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
                     team == 0 ? 1u : 0u}; /* the first segment waits for none */
  many_item item;
  for (uint32_t index = blockIdx.x; item_of<S>(a, list, index, &item); index += gridDim.x) {
    int raise = raise_of<T>(a, item.tile + at.warp);
    if (index == blockIdx.x) inputs_wait();
    multiply_item<T, NT, TEAMS, S>(a, item, raise, at, barriers, memory);
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* a NULL: sets the kernel up. */
template <int T, int NT, int TEAMS>
static weft_status launch_many(cuda_device *d, const multiply_args *a) {
  using S = many_shape<T, NT, TEAMS>;
  if (a == NULL) {
    cudaError_t error =
        cudaFuncSetAttribute(many_kernel<T, NT, TEAMS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up dense products");
  }
  multiply_args own = *a;
  if (!d->deterministic) multiply_cut(&own, TEAMS);
  uint32_t n_items = list_of(*a, S::tiles, S::rows).n_items;
  cuda_start(d, many_kernel<T, NT, TEAMS>, least_of(n_items, d->n_multiprocessors), S::threads, S::bytes, own);
  return cuda_launched(d, "a dense product");
}

/* The sizes of items that there are kernels for, and the measured time of an item relative to the others. */
static const struct {
  uint32_t tiles, rows, work;
} items[] = {{8, 128, 16}, {8, 64, 12}, {4, 88, 9}, {4, 64, 7}, {4, 32, 5}};
enum { N_ITEMS = sizeof items / sizeof items[0] };

/* The size with which the multiprocessors are done first, if each takes one item after another. */
static uint32_t best_items(const cuda_device *d, const multiply_args &a) {
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t i = 0; i < N_ITEMS; i++) {
    uint32_t work = cuda_ceil(list_of(a, items[i].tiles, items[i].rows).n_items, d->n_multiprocessors) * items[i].work;
    if (work < least) best = i, least = work;
  }
  return best;
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *a) {
  static weft_status (*const launches[N_ITEMS])(cuda_device *, const multiply_args *) = {
      launch_many<T, 16, 1>, launch_many<T, 8, 1>, launch_many<T, 11, 2>, launch_many<T, 8, 2>, launch_many<T, 4, 2>};
  if (a != NULL) return launches[best_items(d, *a)](d, a);
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < N_ITEMS && status == WEFT_OK; i++) status = launches[i](d, NULL);
  return status;
}

weft_status multiply_many(cuda_device *d, const multiply_args *args) {
  return form_dispatch(args->type, [&](auto type) { return of_rows<decltype(type)::value>(d, args); });
}

weft_status multiply_many_setup(cuda_device *d) {
  return form_each([&](auto type) { return of_rows<decltype(type)::value>(d, NULL); });
}
