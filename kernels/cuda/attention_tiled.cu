/* SPDX-License-Identifier: MIT */
/* Attention over bf16 keys with the matrix units, for heads of 64, 128, 256 and 512.
 *
 * A block takes 64 queries (heads of 512: 32; one row each, as in decode: 16) of one segment and kv head. Per
 * chunk of 256 key positions:
 *
 *   keys     tiles of 64 keys stream through a ring;  scores -> shared memory, f32
 *   weights  a warp per query: 2^(score - max of the chunk), rounded to bf16 in place; their sum
 *   values   tiles of 64 stream through the same ring;  out (registers, fresh) += weights x values
 *   join     (max, sum, out) of the chunk joins the row's, chunks ascending
 *
 * Positions that no query of the block sees are zeros and are not read; those that only others see weigh
 * 0 exactly. So a row's bits depend on absolute positions alone. With few blocks every chunk is a block
 * of its own, and merge_kernel joins them in the same order with the same text. */
#include "kernels/cuda/attention.cuh"

enum { TILED_THREADS = 256, TILE_KEYS = 64, SCORE_STRIDE = CHUNK + 4 };

template <int D, int Q>
struct tiled_shape {
  static constexpr int queries = Q;
  static constexpr int ring = D >= 512 ? 2 : Q > 16 ? 3 : 4; /* tiles */
  static constexpr int warps_q = queries / 16;    /* 16 queries each */
  static constexpr int warps_d = 8 / warps_q;     /* share keys in scores, dimensions in values */
  static constexpr int keys = TILE_KEYS / warps_d; /* of a warp */
  static constexpr int dims = D / warps_d;
  static constexpr int stride = D + 8; /* bf16 per stored row: rows start four banks apart */
  static constexpr int bytes = queries * stride * 2 + queries * SCORE_STRIDE * 4 + ring * TILE_KEYS * stride * 2 +
                               queries * 6 * 4;
};

template <int D, int Q>
struct tiled_block {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, first, end; /* positions that some query sees */
  __nv_bfloat16 *q, *ring;
  float *scores;
  float *all_max, *all_sum, *keep, *add, *chunk_max, *chunk_sum;
};

/* A tile of the sequence keys, keys, ..., values, values, ... of all chunks. Of the one that is asked for next the
 * lane knows its key's page. */
typedef struct tile_cursor {
  uint32_t chunk, tile, last, page;
  bool is_value, at_end;
} tile_cursor;

template <int D, int Q>
static __device__ __forceinline__ void enter_chunk(const tiled_block<D, Q> &b, tile_cursor &at) {
  uint32_t base = at.chunk * CHUNK;
  uint32_t low = max(b.first, base) - base, high = min(b.end, base + CHUNK) - base;
  at.tile = low / TILE_KEYS;
  at.last = (high - 1) / TILE_KEYS;
}

template <int D, int Q>
static __device__ __forceinline__ void advance(const tiled_block<D, Q> &b, tile_cursor &at) {
  if (at.tile < at.last) {
    at.tile += 1;
    return;
  }
  if (at.is_value) {
    at.is_value = false;
    at.chunk += 1;
    at.at_end = at.chunk >= b.item.chunk_end;
  } else {
    at.is_value = true;
  }
  if (!at.at_end) enter_chunk<D, Q>(b, at);
}

template <int D, int Q>
static __device__ __forceinline__ uint32_t position_of(const tile_cursor &at) {
  return at.chunk * CHUNK + at.tile * TILE_KEYS + threadIdx.x / 32 * 8 + threadIdx.x % 8;
}

template <int D, int Q>
static __device__ __forceinline__ void look_up(const weft_attention_args &a, const tiled_block<D, Q> &b, tile_cursor &at) {
  uint32_t position = position_of<D, Q>(at);
  if (!at.at_end && position >= b.first && position < b.end) at.page = page_of_key(a, b.segment, position);
}

