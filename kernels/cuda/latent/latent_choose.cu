/* SPDX-License-Identifier: MIT */
/* latent_choose: scores of rows and index rows in scratch, then the k largest of each row. Rows that see at most k far
 * rows need no scores. Where scores of all rows do not fit the scratch, rows come in groups.
 *
 * Scores of index rows in bf16, 32, 64 or 128 wide, are made by tensor cores: a warp has 32 index rows in registers and
 * goes through the rows of an item. Queries are two bf16 each, high and low, whose products follow one another. A lane
 * has eight neighbouring dimensions of each 32, so of these the matrix unit gets 0, 1, 8, 9, 16, 17, 24, 25, 2, 3 ..
 * first, and then 4, 5, 12, 13 .. (multiply_pair). A lane adds heads 8 i + 2 c and 8 i + 2 c + 1, ascending, then a
 * tree over the four lanes. All other index rows are a thread's, one sum over dimensions and heads ascending (f32).
 *
 * A block finds a row's largest: eight bits of the k-th largest at a time, by counting (radix select); then its warps
 * take spans of the scores and write what is chosen, ascending, of equal scores the first. Blocks of far rows are
 * chosen in the same way, by their best scores; where blocks were chosen before, only scores of theirs are looked at,
 * though all are made. */
#include <string.h>

#include "base/log.h"
#include "kernels/cuda/latent/latent.cuh"

enum {
  CHOOSE_ROWS = 16,      /* of an item */
  CHOOSE_THREADS = 128,  /* of a block of scores, */
  CHOOSE_KEYS = 128,     /* which has so many index rows */
  CHOOSE_HEADS_MAX = 64, /* by tensor cores */
  CHOOSE_WIDTH_MAX = 128,
  SELECT_THREADS = 512,
  SCORES_LEAST = 1024, /* of a row in scratch: a power of two */
  SCORES_ROWS = 64     /* rows whose scores of SCORES_OF_ROW index rows have room */
};
static const uint64_t SCORES_OF_ROW = 1 << 18;

/* Rows [first, first + n) of the call, which are of one segment. */
typedef struct choose_item {
  uint32_t segment, first, n;
} choose_item;

typedef struct choose_call {
  weft_latent_choose_args op; /* segment: device copy */
  const choose_item *items;   /* of the group */
  float *scores;              /* [rows of the group][stride] */
  uint32_t stride, first_row;
} choose_call;

static __device__ __forceinline__ uint32_t seen_by(const weft_latent_choose_args &a, const weft_latent_segment &s,
                                                   uint32_t r) {
  return (s.kv_len + (r - s.first_row) + 1) / a.index.positions;
}

static __device__ __forceinline__ const uint8_t *index_row(const weft_latent_choose_args &a,
                                                           const weft_latent_segment &s, uint32_t i) {
  return latent_row_at(a.index, a.index.offset, s.table[WEFT_LATENT_INDEX], i * a.index.positions);
}

/* ---- scores by tensor cores ---- */

/* A row's queries in shared memory: of each head high, then low; and its weights. Rows are 64 bytes off a multiple of
 * 128, so that two neighbouring heads lie in different banks. */
template <int PAIRS>
struct choose_queries {
  static constexpr uint32_t STRIDE = 64 * PAIRS + (PAIRS % 2 == 0 ? 64 : 0);
  uint8_t high[CHOOSE_HEADS_MAX * STRIDE], low[CHOOSE_HEADS_MAX * STRIDE];
  float weight[CHOOSE_HEADS_MAX];
};

