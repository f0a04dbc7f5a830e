/* SPDX-License-Identifier: MIT */
/* The norm of a row, by one block: of the op norm, and of a sum over shards that a norm follows (sum.cu).
 *
 * Law: which thread has an element, and so the order of every sum, depends on the row's length only. What a thread has
 * behind the row's end is zero, in rows and in weights, because it is part of the sums of squares. */
#ifndef WEFT_KERNELS_CUDA_NORM_CUH
#define WEFT_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/common.cuh"

static inline bool is_wide(const void *p, uint64_t stride) {
  return ((uintptr_t)p & 15u) == 0 && stride % 4 == 0;
}

/* Whether rows and weights may be read and written four numbers at a time. */
static inline bool norm_is_wide(const weft_norm_args *op) {
  bool wide = is_wide(op->x, op->x_stride) && is_wide(op->y, op->y_stride) &&
              (op->x2 == NULL || is_wide(op->x2, op->x2_stride)) &&
              (op->add == NULL || is_wide(op->add, op->add_stride)) && is_wide(op->weight, 0) &&
              is_wide(op->x_weight, 0) && is_wide(op->x2_weight, 0);
  for (uint32_t i = 0; i < op->n_then; i++)
    wide = wide && is_wide(op->then[i], op->y_stride) && is_wide(op->then_weight[i], 0);
  return wide;
}

/* WIDE: the rows may be read and written four numbers at a time, and have whole fours. */
template <bool WIDE>
static __device__ __forceinline__ float4 load_row4(const float *row, uint32_t i, uint32_t n, bool wide) {
  if (WIDE) return i < n ? *(const float4 *)(const void *)(row + i) : make_float4(0, 0, 0, 0);
  if (wide && i + 4 <= n) return *(const float4 *)(const void *)(row + i);
  float4 v = make_float4(0, 0, 0, 0);
  if (i < n) v.x = row[i];
  if (i + 1 < n) v.y = row[i + 1];
  if (i + 2 < n) v.z = row[i + 2];
  if (i + 3 < n) v.w = row[i + 3];
  return v;
}

template <bool WIDE>
static __device__ __forceinline__ void store_row4(float *row, uint32_t i, uint32_t n, bool wide, const float4 &v) {
  if (WIDE) {
    if (i < n) *(float4 *)(void *)(row + i) = v;
    return;
  }
  if (wide && i + 4 <= n) {
    *(float4 *)(void *)(row + i) = v;
    return;
  }
  if (i < n) row[i] = v.x;
  if (i + 1 < n) row[i + 1] = v.y;
  if (i + 2 < n) row[i + 2] = v.z;
  if (i + 3 < n) row[i + 3] = v.w;
}

static __device__ __forceinline__ float norm_element(float v, float factor, float weight, float add, float scale) {
  return __fmul_rn(__fmaf_rn(__fmul_rn(v, factor), weight, add), scale);
}

static __device__ __forceinline__ float4 norm_element4(const float4 &v, float factor, const float4 &w,
                                                       const float4 &add, float scale) {
  return make_float4(norm_element(v.x, factor, w.x, add.x, scale), norm_element(v.y, factor, w.y, add.y, scale),
                     norm_element(v.z, factor, w.z, add.z, scale), norm_element(v.w, factor, w.w, add.w, scale));
}

/* A thread's part of a row: the numbers 4 (t THREADS + thread) .. + 3 for t < SLOTS. */
template <int THREADS, int SLOTS>
struct row_part {
  float4 at[SLOTS];
};

template <bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void get_part(const float *row, uint32_t n, bool wide,
                                                row_part<THREADS, SLOTS> &out) {
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) out.at[t] = load_row4<WIDE>(row, 4 * (t * THREADS + threadIdx.x), n, wide);
}

/* Reads the weight of a norm, if NOW. */
template <bool NOW, bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void get_weight(const float *row, uint32_t n, bool wide,
                                                  row_part<THREADS, SLOTS> &out) {
  if constexpr (NOW) {
#pragma unroll
    for (uint32_t t = 0; t < SLOTS; t++) {
      uint32_t i = 4 * (t * THREADS + threadIdx.x);
      if (row != NULL)
        out.at[t] = (WIDE ? i < n : wide && i + 4 <= n) ? load_kept((const float4 *)(const void *)(row + i))
                                                        : load_row4<WIDE>(row, i, n, wide);
    }
  }
}

