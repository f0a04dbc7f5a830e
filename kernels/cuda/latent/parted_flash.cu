/* SPDX-License-Identifier: MIT */
/* Flash attention of many rows over latent rows of 576 numbers in bf16, on Hopper's tensor cores (parted.cuh). All
 * heads of a row read the same rows, so that 64 queries are three rows of twenty heads.
 *
 *   consumer  two warpgroups, which have the same 64 queries, and half of the values each. Both make all scores: that
 *             is half as much work again, but neither waits for the other, so that one multiplies while the other
 *             makes weights
 *   producer  one more warpgroup, which issues the async copies of a tile from pages. A tile is read once, as keys and
 *             as values: panels of 64 numbers of its 64 rows, as swizzled operands (attention_wgmma.cuh)
 *
 * There is room for two tiles beside the queries. Chunks are merged in the rows of out. */
#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/latent/parted.cuh"

enum {
  GROUP_THREADS = 128,
  FLASH_THREADS = 3 * GROUP_THREADS,
  PANELS = PARTED_WIDTH / 64,
  PANEL_BYTES = PARTED_TILE * 128,
  TILE_BYTES = PANELS * PANEL_BYTES,
  TILES = 2, /* in shared memory */
  GROUP_DIMS = PARTED_VALUES / 2,
  GROUP_SUMS = GROUP_DIMS / 8,
  ROW_PIECES = PARTED_WIDTH / 4 /* of four numbers */
};
static_assert(PARTED_QUERIES == PARTED_TILE, "queries lie as a tile does");

struct flash_memory {
  uint8_t queries[TILE_BYTES], rows[TILES][TILE_BYTES];
  uint64_t full[TILES], empty[TILES];
};
static_assert(sizeof(flash_memory) <= 227 << 10, "shared memory of a block");

typedef struct flash_block {
  parted_item item;
  const weft_latent_segment *segment;
  uint32_t n_positions, n_tiles; /* that some query sees */
} flash_block;

/* ---- producer ---- */

/* Where the lane's row of a tile lies: a warp has sixteen of the 64, lanes l and l + 16 the same one. */
static __device__ __forceinline__ uint64_t find_row(const weft_latent_attend_args &a, const flash_block &b,
                                                    uint32_t tile) {
  const uint32_t position = tile * PARTED_TILE + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16;
  if (position >= b.n_positions) return 0;
  return (uint64_t)(uintptr_t)parted_row(a, *b.segment, position);
}

static __device__ __forceinline__ void copy_tile(const weft_latent_attend_args &a, uint64_t own, uint8_t *tile) {
  const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint32_t to = shared_address(tile) + warp * 16 * 128;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t row = 4 * i + lane / 8;
    const uint64_t from = __shfl_sync(0xFFFFFFFFu, own, row);
    const uint8_t *piece =
        (from == 0 ? (const uint8_t *)a.near.base : (const uint8_t *)(uintptr_t)from) + lane % 8 * 16;
#pragma unroll
    for (uint32_t panel = 0; panel < PANELS; panel++)
      cp_async_16_if(to + panel * PANEL_BYTES + row * 128 + ((lane ^ row) & 7) * 16, piece + panel * 128, from != 0);
  }
}

static __device__ __forceinline__ void copy_all(const weft_latent_attend_args &a, const flash_block &b,
                                                flash_memory &m) {
  uint64_t own = find_row(a, b, 0);
#pragma unroll 1
  for (uint32_t tile = 0; tile < b.n_tiles; tile++) {
    const uint64_t next = find_row(a, b, tile + 1); /* looked up a tile ahead of its use */
    mbarrier_wait(&m.empty[tile % TILES], tile / TILES % 2 ^ 1);
    copy_tile(a, own, m.rows[tile % TILES]);
    mbarrier_arrive_cp_async(&m.full[tile % TILES]);
    own = next;
  }
  cp_async_wait<0>();
}

