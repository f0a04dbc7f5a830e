/* SPDX-License-Identifier: MIT */
/* mbarriers: barriers in shared memory that count arrivals of threads and bytes of async copies.
 *
 * Law: a phase of a barrier ends when as many threads have arrived as mbarrier_init named and all bytes that were
 * announced (mbarrier_expect) have come. Phases alternate between the parities 0 and 1; a wait names the parity of the
 * phase that must have ended. */
#ifndef WEFT_KERNELS_CUDA_MBARRIER_CUH
#define WEFT_KERNELS_CUDA_MBARRIER_CUH

#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint32_t n_arrivals = 1) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_arrivals) : "memory");
}

/* Makes barriers visible to other threads and to bulk copies. Called after the last mbarrier_init and before the first
 * copy. Only shared memory is fenced: a fence of all memory takes as long as a way to the L2 cache. */
static __device__ __forceinline__ void mbarrier_init_fence(void) {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Arrives, and announces bytes that async copies will write. */
static __device__ __forceinline__ void mbarrier_expect(uint64_t *barrier, uint32_t n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_bytes)
               : "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t address) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
  mbarrier_arrive(shared_address(barrier));
}

/* A warp arrives once for all its lanes. The caller made sure that every lane has read or written what it had to: by a
 * __syncwarp(), or because products that used it have ended (between products a __syncwarp() would make the compiler
 * run them one by one). The racecheck tool sees neither, so a build for it lets every lane arrive; barriers count
 * WARP_ARRIVALS per warp. */
#ifdef WEFT_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif
static __device__ __forceinline__ void mbarrier_arrive_warp(uint64_t *barrier) {
  if (WARP_ARRIVALS > 1 || threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

static __device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra done;\nbra "
      "wait;\ndone:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/* ---- of other blocks of a cluster ------------------------------------------------------------------------ */

/* Arrives at the barrier of another block of the cluster. What this thread wrote before is seen there after the
 * wait. */
static __device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t *mine, uint32_t rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(mine, rank))
               : "memory");
}

static __device__ __forceinline__ void mbarrier_wait_cluster(uint64_t *barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra done;\n"
      "bra wait;\ndone:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

#endif
