/* SPDX-License-Identifier: MIT */
/* What the GEMV kernels share: each warp's pipeline of packed weights, the fused prologue, the products on mma.sync,
 * the split-K reduction and the epilogue.
 *
 * Law: every warp has a ring of stages of its own, and issues the copy into a stage when all its lanes have read what
 * was there; what a stage is, is of the kernel set (gemv_ring.cuh). Sums have the order of gemm.h or, in w8a8_gemv.cu,
 * that of w8a8.h.
 *
 * No kernel writes weights while steps run. So a block issues the copies of its first weights before it waits for the
 * kernels before it (programmatic dependent launch), and they arrive while the last of these ends. (The first kernel
 * after a weight was placed starts only when that is done: cuda_device.fresh.) */
#ifndef WEFT_KERNELS_CUDA_GEMV_CUH
#define WEFT_KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/gemm/w8a8.h"
#ifdef WEFT_CUDA_PORTABLE
#ifndef WEFT_KERNELS_CUDA_PORTABLE_W8A8_RING_CUH /* which kernels of 8 bits have */
#include "kernels/cuda/portable/gemv_ring.cuh"
#endif
#else
#include "kernels/cuda/gemm/gemv_ring.cuh"
#endif

enum {
  GEMV_WARPS_MAX = 24, /* of a block, and of all blocks on a multiprocessor */
  GEMV_SPLITS_MAX = 8  /* of the inputs, at the most */
};

/* A piece is what a stage of the ring holds: 128 inputs of 16-bit codes, 256 of others. Splits are whole multiples of
 * 256. */
__host__ __device__ constexpr uint32_t gemv_units(int type) {
  return packed_bits(type) == 16 ? 1 : 2;
}

__host__ __device__ constexpr uint32_t gemv_piece_bytes(int type) {
  return gemv_units(type) * 128 * packed_unit_bytes(packed_shape_of(type)) / packed_shape_of(type).unit;
}

/* Shared memory of a stage, and of a warp's ring. */
__host__ __device__ constexpr uint32_t gemv_stage_bytes(int type) {
  return ring_stage_bytes(gemv_piece_bytes(type));
}

__host__ __device__ constexpr uint32_t gemv_ring_bytes(int type) {
  return GEMV_STAGES * gemv_stage_bytes(type);
}

/* Starts the copy of the piece that begins at `unit` to a stage whose last piece all lanes have read. */
template <int T>
static __device__ __forceinline__ void issue_piece(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                   const uint8_t *row_tile, uint32_t unit) {
  constexpr uint32_t size = gemv_piece_bytes(T);
  uint32_t from = unit / gemv_units(T) * size;
  ring_issue(ring, stage, row_tile + from, min(size, a.tile_bytes - from));
}