/* ---- consumers ---- */

/* Rows g and g + 8 of a warp's sixteen queries, as one thread sees them. */
typedef struct flash_rows {
  uint32_t end[2], all_end; /* positions seen; by all queries */
  float most[2], all_max[2], all_sum[2];
} flash_rows;

struct flash_sums {
  float out[GROUP_SUMS][4], sum[4]; /* sum: every column the same */
};

static __device__ __forceinline__ uint32_t query_of(uint32_t h) {
  return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}

/* Both warpgroups load the queries, as bf16, where wgmma reads them. */
static __device__ __forceinline__ void load_queries(const weft_latent_attend_args &a, const flash_block &b,
                                                    flash_memory &m) {
  constexpr uint32_t STEPS = PARTED_QUERIES * ROW_PIECES / (2 * GROUP_THREADS), AT_ONCE = 12;
#pragma unroll 1
  for (uint32_t step = 0; step < STEPS; step += AT_ONCE) {
    float4 x[AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      const uint32_t at = (step + i) * 2 * GROUP_THREADS + threadIdx.x, query = at / ROW_PIECES;
      const uint32_t f = b.item.first + query, row = f / a.n_heads;
      const float *q = a.q + ((uint64_t)b.segment->first_row + row) * a.q_stride +
                       (uint64_t)(f - row * a.n_heads) * PARTED_WIDTH + at % ROW_PIECES * 4;
      x[i] = query < b.item.n ? *(const float4 *)(const void *)q : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      const uint32_t at = (step + i) * 2 * GROUP_THREADS + threadIdx.x, query = at / ROW_PIECES,
                     piece = at % ROW_PIECES;
      uint8_t *to = m.queries + piece / 16 * PANEL_BYTES + query * 128;
      *(uint2 *)(void *)(to + ((piece / 2 ^ query) & 7) * 16 + piece % 2 * 8) =
          make_uint2(pair_bf16(x[i].x, x[i].y), pair_bf16(x[i].z, x[i].w));
    }
  }
  fence_proxy_async();
  asm volatile("bar.sync 1, %0;" ::"n"(2 * GROUP_THREADS) : "memory");
}

static __device__ __forceinline__ void open_rows(const weft_latent_attend_args &a, const flash_block &b,
                                                 flash_rows &rows) {
  rows.all_end = b.segment->kv_len + b.item.first / a.n_heads + 1;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    const uint32_t n = query_of(h);
    rows.end[h] = n < b.item.n ? b.segment->kv_len + (b.item.first + n) / a.n_heads + 1 : 0;
    rows.all_max[h] = rows.most[h] = -INFINITY, rows.all_sum[h] = 0.0f;
  }
}

static __device__ __forceinline__ void clear(flash_sums &sums) {
#pragma unroll
  for (int i = 0; i < 4 * GROUP_SUMS; i++) sums.out[i / 4][i % 4] = 0.0f;
  sums.sum[0] = sums.sum[1] = sums.sum[2] = sums.sum[3] = 0.0f;
}

/* Issues d[64 x 64 rows] += q[64 x 16] k[16 x 64]; fresh: d begins at 0. */
static __device__ __forceinline__ void wgmma_scores_64(float (&d)[8][4], uint64_t q, uint64_t k, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_64 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : SUMS_32(0)
      : "l"(q), "l"(k), "r"((uint32_t)fresh));
}

/* Issues one of the four sums of the scores. q, k: the first panels. */
static __device__ __forceinline__ void issue_part(float (&d)[8][4], uint64_t q, uint64_t k, uint32_t part) {
  constexpr uint32_t STEP = PANEL_BYTES >> 4, LAST = (PANELS - 1) * STEP;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t at = (2 * part + i / 4) * STEP + i % 4 * 2;
    wgmma_scores_64(d, q + at, k + at, i == 0);
  }
  wgmma_scores_64(d, q + LAST + part * 2, k + LAST + part * 2, false);
  wgmma_commit();
}

