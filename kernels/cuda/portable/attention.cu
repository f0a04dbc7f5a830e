/* SPDX-License-Identifier: MIT */
/* Attention of the portable set over keys in bf16 and in 8 bits, for heads of 64, 128, 256 and 512, with mma.sync:
 * flash attention of many queries and flash decoding of up to sixteen, by one text. The numerics are those of
 * attention.cuh.
 *
 *   block     some queries of an item: 64 of them, of heads of 512 it is 32, in decoding 16; there it has half of the
 *             dimensions of out of such heads, so that there are more blocks, and of those of 256 where items are few
 *   stages    a ring of 16 KiB each, which all threads copy (tile.cuh): of every tile of 128 keys first the keys, 64
 *             dimensions at a time, then the values, some keys at a time. Keys that are older than the step are asked
 *             for before the inputs are there. What is stored in 8 bits is copied to a queue as it is, and a thread
 *             makes bf16 of what it copied itself in one of two stages (rows_q8.cuh)
 *   warps     ROWS groups of them share the queries, 16 M each; in a group a warp has an equal share of a tile's keys
 *             when scores are made, and of the dimensions when values are added. The warps of a group tell one another
 *             the largest scores and the weights through shared memory */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/rows_q8.cuh"
#include "kernels/cuda/portable/tile.cuh"

enum { THREADS = 256, WARPS = 8, PANEL = 64, STAGE_BYTES = TILE * PANEL * 2 };
enum { KEY_IS_OWN = 1, KEY_IS_UNSEEN = 2, KEY_MARKS = 3 /* in the address of a key, which is a multiple of 4 */ };
enum { PIECES = TILE * PANEL / 16 / THREADS /* of sixteen numbers that a thread copies of a stage in 8 bits */ };

/* M: tiles of 16 queries of a warp. ROWS: groups of warps. STAGES - 1 are on their way at once. DIMS: dimensions of out
 * that a block has, at most. Q8: keys are in 8 bits. */
template <int D_, int M_, int ROWS_, int STAGES_, int DIMS = 256, bool Q8 = false>
struct attention_shape {
  static constexpr int D = D_, M = M_, ROWS = ROWS_, STAGES = STAGES_;
  static constexpr bool q8 = Q8;
  static constexpr int slots = Q8 ? STAGES - 1 : STAGES; /* that copies go to: of the queue, or stages */
  static constexpr int key_bytes = Q8 ? q8_bytes(D) : 2 * D;
  static constexpr int queries = 16 * M * ROWS, shares = WARPS / ROWS; /* warps of a group */
  static constexpr int dims = D < DIMS ? D : DIMS, slices = D / dims;  /* of out, in a block */
  static constexpr int key_stages = D / PANEL, value_stages = dims / PANEL, value_keys = TILE / value_stages;
  static constexpr int own_keys = TILE / shares, n_keys = own_keys / 8; /* of a warp; in eights */
  static constexpr int own_dims = dims / shares, n_dims = own_dims / 8;
  static constexpr int row_bytes = 2 * D, weight_bytes = 2 * TILE; /* of a query */
};

/* A slot of what a stage is in 8 bits: each thread's pieces, and the two factors of which one is theirs. */
typedef struct attention_slot {
  uint4 numbers[PIECES][THREADS];
  __half2 factors[PIECES][THREADS];
} attention_slot;

template <class S>
struct attention_memory {
  uint8_t stage[S::q8 ? 2 : S::STAGES][STAGE_BYTES];
  uint8_t q[S::queries * S::row_bytes];         /* 16-byte pieces exchanged by row % 8 */
  uint8_t weight[S::queries * S::weight_bytes]; /* likewise */
  float most[S::shares][S::queries];            /* of a warp's keys */
  uint64_t key[2][TILE]; /* addresses, with marks, of the keys of the tile that is copied, and of the next one */
};

