/* SPDX-License-Identifier: MIT */
/* sample: a row is the work of a cluster of eight blocks, which exchange sums in distributed shared memory; in the
 * portable set of one block (row_blocks.cuh), and the cluster is that block.
 *
 * Law: the result is that of sample.h. No sum of PART_BITS of a block's tokens overflows 32 bits (WEFT_SAMPLE_VOCAB_MAX
 * tokens, shared out to ROW_BLOCKS blocks). The vocabulary is cut into SPANS spans, which are assigned to the blocks in
 * order, and a warp takes a span where order matters. Sums are of integers, so nothing depends on which thread adds
 * first. Values are counted by their distance from the largest, in steps of 1/64, up to the step where a cut (top_k,
 * top_p) falls. If the tokens up to there are few, they are gathered in the first block and sorted. If they are many,
 * the values of that step are counted by their bits, 2048 at a time, until one value is left; of tokens that share it
 * the lower ones are kept. Every branch around a cluster barrier is taken by the whole cluster. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#ifdef WEFT_CUDA_PORTABLE
#include "kernels/cuda/portable/row_blocks.cuh"
#else
#include "kernels/cuda/head/row_blocks.cuh"
#endif

enum {
  BLOCKS = ROW_BLOCKS,
  THREADS = 512,
  WARPS = THREADS / 32,
  SPANS = 2048,
  OWN_SPANS = SPANS / BLOCKS,
  STEPS = 2048
};
enum { SPAN_AT_ONCE = 4 }; /* loads of a thread that are under way together, where order matters */
enum { PARTS = ROW_BLOCKS == 1 ? 4 : 3, PART_BITS = ROW_BLOCKS == 1 ? 12 : 14, SEEN = 1u << 31, NEAR_MAX = 1024 };

/* A sum, and the largest of something. */
typedef struct sum_and_most {
  uint64_t sum, most;
} sum_and_most;

typedef struct sample_shared {
  union {
    struct {
      uint32_t part[PARTS][STEPS]; /* sums per step, PART_BITS of each summand in each part */
      uint32_t n[STEPS];           /* tokens */
    };
    uint64_t sorted[NEAR_MAX]; /* of the first block: what was gathered, best first: key, then ~token */
  };
  uint64_t near_by[NEAR_MAX]; /* of the first block: what is gathered; then weights of what is sorted */
  uint32_t n_near;
  uint64_t span[OWN_SPANS];
  uint64_t warp[WARPS];
  sum_and_most warp_both[WARPS], mine;
  uint64_t found_before, found_at;
  uint32_t found;
} sample_shared;

/* One row as a thread sees it. Everything but `rank` is the same in the whole cluster. */
typedef struct sample_work {
  sample_shared *s;
  uint32_t rank, n_vocab, span;
  const uint32_t *allowed, *own; /* masks, or NULL: tokens that are out have no value, and nothing of them is read */
  const float *values;           /* what is compared: logits, then logits / temperature */
  float most;                    /* the largest value */
} sample_work;

/* The first place at which a running sum reaches what is wanted. */
typedef struct crossing {
  uint32_t at;
  uint64_t before, own, total;
} crossing;

/* What the cuts leave: keys above `key`, and those equal to it up to token `last`. */
typedef struct sample_cut {
  uint32_t key, last;
  float min_log;
} sample_cut;

/* ---- numbers -------------------------------------------------------------------------------------------- */

/* A key that orders as the value does, with both zeros equal; 0: the value is not finite. */
static __device__ __forceinline__ uint32_t key_of(float value) {
  if (!isfinite(value)) return 0;
  uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFFu : ~key);
}

static __device__ __forceinline__ uint32_t step_of(float below) {
  float steps = __fmul_rn(-below, 64.0f);
  return steps < (float)STEPS - 1.0f ? (uint32_t)steps : STEPS - 1;
}

static __device__ __forceinline__ uint64_t weight_of(const sample_work &w, float value) {
  return weft_sample_weight(__fadd_rn(value, -w.most));
}

