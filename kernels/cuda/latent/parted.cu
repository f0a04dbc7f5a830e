/* SPDX-License-Identifier: MIT */
/* latent_attend of parted rows (parted.cuh): how a call is cut, and the kernel of single rows. On Hopper many rows of
 * bf16 go to parted_flash.cu.
 *
 * A block has up to 32 heads of one row, so that 20 heads read a row's positions once; where blocks are few, 16. It
 * goes through the tiles of its chunks. On Hopper, where there would be few blocks, those of a cluster take a chunk
 * each, leave (out, maximum, sum) in shared memory, and merge some of the dimensions each.
 *
 *   scores    four warps have a part of a score each, and half of the tile; queries stay in registers
 *   weights   sixteen lanes have a head, four positions each
 *   out       a warp has 64 dimensions of all heads */
#include <string.h>

#include "kernels/cuda/latent/parted.cuh"

enum {
  ROW_THREADS = 256,
  PARTS = 4, /* of a score */
  PART_STEPS = 9,
  STRIDE = PARTED_WIDTH * 2 + 16, /* bytes from row to row: eight rows lie in different banks */
  SCORE_STRIDE = PARTED_TILE + 8,
  VALUE_SUMS = 8,                 /* of a warp: 64 dimensions */
  OUT_STRIDE = PARTED_VALUES + 8, /* floats; of a chunk's out, where its rows were */
  CLUSTER_MOST = 8                /* blocks */
};

/* Of the kernel: how many times sixteen heads a block has, and tiles in shared memory. */
#ifdef WEFT_CUDA_PORTABLE
enum { BUFFERS = 1, WIDEST = 1 };
#else
enum { BUFFERS = 2, WIDEST = 2 };
#endif

template <int WIDE>
struct row_memory {
  uint8_t rows[BUFFERS][PARTED_TILE * STRIDE];
  float score[PARTS][16 * WIDE][SCORE_STRIDE];
  __nv_bfloat16 weight[16 * WIDE][PARTED_TILE + 8];
  float keep[16 * WIDE], most[16 * WIDE], sum[16 * WIDE]; /* of the chunk so far */
  float all_max[2][16 * WIDE], all_sum[2][16 * WIDE];     /* of the chunks before, as a cluster has merged them */
};
#ifdef WEFT_CUDA_PORTABLE
static_assert(sizeof(row_memory<WIDEST>) <= 99 << 10, "shared memory of a block on every card");
#endif

typedef struct row_block {
  parted_item item;
  const weft_latent_segment *segment;
  uint32_t row, n_positions, n_chunks, first_head; /* n_positions: that the row sees, from 0 on */
} row_block;

/* ---- a tile, into shared memory ---- */

/* Eight lanes have a row of bf16, four one of eight bits, which lies at a multiple of four bytes. Ends with the tile on
 * its way (bf16) or there (8 bits). Positions behind the last are zeros. */
template <weft_type T>
static __device__ __forceinline__ void copy_tile(const weft_latent_attend_args &a, const row_block &b, uint32_t first,
                                                 uint8_t *tile) {
  constexpr uint32_t LANES = T == WEFT_TYPE_BF16 ? 8 : 4, AT_ONCE = ROW_THREADS / LANES;
  const uint32_t lane = threadIdx.x % LANES;
#pragma unroll
  for (uint32_t i = 0; i < PARTED_TILE / AT_ONCE; i++) {
    const uint32_t row = i * AT_ONCE + threadIdx.x / LANES, position = first + row;
    const bool is_there = position < b.n_positions;
    const uint8_t *from = is_there ? parted_row(a, *b.segment, position) : (const uint8_t *)a.near.base;
    uint8_t *to = tile + row * STRIDE;
    if constexpr (T == WEFT_TYPE_BF16) {
#pragma unroll
      for (uint32_t j = 0; j < PARTED_WIDTH / 64; j++)
        cp_async_16_if(shared_address(to) + j * 128 + lane * 16, from + j * 128 + lane * 16, is_there);
    } else {
#pragma unroll
      for (uint32_t j = 0; j < PARTED_WIDTH / 64; j++) {
        const uint32_t unit = 4 * j + lane;
        uint32_t q[4] = {};
        float factor = 0.0f;
        if (is_there) {
#pragma unroll
          for (uint32_t w = 0; w < 4; w++) q[w] = ((const uint32_t *)(const void *)(from + 16 * unit))[w];
          factor = __half2float(((const __half *)(const void *)(from + PARTED_WIDTH))[unit / 2]);
        }
        latent_put_eight_bits(to + unit * 32, make_uint4(q[0], q[1], q[2], q[3]), factor);
      }
    }
  }
}

