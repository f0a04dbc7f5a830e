/* SPDX-License-Identifier: MIT */
/* Sixteen columns of a value head, in a warp: the state in registers, and what a tile does with it.
 *
 * Law: that of delta_tiles.cu. A column's numbers do not depend on other columns. */
#ifndef WEFT_KERNELS_CUDA_DELTA_COLUMNS_CUH
#define WEFT_KERNELS_CUDA_DELTA_COLUMNS_CUH

#include "kernels/cuda/delta/tiles.cuh"

/* Sixteen columns of a value head, in a warp: lane 4 g + c has columns 2 g and 2 g + 1. */
typedef struct rule_columns {
  const float *from;                              /* the state that the segment begins with, in memory */
  float state[2 * STEPS][4];                      /* [n][2 j + e]: key 8 n + 2 c + e of column 2 g + j */
  uint32_t high[2 * STEPS][2], low[2 * STEPS][2]; /* of it, at the border before the piece */
  uint32_t u[TILES][4]; /* [2 n + j]: of rows 8 n + 2 c and the next of a tile, of column 2 g + j */
} rule_columns;

/* Where the columns' state is. */
typedef enum state_form {
  STATE_SPLIT, /* high and low */
  STATE_WHOLE, /* state */
  STATE_AWAY   /* in memory, at `from`: it is read once for each tile, and takes no registers */
} state_form;

/* Keys 8 n + 2 c and the next, as in rule_columns. from: the lane's first column, NULL at position 0. */
static __device__ __forceinline__ void read_keys(const float *from, uint32_t n, float (&to)[4]) {
  float2 x = make_float2(0.0f, 0.0f), y = x;
  const float *at = from + (8 * n + own_lane() % 4 * 2) * DIM;
  if (from != NULL) x = *(const float2 *)(const void *)at, y = *(const float2 *)(const void *)(at + DIM);
  to[0] = x.x, to[1] = y.x, to[2] = x.y, to[3] = y.y;
}

static __device__ __forceinline__ void read_state(rule_columns &columns) {
#pragma unroll
  for (uint32_t n = 0; n < 2 * STEPS; n++) read_keys(columns.from, n, columns.state[n]);
}

/* Begins a piece. Where it crosses a border, the state becomes the decayed one, to which its tiles will be added. */
static __device__ __forceinline__ void begin_piece(bool crosses, float decay, rule_columns &columns) {
#pragma unroll
  for (uint32_t n = 0; n < 2 * STEPS; n++) {
    float(&x)[4] = columns.state[n];
    split_two(x[0], x[1], columns.high[n][0], columns.low[n][0]);
    split_two(x[2], x[3], columns.high[n][1], columns.low[n][1]);
    if (!crosses) continue;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) x[i] = __fmul_rn(x[i], decay);
  }
}

static __device__ __forceinline__ void write_state(const weft_delta_view &view, const uint32_t *pages, uint32_t head,
                                                   uint32_t column, const rule_columns &columns) {
  float *unit = weft_delta_unit(&view.state, pages, head);
#pragma unroll
  for (uint32_t n = 0; n < 2 * STEPS; n++) {
    float *to = unit + (8 * n + own_lane() % 4 * 2) * DIM + column;
    const float(&x)[4] = columns.state[n];
    *(float2 *)(void *)to = make_float2(x[0], x[2]);
    *(float2 *)(void *)(to + DIM) = make_float2(x[1], x[3]);
  }
}

/* Thread `own` of n_threads writes its channels of the tail. table: of the segment. */
static __device__ __forceinline__ void write_tail(const weft_delta_view &view, const uint32_t *pages,
                                                  const uint32_t *table, uint32_t border, uint32_t own,
                                                  uint32_t n_threads) {
  uint32_t n = weft_delta_channels(&view);
  float *tail = weft_delta_unit(&view.tail, pages, 0);
  for (uint32_t j = 0; j < WEFT_DELTA_TAPS - 1; j++) {
    const uint8_t *row = weft_delta_row(&view, table, border - (WEFT_DELTA_TAPS - 1) + j);
    for (uint32_t c = own; c < n; c += n_threads) tail[j * n + c] = delta_load(view.type, row, c);
  }
}

