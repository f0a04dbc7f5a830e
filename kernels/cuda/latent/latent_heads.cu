/* SPDX-License-Identifier: MIT */
/* latent_heads: a product with a matrix of each head, by tensor cores. Inputs and weights are sums of two of bf16, high
 * and low. A result is one chain over sixteen inputs at a time, ascending: low inputs with high weights, high with low,
 * high with high, whatever kernel makes it. Inputs behind the last are zeros.
 *
 * Few rows: a warp has 8 outputs of 16 rows, and weights go from memory to its registers. Many: a block has 64 outputs
 * of 128 rows, a warp 32 of 32; on Hopper, where sizes fit, heads_wgmma.cu. */
#include "kernels/cuda/latent/latent.cuh"
#include "kernels/cuda/split.cuh"

enum {
  FEW_MOST = 64, /* rows */
  FEW_ROWS = 16, /* of a block */
  FEW_WARPS = 4,
  FEW_THREADS = 32 * FEW_WARPS,
  FEW_OUTPUTS = 8 * FEW_WARPS,
  FEW_INPUTS = 256,                /* at a time */
  FEW_STRIDE = 2 * FEW_INPUTS + 16 /* bytes from row to row: eight rows lie in different banks */
};
enum {
  TILE_ROWS = 128,
  TILE_OUTPUTS = 64,
  TILE_INPUTS = 32,
  TILE_STRIDE = 2 * TILE_INPUTS + 16,
  TILE_THREADS = 256,
  TILE_PAIRS = TILE_INPUTS / 2,
  TILE_AT_ONCE = TILE_THREADS / TILE_PAIRS /* rows of which a block loads a pair each */
};

/* Numbers at and at + 1 of n; zeros behind the last. even: such pairs are aligned. */
static __device__ __forceinline__ float2 load_two(const float *from, uint32_t at, uint32_t n, bool even) {
  if (even && at < n) return *(const float2 *)(const void *)(from + at);
  return make_float2(at < n ? from[at] : 0.0f, at + 1 < n ? from[at + 1] : 0.0f);
}

static __device__ __forceinline__ bool has_even(const float *from, uint64_t stride, uint32_t n) {
  return ((uintptr_t)from % 8 | stride % 2 | n % 2) == 0;
}

static __device__ __forceinline__ void add_product(float (&sums)[4], const uint32_t (&high)[4],
                                                   const uint32_t (&low)[4], const uint32_t (&weight_high)[2],
                                                   const uint32_t (&weight_low)[2]) {
  mma_bf16(sums, low, weight_high[0], weight_high[1]);
  mma_bf16(sums, high, weight_low[0], weight_low[1]);
  mma_bf16(sums, high, weight_high[0], weight_high[1]);
}

/* The numbers behind a head's inputs go behind its outputs. */
static __device__ __forceinline__ void copy_rest(const weft_latent_heads_args &a, uint32_t head, uint32_t first_row,
                                                 uint32_t n_rows) {
  for (uint32_t i = threadIdx.x; i < n_rows * a.n_rest; i += blockDim.x) {
    const uint64_t row = first_row + i / a.n_rest, at = i % a.n_rest;
    a.y[row * a.y_stride + (uint64_t)head * (a.n_out + a.n_rest) + a.n_out + at] =
        a.x[row * a.x_stride + (uint64_t)head * (a.n_in + a.n_rest) + a.n_in + at];
  }
}

/* A lane's results: two outputs of the rows g and g + 8. */
static __device__ __forceinline__ void store_results(const weft_latent_heads_args &a, uint32_t head, uint32_t first_row,
                                                     uint32_t first_output, const float (&sums)[4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t row = first_row + lane / 4 + i / 2 * 8, output = first_output + lane % 4 * 2 + i % 2;
    if (row < a.n_rows && output < a.n_out)
      a.y[row * a.y_stride + (uint64_t)head * (a.n_out + a.n_rest) + output] = sums[i];
  }
}

/* ---- few rows ---- */

