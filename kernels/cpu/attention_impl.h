/* SPDX-License-Identifier: MIT */
/* The attention of one chunk of one tile, for one instruction set. attention_portable.c, attention_avx2.c and
 * attention_avx512.c include this file; ATTENTION_CODE is the name of the table that it defines.
 *
 * Law: the order of every sum is that of attention.h. However many queries are computed together, each adds the same
 * numbers in the same order. */
#include <math.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/simd.h"

enum {
  WIDEN_FROM = 16, /* least queries for which bf16 is widened once per tile instead of at each use; Q8_0 always is */
  COLUMNS_1 = 8,   /* vectors of an output row that stay in registers, for 1, 2 and 4 queries at a time */
  COLUMNS_2 = VF_LANES == 16 ? 8 : 4,
  COLUMNS_4 = VF_LANES == 16 ? 4 : 2
};

SIMD_INLINE vf load_any(const uint8_t *row, uint32_t i, bool bf16) {
  if (bf16) return vf_load_bf16((const uint16_t *)(const void *)row + i);
  return vf_load((const float *)(const void *)row + i);
}

SIMD_INLINE vf load_any_some(const uint8_t *row, uint32_t i, uint32_t n, bool bf16) {
  if (bf16) return vf_load_some_bf16((const uint16_t *)(const void *)row + i, n);
  return vf_load_some((const float *)(const void *)row + i, n);
}

/* Whether keys and values become f32 before they are used. */
static bool needs_widening(const cpu_chunk *chunk) {
  return chunk->type == WEFT_TYPE_Q8_0 || (chunk->type == WEFT_TYPE_BF16 && chunk->n_queries >= WIDEN_FROM);
}

/* Widens columns [i, i + n) of one stored row; i and n are multiples of WEFT_KV_Q8_BLOCK. */
static void widen_q8(const uint8_t *row, uint32_t dim, uint32_t i, uint32_t n, float *out) {
  for (uint32_t at = i; at < i + n; at += WEFT_KV_Q8_BLOCK, out += WEFT_KV_Q8_BLOCK) {
    uint16_t factor;
    memcpy(&factor, row + dim + at / WEFT_KV_Q8_BLOCK * sizeof factor, sizeof factor);
    const vf d = vf_set(weft_f16_to_f32(factor));
    for (uint32_t j = 0; j < WEFT_KV_Q8_BLOCK; j += VF_LANES) {
      vf_store(out + j, vf_load_i8((const int8_t *)row + at + j) * d);
    }
  }
}

/* Widens columns [i, i + n) of n_rows stored keys or values. */
static void widen_rows(const cpu_chunk *chunk, const uint8_t *const *row, uint32_t n_rows, uint32_t i, uint32_t n,
                       float *out) {
  for (uint32_t r = 0; r < n_rows; r++, out += n) {
    if (chunk->type == WEFT_TYPE_Q8_0) {
      widen_q8(row[r], chunk->dim, i, n, out);
      continue;
    }
    uint32_t at = 0;
    for (; at + VF_LANES <= n; at += VF_LANES) vf_store(out + at, load_any(row[r], i + at, true));
    if (at < n) vf_store_some(out + at, load_any_some(row[r], i + at, n - at, true), n - at);
  }
}

/* ---- scores ---- */

