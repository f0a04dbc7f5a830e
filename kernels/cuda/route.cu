/* SPDX-License-Identifier: MIT */
/* route. A warp chooses for a row; the largest k of the logits one after another, each the largest of those left.
 *
 * With a router of F32 weights and few rows one kernel does both: the blocks of a cluster have one expert's weights in the
 * registers of each warp before the inputs are there, and the first block chooses. The product's order is that of
 * multiply_f32.cu.
 *
 * More rows: a block has two neighbouring chains of some rows x experts in shared memory, its weights before its inputs
 * are there, and leaves their sums; the kernel that chooses makes the rest of the tree. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/form.cuh"
#include "kernels/cuda/route.h"
#include "kernels/parts.h"

enum {
  ROUTE_WARPS = 4,
  ROUTE_SLOTS = 8,   /* experts of a lane */
  ROUTER_BLOCKS = 8,
  ROUTER_WARPS = 16,
  ROUTER_EXPERTS = ROUTER_BLOCKS * ROUTER_WARPS,
  ROUTER_SLOTS = 24, /* float4 of a lane */
  ROUTER_ROWS = 4,
  PARTS = 16,               /* pairs of chains */
  PART_STAGES = 3,
  PART_BYTES = 226 << 10,
  PART_ALONE = 116 << 10,   /* with so much a block is alone on its multiprocessor */
  PART_ROWS = 128,          /* at most, of x and of weights */
  PART_THREADS = 256,
  JOIN_THREADS = 128
};

/* Larger is better, as unsigned; NaN as the least number; 0 is none at all. */
static __device__ __forceinline__ uint32_t order_of(float logit) {
  uint32_t bits = __float_as_uint(isnan(logit) ? -INFINITY : __fadd_rn(logit, 0.0f));
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

/* Factors of the lane's experts, which no kernel writes. */
template <int SLOTS>
static __device__ __forceinline__ void get_scales(const weft_route_args &a, float (&scale)[SLOTS]) {
#pragma unroll
  for (uint32_t s = 0; s < SLOTS; s++) {
    uint32_t e = 32 * s + threadIdx.x % 32;
    scale[s] = a.expert_scale != NULL && e < a.n_experts ? a.expert_scale[e] : 0.0f;
  }
}

/* A row's choice; whole warp. k <= 32, n_experts <= 32 SLOTS. */
template <int SLOTS>
static __device__ __forceinline__ void choose(const weft_route_args &a, uint64_t r, const float *logits,
                                              const float (&scale)[SLOTS]) {
  uint32_t lane = threadIdx.x % 32, order[SLOTS], index = 0;
  float logit[SLOTS], own = 0.0f;
#pragma unroll
  for (uint32_t s = 0; s < SLOTS; s++) {
    uint32_t e = 32 * s + lane;
    logit[s] = e < a.n_experts ? logits[e] : 0.0f;
    order[s] = e < a.n_experts ? order_of(logit[s]) : 0;
  }
  for (uint32_t j = 0; j < a.k; j++) {
    uint32_t best = 0, at = UINT32_MAX;
#pragma unroll
    for (uint32_t s = 0; s < SLOTS; s++) best = max(best, order[s]);
    best = __reduce_max_sync(0xFFFFFFFFu, best);
#pragma unroll
    for (uint32_t s = 0; s < SLOTS; s++)
      if (order[s] == best) at = min(at, 32 * s + lane);
    at = __reduce_min_sync(0xFFFFFFFFu, at);
    float value = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < SLOTS; s++) {
      if (s != at / 32) continue;
      value = logit[s];
      if (lane == at % 32) order[s] = 0;
    }
    value = __shfl_sync(0xFFFFFFFFu, value, at % 32);
    if (lane == j) own = value, index = at;
  }
  float e = expf(own - __shfl_sync(0xFFFFFFFFu, own, 0)), total = 0.0f, times = 1.0f;
#pragma unroll
  for (uint32_t s = 0; s < SLOTS; s++) {
    float there = __shfl_sync(0xFFFFFFFFu, scale[s], index % 32);
    if (s == index / 32) times = there;
  }
  for (uint32_t j = 0; j < a.k; j++) total = __fadd_rn(total, __shfl_sync(0xFFFFFFFFu, e, j));
  if (lane >= a.k) return;
  float weight = __fdiv_rn(e, total);
  if (a.expert_scale != NULL) weight = __fmul_rn(weight, times);
  a.ids[r * a.k + lane] = (int32_t)index;
  a.weights[r * a.k + lane] = weight;
}

