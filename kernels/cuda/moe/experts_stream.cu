/* SPDX-License-Identifier: MIT */
/* Experts in MXFP4 with some rows each, as decoding of some ten to a hundred sequences has them: weights are read once
 * and each number is multiplied by a few rows, so what counts is how few instructions a number takes and that copies
 * never stop.
 *
 * A group is as many row tiles of one job as a block has warps that multiply; of gate and up together each of these has
 * the same row tile of both. One lane of one more warp copies: a stage has 128 inputs (a unit) of all row tiles of the
 * group and of the job's rows, and the warps go through the stages side by side, so that rows come to a multiprocessor
 * once for all of them. Products are those of mma.sync, 16 outputs by 8 rows. Jobs with many rows come first in their
 * list, and a block takes every gridDim'th group, so blocks end at about the same time.
 *
 * Where gate and up are multiplied the warp has both numbers of act(g) * u, adds their biases, gates them and stores
 * them as rows of down. MXFP4 is multiplied in bf16, so rows need no scaling and no search for their maximum.
 *
 * Law: sums have the order of gemm.h. A stage is copied to again when all warps have used what they read of it. */
#include "kernels/cuda/moe/experts_stream.h"

#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/mxfp4.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

enum {
  STREAM_UNIT_BYTES = packed_unit_bytes(packed_shape_of(WEFT_TYPE_MXFP4)), /* 128 inputs of a row tile */
  STREAM_ROWS_BYTES = 2048,                                                /* 128 inputs of eight rows */
  STREAM_SHARED_BYTES = 226 << 10,
  STREAM_LONG_ROWS = 16 /* most rows of a job whose stages are long */
};

/* A block: warps that multiply, the row tiles of each, and what a stage holds: `units` units of all row tiles and of up
 * to `rows` rows. Long stages are for jobs of few rows. */
template <bool GATED, bool LONG>
struct stream_shape {
  static constexpr bool is_gated = GATED;
  static constexpr uint32_t tiles = GATED ? 2 : 1, warps = GATED ? 15 : 23, threads = 32 * (warps + 1);
  static constexpr uint32_t units = LONG ? 2 : 1, rows = LONG ? (uint32_t)STREAM_LONG_ROWS : (uint32_t)STREAM_ROWS;
  static constexpr uint32_t tile = units * STREAM_UNIT_BYTES, eight = units * STREAM_ROWS_BYTES,
                            rows_at = tiles * warps * tile, stage = rows_at + rows / 8 * eight,
                            stages = STREAM_SHARED_BYTES / stage;
};

typedef struct stream_args {
  gemm_args gemm;
  gemm_gated_rows gate; /* in the GEMV layout */
} stream_args;

/* The stages of a block, which all its warps go through in turn. */
typedef struct stream_ring {
  uint32_t memory;         /* address of the first stage */
  uint64_t *filled, *read; /* barriers of each stage */
  uint32_t at, phase;
} stream_ring;

template <class S>
static __device__ __forceinline__ void next_stage(stream_ring &ring) {
  if (++ring.at == S::stages) ring.at = 0, ring.phase ^= 1;
}

/* A group: row tiles of a job from `first` on. */
typedef struct stream_group {
  gemm_job job;
  uint32_t first;
} stream_group;

/* How the call is cut: each of n groups has up to `size` row tiles (of gate and of up), a job has per_job of them. */
typedef struct stream_cut {
  uint32_t n_tiles, size, per_job, n;
} stream_cut;

/* For a whole warp. The size is that with which rounds of all blocks take the shortest: as long as their largest group
 * and some four tiles more. A lane tries one. */
template <class S>
static __device__ __forceinline__ stream_cut cut_of(const gemm_args &a) {
  const uint32_t n_tiles = (a.weight[0].n_out + 15) / 16, n_jobs = __ldcg(a.n_jobs), lane = threadIdx.x % 32,
                 mine = S::warps - min(lane, S::warps - 1), groups = (n_tiles + mine - 1) / mine * n_jobs,
                 time = (groups + gridDim.x - 1) / gridDim.x * (mine + 4);
  const uint32_t size = S::warps - (__reduce_min_sync(0xFFFFFFFFu, time << 5 | lane) & 31u),
                 per_job = (n_tiles + size - 1) / size;
  return {n_tiles, size, per_job, per_job * n_jobs};
}

