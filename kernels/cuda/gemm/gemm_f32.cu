/* SPDX-License-Identifier: MIT */
/* GEMM with F32 weights, in f32 on the ordinary cores.
 *
 *   few rows   a warp has OUTS outputs for ROWS rows, which it reads by itself
 *   many rows  a block has a tile of results, and a ring in shared memory for what they are made of
 *
 * Law: lane l adds chain l of route.h for each result, then comes the reduction tree over the lanes. So a result
 * depends on its row and its weight row alone, whatever ROWS and OUTS are and however the loads are made. */
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/moe/route.h"

enum {
  F32_OUTS = 4,
  F32_WIDE_WARPS = 8,
  F32_SLOTS = 32,     /* float4 of a lane that are on their way at once */
  F32_TILE_ROWS = 65, /* from which on there may be tiles */
#ifdef WEFT_CUDA_PORTABLE
  F32_STAGES = 3 /* of tiles */
#else
  F32_STAGES = 4
#endif
};

static __device__ __forceinline__ float4 load_inputs4(const float *row, uint32_t k, uint32_t n, bool wide) {
  if (wide) return k < n ? *(const float4 *)(const void *)(row + k) : make_float4(0, 0, 0, 0);
  return load_four(row, k, n);
}

/* The lane's chains of some rows and outputs. A lane asks for its numbers of SLOTS steps before it adds the first:
 * that nothing stands between these loads is why it is known where it is compiled whether they are WIDE. */
template <int ROWS, int OUTS, int SLOTS, bool WIDE>
static __device__ __forceinline__ void add_chains(const float *const (&x)[ROWS], const float *const (&values)[OUTS],
                                                  uint32_t n_in, float (&sum)[OUTS * ROWS]) {
#pragma unroll 1
  for (uint32_t first = 0; first < n_in; first += 128 * SLOTS) {
    float4 in[SLOTS][ROWS], v[SLOTS][OUTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
      uint32_t k = first + 128 * i + 4 * (threadIdx.x % 32);
#pragma unroll
      for (int o = 0; o < OUTS; o++) v[i][o] = load_inputs4(values[o], k, n_in, WIDE);
#pragma unroll
      for (int r = 0; r < ROWS; r++) in[i][r] = load_inputs4(x[r], k, n_in, WIDE);
    }
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
      if (first + 128 * i >= n_in) break;
#pragma unroll
      for (int o = 0; o < OUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          sum[o * ROWS + r] = __fmaf_rn(v[i][o].x, in[i][r].x, sum[o * ROWS + r]);
          sum[o * ROWS + r] = __fmaf_rn(v[i][o].y, in[i][r].y, sum[o * ROWS + r]);
          sum[o * ROWS + r] = __fmaf_rn(v[i][o].z, in[i][r].z, sum[o * ROWS + r]);
          sum[o * ROWS + r] = __fmaf_rn(v[i][o].w, in[i][r].w, sum[o * ROWS + r]);
        }
      }
    }
  }
}

/* Reduces N sums over the lanes by the tree of sum_of_chains, in which both lanes of a pair have the same; here each
 * takes half of the sums. In lane l, sum[i] is then that of sum 32 i + l or, of fewer than 32, of sum l % N. */
template <int N, int STEP = 1>
static __device__ __forceinline__ void reduce_sums(float (&sum)[N]) {
  bool is_odd = (threadIdx.x % 32 & (uint32_t)STEP) != 0;
#pragma unroll
  for (int i = 0; i < (STEP < N ? N / (2 * STEP) : 1); i++) {
    float even = sum[STEP < N ? 2 * i : 0], odd = sum[STEP < N ? 2 * i + 1 : 0];
    float other = __shfl_xor_sync(0xFFFFFFFFu, is_odd ? even : odd, STEP);
    sum[i] = __fadd_rn(is_odd ? odd : even, other);
  }
  if constexpr (STEP < 16) reduce_sums<N, 2 * STEP>(sum);
}

/* beside: warps of a block that have outputs beside one another, for the same rows; the others have the next rows, so
 * that what two warps read comes from L2 once. */