/* The same for any number of experts. The best one after (last, last_index): */
static __device__ void next_best(const float *logits, uint32_t n, bool first, uint32_t last, uint32_t last_index,
                                 uint32_t *best, uint32_t *best_index) {
  uint32_t value = 0, index = UINT32_MAX;
  for (uint32_t e = threadIdx.x % 32; e < n; e += 32) {
    uint32_t v = order_of(logits[e]);
    if (!first && !(v < last || (v == last && e > last_index))) continue;
    if (v > value) value = v, index = e; /* e ascends: ties keep the first */
  }
  *best = __reduce_max_sync(0xFFFFFFFFu, value);
  *best_index = __reduce_min_sync(0xFFFFFFFFu, value == *best ? index : UINT32_MAX);
}

static __device__ void choose_of_many(const weft_route_args &a, uint64_t r) {
  const float *logits = a.logits + r * a.logits_stride;
  int32_t *ids = a.ids + r * a.k;
  float *weights = a.weights + r * a.k, top = 0.0f, total = 0.0f;
  uint32_t last = 0, index = 0;
  for (uint32_t j = 0; j < a.k; j++) {
    next_best(logits, a.n_experts, j == 0, last, index, &last, &index);
    float logit = logits[index];
    if (j == 0) top = logit;
    float e = expf(logit - top);
    total = __fadd_rn(total, e);
    if (threadIdx.x % 32 == 0) ids[j] = (int32_t)index, weights[j] = e;
  }
  __syncwarp();
  for (uint32_t j = threadIdx.x % 32; j < a.k; j += 32) {
    float weight = __fdiv_rn(weights[j], total);
    if (a.expert_scale != NULL) weight = __fmul_rn(weight, a.expert_scale[ids[j]]);
    weights[j] = weight;
  }
}

static bool is_small(const weft_route_args *args) {
  return args->n_experts <= 32 * ROUTE_SLOTS && args->k <= 32;
}

static __global__ void route_kernel(const __grid_constant__ weft_route_args a, bool small) {
  next_may_start();
  float scale[ROUTE_SLOTS];
  if (small) get_scales(a, scale);
  inputs_wait();
  uint32_t r = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
  if (r >= a.n_rows) return;
  if (small) choose(a, r, a.logits + r * a.logits_stride, scale);
  else choose_of_many(a, r);
}

