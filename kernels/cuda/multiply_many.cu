/* SPDX-License-Identifier: MIT */
/* Products for more rows than a few, and for experts. Blocks stay on the card and take one item after another: some
 * outputs x 8 NT rows of x.
 *
 *   team      MW groups of four warps: 64 MW outputs. Teams of a block share an item: team t takes segments t,
 *             t + TEAMS, ..; a segment's sums are added to those before it in shared memory, in order
 *   warp      a row tile: it turns codes into operands once, in registers, for all rows; four warps make one product
 *             of the matrix units of 64 outputs x 8 NT rows
 *             and, with several teams, brings its weights, still packed, into a ring of its own by bulk copies, as far
 *             ahead as the ring goes, beyond the end of an item: a copy takes its lane some fifty cycles, and one warp
 *             cannot bring those of all teams
 *   producer  warps after the teams: one for each team's rows; and for an only team one for the weights of each group. A
 *             stage is full when its bytes have come, and empty when all warps have done with it */
#include "kernels/cuda/multiply.h"
#include "kernels/cuda/wgmma.cuh"

enum : uint32_t { MANY_NONE = 0xFFFFFFFFu };
enum { MANY_BYTES_1 = 226 << 10, MANY_BYTES_2 = 112 << 10, MANY_STAGES = 12, MANY_TURN = 20 };

/* A stage of weights is a unit of their form (of 128 or 256 inputs), one of rows 128 inputs. */
template <int T, int NT, int MW, int TEAMS>
struct many_shape {
  static constexpr uint32_t w_units = form_of(T).unit / 128, w_tile = form_unit_bytes(form_of(T));
  static constexpr uint32_t w_stage = 4 * MW * w_tile, x_stage = NT * 2048;
  static constexpr uint32_t threads = 128 * (MW * TEAMS + 1);       /* registers are given to groups of four warps */
  static constexpr uint32_t groups = MW * TEAMS, blocks = groups == 2 && NT <= 8 ? 2 : 1; /* to a multiprocessor */
  static constexpr uint32_t regs = blocks == 2 ? 96 : groups == 2 ? 232 : 104;
  static constexpr uint32_t regs_producer = blocks == 2 ? 48 : groups == 2 ? 40 : 64;
  static constexpr uint32_t sums = TEAMS == 1 ? 0 : 64 * MW * 8 * NT * 4, all = sums + MW * TEAMS * 4 * 8 * MANY_TURN * 4;
  static constexpr uint32_t budget = ((blocks == 2 ? MANY_BYTES_2 : MANY_BYTES_1) - all) / TEAMS / 1024 * 1024;
  /* as many inputs of weights as of rows, or nearly */
  static constexpr uint32_t fit = budget / (w_stage + w_units * x_stage);
  static constexpr uint32_t least = 2 * w_stage + 2 * x_stage > budget ? 1 : 2;
  static constexpr uint32_t w_stages = fit < 2 ? least : fit > MANY_STAGES / w_units ? MANY_STAGES / w_units : fit;
  static constexpr uint32_t x_fit = (budget - w_stages * w_stage) / x_stage;
  static constexpr uint32_t x_most = w_stages * w_units > 2 ? w_stages * w_units : 2;
  static constexpr uint32_t x_stages = x_fit > x_most ? x_most : x_fit;
  static constexpr uint32_t x_ring = x_stages * x_stage, team = (x_ring + w_stages * w_stage + 1023) / 1024 * 1024;
  static constexpr uint32_t bytes = all + TEAMS * team;
  static_assert(x_stages >= 2, "two stages of rows at least");
};

/* What a block works on: rows of a job, outputs from a row tile on. */
typedef struct many_item {
  multiply_job job;
  uint32_t w, first_tile;
} many_item;

template <int MW>
static __device__ __forceinline__ uint32_t blocks_of(const multiply_args &a) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += (a.weight[w].n_tiles + 4 * MW - 1) / (4 * MW);
  return n;
}

/* The items of a call: of each job, all blocks of outputs. */
typedef struct many_list {
  uint32_t n_blocks, n_items;
} many_list;

