/* SPDX-License-Identifier: MIT */
/* qkv: biases, RMS norms per head, rotary embedding (RoPE), and keys and values into pages or into the segment's own
 * rows.
 *
 * A warp has heads of one row, one after another, with the row's sines and cosines; where rows are few, it has one. Its
 * lane has pairs (i, i + head_dim / 2), i = lane + 32 t, which are the two numbers that rotate together; they stay in
 * registers from load to store. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/common.cuh"

enum { QKV_WARPS = 4, QKV_BLOCKS = 10 /* to a multiprocessor; with more, warps have several heads */ };

/* What a lane's numbers are multiplied by: the norm's weights, sines and cosines. They do not depend on the kernels
 * before this one. */
template <int PAIRS>
struct head_factors {
  float weight[2][PAIRS], sine[PAIRS], cosine[PAIRS];
};

/* Not inlined: it is long, and a lane calls it up to sixteen times. Not static: nvcc would give it a name with a hash
 * of the folder, and no two builds the same bytes. */
__device__ __noinline__ float2 qkv_sine_and_cosine(float angle) {
  float2 both;
  sincosf(angle, &both.x, &both.y);
  return both;
}

/* Computes the angles (inv_freq NULL: no rotation follows). */
template <int PAIRS>
static __device__ __forceinline__ void find_angles(const float *inv_freq, int32_t position, uint32_t dim,
                                                   head_factors<PAIRS> &f) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    uint32_t i = threadIdx.x % 32 + 32 * t;
    if (i >= dim / 2 || inv_freq == NULL) continue;
    float2 both = qkv_sine_and_cosine(__fmul_rn((float)position, inv_freq[i]));
    f.sine[t] = both.x, f.cosine[t] = both.y;
  }
}

/* Loads the norm's weights (NULL: all 1). */
template <int PAIRS>
static __device__ __forceinline__ void find_weights(const float *weight, uint32_t dim, head_factors<PAIRS> &f) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    uint32_t i = threadIdx.x % 32 + 32 * t;
    if (i >= dim / 2) continue;
    f.weight[0][t] = weight == NULL ? 1.0f : weight[i];
    f.weight[1][t] = weight == NULL ? 1.0f : weight[i + dim / 2];
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

