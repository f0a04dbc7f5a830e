/* SPDX-License-Identifier: MIT */
/* The ring of a GEMV warp in the portable set. A piece is read where it lies in memory, by loads that coalesce as the
 * packed layout is made for; a stage is its address. Issuing a stage asks the L2 cache for the piece, two pieces before
 * it is multiplied; a multiprocessor has warps enough to hide the way from there. So no shared memory is needed for
 * weights, of which these cards have little.
 *
 * Law: as in gemm/gemv_ring.cuh, which has the same functions for Hopper. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_GEMV_RING_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_GEMV_RING_CUH

#include "kernels/cuda/portable/tiles.h"

enum { GEMV_STAGES = 2, GEMV_SHARED_BYTES_MAX = PORTABLE_SHARED_BYTES, DOWN_STAGES_MAX = GEMV_STAGES };

static inline uint32_t gemv_stages(int) {
  return GEMV_STAGES;
}

template <class A>
static __device__ __forceinline__ uint32_t ring_stages_of(const A &) {
  return GEMV_STAGES;
}

static inline uint32_t gemv_blocks_in(uint32_t n_bytes) {
  return GEMV_SHARED_BYTES_MAX / n_bytes;
}

__host__ __device__ constexpr uint32_t ring_stage_bytes(uint32_t) {
  return 0;
}

static __device__ __forceinline__ uint32_t ring_stages_in(uint32_t n, uint32_t, uint32_t) {
  return n;
}

/* at: 0 or 1. */
typedef struct gemv_ring {
  const uint8_t *piece[GEMV_STAGES], *steps[GEMV_STAGES];
  uint32_t n, at;
} gemv_ring;

static __device__ __forceinline__ gemv_ring ring_init(uint8_t *, uint64_t *, uint32_t n, uint32_t) {
  return {{NULL, NULL}, {NULL, NULL}, n, 0};
}

static __device__ __forceinline__ void prefetch_line(const uint8_t *at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Neither array is indexed by a variable, so both stay in registers. */
static __device__ __forceinline__ void ring_issue(gemv_ring &ring, uint32_t stage, const uint8_t *piece,
                                                  uint32_t n_bytes) {
  if (stage == 0)
    ring.piece[0] = piece;
  else
    ring.piece[1] = piece;
  for (uint32_t at = threadIdx.x % 32 * 128; at < n_bytes; at += 32 * 128) prefetch_line(piece + at);
}

static __device__ __forceinline__ void ring_issue_with(gemv_ring &ring, uint32_t stage, const uint8_t *piece,
                                                       uint32_t n_bytes, uint32_t, const uint8_t *steps, uint32_t) {
  ring_issue(ring, stage, piece, n_bytes);
  if (stage == 0)
    ring.steps[0] = steps;
  else
    ring.steps[1] = steps;
  if (threadIdx.x % 32 == 31) prefetch_line(steps);
}

static __device__ __forceinline__ const uint8_t *ring_piece(const gemv_ring &ring) {
  return ring.at == 0 ? ring.piece[0] : ring.piece[1];
}

static __device__ __forceinline__ const uint8_t *ring_steps(const gemv_ring &ring, uint32_t) {
  return ring.at == 0 ? ring.steps[0] : ring.steps[1];
}

static __device__ __forceinline__ void ring_wait(const gemv_ring &) {}

static __device__ __forceinline__ void ring_advance(gemv_ring &ring) {
  __syncwarp();
  ring.at ^= 1;
}

#endif