static __device__ __forceinline__ void score_tile(uint64_t q, uint64_t k, float (&score)[8][4]) {
  float part[8][4];
  wgmma_fence();
  issue_part(score, q, k, 0);
#pragma unroll
  for (uint32_t p = 1; p < 4; p++) {
    if (p > 1) wgmma_fence();
    issue_part(part, q, k, p);
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 32; i++) score[i / 4][i % 4] = __fadd_rn(score[i / 4][i % 4], part[i / 4][i % 4]);
  }
}

/* What a query does not see scores -inf. */
static __device__ __forceinline__ void mask_tile(const flash_rows &rows, uint32_t base, float (&score)[8][4]) {
  if (base + PARTED_TILE <= rows.all_end) return;
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t position = base + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    if (position >= rows.end[i % 4 / 2]) score[i / 4][i % 4] = -INFINITY;
  }
}

/* Makes weights of scores, and rescales out to the new maximum. */
static __device__ __forceinline__ void online_softmax(float scale, flash_rows &rows, const float (&score)[8][4],
                                                      uint32_t (&weight)[4][4], flash_sums &sums) {
  float keep[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    most = fmaxf(rows.most[h], __fmul_rn(most, scale));
    const float anchor = anchor_of(most);
    keep[h] = power_of_2(__fadd_rn(rows.most[h], -anchor));
    rows.most[h] = most;
#pragma unroll
    for (int n = 0; n < 8; n++)
      weight[n / 2][n % 2 * 2 + h] =
          pair_bf16(weight_of(score[n][2 * h], scale, anchor), weight_of(score[n][2 * h + 1], scale, anchor));
  }
  if (__any_sync(0xFFFFFFFFu, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 4 * GROUP_SUMS; i++)
      sums.out[i / 4][i % 4] = __fmul_rn(sums.out[i / 4][i % 4], keep[i % 4 / 2]);
#pragma unroll
    for (int i = 0; i < 4; i++) sums.sum[i] = __fmul_rn(sums.sum[i], keep[i / 2]);
  }
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (int i = 0; i < 4; i++) mma_bf16(sums.sum, weight[i], ones, ones);
}

static __device__ __forceinline__ void add_values(uint64_t values, const uint32_t (&weight)[4][4], flash_sums &sums) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; i++) wgmma_values<GROUP_SUMS>(sums.out, weight[i], values + i * (2048 >> 4));
  wgmma_commit();
  wgmma_wait<0>();
}

/* One row of a thread: merged into what lies in memory where there were chunks before, with many loads in flight at
 * once. times: 1 until the last chunk. */
template <bool LOAD>
static __device__ __forceinline__ void merge_row(float *to, const flash_sums &sums, int h, float keep, float add,
                                                 float times) {
#pragma unroll
  for (int n = 0; n < GROUP_SUMS; n += 16) {
    float2 one[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
      one[i] = LOAD ? __ldcg((const float2 *)(const void *)(to + 8 * (n + i))) : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      one[i].x = __fmul_rn(rescale_add(one[i].x, keep, sums.out[n + i][2 * h], add), times);
      one[i].y = __fmul_rn(rescale_add(one[i].y, keep, sums.out[n + i][2 * h + 1], add), times);
      *(float2 *)(void *)(to + 8 * (n + i)) = one[i];
    }
  }
}

