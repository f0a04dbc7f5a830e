/* SPDX-License-Identifier: MIT */
/* latent_attend for any width and type of rows: a warp has a head of a row, f32 throughout, a softmax over 32 rows of
 * the list at a time (latent_attend.cu says which list).
 *
 *   scores   lane l has row l of the 32; a score is four chains over the dimensions
 *   out      lane l has dimensions l, l + 32, ...; rows are added ascending */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/latent/latent.cuh"

enum { FALLBACK_WARPS = 4 };

typedef struct fallback_memory {
  float q[WEFT_HEAD_DIM_MAX];
  float weight[32];
  const uint8_t *row[32];
} fallback_memory;

static __device__ __forceinline__ float load_any(weft_type type, const uint8_t *row, uint32_t i, uint32_t n) {
  if (type == WEFT_TYPE_F32) return latent_load<WEFT_TYPE_F32>(row, i, n);
  if (type == WEFT_TYPE_BF16) return latent_load<WEFT_TYPE_BF16>(row, i, n);
  return latent_load<WEFT_TYPE_Q8_0>(row, i, n);
}

/* Widths are no multiples of four alone: what is left of a row goes to the first chains. */
static __device__ __forceinline__ float score_of(weft_type type, const float *q, const uint8_t *row, uint32_t n) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint32_t i = 0; i < n; i += 4) {
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
      if (i + e < n) sum[e] = __fmaf_rn(q[i + e], load_any(type, row, i + e, n), sum[e]);
  }
  return __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
}

static __global__ void __launch_bounds__(32 * FALLBACK_WARPS)
    fallback_kernel(const __grid_constant__ weft_latent_attend_args a) {
  launch_dependents_and_wait();
  __shared__ fallback_memory memory[FALLBACK_WARPS];
  fallback_memory &m = memory[threadIdx.x / 32];
  const uint32_t lane = threadIdx.x % 32, r = blockIdx.x, n = a.near.width, n_out = a.n_values > 0 ? a.n_values : n;
  const uint32_t head = blockIdx.y * FALLBACK_WARPS + threadIdx.x / 32;
  if (head >= a.n_heads) return;
  const weft_latent_segment &s = latent_find_segment(a.segment, a.n_segments, r);
  const uint32_t position = s.kv_len + (r - s.first_row);
  const uint32_t first_near = position + 1 > a.window ? position + 1 - a.window : 0, n_near = position + 1 - first_near;
  uint32_t n_far = a.far.base == NULL ? 0 : (position + 1) / a.far.positions;
  if (a.ids != NULL) n_far = min(n_far, a.k);
  const float *q = a.q + r * a.q_stride + (uint64_t)head * n;
  for (uint32_t d = lane; d < n; d += 32) m.q[d] = q[d];
  __syncwarp();
  float all_max = -INFINITY, all_sum = 0.0f, out[WEFT_HEAD_DIM_MAX / 32];
#pragma unroll
  for (int t = 0; t < WEFT_HEAD_DIM_MAX / 32; t++) out[t] = 0.0f;
  for (uint32_t base = 0; base < n_near + n_far; base += 32) {
    const uint32_t i = base + lane, end = min(32u, n_near + n_far - base);
    float score = -INFINITY;
    if (i < n_near) {
      m.row[lane] = latent_row_at(a.near, a.near.offset, s.table[WEFT_LATENT_NEAR], first_near + i);
      score = score_of(a.near.type, m.q, m.row[lane], n);
    } else if (i < n_near + n_far) {
      uint32_t id = a.ids == NULL ? i - n_near : (uint32_t)a.ids[(uint64_t)r * a.k + (i - n_near)];
      m.row[lane] = latent_row_at(a.far, a.far.offset, s.table[WEFT_LATENT_FAR], id * a.far.positions);
      score = score_of(a.far.type, m.q, m.row[lane], n);
    }
    score = __fmul_rn(score, a.scale * 1.44269504088896f);
    float most = warp_max(score), weight = i < n_near + n_far ? exp2f(__fsub_rn(score, most)) : 0.0f, keep, add;
    float sum = warp_sum(weight);
    m.weight[lane] = weight;
    __syncwarp();
    rescale_factors(all_max, most, &all_max, &keep, &add);
    all_sum = rescale_add(all_sum, keep, sum, add);
#pragma unroll
    for (int t = 0; t < WEFT_HEAD_DIM_MAX / 32; t++) {
      const uint32_t d = lane + 32 * t;
      if (d >= n_out) continue;
      float own = 0.0f;
      for (uint32_t k = 0; k < end; k++)
        own = __fmaf_rn(m.weight[k], load_any(base + k < n_near ? a.near.type : a.far.type, m.row[k], d, n), own);
      out[t] = rescale_add(out[t], keep, own, add);
    }
    __syncwarp();
  }
  if (a.sinks != NULL) all_sum = __fadd_rn(all_sum, exp2f(__fmaf_rn(a.sinks[head], 1.44269504088896f, -all_max)));
  float *to = a.out + r * a.out_stride + (uint64_t)head * n_out;
#pragma unroll
  for (int t = 0; t < WEFT_HEAD_DIM_MAX / 32; t++) {
    const uint32_t d = lane + 32 * t;
    if (32 * t >= n_out) break;
    float x = d < n_out ? __fdiv_rn(out[t], all_sum) : 0.0f;
    if (a.n_values == 0) x = latent_rotate(a.turn, x, d, n, position, -1.0f);
    if (d < n_out) to[d] = x;
  }
}

weft_status latent_attend_fallback(cuda_device *d, const weft_latent_attend_args *args) {
  cuda_start(d, fallback_kernel, dim3(args->n_rows, cuda_ceil(args->n_heads, FALLBACK_WARPS)), 32 * FALLBACK_WARPS, 0,
             *args);
  return cuda_launched(d, "latent_attend");
}
