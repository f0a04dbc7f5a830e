/* SPDX-License-Identifier: MIT */
/* Tensors of a file -> fields of a struct, by a table of rows.
 *
 * Law: a row names the tensor, its shape as a formula over the sizes of the model, and where it
 * goes. A shape that differs is refused with the name, what was expected and what was found. A
 * tensor is placed once; what the file has and no row asked for is counted and told. */
#ifndef WEFT_MODEL_WEIGHTS_H
#define WEFT_MODEL_WEIGHTS_H

#include <stddef.h>

#include "model/gguf_reader.h"
#include "model/model_internal.h"

typedef enum weft_dim {
  WEFT_DIM_NONE = 0, /* the tensor has no such dimension */
  WEFT_DIM_ONE,
  WEFT_DIM_HIDDEN,
  WEFT_DIM_VOCAB,
  WEFT_DIM_Q,    /* heads * head_dim of the layer */
  WEFT_DIM_KV,   /* kv heads * head_dim of the layer */
  WEFT_DIM_HEAD, /* head_dim of the layer */
  WEFT_DIM_FF,   /* of the layer; of layer 0 for tensors outside of layers */
  WEFT_DIM_EXPERTS,
  WEFT_DIM_EXPERT_FF,
  WEFT_DIM_EXPERT_FF_TWICE
} weft_dim;

typedef enum weft_tensor_kind {
  WEFT_TENSOR_MATRIX = 1, /* field: weft_weight */
  WEFT_TENSOR_VECTOR = 2, /* field: const float * on the device */
  WEFT_TENSOR_SCALAR = 3  /* field: float */
} weft_tensor_kind;

typedef enum weft_need {
  WEFT_NEED_ALWAYS = 1,
  WEFT_NEED_NEVER = 2,     /* optional */
  WEFT_NEED_MOE = 3,       /* required where the layer routes, else not read */
  WEFT_NEED_MOE_NEVER = 4, /* optional where the layer routes, else not read */
  WEFT_NEED_WINDOW = 5     /* required on layers with a window, else optional */
} weft_need;

typedef struct weft_tensor_row {
  const char *name;  /* "blk.%u.attn_q.weight": %u is the layer */
  const char *alias; /* another name for the same tensor, or NULL */
  weft_tensor_kind kind;
  weft_need need;
  weft_dim dim[3]; /* ne[0], ne[1], ne[2] */
  unsigned uses;   /* of a matrix: weft_weight_use */
  size_t field;    /* offset in the struct */
} weft_tensor_row;

/* One row of a table: type is the struct that `field` belongs to. */
#define WEFT_TENSOR_ROW(type, name, alias, kind, need, field, uses, ...) \
  { name, alias, WEFT_TENSOR_##kind, WEFT_NEED_##need, {__VA_ARGS__}, uses, offsetof(type, field) }

typedef struct weft_loader {
  const weft_gguf *gguf;
  weft_gguf_reader *reader; /* NULL: through the mapping */
  weft_model *model;
  uint8_t *used; /* per tensor of the file */
  uint64_t n_bytes_done, n_bytes_all;
  weft_model_progress progress;
  void *progress_self;
  weft_error *error;
} weft_loader;

/* Loads the rows of one layer (or of none: layer == UINT32_MAX) into the struct at `into`. */
weft_status weft_weights_load(weft_loader *loader, const weft_tensor_row *rows, uint32_t n_rows, uint32_t layer,
                              void *into);
/* n floats to device memory that the model owns. */
weft_status weft_weights_vector(weft_loader *loader, const float *values, uint64_t n, const float **out);
/* The n floats of a tensor, on the host; NOT_FOUND when absent. */
weft_status weft_weights_read(weft_loader *loader, const char *name, uint64_t n, float *out);
/* One warning when tensors of the file were not used. */
void weft_weights_tell_unused(const weft_loader *loader);

#endif
