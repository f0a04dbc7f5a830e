/* SPDX-License-Identifier: MIT */
/* Attention of up to sixteen queries over one chunk of keys each, where there are so few such items that one block for
 * each would leave most of the card idle: what Hopper's set does with clusters of blocks (attention/decode_cluster.cu).
 * The numerics are those of attention.cuh. A kernel has blocks of two kinds:
 *
 *   scores   a block has GROUP keys of a chunk, and writes their scores, of which those that a row does not see are
 *            -inf, to scratch
 *   values   a block has VALUE_DIMS dimensions of out. It makes the weights of the whole chunk from the scores, as each
 *            of the other blocks does, while its values are on their way, and adds these tile by tile
 *
 * A block asks for all of its keys or values at once, so each waits for memory once. Blocks that make scores come first
 * and wait for no other one; those that add values ask for them, and then wait until the scores of their item and key
 * head are counted, in memory of the card that is zero before and after. */
#include "kernels/cuda/portable/counters.cuh"
#include "kernels/cuda/portable/decode_tiles.h"
#include "kernels/cuda/portable/tile.cuh"

enum { THREADS = 128, WARPS = 4, GROUP = 64, GROUPS = CHUNK / GROUP, TILES = CHUNK / TILE };
enum { WARP_KEYS = GROUP / WARPS, MOSTS = CHUNK / WARP_KEYS /* of a row */ };
static_assert(DECODE_TILES_FLOATS == DECODE_QUERIES * (CHUNK + MOSTS), "scratch");
enum { COUNTED = 512 /* items and key heads that are counted */, VALUES_WAITED = 1 << 16 /* of a block of values */ };
enum { VALUE_DIMS = 32, VALUE_PIECES = VALUE_DIMS / 8, WEIGHT_BYTES = 2 * TILE, NO_PAGE = -1 };

/* An item and key head, the positions that some query of it sees, and the chunk's tiles that have such positions:
 * [base, base_end). */
typedef struct decode_place {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, first, end, base, base_end;
} decode_place;

/* number: of the item and key head. False: the item is void. */
static __device__ __forceinline__ bool find_place(const attention_kernel_args &k, uint32_t number, decode_place &at) {
  at.item = k.items[number / k.op.kv.n_kv_heads];
  if (at.item.n == 0) return false;
  at.segment = k.op.segment[at.item.segment];
  at.kv_head = number % k.op.kv.n_kv_heads;
  uint32_t unused;
  find_visible(at.segment, k.op.window, row_of_query(k, at.item.first), &at.first, &unused);
  find_visible(at.segment, k.op.window, row_of_query(k, at.item.first + at.item.n - 1), &unused, &at.end);
  at.base = max(at.first, at.item.chunk * CHUNK) / TILE * TILE;
  at.base_end = min(at.end, at.item.chunk_end * CHUNK);
  return true;
}

static __device__ uint32_t blocks_ended[COUNTED_DEVICES][COUNTED];

/* Waits for the scores of n_blocks blocks. */
static __device__ __forceinline__ void wait_for_scores(const uint32_t *ended, uint32_t n_blocks) {
  if (threadIdx.x == 0)
    while (counted(ended) % VALUES_WAITED < n_blocks) continue;
  __syncthreads();
}

/* The scores of an item and key head: DECODE_QUERIES rows of a chunk. */
static __device__ __forceinline__ float *scores_of(const attention_kernel_args &k, uint32_t number) {
  uint64_t n_part = (k.part_stride * k.op.kv.n_kv_heads + 3) / 4 * 4;
  return k.part + n_part + (uint64_t)number * DECODE_TILES_FLOATS;
}

/* Behind them, of each row: the largest score of every WARP_KEYS keys. */
static __device__ __forceinline__ float *most_of(const attention_kernel_args &k, uint32_t number) {
  return scores_of(k, number) + DECODE_QUERIES * CHUNK;
}

static __device__ __forceinline__ int32_t find_page(const attention_kernel_args &k, const decode_place &at,
                                                    uint32_t position) {
  bool seen = position >= at.first && position < at.end;
  return seen ? (int32_t)page_of_key(at.segment, k.block_shift, position) : NO_PAGE;
}