static __device__ __forceinline__ stream_group group_at(const gemm_args &a, const stream_cut &cut, uint32_t group) {
  const uint32_t job = group / cut.per_job;
  const gemm_job *of = a.jobs + job;
  return {{__ldcg(&of->matrix), __ldcg(&of->first), __ldcg(&of->n)}, (group - job * cut.per_job) * cut.size};
}

/* What is copied next: a unit of a group, to the ring's stage. */
template <class S>
struct stream_copies {
  const gemm_args &a;
  const stream_cut &cut;
  stream_ring ring;
  uint32_t group, unit, n_tiles, n_eights;
  const uint8_t *weights[S::tiles], *rows;

  __device__ __forceinline__ void seek() {
    unit = 0;
    if (is_done()) return;
    const stream_group of = group_at(a, cut, group);
    n_tiles = min(cut.size, cut.n_tiles - of.first), n_eights = (of.job.n + 7) / 8;
#pragma unroll
    for (uint32_t m = 0; m < S::tiles; m++)
      weights[m] = a.weight[m].data + PACKED_HEADER_BYTES +
                   ((uint64_t)of.job.matrix * a.weight[m].n_tiles + of.first) * a.tile_bytes;
    rows = (const uint8_t *)a.x + (uint64_t)(of.job.first / 8) * a.n_units * STREAM_ROWS_BYTES;
  }
  __device__ __forceinline__ bool is_done() const {
    return group >= cut.n;
  }
  /* Of `bytes` for 128 inputs, those of the stage that begins at the unit. */
  __device__ __forceinline__ uint32_t bytes_of(uint32_t bytes) const {
    const uint32_t left = a.n_units - unit;
    return left > S::units ? S::units * bytes : left * bytes - (a.is_tail != 0 ? bytes / 2 : 0);
  }
  /* Announces all that comes to the stage, and copies weights. */
  __device__ __forceinline__ void copy_weights(uint8_t *memory) const {
    const uint32_t n_bytes = bytes_of(STREAM_UNIT_BYTES);
    mbarrier_expect(&ring.filled[ring.at], S::tiles * n_tiles * n_bytes + n_eights * bytes_of(STREAM_ROWS_BYTES));
#pragma unroll
    for (uint32_t m = 0; m < S::tiles; m++) {
      uint8_t *to = memory + ring.at * S::stage + m * S::warps * S::tile;
      const uint8_t *from = weights[m] + unit * STREAM_UNIT_BYTES;
#pragma unroll 1 /* ptxas 13.0 gives a wrong address, whose upper half is 0, to what is left over of an unrolled loop */
      for (uint32_t t = 0; t < n_tiles; t++, to += S::tile, from += a.tile_bytes)
        bulk_copy_streamed(to, from, n_bytes, &ring.filled[ring.at]);
    }
  }
  __device__ __forceinline__ void copy_rows(uint8_t *memory) const {
    uint8_t *to = memory + ring.at * S::stage + S::rows_at;
    const uint8_t *from = rows + (uint64_t)unit * STREAM_ROWS_BYTES;
#pragma unroll 1
    for (uint32_t n = 0; n < n_eights; n++, to += S::eight, from += (uint64_t)a.n_units * STREAM_ROWS_BYTES)
      bulk_copy(to, from, bytes_of(STREAM_ROWS_BYTES), &ring.filled[ring.at]);
  }
  __device__ __forceinline__ void next() {
    next_stage<S>(ring);
    unit += S::units;
    if (unit < a.n_units) return;
    group += gridDim.x;
    seek();
  }
};