/* Behind it, where keys are in 8 bits. */
template <class S>
static __device__ __forceinline__ attention_slot *queue_of(attention_memory<S> *m) {
  return (attention_slot *)(void *)(m + 1);
}

template <class S>
struct attention_block {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, slice, first, end; /* positions that some query sees */
  uint32_t base, base_end;             /* of tiles */
  attention_memory<S> *m;
};

/* ---- copies ---------------------------------------------------------------------------------------------- */

/* The stage that is copied next: stage `stage` of the tile from position `base` on. */
typedef struct copy_place {
  uint32_t base, stage, slot, parity; /* parity: which half of `key` has the tile's */
} copy_place;

/* Finds the keys of a tile, once for all its stages; those that no query of the block sees are nowhere. */
template <class S>
static __device__ __forceinline__ void look_up(const attention_kernel_args &k, const attention_block<S> &b,
                                               uint32_t base, uint32_t parity) {
  const weft_attention_args &a = k.op;
  uint32_t position = base + threadIdx.x, block = 1u << k.block_shift;
  if (threadIdx.x >= TILE) return;
  uint64_t key = (uint64_t)a.kv.base | KEY_IS_UNSEEN;
  if (position >= b.first && position < b.end && is_own_key(b.segment, position)) {
    uint64_t row = (uint64_t)(b.segment.first_row - a.own_first) + (position - b.segment.kv_len);
    key = ((uint64_t)a.own_k + (row * a.kv.n_kv_heads + b.kv_head) * S::key_bytes) | KEY_IS_OWN;
  } else if (position >= b.first && position < b.end) {
    uint64_t page = page_of_key(b.segment, k.block_shift, position);
    key = (uint64_t)a.kv.base + a.kv.k_offset + page * a.kv.page_bytes +
          (b.kv_head * block + (position & (block - 1))) * (uint64_t)S::key_bytes;
  }
  b.m->key[parity][threadIdx.x] = key;
}

/* Starts the copies of a stage: KEYS keys from key `first` of the tile on, PIECES pieces of 16 bytes each from byte
 * `offset` of the key or value on. A value lies as far behind its key as all do, in the pool and of one's own. */
template <int KEYS, int PIECES, class S>
static __device__ __forceinline__ void copy_part(const attention_kernel_args &k, const attention_block<S> &b,
                                                 const copy_place &at, uint32_t first, bool is_value, uint32_t offset) {
  static_assert(KEYS * PIECES * 16 == STAGE_BYTES, "a stage");
  constexpr uint32_t step = THREADS / PIECES; /* from a key of a thread to its next one */
  const weft_attention_args &a = k.op;
  uint32_t piece = threadIdx.x % PIECES, own = threadIdx.x / PIECES;
  uint32_t to = shared_address(b.m->stage[at.slot]);
  uint64_t further = offset + piece * 16, further_own = further;
  if (is_value) further += a.kv.v_offset - a.kv.k_offset, further_own += (uint64_t)a.own_v - (uint64_t)a.own_k;
  const uint64_t *keys = b.m->key[at.parity] + first + own;
  uint64_t key[KEYS / step];
#pragma unroll
  for (uint32_t i = 0; i < KEYS / step; i++) key[i] = keys[i * step];
#pragma unroll
  for (uint32_t i = 0; i < KEYS / step; i++) {
    uint32_t marks = (uint32_t)key[i] & KEY_MARKS;
    uint64_t from = key[i] - marks + ((marks & KEY_IS_OWN) != 0 ? further_own : further);
    uint32_t row = own + i * step, place = row * (PIECES * 16) + (piece ^ (row & 7)) * 16;
    cp_async_16_if(to + place, (const void *)from, (marks & KEY_IS_UNSEEN) == 0);
  }
}

/* Which sixteen numbers piece `step` of a thread is, where keys are in 8 bits: of which key of the stage, and the how
 * many-th of the stage's numbers of a key. */
typedef struct q8_place {
  uint32_t key, piece;
} q8_place;