/* key_at, for a page that was looked up. vector: bytes of a key. */
static __device__ __forceinline__ const uint8_t *stored_at(const attention_kernel_args &k, const decode_place &at,
                                                           uint32_t position, int32_t page, bool is_value,
                                                           uint32_t vector) {
  const weft_attention_args &a = k.op;
  if (is_own_key(at.segment, position)) {
    uint64_t row = (uint64_t)(at.segment.first_row - a.own_first) + (position - at.segment.kv_len);
    return (const uint8_t *)(is_value ? a.own_v : a.own_k) + (row * a.kv.n_kv_heads + at.kv_head) * vector;
  }
  uint32_t in_block = position & ((1u << k.block_shift) - 1);
  return (const uint8_t *)a.kv.base + (uint32_t)page * a.kv.page_bytes + (is_value ? a.kv.v_offset : a.kv.k_offset) +
         ((at.kv_head << k.block_shift) + in_block) * vector;
}

/* ---- scores ---------------------------------------------------------------------------------------------- */

template <int D>
struct score_memory {
  uint8_t key[GROUP * 2 * D];        /* 16-byte pieces exchanged by row % 8 */
  uint8_t q[DECODE_QUERIES * 2 * D]; /* likewise */
  int32_t page[GROUP];
};

template <int D>
static __device__ __forceinline__ void copy_keys(const attention_kernel_args &k, const decode_place &at, uint32_t base,
                                                 score_memory<D> *m) {
  constexpr uint32_t pieces = D / 8; /* of a key */
  uint32_t to = shared_address(m->key);
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < GROUP * pieces; i += THREADS) {
    uint32_t key = i / pieces, piece = i % pieces;
    int32_t page = m->page[key];
    const uint8_t *from = (const uint8_t *)k.op.kv.base;
    if (page != NO_PAGE) from = stored_at(k, at, base + key, page, false, 2 * D) + piece * 16;
    cp_async_16_if(to + key * (2 * D) + (piece ^ (key & 7)) * 16, from, page != NO_PAGE);
  }
  cp_async_commit();
}

/* A warp has sixteen keys: two chains of products over the head dimension, one for each eight keys. */
template <int D>
static __device__ __forceinline__ void multiply_keys(const score_memory<D> *m, float (&score)[2][4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, q_at = shared_address(m->q);
  uint32_t k_at = shared_address(m->key) + (warp * 16 + lane % 8 + lane / 16 * 8) * (2 * D);
#pragma unroll
  for (int i = 0; i < 8; i++) score[i / 4][i % 4] = 0.0f;
#pragma unroll 8
  for (uint32_t piece = 0; piece < D / 8; piece += 2) {
    uint32_t q[4], key[4];
    ldmatrix_x4(q, q_at + operand_a_at(0, 2 * D, piece));
    ldmatrix_x4(key, k_at + ((piece + lane / 8 % 2) ^ (lane & 7)) * 16);
    mma_bf16(score[0], q, key[0], key[1]);
    mma_bf16(score[1], q, key[2], key[3]);
  }
}

/* Stores the scores of the warp's keys, which are those of the chunk from in_chunk on, and the largest of each row. */
static __device__ __forceinline__ void store_scores(const attention_kernel_args &k, const decode_place &at,
                                                    uint32_t number, uint32_t in_chunk, float (&score)[2][4]) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t r = lane / 4 + 8 * h, first = 0, end = 0;
    if (r < at.item.n) find_visible(at.segment, k.op.window, row_of_query(k, at.item.first + r), &first, &end);
    float most = -INFINITY;
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
      uint32_t own = in_chunk + 8 * n + lane % 4 * 2, position = at.item.chunk * CHUNK + own;
      float2 both = make_float2(score[n][2 * h], score[n][2 * h + 1]);
      if (position < first || position >= end) both.x = -INFINITY;
      if (position + 1 < first || position + 1 >= end) both.y = -INFINITY;
      most = fmaxf(most, fmaxf(both.x, both.y));
      if (r < at.item.n) *(float2 *)(void *)(scores_of(k, number) + r * CHUNK + own) = both;
    }
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    if (r < at.item.n && lane % 4 == 0) most_of(k, number)[r * MOSTS + in_chunk / WARP_KEYS] = most;
  }
}

