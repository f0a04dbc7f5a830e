/* SPDX-License-Identifier: MIT */
/* Sixteen columns of a value head, in a warp: the state in registers, and what a tile does with it.
 *
 * Law: that of delta_tiles.cu. A column's numbers do not depend on other columns. */
#ifndef WEFT_KERNELS_CUDA_DELTA_COLUMNS_CUH
#define WEFT_KERNELS_CUDA_DELTA_COLUMNS_CUH

#include "kernels/cuda/delta/tiles.cuh"

/* Sixteen columns of a value head, in a warp: lane 4 g + c has columns 2 g and 2 g + 1. */
typedef struct rule_columns {
  float state[2 * STEPS][4];                      /* [n][2 j + e]: key 8 n + 2 c + e of column 2 g + j */
  uint32_t high[2 * STEPS][2], low[2 * STEPS][2]; /* of it, at the border before the piece */
  uint32_t u[TILES][4]; /* [2 n + j]: of rows 8 n + 2 c and the next of a tile, of column 2 g + j */
} rule_columns;

/* unit: of the value head, NULL at position 0. column: the lane's first. */
static __device__ __forceinline__ void read_state(const float *unit, uint32_t column, rule_columns &columns) {
#pragma unroll
  for (uint32_t n = 0; n < 2 * STEPS; n++) {
    float2 x = make_float2(0.0f, 0.0f), y = x;
    const float *from = unit + (8 * n + own_lane() % 4 * 2) * DIM + column;
    if (unit != NULL) x = *(const float2 *)(const void *)from, y = *(const float2 *)(const void *)(from + DIM);
    columns.state[n][0] = x.x, columns.state[n][1] = y.x, columns.state[n][2] = x.y, columns.state[n][3] = y.y;
  }
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

/* Sums of a tile: [n][2 j + e] is row 8 n + 2 c + e in column 2 g + j. */
typedef struct tile_sums {
  float of_k[2][4], of_q[2][4];
} tile_sums;

/* e^G times the products of keys and queries with the state. IS_SPLIT: high and low are there. */
template <bool IS_SPLIT>
static __device__ __forceinline__ void multiply_state(const tile_inputs &in, const rule_columns &columns,
                                                      tile_sums &sums) {
  uint32_t lane = own_lane(), b_at = keys_at(in.keys);
  float highs[4][4] = {}, lows[4][4] = {}; /* of keys, of queries */
#pragma unroll
  for (uint32_t s = 0; s < STEPS; s++) {
    uint32_t high[4], low[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const float(&x)[4] = columns.state[2 * s + i / 2];
      high[i] = columns.high[2 * s + i / 2][i % 2], low[i] = columns.low[2 * s + i / 2][i % 2];
      if (!IS_SPLIT) split_two(x[2 * (i % 2)], x[2 * (i % 2) + 1], high[i], low[i]);
    }
    uint32_t key[4];
    ldmatrix_x4(key, b_at + 32 * s);
    uint4 query = in.queries->operand[s][0][lane], rest = in.queries->operand[s][1][lane];
    mma_bf16(highs[0], high, key[0], key[1]);
    mma_bf16(highs[1], high, key[2], key[3]);
    mma_bf16(lows[0], low, key[0], key[1]);
    mma_bf16(lows[1], low, key[2], key[3]);
    mma_bf16(highs[2], high, query.x, query.y);
    mma_bf16(highs[3], high, query.z, query.w);
    mma_bf16(lows[2], low, query.x, query.y);
    mma_bf16(lows[3], low, query.z, query.w);
    mma_bf16(lows[2], high, rest.x, rest.y);
    mma_bf16(lows[3], high, rest.z, rest.w);
  }
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    float2 decay = *(const float2 *)(const void *)&in.weights->decay[8 * n + lane % 4 * 2];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      float by = i % 2 == 0 ? decay.x : decay.y;
      sums.of_k[n][i] = __fmul_rn(by, __fadd_rn(highs[n][i], lows[n][i]));
      sums.of_q[n][i] = __fmul_rn(by, __fadd_rn(highs[2 + n][i], lows[2 + n][i]));
    }
  }
}

/* Adds the weighted u of a tile: high weights and low ones. */
static __device__ __forceinline__ void add_tile(const uint4 (*weights)[32], const uint32_t (&u)[4],
                                                float (&sums)[2][4]) {
  uint4 high = weights[0][own_lane()], low = weights[1][own_lane()];
  mma_bf16(sums[0], u, high.x, high.y);
  mma_bf16(sums[1], u, high.z, high.w);
  mma_bf16(sums[0], u, low.x, low.y);
  mma_bf16(sums[1], u, low.z, low.w);
}

