/* SPDX-License-Identifier: MIT */
/* Flash attention of many queries (prefill, canvases) over keys of bf16 or 8 bits, for heads of 64, 128, 256 and 512:
 * warp-specialised, with wgmma and online softmax, as FlashAttention-3 (Shah et al. 2024).
 *
 *   consumer  one or two warpgroups of 64 queries each, which use the same keys. A warpgroup makes the scores of a
 *             tile in registers (both operands in shared memory), turns them into weights in place by online softmax,
 *             and adds weights x values to out, in registers too. That has room for 256 dimensions, so heads of 512
 *             are shared by two blocks
 *   producer  one more warpgroup, which issues the async copies of keys and values from their pages. Those of 8 bits
 *             it copies to a queue first, and makes bf16 of them (rows_q8.cuh); a thread converts what it copied itself
 *   stages    a ring of 16 KiB each: of every tile of 128 keys first the keys, 64 dimensions at a time, then the
 *             values, some keys at a time
 *   turns     where there would be few blocks, the blocks of a cluster take an item's chunks in turn. Each merges its
 *             chunk into the rows in memory when the chunk before has been merged, so the order is that of one block
 *
 * Positions that no query of the block sees count as zeros and are not read. Copies of keys that are older than the
 * step are issued before the inputs are there. */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/attention/rows_q8.cuh"
#include "kernels/cuda/gemm/w8a8.cuh"

enum {
  STAGE_BYTES = 16384,
  PANEL = 64,
  STAGES_MAX = 12,
  GROUP_THREADS = 128,
  BYTES_MAX = 227 << 10,
  BARRIERS_BYTES = 3072,
  QUEUE = 3,  /* stages of 8 bits that are being copied */
  PIECES = 4, /* of sixteen numbers, that a thread has of each */
  QUEUE_BYTES = QUEUE * PIECES * GROUP_THREADS * (16 + 4)
};

template <int D, int GROUPS, bool Q8>
struct flash_shape {
  static constexpr int dim = D, groups = GROUPS;
  static constexpr bool q8 = Q8;
  static constexpr int dims = D < 256 ? D : 256; /* of out, in a block */
  static constexpr int n_sums = dims / 8;
  static constexpr int key_stages = D / PANEL; /* of a tile */
  static constexpr int value_stages = dims / PANEL;
  static constexpr int value_keys = TILE / value_stages; /* of a stage */
  static constexpr int q_bytes = FLASH_QUERIES * D * 2;  /* of a group */
  static constexpr int queue_bytes = Q8 ? QUEUE_BYTES : 0;
  static constexpr int fit = (BYTES_MAX - BARRIERS_BYTES - queue_bytes - GROUPS * q_bytes) / STAGE_BYTES;
  static constexpr int ring = fit < STAGES_MAX ? fit : STAGES_MAX;
  static constexpr int bytes = GROUPS * q_bytes + ring * STAGE_BYTES + queue_bytes + BARRIERS_BYTES;
  static constexpr int threads = (GROUPS + 1) * GROUP_THREADS;
};

/* What lies behind queries and stages in shared memory. */
typedef struct flash_barriers {
  uint64_t full[STAGES_MAX], empty[STAGES_MAX], turn[2];
  float state[2][FLASH_QUERIES][2]; /* (max, sum) of the rows, from the block whose turn it was */
} flash_barriers;

typedef struct flash_block {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, slice, rank; /* of turns */
  uint32_t first, end;           /* positions that some query sees */
  uint8_t *ring, *queue;
  flash_barriers *barriers;
} flash_block;

/* A position in the ring of stages, for the producer warpgroup or a consumer one. */
typedef struct ring_state {
  uint32_t stage, parity;
} ring_state;

template <int N>
static __device__ __forceinline__ void advance(ring_state &at) {
  at.stage += 1;
  if (at.stage == N) at.stage = 0, at.parity ^= 1;
}

/* Tiles [tile, tile_end) of a chunk that some query of the block sees. */
static __device__ __forceinline__ void tiles_of(const flash_block &b, uint32_t chunk, uint32_t *tile,
                                                uint32_t *tile_end) {
  uint32_t base = chunk * CHUNK;
  *tile = (max(b.first, base) - base) / TILE;
  *tile_end = (min(b.end, base + CHUNK) - base - 1) / TILE + 1;
}

/* ---- producer warpgroup ---------------------------------------------------------------------------------- */

/* Where a tile's keys lie: a warp of the copying group has 32 of the 128, a lane one of them. Lane 4 i + j of a warp
 * has row 16 i + 4 warp + j of the tile. */