static __device__ __forceinline__ bool is_tail_unit(const gemm_args &a, uint32_t unit) {
  return a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Where the lane's share of x lies: rows after the prologue in memory, or a row in shared memory (fused_prologue).
 * Where a product has fewer than eight rows, lanes of the others read one that exists, and their results are not
 * used. */
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

/* What load_x gives of rows that come tiled (gemm.h), as those of a kernel for 17 rows and more do: words of two
 * numbers from four pieces. tile: of the lane's row, unit 0. */
static __device__ __forceinline__ uint4 load_tiled_x(const gemm_args &a, const uint8_t *tile, uint32_t unit, int i) {
  uint32_t c = threadIdx.x % 4, row = threadIdx.x % 32 / 4;
  const uint8_t *from = tile + (uint64_t)unit * a.x_tiles * 2048 + i / 2 * 1024 + row * 128 + c * 4;
  uint32_t word[4];
#pragma unroll
  for (uint32_t j = 0; j < 4; j++) word[j] = *(const uint32_t *)(const void *)(from + ((i % 2 * 4 + j) ^ row) * 16);
  return make_uint4(word[0], word[1], word[2], word[3]);
}

template <int NT, bool RAW>
static __device__ __forceinline__ void load_x(const gemm_args &a, const x_source<NT> &x, uint32_t unit, int i,
                                              bool tail, uint4 (&b)[NT]) {
  if constexpr (RAW) {
    uint32_t c = threadIdx.x % 4, in = tail ? 2 * c + i : 4 * c + i;
    b[0] = x.raw[unit * 16 + in];
  } else if constexpr (NT > 2) {
#pragma unroll
    for (int n = 0; n < NT; n++) b[n] = load_tiled_x(a, x.prepared[n], unit, i);
  } else { /* no __ldg: the prologue may still write these rows when this kernel begins */
#pragma unroll
    for (int n = 0; n < NT; n++) b[n] = *(const uint4 *)(const void *)(x.prepared[n] + ((uint64_t)unit * 4 + i) * 512);
  }
}

/* The lane's share of x for 128 inputs, in registers. */
template <int NT>
struct x_unit {
  uint4 of[4][NT];
};

template <int T, int NT, bool RAW>
static __device__ __forceinline__ void load_unit_x(const gemm_args &a, const x_source<NT> &x, uint32_t unit,
                                                   x_unit<NT> &to) {
  bool tail = packed_shape_of(T).unit == 128 && is_tail_unit(a, unit);
#pragma unroll
  for (int i = 0; i < 4; i++) load_x<NT, RAW>(a, x, unit, tail ? i % 2 : i, tail, to.of[i]);
}

/* sum += the piece in the ring's stage, which holds units [unit, end). EARLY: x is loaded before it is needed, which
 * takes registers; that of the first unit, where it comes from memory, is `ahead`, loaded before the wait for the
 * piece. */
template <int T, int NT, bool RAW, bool EARLY = NT <= 2>
static __device__ __forceinline__ void multiply_piece(const gemm_args &a, const gemv_ring &ring, uint32_t unit,
                                                      uint32_t end, const x_source<NT> &x, const x_unit<NT> &ahead,
                                                      const prescale_powers &powers, float (&sum)[NT][4]) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t u = 0; u < gemv_units(T); u++) {
    if (packed_shape_of(T).unit == 128 && unit + u >= end) continue;
    bool tail = packed_shape_of(T).unit == 128 && is_tail_unit(a, unit + u);
    packed_block block = packed_block_of<T>(ring_piece(ring), u, tail);
    lane_codes<T> codes;
    lane_scales<T> scales;
    dequant_factors factors;
    x_unit<NT> b;
    if constexpr (EARLY && !RAW)
      if (u == 0) b = ahead;
    if (EARLY && (RAW || u > 0)) load_unit_x<T, NT, RAW>(a, x, unit + u, b);
    load_codes<T>(block, lane, codes);
    load_scales<T>(block, lane / 4, lane % 4, scales);
    make_dequant_factors<T>(scales, block.half, lane % 4, powers, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= 2 && block.tail) continue;
      const int at = EARLY ? i : 0;
      if constexpr (!EARLY) load_x<NT, RAW>(a, x, unit + u, i, block.tail, b.of[0]);
      uint32_t w[2][4];
      dequantise_operands<T>(codes, factors, i, w);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        mma<packed_is_bf16(T)>(sum[n], w[0], b.of[at][n].x, b.of[at][n].y);
        mma<packed_is_bf16(T)>(sum[n], w[1], b.of[at][n].z, b.of[at][n].w);
      }
    }
  }
}

static __device__ __forceinline__ uint32_t chunk_max(const float (&v)[8]) {
  uint32_t most = 0;
#pragma unroll
  for (int e = 0; e < 8; e++) most = max(most, __float_as_uint(v[e]) & 0x7FFFFFFFu);
  return most;
}

template <bool BF16>
static __device__ __forceinline__ uint4 chunk_16(const float (&v)[8], float up) {
  float scaled[8];
#pragma unroll
  for (int e = 0; e < 8; e++) scaled[e] = __fmul_rn(v[e], up);
  return pack_f16x8<BF16>(scaled);
}

enum { RAW_KEPT = 2 }; /* chunks of eight inputs that stay in a thread's registers */

