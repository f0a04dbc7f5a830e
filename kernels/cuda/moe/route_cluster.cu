/* SPDX-License-Identifier: MIT */
/* route on Hopper. With a router of F32 weights the product (in the order of route.h) and the choice are one kernel. It
 * runs in clusters of blocks, which load weights before their inputs are there:
 *
 *   one row     a warp has one expert's weights in its registers; the first block of the cluster chooses
 *   more rows   split-K over the cluster: a block has four neighbouring chains of all experts' weights in shared
 *               memory. It sends the sums of these chains to the block that chooses for the row, which reduces them by
 *               the rest of the tree
 *   many        the kernels of route_gemm.cu
 *
 * Other routers are a product, then a choice (route.cu). */
#include "kernels/cuda/weights/packed_layout.cuh"
#include "kernels/cuda/moe/route.cuh"

enum {
  ROUTER_BLOCKS = 8,
  ROUTER_WARPS = 16,
  ROUTER_SLOTS = 24, /* float4 of a lane */
  PART_ROWS = 9,     /* of a thread, at most; of a cluster twice as many */
  PART_BYTES = 213 << 10,
  PART_THREADS = 256
};

template <bool BIASED>
static __global__ void __cluster_dims__(ROUTER_BLOCKS) __launch_bounds__(32 * ROUTER_WARPS, 1)
    route_one_row_kernel(const __grid_constant__ weft_route_args a, const float *weights, uint32_t n_in) {
  __shared__ float logits[ROUTER_EXPERTS]; /* of the first block */
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = blockIdx.x * ROUTER_WARPS + warp;
  float4 w[ROUTER_SLOTS];
  float scale[ROUTER_EXPERTS / 32];
  cluster_arrive_first();
#pragma unroll
  for (uint32_t t = 0; t < ROUTER_SLOTS; t++) {
    uint32_t k = 128 * t + 4 * lane;
    w[t] = make_float4(0, 0, 0, 0);
    if (e < a.n_experts && k < n_in) w[t] = __ldcs((const float4 *)(const void *)(weights + (uint64_t)e * n_in + k));
  }
  get_scales(a, scale);
  cluster_wait(); /* all blocks of the cluster have started, so their shared memory may be written */
  wait_for_prior_grids();
  launch_dependent_grids();
  float sum = 0.0f;
#pragma unroll
  for (uint32_t t = 0; t < ROUTER_SLOTS; t++) {
    uint32_t k = 128 * t + 4 * lane;
    float4 in = k < n_in ? *(const float4 *)(const void *)(a.x + k) : make_float4(0, 0, 0, 0);
    sum = __fmaf_rn(w[t].x, in.x, sum);
    sum = __fmaf_rn(w[t].y, in.y, sum);
    sum = __fmaf_rn(w[t].z, in.z, sum);
    sum = __fmaf_rn(w[t].w, in.w, sum);
  }
  sum = sum_of_chains(sum);
  if (lane == 0 && e < a.n_experts) {
    if (BIASED) sum = __fadd_rn(sum, a.router_bias[e]);
    a.logits[e] = sum;
    store_to_cluster(&logits[e], 0, sum);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  if (blockIdx.x == 0 && warp == 0) choose_experts(a, 0, logits, scale);
}

static __host__ __device__ constexpr uint32_t part_stride(uint32_t n_in) {
  return PART_CHAINS * ((n_in + 127) / 128 | 1);
}

/* Starts the copies of the block's chains of some rows. Where there is no row, zeros are written. */
static __device__ __forceinline__ void copy_chains(float4 *to, const float *from, uint64_t from_stride, uint32_t n_rows,
                                                   uint32_t first_row, uint32_t end_row, uint32_t n_in) {
  uint32_t n_steps = (n_in + 127) / 128, chain = threadIdx.x % PART_CHAINS;
  uint32_t first = 4 * (PART_CHAINS * (blockIdx.x % ROUTER_BLOCKS) + chain);
  for (uint32_t at = threadIdx.x / PART_CHAINS; at < n_rows * n_steps; at += PART_THREADS / PART_CHAINS) {
    uint32_t row = at % n_rows, step = at / n_rows, k = 128 * step + first;
    bool ok = first_row + row < end_row && k < n_in;
    cp_async_16_if(shared_address(to + row * part_stride(n_in) + PART_CHAINS * step + chain),
                   ok ? from + (uint64_t)(first_row + row) * from_stride + k : from, ok);
  }
}

/* Adds the block's four chains. A thread has one chain of R rows x PART_EXPERTS experts: every second of the cluster's
 * rows, every fourth of 16 experts. The bits of a lane's number are, from the top, expert, chain, chain, row, expert,
 * so that the lanes which read shared memory at the same time use different banks. */
template <int R>
static __device__ __forceinline__ void add_chains(const float4 *x, const float4 *w, uint32_t n_in,
                                                  float (&sum)[R][PART_EXPERTS]) {
  uint32_t n_steps = (n_in + 127) / 128, stride = part_stride(n_in);
#pragma unroll
  for (int i = 0; i < R * PART_EXPERTS; i++) sum[i / PART_EXPERTS][i % PART_EXPERTS] = 0.0f;
#pragma unroll 2
  for (uint32_t j = 0; j < n_steps; j++) {
    float4 in[R], by[PART_EXPERTS];
#pragma unroll
    for (int i = 0; i < R; i++) in[i] = x[2 * i * stride + PART_CHAINS * j];
#pragma unroll
    for (int i = 0; i < PART_EXPERTS; i++) by[i] = w[4 * i * stride + PART_CHAINS * j];
#pragma unroll
    for (int i = 0; i < 4 * R * PART_EXPERTS; i++) {
      int c = i / (R * PART_EXPERTS), r = i / PART_EXPERTS % R, e = i % PART_EXPERTS;
      sum[r][e] = __fmaf_rn(((const float *)&by[e])[c], ((const float *)&in[r])[c], sum[r][e]);
    }
  }
}

template <int R, bool BIASED>
static __global__ void __cluster_dims__(ROUTER_BLOCKS) __launch_bounds__(PART_THREADS, 1)
    route_cluster_kernel(const __grid_constant__ weft_route_args a, const float *weights, uint32_t n_in) {
  constexpr uint32_t n_rows = 2 * R,
                     n_own = (n_rows + ROUTER_BLOCKS - 1) / ROUTER_BLOCKS; /* rows of the cluster, of a block */
  extern __shared__ float4
      memory[]; /* rows of weights, then of x: [step][chain], padded so that neighbours begin in other banks */
  __shared__ float part[ROUTER_BLOCKS][n_own][ROUTER_EXPERTS], logits[n_own][ROUTER_EXPERTS];
  float4 *w = memory, *x = memory + ROUTER_EXPERTS * part_stride(n_in);
  uint32_t rank = blockIdx.x % ROUTER_BLOCKS, lane = threadIdx.x % 32, chain = lane / 4 % 4, row = lane / 2 % 2;
  uint32_t expert = threadIdx.x / 32 * 16 + lane / 16 * 2 + lane % 2;
  bool has_experts = threadIdx.x / 32 * 16 < a.n_experts; /* a warp has sixteen */
  float scale[ROUTER_EXPERTS / 32];
  cluster_arrive_first();
  copy_chains(w, weights, n_in, ROUTER_EXPERTS, 0, a.n_experts, n_in);
  get_scales(a, scale);
  cluster_wait(); /* all blocks are there */
  wait_for_prior_grids();
  launch_dependent_grids();
  copy_chains(x, a.x, a.x_stride, n_rows, blockIdx.x / ROUTER_BLOCKS * n_rows, a.n_rows, n_in);
  for (uint32_t first = blockIdx.x / ROUTER_BLOCKS * n_rows, next = first; first < a.n_rows; first = next) {
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    float sum[R][PART_EXPERTS] = {};
    if (has_experts)
      add_chains<R>(x + row * part_stride(n_in) + chain, w + expert * part_stride(n_in) + chain, n_in, sum);
    if (first >= gridDim.x / ROUTER_BLOCKS * n_rows) cluster_wait(); /* all blocks have added up the rows before */
#pragma unroll
    for (uint32_t i = 0; i < R; i++) {
      uint32_t r = row + 2 * i;
      float mine = sum_of_four(sum[i], chain);
      store_to_cluster(&part[rank][r % n_own][expert + 4 * (chain % 2 * 2 + chain / 2)], r / n_own, mine);
    }
    cluster_arrive();
    next = first + gridDim.x / ROUTER_BLOCKS * n_rows;
    __syncthreads();
    if (next < a.n_rows) copy_chains(x, a.x, a.x_stride, n_rows, next, a.n_rows, n_in);
    cluster_wait();
    for (uint32_t i = threadIdx.x; i < n_own * ROUTER_EXPERTS; i += PART_THREADS) {
      uint32_t own = i / ROUTER_EXPERTS, e = i % ROUTER_EXPERTS, r = rank * n_own + own;
      if (r >= n_rows || first + r >= a.n_rows) break;
      float all[ROUTER_BLOCKS];
#pragma unroll
      for (uint32_t p = 0; p < ROUTER_BLOCKS; p++) all[p] = part[p][own][e];
#pragma unroll
      for (uint32_t step = 1; step < ROUTER_BLOCKS; step *= 2) {
#pragma unroll
        for (uint32_t p = 0; p < ROUTER_BLOCKS; p += 2 * step) all[p] = __fadd_rn(all[p], all[p + step]);
      }
      if (BIASED && e < a.n_experts) all[0] = __fadd_rn(all[0], a.router_bias[e]);
      logits[own][e] = all[0];
      if (e < a.n_experts) a.logits[(uint64_t)(first + r) * a.logits_stride + e] = all[0];
    }
    __syncthreads();
    if (next < a.n_rows) cluster_arrive();
    uint32_t own = threadIdx.x / 32, r = rank * n_own + own;
    if (own < n_own && r < n_rows && first + r < a.n_rows) choose_experts(a, first + r, logits[own], scale);
  }
}

static uint64_t part_bytes(uint32_t n_in, uint32_t rows) {
  return (uint64_t)(ROUTER_EXPERTS + 2 * rows) * part_stride(n_in) * sizeof(float4);
}

static bool takes_parts(const weft_route_args *args) {
  return route_gemm_suits(args) && part_bytes(args->router->n_in, PART_ROWS) <= PART_BYTES;
}

static const float *weights_of(const weft_weight *router) {
  return (const float *)(const void *)((const uint8_t *)router->data + PACKED_HEADER_BYTES);
}

uint64_t cuda_route_scratch(weft_device *device, const weft_route_args *args) {
  if (args->router == NULL) return 0;
  if (takes_parts(args)) return args->n_rows >= ROUTE_GEMM_ROWS ? route_gemm_scratch(args) : 0;
  return route_product_scratch(device, args);
}

template <int R>
static weft_status set_up_parts(cuda_device *d) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t error = cudaFuncSetAttribute(route_cluster_kernel<R, false>, most, PART_BYTES);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(route_cluster_kernel<R, true>, most, PART_BYTES);
  return cuda_judge(d, error, "setting up routers");
}

