/* SPDX-License-Identifier: MIT */
/* Experts in MXFP4 with some rows each, as decoding of some ten to a hundred sequences has them: weights are read once
 * and each number is multiplied by a few rows, so what counts is how few instructions a number takes and that copies
 * never stop.
 *
 * A warp has items of its own: a row tile of one job, of gate and up together the same one of both. It streams the
 * packed weights of its items, one after another, through a ring of stages of its own, as the warps of a GEMV do, so no
 * warp waits for another. Products are those of mma.sync, 16 outputs by 8 rows. A block has neighbouring items, which
 * read the same rows; these come from memory by way of the first cache.
 *
 * Where gate and up are multiplied the warp has both numbers of act(g) * u, adds their biases, gates them and stores
 * them as rows of down. MXFP4 is multiplied in bf16, so rows need no scaling and no search for their maximum.
 *
 * Law: sums have the order of gemm.h. A stage is copied to again when all lanes have used what they read of it. */
#include "kernels/cuda/moe/experts_stream.h"

#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/mxfp4.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

enum { STREAM_WARPS = 16, STREAM_THREADS = 32 * STREAM_WARPS };

/* An item's row tiles, and a stage, which holds some units of 128 inputs of each. */
template <bool GATED>
struct stream_shape {
  static constexpr int type = WEFT_TYPE_MXFP4;
  static constexpr uint32_t tiles = GATED ? 2 : 1, units = 4 / tiles, stages = 2;
  static constexpr uint32_t unit = packed_unit_bytes(packed_shape_of(type)), piece = units * unit,
                            stage = tiles * piece;
  static constexpr uint32_t bytes = STREAM_WARPS * stages * stage;
};

/* What a product with gate and up leaves: act(g) * u of every place as the prologue of down would leave it, in the GEMV
 * layout. The biases are [n_mats, n_ff], both or none. */
typedef struct stream_gate {
  const float *gate_bias, *up_bias;
  uint8_t *h;
  uint32_t n_units, is_tail; /* packed_dims of down */
} stream_gate;

typedef struct stream_args {
  gemm_args gemm;
  stream_gate gate;
} stream_args;

/* Row tiles of a job, of the gate or of up. */
static __device__ __forceinline__ uint32_t groups_of(const gemm_args &a) {
  return (a.weight[0].n_out + 15) / 16;
}

/* What a warp copies next: byte `at` of the row tiles of item `ahead`, if that is before `end`. */
template <class S>
struct stream_source {
  const gemm_args &a;
  uint32_t ahead, end, at;
  const uint8_t *from[S::tiles];

  __device__ __forceinline__ void seek() {
    at = 0;
    if (ahead >= end) return;
    uint32_t n_groups = groups_of(a), job = ahead / n_groups;
    uint32_t matrix = __ldcg(&a.jobs[job].matrix), tile = ahead - job * n_groups;
#pragma unroll
    for (uint32_t m = 0; m < S::tiles; m++)
      from[m] = a.weight[m].data + PACKED_HEADER_BYTES + ((uint64_t)matrix * a.weight[m].n_tiles + tile) * a.tile_bytes;
  }
  __device__ __forceinline__ void issue(gemv_ring &ring, uint32_t stage) {
    if (ahead >= end) return;
    uint32_t n_bytes = min(S::piece, a.tile_bytes - at);
    if (threadIdx.x % 32 == 0) {
      mbarrier_expect(&ring.filled[stage], S::tiles * n_bytes);
#pragma unroll
      for (uint32_t m = 0; m < S::tiles; m++)
        bulk_copy_streamed(ring.memory + stage * S::stage + m * S::piece, from[m] + at, n_bytes, &ring.filled[stage]);
    }
    at += n_bytes;
    if (at < a.tile_bytes) return;
    ahead += STREAM_WARPS;
    seek();
  }
};

/* How the stored scales of a weight become those that codes are multiplied by (mxfp4.cuh). add: prescale + 126, twice.
 * has_nan: some scales are no numbers, which placing has noted where other types have a zero point. */
typedef struct stream_scaling {
  int prescale;
  uint32_t add;
  bool has_nan;
} stream_scaling;

static __device__ __forceinline__ stream_scaling scaling_of(const uint8_t *header) {
  const packed_header *of = (const packed_header *)(const void *)header;
  int prescale = grouped_prescale<WEFT_TYPE_MXFP4>(of);
  return {prescale, (uint32_t)(prescale + 126 & 0xFFFF) * 0x10001u, of->max_zero_point != 0};
}