static __global__ void __cluster_dims__(ROUTER_BLOCKS) __launch_bounds__(32 * ROUTER_WARPS, 1)
    router_kernel(const __grid_constant__ weft_route_args a, const float *weights, uint32_t n_in) {
  __shared__ float logits[ROUTER_ROWS][ROUTER_EXPERTS]; /* of the first block */
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = blockIdx.x * ROUTER_WARPS + warp;
  float4 w[ROUTER_SLOTS];
  float scale[ROUTER_EXPERTS / 32];
  cluster_arrive_first();
#pragma unroll
  for (uint32_t t = 0; t < ROUTER_SLOTS; t++) {
    uint32_t k = 128 * t + 4 * lane;
    w[t] = make_float4(0, 0, 0, 0);
    if (e < a.n_experts && k < n_in) w[t] = *(const float4 *)(const void *)(weights + (uint64_t)e * n_in + k);
  }
  get_scales(a, scale);
  cluster_wait(); /* all blocks are there */
  inputs_wait();
  next_may_start();
  for (uint32_t r = 0; r < a.n_rows; r++) {
    const float *x = a.x + r * a.x_stride;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t t = 0; t < ROUTER_SLOTS; t++) {
      uint32_t k = 128 * t + 4 * lane;
      float4 in = k < n_in ? *(const float4 *)(const void *)(x + k) : make_float4(0, 0, 0, 0);
      sum = __fmaf_rn(w[t].x, in.x, sum);
      sum = __fmaf_rn(w[t].y, in.y, sum);
      sum = __fmaf_rn(w[t].z, in.z, sum);
      sum = __fmaf_rn(w[t].w, in.w, sum);
    }
    sum = sum_of_chains(sum);
    if (lane == 0 && e < a.n_experts) {
      a.logits[r * a.logits_stride + e] = sum;
      store_in(&logits[r][e], 0, sum);
    }
    __syncwarp();
  }
  cluster_arrive();
  cluster_wait();
  if (blockIdx.x == 0 && warp < a.n_rows) choose(a, warp, logits[warp], scale);
}

static __host__ __device__ constexpr uint32_t part_stride(uint32_t n_in) {
  return 2 * ((n_in + 127) / 128 | 1);
}

/* Asks for one chain of a row, steps [begin, end) of 128 inputs. Zeros where there is no row. */
static __device__ __forceinline__ void bring_chain(float4 *to, const float *row, bool exists, uint32_t n_in, uint32_t begin,
                                                   uint32_t end) {
  uint32_t first = 8 * blockIdx.x + 4 * (threadIdx.x % 2), whole = min(end, n_in / 128), at = shared_address(to + threadIdx.x % 2);
#pragma unroll 8
  for (uint32_t j = begin; j < whole; j++) copy16_if(at + 32 * j, row + first + 128 * j, exists);
  if (whole < end) { /* the last step is not whole */
    bool ok = exists && first + 128 * whole < n_in;
    copy16_if(at + 32 * whole, ok ? row + first + 128 * whole : row, ok);
  }
}

/* Two x four warps, 4 R rows x 4 E experts each, of which a thread has every fourth. A lane's bits are expert, row, chain, row,
 * expert: neighbours read the same rows, neighbours of those the same weights, and shared memory serves half a warp at once. */