/* Eight keys (or values) per warp. */
template <int D, int Q>
static __device__ __forceinline__ void copy_tile(const weft_attention_args &a, const tiled_block<D, Q> &b,
                                                 const tile_cursor &at, __nv_bfloat16 *to) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t position = position_of<D, Q>(at);
  bool ok = position >= b.first && position < b.end;
  uint64_t from = (uint64_t)(uintptr_t)a.kv.base;
  if (ok) from = (uint64_t)(uintptr_t)key_at(a, b.segment, b.kv_head, position, at.page, at.is_value, 2ull * a.kv.head_dim);
  uint32_t base = shared_address(to + warp * 8 * tiled_shape<D, Q>::stride);
#pragma unroll
  for (int step = 0; step < D / 32; step++) {
    uint32_t index = step * 32 + lane, row = index / (D / 8), part = index % (D / 8);
    uint64_t source = __shfl_sync(0xFFFFFFFFu, from, row);
    bool row_ok = __shfl_sync(0xFFFFFFFFu, (int)ok, row) != 0;
    copy16_if(base + row * tiled_shape<D, Q>::stride * 2 + part * 16,
              (const uint8_t *)(uintptr_t)source + (row_ok ? part * 16 : 0), row_ok);
  }
}

/* Queries as bf16, eight numbers at a time. */
template <int D, int Q>
static __device__ __forceinline__ void load_queries(const attention_kernel_args &k, const tiled_block<D, Q> &b) {
  constexpr int n = tiled_shape<D, Q>::queries * (D / 8) / TILED_THREADS;
#pragma unroll(n < 8 ? n : 8)
  for (int step = 0; step < n; step++) {
    uint32_t at = step * TILED_THREADS + threadIdx.x, r = at / (D / 8), i = at % (D / 8) * 8, f = b.item.first + r;
    float4 low = make_float4(0, 0, 0, 0), high = low;
    if (r < b.item.n) {
      uint32_t of = row_of_query(k, f);
      const float *q = k.op.q + ((uint64_t)b.segment.first_row + of) * k.op.q_stride +
                       (uint64_t)(b.kv_head * k.group + (f - of * k.group)) * D + i;
      if (k.wide) low = ((const float4 *)(const void *)q)[0], high = ((const float4 *)(const void *)q)[1];
      else low = make_float4(q[0], q[1], q[2], q[3]), high = make_float4(q[4], q[5], q[6], q[7]);
    }
    *(uint4 *)(void *)(b.q + r * tiled_shape<D, Q>::stride + i) =
        make_uint4(pair_bf16(low.x, low.y), pair_bf16(low.z, low.w), pair_bf16(high.x, high.y), pair_bf16(high.z, high.w));
  }
}

