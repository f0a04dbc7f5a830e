/* SPDX-License-Identifier: MIT */
/* Products of rows with panels: what the three instruction sets implement, and what matmul, experts and the head
 * share.
 *
 * Law (the numerics of a product). They are the same for every number of rows, every place of a row and every thread.
 *
 * Quantised weights. The input row is cut into blocks of 32. A block's scale is max|x| / 127 in f32; its codes are the
 * products of x with 1 / scale, which is rounded to f32 too, and are rounded to nearest even. A block that holds a NaN
 * or an infinity gets the scale NaN; a block with max|x| < 2^-100 is all zeros. For one output the blocks are added one
 * after another, ascending, to one f32 sum:
 *
 *   OFFSET   t = scale * (float)dot                                    acc = fma(t, x_scale, acc)
 *   LEAST    t = fma(-least, (float)x_sum, scale * (float)dot)         acc = fma(t, x_scale, acc)
 *   SPLIT    t = fma(scale1, (float)dot1, scale0 * (float)dot0)        acc = fma(t, x_scale, acc)
 *   PAIRS    t as SPLIT; t = fma(-least0, (float)x_sum0, t); t = fma(-least1, (float)x_sum1, t); acc as above
 *
 * (Q4_1 and Q5_1 store minus the least.) x_sum is the sum of the row's codes; x_sum0 and x_sum1 are the sums of its
 * halves. dot is the exact integer sum of (code - offset) * x_code over the block; dot0 and dot1 are those of its
 * halves.
 *
 * Float weights. Inputs ascend within segments of CPU_SEGMENT, acc = fma(w, x, acc) from zero, and the segments' sums
 * are added ascending. The instruction sets give equal bits with one exception: for float weights portable code rounds
 * w * x before it adds, since a fused operation without hardware for it would be a function call per product.
 *
 * A weight's scale multiplies a sum when it is whole.
 *
 * Rows are packed into groups before the product. The rows of a group lie side by side:
 *
 *   quantised   per block of 32 and row, 52 bytes:   0   32 codes, s8
 *                                                   32   the scale, f32
 *                                                   36   the sum of the codes, f32
 *                                                   40   minus the sums of the first sixteen codes and of the last
 *                                                        sixteen: two s16
 *                                                   44   what the integer sums of the halves begin with where the
 *                                                        offset is 1 << CPU_SHIFT_HALVES, so that it is gone in the
 *                                                        end: two s32, the first lifted (CPU_LIFT)
 *   float       per input:                           x of each row, f32
 *
 * A group has 16 rows. What is left at the end is one group of up to 8 rows, or two of almost equal size. */
#ifndef WEFT_KERNELS_CPU_MATMUL_H
#define WEFT_KERNELS_CPU_MATMUL_H

#include <string.h>

#include "kernels/cpu/pack.h"
#include "kernels/experts.h"

enum {
  CPU_GROUP = 16,     /* rows of a full group */
  CPU_GROUP_PART = 8, /* most rows of a group that is not full */
  CPU_SEGMENT = 256,  /* float weights: inputs that are summed from zero before the sum joins the rest */
  CPU_X_BYTES = 52,   /* one row's block of 32 in a quantised group, and where its parts begin: */
  CPU_X_SCALE = 32,
  CPU_X_SUM = 36,
  CPU_X_MINUS = 40,
  CPU_X_FROM_FIRST = 44,
  CPU_X_FROM_LAST = 48,
  CPU_SHIFT_HALVES = 5, /* of Q6_K */
  CPU_LIFT_BITS = 0x4B400000,
  CPU_TASKS_PER_THREAD = 4
};

/* An integer sum that begins with the bits of CPU_LIFT in place of 0 has the bits of the float CPU_LIFT + sum, as long
 * as its magnitude is below 2^22; a sum of products of a block is. So fma(scale, that, -(scale * CPU_LIFT)) is
 * scale * sum, rounded once as the product is without, and no instruction converts. That holds where scale * CPU_LIFT
 * is exact: where scale has 22 bits at most, and is no power of two as large as MXFP4 may have. */
#define CPU_LIFT 12582912.0f /* 1.5 * 2^23 */

/* Times this what lies at CPU_X_FROM_FIRST, less CPU_LIFT, and at CPU_X_FROM_LAST is minus the sum of that half. */
#define CPU_FROM_PART 0.03125f /* 1 / (1 << CPU_SHIFT_HALVES) */

/* A tile: y[r][0 .. n_cols) = one group of rows times n_panels consecutive panels, times scale. */
typedef struct cpu_tile {
  const cpu_pack_info *info;
  float scale;
  const uint8_t *panel; /* the first */
  const uint8_t *next;  /* weights that will be read after these, or NULL: only a hint */
  bool fetch;           /* these weights, or those of next, are not in the cache yet: only a hint */
  uint64_t panel_bytes;
  uint32_t n_panels;
  uint32_t n_cols; /* outputs to store: more than 16 * (n_panels - 1), at most 16 * n_panels */
  uint32_t n_in;
  uint32_t n_rows; /* 1 .. 8 or 16 */
  const uint8_t *x;
  float *y;
  uint64_t y_stride;
} cpu_tile;