static __device__ __forceinline__ bool is_kept(const sample_work &w, const sample_cut &cut, float value, uint32_t v) {
  uint32_t key = key_of(value);
  if (key == 0 || key < cut.key || (key == cut.key && v > cut.last)) return false;
  return __fadd_rn(value, -w.most) >= cut.min_log;
}

/* ---- values --------------------------------------------------------------------------------------------- */

/* Which of the 32 tokens from 32 * i on are not out. */
static __device__ __forceinline__ uint32_t word_of(const sample_work &w, uint32_t i) {
  uint32_t word = w.allowed == NULL ? UINT32_MAX : w.allowed[i];
  return w.own == NULL ? word : word & w.own[i];
}

/* Calls f(token, value) for those of the N tokens v, v + step, ... below `end` that are not out. All loads are under
 * way before the first call. step is a multiple of 32, and the lanes of a warp have neighbouring tokens: their words
 * are one. */
template <uint32_t N, typename F>
static __device__ __forceinline__ void some_values(const sample_work &w, uint32_t v, uint32_t step, uint32_t end, F f) {
  uint32_t word[N];
  float value[N];
#pragma unroll
  for (uint32_t u = 0; u < N; u++) word[u] = v + u * step < end ? word_of(w, (v + u * step) / 32) : 0;
#pragma unroll
  for (uint32_t u = 0; u < N; u++) {
    word[u] = word[u] >> v % 32 & 1u;
    value[u] = word[u] != 0 ? w.values[v + u * step] : 0.0f;
  }
#pragma unroll
  for (uint32_t u = 0; u < N; u++)
    if (word[u] != 0) f(v + u * step, value[u]);
}

/* Four neighbouring tokens: their values, and a bit for each one that is not out. */
typedef struct quad {
  float value[4];
  uint32_t in;
} quad;

static __device__ __forceinline__ quad load_quad(const sample_work &w, uint32_t v, uint32_t end) {
  quad q = {{0.0f, 0.0f, 0.0f, 0.0f}, 0};
  if (v >= end) return q;
  q.in = word_of(w, v / 32) >> v % 32 & (end - v >= 4 ? 15u : (1u << (end - v)) - 1);
  if (q.in != 0 && end - v >= 4 && ((uintptr_t)w.values & 15) == 0) {
    *(float4 *)(void *)q.value = *(const float4 *)(const void *)(w.values + v);
    return q;
  }
#pragma unroll
  for (uint32_t u = 0; u < 4; u++)
    if ((q.in >> u & 1) != 0) q.value[u] = w.values[v + u];
  return q;
}

/* Calls f(token, value) for all tokens of the block that are not out. A thread always gets the same ones, eight at a
 * time. f is there four times: a row takes some ten microseconds, in which the kernel's instructions have to come from
 * memory too. */
template <typename F>
static __device__ __forceinline__ void each_value(const sample_work &w, F f) {
  uint32_t begin = w.rank * OWN_SPANS * w.span, end = min(begin + OWN_SPANS * w.span, w.n_vocab);
#pragma unroll 1
  for (uint32_t v = begin + 4 * threadIdx.x; v < end; v += 8 * THREADS) {
    quad first = load_quad(w, v, end), second = load_quad(w, v + 4 * THREADS, end);
#pragma unroll 1
    for (uint32_t at = v; at <= v + 4 * THREADS; at += 4 * THREADS) {
#pragma unroll
      for (uint32_t u = 0; u < 4; u++)
        if ((first.in >> u & 1) != 0) f(at + u, first.value[u]);
      first = second;
    }
  }
}

/* ---- reductions over the cluster ------------------------------------------------------------------------- */

/* The sum of this lane and the lanes before it. */
static __device__ __forceinline__ uint64_t warp_upto(uint64_t v) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    uint64_t other = __shfl_up_sync(0xFFFFFFFFu, v, step);
    if (threadIdx.x % 32 >= (uint32_t)step) v += other;
  }
  return v;
}

static __device__ __forceinline__ sum_and_most join(sum_and_most a, sum_and_most b) {
  return {a.sum + b.sum, a.most > b.most ? a.most : b.most};
}

