/* SPDX-License-Identifier: MIT */
/* The small ops of a row (norm, rotation, gate) for each instruction set, and how rows are dealt to the thread pool.
 *
 * Law: rows_impl.h is compiled once per instruction set into one table of these functions. Each function works on one
 * row (or one head of a row) alone, so a row's result cannot depend on its neighbours. */
#ifndef WEFT_KERNELS_CPU_ROWS_H
#define WEFT_KERNELS_CPU_ROWS_H

#include "kernels/cpu/cpu.h"

typedef struct cpu_norm_row {
  const float *x, *x2, *weight, *add; /* x2, weight, add may be NULL */
  float *y;
  float row_scale, eps;
  bool plain; /* x + x2 is not normed */
  uint32_t n;
} cpu_norm_row;

typedef struct cpu_rows {
  void (*norm)(const cpu_norm_row *row);
  void (*gate)(weft_activation activation, const float *g, const float *u, float *y, uint32_t n);
  void (*gate_by_one)(float g, const float *u, float *y, uint32_t n); /* WEFT_SIGMOID */
  void (*scale)(float *y, float factor, uint32_t n);
  /* cosf and sinf of (float)position * inv_freq[i] */
  void (*angles)(const float *inv_freq, int32_t position, uint32_t n, float *cosine, float *sine);
  /* y = rotate(norm ? rms(x) * weight : x); weight may be NULL. y may equal x. */
  void (*head)(const float *x, bool norm, const float *weight, float eps, uint32_t dim, float *y);
  void (*rotate)(const float *cosine, const float *sine, uint32_t dim, float *y);
  void (*to_bf16)(const float *x, uint16_t *y, uint32_t n);
  /* as weft_kv_row_store of Q8_0 */
  void (*to_q8)(const float *x, uint8_t *y, uint32_t n);
} cpu_rows;

/* y = silu(g) * u, with g held to at most the limit and u to [-limit, limit]; y may equal g or u. */
void cpu_gate_limited(float limit, const float *g, const float *u, float *y, uint32_t n);

extern const cpu_rows cpu_rows_portable;
extern const cpu_rows cpu_rows_avx2;
extern const cpu_rows cpu_rows_avx512;
const cpu_rows *cpu_rows_of(const weft_device *device);

/* Calls fn(arg, first, end) for parts of [0, n_rows) that cover it: on the thread pool when the work is worth waking
 * it, else once, in the caller. row_cost: about the nanoseconds that a row takes. */
typedef void (*cpu_rows_fn)(void *arg, uint32_t first, uint32_t end);
void cpu_for_rows(weft_device *device, uint32_t n_rows, uint64_t row_cost, cpu_rows_fn fn, void *arg);

#endif