/* Inputs of a raw row that may be read four numbers at a time and has whole chunks (gemm_takes_raw). */
static __device__ __forceinline__ void load_raw(const float *row, uint32_t chunk, uint32_t n_in, float (&v)[8]) {
  const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f), *from = (const float4 *)(const void *)(row + 8 * chunk);
  bool ok = 8 * chunk < n_in;
  ((float4 *)(void *)v)[0] = ok ? __ldcg(from) : none;
  ((float4 *)(void *)v)[1] = ok ? __ldcg(from + 1) : none;
}

/* The fused prologue: converts rows [0, n) in shared memory, one raw_stride behind the other, 16 bytes for 8 inputs.
 * row(r) is row r. The block has at least n warps, which share the rows out. scale_exponent, in shared memory: the
 * exponents of the powers of two that the rows were multiplied by. The roundings are those of prologue_kernel.
 * most_of: scratch [warps]. */
template <int T, class F>
static __device__ __forceinline__ void fused_prologue(const gemm_args &a, uint32_t n, F &&row, uint32_t *most_of,
                                                      uint4 *to, int *scale_exponent) {
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
  if (!packed_is_bf16(T)) {
#pragma unroll
    for (uint32_t t = 0; t < RAW_KEPT; t++)
      if (first + t * step < n_chunks) most = max(most, chunk_max(kept[t]));
#pragma unroll 1
    for (uint32_t chunk = first + RAW_KEPT * step; chunk < n_chunks; chunk += step) {
      load_raw(from, chunk, a.n_in, v);
      most = max(most, chunk_max(v));
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane == 0) most_of[warp] = most;
    __syncthreads();
    up_by = scale_exponent_of(__reduce_max_sync(0xFFFFFFFFu, most_of[r + n * min(lane, n_warps - 1)]));
  }
  if (threadIdx.x % 32 == 0 && warp < n) scale_exponent[r] = up_by;
  float up = power_of_two(up_by);
#pragma unroll
  for (uint32_t t = 0; t < RAW_KEPT; t++)
    if (first + t * step < n_chunks) to[first + t * step] = chunk_16<packed_is_bf16(T)>(kept[t], up);
#pragma unroll 1
  for (uint32_t chunk = first + RAW_KEPT * step; chunk < n_chunks; chunk += step) {
    load_raw(from, chunk, a.n_in, v);
    to[chunk] = chunk_16<packed_is_bf16(T)>(v, up);
  }
  __syncthreads();
}

/* Waits for the kernels before one that multiplies rows by weight 0, and runs the fused prologue where the rows come
 * raw. prescale: the exponent of the weight, which the epilogue undoes beside that of the row. */
typedef struct opened_rows {
  prescale_powers powers;
  int prescale;
} opened_rows;

template <int T, bool RAW, bool ONE>
static __device__ __forceinline__ opened_rows open_rows(const gemm_args &a, uint32_t *most_of, uint4 *to,
                                                        int *scale_exponent) {
  packed_header header = header_of(a.weight[0].header);
  wait_for_prior_grids();
  launch_dependent_grids();
  int prescale = prescale_exponent(T, &header);
  if (RAW)
    fused_prologue<T>(
        a, ONE ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, most_of, to, scale_exponent);
  return {powers_of<T>(prescale, a.values), prescale};
}

/* The lane's share of up to eight rows of one product, of which there are n_rows, or ONE. */
template <bool RAW, bool ONE>
static __device__ __forceinline__ x_source<1> rows_of_lane(const gemm_args &a, const uint4 *raw, uint32_t n_rows) {
  uint32_t r = ONE ? 0 : min(threadIdx.x % 32 / 4, n_rows - 1);
  x_source<1> x;
  x.prepared[0] = RAW ? NULL : (const uint8_t *)a.x + x_at(a, r, threadIdx.x % 4);
  x.raw = RAW ? raw + r * raw_stride(a.n_units) : NULL;
  return x;
}

/* A row tile with all its inputs times up to eight rows, or ONE. A lane gets the results of outputs lane / 4 and
 * lane / 4 + 8 for rows lane % 4 * 2 and the one after it, in the order of mma; with ONE for the first of them
 * alone. Splits are added ascending, from 0. issue(stage) starts the copy of the next piece to a stage that has been
 * read. */