static __device__ __forceinline__ sum_and_most join_lanes(sum_and_most v, int n) {
  for (int step = n / 2; step > 0; step /= 2)
    v = join(v, {__shfl_xor_sync(0xFFFFFFFFu, v.sum, step), __shfl_xor_sync(0xFFFFFFFFu, v.most, step)});
  return v;
}

/* Over the cluster; every thread gets both. */
__device__ __noinline__ sum_and_most sample_meet_cluster(sample_shared *s, sum_and_most v) {
  row_blocks cluster = row_blocks_here();
  uint32_t lane = threadIdx.x % 32;
  v = join_lanes(v, 32);
  if (lane == 0) s->warp_both[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = join_lanes(s->warp_both[lane % WARPS], WARPS);
    if (lane == 0) s->mine = v;
  }
  cluster.sync();
  sum_and_most all = {0, 0};
  for (uint32_t b = 0; b < BLOCKS; b++) all = join(all, *cluster.map_shared_rank(&s->mine, b));
  cluster.sync();
  return all;
}

static __device__ __forceinline__ uint64_t sum_cluster(const sample_work &w, uint64_t v) {
  return sample_meet_cluster(w.s, {v, 0}).sum;
}

/* The first of the spans of the cluster whose running sum reaches wanted(total); none: at is SPANS. */
template <typename F>
static __device__ crossing cross_spans(const sample_work &w, F wanted) {
  enum { EACH = SPANS / THREADS };
  row_blocks cluster = row_blocks_here();
  uint64_t own[EACH], upto = 0, before = 0, total = 0;
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  cluster.sync();
  const uint64_t *from = cluster.map_shared_rank(w.s->span, threadIdx.x * EACH / OWN_SPANS);
  for (uint32_t i = 0; i < EACH; i++) upto += own[i] = from[(threadIdx.x * EACH + i) % OWN_SPANS];
  uint64_t all = upto;
  upto = warp_upto(upto);
  if (lane == 31) w.s->warp[warp] = upto;
  if (threadIdx.x == 0) w.s->found = SPANS, w.s->found_before = 0, w.s->found_at = 0;
  __syncthreads();
  for (uint32_t i = 0; i < WARPS; i++) {
    if (i < warp) before += w.s->warp[i];
    total += w.s->warp[i];
  }
  before += upto - all;
  uint64_t want = wanted(total);
  for (uint32_t i = 0; i < EACH; i++) {
    if (before < want && before + own[i] >= want) { /* one thread, one i */
      w.s->found = threadIdx.x * EACH + i;
      w.s->found_before = before;
      w.s->found_at = own[i];
    }
    before += own[i];
  }
  __syncthreads();
  crossing c = {w.s->found, w.s->found_before, w.s->found_at, total};
  cluster.sync();
  return c;
}

/* The same for steps instead of spans. Each block first adds up, over all blocks, as many steps as it has spans. */
template <typename F>
static __device__ crossing cross_steps(const sample_work &w, F wanted) {
  row_blocks cluster = row_blocks_here();
  cluster.sync();
  for (uint32_t i = threadIdx.x; i < OWN_SPANS; i += THREADS) {
    uint64_t sum = 0;
#pragma unroll
    for (uint32_t b = 0; b < BLOCKS; b++) {
      const uint32_t *part = cluster.map_shared_rank(&w.s->part[0][w.rank * OWN_SPANS + i], b);
#pragma unroll
      for (uint32_t p = 0; p < PARTS; p++) sum += (uint64_t)part[p * STEPS] << p * PART_BITS;
    }
    w.s->span[i] = sum;
  }
  return cross_spans(w, wanted);
}

/* ---- cuts ----------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void clear_steps(const sample_work &w) {
  for (uint32_t i = threadIdx.x; i < (PARTS + 1) * STEPS; i += THREADS) (&w.s->part[0][0])[i] = 0;
  __syncthreads();
}

static __device__ __forceinline__ void add_to_step(const sample_work &w, uint32_t step, uint64_t n) {
#pragma unroll
  for (uint32_t p = 0; p < PARTS; p++) {
    uint32_t part = (uint32_t)(n >> p * PART_BITS) & (p + 1 < PARTS ? (1u << PART_BITS) - 1 : UINT32_MAX);
    if (part != 0) atomicAdd(&w.s->part[p][step], part);
  }
}

/* What a value adds to a sum: its weight, or 1 where tokens are counted. */
template <bool WEIGHTS>
static __device__ __forceinline__ uint64_t worth_of(const sample_work &w, float value) {
  return WEIGHTS ? weight_of(w, value) : (uint64_t)1;
}