template <int ROWS, int OUTS>
static __global__ void __launch_bounds__(32 * F32_WIDE_WARPS)
    f32_kernel(const __grid_constant__ gemm_args a, uint32_t beside, bool wide) {
  launch_dependents_and_wait();
  gemm_job job;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = blockIdx.x * beside + warp % beside, w = 0;
  uint32_t index = blockIdx.y * (blockDim.x / 32 / beside) + warp / beside;
  if (!job_of(a, index, a.jobs != NULL ? a.job_rows : ROWS, &job)) return;
  while (w < a.n_weights && group >= (a.weight[w].n_out + OUTS - 1) / OUTS)
    group -= (a.weight[w++].n_out + OUTS - 1) / OUTS;
  if (w == a.n_weights) return;
  const gemm_weight &weight = a.weight[w];
  const float *values =
      (const float *)(const void *)(weight.data + PACKED_HEADER_BYTES) + (uint64_t)job.matrix * weight.n_out * a.n_in;
  float scale = scale_of(weight, job.matrix);
  const float *of[OUTS];
#pragma unroll
  for (int o = 0; o < OUTS; o++) of[o] = values + (uint64_t)min(group * OUTS + o, weight.n_out - 1) * a.n_in;
  for (uint32_t first = 0; first < job.n; first += ROWS) {
    const float *x[ROWS];
    float sum[OUTS * ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      x[r] = (const float *)a.x + (uint64_t)x_row_of(a, job, first + r) * a.x_stride;
    }
    if (wide)
      add_chains<ROWS, OUTS, F32_SLOTS / (ROWS + OUTS), true>(x, of, a.n_in, sum);
    else
      add_chains<ROWS, OUTS, 1, false>(x, of, a.n_in, sum);
    reduce_sums<ROWS * OUTS>(sum);
    float all = __fmul_rn(sum[0], scale);
    uint32_t r = lane % ROWS, out = group * OUTS + lane / ROWS;
    if (lane < ROWS * OUTS && out < weight.n_out && first + r < job.n)
      weight.y[(uint64_t)(job.first + first + r) * weight.y_stride + out] = all;
  }
}

/* ---- tiles of many rows ---------------------------------------------------------------------------------- */

/* A tile of a block is 2 ROWS rows x 4 OUTS outputs, and a warp's ROWS x OUTS; a stage holds 128 inputs of the tile's
 * rows, then of its outputs, four to a lane. */
template <int ROWS, int OUTS>
struct f32_tile {
  static constexpr uint32_t rows = 2 * ROWS, outs = 4 * OUTS, x_parts = rows / F32_WIDE_WARPS;
  static constexpr uint32_t parts = (rows + outs) / F32_WIDE_WARPS; /* rows and outputs that a warp copies */
  static constexpr uint32_t stage = (rows + outs) * 512, bytes = F32_STAGES * stage;
};

/* Starts the copies of parts [FIRST, END) of a stage. to: the thread's place of part 0. */
template <class S, uint32_t FIRST, uint32_t END>
static __device__ __forceinline__ void copy_parts(const float *const (&from)[S::parts], uint32_t step, uint32_t n_in,
                                                  uint32_t to) {
  bool has = 128 * step + 4 * (threadIdx.x % 32) < n_in;
#pragma unroll
  for (uint32_t i = FIRST; i < END; i++)
    cp_async_16_if(to + step % F32_STAGES * S::stage + i * F32_WIDE_WARPS * 512, from[i] + 128 * step, has);
}

/* The warp's tile of a stage: x and w are the lane's places in it. */
template <int ROWS, int OUTS>
static __device__ __forceinline__ void add_stage(const float4 *x, const float4 *w, float (&sum)[OUTS * ROWS]) {
  float4 v[OUTS];
#pragma unroll
  for (int o = 0; o < OUTS; o++) v[o] = w[32 * o];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float4 in = x[32 * r];
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
      float &to = sum[o * ROWS + r];
      to = __fmaf_rn(v[o].w, in.w, __fmaf_rn(v[o].z, in.z, __fmaf_rn(v[o].y, in.y, __fmaf_rn(v[o].x, in.x, to))));
    }
  }
}