/* Inputs from `base` on of a block's rows. */
static __device__ __forceinline__ void stage_few(const weft_latent_heads_args &a, const float *x, uint32_t n_rows,
                                                 uint32_t base, bool even, uint8_t *high, uint8_t *low) {
  for (uint32_t i = threadIdx.x; i < FEW_ROWS * (FEW_INPUTS / 2); i += FEW_THREADS) {
    const uint32_t row = i / (FEW_INPUTS / 2), at = i % (FEW_INPUTS / 2) * 2, to = row * FEW_STRIDE + 2 * at;
    const float2 two = row < n_rows ? load_two(x + row * a.x_stride, base + at, a.n_in, even) : make_float2(0, 0);
    split_two(two.x, two.y, *(uint32_t *)(void *)(high + to), *(uint32_t *)(void *)(low + to));
  }
}

static __global__ void __launch_bounds__(FEW_THREADS) few_kernel(const __grid_constant__ weft_latent_heads_args a) {
  launch_dependents_and_wait();
  __shared__ __align__(16) uint8_t high[FEW_ROWS * FEW_STRIDE], low[FEW_ROWS * FEW_STRIDE];
  constexpr int STEPS = FEW_INPUTS / 16;
  const uint32_t lane = threadIdx.x % 32, head = blockIdx.y, first_row = blockIdx.z * FEW_ROWS;
  const uint32_t first = blockIdx.x * FEW_OUTPUTS + threadIdx.x / 32 * 8, own = min(first + lane / 4, a.n_out - 1);
  const uint32_t n_rows = min((uint32_t)FEW_ROWS, a.n_rows - first_row),
                 at_row = lane % 16 * FEW_STRIDE + lane / 16 * 16;
  const float *weight = a.weight + ((uint64_t)head * a.n_out + own) * a.n_in;
  const float *x = a.x + first_row * a.x_stride + (uint64_t)head * (a.n_in + a.n_rest);
  const bool even = has_even(a.weight, a.n_in, a.n_in), x_even = has_even(x, a.x_stride, a.n_in);
  float sums[4] = {};
  for (uint32_t base = 0; base < a.n_in; base += FEW_INPUTS) {
    float2 w[STEPS][2];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        w[s][half] = load_two(weight, base + 16 * s + 8 * half + lane % 4 * 2, a.n_in, even);
    if (base > 0) __syncthreads();
    stage_few(a, x, n_rows, base, x_even, high, low);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      uint32_t x_high[4], x_low[4], w_high[2], w_low[2];
      ldmatrix_x4(x_high, shared_address(high) + at_row + 32 * s);
      ldmatrix_x4(x_low, shared_address(low) + at_row + 32 * s);
#pragma unroll
      for (int half = 0; half < 2; half++) split_two(w[s][half].x, w[s][half].y, w_high[half], w_low[half]);
      add_product(sums, x_high, x_low, w_high, w_low);
    }
  }
  store_results(a, head, first_row, first, sums);
  if (blockIdx.x == 0) copy_rest(a, head, first_row, n_rows);
}

/* ---- many rows ---- */

struct tile_memory {
  uint8_t high[TILE_ROWS * TILE_STRIDE], low[TILE_ROWS * TILE_STRIDE];
  uint8_t weight_high[TILE_OUTPUTS * TILE_STRIDE], weight_low[TILE_OUTPUTS * TILE_STRIDE];
};

/* A thread's pairs of N rows, of which n are there. */
template <int N>
static __device__ __forceinline__ void load_tile(const float *from, uint64_t stride, uint32_t n, uint32_t base,
                                                 uint32_t n_in, bool even, float2 (&pairs)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const uint32_t row = threadIdx.x / TILE_PAIRS + i * TILE_AT_ONCE;
    pairs[i] = make_float2(0, 0);
    if (row < n) pairs[i] = load_two(from + row * stride, base + threadIdx.x % TILE_PAIRS * 2, n_in, even);
  }
}

template <int N>
static __device__ __forceinline__ void stage_tile(const float2 (&pairs)[N], uint8_t *high, uint8_t *low) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const uint32_t row = threadIdx.x / TILE_PAIRS + i * TILE_AT_ONCE,
                   to = row * TILE_STRIDE + threadIdx.x % TILE_PAIRS * 4;
    split_two(pairs[i].x, pairs[i].y, *(uint32_t *)(void *)(high + to), *(uint32_t *)(void *)(low + to));
  }
}