/* Adds a finite value to its step. A value far below the largest has no weight, so its tokens need not be counted. */
template <bool WEIGHTS>
static __device__ __forceinline__ void note_value(const sample_work &w, float value) {
  uint32_t step = step_of(__fadd_rn(value, -w.most));
  if (step == STEPS - 1) return;
  add_to_step(w, step, worth_of<WEIGHTS>(w, value));
  if (WEIGHTS) atomicAdd(&w.s->n[step], 1u);
}

/* Called when every finite value has been noted: finds the step where the sum reaches wanted(total). *n_near: how many
 * tokens lie up to there. */
template <bool WEIGHTS, typename F>
static __device__ crossing find_step(const sample_work &w, F wanted, uint64_t *n_near) {
  crossing c = cross_steps(w, wanted);
  uint64_t n = c.before + c.own;
  if (WEIGHTS) {
    n = 0;
    for (uint32_t i = threadIdx.x; i < STEPS && i <= c.at; i += THREADS) n += w.s->n[i];
    n = sum_cluster(w, n);
  }
  *n_near = c.at == SPANS ? UINT64_MAX : n;
  return c;
}

/* Gathers the tokens that belong to a set and sorts them in the first block. n_near: how many they are. */
template <typename F>
static __device__ void gather_sorted(const sample_work &w, uint32_t n_near, F belongs) {
  row_blocks cluster = row_blocks_here();
  uint32_t *at = cluster.map_shared_rank(&w.s->n_near, 0);
  uint64_t *to = cluster.map_shared_rank(w.s->near_by, 0);
  if (threadIdx.x == 0) w.s->n_near = 0;
  cluster.sync();
  each_value(w, [&](uint32_t v, float value) {
    uint32_t key = key_of(value);
    if (key == 0 || !belongs(value, v)) return;
    uint32_t i = atomicAdd(at, 1u);
    if (i < n_near) to[i] = (uint64_t)key << 32 | (uint32_t)~v;
  });
  cluster.sync();
  if (w.rank != 0) return;
  for (uint32_t i = threadIdx.x; i < n_near; i += THREADS) {
    uint64_t own = w.s->near_by[i];
    uint32_t place = 0;
    for (uint32_t k = 0; k < n_near; k++) place += w.s->near_by[k] > own ? 1 : 0;
    w.s->sorted[place] = own;
  }
  __syncthreads();
}

__device__ __noinline__ void sample_gather_near(sample_work w, uint32_t step, uint64_t n_near) {
  gather_sorted(w, (uint32_t)n_near, [&](float value, uint32_t) { return step_of(__fadd_rn(value, -w.most)) <= step; });
}

typedef struct selected {
  uint32_t key;
  uint64_t above, at; /* sums of all values above the key's, and of those equal to it */
} selected;

/* The lowest and the highest key of a step. */
static __device__ void bounds_of(const sample_work &w, uint32_t step, uint32_t *low, uint32_t *high) {
  uint32_t least = UINT32_MAX, most = 0;
  each_value(w, [&](uint32_t, float value) {
    uint32_t key = key_of(value);
    if (key == 0 || step_of(__fadd_rn(value, -w.most)) != step) return;
    least = min(least, key);
    most = max(most, key);
  });
  *high = (uint32_t)sample_meet_cluster(w.s, {0, most}).most;
  *low = ~(uint32_t)sample_meet_cluster(w.s, {0, ~least}).most;
}

/* Finds the largest value such that it and all values above it add up to at least `wanted`, in tokens or in weights. c:
 * the step in which that value lies; n: how many tokens have a value. */