/* make_dequant_factors of two rows at once. exponents: a byte of each. */
static __device__ __forceinline__ void make_stream_factors(uint32_t exponents, const stream_scaling &of,
                                                           dequant_factors &out) {
  uint32_t pair = __viaddmax_s16x2(__byte_perm(exponents, 0, 0x4140), of.add, 0) << 7;
  out.of[0][0] = __byte_perm(pair, 0, 0x1010);
  out.of[1][0] = __byte_perm(pair, 0, 0x3232);
  if (!of.has_nan) return;
  __syncwarp(); /* so that this is a branch, and no selections for all others */
  if ((exponents & 0xFFu) == 0xFFu) out.of[0][0] = 0x7FC07FC0u;
  if (exponents >> 8 == 0xFFu) out.of[1][0] = 0x7FC07FC0u;
}

/* The lane's share of 8 N rows for a unit. ahead: there are registers for all of it, so it is loaded a unit ahead. */
template <int N>
struct stream_rows {
  static constexpr bool ahead = N <= 2;
  uint4 of[4][N];

  __device__ __forceinline__ void load(const gemm_args &a, const uint8_t *x, int i) {
#pragma unroll
    for (int n = 0; n < N; n++) of[i][n] = *(const uint4 *)(const void *)(x + (uint64_t)n * a.n_units * 2048 + i * 512);
  }
};

/* sums += products of a unit of the tiles, which begins at `from`, with rows, which are then those of the next unit:
 * at x, if it exists (is_next). */
template <int N, class S, bool TAIL>
static __device__ __forceinline__ void multiply_unit(const gemm_args &a, const uint8_t *from, const uint8_t *x,
                                                     bool is_next, const stream_scaling (&of)[S::tiles],
                                                     stream_rows<N> &rows, float (&sum)[S::tiles][N][4]) {
  constexpr int T = S::type;
  lane_codes<T> codes[S::tiles];
  dequant_factors factors[S::tiles];
#pragma unroll
  for (uint32_t m = 0; m < S::tiles; m++) {
    packed_block block = packed_block_of<T>(from + m * S::piece, 0, TAIL);
    lane_scales<T> scales;
    load_codes<T>(block, threadIdx.x % 32, codes[m]);
    load_scales<T>(block, threadIdx.x % 32 / 4, threadIdx.x % 4, scales);
    make_stream_factors(scales.row[0].x, of[m], factors[m]);
  }
#pragma unroll
  for (int i = 0; i < (TAIL ? 2 : 4); i++) {
    if (!rows.ahead) rows.load(a, x - 2048, i);
#pragma unroll
    for (uint32_t m = 0; m < S::tiles; m++) {
      uint32_t w[2][4];
      dequantise_operands<T>(codes[m], factors[m], i, w);
#pragma unroll
      for (int n = 0; n < N; n++) {
        mma_bf16(sum[m][n], w[0], rows.of[i][n].x, rows.of[i][n].y);
        mma_bf16(sum[m][n], w[1], rows.of[i][n].z, rows.of[i][n].w);
      }
    }
    if (rows.ahead && !TAIL && is_next) rows.load(a, x, i);
  }
}

/* all: the products of an item with 8 N rows. x: the lane's share of the rows. */
template <int N, class S>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, gemv_ring &ring, stream_source<S> &source,
                                                     const uint8_t *x, const stream_scaling (&of)[S::tiles],
                                                     float (&all)[S::tiles][N][4]) {
  constexpr uint32_t n_sums = S::tiles * N * 4;
  float sum[S::tiles][N][4];
  float *const one = &sum[0][0][0], *const whole = &all[0][0][0];
  stream_rows<N> rows;
#pragma unroll
  for (int i = 0; i < 4 && rows.ahead; i++) rows.load(a, x, i);
#pragma unroll
  for (uint32_t k = 0; k < n_sums; k++) one[k] = whole[k] = 0.0f;
  uint32_t of_split = 0, of_stage = 0;
#pragma unroll 1
  for (uint32_t unit = 0; unit < a.n_units;) {
    const uint8_t *from = ring_piece(ring) + of_stage * S::unit;
    if (of_stage == 0) ring_wait(ring);
    bool is_tail = is_tail_unit(a, unit), is_next = ++unit < a.n_units;
    x += 2048;
    if (is_tail)
      multiply_unit<N, S, true>(a, from, x, false, of, rows, sum);
    else
      multiply_unit<N, S, false>(a, from, x, is_next, of, rows, sum);
    of_stage++, of_split++;
    if (of_stage == S::units || !is_next) {
      uint32_t stage = ring.at;
      __threadfence_block(); /* what was read is there */
      ring_advance(ring);
      source.issue(ring, stage);
      of_stage = 0;
    }
    if (of_split < a.split_units && is_next) continue;
    of_split = 0;
#pragma unroll
    for (uint32_t k = 0; k < n_sums; k++) whole[k] = __fadd_rn(whole[k], one[k]), one[k] = 0.0f;
  }
}