typedef struct tile_keys {
  uint64_t key, value; /* of the lane's own key */
  uint32_t seen;       /* bit per key of the warp */
} tile_keys;

static __device__ __forceinline__ uint32_t position_of(uint32_t chunk, uint32_t tile) {
  uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  return chunk * CHUNK + tile * TILE + lane / 4 * 16 + warp * 4 + lane % 4;
}

static __device__ __forceinline__ uint32_t look_up(const attention_kernel_args &k, const flash_block &b,
                                                   uint32_t position) {
  return position >= b.first && position < b.end ? page_of_key(b.segment, k.block_shift, position) : 0;
}

static __device__ __forceinline__ tile_keys keys_of(const attention_kernel_args &k, const flash_block &b,
                                                    uint32_t position, uint32_t page, uint64_t vector) {
  tile_keys t;
  bool ok = position >= b.first && position < b.end;
  t.key = t.value = (uint64_t)(uintptr_t)k.op.kv.base;
  if (ok) {
    t.key = (uint64_t)(uintptr_t)key_at(k.op, b.segment, b.kv_head, position, page, false, vector);
    t.value = (uint64_t)(uintptr_t)key_at(k.op, b.segment, b.kv_head, position, page, true, vector);
  }
  t.seen = __ballot_sync(0xFFFFFFFFu, ok);
  return t;
}

/* Starts copies of 128 bytes of sixteen of the tile's keys, which are rows 16 i .. of the tile; a warp copies four. */
static __device__ __forceinline__ void copy_rows(uint32_t to, uint64_t own, uint32_t seen, uint32_t i) {
  uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 4 + lane / 8;
  uint64_t from = __shfl_sync(0xFFFFFFFFu, own, i * 4 + lane / 8);
  cp_async_16_if(to + row * 128 + ((lane ^ row) & 7) * 16, (const uint8_t *)(uintptr_t)from + lane % 8 * 16,
                 (seen >> (i * 4 + lane / 8) & 1) != 0);
}

template <class shape>
static __device__ __forceinline__ void copy_tile(const flash_block &b, const tile_keys &t, ring_state &at) {
#pragma unroll 1
  for (int panel = 0; panel < shape::key_stages; panel++) {
    mbarrier_wait(&b.barriers->empty[at.stage], at.parity ^ 1);
    uint32_t to = shared_address(b.ring + at.stage * STAGE_BYTES);
#pragma unroll
    for (int i = 0; i < 8; i++) copy_rows(to + i * 2048, t.key + panel * 128, t.seen, i);
    mbarrier_arrive_cp_async(&b.barriers->full[at.stage]);
    advance<shape::ring>(at);
  }
#pragma unroll 1
  for (int part = 0; part < shape::value_stages; part++) {
    mbarrier_wait(&b.barriers->empty[at.stage], at.parity ^ 1);
    uint32_t to = shared_address(b.ring + at.stage * STAGE_BYTES);
    uint64_t value = t.value + b.slice * shape::dims * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      int i = n % (shape::value_keys / 16), panel = n / (shape::value_keys / 16);
      copy_rows(to + panel * shape::value_keys * 128 + i * 2048, value + panel * 128, t.seen,
                part * (shape::value_keys / 16) + i);
    }
    mbarrier_arrive_cp_async(&b.barriers->full[at.stage]);
    advance<shape::ring>(at);
  }
}

template <class shape>
static __device__ __forceinline__ void copy_all(const attention_kernel_args &k, const flash_block &b) {
  ring_state at = {0, 0};
  for (uint32_t chunk = b.item.chunk + b.rank; chunk < b.item.chunk_end; chunk += k.turns) {
    uint32_t tile, tile_end;
    tiles_of(b, chunk, &tile, &tile_end);
    uint32_t position = position_of(chunk, tile), page = look_up(k, b, position);
    for (; tile < tile_end; tile++) {
      if (chunk * CHUNK + (tile + 1) * TILE > b.segment.n_old) wait_for_prior_grids();
      tile_keys t = keys_of(k, b, position, page, shape::dim * 2);
      position += TILE;
      if (tile + 1 < tile_end) page = look_up(k, b, position); /* a tile ahead of its use */
      copy_tile<shape>(b, t, at);
    }
  }
  cp_async_wait<0>();
}

/* ---- producer warpgroup, 8 bits -------------------------------------------------------------------------- */

/* The next stage to be copied. */
typedef struct q8_source {
  uint32_t chunk, tile, tile_end, part; /* part: stage of the tile */
  uint32_t position, page;
  tile_keys t;
} q8_source;