template <int NT, int MW>
static __device__ __forceinline__ many_list list_of(const multiply_args &a) {
  uint32_t n_blocks = blocks_of<MW>(a), n_jobs = a.jobs != NULL ? *a.n_jobs : (a.n_rows + 8 * NT - 1) / (8 * NT);
  return {n_blocks, n_blocks * n_jobs};
}

template <int NT, int MW>
static __device__ __forceinline__ bool item_of(const multiply_args &a, const many_list &list, uint32_t index, many_item *item) {
  if (index >= list.n_items) return false;
  uint32_t j = index / list.n_blocks, block = index - j * list.n_blocks, w = 0, n;
  item->job = {0, j * 8 * NT, min(8 * NT, a.n_rows - j * 8 * NT)};
  if (a.jobs != NULL) item->job = a.jobs[j];
  for (; (n = (a.weight[w].n_tiles + 4 * MW - 1) / (4 * MW)) <= block; w++) block -= n;
  item->w = w;
  item->first_tile = block * 4 * MW;
  return true;
}

/* Nothing of the item's job is looked at before this. */
static __device__ __forceinline__ void hold_job(many_item &item) {
  asm volatile("" : "+r"(item.job.matrix), "+r"(item.job.first), "+r"(item.job.n));
}

template <class S, int MW, int TEAMS>
struct many_barriers {
  uint64_t w_full[TEAMS][4 * MW][S::w_stages];
  uint64_t w_empty[S::w_stages]; /* of the only team */
  uint64_t x_full[TEAMS][S::x_stages], x_empty[TEAMS][S::x_stages];
  uint64_t token[TEAMS][4 * MW]; /* a warp's turn to add its segment's sums */
};

/* Where one is in a ring of n stages. */
typedef struct many_cursor {
  uint32_t slot, turn;
} many_cursor;

static __device__ __forceinline__ void step_on(many_cursor &c, uint32_t n) {
  if (++c.slot == n) c.slot = 0, c.turn ^= 1;
}

/* ---- the producer ---------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void bring_rows(const multiply_args &a, const multiply_job &job, uint32_t unit,
                                                  uint8_t *to, uint64_t *full) {
  uint32_t n_bytes = (job.n + 7) / 8 * 2048;
  barrier_expect(full, n_bytes);
  copy_bulk(to, (const uint8_t *)a.x + ((uint64_t)unit * a.x_tiles + job.first / 8) * 2048, n_bytes, full);
}

/* Row tile `tile` of an item. */
static __device__ __forceinline__ const uint8_t *row_tile_of(const multiply_args &a, const many_item &item, uint32_t tile) {
  const multiply_weight &weight = a.weight[item.w];
  uint64_t at = (uint64_t)item.job.matrix * weight.n_tiles + min(item.first_tile + tile, weight.n_tiles - 1);
  return weight.data + FORM_HEADER_BYTES + at * a.tile_bytes;
}

/* Bytes of a row tile's weights from `unit` on that make a stage. */
template <int T, class S>
static __device__ __forceinline__ uint32_t weight_bytes(const multiply_args &a, uint32_t unit) {
  return form_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units ? S::w_tile / 2 : S::w_tile;
}

/* The rows of a team's items. */
template <int T, int NT, int MW, int TEAMS, class S, class B>
static __device__ void produce_rows(const multiply_args &a, uint8_t *memory, B &barriers, const many_list &list, uint32_t team) {
  many_cursor at = {0, 1};
  many_item item;
  for (uint32_t index = blockIdx.x; item_of<NT, MW>(a, list, index, &item); index += gridDim.x) {
    for (uint32_t first = team * a.segment_units; first < a.n_units; first += TEAMS * a.segment_units) {
      for (uint32_t unit = first; unit < min(first + a.segment_units, a.n_units); unit++) {
        barrier_wait(&barriers.x_empty[team][at.slot], at.turn);
        bring_rows(a, item.job, unit, memory + S::all + team * S::team + at.slot * S::x_stage, &barriers.x_full[team][at.slot]);
        step_on(at, S::x_stages);
      }
    }
  }
}

