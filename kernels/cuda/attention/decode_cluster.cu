/* SPDX-License-Identifier: MIT */
/* Flash decoding of up to sixteen queries over keys of bf16 or 8 bits, for heads of 64, 128, 256 and 512, where there
 * are few work items: a cluster of blocks shares a chunk of 1024 positions through distributed shared memory. Each
 * block scores some of the chunk's keys; then each adds the values of all keys in some of the dimensions. In between
 * they send each other what all need:
 *
 *   scores    of the block's keys (registers); largest of each tile -> all blocks
 *   weights   online softmax: relative to the largest so far, as bf16 -> all blocks
 *   values    out (registers) += weights x values, tiles ascending
 *
 * Keys, and then values, come by async copies through a ring of stages in shared memory, as they are stored; those of 8
 * bits become bf16 in the registers of the warp that multiplies them (rows_q8.cuh). Where there would be few
 * clusters, every chunk is an item of its own (split-KV), and attention_combine merges the chunks by the same
 * functions. Positions that no query sees are not read. */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/rows_q8.cuh"
#include "kernels/cuda/mbarrier.cuh"

enum {
  DECODE_THREADS = 256,
  DECODE_WARPS = 8,
  N_TILES = CHUNK / TILE,
  WEIGHT_STRIDE = CHUNK + 8,
  KEY_UNIT = 64,
  DECODE_BLOCKS_MAX = 8
};

template <int D, int RING, bool Q8>
struct decode_shape {
  static constexpr int dim = D, ring = RING;
  static constexpr bool q8 = Q8;
  static constexpr bool early = !Q8 || q8_early(D);              /* keys may be copied before the inputs are there */
  static constexpr int blocks = D >= 256 ? 8 : D == 128 ? 4 : 2; /* of a cluster */
  static constexpr int keys = CHUNK / blocks;                    /* scored by a block */
  static constexpr int tiles = keys / TILE;
  static constexpr int key_units = keys / KEY_UNIT;                        /* even */
  static constexpr int dims = D / blocks;                                  /* of out, in a block */
  static constexpr int warps = dims / 8;                                   /* that add values */
  static constexpr int value_unit = D == 512 ? 512 : D == 256 ? 256 : 128; /* keys */
  static constexpr int value_units = CHUNK / value_unit;
  static constexpr int vector = Q8 ? q8_bytes(D) : D * 2; /* bytes of a key, as it is stored */
  static constexpr int slice = Q8 ? dims : dims * 2;      /* bytes of a value that a block takes, without factors */
  static constexpr int q_stride = D + 8;
  static constexpr int key_stride = Q8 ? q8_stride(q8_bytes(D)) : D * 2 + 16; /* bytes, in a stage */
  static constexpr int value_stride = Q8 ? q8_stride(dims + q8_piece(D)) : dims * 2 + 16;
  static constexpr int key_bytes = KEY_UNIT * key_stride, value_bytes = value_unit * value_stride;
  static constexpr int stage = key_bytes > value_bytes ? key_bytes : value_bytes;
};

template <class shape>
struct decode_memory {
  __nv_bfloat16 q[DECODE_QUERIES * shape::q_stride];
  __nv_bfloat16 weight[DECODE_QUERIES * WEIGHT_STRIDE];
  uint8_t ring[shape::ring][shape::stage];
  float tile_max[N_TILES][DECODE_QUERIES];
  float warp_max[shape::tiles][DECODE_WARPS][DECODE_QUERIES];
  uint32_t page[CHUNK];
  uint64_t has_maxima, has_weights; /* of all blocks */
};

template <class shape>
struct decode_block {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, rank, first, end; /* positions that some query sees */
  uint32_t base, low, high;           /* of the chunk; what is seen of it, [low, high) */
  uint32_t fresh;                     /* keys of the chunk from here on are not there before the inputs are */
  decode_memory<shape> *m;
};

/* A lane's scores: the warp has eight keys of every unit and 16 queries. */
template <class shape>
struct decode_scores {
  float of[shape::key_units][4];
};

