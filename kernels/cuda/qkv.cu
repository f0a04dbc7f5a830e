/* SPDX-License-Identifier: MIT */
/* qkv: norms per head, rotation, and keys and values into pages or into the segment's own rows.
 *
 * A warp has one head of one row. Its lane has pairs (i, i + head_dim / 2), i = lane + 32 t, which are
 * the two numbers that rotate together; they stay in registers from load to store. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/common.cuh"

enum { QKV_WARPS = 4 };

/* What a lane's numbers are multiplied by: the norm's weights, sines and cosines. They do not depend on the kernels
 * before this one. */
template <int PAIRS>
struct head_factors {
  float weight[2][PAIRS], sine[PAIRS], cosine[PAIRS];
};

/* Not inlined: it is long, and a lane asks for it up to sixteen times. */
static __device__ __noinline__ float2 sine_and_cosine(float angle) {
  float2 both;
  sincosf(angle, &both.x, &both.y);
  return both;
}

/* Loads the norm's weights (NULL: all 1) and computes the angles (inv_freq NULL: no rotation follows). */
template <int PAIRS>
static __device__ __forceinline__ void find_factors(const float *weight, const float *inv_freq, int32_t position,
                                                    uint32_t dim, head_factors<PAIRS> &f) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    uint32_t i = threadIdx.x % 32 + 32 * t;
    if (i >= dim / 2) continue;
    f.weight[0][t] = weight == NULL ? 1.0f : weight[i];
    f.weight[1][t] = weight == NULL ? 1.0f : weight[i + dim / 2];
    if (inv_freq == NULL) continue;
    float2 both = sine_and_cosine(__fmul_rn((float)position, inv_freq[i]));
    f.sine[t] = both.x, f.cosine[t] = both.y;
  }
}

/* Makes x / rms(x) * weight of x in place. x[0], x[1]: the first and second numbers of the lane's pairs. */
template <int PAIRS>
static __device__ __forceinline__ void norm_head(float (&x)[2][PAIRS], const head_factors<PAIRS> &f, float eps,
                                                 uint32_t dim) {
  float sum = 0.0f;
#pragma unroll
  for (int t = 0; t < PAIRS; t++) sum = fmaf(x[0][t], x[0][t], fmaf(x[1][t], x[1][t], sum));
  sum = warp_sum(sum);
  float factor = __fdiv_rn(1.0f, sqrtf(__fdiv_rn(sum, (float)dim) + eps));
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    if (threadIdx.x % 32 + 32 * t >= dim / 2) continue;
    x[0][t] = __fmul_rn(__fmul_rn(x[0][t], factor), f.weight[0][t]);
    x[1][t] = __fmul_rn(__fmul_rn(x[1][t], factor), f.weight[1][t]);
  }
}

template <int PAIRS>
static __device__ __forceinline__ void rotate_head(float (&x)[2][PAIRS], const head_factors<PAIRS> &f, uint32_t dim) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    if (threadIdx.x % 32 + 32 * t >= dim / 2) continue;
    float a = x[0][t], b = x[1][t], s = f.sine[t], c = f.cosine[t];
    x[0][t] = __fmaf_rn(a, c, -__fmul_rn(b, s));
    x[1][t] = __fmaf_rn(a, s, __fmul_rn(b, c));
  }
}

template <int PAIRS>
static __device__ __forceinline__ void load_head(float (&x)[2][PAIRS], const float *from, uint32_t dim) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    uint32_t i = threadIdx.x % 32 + 32 * t;
    x[0][t] = i < dim / 2 ? from[i] : 0.0f;
    x[1][t] = i < dim / 2 ? from[i + dim / 2] : 0.0f;
  }
}

template <int PAIRS>
static __device__ __forceinline__ void store_head(const float (&x)[2][PAIRS], weft_type type, void *to, uint32_t dim) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    uint32_t i = threadIdx.x % 32 + 32 * t;
    if (i >= dim / 2) continue;
    if (type == WEFT_TYPE_F32) {
      ((float *)to)[i] = x[0][t];
      ((float *)to)[i + dim / 2] = x[1][t];
    } else {
      ((__nv_bfloat16 *)to)[i] = __float2bfloat16_rn(x[0][t]);
      ((__nv_bfloat16 *)to)[i + dim / 2] = __float2bfloat16_rn(x[1][t]);
    }
  }
}

/* Stores as weft_kv_row_store does for Q8_0. 32 neighbours share a factor, so the numbers are first written to `line`
 * in their order. line: scratch of the warp, dim floats. */
template <int PAIRS>
static __device__ __forceinline__ void store_q8(const float (&x)[2][PAIRS], float *line, uint8_t *to, uint32_t dim) {
  uint32_t lane = threadIdx.x % 32;
  store_head<PAIRS>(x, WEFT_TYPE_F32, line, dim);
  __syncwarp();
  for (uint32_t i = lane; i < dim; i += WEFT_KV_Q8_BLOCK) {
    float value = line[i];
    float d = __fadd_rn(__fdiv_rn(warp_max(fabsf(value)), 127.0f), warp_sum(__fmul_rn(value, 0.0f)));
    float inverse = d >= WEFT_KV_Q8_LEAST ? __fdiv_rn(1.0f, d) : 0.0f;
    to[i] = inverse > 0.0f ? (uint8_t)(int8_t)roundf(__fmul_rn(value, inverse)) : 0;
    if (lane == 0) ((__half *)(void *)(to + dim))[i / WEFT_KV_Q8_BLOCK] = __float2half_rn(d);
  }
}

