/* SPDX-License-Identifier: MIT */
/* GEMM with packed, quantised weights (weights/packed_layout.cuh): y = x W^T, for dense matrices and for stacks of
 * experts (grouped GEMM). Only weights are quantised here (W4A16 and the like): their codes are dequantised to 16 bits
 * in registers and multiplied on the tensor cores with f32 accumulators, as Marlin (Frantar et al. 2024) does it. W8A8
 * is in w8a8.h, F32 weights in gemm_f32.cu.
 *
 * Kernels: gemv.cu (few rows), gemm_dense.cu and gemm_grouped.cu (many rows; warp-specialised and persistent,
 * pipeline.cuh).
 *
 * Prologue (prologue.h). Activations are rounded to 16 bits: to bf16 where the weight is BF16 or MXFP4, else to f16,
 * times a power of two that puts the row's largest number near the top of f16's range; the epilogue multiplies by its
 * inverse (x_unscale). They are stored in one of two layouts:
 *   GEMV     [tile of 8 rows][128 inputs][i < 4][lane = 4 (row % 8) + c][8 numbers: inputs 32 c + 8 i ..]
 *   tiled    [128 inputs][tile of 8 rows][i / 2][row % 8][(4 i + j) % 8, xor row % 8][c < 4][2 numbers: inputs 32 c +
 *            8 i + 2 j ..], i < 4, j < 4: rows of 128 bytes with wgmma's 128-byte swizzle, which is free of bank
 *            conflicts
 * Where the last 128 inputs are 64, 32 c is 16 c, as in packed_layout.cuh.
 *
 * Dequantisation: the scale and the zero point of a weight block are rounded to f16 (of MXFP4 to bf16), and scale *
 * code + zero point is rounded once more (dequantise.cuh: dequant_factors, dequantise_pair).
 *
 * Law (numerics). K is cut into splits (split-K), whose bounds are a function of the number of inputs alone. Within a
 * split, products of 16 x 8 x 16 ascend, each adding to the sum of those before it; the sums of the splits are added
 * ascending, from 0. Every kernel of 16 bits does exactly that, so a row's result does not depend on the kernel, the
 * tile or the other rows. (On a device without determinism, products of many rows may split K in another way.) W8A8
 * has another prologue and another order (w8a8.h: exact sums of 256 inputs, added ascending), F32 weights a third one
 * (route.h). */
#ifndef WEFT_KERNELS_CUDA_GEMM_H
#define WEFT_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/weights/dequantise.cuh"
#include "kernels/cuda/gemm/prologue.h"

/* A row tile of one problem of a grouped GEMM: rows of one expert, which are places [first, first + n) of the
 * permuted pairs of (row, rank). A list of jobs that moe/experts.cu makes has first at multiples of 8. */
typedef struct gemm_job {
  uint32_t matrix, first, n;
} gemm_job;

typedef struct gemm_weight {
  const uint8_t *header;       /* of the whole weight */
  const uint8_t *data;         /* PACKED_HEADER_BYTES before the first row tile that is multiplied */
  const float *scale;          /* [matrices] what their products are multiplied by; NULL: ones */
  const uint8_t *steps;        /* W8A8 products only (w8a8.h) */
  const uint8_t *int8_weights; /* and their own steps (int8_weights.h); NULL: none */
  const float *fine_steps;
  float *y;
  uint64_t y_stride;
  uint32_t n_out, n_tiles; /* results; row tiles of a matrix */
} gemm_weight;

/* Rows in f32, for kernels with a fused prologue, which convert them in shared memory. x is NULL where the prologue
 * is done. */
typedef struct gemm_raw_rows {
  const float *x;
  uint64_t x_stride;
  /* The kernel before this one let this one start when it had waited for its own inputs, and writes none of the rows
   * (nor those of the shared MLP). So they are there from the start; only ids must be waited for. */
  bool is_there;
} gemm_raw_rows;

enum { GEMM_SHARED_MLP = WEFT_MATMUL_MAX, GEMM_WEIGHTS_MAX = GEMM_SHARED_MLP + 2 };

/* A product of rows with up to three weights of one n_in and one type; of weights that are multiplied as int8
 * (int8_weights.h) the types may differ, and those of the first stand here. Which rows are multiplied by which matrix:
 *
 *   without jobs and ids   rows 0 .. n_rows - 1, by matrix 0
 *   with ids               row p / pairs_per_row of every pair p, by matrix ids[p] - first_matrix; by none if the stack
 *                          does not have it. GEMV alone, which multiplies the pairs of one matrix at once (gate_up.cuh)
 *   with jobs              as the jobs say; the row of a place was prepared at that place (F32: it is row_of[place]) */
