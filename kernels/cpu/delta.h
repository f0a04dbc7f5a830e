/* SPDX-License-Identifier: MIT */
/* delta_rows and delta_rule on the cpu.
 *
 * A row of delta_rows is a task of its own; of delta_rule a task is a value head of a segment, whose rows go one after
 * another, since each reads the u of those before it.
 *
 * Law (numerics). A product of two heads is summed in lanes, ascending, and the lanes meet in the tree of vf_sum. An
 * element of a result adds keys of the state, ascending, times e^G, then positions since the border, ascending. An
 * element of a state adds positions, ascending, to what it was times e^G. So a row's bits follow from the state at the
 * border and the stored rows alone. */
#ifndef WEFT_KERNELS_CPU_DELTA_H
#define WEFT_KERNELS_CPU_DELTA_H

#include "kernels/cpu/cpu.h"

/* The positions of a block so far, as one value head sees them. */
typedef struct cpu_delta_block {
  uint32_t dim;
  float *state;                       /* [dim][dim] at the border */
  float *key, *u;                     /* [positions][dim] */
  float total[WEFT_DELTA_EVERY_MAX];  /* G of each */
  float weight[WEFT_DELTA_EVERY_MAX]; /* scratch */
} cpu_delta_block;

/* What each instruction set implements (delta_impl.h). */
typedef struct cpu_delta_code {
  /* y[c] = silu(sum over j of conv[c][j] * input[j][c]), n channels */
  void (*convolve)(const float *conv, const float *const input[WEFT_DELTA_TAPS], uint32_t n, float *y);
  /* y = x / sqrt(sum(x^2) + 1e-6) * factor */
  void (*length)(const float *x, uint32_t n, float factor, float *y);
  /* out = e^(G_t) S^T x + the sum over positions i < n of e^(G_t - G_i) (k_i . x) u_i */
  void (*read)(cpu_delta_block *block, uint32_t t, uint32_t n, const float *x, float *out);
  /* S of the next border, `every` positions on. */
  void (*cross)(cpu_delta_block *block, uint32_t every);
} cpu_delta_code;

extern const cpu_delta_code cpu_delta_portable;
extern const cpu_delta_code cpu_delta_avx2;
extern const cpu_delta_code cpu_delta_avx512;

#endif