/* The weights of four warps of the only team, by as many lanes. */
template <int T, int NT, int MW, class S, class B>
static __device__ void produce_weights(const multiply_args &a, uint8_t *memory, B &barriers, const many_list &list, uint32_t warp) {
  many_cursor at = {0, 1};
  many_item item;
  uint8_t *ring = memory + S::all + S::x_ring + warp * S::w_stages * S::w_tile;
  for (uint32_t index = blockIdx.x; item_of<NT, MW>(a, list, index, &item); index += gridDim.x) {
    const uint8_t *from = row_tile_of(a, item, warp);
    for (uint32_t unit = 0; unit < a.n_units; unit += S::w_units, from += S::w_tile) {
      uint32_t n_bytes = weight_bytes<T, S>(a, unit);
      barrier_wait(&barriers.w_empty[at.slot], at.turn);
      barrier_expect(&barriers.w_full[0][0][at.slot], n_bytes);
      copy_bulk(ring + at.slot * S::w_tile, from, n_bytes, &barriers.w_full[0][0][at.slot]);
      step_on(at, S::w_stages);
    }
  }
}

/* ---- the teams ------------------------------------------------------------------------------------------- */

/* A warp of a team: its own ring of weights, the team's of rows, its place in both; rows_done: the barrier to tell
 * when the products with the rows before have ended (0: none). With several teams, which weights it asks for next: those
 * of `unit` of the row tile at `from`, of item `index`. from NULL: there are no more. */
typedef struct many_warp {
  uint8_t *w, *x;
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  many_cursor w_at, x_at;
  uint32_t team, warp, n_tokens, rows_done;
  const uint8_t *from;
  uint32_t unit, index;
} many_warp;

template <int NT, int MW>
static __device__ __forceinline__ void ask_of_item(const multiply_args &a, const many_list &list, many_warp &at) {
  many_item item;
  at.from = NULL;
  at.unit = at.team * a.segment_units;
  if (at.unit >= a.n_units || !item_of<NT, MW>(a, list, at.index, &item)) return;
  at.from = row_tile_of(a, item, at.warp);
}

/* Asks for the next weights, for stage `slot`, which all lanes have read; the only team has the producer ask. */
template <int T, int NT, int MW, int TEAMS, class S>
static __device__ __forceinline__ void ask_weights(const multiply_args &a, const many_list &list, many_warp &at, uint32_t slot) {
  if (TEAMS == 1) barrier_arrive_warp(&at.w_empty[slot]);
  if (TEAMS == 1 || at.from == NULL) return;
  if (threadIdx.x % 32 == 0) {
    uint32_t n_bytes = weight_bytes<T, S>(a, at.unit);
    barrier_expect(&at.w_full[slot], n_bytes);
    copy_bulk(at.w + slot * S::w_tile, at.from + (uint64_t)(at.unit / S::w_units) * S::w_tile, n_bytes, &at.w_full[slot]);
  }
  at.unit += S::w_units;
  if (at.unit % a.segment_units == 0) at.unit += (TEAMS - 1) * a.segment_units;
  if (at.unit < a.n_units) return;
  at.index += gridDim.x;
  ask_of_item<NT, MW>(a, list, at);
}

/* What a lane holds of a stage of weights: codes of 128 inputs, and scales: of all, or of these (Q6_K). */
template <int T>
struct lane_unit {
  lane_codes<T> codes;
  lane_scales<T> scales;
};

/* The stage's 128 inputs `u`. */
template <int T, class S>
static __device__ __forceinline__ void load_half(const multiply_args &a, const many_warp &at, uint32_t unit, uint32_t u,
                                                       lane_unit<T> &own) {
  bool tail = form_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
  form_place p = place_of<T>(at.w + at.w_at.slot * S::w_tile, u, tail);
  uint32_t lane = threadIdx.x % 32;
  load_codes<T>(p, lane, own.codes);
  if (u == 0 || T == WEFT_TYPE_Q6_K) load_scales<T>(p, lane / 4, lane % 4, own.scales);
}

