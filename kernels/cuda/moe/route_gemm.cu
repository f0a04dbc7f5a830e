/* SPDX-License-Identifier: MIT */
/* The router of many rows: an f32 GEMM that is split over chains (split-K), and a kernel that reduces and chooses.
 * The first one makes the sums of four neighbouring chains (route.h): a work item is 64 rows, all experts and four
 * chains, and a persistent block takes items one after another, or two neighbours of the same rows and the sum of
 * both. The inputs of these chains come by async copies into a ring of stages, the next item's right behind the last
 * one's. The second kernel reduces these sums by the rest of the tree and chooses; a warp has a row. */
#include "kernels/cuda/moe/route.cuh"

enum {
  TILED_THREADS = 256,
  TILED_ROWS = 64,                 /* of an item */
  TILED_THREAD_ROWS = 16,          /* of a thread: every second of 32 */
  TILED_EXPERTS = 8,               /* of a thread: every fourth of 32 */
  TILED_PARTS = 8,                 /* four chains of 32 */
  TILED_STEPS = 2,                 /* of 128 inputs each, in a stage */
  TILED_STAGES = 4,                /* in shared memory */
  TILED_READY = 4,                 /* rows of a thread, in its registers before they are multiplied */
  CHAINS_BYTES = 16 * PART_CHAINS, /* of a row or an expert in a step */
  STEP_BYTES = (TILED_ROWS + ROUTER_EXPERTS) * CHAINS_BYTES, /* rows of x, then of weights */
  STAGE_BYTES = TILED_STEPS * STEP_BYTES,
  RING_BYTES = TILED_STAGES * STAGE_BYTES,
  TILED_SUMS = TILED_THREAD_ROWS * TILED_EXPERTS / PART_EXPERTS, /* of an item, that a thread ends with */
#ifdef WEFT_CUDA_PORTABLE
  TILED_PAIRS = 0, /* a block has no memory for sums that it keeps */
#else
  TILED_PAIRS = 1,
#endif
  TILED_BYTES = RING_BYTES + 4 * TILED_SUMS * TILED_THREADS * TILED_PAIRS
};

static_assert(TILED_THREADS == TILED_ROWS * PART_CHAINS, "each thread brings one row's chain, and two experts'");
static_assert(ROUTER_EXPERTS == 2 * TILED_ROWS && TILED_STEPS == 2 && TILED_THREAD_ROWS == 2 * TILED_EXPERTS, "tiles");

/* What the thread copies next: its chain of a row and of two experts. */
struct tiled_source {
  const float *x, *weights; /* at the stage's first step */
  uint32_t second;          /* from the first expert's weights to the second's */
  uint32_t item, k;         /* k: the input there */
};

/* The item that the block takes after this one. Where `paired`, it takes two neighbours one after the other. */
static __device__ __forceinline__ uint32_t item_after(uint32_t item, bool paired) {
  return !paired ? item + gridDim.x : item % 2 == 0 ? item + 1 : item - 1 + 2 * gridDim.x;
}

/* Begins at the item's first stage. Of more rows or experts than there are any may be read: their sums are not used. */
static __device__ __forceinline__ void begin_source(const weft_route_args &a, const float *weights, uint32_t n_in,
                                                    uint32_t item, tiled_source &from) {
  uint32_t k = 4 * (PART_CHAINS * (item % TILED_PARTS) + threadIdx.x % PART_CHAINS), at = threadIdx.x / PART_CHAINS;
  uint64_t row = min(item / TILED_PARTS * TILED_ROWS + at, a.n_rows - 1);
  uint32_t expert = min(at, a.n_experts - 1), second = min(at + TILED_ROWS, a.n_experts - 1);
  from.x = a.x + row * a.x_stride + k, from.weights = weights + (uint64_t)expert * n_in + k;
  from.second = (second - expert) * n_in, from.item = item, from.k = k;
}

/* Starts the copies of the next stage, with all threads, if there is one. Where there is no input, zeros are written.
 * to: where the thread's first four inputs come. */
static __device__ __forceinline__ void copy_stage(const weft_route_args &a, const float *weights, uint32_t n_in,
                                                  uint32_t n_items, bool paired, uint32_t to, tiled_source &from) {
  if (from.item < n_items) {
    const float *second = from.weights + from.second;
#pragma unroll
    for (uint32_t i = 0; i < TILED_STEPS; i++) {
      bool ok = from.k + 128 * i < n_in;
      cp_async_16_if(to + i * STEP_BYTES, from.x + 128 * i, ok);
      cp_async_16_if(to + i * STEP_BYTES + 16 * TILED_THREADS, from.weights + 128 * i, ok);
      cp_async_16_if(to + i * STEP_BYTES + 32 * TILED_THREADS, second + 128 * i, ok);
    }
    from.x += 128 * TILED_STEPS, from.weights += 128 * TILED_STEPS, from.k += 128 * TILED_STEPS;
    if (from.k / 128 * 128 >= n_in) begin_source(a, weights, n_in, item_after(from.item, paired), from);
  }
  cp_async_commit();
}