/* 1 / rms of one or two rows, with one barrier for both. shared: scratch that nothing else of the kernel uses. */
template <int THREADS, int SLOTS>
static __device__ __forceinline__ float2 factors_of(const row_part<THREADS, SLOTS> &x,
                                                    const row_part<THREADS, SLOTS> &x2, bool two, uint32_t n, float eps,
                                                    float (*shared)[32]) {
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    sum[0] = fmaf(x.at[t].x, x.at[t].x, sum[0]);
    sum[0] = fmaf(x.at[t].y, x.at[t].y, sum[0]);
    sum[0] = fmaf(x.at[t].z, x.at[t].z, sum[0]);
    sum[0] = fmaf(x.at[t].w, x.at[t].w, sum[0]);
    if (!two) continue;
    sum[1] = fmaf(x2.at[t].x, x2.at[t].x, sum[1]);
    sum[1] = fmaf(x2.at[t].y, x2.at[t].y, sum[1]);
    sum[1] = fmaf(x2.at[t].z, x2.at[t].z, sum[1]);
    sum[1] = fmaf(x2.at[t].w, x2.at[t].w, sum[1]);
  }
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == 1 && !two) continue;
    sum[i] = warp_sum(sum[i]);
    if (lane == 0) shared[i][threadIdx.x / 32] = sum[i];
  }
  __syncthreads();
  float factor[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == 1 && !two) continue;
    float all = warp_sum(lane < THREADS / 32 ? shared[i][lane] : 0.0f);
    factor[i] = __fdiv_rn(1.0f, sqrtf(__fdiv_rn(all, (float)n) + eps));
  }
  return make_float2(factor[0], factor[1]);
}

template <int THREADS, int SLOTS>
static __device__ __forceinline__ void scale_part(row_part<THREADS, SLOTS> &x, float factor,
                                                  const row_part<THREADS, SLOTS> &w) {
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) x.at[t] = norm_element4(x.at[t], factor, w.at[t], make_float4(0, 0, 0, 0), 1.0f);
}

/* What the norms of a call multiply by. */
template <int THREADS, int SLOTS>
struct norm_weights {
  row_part<THREADS, SLOTS> x, x2, y, then[WEFT_NORM_THEN_MAX];
};

typedef float norm_shared[3][2][32];

/* Where a norm finds its weights: in registers, which were filled; in memory; or in shared memory of the block, where
 * each thread has put what it needs itself (keep_weights), weight after weight in the order of norm_weights. */
enum norm_from { NORM_REGISTERS, NORM_MEMORY, NORM_KEPT };

template <norm_from FROM, bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void find_weight(const float *row, uint32_t n, bool wide, const float4 *kept,
                                                   uint32_t index, row_part<THREADS, SLOTS> &out) {
  if constexpr (FROM == NORM_MEMORY) get_weight<true, WIDE>(row, n, wide, out);
  if constexpr (FROM == NORM_KEPT) {
#pragma unroll
    for (uint32_t t = 0; t < SLOTS; t++)
      if (row != NULL) out.at[t] = kept[(index * SLOTS + t) * THREADS + threadIdx.x];
  }
}

template <bool NOW, bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void get_weights(const weft_norm_args &op, bool wide,
                                                   norm_weights<THREADS, SLOTS> &w) {
  uint32_t n = op.n_cols;
  get_weight<NOW, WIDE>(op.x_weight, n, wide, w.x);
  get_weight<NOW, WIDE>(op.x2_weight, n, wide, w.x2);
  get_weight<NOW, WIDE>(op.weight, n, wide, w.y);
#pragma unroll
  for (uint32_t i = 0; i < WEFT_NORM_THEN_MAX; i++)
    if (i < op.n_then) get_weight<NOW, WIDE>(op.then_weight[i], n, wide, w.then[i]);
}