/* Sixteen inputs of a warp's 32 rows and 32 outputs. */
static __device__ __forceinline__ void add_tile(const tile_memory &m, uint32_t row, uint32_t output, uint32_t step,
                                                float (&sums)[2][4][4]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t of_rows = (row + lane % 16) * TILE_STRIDE + 32 * step + lane / 16 * 16;
  const uint32_t of_outputs = (output + lane / 16 * 8 + lane % 8) * TILE_STRIDE + 32 * step + lane / 8 % 2 * 16;
  uint32_t high[2][4], low[2][4];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    ldmatrix_x4(high[r], shared_address(m.high) + of_rows + r * 16 * TILE_STRIDE);
    ldmatrix_x4(low[r], shared_address(m.low) + of_rows + r * 16 * TILE_STRIDE);
  }
#pragma unroll
  for (int o = 0; o < 4; o += 2) {
    uint32_t w_high[4], w_low[4];
    ldmatrix_x4(w_high, shared_address(m.weight_high) + of_outputs + o * 8 * TILE_STRIDE);
    ldmatrix_x4(w_low, shared_address(m.weight_low) + of_outputs + o * 8 * TILE_STRIDE);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      add_product(sums[r][o], high[r], low[r], {w_high[0], w_high[1]}, {w_low[0], w_low[1]});
      add_product(sums[r][o + 1], high[r], low[r], {w_high[2], w_high[3]}, {w_low[2], w_low[3]});
    }
  }
}

static __global__ void __launch_bounds__(TILE_THREADS, 2)
    tile_kernel(const __grid_constant__ weft_latent_heads_args a) {
  launch_dependents_and_wait();
  __shared__ __align__(16) tile_memory m;
  const uint32_t head = blockIdx.z, first = blockIdx.y * TILE_OUTPUTS, first_row = blockIdx.x * TILE_ROWS;
  const uint32_t row = threadIdx.x / 32 % 4 * 32, output = threadIdx.x / 128 * 32;
  const uint32_t n_rows = min((uint32_t)TILE_ROWS, a.n_rows - first_row);
  const float *weight = a.weight + ((uint64_t)head * a.n_out + first) * a.n_in;
  const float *x = a.x + first_row * a.x_stride + (uint64_t)head * (a.n_in + a.n_rest);
  const bool even = has_even(weight, a.n_in, a.n_in), x_even = has_even(x, a.x_stride, a.n_in);
  float2 pairs[TILE_ROWS / TILE_AT_ONCE], weights[TILE_OUTPUTS / TILE_AT_ONCE];
  float sums[2][4][4] = {};
  load_tile(x, a.x_stride, n_rows, 0, a.n_in, x_even, pairs);
  load_tile(weight, a.n_in, a.n_out - first, 0, a.n_in, even, weights);
  for (uint32_t base = 0; base < a.n_in; base += TILE_INPUTS) {
    if (base > 0) __syncthreads();
    stage_tile(pairs, m.high, m.low);
    stage_tile(weights, m.weight_high, m.weight_low);
    __syncthreads();
    if (base + TILE_INPUTS < a.n_in) {
      load_tile(x, a.x_stride, n_rows, base + TILE_INPUTS, a.n_in, x_even, pairs);
      load_tile(weight, a.n_in, a.n_out - first, base + TILE_INPUTS, a.n_in, even, weights);
    }
#pragma unroll
    for (uint32_t step = 0; step < TILE_INPUTS / 16; step++) add_tile(m, row, output, step, sums);
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int o = 0; o < 4; o++) store_results(a, head, first_row + row + 16 * r, first + output + 8 * o, sums[r][o]);
  if (blockIdx.y == 0) copy_rest(a, head, first_row, n_rows);
}

weft_status cuda_latent_heads(weft_device *device, const weft_latent_heads_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  const uint32_t n_tiles = cuda_ceil(args->n_out, TILE_OUTPUTS);
  if (args->n_heads > 65535 || n_tiles > 65535) return WEFT_E_UNSUPPORTED;
  if (args->n_rows <= FEW_MOST)
    cuda_start(d, few_kernel,
               dim3(cuda_ceil(args->n_out, FEW_OUTPUTS), args->n_heads, cuda_ceil(args->n_rows, FEW_ROWS)), FEW_THREADS,
               0, *args);
#ifndef WEFT_CUDA_PORTABLE
  else if (latent_heads_are_wide(args))
    return latent_heads_wide(d, args);
#endif
  else
    cuda_start(d, tile_kernel, dim3(cuda_ceil(args->n_rows, TILE_ROWS), n_tiles, args->n_heads), TILE_THREADS, 0,
               *args);
  return cuda_launched(d, "latent_heads");
}