/* ---- the products ---- */

/* The queries of a warp: its part of a score, of the block's heads. Heads that do not exist are zeros. */
template <int WIDE>
struct warp_queries {
  uint32_t step[WIDE][PART_STEPS][4];
};

template <int WIDE>
static __device__ __forceinline__ void load_queries(const weft_latent_attend_args &a, const row_block &b,
                                                    warp_queries<WIDE> &q) {
  const uint32_t lane = threadIdx.x % 32, part = threadIdx.x / 32 % PARTS;
  const float *from = a.q + (uint64_t)b.row * a.q_stride + 128 * part + lane % 4 * 2;
#pragma unroll
  for (int w = 0; w < WIDE; w++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t head = b.first_head + 16 * w + lane / 4 + i % 2 * 8;
#pragma unroll
      for (int k = 0; k < PART_STEPS; k++) {
        const uint32_t at = k < 8 ? 16 * k : PARTED_VALUES - 112 * part; /* 16 part behind the values */
        float2 x = make_float2(0.0f, 0.0f);
        if (head < a.n_heads)
          x = *(const float2 *)(const void *)(from + (uint64_t)head * PARTED_WIDTH + at + i / 2 * 8);
        q.step[w][k][i] = pair_bf16(x.x, x.y);
      }
    }
}

/* Two eights of a row's dimensions, of eight rows. */
static __device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

/* A warp's part of the scores of half of the tile. */
template <int WIDE>
static __device__ __forceinline__ void make_scores(row_memory<WIDE> &m, const uint8_t *tile,
                                                   const warp_queries<WIDE> &q) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS, g = lane / 4;
  const uint32_t first = warp / PARTS * 32, c = lane % 4 * 2;
  const uint32_t row = shared_address(tile) + (first + lane % 8) * STRIDE;
  uint32_t from = row + part * 256 + lane / 8 * 16, behind = row + PARTED_VALUES * 2 + part * 32 + lane / 8 % 2 * 16;
#pragma unroll
  for (int n = 0; n < 4; n++, from += 8 * STRIDE, behind += 8 * STRIDE) {
    float sums[WIDE][4] = {};
    uint32_t b[4], last[2];
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      ldmatrix_x4(b, from + k * 32);
#pragma unroll
      for (int w = 0; w < WIDE; w++) mma_bf16(sums[w], q.step[w][k], b[0], b[1]);
#pragma unroll
      for (int w = 0; w < WIDE; w++) mma_bf16(sums[w], q.step[w][k + 1], b[2], b[3]);
    }
    ldmatrix_x2(last, behind);
#pragma unroll
    for (int w = 0; w < WIDE; w++) {
      mma_bf16(sums[w], q.step[w][8], last[0], last[1]);
      float *to = &m.score[part][16 * w + g][first + 8 * n + c];
      *(float2 *)(void *)to = make_float2(sums[w][0], sums[w][1]);
      *(float2 *)(void *)(to + 8 * SCORE_STRIDE) = make_float2(sums[w][2], sums[w][3]);
    }
  }
}

/* Weights of a tile of which n positions are seen. Sixteen lanes have a head of every sixteen. most: of the chunk so
 * far. */