/* Piece `step` of a thread in a stage: which of the warp's keys of the stage, and which sixteen numbers. */
typedef struct q8_place {
  uint32_t key, piece;
} q8_place;

template <class shape>
static __device__ __forceinline__ q8_place place_of(bool values, uint32_t step) {
  constexpr uint32_t across = shape::dims / 16;
  uint32_t i = step * 32 + threadIdx.x % 32;
  return values ? q8_place{i / across, i % across} : q8_place{i / 4, i % 4};
}

static __device__ __forceinline__ uint32_t queue_at(uint32_t slot, uint32_t step) {
  return (slot * PIECES + step) * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
}

static __device__ __forceinline__ void open_chunk(const attention_kernel_args &k, const flash_block &b, uint32_t chunk,
                                                  q8_source &from) {
  from.chunk = chunk, from.part = 0;
  if (chunk >= b.item.chunk_end) return;
  tiles_of(b, chunk, &from.tile, &from.tile_end);
  from.position = position_of(chunk, from.tile);
  from.page = look_up(k, b, from.position);
}

/* Starts the copies of the next stage into slot `slot` of the queue; false: there is none. */
template <class shape>
static __device__ __forceinline__ bool copy_q8(const attention_kernel_args &k, const flash_block &b, q8_source &from,
                                               uint32_t slot) {
  constexpr int unit = q8_piece(shape::dim);
  if (from.chunk >= b.item.chunk_end) return false;
  if (from.part == 0) {
    if (from.chunk * CHUNK + (from.tile + 1) * TILE > b.segment.n_old) wait_for_prior_grids();
    from.t = keys_of(k, b, from.position, from.page, q8_bytes(shape::dim));
    from.position += TILE;
    if (from.tile + 1 < from.tile_end) from.page = look_up(k, b, from.position); /* a tile ahead of its use */
  }
  bool values = from.part >= shape::key_stages;
  uint32_t part = values ? from.part - shape::key_stages : from.part;
  uint32_t first_key = values ? part * (shape::value_keys / 4) : 0;
  uint32_t first = values ? b.slice * shape::dims : part * PANEL; /* number of a row */
  uint32_t to = shared_address(b.queue), factors = to + QUEUE * PIECES * GROUP_THREADS * 16;
#pragma unroll
  for (int step = 0; step < PIECES; step++) {
    q8_place p = place_of<shape>(values, step);
    uint32_t key = first_key + p.key, number = first + p.piece * 16;
    uint64_t row = __shfl_sync(0xFFFFFFFFu, values ? from.t.value : from.t.key, key);
    bool seen = (from.t.seen >> key & 1) != 0;
#pragma unroll
    for (int i = 0; i < 16; i += unit)
      cp_async_if<unit>(to + queue_at(slot, step) * 16 + i, (const uint8_t *)(uintptr_t)row + number + i, seen);
    cp_async_if<4>(factors + queue_at(slot, step) * 4, (const uint8_t *)(uintptr_t)row + shape::dim + number / 64 * 4,
                   seen);
  }
  if (++from.part == shape::key_stages + shape::value_stages) {
    from.part = 0;
    if (++from.tile == from.tile_end) open_chunk(k, b, from.chunk + k.turns, from);
  }
  return true;
}

/* Makes bf16 of what the thread copied to a slot of the queue, in stage `part` of a tile. */
template <class shape>
static __device__ __forceinline__ void convert_q8(const flash_block &b, uint32_t slot, uint32_t part, uint8_t *stage) {
  bool values = part >= shape::key_stages;
  uint32_t warp = threadIdx.x / 32 % 4, odd = threadIdx.x / 2 % 2; /* odd: the second of a word's two factors */
  const uint4 *queue = (const uint4 *)(const void *)b.queue;
  const __half *factors = (const __half *)(const void *)(queue + QUEUE * PIECES * GROUP_THREADS);
#pragma unroll
  for (int step = 0; step < PIECES; step++) {
    q8_place p = place_of<shape>(values, step);
    uint4 numbers = queue[queue_at(slot, step)];
    float factor = __half2float(factors[queue_at(slot, step) * 2 + odd]);
    uint32_t a[4], c[4];
    q8_key(numbers.x, factor, a[0], c[0]), q8_key(numbers.y, factor, a[1], c[1]);
    q8_key(numbers.z, factor, a[2], c[2]), q8_key(numbers.w, factor, a[3], c[3]);
    uint32_t row = p.key / 4 * 16 + warp * 4 + p.key % 4, at = p.piece % 4 * 2;
    uint8_t *to = stage + (values ? p.piece / 4 * (shape::value_keys * 128) : 0) + row * 128;
    uint4 *low = (uint4 *)(void *)(to + ((at ^ row) & 7) * 16),
          *high = (uint4 *)(void *)(to + (((at + 1) ^ row) & 7) * 16);
    *low = values ? make_uint4(a[0], c[0], a[1], c[1]) : make_uint4(a[0], a[1], a[2], a[3]);
    *high = values ? make_uint4(a[2], c[2], a[3], c[3]) : make_uint4(c[0], c[1], c[2], c[3]);
  }
}

