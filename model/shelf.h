/* SPDX-License-Identifier: MIT */
/* Weights of a model that lie in memory of several processes: where each matrix lies.
 *
 * Law: a shelf is one model's, so two files never share what is looked up. Matrices alone lie on it: vectors, biases
 * and scales, which are small, each process reads from the file for itself. A weight is known by the tensor's name, its
 * uses and the place of its device in the model's split. An owner's shelf is told of each matrix that was placed; a
 * worker's shelf is asked for each matrix and must have all of them, each of the very type, layout, shape and bytes
 * that the worker's device would have made of the file. */
#ifndef WEFT_MODEL_SHELF_H
#define WEFT_MODEL_SHELF_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_SHELF_NAME = 96 };

typedef struct weft_shelf_weight {
  char name[WEFT_SHELF_NAME]; /* of the tensor */
  uint32_t uses;              /* weft_weight_use */
  uint32_t place;             /* of its device (model/split.h) */
  weft_type type;             /* that devices hold */
  uint32_t layout, n_in, n_out, n_mats;
  uint32_t piece; /* kernels/share.h */
  uint64_t at, n_bytes;
} weft_shelf_weight;

/* One of the two functions is set. */
typedef struct weft_shelf {
  /* Owner: keeps a copy. Errors: NO_MEMORY. */
  weft_status (*put)(void *self, const weft_shelf_weight *weight);
  /* Worker: the weight and where it is mapped. Errors, each with a line: NOT_FOUND, and those of mapping a piece. */
  weft_status (*find)(void *self, const char *name, uint32_t uses, uint32_t place, const weft_shelf_weight **out,
                      const void **data, weft_error *error);
  void *self;
} weft_shelf;

#ifdef __cplusplus
}
#endif
#endif
