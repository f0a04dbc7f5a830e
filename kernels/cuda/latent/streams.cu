/* SPDX-License-Identifier: MIT */
/* mix and spread: hyper-connections (kernels/streams.h). A block has a row. Of mix all threads make the sum of squares
 * and y; one warp makes the shares meanwhile: a lane has an element of turn, or two where there are more than 32, and
 * reads the others of its row or column by shuffles. Four parts, as models have, are a kernel of their own, which adds
 * rows and columns by pairs.
 *
 *   squares   a thread has columns 4 t .. 4 t + 3 of every 4 * MIX_THREADS, or one of every MIX_THREADS where rows may
 *             not be read four numbers at a time; then a tree over the threads
 *   the rest  parts ascending, f32 */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { MIX_THREADS = 1024, SPREAD_THREADS = 256 };

static __device__ __forceinline__ float sigmoid_of(float x) {
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}

static __device__ __forceinline__ float one_of(float4 x, int e) {
  return e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
}

/* The sum over the block's threads, in all of them. */
static __device__ __forceinline__ float sum_of_block(float x) {
  __shared__ float part[MIX_THREADS / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(part[threadIdx.x % 32]);
}

/* The elements of turn that a lane has: lane, and lane + 32. */
struct turn_elements {
  float low, high;
  __device__ __forceinline__ float at(uint32_t i, bool two) const {
    float a = __shfl_sync(0xFFFFFFFFu, low, i % 32);
    float b = two ? __shfl_sync(0xFFFFFFFFu, high, i % 32) : 0.0f;
    return i < 32 ? a : b;
  }
};

/* Divides each element by floor + the sum of n elements, `step` apart from first(i) on. */
template <class first_of>
static __device__ __forceinline__ void divide_by_sums(turn_elements &t, uint32_t n, uint32_t step, float floor,
                                                      first_of first) {
  const uint32_t lane = threadIdx.x % 32;
  const bool two = n * n > 32;
  float low = floor, high = floor;
#pragma unroll
  for (uint32_t j = 0; j < WEFT_STREAMS_MAX; j++) {
    if (j >= n) break;
    low = __fadd_rn(low, t.at(first(lane) + j * step, two));
    if (two) high = __fadd_rn(high, t.at(first(lane + 32) + j * step, two));
  }
  t.low = __fdividef(t.low, low);
  if (two) t.high = __fdividef(t.high, high);
}

/* The turn of four parts: lanes 16 .. 31 have what lanes 0 .. 15 have. STEP 1: by rows; 4: by columns. */
template <int STEP>
static __device__ __forceinline__ float divide_by_four(float x, float floor) {
  float sum = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, STEP));
  sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 2 * STEP));
  return __fdividef(x, __fadd_rn(sum, floor));
}

static __device__ __forceinline__ void make_turn_of_four(const weft_mix_args &a, const float *mixes, float length,
                                                         float *out) {
  const uint32_t i = threadIdx.x % 16;
  float x = __fmaf_rn(__fdiv_rn(mixes[8 + i], length), a.scale[2], a.base[8 + i]);
  float most = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
  x = __fadd_rn(divide_by_four<1>(expf(__fsub_rn(x, most)), 0.0f), a.floor);
  x = divide_by_four<4>(x, a.floor);
  for (uint32_t r = 1; r < a.n_rounds; r++) x = divide_by_four<4>(divide_by_four<1>(x, a.floor), a.floor);
  if (threadIdx.x % 32 < 16) out[i] = x;
}

/* Lanes beyond the last element repeat element 0, so that no sum of theirs is 0. */
static __device__ __forceinline__ void make_turn(const weft_mix_args &a, const float *mixes, float length, float *out) {
  const uint32_t n = a.n_streams, lane = threadIdx.x % 32;
  const bool two = n * n > 32;
  auto row_of = [=](uint32_t i) { return i < n * n ? i / n * n : 0; };
  auto column_of = [=](uint32_t i) { return i < n * n ? i % n : 0; };
  auto logit_of = [&](uint32_t i) {
    uint32_t at = 2 * n + (i < n * n ? i : 0);
    return __fmaf_rn(__fdiv_rn(mixes[at], length), a.scale[2], a.base[at]);
  };
  turn_elements t = {logit_of(lane), two ? logit_of(lane + 32) : 0.0f};
  float low = -INFINITY, high = -INFINITY;
  for (uint32_t j = 0; j < n; j++) {
    low = fmaxf(low, t.at(row_of(lane) + j, two));
    if (two) high = fmaxf(high, t.at(row_of(lane + 32) + j, two));
  }
  t.low = expf(__fsub_rn(t.low, low));
  if (two) t.high = expf(__fsub_rn(t.high, high));
  divide_by_sums(t, n, 1, 0.0f, row_of);
  t.low = __fadd_rn(t.low, a.floor), t.high = __fadd_rn(t.high, a.floor);
  divide_by_sums(t, n, n, a.floor, column_of);
  for (uint32_t i = 1; i < a.n_rounds; i++) {
    divide_by_sums(t, n, 1, a.floor, row_of);
    divide_by_sums(t, n, n, a.floor, column_of);
  }
  if (lane < n * n) out[lane] = t.low;
  if (lane + 32 < n * n) out[lane + 32] = t.high;
}

/* What each part is taken by. */
static __device__ __forceinline__ float take_of(const weft_mix_args &a, const float *mixes, float length, uint32_t i) {
  return __fadd_rn(sigmoid_of(__fmaf_rn(__fdiv_rn(mixes[i], length), a.scale[0], a.base[i])), a.floor);
}