static __device__ __forceinline__ float4 load_shared(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/* A thread's numbers of a step: its first rows, and all its experts. */
struct tiled_numbers {
  float4 in[TILED_READY], by[2][TILED_EXPERTS]; /* by: of this step, and of the next one */
};

/* Adds rows FIRST .. END - 1 of step STEP of a stage to the sums, and loads numbers that come after them. x: the
 * thread's first row in this step; next_x and next_w: its first row and expert in the next one. */
template <int STEP, int FIRST, int END>
static __device__ __forceinline__ void add_rows(uint32_t x, uint32_t next_x, uint32_t next_w, tiled_numbers &n,
                                                float (&sum)[TILED_THREAD_ROWS][TILED_EXPERTS]) {
#pragma unroll
  for (int i = FIRST; i < END; i++) {
    int e = (i + 1) / 2, ready = i + TILED_READY, first = ready - TILED_THREAD_ROWS;
    if (2 * e == i + 1 || i == 0)
      if (e < TILED_EXPERTS) n.by[(STEP + 1) % 2][e] = load_shared(next_w + 4 * e * CHAINS_BYTES);
    float4 in = n.in[i % TILED_READY];
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
      for (int e = 0; e < TILED_EXPERTS; e++)
        sum[i][e] = __fmaf_rn(((const float *)&n.by[STEP % 2][e])[c], ((const float *)&in)[c], sum[i][e]);
    }
    n.in[i % TILED_READY] = load_shared(first < 0 ? x + 2 * ready * CHAINS_BYTES : next_x + 2 * first * CHAINS_BYTES);
    if (i % 2 == 1) __syncwarp(); /* so that the compiler leaves the loads where they are */
  }
}

/* Stores an item's sums, and begins the next one's. Where `paired`, the first item's are kept for the second, and those
 * of both together are stored. row, expert: the thread's first ones. */
static __device__ __forceinline__ void store_sums(const weft_route_args &a, float *parts, float *kept, uint32_t item,
                                                  bool paired, uint32_t row, uint32_t expert, uint32_t chain,
                                                  float (&sum)[TILED_THREAD_ROWS][TILED_EXPERTS]) {
  uint32_t first = item / TILED_PARTS * TILED_ROWS + row, left = a.n_rows - min(first, a.n_rows);
  uint32_t part = item % TILED_PARTS >> (paired ? 1 : 0);
  bool keep = paired && item % 2 == 0, add = paired && item % 2 == 1;
  float *to = parts + ((uint64_t)part * a.n_rows + first) * ROUTER_EXPERTS + expert + 4 * (chain % 2 * 2 + chain / 2);
#pragma unroll
  for (uint32_t i = 0; i < TILED_SUMS; i++) {
    uint32_t own = i / 2, q = i % 2 * PART_EXPERTS;
    float four[PART_EXPERTS];
#pragma unroll
    for (uint32_t e = 0; e < PART_EXPERTS; e++) four[e] = sum[own][q + e], sum[own][q + e] = 0.0f;
    float mine = sum_of_four(four, chain);
    if (add) mine = __fadd_rn(kept[i * TILED_THREADS + threadIdx.x], mine);
    if (keep)
      kept[i * TILED_THREADS + threadIdx.x] = mine;
    else if (2 * own < left)
      to[2 * own * ROUTER_EXPERTS + 4 * q] = mine;
  }
}

static __global__ void __launch_bounds__(TILED_THREADS, 1)
    route_gemm_kernel(const __grid_constant__ weft_route_args a, const float *weights, uint32_t n_in, bool paired,
                      float *parts) {
  extern __shared__ float4 memory[]; /* [stage][step][rows of x, then of weights][chain]; then sums that are kept */
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = lane / 4 % 4;
  uint32_t row = warp / 4 * 32 + lane / 2 % 2, expert = warp % 4 * 32 + lane / 16 * 2 + lane % 2;
  uint32_t n_items = TILED_PARTS * ((a.n_rows + TILED_ROWS - 1) / TILED_ROWS);
  uint32_t n_stages = (n_in + 128 * TILED_STEPS - 1) / (128 * TILED_STEPS);
  uint32_t to = shared_address(memory + threadIdx.x), x = shared_address(memory) + row * CHAINS_BYTES + 16 * chain;
  uint32_t w = shared_address(memory) + (TILED_ROWS + expert) * CHAINS_BYTES + 16 * chain;
  asm volatile("" : "+r"(to), "+r"(x), "+r"(w)); /* so that the compiler keeps them */
  float sum[TILED_THREAD_ROWS][TILED_EXPERTS] = {};
  tiled_source from;
  tiled_numbers n;
  begin_source(a, weights, n_in, paired ? 2 * blockIdx.x : blockIdx.x, from);
  launch_dependent_grids();
  wait_for_prior_grids();
#pragma unroll 1
  for (uint32_t s = 0; s < TILED_STAGES - 1; s++)
    copy_stage(a, weights, n_in, n_items, paired, to + s * STAGE_BYTES, from);
  cp_async_wait<TILED_STAGES - 2>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TILED_READY; i++) n.in[i] = load_shared(x + 2 * i * CHAINS_BYTES);