template <class S>
static __device__ __forceinline__ q8_place place_of(bool is_value, uint32_t step) {
  constexpr uint32_t across = S::dims / 16;
  uint32_t i = step * THREADS + threadIdx.x;
  return is_value ? q8_place{i / across, i % across} : q8_place{i / (PANEL / 16), i % (PANEL / 16)};
}

/* Starts the copies of a stage that is stored in 8 bits. */
template <class S>
static __device__ __forceinline__ void copy_q8(const attention_kernel_args &k, const attention_block<S> &b,
                                               const copy_place &at) {
  constexpr int unit = q8_piece(S::D);
  const weft_attention_args &a = k.op;
  bool is_value = at.stage >= S::key_stages;
  uint32_t first_key = is_value ? (at.stage - S::key_stages) * S::value_keys : 0;
  uint32_t first = is_value ? b.slice * S::dims : at.stage * PANEL; /* number of a key */
  uint64_t further = is_value ? a.kv.v_offset - a.kv.k_offset : 0;
  uint64_t further_own = is_value ? (uint64_t)a.own_v - (uint64_t)a.own_k : 0;
  attention_slot *to = queue_of(b.m) + at.slot;
#pragma unroll
  for (uint32_t step = 0; step < PIECES; step++) {
    q8_place p = place_of<S>(is_value, step);
    uint64_t key = b.m->key[at.parity][first_key + p.key];
    uint32_t marks = (uint32_t)key & KEY_MARKS, number = first + p.piece * 16;
    uint64_t from = key - marks + ((marks & KEY_IS_OWN) != 0 ? further_own : further);
    bool seen = (marks & KEY_IS_UNSEEN) == 0;
    uint32_t numbers = shared_address(&to->numbers[step][threadIdx.x]);
#pragma unroll
    for (int i = 0; i < 16; i += unit) cp_async_if<unit>(numbers + i, (const void *)(from + number + i), seen);
    cp_async_if<4>(shared_address(&to->factors[step][threadIdx.x]), (const void *)(from + S::D + number / 64 * 4),
                   seen);
  }
}

/* Makes bf16 of what the thread copied to a slot, in a stage. Of sixteen numbers two pieces are stored; which one first
 * depends on the place, so that eight threads never share a bank. */
template <class S>
static __device__ __forceinline__ void convert_q8(const attention_block<S> &b, uint32_t slot, bool is_value,
                                                  uint8_t *stage) {
  const attention_slot *from = queue_of(b.m) + slot;
#pragma unroll
  for (uint32_t step = 0; step < PIECES; step++) {
    q8_place p = place_of<S>(is_value, step);
    uint4 x = from->numbers[step][threadIdx.x];
    __half2 factors = from->factors[step][threadIdx.x];
    float factor = __half2float(p.piece / 2 % 2 != 0 ? __high2half(factors) : __low2half(factors));
    uint32_t low[4], high[4];
    q8_key(x.x, factor, low[0], high[0]), q8_key(x.y, factor, low[1], high[1]);
    q8_key(x.z, factor, low[2], high[2]), q8_key(x.w, factor, low[3], high[3]);
    uint4 one = is_value ? make_uint4(low[0], high[0], low[1], high[1]) : make_uint4(low[0], low[1], low[2], low[3]);
    uint4 next =
        is_value ? make_uint4(low[2], high[2], low[3], high[3]) : make_uint4(high[0], high[1], high[2], high[3]);
    uint32_t odd = p.piece / 4 % 2, at = 2 * p.piece + odd, row = p.key & 7;
    uint8_t *to = stage + p.key * (is_value ? 2 * S::dims : 2 * PANEL);
    *(uint4 *)(void *)(to + (at ^ row) * 16) = odd != 0 ? next : one;
    *(uint4 *)(void *)(to + (at ^ 1u ^ row) * 16) = odd != 0 ? one : next;
  }
}