/* The stage that begins at `unit`. */
template <int T, class S>
static __device__ __forceinline__ void load_stage(const multiply_args &a, const many_warp &at, uint32_t unit, lane_unit<T> &own) {
  barrier_wait(&at.w_full[at.w_at.slot], at.w_at.turn);
  load_half<T, S>(a, at, unit, 0, own);
}

static __device__ __forceinline__ void release_rows(const many_warp &at) {
  if (at.rows_done != 0) barrier_arrive(at.rows_done);
}

/* Issues the products of 128 inputs; the last ones may still run. STEPS: 4, or 2 for 64 inputs. When the codes have
 * become operands, load_next brings the next ones. */
template <int T, int N, int STEPS, class S, class F>
static __device__ __forceinline__ void multiply_unit(many_warp &at, const lane_codes<T> &codes, const lane_factors &factors,
                                                     float (&sum)[N][4], F &&load_next) {
  constexpr int EACH = S::groups == 2 && N <= 4 && form_bits(T) == 4 ? 2 : 1; /* steps of two products that start together: as registers allow */
  constexpr bool as_they_are = form_bits(T) == 16; /* codes are operands: products that read them end before they are overwritten */
  barrier_wait(&at.x_full[at.x_at.slot], at.x_at.turn);
  uint64_t rows = wgmma_operand_mixed(at.x + at.x_at.slot * S::x_stage, 2048);
  uint32_t w[2][EACH][2][4];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    uint32_t(&own)[2][4] = w[i / EACH % 2][i % EACH];
    operands_of<T>(codes, factors, i, own);
    if (i == STEPS - 1 && !as_they_are) load_next();
    if (i % EACH < EACH - 1) continue;
    wgmma_fence();
#pragma unroll
    for (int e = i + 1 - EACH; e <= i; e++) {
      uint64_t b = rows + (uint64_t)((e / 2 * 1024 + e % 2 * 64) >> 4);
      wgmma<N, form_is_bf16(T)>(sum, w[i / EACH % 2][e % EACH][0], b);
      wgmma<N, form_is_bf16(T)>(sum, w[i / EACH % 2][e % EACH][1], b + (32 >> 4));
    }
    wgmma_commit();
    if (as_they_are && i == STEPS - 1) wgmma_wait<0>();
    else wgmma_wait<1>();
    if (i == EACH - 1) release_rows(at);
  }
  if (as_they_are) load_next();
  if (WARP_ARRIVALS > 1 || threadIdx.x % 32 == 0) at.rows_done = shared_address(&at.x_empty[at.x_at.slot]);
  step_on(at.x_at, S::x_stages);
}

/* The products of the stage at `unit`, whose first codes are in `own`; then those of `next` are (MANY_NONE: none). */
template <int T, int NT, int N, int MW, int TEAMS, int STEPS, class S>
static __device__ __forceinline__ void multiply_stage(const multiply_args &a, const many_list &list, many_warp &at, uint32_t unit,
                                                      uint32_t next, float raise, lane_unit<T> &own, float (&sum)[N][4]) {
#pragma unroll
  for (uint32_t u = 0; u < S::w_units; u++) {
    lane_factors factors;
    make_factors<T>(own.scales, u, threadIdx.x % 4, raise, factors);
    multiply_unit<T, N, STEPS, S>(at, own.codes, factors, sum, [&]() {
      if (u + 1 < S::w_units) {
        load_half<T, S>(a, at, unit, u + 1, own);
        return;
      }
      __syncwarp();
      ask_weights<T, NT, MW, TEAMS, S>(a, list, at, at.w_at.slot);
      step_on(at.w_at, S::w_stages);
      if (next != MANY_NONE) load_stage<T, S>(a, at, next, own);
    });
  }
}

/* What undoes the preparation of the lane's rows: asked for long before it is needed. */
template <int N>
static __device__ __forceinline__ void load_back(const multiply_args &a, const many_item &item, float (&back)[N]) {
#pragma unroll
  for (uint32_t n = 0; n < N; n++) back[n] = a.x_back[item.job.first + min(8 * n + threadIdx.x % 32 / 4, item.job.n - 1)];
}