/* Copies all units of the block's groups. Weights of the first stages come before rows are there. */
template <class S>
static __device__ __forceinline__ void copy_groups(const gemm_args &a, const stream_cut &cut, const stream_ring &ring,
                                                   uint8_t *memory) {
  stream_copies<S> copies = {a, cut, ring, blockIdx.x, 0, 0, 0, {}, NULL};
  copies.seek();
  stream_copies<S> rows = copies;
  uint32_t n = 0;
#pragma unroll 1
  for (; n < S::stages && !copies.is_done(); n++, copies.next()) copies.copy_weights(memory);
  if (a.raw.is_there) wait_for_prior_grids();
#pragma unroll 1
  for (; n > 0; n--, rows.next()) rows.copy_rows(memory);
#pragma unroll 1
  for (; !copies.is_done(); copies.next()) {
    mbarrier_wait(&ring.read[copies.ring.at], copies.ring.phase ^ 1);
    copies.copy_weights(memory);
    copies.copy_rows(memory);
  }
}

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
}

/* A scale that is no number stays none. */
static __device__ __forceinline__ void keep_nan(uint32_t exponents, dequant_factors &out) {
  if ((exponents & 0xFFu) == 0xFFu) out.of[0][0] = 0x7FC07FC0u;
  if (exponents >> 8 == 0xFFu) out.of[1][0] = 0x7FC07FC0u;
}

static __device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
static __device__ __forceinline__ uint4 load_shared_8(uint32_t address) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
static __device__ __forceinline__ uint32_t load_shared_2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

/* What a lane holds of a unit of the warp's row tiles. */
template <class S>
struct stream_codes {
  lane_codes<WEFT_TYPE_MXFP4> of[S::tiles];
  dequant_factors factors[S::tiles];
};

/* Loads units [0, U) that lie one behind the other; with TAIL one of 64 inputs. own: address of the warp's first row
 * tile in the first of them. */
template <int U, class S, bool TAIL>
static __device__ __forceinline__ void load_units(uint32_t own, const stream_scaling (&of)[S::tiles],
                                                  stream_codes<S> (&codes)[U]) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t exponents[U][S::tiles];
#pragma unroll
  for (int u = 0; u < U; u++)
#pragma unroll
    for (uint32_t m = 0; m < S::tiles; m++) {
      const uint32_t tile = own + m * S::warps * S::tile + u * STREAM_UNIT_BYTES;
      exponents[u][m] = load_shared_2(tile + (TAIL ? 512 + lane / 4 * 4 + lane % 4 / 2 * 2 : 1024 + lane * 2));
#pragma unroll
      for (int h = 0; h < 2; h++)
        codes[u].of[m].code[h] =
            TAIL ? load_shared_8(tile + h * 256 + lane * 8) : load_shared_16(tile + h * 512 + lane * 16);
    }
  bool has_nan = false;
#pragma unroll
  for (uint32_t k = 0; k < U * S::tiles; k++) {
    const uint32_t m = k % S::tiles;
    make_stream_factors(exponents[k / S::tiles][m], of[m], codes[k / S::tiles].factors[m]);
    has_nan |= of[m].has_nan;
  }
  if (has_nan) {
    __syncwarp(); /* so that this is a branch, and no selections for all others */
#pragma unroll
    for (uint32_t k = 0; k < U * S::tiles; k++)
      keep_nan(exponents[k / S::tiles][k % S::tiles], codes[k / S::tiles].factors[k % S::tiles]);
  }
}

/* sums += products of a unit of the warp's row tiles with 8 N rows. rows: address of the lane's numbers. */
template <int N, class S, bool TAIL>
static __device__ __forceinline__ void multiply_unit(const stream_codes<S> &codes, uint32_t rows,
                                                     float (&sum)[S::tiles][N][4]) {
  constexpr int T = WEFT_TYPE_MXFP4;
#pragma unroll
  for (int i = 0; i < (TAIL ? 2 : 4); i++) {
    uint4 x[N];
#pragma unroll
    for (int n = 0; n < N; n++) x[n] = load_shared_16(rows + n * S::eight + i * 512);
#pragma unroll
    for (uint32_t m = 0; m < S::tiles; m++) {
      uint32_t w[2][4];
      dequantise_operands<T>(codes.of[m], codes.factors[m], i, w);
#pragma unroll
      for (int n = 0; n < N; n++) {
        mma_bf16(sum[m][n], w[0], x[n].x, x[n].y);
        mma_bf16(sum[m][n], w[1], x[n].z, x[n].w);
      }
    }
  }
}