/* A rank of a row whose expert is here: its result lies at x + slot * stride. */
typedef struct cpu_rank {
  uint32_t slot, closes; /* closes: weft_experts_closes behind it */
  float weight;
} cpu_rank;

/* Those of one row, leaf by leaf, each leaf's in rank order. */
typedef struct cpu_ranked {
  const float *x; /* [slots][stride] */
  uint64_t stride;
  const cpu_rank *rank; /* [n] */
  uint32_t n;
} cpu_ranked;

typedef struct cpu_products {
  void (*tile)(const cpu_tile *tile); /* leaves out the scale, which cpu_tile_run applies */
  /* Row `row` of a quantised group of n_rows. */
  void (*quantise)(const float *x, uint32_t n_in, uint32_t row, uint32_t n_rows, uint8_t *group);
  /* y[i] = the sum of weight * x[slot][i] over the ranks as kernels/experts.h has it, each product rounded. */
  void (*add_ranked)(const cpu_ranked *ranked, uint32_t n, float *y);
} cpu_products;

const cpu_products *cpu_products_find(cpu_isa isa);
extern const cpu_products cpu_products_portable;
extern const cpu_products cpu_products_avx2;
extern const cpu_products cpu_products_avx512;

/* How many rows the next group has when n_left rows are still to be packed. */
static inline uint32_t cpu_group_next(uint32_t n_left) {
  if (n_left >= CPU_GROUP) return CPU_GROUP;
  return n_left > CPU_GROUP_PART ? (n_left + 1) / 2 : n_left;
}

/* Bytes that one row takes in packed groups: the group that begins at row r lies at r times this. */
static inline uint64_t cpu_group_row_bytes(bool quantised, uint32_t n_in) {
  return quantised ? (uint64_t)(n_in / CPU_PACK_BLOCK) * CPU_X_BYTES : 4ull * n_in;
}

static inline bool cpu_is_quantised(weft_type type) {
  return type != WEFT_TYPE_F32 && type != WEFT_TYPE_F16 && type != WEFT_TYPE_BF16;
}

static inline uint64_t cpu_round_64(uint64_t n) {
  return (n + 63u) & ~63ull;
}

/* The scale of a block whose largest magnitude is `most`, and the factor that makes codes of its numbers (0 where all
 * codes are to be 0). */
static inline void cpu_block_scale(float most, float *scale, float *inverse) {
  *inverse = 0.0f;
  if (!(most <= 3.4028235e38f)) { /* NaN or infinity spoils the block, visibly */
    union {
      uint32_t u;
      float f;
    } nan = {0x7FC00000u};
    *scale = nan.f;
  } else if (most < 0x1p-100f) {
    *scale = 0.0f;
  } else {
    *scale = most / 127.0f;
    *inverse = 1.0f / *scale;
  }
}

/* Writes what follows the codes of a row's block; `first` and `last` are the sums of the codes of its halves. */
static inline void cpu_block_tail(uint8_t *to, float scale, int32_t first, int32_t last) {
  float sum = (float)(first + last);
  int16_t minus[2] = {(int16_t)-first, (int16_t)-last};
  int32_t from[2] = {CPU_LIFT_BITS - first * (1 << CPU_SHIFT_HALVES), -last * (1 << CPU_SHIFT_HALVES)};
  memcpy(to + CPU_X_SCALE, &scale, 4);
  memcpy(to + CPU_X_SUM, &sum, 4);
  memcpy(to + CPU_X_MINUS, minus, sizeof minus);
  memcpy(to + CPU_X_FROM_FIRST, from, sizeof from);
}

/* Which of the sums at CPU_X_MINUS an instruction adds that multiplies two s16 side by side and adds the products: its
 * factor is the part shifted by the offset's shift. */
typedef enum cpu_part {
  CPU_PART_FIRST = 1,
  CPU_PART_LAST = 1 << 16,
  CPU_PART_ALL = CPU_PART_FIRST | CPU_PART_LAST
} cpu_part;

/* Packs rows [first, first + n) into groups; first is a multiple of 16. Row r begins at x + r * x_stride. */
typedef struct cpu_pack_rows {
  const cpu_products *products;
  const float *x;
  uint64_t x_stride;
  uint32_t n_in;
  bool quantised;
  uint8_t *groups; /* where row 0 of the whole would be */
} cpu_pack_rows;
void cpu_rows_pack(const cpu_pack_rows *rows, uint32_t first, uint32_t n);
/* All rows [0, n_rows), over the pool when that is worth it. */
void cpu_rows_pack_all(weft_thread_pool *pool, const cpu_pack_rows *rows, uint32_t n_rows);

/* A tile of panels [panel, panel + n_panels) of a matrix; the caller adds x, y, y_stride and n_rows. */
cpu_tile cpu_tile_of(const weft_weight *weight, uint32_t matrix, uint32_t panel, uint32_t n_panels);

/* Runs a tile over its own rows. */
void cpu_tile_run(const cpu_products *products, const cpu_tile *tile);
/* Runs a tile over rows [first, first + n) of packed groups: tile.x and tile.y are those of row 0. */
void cpu_tile_rows(const cpu_products *products, const cpu_tile *tile, uint32_t first, uint32_t n);

#endif
