/* SPDX-License-Identifier: MIT */
/* The down projection of experts for few rows, fused with the sum over ranks. A block takes 16 outputs of one row; a
 * warp takes some of its ranks, one after another, and runs the prologue of each one's row of act(g) * u for itself.
 * The copies of its first weights are issued before that row is there, since experts were chosen before the kernel
 * before this one (experts_gemv.h). A rank whose expert is not here has no such row, and its warp goes on to its next
 * one.
 *
 * The kernel may also compute the down projection of the shared MLP: further blocks take 32 of its outputs of all rows
 * each, and a warp takes some splits of its inputs. */
#include "kernels/cuda/moe/experts_gemv.h"

#include <string.h>

#include "kernels/cuda/gemm/gemv.cuh"

enum {
  KEPT = 3,                        /* chunks of eight inputs that stay in a lane's registers */
  SUMS_MAX = 8 * DOWN_SHARED_TILES /* of a row's 16 outputs of the shared MLP in a block: of tiles and splits */
};

/* The prologue of a row of act(g) * u, in the warp's shared memory. Returns the exponent of the power of two that
 * the row was multiplied by. */
template <int T>
static __device__ __forceinline__ int rank_prologue(const gemm_args &a, const float *row, uint4 *to) {
  uint32_t lane = threadIdx.x % 32, n_chunks = a.n_units * 16, most = 0;
  float kept[KEPT][8], v[8];
  __syncwarp();
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (lane + 32 * t < n_chunks) load_raw(row, lane + 32 * t, a.n_in, kept[t]);
  if (!packed_is_bf16(T)) {
#pragma unroll
    for (uint32_t t = 0; t < KEPT; t++)
      if (lane + 32 * t < n_chunks) most = max(most, chunk_max(kept[t]));
#pragma unroll 1
    for (uint32_t chunk = lane + 32 * KEPT; chunk < n_chunks; chunk += 32) {
      load_raw(row, chunk, a.n_in, v);
      most = max(most, chunk_max(v));
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
  }
  int scale_exponent = packed_is_bf16(T) ? 0 : scale_exponent_of(most);
  float up = power_of_two(scale_exponent);
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (lane + 32 * t < n_chunks) to[lane + 32 * t] = chunk_16<packed_is_bf16(T)>(kept[t], up);
#pragma unroll 1
  for (uint32_t chunk = lane + 32 * KEPT; chunk < n_chunks; chunk += 32) {
    load_raw(row, chunk, a.n_in, v);
    to[chunk] = chunk_16<packed_is_bf16(T)>(v, up);
  }
  __syncwarp();
  return scale_exponent;
}

/* Bytes of a warp's stages. Where they hold all pieces of a row tile, the last one takes only the bytes that it has. */
template <int T>
static __host__ __device__ __forceinline__ uint32_t bytes_of_stages(uint32_t tile_bytes, uint32_t n_stages) {
  bool whole = n_stages == tile_bytes / gemv_piece_bytes(T) + (tile_bytes % gemv_piece_bytes(T) != 0 ? 1 : 0);
  return whole ? ring_stage_bytes((tile_bytes + 127) / 128 * 128) : n_stages * gemv_stage_bytes(T);
}

/* The next piece whose copy a warp issues: those of its ranks whose experts are here come one after another. */
typedef struct down_cursor {
  const int32_t *ids;
  const uint8_t *tiles; /* the block's row tile of matrix 0 */
  uint32_t rank, k, unit;
} down_cursor;

template <int T>
static __device__ __forceinline__ void issue_rank(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  down_cursor &at) {
  uint64_t matrix = UINT32_MAX;
  for (; at.rank < at.k; at.rank += DOWN_WARPS)
    if ((matrix = matrix_of(a, __ldcg(at.ids + at.rank))) < a.n_matrices) break;
  if (at.rank >= at.k) return;
  issue_piece<T>(a, ring, stage, at.tiles + matrix * a.weight[0].n_tiles * a.tile_bytes, at.unit);
  at.unit += gemv_units(T);
  if (at.unit < a.n_units) return;
  at.unit = 0;
  at.rank += DOWN_WARPS;
}

/* Computes 16 outputs of one rank to done [16]. */
template <int T>
static __device__ __forceinline__ void multiply_rank(const gemm_args &a, uint32_t matrix, const uint4 *row,
                                                     int prescale, int scale_exponent, gemv_ring &ring,
                                                     down_cursor &ahead, float *done) {
  uint32_t lane = threadIdx.x % 32;
  float all[2], unscale = power_of_two(-scale_exponent);
  x_source<1> x = {{NULL}, row};
  multiply_tile<T, true, true>(
      a, x, powers_of<T>(prescale, a.values), ring, [&](uint32_t stage) { issue_rank<T>(a, ring, stage, ahead); }, all);
  if (lane % 4 != 0) return; /* column 0 */
  float w_unscale = weight_unscale_of(a.weight[0], matrix, prescale);
#pragma unroll
  for (int h = 0; h < 2; h++) done[lane / 4 + 8 * h] = __fmul_rn(__fmul_rn(all[h], unscale), w_unscale);
}

/* A warp's tasks in a block's row tiles of the shared MLP: task t is split t % n_splits of tile t / n_splits. */
typedef struct shared_task {
  uint32_t at, unit, end;
  const uint8_t *row_tile; /* NULL: there is no more */
} shared_task;

static __device__ __forceinline__ void enter_task(const gemm_args &a, uint32_t first_tile, uint32_t at,
                                                  shared_task *task) {
  uint32_t tile = first_tile + at / a.n_splits, split = at % a.n_splits;
  bool exists = at < DOWN_SHARED_TILES * a.n_splits && tile < a.weight[0].n_tiles;
  task->at = at;
  task->unit = split * a.split_units;
  task->end = min(a.n_units, task->unit + a.split_units);
  task->row_tile = exists ? a.weight[0].data + PACKED_HEADER_BYTES + (uint64_t)tile * a.tile_bytes : NULL;
}

template <int T>
static __device__ __forceinline__ void issue_task(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  uint32_t first_tile, shared_task &task) {
  if (task.row_tile == NULL) return;
  issue_piece<T>(a, ring, stage, task.row_tile, task.unit);
  task.unit += gemv_units(T);
  if (task.unit >= task.end) enter_task(a, first_tile, task.at + DOWN_WARPS, &task);
}

/* Computes DOWN_SHARED_TILES row tiles of the shared MLP. All warps share the raw rows; done: [tiles][splits][rows]
 * [16]. */
template <int T>
static __device__ __forceinline__ void shared_tiles(const gemm_args &a, uint32_t first_tile, gemv_ring &ring,
                                                    uint4 *raw, float *done) {
  __shared__ uint32_t most_of[DOWN_WARPS];
  __shared__ int scale_exponent[GEMM_RAW_ROWS];
  uint32_t lane = threadIdx.x % 32, n_rows = a.n_rows;
  shared_task task, ahead;
  enter_task(a, first_tile, threadIdx.x / 32, &ahead);
  task = ahead;
#pragma unroll 1
  for (uint32_t stage = 0; stage < ring.n; stage++) issue_task<T>(a, ring, stage, first_tile, ahead);
  opened_rows opened = open_rows<T, true, false>(a, most_of, raw, scale_exponent);
  x_source<1> x = rows_of_lane<true, false>(a, raw, n_rows);
#pragma unroll 1
  for (; task.row_tile != NULL; enter_task(a, first_tile, task.at + DOWN_WARPS, &task)) {
    float sum[1][4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll 1
    for (; task.unit < task.end; task.unit += gemv_units(T)) {
      ring_wait(ring);
      multiply_piece<T, 1, true>(a, ring, task.unit, task.end, x, x_unit<1>(), opened.powers, sum);
      uint32_t stage = ring.at;
      ring_advance(ring);
      issue_task<T>(a, ring, stage, first_tile, ahead);
    }
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
      uint32_t r = lane % 4 * 2 + e % 2;
      if (r < n_rows) done[16 * (task.at * n_rows + r) + lane / 4 + e / 2 * 8] = sum[0][e];
    }
  }
  __syncthreads();
  uint32_t r = threadIdx.x / (16 * DOWN_SHARED_TILES), own = threadIdx.x % (16 * DOWN_SHARED_TILES),
           out = first_tile * 16 + own;
  if (r >= n_rows || out >= a.weight[0].n_out) return;
  float all = 0.0f;
  for (uint32_t i = 0; i < a.n_splits; i++)
    all = __fadd_rn(all, done[16 * ((own / 16 * a.n_splits + i) * n_rows + r) + own % 16]);
  a.weight[0].y[r * a.weight[0].y_stride + out] =
      __fmul_rn(__fmul_rn(all, power_of_two(-scale_exponent[r])), weight_unscale_of(a.weight[0], 0, opened.prescale));
}

/* The warps' rows, or those of the shared MLP in the same place, in 16 bytes. */
static __host__ __device__ __forceinline__ uint32_t size_of_rows(uint32_t n_units, const gemm_args &shared) {
  uint32_t own = DOWN_WARPS * n_units * 16, other = shared.n_rows * raw_stride(shared.n_units);
  return own > other ? own : other;
}

/* shared: without weights there is none. */
template <int T, bool BIASED>
static __device__ __forceinline__ void multiply_down(const gemm_args &a, const gemm_args &shared, const float *weights,
                                                     uint32_t k, uint32_t n_stages, const float *bias) {
  extern __shared__ __align__(128) uint8_t memory[]; /* stages of the warps, their rows, 16 results of ranks or tasks */
  __shared__ __align__(8) uint64_t filled[DOWN_WARPS * DOWN_STAGES_MAX];
  __shared__ down_ranks ranks;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t r = blockIdx.y;
  uint32_t ring_bytes = bytes_of_stages<T>(a.tile_bytes, n_stages);
  gemv_ring ring =
      ring_init(memory + warp * ring_bytes, filled + warp * DOWN_STAGES_MAX, n_stages, gemv_stage_bytes(T));
  uint4 *rows = (uint4 *)(void *)(memory + DOWN_WARPS * ring_bytes), *row = rows + warp * a.n_units * 16;
  float *done = (float *)(void *)(rows + size_of_rows(a.n_units, shared));
  if (blockIdx.x >= a.weight[0].n_tiles) {
    if (blockIdx.y > 0) return; /* row 0's blocks take all rows */
    ring.n = ring_stages_in(n_stages, ring_bytes, gemv_piece_bytes(T));
    return shared_tiles<T>(shared, (blockIdx.x - a.weight[0].n_tiles) * DOWN_SHARED_TILES, ring, rows, done);
  }
  const int32_t *ids = a.ids + r * k;
  down_cursor ahead = {ids, a.weight[0].data + PACKED_HEADER_BYTES + (uint64_t)blockIdx.x * a.tile_bytes, warp, k, 0};
#pragma unroll 1
  for (uint32_t stage = 0; stage < n_stages; stage++) issue_rank<T>(a, ring, stage, ahead);
  packed_header header = header_of(a.weight[0].data);
  uint32_t matrix = warp < k ? matrix_of(a, __ldcg(ids + warp)) : 0;
  down_rank rank = load_rank(a, weights, r, k);
  wait_for_prior_grids();
  launch_dependent_grids();
#pragma unroll 1
  for (uint32_t j = warp; j < k; j += DOWN_WARPS) {
    if (matrix < a.n_matrices) {
      int scale_exponent = rank_prologue<T>(a, a.raw.x + (r * k + j) * a.raw.x_stride, row);
      multiply_rank<T>(a, matrix, row, prescale_exponent(T, &header), scale_exponent, ring, ahead, done + 16 * j);
    } else if (lane < 16) {
      done[16 * j + lane] = not_a_number();
    }
    if (j + DOWN_WARPS < k) matrix = matrix_of(a, __ldcg(ids + j + DOWN_WARPS));
  }
  store_rank(a, rank, k, ranks);
  __syncthreads();
  combine_ranks_store<BIASED>(a, ranks, r, blockIdx.x, k, done, bias);
}

/* Registers leave room for two blocks and some of the next kernel's. */
template <int T>
static __global__ void __maxnreg__(96)
    down_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args shared, const float *weights,
                uint32_t k, uint32_t n_stages) {
  multiply_down<T, false>(a, shared, weights, k, n_stages, NULL);
}

