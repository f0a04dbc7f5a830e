/* SPDX-License-Identifier: MIT */
/* Hopper's tensor cores (wgmma), and what comes with warpgroups: named barriers and the sharing out of registers.
 *
 * A product is made by a warpgroup, four warps: d[64 x N] += a[64 x 16] b[16 x N] with sums in f32. a is in registers,
 * 16 rows in each warp, as in mma; b is in shared memory.
 *
 * Law: a result has the bits of mma's m16n8k16 (measured: 204 800 sums of 512 products, f16 and bf16). Products run
 * behind the instructions that issue them: what they read, registers included, must stay as it is until a wait. */
#ifndef WEFT_KERNELS_CUDA_WGMMA_CUH
#define WEFT_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/common.cuh"

/* The descriptor of b as 8 x 8 matrices of 16-bit numbers, 128 bytes each, without swizzle: the second eight inputs
 * lie 128 bytes on, the next eight rows `rows_step` bytes on. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(const void *b, uint32_t rows_step) {
  return (uint64_t)((shared_address(b) & 0x3FFFFu) >> 4) | (uint64_t)(128 >> 4) << 16 |
         (uint64_t)(rows_step >> 4) << 32;
}

/* The descriptor of b as rows of 64 numbers (128 bytes) from a multiple of 1024 bytes on, with the 128-byte swizzle:
 * eighth e of row r lies at e xor r % 8. The next 16 inputs are 32 bytes on. */
static __device__ __forceinline__ uint64_t wgmma_descriptor_swizzled(const void *b, uint32_t rows_step) {
  return (uint64_t)((shared_address(b) & 0x3FFFFu) >> 4) | (uint64_t)1 << 16 | (uint64_t)(rows_step >> 4) << 32 |
         (uint64_t)1 << 62;
}

static __device__ __forceinline__ void wgmma_fence(void) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void wgmma_wait(void) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define WGMMA_4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_A    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define WGMMA_TEXT(shape, type, sums, inputs, operand)                                                          \
  "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" sums \
  "}, {" inputs "}, " operand ", p, 1, 1, 0;\n}\n"
#define WGMMA_8  "%0, %1, %2, %3"
#define WGMMA_16 WGMMA_8 ", %4, %5, %6, %7"
#define WGMMA_24 WGMMA_16 ", %8, %9, %10, %11"
#define WGMMA_32 WGMMA_24 ", %12, %13, %14, %15"
#define WGMMA_64 WGMMA_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_88 WGMMA_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43"
#define WGMMA_128                                                                                     \
  WGMMA_64                                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_SUMS_2  WGMMA_4(0), WGMMA_4(1)
#define WGMMA_SUMS_3  WGMMA_SUMS_2, WGMMA_4(2)
#define WGMMA_SUMS_4  WGMMA_SUMS_3, WGMMA_4(3)
#define WGMMA_SUMS_8  WGMMA_SUMS_4, WGMMA_4(4), WGMMA_4(5), WGMMA_4(6), WGMMA_4(7)
#define WGMMA_SUMS_11 WGMMA_SUMS_8, WGMMA_4(8), WGMMA_4(9), WGMMA_4(10)
#define WGMMA_SUMS_16 \
  WGMMA_SUMS_8, WGMMA_4(8), WGMMA_4(9), WGMMA_4(10), WGMMA_4(11), WGMMA_4(12), WGMMA_4(13), WGMMA_4(14), WGMMA_4(15)

#define WGMMA_TYPED(shape, sums, inputs, operand, ...)                                              \
  if constexpr (BF16) {                                                                             \
    asm volatile(WGMMA_TEXT(shape, "bf16", sums, inputs, operand) : __VA_ARGS__ : WGMMA_A, "l"(b)); \
  } else {                                                                                          \
    asm volatile(WGMMA_TEXT(shape, "f16", sums, inputs, operand) : __VA_ARGS__ : WGMMA_A, "l"(b));  \
  }

/* Issues a wgmma. NT: how many times eight rows b has. */
template <int NT, bool BF16>
static __device__ __forceinline__ void wgmma(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (NT == 2) {
    WGMMA_TYPED("m64n16k16", WGMMA_16, "%8, %9, %10, %11", "%12", WGMMA_SUMS_2)
  } else if constexpr (NT == 3) {
    WGMMA_TYPED("m64n24k16", WGMMA_24, "%12, %13, %14, %15", "%16", WGMMA_SUMS_3)
  } else if constexpr (NT == 4) {
    WGMMA_TYPED("m64n32k16", WGMMA_32, "%16, %17, %18, %19", "%20", WGMMA_SUMS_4)
  } else if constexpr (NT == 8) {
    WGMMA_TYPED("m64n64k16", WGMMA_64, "%32, %33, %34, %35", "%36", WGMMA_SUMS_8)
  } else if constexpr (NT == 11) {
    WGMMA_TYPED("m64n88k16", WGMMA_88, "%44, %45, %46, %47", "%48", WGMMA_SUMS_11)
  } else {
    static_assert(NT == 16, "16, 24, 32, 64, 88 or 128 rows");
    WGMMA_TYPED("m64n128k16", WGMMA_128, "%64, %65, %66, %67", "%68", WGMMA_SUMS_16)
  }
}

/* ---- warpgroups ----------------------------------------------------------------------------------------- */

/* A barrier of one warpgroup; 0 is that of the whole block. */
static __device__ __forceinline__ void named_barrier_sync(uint32_t id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/* A warpgroup gives registers away (dec), or takes what is free (inc). */
template <uint32_t N>
static __device__ __forceinline__ void setmaxnreg_dec(void) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <uint32_t N>
static __device__ __forceinline__ void setmaxnreg_inc(void) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