/* Asks for the weights of a call, which are in `kept` after copies_wait<0> of the thread. */
enum { NORM_WEIGHTS = 3 + WEFT_NORM_THEN_MAX };
template <int THREADS, int SLOTS>
static __device__ __forceinline__ void keep_weights(const weft_norm_args &op, float4 *kept) {
#pragma unroll
  for (uint32_t k = 0; k < NORM_WEIGHTS; k++) {
    const float *row = k == 0              ? op.x_weight
                       : k == 1            ? op.x2_weight
                       : k == 2            ? op.weight
                       : k - 3 < op.n_then ? op.then_weight[k - 3]
                                           : NULL;
#pragma unroll
    for (uint32_t t = 0; t < SLOTS && row != NULL; t++) {
      uint32_t i = 4 * (t * THREADS + threadIdx.x);
      bool exists = i < op.n_cols;
      copy16_if(shared_address(&kept[(k * SLOTS + t) * THREADS + threadIdx.x]), exists ? row + i : row, exists);
    }
  }
  copies_commit();
}

static __device__ __forceinline__ float row_scale_of(const weft_norm_args &op, uint64_t r) {
  return op.row_scale == NULL ? 1.0f : op.row_scale[r];
}

/* x becomes row r of y, and is stored. */
template <norm_from FROM, bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void norm_row(const weft_norm_args &op, bool wide, uint64_t r, float scale,
                                                row_part<THREADS, SLOTS> &x, row_part<THREADS, SLOTS> &x2,
                                                const row_part<THREADS, SLOTS> &add, norm_weights<THREADS, SLOTS> &w,
                                                norm_shared &shared, const float4 *kept) {
  uint32_t n = op.n_cols;
  if (op.x_weight != NULL || (op.x2 != NULL && op.x2_weight != NULL)) {
    float2 factor = factors_of<THREADS, SLOTS>(x, x2, op.x2 != NULL, n, op.eps, shared[0]);
    if (op.x_weight != NULL) {
      find_weight<FROM, WIDE>(op.x_weight, n, wide, kept, 0, w.x);
      scale_part(x, factor.x, w.x);
    }
    if (op.x2 != NULL && op.x2_weight != NULL) {
      find_weight<FROM, WIDE>(op.x2_weight, n, wide, kept, 1, w.x2);
      scale_part(x2, factor.y, w.x2);
    }
  }
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    if (op.x2 == NULL) continue;
    x.at[t] = make_float4(__fadd_rn(x.at[t].x, x2.at[t].x), __fadd_rn(x.at[t].y, x2.at[t].y),
                          __fadd_rn(x.at[t].z, x2.at[t].z), __fadd_rn(x.at[t].w, x2.at[t].w));
  }
  float factor = op.plain ? 1.0f : factors_of<THREADS, SLOTS>(x, x, false, n, op.eps, shared[1]).x;
  find_weight<FROM, WIDE>(op.weight, n, wide, kept, 2, w.y);
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    float4 by = op.weight != NULL ? w.y.at[t] : make_float4(1, 1, 1, 1);
    x.at[t] = norm_element4(x.at[t], factor, by, op.add != NULL ? add.at[t] : make_float4(0, 0, 0, 0), scale);
    store_row4<WIDE>(op.y + r * op.y_stride, 4 * (t * THREADS + threadIdx.x), n, wide, x.at[t]);
  }
}

/* The norms that follow on row r of y, which is x. */
template <norm_from FROM, bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void norm_then(const weft_norm_args &op, bool wide, uint64_t r,
                                                 const row_part<THREADS, SLOTS> &x, norm_weights<THREADS, SLOTS> &w,
                                                 norm_shared &shared, const float4 *kept) {
  if (op.n_then == 0) return;
  float factor = factors_of<THREADS, SLOTS>(x, x, false, op.n_cols, op.eps, shared[2]).x;
#pragma unroll
  for (uint32_t i = 0; i < WEFT_NORM_THEN_MAX; i++) {
    if (i >= op.n_then) continue;
    find_weight<FROM, WIDE>(op.then_weight[i], op.n_cols, wide, kept, 3 + i, w.then[i]);
    float *then = op.then[i] + r * op.y_stride;
#pragma unroll
    for (uint32_t t = 0; t < SLOTS; t++)
      store_row4<WIDE>(then, 4 * (t * THREADS + threadIdx.x), op.n_cols, wide,
                       norm_element4(x.at[t], factor, w.then[i].at[t], make_float4(0, 0, 0, 0), 1.0f));
  }
}

#endif