/* Copies the next stage, if there is one, and moves on. With a tile's last stage the keys of the next tile are found;
 * the barrier of the next ring_step shows them to all threads. */
template <class S>
static __device__ __forceinline__ void copy_next(const attention_kernel_args &k, const attention_block<S> &b,
                                                 copy_place &at) {
  constexpr uint32_t n = S::key_stages + S::value_stages;
  if (at.base < b.base_end) {
    if constexpr (S::q8)
      copy_q8(k, b, at);
    else if (at.stage < S::key_stages)
      copy_part<TILE, PANEL / 8>(k, b, at, 0, false, at.stage * PANEL * 2);
    else
      copy_part<S::value_keys, S::dims / 8>(k, b, at, (at.stage - S::key_stages) * S::value_keys, true,
                                            b.slice * S::dims * 2);
  }
  cp_async_commit();
  at.slot = at.slot + 1 == S::slots ? 0 : at.slot + 1;
  if (++at.stage < n) return;
  at.stage = 0, at.base += TILE, at.parity ^= 1;
  if (at.base < b.base_end) look_up(k, b, at.base, at.parity);
}

/* ---- scores, online softmax, values ---------------------------------------------------------------------- */

/* A lane's part of (max, sum, out), of the chunk so far and of all chunks before: rows g and g + 8 of each of the
 * warp's tiles of queries, in its dimensions. */
template <class S>
struct attention_sums {
  float most[S::M][2], sum[S::M][4], out[S::M][S::n_dims][4];
  float all_max[S::M][2], all_sum[S::M][2], all[S::M][S::n_dims][4];
  uint32_t first[S::M][2], end[S::M][2]; /* positions seen */
};

template <class S>
static __device__ __forceinline__ uint32_t first_query(void) { /* of the warp, in the block */
  return threadIdx.x / 32 / S::shares * 16 * S::M;
}

template <class S>
static __device__ __forceinline__ uint32_t own_share(void) {
  return threadIdx.x / 32 % S::shares;
}

template <class S>
static __device__ __forceinline__ void open_sums(const attention_kernel_args &k, const attention_block<S> &b,
                                                 attention_sums<S> &s) {
#pragma unroll
  for (int m = 0; m < S::M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t r = first_query<S>() + 16 * m + threadIdx.x % 32 / 4 + 8 * h;
      s.first[m][h] = s.end[m][h] = 0;
      if (r < b.item.n)
        find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + r), &s.first[m][h], &s.end[m][h]);
      s.most[m][h] = s.all_max[m][h] = -INFINITY, s.all_sum[m][h] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s.sum[m][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * S::n_dims; i++) s.out[m][i / 4][i % 4] = s.all[m][i / 4][i % 4] = 0.0f;
  }
}

/* Adds the products of 64 dimensions to the scores of the warp's keys. */
template <class S>
static __device__ __forceinline__ void score_panel(const attention_block<S> &b, const uint8_t *stage, uint32_t panel,
                                                   float (&score)[S::M][S::n_keys][4]) {
  uint32_t q_at = shared_address(b.m->q), k_at = shared_address(stage) + own_share<S>() * S::own_keys * 128;
#pragma unroll
  for (uint32_t d = 0; d < PANEL / 16; d++) {
    uint32_t q[S::M][4], b_at = k_at + operand_b_at(2 * d, 1024);
#pragma unroll
    for (int m = 0; m < S::M; m++)
      ldmatrix_x4(q[m], q_at + operand_a_at(first_query<S>() + 16 * m, S::row_bytes, panel * (PANEL / 8) + 2 * d));
#pragma unroll
    for (int n = 0; n < S::n_keys; n += 2) {
      uint32_t key[4];
      ldmatrix_x4(key, b_at + n * 1024);
#pragma unroll
      for (int m = 0; m < S::M; m++) {
        mma_bf16(score[m][n], q[m], key[0], key[1]);
        mma_bf16(score[m][n + 1], q[m], key[2], key[3]);
      }
    }
  }
}