/* Loads a head's bias; NULL: -0, which changes no number. */
template <int PAIRS>
static __device__ __forceinline__ void load_bias(float (&x)[2][PAIRS], const float *bias, uint32_t dim) {
#pragma unroll
  for (int t = 0; t < PAIRS; t++) {
    uint32_t i = threadIdx.x % 32 + 32 * t;
    bool is_there = bias != NULL && i < dim / 2;
    x[0][t] = is_there ? bias[i] : -0.0f;
    x[1][t] = is_there ? bias[i + dim / 2] : -0.0f;
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
  __syncwarp(); /* the head before has been read */
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

/* Where a row's first key and value go, and how many bytes on those of the next head do; NULL: they have no place. */
typedef struct row_place {
  uint8_t *k, *v;
  uint64_t next;
} row_place;

static __device__ row_place place_of_row(const weft_qkv_args &a, uint32_t r) {
  uint64_t vector = kv_row_bytes(a.kv.type, a.kv.head_dim);
  row_place to = {NULL, NULL, vector};
  if (a.k == NULL) return to;
  int64_t slot = a.slot[r];
  if (slot < 0 && r >= a.own_first) {
    uint64_t at = (uint64_t)(r - a.own_first) * a.kv.n_kv_heads * vector;
    if (a.own_k != NULL) to.k = (uint8_t *)a.own_k + at;
    if (a.own_v != NULL) to.v = (uint8_t *)a.own_v + at;
  } else if (slot >= 0 && a.kv.base != NULL) {
    uint64_t page = (uint64_t)slot / a.kv.block_tokens, offset = (uint64_t)slot % a.kv.block_tokens;
    uint8_t *at = (uint8_t *)a.kv.base + page * a.kv.page_bytes + offset * vector;
    to = {at + a.kv.k_offset, at + a.kv.v_offset, a.kv.block_tokens * vector};
  }
  return to;
}

/* How many heads a row has: queries, and keys and values where there are any, in this order. */
static __host__ __device__ uint32_t heads_of(const weft_qkv_args &a) {
  return a.n_heads + (a.k == NULL ? 0 : 2 * a.kv.n_kv_heads);
}

/* A head of a row: its kind, where it comes from and goes to (NULL: nowhere), its bias and its norm's weights. */
typedef struct head_place {
  bool is_query, is_value;
  const float *from, *bias, *weight;
  void *to;
} head_place;

static __device__ __forceinline__ const float *bias_at(const float *bias, uint32_t head, uint32_t dim) {
  return bias == NULL ? NULL : bias + (uint64_t)head * dim;
}

static __device__ __forceinline__ head_place head_at(const weft_qkv_args &a, const row_place &row, uint32_t r,
                                                     uint32_t head) {
  uint32_t dim = a.kv.head_dim, key = head - a.n_heads, value = key - a.kv.n_kv_heads;
  if (head < a.n_heads) {
    float *q = a.q + (uint64_t)r * a.q_stride + (uint64_t)head * dim;
    return {true, false, q, bias_at(a.q_bias, head, dim), a.q_norm, q};
  }
  if (key < a.kv.n_kv_heads)
    return {false,
            false,
            a.k + (uint64_t)r * a.k_stride + (uint64_t)key * dim,
            bias_at(a.k_bias, key, dim),
            a.k_norm,
            row.k == NULL ? NULL : row.k + key * row.next};
  return {false,
          true,
          a.v + (uint64_t)r * a.v_stride + (uint64_t)value * dim,
          bias_at(a.v_bias, value, dim),
          NULL,
          row.v == NULL ? NULL : row.v + value * row.next};
}

/* The numbers of the next head are in flight while a head is computed. BIASED: some heads have biases. */
template <int PAIRS, bool BIASED>
static __global__ void __launch_bounds__(32 * QKV_WARPS, PAIRS <= 1   ? 12
                                                         : PAIRS <= 4 ? 8
                                                         : PAIRS <= 8 ? 5
                                                                      : 1)
    qkv_kernel(const __grid_constant__ weft_qkv_args a) {
  launch_dependent_grids();
  uint32_t n_heads = heads_of(a), dim = a.kv.head_dim;
  uint32_t head = blockIdx.x * QKV_WARPS + threadIdx.x / 32, step = gridDim.x * QKV_WARPS, r = blockIdx.y;
  if (head >= n_heads) return;
  __shared__ float line[QKV_WARPS][64 * PAIRS];
  row_place row = place_of_row(a, r);
  head_place h = head_at(a, row, r, head);
  const float *weight = h.weight;
  float x[2][PAIRS], next[2][PAIRS], bias[2][PAIRS];
  head_factors<PAIRS> factors;
  find_angles<PAIRS>(h.is_value ? NULL : a.inv_freq, a.position[r], dim, factors);
  find_weights<PAIRS>(weight, dim, factors);
  if (BIASED) load_bias<PAIRS>(bias, h.bias, dim);
  wait_for_prior_grids();
  load_head<PAIRS>(next, h.from, dim);
  for (; head < n_heads; head += step) {
    h = head_at(a, row, r, head);
#pragma unroll
    for (int t = 0; t < PAIRS; t++) {
      x[0][t] = BIASED ? __fadd_rn(next[0][t], bias[0][t]) : next[0][t];
      x[1][t] = BIASED ? __fadd_rn(next[1][t], bias[1][t]) : next[1][t];
    }
    if (head + step < n_heads) {
      head_place then = head_at(a, row, r, head + step);
      load_head<PAIRS>(next, then.from, dim);
      if (BIASED) load_bias<PAIRS>(bias, then.bias, dim);
    }
    if (h.weight != weight) find_weights<PAIRS>(h.weight, dim, factors);
    weight = h.weight;
    if (h.is_value ? a.v_norm : weight != NULL) norm_head<PAIRS>(x, factors, a.eps, dim);
    if (!h.is_value) rotate_head<PAIRS>(x, factors, dim);
    if (h.to != NULL && !h.is_query && a.kv.type == WEFT_TYPE_Q8_0)
      store_q8<PAIRS>(x, line[threadIdx.x / 32], (uint8_t *)h.to, dim);
    else if (h.to != NULL)
      store_head<PAIRS>(x, h.is_query ? WEFT_TYPE_F32 : a.kv.type, h.to, dim);
  }
}

template <int PAIRS>
static void start_qkv(cuda_device *d, dim3 grid, const weft_qkv_args &a) {
  bool is_biased = a.q_bias != NULL || a.k_bias != NULL || a.v_bias != NULL;
  cuda_start(d, is_biased ? qkv_kernel<PAIRS, true> : qkv_kernel<PAIRS, false>, grid, 32 * QKV_WARPS, 0, a);
}

weft_status cuda_qkv(weft_device *device, const weft_qkv_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_qkv_args a = *args;
  uint32_t pairs = cuda_ceil(a.kv.head_dim / 2, 32);
  uint32_t n_heads = heads_of(a);
  for (uint32_t first = 0; first < args->n_rows; first += a.n_rows) {
    a.n_rows = args->n_rows - first < 65535 ? args->n_rows - first : 65535;
    uint32_t most = cuda_ceil(n_heads, QKV_WARPS), wanted = cuda_ceil(QKV_BLOCKS * d->n_multiprocessors, a.n_rows);
    dim3 grid(wanted < most ? wanted : most, a.n_rows);
    if (pairs <= 1)
      start_qkv<1>(d, grid, a);
    else if (pairs <= 4)
      start_qkv<4>(d, grid, a);
    else if (pairs <= 8)
      start_qkv<8>(d, grid, a);
    else
      start_qkv<16>(d, grid, a);
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