/* Heads from n_heads up to a multiple of 8 are zeros. */
template <int PAIRS>
static __device__ __forceinline__ void load_queries(const weft_latent_choose_args &a, uint64_t r,
                                                    choose_queries<PAIRS> &to) {
  constexpr uint32_t WIDTH = 32 * PAIRS;
  const uint32_t n_heads = (a.n_heads + 7) / 8 * 8;
  const float *q = a.q + r * a.q_stride, *weights = a.weights + r * a.weights_stride;
  for (uint32_t i = threadIdx.x; i < n_heads * (WIDTH / 2); i += CHOOSE_THREADS) {
    uint32_t head = i / (WIDTH / 2), at = i % (WIDTH / 2) * 2;
    float2 x = head < a.n_heads ? make_float2(q[head * WIDTH + at], q[head * WIDTH + at + 1]) : make_float2(0, 0);
    float one = __bfloat162float(__float2bfloat16_rn(x.x)), two = __bfloat162float(__float2bfloat16_rn(x.y));
    *(uint32_t *)(void *)(to.high + head * to.STRIDE + at * 2) = pair_bf16(one, two);
    *(uint32_t *)(void *)(to.low + head * to.STRIDE + at * 2) = pair_bf16(__fsub_rn(x.x, one), __fsub_rn(x.y, two));
  }
  for (uint32_t h = threadIdx.x; h < n_heads; h += CHOOSE_THREADS) to.weight[h] = h < a.n_heads ? weights[h] : 0.0f;
}

/* 32 dimensions of 16 index rows, or of 8 heads: two operands. */
static __device__ __forceinline__ void multiply_pair(float (&sums)[4], const uint4 &low_rows, const uint4 &high_rows,
                                                     const uint4 &heads) {
  const uint32_t first[4] = {low_rows.x, high_rows.x, low_rows.y, high_rows.y},
                 next[4] = {low_rows.z, high_rows.z, low_rows.w, high_rows.w};
  mma_bf16(sums, first, heads.x, heads.y);
  mma_bf16(sums, next, heads.z, heads.w);
}

template <int PAIRS>
static __global__ void __launch_bounds__(CHOOSE_THREADS) score_kernel(const __grid_constant__ choose_call call) {
  launch_dependents_and_wait();
  __shared__ __align__(16) choose_queries<PAIRS> queries;
  const weft_latent_choose_args &a = call.op;
  const choose_item item = call.items[blockIdx.y];
  const weft_latent_segment &s = a.segment[item.segment];
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t n_all = seen_by(a, s, item.first + item.n - 1);
  if (blockIdx.x * CHOOSE_KEYS >= n_all || n_all <= a.k) return;
  const uint32_t first = blockIdx.x * CHOOSE_KEYS + threadIdx.x / 32 * 32 + g;
  uint4 rows[4][PAIRS]; /* index rows first, first + 8, first + 16, first + 24 */
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint32_t at = first + 8 * i;
    const uint8_t *row = at < n_all ? index_row(a, s, at) + 16 * c : NULL;
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
      rows[i][p] = row != NULL ? *(const uint4 *)(const void *)(row + 64 * p) : make_uint4(0, 0, 0, 0);
  }
  for (uint32_t r = item.first; r < item.first + item.n; r++) {
    const uint32_t n_seen = seen_by(a, s, r);
    if (n_seen <= a.k || n_seen <= blockIdx.x * CHOOSE_KEYS) continue; /* the same for all threads */
    __syncthreads();
    load_queries<PAIRS>(a, r, queries);
    __syncthreads();
    float score[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 2
    for (uint32_t h = 0; h < a.n_heads; h += 8) {
      float sums[2][4] = {};
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        const uint32_t at = (h + g) * queries.STRIDE + 64 * p + 16 * c;
        const uint4 high = *(const uint4 *)(const void *)(queries.high + at),
                    low = *(const uint4 *)(const void *)(queries.low + at);
#pragma unroll
        for (int m = 0; m < 2; m++) {
          multiply_pair(sums[m], rows[2 * m][p], rows[2 * m + 1][p], high);
          multiply_pair(sums[m], rows[2 * m][p], rows[2 * m + 1][p], low);
        }
      }
      const float weight[2] = {queries.weight[h + 2 * c], queries.weight[h + 2 * c + 1]};
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int m = i / 4, e = i % 4;
        score[2 * m + e / 2] = __fmaf_rn(weight[e % 2], fmaxf(sums[m][e], 0.0f), score[2 * m + e / 2]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      score[i] = __fadd_rn(score[i], __shfl_xor_sync(0xFFFFFFFFu, score[i], 1));
      score[i] = __fadd_rn(score[i], __shfl_xor_sync(0xFFFFFFFFu, score[i], 2));
      if (c == 0 && first + 8 * i < n_seen)
        call.scores[(uint64_t)(r - call.first_row) * call.stride + first + 8 * i] = score[i];
    }
  }
}