/* Scores of the warp's 16 queries and its share of 64 keys. */
template <int D, int Q>
static __device__ __forceinline__ void score_tile(const tiled_block<D, Q> &b, const __nv_bfloat16 *tile,
                                                  uint32_t tile_index, float scale) {
  using shape = tiled_shape<D, Q>;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t query = warp / shape::warps_d * 16, key = warp % shape::warps_d * shape::keys;
  float sum[shape::keys / 8][4];
#pragma unroll
  for (int n = 0; n < shape::keys / 8; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
  uint32_t q_at = shared_address(b.q + (query + lane % 16) * shape::stride + lane / 16 * 8);
  if constexpr (shape::keys == 8) {
    uint32_t k_at = shared_address(tile + (key + lane % 8) * shape::stride + lane / 8 * 8);
#pragma unroll 4
    for (int d = 0; d < D; d += 32) {
      uint32_t w[2][4], v[4];
      load_matrices(w[0], q_at + d * 2);
      load_matrices(w[1], q_at + d * 2 + 32);
      load_matrices(v, k_at + d * 2);
      mma_bf16(sum[0], w[0], v[0], v[1]);
      mma_bf16(sum[0], w[1], v[2], v[3]);
    }
  } else {
    uint32_t k_at = shared_address(tile + (key + lane % 8 + lane / 16 * 8) * shape::stride + lane / 8 % 2 * 8);
#pragma unroll 4
    for (int d = 0; d < D; d += 16) {
      uint32_t w[4];
      load_matrices(w, q_at + d * 2);
#pragma unroll
      for (int n = 0; n < shape::keys / 16; n++) {
        uint32_t v[4];
        load_matrices(v, k_at + d * 2 + n * 16 * shape::stride * 2);
        mma_bf16(sum[2 * n], w, v[0], v[1]);
        mma_bf16(sum[2 * n + 1], w, v[2], v[3]);
      }
    }
  }
  uint32_t g = lane / 4, c = lane % 4;
  float *out = b.scores + (query + g) * SCORE_STRIDE + tile_index * TILE_KEYS + key + 2 * c;
#pragma unroll
  for (int n = 0; n < shape::keys / 8; n++) {
    *(float2 *)(void *)(out + 8 * n) = make_float2(__fmul_rn(sum[n][0], scale), __fmul_rn(sum[n][1], scale));
    *(float2 *)(void *)(out + 8 * SCORE_STRIDE + 8 * n) =
        make_float2(__fmul_rn(sum[n][2], scale), __fmul_rn(sum[n][3], scale));
  }
}

/* Weights of a chunk in place of its scores, a warp for two queries at a time; what joins it to the chunks before. */
template <int D, int Q>
static __device__ __forceinline__ void weigh_chunk(const attention_kernel_args &k, const tiled_block<D, Q> &b,
                                                   uint32_t chunk) {
  using shape = tiled_shape<D, Q>;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = chunk * CHUNK + lane * 8;
#pragma unroll 1
  for (uint32_t r = warp * (shape::queries / 8); r < (warp + 1) * (shape::queries / 8); r += 2) {
    float score[2][8], most[2], sum[2];
    uint4 bits[2];
#pragma unroll
    for (int q = 0; q < 2; q++) {
      uint32_t first = 0, end = 0;
      if (r + q < b.item.n) visible(b.segment, k.op.window, row_of_query(k, b.item.first + r + q), &first, &end);
      const float4 *row = (const float4 *)(const void *)(b.scores + (r + q) * SCORE_STRIDE + lane * 8);
      float4 low = row[0], high = row[1];
      const float in[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      most[q] = -INFINITY;
#pragma unroll
      for (int e = 0; e < 8; e++) {
        score[q][e] = base + e >= first && base + e < end ? in[e] : -INFINITY;
        most[q] = fmaxf(most[q], score[q][e]);
      }
    }
    most[0] = warp_max(most[0]), most[1] = warp_max(most[1]);
#pragma unroll
    for (int q = 0; q < 2; q++) {
      uint32_t pair[4];
      sum[q] = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        float low = score[q][e] == -INFINITY ? 0.0f : exp2f(score[q][e] - most[q]);
        float high = score[q][e + 1] == -INFINITY ? 0.0f : exp2f(score[q][e + 1] - most[q]);
        pair[e / 2] = pair_bf16(low, high);
        sum[q] = __fadd_rn(sum[q], __uint_as_float(pair[e / 2] << 16));
        sum[q] = __fadd_rn(sum[q], __uint_as_float(pair[e / 2] & 0xFFFF0000u));
      }
      bits[q] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
    __syncwarp(); /* all have read */
#pragma unroll
    for (int q = 0; q < 2; q++)
      *(uint4 *)(void *)((uint8_t *)(void *)(b.scores + (r + q) * SCORE_STRIDE) + lane * 16) = bits[q];
    sum[0] = warp_sum(sum[0]), sum[1] = warp_sum(sum[1]);
    if (lane < 2) {
      uint32_t q = r + lane;
      float keep, add, all = b.all_max[q], m = lane == 0 ? most[0] : most[1], l = lane == 0 ? sum[0] : sum[1];
      join_factors(all, m, &all, &keep, &add);
      b.all_max[q] = all;
      b.all_sum[q] = joined(b.all_sum[q], keep, l, add);
      b.keep[q] = keep, b.add[q] = add;
      b.chunk_max[q] = m, b.chunk_sum[q] = l;
    }
  }
}

/* out += weights x values, for the warp's 16 queries and its share of the dimensions. */
template <int D, int Q>
static __device__ __forceinline__ void add_values(const tiled_block<D, Q> &b, const __nv_bfloat16 *tile,
                                                  uint32_t tile_index, float (&out)[tiled_shape<D, Q>::dims / 8][4]) {
  using shape = tiled_shape<D, Q>;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t query = warp / shape::warps_d * 16, dim = warp % shape::warps_d * shape::dims;
  uint32_t p_at = shared_address(b.scores + (query + lane % 16) * SCORE_STRIDE) + tile_index * TILE_KEYS * 2 +
                  lane / 16 * 16;
  uint32_t v_at = shared_address(tile + lane % 16 * shape::stride + dim + lane / 16 * 8);
#pragma unroll
  for (int key = 0; key < TILE_KEYS; key += 16) {
    uint32_t w[4];
    load_matrices(w, p_at + key * 2);
#pragma unroll
    for (int n = 0; n < shape::dims / 16; n++) {
      uint32_t v[4];
      load_matrices_turned(v, v_at + key * shape::stride * 2 + n * 32);
      mma_bf16(out[2 * n], w, v[0], v[1]);
      mma_bf16(out[2 * n + 1], w, v[2], v[3]);
    }
  }
}

/* Final rows, or the one chunk's rows for merge_kernel. */
template <int D, int Q>
static __device__ __forceinline__ void store_out(const attention_kernel_args &k, const tiled_block<D, Q> &b,
                                                 const float (&out)[tiled_shape<D, Q>::dims / 8][4]) {
  using shape = tiled_shape<D, Q>;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t dim = warp % shape::warps_d * shape::dims + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = warp / shape::warps_d * 16 + lane / 4 + 8 * h, f = b.item.first + r;
    if (r >= b.item.n) continue;
    bool split = b.item.part_step > 0;
    uint32_t i = row_of_query(k, f);
    float *to = k.op.out + ((uint64_t)b.segment.first_row + i) * k.op.out_stride +
                (uint64_t)(b.kv_head * k.group + (f - i * k.group)) * D;
    if (split) {
      to = k.part + b.kv_head * k.part_stride + (uint64_t)(b.item.part + r * b.item.part_step) * (D + 2);
      if (dim == 0) to[D] = b.chunk_max[r], to[D + 1] = b.chunk_sum[r];
    }
    float sum = split ? 1.0f : b.all_sum[r];
#pragma unroll
    for (int n = 0; n < shape::dims / 8; n++) {
      to[dim + 8 * n] = split ? out[n][2 * h] : __fdiv_rn(out[n][2 * h], sum);
      to[dim + 8 * n + 1] = split ? out[n][2 * h + 1] : __fdiv_rn(out[n][2 * h + 1], sum);
    }
  }
}

template <int D, int Q>
static __device__ __forceinline__ void open_block(const attention_kernel_args &k, uint8_t *memory, tiled_block<D, Q> &b) {
  using shape = tiled_shape<D, Q>;
  b.item = k.items[blockIdx.x];
  b.segment = k.op.segment[b.item.segment];
  b.kv_head = blockIdx.y;
  b.q = (__nv_bfloat16 *)(void *)memory;
  b.scores = (float *)(void *)(memory + shape::queries * shape::stride * 2);
  b.ring = (__nv_bfloat16 *)(void *)(b.scores + shape::queries * SCORE_STRIDE);
  b.all_max = (float *)(void *)(b.ring + shape::ring * TILE_KEYS * shape::stride);
  b.all_sum = b.all_max + shape::queries;
  b.keep = b.all_sum + shape::queries;
  b.add = b.keep + shape::queries;
  b.chunk_max = b.add + shape::queries;
  b.chunk_sum = b.chunk_max + shape::queries;
  uint32_t unused;
  visible(b.segment, k.op.window, b.item.first / k.group, &b.first, &unused);
  visible(b.segment, k.op.window, (b.item.first + b.item.n - 1) / k.group, &unused, &b.end);
  for (uint32_t r = threadIdx.x; r < shape::queries; r += TILED_THREADS) b.all_max[r] = -INFINITY, b.all_sum[r] = 0.0f;
}

template <int D, int Q>
static __global__ void __launch_bounds__(TILED_THREADS, 1) tiled_kernel(const __grid_constant__ attention_kernel_args k) {
  inputs_ready();
  using shape = tiled_shape<D, Q>;
  constexpr int n_sums = shape::dims / 8;
  extern __shared__ __align__(128) uint8_t memory[];
  tiled_block<D, Q> b;
  if (k.items[blockIdx.x].n == 0) return; /* void */
  open_block<D, Q>(k, memory, b);
  tile_cursor at = {b.item.chunk, 0, 0, 0, false, false}, ask;
  enter_chunk<D, Q>(b, at);
  ask = at;
  look_up<D, Q>(k.op, b, ask);
  for (int i = 0; i + 1 < shape::ring; i++) {
    if (!ask.at_end) {
      copy_tile<D, Q>(k.op, b, ask, b.ring + i * TILE_KEYS * shape::stride);
      advance<D, Q>(b, ask);
      look_up<D, Q>(k.op, b, ask);
    }
    copies_commit();
  }
  load_queries<D, Q>(k, b);
  float out[n_sums][4], all[n_sums][4];
#pragma unroll
  for (int i = 0; i < 4 * n_sums; i++) out[i / 4][i % 4] = all[i / 4][i % 4] = 0.0f;
  uint32_t query = threadIdx.x / 32 / shape::warps_d * 16 + threadIdx.x % 32 / 4;
  float scale = k.op.scale * 1.44269504088896f;
  for (uint32_t turn = 0; !at.at_end; turn = (turn + 1) % shape::ring) {
    tile_cursor next = at;
    advance<D, Q>(b, next);
    copies_wait<shape::ring - 2>();
    __syncthreads();
    if (!ask.at_end) {
      copy_tile<D, Q>(k.op, b, ask, b.ring + (turn + shape::ring - 1) % shape::ring * TILE_KEYS * shape::stride);
      advance<D, Q>(b, ask);
      look_up<D, Q>(k.op, b, ask);
    }
    copies_commit();
    const __nv_bfloat16 *tile = b.ring + turn * TILE_KEYS * shape::stride;
    tile_cursor here = at;
    at = next;
    if (!here.is_value) {
      score_tile<D, Q>(b, tile, here.tile, scale);
      if (!next.is_value) continue;
      __syncthreads();
      weigh_chunk<D, Q>(k, b, here.chunk);
      continue; /* the next turn's barrier shows the weights to all */
    }
    add_values<D, Q>(b, tile, here.tile, out);
    if (next.is_value && !next.at_end) continue;
    if (b.item.part_step > 0) break; /* its only chunk */
#pragma unroll
    for (int i = 0; i < 4 * n_sums; i++) {
      uint32_t r = query + i % 4 / 2 * 8;
      all[i / 4][i % 4] = joined(all[i / 4][i % 4], b.keep[r], out[i / 4][i % 4], b.add[r]);
      out[i / 4][i % 4] = 0.0f;
    }
  }
  if (b.item.part_step > 0) store_out<D, Q>(k, b, out);
  else store_out<D, Q>(k, b, all);
}

static __global__ void merge_kernel(const __grid_constant__ attention_kernel_args k) {
  inputs_ready();
  attention_merge m = k.merges[blockIdx.x];
  if (blockIdx.z >= m.n) return;
  uint32_t f = m.first + blockIdx.z, kv_head = blockIdx.y, dim = k.op.kv.head_dim;
  const float *part = k.part + kv_head * k.part_stride + (uint64_t)(m.part + blockIdx.z * m.n_chunks) * (dim + 2);
  uint64_t row = (uint64_t)k.op.segment[m.segment].first_row + f / k.group;
  float *out = k.op.out + row * k.op.out_stride + (uint64_t)(kv_head * k.group + f % k.group) * dim;
  for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x) {
    float most = -INFINITY, sum = 0.0f, value = 0.0f;
    for (uint32_t c = 0; c < m.n_chunks; c++) {
      const float *one = part + (uint64_t)c * (dim + 2);
      float keep, add;
      join_factors(most, one[dim], &most, &keep, &add);
      sum = joined(sum, keep, one[dim + 1], add);
      value = joined(value, keep, one[d], add);
    }
    out[d] = __fdiv_rn(value, sum);
  }
}