template <int T>
static __global__ void __maxnreg__(96)
    down_biased_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args shared,
                       const float *weights, uint32_t k, uint32_t n_stages, const float *bias) {
  multiply_down<T, true>(a, shared, weights, k, n_stages, bias);
}

template <int T>
static uint32_t bytes_of(uint32_t n_units, uint32_t tile_bytes, uint32_t k, uint32_t n_stages,
                         const gemm_args &shared) {
  uint32_t n_sums = k > SUMS_MAX * shared.n_rows ? k : SUMS_MAX * shared.n_rows;
  return DOWN_WARPS * bytes_of_stages<T>(tile_bytes, n_stages) + 16 * size_of_rows(n_units, shared) + 64 * n_sums;
}

/* Stages of a warp: as many as a row tile has pieces, as long as two blocks fit on a multiprocessor and leave room for
 * those of the next kernel. */
template <int T>
static uint32_t stages_of(uint32_t n_units, uint32_t tile_bytes, uint32_t k, const gemm_args &shared) {
  uint32_t n = 2, n_pieces = cuda_ceil(n_units, gemv_units(T));
  while (n < n_pieces && n < DOWN_STAGES_MAX && bytes_of<T>(n_units, tile_bytes, k, n + 1, shared) <= DOWN_BYTES_OF_TWO)
    n++;
  return n;
}