/* 8 rows x 16 outputs at a time are turned in the warp's piece of shared memory: then a thread has four outputs of one
 * row. */
template <int N>
static __device__ __forceinline__ void store_item(const many_item &item, const multiply_weight &weight, uint32_t tile, int raise,
                                                  float *turn, const float (&back)[N], const float (&all)[N][4]) {
  uint32_t lane = threadIdx.x % 32, row = lane / 4, out = tile * 16 + lane % 4 * 4;
  bool wide = weight.n_out % 4 == 0 && weight.y_stride % 4 == 0 && ((uintptr_t)weight.y & 15u) == 0;
  float down = ldexpf(1.0f, -raise), *to = turn + lane % 4 * 2 * MANY_TURN + row;
  float *y = weight.y + (uint64_t)(item.job.first + row) * weight.y_stride + out;
#pragma unroll
  for (int n = 0; n < N; n++, y += 8 * weight.y_stride) {
    if (8 * n >= item.job.n) break;
    to[0] = all[n][0], to[MANY_TURN] = all[n][1], to[8] = all[n][2], to[MANY_TURN + 8] = all[n][3];
    __syncwarp();
    float4 v = *(const float4 *)(const void *)(turn + row * MANY_TURN + lane % 4 * 4);
    __syncwarp();
    if (8 * n + row >= item.job.n || out >= weight.n_out) continue;
    v.x = __fmul_rn(__fmul_rn(v.x, back[n]), down);
    v.y = __fmul_rn(__fmul_rn(v.y, back[n]), down);
    v.z = __fmul_rn(__fmul_rn(v.z, back[n]), down);
    v.w = __fmul_rn(__fmul_rn(v.w, back[n]), down);
    if (wide) {
      *(float4 *)(void *)y = v;
    } else {
      y[0] = v.x;
      if (out + 1 < weight.n_out) y[1] = v.y;
      if (out + 2 < weight.n_out) y[2] = v.z;
      if (out + 3 < weight.n_out) y[3] = v.w;
    }
  }
}

/* Several teams: the segment's sums join those of the segments before it. Afterwards sum is the whole of it if the
 * segment is the last one. all: the warp's own place. */
template <int N, int TEAMS, class B>
static __device__ __forceinline__ void join_segment(const multiply_args &a, many_warp &at, B &barriers, uint32_t segment,
                                                    bool is_first, float4 *all, uint32_t stride, float (&sum)[N][4]) {
  bool wraps = (a.n_segments - 1) % TEAMS != 0, is_last = segment + 1 == a.n_segments; /* the next item is another's turn */
  if (segment > 0 || (wraps && !is_first)) barrier_wait(&barriers.token[at.team][at.warp], at.n_tokens++ & 1);
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
  if (is_last && !wraps) return;
  __syncwarp();
  barrier_arrive_warp(&barriers.token[is_last ? 0 : (at.team + 1) % TEAMS][at.warp]);
}