/* Without jobs, of whole fours of inputs that may be read at once. Weights come before the kernel waits for rows. */
template <int ROWS, int OUTS>
static __global__ void __launch_bounds__(32 * F32_WIDE_WARPS, ROWS > 8 ? 1 : 2)
    f32_tiles_kernel(const __grid_constant__ gemm_args a) {
  using S = f32_tile<ROWS, OUTS>;
  extern __shared__ float4 memory[];
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = blockIdx.x, w = 0, n_steps = (a.n_in + 127) / 128;
  launch_dependent_grids();
  for (; w + 1 < a.n_weights && group >= (a.weight[w].n_out + S::outs - 1) / S::outs; w++)
    group -= (a.weight[w].n_out + S::outs - 1) / S::outs;
  const gemm_weight &weight = a.weight[w];
  const float *values = (const float *)(const void *)(weight.data + PACKED_HEADER_BYTES), *from[S::parts];
  const gemm_job job = {0, blockIdx.y * S::rows, min(S::rows, a.n_rows - blockIdx.y * S::rows)};
  float scale = scale_of(weight, 0), sum[OUTS * ROWS] = {};
#pragma unroll
  for (uint32_t i = 0; i < S::parts; i++) {
    uint32_t row = warp + i * F32_WIDE_WARPS, out = min(group * S::outs + row - S::rows, weight.n_out - 1);
    from[i] = (i < S::x_parts ? (const float *)a.x + (uint64_t)x_row_of(a, job, row) * a.x_stride
                              : values + (uint64_t)out * a.n_in) +
              4 * lane;
  }
  uint32_t to = shared_address(memory + threadIdx.x);
#pragma unroll
  for (uint32_t s = 0; s + 1 < F32_STAGES; s++) copy_parts<S, S::x_parts, S::parts>(from, s, a.n_in, to);
  wait_for_prior_grids();
#pragma unroll
  for (uint32_t s = 0; s + 1 < F32_STAGES; s++) {
    copy_parts<S, 0, S::x_parts>(from, s, a.n_in, to);
    cp_async_commit();
  }
#pragma unroll 1
  for (uint32_t s = 0; s < n_steps; s++) {
    const float4 *stage = memory + s % F32_STAGES * (S::stage / 16) + lane;
    cp_async_wait<F32_STAGES - 2>();
    __syncthreads(); /* this stage is there, and all warps are done with the one before */
    copy_parts<S, 0, S::parts>(from, s + F32_STAGES - 1, a.n_in, to);
    cp_async_commit();
    add_stage<ROWS, OUTS>(stage + warp / 4 * ROWS * 32, stage + (S::rows + warp % 4 * OUTS) * 32, sum);
  }
  reduce_sums<OUTS * ROWS>(sum);
#pragma unroll
  for (uint32_t i = 0; i < OUTS * ROWS / 32; i++) {
    uint32_t r = warp / 4 * ROWS + lane % ROWS, out = group * S::outs + warp % 4 * OUTS + (32 * i + lane) / ROWS;
    if (r < job.n && out < weight.n_out)
      weight.y[(uint64_t)(job.first + r) * weight.y_stride + out] = __fmul_rn(sum[i], scale);
  }
}