/* One number for all calls gives the same bits as another: it only says how queries share a block. */
uint32_t attention_tiled_queries(const weft_attention_args *args) {
  uint32_t group = args->n_heads / args->kv.n_kv_heads, most = 0;
  for (uint32_t s = 0; s < args->n_segments && args->segment != NULL; s++)
    if (args->segment[s].n_rows * group > most) most = args->segment[s].n_rows * group;
  if (args->kv.head_dim >= 128 && most <= 16) return 16;
  return args->kv.head_dim >= 512 ? 32 : 64;
}

bool attention_tiled_fits(const weft_attention_args *args) {
  const weft_kv_view *kv = &args->kv;
  uint64_t all = (uint64_t)(uintptr_t)kv->base | kv->page_bytes | kv->k_offset | kv->v_offset |
                 (uint64_t)(uintptr_t)args->own_k | (uint64_t)(uintptr_t)args->own_v;
  bool known = kv->head_dim == 64 || kv->head_dim == 128 || kv->head_dim == 256 || kv->head_dim == 512;
  return kv->type == WEFT_TYPE_BF16 && known && all % 16 == 0;
}

template <int D, int Q>
static void launch(cuda_device *d, const attention_kernel_args *args) {
  dim3 grid(args->n_items, args->op.kv.n_kv_heads);
  cuda_start(d, tiled_kernel<D, Q>, grid, TILED_THREADS, tiled_shape<D, Q>::bytes, *args);
}