/* Block `index` of those that make scores. */
template <int D>
static __device__ __forceinline__ void make_scores(const attention_kernel_args &k, uint32_t index, score_memory<D> *m,
                                                   uint32_t *ended) {
  decode_place at;
  uint32_t number = index / GROUPS;
  if (!find_place(k, number, at)) return;
  uint32_t base = at.item.chunk * CHUNK + index % GROUPS * GROUP;
  if (base / TILE * TILE < at.base || base / TILE * TILE >= at.base_end) return;
  if (threadIdx.x < GROUP) m->page[threadIdx.x] = find_page(k, at, base + threadIdx.x);
  __syncthreads();
  bool is_old = base + GROUP <= at.segment.n_old; /* and may be read before the inputs are there */
  if (!is_old) wait_for_prior_grids();
  copy_keys<D>(k, at, base, m);
  if (is_old) wait_for_prior_grids();
  load_queries<D, DECODE_QUERIES, THREADS>(
      k, at.item, at.segment, at.kv_head, 0, [&](uint32_t row, uint32_t piece, uint2 x) {
        *(uint2 *)(void *)(m->q + row * (2 * D) + ((piece / 2) ^ (row & 7)) * 16 + piece % 2 * 8) = x;
      });
  cp_async_wait<0>();
  __syncthreads();
  float score[2][4];
  multiply_keys<D>(m, score);
  store_scores(k, at, number, index % GROUPS * GROUP + threadIdx.x / 32 * WARP_KEYS, score);
  count_block(ended + number);
}

/* ---- values ---------------------------------------------------------------------------------------------- */

struct value_memory {
  uint8_t value[CHUNK * 2 * VALUE_DIMS]; /* value_place */
  union {
    uint8_t weight[TILES][DECODE_QUERIES * WEIGHT_BYTES]; /* 16-byte pieces exchanged by row % 8 */
    int32_t page[CHUNK];                                  /* of each key, before the weights are there */
  };
  float keep[TILES][DECODE_QUERIES]; /* the factor of what was added before the tile */
  float most[DECODE_QUERIES];        /* of all scores, scaled */
};

/* Where a piece of 16 bytes of a key's values lies. Two keys share 128 bytes, whose pieces are exchanged so that eight
 * neighbouring keys ask no bank twice. */
static __device__ __forceinline__ uint32_t value_place(uint32_t key, uint32_t piece) {
  uint32_t line = key / 2;
  return line * 128 + ((key % 2 * VALUE_PIECES + piece) ^ (line & 7)) * 16;
}

/* Starts the copies of keys [first, end) of the chunk. */
static __device__ __forceinline__ void copy_values(const attention_kernel_args &k, const decode_place &at,
                                                   uint32_t vector, uint32_t offset, uint32_t first, uint32_t end,
                                                   value_memory *m) {
  uint32_t to = shared_address(m->value), chunk = at.item.chunk * CHUNK;
#pragma unroll 4
  for (uint32_t i = first * VALUE_PIECES + threadIdx.x; i < end * VALUE_PIECES; i += THREADS) {
    uint32_t key = i / VALUE_PIECES, piece = i % VALUE_PIECES;
    int32_t page = m->page[key];
    const uint8_t *from = (const uint8_t *)k.op.kv.base;
    if (page != NO_PAGE) from = stored_at(k, at, chunk + key, page, true, vector) + offset + piece * 16;
    cp_async_16_if(to + value_place(key, piece), from, page != NO_PAGE);
  }
}

/* The same of all keys that are seen; of old ones before the inputs are there. */
static __device__ __forceinline__ void copy_all_values(const attention_kernel_args &k, const decode_place &at,
                                                       uint32_t vector, uint32_t offset, value_memory *m) {
  uint32_t chunk = at.item.chunk * CHUNK, first = at.base - chunk,
           end = min(at.base_end - chunk + TILE - 1, CHUNK) / TILE * TILE,
           old = at.segment.n_old > chunk ? min(at.segment.n_old - chunk, end) : 0;
  for (uint32_t key = threadIdx.x; key < CHUNK; key += THREADS) m->page[key] = find_page(k, at, chunk + key);
  __syncthreads();
  copy_values(k, at, vector, offset, first, old, m);
  wait_for_prior_grids();
  copy_values(k, at, vector, offset, max(first, old), end, m);
  cp_async_commit();
  __syncthreads(); /* pages have been read */
}

/* Tiles [first, end) of the chunk. */
typedef struct tile_range {
  uint32_t first, end;
} tile_range;