/* Makes the scores of positions that a row does not see -inf, and tells the largest ones of the warp's keys. */
template <class S>
static __device__ __forceinline__ void mask_scores(const attention_block<S> &b, uint32_t base,
                                                   const attention_sums<S> &s, float (&score)[S::M][S::n_keys][4]) {
  uint32_t lane = threadIdx.x % 32, own = base + own_share<S>() * S::own_keys + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < S::M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < 2 * S::n_keys; i++) {
        float &one = score[m][i / 2][2 * h + i % 2];
        uint32_t position = own + i / 2 * 8 + i % 2;
        if (position < s.first[m][h] || position >= s.end[m][h]) one = -INFINITY;
        most = fmaxf(most, one);
      }
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
      if (lane % 4 == 0) b.m->most[own_share<S>()][first_query<S>() + 16 * m + lane / 4 + 8 * h] = most;
    }
  }
}

/* Writes the weights of the warp's keys to shared memory, and scales out and sum so far to the new maximum. */
template <class S>
static __device__ __forceinline__ void online_softmax(const attention_block<S> &b, float scale,
                                                      const float (&score)[S::M][S::n_keys][4], attention_sums<S> &s) {
  uint32_t lane = threadIdx.x % 32, piece = own_share<S>() * S::n_keys;
#pragma unroll
  for (int m = 0; m < S::M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t r = first_query<S>() + 16 * m + lane / 4 + 8 * h;
      float most = -INFINITY;
#pragma unroll
      for (int w = 0; w < S::shares; w++) most = fmaxf(most, b.m->most[w][r]);
      most = fmaxf(s.most[m][h], __fmul_rn(most, scale));
      float anchor = anchor_of(most), keep = power_of_2(__fadd_rn(s.most[m][h], -anchor));
      s.most[m][h] = most;
      uint8_t *to = b.m->weight + r * S::weight_bytes + lane % 4 * 4;
#pragma unroll
      for (uint32_t n = 0; n < S::n_keys; n++)
        *(uint32_t *)(void *)(to + ((piece + n) ^ (r & 7)) * 16) =
            pair_bf16(weight_of(score[m][n][2 * h], scale, anchor), weight_of(score[m][n][2 * h + 1], scale, anchor));
#pragma unroll
      for (int i = 0; i < 2 * S::n_dims; i++)
        s.out[m][i / 2][2 * h + i % 2] = __fmul_rn(s.out[m][i / 2][2 * h + i % 2], keep);
      s.sum[m][2 * h] = __fmul_rn(s.sum[m][2 * h], keep), s.sum[m][2 * h + 1] = __fmul_rn(s.sum[m][2 * h + 1], keep);
    }
  }
}

/* Adds the values of a stage, weighted, in the warp's dimensions. first: the stage's first key in the tile. */
template <class S>
static __device__ __forceinline__ void add_values(const attention_block<S> &b, const uint8_t *stage, uint32_t first,
                                                  attention_sums<S> &s) {
  uint32_t lane = threadIdx.x % 32, w_at = shared_address(b.m->weight);
  uint32_t v_at = shared_address(stage) + lane % 16 * (2 * S::dims);
  uint32_t piece = own_share<S>() * S::n_dims + (S::n_dims > 1 ? lane / 16 : 0);
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (uint32_t key = 0; key < S::value_keys; key += 16) {
    uint32_t w[S::M][4];
#pragma unroll
    for (int m = 0; m < S::M; m++) {
      ldmatrix_x4(w[m], w_at + operand_a_at(first_query<S>() + 16 * m, S::weight_bytes, (first + key) / 8));
      mma_bf16(s.sum[m], w[m], ones, ones);
    }
#pragma unroll
    for (uint32_t n = 0; n < S::n_dims; n += 2) {
      uint32_t v[4];
      ldmatrix_x4_trans(v, v_at + key * (2 * S::dims) + (((piece + n) ^ (lane & 7)) << 4));
#pragma unroll
      for (int m = 0; m < S::M; m++) {
        mma_bf16(s.out[m][n], w[m], v[0], v[1]);
        if constexpr (S::n_dims > 1) mma_bf16(s.out[m][n + 1], w[m], v[2], v[3]);
      }
    }
  }
}