/* sums += products of the U units behind each other at `own`, whose rows are at `rows`. */
template <int N, int U, class S, bool TAIL>
static __device__ __forceinline__ void multiply_units(uint32_t own, uint32_t rows, const stream_scaling (&of)[S::tiles],
                                                      float (&sum)[S::tiles][N][4]) {
  stream_codes<S> codes[U];
  load_units<U, S, TAIL>(own, of, codes);
#pragma unroll
  for (int u = 0; u < U; u++) multiply_unit<N, S, TAIL>(codes[u], rows + u * STREAM_ROWS_BYTES, sum);
}

/* Lets the ring's stage be copied to again: products of the whole warp have used what it read. */
template <class S>
static __device__ __forceinline__ void release_stage(stream_ring &ring) {
  mbarrier_arrive_warp(&ring.read[ring.at]);
  next_stage<S>(ring);
}

/* all: the products of the warp's row tiles of a group with 8 N rows. */
template <int N, class S>
static __device__ __forceinline__ void multiply_group(const gemm_args &a, stream_ring &ring,
                                                      const stream_scaling (&of)[S::tiles],
                                                      float (&all)[S::tiles][N][4]) {
  constexpr uint32_t n_sums = S::tiles * N * 4;
  float sum[S::tiles][N][4];
  float *const one = &sum[0][0][0], *const whole = &all[0][0][0];
#pragma unroll
  for (uint32_t k = 0; k < n_sums; k++) one[k] = whole[k] = 0.0f;
  const uint32_t own = ring.memory + threadIdx.x / 32 * S::tile,
                 rows = ring.memory + S::rows_at + threadIdx.x % 32 * 16;
  uint32_t left = a.split_units;
#pragma unroll 1
  for (uint32_t unit = 0; unit < a.n_units; unit += S::units) {
    uint32_t own_at = own + ring.at * S::stage, rows_at = rows + ring.at * S::stage;
    mbarrier_wait(&ring.filled[ring.at], ring.phase);
    if (unit + S::units <= a.n_units - a.is_tail) {
      multiply_units<N, S::units, S, false>(own_at, rows_at, of, sum);
    } else { /* the last stage: units that fill none, and 64 inputs, or one of both */
      if (S::units > 1 && unit + 1 <= a.n_units - a.is_tail) {
        multiply_units<N, 1, S, false>(own_at, rows_at, of, sum);
        own_at += STREAM_UNIT_BYTES, rows_at += STREAM_ROWS_BYTES;
      }
      if (a.is_tail != 0) multiply_units<N, 1, S, true>(own_at, rows_at, of, sum);
    }
    release_stage<S>(ring);
    left -= S::units;
    if (left > 0 && unit + S::units < a.n_units) continue;
    left = a.split_units;
#pragma unroll
    for (uint32_t k = 0; k < n_sums; k++) whole[k] = __fadd_rn(whole[k], one[k]), one[k] = 0.0f;
  }
}