/* ---- scores of other index rows ---- */

template <weft_type T>
static __global__ void __launch_bounds__(CHOOSE_THREADS) score_any_kernel(const __grid_constant__ choose_call call) {
  launch_dependents_and_wait();
  const weft_latent_choose_args &a = call.op;
  const choose_item item = call.items[blockIdx.y];
  const weft_latent_segment &s = a.segment[item.segment];
  const uint32_t i = blockIdx.x * CHOOSE_KEYS + threadIdx.x, n = a.index.width;
  if (i >= seen_by(a, s, item.first + item.n - 1)) return;
  const uint8_t *row = index_row(a, s, i);
  for (uint32_t r = item.first; r < item.first + item.n; r++) {
    const uint32_t n_seen = seen_by(a, s, r);
    if (n_seen <= a.k || i >= n_seen) continue;
    const float *q = a.q + r * a.q_stride, *weights = a.weights + r * a.weights_stride;
    float score = 0.0f;
    for (uint32_t h = 0; h < a.n_heads; h++, q += n) {
      float product = 0.0f;
      for (uint32_t d = 0; d < n; d++) product = __fmaf_rn(q[d], latent_load<T>(row, d, n), product);
      score = __fmaf_rn(weights[h], fmaxf(product, 0.0f), score);
    }
    call.scores[(uint64_t)(r - call.first_row) * call.stride + i] = score;
  }
}

/* ---- the largest ---- */

/* A number that ascends as the score does. */
static __device__ __forceinline__ uint32_t order_of(float score) {
  uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f)); /* -0 is 0 */
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

typedef struct select_memory {
  uint32_t count[256];
  uint32_t found, left; /* the bits of the k-th largest so far; how many of those with these bits are chosen */
  uint32_t above[SELECT_THREADS / 32], equal[SELECT_THREADS / 32];
} select_memory;

/* The scores of a row that are chosen among, by number: those of all far rows, */
struct all_scores {
  const float *scores;
  uint32_t n;
  __device__ __forceinline__ float operator[](uint32_t i) const { return scores[i]; }
  __device__ __forceinline__ int32_t id(uint32_t i) const { return (int32_t)i; }
};

/* the best ones of all blocks of far rows, of which the last is always taken, */
struct block_scores {
  const float *scores;
  uint32_t n, size;
  __device__ __forceinline__ float operator[](uint32_t i) const {
    if (i + 1 == n) return INFINITY;
    float best = scores[(uint64_t)i * size];
    for (uint32_t k = 1; k < size; k++) best = fmaxf(best, scores[(uint64_t)i * size + k]);
    return best;
  }
  __device__ __forceinline__ int32_t id(uint32_t i) const { return (int32_t)i; }
};

/* or those of the far rows of chosen blocks, the last of which has only rows that are seen. */
struct scores_of_blocks {
  const float *scores;
  uint32_t n, size;
  const int32_t *blocks;
  __device__ __forceinline__ int32_t id(uint32_t i) const {
    return (int32_t)((uint32_t)blocks[i / size] * size + i % size);
  }
  __device__ __forceinline__ float operator[](uint32_t i) const { return scores[id(i)]; }
};

