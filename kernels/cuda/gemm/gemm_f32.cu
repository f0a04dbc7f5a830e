/* SPDX-License-Identifier: MIT */
/* GEMM with F32 weights, in f32 on the ordinary cores.
 *
 * Law: a warp takes OUTS outputs for ROWS rows. For each result lane l adds chain l of route.h; then comes the
 * reduction tree over the lanes. So a result depends on its row and its weight row alone, whatever ROWS and OUTS are
 * and however the loads are made. */
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/moe/route.h"

enum { F32_OUTS = 4, F32_WIDE_WARPS = 8, F32_SLOTS = 32 /* float4 of a lane that are on their way at once */ };

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
 * takes half of the sums. Lane l returns that of sum l % N. */
template <int N>
static __device__ __forceinline__ float reduce_sums(float (&sum)[N]) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    bool is_odd = (lane & (uint32_t)step) != 0;
#pragma unroll
    for (int i = 0; i < (step < N ? N / (2 * step) : 1); i++) {
      float even = sum[step < N ? 2 * i : 0], odd = sum[step < N ? 2 * i + 1 : 0];
      float other = __shfl_xor_sync(0xFFFFFFFFu, is_odd ? even : odd, step);
      sum[i] = __fadd_rn(is_odd ? odd : even, other);
    }
  }
  return sum[0];
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
    float all = __fmul_rn(reduce_sums<ROWS * OUTS>(sum), scale);
    uint32_t r = lane % ROWS, out = group * OUTS + lane / ROWS;
    if (lane < ROWS * OUTS && out < weight.n_out && first + r < job.n)
      weight.y[(uint64_t)(job.first + first + r) * weight.y_stride + out] = all;
  }
}

/* below: the warps of a block that have other rows; jobs have one. */
template <int ROWS, int OUTS>
static weft_status launch_f32(cuda_device *d, const gemm_args *args, uint32_t beside, uint32_t below) {
  uint32_t n_groups = 0;
  for (uint32_t w = 0; w < args->n_weights; w++) n_groups += cuda_ceil(args->weight[w].n_out, OUTS);
  bool wide = args->n_in % 4 == 0 && args->x_stride % 4 == 0 && ((uintptr_t)args->x & 15u) == 0;
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

/* Few results have warps with fewer outputs and smaller blocks, so that they spread over the card. */
weft_status gemm_f32(cuda_device *d, const gemm_args *args) {
  uint64_t n_rows = args->jobs != NULL ? args->job_rows : args->n_rows;
  uint32_t n_out = args->weight[0].n_out;
  if (n_rows == 1) return launch_f32<1, 1>(d, args, 2, 1);
  if (args->jobs != NULL || n_out > 512 || n_rows > 1024) return launch_f32<8, F32_OUTS>(d, args, F32_WIDE_WARPS, 1);
  if (n_out <= 2) return launch_f32<1, 1>(d, args, 1, 1);
  if (n_rows <= 8 || (n_out < 128 && n_rows <= 128)) return launch_f32<8, 1>(d, args, 2, 1);
  if (n_out >= 128 && n_rows <= 128) return launch_f32<4, F32_OUTS>(d, args, 2, 2);
  return launch_f32<8, 2>(d, args, 4, 1);
}