/* Where number `out` of the row of a place lies in the GEMV layout. */
static __device__ __forceinline__ uint8_t *place_of(const stream_gate &gate, uint32_t place, uint32_t out) {
  uint32_t unit = out / 128, in = out % 128, shift = gate.is_tail != 0 && unit + 1 == gate.n_units ? 4 : 5;
  uint32_t c = in >> shift, e = in & ((1u << shift) - 1);
  return gate.h + ((uint64_t)(place / 8) * gate.n_units + unit) * 2048 + e / 8 * 512 + (place % 8 * 4 + c) * 16 +
         e % 8 * 2;
}

/* Stores act(g) * u of an item: `all` of the gate, then of up. Lane 4 g + c has, of every eight rows, rows 2 c and
 * 2 c + 1 of outputs g and g + 8. */
template <int N>
static __device__ __forceinline__ void store_gated(const stream_args &s, const gemm_job &job, uint32_t tile,
                                                   const stream_scaling (&of)[2], const float (&all)[2][N][4]) {
  const gemm_args &a = s.gemm;
  uint32_t out = tile * 16 + threadIdx.x % 32 / 4, row = threadIdx.x % 4 * 2;
  float undo[2] = {weight_unscale_of(a.weight[0], job.matrix, of[0].prescale),
                   weight_unscale_of(a.weight[1], job.matrix, of[1].prescale)};
#pragma unroll
  for (uint32_t h = 0; h < 2; h++, out += 8) {
    uint64_t at = (uint64_t)job.matrix * a.weight[0].n_out + out;
    uint8_t *to = place_of(s.gate, job.first + row, out); /* the next row lies 64 bytes on, eight rows on a tile */
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (uint32_t j = 0; j < 2; j++) {
        float g = __fmul_rn(all[0][n][2 * h + j], undo[0]), u = __fmul_rn(all[1][n][2 * h + j], undo[1]);
        float v = limited_biased_gate(a.activation, a.limit, g, u, s.gate.gate_bias, s.gate.up_bias, at);
        if (8 * n + row + j < job.n)
          *(__nv_bfloat16 *)(void *)(to + (uint64_t)n * s.gate.n_units * 2048 + j * 64) = __float2bfloat16_rn(v);
      }
  }
}

/* Stores the results of an item. */
template <int N>
static __device__ __forceinline__ void store_results(const gemm_args &a, const gemm_job &job, uint32_t tile,
                                                     const stream_scaling (&of)[1], const float (&all)[1][N][4]) {
  uint32_t out = tile * 16 + threadIdx.x % 32 / 4, row = threadIdx.x % 4 * 2;
  float undo = weight_unscale_of(a.weight[0], job.matrix, of[0].prescale);
  float *y = a.weight[0].y + (uint64_t)(job.first + row) * a.weight[0].y_stride + out;
#pragma unroll
  for (int n = 0; n < N; n++, y += 8 * a.weight[0].y_stride)
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
      if (8 * n + row + e % 2 < job.n && out + e / 2 * 8 < a.weight[0].n_out)
        y[e % 2 * a.weight[0].y_stride + e / 2 * 8] = __fmul_rn(all[0][n][e], undo);
}

