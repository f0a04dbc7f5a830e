/* SPDX-License-Identifier: MIT */
/* The ops latent_rows, latent_press, latent_choose, latent_attend and latent_heads: attention over one vector for each
 * position, which is key and value of all heads (DeepSeek-V2 to V4), and over rows that stand for several old positions
 * (V4). Part of kernels/ops.h, whose laws hold.
 *
 * Law. What a layer keeps lies in up to six sets of rows in pages, each with a block table of its own:
 *
 *   near           the vector of each position since a window
 *   far            one vector for each `ratio` positions, or for each
 *   index          beside each far row a narrow one, by which far rows are chosen
 *   pending        of each position, what the far row of its block is made of, since a window; f32
 *   pending_index  the same for the index row
 *   tokens         the token of each position, since a window (kernels/engram.h)
 *
 * A far row is made when the last position of its block is computed, of the pending rows as they are stored, whatever
 * calls these came in: its bits are the same in a prompt and in an answer. It is stored as the row of that position. A
 * row at position p sees the near rows of positions > p - window up to p, and the far rows of the (p + 1) / ratio
 * blocks that end at or before p. So rows that turn out to be void leave nothing behind: what they stored is written
 * over before any row sees it.
 *
 * Rotation. Of a vector the last n_rotated numbers rotate by pairs of neighbours (2 i, 2 i + 1), by an angle of
 * (float)position * inv_freq[i] in f32, then cosf, sinf; a far row at the position of its block's first. Rows are
 * rounded to the type of their set, and every reader takes them as stored. */
#ifndef WEFT_KERNELS_LATENT_H
#define WEFT_KERNELS_LATENT_H

#include "kernels/kv_row.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define WEFT_LATENT_FN static __host__ __device__ inline
#else
#define WEFT_LATENT_FN static inline
#endif

typedef enum weft_latent_set {
  WEFT_LATENT_NEAR = 0,
  WEFT_LATENT_FAR = 1,
  WEFT_LATENT_INDEX = 2,
  WEFT_LATENT_PENDING = 3,
  WEFT_LATENT_PENDING_INDEX = 4,
  WEFT_LATENT_TOKENS = 5
} weft_latent_set;
enum { WEFT_LATENT_SETS = 6, WEFT_LATENT_RATIO_MAX = 128 };

/* The rows of a set. Every page has, at offset, the rows of block_tokens neighbouring positions, one for each
 * `positions` of them; of a pending set the products with the matrix of values at offset, and those with the matrix of
 * scores at scores_offset. base NULL: the layer has no such set. */
typedef struct weft_latent_view {
  void *base;
  weft_type type; /* F32, BF16 or Q8_0; of a pending set F32 */
  uint64_t page_bytes, offset, scores_offset;
  uint32_t block_tokens, positions, width;
} weft_latent_view;

/* The bytes at `offset` of the row that has a position, found through a segment's table. */
WEFT_LATENT_FN uint8_t *weft_latent_row(const weft_latent_view *rows, uint64_t offset, const uint32_t *table,
                                        uint32_t position) {
  return (uint8_t *)rows->base + table[position / rows->block_tokens] * rows->page_bytes + offset +
         position % rows->block_tokens / rows->positions * weft_kv_row_bytes(rows->type, rows->width);
}

/* Row i of a segment is at position kv_len + i, and is stored in the pool. Host memory; tables are device memory. */
typedef struct weft_latent_segment {
  uint32_t first_row, n_rows, kv_len;
  const uint32_t *table[WEFT_LATENT_SETS]; /* page of logical block i of each set that there is */
} weft_latent_segment;

typedef struct weft_latent_turn {
  const float *inv_freq; /* [n_rotated / 2] */
  uint32_t n_rotated;
} weft_latent_turn;

/* ---- latent_rows: queries, and the vector of each position ---------------------------------------------------- *
 * q = rotate(rms(q)) per head, rms(v) = v / sqrt(mean(v^2) + eps); near row = rotate(rms(kv) * kv_norm), stored;
 * index_q = rotate(index_q) per head. Queries in place. parted: what rotates of a vector is beside it and not of it, so
 * q = rotate(q), and the norm of a row is that of its other numbers, for which kv_norm has weights. plain_q: queries
 * have no norm, so q = rotate(q), and rows are as above.                                                          */
typedef struct weft_latent_rows_args {
  weft_latent_view near;
  float *q;                  /* [n_rows, n_heads * near.width] */
  float *index_q;            /* optional [n_rows, n_index_heads * index_dim] */
  const float *kv, *kv_norm; /* [n_rows, near.width], [near.width] */
  weft_latent_turn turn;
  const weft_latent_segment *segment;
  uint32_t n_segments, n_rows, n_heads, n_index_heads, index_dim;
  uint64_t q_stride, index_q_stride, kv_stride;
  float eps;
  bool parted, plain_q;
} weft_latent_rows_args;