template <class shape>
static __device__ __forceinline__ void convert_all(const attention_kernel_args &k, const flash_block &b) {
  q8_source from;
  uint32_t n = 0, slot = 0, part = 0;
  if (!q8_early(shape::dim)) wait_for_prior_grids();
  open_chunk(k, b, b.item.chunk + b.rank, from);
#pragma unroll 1
  for (int i = 0; i < QUEUE; i++) {
    n += copy_q8<shape>(k, b, from, i) ? 1 : 0;
    cp_async_commit();
  }
#pragma unroll 1
  for (ring_state at = {0, 0}; n > 0; n--) {
    cp_async_wait<QUEUE - 1>();
    mbarrier_wait(&b.barriers->empty[at.stage], at.parity ^ 1);
    convert_q8<shape>(b, slot, part, b.ring + at.stage * STAGE_BYTES);
    fence_proxy_async();
    mbarrier_arrive(&b.barriers->full[at.stage]);
    advance<shape::ring>(at);
    n += copy_q8<shape>(k, b, from, slot) ? 1 : 0;
    cp_async_commit();
    slot = slot + 1 == QUEUE ? 0 : slot + 1;
    part = part + 1 == shape::key_stages + shape::value_stages ? 0 : part + 1;
  }
}

/* ---- consumer warpgroups: scores, online softmax, values ------------------------------------------------- */

/* Rows g and g + 8 of a warp's sixteen, as one thread sees them. */
typedef struct flash_rows {
  uint32_t first[2], end[2];   /* positions seen */
  uint32_t all_first, all_end; /* seen by all rows of the group */
  float most[2], all_max[2], all_sum[2];
} flash_rows;

template <int NT>
struct flash_sums {
  float out[NT][4], sum[4]; /* sum: every column the same */
};

static __device__ __forceinline__ uint32_t query_of(uint32_t h) { /* of the group's 64 */
  return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}

static __device__ __forceinline__ void open_rows(const attention_kernel_args &k, const flash_block &b,
                                                 flash_rows &rows) {
  uint32_t base = threadIdx.x / GROUP_THREADS * FLASH_QUERIES, unused;
  rows.all_first = UINT32_MAX, rows.all_end = 0;
  if (base + FLASH_QUERIES <= b.item.n) {
    find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + base), &unused, &rows.all_end);
    find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + base + FLASH_QUERIES - 1), &rows.all_first,
                 &unused);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t n = base + query_of(h);
    rows.first[h] = rows.end[h] = 0;
    if (n < b.item.n)
      find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + n), &rows.first[h], &rows.end[h]);
    rows.all_max[h] = -INFINITY, rows.all_sum[h] = 0.0f;
  }
}

static __device__ __forceinline__ void release_stage(const flash_block &b, uint32_t stage) {
  if (threadIdx.x % 32 == 0) mbarrier_arrive(&b.barriers->empty[stage]);
}

/* Multiplies with N stages one after another; multiply(index, address of the stage) issues the wgmma of one. A stage
 * is released when the wgmma of the next one have been issued and its own have ended. */
template <int RING, int N, class issue_products>
static __device__ __forceinline__ void each_stage(const flash_block &b, ring_state &at, issue_products multiply) {
  uint32_t last = 0;
#pragma unroll
  for (int i = 0; i < N; i++) {
    mbarrier_wait(&b.barriers->full[at.stage], at.parity);
    fence_proxy_async();
    multiply(i, shared_address(b.ring + at.stage * STAGE_BYTES));
    wgmma_commit();
    if (i > 0) {
      wgmma_wait<1>();
      release_stage(b, last);
    }
    last = at.stage;
    advance<RING>(at);
  }
  wgmma_wait<0>();
  release_stage(b, last);
}

