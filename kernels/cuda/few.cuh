/* SPDX-License-Identifier: MIT */
/* What the kernels for few rows share: each warp's own stream of packed weights through shared memory, and its products
 * with rows of x.
 *
 * Law: every warp has places of its own for pieces of a row tile, and starts the copy of a next piece to a place when
 * all its lanes have read the last one. Sums have the order of multiply.h or, in eight_few.cu, that of eight.h.
 *
 * No kernel writes weights while steps run. So a block asks for its first weights before it waits for its inputs, and
 * they arrive while the kernel before it ends. (The first kernel after a weight was placed starts only when that is
 * done: cuda_device.fresh.) */
#ifndef WEFT_KERNELS_CUDA_FEW_CUH
#define WEFT_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/eight.h"
#include "kernels/cuda/wgmma.cuh"

enum {
  FEW_WARPS_MAX = 24, /* of a block, and of all blocks on a multiprocessor */
  FEW_SEGMENTS = 8,   /* of the inputs, at the most */
  FEW_PLACES = 2,     /* of a warp */
  FEW_SHARED_BYTES_MAX = 220 << 10
};

/* A piece is what one copy brings: 128 inputs of 16-bit codes, 256 of others. Segments are whole multiples of 256. */
__host__ __device__ constexpr uint32_t few_units(int type) {
  return form_bits(type) == 16 ? 1 : 2;
}

__host__ __device__ constexpr uint32_t few_piece_bytes(int type) {
  return few_units(type) * 128 * form_unit_bytes(form_of(type)) / form_of(type).unit;
}

/* A warp's places for pieces, used one after another. */
typedef struct few_ring {
  uint8_t *memory;
  uint64_t *filled; /* a barrier per place */
  uint32_t n, at, turn;
} few_ring;

static __device__ __forceinline__ void ring_open(few_ring *ring) {
  if (threadIdx.x % 32 == 0) {
    for (uint32_t i = 0; i < ring->n; i++) barrier_init(&ring->filled[i]);
    barriers_ready();
  }
  ring->at = ring->turn = 0;
  __syncwarp();
}

/* Starts the copy of the piece that begins at `unit` to a place whose last piece all lanes have read. */
template <int T>
static __device__ __forceinline__ void ring_ask(const multiply_args &a, few_ring &ring, uint32_t place,
                                                const uint8_t *row_tile, uint32_t unit) {
  constexpr uint32_t size = few_piece_bytes(T);
  uint32_t from = unit / few_units(T) * size, n_bytes = min(size, a.tile_bytes - from);
  if (threadIdx.x % 32 != 0) return;
  barrier_expect(&ring.filled[place], n_bytes);
  copy_bulk_once(ring.memory + place * size, row_tile + from, n_bytes, &ring.filled[place]);
}