/* Sums VF_LANES vectors at once: lane l of the result is vf_sum(x[l]), by the same tree. x is overwritten. */
SIMD_INLINE vf sum_each(vf *x) {
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (uint32_t i = 0; i < 8; i++) {
    x[i] = __builtin_shufflevector(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; i++) {
    x[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
           __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
#pragma GCC unroll 2
  for (uint32_t i = 0; i < 4; i += 2) {
    x[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           __builtin_shufflevector(x[i], x[i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  return __builtin_shufflevector(x[0], x[2], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
         __builtin_shufflevector(x[0], x[2], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
#elif defined(__AVX2__)
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; i++) {
    x[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 2
  for (uint32_t i = 0; i < 4; i += 2) {
    x[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(x[i], x[i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  return __builtin_shufflevector(x[0], x[2], 0, 2, 8, 10, 4, 6, 12, 14) +
         __builtin_shufflevector(x[0], x[2], 1, 3, 9, 11, 5, 7, 13, 15);
#else
  for (uint32_t i = 0; i < 4; i += 2) {
    x[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 1, 4, 5) + __builtin_shufflevector(x[i], x[i + 1], 2, 3, 6, 7);
  }
  return __builtin_shufflevector(x[0], x[2], 0, 2, 4, 6) + __builtin_shufflevector(x[0], x[2], 1, 3, 5, 7);
#endif
}

/* Dot products of n_q queries with VF_LANES / n_q keys: lane r * (VF_LANES / n_q) + j is that of q[r] and key[j]. */
SIMD_INLINE vf dot_queries_keys(const float *const *q, const uint32_t n_q, const uint8_t *const *key, const bool bf16,
                                uint32_t dim) {
  const uint32_t n_keys = VF_LANES / n_q;
  vf acc[VF_LANES], part[4];
#pragma GCC unroll 16
  for (uint32_t i = 0; i < VF_LANES; i++) acc[i] = (vf){0};
  uint32_t d = 0;
  for (; d + VF_LANES <= dim; d += VF_LANES) {
#pragma GCC unroll 4
    for (uint32_t r = 0; r < n_q; r++) part[r] = vf_load(q[r] + d);
#pragma GCC unroll 16
    for (uint32_t j = 0; j < n_keys; j++) {
      vf k = load_any(key[j], d, bf16);
#pragma GCC unroll 4
      for (uint32_t r = 0; r < n_q; r++) acc[r * n_keys + j] = vf_fma(part[r], k, acc[r * n_keys + j]);
    }
  }
  if (d < dim) {
#pragma GCC unroll 16
    for (uint32_t j = 0; j < n_keys; j++) {
      vf k = load_any_some(key[j], d, dim - d, bf16);
#pragma GCC unroll 4
      for (uint32_t r = 0; r < n_q; r++) {
        acc[r * n_keys + j] = vf_fma(vf_load_some(q[r] + d, dim - d), k, acc[r * n_keys + j]);
      }
    }
  }
  return sum_each(acc);
}

/* Scores of n_q queries from `query` on with n keys, whose first is at position `at`. key holds CPU_TILE_KEYS pointers,
 * of which those beyond n repeat the last key. */
SIMD_INLINE void score_group(const cpu_chunk *chunk, uint32_t query, const uint32_t n_q, const uint8_t *const *key,
                             const bool bf16, uint32_t at, uint32_t n) {
  const uint32_t n_keys = VF_LANES / n_q;
  float *score = chunk->score + (uint64_t)query * CPU_TILE_SCORES + at;
  for (uint32_t j = 0; j < n; j += n_keys) {
    float lane[VF_LANES];
    vf_store(lane, dot_queries_keys(chunk->q + query, n_q, key + j, bf16, chunk->dim));
    for (uint32_t r = 0; r < n_q; r++) {
      memcpy(score + (uint64_t)r * CPU_TILE_SCORES + j, lane + r * n_keys, n_keys * sizeof(float));
    }
  }
}

/* Whether any of the n queries sees a position in [from, to). */
static bool any_sees(const cpu_chunk *chunk, uint32_t query, uint32_t n, uint32_t from, uint32_t to) {
  for (uint32_t r = query; r < query + n; r++) {
    if (chunk->first[r] < to && chunk->end[r] > from && chunk->first[r] < chunk->end[r]) return true;
  }
  return false;
}

SIMD_INLINE void score_keys(const cpu_chunk *chunk, const uint8_t *const *key, const bool bf16, uint32_t at,
                            uint32_t n) {
  for (uint32_t query = 0; query < chunk->n_queries;) {
    uint32_t left = chunk->n_queries - query, n_q = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    if (any_sees(chunk, query, n_q, at, at + n)) {
      if (n_q == 4)
        score_group(chunk, query, 4, key, bf16, at, n);
      else if (n_q == 2)
        score_group(chunk, query, 2, key, bf16, at, n);
      else
        score_group(chunk, query, 1, key, bf16, at, n);
    }
    query += n_q;
  }
}

static void score_f32(const cpu_chunk *chunk, const uint8_t *const *key, uint32_t at, uint32_t n) {
  score_keys(chunk, key, false, at, n);
}

static void score_bf16(const cpu_chunk *chunk, const uint8_t *const *key, uint32_t at, uint32_t n) {
  score_keys(chunk, key, true, at, n);
}

/* With few queries a tile waits for memory: blocks lie anywhere, so the processor cannot guess the next one. This asks
 * for the keys that come next, and for the values of the present keys, which are read after all scores. */
static void prefetch_keys(const cpu_chunk *chunk, uint32_t at) {
  uint64_t n_bytes = weft_kv_row_bytes(chunk->type, chunk->dim);
  for (uint32_t j = at; j < at + CPU_TILE_KEYS && j < chunk->stop; j++) {
    const uint8_t *key = chunk->key[j + CPU_TILE_KEYS < chunk->stop ? j + CPU_TILE_KEYS : j];
    for (uint64_t i = 0; i < n_bytes; i += 64) {
      __builtin_prefetch(key + i, 0, 3);
      __builtin_prefetch(chunk->value[j] + i, 0, 2);
    }
  }
}

static void score_chunk(const cpu_chunk *chunk) {
  for (uint32_t at = chunk->begin; at < chunk->stop; at += CPU_TILE_KEYS) {
    const uint8_t *key[CPU_TILE_KEYS];
    if (chunk->n_queries < WIDEN_FROM) prefetch_keys(chunk, at);
    uint32_t n = chunk->stop - at < CPU_TILE_KEYS ? chunk->stop - at : CPU_TILE_KEYS;
    bool widened = needs_widening(chunk);
    if (widened) widen_rows(chunk, chunk->key + at, n, 0, chunk->dim, chunk->widened);
    for (uint32_t j = 0; j < CPU_TILE_KEYS; j++) {
      uint32_t i = j < n ? j : n - 1;
      key[j] = widened ? (const uint8_t *)(chunk->widened + (uint64_t)i * chunk->dim) : chunk->key[at + i];
    }
    if (chunk->type == WEFT_TYPE_BF16 && !widened)
      score_bf16(chunk, key, at, n);
    else
      score_f32(chunk, key, at, n);
  }
}

/* Turns a query's scores into weights e^(score - max). Positions that the query does not see weigh 0. */
static void weigh_query(const cpu_chunk *chunk, uint32_t query) {
  float *score = chunk->score + (uint64_t)query * CPU_TILE_SCORES;
  const int32_t first = (int32_t)chunk->first[query], end = (int32_t)chunk->end[query];
  const vf scale = vf_set(chunk->scale), nothing = vf_set(-INFINITY);
  vi lane;
  for (int32_t i = 0; i < VF_LANES; i++) lane[i] = i;
  vf max = nothing, sum = {0};
  int32_t from = first - first % VF_LANES;
  for (int32_t i = from; i < end; i += VF_LANES) {
    vi position = lane + i;
    vi visible = (position >= first) & (position < end);
    vf value = vf_select(visible, vf_load(score + i) * scale, nothing);
    vf_store(score + i, value);
    max = vf_max(value, max);
  }
  float most = vf_max_lane(max);
  for (int32_t i = from; i < end; i += VF_LANES) {
    vf weight = vf_exp(vf_load(score + i) - vf_set(most));
    vf_store(score + i, weight);
    sum += weight;
  }
  chunk->max[query] = most;
  chunk->sum[query] = vf_sum(sum);
}

/* ---- values ---- */

/* Where values lie: row[j - first_j] holds the columns from first_d on of the value at position j. */
typedef struct value_rows {
  const uint8_t *const *row;
  uint32_t first_j, first_d;
} value_rows;

/* out[query + r][d ..] += sum over j in [from, to), ascending, of weight[query + r][j] * value[j][d ..], for n_q
 * queries and n_c vectors of columns. */
SIMD_INLINE void add_columns(const cpu_chunk *chunk, uint32_t query, const uint32_t n_q, const uint32_t n_c,
                             const value_rows *values, const bool bf16, uint32_t from, uint32_t to, uint32_t d) {
  const float *weight = chunk->score + (uint64_t)query * CPU_TILE_SCORES;
  float *out = chunk->out + (uint64_t)query * chunk->dim + d;
  vf acc[16];
#pragma GCC unroll 4
  for (uint32_t r = 0; r < n_q; r++) {
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n_c; c++) acc[r * n_c + c] = vf_load(out + (uint64_t)r * chunk->dim + c * VF_LANES);
  }
  for (uint32_t j = from; j < to; j++) {
    const uint8_t *row = values->row[j - values->first_j];
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n_c; c++) {
      vf v = load_any(row, d - values->first_d + c * VF_LANES, bf16);
#pragma GCC unroll 4
      for (uint32_t r = 0; r < n_q; r++) {
        acc[r * n_c + c] = vf_fma(vf_set(weight[r * CPU_TILE_SCORES + j]), v, acc[r * n_c + c]);
      }
    }
  }
#pragma GCC unroll 4
  for (uint32_t r = 0; r < n_q; r++) {
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n_c; c++) vf_store(out + (uint64_t)r * chunk->dim + c * VF_LANES, acc[r * n_c + c]);
  }
}

/* The same for one query and the last n columns, fewer than a vector. */
SIMD_INLINE void add_tail(const cpu_chunk *chunk, uint32_t query, const value_rows *values, const bool bf16,
                          uint32_t from, uint32_t to, uint32_t d, uint32_t n) {
  const float *weight = chunk->score + (uint64_t)query * CPU_TILE_SCORES;
  float *out = chunk->out + (uint64_t)query * chunk->dim + d;
  vf acc = vf_load_some(out, n);
  for (uint32_t j = from; j < to; j++) {
    vf v = load_any_some(values->row[j - values->first_j], d - values->first_d, n, bf16);
    acc = vf_fma(vf_set(weight[j]), v, acc);
  }
  vf_store_some(out, acc, n);
}

SIMD_INLINE void add_values(const cpu_chunk *chunk, uint32_t query, const uint32_t n_q, const value_rows *values,
                            const bool bf16, uint32_t from, uint32_t to, uint32_t d, uint32_t d_end) {
  const uint32_t n_c = n_q == 4 ? COLUMNS_4 : n_q == 2 ? COLUMNS_2 : COLUMNS_1;
  if (from >= to) return;
  for (; d + n_c * VF_LANES <= d_end; d += n_c * VF_LANES) {
    add_columns(chunk, query, n_q, n_c, values, bf16, from, to, d);
  }
  for (; d + VF_LANES <= d_end; d += VF_LANES) add_columns(chunk, query, n_q, 1, values, bf16, from, to, d);
  if (d == d_end) return;
  for (uint32_t r = 0; r < n_q; r++) add_tail(chunk, query + r, values, bf16, from, to, d, d_end - d);
}

#define ADD_VALUES(n_q, type, bf16)                                                                       \
  static void add_values_##n_q##_##type(const cpu_chunk *chunk, uint32_t query, const value_rows *values, \
                                        uint32_t from, uint32_t to, uint32_t d, uint32_t d_end) {         \
    add_values(chunk, query, n_q, values, bf16, from, to, d, d_end);                                      \
  }
ADD_VALUES(1, f32, false)
ADD_VALUES(2, f32, false)
ADD_VALUES(4, f32, false)
ADD_VALUES(1, bf16, true)
ADD_VALUES(2, bf16, true)
ADD_VALUES(4, bf16, true)

typedef void (*add_values_fn)(const cpu_chunk *chunk, uint32_t query, const value_rows *values, uint32_t from,
                              uint32_t to, uint32_t d, uint32_t d_end);
static const add_values_fn add_values_f32[5] = {NULL, add_values_1_f32, add_values_2_f32, NULL, add_values_4_f32};
static const add_values_fn add_values_bf16[5] = {NULL, add_values_1_bf16, add_values_2_bf16, NULL, add_values_4_bf16};

static uint32_t max_u32(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}
static uint32_t min_u32(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* Adds the values at positions [from, to) for n_q queries: together at the positions that all of them see, one query at
 * a time before and after. So each query adds exactly its own keys, ascending. */
static void add_group(const cpu_chunk *chunk, uint32_t query, uint32_t n_q, const value_rows *values,
                      const add_values_fn *add, uint32_t from, uint32_t to, uint32_t d, uint32_t d_end) {
  uint32_t all_first = from, all_end = to;
  for (uint32_t r = query; r < query + n_q; r++) {
    all_first = max_u32(all_first, chunk->first[r]);
    all_end = min_u32(all_end, chunk->end[r]);
  }
  if (all_first >= all_end) all_first = all_end = to;
  for (uint32_t r = query; r < query + n_q; r++) {
    add[1](chunk, r, values, max_u32(from, chunk->first[r]), min_u32(all_first, chunk->end[r]), d, d_end);
  }
  add[n_q](chunk, query, values, all_first, all_end, d, d_end);
  for (uint32_t r = query; r < query + n_q; r++) {
    add[1](chunk, r, values, max_u32(all_end, chunk->first[r]), min_u32(to, chunk->end[r]), d, d_end);
  }
}

static void add_all(const cpu_chunk *chunk, const value_rows *values, const add_values_fn *add, uint32_t from,
                    uint32_t to, uint32_t d, uint32_t d_end) {
  for (uint32_t query = 0; query < chunk->n_queries;) {
    uint32_t left = chunk->n_queries - query, n_q = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    add_group(chunk, query, n_q, values, add, from, to, d, d_end);
    query += n_q;
  }
}

static void add_widened(const cpu_chunk *chunk) {
  const uint8_t *row[CPU_TILE_VALUES];
  for (uint32_t d = 0; d < chunk->dim; d += CPU_TILE_SLAB) {
    uint32_t d_end = min_u32(d + CPU_TILE_SLAB, chunk->dim);
    for (uint32_t j = 0; j < CPU_TILE_VALUES; j++) {
      row[j] = (const uint8_t *)(chunk->widened + (uint64_t)j * (d_end - d));
    }
    for (uint32_t from = chunk->begin; from < chunk->stop; from += CPU_TILE_VALUES) {
      uint32_t to = min_u32(from + CPU_TILE_VALUES, chunk->stop);
      value_rows values = {.row = row, .first_j = from, .first_d = d};
      widen_rows(chunk, chunk->value + from, to - from, d, d_end - d, chunk->widened);
      add_all(chunk, &values, add_values_f32, from, to, d, d_end);
    }
  }
}

/* ---- the table ---- */

static void run_chunk(const cpu_chunk *chunk) {
  score_chunk(chunk);
  for (uint32_t query = 0; query < chunk->n_queries; query++) {
    if (chunk->first[query] >= chunk->end[query]) continue;
    weigh_query(chunk, query);
    memset(chunk->out + (uint64_t)query * chunk->dim, 0, chunk->dim * sizeof(float));
  }
  if (needs_widening(chunk)) {
    add_widened(chunk);
    return;
  }
  value_rows values = {.row = chunk->value, .first_j = 0, .first_d = 0};
  add_all(chunk, &values, chunk->type == WEFT_TYPE_BF16 ? add_values_bf16 : add_values_f32, chunk->begin, chunk->stop,
          0, chunk->dim);
}

static void merge_out(float *all, float keep, const float *chunk, float add, uint32_t dim) {
  uint32_t d = 0;
  for (; d + VF_LANES <= dim; d += VF_LANES) {
    vf_store(all + d, vf_fma(vf_load(chunk + d), vf_set(add), vf_load(all + d) * vf_set(keep)));
  }
  if (d == dim) return;
  vf sum = vf_fma(vf_load_some(chunk + d, dim - d), vf_set(add), vf_load_some(all + d, dim - d) * vf_set(keep));
  vf_store_some(all + d, sum, dim - d);
}

static void scale_out(float *all, float factor, uint32_t dim) {
  uint32_t d = 0;
  for (; d + VF_LANES <= dim; d += VF_LANES) vf_store(all + d, vf_load(all + d) * vf_set(factor));
  if (d < dim) vf_store_some(all + d, vf_load_some(all + d, dim - d) * vf_set(factor), dim - d);
}

const cpu_attention_code ATTENTION_CODE = {.chunk = run_chunk, .merge = merge_out, .scale = scale_out};
