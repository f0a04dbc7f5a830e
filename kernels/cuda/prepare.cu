/* SPDX-License-Identifier: MIT */
/* Rows in 16 bits, laid out for the matrix units (multiply.h); and act(g) * u on the way into it. */
#include "kernels/cuda/prepare.h"

enum { PREPARE_THREADS = 256, SHORT_PIECES = 96 };

/* A piece: eight numbers that lie side by side once prepared. Of a unit, piece p < 16 (8 where the unit has 64 inputs):
 *   few rows   inputs 8 p ..
 *   matrices   p = 4 i + j: inputs step c + 8 i + 2 j, + 1, of c < 4; step is 32 (16) */
static __device__ __forceinline__ void load_piece(const prepare_args &a, const float *x, uint32_t piece, float (&v)[8]) {
  uint32_t unit = piece / 16, p = piece % 16, step = a.is_tail != 0 && unit + 1 == a.n_units ? 16 : 32;
#pragma unroll
  for (uint32_t e = 0; e < 8; e += 2) {
    uint32_t k = 128 * unit + (a.as_matrices ? step * (e / 2) + 2 * p : 8 * p + e);
    float g[2] = {0.0f, 0.0f}, u[2] = {0.0f, 0.0f};
    if (a.wide && k < a.n_in) {
      *(float2 *)(void *)g = *(const float2 *)(const void *)(x + k);
      if (a.gated) *(float2 *)(void *)u = *(const float2 *)(const void *)(x + k + a.n_in);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        if (k + i < a.n_in) g[i] = x[k + i];
        if (a.gated && k + i < a.n_in) u[i] = x[k + i + a.n_in];
      }
    }
    v[e] = a.gated ? gate_product(a.activation, g[0], u[0]) : g[0];
    v[e + 1] = a.gated ? gate_product(a.activation, g[1], u[1]) : g[1];
  }
}

static __device__ __forceinline__ void store_piece(const prepare_args &a, uint32_t place, uint32_t piece, const uint4 &v) {
  uint32_t unit = piece / 16, p = piece % 16, row = place % 8, at = p / 8 * 1024 + row * 128 + (p % 8 ^ row) * 16;
  uint64_t tile = (uint64_t)unit * a.n_tiles + place / 8;
  if (!a.as_matrices) {
    bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
    uint32_t c = tail ? p / 2 : p / 4, i = tail ? p % 2 : p % 4;
    at = i * 512 + (row * 4 + c) * 16;
    tile = (uint64_t)(place / 8) * a.n_units + unit;
  }
  *(uint4 *)(void *)(a.out + tile * 2048 + at) = v;
}

/* A block takes a row; of short ones a warp does. The first pieces of a thread stay in registers between the row's
 * maximum and their rounding. */
template <bool BF16, bool SHORT>
static __global__ void __launch_bounds__(PREPARE_THREADS) prepare_kernel(const __grid_constant__ prepare_args a) {
  inputs_ready();
  constexpr uint32_t KEPT = SHORT ? SHORT_PIECES / 32 : 2;
  __shared__ uint32_t shared[33];
  uint64_t r = SHORT ? blockIdx.x * (PREPARE_THREADS / 32) + threadIdx.x / 32 : blockIdx.x;
  uint32_t own = SHORT ? threadIdx.x % 32 : threadIdx.x, step = SHORT ? 32 : blockDim.x;
  if (SHORT && r >= a.n_rows) return;
  const int32_t *at = a.at == NULL ? NULL : a.at + r * a.k;
  uint32_t n_places = at == NULL ? 1 : a.k, n_pieces = a.n_units * 16 - (a.is_tail != 0 ? 8 : 0), most = 0;
  if (a.from_place) {
    if (*at < 0) return;
    r = (uint64_t)*at;
  }
  const float *x = a.x + r * a.x_stride;
  float kept[KEPT][8], v[8];
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (own + t * step < n_pieces) load_piece(a, x, own + t * step, kept[t]);
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++) {
    if (own + t * step >= n_pieces) continue;
#pragma unroll
    for (int e = 0; e < 8; e++) most = max(most, __float_as_uint(kept[t][e]) & 0x7FFFFFFFu);
  }
#pragma unroll 1
  for (uint32_t piece = BF16 ? n_pieces : own + KEPT * step; piece < n_pieces; piece += step) {
    load_piece(a, x, piece, v);
    for (int e = 0; e < 8; e++) most = max(most, __float_as_uint(v[e]) & 0x7FFFFFFFu);
  }
  int lift = BF16 ? 0 : lift_of(SHORT ? warp_max(most) : block_max(most, shared));
  float up = ldexpf(1.0f, lift);
  for (uint32_t j = own; j < n_places; j += step) {
    int64_t place = at == NULL ? (int64_t)r : at[j];
    if (place >= 0) a.back[place] = ldexpf(1.0f, -lift);
  }
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++) {
    uint32_t piece = own + t * step;
    if (piece >= n_pieces) continue;
#pragma unroll
    for (int e = 0; e < 8; e++) kept[t][e] = __fmul_rn(kept[t][e], up);
    uint4 bits = eight_16<BF16>(kept[t]);
    for (uint32_t j = 0; j < n_places; j++) {
      int64_t place = at == NULL ? (int64_t)r : at[j];
      if (place >= 0) store_piece(a, (uint32_t)place, piece, bits);
    }
  }
  for (uint32_t piece = own + KEPT * step; piece < n_pieces; piece += step) {
    load_piece(a, x, piece, v);
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] = __fmul_rn(v[e], up);
    uint4 bits = eight_16<BF16>(v);
    for (uint32_t j = 0; j < n_places; j++) {
      int64_t place = at == NULL ? (int64_t)r : at[j];
      if (place >= 0) store_piece(a, (uint32_t)place, piece, bits);
    }
  }
}

weft_status prepare_rows(cuda_device *d, const prepare_args *args) {
  prepare_args a = *args;
  a.wide = ((uintptr_t)a.x & 7u) == 0 && a.x_stride % 2 == 0 && a.n_in % 2 == 0;
  uint32_t n_threads = a.n_units <= 4 ? 64 : a.n_units <= 8 ? 128 : PREPARE_THREADS;
  bool is_short = a.n_units * 16 <= SHORT_PIECES;
  uint32_t n_blocks = is_short ? cuda_ceil(a.n_rows, PREPARE_THREADS / 32) : a.n_rows;
  auto kernel = form_is_bf16(args->type) ? (is_short ? prepare_kernel<true, true> : prepare_kernel<true, false>)
                                         : (is_short ? prepare_kernel<false, true> : prepare_kernel<false, false>);
  cuda_start(d, kernel, n_blocks, is_short ? (uint32_t)PREPARE_THREADS : n_threads, 0, a);
  return cuda_launched(d, "preparing rows");
}
