/* SPDX-License-Identifier: MIT */
/* Attention for any head size and any type of keys: one warp per query, f32 throughout, a softmax over a chunk of keys
 * at a time.
 *
 *   scores   lane l has keys l, l + 32, ... of the chunk; a score is four chains over the head dimension
 *   out      lane l has dimensions l, l + 32, ...; keys are added ascending */
#include "kernels/cuda/attention/attention.cuh"

enum { FALLBACK_WARPS = FALLBACK_QUERIES, FALLBACK_CHUNK = WEFT_ATTENTION_CHUNK };

typedef struct fallback_memory {
  float q[WEFT_HEAD_DIM_MAX];
  float weight[FALLBACK_CHUNK];
  const uint8_t *value[FALLBACK_CHUNK];
} fallback_memory;

template <weft_type T>
static __device__ __forceinline__ float element_at(const uint8_t *row, uint32_t i, uint32_t dim) {
  if (T == WEFT_TYPE_F32) return ((const float *)(const void *)row)[i];
  if (T == WEFT_TYPE_BF16) return __uint_as_float((uint32_t)((const uint16_t *)(const void *)row)[i] << 16);
  const __half *factor = (const __half *)(const void *)(row + dim) + i / WEFT_KV_Q8_BLOCK;
  return __fmul_rn(__half2float(*factor), (float)(int8_t)row[i]);
}

template <weft_type T>
static __device__ __forceinline__ float score_of(const float *q, const uint8_t *key, uint32_t dim) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint32_t i = 0; i < dim; i += 4) {
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] = __fmaf_rn(q[i + e], element_at<T>(key, i + e, dim), sum[e]);
  }
  return __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
}

/* Writes the weights of the chunk's keys to memory->weight (0 where the query does not see them), and gives the chunk's
 * max and sum. */
template <weft_type T>
static __device__ __forceinline__ void softmax_chunk(const weft_attention_args &a, const weft_attention_segment &s,
                                                     uint32_t shift, uint32_t kv_head, uint32_t base, uint32_t first,
                                                     uint32_t end, fallback_memory *memory, float *chunk_max,
                                                     float *chunk_sum) {
  const uint64_t vector = kv_row_bytes(T, a.kv.head_dim);
  uint32_t lane = threadIdx.x % 32;
  float score[FALLBACK_CHUNK / 32], most = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int j = 0; j < FALLBACK_CHUNK / 32; j++) {
    uint32_t position = base + lane + 32 * j;
    score[j] = -INFINITY;
    if (position >= first && position < end) {
      uint64_t page = page_of_key(s, shift, position);
      const uint8_t *key = key_at(a, s, kv_head, position, page, false, vector);
      memory->value[lane + 32 * j] = key_at(a, s, kv_head, position, page, true, vector);
      score[j] = __fmul_rn(score_of<T>(memory->q, key, a.kv.head_dim), a.scale * 1.44269504088896f);
    }
    most = fmaxf(most, score[j]);
  }
  most = warp_max(most);
#pragma unroll
  for (int j = 0; j < FALLBACK_CHUNK / 32; j++) {
    float weight = score[j] == -INFINITY ? 0.0f : exp2f(score[j] - most);
    if (isnan(score[j])) weight = score[j];
    memory->weight[lane + 32 * j] = weight;
    sum = __fadd_rn(sum, weight);
  }
  *chunk_max = most;
  *chunk_sum = warp_sum(sum);
  __syncwarp();
}

template <weft_type T, bool SINKS>
static __global__ void __launch_bounds__(32 * FALLBACK_WARPS)
    fallback_kernel(const __grid_constant__ attention_kernel_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  fallback_memory *memory = (fallback_memory *)(void *)shared + threadIdx.x / 32;
  const weft_attention_args &a = k.op;
  attention_item item = k.items[blockIdx.x];
  uint32_t f = item.first + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (f >= item.first + item.n) return;
  weft_attention_segment s = a.segment[item.segment];
  uint32_t kv_head = blockIdx.y, i = f / k.group, head = kv_head * k.group + f % k.group, dim = a.kv.head_dim;
  uint64_t row = (uint64_t)s.first_row + i;
  const float *q = a.q + row * a.q_stride + (uint64_t)head * dim;
  for (uint32_t d = lane; d < dim; d += 32) memory->q[d] = q[d];
  __syncwarp();
  uint32_t first, end;
  find_visible(s, a.window, i, &first, &end);
  float all_max = -INFINITY, all_sum = 0.0f, out[WEFT_HEAD_DIM_MAX / 32];
#pragma unroll
  for (int t = 0; t < WEFT_HEAD_DIM_MAX / 32; t++) out[t] = 0.0f;
  for (uint32_t base = first / FALLBACK_CHUNK * FALLBACK_CHUNK; base < end; base += FALLBACK_CHUNK) {
    float chunk_max, chunk_sum, keep, add;
    softmax_chunk<T>(a, s, k.block_shift, kv_head, base, first, end, memory, &chunk_max, &chunk_sum);
    rescale_factors(all_max, chunk_max, &all_max, &keep, &add);
    all_sum = rescale_add(all_sum, keep, chunk_sum, add);
    uint32_t low = base < first ? first - base : 0, high = end - base < FALLBACK_CHUNK ? end - base : FALLBACK_CHUNK;
#pragma unroll
    for (int t = 0; t < WEFT_HEAD_DIM_MAX / 32; t++) {
      uint32_t d = lane + 32 * t;
      if (d >= dim) continue;
      float sum = 0.0f;
      for (uint32_t key = low; key < high; key++)
        sum = __fmaf_rn(memory->weight[key], element_at<T>(memory->value[key], d, dim), sum);
      out[t] = rescale_add(out[t], keep, sum, add);
    }
    __syncwarp();
  }
  if (SINKS) all_sum = add_sink(k, head, all_max, all_sum);
  float *to = a.out + row * a.out_stride + (uint64_t)head * dim;
#pragma unroll
  for (int t = 0; t < WEFT_HEAD_DIM_MAX / 32; t++) {
    uint32_t d = lane + 32 * t;
    if (d < dim) to[d] = __fdiv_rn(out[t], all_sum);
  }
}

template <weft_type T>
static void start_fallback(cuda_device *d, const attention_kernel_args *args) {
  dim3 grid(args->n_items, args->op.kv.n_kv_heads);
  cuda_start(d, args->op.sinks != NULL ? fallback_kernel<T, true> : fallback_kernel<T, false>, grid,
             32 * FALLBACK_WARPS, FALLBACK_WARPS * sizeof(fallback_memory), *args);
}

weft_status attention_fallback(cuda_device *d, const attention_kernel_args *args) {
  weft_type type = args->op.kv.type;
  if (type == WEFT_TYPE_BF16) {
    start_fallback<WEFT_TYPE_BF16>(d, args);
  } else if (type == WEFT_TYPE_Q8_0) {
    start_fallback<WEFT_TYPE_Q8_0>(d, args);
  } else {
    start_fallback<WEFT_TYPE_F32>(d, args);
  }
  return cuda_launched(d, "attention");
}