template <int R>
static weft_status start_parts(cuda_device *d, const weft_route_args *args) {
  const weft_weight *w = args->router;
  uint32_t n = cuda_ceil(args->n_rows, 2 * R), n_clusters = n < d->n_router_clusters ? n : d->n_router_clusters;
  auto kernel = args->router_bias != NULL ? route_cluster_kernel<R, true> : route_cluster_kernel<R, false>;
  cuda_start(d, kernel, ROUTER_BLOCKS * n_clusters, PART_THREADS, part_bytes(w->n_in, R), *args, weights_of(w),
             w->n_in);
  return cuda_launched(d, "a router of many rows");
}

/* Rows are spread over all clusters that the card holds at once, but for up to four, so that most multiprocessors are
 * free for the next kernel's blocks. */
static weft_status route_parts(cuda_device *d, const weft_route_args *args) {
  uint32_t each = args->n_rows <= 4 ? args->n_rows : cuda_ceil(args->n_rows, d->n_router_clusters);
  return each <= 2    ? start_parts<1>(d, args)
         : each <= 4  ? start_parts<2>(d, args)
         : each <= 6  ? start_parts<3>(d, args)
         : each <= 10 ? start_parts<5>(d, args)
                      : start_parts<PART_ROWS>(d, args);
}

/* Asks the card how many clusters it holds at once. They may be fewer than multiprocessors / blocks, because a cluster
 * must lie within one group of multiprocessors. */