/* Counts the byte at `shift` of what agrees with `found` above it. */
template <class S>
static __device__ __forceinline__ void count_bytes(const S &scores, uint32_t n, uint32_t shift, select_memory &memory) {
  const uint32_t found = memory.found;
  for (uint32_t i = threadIdx.x; i / 32 * 32 < n; i += SELECT_THREADS) {
    uint32_t order = i < n ? order_of(scores[i]) : 0;
    bool is_one = i < n && (shift == 24 || order >> (shift + 8) == found >> (shift + 8));
    uint32_t byte = is_one ? order >> shift & 255 : 256;
    if (shift < 24) {
      if (is_one) atomicAdd(&memory.count[byte], 1u);
      continue;
    }
    uint32_t same = __match_any_sync(0xFFFFFFFFu, byte); /* the first byte is the same for most */
    if (is_one && threadIdx.x % 32 == (uint32_t)__ffs((int)same) - 1) atomicAdd(&memory.count[byte], __popc(same));
  }
}

/* Warp 0: the byte of the one that is `left`-th largest. Lane l has bytes 255 - 8 l and the seven below it. */
static __device__ __forceinline__ void find_byte(uint32_t shift, select_memory &memory) {
  const uint32_t lane = threadIdx.x, most = 255 - 8 * lane, left = memory.left;
  uint32_t own = 0;
#pragma unroll
  for (uint32_t j = 0; j < 8; j++) own += memory.count[most - j];
  uint32_t end = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    uint32_t before = __shfl_up_sync(0xFFFFFFFFu, end, step);
    if (lane >= (uint32_t)step) end += before;
  }
  uint32_t before = end - own;
  __syncwarp();
  if (before >= left || end < left) return;
  for (uint32_t j = 0; j < 8; j++) {
    uint32_t n = memory.count[most - j];
    if (before + n >= left) {
      memory.found |= (most - j) << shift;
      memory.left = left - before;
      return;
    }
    before += n;
  }
}

/* A warp's span of the scores, 32 at a time: put(i, is above, is equal). */
template <class S, class F>
static __device__ __forceinline__ void each_of_span(const S &scores, uint32_t n, uint32_t found, F &&put) {
  constexpr uint32_t WARPS = SELECT_THREADS / 32;
  const uint32_t span = ((n + WARPS - 1) / WARPS + 31) / 32 * 32, first = threadIdx.x / 32 * span;
  for (uint32_t at = first; at < min(first + span, n); at += 32) {
    uint32_t i = at + threadIdx.x % 32, order = i < n ? order_of(scores[i]) : 0;
    put(i, i < n && order > found, i < n && order == found);
  }
}

template <class S>
static __device__ __forceinline__ void write_chosen(const S &scores, int32_t *ids, select_memory &memory) {
  const uint32_t n = scores.n;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, found = memory.found, left = memory.left;
  uint32_t n_above = 0, n_equal = 0;
  each_of_span(scores, n, found, [&](uint32_t, bool above, bool equal) {
    n_above += __popc(__ballot_sync(0xFFFFFFFFu, above));
    n_equal += __popc(__ballot_sync(0xFFFFFFFFu, equal));
  });
  if (lane == 0) memory.above[warp] = n_above, memory.equal[warp] = n_equal;
  __syncthreads();
  n_above = n_equal = 0;
  for (uint32_t w = 0; w < warp; w++) n_above += memory.above[w], n_equal += memory.equal[w];
  each_of_span(scores, n, found, [&](uint32_t i, bool above, bool equal) {
    uint32_t all_above = __ballot_sync(0xFFFFFFFFu, above), all_equal = __ballot_sync(0xFFFFFFFFu, equal),
             below = (1u << lane) - 1;
    uint32_t own_above = n_above + __popc(all_above & below), own_equal = n_equal + __popc(all_equal & below);
    if (above || (equal && own_equal < left)) ids[own_above + min(own_equal, left)] = scores.id(i);
    n_above += __popc(all_above), n_equal += __popc(all_equal);
  });
}

/* The k largest of more than k scores. */
template <class S>
static __device__ __forceinline__ void select_largest(const S &scores, uint32_t k, int32_t *ids,
                                                      select_memory &memory) {
  if (threadIdx.x == 0) memory.found = 0, memory.left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) memory.count[threadIdx.x] = 0;
    __syncthreads();
    count_bytes(scores, scores.n, (uint32_t)shift, memory);
    __syncthreads();
    if (threadIdx.x < 32) find_byte((uint32_t)shift, memory);
    __syncthreads();
  }
  write_chosen(scores, ids, memory);
}

