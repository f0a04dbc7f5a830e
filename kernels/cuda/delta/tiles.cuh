/* SPDX-License-Identifier: MIT */
/* A tile of delta_tiles.cu: its sizes, what is made of it without the state, and in which layout.
 *
 * Law: that of delta_tiles.cu. What is made here depends on the tile and the position of its border alone. */
#ifndef WEFT_KERNELS_CUDA_DELTA_TILES_CUH
#define WEFT_KERNELS_CUDA_DELTA_TILES_CUH

#include "kernels/cuda/delta/delta.cuh"
#include "kernels/cuda/split.cuh"

enum {
  ROWS = 16, /* of a tile */
  DIM = 128,
  EVERY = 64,
  TILES = EVERY / ROWS,
  STEPS = DIM / 16,            /* of sixteen keys */
  COLUMNS = 16,                /* of a warp */
  KEY_BYTES = 2 * DIM + 16,    /* of a key in shared memory: eight that ldmatrix reads lie in different banks */
  QUERY_FLOATS = DIM + 8,      /* of a query or a result there, likewise */
  SHORT_WARPS = DIM / COLUMNS, /* of a block */
  SHORT_THREADS = 32 * SHORT_WARPS,
  AWAY_BLOCKS = 2, /* on a multiprocessor, where no block keeps its state in registers */
  WEIGHTS_WARPS = 4,
  VALUES_MAX = 16, /* value heads of a key head */
  STAGES = 3
};

/* The weights e^(G_t - G_i) (k_i . k_t) and (k_i . q_t) of a tile's rows t, in a value head. */
typedef struct tile_weights {
  float own[2][8][8];            /* beta_t times that of u_i for u_t in the same eight; 0 where i >= t */
  float decay[ROWS], rest[ROWS]; /* e^(G_t), e^(G at the next border - G_t) */
  float beta[ROWS], last[4];     /* last[0]: e^(G at the next border) */
  uint4 operand[TILES][4][32];   /* b of mma.sync, for the tile's rows 0 .. 7 and 8 .. 15, of each tile of i:
                                        of_k high and low, of_q high and low */
} tile_weights;

/* The queries of a tile's rows, high and low, as operands b. */
typedef struct tile_queries {
  uint4 operand[STEPS][2][32];
} tile_queries;

static __device__ __forceinline__ uint32_t own_lane(void) {
  return threadIdx.x % 32;
}

/* ---- weights --------------------------------------------------------------------------------------------- */

/* A lane's part of the address from which ldmatrix_x4 gets the operands b of sixteen keys. */
static __device__ __forceinline__ uint32_t keys_at(const uint8_t *keys) {
  uint32_t lane = own_lane();
  return shared_address(keys) + (lane % 8 + lane / 16 * 8) * KEY_BYTES + lane / 8 % 2 * 16;
}

/* k_i . k_t and k_i . q_t: lane 4 g + c has, at [n][e], row t = g + e / 2 * 8 of its tile and key 8 n + 2 c + e % 2. */
typedef struct tile_dots {
  float of_k[2][4], of_q[2][4];
} tile_dots;

/* rows: the keys of the tile's rows; keys: those of a tile; queries: of the tile's rows. `to` may be NULL. */
static __device__ __forceinline__ tile_dots multiply_keys(const uint8_t *rows, const uint8_t *keys,
                                                          const float *queries, tile_queries *to) {
  uint32_t lane = own_lane();
  uint32_t a_at = shared_address(rows) + lane % 16 * KEY_BYTES + lane / 16 * 16, b_at = keys_at(keys);
  const float *query = queries + lane / 4 * QUERY_FLOATS + lane % 4 * 2;
  tile_dots d = {};
  float lows[2][4] = {};
#pragma unroll
  for (uint32_t s = 0; s < STEPS; s++) {
    uint32_t a[4], b[4], high[4], low[4];
    ldmatrix_x4(a, a_at + 32 * s);
    ldmatrix_x4(b, b_at + 32 * s);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      float2 x = *(const float2 *)(const void *)(query + i % 2 * 8 * QUERY_FLOATS + 16 * s + i / 2 * 8);
      split_two(x.x, x.y, high[i], low[i]);
    }
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
      mma_bf16(d.of_k[n], a, b[2 * n], b[2 * n + 1]);
      mma_bf16(d.of_q[n], high, b[2 * n], b[2 * n + 1]);
      mma_bf16(lows[n], low, b[2 * n], b[2 * n + 1]);
    }
    if (to == NULL) continue;
    to->operand[s][0][lane] = make_uint4(high[0], high[2], high[1], high[3]);
    to->operand[s][1][lane] = make_uint4(low[0], low[2], low[1], low[3]);
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) d.of_q[i / 4][i % 4] = __fadd_rn(d.of_q[i / 4][i % 4], lows[i / 4][i % 4]);
  return d;
}

/* Makes operands of weights at [n][e] of tile_dots. */
static __device__ __forceinline__ void keep_operand(const float (&w)[2][4], uint4 (*to)[32]) {
  uint4 high, low;
  split_two(w[0][0], w[0][1], high.x, low.x);
  split_two(w[1][0], w[1][1], high.y, low.y);
  split_two(w[0][2], w[0][3], high.z, low.z);
  split_two(w[1][2], w[1][3], high.w, low.w);
  to[0][own_lane()] = high;
  to[1][own_lane()] = low;
}

/* Numbers of the positions since the border, in a value head: G, and beta, which is 0 but for rows of the call. */
typedef struct tile_numbers {
  float total[EVERY], beta[EVERY];
} tile_numbers;

/* Products times decays, of tile `tile` with the keys of tile `of`; what no sum takes is 0. */
static __device__ __forceinline__ void keep_weights(const tile_dots &d, const tile_numbers &x, uint32_t tile,
                                                    uint32_t of, tile_weights *to) {
  uint32_t g = own_lane() / 4, c = own_lane() % 4;
  float of_k[2][4], of_q[2][4];
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
      uint32_t row = g + e / 2 * 8, key = 8 * n + 2 * c + e % 2, t = tile * ROWS + row, i = of * ROWS + key;
      float decay = i <= t ? expf(__fsub_rn(x.total[t], x.total[i])) : 0.0f;
      bool multiplied = of < tile || (row >= 8 && key < 8);
      float w = __fmul_rn(decay, d.of_k[n][e]);
      of_k[n][e] = multiplied ? w : 0.0f;
      of_q[n][e] = i <= t ? __fmul_rn(decay, d.of_q[n][e]) : 0.0f;
      if (of == tile && n == e / 2) to->own[n][g][2 * c + e % 2] = i < t ? __fmul_rn(x.beta[t], w) : 0.0f;
    }
  }
  keep_operand(of_k, &to->operand[of][0]);
  keep_operand(of_q, &to->operand[of][2]);
}

/* The numbers of a tile's rows, by a warp. */
static __device__ __forceinline__ void keep_rows(bool crosses, const tile_numbers &x, uint32_t tile, tile_weights *to) {
  uint32_t lane = own_lane(), t = tile * ROWS + lane;
  float last = x.total[EVERY - 1];
  if (lane >= ROWS) return;
  to->decay[lane] = expf(x.total[t]);
  to->rest[lane] = crosses ? expf(__fsub_rn(last, x.total[t])) : 0.0f;
  to->beta[lane] = x.beta[t];
  if (lane < 4) to->last[lane] = expf(last);
}

#endif