/* N: at most NT, enough for the job. */
template <int T, int NT, int N, int MW, int TEAMS, class S, class B>
static __device__ __forceinline__ void multiply_item(const multiply_args &a, const many_list &list, const many_item &item, int raise,
                                                     many_warp &at, B &barriers, uint8_t *memory, bool is_first) {
  uint32_t team = at.team, tile = item.first_tile + at.warp;
  float4 *joined = (float4 *)(void *)memory + threadIdx.x % (128 * MW);
  float *turn = (float *)(void *)(memory + S::sums) + threadIdx.x / 32 * 8 * MANY_TURN;
  float raised = ldexpf(1.0f, raise), all[TEAMS == 1 ? N : 1][4], back[N];
  lane_unit<T> own;
  if (team >= a.n_segments) return;
  if (TEAMS == 1) load_back<N>(a, item, back);
  load_stage<T, S>(a, at, team * a.segment_units, own);
#pragma unroll
  for (int n = 0; n < (TEAMS == 1 ? N : 1); n++) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0.0f;
  for (uint32_t segment = team; segment < a.n_segments; segment += TEAMS) {
    uint32_t unit = segment * a.segment_units, end = min(unit + a.segment_units, a.n_units);
    uint32_t after = segment + TEAMS < a.n_segments ? unit + TEAMS * a.segment_units : MANY_NONE;
    bool tail = form_of(T).unit == 128 && a.is_tail != 0 && end == a.n_units;
    float sum[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (; unit < end - (tail ? 1 : 0); unit += S::w_units)
      multiply_stage<T, NT, N, MW, TEAMS, 4, S>(a, list, at, unit, unit + S::w_units < end ? unit + S::w_units : after, raised, own, sum);
    if (form_of(T).unit == 128 && tail) multiply_stage<T, NT, N, MW, TEAMS, 2, S>(a, list, at, unit, MANY_NONE, raised, own, sum);
    wgmma_wait<0>();
    if constexpr (TEAMS == 1) {
#pragma unroll
      for (int k = 0; k < 4 * N; k++) all[k / 4][k % 4] = __fadd_rn(all[k / 4][k % 4], sum[k / 4][k % 4]);
    } else {
      bool is_last = segment + 1 == a.n_segments;
      if (is_last) load_back<N>(a, item, back);
      join_segment<N, TEAMS>(a, at, barriers, segment, is_first, joined, 128 * MW, sum);
      if (is_last) store_item<N>(item, a.weight[item.w], tile, raise, turn, back, sum);
    }
  }
  if constexpr (TEAMS == 1) store_item<N>(item, a.weight[item.w], tile, raise, turn, back, all);
}

template <int T, int NT, int MW, int TEAMS>
static __global__ void __launch_bounds__(many_shape<T, NT, MW, TEAMS>::threads, many_shape<T, NT, MW, TEAMS>::blocks)
    many_kernel(const __grid_constant__ multiply_args a) {
  using S = many_shape<T, NT, MW, TEAMS>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* sums of segments, results being turned; by team: rows, weights */
  __shared__ many_barriers<S, MW, TEAMS> barriers;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < TEAMS * 4 * MW * S::w_stages; i++) barrier_init(&barriers.w_full[0][0][0] + i, TEAMS == 1 ? 4 * MW : 1);
    for (uint32_t i = 0; i < S::w_stages; i++) barrier_init(&barriers.w_empty[i], 4 * MW * WARP_ARRIVALS);
    for (uint32_t i = 0; i < TEAMS * S::x_stages; i++) barrier_init(&barriers.x_full[0][0] + i, 1);
    for (uint32_t i = 0; i < TEAMS * S::x_stages; i++) barrier_init(&barriers.x_empty[0][0] + i, 4 * MW * WARP_ARRIVALS);
    for (uint32_t i = 0; i < TEAMS * 4 * MW; i++) barrier_init(&barriers.token[0][0] + i, WARP_ARRIVALS);
    barriers_ready();
  }
  __syncthreads();
  if (group == MW * TEAMS) {
    registers_shrink<S::regs_producer>();
    inputs_ready();
    many_list list = list_of<NT, MW>(a);
    uint32_t warp = threadIdx.x / 32 - 4 * MW * TEAMS, lane = threadIdx.x % 32;
    if (warp < TEAMS && lane == 0) produce_rows<T, NT, MW, TEAMS, S>(a, memory, barriers, list, warp);
    if (TEAMS == 1 && (warp == 1 || warp == 2) && lane < 2 * MW) produce_weights<T, NT, MW, S>(a, memory, barriers, list, 2 * MW * (warp - 1) + lane);
  } else {
    registers_grow<S::regs>();
    many_warp at;
    at.team = TEAMS == 1 ? 0 : group / MW;
    at.warp = threadIdx.x % (128 * MW) / 32;
    at.x = memory + S::all + at.team * S::team;
    at.w = at.x + S::x_ring + at.warp * S::w_stages * S::w_tile;
    at.w_full = barriers.w_full[at.team][TEAMS == 1 ? 0 : at.warp];
    at.w_empty = barriers.w_empty;
    at.x_full = barriers.x_full[at.team];
    at.x_empty = barriers.x_empty[at.team];
    at.w_at.slot = at.w_at.turn = at.x_at.slot = at.x_at.turn = at.n_tokens = at.rows_done = 0;
    at.index = blockIdx.x;
    many_list list;
    if (TEAMS > 1) { /* weights are asked for before the rows are there: no jobs here */
      list = list_of<NT, MW>(a);
      ask_of_item<NT, MW>(a, list, at);
      for (uint32_t i = 0; i < S::w_stages; i++) ask_weights<T, NT, MW, TEAMS, S>(a, list, at, i);
    }
    uint32_t index = blockIdx.x, w = 0;
    int raise = raise_exponent(T, (const form_header *)(const void *)a.weight[w].data);
    inputs_ready();
    if (TEAMS == 1) list = list_of<NT, MW>(a);
    many_item item, next;
    bool is_there = item_of<NT, MW>(a, list, index, &item), is_next = false;
    for (bool is_first = true; is_there; is_first = false) {
      index += gridDim.x;
      if (TEAMS == 1) is_next = item_of<NT, MW>(a, list, index, &next); /* its job comes while this one is worked on */
      if (item.w != w) raise = raise_exponent(T, (const form_header *)(const void *)a.weight[item.w].data);
      w = item.w;
      if constexpr (NT == 16) {
        if (item.job.n <= 32) multiply_item<T, NT, 4, MW, TEAMS, S>(a, list, item, raise, at, barriers, memory, is_first);
        else if (item.job.n <= 64) multiply_item<T, NT, 8, MW, TEAMS, S>(a, list, item, raise, at, barriers, memory, is_first);
        else multiply_item<T, NT, 16, MW, TEAMS, S>(a, list, item, raise, at, barriers, memory, is_first);
      } else {
        multiply_item<T, NT, NT, MW, TEAMS, S>(a, list, item, raise, at, barriers, memory, is_first);
      }
      if (TEAMS == 1) hold_job(next), item = next, is_there = is_next;
      else is_there = item_of<NT, MW>(a, list, index, &item);
    }
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

static uint32_t count_blocks(const multiply_args &a, uint32_t tiles) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += cuda_ceil(a.weight[w].n_tiles, tiles);
  return n;
}