/* u of eight rows, one after another; the lanes of a quad have two rows each. u[j]: at first what is stored of rows
 * before the call's. base: of the eight, counted from the border. */
static __device__ __forceinline__ void solve_eight(const tile_inputs &in, uint32_t n, const float (&value)[4],
                                                   const float (&sums)[4], uint32_t (&u)[2]) {
  uint32_t c = own_lane() % 4, t = in.tile * ROWS + 8 * n + 2 * c;
  const float *own = &in.weights->own[n][2 * c][0];
  float2 beta = *(const float2 *)(const void *)&in.weights->beta[8 * n + 2 * c];
  float weight[2][8], next = own[8 + 2 * c], s[4], now[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float4 x = *(const float4 *)(const void *)(own + 4 * i);
    float *to = &weight[i / 2][i % 2 * 4];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    s[i] = sums[i];
  }
#pragma unroll
  for (int p = 0; p < 4; p++) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float x = delta_round(WEFT_TYPE_BF16, __fmul_rn(beta.x, __fsub_rn(value[2 * j], s[2 * j])));
      now[2 * j] = t < in.first ? __uint_as_float(u[j] << 16) : x;
      x = __fsub_rn(value[2 * j + 1], __fmaf_rn(next, now[2 * j], s[2 * j + 1]));
      x = delta_round(WEFT_TYPE_BF16, __fmul_rn(beta.y, x));
      now[2 * j + 1] = t + 1 < in.first ? __uint_as_float(u[j] & 0xFFFF0000u) : x;
    }
    if (p == 3) break;
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float x = __shfl_sync(0xFFFFFFFFu, now[2 * j], p, 4), y = __shfl_sync(0xFFFFFFFFu, now[2 * j + 1], p, 4);
      if (c <= p) continue;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        s[2 * j + e] = __fmaf_rn(weight[e][2 * p], x, s[2 * j + e]);
        s[2 * j + e] = __fmaf_rn(weight[e][2 * p + 1], y, s[2 * j + e]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 2; j++) u[j] = pair_bf16(t < in.end ? now[2 * j] : 0.0f, t + 1 < in.end ? now[2 * j + 1] : 0.0f);
}

/* u and results of a tile. value: as tile_sums. u: of rows before the call's as stored, else zeros. */
template <bool IS_SPLIT>
static __device__ __forceinline__ void compute_tile(const tile_inputs &in, const float (&value)[2][4],
                                                    const rule_columns &columns, uint32_t (&u)[4], float (&out)[2][4]) {
  tile_sums sums;
  multiply_state<IS_SPLIT>(in, columns, sums);
#pragma unroll
  for (uint32_t i = 0; i + 1 < TILES; i++) {
    if (i >= in.tile) break;
    add_tile(&in.weights->operand[i][0], columns.u[i], sums.of_k);
    add_tile(&in.weights->operand[i][2], columns.u[i], sums.of_q);
  }
  const uint4(*own)[32] = in.weights->operand[in.tile];
  uint32_t eight[2] = {u[0], u[1]};
  solve_eight(in, 0, value[0], sums.of_k[0], eight);
  const uint32_t first[4] = {eight[0], eight[1], 0, 0};
  uint4 high = own[0][own_lane()], low = own[1][own_lane()];
  mma_bf16(sums.of_k[1], first, high.z, high.w);
  mma_bf16(sums.of_k[1], first, low.z, low.w);
  u[0] = eight[0], u[1] = eight[1];
  eight[0] = u[2], eight[1] = u[3];
  solve_eight(in, 1, value[1], sums.of_k[1], eight);
  u[2] = eight[0], u[3] = eight[1];
  add_tile(own + 2, u, sums.of_q);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) out[i / 4][i % 4] = sums.of_q[i / 4][i % 4];
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

/* u of a tile's rows below `first` as stored, else zeros. row: of the tile; at: of the lane's columns, in a row. */
static __device__ __forceinline__ void load_u(uint8_t *const *row, uint64_t at, uint32_t tile, uint32_t first,
                                              uint32_t (&u)[4]) {
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    uint32_t r = 8 * n + own_lane() % 4 * 2, two[2];
#pragma unroll
    for (uint32_t e = 0; e < 2; e++)
      two[e] = tile * ROWS + r + e < first ? *(const uint32_t *)(const void *)(row[r + e] + at) : 0;
    u[2 * n] = __byte_perm(two[0], two[1], 0x5410);
    u[2 * n + 1] = __byte_perm(two[0], two[1], 0x7632);
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