#pragma unroll
  for (int e = 0; e < TILED_EXPERTS; e++) n.by[0][e] = load_shared(w + 4 * e * CHAINS_BYTES);
  uint32_t own = 0, last = (TILED_STAGES - 1) * STAGE_BYTES; /* the stage's place in the ring */
#pragma unroll 1
  for (uint32_t item = paired ? 2 * blockIdx.x : blockIdx.x; item < n_items; item = item_after(item, paired)) {
#pragma unroll 1
    for (uint32_t s = 0; s < n_stages; s++) {
      uint32_t next = own == last ? 0 : own + STAGE_BYTES, old = own == 0 ? last : own - STAGE_BYTES;
      add_rows<0, 0, TILED_THREAD_ROWS>(x + own, x + own + STEP_BYTES, w + own + STEP_BYTES, n, sum);
      cp_async_wait<TILED_STAGES - 3>();
      __syncthreads(); /* the next stage is there, and all threads have read the old one */
      add_rows<1, 0, TILED_THREAD_ROWS - 2>(x + own + STEP_BYTES, x + next, w + next, n, sum);
      copy_stage(a, weights, n_in, n_items, paired, to + old, from);
      add_rows<1, TILED_THREAD_ROWS - 2, TILED_THREAD_ROWS>(x + own + STEP_BYTES, x + next, w + next, n, sum);
      own = next;
    }
    store_sums(a, parts, (float *)memory + RING_BYTES / 4, item, paired, row, expert, chain, sum);
  }
}

template <int PARTS, bool BIASED>
static __global__ void __launch_bounds__(32 * ROUTE_WARPS)
    route_choose_kernel(const __grid_constant__ weft_route_args a, const float *parts) {
  __shared__ float4 logits[ROUTE_WARPS][ROUTER_EXPERTS / 4];
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x * ROUTE_WARPS + warp;
  float scale[ROUTER_EXPERTS / 32];
  float4 all[PARTS];
  launch_dependent_grids();
  get_scales(a, scale);
  wait_for_prior_grids();
  if (r >= a.n_rows) return;
#pragma unroll
  for (uint32_t p = 0; p < PARTS; p++)
    all[p] = ((const float4 *)(const void *)parts)[((uint64_t)p * a.n_rows + r) * (ROUTER_EXPERTS / 4) + lane];
#pragma unroll
  for (uint32_t step = 1; step < PARTS; step *= 2) {
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p += 2 * step) {
#pragma unroll
      for (uint32_t c = 0; c < 4; c++) {
        float &to = ((float *)&all[p])[c];
        to = __fadd_rn(to, ((const float *)&all[p + step])[c]);
      }
    }
  }
#pragma unroll
  for (uint32_t c = 0; BIASED && c < 4; c++) {
    float &to = ((float *)&all[0])[c];
    if (4 * lane + c < a.n_experts) to = __fadd_rn(to, a.router_bias[4 * lane + c]);
  }
  logits[warp][lane] = all[0];
  __syncwarp();
  const float *own = (const float *)logits[warp];
#pragma unroll
  for (uint32_t e = lane; e < ROUTER_EXPERTS; e += 32)
    if (e < a.n_experts) a.logits[r * a.logits_stride + e] = own[e];
  choose_experts(a, r, own, scale);
}

/* ---- host ----------------------------------------------------------------------------------------------- */

uint64_t route_gemm_scratch(const weft_route_args *args) {
  return (uint64_t)TILED_PARTS * ROUTER_EXPERTS * sizeof(float) * args->n_rows;
}

bool route_gemm_suits(const weft_route_args *args) {
  return args->router->type == WEFT_TYPE_F32 && args->n_experts <= ROUTER_EXPERTS && args->k <= 32 &&
         args->router->n_in % 4 == 0 && args->x_stride % 4 == 0 && ((uintptr_t)args->x & 15u) == 0;
}

weft_status route_gemm_setup(cuda_device *d) {
  return cuda_judge(d,
                    cudaFuncSetAttribute(route_gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, TILED_BYTES),
                    "setting up routers");
}

weft_status route_gemm(cuda_device *d, const weft_route_args *args, const float *weights) {
  float *parts = (float *)args->scratch;
  uint32_t n_items = TILED_PARTS * cuda_ceil(args->n_rows, TILED_ROWS), n_blocks = d->n_multiprocessors;
  bool paired = TILED_PAIRS != 0 &&
                2 * cuda_ceil(n_items / 2, n_blocks) == cuda_ceil(n_items, n_blocks); /* as many turns as alone */
  cuda_start(d, route_gemm_kernel, n_items < n_blocks ? n_items : n_blocks, TILED_THREADS, TILED_BYTES, *args, weights,
             args->router->n_in, paired, parts);
  constexpr int all = TILED_PARTS, half = TILED_PARTS / 2;
  auto choose = args->router_bias != NULL
                    ? (paired ? route_choose_kernel<half, true> : route_choose_kernel<all, true>)
                    : (paired ? route_choose_kernel<half, false> : route_choose_kernel<all, false>);
  cuda_start(d, choose, cuda_ceil(args->n_rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args, (const float *)parts);
  return cuda_launched(d, "a router of many rows");
}