template <int WIDE>
static __device__ __forceinline__ void make_weights(row_memory<WIDE> &m, float scale, uint32_t n, float (&most)[WIDE]) {
  const uint32_t first = threadIdx.x % 16 * 4;
#pragma unroll
  for (int w = 0; w < WIDE; w++) {
    const uint32_t head = 16 * w + threadIdx.x / 16;
    float4 part[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; p++) part[p] = *(const float4 *)(const void *)&m.score[p][head][first];
    float score[4], own = -INFINITY;
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
      auto at = [&](int p) { return e == 0 ? part[p].x : e == 1 ? part[p].y : e == 2 ? part[p].z : part[p].w; };
      const float all = __fadd_rn(__fadd_rn(__fadd_rn(at(0), at(1)), at(2)), at(3));
      score[e] = first + e < n ? all : -INFINITY;
      own = fmaxf(own, score[e]);
    }
    const float now = fmaxf(most[w], __fmul_rn(latent_max_of_16(own), scale)), anchor = anchor_of(now);
    if (threadIdx.x % 16 == 0) m.keep[head] = power_of_2(__fadd_rn(most[w], -anchor)), m.most[head] = now;
    most[w] = now;
    *(uint2 *)(void *)&m.weight[head][first] =
        make_uint2(pair_bf16(weight_of(score[0], scale, anchor), weight_of(score[1], scale, anchor)),
                   pair_bf16(weight_of(score[2], scale, anchor), weight_of(score[3], scale, anchor)));
  }
}

/* A warp's 64 dimensions of a chunk's out. */
template <int WIDE>
struct warp_sums {
  float out[WIDE][VALUE_SUMS][4], sum[WIDE][4]; /* sum: every column the same */
};

template <int WIDE>
static __device__ __forceinline__ void add_values(const row_memory<WIDE> &m, const uint8_t *tile, warp_sums<WIDE> &s) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, ones = 0x3F803F80u;
  const uint32_t weights = shared_address(&m.weight[lane % 16][lane / 16 * 8]);
  const uint32_t rows = shared_address(tile) + lane % 16 * STRIDE + warp * 128 + lane / 16 * 16;
#pragma unroll
  for (int w = 0; w < WIDE; w++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float keep = m.keep[16 * w + lane / 4 + 8 * h];
      s.sum[w][2 * h] = __fmul_rn(s.sum[w][2 * h], keep), s.sum[w][2 * h + 1] = __fmul_rn(s.sum[w][2 * h + 1], keep);
#pragma unroll
      for (int n = 0; n < VALUE_SUMS; n++) {
        s.out[w][n][2 * h] = __fmul_rn(s.out[w][n][2 * h], keep);
        s.out[w][n][2 * h + 1] = __fmul_rn(s.out[w][n][2 * h + 1], keep);
      }
    }
#pragma unroll
  for (int k = 0; k < PARTED_TILE / 16; k++) {
    uint32_t weight[WIDE][4];
#pragma unroll
    for (int w = 0; w < WIDE; w++) {
      ldmatrix_x4(weight[w], weights + k * 32 + w * 16 * sizeof m.weight[0]);
      mma_bf16(s.sum[w], weight[w], ones, ones);
    }
#pragma unroll
    for (int n = 0; n < VALUE_SUMS; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, rows + k * 16 * STRIDE + n * 16);
#pragma unroll
      for (int w = 0; w < WIDE; w++) {
        mma_bf16(s.out[w][n], weight[w], b[0], b[1]);
        mma_bf16(s.out[w][n + 1], weight[w], b[2], b[3]);
      }
    }
  }
}

template <int WIDE>
static __device__ __forceinline__ void clear(warp_sums<WIDE> &s) {
#pragma unroll
  for (int w = 0; w < WIDE; w++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      s.sum[w][i] = 0.0f;
#pragma unroll
      for (int n = 0; n < VALUE_SUMS; n++) s.out[w][n][i] = 0.0f;
    }
}

/* ---- what is stored ---- */