template <int N, bool GATED>
static __device__ __forceinline__ void run_item(const stream_args &s, gemv_ring &ring,
                                                stream_source<stream_shape<GATED>> &source, const gemm_job &job,
                                                uint32_t tile, const stream_scaling (&of)[GATED ? 2 : 1]) {
  using S = stream_shape<GATED>;
  const gemm_args &a = s.gemm;
  float all[S::tiles][N][4];
  const uint8_t *x = (const uint8_t *)a.x + (uint64_t)(job.first / 8) * a.n_units * 2048 + threadIdx.x % 32 * 16;
  multiply_item<N, S>(a, ring, source, x, of, all);
  if constexpr (GATED)
    store_gated<N>(s, job, tile, of, all);
  else
    store_results<N>(a, job, tile, of, all);
}

template <bool GATED>
static __global__ void __launch_bounds__(STREAM_THREADS, 1)
    experts_stream_kernel(const __grid_constant__ stream_args s) {
  using S = stream_shape<GATED>;
  extern __shared__ __align__(128) uint8_t memory[]; /* the warps' rings */
  __shared__ __align__(8) uint64_t filled[STREAM_WARPS * S::stages];
  const gemm_args &a = s.gemm;
  uint32_t warp = threadIdx.x / 32;
  gemv_ring ring = ring_init(memory + warp * S::stages * S::stage, filled + warp * S::stages, S::stages, S::stage);
  if (!a.raw.is_there) wait_for_prior_grids();
  launch_dependent_grids();
  stream_scaling of[S::tiles];
#pragma unroll
  for (uint32_t m = 0; m < S::tiles; m++) of[m] = scaling_of(a.weight[m].header);
  uint32_t n_groups = groups_of(a);
  uint64_t n_items = (uint64_t)__ldcg(a.n_jobs) * n_groups;
  uint32_t item = (uint32_t)(n_items * blockIdx.x / gridDim.x) + warp;
  stream_source<S> source = {a, item, (uint32_t)(n_items * (blockIdx.x + 1) / gridDim.x), 0, {}};
  source.seek();
#pragma unroll 1
  for (uint32_t i = 0; i < S::stages; i++) source.issue(ring, i);
  if (a.raw.is_there) wait_for_prior_grids();
#pragma unroll 1
  for (; item < source.end; item += STREAM_WARPS) {
    const gemm_job job = a.jobs[item / n_groups];
    uint32_t tile = item % n_groups;
    if (job.n <= 8)
      run_item<1, GATED>(s, ring, source, job, tile, of);
    else if (job.n <= 16)
      run_item<2, GATED>(s, ring, source, job, tile, of);
    else
      run_item<3, GATED>(s, ring, source, job, tile, of);
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

template <bool GATED>
static weft_status launch_stream(cuda_device *d, const stream_args &args) {
  uint64_t n_items = (uint64_t)args.gemm.jobs_max * cuda_ceil(args.gemm.weight[0].n_out, 16);
  uint32_t n_blocks = n_items < d->n_multiprocessors ? (uint32_t)n_items : d->n_multiprocessors;
  cuda_start(d, experts_stream_kernel<GATED>, n_blocks, STREAM_THREADS, stream_shape<GATED>::bytes, args);
  return cuda_launched(d, "experts of some rows");
}

weft_status experts_stream(cuda_device *d, const weft_experts_args *args, const gemm_args *in, const gemm_args *down) {
  const uint32_t n_ff = args->down->n_in;
  uint8_t *h = (uint8_t *)(uintptr_t)down->x; /* the first kernel writes what the second one reads */
  stream_args first = {*in, {args->gate_bias, args->up_bias, h, down->n_units, down->is_tail}}, second = {*down, {}};
  gemm_weight *weight = first.gemm.weight;
  weight[0].n_out = n_ff;
  weight[1] = args->gate_up == NULL ? gemm_weight_of(args->up, NULL, 0) : weight[0];
  if (args->gate_up != NULL) weight[1].data += (uint64_t)n_ff / 16 * in->tile_bytes;
  first.gemm.n_weights = 2;
  first.gemm.activation = args->activation;
  first.gemm.limit = args->limit;
  second.gemm.raw.is_there = d->experts.stream == NULL; /* jobs and weights are, as rows are not */
  weft_status status = launch_stream<true>(d, first);
  return status == WEFT_OK ? launch_stream<false>(d, second) : status;
}

weft_status experts_stream_setup(cuda_device *d) {
  cudaError_t error = cudaFuncSetAttribute(experts_stream_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)stream_shape<true>::bytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(experts_stream_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)stream_shape<false>::bytes);
  return cuda_judge(d, error, "setting up experts of some rows");
}