template <int T, bool RAW, bool ONE, class F>
static __device__ __forceinline__ void multiply_tile(const gemm_args &a, const x_source<1> &x,
                                                     const prescale_powers &powers, gemv_ring &ring, F &&issue,
                                                     float (&all)[ONE ? 2 : 4]) {
  constexpr int n = ONE ? 2 : 4;
  float sum[1][4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
  for (int e = 0; e < n; e++) all[e] = 0.0f;
#pragma unroll 1
  for (uint32_t unit = 0, left = a.split_units; unit < a.n_units;) {
    x_unit<1> ahead;
    if (!RAW) load_unit_x<T, 1, RAW>(a, x, unit, ahead);
    ring_wait(ring);
    multiply_piece<T, 1, RAW>(a, ring, unit, a.n_units, x, ahead, powers, sum);
    uint32_t stage = ring.at;
    ring_advance(ring);
    issue(stage);
    unit += gemv_units(T);
    left -= gemv_units(T);
    if (left != 0 && unit < a.n_units) continue;
#pragma unroll
    for (int e = 0; e < n; e++) all[e] = __fadd_rn(all[e], sum[0][ONE ? 2 * e : e]);
    sum[0][0] = sum[0][1] = sum[0][2] = sum[0][3] = 0.0f;
    left = a.split_units;
  }
}

/* ---- split-K reduction and epilogue --------------------------------------------------- */

/* The split-K reduction: the sum over splits, ascending from 0, times what undoes the scaling of the row, and then
 * the prescale of the weight. part: the number of split 0; n: floats from one split's numbers to the next one's. */
static __device__ __forceinline__ float reduce_split_k(uint32_t n_splits, const float *part, uint32_t n, float unscale,
                                                       float w_unscale) {
  float sum = 0.0f, of[GEMV_SPLITS_MAX];
#pragma unroll
  for (uint32_t s = 0; s < GEMV_SPLITS_MAX; s++) of[s] = s < n_splits ? part[s * n] : 0.0f;
#pragma unroll
  for (uint32_t s = 0; s < GEMV_SPLITS_MAX; s++)
    if (s < n_splits) sum = __fadd_rn(sum, of[s]);
  return __fmul_rn(__fmul_rn(sum, unscale), w_unscale);
}

/* What the epilogue of a row tile needs: results of n_rows rows go to weight; w_unscale and up_w_unscale are
 * weight_unscale_of of the tile's weight and of the one that it is gated with. */
typedef struct epilogue_args {
  const gemm_weight *weight;
  uint32_t tile, n_rows;
  float w_unscale, up_w_unscale;
} epilogue_args;

/* A result from the sums of its row tile, [splits][NT][lane][4]. own: which of the tile's 16 outputs it is of. unscale
 * undoes the scaling of the row of x. */
template <int NT>
static __device__ __forceinline__ float reduce_output(const gemm_args &a, const float *part, uint32_t column,
                                                      uint32_t own, float unscale, float w_unscale) {
  const float *from = part + (column / 8 * 32 + own % 8 * 4 + column % 8 / 2) * 4 + own / 8 * 2 + column % 2;
  return reduce_split_k(a.n_splits, from, NT * 128, unscale, w_unscale);
}

/* The epilogue of a row tile: reduces its splits, gates and stores. part: the tile's sums, and behind them those of the
 * tile of up. A lane takes one output of every second row; unscale(column) undoes the scaling of the row of x. */
template <int NT, bool GATED, class F>
static __device__ __forceinline__ void run_epilogue(const gemm_args &a, const epilogue_args &end, const float *part,
                                                    F &&unscale) {
  uint32_t lane = threadIdx.x % 32, own = lane / 4 + 8 * (lane / 2 % 2), out = end.tile * 16 + own;
  if (out >= end.weight->n_out) return;
#pragma unroll 1
  for (uint32_t column = lane % 2; column < end.n_rows; column += 2) {
    float x = unscale(column), value = reduce_output<NT>(a, part, column, own, x, end.w_unscale);
    if (GATED)
      value = gate_product(a.activation, value,
                           reduce_output<NT>(a, part + a.n_splits * NT * 128, column, own, x, end.up_w_unscale));
    end.weight->y[column * end.weight->y_stride + out] = value;
  }
}

/* Multiplies a warp's split [unit, end) of a row tile. The copies of its first pieces are in flight; issue(stage)
 * issues the copies of what comes behind them. Leaves the sums at own [NT][32][4]. */
template <int T, int NT, bool RAW, bool EARLY = NT <= 2, class F>
static __device__ __forceinline__ void multiply_split(const gemm_args &a, gemv_ring &ring, uint32_t unit, uint32_t end,
                                                      const x_source<NT> &x, const prescale_powers &powers, float *own,
                                                      F &&issue) {
  float sum[NT][4];
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = 0.0f;
#pragma unroll 1
  for (; unit < end; unit += gemv_units(T)) {
    x_unit<NT> ahead;
    if (EARLY && !RAW) load_unit_x<T, NT, RAW>(a, x, unit, ahead);
    ring_wait(ring);
    multiply_piece<T, NT, RAW, EARLY>(a, ring, unit, end, x, ahead, powers, sum);
    uint32_t stage = ring.at;
    ring_advance(ring);
    issue(stage);
  }
#pragma unroll
  for (int n = 0; n < NT; n++)
    ((float4 *)(void *)own)[n * 32 + threadIdx.x % 32] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
}

/* ---- tile scheduler ------------------------------------------------------------------- */

/* How many row tiles of a job there are to schedule; gated, how many pairs of row tiles. */
static __host__ __device__ __forceinline__ uint32_t gemv_tiles(const gemm_args &a) {
  if (a.gated) return a.n_weights == 2 ? a.weight[0].n_tiles : a.weight[0].n_tiles / 2;
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += a.weight[w].n_tiles;
  return n;
}

/* How a kernel's rows come: after the prologue, one raw one, or some raw ones. */
enum { ROWS_PREPARED, ROWS_RAW_ONE, ROWS_RAW };

/* A warp's row tile: number `tile` of a weight. data NULL: there is none. */
typedef struct dense_tile {
  uint32_t weight, tile;
  const uint8_t *data;
} dense_tile;

/* The row tile of a warp slot in a block's group of them. Gated, a group is a tile of the gate and the same one of up,
 * which are two weights or the halves of one. */
template <bool GATED>
static __device__ __forceinline__ dense_tile find_dense(const gemm_args &a, uint32_t group, uint32_t slot) {
  dense_tile t = {0, GATED ? group : group * (blockDim.x / 32 / a.n_splits) + slot, NULL};
  if (GATED) {
    if (group >= gemv_tiles(a)) return t;
    if (slot != 0 && a.n_weights == 2) t.weight = 1;
    if (slot != 0 && a.n_weights != 2) t.tile += gemv_tiles(a);
  } else {
    while (t.weight < a.n_weights && t.tile >= a.weight[t.weight].n_tiles) t.tile -= a.weight[t.weight++].n_tiles;
    if (t.weight == a.n_weights) return t;
  }
  t.data = a.weight[t.weight].data + PACKED_HEADER_BYTES + (uint64_t)t.tile * a.tile_bytes;
  return t;
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* As many blocks of n_warps and `bytes` of shared memory as the card holds at once, at most one to each item that a
 * block takes at once. */
static inline uint32_t gemv_blocks_of(const cuda_device *d, uint32_t n_items, uint32_t n_warps, uint32_t bytes) {
  uint32_t by_bytes = gemv_blocks_in(bytes), by_warps = GEMV_WARPS_MAX / n_warps;
  uint32_t n_blocks = d->n_multiprocessors * (by_bytes < by_warps ? by_bytes : by_warps);
  return n_items < n_blocks ? n_items : n_blocks;
}

/* Shared memory of a block: stages of the warps, two sets of sums, n_raw rows of n_units. */
template <int T, int NT>
static constexpr uint32_t gemv_bytes(uint32_t n_warps, uint32_t n_raw, uint32_t n_units) {
  return n_warps * (gemv_ring_bytes(T) + 2 * NT * 512) + n_raw * raw_stride(n_units) * 16;
}

static inline weft_status gemv_set_up(cuda_device *d, const void *kernel) {
  return cuda_judge(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GEMV_SHARED_BYTES_MAX),
                    "setting up products");
}

#endif