/* Loads the part of the block table that the chunk needs into shared memory. */
template <class shape>
static __device__ __forceinline__ void load_pages(const attention_kernel_args &k, const decode_block<shape> &b) {
  bool pool = b.segment.stores == WEFT_STORES_POOL;
  uint32_t end = pool ? b.base + b.high : min(b.base + b.high, b.segment.kv_len), low = b.base + b.low;
  if (low >= end) return;
  uint32_t block = low >> k.block_shift, last = (end - 1) >> k.block_shift, base = b.base >> k.block_shift;
  for (uint32_t i = block + threadIdx.x; i <= last; i += DECODE_THREADS) b.m->page[i - base] = b.segment.table[i];
}

/* Starts copies of N bytes of each of a warp's rows of bf16. */
template <int OWN, int N>
static __device__ __forceinline__ void copy_rows(uint32_t to, const uint64_t *at, const uint32_t *wanted,
                                                 const uint32_t *seen) {
  constexpr int steps = OWN * N / 512, rows = N < 512 ? 512 / N : 1; /* of a step */
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < steps; step++) {
    uint32_t part = (step * 32 + lane) % (N / 16),
             row = rows == 1 ? step / (N / 512 > 0 ? N / 512 : 1) : step * rows + lane / (N / 16);
    int i = step * rows / (N < 512 ? 32 : 32 * (N / 512));
    uint64_t from = __shfl_sync(0xFFFFFFFFu, at[i], row % 32);
    if ((wanted[i] >> row % 32 & 1) == 0) continue;
    cp_async_16_if(to + row * (N + 16) + part * 16, (const uint8_t *)(uintptr_t)from + part * 16,
                   (seen[i] >> row % 32 & 1) != 0);
  }
}

/* Starts copies of COUNT keys of the chunk, or of the block's slice of their values, from first_key on. A warp copies
 * an eighth of them, and each of its lanes knows where some of them lie. Keys that no query sees become zeros. fresh:
 * copies only keys that this step stores; else only all others. */
template <class shape, int COUNT, bool VALUES>
static __device__ __forceinline__ void copy_keys(const attention_kernel_args &k, const decode_block<shape> &b,
                                                 uint32_t first_key, uint8_t *to, bool fresh) {
  constexpr int own = COUNT / DECODE_WARPS, rows = own < 32 ? own : 32, known = own / rows;
  constexpr int stride = VALUES ? shape::value_stride : shape::key_stride;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, skipped = VALUES ? b.rank * shape::slice : 0;
  uint64_t at[known];
  uint32_t seen[known], wanted[known];
#pragma unroll
  for (int i = 0; i < known; i++) {
    uint32_t key = first_key + warp * own + i * 32 + lane % rows;
    bool ok = key >= b.low && key < b.high;
    at[i] = (uint64_t)(uintptr_t)k.op.kv.base;
    if (ok) {
      uint32_t page = is_own_key(b.segment, b.base + key) ? 0 : b.m->page[key >> k.block_shift];
      at[i] =
          (uint64_t)(uintptr_t)key_at(k.op, b.segment, b.kv_head, b.base + key, page, VALUES, shape::vector) + skipped;
    }
    seen[i] = __ballot_sync(0xFFFFFFFFu, ok);
    wanted[i] = __ballot_sync(0xFFFFFFFFu, (ok && key >= b.fresh) == fresh);
  }
  uint32_t base = shared_address(to) + warp * own * stride;
  if constexpr (!shape::q8) {
    copy_rows<own, VALUES ? shape::slice : shape::dim * 2>(base, at, wanted, seen);
  } else {
    constexpr int piece = q8_piece(shape::dim), tail = VALUES ? piece : q8_bytes(shape::dim) - shape::dim;
    uint32_t tail_at = shape::dim - skipped + (VALUES ? skipped / WEFT_KV_Q8_BLOCK * 2 / piece * piece : 0);
#pragma unroll
    for (int i = 0; i < known; i++)
      q8_copy_rows<piece, VALUES ? shape::slice : shape::dim, tail, rows, stride>(base + i * 32 * stride, at[i],
                                                                                  tail_at, wanted[i], seen[i]);
  }
}

