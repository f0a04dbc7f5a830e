/* SPDX-License-Identifier: MIT */
/* What the kernels of the portable set share: copies into shared memory by all threads of a block (cp.async), a ring of
 * stages without barriers in memory, and the operands of mma.sync that ldmatrix fetches.
 *
 * A ring: stages are copied in their order, each copy is one group of cp.async, and ring_step stands before the use of
 * each stage. It waits until the stage is there for all threads, which says too that all have done with the stage
 * before; so the copy that is issued next may overwrite that one. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_TILE_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_TILE_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/portable/tiles.h"

/* Starts the copy of n_bytes, a multiple of 16, by `n_threads` threads of which this is number `own`. */
static __device__ __forceinline__ void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t n_bytes, uint32_t own,
                                                  uint32_t n_threads) {
  uint32_t at = shared_address(to);
  for (uint32_t i = 16 * own; i < n_bytes; i += 16 * n_threads) cp_async_16(at + i, from + i);
}

/* Waits until the oldest of STAGES - 1 stages that are on their way has come. */
template <int STAGES>
static __device__ __forceinline__ void ring_step(void) {
  cp_async_wait<STAGES - 2>();
  __syncthreads();
}

/* Rows of 128 bytes in shared memory, whose piece p of 16 bytes lies at p xor row % 8: no two rows of an ldmatrix share
 * a bank. A lane's part of the address from which ldmatrix_x4 gets the operands b of 16 rows: of rows 0 .. 7 the pieces
 * `piece` and piece + 1, then of rows 8 .. 15, which lie `step` bytes behind. */
static __device__ __forceinline__ uint32_t operand_b_at(uint32_t piece, uint32_t step) {
  uint32_t lane = threadIdx.x % 32, row = lane % 8;
  return lane / 16 * step + row * 128 + ((piece + lane / 8 % 2) ^ row) * 16;
}

/* The same for the operand a of sixteen rows of row_bytes each, a multiple of 128: pieces `piece` and piece + 1. */
static __device__ __forceinline__ uint32_t operand_a_at(uint32_t row, uint32_t row_bytes, uint32_t piece) {
  uint32_t lane = threadIdx.x % 32, own = row + lane % 16;
  return own * row_bytes + ((piece + lane / 16) ^ (own & 7u)) * 16;
}

/* d += a b of 16 outputs x 8 rows x 32 inputs in 8 bits. */
static __device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
