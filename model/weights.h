/* SPDX-License-Identifier: MIT */
/* Tensors of a file -> fields of a struct, by a table of rows.
 *
 * Law: a row names the tensor, its shape as a formula over the sizes of the model, and where it goes. A shape that
 * differs is refused with the name, what was expected and what was found. A tensor is placed once. A loader walks the
 * tables twice: first judging, so that a file that cannot be used is refused before any of its weights is read, then
 * placing. What is placed is read with read(2), one tensor at a time, so a file that is cut while it is read is an
 * error, and what loading takes beside the weights is the largest tensor. A tensor of a layer, or a scale of another
 * tensor, that no row asked for is refused, since the answers would be wrong without it; what else the file has is
 * counted and told. */
#ifndef WEFT_MODEL_WEIGHTS_H
#define WEFT_MODEL_WEIGHTS_H

#include <stddef.h>

#include "model/gguf_reader.h"
#include "model/model_internal.h"

typedef enum tensor_dim {
  DIM_NONE = 0, /* the tensor has no such dimension */
  DIM_ONE,
  DIM_HIDDEN,
  DIM_VOCAB,
  DIM_Q,    /* heads * head_dim of the layer */
  DIM_KV,   /* kv heads * head_dim of the layer */
  DIM_HEAD, /* head_dim of the layer */
  DIM_FF,   /* of the layer; of layer 0 for tensors outside of layers */
  DIM_EXPERTS,
  DIM_EXPERT_FF,
  DIM_EXPERT_FF_TWICE,
  DIM_PER_LAYER,    /* n_per_layer */
  DIM_PER_LAYER_ALL /* n_per_layer of all layers */
} tensor_dim;

typedef enum tensor_kind {
  TENSOR_MATRIX = 1, /* field: weft_weight */
  TENSOR_VECTOR = 2, /* field: const float * on the device */
  TENSOR_SCALAR = 3, /* field: float */
  /* As MATRIX and VECTOR, of heads that rotate: with hyper.rope_paired, rows 2 i and 2 i + 1 of a head go to i and
   * head_dim / 2 + i. */
  TENSOR_HEADS_MATRIX = 4,
  TENSOR_HEADS_VECTOR = 5,
  /* "X.scale" of a matrix "X.weight", one factor or one per expert: becomes the scale of the weft_weight at field, which
   * was loaded before. Read where the file has the matrix; a file without it means ones. */
  TENSOR_SCALE = 6,
  /* "X.input_scale": what rows would be divided by before they are made numbers of four bits. Rows are not made such
   * here, and the factor cancels: its shape is judged, and it is not placed. */
  TENSOR_INPUT_SCALE = 7
} tensor_kind;

typedef enum tensor_need {
  NEED_ALWAYS = 1,
  NEED_NEVER = 2,     /* optional */
  NEED_MOE = 3,       /* required where the layer routes, else not read */
  NEED_MOE_NEVER = 4, /* optional where the layer routes, else not read */
  NEED_DENSE = 5,     /* required where the layer does not route, else not read */
  NEED_KEYS = 6,      /* required where the layer has keys of its own, else not placed */
  NEED_VALUES = 7     /* as KEYS on layers with a window, else optional */
} tensor_need;

typedef struct tensor_row {
  const char *name;  /* "blk.%u.attn_q.weight": %u is the layer */
  const char *alias; /* another name for the same tensor, or NULL */
  tensor_kind kind;
  tensor_need need;
  tensor_dim dim[3]; /* ne[0], ne[1], ne[2] */
  unsigned uses;     /* of a matrix: weft_weight_use */
  size_t field;      /* offset in the struct */
} tensor_row;

/* One row of a table: type is the struct that `field` belongs to. */
#define TENSOR_ROW(type, name, alias, kind, need, field, uses, ...) \
  { name, alias, TENSOR_##kind, NEED_##need, {__VA_ARGS__}, uses, offsetof(type, field) }

typedef struct weights_loader {
  const weft_gguf *gguf;
  gguf_reader *reader; /* NULL: through the mapping */
  weft_model *model;
  bool judging;    /* names, shapes and types are checked and nothing is placed; the device may be NULL */
  uint8_t *buffer; /* of the tensor at hand, where a device does not read files itself; freed by weights_close */
  uint64_t n_buffer;
  uint64_t n_bytes_held; /* of the matrices that were judged, as devices hold them */
  uint8_t *used;         /* per tensor of the file */
  uint64_t n_bytes_done, n_bytes_all;
  weft_model_progress progress;
  void *progress_self;
  weft_error *error;
} weights_loader;

/* Loads the rows of one layer (or of none: layer == UINT32_MAX) into the struct at `into`. */
weft_status weights_load(weights_loader *loader, const tensor_row *rows, uint32_t n_rows, uint32_t layer, void *into);
/* The same of a whole table. */
#define WEIGHTS_LOAD(loader, rows, layer, into) weights_load(loader, rows, sizeof(rows) / sizeof *(rows), layer, into)
/* Loads the rows of the experts of every layer, and those of the scales beside them. FORMAT unless a layer with experts has
 * exactly one of the two forms of their input side: gate and up as one tensor, or as two. */
weft_status weights_load_experts(weights_loader *loader, const tensor_row *rows, uint32_t n_rows,
                                 const tensor_row *scale_rows, uint32_t n_scale_rows);
/* n floats to device memory that the model owns. */
weft_status weights_vector(weights_loader *loader, const float *values, uint64_t n, const float **out);
/* The n floats of a vector that is needed, times a factor, to device memory. */
weft_status weights_folded(weights_loader *loader, const char *name, uint32_t n, float factor, const float **out);
/* The norm before the head, folded with the head's scale: products of the head are capped as they are made. */
weft_status weights_output_norm(weights_loader *loader);
/* The n floats of a tensor, on the host; NOT_FOUND when absent. */
weft_status weights_read(weights_loader *loader, const char *name, uint64_t n, float *out);
/* NO_MEMORY when the host's memory cannot hold what was judged. */
weft_status weights_check_room(const weights_loader *loader);
/* From judging to placing: forgets what was used. */
void weights_rewind(weights_loader *loader);
void weights_close(weights_loader *loader);
/* UNSUPPORTED when a tensor that was not used belongs to a layer or scales another; one warning about the others. */
weft_status weights_check_unused(const weights_loader *loader);

#endif