static weft_status count_clusters(cuda_device *d) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ROUTER_BLOCKS);
  config.blockDim = dim3(PART_THREADS);
  config.dynamicSmemBytes = PART_BYTES;
  int n = 0;
  cudaError_t error = cudaOccupancyMaxActiveClusters(&n, route_cluster_kernel<PART_ROWS, false>, &config);
  d->n_router_clusters = n > 0 ? (uint32_t)n : 1;
  return cuda_judge(d, error, "setting up routers");
}

weft_status route_setup(cuda_device *d) {
  weft_status status = set_up_parts<1>(d);
  if (status == WEFT_OK) status = set_up_parts<2>(d);
  if (status == WEFT_OK) status = set_up_parts<3>(d);
  if (status == WEFT_OK) status = set_up_parts<5>(d);
  if (status == WEFT_OK) status = set_up_parts<PART_ROWS>(d);
  if (status == WEFT_OK) status = route_gemm_setup(d);
  return status == WEFT_OK ? count_clusters(d) : status;
}

static bool is_one_kernel(const weft_route_args *args) {
  return route_gemm_suits(args) && args->n_rows == 1 && args->router->n_in <= 128 * ROUTER_SLOTS;
}

weft_status cuda_route(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->router != NULL && is_one_kernel(args)) {
    auto kernel = args->router_bias != NULL ? route_one_row_kernel<true> : route_one_row_kernel<false>;
    cuda_start(d, kernel, ROUTER_BLOCKS, 32 * ROUTER_WARPS, 0, *args, weights_of(args->router), args->router->n_in);
    weft_status status = cuda_launched(d, "router");
    d->choice = args->ids;
    return status;
  }
  if (args->router != NULL && takes_parts(args)) {
    if (args->n_rows >= ROUTE_GEMM_ROWS) return route_gemm(d, args, weights_of(args->router));
    weft_status status = route_parts(d, args);
    d->choice = args->ids;
    return status;
  }
  return route_product(device, args);
}