static __device__ __forceinline__ bool is_tail_unit(const multiply_args &a, uint32_t unit) {
  return a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Where the lane's share of x lies: prepared rows in memory, or a row in shared memory (prepare_raw). Where a product
 * has fewer than eight rows, lanes of the others read one that exists, and their results are not used. */
template <int NT>
struct x_source {
  const uint8_t *prepared[NT];
  const uint4 *raw;
};

/* From a raw row to the next one, in 16 bytes: one more than a row has, so that lanes which read neighbouring rows do
 * not ask one bank of shared memory. */
static __host__ __device__ __forceinline__ constexpr uint32_t raw_stride(uint32_t n_units) {
  return n_units * 16 + 1;
}

template <int NT, bool RAW>
static __device__ __forceinline__ void load_x(const x_source<NT> &x, uint32_t unit, int i, bool tail, uint4 (&b)[NT]) {
  if constexpr (RAW) {
    uint32_t c = threadIdx.x % 4, in = tail ? 2 * c + i : 4 * c + i;
    b[0] = x.raw[unit * 16 + in];
  } else {
#pragma unroll
    for (int n = 0; n < NT; n++)
      b[n] = __ldg((const uint4 *)(const void *)(x.prepared[n] + ((uint64_t)unit * 4 + i) * 512));
  }
}

/* sum += the piece at the ring's place, which holds units [unit, end). EARLY: x is asked for before it is needed, which
 * takes registers. */
template <int T, int NT, bool RAW, bool EARLY = NT <= 2>
static __device__ __forceinline__ void multiply_piece(const multiply_args &a, const few_ring &ring, uint32_t unit,
                                                      uint32_t end, const x_source<NT> &x, const raise_powers &powers,
                                                      float (&sum)[NT][4]) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t u = 0; u < few_units(T); u++) {
    if (form_of(T).unit == 128 && unit + u >= end) continue;
    bool tail = form_of(T).unit == 128 && is_tail_unit(a, unit + u);
    form_place place = place_of<T>(ring.memory + ring.at * few_piece_bytes(T), u, tail);
    lane_codes<T> codes;
    lane_scales<T> scales;
    lane_factors factors;
    uint4 b[EARLY ? 4 : 1][NT];
    if constexpr (EARLY) {
#pragma unroll
      for (int i = 0; i < 4; i++) load_x<NT, RAW>(x, unit + u, place.tail ? i % 2 : i, place.tail, b[i]);
    }
    load_codes<T>(place, lane, codes);
    load_scales<T>(place, lane / 4, lane % 4, scales);
    make_factors<T>(scales, place.half, lane % 4, powers, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= 2 && place.tail) continue;
      const int at = EARLY ? i : 0;
      if constexpr (!EARLY) load_x<NT, RAW>(x, unit + u, i, place.tail, b[0]);
      uint32_t w[2][4];
      operands_of<T>(codes, factors, i, w);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        mma<form_is_bf16(T)>(sum[n], w[0], b[at][n].x, b[at][n].y);
        mma<form_is_bf16(T)>(sum[n], w[1], b[at][n].z, b[at][n].w);
      }
    }
  }
}

/* ring_wait waits until the piece at the ring's place has come. ring_next waits until all lanes have read it, and goes
 * on to the next place. */
static __device__ __forceinline__ void ring_wait(const few_ring &ring) {
  barrier_wait(&ring.filled[ring.at], ring.turn);
}

static __device__ __forceinline__ void ring_next(few_ring &ring) {
  __syncwarp();
  if (++ring.at == ring.n) ring.at = 0, ring.turn ^= 1;
}

/* Inputs 8 chunk .. 8 chunk + 7 of a row; zeros beyond its end. wide: the row may be read four numbers at a time. */
static __device__ __forceinline__ void load_chunk(const float *row, uint32_t chunk, uint32_t n_in, bool wide,
                                                  float (&v)[8]) {
  uint32_t k = 8 * chunk;
  if (wide && k + 8 <= n_in) {
    ((float4 *)(void *)v)[0] = __ldcg((const float4 *)(const void *)(row + k));
    ((float4 *)(void *)v)[1] = __ldcg((const float4 *)(const void *)(row + k) + 1);
    return;
  }
#pragma unroll
  for (uint32_t e = 0; e < 8; e++) v[e] = k + e < n_in ? __ldcg(row + k + e) : 0.0f;
}

static __device__ __forceinline__ uint32_t most_of_chunk(const float (&v)[8]) {
  uint32_t most = 0;
#pragma unroll
  for (int e = 0; e < 8; e++) most = max(most, __float_as_uint(v[e]) & 0x7FFFFFFFu);
  return most;
}

template <bool BF16>
static __device__ __forceinline__ uint4 chunk_16(const float (&v)[8], float up) {
  float raised[8];
#pragma unroll
  for (int e = 0; e < 8; e++) raised[e] = __fmul_rn(v[e], up);
  return eight_16<BF16>(raised);
}

enum { RAW_KEPT = 2 }; /* chunks of eight inputs that stay in a thread's registers */