/* args NULL: sets the kernel up. */
template <int ROWS, int OUTS>
static weft_status launch_f32_tiles(cuda_device *d, const gemm_args *args) {
  using S = f32_tile<ROWS, OUTS>;
  if (args == NULL) {
    cudaError_t error =
        cudaFuncSetAttribute(f32_tiles_kernel<ROWS, OUTS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up f32 products");
  }
  uint32_t n_groups = 0;
  for (uint32_t w = 0; w < args->n_weights; w++) n_groups += cuda_ceil(args->weight[w].n_out, S::outs);
  cuda_start(d, f32_tiles_kernel<ROWS, OUTS>, dim3(n_groups, cuda_ceil(args->n_rows, S::rows)), 32 * F32_WIDE_WARPS,
             S::bytes, *args);
  return cuda_launched(d, "an f32 product of many rows");
}

/* ---- few rows, and jobs ---------------------------------------------------------------------------------- */

/* Whether four inputs of a row, and of a weight row, may be read at once. */
static bool reads_fours(const gemm_args *a) {
  return a->n_in % 4 == 0 && gemm_is_wide((const float *)a->x, a->x_stride);
}

/* below: the warps of a block that have other rows; jobs have one. */
template <int ROWS, int OUTS>
static weft_status launch_f32(cuda_device *d, const gemm_args *args, uint32_t beside, uint32_t below) {
  uint32_t n_groups = 0;
  for (uint32_t w = 0; w < args->n_weights; w++) n_groups += cuda_ceil(args->weight[w].n_out, OUTS);
  bool wide = reads_fours(args);
  uint32_t n_blocks = cuda_ceil(n_groups, beside);
  uint32_t n_jobs = args->jobs != NULL ? args->jobs_max : cuda_ceil(args->n_rows, ROWS * below);
  gemm_args a = *args;
  for (uint32_t first = 0; first < n_jobs; first += 65535) {
    uint32_t n = n_jobs - first < 65535 ? n_jobs - first : 65535;
    cuda_start(d, f32_kernel<ROWS, OUTS>, dim3(n_blocks, n), 32 * beside * below, 0, a, beside, wide);
    if (args->jobs != NULL) break;
    uint64_t rows = (uint64_t)n * ROWS * below;
    a.x = (const float *)a.x + rows * a.x_stride;
    a.n_rows -= rows < a.n_rows ? (uint32_t)rows : a.n_rows;
    for (uint32_t w = 0; w < a.n_weights; w++) a.weight[w].y += rows * a.weight[w].y_stride;
  }
  return cuda_launched(d, "an f32 product");
}

/* Whether there are so many results, those of the first weight alone, that three of four multiprocessors have `each`
 * tiles of rows x outs. */
static bool takes_tiles(const cuda_device *d, const gemm_args *a, uint32_t rows, uint32_t outs, uint32_t each) {
  if (a->n_rows < F32_TILE_ROWS || !reads_fours(a)) return false;
  return cuda_ceil(a->n_rows, rows) * (a->weight[0].n_out / outs) * 4ull >= 3ull * each * d->n_multiprocessors;
}

/* Few results have warps with fewer outputs and smaller blocks, so that they spread over the card. Larger tiles, which
 * read less, are for those of which a multiprocessor has two. */
weft_status gemm_f32(cuda_device *d, const gemm_args *args) {
  uint64_t n_rows = args->jobs != NULL ? args->job_rows : args->n_rows;
  uint32_t n_out = args->weight[0].n_out;
  if (n_rows == 1) return launch_f32<1, 1>(d, args, 2, 1);
  if (args->jobs != NULL) return launch_f32<8, F32_OUTS>(d, args, F32_WIDE_WARPS, 1);
  if (takes_tiles(d, args, 32, 32, 2)) return launch_f32_tiles<16, 8>(d, args);
  if (takes_tiles(d, args, 16, 16, 1)) return launch_f32_tiles<8, 4>(d, args);
  if (n_out > 512 || n_rows > 1024) return launch_f32<8, F32_OUTS>(d, args, F32_WIDE_WARPS, 1);
  if (n_out <= 2) return launch_f32<1, 1>(d, args, 1, 1);
  if (n_rows <= 8 || (n_out < 128 && n_rows <= 128)) return launch_f32<8, 1>(d, args, 2, 1);
  if (n_out >= 128 && n_rows <= 128) return launch_f32<4, F32_OUTS>(d, args, 2, 2);
  return launch_f32<8, 2>(d, args, 4, 1);
}

weft_status gemm_f32_setup(cuda_device *d) {
  weft_status status = launch_f32_tiles<16, 8>(d, NULL);
  return status == WEFT_OK ? launch_f32_tiles<8, 4>(d, NULL) : status;
}