/* What a tile needs; memory that all lanes read. */
typedef struct tile_inputs {
  const uint8_t *keys; /* of its rows */
  const tile_weights *weights;
  const tile_queries *queries;
  uint32_t tile, first, end; /* of the piece: rows of the call, counted from the border */
} tile_inputs;

/* Operands a of sixteen keys of the state, high and low. */
template <state_form FORM>
static __device__ __forceinline__ void split_keys(const rule_columns &columns, uint32_t s, uint32_t (&high)[4],
                                                  uint32_t (&low)[4]) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t n = 2 * s + i;
    float x[4];
    if (FORM == STATE_SPLIT) {
      high[2 * i] = columns.high[n][0], high[2 * i + 1] = columns.high[n][1];
      low[2 * i] = columns.low[n][0], low[2 * i + 1] = columns.low[n][1];
      continue;
    }
    if (FORM == STATE_AWAY)
      read_keys(columns.from, n, x);
    else
      x[0] = columns.state[n][0], x[1] = columns.state[n][1], x[2] = columns.state[n][2], x[3] = columns.state[n][3];
    split_two(x[0], x[1], high[2 * i], low[2 * i]);
    split_two(x[2], x[3], high[2 * i + 1], low[2 * i + 1]);
  }
}

/* Products of the state with a tile's keys or queries: [n][2 j + e] is row 8 n + 2 c + e in column 2 g + j. */
typedef struct tile_sums {
  float high[2][4], low[2][4];
} tile_sums;

static __device__ __forceinline__ void multiply_pair(float (&sums)[2][4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1, uint32_t b2, uint32_t b3) {
  mma_bf16(sums[0], a, b0, b1);
  mma_bf16(sums[1], a, b2, b3);
}

/* high, low: of sixteen keys of the state. */
static __device__ __forceinline__ void multiply_queries(const tile_inputs &in, const uint32_t (&high)[4],
                                                        const uint32_t (&low)[4], uint32_t s, tile_sums &sums) {
  uint4 query = in.queries->operand[s][0][own_lane()], rest = in.queries->operand[s][1][own_lane()];
  multiply_pair(sums.high, high, query.x, query.y, query.z, query.w);
  multiply_pair(sums.low, low, query.x, query.y, query.z, query.w);
  multiply_pair(sums.low, high, rest.x, rest.y, rest.z, rest.w);
}

/* What the state gives: high and low together, times e^G of the row. */
static __device__ __forceinline__ void decay_sums(const tile_inputs &in, const tile_sums &sums, float (&out)[2][4]) {
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    float2 decay = *(const float2 *)(const void *)&in.weights->decay[8 * n + own_lane() % 4 * 2];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
      out[n][i] = __fmul_rn(i % 2 == 0 ? decay.x : decay.y, __fadd_rn(sums.high[n][i], sums.low[n][i]));
  }
}

/* Adds the weighted u of a tile: high weights and low ones. */
static __device__ __forceinline__ void add_tile(const uint4 (*weights)[32], const uint32_t (&u)[4],
                                                float (&sums)[2][4]) {
  uint4 high = weights[0][own_lane()], low = weights[1][own_lane()];
  multiply_pair(sums, u, high.x, high.y, high.z, high.w);
  multiply_pair(sums, u, low.x, low.y, low.z, low.w);
}

/* u of eight rows, one after another; the lanes of a quad have two rows each. u[j]: at first what is stored of rows
 * before the call's. While the quad waits for u of another lane, other(p) works. The lane that has rows 2 p and 2 p + 1
 * knows them in turn p; no later u changes them. */