/* Starts the copies of unit `unit` of the chunk. The block's keys come first, then the values of all keys. Copies
 * nothing of a unit that no query sees. */
template <class shape>
static __device__ __forceinline__ void copy_unit(const attention_kernel_args &k, const decode_block<shape> &b,
                                                 uint32_t unit, bool fresh) {
  uint8_t *to = b.m->ring[unit % shape::ring];
  uint32_t low = fresh ? max(b.low, b.fresh) : b.low;
  if (unit < shape::key_units) {
    uint32_t key = b.rank * shape::keys + unit * KEY_UNIT;
    if (key < b.high && key + KEY_UNIT > low) copy_keys<shape, KEY_UNIT, false>(k, b, key, to, fresh);
  } else if (unit < shape::key_units + shape::value_units) {
    uint32_t key = (unit - shape::key_units) * shape::value_unit;
    if (key < b.high && key + shape::value_unit > low) copy_keys<shape, shape::value_unit, true>(k, b, key, to, fresh);
  }
}

/* The same, as one group of asynchronous copies. */
template <class shape>
static __device__ __forceinline__ void copy_next(const attention_kernel_args &k, const decode_block<shape> &b,
                                                 uint32_t unit) {
  copy_unit<shape>(k, b, unit, false);
  cp_async_commit();
}

/* Starts the copies of the first units of the first chunk: of what is older than the step before the inputs are there,
 * of the rest after that. Where they may not begin before, all wait. */
template <class shape>
static __device__ __forceinline__ void copy_first(const attention_kernel_args &k, decode_block<shape> &b) {
  b.fresh = max(b.segment.n_old, b.base) - b.base;
  if (!shape::early) wait_for_prior_grids();
#pragma unroll 1
  for (int unit = 0; unit < shape::ring; unit++) copy_unit<shape>(k, b, unit, false);
  wait_for_prior_grids();
#pragma unroll 1
  for (int unit = 0; unit < shape::ring; unit++) {
    copy_unit<shape>(k, b, unit, true);
    cp_async_commit();
  }
  b.fresh = UINT32_MAX;
}

/* Computes the scores of the warp's eight keys of two units: two chains over the head dimension, side by side, so that
 * one need not wait for the other. */
template <class shape>
static __device__ __forceinline__ void score_units(const decode_block<shape> &b, uint32_t unit,
                                                   decode_scores<shape> &score) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, k_at[2];
  uint32_t q_at = shared_address(b.m->q + lane % 16 * shape::q_stride + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    k_at[i] =
        shared_address(b.m->ring[(unit + i) % shape::ring]) + (warp * 8 + lane % 8) * shape::key_stride + lane / 8 * 16;
    score.of[unit + i][0] = score.of[unit + i][1] = score.of[unit + i][2] = score.of[unit + i][3] = 0.0f;
  }
  if constexpr (shape::q8) {
#pragma unroll 2
    for (int d = 0; d < shape::dim; d += 64) {
      uint32_t v[2][4];
      float factor[2][2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint8_t *row = b.m->ring[(unit + i) % shape::ring] + (warp * 8 + lane / 4) * shape::key_stride;
        ldmatrix_x4(v[i], k_at[i] + d);
        factor[i][0] = q8_factor(row + shape::dim, d / 32), factor[i][1] = q8_factor(row + shape::dim, d / 32 + 1);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t w[4];
        ldmatrix_x4(w, q_at + d * 2 + j * 32);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          uint32_t low, high;
          q8_key(v[i][j], factor[i][j / 2], low, high);
          mma_bf16(score.of[unit + i], w, low, high);
        }
      }
    }
  } else {
#pragma unroll 4
    for (int d = 0; d < shape::dim; d += 32) {
      uint32_t w[2][4], v[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        ldmatrix_x4(w[i], q_at + d * 2 + i * 32);
        ldmatrix_x4(v[i], k_at[i] + d * 2);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
        mma_bf16(score.of[unit + i % 2], w[i / 2], v[i % 2][i / 2 * 2], v[i % 2][i / 2 * 2 + 1]);
    }
  }
}