/* Where number `out` of the row of a place lies in the GEMV layout. */
static __device__ __forceinline__ uint8_t *place_of(const gemm_gated_rows &gate, uint32_t place, uint32_t out) {
  uint32_t unit = out / 128, in = out % 128, shift = gate.is_tail != 0 && unit + 1 == gate.n_units ? 4 : 5;
  uint32_t c = in >> shift, e = in & ((1u << shift) - 1);
  return gate.out + ((uint64_t)(place / 8) * gate.n_units + unit) * 2048 + e / 8 * 512 + (place % 8 * 4 + c) * 16 +
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

template <int N, class S>
static __device__ __forceinline__ void run_group(const stream_args &s, stream_ring &ring, const stream_group &group,
                                                 const stream_scaling (&of)[S::tiles]) {
  float all[S::tiles][N][4];
  const uint32_t tile = group.first + threadIdx.x / 32;
  multiply_group<N, S>(s.gemm, ring, of, all);
  if constexpr (S::is_gated)
    store_gated<N>(s, group.job, tile, of, all);
  else
    store_results<N>(s.gemm, group.job, tile, of, all);
}

/* The warp has no row tile of a group. */
template <class S>
static __device__ __forceinline__ void pass_group(const gemm_args &a, stream_ring &ring) {
#pragma unroll 1
  for (uint32_t unit = 0; unit < a.n_units; unit += S::units) {
    mbarrier_wait(&ring.filled[ring.at], ring.phase);
    release_stage<S>(ring);
  }
}

template <class S>
static __global__ void __launch_bounds__(S::threads, 1) experts_stream_kernel(const __grid_constant__ stream_args s) {
  extern __shared__ __align__(128) uint8_t memory[]; /* the stages */
  __shared__ __align__(8) uint64_t barriers[2 * S::stages];
  const gemm_args &a = s.gemm;
  stream_ring ring = {shared_address(memory), barriers, barriers + S::stages, 0, 0};
  if (!a.raw.is_there) wait_for_prior_grids();
  launch_dependent_grids();
  if (threadIdx.x < S::stages) {
    mbarrier_init(&ring.filled[threadIdx.x]);
    mbarrier_init(&ring.read[threadIdx.x], S::warps * WARP_ARRIVALS);
    mbarrier_init_fence();
  }
  __syncthreads();
  const stream_cut cut = cut_of<S>(a);
  if (threadIdx.x / 32 == S::warps) {
    if (elect_lane()) copy_groups<S>(a, cut, ring, memory);
    return;
  }
  stream_scaling of[S::tiles];
#pragma unroll
  for (uint32_t m = 0; m < S::tiles; m++) of[m] = scaling_of(a.weight[m].header);
  if (a.raw.is_there) wait_for_prior_grids();
#pragma unroll 1
  for (uint32_t at = blockIdx.x; at < cut.n; at += gridDim.x) {
    const stream_group group = group_at(a, cut, at);
    if (threadIdx.x / 32 >= min(cut.size, cut.n_tiles - group.first))
      pass_group<S>(a, ring);
    else if (group.job.n <= 8)
      run_group<1, S>(s, ring, group, of);
    else if (S::rows == 16 || group.job.n <= 16)
      run_group<2, S>(s, ring, group, of);
    else
      run_group<S::rows / 8, S>(s, ring, group, of);
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

template <class S>
static weft_status launch_stage(cuda_device *d, const stream_args &args) {
  uint64_t n_tiles = (uint64_t)args.gemm.jobs_max * cuda_ceil(args.gemm.weight[0].n_out, 16);
  uint32_t n_blocks = n_tiles < d->n_multiprocessors ? (uint32_t)n_tiles : d->n_multiprocessors;
  cuda_start(d, experts_stream_kernel<S>, n_blocks, S::threads, S::stages * S::stage, args);
  return cuda_launched(d, "experts of some rows");
}

template <bool GATED>
static weft_status launch_stream(cuda_device *d, const stream_args &args) {
  return args.gemm.job_rows <= STREAM_LONG_ROWS ? launch_stage<stream_shape<GATED, true>>(d, args)
                                                : launch_stage<stream_shape<GATED, false>>(d, args);
}

weft_status experts_stream(cuda_device *d, const gemm_args *in, const gemm_gated_rows *rows, const gemm_args *down) {
  const stream_args first = {*in, *rows};
  stream_args second = {*down, {}};
  second.gemm.raw.is_there = d->experts.stream == NULL; /* jobs and weights are, as rows are not */
  weft_status status = launch_stream<true>(d, first);
  return status == WEFT_OK ? launch_stream<false>(d, second) : status;
}

template <class S>
static cudaError_t set_stream_up(void) {
  return cudaFuncSetAttribute(experts_stream_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (int)(S::stages * S::stage));
}

weft_status experts_stream_setup(cuda_device *d) {
  cudaError_t error = set_stream_up<stream_shape<true, true>>();
  if (error == cudaSuccess) error = set_stream_up<stream_shape<true, false>>();
  if (error == cudaSuccess) error = set_stream_up<stream_shape<false, true>>();
  if (error == cudaSuccess) error = set_stream_up<stream_shape<false, false>>();
  return cuda_judge(d, error, "setting up experts of some rows");
}
