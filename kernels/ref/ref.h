/* SPDX-License-Identifier: MIT */
/* The reference device: every op in plain loops with sums in double. It is the definition of the ops.
 *
 * Law: nothing here is optimised. Weights stay in file layout (types that devices hold as others: as those) and are
 * read through weft_dequantise_row. Products take the f32 input as it is, unless the device was opened for products of
 * 8 bits, which are then made as w8a8.c says. Where an op's text in ops.h names f32 steps (angles, stored keys), ref
 * takes the same steps. */
#ifndef WEFT_KERNELS_REF_REF_H
#define WEFT_KERNELS_REF_REF_H

#include "kernels/device_internal.h"

#define X(op)                                                              \
  weft_status ref_##op(weft_device *device, const weft_##op##_args *args); \
  uint64_t ref_##op##_scratch(weft_device *device, const weft_##op##_args *args);
WEFT_OPS(X)
#undef X

/* Row `row` of matrix `matrix` as n_in floats. */
void ref_weight_row(const weft_weight *weight, uint32_t matrix, uint32_t row, float *out);
/* The sum of a[i] * b[i], in double, ascending. */
double ref_dot(const float *a, const float *b, uint32_t n);
/* Rows [first, first + n) of a matrix, at most REF_SIDE, side by side: number i of all of them, as doubles, then number
 * i + 1; and their sums of products with x, each as ref_dot has it. A sum waits for each number that it adds, but not
 * for the others. rows: scratch of REF_SIDE times n_in floats. */
enum { REF_SIDE = 8 };
void ref_side_rows(const weft_weight *weight, uint32_t matrix, uint32_t first, uint32_t n, float *rows, double *side);
void ref_side_dots(const float *x, const double *side, uint32_t n_in, double *sum);
/* The same of REF_SIDE rows as they lie behind each other, for an x that alone meets them. */
void ref_row_dots(const float *x, const float *rows, uint32_t n_in, double *sum);
/* What products with matrix `matrix` are multiplied by. */
double ref_scale(const weft_weight *weight, uint32_t matrix);
/* Rows [first, first + n) of a matrix, at most REF_SIDE, times x, each by ref_dot's sum or, for weights of layout
 * REF_EIGHT, in 8 bits; sum and rows: room for REF_SIDE numbers, and for REF_SIDE times n_in. ref_products multiplies
 * them by the matrix's scale. */
enum { REF_EIGHT = 2 };
void ref_row_products(const weft_weight *weight, uint32_t matrix, uint32_t first, uint32_t n, const float *x,
                      float *rows, double *sum);
void ref_products(const weft_weight *weight, uint32_t matrix, uint32_t first, uint32_t n, const float *x, float *rows,
                  double *out);
/* Whether weights of a type can be multiplied in 8 bits; and such a product. values: scratch of n_in floats. */
bool ref_w8a8_takes(weft_type type);
float ref_w8a8_dot(const weft_weight *weight, uint32_t matrix, uint32_t row, const float *x, float *values);
enum { REF_SPAN = 256 }; /* inputs that have one scale */
/* Its parts, for many rows: the integers of the weight's row from input `first` on, a multiple of REF_SPAN, and their
 * step; the row's values are given. And what these n inputs of a row add to its sum. */
float ref_w8a8_span(const weft_weight *weight, uint32_t matrix, uint32_t row, uint32_t first, const float *values,
                    int32_t *codes);
float ref_w8a8_add(const int32_t *codes, float step, const float *x, uint32_t n, float sum);
/* act(g) * u, or the clamped gate of both. limit 0: none. */
double ref_gated(weft_activation activation, double limit, double g, double u);
/* Ops whose definition other backends share out by rows [first, end), or by rows and heads. */
void ref_mix_rows(const weft_mix_args *args, uint32_t first, uint32_t end);
void ref_spread_rows(const weft_spread_args *args, uint32_t first, uint32_t end);
void ref_engram_add_rows(const weft_engram_add_args *args, uint32_t first, uint32_t end);
void ref_latent_rows_range(const weft_latent_rows_args *args, uint32_t first, uint32_t end);
void ref_latent_press_store(const weft_latent_press_args *args, uint32_t first, uint32_t end);
void ref_latent_press_blocks(const weft_latent_press_args *args, uint32_t first, uint32_t end);
/* The score of an index row, which is `key`, for a row's queries. */
typedef float (*ref_latent_score)(const weft_latent_choose_args *args, const float *q, const float *weights,
                                  const float *key);
void ref_latent_choose_rows(const weft_latent_choose_args *args, ref_latent_score score, uint32_t first, uint32_t end);
/* The segment of a row; rotates the last numbers of n by a position, or back (way -1). */
const weft_latent_segment *ref_latent_segment(const weft_latent_segment *segment, uint32_t n, uint32_t row);
void ref_latent_rotate(const weft_latent_turn *turn, float *x, uint32_t n, uint32_t position, float way);
/* soft = scale * sum over v of exp(logit[v] / temperature - max) / total * row v of weight. Tokens that are not allowed
 * weigh nothing; allowed NULL: all are. Scratch: sum, n_in doubles; row, ref_soft_row_floats, which
 * are room enough for ref_logits_row, too. */
uint64_t ref_soft_row_floats(const weft_weight *weight);
void ref_soft_row(const weft_weight *weight, const float *logits, const uint32_t *allowed, float temperature,
                  float scale, double *sum, float *row, float *soft);
/* Logits of one row, capped; true when one of them was not finite before. rows: scratch of REF_SIDE times n_in floats. */
bool ref_logits_row(const weft_weight *weight, const float *h, float cap, float *rows, float *logits);
/* Its parts: products with rows [first, first + n) of weight, and their cap. */
void ref_head_products(const weft_weight *weight, uint32_t first, uint32_t n, const float *h, float *rows, float *y);
bool ref_cap_row(float *logits, uint32_t n, float cap);

static inline bool ref_is_allowed(const uint32_t *allowed, uint32_t token) {
  return allowed == NULL || ((allowed[token / 32] >> (token % 32)) & 1u) != 0;
}

#endif
