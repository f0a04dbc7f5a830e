/* SPDX-License-Identifier: MIT */
/* engram_rows and engram_add (kernels/engram.h).
 *
 * engram_rows: a block has a row, a thread one of the numbers that it makes. Tokens of positions of the same call are
 * those of the call, others lie in pages, so no block waits for another that stores a token.
 *
 * engram_add: a block has a part of a row. A thread adds columns t, t + 256, ..., then a tree over the threads. */
#include "kernels/cuda/latent/latent.cuh"

enum { ADD_THREADS = 256 };

static __device__ __forceinline__ int32_t *past_at(const weft_engram_rows_args &a, const weft_latent_segment &s,
                                                   uint32_t position) {
  return (int32_t *)(void *)latent_row_at(a.past, a.past.offset, s.table[WEFT_LATENT_TOKENS], position);
}

/* The mapped token i positions before one, or pad. */
static __device__ __forceinline__ uint64_t token_before(const weft_engram_rows_args &a, const weft_latent_segment &s,
                                                        uint32_t position, uint32_t i) {
  if (i > position) return a.pad;
  const uint32_t at = position - i;
  const int32_t token = at >= s.kv_len ? a.tokens[s.first_row + (at - s.kv_len)] : *past_at(a, s, at);
  return token >= 0 && (uint32_t)token < a.n_tokens ? (uint64_t)a.map[token] : a.pad;
}

static __global__ void __launch_bounds__(WEFT_ENGRAM_GRAMS_MAX *WEFT_ENGRAM_HEADS_MAX)
    engram_rows_kernel(const __grid_constant__ weft_engram_rows_args a) {
  launch_dependents_and_wait();
  const uint32_t r = blockIdx.x, i = threadIdx.x, n_all = (a.n_grams - 1) * a.n_heads;
  const weft_latent_segment &s = latent_find_segment(a.segment, a.n_segments, r);
  const uint32_t position = s.kv_len + (r - s.first_row);
  if (i == 0) *past_at(a, s, position) = a.tokens[r];
  if (i >= n_all) return;
  uint64_t x = 0;
  for (uint32_t n = 0; n < i / a.n_heads + 2; n++) x ^= token_before(a, s, position, n) * a.multiplier[n];
  a.ids[(uint64_t)r * n_all + i] = (int32_t)(x % a.prime[i] + a.offset[i]);
}

weft_status cuda_engram_rows_walk(weft_device *device, const weft_engram_rows_args *args) {
  return latent_walk_segments(device, args->segment, args->n_segments);
}

weft_status cuda_engram_rows(weft_device *device, const weft_engram_rows_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_engram_rows_args a = *args;
  weft_status status = latent_push_segments(d, args->segment, args->n_segments, &a.segment);
  if (status != WEFT_OK) return status;
  cuda_start(d, engram_rows_kernel, a.n_rows, cuda_ceil((a.n_grams - 1) * a.n_heads, 32) * 32, 0, a);
  return cuda_launched(d, "engram_rows");
}

/* Sums over the block's threads, in all of them. */
static __device__ __forceinline__ float3 sums_of_block(float3 x) {
  __shared__ float part[3][ADD_THREADS / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = make_float3(warp_sum(x.x), warp_sum(x.y), warp_sum(x.z));
  if (lane == 0) part[0][warp] = x.x, part[1][warp] = x.y, part[2][warp] = x.z;
  __syncthreads();
  const bool is_one = lane < ADD_THREADS / 32;
  return make_float3(warp_sum(is_one ? part[0][lane] : 0.0f), warp_sum(is_one ? part[1][lane] : 0.0f),
                     warp_sum(is_one ? part[2][lane] : 0.0f));
}

static __device__ __forceinline__ float length_of(float squares, uint32_t n, float eps) {
  return sqrtf(__fadd_rn(__fdiv_rn(squares, (float)n), eps));
}

static __global__ void __launch_bounds__(ADD_THREADS)
    engram_add_kernel(const __grid_constant__ weft_engram_add_args a) {
  launch_dependents_and_wait();
  const uint32_t n = a.n_cols, i = blockIdx.y;
  const uint64_t r = blockIdx.x;
  const float *read = a.read + r * a.read_stride, *key = read + (uint64_t)i * n,
              *value = read + (uint64_t)a.n_streams * n, *weight = a.weight + (uint64_t)i * n;
  float *x = a.x + r * a.x_stride + (uint64_t)i * n;
  float3 sum = make_float3(0.0f, 0.0f, 0.0f);
  for (uint32_t c = threadIdx.x; c < n; c += ADD_THREADS) {
    sum.x = __fmaf_rn(x[c], x[c], sum.x);
    sum.y = __fmaf_rn(key[c], key[c], sum.y);
    sum.z = __fmaf_rn(__fmul_rn(x[c], weight[c]), key[c], sum.z);
  }
  sum = sums_of_block(sum);
  const float lengths = __fmul_rn(length_of(sum.x, n, a.eps), length_of(sum.y, n, a.eps));
  const float s = __fdiv_rn(__fdiv_rn(sum.z, lengths), sqrtf((float)n)), root = sqrtf(fmaxf(fabsf(s), 1e-6f));
  const float share = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(s < 0.0f ? root : -root)));
  for (uint32_t c = threadIdx.x; c < n; c += ADD_THREADS) x[c] = __fmaf_rn(share, value[c], x[c]);
}

weft_status cuda_engram_add(weft_device *device, const weft_engram_add_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  cuda_start(d, engram_add_kernel, dim3(args->n_rows, args->n_streams), ADD_THREADS, 0, *args);
  return cuda_launched(d, "engram_add");
}
