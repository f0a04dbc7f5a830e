/* SPDX-License-Identifier: MIT */
/* The preparation of rows for a product: rounded to 16 bits and laid out for the matrix units, as multiply.h says. The
 * same arguments describe the preparation in 8 bits (eight_prepare of eight.h).
 *
 * Law: what a row becomes depends on that row alone. */
#ifndef WEFT_KERNELS_CUDA_PREPARE_H
#define WEFT_KERNELS_CUDA_PREPARE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/form.cuh"

typedef struct prepare_args {
  int type; /* of the weights that will read the rows */
  const float *x;
  uint64_t x_stride;
  uint32_t n_rows, n_in, n_units, is_tail;
  bool gated; /* an element is act(x[i]) * x[i + up_at] */
  int64_t up_at;
  weft_activation activation;
  bool as_matrices; /* the layout "matrices" of multiply.h, of n_tiles tiles of 8 rows */
  uint32_t n_tiles;
  bool wide; /* several numbers may be read at once; set by prepare_rows and eight_prepare */
  /* Row r goes to places at[r k] .. at[r k + k - 1], of which a negative one means nowhere; with at NULL it goes to
   * place r. from_place: k is 1, and the row of x is that at the place too. */
  const int32_t *at;
  uint32_t k;
  bool from_place;
  uint8_t *out;
  float *back; /* [places] the powers of two that undo the preparation; eight_prepare writes none */
} prepare_args;

/* Whether pairs of numbers may be read at once: they are aligned, and the last unit is full. */
static inline bool prepare_is_wide(const prepare_args *a) {
  return ((uintptr_t)a->x & 7u) == 0 && a->x_stride % 2 == 0 && a->up_at % 2 == 0 &&
         (a->n_in % 128 == 0 || (a->n_in % 128 == 64 && a->is_tail != 0));
}

weft_status prepare_rows(cuda_device *d, const prepare_args *args);

#endif