template <class work>
static __device__ __forceinline__ void solve_eight(const tile_inputs &in, uint32_t n, const float (&value)[4],
                                                   const float (&sums)[4], uint32_t (&u)[2], work other) {
  uint32_t c = own_lane() % 4, t = in.tile * ROWS + 8 * n + 2 * c;
  const float *own = &in.weights->own[n][2 * c][0];
  float2 beta = *(const float2 *)(const void *)&in.weights->beta[8 * n + 2 * c];
  float weight[2][8], next = -own[8 + 2 * c], left[4], found[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float4 x = *(const float4 *)(const void *)(own + 4 * i);
    float *to = &weight[i / 2][i % 2 * 4];
    to[0] = -x.x, to[1] = -x.y, to[2] = -x.z, to[3] = -x.w;
    float stored = __uint_as_float(i % 2 == 0 ? u[i / 2] << 16 : u[i / 2] & 0xFFFF0000u);
    left[i] = __fmul_rn(i % 2 == 0 ? beta.x : beta.y, __fsub_rn(value[i], sums[i]));
    if (t + i % 2 < in.first) left[i] = stored; /* its weights are 0 */
  }
#pragma unroll
  for (int p = 0; p < 4; p++) {
    float now[4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      now[2 * j] = delta_round(WEFT_TYPE_BF16, left[2 * j]);
      now[2 * j + 1] = delta_round(WEFT_TYPE_BF16, __fmaf_rn(next, now[2 * j], left[2 * j + 1]));
    }
    float x[2], y[2];
    if (p < 3)
#pragma unroll
      for (int j = 0; j < 2; j++)
        x[j] = __shfl_sync(0xFFFFFFFFu, now[2 * j], p, 4), y[j] = __shfl_sync(0xFFFFFFFFu, now[2 * j + 1], p, 4);
    other(p);
#pragma unroll
    for (int i = 0; i < 4; i++) found[i] = c == p ? now[i] : found[i];
    if (p == 3) break;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      left[i] = __fmaf_rn(weight[i % 2][2 * p], x[i / 2], left[i]);
      left[i] = __fmaf_rn(weight[i % 2][2 * p + 1], y[i / 2], left[i]);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; j++)
    u[j] = pair_bf16(t < in.end ? found[2 * j] : 0.0f, t + 1 < in.end ? found[2 * j + 1] : 0.0f);
}

/* The same where the state is in registers: in a turn of solve_eight. One that is away is read once, for keys and
 * queries together, and nothing is left to do there. */
template <state_form FORM>
static __device__ __forceinline__ void multiply_queries_later(const tile_inputs &in, const rule_columns &columns,
                                                              uint32_t s, tile_sums &sums) {
  if (FORM == STATE_AWAY) return;
  uint32_t high[4], low[4];
  split_keys<FORM>(columns, s, high, low);
  multiply_queries(in, high, low, s, sums);
}

/* u and results of a tile. value, out: as tile_sums. u: of rows before the call's as stored, else zeros. */
template <state_form FORM>
static __device__ __forceinline__ void compute_tile(const tile_inputs &in, const float (&value)[2][4],
                                                    const rule_columns &columns, uint32_t (&u)[4], float (&out)[2][4]) {
  tile_sums keys = {}, queries = {};
  float of_k[2][4], of_q[2][4] = {};
  uint32_t b_at = keys_at(in.keys);
#pragma unroll
  for (uint32_t s = 0; s < STEPS; s++) {
    uint32_t key[4], high[4], low[4];
    ldmatrix_x4(key, b_at + 32 * s);
    split_keys<FORM>(columns, s, high, low);
    multiply_pair(keys.high, high, key[0], key[1], key[2], key[3]);
    multiply_pair(keys.low, low, key[0], key[1], key[2], key[3]);
    if (FORM == STATE_AWAY) multiply_queries(in, high, low, s, queries);
  }
  decay_sums(in, keys, of_k);
#pragma unroll
  for (uint32_t i = 0; i + 1 < TILES; i++) {
    if (i >= in.tile) break;
    add_tile(&in.weights->operand[i][0], columns.u[i], of_k);
    add_tile(&in.weights->operand[i][2], columns.u[i], of_q);
  }
  const uint4(*own)[32] = in.weights->operand[in.tile];
  /* Eight rows that are all of before the call are as stored, eight behind its end are zeros: as they were loaded. */
  uint32_t middle = in.tile * ROWS + 8;
  if (FORM != STATE_AWAY || in.first < middle) {
    uint32_t eight[2] = {u[0], u[1]};
    solve_eight(in, 0, value[0], of_k[0], eight,
                [&](uint32_t p) { multiply_queries_later<FORM>(in, columns, p, queries); });
    u[0] = eight[0], u[1] = eight[1];
  }
  if (FORM != STATE_AWAY || in.end > middle) {
    const uint32_t first[4] = {u[0], u[1], 0, 0};
    uint32_t eight[2] = {u[2], u[3]};
    uint4 high = own[0][own_lane()], low = own[1][own_lane()];
    mma_bf16(of_k[1], first, high.z, high.w);
    mma_bf16(of_k[1], first, low.z, low.w);
    solve_eight(in, 1, value[1], of_k[1], eight,
                [&](uint32_t p) { multiply_queries_later<FORM>(in, columns, 4 + p, queries); });
    u[2] = eight[0], u[3] = eight[1];
  }
  add_tile(own + 2, u, of_q);
  decay_sums(in, queries, out);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) out[i / 4][i % 4] = __fadd_rn(out[i / 4][i % 4], of_q[i / 4][i % 4]);
}