/* Merges the chunk to those before it, and begins a fresh one. */
template <class S>
static __device__ __forceinline__ void merge_chunk(attention_sums<S> &s) {
#pragma unroll
  for (int m = 0; m < S::M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float keep, add;
      rescale_factors(s.all_max[m][h], s.most[m][h], &s.all_max[m][h], &keep, &add);
      s.all_sum[m][h] = rescale_add(s.all_sum[m][h], keep, s.sum[m][2 * h], add);
      s.most[m][h] = -INFINITY, s.sum[m][2 * h] = s.sum[m][2 * h + 1] = 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * S::n_dims; i++) {
        float *all = &s.all[m][i / 2][2 * h + i % 2], *out = &s.out[m][i / 2][2 * h + i % 2];
        *all = rescale_add(*all, keep, *out, add);
        *out = 0.0f;
      }
    }
  }
}

/* Stores the final results or, for attention_combine, those of the item's one chunk. */
template <class S, bool SINKS>
static __device__ __forceinline__ void store_sums(const attention_kernel_args &k, const attention_block<S> &b,
                                                  const attention_sums<S> &s) {
  uint32_t dim = b.slice * S::dims + own_share<S>() * S::own_dims + threadIdx.x % 4 * 2;
  bool is_part = b.item.part_step > 0;
#pragma unroll
  for (int i = 0; i < 2 * S::M; i++) {
    int m = i / 2, h = i % 2;
    uint32_t r = first_query<S>() + 16 * m + threadIdx.x % 32 / 4 + 8 * h;
    if (r >= b.item.n) continue;
    float sum = s.all_sum[m][h], *to = decode_row(k, b.item, b.segment, b.kv_head, r);
    if (is_part && dim == 0) to[S::D] = s.all_max[m][h], to[S::D + 1] = sum;
    if (SINKS && !is_part) sum = add_sink(k, head_of_query(k, b.kv_head, b.item.first + r), s.all_max[m][h], sum);
    float times = is_part ? 1.0f : __frcp_rn(sum);
#pragma unroll
    for (int n = 0; n < S::n_dims; n++)
      *(float2 *)(void *)(to + dim + 8 * n) =
          make_float2(__fmul_rn(s.all[m][n][2 * h], times), __fmul_rn(s.all[m][n][2 * h + 1], times));
  }
}

/* Puts piece `piece` of a query, of four numbers, where it meets its keys (rows_q8.cuh). */
template <class S>
static __device__ __forceinline__ void put_query(const attention_block<S> &b, uint32_t row, uint32_t piece, uint2 x) {
  uint8_t *to = b.m->q + row * S::row_bytes;
  if constexpr (S::q8)
    q8_put(piece, x, [&](uint32_t place, uint32_t word) {
      *(uint32_t *)(void *)(to + ((place / 8) ^ (row & 7)) * 16 + place % 8 * 2) = word;
    });
  else
    *(uint2 *)(void *)(to + ((piece / 2) ^ (row & 7)) * 16 + piece % 2 * 8) = x;
}

