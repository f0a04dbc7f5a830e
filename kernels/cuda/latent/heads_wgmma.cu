/* SPDX-License-Identifier: MIT */
/* latent_heads of many rows on Hopper's tensor cores: the order of sums is that of latent_heads.cu.
 *
 * A block has 128 rows and 128 outputs of a head, each of its two warpgroups 64 of the rows. Inputs and weights are
 * split to high and low on their way through registers, and stored as swizzled operands. A multiprocessor has two
 * blocks: one multiplies while the other one loads and splits. */
#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/latent/latent.cuh"
#include "kernels/cuda/split.cuh"

enum {
  WIDE_ROWS = 128,
  WIDE_OUTPUTS = 128,
  WIDE_INPUTS = 64, /* at a time */
  WIDE_THREADS = 256,
  PIECES = WIDE_INPUTS / 4,        /* of a row: four numbers */
  AT_ONCE = WIDE_THREADS / PIECES, /* rows of which the block loads a piece for each thread */
  OF_THREAD = WIDE_ROWS / AT_ONCE, /* pieces of each operand */
  OPERAND_BYTES = WIDE_ROWS * WIDE_INPUTS * 2,
  GROUP_BYTES = OPERAND_BYTES / 2
};
static_assert(WIDE_ROWS == WIDE_OUTPUTS, "both operands are loaded alike");

struct wide_operand {
  uint8_t high[OPERAND_BYTES], low[OPERAND_BYTES];
};
struct wide_memory {
  wide_operand x, weight;
};

/* The thread's pieces of inputs from `base` on of the first n of 128 rows; zeros behind them. */
static __device__ __forceinline__ void load_pieces(const float *from, uint64_t stride, uint32_t n, uint32_t base,
                                                   float4 (&piece)[OF_THREAD]) {
#pragma unroll
  for (uint32_t i = 0; i < OF_THREAD; i++) {
    const uint32_t row = i * AT_ONCE + threadIdx.x / PIECES;
    piece[i] = make_float4(0, 0, 0, 0);
    if (row < n) piece[i] = *(const float4 *)(const void *)(from + row * stride + base + threadIdx.x % PIECES * 4);
  }
}

static __device__ __forceinline__ void store_pieces(const float4 (&piece)[OF_THREAD], wide_operand &to) {
  const uint32_t at = threadIdx.x % PIECES;
#pragma unroll
  for (uint32_t i = 0; i < OF_THREAD; i++) {
    const uint32_t row = i * AT_ONCE + threadIdx.x / PIECES, byte = row * 128 + ((at / 2 ^ row) & 7) * 16 + at % 2 * 8;
    uint2 high, low;
    split_two(piece[i].x, piece[i].y, high.x, low.x);
    split_two(piece[i].z, piece[i].w, high.y, low.y);
    *(uint2 *)(void *)(to.high + byte) = high;
    *(uint2 *)(void *)(to.low + byte) = low;
  }
}

/* Issues the products of 64 inputs of the warpgroup's rows. */
static __device__ __forceinline__ void issue_products(const wide_operand &x, const wide_operand &weight, bool fresh,
                                                      float (&sums)[16][4]) {
  const uint32_t own = threadIdx.x / 128 * GROUP_BYTES;
  const uint64_t x_high = swizzled_descriptor(shared_address(x.high) + own, 16),
                 x_low = swizzled_descriptor(shared_address(x.low) + own, 16),
                 w_high = swizzled_descriptor(shared_address(weight.high), 16),
                 w_low = swizzled_descriptor(shared_address(weight.low), 16);
  wgmma_fence();
#pragma unroll
  for (uint32_t i = 0; i < WIDE_INPUTS / 16; i++) {
    wgmma_scores(sums, x_low + 2 * i, w_high + 2 * i, fresh && i == 0);
    wgmma_scores(sums, x_high + 2 * i, w_low + 2 * i, false);
    wgmma_scores(sums, x_high + 2 * i, w_high + 2 * i, false);
  }
  wgmma_commit();
}