/* Adds the keys and u of a tile to the state of the next border. */
static __device__ __forceinline__ void add_to_state(const tile_inputs &in, const uint32_t (&u)[4],
                                                    rule_columns &columns) {
  uint32_t lane = own_lane(), high[4], low[4];
  uint32_t b_at = shared_address(in.keys) + lane % 16 * KEY_BYTES + lane / 16 * 16;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    float2 rest = *(const float2 *)(const void *)&in.weights->rest[i / 2 * 8 + lane % 4 * 2];
    split_two(__fmul_rn(rest.x, __uint_as_float(u[i] << 16)), __fmul_rn(rest.y, __uint_as_float(u[i] & 0xFFFF0000u)),
              high[i], low[i]);
  }
#pragma unroll
  for (uint32_t n = 0; n < 2 * STEPS; n += 2) {
    uint32_t key[4];
    ldmatrix_x4_trans(key, b_at + 16 * n);
    mma_bf16(columns.state[n], high, key[0], key[1]);
    mma_bf16(columns.state[n + 1], high, key[2], key[3]);
    mma_bf16(columns.state[n], low, key[0], key[1]);
    mma_bf16(columns.state[n + 1], low, key[2], key[3]);
  }
}

/* Where the u of a value head begin in a row, in bytes. */
static __device__ __forceinline__ uint64_t u_bytes_at(const weft_delta_view &view, uint32_t head) {
  return 2 * (weft_delta_channels(&view) + (uint64_t)(view.n_k_heads + head) * DIM);
}

/* u of two rows, each as a row stores both columns of a lane, as rule_columns has them: both rows of each column. */
static __device__ __forceinline__ void turn_two(uint32_t first, uint32_t second, uint32_t *to) {
  to[0] = __byte_perm(first, second, 0x5410);
  to[1] = __byte_perm(first, second, 0x7632);
}

/* u of a tile's rows below `first` as stored, else zeros. row: of the tile; at: of the lane's columns, in a row. */
static __device__ __forceinline__ void load_u(uint8_t *const *row, uint64_t at, uint32_t tile, uint32_t first,
                                              uint32_t (&u)[4]) {
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    uint32_t r = 8 * n + own_lane() % 4 * 2, two[2];
#pragma unroll
    for (uint32_t e = 0; e < 2; e++)
      two[e] = tile * ROWS + r + e < first ? *(const uint32_t *)(const void *)(row[r + e] + at) : 0;
    turn_two(two[0], two[1], &u[2 * n]);
  }
}

/* Stores u of the call's rows, and calls put(row of the tile, results in columns 2 g and 2 g + 1) for each. */
template <class put_two>
static __device__ __forceinline__ void store_tile(const tile_inputs &in, uint8_t *const *row, uint64_t at,
                                                  const uint32_t (&u)[4], const float (&out)[2][4], put_two put) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t n = i / 2, e = i % 2, r = 8 * n + own_lane() % 4 * 2 + e, t = in.tile * ROWS + r;
    if (t < in.first || t >= in.end) continue;
    *(uint32_t *)(void *)(row[r] + at) = __byte_perm(u[2 * n], u[2 * n + 1], e == 0 ? 0x5410 : 0x7632);
    put(r, make_float2(out[n][e], out[n][2 + e]));
  }
}

static __device__ __forceinline__ void keep_u(uint32_t tile, const uint32_t (&u)[4], rule_columns &columns) {
#pragma unroll
  for (uint32_t i = 0; i < 4 * TILES; i++)
    if (i / 4 == tile) columns.u[i / 4][i % 4] = u[i % 4];
}

#endif
