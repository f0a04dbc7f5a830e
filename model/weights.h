/* SPDX-License-Identifier: MIT */
/* Loads the tensors of a file into the fields of a struct, as a table of rows says.
 *
 * Law: a row names the tensor, its shape as a formula over the sizes of the model, and where it goes. A shape that
 * differs is refused with the name, what was expected and what was found. A tensor is placed once, but for what
 * several devices need. A loader walks the
 * tables twice: first it judges, so that a file that cannot be used is refused before any of its weights is read, then
 * it places. Weights are read with read(2), not through the mapping, one tensor at a time, so a file that becomes
 * shorter while it is read is an error and not a signal, and loading needs no more memory beside the weights than the
 * largest tensor has. A tensor of a layer, of what stands before or behind the layers, of rotations, or a scale of
 * another tensor, that no row asked for is refused, since the answers would be wrong without it (--unused-tensors opens
 * the file all the same); a warning says how many other tensors were not used. */
#ifndef WEFT_MODEL_WEIGHTS_H
#define WEFT_MODEL_WEIGHTS_H

#include <stddef.h>

#include "model/gguf/gguf_reader.h"
#include "model/model_internal.h"

typedef enum tensor_dim {
  DIM_NONE = 0, /* the tensor has no such dimension */
  DIM_ONE,
  DIM_HIDDEN,
  DIM_VOCAB,
  DIM_Q, /* heads * head_dim of the layer */
  DIM_HEADS,
  DIM_KV,   /* kv heads * head_dim of the layer */
  DIM_HEAD, /* head_dim of the layer */
  DIM_DOWN, /* hidden numbers that the feed-forward part of the layer makes */
  DIM_FF,   /* feed-forward width of the layer; of layer 0 for tensors outside of layers */
  DIM_EXPERTS,
  DIM_EXPERT_FF,
  DIM_EXPERT_FF_TWICE,
  DIM_Q_TWICE,
  DIM_DELTA_CHANNELS, /* of the convolution before the delta rule */
  DIM_DELTA_VALUES,   /* value heads of the delta rule * their size */
  DIM_DELTA_HEADS,    /* value heads of the delta rule */
  DIM_DELTA_HEAD,     /* their size */
  DIM_DELTA_TAPS,
  DIM_TARGET,       /* n_target */
  DIM_TARGET_TWICE, /* 2 * n_target */
  /* of latent rows, and the stream of several parts */
  DIM_STREAM,        /* all parts of the stream */
  DIM_PARTS,         /* how many there are */
  DIM_MIXES,         /* what gives, takes and turns them */
  DIM_MIX_SCALES,    /* one for each of these */
  DIM_Q_RANK,        /* numbers that queries are made of */
  DIM_GROUP_HEADS,   /* heads of a group * head_dim */
  DIM_GROUPS_RANK,   /* groups * what each makes of its heads */
  DIM_RATIO,         /* positions of a far row of the layer */
  DIM_PENDING,       /* numbers of a position that far rows are made of */
  DIM_PENDING_INDEX, /* that index rows are made of */
  DIM_INDEX,         /* of an index row */
  DIM_INDEX_HEADS,   /* heads that score index rows */
  DIM_INDEX_Q,       /* these heads * the numbers of an index row */
  DIM_EXPERTS_USED,
  DIM_ENGRAM,      /* numbers of a row of a table that is read by tokens */
  DIM_ENGRAM_ROWS, /* of the layer's table */
  DIM_ENGRAM_READ, /* numbers of all rows that are read at once */
  DIM_ENGRAM_KEYS, /* what they become: a key for each part of the stream, and a value */
  /* of one vector for each position that keys and values are made of */
  DIM_MLA_RANK,
  DIM_MLA_QUERY, /* heads * numbers of a query */
  DIM_MLA_STILL,
  DIM_MLA_VALUE,
  DIM_MLA_VALUES,   /* heads * numbers of a value */
  DIM_DRAFT_GROUPS, /* of the tokens that a drafter's head reads */
  DIM_DRAFT_RANK,
  DIM_PER_LAYER,    /* n_per_layer */
  DIM_PER_LAYER_ALL /* n_per_layer of all layers */
} tensor_dim;

