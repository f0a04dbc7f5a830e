/* SPDX-License-Identifier: MIT */
/* The products of attention on Hopper's tensor cores (wgmma).
 *
 * Law: a product is of 64 queries, which belong to a warpgroup. Operands in shared memory have the 128-byte swizzle:
 * rows of 128 bytes, whose piece i of 16 bytes lies at i xor row % 8. Sums are those of mma (wgmma.cuh). */
#ifndef WEFT_KERNELS_CUDA_ATTENTION_WGMMA_CUH
#define WEFT_KERNELS_CUDA_ATTENTION_WGMMA_CUH

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/wgmma.cuh"

/* The descriptor of an operand whose rows of 128 bytes lie one behind the other from a multiple of 1024 bytes on.
 * panels_step: bytes from 64 columns to the next 64; only values need it, whose columns become columns of the
 * result. */
static __device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t address, uint32_t panels_step) {
  return (uint64_t)((address & 0x3FFFFu) >> 4) | (uint64_t)(panels_step >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
         1ull << 62;
}

#define SUMS_8(i)  WGMMA_4(i), WGMMA_4(i + 1)
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 2), SUMS_8(i + 4), SUMS_8(i + 6)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 8)
#define WGMMA_256                                                                                          \
  WGMMA_128                                                                                                \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "     \
  "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"

/* Issues d[64 x 128 keys] += q[64 x 16] k[16 x 128]; fresh: d begins at 0. */
static __device__ __forceinline__ void wgmma_scores(float (&d)[16][4], uint64_t q, uint64_t k, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_128 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : SUMS_64(0)
      : "l"(q), "l"(k), "r"((uint32_t)fresh));
}

#define VALUES_TEXT(shape, sums, inputs, operand)                                                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, {" inputs \
  "}, " operand ", p, 1, 1, 1;\n}\n"

/* Issues d[64 x 8 NT dimensions] += weights[64 x 16 keys] v[16 x 8 NT]. */
template <int NT>
static __device__ __forceinline__ void wgmma_values(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t v) {
  if constexpr (NT == 8) {
    asm volatile(VALUES_TEXT("m64n64k16", WGMMA_64, "%32, %33, %34, %35", "%36") : SUMS_32(0) : WGMMA_A, "l"(v));
  } else if constexpr (NT == 16) {
    asm volatile(VALUES_TEXT("m64n128k16", WGMMA_128, "%64, %65, %66, %67", "%68") : SUMS_64(0) : WGMMA_A, "l"(v));
  } else {
    static_assert(NT == 32, "64, 128 or 256 dimensions");
    asm volatile(VALUES_TEXT("m64n256k16", WGMMA_256, "%128, %129, %130, %131", "%132")
                 : SUMS_64(0), SUMS_64(16)
                 : WGMMA_A, "l"(v));
  }
}

#endif