typedef struct gemm_args {
  gemm_weight weight[GEMM_WEIGHTS_MAX];
  uint32_t n_weights;
  int type;
  value_table values; /* of the type */
  bool is_w8a8;       /* weights and rows are those of w8a8.h */
  bool y_is_bf16;     /* W8A8, with jobs: results are stored in bf16, y_stride numbers apart; not gated */
#ifdef WEFT_CUDA_PORTABLE
  uint8_t n_stages; /* of a ring in shared memory (portable/tiles.h) */
#endif
  const void *x;          /* rows after the prologue; F32: the rows as they are */
  bool is_tiled;          /* x is laid out in tiles, which also decides which kernel multiplies */
  const float *x_unscale; /* [rows] the inverse of the prologue's scaling; F32: NULL */
  uint64_t x_stride;      /* F32 only */
  uint32_t x_tiles;       /* tiled only: tiles of 8 rows that x has room for */
  uint32_t n_in, n_rows;
  uint32_t n_units, is_tail, tile_bytes; /* packed_dims */
  uint32_t n_splits, split_units;
  const gemm_job *jobs;   /* device */
  const uint32_t *n_jobs; /* device */
  uint32_t jobs_max;
  uint32_t job_rows;     /* most rows of a job: how the list was made; int8_gemm without jobs: of an item */
  const int32_t *row_of; /* device, F32 only: x row of a place; NULL: the place itself */
  const int32_t *ids;    /* device */
  uint32_t pairs_per_row, n_matrices, first_matrix;
  uint32_t n_experts; /* with ids: the stack has the matrices of experts [first_matrix, + n_matrices) of so many */
  gemm_raw_rows raw;
  /* y[0] = act(x W[0]^T) * (x W[1]^T), of two weights of one shape or of the halves of one weight, which then has an
   * even number of whole tiles, and n_out of one half. Few rows, and where gemm_has_gated_epilogue says so. */
  bool gated;
  weft_activation activation;
  float limit; /* of the gate of experts; 0: none */
  /* With ids, raw and gated: a shared MLP of the same rows, whose weights are [GEMM_SHARED_MLP]
   * and the one after it, of the same type and n_in. Their tiles come first, since they do not wait for the choice
   * of experts. */
  uint32_t n_shared; /* row tiles of each; 0: none */
  const float *shared_x;
  uint64_t shared_stride;
} gemm_args;

/* Most rows of a fused prologue, and most bytes of them: what the shared memory of a block has room for. */
enum { GEMM_RAW_ROWS = 4, GEMM_RAW_BYTES = (32 << 10) + 64 };
/* Whether n_rows rows of n_in inputs may be given raw to a product of 16 bits. They are read four numbers at a time, so
 * they must be wide too. */
bool gemm_takes_raw(int type, uint32_t n_rows, uint32_t n_in);
static inline bool gemm_is_wide(const float *x, uint64_t stride) {
  return ((uintptr_t)x & 15u) == 0 && stride % 4 == 0;
}
/* Forms of rows (weft_rows_form) that ops leave for one another: tiled, as the prologue writes them, with the
 * inverses of their scaling (F16), or as w8a8.h says. */
enum { CUDA_ROWS_F16 = 1, CUDA_ROWS_W8A8 };
/* What the prologue must make of rows for a weight. */
typedef enum gemm_operand { OPERAND_F32, OPERAND_F16, OPERAND_BF16, OPERAND_INT8, OPERAND_COUNT } gemm_operand;
gemm_operand gemm_operand_of(const weft_weight *weight);

/* Bytes of n_rows rows after the prologue, as any operand; and of these with the inverses of the prologue's scaling. */
uint64_t gemm_rows_bytes(uint32_t n_rows, uint32_t n_in);
uint64_t gemm_x_bytes(uint32_t n_rows, uint32_t n_in);
/* Where the powers of two lie behind the rows. */
static inline uint64_t gemm_unscale_at(uint32_t n_rows, uint32_t n_in) {
  return cuda_align(gemm_rows_bytes(n_rows, n_in));
}
/* Runs the prologue that the weight wants. */
weft_status gemm_prologue(cuda_device *d, const weft_weight *weight, const prologue_args *rows);
/* Most rows for GEMV, and with at most GEMV_TILES row tiles, which would give a GEMM too few blocks. */
enum { GEMV_ROWS = 8, GEMV_ROWS_NARROW = 16, GEMV_TILES = 1024 };
/* Whether a dense product of n_rows rows and n_tiles row tiles in all wants its rows in tiles. Products with jobs
 * always do. */
bool gemm_is_tiled(uint32_t n_rows, uint32_t n_tiles);
gemm_weight gemm_weight_of(const weft_weight *weight, float *y, uint64_t y_stride);
/* The prologue's arguments for the weight. The caller fills x, x_stride, is_tiled, out and unscale. */
prologue_args gemm_prologue_of(const weft_weight *weight, uint32_t n_rows);
/* Fills what depends on the weight's type, layout and shape. */
void gemm_set_shape(gemm_args *args, const weft_weight *weight);
/* Cuts the inputs into at most n_splits splits. This is part of the numerics: a kernel may choose another number
 * than gemm_set_shape only on a device that was opened without determinism. */
void gemm_set_split_k(gemm_args *args, uint32_t n_splits);
/* Rows per job that suit n_rows rows spread over n_matrices matrices. */
uint32_t gemm_job_rows(int type, uint64_t n_rows, uint64_t n_matrices);
weft_status gemm(cuda_device *d, const gemm_args *args);
/* Whether a GEMM of many rows, or with jobs, may have a gated epilogue: its weights pair up (two of one shape, or
 * one with an even number of tiles), and there is a kernel for it. */