/* BLOCKS: there are blocks, which are made or read where a row sees more than n_blocks of them. */
template <bool BLOCKS>
static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(const __grid_constant__ choose_call call) {
  launch_dependents_and_wait();
  __shared__ select_memory memory;
  const weft_latent_choose_args &a = call.op;
  const uint32_t r = call.first_row + blockIdx.x;
  const uint32_t n = seen_by(a, latent_find_segment(a.segment, a.n_segments, r), r);
  int32_t *ids = a.ids + (uint64_t)r * a.k;
  if (n <= a.k) {
    for (uint32_t i = threadIdx.x; i < a.k; i += SELECT_THREADS) ids[i] = i < n ? (int32_t)i : -1;
    return;
  }
  const float *scores = call.scores + (uint64_t)blockIdx.x * call.stride;
  if (BLOCKS && n > (uint64_t)a.n_blocks * a.block_rows) {
    int32_t *blocks = a.blocks + (uint64_t)r * a.n_blocks;
    const uint32_t n_all = (n + a.block_rows - 1) / a.block_rows;
    if (!a.makes_blocks) {
      const uint32_t n_last = n - (uint32_t)blocks[a.n_blocks - 1] * a.block_rows;
      const uint32_t n_rows = (a.n_blocks - 1) * a.block_rows + min(n_last, a.block_rows);
      select_largest(scores_of_blocks{scores, n_rows, a.block_rows, blocks}, a.k, ids, memory);
      return;
    }
    select_largest(block_scores{scores, n_all, a.block_rows}, a.n_blocks, blocks, memory);
    __syncthreads();
  }
  select_largest(all_scores{scores, n}, a.k, ids, memory);
}

/* ---- the op ---- */

static bool is_tiled(const weft_latent_choose_args *args) {
  const weft_latent_view *v = &args->index;
  bool aligned = ((uintptr_t)v->base | v->page_bytes | v->offset) % 16 == 0;
  return v->type == WEFT_TYPE_BF16 && (v->width == 32 || v->width == 64 || v->width == CHOOSE_WIDTH_MAX) && aligned &&
         args->n_heads <= CHOOSE_HEADS_MAX;
}

uint64_t cuda_latent_choose_scratch(weft_device *, const weft_latent_choose_args *args) {
  return (args->n_rows < SCORES_ROWS ? args->n_rows : SCORES_ROWS) * SCORES_OF_ROW * sizeof(float);
}

/* How a call is cut: into groups of rows whose scores fit. */
typedef struct choose_plan {
  uint32_t stride, group_rows; /* stride 0: no row needs scores */
} choose_plan;

/* Of all lengths up to a power of two a graph is one. */
static weft_status plan_choice(const weft_latent_choose_args *args, choose_plan *plan) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < args->n_segments; i++) {
    uint32_t n = (args->segment[i].kv_len + args->segment[i].n_rows) / args->index.positions;
    if (n > most) most = n;
  }
  *plan = {0, args->n_rows};
  if (most <= args->k) return WEFT_OK;
  plan->stride = SCORES_LEAST;
  while (plan->stride < most) plan->stride *= 2;
  uint64_t room = args->scratch_bytes / sizeof(float) / plan->stride;
  if (room == 0) {
    weft_log(WEFT_LOG_ERROR, "latent_choose: a row sees %u rows of the index, which are too many for its scratch",
             most);
    return WEFT_E_TOO_LARGE;
  }
  if (room >= args->n_rows) return WEFT_OK;
  plan->group_rows = (uint32_t)(room > CHOOSE_ROWS ? room / CHOOSE_ROWS * CHOOSE_ROWS : room);
  return WEFT_OK;
}