/* ---- latent_press: pending rows are stored, then the rows are made of blocks that end among them --------------- *
 * Pending row at p: values x and scores + ape[p % ratio]. The row of the block that begins at b, for each number d:
 *   plain     softmax over the block's scores[d], ascending positions; y[d] = sum of share * value[d]
 *   overlaps  pending rows have twice the numbers. Over [d] of the block before (where b > 0), then [width + d] of this
 * row = rotate(y / sqrt(mean(y^2) + eps) * norm), at position b, stored in `out` through its table. Where pending.base
 * is NULL no position has pending rows, and y is x of the row that ends the block. latent: of a row that ends a block
 * what its far row is before it rotates, as f32; of others zeros.                                                 */
typedef struct weft_latent_press_args {
  weft_latent_view pending, out;
  weft_latent_set pending_set, out_set; /* whose tables lead to them */
  const float *x, *scores;              /* [n_rows, pending.width]; without pending rows x is [n_rows, out.width] */
  const float *ape, *norm;              /* optional [out.positions][pending.width], [out.width] */
  float *latent;                        /* optional [n_rows, out.width]; not x */
  weft_latent_turn turn;
  const weft_latent_segment *segment;
  uint32_t n_segments, n_rows;
  bool overlaps; /* pending.width is 2 out.width; else the same */
  uint64_t x_stride, scores_stride;
  float eps;
} weft_latent_press_args;

/* ---- latent_choose: which far rows a row sees ------------------------------------------------------------------- *
 * ids[r]: the k far rows of largest score among those that the row may see, ascending, then -1; all of them where there
 * are at most k. score = sum over heads h of weights[h] * max(0, q_h . index row), as f32; of equal ones the first.
 * Far rows in blocks of block_rows: where a row sees more than n_blocks of them, with makes_blocks blocks[r] are the
 * n_blocks of largest best score, the last one that it sees among them, ascending, of equal ones the first; else, with
 * blocks, only their far rows are scored. n_blocks * block_rows >= k + block_rows - 1, so k are found.             */
typedef struct weft_latent_choose_args {
  weft_latent_view index;
  const float *q;       /* [n_rows, n_heads * index.width] */
  const float *weights; /* [n_rows, n_heads] */
  int32_t *ids;         /* [n_rows, k] */
  int32_t *blocks;      /* optional [n_rows, n_blocks] */
  const weft_latent_segment *segment;
  uint32_t n_segments, n_rows, n_heads, k, n_blocks, block_rows;
  bool makes_blocks;
  uint64_t q_stride, weights_stride;
  void *scratch;
  uint64_t scratch_bytes;
} weft_latent_choose_args;

/* ---- latent_attend: out_h = rotate back(sum of share * row), at the row's own position ------------------------- *
 * Shares are the softmax of scale * q_h . row over the near rows that the row sees, then the far ones (with ids those
 * alone), ascending, and one term more, e^sinks[h], that no row belongs to. With n_values, out_h is that sum of the
 * first n_values numbers of rows, which do not rotate.                                                            */
typedef struct weft_latent_attend_args {
  weft_latent_view near, far; /* far.base NULL: there are none */
  const float *q;             /* [n_rows, n_heads * near.width] */
  const float *sinks;         /* optional [n_heads] */
  const int32_t *ids;         /* optional [n_rows, k], as latent_choose leaves them */
  float *out;                 /* [n_rows, n_heads * near.width], or [n_rows, n_heads * n_values] */
  weft_latent_turn turn;
  const weft_latent_segment *segment;
  uint32_t n_segments, n_rows, n_heads, k, window;
  uint32_t n_values; /* 0: all of a row, rotated back */
  float scale;
  uint64_t q_stride, out_stride;
} weft_latent_attend_args;

/* ---- latent_heads: y_h = W_h x_h, a matrix for each head ------------------------------------------------------- *
 * Sums in f32 or wider. The n_rest numbers that follow those of x_h follow y_h as they are. x and y do not overlap. */
typedef struct weft_latent_heads_args {
  const float *x;      /* [n_rows, n_heads * (n_in + n_rest)] */
  const float *weight; /* [n_heads, n_out, n_in] */
  float *y;            /* [n_rows, n_heads * (n_out + n_rest)] */
  uint32_t n_rows, n_heads, n_in, n_out, n_rest;
  uint64_t x_stride, y_stride;
} weft_latent_heads_args;

#ifdef __cplusplus
}
#endif
#endif