template <bool WEIGHTS>
static __device__ selected select_key(const sample_work &w, crossing c, uint64_t wanted, uint64_t n) {
  if (c.at == SPANS) c.at = STEPS - 1, c.before = c.total, c.own = n - c.total;
  uint32_t low, high;
  bounds_of(w, c.at, &low, &high);
  selected s = {high, c.before, c.own};
  while (low < high) {
    uint32_t width = 32 - __clz((int)(high - low)), shift = width > 11 ? width - 11 : 0;
    clear_steps(w);
    each_value(w, [&](uint32_t, float value) {
      uint32_t key = key_of(value);
      if (key >= low && key <= high) add_to_step(w, (high - key) >> shift, worth_of<WEIGHTS>(w, value));
    });
    c = cross_steps(w, [&](uint64_t) { return wanted - s.above; });
    s.above += c.before;
    s.at = c.own;
    high -= c.at << shift;
    if (high - low >= 1u << shift) low = high - (1u << shift) + 1;
    s.key = high;
  }
  return s;
}

/* Finds the token at which the running sum of f (of tokens and values) reaches wanted(total), by sums of spans. */
template <typename F, typename G>
static __device__ uint32_t token_at(const sample_work &w, F f, G wanted) {
  for (uint32_t i = threadIdx.x / 32; i < OWN_SPANS; i += WARPS) {
    uint32_t base = (w.rank * OWN_SPANS + i) * w.span, end = min(base + w.span, w.n_vocab);
    uint64_t sum = 0;
    for (uint32_t v = base + threadIdx.x % 32; v < end; v += 32 * SPAN_AT_ONCE)
      some_values<SPAN_AT_ONCE>(w, v, 32, end, [&](uint32_t token, float value) { sum += f(token, value); });
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) w.s->span[i] = sum;
  }
  uint64_t want = 0;
  crossing c = cross_spans(w, [&](uint64_t total) { return want = wanted(total); });
  if (threadIdx.x < 32) {
    uint64_t before = c.before;
    uint32_t token = 0, base = c.at * w.span;
    for (uint32_t k = 0; c.at < SPANS && k < w.span; k += 32) {
      uint64_t own = 0; /* spans are whole warps */
      some_values<1>(w, base + k + threadIdx.x, 32, w.n_vocab, [&](uint32_t v, float value) { own = f(v, value); });
      uint64_t upto = warp_upto(own);
      uint32_t reached = __ballot_sync(0xFFFFFFFFu, before + upto >= want);
      if (reached != 0) {
        token = base + k + (uint32_t)__ffs((int)reached) - 1;
        break;
      }
      before += __shfl_sync(0xFFFFFFFFu, upto, 31);
    }
    if (threadIdx.x == 0) w.s->found = token;
  }
  __syncthreads();
  uint32_t token = w.s->found;
  __syncthreads();
  return token;
}

static __device__ sample_cut keep_first(const sample_work &w, uint32_t key, uint64_t n, uint64_t n_ties) {
  sample_cut cut = {key, UINT32_MAX, -INFINITY};
  if (n >= n_ties) return cut;
  auto is_key = [&](uint32_t, float value) { return (uint64_t)(key_of(value) == key ? 1 : 0); };
  cut.last = token_at(w, is_key, [&](uint64_t) { return n; });
  return cut;
}

__device__ __noinline__ sample_cut sample_keep_count(sample_work w, const crossing &c, uint64_t n, uint64_t n_all) {
  selected s = select_key<false>(w, c, n, n_all);
  return keep_first(w, s.key, n - s.above, s.at);
}

/* top_p: of what a cut leaves, the best tokens whose weights reach that share of the total. */
__device__ __noinline__ sample_cut sample_keep_share(sample_work w, const sample_cut &cut, float top_p,
                                                     uint64_t n_all) {
  uint64_t total = 0, n_near;
  clear_steps(w);
  each_value(w, [&](uint32_t v, float value) {
    if (key_of(value) != 0) note_value<true>(w, value);
    if (is_kept(w, cut, value, v)) total += weight_of(w, value);
  });
  uint64_t wanted = weft_sample_wanted(top_p, sum_cluster(w, total));
  crossing c = find_step<true>(
      w, [&](uint64_t) { return wanted; }, &n_near);
  selected s = select_key<true>(w, c, wanted, n_all);
  uint64_t each = weight_of(w, value_of(s.key));
  return keep_first(w, s.key, (wanted - s.above + each - 1) / each, s.at / each);
}