template <class S, bool SINKS>
static __device__ __forceinline__ void attend(const attention_kernel_args &k, const attention_block<S> &b) {
  constexpr uint32_t n_ahead = (S::STAGES - 2) / (S::key_stages + S::value_stages) + 1; /* tiles that are begun */
  attention_sums<S> s;
  copy_place at = {b.base, 0, 0, 0};
  bool is_old = (!S::q8 || q8_early(S::D)) && /* and may be read before the inputs are there */
                b.base + n_ahead * TILE <= b.segment.n_old;
  look_up(k, b, b.base, 0);
  open_sums(k, b, s);
  if (!is_old) wait_for_prior_grids();
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = 0; i + 1 < S::STAGES; i++) {
    copy_next(k, b, at);
    __syncthreads(); /* for the keys of a tile that the ring reaches before the first step */
  }
  if (is_old) wait_for_prior_grids();
  load_queries<S::D, S::queries, THREADS>(k, b.item, b.segment, b.kv_head, 0,
                                          [&](uint32_t row, uint32_t piece, uint2 x) { put_query(b, row, piece, x); });
  float scale = k.op.scale * 1.44269504088896f;
  uint32_t slot = 0, parity = 0;
  auto next_stage = [&](bool is_value) {
    const uint8_t *stage = b.m->stage[S::q8 ? parity : slot];
    if constexpr (S::q8) { /* all have done with the stage before the last one */
      cp_async_wait<S::slots - 1>();
      convert_q8(b, slot, is_value, b.m->stage[parity]);
      copy_next(k, b, at);
      __syncthreads();
      parity ^= 1;
    } else {
      ring_step<S::STAGES>();
      copy_next(k, b, at);
    }
    slot = slot + 1 == S::slots ? 0 : slot + 1;
    return stage;
  };
#pragma unroll 1
  for (uint32_t base = b.base; base < b.base_end; base += TILE) {
    float score[S::M][S::n_keys][4];
#pragma unroll
    for (int i = 0; i < 4 * S::M * S::n_keys; i++) score[i / 4 / S::n_keys][i / 4 % S::n_keys][i % 4] = 0.0f;
#pragma unroll 1
    for (uint32_t panel = 0; panel < S::key_stages; panel++) score_panel(b, next_stage(false), panel, score);
    mask_scores(b, base, s, score);
#pragma unroll 1
    for (uint32_t part = 0; part < S::value_stages; part++) {
      const uint8_t *stage = next_stage(true); /* and all warps have told their largest scores */
      if (part == 0) {
        online_softmax(b, scale, score, s);
        __syncthreads();
      }
      add_values(b, stage, part * S::value_keys, s);
    }
    if (base + TILE >= b.base_end || (base + TILE) % CHUNK == 0) merge_chunk(s);
  }
  store_sums<S, SINKS>(k, b, s);
}

/* A block takes part `sub` of an item's queries, with one kv head and a slice of the dimensions of out. n_parts: parts
 * of an item. */
template <class S, bool SINKS>
static __global__ void __launch_bounds__(THREADS, 1)
    attention_kernel(const __grid_constant__ attention_kernel_args k, uint32_t n_parts) {
  launch_dependent_grids();
  extern __shared__ __align__(1024) uint8_t memory[];
  attention_block<S> b;
  uint32_t at = blockIdx.x / S::slices, sub = at % n_parts * S::queries;
  b.item = k.items[at / n_parts / k.op.kv.n_kv_heads];
  if (b.item.n <= sub) return; /* void, or fewer queries */
  b.item.first += sub, b.item.n = min(b.item.n - sub, S::queries);
  b.segment = k.op.segment[b.item.segment];
  b.kv_head = at / n_parts % k.op.kv.n_kv_heads;
  b.slice = blockIdx.x % S::slices;
  b.m = (attention_memory<S> *)(void *)memory;
  uint32_t unused;
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first), &b.first, &unused);
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + b.item.n - 1), &unused, &b.end);
  b.base = max(b.first, b.item.chunk * CHUNK) / TILE * TILE;
  b.base_end = min(b.end, b.item.chunk_end * CHUNK);
  attend<S, SINKS>(k, b);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

template <class S>
constexpr uint32_t attention_bytes(void) {
  return sizeof(attention_memory<S>) + (S::q8 ? S::slots * sizeof(attention_slot) : 0);
}

