/* SPDX-License-Identifier: MIT */
/* The ring of a GEMV warp on Hopper: stages in shared memory, which bulk async copies fill.
 *
 * Law: a stage is read after ring_wait, and issued again after ring_advance, when all lanes have read it.
 * portable/gemv_ring.cuh has the same functions. */
#ifndef WEFT_KERNELS_CUDA_GEMV_RING_CUH
#define WEFT_KERNELS_CUDA_GEMV_RING_CUH

#include "kernels/cuda/async_copy.cuh"

enum {
  GEMV_STAGES = 2, /* of a warp */
  GEMV_SHARED_BYTES_MAX = 220 << 10,
  DOWN_STAGES_MAX = 8, /* of a warp of the down projection of experts */
  DOWN_STAGES_LEAST = 2
};

/* Rings that may have another number of stages in the portable set (portable/tiles.h). */
enum { RING_DENSE, RING_GATE_UP, RING_TILES };
static inline uint32_t gemv_stages(int) {
  return GEMV_STAGES;
}

template <class A>
static inline void ring_set_stages(A *, int) {}

template <class A>
static __device__ __forceinline__ uint32_t ring_stages_of(const A &) {
  return GEMV_STAGES;
}

/* How many blocks with so much shared memory a multiprocessor has room for; how much each of n has. */
static inline uint32_t gemv_blocks_in(uint32_t n_bytes) {
  return GEMV_SHARED_BYTES_MAX / n_bytes;
}

static inline uint32_t gemv_bytes_of(uint32_t n) {
  return GEMV_SHARED_BYTES_MAX / n;
}

/* Most rows of experts of few rows. */
static inline uint32_t gemv_experts_rows(void) {
  return UINT32_MAX;
}

/* Blocks of a multiprocessor of the down projection of experts. */
static inline uint32_t down_blocks(void) {
  return 2;
}

/* Whether a stage is read whole before it is used, and then given back (multiply_span). */
static constexpr bool RING_IS_READ_FIRST = false;

/* Shared memory of a stage that has room for so many bytes. */
__host__ __device__ constexpr uint32_t ring_stage_bytes(uint32_t n_bytes) {
  return n_bytes;
}

/* How many of up to n stages have room in so much memory. */
static __device__ __forceinline__ uint32_t ring_stages_in(uint32_t n, uint32_t bytes, uint32_t stage_bytes) {
  return min(n, bytes / stage_bytes);
}

/* A warp's stages for pieces, used one after another. */
typedef struct gemv_ring {
  uint8_t *memory;
  uint64_t *filled; /* a barrier per stage */
  uint32_t stage_bytes, n, at, phase;
} gemv_ring;

/* For a whole warp. filled: room for n barriers. */
static __device__ __forceinline__ gemv_ring ring_init(uint8_t *memory, uint64_t *filled, uint32_t n,
                                                      uint32_t stage_bytes) {
  if (elect_lane()) {
#pragma unroll 2
    for (uint32_t i = 0; i < n; i++) mbarrier_init(&filled[i]);
    mbarrier_init_fence();
  }
  __syncwarp();
  return {memory, filled, stage_bytes, n, 0, 0};
}

/* Starts the copy of a piece to a stage whose last piece all lanes have read. */
static __device__ __forceinline__ void ring_issue(gemv_ring &ring, uint32_t stage, const uint8_t *piece,
                                                  uint32_t n_bytes) {
  if (!elect_lane()) return;
  mbarrier_expect(&ring.filled[stage], n_bytes);
  bulk_copy_streamed(ring.memory + stage * ring.stage_bytes, piece, n_bytes, &ring.filled[stage]);
}

/* The same with the steps of W8A8 weights, which come behind the room for a piece. */
static __device__ __forceinline__ void ring_issue_with(gemv_ring &ring, uint32_t stage, const uint8_t *piece,
                                                       uint32_t n_bytes, uint32_t room, const uint8_t *steps,
                                                       uint32_t steps_bytes) {
  uint8_t *to = ring.memory + stage * ring.stage_bytes;
  if (!elect_lane()) return;
  mbarrier_expect(&ring.filled[stage], n_bytes + steps_bytes);
  bulk_copy_streamed(to, piece, n_bytes, &ring.filled[stage]);
  bulk_copy(to + room, steps, steps_bytes, &ring.filled[stage]);
}

/* The same with a piece that lies in two halves of n_bytes each. */
static __device__ __forceinline__ void ring_issue_halves(gemv_ring &ring, uint32_t stage, const uint8_t *first,
                                                         const uint8_t *second, uint32_t n_bytes, const uint8_t *steps,
                                                         uint32_t steps_bytes) {
  uint8_t *to = ring.memory + stage * ring.stage_bytes;
  if (!elect_lane()) return;
  mbarrier_expect(&ring.filled[stage], 2 * n_bytes + steps_bytes);
  bulk_copy_streamed(to, first, n_bytes, &ring.filled[stage]);
  bulk_copy_streamed(to + n_bytes, second, n_bytes, &ring.filled[stage]);
  bulk_copy(to + 2 * n_bytes, steps, steps_bytes, &ring.filled[stage]);
}

/* The piece in the ring's stage, and the steps that came with it. */
static __device__ __forceinline__ const uint8_t *ring_piece(const gemv_ring &ring) {
  return ring.memory + ring.at * ring.stage_bytes;
}

static __device__ __forceinline__ const uint8_t *ring_steps(const gemv_ring &ring, uint32_t room) {
  return ring_piece(ring) + room;
}

/* Waits until the piece in the ring's stage has come. */
static __device__ __forceinline__ void ring_wait(const gemv_ring &ring) {
  mbarrier_wait(&ring.filled[ring.at], ring.phase);
}

/* Waits until the first piece of each stage from 0 on has come, one stage after another, of a ring that issues no
 * more. */
static __device__ __forceinline__ void ring_wait_first(const gemv_ring &ring, uint32_t stage) {
  mbarrier_wait(&ring.filled[stage], 0);
}

/* Waits until all lanes have read the piece, and goes on to the next stage. */
static __device__ __forceinline__ void ring_advance(gemv_ring &ring) {
  __syncwarp();
  if (++ring.at == ring.n) ring.at = 0, ring.phase ^= 1;
}

#endif
