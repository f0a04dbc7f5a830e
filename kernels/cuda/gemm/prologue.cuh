/* SPDX-License-Identifier: MIT */
/* How the prologue reads a row of f32 in pieces, rounds it to 16 bits and stores it in one of the two layouts of
 * gemm.h.
 *
 * Law: a row is multiplied by one power of two (scale_exponent_of its largest magnitude; none for bf16) and rounded
 * once. a.unscale gets the power that undoes this. */
#ifndef WEFT_KERNELS_CUDA_PROLOGUE_CUH
#define WEFT_KERNELS_CUDA_PROLOGUE_CUH

#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/prologue.h"
#include "kernels/cuda/moe/limited_gate.cuh"

enum { PROLOGUE_THREADS = 256 };

/* A piece: eight numbers that lie side by side after the prologue. A unit of 128 inputs has 16 of them, one of 64
 * has 8. The inputs of piece p: few rows   8 p .. 8 p + 7 matrices   step c + 8 i + 2 j and the next one, for c < 4,
 * where p = 4 i + j; step is 32 or, in a unit of 64, 16 Gated, a piece has eight numbers of g and eight of u until
 * gate_piece makes eight of them, which happens when all loads are on their way. */
template <bool GATED>
struct row_piece {
  float v[GATED ? 16 : 8];
};

template <bool GATED>
static __device__ __forceinline__ void load_piece(const prologue_args &a, const float *x, uint32_t piece,
                                                  row_piece<GATED> &to) {
  uint32_t unit = piece / 16, p = piece % 16, step = a.is_tail != 0 && unit + 1 == a.n_units ? 16 : 32;
  uint32_t k = 128 * unit + (a.is_tiled ? 2 * p : 8 * p);
  if (!a.is_tiled) step = 2;
  x += k;
  if (a.wide) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      *(float2 *)(void *)(to.v + 2 * i) = *(const float2 *)(const void *)(x + i * step);
      if (GATED) *(float2 *)(void *)(to.v + 8 + 2 * i) = *(const float2 *)(const void *)(x + a.up_at + i * step);
    }
    return;
  }
#pragma unroll
  for (uint32_t e = 0; e < 8; e++) {
    uint32_t at = e / 2 * step + e % 2;
    to.v[e] = k + at < a.n_in ? x[at] : 0.0f;
    if (GATED) to.v[8 + e] = k + at < a.n_in ? x[a.up_at + (int64_t)at] : 0.0f;
  }
}

template <bool GATED>
static __device__ __forceinline__ void gate_piece(const prologue_args &a, const row_piece<GATED> &from, float (&v)[8]) {
#pragma unroll
  for (int e = 0; e < 8; e++) v[e] = GATED ? limited_gate(a.activation, a.limit, from.v[e], from.v[8 + e]) : from.v[e];
}

static __device__ __forceinline__ void store_piece(const prologue_args &a, uint32_t place, uint32_t piece,
                                                   const uint4 &v) {
  uint32_t unit = piece / 16, p = piece % 16, row = place % 8, at = p / 8 * 1024 + row * 128 + (p % 8 ^ row) * 16;
  uint64_t tile = (uint64_t)unit * a.n_tiles + place / 8;
  if (!a.is_tiled) {
    bool tail = a.is_tail != 0 && unit + 1 == a.n_units;
    uint32_t c = tail ? p / 2 : p / 4, i = tail ? p % 2 : p % 4;
    at = i * 512 + (row * 4 + c) * 16;
    tile = (uint64_t)(place / 8) * a.n_units + unit;
  }
  *(uint4 *)(void *)(a.out + tile * 2048 + at) = v;
}

static __device__ __forceinline__ uint32_t pieces_of(const prologue_args &a) {
  return a.n_units * 16 - (a.is_tail != 0 ? 8 : 0);
}

/* The largest `most` of a block of up to 32 warps. shared: scratch [32], free again after the next __syncthreads(). */
static __device__ __forceinline__ uint32_t block_max(uint32_t most, uint32_t *shared) {
  most = __reduce_max_sync(0xFFFFFFFFu, most);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  __syncthreads();
  return __reduce_max_sync(0xFFFFFFFFu, threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0u);
}

template <bool BF16>
static __device__ __forceinline__ void put_piece(const prologue_args &a, uint32_t piece, const float (&v)[8], float up,
                                                 const int32_t *at, uint32_t n, int64_t r) {
  uint4 bits = chunk_16<BF16>(v, up);
#pragma unroll 4
  for (uint32_t j = 0; j < n; j++) {
    int64_t place = at == NULL ? r : at[j];
    if (place >= 0) store_piece(a, (uint32_t)place, piece, bits);
  }
}

/* A thread's pieces of a row are own + t step for t = 0, 1, ... Of the first KEPT it keeps what it read and the eight
 * numbers in registers; the others are read once for the maximum and again to be rounded. */
template <bool GATED, uint32_t KEPT>
struct row_pieces {
  row_piece<GATED> raw[KEPT];
  float v[KEPT][8];
};

template <bool GATED, uint32_t KEPT>
static __device__ __forceinline__ void load_row(const prologue_args &a, const float *x, uint32_t own, uint32_t step,
                                                row_pieces<GATED, KEPT> &row) {
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (own + t * step < pieces_of(a)) load_piece(a, x, own + t * step, row.raw[t]);
}

/* Makes eight numbers of each kept piece, and gives the largest magnitude of all the thread's pieces as bits. For bf16,
 * which needs no maximum, only kept pieces are looked at. */
template <bool BF16, bool GATED, uint32_t KEPT>
static __device__ __forceinline__ uint32_t finish_row(const prologue_args &a, const float *x, uint32_t own,
                                                      uint32_t step, row_pieces<GATED, KEPT> &row) {
  uint32_t most = 0;
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++) {
    if (own + t * step >= pieces_of(a)) continue;
    gate_piece(a, row.raw[t], row.v[t]);
    most = max(most, chunk_max(row.v[t]));
  }
#pragma unroll 1
  for (uint32_t piece = own + KEPT * step; !BF16 && piece < pieces_of(a); piece += step) {
    row_piece<GATED> raw;
    float v[8];
    load_piece(a, x, piece, raw);
    gate_piece(a, raw, v);
    most = max(most, chunk_max(v));
  }
  return most;
}

/* Stores the row, times 2^scale_exponent, at the places at[0 .. n), of which a negative one is none; with at NULL to
 * place r. */
template <bool BF16, bool GATED, uint32_t KEPT>
static __device__ __forceinline__ void put_row(const prologue_args &a, const float *x, uint32_t own, uint32_t step,
                                               const row_pieces<GATED, KEPT> &row, int scale_exponent,
                                               const int32_t *at, uint32_t n, int64_t r) {
  float up = power_of_two(scale_exponent);
  for (uint32_t j = own; j < n; j += step) {
    int64_t place = at == NULL ? r : at[j];
    if (place >= 0) a.unscale[place] = power_of_two(-scale_exponent);
  }
#pragma unroll
  for (uint32_t t = 0; t < KEPT; t++)
    if (own + t * step < pieces_of(a)) put_piece<BF16>(a, own + t * step, row.v[t], up, at, n, r);
#pragma unroll 1
  for (uint32_t piece = own + KEPT * step; piece < pieces_of(a); piece += step) {
    row_piece<GATED> raw;
    float v[8];
    load_piece(a, x, piece, raw);
    gate_piece(a, raw, v);
    put_piece<BF16>(a, piece, v, up, at, n, r);
  }
}

#endif