/* ---- the row -------------------------------------------------------------------------------------------- */

typedef struct sample_kernel_args {
  weft_sample_args op;
  uint32_t *counts; /* [n_rows][n_vocab]: of history; then, as floats, logits / temperature */
} sample_kernel_args;

/* Adds biases; each block does so for its own tokens. Where a token has several, the thread of the first one adds them
 * all, in their order. */
__device__ __noinline__ void sample_add_biases(sample_work w, const weft_sample_args &a, const weft_sample_row &row,
                                               float *logits) {
  const weft_logit_bias *bias = a.bias + row.bias_at;
  for (uint32_t i = threadIdx.x; i < row.n_bias; i += THREADS) {
    int32_t token = bias[i].token;
    bool first = token >= 0 && (uint32_t)token < w.n_vocab && (uint32_t)token / w.span / OWN_SPANS == w.rank;
    for (uint32_t k = 0; first && k < i; k++) first = bias[k].token != token;
    if (!first) continue;
    float logit = logits[token];
    for (uint32_t k = i; k < row.n_bias; k++)
      if (bias[k].token == token) logit = __fadd_rn(logit, bias[k].bias);
    logits[token] = logit;
  }
  __syncthreads();
}

/* Notes of every token whether the history has it (SEEN), and how often the answer has it. */
__device__ __noinline__ void sample_count_history(sample_work w, const weft_sample_args &a, const weft_sample_row &row,
                                                  uint32_t *counts) {
  row_blocks cluster = row_blocks_here();
  uint32_t n = row.n_history + (row.pending != 0 ? 1 : 0);
  each_value(w, [&](uint32_t v, float) { counts[v] = 0; });
  cluster.sync();
  for (uint32_t i = w.rank * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS) {
    int32_t token = i < row.n_history ? a.history[row.history_at + i] : a.cells[row.cell];
    if (token < 0 || (uint32_t)token >= w.n_vocab) continue;
    atomicOr(&counts[token], (uint32_t)SEEN);
    if (i >= row.n_prompt) atomicAdd(&counts[token], 1u);
  }
  cluster.sync();
}

/* Applies biases and penalties to the logits in place. Returns the best logit as its key, then ~token; *n: how
 * many are finite. */
static __device__ uint64_t prepare_logits(const sample_work &w, const weft_sample_args &a, const weft_sample_row &row,
                                          float *logits, uint32_t *counts, uint64_t *n) {
  bool counted = row.n_history > 0 || row.pending != 0;
  uint64_t best = 0, n_finite = 0;
  sample_add_biases(w, a, row, logits);
  if (counted) sample_count_history(w, a, row, counts);
  each_value(w, [&](uint32_t v, float logit) {
    uint32_t count = counted ? __ldcg(&counts[v]) : 0;
    if (count != 0) logits[v] = logit = weft_sample_penalised(logit, &row, count & ~(uint32_t)SEEN);
    uint64_t key = key_of(logit);
    if (key == 0) return;
    n_finite += 1;
    key = key << 32 | (uint32_t)~v;
    best = best > key ? best : key;
  });
  sum_and_most all = sample_meet_cluster(w.s, {n_finite, best});
  *n = all.sum;
  return all.most;
}

static __device__ void put_top(weft_sample_result *out, uint32_t i, uint64_t entry) {
  out->top[i].token = (int32_t) ~(uint32_t)entry;
  out->top[i].logit = value_of((uint32_t)(entry >> 32));
}