/* WIDE: rows are read and written four numbers at a time. FOUR: there are four parts. */
template <bool WIDE, bool FOUR>
static __global__ void __launch_bounds__(MIX_THREADS) mix_kernel(const __grid_constant__ weft_mix_args a) {
  launch_dependents_and_wait();
  __shared__ float take[WEFT_STREAMS_MAX];
  const uint32_t n = FOUR ? 4 : a.n_streams, n_cols = a.n_cols;
  const uint64_t r = blockIdx.x, n_all = (uint64_t)n * n_cols;
  const float *x = a.x + r * a.x_stride, *mixes = a.mixes == NULL ? NULL : a.mixes + r * a.mixes_stride;
  float squares = 0.0f;
  if (mixes == NULL) {
    /* parts are taken by carry, and nothing else is made */
  } else if (WIDE) {
#pragma unroll 4
    for (uint64_t i = 4 * threadIdx.x; i < n_all; i += 4 * MIX_THREADS) {
      float4 v = *(const float4 *)(const void *)(x + i);
#pragma unroll
      for (int e = 0; e < 4; e++) squares = __fmaf_rn(one_of(v, e), one_of(v, e), squares);
    }
  } else {
    for (uint64_t i = threadIdx.x; i < n_all; i += MIX_THREADS) squares = __fmaf_rn(x[i], x[i], squares);
  }
  float length = 1.0f;
  if (mixes != NULL) length = sqrtf(__fadd_rn(__fdiv_rn(sum_of_block(squares), (float)n_all), a.eps));
  if (threadIdx.x < n) {
    float own = mixes == NULL ? 0.0f : take_of(a, mixes, length, threadIdx.x);
    if (a.carry != NULL) {
      float *carry = a.carry + r * a.carry_stride + threadIdx.x, before = *carry;
      if (a.first) before = threadIdx.x == 0 ? 1.0f : 0.0f;
      if (mixes != NULL) *carry = own;
      own = before;
    }
    take[threadIdx.x] = own;
  }
  __syncthreads();
  if (a.shares != NULL && threadIdx.x >= MIX_THREADS - 32) {
    float *shares = a.shares + r * a.shares_stride;
    uint32_t lane = threadIdx.x % 32;
    if (lane < n)
      shares[lane] =
          __fmul_rn(2.0f, sigmoid_of(__fmaf_rn(__fdiv_rn(mixes[n + lane], length), a.scale[1], a.base[n + lane])));
    if (FOUR)
      make_turn_of_four(a, mixes, length, shares + n);
    else
      make_turn(a, mixes, length, shares + n);
  }
  float *y = a.y + r * a.y_stride;
  for (uint32_t c = (WIDE ? 4 : 1) * threadIdx.x; c < n_cols; c += (WIDE ? 4 : 1) * MIX_THREADS) {
    float sum[WIDE ? 4 : 1] = {};
#pragma unroll 4
    for (uint32_t i = 0; i < n; i++) {
      const float *part = x + (uint64_t)i * n_cols + c;
      if constexpr (WIDE) {
        float4 v = *(const float4 *)(const void *)part;
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] = __fmaf_rn(take[i], one_of(v, e), sum[e]);
      } else {
        sum[0] = __fmaf_rn(take[i], *part, sum[0]);
      }
    }
    if constexpr (WIDE)
      *(float4 *)(void *)(y + c) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    else
      y[c] = sum[0];
  }
}

static bool may_be_wide(const void *at, uint64_t stride) {
  return (uintptr_t)at % 16 == 0 && stride % 4 == 0;
}

weft_status cuda_mix(weft_device *device, const weft_mix_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  bool wide = args->n_cols % 4 == 0 && may_be_wide(args->x, args->x_stride) && may_be_wide(args->y, args->y_stride);
  bool four = args->n_streams == 4;
  auto kernel = wide ? (four ? mix_kernel<true, true> : mix_kernel<true, false>)
                     : (four ? mix_kernel<false, true> : mix_kernel<false, false>);
  cuda_start(d, kernel, args->n_rows, MIX_THREADS, 0, *args);
  return cuda_launched(d, "mix");
}

/* A thread has a column of all parts. */
static __global__ void __launch_bounds__(SPREAD_THREADS) spread_kernel(const __grid_constant__ weft_spread_args a) {
  launch_dependents_and_wait();
  __shared__ float share[WEFT_STREAMS_MAX * (1 + WEFT_STREAMS_MAX)];
  const uint32_t n = a.n_streams, c = blockIdx.y * SPREAD_THREADS + threadIdx.x;
  const uint64_t r = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < n * (1 + n); i += SPREAD_THREADS) share[i] = a.shares[r * a.shares_stride + i];
  __syncthreads();
  if (c >= a.n_cols) return;
  float *x = a.x + r * a.x_stride + c, y = a.y[r * a.y_stride + c], part[WEFT_STREAMS_MAX];
#pragma unroll
  for (uint32_t i = 0; i < WEFT_STREAMS_MAX; i++)
    if (i < n) part[i] = x[(uint64_t)i * a.n_cols];
#pragma unroll
  for (uint32_t to = 0; to < WEFT_STREAMS_MAX; to++) {
    if (to >= n) break;
    float sum = __fmul_rn(share[to], y);
#pragma unroll
    for (uint32_t from = 0; from < WEFT_STREAMS_MAX; from++)
      if (from < n) sum = __fmaf_rn(share[n + from * n + to], part[from], sum);
    x[(uint64_t)to * a.n_cols] = sum;
  }
}

weft_status cuda_spread(weft_device *device, const weft_spread_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  cuda_start(d, spread_kernel, dim3(args->n_rows, cuda_ceil(args->n_cols, SPREAD_THREADS)), SPREAD_THREADS, 0, *args);
  return cuda_launched(d, "spread");
}