template <class shape>
static __device__ __forceinline__ void score_tile(const flash_block &b, uint32_t q_at, ring_state &at,
                                                  float (&score)[16][4]) {
  each_stage<shape::ring, shape::key_stages>(b, at, [&](int panel, uint32_t stage) {
    uint64_t q = swizzled_descriptor(q_at + panel * FLASH_QUERIES * 128, 16), keys = swizzled_descriptor(stage, 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_scores(score, q + 2 * i, keys + 2 * i, panel == 0 && i == 0);
  });
}

template <class shape>
static __device__ __forceinline__ void add_values(const flash_block &b, const uint32_t (&weight)[8][4], ring_state &at,
                                                  float (&out)[shape::n_sums][4]) {
  each_stage<shape::ring, shape::value_stages>(b, at, [&](int part, uint32_t stage) {
    uint64_t values = swizzled_descriptor(stage, shape::value_keys * 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < shape::value_keys / 16; i++)
      wgmma_values<shape::n_sums>(out, weight[part * (shape::value_keys / 16) + i], values + i * (2048 >> 4));
  });
}

/* Makes the scores of positions that a row does not see -inf. */
static __device__ __forceinline__ void mask_tile(const flash_rows &rows, uint32_t base, float (&score)[16][4]) {
  if (base >= rows.all_first && base + TILE <= rows.all_end) return;
#pragma unroll
  for (int i = 0; i < 64; i++) {
    uint32_t h = i % 4 / 2, position = base + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    if (position < rows.first[h] || position >= rows.end[h]) score[i / 4][i % 4] = -INFINITY;
  }
}

/* Online softmax: turns the scores of a tile into weights, and rescales out and sum so far to the new maximum. */
template <int NT>
static __device__ __forceinline__ void online_softmax(float scale, flash_rows &rows, const float (&score)[16][4],
                                                      uint32_t (&weight)[8][4], flash_sums<NT> &sums) {
  float keep[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < 16; n++) most = fmaxf(most, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    most = fmaxf(rows.most[h], __fmul_rn(most, scale));
    float anchor = anchor_of(most);
    keep[h] = power_of_2(__fadd_rn(rows.most[h], -anchor));
    rows.most[h] = most;
#pragma unroll
    for (int n = 0; n < 16; n++) {
      weight[n / 2][n % 2 * 2 + h] =
          pair_bf16(weight_of(score[n][2 * h], scale, anchor), weight_of(score[n][2 * h + 1], scale, anchor));
    }
  }
  if (__any_sync(0xFFFFFFFFu, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) sums.out[i / 4][i % 4] = __fmul_rn(sums.out[i / 4][i % 4], keep[i % 4 / 2]);
#pragma unroll
    for (int i = 0; i < 4; i++) sums.sum[i] = __fmul_rn(sums.sum[i], keep[i / 2]);
  }
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (int i = 0; i < 8; i++) mma_bf16(sums.sum, weight[i], ones, ones);
}

/* acquire_turn gets the rows' (max, sum) from the block whose turn it was, release_turn gives them to the one whose
 * turn is next. */
static __device__ __forceinline__ void acquire_turn(const attention_kernel_args &k, const flash_block &b,
                                                    uint32_t chunk, flash_rows &rows) {
  uint32_t group = threadIdx.x / GROUP_THREADS;
  mbarrier_wait_cluster(&b.barriers->turn[group], ((chunk - b.item.chunk - (b.rank == 0 ? 1 : 0)) / k.turns) & 1);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const volatile float *state = b.barriers->state[group][query_of(h)];
    rows.all_max[h] = state[0], rows.all_sum[h] = state[1];
  }
}

static __device__ __forceinline__ void release_turn(const attention_kernel_args &k, const flash_block &b,
                                                    const flash_rows &rows) {
  uint32_t group = threadIdx.x / GROUP_THREADS, next = (b.rank + 1) % k.turns;
  if (threadIdx.x % 4 == 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t there = cluster_address(b.barriers->state[group][query_of(h)], next);
      asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(rows.all_max[h]), "f"(rows.all_sum[h])
                   : "memory");
    }
  }
  mbarrier_arrive_cluster(&b.barriers->turn[group], next);
}

/* Stores one row of a thread times `times`, which is 1 until the last chunk. LOAD: merged into what lies in memory,
 * with many loads in flight at once. */