template <class S, bool SINKS = false>
static void start(cuda_device *d, const attention_kernel_args *args, uint32_t queries) {
  constexpr uint32_t n_bytes = attention_bytes<S>();
  static_assert(n_bytes <= PORTABLE_SHARED_BYTES_MOST, "shared memory");
  uint32_t n_parts = queries / S::queries, n = args->n_items * args->op.kv.n_kv_heads * n_parts * S::slices;
  cuda_start(d, attention_kernel<S, SINKS>, n, THREADS, n_bytes, *args, n_parts);
}

/* The kernel with sinks is for heads of 64 alone. Q: whether keys are in 8 bits. */
template <bool Q, int D, int M, int ROWS, int STAGES, int STAGES_Q8, int DIMS = 256>
static void start_shape(cuda_device *d, const attention_kernel_args *args, uint32_t queries) {
  using shape = attention_shape<D, M, ROWS, Q ? STAGES_Q8 : STAGES, DIMS, Q>;
  if constexpr (D == 64) {
    if (args->op.sinks != NULL) return start<shape, true>(d, args, queries);
  }
  start<shape>(d, args, queries);
}

template <bool Q>
static void start_flash(cuda_device *d, const attention_kernel_args *args, uint32_t queries) {
  switch (args->op.kv.head_dim) {
    case 64:
      return start_shape<Q, 64, 2, 2, 4, 4>(d, args, queries);
    case 128:
      return start_shape<Q, 128, 2, 2, 4, 4>(d, args, queries);
    case 256:
      return start_shape<Q, 256, 2, 2, 3, 2>(d, args, queries);
    default:
      return start_shape<Q, 512, 1, 2, 3, 3, 512>(d, args, queries);
  }
}

weft_status attention_flash(cuda_device *d, const attention_kernel_args *args, uint32_t n_groups) {
  (args->op.kv.type == WEFT_TYPE_Q8_0 ? start_flash<true> : start_flash<false>)(d, args, n_groups * FLASH_QUERIES);
  return cuda_launched(d, "attention");
}

/* Decoding of many items: with fewer stages where twice as many blocks share a multiprocessor then. */
template <bool Q, int D>
static void start_many(cuda_device *d, const attention_kernel_args *args) {
  constexpr uint32_t four = attention_bytes<attention_shape<D, 1, 1, Q ? 5 : 4, 256, Q>>(),
                     two = attention_bytes<attention_shape<D, 1, 1, 2, 256, Q>>();
  uint32_t slices = attention_slices(D);
  bool many = args->n_items * args->op.kv.n_kv_heads * slices > d->n_multiprocessors;
  bool fit = cuda_blocks_in(four, 0) >= cuda_family()->decode;
  if (many && !fit && cuda_blocks_in(two, 0) >= cuda_family()->decode)
    start_shape<Q, D, 1, 1, 2, 2>(d, args, DECODE_QUERIES);
  else
    start_shape<Q, D, 1, 1, 4, 5>(d, args, DECODE_QUERIES);
}

template <bool Q>
static void start_decode(cuda_device *d, const attention_kernel_args *args) {
  /* Where multiprocessors would have no item, two blocks share the dimensions of out. */
  bool halves = 2 * args->n_items * args->op.kv.n_kv_heads <= d->n_multiprocessors;
  switch (args->op.kv.head_dim) {
    case 64:
      return start_many<Q, 64>(d, args);
    case 128:
      return start_many<Q, 128>(d, args);
    case 256:
      return halves ? start_shape<Q, 256, 1, 1, 5, 5, 128>(d, args, DECODE_QUERIES) : start_many<Q, 256>(d, args);
    default:
      return start_shape<Q, 512, 1, 1, 4, 5>(d, args, DECODE_QUERIES);
  }
}

weft_status attention_decode_stream(cuda_device *d, const attention_kernel_args *args) {
  (args->op.kv.type == WEFT_TYPE_Q8_0 ? start_decode<true> : start_decode<false>)(d, args);
  return cuda_launched(d, "attention");
}