/* Which key of the chunk score e of a unit belongs to. */
template <class shape>
static __device__ __forceinline__ uint32_t key_of(const decode_block<shape> &b, uint32_t unit, uint32_t e) {
  return b.rank * shape::keys + unit * KEY_UNIT + threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2 + e % 2;
}

/* Makes scores of what a row does not see -inf, and sends the largest score of each of the block's tiles to all blocks
 * of the cluster. */
template <class shape>
static __device__ __forceinline__ void share_maxima(const attention_kernel_args &k, const decode_block<shape> &b,
                                                    decode_scores<shape> &score) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = lane / 4 + 8 * h, first = 0, end = 0;
    if (r < b.item.n) find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + r), &first, &end);
#pragma unroll
    for (int t = 0; t < shape::tiles; t++) {
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int unit = 2 * t + i / 2, e = 2 * h + i % 2;
        uint32_t position = b.base + key_of<shape>(b, unit, e);
        if (position < first || position >= end) score.of[unit][e] = -INFINITY;
        most = fmaxf(most, score.of[unit][e]);
      }
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
      if (lane % 4 == 0) b.m->warp_max[t][warp][r] = most;
    }
  }
  __syncthreads();
  cluster_wait(); /* the others are there, and done with what is overwritten now */
  constexpr uint32_t n = shape::tiles * DECODE_QUERIES;
  for (uint32_t i = threadIdx.x; i < shape::blocks * n; i += DECODE_THREADS) {
    uint32_t t = i % n / DECODE_QUERIES, r = i % DECODE_QUERIES;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) most = fmaxf(most, b.m->warp_max[t][w][r]);
    st_async(&b.m->tile_max[b.rank * shape::tiles + t][r], i / n, __float_as_uint(most), &b.m->has_maxima);
  }
}

/* Online softmax: writes the weights of the block's keys to its own shared memory, and sends them to the other
 * blocks, 16 bytes at a time. */
template <class shape>
static __device__ __forceinline__ void online_softmax(float scale, const decode_block<shape> &b,
                                                      const decode_scores<shape> &score) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = lane / 4 + 8 * h;
    float most = -INFINITY;
    for (uint32_t t = 0; t < b.rank * shape::tiles; t++) most = fmaxf(most, b.m->tile_max[t][r]);
#pragma unroll
    for (int t = 0; t < shape::tiles; t++) {
      most = fmaxf(most, b.m->tile_max[b.rank * shape::tiles + t][r]);
      float anchor = anchor_of(__fmul_rn(most, scale));
#pragma unroll
      for (int unit = 2 * t; unit < 2 * t + 2; unit++) {
        *(uint32_t *)(void *)(b.m->weight + r * WEIGHT_STRIDE + key_of<shape>(b, unit, 0)) = pair_bf16(
            weight_of(score.of[unit][2 * h], scale, anchor), weight_of(score.of[unit][2 * h + 1], scale, anchor));
      }
    }
  }
  __syncthreads();
  constexpr uint32_t n = shape::keys / 8; /* pieces of a row */
  for (uint32_t i = threadIdx.x; i < b.item.n * n; i += DECODE_THREADS) {
    const __nv_bfloat16 *piece = b.m->weight + i / n * WEIGHT_STRIDE + b.rank * shape::keys + i % n * 8;
    uint4 bits = *(const uint4 *)(const void *)piece;
#pragma unroll
    for (uint32_t step = 1; step < shape::blocks; step++)
      st_async_4(piece, (b.rank + step) % shape::blocks, bits, &b.m->has_weights);
  }
}

/* (max, sum, out) of a warp's eight dimensions, rows g and g + 8. */
typedef struct decode_sums {
  float most[2], out[4], sum[4];
} decode_sums;