/* Inputs of a raw row that may be read four numbers at a time and has whole chunks (multiply_takes_raw). */
static __device__ __forceinline__ void load_raw(const float *row, uint32_t chunk, uint32_t n_in, float (&v)[8]) {
  const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f), *from = (const float4 *)(const void *)(row + 8 * chunk);
  bool ok = 8 * chunk < n_in;
  ((float4 *)(void *)v)[0] = ok ? __ldcg(from) : none;
  ((float4 *)(void *)v)[1] = ok ? __ldcg(from + 1) : none;
}

/* Prepares rows [0, n) in shared memory, one raw_stride behind the other, 16 bytes for 8 inputs. row(r) is row r. The
 * block has at least n warps, which share the rows out. lift, in shared memory: the exponents of the powers of two that
 * the rows were multiplied by. The roundings are those of prepare_kernel. most_of: scratch [warps]. */
template <int T, class F>
static __device__ __forceinline__ void prepare_raw(const multiply_args &a, uint32_t n, F &&row, uint32_t *most_of,
                                                   uint4 *to, int *lift) {
  uint32_t n_chunks = a.n_units * 16, warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = warp % n, most = 0;
  uint32_t n_warps = (blockDim.x / 32 - r + n - 1) / n; /* of the row */
  uint32_t first = 32 * (warp / n) + lane, step = 32 * n_warps;
  const float *from = row(r);
  float kept[RAW_KEPT][8], v[8];
  to += r * raw_stride(a.n_units);
#pragma unroll
  for (uint32_t t = 0; t < RAW_KEPT; t++)
    if (first + t * step < n_chunks) load_raw(from, first + t * step, a.n_in, kept[t]);
  int up_by = 0;
  if (!form_is_bf16(T)) {
#pragma unroll
    for (uint32_t t = 0; t < RAW_KEPT; t++)
      if (first + t * step < n_chunks) most = max(most, most_of_chunk(kept[t]));
#pragma unroll 1
    for (uint32_t chunk = first + RAW_KEPT * step; chunk < n_chunks; chunk += step) {
      load_raw(from, chunk, a.n_in, v);
      most = max(most, most_of_chunk(v));
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane == 0) most_of[warp] = most;
    __syncthreads();
    up_by = lift_of(__reduce_max_sync(0xFFFFFFFFu, most_of[r + n * min(lane, n_warps - 1)]));
  }
  if (threadIdx.x % 32 == 0 && warp < n) lift[r] = up_by;
  float up = power_of_two(up_by);
#pragma unroll
  for (uint32_t t = 0; t < RAW_KEPT; t++)
    if (first + t * step < n_chunks) to[first + t * step] = chunk_16<form_is_bf16(T)>(kept[t], up);
#pragma unroll 1
  for (uint32_t chunk = first + RAW_KEPT * step; chunk < n_chunks; chunk += step) {
    load_raw(from, chunk, a.n_in, v);
    to[chunk] = chunk_16<form_is_bf16(T)>(v, up);
  }
  __syncthreads();
}

/* Waits for the inputs of a kernel that multiplies rows by weight 0, and prepares the rows where they come raw. raise is
 * the exponent that results are lowered by, beside that of their row. */
typedef struct opened_rows {
  raise_powers powers;
  int raise;
} opened_rows;

template <int T, bool RAW, bool ONE>
static __device__ __forceinline__ opened_rows open_rows(const multiply_args &a, uint32_t *most_of, uint4 *to,
                                                        int *lift) {
  form_header header = header_of(a.weight[0].data);
  inputs_wait();
  next_may_start();
  int raise = raise_exponent(T, &header);
  if (RAW)
    prepare_raw<T>(
        a, ONE ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, most_of, to, lift);
  return {powers_of<T>(raise, a.values), raise};
}