weft_status attention_tiled(cuda_device *d, const attention_kernel_args *args, uint32_t queries) {
  bool few = queries == 16;
  switch (args->op.kv.head_dim) {
    case 64: launch<64, 64>(d, args); break;
    case 128: few ? launch<128, 16>(d, args) : launch<128, 64>(d, args); break;
    case 256: few ? launch<256, 16>(d, args) : launch<256, 64>(d, args); break;
    default: few ? launch<512, 16>(d, args) : launch<512, 32>(d, args); break;
  }
  weft_status status = cuda_launched(d, "attention");
  if (status != WEFT_OK || args->n_merges == 0) return status;
  cuda_start(d, merge_kernel, dim3(args->n_merges, args->op.kv.n_kv_heads, queries), 128, 0, *args);
  return cuda_launched(d, "joining attention");
}

template <int D, int Q>
static weft_status set_up(cuda_device *d) {
  cudaError_t error = cudaFuncSetAttribute(tiled_kernel<D, Q>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           tiled_shape<D, Q>::bytes);
  return cuda_judge(d, error, "setting up attention");
}

weft_status attention_tiled_setup(cuda_device *d) {
  weft_status status = set_up<64, 64>(d);
  if (status == WEFT_OK) status = set_up<128, 64>(d);
  if (status == WEFT_OK) status = set_up<256, 64>(d);
  if (status == WEFT_OK) status = set_up<512, 32>(d);
  if (status == WEFT_OK) status = set_up<128, 16>(d);
  if (status == WEFT_OK) status = set_up<256, 16>(d);
  return status == WEFT_OK ? set_up<512, 16>(d) : status;
}