/* A lane's registers of the operands of 32 keys' values, from row `row` of a stage on. */
template <class shape>
static __device__ __forceinline__ void load_values(const decode_block<shape> &b, uint32_t stage, uint32_t row,
                                                   uint32_t (&v)[4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint8_t *from = b.m->ring[stage] + row * shape::value_stride;
  uint32_t at = shared_address(from) + lane * shape::value_stride + (shape::q8 ? warp / 2 : warp) * 16;
  ldmatrix_x4_trans(v, at);
  if constexpr (shape::q8) {
    uint32_t block = (b.rank * shape::dims + warp * 8) / WEFT_KV_Q8_BLOCK % (q8_piece(shape::dim) / 2);
    from += lane % 4 * 2 * shape::value_stride + shape::dims;
#pragma unroll
    for (int i = 0; i < 4; i++, from += 8 * shape::value_stride)
      v[i] = q8_values(v[i], warp % 2, q8_factor(from, block), q8_factor(from + shape::value_stride, block));
  }
}

/* Adds a tile of values, which begins at row `row` of a stage, after rescaling what there was to the new maximum. */
template <class shape>
static __device__ __forceinline__ void add_tile(float scale, const decode_block<shape> &b, uint32_t tile,
                                                uint32_t stage, uint32_t row, decode_sums &s) {
  uint32_t lane = threadIdx.x % 32;
  uint32_t p_at = shared_address(b.m->weight + lane % 16 * WEIGHT_STRIDE + tile * TILE + lane / 16 * 8);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float most = fmaxf(s.most[h], __fmul_rn(b.m->tile_max[tile][lane / 4 + 8 * h], scale));
    float keep = power_of_2(__fadd_rn(s.most[h], -anchor_of(most)));
    s.most[h] = most;
    s.out[2 * h] = __fmul_rn(s.out[2 * h], keep), s.out[2 * h + 1] = __fmul_rn(s.out[2 * h + 1], keep);
    s.sum[2 * h] = __fmul_rn(s.sum[2 * h], keep), s.sum[2 * h + 1] = __fmul_rn(s.sum[2 * h + 1], keep);
  }
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (int key = 0; key < TILE; key += 32) {
    uint32_t w[2][4], v[4];
    ldmatrix_x4(w[0], p_at + key * 2);
    ldmatrix_x4(w[1], p_at + key * 2 + 32);
    load_values(b, stage, row + key, v);
    mma_bf16(s.out, w[0], v[0], v[1]);
    mma_bf16(s.sum, w[0], ones, ones);
    mma_bf16(s.out, w[1], v[2], v[3]);
    mma_bf16(s.sum, w[1], ones, ones);
  }
}

/* A thread's part of (max, sum, out) of its two rows, over the chunks so far. */
typedef struct decode_rows {
  float all_max[2], all_sum[2], all[1][4];
} decode_rows;

static __device__ __forceinline__ void merge_chunk(const decode_sums &s, decode_rows &rows) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float keep, add;
    rescale_factors(rows.all_max[h], s.most[h], &rows.all_max[h], &keep, &add);
    rows.all_sum[h] = rescale_add(rows.all_sum[h], keep, s.sum[2 * h], add);
    float *all = &rows.all[0][2 * h];
    all[0] = rescale_add(all[0], keep, s.out[2 * h], add);
    all[1] = rescale_add(all[1], keep, s.out[2 * h + 1], add);
  }
}

template <class shape, bool SINKS>
static __device__ __forceinline__ void store_rows(const attention_kernel_args &k, const decode_block<shape> &b,
                                                  const decode_rows &rows) {
  if (threadIdx.x / 32 >= shape::warps) return;
  store_decode<shape::dim, 1, SINKS, shape::q8>(k, b.item, b.segment, b.kv_head, b.rank * shape::dims, rows.all,
                                                rows.all_max, rows.all_sum);
}

/* Computes one chunk. All blocks have called cluster_arrive before, which says that the chunk before may be
 * overwritten. */
