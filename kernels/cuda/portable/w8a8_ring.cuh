/* SPDX-License-Identifier: MIT */
/* The ring of a GEMV warp in 8 bits in the portable set: stages in shared memory, which the warp's lanes fill by
 * cp.async. A piece is one group of copies. (In 16 bits a block would need more than some cards have: gemv_ring.cuh.)
 *
 * Law: as in gemm/gemv_ring.cuh, which has the same functions for Hopper. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_W8A8_RING_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_W8A8_RING_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/portable/tiles.h"

#define GEMV_SHARED_BYTES_MAX gemv_bytes_of(1)
enum { GEMV_STAGES = 2 /* at most */, DOWN_STAGES_MAX = 4, DOWN_STAGES_LEAST = 1 };

static inline uint32_t gemv_stages(gemv_ring_kind kind) {
  return cuda_family()->ring[kind];
}

template <class A>
static inline void ring_set_stages(A *a, gemv_ring_kind kind) {
  a->n_stages = (uint8_t)gemv_stages(kind);
}

template <class A>
static __device__ __forceinline__ uint32_t ring_stages_of(const A &a) {
  return a.n_stages;
}

static inline uint32_t gemv_blocks_in(uint32_t n_bytes) {
  return cuda_blocks_in(n_bytes, PORTABLE_STATIC_BYTES);
}

static inline uint32_t gemv_bytes_of(uint32_t n) {
  return cuda_shared_bytes_of(n, PORTABLE_STATIC_BYTES);
}

static inline uint32_t gemv_experts_rows(void) {
  return cuda_family()->experts;
}

static inline uint32_t down_blocks(void) {
  return cuda_family()->down;
}

static constexpr bool RING_IS_READ_FIRST = true;

__host__ __device__ constexpr uint32_t ring_stage_bytes(uint32_t n_bytes) {
  return n_bytes;
}

static __device__ __forceinline__ uint32_t ring_stages_in(uint32_t n, uint32_t bytes, uint32_t stage_bytes) {
  return min(n, bytes / stage_bytes);
}

/* n_issued: pieces whose copies were started and that were not read yet; at most DOWN_STAGES_MAX. */
typedef struct gemv_ring {
  uint8_t *memory;
  uint32_t stage_bytes, n, at, n_issued;
} gemv_ring;

static __device__ __forceinline__ gemv_ring ring_init(uint8_t *memory, uint64_t *, uint32_t n, uint32_t stage_bytes) {
  return {memory, stage_bytes, n, 0, 0};
}

static __device__ __forceinline__ void ring_issue(gemv_ring &ring, uint32_t stage, const uint8_t *piece,
                                                  uint32_t n_bytes) {
  uint32_t to = shared_address(ring.memory + stage * ring.stage_bytes);
#pragma unroll 1
  for (uint32_t at = threadIdx.x % 32 * 16; at < n_bytes; at += 512) cp_async_16(to + at, piece + at);
  cp_async_commit();
  ring.n_issued++;
}

/* room is known where this is compiled, and so is what is added to the first place. */
static __device__ __forceinline__ void ring_issue_with(gemv_ring &ring, uint32_t stage, const uint8_t *piece,
                                                       uint32_t n_bytes, uint32_t room, const uint8_t *steps,
                                                       uint32_t steps_bytes) {
  uint32_t own = threadIdx.x % 32 * 16, to = shared_address(ring.memory + stage * ring.stage_bytes) + own;
  if (own < steps_bytes) cp_async_16(to + room, steps + own);
  piece += own;
#pragma unroll
  for (uint32_t at = 0; at < room; at += 512)
    if (at + own < n_bytes) cp_async_16(to + at, piece + at);
  cp_async_commit();
  ring.n_issued++;
}

static __device__ __forceinline__ const uint8_t *ring_piece(const gemv_ring &ring) {
  return ring.memory + ring.at * ring.stage_bytes;
}

static __device__ __forceinline__ const uint8_t *ring_steps(const gemv_ring &ring, uint32_t room) {
  return ring_piece(ring) + room;
}

/* What may still be on its way is known to an instruction. */
static __device__ __forceinline__ void ring_wait(const gemv_ring &ring) {
  static_assert(DOWN_STAGES_MAX == 4, "stages of a ring");
  if (ring.n_issued == 4)
    cp_async_wait<3>();
  else if (ring.n_issued == 3)
    cp_async_wait<2>();
  else if (ring.n_issued == 2)
    cp_async_wait<1>();
  else
    cp_async_wait<0>();
  __syncwarp();
}

static __device__ __forceinline__ void ring_wait_first(gemv_ring &ring, uint32_t) {
  ring_wait(ring);
  ring.n_issued--;
}

static __device__ __forceinline__ void ring_advance(gemv_ring &ring) {
  __syncwarp();
  ring.n_issued--;
  if (++ring.at == ring.n) ring.at = 0;
}

#endif