/* The numbers behind a head's inputs, two at a time. */
static __device__ __forceinline__ void copy_pairs(const weft_latent_heads_args &a, uint32_t head, uint32_t first_row,
                                                  uint32_t n_rows) {
  const uint32_t n_pairs = a.n_rest / 2;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n_rows * n_pairs; i += WIDE_THREADS) {
    const uint64_t row = first_row + i / n_pairs, at = i % n_pairs * 2;
    const float *from = a.x + row * a.x_stride + (uint64_t)head * (a.n_in + a.n_rest) + a.n_in + at;
    float *to = a.y + row * a.y_stride + (uint64_t)head * (a.n_out + a.n_rest) + a.n_out + at;
    *(float2 *)(void *)to = *(const float2 *)(const void *)from;
  }
}

static __global__ void __launch_bounds__(WIDE_THREADS, 2)
    wide_kernel(const __grid_constant__ weft_latent_heads_args a) {
  launch_dependents_and_wait();
  extern __shared__ __align__(1024) uint8_t shared[];
  wide_memory &m = *(wide_memory *)(void *)shared;
  const uint32_t head = blockIdx.z, first = blockIdx.y * WIDE_OUTPUTS, first_row = blockIdx.x * WIDE_ROWS;
  const uint32_t n_rows = min((uint32_t)WIDE_ROWS, a.n_rows - first_row);
  const float *weight = a.weight + ((uint64_t)head * a.n_out + first) * a.n_in;
  const float *x = a.x + first_row * a.x_stride + (uint64_t)head * (a.n_in + a.n_rest);
  float4 pieces[OF_THREAD];
  float sums[16][4];
  load_pieces(x, a.x_stride, n_rows, 0, pieces);
#pragma unroll 1
  for (uint32_t base = 0; base < a.n_in; base += WIDE_INPUTS) {
    store_pieces(pieces, m.x);
    load_pieces(weight, a.n_in, WIDE_OUTPUTS, base, pieces);
    store_pieces(pieces, m.weight);
    fence_proxy_async();
    __syncthreads();
    issue_products(m.x, m.weight, base == 0, sums);
    if (base + WIDE_INPUTS < a.n_in) load_pieces(x, a.x_stride, n_rows, base + WIDE_INPUTS, pieces);
    wgmma_wait<0>();
    __syncthreads();
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
    if (row >= n_rows) continue;
    float *to =
        a.y + (first_row + row) * a.y_stride + (uint64_t)head * (a.n_out + a.n_rest) + first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 16; n++) *(float2 *)(void *)(to + 8 * n) = make_float2(sums[n][2 * h], sums[n][2 * h + 1]);
  }
  if (blockIdx.y == 0) copy_pairs(a, head, first_row, n_rows);
}

bool latent_heads_are_wide(const weft_latent_heads_args *a) {
  const uintptr_t by_four = (uintptr_t)a->x | (uintptr_t)a->weight;
  return a->n_in % WIDE_INPUTS == 0 && a->n_out % WIDE_OUTPUTS == 0 && a->n_rest % 4 == 0 && by_four % 16 == 0 &&
         (uintptr_t)a->y % 8 == 0 && a->x_stride % 4 == 0 && a->y_stride % 2 == 0;
}

weft_status latent_heads_wide(cuda_device *d, const weft_latent_heads_args *args) {
  cuda_start(d, wide_kernel, dim3(cuda_ceil(args->n_rows, WIDE_ROWS), args->n_out / WIDE_OUTPUTS, args->n_heads),
             WIDE_THREADS, sizeof(wide_memory), *args);
  return cuda_launched(d, "latent_heads");
}

weft_status latent_heads_setup(cuda_device *d) {
  const cudaError_t error =
      cudaFuncSetAttribute(wide_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(wide_memory));
  return cuda_judge(d, error, "setting up products by head");
}