/* A thread's dimensions of a head, merged into what lies in memory. */
static __device__ __forceinline__ void merge_head(float *to, const float (&out)[VALUE_SUMS][4], int h, bool is_first,
                                                  float keep, float add, float times) {
  float2 one[VALUE_SUMS];
#pragma unroll
  for (int n = 0; n < VALUE_SUMS; n++)
    one[n] = is_first ? make_float2(0, 0) : __ldcg((const float2 *)(const void *)(to + 8 * n));
#pragma unroll
  for (int n = 0; n < VALUE_SUMS; n++)
    *(float2 *)(void *)(to + 8 * n) =
        make_float2(__fmul_rn(rescale_add(one[n].x, keep, out[n][2 * h], add), times),
                    __fmul_rn(rescale_add(one[n].y, keep, out[n][2 * h + 1], add), times));
}

/* The chunks so far, of the heads g and g + 8 of each sixteen. */
template <int WIDE>
struct merged_chunks {
  float max[WIDE][2], sum[WIDE][2];
};

template <int WIDE>
static __device__ __forceinline__ void merge_chunk(const parted_args &k, const row_block &b, const row_memory<WIDE> &m,
                                                   const warp_sums<WIDE> &s, bool is_first, bool is_last,
                                                   merged_chunks<WIDE> &all) {
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 64 + lane % 4 * 2;
#pragma unroll
  for (int w = 0; w < WIDE; w++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t own = 16 * w + lane / 4 + 8 * h, head = b.first_head + own;
      float keep, add;
      rescale_factors(all.max[w][h], m.most[own], &all.max[w][h], &keep, &add);
      all.sum[w][h] = rescale_add(all.sum[w][h], keep, s.sum[w][2 * h], add);
      if (head >= k.op.n_heads) continue;
      merge_head(k.op.out + (uint64_t)b.row * k.op.out_stride + (uint64_t)head * PARTED_VALUES + first, s.out[w], h,
                 is_first, keep, add, is_last ? __frcp_rn(all.sum[w][h]) : 1.0f);
    }
}

/* ---- the kernels ---- */

/* One tile: its copy is there, and the next one's may begin behind it. */
template <int WIDE>
static __device__ __forceinline__ void do_tile(row_memory<WIDE> &m, const uint8_t *tile, const warp_queries<WIDE> &q,
                                               float scale, uint32_t n, float (&most)[WIDE], warp_sums<WIDE> &s) {
  make_scores(m, tile, q);
  __syncthreads();
  make_weights(m, scale, n, most);
  __syncthreads();
  add_values(m, tile, s);
}

/* The tiles of a chunk. */
template <weft_type T, int WIDE>
static __device__ __forceinline__ void do_chunk(const parted_args &k, const row_block &b, uint32_t chunk,
                                                const warp_queries<WIDE> &q, row_memory<WIDE> &m, warp_sums<WIDE> &s) {
  const uint32_t begin = chunk * PARTED_CHUNK, n = min(b.n_positions - begin, (uint32_t)PARTED_CHUNK);
  const uint32_t n_tiles = (n + PARTED_TILE - 1) / PARTED_TILE;
  const float scale = k.op.scale * 1.44269504088896f;
  float most[WIDE];
  clear(s);
#pragma unroll
  for (int w = 0; w < WIDE; w++) most[w] = -INFINITY;
  copy_tile<T>(k.op, b, begin, m.rows[0]);
  cp_async_commit();
#pragma unroll 1
  for (uint32_t tile = 0; tile < n_tiles; tile++) {
    const uint32_t next = begin + (tile + 1) * PARTED_TILE;
    if (BUFFERS > 1 && tile + 1 < n_tiles) copy_tile<T>(k.op, b, next, m.rows[(tile + 1) % BUFFERS]);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    do_tile(m, m.rows[tile % BUFFERS], q, scale, n - tile * PARTED_TILE, most, s);
    __syncthreads();
    if (BUFFERS == 1 && tile + 1 < n_tiles) copy_tile<T>(k.op, b, next, m.rows[0]);
    if (BUFFERS == 1) cp_async_commit();
  }
}