template <int NT, bool LOAD>
static __device__ __forceinline__ void merge_row(float *to, const float (&out)[NT][4], int h, float keep, float add,
                                                 float times) {
  constexpr int batch = NT < 16 ? NT : 16;
#pragma unroll
  for (int n = 0; n < NT; n += batch) {
    float2 one[batch];
#pragma unroll
    for (int i = 0; i < batch; i++)
      one[i] = LOAD ? __ldcg((const float2 *)(const void *)(to + 8 * (n + i))) : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < batch; i++) {
      one[i].x = __fmul_rn(rescale_add(one[i].x, keep, out[n + i][2 * h], add), times);
      one[i].y = __fmul_rn(rescale_add(one[i].y, keep, out[n + i][2 * h + 1], add), times);
      *(float2 *)(void *)(to + 8 * (n + i)) = one[i];
    }
  }
}

/* merge_row for the last chunk where the result is quantised for W8A8 (w8a8.h): the numbers are left in `out`. */
template <int NT, bool LOAD>
static __device__ __forceinline__ void finish_row(const float *from, float (&out)[NT][4], int h, float keep, float add,
                                                  float times) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
    float2 one = LOAD ? __ldcg((const float2 *)(const void *)(from + 8 * n)) : make_float2(0, 0);
    out[n][2 * h] = __fmul_rn(rescale_add(one.x, keep, out[n][2 * h], add), times);
    out[n][2 * h + 1] = __fmul_rn(rescale_add(one.y, keep, out[n][2 * h + 1], add), times);
  }
}

/* Quantises a span of a row for W8A8, and stores it. Of every eight inputs the four lanes of a quad have two each,
 * in out[..][2 h] and the next. Two lanes make words of four, each of them every second word; so a lane has whole
 * pieces (w8a8_at). */
static __device__ __forceinline__ void store_span(const attention_kernel_args &k, uint32_t row, uint32_t span,
                                                  const float (&out)[32][4], int h) {
  uint32_t c = threadIdx.x % 4, odd = c % 2, quad = 0xFu << (threadIdx.x & 28u), most = 0;
  uint32_t n_tiles = (k.op.n_rows + 7) / 8, n_spans = k.op.n_heads * k.op.kv.head_dim / W8A8_SPAN;
  uint8_t *to = (uint8_t *)(void *)k.op.prepared;
#pragma unroll
  for (int n = 0; n < 64; n++) most = max(most, __float_as_uint(out[n / 2][2 * h + n % 2]) & 0x7FFFFFFFu);
  most = max(most, __shfl_xor_sync(quad, most, 1));
  most = max(most, __shfl_xor_sync(quad, most, 2));
  float inverse, scale = w8a8_scale(most, &inverse);
  if (c == 0) ((float *)(void *)(to + w8a8_scales_at(n_spans, n_tiles)))[(uint64_t)span * n_tiles * 8 + row] = scale;
#pragma unroll
  for (uint32_t part = 0; part < 4; part++) {
    uint32_t word[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const float *even = &out[16 * (part / 2) + 4 * i + 2 * (part % 2)][2 * h],
                  *next = &out[16 * (part / 2) + 4 * i + 2 * (part % 2) + 1][2 * h];
      uint32_t two = w8a8_pair_bytes(even, inverse), other = w8a8_pair_bytes(next, inverse);
      uint32_t got = __shfl_xor_sync(quad, odd != 0 ? two : other, 1);
      word[i] = odd != 0 ? got | other << 16 : two | got << 16;
    }
    uint32_t p = 2 * (2 * (part % 2) + odd) + c / 2;
    *(uint4 *)(void *)(to + w8a8_at(n_tiles, 2 * span + part / 2, row, p)) =
        make_uint4(word[0], word[1], word[2], word[3]);
  }
}

/* Merges the chunk to its rows in memory; the last chunk divides them by their sums, and quantises them for W8A8 if
 * it should. */
