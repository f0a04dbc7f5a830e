/* SPDX-License-Identifier: MIT */
/* GEMM with F32 weights, in f32 on the ordinary cores.
 *
 * Law: a warp takes OUTS outputs for ROWS rows. For each result lane l adds chain l of route.h; then comes the
 * reduction tree over the lanes. So a result depends on its row and its weight row alone, whatever ROWS and OUTS are
 * and however the loads are made. */
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/moe/route.h"

enum { F32_OUTS = 4, F32_WIDE_WARPS = 8, F32_SLOTS = 12 /* float4 of a lane that are on their way at once */ };

static __device__ __forceinline__ float4 load_inputs4(const float *row, uint32_t k, uint32_t n, bool wide) {
  if (wide) return k < n ? *(const float4 *)(const void *)(row + k) : make_float4(0, 0, 0, 0);
  return load_four(row, k, n);
}

/* The lane's chain of one row and one output: its numbers are few, and it waits for memory, so that many are asked for
 * at a time. */
static __device__ __forceinline__ float add_chain(const float *x, const float *values, uint32_t n_in, bool wide) {
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t first = 4 * (threadIdx.x % 32); first < n_in; first += 128 * F32_SLOTS) {
    float4 in[F32_SLOTS], v[F32_SLOTS];
#pragma unroll
    for (uint32_t i = 0; i < F32_SLOTS; i++) {
      v[i] = load_inputs4(values, first + 128 * i, n_in, wide);
      in[i] = load_inputs4(x, first + 128 * i, n_in, wide);
    }
#pragma unroll
    for (uint32_t i = 0; i < F32_SLOTS; i++) {
      sum = __fmaf_rn(v[i].x, in[i].x, sum);
      sum = __fmaf_rn(v[i].y, in[i].y, sum);
      sum = __fmaf_rn(v[i].z, in[i].z, sum);
      sum = __fmaf_rn(v[i].w, in[i].w, sum);
    }
  }
  return sum;
}

template <int ROWS, int OUTS>
static __global__ void __launch_bounds__(32 * F32_WIDE_WARPS)
    f32_kernel(const __grid_constant__ gemm_args a, bool wide) {
  launch_dependents_and_wait();
  gemm_job job;
  if (!job_of(a, blockIdx.y, a.jobs != NULL ? a.job_rows : ROWS, &job)) return;
  uint32_t group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, w = 0;
  while (w < a.n_weights && group >= (a.weight[w].n_out + OUTS - 1) / OUTS)
    group -= (a.weight[w++].n_out + OUTS - 1) / OUTS;
  if (w == a.n_weights) return;
  const gemm_weight &weight = a.weight[w];
  const float *values =
      (const float *)(const void *)(weight.data + PACKED_HEADER_BYTES) + (uint64_t)job.matrix * weight.n_out * a.n_in;
  float scale = scale_of(weight, job.matrix);
  for (uint32_t first = 0; first < job.n; first += ROWS) {
    const float *x[ROWS];
    float sum[OUTS][ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      x[r] = (const float *)a.x + (uint64_t)x_row_of(a, job, first + r) * a.x_stride;
#pragma unroll
      for (int o = 0; o < OUTS; o++) sum[o][r] = 0.0f;
    }
    if constexpr (ROWS == 1 && OUTS == 1) sum[0][0] = add_chain(x[0], values + (uint64_t)group * a.n_in, a.n_in, wide);
#pragma unroll 4
    for (uint32_t k = 4 * lane; (ROWS > 1 || OUTS > 1) && k < (a.n_in + 127) / 128 * 128; k += 128) {
      float4 in[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++) in[r] = load_inputs4(x[r], k, a.n_in, wide);
#pragma unroll
      for (int o = 0; o < OUTS; o++) {
        uint32_t out = min(group * OUTS + o, weight.n_out - 1);
        float4 v = load_inputs4(values + (uint64_t)out * a.n_in, k, a.n_in, wide);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          sum[o][r] = __fmaf_rn(v.x, in[r].x, sum[o][r]);
          sum[o][r] = __fmaf_rn(v.y, in[r].y, sum[o][r]);
          sum[o][r] = __fmaf_rn(v.z, in[r].z, sum[o][r]);
          sum[o][r] = __fmaf_rn(v.w, in[r].w, sum[o][r]);
        }
      }
    }
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float all = __fmul_rn(sum_of_chains(sum[o][r]), scale);
        uint32_t out = group * OUTS + o;
        if (lane == 0 && out < weight.n_out && first + r < job.n)
          weight.y[(uint64_t)(job.first + first + r) * weight.y_stride + out] = all;
      }
    }
  }
}

template <int ROWS, int OUTS>
static weft_status launch_f32(cuda_device *d, const gemm_args *args, uint32_t n_warps) {
  uint32_t n_groups = 0;
  for (uint32_t w = 0; w < args->n_weights; w++) n_groups += cuda_ceil(args->weight[w].n_out, OUTS);
  bool wide = args->n_in % 4 == 0 && args->x_stride % 4 == 0 && ((uintptr_t)args->x & 15u) == 0;
  uint32_t n_blocks = cuda_ceil(n_groups, n_warps);
  uint32_t n_jobs = args->jobs != NULL ? args->jobs_max : cuda_ceil(args->n_rows, ROWS);
  gemm_args a = *args;
  for (uint32_t first = 0; first < n_jobs; first += 65535) {
    uint32_t n = n_jobs - first < 65535 ? n_jobs - first : 65535;
    cuda_start(d, f32_kernel<ROWS, OUTS>, dim3(n_blocks, n), 32 * n_warps, 0, a, wide);
    if (args->jobs != NULL) break;
    uint64_t rows = (uint64_t)n * ROWS;
    a.x = (const float *)a.x + rows * a.x_stride;
    a.n_rows -= rows < a.n_rows ? (uint32_t)rows : a.n_rows;
    for (uint32_t w = 0; w < a.n_weights; w++) a.weight[w].y += rows * a.weight[w].y_stride;
  }
  return cuda_launched(d, "an f32 product");
}

/* Few results have warps with fewer outputs and smaller blocks, so that they spread over the card. */
weft_status gemm_f32(cuda_device *d, const gemm_args *args) {
  uint64_t n_rows = args->jobs != NULL ? args->job_rows : args->n_rows;
  if (n_rows == 1) return launch_f32<1, 1>(d, args, 2);
  if (args->jobs == NULL && args->weight[0].n_out <= 512 && n_rows <= 128) return launch_f32<8, 1>(d, args, 2);
  if (args->jobs == NULL && args->weight[0].n_out <= 512 && n_rows <= 1024) return launch_f32<8, 2>(d, args, 4);
  return launch_f32<8, F32_OUTS>(d, args, F32_WIDE_WARPS);
}