static __device__ __forceinline__ bool open_block(const parted_args &k, uint32_t item, uint32_t n_heads, row_block &b) {
  b.item = k.items[item];
  if (b.item.n == 0) return false; /* void */
  b.segment = &k.op.segment[b.item.segment];
  b.row = b.segment->first_row + b.item.first;
  b.n_positions = b.segment->kv_len + b.item.first + 1;
  b.n_chunks = (b.n_positions + PARTED_CHUNK - 1) / PARTED_CHUNK;
  b.first_head = blockIdx.y * n_heads;
  return true;
}

template <weft_type T, int WIDE>
static __global__ void __launch_bounds__(ROW_THREADS, 1) row_kernel(const __grid_constant__ parted_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  row_memory<WIDE> &m = *(row_memory<WIDE> *)(void *)shared;
  row_block b;
  if (!open_block(k, blockIdx.x, 16 * WIDE, b)) return;
  warp_queries<WIDE> q;
  merged_chunks<WIDE> all;
#pragma unroll
  for (int i = 0; i < 2 * WIDE; i++) all.max[i / 2][i % 2] = -INFINITY, all.sum[i / 2][i % 2] = 0.0f;
  load_queries(k.op, b, q);
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < b.n_chunks; chunk++) {
    warp_sums<WIDE> s;
    do_chunk<T>(k, b, chunk, q, m, s);
    merge_chunk(k, b, m, s, chunk == 0, chunk + 1 == b.n_chunks, all);
  }
}

#ifndef WEFT_CUDA_PORTABLE

/* A chunk's results, where its rows were. */
template <int WIDE>
static __device__ __forceinline__ void leave_chunk(row_memory<WIDE> &m, const warp_sums<WIDE> &s) {
  static_assert(16 * WIDE * OUT_STRIDE * sizeof(float) <= sizeof m.rows, "room");
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 64 + lane % 4 * 2;
  float *to = (float *)(void *)m.rows;
#pragma unroll
  for (int w = 0; w < WIDE; w++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t own = 16 * w + lane / 4 + 8 * h;
      if (threadIdx.x < 32 && lane % 4 == 0) m.sum[own] = s.sum[w][2 * h];
#pragma unroll
      for (int n = 0; n < VALUE_SUMS; n++)
        *(float2 *)(void *)(to + own * OUT_STRIDE + first + 8 * n) =
            make_float2(s.out[w][n][2 * h], s.out[w][n][2 * h + 1]);
    }
}

/* Four dimensions of a head, of the n chunks that the cluster has computed, merged into what lies in memory. */
template <int WIDE>
static __device__ __forceinline__ void merge_four(const row_memory<WIDE> &m, uint32_t head, uint32_t d, uint32_t n,
                                                  bool is_first, bool is_last, float *to, float *max, float *sum) {
  float4 of_chunk[CLUSTER_MOST];
  float most[CLUSTER_MOST], sums[CLUSTER_MOST];
  float2 one = make_float2(0, 0), next = make_float2(0, 0);
#pragma unroll
  for (uint32_t c = 0; c < CLUSTER_MOST; c++) {
    if (c >= n) break;
    of_chunk[c] = load_four_from_cluster((const float *)(const void *)m.rows + head * OUT_STRIDE + d, c);
    most[c] = load_from_cluster(&m.most[head], c), sums[c] = load_from_cluster(&m.sum[head], c);
  }
  if (!is_first) one = __ldcg((const float2 *)(const void *)to), next = __ldcg((const float2 *)(const void *)(to + 2));
#pragma unroll
  for (uint32_t c = 0; c < CLUSTER_MOST; c++) {
    if (c >= n) break;
    float keep, add;
    rescale_factors(*max, most[c], max, &keep, &add);
    *sum = rescale_add(*sum, keep, sums[c], add);
    one = make_float2(rescale_add(one.x, keep, of_chunk[c].x, add), rescale_add(one.y, keep, of_chunk[c].y, add));
    next = make_float2(rescale_add(next.x, keep, of_chunk[c].z, add), rescale_add(next.y, keep, of_chunk[c].w, add));
  }
  const float times = is_last ? __frcp_rn(*sum) : 1.0f;
  *(float2 *)(void *)to = make_float2(__fmul_rn(one.x, times), __fmul_rn(one.y, times));
  *(float2 *)(void *)(to + 2) = make_float2(__fmul_rn(next.x, times), __fmul_rn(next.y, times));
}