template <class shape, bool SINKS>
static __device__ __forceinline__ void merge_chunk(const attention_kernel_args &k, const flash_block &b, uint32_t chunk,
                                                   flash_rows &rows, flash_sums<shape::n_sums> &sums) {
  bool is_first = chunk == b.item.chunk, is_last = chunk + 1 == b.item.chunk_end;
  if (k.turns > 1 && !is_first) acquire_turn(k, b, chunk, rows);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float keep, add;
    rescale_factors(rows.all_max[h], rows.most[h], &rows.all_max[h], &keep, &add);
    rows.all_sum[h] = rescale_add(rows.all_sum[h], keep, sums.sum[2 * h], add);
    uint32_t n = threadIdx.x / GROUP_THREADS * FLASH_QUERIES + query_of(h), f = b.item.first + n;
    if (n >= b.item.n) continue;
    uint32_t i = row_of_query(k, f);
    float sum = rows.all_sum[h];
    if (SINKS && is_last) sum = add_sink(k, b.kv_head * k.group + (f - i * k.group), rows.all_max[h], sum);
    float times = is_last ? __frcp_rn(sum) : 1.0f;
    uint32_t column = (b.kv_head * k.group + (f - i * k.group)) * k.op.kv.head_dim + b.slice * shape::dims;
    float *to =
        k.op.out + ((uint64_t)b.segment.first_row + i) * k.op.out_stride + (uint64_t)column + threadIdx.x % 4 * 2;
    if constexpr (shape::dims == W8A8_SPAN) {
      if (is_last && k.prepares) {
        if (is_first)
          finish_row<shape::n_sums, false>(to, sums.out, h, keep, add, times);
        else
          finish_row<shape::n_sums, true>(to, sums.out, h, keep, add, times);
        store_span(k, b.segment.first_row + i, column / W8A8_SPAN, sums.out, h);
        continue;
      }
    }
    if (is_first)
      merge_row<shape::n_sums, false>(to, sums.out, h, keep, add, times);
    else
      merge_row<shape::n_sums, true>(to, sums.out, h, keep, add, times);
  }
  if (k.turns > 1 && !is_last) release_turn(k, b, rows);
}

/* Puts a piece of a query where wgmma reads it. */
template <bool Q8>
static __device__ __forceinline__ void put_query(uint8_t *queries, uint32_t row, uint32_t piece, uint2 x) {
  uint8_t *to = queries + piece / 16 * (FLASH_QUERIES * 128) + row * 128;
  if (Q8)
    q8_put(piece % 16, x, [&](uint32_t place, uint32_t word) {
      *(uint32_t *)(void *)(to + ((place / 8 ^ row) & 7) * 16 + place % 8 * 2) = word;
    });
  else
    *(uint2 *)(void *)(to + ((piece / 2 ^ row) & 7) * 16 + piece % 2 * 8) = x;
}

template <class shape, bool SINKS>
static __device__ __forceinline__ void multiply_all(const attention_kernel_args &k, const flash_block &b,
                                                    uint8_t *queries) {
  queries += threadIdx.x / GROUP_THREADS * shape::q_bytes;
  uint32_t group = threadIdx.x / GROUP_THREADS;
  wait_for_prior_grids();
  load_queries<shape::dim, FLASH_QUERIES, GROUP_THREADS>(
      k, b.item, b.segment, b.kv_head, group * FLASH_QUERIES,
      [&](uint32_t row, uint32_t piece, uint2 x) { put_query<shape::q8>(queries, row, piece, x); });
  fence_proxy_async();
  named_barrier_sync(1 + group);
  flash_rows rows;
  open_rows(k, b, rows);
  ring_state at = {0, 0};
  float scale = k.op.scale * 1.44269504088896f;
  uint32_t q_at = shared_address(queries);
  for (uint32_t chunk = b.item.chunk + b.rank; chunk < b.item.chunk_end; chunk += k.turns) {
    flash_sums<shape::n_sums> sums;
#pragma unroll
    for (int i = 0; i < 4 * shape::n_sums; i++) sums.out[i / 4][i % 4] = 0.0f;
    sums.sum[0] = sums.sum[1] = sums.sum[2] = sums.sum[3] = 0.0f;
    rows.most[0] = rows.most[1] = -INFINITY;
    uint32_t tile, tile_end;
    tiles_of(b, chunk, &tile, &tile_end);
#pragma unroll 1
    for (; tile < tile_end; tile++) {
      float score[16][4];
      uint32_t weight[8][4];
      score_tile<shape>(b, q_at, at, score);
      mask_tile(rows, chunk * CHUNK + tile * TILE, score);
      online_softmax<shape::n_sums>(scale, rows, score, weight, sums);
      add_values<shape>(b, weight, at, sums.out);
    }
    merge_chunk<shape, SINKS>(k, b, chunk, rows, sums);
  }
}

