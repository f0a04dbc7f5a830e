/* SPDX-License-Identifier: MIT */
/* Keys and values of 8 bits (kernels/kv_row.h) as operands of bf16 products: how rows come into shared memory as they
 * are stored, and how a lane makes its part of an operand of them.
 *
 * Law: in every kernel the operand is factor * integer, rounded to bf16, and a NaN factor makes NaNs of its 32. A lane
 * reads four neighbouring numbers, 4 c .. 4 c + 3 of sixteen; of a product over the head dimension it has the places
 * 2 c, 2 c + 1, 2 c + 8 and 2 c + 9. So number 4 c + i of sixteen of a key stands at place 2 c + i % 2 + i / 2 * 8, and
 * queries that meet such keys are put there likewise (q8_put). */
#ifndef WEFT_KERNELS_CUDA_ROWS_Q8_CUH
#define WEFT_KERNELS_CUDA_ROWS_Q8_CUH

#include "kernels/cuda/common.cuh"

/* The bytes at which stored rows of D numbers are aligned, and which a copy therefore takes at a time. */
__host__ __device__ constexpr int q8_piece(int d) {
  return d < 256 ? d / 16 : 16;
}

/* Bytes of d numbers and their factors. */
__host__ __device__ constexpr int q8_bytes(int d) {
  return d + d / WEFT_KV_Q8_BLOCK * 2;
}

/* Bytes from row to row in shared memory: an odd number of 16, so that eight rows lie in different banks. */
__host__ __device__ constexpr int q8_stride(int n_bytes) {
  return ((n_bytes + 15) / 16 | 1) * 16;
}

/* Copies below 16 bytes go through the L1 cache. It keeps what surrounds a row, so no row may be copied before all
 * rows of the step are stored. */
__host__ __device__ constexpr bool q8_early(int d) {
  return q8_piece(d) == 16;
}

template <int N>
static __device__ __forceinline__ void cp_async_if(uint32_t to, const void *from, bool ok) {
  if constexpr (N == 16) {
    cp_async_16_if(to, from, ok);
  } else {
    int n = ok ? N : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(n) : "memory");
  }
}

/* Starts copies of ROWS <= 32 rows of a warp. A row has N bytes at the address that lane `row` has in `own`, and TAIL
 * bytes more tail_at bytes from there; they lie side by side in shared memory. Rows whose bit is not in `wanted` are
 * left alone, those whose bit is not in `seen` become zeros. */
template <int PIECE, int N, int TAIL, int ROWS, int STRIDE>
static __device__ __forceinline__ void q8_copy_rows(uint32_t to, uint64_t own, uint32_t tail_at, uint32_t wanted,
                                                    uint32_t seen) {
  constexpr int pieces = (N + TAIL) / PIECE, steps = (ROWS * pieces + 31) / 32;
#pragma unroll 3
  for (int step = 0; step < steps; step++) {
    uint32_t i = step * 32 + threadIdx.x % 32, row = i / pieces, at = i % pieces * PIECE;
    uint64_t from = __shfl_sync(0xFFFFFFFFu, own, row % 32) + (at < N ? at : tail_at + at - N);
    if (row >= ROWS || (wanted >> row & 1) == 0) continue;
    cp_async_if<PIECE>(to + row * STRIDE + at, (const void *)(uintptr_t)from, (seen >> row & 1) != 0);
  }
}

/* Factor `block` of a row, whose factors begin at `from` in shared memory. */
static __device__ __forceinline__ float q8_factor(const uint8_t *from, uint32_t block) {
  return __half2float(((const __half *)(const void *)from)[block]);
}

/* factor times integer i of four. Their bytes were exchanged for integer + 128 (q8_biased), which is the lowest byte
 * of the float 2^23 + integer + 128. */
static __device__ __forceinline__ float q8_number(uint32_t biased, uint32_t i, float factor) {
  return __fmul_rn(factor, __fadd_rn(__uint_as_float(__byte_perm(biased, 0x4B000000u, 0x7440u + i)), -8388736.0f));
}

static __device__ __forceinline__ uint32_t q8_biased(uint32_t word) {
  return word ^ 0x80808080u;
}

/* A lane's two registers of the operand that sixteen numbers of a key are: of the four that it read. */
static __device__ __forceinline__ void q8_key(uint32_t word, float factor, uint32_t &low, uint32_t &high) {
  uint32_t b = q8_biased(word);
  low = pair_bf16(q8_number(b, 0, factor), q8_number(b, 1, factor));
  high = pair_bf16(q8_number(b, 2, factor), q8_number(b, 3, factor));
}

/* A lane's register of the operand that two keys' values are: of what ldmatrix_x4_trans gives it, numbers 2 n and
 * 2 n + 1 of one key and then of the next. `odd` chooses 2 n + 1, so of sixteen dimensions the even ones are columns
 * of one product and the odd ones of another. */
static __device__ __forceinline__ uint32_t q8_values(uint32_t word, uint32_t odd, float factor, float next_factor) {
  uint32_t b = q8_biased(word);
  return pair_bf16(q8_number(b, odd, factor), q8_number(b, 2 + odd, next_factor));
}

/* Puts piece `piece` of a query, numbers 4 piece .. 4 piece + 3, where they meet keys of 8 bits: put(place, word) gets
 * two words and the place of their first numbers. */
template <class put_word>
static __device__ __forceinline__ void q8_put(uint32_t piece, uint2 x, put_word put) {
  uint32_t place = piece / 4 * 16 + piece % 4 * 2;
  put(place, x.x);
  put(place + 8, x.y);
}

#endif