typedef enum tensor_kind {
  TENSOR_MATRIX = 1, /* field: weft_weight */
  TENSOR_VECTOR = 2, /* field: const float * on the device; with DIM_EXPERTS second, one vector per expert */
  TENSOR_SCALAR = 3, /* field: float */
  /* As MATRIX and VECTOR, for heads that rotate: with hyper.rope_paired, rows 2 i and 2 i + 1 of a head are moved to
   * rows i and head_dim / 2 + i; with hyper.n_rotated, rows i and n_rotated / 2 + i are, and the others fill what is
   * left. */
  TENSOR_HEADS_MATRIX = 4,
  TENSOR_HEADS_VECTOR = 5,
  /* The two halves of a matrix that has, for every head, rows that rotate and then as many that do not. */
  TENSOR_FIRST_HALVES = 8,
  TENSOR_SECOND_HALVES = 9,
  /* "X.scale" of a matrix "X.weight", one factor or one per expert: becomes the scale of the weft_weight at field,
   * which was loaded before. Read only where the file has the matrix; without such a tensor the factors are 1. */
  TENSOR_SCALE = 6,
  /* "X.input_scale": the factor by which activations would be divided before they are rounded to four bits. No backend
   * rounds activations to four bits, and without the rounding the factor cancels; so its shape is judged, and it is not
   * placed. */
  TENSOR_INPUT_SCALE = 7,
  /* The rows of a matrix, a part for each group of heads. Field: weft_weight [MODEL_LATENT_GROUPS_MAX]. */
  TENSOR_GROUPS = 10,
  TENSOR_EXPERT_IDS = 11, /* type I32, each below the number of experts. Field: const int32_t * on the device */
  TENSOR_TOKENS = 12      /* the same, each below the number of tokens */
} tensor_kind;

typedef enum tensor_need {
  NEED_ALWAYS = 1,
  NEED_NEVER = 2,      /* optional */
  NEED_MOE = 3,        /* required where the layer routes, else not read */
  NEED_MOE_NEVER = 4,  /* optional where the layer routes, else not read */
  NEED_DENSE = 5,      /* required where the layer does not route, else not read */
  NEED_KEYS = 6,       /* required where the layer has keys of its own, else not placed */
  NEED_VALUES = 7,     /* as NEED_KEYS on layers with a window, else optional */
  NEED_DELTA = 9,      /* required where the layer has the delta rule, else not read */
  NEED_ATTENTION = 10, /* required where it has attention, else not read */
  NEED_FAR = 11,       /* required where the layer has far rows, else not read */
  NEED_INDEX = 12,     /* required where it has index rows, else not read */
  NEED_HASHED = 13,    /* required where a table chooses its experts, else not read */
  NEED_CHOICE = 14,    /* required where scores choose them, else not read */
  NEED_SOURCE = 15,    /* required where the layer has far rows of its own, else not read */
  NEED_POOLED = 16,    /* and where these stand for several positions each */
  NEED_CHOOSES = 17,   /* required where it chooses far rows, else not read */
  NEED_ENGRAM = 18,    /* required where it reads a memory by tokens, else not read */
  NEED_TIED = 8        /* required where the last device needs its own copy of a tied token embedding, else not read */
} tensor_need;

typedef struct tensor_row {
  const char *name;  /* "blk.%u.attn_q.weight": %u is the layer */
  const char *alias; /* another name for the same tensor, or NULL */
  tensor_kind kind;
  tensor_need need;
  tensor_dim dim[3]; /* ne[0], ne[1], ne[2] */
  unsigned uses;     /* of a matrix: weft_weight_use */
  size_t field;      /* offset in the struct that is filled */
  bool at_end;       /* outside of layers: placed with the last part, not with the first one */
} tensor_row;