__device__ __noinline__ void sample_take_logprobs(sample_work w, uint32_t n_top, uint64_t n_all,
                                                  weft_sample_result *out) {
  uint64_t total = 0, n_near;
  if (n_top > n_all) n_top = (uint32_t)n_all;
  clear_steps(w);
  each_value(w, [&](uint32_t, float value) {
    if (key_of(value) == 0) return;
    total += weight_of(w, value);
    if (n_top > 0) note_value<false>(w, value);
  });
  total = sum_cluster(w, total);
  if (w.rank == 0 && threadIdx.x == 0) out->total = total, out->n_top = n_top;
  if (n_top == 0) return;
  crossing c = find_step<false>(
      w, [&](uint64_t) { return (uint64_t)n_top; }, &n_near);
  if (n_near <= NEAR_MAX) {
    sample_gather_near(w, c.at, n_near);
  } else { /* too many tokens lie in one step: the cut is found first, then what it leaves is gathered */
    sample_cut cut = sample_keep_count(w, c, n_top, n_all);
    gather_sorted(w, n_top, [&](float value, uint32_t v) { return is_kept(w, cut, value, v); });
  }
  if (w.rank == 0 && threadIdx.x < n_top) put_top(out, threadIdx.x, w.s->sorted[threadIdx.x]);
  __syncthreads();
}

/* Cuts what was gathered, and draws from it, in the first block alone. has_total: top_p is a share of the given
 * total. */
__device__ __noinline__ uint32_t sample_draw_near(sample_work w, const weft_sample_row &row, uint32_t n, bool has_total,
                                                  uint64_t total) {
  uint64_t *weight = w.s->near_by;
  uint32_t lane = threadIdx.x % 32;
  for (uint32_t i = threadIdx.x; i < n; i += THREADS)
    weight[i] = weight_of(w, value_of((uint32_t)(w.s->sorted[i] >> 32)));
  __syncthreads();
  if (threadIdx.x < 32) {
    if (row.top_p < 1.0f) {
      uint64_t own = 0, before = 0;
      for (uint32_t i = lane; i < n; i += 32) own += weight[i];
      uint64_t wanted = weft_sample_wanted(row.top_p, has_total ? total : warp_sum(own));
      for (uint32_t k = 0; k < n; k += 32) {
        uint64_t upto = warp_upto(k + lane < n ? weight[k + lane] : 0);
        uint32_t reached = __ballot_sync(0xFFFFFFFFu, before + upto >= wanted);
        if (reached != 0) {
          n = min(n, k + (uint32_t)__ffs((int)reached));
          break;
        }
        before += __shfl_sync(0xFFFFFFFFu, upto, 31);
      }
    }
    uint32_t n_kept = 0;
    uint64_t sum = 0;
    for (uint32_t i = lane; i < n; i += 32) {
      bool kept = __fadd_rn(value_of((uint32_t)(w.s->sorted[i] >> 32)), -w.most) >= row.min_log;
      n_kept += kept ? 1 : 0;
      sum += kept ? weight[i] : 0;
    }
    sum = warp_sum(sum);
    n_kept = __reduce_add_sync(0xFFFFFFFFu, n_kept);
    if (threadIdx.x == 0) w.s->n_near = n_kept, w.s->found_at = weft_sample_threshold(row.u, sum) + 1;
  }
  __syncthreads();
  n = w.s->n_near;
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    uint32_t other = (uint32_t)w.s->sorted[i]; /* ~token: the larger one is the lower token */
    uint64_t before = 0;
    for (uint32_t k = 0; k < n; k++) before += (uint32_t)w.s->sorted[k] > other ? weight[k] : 0;
    if (before < w.s->found_at && before + weight[i] >= w.s->found_at) w.s->found = ~other;
  }
  __syncthreads();
  return w.s->found;
}

