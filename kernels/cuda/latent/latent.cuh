/* SPDX-License-Identifier: MIT */
/* What the kernels of latent rows (kernels/latent.h) share: segments on the device, rotation, rows as they are
 * stored, and what latent_attend on tensor cores needs for any width.
 *
 * Law: where a warp has numbers of a row, lane l has number 32 i + l of it, so that numbers which rotate together are
 * neighbouring lanes' and numbers of one factor (kernels/kv_row.h) are one warp's. A sum has one order, which depends
 * on the width of rows, on how many a row sees and on their types alone. */
#ifndef WEFT_KERNELS_CUDA_LATENT_CUH
#define WEFT_KERNELS_CUDA_LATENT_CUH

#include <type_traits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/latent/latent.h"

/* Into a plan whose padding is zero. */
void latent_copy_segments(const weft_latent_segment *segment, uint32_t n, weft_latent_segment *to);
/* Copies segments to the device, in a plan: the walk of an op is this and what depends on the segments beside it. */
weft_status latent_push_segments(cuda_device *d, const weft_latent_segment *segment, uint32_t n_segments,
                                 const weft_latent_segment **out);

/* The walk of an op whose plan is the segments alone. */
static inline weft_status latent_walk_segments(weft_device *device, const weft_latent_segment *segment,
                                               uint32_t n_segments) {
  const weft_latent_segment *there = NULL;
  return latent_push_segments(cuda_of(device), segment, n_segments, &there);
}

/* Not inlined: it is long. Not static: nvcc would give it a name with a hash of the folder. */
inline __device__ __noinline__ float2 latent_sine_and_cosine(float angle) {
  float2 both;
  sincosf(angle, &both.x, &both.y);
  return both;
}

/* weft_latent_row of offset, on the device. */
static __device__ __forceinline__ uint8_t *latent_row_at(const weft_latent_view &rows, uint64_t offset,
                                                         const uint32_t *table, uint32_t position) {
  return (uint8_t *)rows.base + table[position / rows.block_tokens] * rows.page_bytes + offset +
         position % rows.block_tokens / rows.positions * kv_row_bytes(rows.type, rows.width);
}

/* The segment that row r belongs to. */
static __device__ __forceinline__ const weft_latent_segment &latent_find_segment(const weft_latent_segment *segment,
                                                                                 uint32_t n_segments, uint32_t r) {
  uint32_t low = 0, high = n_segments;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (segment[middle].first_row <= r)
      low = middle;
    else
      high = middle;
  }
  return segment[low];
}

/* Number i of n, which is x, rotated by the position with its neighbour, which is the neighbouring lane's. Of each row
 * all lanes of a warp call it. way -1: back. */
static __device__ __forceinline__ float latent_rotate(const weft_latent_turn &turn, float x, uint32_t i, uint32_t n,
                                                      uint32_t position, float way) {
  float other = __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  if (i >= n || i < n - turn.n_rotated) return x;
  uint32_t pair = (i - (n - turn.n_rotated)) / 2;
  float2 both = latent_sine_and_cosine(__fmul_rn((float)position, turn.inv_freq[pair]));
  float sine = __fmul_rn(i % 2 == 0 ? -way : way, both.x);
  return __fmaf_rn(x, both.y, __fmul_rn(other, sine));
}

/* Stores number i of n as weft_kv_row_store does; the warp has the 32 of a factor. */
static __device__ __forceinline__ void latent_store(weft_type type, uint8_t *row, float x, uint32_t i, uint32_t n) {
  if (type == WEFT_TYPE_Q8_0) {
    float d = __fadd_rn(__fdiv_rn(warp_max(fabsf(x)), 127.0f), warp_sum(__fmul_rn(x, 0.0f)));
    float inverse = d >= WEFT_KV_Q8_LEAST ? __fdiv_rn(1.0f, d) : 0.0f;
    if (i >= n) return;
    row[i] = inverse > 0.0f ? (uint8_t)(int8_t)roundf(__fmul_rn(x, inverse)) : 0;
    if (i % WEFT_KV_Q8_BLOCK == 0) ((__half *)(void *)(row + n))[i / WEFT_KV_Q8_BLOCK] = __float2half_rn(d);
  } else if (i < n && type == WEFT_TYPE_F32) {
    ((float *)(void *)row)[i] = x;
  } else if (i < n) {
    ((__nv_bfloat16 *)(void *)row)[i] = __float2bfloat16_rn(x);
  }
}

/* Number i of a stored row of n. */
template <weft_type T>
static __device__ __forceinline__ float latent_load(const uint8_t *row, uint32_t i, uint32_t n) {
  if (T == WEFT_TYPE_F32) return ((const float *)(const void *)row)[i];
  if (T == WEFT_TYPE_BF16) return __uint_as_float((uint32_t)((const uint16_t *)(const void *)row)[i] << 16);
  const __half *factor = (const __half *)(const void *)(row + n) + i / WEFT_KV_Q8_BLOCK;
  return __fmul_rn(__half2float(*factor), (float)(int8_t)row[i]);
}

/* The same type as a template argument. */
template <class F>
static inline void latent_dispatch(weft_type type, F &&run) {
  if (type == WEFT_TYPE_F32)
    run(std::integral_constant<weft_type, WEFT_TYPE_F32>());
  else if (type == WEFT_TYPE_BF16)
    run(std::integral_constant<weft_type, WEFT_TYPE_BF16>());
  else
    run(std::integral_constant<weft_type, WEFT_TYPE_Q8_0>());
}

/* ---- latent_attend on tensor cores ---- */

/* Sixteen integers times a factor, as bf16. */
static __device__ __forceinline__ void latent_put_eight_bits(uint8_t *to, const uint4 &q, float factor) {
  uint32_t word[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    uint32_t four = i < 2 ? q.x : i < 4 ? q.y : i < 6 ? q.z : q.w;
    int8_t one = (int8_t)(four >> 16 * (i % 2)), two = (int8_t)(four >> (16 * (i % 2) + 8));
    word[i] = pair_bf16(__fmul_rn(factor, (float)one), __fmul_rn(factor, (float)two));
  }
  ((uint4 *)(void *)to)[0] = make_uint4(word[0], word[1], word[2], word[3]);
  ((uint4 *)(void *)to)[1] = make_uint4(word[4], word[5], word[6], word[7]);
}

/* The maximum over sixteen lanes. */
static __device__ __forceinline__ float latent_max_of_16(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

#ifndef WEFT_CUDA_PORTABLE

/* What block `rank` of the cluster has where this block has `mine`. */
static __device__ __forceinline__ float load_from_cluster(const float *mine, uint32_t rank) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(cluster_address(mine, rank)) : "memory");
  return x;
}

static __device__ __forceinline__ float4 load_four_from_cluster(const float *mine, uint32_t rank) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(cluster_address(mine, rank))
               : "memory");
  return x;
}

template <class K>
static inline cudaError_t latent_allow(K *kernel, size_t n_bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
}

#endif

/* latent_heads of many rows on Hopper (heads_wgmma.cu), where sizes fit. */
bool latent_heads_are_wide(const weft_latent_heads_args *args);
weft_status latent_heads_wide(cuda_device *d, const weft_latent_heads_args *args);
weft_status latent_heads_setup(cuda_device *d);
/* latent_attend of rows that tensor cores do not take (latent_fallback.cu). */
weft_status latent_attend_fallback(cuda_device *d, const weft_latent_attend_args *args);

#endif
