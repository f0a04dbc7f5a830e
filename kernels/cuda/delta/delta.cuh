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

/* Rows from which on a segment is a long one (delta_tiles.cu). */
enum { DELTA_LONG_ROWS = 192 };

typedef struct delta_segment {
  uint32_t first_row, n_rows, kv_len, first_piece, n_pieces;
  const uint32_t *table, *state;
} delta_segment;

typedef struct delta_piece {
  uint32_t segment, first_row, border, first, end;
  uint32_t tile;         /* of a long segment: the first of its tiles of sixteen rows, from the border on */
  uint32_t crosses;      /* the state at the next border is needed */
  const uint32_t *pages; /* where it is written, or NULL */
} delta_piece;

/* A segment that is not long, and its first piece. */
typedef struct delta_short {
  delta_segment segment;
  delta_piece piece;
} delta_short;

/* The tables of a call, on the device. A short segment has several rows, those of one row are apart. */
typedef struct delta_tables {
  const delta_segment *segment;
  const delta_piece *piece;
  const delta_short *short_segment, *one;
  const uint32_t *long_segment, *long_piece; /* segments and their pieces */
  uint32_t n_segments, n_pieces, n_one, n_short, n_long, n_long_pieces;
  bool short_crosses; /* some piece of a short segment crosses a border */
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

/* Makes G of the decays. Eight at a time, so that additions alone wait for one another. */
static __device__ __forceinline__ void delta_add_decays(float *total, uint32_t n) {
  float sum = 0.0f;
  for (uint32_t i = 0; i < n; i += 8) {
    float g[8];
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = i + j < n ? total[i + j] : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = sum = __fadd_rn(sum, g[j]);
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (i + j < n) total[i + j] = g[j];
  }
}

/* Norm and gate of a head's results, by a warp. STEPS: at most 32 STEPS dimensions. */
template <int STEPS>
static __device__ __forceinline__ void delta_norm_head(const float *from, const float *z, const float *norm,
                                                       uint32_t dim, float eps, float *out) {
  uint32_t lane = threadIdx.x % 32;
  float x[STEPS], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    uint32_t c = lane + 32 * i;
    x[i] = c < dim ? from[c] : 0.0f;
    sum = __fmaf_rn(x[i], x[i], sum);
  }
  float factor = __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(warp_sum(sum), (float)dim), eps)));
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    uint32_t c = lane + 32 * i;
    if (c < dim) out[c] = __fmul_rn(__fmul_rn(__fmul_rn(x[i], factor), norm[c]), delta_silu(z[c]));
  }
}

/* That of row r, in the rule's arguments. */
template <int STEPS>
static __device__ __forceinline__ void delta_norm_row(const weft_delta_rule_args &a, const float *from, uint64_t r,
                                                      uint32_t head) {
  uint32_t dim = a.view.dim;
  delta_norm_head<STEPS>(from, a.z + r * a.z_stride + head * dim, a.norm, dim, a.eps,
                         a.out + r * a.out_stride + head * dim);
}

/* The norm and gate of all rows, whose results lie in args->out (delta_rule.cu). */
void delta_norm(cuda_device *d, const weft_delta_rule_args *args);

/* The rule by tensor cores (delta_tiles.cu): the views that it takes, the scratch of a call, and the call. */
bool delta_tiles_takes(const weft_delta_view *view);
uint64_t delta_tiles_scratch(const weft_delta_rule_args *args);
weft_status delta_tiles(cuda_device *d, const weft_delta_rule_args *args, const delta_tables *tables);
cudaError_t delta_tiles_setup(void);

/* That of segments of one row (delta_one.cu), in a view that delta_tiles_takes. */
bool delta_one_takes(const weft_delta_view *view);
void delta_one(cuda_device *d, const weft_delta_rule_args *args, const delta_tables *tables, bool norms);
cudaError_t delta_one_setup(void);

#endif