/* Draws a token from logits / temperature, which are written to `values`. The result is known in the first block. */
static __device__ uint32_t draw_token(sample_work w, const weft_sample_row &row, float *values, uint64_t n_all) {
  uint64_t n = 0, n_near = UINT64_MAX;
  bool by_count = row.top_k > 0 && row.top_k < n_all, by_weight = !by_count && row.top_p < 1.0f;
  float temperature = row.temperature;
  w.most = __fdiv_rn(w.most, temperature);
  clear_steps(w);
  each_value(w, [&](uint32_t v, float logit) {
    float value = __fdiv_rn(logit, temperature);
    values[v] = value;
    if (!isfinite(value)) return;
    n += 1;
    if (by_count) note_value<false>(w, value);
    if (by_weight) note_value<true>(w, value);
  });
  n = sum_cluster(w, n);
  w.values = values;
  sample_cut cut = {1, UINT32_MAX, -INFINITY};
  crossing c = {SPANS, 0, 0, 0};
  if (by_count)
    c = find_step<false>(
        w, [&](uint64_t) { return (uint64_t)row.top_k; }, &n_near);
  if (by_weight)
    c = find_step<true>(
        w, [&](uint64_t total) { return weft_sample_wanted(row.top_p, total); }, &n_near);
  if (n_near <= NEAR_MAX) {
    sample_gather_near(w, c.at, n_near);
    if (w.rank != 0) return 0;
    return sample_draw_near(w, row, by_count ? row.top_k : (uint32_t)n_near, by_weight, c.total);
  }
  if (by_count && row.top_k < n) cut = sample_keep_count(w, c, row.top_k, n);
  if (row.top_p < 1.0f) cut = sample_keep_share(w, cut, row.top_p, n);
  cut.min_log = row.min_log;
  auto weight = [&](uint32_t v, float value) { return is_kept(w, cut, value, v) ? weight_of(w, value) : (uint64_t)0; };
  return token_at(w, weight, [&](uint64_t total) { return weft_sample_threshold(row.u, total) + 1; });
}

static __global__ void ROW_BLOCKS_DIMS __launch_bounds__(THREADS, 2)
    sample_kernel(const __grid_constant__ sample_kernel_args a) {
  extern __shared__ __align__(16) uint8_t memory[];
  sample_shared &shared = *(sample_shared *)(void *)memory;
  row_blocks cluster = row_blocks_here();
  uint32_t r = blockIdx.x / BLOCKS;
  const weft_sample_row row = a.op.row[r];
  weft_sample_result *out = &a.op.out[r];
  float *logits = a.op.logits + (uint64_t)r * a.op.logits_stride;
  uint32_t *counts = a.counts + (uint64_t)r * a.op.n_vocab, token = 0;
  uint32_t span = (a.op.n_vocab + SPANS - 1) / SPANS;
  const uint32_t *own = weft_sample_mask(&a.op, &row);
  sample_work w = {&shared, cluster.block_rank(), a.op.n_vocab, (span + 31) / 32 * 32, a.op.allowed, own, logits, 0.0f};
  bool writes = w.rank == 0 && threadIdx.x == 0;
  if (writes) memset(out, 0, sizeof *out);
  uint64_t n, best = prepare_logits(w, a.op, row, logits, counts, &n);
  bool bad = n == 0 || (a.op.bad != NULL && a.op.bad[r] != 0);
  if (!bad) {
    token = ~(uint32_t)best;
    w.most = value_of((uint32_t)(best >> 32));
    if (row.logprobs != 0) sample_take_logprobs(w, row.n_top, n, out);
    if (row.temperature != 0.0f && isfinite(__fdiv_rn(w.most, row.temperature)))
      token = draw_token(w, row, (float *)counts, n);
  }
  if (writes) {
    out->bad = bad ? 1 : 0;
    out->token = (int32_t)token;
    out->most = w.most;
    out->logit = bad ? 0.0f : __ldcg(&logits[token]);
    if (row.cell >= 0) a.op.cells[row.cell] = (int32_t)token;
  }
  cluster.sync(); /* no block leaves while others read its memory */
}

uint64_t cuda_sample_scratch(weft_device *device, const weft_sample_args *args) {
  (void)device;
  return 4ull * args->n_rows * args->n_vocab;
}

weft_status cuda_sample(weft_device *device, const weft_sample_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  sample_kernel_args a;
  a.op = *args;
  a.counts = (uint32_t *)args->scratch;
  cuda_allow_shared(sample_kernel, sizeof(sample_shared));
  sample_kernel<<<args->n_rows * BLOCKS, THREADS, sizeof(sample_shared), d->stream>>>(a);
  return cuda_launched(d, "sample");
}