/* The block's dimensions of the chunks from `base` on. */
template <int WIDE>
static __device__ __forceinline__ void merge_chunks(const parted_args &k, const row_block &b, row_memory<WIDE> &m,
                                                    uint32_t base, uint32_t rank) {
  const uint32_t n_blocks = k.cluster, turn = base / n_blocks % 2, pieces = PARTED_VALUES / 4 / n_blocks;
  const uint32_t n = min(n_blocks, b.n_chunks - base);
  for (uint32_t i = threadIdx.x; i < 16 * WIDE * pieces; i += ROW_THREADS) {
    const uint32_t own = i / pieces, head = b.first_head + own, d = (rank * pieces + i % pieces) * 4;
    if (head >= k.op.n_heads) continue;
    float max = base == 0 ? -INFINITY : m.all_max[turn][own], sum = base == 0 ? 0.0f : m.all_sum[turn][own];
    merge_four(m, own, d, n, base == 0, base + n == b.n_chunks,
               k.op.out + (uint64_t)b.row * k.op.out_stride + (uint64_t)head * PARTED_VALUES + d, &max, &sum);
    if (i % pieces == 0) m.all_max[turn ^ 1][own] = max, m.all_sum[turn ^ 1][own] = sum;
  }
}

template <weft_type T, int WIDE>
static __global__ void __launch_bounds__(ROW_THREADS, 1) cluster_kernel(const __grid_constant__ parted_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  row_memory<WIDE> &m = *(row_memory<WIDE> *)(void *)shared;
  const uint32_t rank = blockIdx.x % k.cluster;
  row_block b;
  if (!open_block(k, blockIdx.x / k.cluster, 16 * WIDE, b)) return;
  warp_queries<WIDE> q;
  load_queries(k.op, b, q);
#pragma unroll 1
  for (uint32_t base = 0; base < b.n_chunks; base += k.cluster) {
    if (base + rank < b.n_chunks) {
      warp_sums<WIDE> s;
      do_chunk<T>(k, b, base + rank, q, m, s);
      leave_chunk(m, s);
    }
    cluster_arrive();
    cluster_wait();
    merge_chunks(k, b, m, base, rank);
    cluster_arrive(); /* no block writes over what another one reads, or ends */
    cluster_wait();
  }
}

#endif

/* ---- how a call is cut ---- */

typedef struct parted_cut {
  uint32_t n_rows, n_flash; /* items of the kernels of rows, of parted_flash */
  uint32_t cluster;         /* blocks of a row */
  bool wide;                /* a block has up to 16 WIDEST heads; else 16 */
} parted_cut;

/* Whether parted_flash takes a segment: it has more rows than a run with drafts, and the call fills half of the card
 * with its items. */
enum { FEW_ROWS = 8 };
static bool is_many(const weft_latent_segment *s) {
  return s->n_rows > FEW_ROWS;
}
static bool flash_pays(const cuda_device *d, const weft_latent_attend_args *a) {
#ifdef WEFT_CUDA_PORTABLE
  (void)d, (void)a;
  return false;
#else
  uint64_t n = 0;
  if (a->near.type != WEFT_TYPE_BF16 || (uintptr_t)a->q % 16 != 0 || a->q_stride % 4 != 0) return false;
  for (uint32_t s = 0; s < a->n_segments; s++)
    if (is_many(&a->segment[s])) n += (uint64_t)a->segment[s].n_rows * a->n_heads;
  return n / PARTED_QUERIES >= d->n_multiprocessors / 2;
#endif
}