static __device__ __forceinline__ void merge_chunk(const weft_latent_attend_args &a, const flash_block &b,
                                                   bool is_first, bool is_last, flash_rows &rows,
                                                   const flash_sums &sums) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float keep, add;
    rescale_factors(rows.all_max[h], rows.most[h], &rows.all_max[h], &keep, &add);
    rows.all_sum[h] = rescale_add(rows.all_sum[h], keep, sums.sum[2 * h], add);
    rows.most[h] = -INFINITY;
    const uint32_t n = query_of(h), f = b.item.first + n, row = f / a.n_heads;
    if (n >= b.item.n) continue;
    float *to = a.out + ((uint64_t)b.segment->first_row + row) * a.out_stride +
                (uint64_t)(f - row * a.n_heads) * PARTED_VALUES + threadIdx.x / GROUP_THREADS * GROUP_DIMS +
                threadIdx.x % 4 * 2;
    const float times = is_last ? __frcp_rn(rows.all_sum[h]) : 1.0f;
    if (is_first)
      merge_row<false>(to, sums, h, keep, add, times);
    else
      merge_row<true>(to, sums, h, keep, add, times);
  }
}

static __device__ __forceinline__ void multiply_all(const weft_latent_attend_args &a, const flash_block &b,
                                                    flash_memory &m) {
  constexpr uint32_t OF_CHUNK = PARTED_CHUNK / PARTED_TILE;
  const uint64_t q = swizzled_descriptor(shared_address(m.queries), 16);
  const uint32_t own_panels = threadIdx.x / GROUP_THREADS * (GROUP_DIMS / 64) * PANEL_BYTES;
  const float scale = a.scale * 1.44269504088896f;
  flash_rows rows;
  load_queries(a, b, m);
  open_rows(a, b, rows);
#pragma unroll 1
  for (uint32_t tile = 0; tile < b.n_tiles;) {
    flash_sums sums;
    clear(sums);
    const bool is_first = tile == 0;
    const uint32_t end = min(tile + OF_CHUNK, b.n_tiles);
#pragma unroll 1
    for (; tile < end; tile++) {
      float score[8][4];
      uint32_t weight[4][4];
      const uint32_t at = shared_address(m.rows[tile % TILES]);
      mbarrier_wait(&m.full[tile % TILES], tile / TILES % 2);
      fence_proxy_async();
      score_tile(q, swizzled_descriptor(at, 16), score);
      mask_tile(rows, tile * PARTED_TILE, score);
      online_softmax(scale, rows, score, weight, sums);
      add_values(swizzled_descriptor(at + own_panels, PANEL_BYTES), weight, sums);
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&m.empty[tile % TILES]);
    }
    merge_chunk(a, b, is_first, tile == b.n_tiles, rows, sums);
  }
}

static __global__ void __launch_bounds__(FLASH_THREADS, 1) flash_kernel(const __grid_constant__ parted_args k) {
  launch_dependent_grids();
  extern __shared__ __align__(1024) uint8_t shared[];
  flash_memory &m = *(flash_memory *)(void *)shared;
  flash_block b;
  b.item = k.items[blockIdx.x];
  if (b.item.n == 0) return; /* void */
  b.segment = &k.op.segment[b.item.segment];
  b.n_positions = b.segment->kv_len + (b.item.first + b.item.n - 1) / k.op.n_heads + 1;
  b.n_tiles = (b.n_positions + PARTED_TILE - 1) / PARTED_TILE;
  if (threadIdx.x == 0) {
    for (int i = 0; i < TILES; i++) mbarrier_init(&m.full[i], GROUP_THREADS), mbarrier_init(&m.empty[i], 8);
    mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_prior_grids();
  if (threadIdx.x / GROUP_THREADS == 2) {
    setmaxnreg_dec<40>();
    copy_all(k.op, b, m);
  } else {
    setmaxnreg_inc<232>();
    multiply_all(k.op, b, m);
  }
}

weft_status parted_flash(cuda_device *d, const parted_args *args) {
  cuda_start(d, flash_kernel, dim3(args->n_items), FLASH_THREADS, sizeof(flash_memory), *args);
  return cuda_launched(d, "latent_attend");
}

weft_status parted_flash_setup(cuda_device *d) {
  const cudaError_t error =
      cudaFuncSetAttribute(flash_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(flash_memory));
  return cuda_judge(d, error, "setting up attention over latent rows");
}