template <class shape>
static __device__ __forceinline__ void do_chunk(const attention_kernel_args &k, decode_block<shape> &b, uint32_t chunk,
                                                decode_sums &s) {
  float scale = k.op.scale * 1.44269504088896f;
  b.base = chunk * CHUNK;
  b.low = max(b.first, b.base) - b.base, b.high = min(b.end, b.base + CHUNK) - b.base;
  load_pages<shape>(k, b);
  if (threadIdx.x == 0) {
    mbarrier_expect(&b.m->has_maxima, N_TILES * DECODE_QUERIES * 4);
    mbarrier_expect(&b.m->has_weights, b.item.n * (CHUNK - shape::keys) * 2);
  }
  __syncthreads();
  if (chunk == b.item.chunk) {
    copy_first<shape>(k, b);
    load_queries<shape::dim, DECODE_QUERIES, DECODE_THREADS>(
        k, b.item, b.segment, b.kv_head, 0, [&](uint32_t row, uint32_t piece, uint2 x) {
          __nv_bfloat16 *to = b.m->q + row * shape::q_stride;
          if (shape::q8)
            q8_put(piece, x, [&](uint32_t place, uint32_t word) { *(uint32_t *)(void *)(to + place) = word; });
          else
            *(uint2 *)(void *)(to + piece * 4) = x;
        });
  } else {
#pragma unroll 1
    for (int unit = 0; unit < shape::ring; unit++) copy_next<shape>(k, b, unit);
  }
  decode_scores<shape> score;
#pragma unroll
  for (int unit = 0; unit < shape::key_units; unit += 2) {
    cp_async_wait<shape::ring - 2>();
    __syncthreads();
    score_units<shape>(b, unit, score);
    __syncthreads();
    copy_next<shape>(k, b, unit + shape::ring);
    copy_next<shape>(k, b, unit + 1 + shape::ring);
  }
  uint32_t parity = (chunk - b.item.chunk) & 1;
  share_maxima<shape>(k, b, score);
  mbarrier_wait_cluster(&b.m->has_maxima, parity);
  online_softmax<shape>(scale, b, score);
  mbarrier_wait_cluster(&b.m->has_weights, parity);
#pragma unroll 1
  for (int unit = shape::key_units; unit < shape::key_units + shape::value_units; unit++) {
    cp_async_wait<shape::ring - 1>();
    __syncthreads();
    uint32_t first = (unit - shape::key_units) * (shape::value_unit / TILE);
    for (uint32_t t = 0; t < shape::value_unit / TILE && threadIdx.x / 32 < shape::warps; t++) {
      uint32_t key = (first + t) * TILE;
      if (key < b.high && key + TILE > b.low) add_tile<shape>(scale, b, first + t, unit % shape::ring, t * TILE, s);
    }
    __syncthreads();
    copy_next<shape>(k, b, unit + shape::ring);
  }
}

template <class shape, bool SINKS>
static __global__ void __launch_bounds__(DECODE_THREADS, 1)
    decode_cluster_kernel(const __grid_constant__ attention_kernel_args k) {
  extern __shared__ __align__(128) uint8_t memory[];
  decode_block<shape> b;
  b.m = (decode_memory<shape> *)(void *)memory;
  if (threadIdx.x == 0) {
    mbarrier_init(&b.m->has_maxima), mbarrier_init(&b.m->has_weights);
    mbarrier_init_fence();
  }
  __syncwarp();
  launch_dependent_grids();
  uint32_t at = blockIdx.x / shape::blocks;
  b.item = k.items[at / k.op.kv.n_kv_heads];
  if (b.item.n == 0) return;                                           /* void: all blocks of the cluster */
  b.segment = k.op.segment[k.op.n_segments == 1 ? 0 : b.item.segment]; /* a single one need not wait for the item */
  b.kv_head = at % k.op.kv.n_kv_heads;
  b.rank = blockIdx.x % shape::blocks;
  b.fresh = UINT32_MAX;
  uint32_t unused;
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first), &b.first, &unused);
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + b.item.n - 1), &unused, &b.end);
  decode_rows rows;
  rows.all_max[0] = rows.all_max[1] = -INFINITY;
  rows.all_sum[0] = rows.all_sum[1] = rows.all[0][0] = rows.all[0][1] = rows.all[0][2] = rows.all[0][3] = 0.0f;
#pragma unroll 1
  for (uint32_t chunk = b.item.chunk; chunk < b.item.chunk_end; chunk++) {
    decode_sums s;
    s.most[0] = s.most[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) s.out[i] = s.sum[i] = 0.0f;
    if (chunk == b.item.chunk)
      cluster_arrive_first();
    else
      cluster_arrive();
    do_chunk<shape>(k, b, chunk, s);
    merge_chunk(s, rows);
  }
  store_rows<shape, SINKS>(k, b, rows);
}