template <int T>
static weft_status launch_down(cuda_device *d, const gemm_args &a, const gemm_args &shared, const float *weights,
                               uint32_t k, const float *bias) {
  uint32_t n_stages = stages_of<T>(a.n_units, a.tile_bytes, k, shared),
           bytes = bytes_of<T>(a.n_units, a.tile_bytes, k, n_stages, shared);
  dim3 grid(a.weight[0].n_tiles + cuda_ceil(shared.weight[0].n_tiles, DOWN_SHARED_TILES), a.n_rows);
  if (bias == NULL) {
    cuda_start(d, down_kernel<T>, grid, 32 * DOWN_WARPS, bytes, a, shared, weights, k, n_stages);
  } else if constexpr (experts_gemv_takes_biases(T)) {
    cuda_start(d, down_biased_kernel<T>, grid, 32 * DOWN_WARPS, bytes, a, shared, weights, k, n_stages, bias);
  } else {
    return WEFT_E_UNSUPPORTED;
  }
  return cuda_launched(d, "the down side of experts");
}

template <int T>
static weft_status set_up(cuda_device *d) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t error = cudaFuncSetAttribute(down_kernel<T>, most, GEMV_SHARED_BYTES_MAX);
  if constexpr (experts_gemv_takes_biases(T))
    if (error == cudaSuccess) error = cudaFuncSetAttribute(down_biased_kernel<T>, most, GEMV_SHARED_BYTES_MAX);
  return cuda_judge(d, error, "setting up experts");
}