/* As many blocks to a row as find a multiprocessor each. */
static void choose_blocks(const cuda_device *d, const weft_latent_attend_args *a, uint64_t n_rows, parted_cut *cut) {
  cut->cluster = 1;
  cut->wide = WIDEST > 1 && a->n_heads > 16;
#ifndef WEFT_CUDA_PORTABLE
  if (n_rows * cuda_ceil(a->n_heads, 16) * CLUSTER_MOST <= d->n_multiprocessors) cut->wide = false;
  const uint64_t n_blocks = n_rows * cuda_ceil(a->n_heads, cut->wide ? 16 * WIDEST : 16);
  while (cut->cluster < CLUSTER_MOST && n_blocks * cut->cluster * 2 <= d->n_multiprocessors) cut->cluster *= 2;
#else
  (void)d, (void)n_rows;
#endif
}

static parted_cut count_cut(const cuda_device *d, const weft_latent_attend_args *a) {
  parted_cut cut;
  memset(&cut, 0, sizeof cut);
  const bool flash = flash_pays(d, a);
  for (uint32_t s = 0; s < a->n_segments; s++) {
    if (flash && is_many(&a->segment[s]))
      cut.n_flash += cuda_ceil(a->segment[s].n_rows * a->n_heads, PARTED_QUERIES);
    else
      cut.n_rows += a->segment[s].n_rows;
  }
  choose_blocks(d, a, cut.n_rows, &cut);
  cut.n_rows = weft_device_bucket(cut.n_rows);
  cut.n_flash = weft_device_bucket(cut.n_flash);
  return cut;
}

/* The last rows of a segment first: they take longest. */
static void fill_items(const weft_latent_attend_args *a, const parted_cut *cut, parted_item *rows, parted_item *flash) {
  for (uint32_t s = 0; s < a->n_segments; s++) {
    const weft_latent_segment *one = &a->segment[s];
    const bool is_flash = cut->n_flash > 0 && is_many(one);
    const uint32_t size = is_flash ? (uint32_t)PARTED_QUERIES : 1,
                   n = is_flash ? one->n_rows * a->n_heads : one->n_rows;
    parted_item **to = is_flash ? &flash : &rows;
    for (uint32_t i = cuda_ceil(n, size); i-- > 0;) *(*to)++ = {s, i * size, n - i * size < size ? n - i * size : size};
  }
}

static weft_status make_tables(cuda_device *d, const weft_latent_attend_args *a, parted_cut *cut, parted_args *rows,
                               parted_args *flash) {
  *cut = count_cut(d, a);
  const uint64_t segments_bytes = cuda_align((uint64_t)a->n_segments * sizeof *a->segment);
  const uint64_t n_bytes = segments_bytes + ((uint64_t)cut->n_rows + cut->n_flash) * sizeof(parted_item);
  uint8_t *plan = cuda_plan_begin(d, n_bytes);
  if (plan == NULL) return WEFT_E_TOO_LARGE;
  memset(plan, 0, n_bytes); /* padding too, because plans are compared byte by byte */
  latent_copy_segments(a->segment, a->n_segments, (weft_latent_segment *)(void *)plan);
  parted_item *items = (parted_item *)(void *)(plan + segments_bytes);
  fill_items(a, cut, items, items + cut->n_rows);
  const uint8_t *there = NULL;
  const weft_status status = cuda_plan_end(d, n_bytes, &there);
  memset(rows, 0, sizeof *rows);
  rows->op = *a;
  rows->op.segment = (const weft_latent_segment *)(const void *)there;
  rows->items = (const parted_item *)(const void *)(there + segments_bytes);
  rows->n_items = cut->n_rows, rows->cluster = cut->cluster;
  *flash = *rows;
  flash->items += cut->n_rows, flash->n_items = cut->n_flash;
  const uint32_t shape[] = {cut->n_rows, cut->n_flash, cut->cluster, cut->wide};
  if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, shape, sizeof shape);
  return status;
}