/* The kernels, in the order of n_attention_clusters. */
enum { DECODE_64, DECODE_128, DECODE_256_DEEP, DECODE_256, DECODE_512 };

uint32_t attention_decode_cluster_room(const cuda_device *d, uint32_t head_dim) {
  return d->n_attention_clusters[head_dim == 64    ? DECODE_64
                                 : head_dim == 128 ? DECODE_128
                                 : head_dim == 256 ? DECODE_256
                                                   : DECODE_512];
}

template <int D, int RING, bool SINKS = false>
static void start_decode(cuda_device *d, const attention_kernel_args *args) {
  using plain = decode_shape<D, RING, false>;
  using q8 = decode_shape<D, RING, true>;
  uint32_t n = args->n_items * args->op.kv.n_kv_heads * plain::blocks;
  if (args->op.kv.type == WEFT_TYPE_Q8_0)
    cuda_start_clusters(d, decode_cluster_kernel<q8, SINKS>, n, q8::blocks, DECODE_THREADS, sizeof(decode_memory<q8>),
                        *args);
  else
    cuda_start_clusters(d, decode_cluster_kernel<plain, SINKS>, n, plain::blocks, DECODE_THREADS,
                        sizeof(decode_memory<plain>), *args);
}

weft_status attention_decode_cluster(cuda_device *d, const attention_kernel_args *args) {
  /* One block to a multiprocessor with a longer ring, or two blocks with a short one. */
  bool deep = args->n_items * args->op.kv.n_kv_heads <= d->n_attention_clusters[DECODE_256_DEEP];
  switch (args->op.kv.head_dim) {
    case 64:
      args->op.sinks != NULL ? start_decode<64, 4, true>(d, args) : start_decode<64, 4>(d, args);
      break;
    case 128:
      start_decode<128, 4>(d, args);
      break;
    case 256:
      deep ? start_decode<256, 4>(d, args) : start_decode<256, 2>(d, args);
      break;
    default:
      start_decode<512, 2>(d, args);
      break;
  }
  return cuda_launched(d, "attention");
}

template <class shape, bool SINKS>
static cudaError_t ask_for_memory(void) {
  return cudaFuncSetAttribute(decode_cluster_kernel<shape, SINKS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(decode_memory<shape>));
}

/* Asks the card, too, how many clusters of the kernel it holds at once. They may be fewer than multiprocessors /
 * blocks, because a cluster must lie within one group of multiprocessors. Those over keys of 8 bits need less memory,
 * so it holds at least as many. */
template <int D, int RING, bool SINKS = false>
static weft_status set_up(cuda_device *d, int kernel) {
  using plain = decode_shape<D, RING, false>;
  using q8 = decode_shape<D, RING, true>;
  static_assert(sizeof(decode_memory<q8>) <= sizeof(decode_memory<plain>), "room");
  cudaError_t error = ask_for_memory<plain, SINKS>();
  if (error == cudaSuccess) error = ask_for_memory<q8, SINKS>();
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = plain::blocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plain::blocks);
  config.blockDim = dim3(DECODE_THREADS);
  config.dynamicSmemBytes = sizeof(decode_memory<plain>);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int n = 0;
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(&n, decode_cluster_kernel<plain, SINKS>, &config);
  d->n_attention_clusters[kernel] = n > 0 ? (uint32_t)n : 1;
  return cuda_judge(d, error, "setting up attention");
}

weft_status attention_decode_cluster_setup(cuda_device *d) {
  weft_status status = set_up<64, 4, true>(d, DECODE_64);
  if (status == WEFT_OK) status = set_up<64, 4>(d, DECODE_64);
  if (status == WEFT_OK) status = set_up<128, 4>(d, DECODE_128);
  if (status == WEFT_OK) status = set_up<256, 2>(d, DECODE_256);
  if (status == WEFT_OK) status = set_up<256, 4>(d, DECODE_256_DEEP);
  return status == WEFT_OK ? set_up<512, 2>(d, DECODE_512) : status;
}