/* What rows that the item does not have weigh. */
static __device__ __forceinline__ void clear_weights(uint32_t n, value_memory *m) {
  constexpr uint32_t pieces = WEIGHT_BYTES / 16;
  uint32_t first = n * pieces, of_tile = DECODE_QUERIES * pieces - first;
  for (uint32_t i = threadIdx.x; i < TILES * of_tile; i += THREADS)
    *(uint4 *)(void *)(m->weight[i / of_tile] + (first + i % of_tile) * 16) = make_uint4(0, 0, 0, 0);
  if (threadIdx.x >= n && threadIdx.x < DECODE_QUERIES) {
    m->most[threadIdx.x] = -INFINITY;
#pragma unroll
    for (uint32_t tile = 0; tile < TILES; tile++) m->keep[tile][threadIdx.x] = 0.0f;
  }
}

/* The largest score of a row up to the end of tile lane / 4, scaled, of what a lane has of its largest ones. */
static __device__ __forceinline__ float run_most(float2 two, float scale, tile_range tiles) {
  uint32_t lane = threadIdx.x % 32;
  bool seen = lane / 4 >= tiles.first && lane / 4 < tiles.end;
  float most = seen ? fmaxf(two.x, two.y) : -INFINITY;
  most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
  most = __fmul_rn(fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2)), scale);
#pragma unroll
  for (uint32_t step = 4; step < 32; step *= 2) {
    float before = __shfl_up_sync(0xFFFFFFFFu, most, step);
    if (lane >= step) most = fmaxf(most, before);
  }
  return most;
}

/* A warp makes the weights of every WARPS-th tile, and of every WARPS-th row what each tile's largest score makes of
 * the sums before it. */
static __device__ __forceinline__ void make_weights(const float *scores, const float *mosts, float scale, uint32_t n,
                                                    tile_range tiles, value_memory *m) {
  constexpr uint32_t own = TILES / WARPS;
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 2
  for (uint32_t r = 0; r < n; r++) {
    float4 v[own];
#pragma unroll
    for (uint32_t i = 0; i < own; i++) {
      uint32_t tile = warp + i * WARPS;
      v[i] = make_float4(0, 0, 0, 0);
      if (tile >= tiles.first && tile < tiles.end)
        v[i] = __ldcg((const float4 *)(const void *)(scores + r * CHUNK + tile * TILE + lane * 4));
    }
    float most = run_most(__ldcg((const float2 *)(const void *)(mosts + r * MOSTS + 2 * lane)), scale, tiles);
    float before = __shfl_up_sync(0xFFFFFFFFu, most, 4);
    if (lane < 4) before = -INFINITY;
    if (warp == r % WARPS && lane % 4 == 0) {
      m->keep[lane / 4][r] = power_of_2(__fadd_rn(before, -anchor_of(most)));
      if (lane / 4 == tiles.end - 1) m->most[r] = most;
    }
#pragma unroll
    for (uint32_t i = 0; i < own; i++) {
      uint32_t tile = warp + i * WARPS;
      float anchor = anchor_of(__shfl_sync(0xFFFFFFFFu, most, tile * 4));
      uint2 pairs = make_uint2(pair_bf16(weight_of(v[i].x, scale, anchor), weight_of(v[i].y, scale, anchor)),
                               pair_bf16(weight_of(v[i].z, scale, anchor), weight_of(v[i].w, scale, anchor)));
      *(uint2 *)(void *)(m->weight[tile] + r * WEIGHT_BYTES + ((lane / 2) ^ (r & 7)) * 16 + lane % 2 * 8) = pairs;
    }
  }
}

/* Adds the values of a tile in the warp's eight dimensions, and the weights. */
static __device__ __forceinline__ void add_tile(uint32_t tile, const value_memory *m, float (&out)[1][4],
                                                float (&sum)[4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t w_at = shared_address(m->weight[tile]), v_at = shared_address(m->value);
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    float keep = m->keep[tile][lane / 4 + 8 * h];
    out[0][2 * h] = __fmul_rn(out[0][2 * h], keep), out[0][2 * h + 1] = __fmul_rn(out[0][2 * h + 1], keep);
    sum[2 * h] = __fmul_rn(sum[2 * h], keep), sum[2 * h + 1] = __fmul_rn(sum[2 * h + 1], keep);
  }
#pragma unroll
  for (uint32_t key = 0; key < TILE; key += 32) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, v_at + value_place(tile * TILE + key + lane, warp));
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      uint32_t w[4];
      ldmatrix_x4(w, w_at + operand_a_at(0, WEIGHT_BYTES, key / 8 + 2 * half));
      mma_bf16(sum, w, ones, ones);
      mma_bf16(out[0], w, v[2 * half], v[2 * half + 1]);
    }
  }
}