/* a NULL: sets the kernel up. */
template <int T, int NT, int MW, int TEAMS>
static weft_status launch(cuda_device *d, const multiply_args *a) {
  using S = many_shape<T, NT, MW, TEAMS>;
  if (a == NULL) {
    cudaError_t error = cudaFuncSetAttribute(many_kernel<T, NT, MW, TEAMS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)S::bytes);
    return cuda_judge(d, error, "setting up products");
  }
  uint64_t n_jobs = a->jobs != NULL ? a->jobs_max : cuda_ceil(a->n_rows, 8 * NT);
  uint64_t n_items = n_jobs * count_blocks(*a, 4 * MW), n_fit = d->n_multiprocessors * S::blocks;
  uint32_t n = (uint32_t)(n_items < n_fit ? n_items : n_fit);
  multiply_args own = *a;
  if (!d->deterministic) multiply_cut(&own, TEAMS);
  if (a->jobs == NULL) {
    cuda_start(d, many_kernel<T, NT, MW, TEAMS>, n, S::threads, S::bytes, own);
  } else { /* experts crowd one another if they are brought early */
    many_kernel<T, NT, MW, TEAMS><<<n, S::threads, S::bytes, d->stream>>>(own);
  }
  return cuda_launched(d, "a product of many rows");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *a, uint32_t rows) {
  if (a == NULL) {
    weft_status status = launch<T, 2, 1, 4>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 4, 1, 4>(d, NULL);
    return status == WEFT_OK ? launch<T, 8, 1, 4>(d, NULL) : status;
  }
  if (rows <= 16) return launch<T, 2, 1, 4>(d, a);
  if (rows <= 32) return launch<T, 4, 1, 4>(d, a);
  if ((uint64_t)count_blocks(*a, 4) * cuda_ceil(rows, 64) <= d->n_multiprocessors) return launch<T, 8, 1, 4>(d, a);
  return multiply_many_dense(d, a);
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