/* One row of a table: type is the struct that `field` belongs to. */
#define TENSOR_ROW(type, name, alias, kind, need, field, uses, ...) \
  { name, alias, TENSOR_##kind, NEED_##need, {__VA_ARGS__}, uses, offsetof(type, field), false }

/* The same for a tensor that the last part has. */
#define TENSOR_ROW_AT_END(type, name, kind, need, field, uses, ...) \
  { name, NULL, TENSOR_##kind, NEED_##need, {__VA_ARGS__}, uses, offsetof(type, field), true }

typedef struct weights_loader {
  const weft_gguf *gguf;
  gguf_reader *reader; /* NULL: weights are read through the mapping, of a model that was opened from memory */
  weft_model *model;
  model_part *part; /* where tensors are placed now */
  bool judging;     /* names, shapes and types are checked and nothing is placed; the device may be NULL */
  bool planning;    /* judging, and the bytes that would be placed are counted in the model's info */
  uint8_t *buffer;  /* the bytes of one tensor, where the device does not read files itself; freed by weights_close */
  uint64_t n_buffer;
  uint64_t n_bytes_held; /* bytes that the judged matrices will take on the device, and those of later shards */
  uint64_t needed[WEFT_DEVICES_MAX], left[WEFT_DEVICES_MAX]; /* of each device: what must find room, what is free */
  uint8_t *used;                                             /* per tensor of the file: a row asked for it */
  uint64_t n_bytes_done, n_bytes_all;
  weft_model_progress progress;
  void *progress_self;
  weft_error *error;
  uint64_t experts[WEFT_DEVICES_MAX]; /* of each device: bytes of experts, which may stay in host memory */
} weights_loader;

/* Places tensors on the device of a layer from now on; UINT32_MAX: on the first device. */
void weights_at_layer(weights_loader *loader, uint32_t layer);
/* Loads the rows of one layer (or of none: layer == UINT32_MAX) into the struct at `into`, each where it belongs. Placing
 * goes on at the layer. */
weft_status weights_load(weights_loader *loader, const tensor_row *rows, uint32_t n_rows, uint32_t layer, void *into);
/* The same for all rows of a table. */
#define WEIGHTS_LOAD(loader, rows, layer, into) weights_load(loader, rows, sizeof(rows) / sizeof *(rows), layer, into)
/* Loads the experts of every layer, and the scales beside them. FORMAT unless each layer with experts has gate and up
 * either as one tensor or as two. */
weft_status weights_load_experts(weights_loader *loader, const tensor_row *rows, uint32_t n_rows,
                                 const tensor_row *scale_rows, uint32_t n_scale_rows);
/* Copies n floats to memory of the device where tensors are placed now; the model owns it. */
weft_status weights_vector(weights_loader *loader, const float *values, uint64_t n, const float **out);
/* The same with the n floats of a required vector, times a factor. */
weft_status weights_folded(weights_loader *loader, const char *name, uint32_t n, float factor, const float **out);
/* Loads the norm before the head, with the head's scale multiplied into it, because the head's products are capped as
 * they are made and leave no place for a factor. */
weft_status weights_output_norm(weights_loader *loader);
/* Reads the n floats of a tensor into host memory; NOT_FOUND when the file has no such tensor. */
weft_status weights_read(weights_loader *loader, const char *name, uint64_t n, float *out);
/* The same of n_rows rows of n. */
weft_status weights_read_rows(weights_loader *loader, const char *name, uint64_t n, uint64_t n_rows, float *out);
/* NO_MEMORY when the device computes in host memory and what is available cannot hold the weights that were judged, and
 * beside them the largest tensor of the file. */
weft_status weights_check_room(const weights_loader *loader);
/* Goes from judging to placing: forgets which tensors were used. */
void weights_rewind(weights_loader *loader);
void weights_close(weights_loader *loader);
/* UNSUPPORTED when an unused tensor belongs to a layer or to what stands around the layers, or is the scale of another;
 * one warning counts the others. */
weft_status weights_check_unused(const weights_loader *loader);

#endif
