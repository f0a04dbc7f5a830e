/* SPDX-License-Identifier: MIT */
/* The prologue of a GEMM as a kernel of its own: activations are converted from f32 to 16 bits, scaled, and laid out
 * for the tensor cores as gemm.h says. The same arguments describe quantisation to 8 bits (w8a8_prologue of w8a8.h).
 *
 * Law: what a row becomes depends on that row alone. */
#ifndef WEFT_KERNELS_CUDA_PROLOGUE_H
#define WEFT_KERNELS_CUDA_PROLOGUE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/weights/packed_layout.cuh"

typedef struct prologue_args {
  int type; /* of the weights that will read the rows */
  const float *x;
  uint64_t x_stride;
  uint32_t n_rows, n_in, n_units, is_tail;
  bool gated; /* an element is act(x[i]) * x[i + up_at] */
  int64_t up_at;
  weft_activation activation;
  float limit;   /* of the gate; 0: none */
  bool is_tiled; /* the tiled layout of gemm.h, of n_tiles tiles of 8 rows */
  uint32_t n_tiles;
  bool wide; /* several numbers may be read at once; set by prologue_rows and w8a8_prologue */
  /* Permutation of rows (moe/experts.cu): row r goes to places at[r k] .. at[r k + k - 1], of which a negative one
   * means nowhere; with at NULL it goes to place r. from_place: k is 1, and the row of x is that at the place too. */
  const int32_t *at;
  uint32_t k;
  bool from_place;
  uint8_t *out;
  float *unscale; /* [places] the inverses of the scaling; w8a8_prologue writes none */
} prologue_args;

/* Whether pairs of numbers may be read at once: they are aligned, and the last unit is full. */
static inline bool prologue_is_wide(const prologue_args *a) {
  return ((uintptr_t)a->x & 7u) == 0 && a->x_stride % 2 == 0 && a->up_at % 2 == 0 &&
         (a->n_in % 128 == 0 || (a->n_in % 128 == 64 && a->is_tail != 0));
}

weft_status prologue_rows(cuda_device *d, const prologue_args *args);

#endif