weft_status parted_walk(cuda_device *d, const weft_latent_attend_args *args) {
  parted_cut cut;
  parted_args rows, flash;
  return make_tables(d, args, &cut, &rows, &flash);
}

/* ---- the op ---- */

bool parted_fits(const weft_latent_attend_args *a) {
  const weft_latent_view *v = &a->near;
  if (v->width != PARTED_WIDTH || a->n_values != PARTED_VALUES || a->far.base != NULL || a->sinks != NULL) return false;
  if (v->type == WEFT_TYPE_F32 || a->window != UINT32_MAX || !(a->scale > 0.0f)) return false;
  if (((uintptr_t)v->base | v->page_bytes | v->offset) % 16 != 0) return false;
  return (((uintptr_t)a->q | (uintptr_t)a->out) % 8 | a->q_stride % 2 | a->out_stride % 2) == 0;
}

template <weft_type T, int WIDE>
static void start_rows(cuda_device *d, const parted_args *args) {
  const uint32_t n_bytes = (uint32_t)sizeof(row_memory<WIDE>), n_groups = cuda_ceil(args->op.n_heads, 16 * WIDE);
#ifndef WEFT_CUDA_PORTABLE
  if (args->cluster > 1) {
    cuda_start_clusters(d, cluster_kernel<T, WIDE>, dim3(args->n_items * args->cluster, n_groups), args->cluster,
                        ROW_THREADS, n_bytes, *args);
    return;
  }
#endif
  cuda_allow_shared(row_kernel<T, WIDE>, n_bytes);
  cuda_start(d, row_kernel<T, WIDE>, dim3(args->n_items, n_groups), ROW_THREADS, n_bytes, *args);
}

template <weft_type T>
static weft_status attend_rows(cuda_device *d, const parted_args *args, bool wide) {
  if (wide)
    start_rows<T, WIDEST>(d, args);
  else
    start_rows<T, 1>(d, args);
  return cuda_launched(d, "latent_attend");
}

weft_status parted_attend(cuda_device *d, const weft_latent_attend_args *args) {
  parted_cut cut;
  parted_args rows, flash;
  weft_status status = make_tables(d, args, &cut, &rows, &flash);
#ifndef WEFT_CUDA_PORTABLE
  if (status == WEFT_OK && cut.n_flash > 0) status = parted_flash(d, &flash);
#endif
  if (status != WEFT_OK || cut.n_rows == 0) return status;
  return args->near.type == WEFT_TYPE_BF16 ? attend_rows<WEFT_TYPE_BF16>(d, &rows, cut.wide)
                                           : attend_rows<WEFT_TYPE_Q8_0>(d, &rows, cut.wide);
}

#ifndef WEFT_CUDA_PORTABLE

template <weft_type T, int WIDE>
static cudaError_t allow_both(void) {
  const cudaError_t error = latent_allow(row_kernel<T, WIDE>, sizeof(row_memory<WIDE>));
  return error == cudaSuccess ? latent_allow(cluster_kernel<T, WIDE>, sizeof(row_memory<WIDE>)) : error;
}

weft_status parted_setup(cuda_device *d) {
  cudaError_t error = allow_both<WEFT_TYPE_BF16, 1>();
  if (error == cudaSuccess) error = allow_both<WEFT_TYPE_BF16, WIDEST>();
  if (error == cudaSuccess) error = allow_both<WEFT_TYPE_Q8_0, 1>();
  if (error == cudaSuccess) error = allow_both<WEFT_TYPE_Q8_0, WIDEST>();
  const weft_status status = cuda_judge(d, error, "setting up attention over latent rows");
  return status == WEFT_OK ? parted_flash_setup(d) : status;
}

#endif
