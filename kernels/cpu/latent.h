/* SPDX-License-Identifier: MIT */
/* latent_attend, latent_choose and latent_heads on the cpu: what each instruction set implements of them
 * (latent_impl.h).
 *
 * Law (numerics). A product is summed in four vectors of lanes, ascending, which are added by pairs, and the lanes meet
 * in the tree of vf_sum. What a row sees comes in blocks of CPU_LATENT_ROWS rows of the list that kernels/latent.h
 * gives, ascending: shares of a block are relative to the largest score up to its end, and out adds its rows
 * ascending. So a row's bits follow from the list alone. A score of an index row adds heads ascending, in f32. */
#ifndef WEFT_KERNELS_CPU_LATENT_H
#define WEFT_KERNELS_CPU_LATENT_H

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

enum {
  CPU_LATENT_ROWS = 16,
  CPU_LATENT_HEADS = 8 /* for which stored rows are read at once */
};

typedef struct cpu_latent_code {
  /* Heads [head, head + CPU_LATENT_HEADS), as far as there are any, of a row. */
  void (*attend)(const weft_latent_attend_args *args, uint32_t row, uint32_t head);
  ref_latent_score score;
  void (*multiply)(const weft_latent_heads_args *args, uint32_t row, uint32_t head); /* of latent_heads */
} cpu_latent_code;

extern const cpu_latent_code cpu_latent_portable;
extern const cpu_latent_code cpu_latent_avx2;
extern const cpu_latent_code cpu_latent_avx512;

#endif
