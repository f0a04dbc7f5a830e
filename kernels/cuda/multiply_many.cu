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
 *   producer  a warp after the teams: brings rows into the ring of each team, and the weights of an only team; a stage is
 *             full when its bytes have come, and empty when all warps have done with it */
#include "kernels/cuda/multiply.h"
#include "kernels/cuda/wgmma.cuh"

enum { MANY_BYTES_1 = 226 << 10, MANY_BYTES_2 = 112 << 10, MANY_STAGES = 12, MANY_TURN = 20 };

/* A stage of weights is a unit of their form (of 128 or 256 inputs), one of rows 128 inputs. */
template <int T, int NT, int MW, int TEAMS>
struct many_shape {
  static constexpr uint32_t w_units = form_of(T).unit / 128, w_tile = form_unit_bytes(form_of(T));
  static constexpr uint32_t w_stage = 4 * MW * w_tile, x_stage = NT * 2048;
  static constexpr uint32_t threads = 128 * (MW * TEAMS + 1);       /* registers are given to groups of four warps */
  static constexpr uint32_t blocks = TEAMS == 1 && NT <= 8 ? 2 : 1; /* to a multiprocessor */
  static constexpr uint32_t regs = blocks == 2 ? 96 : TEAMS == 1 ? 232 : 104;
  static constexpr uint32_t regs_producer = blocks == 2 ? 48 : TEAMS == 1 ? 40 : 64;
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

template <int NT, int MW>
static __device__ __forceinline__ bool item_of(const multiply_args &a, uint32_t index, uint32_t n_blocks, many_item *item) {
  if (!job_of(a, index / n_blocks, 8 * NT, &item->job)) return false;
  uint32_t block = index % n_blocks, w = 0, n;
  for (; (n = (a.weight[w].n_tiles + 4 * MW - 1) / (4 * MW)) <= block; w++) block -= n;
  item->w = w;
  item->first_tile = block * 4 * MW;
  return true;
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

/* For the only team: a lane for each of its warps. */
template <int T, int MW, class S>
static __device__ __forceinline__ void bring_weights(const multiply_args &a, const many_item &item, uint32_t unit,
                                                     uint8_t *to, uint64_t *full) {
  uint32_t lane = threadIdx.x % 32, n_bytes = weight_bytes<T, S>(a, unit);
  if (lane == 0) barrier_expect(full, 4 * MW * n_bytes);
  __syncwarp();
  if (lane < 4 * MW)
    copy_bulk(to + lane * S::w_stages * S::w_tile, row_tile_of(a, item, lane) + (uint64_t)(unit / S::w_units) * S::w_tile,
              n_bytes, full);
  __syncwarp();
}

template <int T, int NT, int MW, int TEAMS, class S, class B>
static __device__ void produce(const multiply_args &a, uint8_t *memory, B &barriers, uint32_t n_blocks) {
  many_cursor x[TEAMS], w = {0, 1};
#pragma unroll
  for (int t = 0; t < TEAMS; t++) x[t].slot = 0, x[t].turn = 1;
  many_item item;
  for (uint32_t index = blockIdx.x; item_of<NT, MW>(a, index, n_blocks, &item); index += gridDim.x) {
    for (uint32_t first = 0; first < a.n_segments; first += TEAMS) {
      for (uint32_t j = 0; j < a.segment_units; j++) {
#pragma unroll
        for (int t = 0; t < TEAMS; t++) {
          uint32_t unit = (first + t) * a.segment_units + j;
          if (unit >= a.n_units) continue;
          if (TEAMS == 1 && unit % S::w_units == 0) {
            barrier_wait(&barriers.w_empty[w.slot], w.turn);
            bring_weights<T, MW, S>(a, item, unit, memory + S::all + S::x_ring + w.slot * S::w_tile, &barriers.w_full[0][0][w.slot]);
            step_on(w, S::w_stages);
          }
          barrier_wait(&barriers.x_empty[t][x[t].slot], x[t].turn);
          if (threadIdx.x % 32 == 0) bring_rows(a, item.job, unit, memory + S::all + t * S::team + x[t].slot * S::x_stage, &barriers.x_full[t][x[t].slot]);
          step_on(x[t], S::x_stages);
        }
      }
    }
  }
}

/* ---- the teams ------------------------------------------------------------------------------------------- */

/* A warp of a team: its own ring of weights, the team's of rows, its place in both; and, with several teams, which
 * weights it asks for next: those of `unit` of the row tile at `from`, of item `index`. from NULL: there are no more. */
typedef struct many_warp {
  uint8_t *w, *x;
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  many_cursor w_at, x_at;
  uint32_t team, warp, n_tokens;
  const uint8_t *from;
  uint32_t unit, index;
} many_warp;

template <int NT, int MW>
static __device__ __forceinline__ void ask_of_item(const multiply_args &a, uint32_t n_blocks, many_warp &at) {
  many_item item;
  at.from = NULL;
  at.unit = at.team * a.segment_units;
  if (at.unit >= a.n_units || !item_of<NT, MW>(a, at.index, n_blocks, &item)) return;
  at.from = row_tile_of(a, item, at.warp);
}

/* Asks for the next weights, for stage `slot`, which all lanes have read; the only team has the producer ask. */
template <int T, int NT, int MW, int TEAMS, class S>
static __device__ __forceinline__ void ask_weights(const multiply_args &a, uint32_t n_blocks, many_warp &at, uint32_t slot) {
  if (TEAMS == 1 && threadIdx.x % 32 == 0) barrier_arrive(&at.w_empty[slot]);
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
  ask_of_item<NT, MW>(a, n_blocks, at);
}

/* What a lane has of a unit before its factors are made. */
template <int T>
struct lane_unit {
  lane_codes<T> codes;
  lane_scales<T> scales;
};

enum : uint32_t { MANY_NONE = 0xFFFFFFFFu };

template <int T, class S>
static __device__ __forceinline__ void load_unit(const multiply_args &a, const many_warp &at, uint32_t unit,
                                                 lane_unit<T> &out) {
  uint32_t lane = threadIdx.x % 32;
  bool tail = form_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
  form_place p = place_of<T>(at.w + at.w_at.slot * S::w_tile, unit % S::w_units, tail);
  load_codes<T>(p, lane, out.codes);
  load_scales<T>(p, lane / 4, lane % 4, out.scales);
}

/* After unit's codes have been read: those of the next one, if any. */
template <int T, int NT, int MW, int TEAMS, class S>
static __device__ __forceinline__ void load_next(const multiply_args &a, uint32_t n_blocks, many_warp &at, uint32_t unit,
                                                 uint32_t next, lane_unit<T> &out) {
  if (next != unit + 1 || next % S::w_units == 0) {
    __syncwarp();
    ask_weights<T, NT, MW, TEAMS, S>(a, n_blocks, at, at.w_at.slot);
    step_on(at.w_at, S::w_stages);
    if (next != MANY_NONE) barrier_wait(&at.w_full[at.w_at.slot], at.w_at.turn);
  }
  if (next != MANY_NONE) load_unit<T, S>(a, at, next, out);
}

static __device__ __forceinline__ void release_rows(const many_warp &at, uint32_t slot) {
  if (threadIdx.x % 32 == 0) barrier_arrive(&at.x_empty[slot]);
}

/* Issues the products of a unit; the last two may still run. STEPS: 4, or 2 for a unit of 64 inputs. */
template <int T, int NT, int N, int MW, int TEAMS, int STEPS, class S>
static __device__ __forceinline__ void multiply_unit(const multiply_args &a, uint32_t n_blocks, many_warp &at, uint32_t unit,
                                                     uint32_t next, bool is_first, float raise, lane_unit<T> &own,
                                                     float (&sum)[N][4]) {
  lane_factors factors;
  make_factors<T>(own.scales, form_of(T).unit == 256 ? unit & 1u : 0u, threadIdx.x % 4, raise, factors);
  barrier_wait(&at.x_full[at.x_at.slot], at.x_at.turn);
  uint64_t rows = wgmma_operand_mixed(at.x + at.x_at.slot * S::x_stage, 2048);
  uint32_t w[2][2][4];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    operands_of<T>(own.codes, factors, i, w[i % 2]);
    if constexpr (form_bits(T) == 16) { /* registers of their own: codes are overwritten while products run */
#pragma unroll
      for (int k = 0; k < 8; k++) asm volatile("mov.b32 %0, %0;" : "+r"(w[i % 2][k / 4][k % 4]));
    }
    if (i == STEPS - 1) load_next<T, NT, MW, TEAMS, S>(a, n_blocks, at, unit, next, own);
    wgmma_fence();
    uint64_t b = rows + (uint64_t)((i / 2 * 1024 + i % 2 * 64) >> 4);
    wgmma<N, form_is_bf16(T)>(sum, w[i % 2][0], b);
    wgmma<N, form_is_bf16(T)>(sum, w[i % 2][1], b + (32 >> 4));
    wgmma_commit();
    wgmma_wait<1>();
    if (i == 0 && !is_first) release_rows(at, at.x_at.slot == 0 ? S::x_stages - 1 : at.x_at.slot - 1);
  }
  step_on(at.x_at, S::x_stages);
}

/* 8 rows x 16 outputs at a time are turned in the warp's piece of shared memory: then a thread has four outputs of one
 * row. */
template <int N>
static __device__ __forceinline__ void store_item(const multiply_args &a, const many_item &item, uint32_t tile, int raise,
                                                  float *turn, const float (&all)[N][4]) {
  uint32_t lane = threadIdx.x % 32, row = lane / 4, out = tile * 16 + lane % 4 * 4;
  const multiply_weight &weight = a.weight[item.w];
  bool wide = weight.n_out % 4 == 0 && weight.y_stride % 4 == 0 && ((uintptr_t)weight.y & 15u) == 0;
  float down = ldexpf(1.0f, -raise), *to = turn + lane % 4 * 2 * MANY_TURN + row;
  float *y = weight.y + (uint64_t)(item.job.first + row) * weight.y_stride + out, back[N];
#pragma unroll
  for (int n = 0; n < N; n++) back[n] = a.x_back[item.job.first + min(8 * n + row, item.job.n - 1)]; /* before any store */
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
  if (threadIdx.x % 32 == 0) barrier_arrive(&barriers.token[is_last ? 0 : (at.team + 1) % TEAMS][at.warp]);
}

/* N: at most NT, enough for the job. */
template <int T, int NT, int N, int MW, int TEAMS, class S, class B>
static __device__ __forceinline__ void multiply_item(const multiply_args &a, uint32_t n_blocks, const many_item &item,
                                                     many_warp &at, B &barriers, uint8_t *memory, bool is_first) {
  uint32_t team = at.team, tile = item.first_tile + at.warp;
  float4 *joined = (float4 *)(void *)memory + threadIdx.x % (128 * MW);
  float *turn = (float *)(void *)(memory + S::sums) + threadIdx.x / 32 * 8 * MANY_TURN;
  int raise = raise_exponent(T, (const form_header *)(const void *)a.weight[item.w].data);
  float raised = ldexpf(1.0f, raise), all[TEAMS == 1 ? N : 1][4];
  lane_unit<T> own;
  if (team >= a.n_segments) return;
  barrier_wait(&at.w_full[at.w_at.slot], at.w_at.turn);
  load_unit<T, S>(a, at, team * a.segment_units, own);
#pragma unroll
  for (int n = 0; n < (TEAMS == 1 ? N : 1); n++) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0.0f;
  for (uint32_t segment = team; segment < a.n_segments; segment += TEAMS) {
    uint32_t begin = segment * a.segment_units, end = min(begin + a.segment_units, a.n_units), unit = begin;
    uint32_t after = segment + TEAMS < a.n_segments ? begin + TEAMS * a.segment_units : MANY_NONE;
    bool tail = form_of(T).unit == 128 && a.is_tail != 0 && end == a.n_units;
    float sum[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (; unit < end - (tail ? 1 : 0); unit++)
      multiply_unit<T, NT, N, MW, TEAMS, 4, S>(a, n_blocks, at, unit, unit + 1 < end ? unit + 1 : after, unit == begin, raised, own, sum);
    if (form_of(T).unit == 128 && tail) multiply_unit<T, NT, N, MW, TEAMS, 2, S>(a, n_blocks, at, unit, MANY_NONE, unit == begin, raised, own, sum);
    wgmma_wait<0>();
    release_rows(at, at.x_at.slot == 0 ? S::x_stages - 1 : at.x_at.slot - 1);
    if constexpr (TEAMS == 1) {
#pragma unroll
      for (int k = 0; k < 4 * N; k++) all[k / 4][k % 4] = __fadd_rn(all[k / 4][k % 4], sum[k / 4][k % 4]);
    } else {
      join_segment<N, TEAMS>(a, at, barriers, segment, is_first, joined, 128 * MW, sum);
      if (segment + 1 == a.n_segments) store_item<N>(a, item, tile, raise, turn, sum);
    }
  }
  if constexpr (TEAMS == 1) store_item<N>(a, item, tile, raise, turn, all);
}

template <int T, int NT, int MW, int TEAMS>
static __global__ void __launch_bounds__(many_shape<T, NT, MW, TEAMS>::threads, many_shape<T, NT, MW, TEAMS>::blocks)
    many_kernel(const __grid_constant__ multiply_args a) {
  using S = many_shape<T, NT, MW, TEAMS>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* sums of segments, results being turned; by team: rows, weights */
  __shared__ many_barriers<S, MW, TEAMS> barriers;
  uint32_t n_blocks = blocks_of<MW>(a), group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < TEAMS * 4 * MW * S::w_stages; i++) barrier_init(&barriers.w_full[0][0][0] + i, 1);
    for (uint32_t i = 0; i < S::w_stages; i++) barrier_init(&barriers.w_empty[i], 4 * MW);
    for (uint32_t i = 0; i < TEAMS * S::x_stages; i++) barrier_init(&barriers.x_full[0][0] + i, 1);
    for (uint32_t i = 0; i < TEAMS * S::x_stages; i++) barrier_init(&barriers.x_empty[0][0] + i, 4 * MW);
    for (uint32_t i = 0; i < TEAMS * 4 * MW; i++) barrier_init(&barriers.token[0][0] + i, 1);
    barriers_ready();
  }
  __syncthreads();
  if (group == MW * TEAMS) {
    registers_shrink<S::regs_producer>();
    inputs_ready();
    if (threadIdx.x / 32 == 4 * MW * TEAMS) produce<T, NT, MW, TEAMS, S>(a, memory, barriers, n_blocks);
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
    at.w_at.slot = at.w_at.turn = at.x_at.slot = at.x_at.turn = at.n_tokens = 0;
    at.index = blockIdx.x;
    if (TEAMS > 1) { /* weights are asked for before the rows are there: no jobs here */
      ask_of_item<NT, MW>(a, n_blocks, at);
      for (uint32_t i = 0; i < S::w_stages; i++) ask_weights<T, NT, MW, TEAMS, S>(a, n_blocks, at, i);
    }
    inputs_ready();
    many_item item;
    uint32_t index = blockIdx.x;
    for (bool is_first = true; item_of<NT, MW>(a, index, n_blocks, &item); index += gridDim.x, is_first = false) {
      if constexpr (NT == 16) {
        if (item.job.n <= 32) multiply_item<T, NT, 4, MW, TEAMS, S>(a, n_blocks, item, at, barriers, memory, is_first);
        else if (item.job.n <= 64) multiply_item<T, NT, 8, MW, TEAMS, S>(a, n_blocks, item, at, barriers, memory, is_first);
        else multiply_item<T, NT, 16, MW, TEAMS, S>(a, n_blocks, item, at, barriers, memory, is_first);
      } else {
        multiply_item<T, NT, NT, MW, TEAMS, S>(a, n_blocks, item, at, barriers, memory, is_first);
      }
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
  if (a->jobs == NULL) {
    cuda_start(d, many_kernel<T, NT, MW, TEAMS>, n, S::threads, S::bytes, *a);
  } else { /* experts crowd one another if they are brought early */
    many_kernel<T, NT, MW, TEAMS><<<n, S::threads, S::bytes, d->stream>>>(*a);
  }
  return cuda_launched(d, "a product of many rows");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *a, uint32_t rows) {
  if (a == NULL) {
    weft_status status = launch<T, 1, 2, 1>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 2, 2, 1>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 4, 2, 1>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 16, 2, 1>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 2, 1, 4>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 4, 1, 4>(d, NULL);
    if (status == WEFT_OK) status = launch<T, 8, 1, 4>(d, NULL);
    return status == WEFT_OK ? launch<T, 8, 2, 2>(d, NULL) : status;
  }
  if (a->jobs != NULL) {
    if (rows <= 8) return launch<T, 1, 2, 1>(d, a);
    if (rows <= 16) return launch<T, 2, 2, 1>(d, a);
    return rows <= 32 ? launch<T, 4, 2, 1>(d, a) : launch<T, 16, 2, 1>(d, a);
  }
  if (rows <= 16) return launch<T, 2, 1, 4>(d, a);
  if (rows <= 32) return launch<T, 4, 1, 4>(d, a);
  if ((uint64_t)count_blocks(*a, 4) * cuda_ceil(rows, 64) <= d->n_multiprocessors) return launch<T, 8, 1, 4>(d, a);
  if ((uint64_t)count_blocks(*a, 8) * cuda_ceil(rows, 128) <= 2 * d->n_multiprocessors) return launch<T, 8, 2, 2>(d, a);
  return launch<T, 16, 2, 1>(d, a);
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
