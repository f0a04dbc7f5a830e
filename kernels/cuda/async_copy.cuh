/* SPDX-License-Identifier: MIT */
/* Bulk async copies (cp.async.bulk) from global into shared memory, and what joins copies to mbarriers. cp.async
 * itself, 16 bytes a thread, is in common.cuh.
 *
 * Law: what a copy has brought is read after a wait for its barrier; what it reads must not change until then. */
#ifndef WEFT_KERNELS_CUDA_ASYNC_COPY_CUH
#define WEFT_KERNELS_CUDA_ASYNC_COPY_CUH

#include "kernels/cuda/mbarrier.cuh"

/* True for one lane of a whole warp. In what this guards the assembler knows that one lane runs, and issues a bulk copy
 * in a fifth of the time that it takes behind a comparison of lanes, where each is a loop over those that run. */
static __device__ __forceinline__ bool elect_lane(void) {
  uint32_t is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
}

/* Starts a copy to shared memory, whose bytes the barrier counts. n_bytes and both addresses are multiples of 16. */
static __device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t n_bytes, uint64_t *barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
               : "memory");
}

/* The same for bytes that are read once: the hint makes them leave the L2 cache first. */
static __device__ __forceinline__ void bulk_copy_streamed(void *to, const void *from, uint32_t n_bytes,
                                                          uint64_t *barrier) {
  const uint64_t evict_first =
      0x12F0000000000000ull; /* what createpolicy.fractional.L2::evict_first makes for a fraction of 1 */
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(n_bytes), "r"(shared_address(barrier)), "l"(evict_first)
      : "memory");
}

/* Has the barrier count an arrival when all copies that this thread has started (cp_async_16_if) have ended. A
 * thread that waits for the barrier and gives the data to wgmma calls fence_proxy_async in between; the copying
 * thread cannot, since it would have to wait for its copies first. */
static __device__ __forceinline__ void mbarrier_arrive_cp_async(uint64_t *barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Makes what this thread wrote to shared memory visible to wgmma and bulk copies. */
static __device__ __forceinline__ void fence_proxy_async(void) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