template <class shape>
static __device__ __forceinline__ bool open_block(const attention_kernel_args &k, uint8_t *memory, flash_block &b) {
  constexpr uint32_t slices = shape::dim / shape::dims;
  uint32_t at = blockIdx.x / k.turns, across = at % (k.op.kv.n_kv_heads * slices);
  b.item = k.items[at / (k.op.kv.n_kv_heads * slices)];
  if (b.item.n == 0) return false;                                     /* void */
  b.segment = k.op.segment[k.op.n_segments == 1 ? 0 : b.item.segment]; /* a single one need not wait for the item */
  b.rank = blockIdx.x % k.turns;
  b.kv_head = across / slices;
  b.slice = across % slices;
  b.ring = memory + shape::groups * shape::q_bytes;
  b.queue = b.ring + shape::ring * STAGE_BYTES;
  b.barriers = (flash_barriers *)(void *)(b.queue + shape::queue_bytes);
  uint32_t unused;
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first), &b.first, &unused);
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + b.item.n - 1), &unused, &b.end);
  if (threadIdx.x == 0) {
    for (int i = 0; i < shape::ring; i++)
      mbarrier_init(&b.barriers->full[i], GROUP_THREADS), mbarrier_init(&b.barriers->empty[i], 4 * shape::groups);
    mbarrier_init(&b.barriers->turn[0], GROUP_THREADS), mbarrier_init(&b.barriers->turn[1], GROUP_THREADS);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (k.turns > 1) {
    cluster_arrive();
    cluster_wait();
  }
  return true;
}

template <class shape, bool SINKS>
static __global__ void __launch_bounds__(shape::threads, 1)
    flash_kernel(const __grid_constant__ attention_kernel_args k) {
  launch_dependent_grids();
  extern __shared__ __align__(1024) uint8_t memory[];
  static_assert(sizeof(flash_barriers) <= BARRIERS_BYTES, "room");
  flash_block b;
  if (!open_block<shape>(k, memory, b)) return;
  if (threadIdx.x / GROUP_THREADS == shape::groups) {
    if constexpr (shape::groups == 2) setmaxnreg_dec<40>();
    if constexpr (shape::q8)
      convert_all<shape>(k, b);
    else
      copy_all<shape>(k, b);
  } else {
    if constexpr (shape::groups == 2) setmaxnreg_inc<232>();
    multiply_all<shape, SINKS>(k, b, memory);
  }
/* release_turn writes to the memory of a block that waits for it and has therefore not ended. The racecheck tool
 * does not see that, so in a build for it all blocks leave together. */
#ifdef WEFT_RACECHECK
  if (k.turns > 1) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
#endif
}

template <class shape, bool SINKS>
static void start_shape(cuda_device *d, const attention_kernel_args *args) {
  uint32_t n = args->n_items * args->op.kv.n_kv_heads * attention_slices(shape::dim) * args->turns;
  cuda_start_clusters(d, flash_kernel<shape, SINKS>, n, args->turns, shape::threads, shape::bytes, *args);
}

template <int D, bool SINKS = false>
static void start_flash(cuda_device *d, const attention_kernel_args *args, uint32_t n_groups) {
  if (args->op.kv.type == WEFT_TYPE_Q8_0)
    n_groups == 1 ? start_shape<flash_shape<D, 1, true>, SINKS>(d, args)
                  : start_shape<flash_shape<D, 2, true>, SINKS>(d, args);
  else
    n_groups == 1 ? start_shape<flash_shape<D, 1, false>, SINKS>(d, args)
                  : start_shape<flash_shape<D, 2, false>, SINKS>(d, args);
}

weft_status attention_flash(cuda_device *d, const attention_kernel_args *args, uint32_t n_groups) {
  switch (args->op.kv.head_dim) {
    case 64:
      args->op.sinks != NULL ? start_flash<64, true>(d, args, n_groups) : start_flash<64>(d, args, n_groups);
      break;
    case 128:
      start_flash<128>(d, args, n_groups);
      break;
    case 256:
      start_flash<256>(d, args, n_groups);
      break;
    default:
      start_flash<512>(d, args, n_groups);
      break;
  }
  return cuda_launched(d, "attention");
}

template <class shape, bool SINKS>
static cudaError_t ask_for_memory(void) {
  return cudaFuncSetAttribute(flash_kernel<shape, SINKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::bytes);
}

template <int D, bool SINKS = false>
static cudaError_t set_up(void) {
  cudaError_t error = ask_for_memory<flash_shape<D, 1, false>, SINKS>();
  if (error == cudaSuccess) error = ask_for_memory<flash_shape<D, 2, false>, SINKS>();
  if (error == cudaSuccess) error = ask_for_memory<flash_shape<D, 1, true>, SINKS>();
  return error == cudaSuccess ? ask_for_memory<flash_shape<D, 2, true>, SINKS>() : error;
}

weft_status attention_flash_setup(cuda_device *d) {
  cudaError_t error = set_up<64>();
  if (error == cudaSuccess) error = set_up<64, true>();
  if (error == cudaSuccess) error = set_up<128>();
  if (error == cudaSuccess) error = set_up<256>();
  if (error == cudaSuccess) error = set_up<512>();
  return cuda_judge(d, error, "setting up attention");
}