/* Items of the rows [first, end); items NULL: counts them alone. */
static uint32_t make_items(const weft_latent_choose_args *args, uint32_t first, uint32_t end, choose_item *items) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < args->n_segments; i++) {
    const weft_latent_segment *s = &args->segment[i];
    uint32_t r = s->first_row > first ? s->first_row : first, last = s->first_row + s->n_rows;
    if (last > end) last = end;
    for (; r < last; r += CHOOSE_ROWS, n++)
      if (items != NULL) items[n] = {i, r, last - r < CHOOSE_ROWS ? last - r : CHOOSE_ROWS};
  }
  return n;
}

/* The items of all groups one behind another, on the device. */
static weft_status push_items(cuda_device *d, const weft_latent_choose_args *args, const choose_plan *plan,
                              const choose_item **out) {
  uint32_t n = 0;
  for (uint32_t first = 0; first < args->n_rows; first += plan->group_rows) {
    uint32_t own = make_items(args, first, first + plan->group_rows, NULL);
    n += own;
    if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, &own, sizeof own);
  }
  uint8_t *table = cuda_plan_begin(d, (uint64_t)n * sizeof(choose_item));
  if (table == NULL) return WEFT_E_TOO_LARGE;
  choose_item *to = (choose_item *)(void *)table;
  for (uint32_t first = 0; first < args->n_rows; first += plan->group_rows)
    to += make_items(args, first, first + plan->group_rows, to);
  const uint8_t *there = NULL;
  weft_status status = cuda_plan_end(d, (uint64_t)n * sizeof(choose_item), &there);
  *out = (const choose_item *)(const void *)there;
  return status;
}

static weft_status make_tables(cuda_device *d, const weft_latent_choose_args *args, choose_plan *plan,
                               choose_call *call) {
  weft_status status = plan_choice(args, plan);
  if (status != WEFT_OK) return status;
  if (d->base.graphs != NULL) step_graphs_note(d->base.graphs, UINT32_MAX, plan, sizeof *plan);
  call->op = *args;
  call->scores = (float *)args->scratch;
  call->stride = plan->stride;
  status = latent_push_segments(d, args->segment, args->n_segments, &call->op.segment);
  return status == WEFT_OK && plan->stride > 0 ? push_items(d, args, plan, &call->items) : status;
}

static void start_scores(cuda_device *d, const choose_call *call, uint32_t n_items) {
  const dim3 grid(call->stride / CHOOSE_KEYS, n_items);
  if (is_tiled(&call->op)) {
    auto kernel = call->op.index.width == 32   ? score_kernel<1>
                  : call->op.index.width == 64 ? score_kernel<2>
                                               : score_kernel<4>;
    cuda_start(d, kernel, grid, CHOOSE_THREADS, 0, *call);
    return;
  }
  latent_dispatch(call->op.index.type, [&](auto type) {
    cuda_start(d, score_any_kernel<decltype(type)::value>, grid, CHOOSE_THREADS, 0, *call);
  });
}

weft_status cuda_latent_choose_walk(weft_device *device, const weft_latent_choose_args *args) {
  choose_plan plan;
  choose_call call;
  return make_tables(cuda_of(device), args, &plan, &call);
}

weft_status cuda_latent_choose(weft_device *device, const weft_latent_choose_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  choose_plan plan;
  choose_call call;
  memset(&call, 0, sizeof call);
  weft_status status = make_tables(d, args, &plan, &call);
  for (uint32_t first = 0; first < args->n_rows && status == WEFT_OK; first += plan.group_rows) {
    uint32_t n = args->n_rows - first < plan.group_rows ? args->n_rows - first : plan.group_rows, n_items = 0;
    call.first_row = first;
    if (plan.stride > 0) {
      n_items = make_items(args, first, first + n, NULL);
      start_scores(d, &call, n_items);
      call.items += n_items;
    }
    cuda_start(d, args->blocks == NULL ? select_kernel<false> : select_kernel<true>, n, SELECT_THREADS, 0, call);
    status = cuda_launched(d, "latent_choose");
  }
  return status;
}