/* Where key (or value) `head` of row r goes; NULL where there is no place. */
static __device__ void *place_of_head(const weft_qkv_args &a, uint32_t r, uint32_t head, bool is_value) {
  uint64_t vector = kv_row_bytes(a.kv.type, a.kv.head_dim);
  int64_t slot = a.slot[r];
  if (slot < 0) {
    uint8_t *own = (uint8_t *)(is_value ? a.own_v : a.own_k);
    if (own == NULL || r < a.own_first) return NULL;
    return own + ((uint64_t)(r - a.own_first) * a.kv.n_kv_heads + head) * vector;
  }
  if (a.kv.base == NULL) return NULL;
  uint64_t page = (uint64_t)slot / a.kv.block_tokens, offset = (uint64_t)slot % a.kv.block_tokens;
  uint8_t *at = (uint8_t *)a.kv.base + page * a.kv.page_bytes + (is_value ? a.kv.v_offset : a.kv.k_offset);
  return at + ((uint64_t)head * a.kv.block_tokens + offset) * vector;
}

/* How many heads a row has: queries, and keys and values where there are any, in this order. */
static __host__ __device__ uint32_t heads_of(const weft_qkv_args &a) {
  return a.n_heads + (a.k == NULL ? 0 : 2 * a.kv.n_kv_heads);
}

template <int PAIRS>
static __global__ void __launch_bounds__(32 * QKV_WARPS) qkv_kernel(const weft_qkv_args a) {
  next_may_start();
  uint32_t n_heads = heads_of(a), dim = a.kv.head_dim;
  uint32_t head = blockIdx.x * QKV_WARPS + threadIdx.x / 32, r = blockIdx.y;
  if (head >= n_heads) return;
  __shared__ float line[QKV_WARPS][WEFT_HEAD_DIM_MAX];
  bool is_query = head < a.n_heads, is_value = head >= a.n_heads + a.kv.n_kv_heads;
  uint32_t at = is_query ? head : is_value ? head - a.n_heads - a.kv.n_kv_heads : head - a.n_heads;
  void *to = is_query ? a.q + (uint64_t)r * a.q_stride + (uint64_t)at * dim : place_of_head(a, r, at, is_value);
  const float *weight = is_query ? a.q_norm : is_value ? NULL : a.k_norm, *from = (const float *)to;
  bool has_norm = is_value ? a.v_norm : weight != NULL;
  if (!is_query)
    from = (is_value ? a.v + (uint64_t)r * a.v_stride : a.k + (uint64_t)r * a.k_stride) + (uint64_t)at * dim;
  float x[2][PAIRS];
  head_factors<PAIRS> factors;
  find_factors<PAIRS>(weight, is_value ? NULL : a.inv_freq, a.position[r], dim, factors);
  inputs_wait();
  if (to == NULL) return;
  load_head<PAIRS>(x, from, dim);
  if (has_norm) norm_head<PAIRS>(x, factors, a.eps, dim);
  if (!is_value) rotate_head<PAIRS>(x, factors, dim);
  if (!is_query && a.kv.type == WEFT_TYPE_Q8_0)
    store_q8<PAIRS>(x, line[threadIdx.x / 32], (uint8_t *)to, dim);
  else
    store_head<PAIRS>(x, is_query ? WEFT_TYPE_F32 : a.kv.type, to, dim);
}

weft_status cuda_qkv(weft_device *device, const weft_qkv_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_qkv_args a = *args;
  uint32_t pairs = cuda_ceil(a.kv.head_dim / 2, 32);
  uint32_t n_heads = heads_of(a);
  for (uint32_t first = 0; first < args->n_rows; first += a.n_rows) {
    a.n_rows = args->n_rows - first < 65535 ? args->n_rows - first : 65535;
    dim3 grid(cuda_ceil(n_heads, QKV_WARPS), a.n_rows);
    if (pairs <= 4)
      cuda_start(d, qkv_kernel<4>, grid, 32 * QKV_WARPS, 0, a);
    else if (pairs <= 8)
      cuda_start(d, qkv_kernel<8>, grid, 32 * QKV_WARPS, 0, a);
    else
      cuda_start(d, qkv_kernel<16>, grid, 32 * QKV_WARPS, 0, a);
    a.q += (uint64_t)a.n_rows * a.q_stride;
    a.position += a.n_rows;
    if (a.k == NULL) continue;
    a.k += (uint64_t)a.n_rows * a.k_stride;
    a.v += (uint64_t)a.n_rows * a.v_stride;
    a.slot += a.n_rows;
    if (a.own_first >= a.n_rows) {
      a.own_first -= a.n_rows;
    } else if (a.own_k != NULL) { /* row 0 of what is left lies n_rows - own_first own rows on */
      uint64_t on = (uint64_t)(a.n_rows - a.own_first) * a.kv.n_kv_heads * kv_row_bytes(a.kv.type, a.kv.head_dim);
      a.own_k = (uint8_t *)a.own_k + on;
      a.own_v = (uint8_t *)a.own_v + on;
      a.own_first = 0;
    }
  }
  return cuda_launched(d, "qkv");
}