/* Block `index` of those that add values. */
template <int D, bool SINKS>
static __device__ __forceinline__ void add_values(const attention_kernel_args &k, uint32_t index, value_memory *m,
                                                  uint32_t *ended) {
  constexpr uint32_t slices = D / VALUE_DIMS;
  decode_place at;
  uint32_t number = index / slices, slice = index % slices;
  if (!find_place(k, number, at)) return;
  const float *scores = scores_of(k, number);
  float scale = k.op.scale * 1.44269504088896f;
  const uint32_t chunk = at.item.chunk * CHUNK;
  const tile_range tiles = {(at.base - chunk) / TILE, (at.base_end - chunk + TILE - 1) / TILE};
  copy_all_values(k, at, 2 * D, slice * VALUE_DIMS * 2, m);
  clear_weights(at.item.n, m);
  wait_for_scores(ended + number, (tiles.end - tiles.first) * (TILE / GROUP));
  make_weights(scores, most_of(k, number), scale, at.item.n, tiles, m);
  cp_async_wait<0>();
  __syncthreads();
  uint32_t waited = threadIdx.x == 0 ? atomicAdd(ended + number, VALUES_WAITED) / VALUES_WAITED + 1 : 0;
  float out[1][4] = {{0.0f, 0.0f, 0.0f, 0.0f}}, sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, all_max[2], all_sum[2];
#pragma unroll 1
  for (uint32_t tile = tiles.first; tile < tiles.end; tile++) add_tile(tile, m, out, sum);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    float keep, add;
    rescale_factors(-INFINITY, m->most[threadIdx.x % 32 / 4 + 8 * h], &all_max[h], &keep, &add);
    all_sum[h] = rescale_add(0.0f, keep, sum[2 * h], add);
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) out[0][2 * h + e] = rescale_add(0.0f, keep, out[0][2 * h + e], add);
  }
  store_decode<D, 1, SINKS, false>(k, at.item, at.segment, at.kv_head, slice * VALUE_DIMS, out, all_max, all_sum);
  if (waited == slices) ended[number] = 0; /* all have waited */
}

template <int D, bool SINKS>
static __global__ void __launch_bounds__(THREADS)
    decode_kernel(const __grid_constant__ attention_kernel_args k, uint32_t n_score_blocks, uint32_t device) {
  launch_dependent_grids();
  extern __shared__ __align__(1024) uint8_t memory[];
  uint32_t *ended = blocks_ended[device];
  if (blockIdx.x < n_score_blocks)
    make_scores<D>(k, blockIdx.x, (score_memory<D> *)(void *)memory, ended);
  else
    add_values<D, SINKS>(k, blockIdx.x - n_score_blocks, (value_memory *)(void *)memory, ended);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

template <int D, bool SINKS = false>
static void start(cuda_device *d, const attention_kernel_args *args) {
  static_assert(sizeof(score_memory<D>) <= PORTABLE_SHARED_BYTES_MOST, "shared memory");
  static_assert(sizeof(value_memory) <= PORTABLE_SHARED_BYTES_MOST, "shared memory");
  constexpr uint32_t n_bytes = sizeof(score_memory<D>) > sizeof(value_memory) ? (uint32_t)sizeof(score_memory<D>)
                                                                              : (uint32_t)sizeof(value_memory);
  uint32_t n = args->n_items * args->op.kv.n_kv_heads;
  cuda_start(d, decode_kernel<D, SINKS>, n * (GROUPS + D / VALUE_DIMS), THREADS, n_bytes, *args, n * GROUPS,
             counters_device(d));
}

uint32_t attention_decode_cluster_room(const cuda_device *d, uint32_t) {
  if (counters_device(d) == COUNTED_DEVICES) return 0;
  return d->n_multiprocessors < COUNTED ? d->n_multiprocessors : (uint32_t)COUNTED;
}

weft_status attention_decode_tiles(cuda_device *d, const attention_kernel_args *args) {
  switch (args->op.kv.head_dim) {
    case 64:
      args->op.sinks != NULL ? start<64, true>(d, args) : start<64>(d, args);
      break;
    case 128:
      start<128>(d, args);
      break;
    case 256:
      start<256>(d, args);
      break;
    default:
      start<512>(d, args);
      break;
  }
  return cuda_launched(d, "attention");
}
