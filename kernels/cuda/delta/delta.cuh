/* SPDX-License-Identifier: MIT */
/* What the kernels of the delta rule share: segments, writes and pieces on the device, rows as they are stored.
 *
 * A piece is the rows of a segment between two borders: positions [first, end) counted from the border before them.
 *
 * Law: a sum has one order, which depends on the position since the border and on dim alone, so a row's bits are those
 * of kernels/delta.h in whatever call it comes. Which rows a call has decides only which of them are computed. */
#ifndef WEFT_KERNELS_CUDA_DELTA_CUH
#define WEFT_KERNELS_CUDA_DELTA_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

typedef struct delta_segment {
  uint32_t first_row, n_rows, kv_len, first_write, n_writes;
  const uint32_t *table, *state;
} delta_segment;

typedef struct delta_write {
  uint64_t position;
  const uint32_t *pages;
} delta_write;

typedef struct delta_piece {
  uint32_t segment, first_row, border, first, end;
} delta_piece;

/* The tables of a call, on the device. */
typedef struct delta_tables {
  const delta_segment *segment;
  const delta_write *write;
  const delta_piece *piece;
  uint32_t n_segments, n_pieces;
} delta_tables;

/* Makes the tables; writes may be NULL. */
weft_status delta_make_tables(cuda_device *d, const weft_delta_view *view, const weft_delta_segment *segment,
                              uint32_t n_segments, const weft_delta_write *write, uint32_t n_writes, delta_tables *out);

/* Element i of stored rows or heads. */
static __device__ __forceinline__ float delta_load(weft_type type, const uint8_t *row, uint64_t i) {
  if (type == WEFT_TYPE_F32) return ((const float *)(const void *)row)[i];
  return __uint_as_float((uint32_t)((const uint16_t *)(const void *)row)[i] << 16);
}

/* Elements i and i + 1, where i is even. */
static __device__ __forceinline__ float2 delta_load_two(weft_type type, const uint8_t *row, uint64_t i) {
  if (type == WEFT_TYPE_F32) return make_float2(delta_load(type, row, i), delta_load(type, row, i + 1));
  uint32_t two = *(const uint32_t *)(const void *)(row + 2 * i);
  return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u));
}

/* Calls put(i, load(i)) for i below n, by N_THREADS threads. N loads of a thread are in flight at once, which the
 * compiler would not do by itself, since put might write what the next one reads. */
template <int N, int N_THREADS, class load_one, class put_one>
static __device__ __forceinline__ void delta_copy(uint32_t n, load_one load, put_one put) {
  for (uint32_t base = threadIdx.x; base < n; base += N * N_THREADS) {
    decltype(load(0u)) x[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      if (base + j * N_THREADS < n) x[j] = load(base + j * N_THREADS);
#pragma unroll
    for (int j = 0; j < N; j++)
      if (base + j * N_THREADS < n) put(base + j * N_THREADS, x[j]);
  }
}

/* x as it is stored. */
static __device__ __forceinline__ float delta_round(weft_type type, float x) {
  return type == WEFT_TYPE_F32 ? x : __bfloat162float(__float2bfloat16_rn(x));
}

static __device__ __forceinline__ void delta_store(weft_type type, uint8_t *row, uint64_t i, float x) {
  if (type == WEFT_TYPE_F32)
    ((float *)(void *)row)[i] = x;
  else
    ((__nv_bfloat16 *)(void *)row)[i] = __float2bfloat16_rn(x);
}

/* The decays of a row: one float for each value head. */
static __device__ __forceinline__ float *delta_decays(const weft_delta_view &view, uint8_t *row) {
  return (float *)(void *)(row + weft_delta_elements(&view) * (view.type == WEFT_TYPE_F32 ? 4 : 2));
}

static __device__ __forceinline__ float delta_silu(float x) {
  return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
}

#endif