/* The lane's share of up to eight rows of one product, of which there are n_rows, or ONE. */
template <bool RAW, bool ONE>
static __device__ __forceinline__ x_source<1> rows_of_lane(const multiply_args &a, const uint4 *raw, uint32_t n_rows) {
  uint32_t r = ONE ? 0 : min(threadIdx.x % 32 / 4, n_rows - 1);
  x_source<1> x;
  x.prepared[0] = RAW ? NULL : (const uint8_t *)a.x + x_at(a, r, threadIdx.x % 4);
  x.raw = RAW ? raw + r * raw_stride(a.n_units) : NULL;
  return x;
}

/* A row tile with all its inputs times up to eight rows, or ONE. A lane gets the results of outputs lane / 4 and lane / 4
 * + 8 for rows lane % 4 * 2 and the one after it, in the order of mma; with ONE for the first of them alone. Segments are
 * added ascending, from 0. ask(place) starts the copy of the next piece to a place that has been read. */
template <int T, bool RAW, bool ONE, class F>
static __device__ __forceinline__ void multiply_tile(const multiply_args &a, const x_source<1> &x,
                                                     const raise_powers &powers, few_ring &ring, F &&ask,
                                                     float (&all)[ONE ? 2 : 4]) {
  constexpr int n = ONE ? 2 : 4;
  float sum[1][4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
  for (int e = 0; e < n; e++) all[e] = 0.0f;
#pragma unroll 1
  for (uint32_t unit = 0, left = a.segment_units; unit < a.n_units;) {
    ring_wait(ring);
    multiply_piece<T, 1, RAW>(a, ring, unit, a.n_units, x, powers, sum);
    uint32_t place = ring.at;
    ring_next(ring);
    ask(place);
    unit += few_units(T);
    left -= few_units(T);
    if (left != 0 && unit < a.n_units) continue;
#pragma unroll
    for (int e = 0; e < n; e++) all[e] = __fadd_rn(all[e], sum[0][ONE ? 2 * e : e]);
    sum[0][0] = sum[0][1] = sum[0][2] = sum[0][3] = 0.0f;
    left = a.segment_units;
  }
}

/* ---- row tiles whose segments are in several warps ------------------------------------------------------------ */

/* The sum over segments, ascending from 0, times what undoes the preparation of the row, and then the raising of the
 * weight. part: the number of segment 0; n: floats from one segment's numbers to the next one's. */
static __device__ __forceinline__ float join_segments(uint32_t n_segments, const float *part, uint32_t n, float back,
                                                      float down) {
  float sum = 0.0f, of[FEW_SEGMENTS];
#pragma unroll
  for (uint32_t s = 0; s < FEW_SEGMENTS; s++) of[s] = s < n_segments ? part[s * n] : 0.0f;
#pragma unroll
  for (uint32_t s = 0; s < FEW_SEGMENTS; s++)
    if (s < n_segments) sum = __fadd_rn(sum, of[s]);
  return __fmul_rn(__fmul_rn(sum, back), down);
}

/* What is known of a row tile when its sums of n_rows rows are there: results go to weight; down and up_down are
 * lower_by of the tile's weight and of the one that it is gated with. */
typedef struct few_end {
  const multiply_weight *weight;
  uint32_t tile, n_rows;
  float down, up_down;
} few_end;

/* Writes a row tile's results. place(column) is the row of y, back(column) undoes the preparation of the row of x. part:
 * the sums of a row tile, [segments][NT][lane][4]; a lane takes those of one output and of every second row. */
template <int NT, bool GATED, class F, class G>
static __device__ __forceinline__ void finish_tile(const multiply_args &a, const few_end &end, const float *part,
                                                   F &&place, G &&back) {
  uint32_t lane = threadIdx.x % 32, half = lane / 2 % 2, out = end.tile * 16 + lane / 4 + 8 * half;
  if (out >= end.weight->n_out) return;
#pragma unroll 1
  for (uint32_t column = lane % 2; column < end.n_rows; column += 2) {
    const float *from = part + (column / 8 * 32 + lane / 4 * 4 + column % 8 / 2) * 4 + 2 * half + column % 2;
    float own = back(column), value = join_segments(a.n_segments, from, NT * 128, own, end.down);
    if (GATED)
      value = gate_product(a.activation, value,
                           join_segments(a.n_segments, from + a.n_segments * NT * 128, NT * 128, own, end.up_down));
    end.weight->y[(uint64_t)place(column) * end.weight->y_stride + out] = value;
  }
}

/* Multiplies a warp's segment [unit, end) of a row tile. The ring has asked for its first pieces; ask(place) asks for
 * what comes behind them. Leaves the sums at own [NT][32][4]. */
template <int T, int NT, bool RAW, bool EARLY = NT <= 2, class F>
static __device__ __forceinline__ void multiply_segment(const multiply_args &a, few_ring &ring, uint32_t unit,
                                                        uint32_t end, const x_source<NT> &x, const raise_powers &powers,
                                                        float *own, F &&ask) {
  float sum[NT][4];
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = 0.0f;
#pragma unroll 1
  for (; unit < end; unit += few_units(T)) {
    ring_wait(ring);
    multiply_piece<T, NT, RAW, EARLY>(a, ring, unit, end, x, powers, sum);
    uint32_t place = ring.at;
    ring_next(ring);
    ask(place);
  }
#pragma unroll
  for (int n = 0; n < NT; n++)
    ((float4 *)(void *)own)[n * 32 + threadIdx.x % 32] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
}

/* ---- what blocks deal out ---------------------------------------------------------------------------------- */

/* How many row tiles of a job there are to deal out to blocks; gated, how many pairs of row tiles. */
static __host__ __device__ __forceinline__ uint32_t few_tiles(const multiply_args &a) {
  if (a.gated) return a.n_weights == 2 ? a.weight[0].n_tiles : a.weight[0].n_tiles / 2;
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += a.weight[w].n_tiles;
  return n;
}

/* What a warp multiplies of an item: a row tile of a weight. */
typedef struct few_tile {
  uint32_t weight, tile;
} few_tile;

/* The tile of warp slot `slot` in a group of row tiles. False: the group has fewer. */
static __device__ __forceinline__ bool find_few_tile(const multiply_args &a, uint32_t group, uint32_t slot,
                                                     few_tile *out) {
  uint32_t n_tiles = few_tiles(a), at = a.gated ? group : group * (blockDim.x / 32 / a.n_segments) + slot, w = 0;
  if (at >= n_tiles) return false;
  if (!a.gated) {
    while (at >= a.weight[w].n_tiles) at -= a.weight[w++].n_tiles;
  } else if (slot != 0) {
    if (a.n_weights == 2)
      w = 1;
    else
      at += n_tiles;
  }
  out->weight = w;
  out->tile = at;
  return true;
}

/* The weight of the row tile that a gated tile is multiplied with: the second weight of the pair, or the same one where
 * gate and up are its halves. */
static __device__ __forceinline__ uint32_t gated_with(const multiply_args &a, few_tile tile) {
  bool is_pair = a.gated && (tile.weight >= MULTIPLY_SHARED || a.n_weights == 2);
  return is_pair ? tile.weight + 1 : tile.weight;
}

/* Items: row tiles of the shared MLP, then groups of row tiles, job by job. A group is what a block takes at once;
 * gated it is one pair of row tiles. */
typedef struct few_items {
  uint32_t n, n_shared, n_groups;
} few_items;

/* The job of an item; it is the same for all warps of a block. False: the job does not exist. */
static __device__ __forceinline__ bool find_job(const multiply_args &a, const few_items &items, uint32_t index,
                                                uint32_t width, multiply_job *job) {
  *job = {0, 0, 1};
  return index < items.n_shared || job_of(a, (index - items.n_shared) / items.n_groups, width, job);
}

/* A warp's tile of an item. False: it has none. */
static __device__ __forceinline__ bool find_own(const multiply_args &a, const few_items &items, uint32_t index,
                                                uint32_t slot, few_tile *out) {
  if (index >= items.n_shared) return find_few_tile(a, (index - items.n_shared) % items.n_groups, slot, out);
  *out = {MULTIPLY_SHARED + slot, index};
  return true;
}

/* The next piece that a warp will ask for. */
typedef struct few_cursor {
  uint32_t index, unit;
  const uint8_t *row_tile; /* NULL: there is no more */
  const uint8_t *steps;    /* products of 8 bits only */
} few_cursor;

/* Moves on to item at->index or the first one of the block after it that has work for the warp. */
template <int NT>
static __device__ __forceinline__ void enter_item(const multiply_args &a, const few_items &items, uint32_t slot,
                                                  uint32_t first, few_cursor *at) {
  multiply_job job;
  few_tile tile;
  at->row_tile = NULL;
  at->unit = first;
  for (; at->index < items.n; at->index += gridDim.x) {
    if (!find_job(a, items, at->index, 8 * NT, &job) || !find_own(a, items, at->index, slot, &tile)) continue;
    const multiply_weight &weight = a.weight[tile.weight];
    uint64_t own = (uint64_t)job.matrix * weight.n_tiles + tile.tile;
    at->row_tile = weight.data + FORM_HEADER_BYTES + own * a.tile_bytes;
    at->steps = weight.steps + own * eight_spans_of(a) * EIGHT_STEPS_BYTES;
    return;
  }
}

/* Where all of the warp's segment [first, end) has been asked for, moves on to the warp's next item. False: there is no
 * piece to ask for. */
template <int NT>
static __device__ __forceinline__ bool find_next_piece(const multiply_args &a, const few_items &items, uint32_t slot,
                                                       uint32_t first, uint32_t end, few_cursor *at) {
  if (at->unit >= end) {
    at->index += gridDim.x;
    enter_item<NT>(a, items, slot, first, at);
  }
  return at->row_tile != NULL;
}

/* ---- host ---------------------------------------------------------------------------------------------------- */

static inline multiply_args few_args_of(const multiply_args &a) {
  multiply_args own = a;
  own.raw.wide = multiply_is_wide(a.raw.x, a.raw.x_stride) && multiply_is_wide(a.shared_x, a.shared_stride);
  return own;
}

/* n_slots: row tiles that a block takes at once. */
static inline few_items few_items_of(const multiply_args &a, uint32_t n_slots) {
  few_items items = {0, a.n_shared, cuda_ceil(few_tiles(a), a.gated ? 1 : n_slots)};
  items.n = items.n_shared + items.n_groups * (a.ids != NULL ? a.jobs_max : 1);
  return items;
}

/* As many blocks of n_warps and `bytes` of shared memory as the card holds at once, at most one to an item. */
static inline uint32_t few_blocks_of(const cuda_device *d, const few_items &items, uint32_t n_warps, uint32_t bytes) {
  uint32_t by_bytes = FEW_SHARED_BYTES_MAX / bytes, by_warps = FEW_WARPS_MAX / n_warps;
  uint32_t n_blocks = d->n_multiprocessors * (by_bytes < by_warps ? by_bytes : by_warps);
  return items.n < n_blocks ? items.n : n_blocks;
}

/* Shared memory of a block: places of the warps, two sets of sums, n_raw rows of n_units. */
template <int T, int NT>
static constexpr uint32_t few_bytes(uint32_t n_warps, uint32_t n_raw, uint32_t n_units) {
  return n_warps * (FEW_PLACES * few_piece_bytes(T) + 2 * NT * 512) + n_raw * raw_stride(n_units) * 16;
}

static inline weft_status few_set_up(cuda_device *d, const void *kernel) {
  return cuda_judge(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, FEW_SHARED_BYTES_MAX),
                    "setting up products");
}

#endif