bool gemm_has_gated_epilogue(const cuda_device *d, const gemm_args *args);
static inline bool gemm_pairs_up(const gemm_args *a) {
  return a->n_weights == 1 ? a->weight[0].n_tiles % 2 == 0
                           : a->n_weights == 2 && a->weight[0].n_out == a->weight[1].n_out;
}

/* A dense GEMM from f32 rows: prologue into scratch (gemm_from_f32_bytes), then the GEMM. */
uint64_t gemm_from_f32_bytes(const weft_weight *weight, uint32_t n_rows);
weft_status gemm_from_f32(cuda_device *d, const weft_weight *weight, const float *x, uint64_t x_stride, uint32_t n_rows,
                          float *y, uint64_t y_stride, void *scratch);
/* The same with rows [first, first + n_out) of a matrix alone, first a multiple of 16 and n_out too, unless they are
 * its last ones. UNSUPPORTED: the weight is kept for products of 8 bits. */
weft_status gemm_from_f32_part(cuda_device *d, const weft_weight *weight, uint32_t first, uint32_t n_out,
                               const float *x, uint64_t x_stride, uint32_t n_rows, float *y, uint64_t y_stride,
                               void *scratch);

/* The two products of an MLP, as two matmuls: rows of the second one are act(g) * u of the first one's results,
 * which the second one's prologue makes, where it has one. */
weft_status gemm_mlp(weft_device *device, const weft_matmul_args *in, const weft_matmul_args *out);

/* What products with gate and up leave for the one behind them: act(g) * u of every row, as its prologue would leave it
 * in bf16, tiled, or in the GEMV layout. */
typedef struct gemm_gated_rows {
  const float *gate_bias, *up_bias; /* [matrices, outputs], both or none */
  uint8_t *out;
  uint32_t n_units, is_tail; /* packed_dims of the product behind */
  uint32_t n_tiles;          /* tiled only: tiles of 8 rows that `out` has room for */
} gemm_gated_rows;

/* The kernels' launchers. */
weft_status gemv(cuda_device *d, const gemm_args *args);
/* Whether gemv gives whole row tiles to its warps, with up to eight rows. Only one row comes raw then. */
bool gemv_is_tall(const cuda_device *d, const gemm_args *args);
weft_status gemm_dense(cuda_device *d, const gemm_args *args);
weft_status gemm_grouped(cuda_device *d, const gemm_args *args); /* with jobs */
/* The same with gate and up in MXFP4, weight[0] and weight[1] with the outputs of one each, a multiple of 64: leaves
 * `rows`, tiled. Jobs are of more than 24 rows. */
weft_status gemm_grouped_gated(cuda_device *d, const gemm_args *args, const gemm_gated_rows *rows);
weft_status gemv_setup(cuda_device *d);
weft_status gemm_dense_setup(cuda_device *d);
weft_status gemm_grouped_setup(cuda_device *d);
weft_status gemm_f32(cuda_device *d, const gemm_args *args);

/* The matrix of an id, at least n_matrices where the stack does not have it. */
static __device__ __forceinline__ uint32_t matrix_of(const gemm_args &a, int32_t id) {
  return (uint32_t)id - a.first_matrix;
}

/* Gets job `index`, not of a product with ids; without jobs the rows are cut into jobs of the given width. False: there
 * is no such job. */
static __device__ __forceinline__ bool job_of(const gemm_args &a, uint32_t index, uint32_t width, gemm_job *job) {
  if (a.jobs == NULL) {
    job->matrix = 0;
    job->first = index * width;
    if (job->first >= a.n_rows) return false;
    job->n = min(width, a.n_rows - job->first);
    return true;
  }
  if (index >= *a.n_jobs) return false;
  *job = a.jobs[index];
  return true;
}

/* The row of x that row n of a job has; rows beyond the job repeat its last one. */
static __device__ __forceinline__ uint32_t x_row_of(const gemm_args &a, const gemm_job &job, uint32_t n) {
  uint32_t row = job.first + min(n, job.n - 1);
  return a.row_of == NULL ? row : (uint32_t)a.row_of[row];
}

/* The scale beside a matrix, by which whole sums are multiplied. */
static __device__ __forceinline__ float scale_of(const gemm_weight &weight, uint32_t matrix) {
  return weight.scale == NULL ? 1.0f : weight.scale[matrix];
}

/* That scale times the power of two that undoes the prescale of the weight (prescale_exponent). Every kernel
 * multiplies a sum by what undoes the scaling of its row, and then by this. */
static __device__ __forceinline__ float weight_unscale_of(const gemm_weight &weight, uint32_t matrix, int prescale) {
  return __fmul_rn(power_of_two(-prescale), scale_of(weight, matrix));
}

/* Bytes from the start of rows in the GEMV layout to what lane 4 (row % 8) + c reads first. */
static __device__ __forceinline__ uint64_t x_at(const gemm_args &a, uint32_t row, uint32_t c) {
  return (uint64_t)(row / 8) * a.n_units * 2048 + (row % 8 * 4 + c) * 16;
}

#endif