/* Asks for Q8_0, which has the largest pieces, so that the answer holds for every type. */
bool experts_gemv_down_fits(uint32_t n_in, uint32_t k) {
  gemm_args none;
  memset(&none, 0, sizeof none);
  return bytes_of<WEFT_TYPE_Q8_0>(cuda_ceil(n_in, 128), UINT32_MAX, k, 2, none) <= GEMV_SHARED_BYTES_MAX;
}

/* The shared MLP's rows lie where the warps' rows do, and its pieces in their stages. */
bool experts_gemv_down_shares(const gemm_args *args, const gemm_args *shared) {
  return args->type == shared->type && args->n_rows == shared->n_rows && args->n_in >= 256 &&
         gemm_takes_raw(shared->type, shared->n_rows, shared->n_in) &&
         gemm_is_wide(shared->raw.x, shared->raw.x_stride) &&
         bytes_of<WEFT_TYPE_Q8_0>(args->n_units, UINT32_MAX, args->pairs_per_row, 2, *shared) <=
             GEMV_SHARED_BYTES_MAX &&
         DOWN_SHARED_TILES * shared->n_splits <= SUMS_MAX;
}

weft_status experts_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                              uint32_t k) {
  return dispatch_packed_type(
      args->type, [&](auto type) { return launch_down<decltype(type)::value>(d, *args, *shared, weights, k, NULL); });
}

weft_status experts_gemv_down_biased(cuda_device *d, const gemm_args *args, const float *weights, uint32_t k,
                                     const float *bias) {
  gemm_args none;
  memset(&none, 0, sizeof none);
  return dispatch_packed_type(
      args->type, [&](auto type) { return launch_down<decltype(type)::value>(d, *args, none, weights, k, bias); });
}

weft_status experts_gemv_down_setup(cuda_device *d) {
  return each_packed_type([&](auto type) { return set_up<decltype(type)::value>(d); });
}