template <int R, int E>
static __global__ void __launch_bounds__(PART_THREADS) part_kernel(const __grid_constant__ weft_route_args a,
                                                                   const float *weights, uint32_t n_in, float *parts) {
  extern __shared__ float4 memory[]; /* rows of x, of weights: [step][chain], so long that four lie in other banks */
  next_may_start();
  uint32_t n_steps = (n_in + 127) / 128, stride = part_stride(n_in);
  uint32_t first_row = blockIdx.z * 8 * R, first_expert = blockIdx.y * 16 * E;
  uint32_t expert = threadIdx.x / 2, row = PART_THREADS / 2 - 1 - expert; /* that the thread brings */
  float4 *x = memory, *w = memory + 8 * R * stride;
  if (expert < 16 * E)
    bring_chain(w + expert * stride, weights + (uint64_t)min(first_expert + expert, a.n_experts - 1) * n_in,
                first_expert + expert < a.n_experts, n_in, 0, n_steps);
  inputs_wait();
#pragma unroll
  for (uint32_t stage = 0; stage < PART_STAGES; stage++) {
    if (row < 8 * R)
      bring_chain(x + row * stride, a.x + (uint64_t)min(first_row + row, a.n_rows - 1) * a.x_stride,
                  first_row + row < a.n_rows, n_in, n_steps * stage / PART_STAGES, n_steps * (stage + 1) / PART_STAGES);
    copies_commit();
  }
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = lane / 4 % 2;
  uint32_t at_row = warp / 4 * 4 * R + lane / 8 % 2 * 2 + lane / 2 % 2, at_expert = warp % 4 * 4 * E + lane / 16 * 2 + lane % 2;
  x += at_row * stride + chain;
  w += at_expert * stride + chain;
  float sum[R][E];
#pragma unroll
  for (int i = 0; i < R * E; i++) sum[i / E][i % E] = 0.0f;
#pragma unroll 1
  for (uint32_t stage = 0; stage < PART_STAGES; stage++) {
    if (stage == 0) copies_wait<PART_STAGES - 1>();
    else if (stage == 1) copies_wait<PART_STAGES - 2>();
    else copies_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (uint32_t j = n_steps * stage / PART_STAGES; j < n_steps * (stage + 1) / PART_STAGES; j++) {
      float4 in[R], by[E];
#pragma unroll
      for (int i = 0; i < R; i++) in[i] = x[4 * i * stride + 2 * j];
#pragma unroll
      for (int i = 0; i < E; i++) by[i] = w[4 * i * stride + 2 * j];
#pragma unroll
      for (int i = 0; i < 4 * R * E; i++) {
        int c = i / (R * E), r = i / E % R, e = i % E;
        sum[r][e] = __fmaf_rn(((const float *)&by[e])[c], ((const float *)&in[r])[c], sum[r][e]);
      }
    }
  }
  /* the two chains are added; each of the two threads keeps half of the rows */
#pragma unroll
  for (int i = 0; i < R / 2; i++) {
    uint32_t r = first_row + at_row + 4 * (i + R / 2 * chain);
#pragma unroll
    for (int o = 0; o < E; o++) {
      float kept = chain == 0 ? sum[i][o] : sum[i + R / 2][o], other = chain == 0 ? sum[i + R / 2][o] : sum[i][o];
      kept = __fadd_rn(kept, __shfl_xor_sync(0xFFFFFFFFu, other, 4));
      uint32_t e = first_expert + at_expert + 4 * o;
      if (r < a.n_rows && e < a.n_experts) parts[((uint64_t)blockIdx.x * a.n_rows + r) * a.n_experts + e] = kept;
    }
  }
}

/* A block has a row: a thread makes a logit from the sums of its chains, one warp chooses. */
template <int SLOTS>
static __global__ void __launch_bounds__(JOIN_THREADS) join_kernel(const __grid_constant__ weft_route_args a,
                                                                   const float *parts) {
  __shared__ float logits[32 * SLOTS];
  next_may_start();
  float scale[SLOTS];
  if (threadIdx.x < 32) get_scales(a, scale);
  inputs_wait();
  uint64_t r = blockIdx.x, stride = (uint64_t)a.n_rows * a.n_experts;
  for (uint32_t e = threadIdx.x; e < a.n_experts; e += JOIN_THREADS) {
    float sum[PARTS];
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) sum[p] = parts[p * stride + r * a.n_experts + e];
#pragma unroll
    for (uint32_t step = 1; step < PARTS; step *= 2) {
#pragma unroll
      for (uint32_t p = 0; p < PARTS; p += 2 * step) sum[p] = __fadd_rn(sum[p], sum[p + step]);
    }
    a.logits[r * a.logits_stride + e] = logits[e] = sum[0];
  }
  __syncthreads();
  if (threadIdx.x < 32) choose(a, r, logits, scale);
}

/* ---- the op --------------------------------------------------------------------------------------------- */

static uint64_t part_bytes(uint32_t n_in, uint32_t n_rows) {
  return (uint64_t)n_rows * part_stride(n_in) * sizeof(float4);
}

static bool takes_parts(const weft_route_args *args) {
  const weft_weight *w = args->router;
  return w->type == WEFT_TYPE_F32 && is_small(args) && part_bytes(w->n_in, PART_ROWS) <= PART_BYTES && w->n_in % 4 == 0 &&
         args->x_stride % 4 == 0 && ((uintptr_t)args->x & 15u) == 0;
}

uint64_t weft_cuda_route_scratch(weft_device *device, const weft_route_args *args) {
  if (args->router == NULL) return 0;
  weft_matmul_args m = weft_route_product(args);
  return takes_parts(args) ? 4ull * PARTS * args->n_rows * args->n_experts : weft_cuda_matmul_scratch(device, &m);
}

/* args NULL: sets the kernel up. Blocks that all fit at once get a multiprocessor each: brought early, two would meet on
 * the first that is free. */
template <int R, int E>
static weft_status start_parts(cuda_device *d, const weft_route_args *args) {
  if (args == NULL)
    return cuda_judge(d, cudaFuncSetAttribute(part_kernel<R, E>, cudaFuncAttributeMaxDynamicSharedMemorySize, PART_BYTES),
                      "setting up routers");
  const weft_weight *w = args->router;
  const float *weights = (const float *)(const void *)((const uint8_t *)w->data + FORM_HEADER_BYTES);
  dim3 grid(PARTS, cuda_ceil(args->n_experts, 16 * E), cuda_ceil(args->n_rows, 8 * R));
  uint64_t n_bytes = part_bytes(w->n_in, 8 * R + 16 * E);
  if (n_bytes < PART_ALONE && grid.x * grid.y * grid.z <= d->n_multiprocessors) n_bytes = PART_ALONE;
  cuda_start(d, part_kernel<R, E>, grid, PART_THREADS, n_bytes, *args, weights, w->n_in, (float *)args->scratch);
  return cuda_launched(d, "a router of many rows");
}

/* 128 experts make 128 blocks, or more. */
static weft_status route_parts(cuda_device *d, const weft_route_args *args) {
  weft_status status = args->n_rows <= 32    ? start_parts<4, 1>(d, args)
                       : args->n_rows <= 64  ? start_parts<4, 2>(d, args)
                       : args->n_rows <= 128 ? start_parts<8, 2>(d, args)
                                             : start_parts<8, 4>(d, args);
  if (status != WEFT_OK) return status;
  auto join = args->n_experts <= 128 ? join_kernel<4> : join_kernel<ROUTE_SLOTS>;
  cuda_start(d, join, args->n_rows, JOIN_THREADS, 0, *args, (const float *)args->scratch);
  return cuda_launched(d, "joining a router's sums");
}

weft_status route_setup(cuda_device *d) {
  weft_status status = start_parts<4, 1>(d, NULL);
  if (status == WEFT_OK) status = start_parts<4, 2>(d, NULL);
  if (status == WEFT_OK) status = start_parts<8, 2>(d, NULL);
  return status == WEFT_OK ? start_parts<8, 4>(d, NULL) : status;
}

static bool is_one_kernel(const weft_route_args *args) {
  const weft_weight *w = args->router;
  return w->type == WEFT_TYPE_F32 && args->n_rows <= ROUTER_ROWS && args->n_experts <= ROUTER_EXPERTS && args->k <= 32 &&
         w->n_in % 4 == 0 && w->n_in <= 128 * ROUTER_SLOTS && args->x_stride % 4 == 0 && ((uintptr_t)args->x & 15u) == 0;
}

weft_status weft_cuda_route(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->router != NULL && is_one_kernel(args)) {
    const float *weights = (const float *)(const void *)((const uint8_t *)args->router->data + FORM_HEADER_BYTES);
    cuda_start(d, router_kernel, ROUTER_BLOCKS, 32 * ROUTER_WARPS, 0, *args, weights, args->router->n_in);
    d->orderly = true;
    return cuda_launched(d, "router");
  }
  if (args->router != NULL && takes_parts(args)) return route_parts(d, args);
  if (args->router != NULL) {
    weft_matmul_args m = weft_route_product(args);
    weft_status status = weft_cuda_matmul(device, &m);
    if (status != WEFT_OK) return status;
  }
  cuda_start(d, route_kernel, cuda_ceil(args->n_rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args, is_small(args));
  return cuda_launched(d, "route");
}
