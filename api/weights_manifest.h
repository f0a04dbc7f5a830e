/* SPDX-License-Identifier: MIT */
/* The manifest of weights that a process owns for others: which models, where each of their matrices lies, and by what
 * rules of computing it was laid out.
 *
 * Law: the file SOCKET.json beside the owner's socket holds one JSON object, written whole and then renamed into its
 * place, so that a reader sees an old one or a new one and never a part. It is read from the owner's word alone: the
 * hash of its bytes is what the owner says over its socket, or it is stale. Nothing in it is trusted further than its
 * owner: every member is there, has its type and its range and no other stands beside it; each matrix lies inside its
 * piece, which is memory of its device, no two of them share a byte, no name comes twice on a device of a model and no
 * file twice in the list; the first layers of a model's parts grow. Numbers of types,
 * uses and layouts are those of this version of the form, WEIGHTS_MANIFEST_FORM; another one is refused by its number.
 * */
#ifndef WEFT_API_WEIGHTS_MANIFEST_H
#define WEFT_API_WEIGHTS_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "model/shelf.h"

enum { WEIGHTS_MANIFEST_FORM = 3, WEIGHTS_PIECES_MAX = 1 << 16, WEIGHTS_MANIFEST_BYTES = 64 << 20 };
enum { WEIGHTS_WORD = 128 };

/* How products with a type of weights are computed (weft_kernels.numerics). */
typedef struct weights_numerics {
  weft_type type;
  char tag[WEIGHTS_WORD];
} weights_numerics;

typedef struct weights_model {
  char *file; /* from the root, as it was opened; only for people: the fingerprint is the identity */
  uint64_t fingerprint_low, fingerprint_high;
  bool drafts;                            /* opened for --draft model:FILE */
  uint32_t first_layer[WEFT_DEVICES_MAX]; /* [parts] as in weft_split; the number of parts is devices over shards */
  weft_shelf_weight *weight;              /* [n_weights] by name, uses, place; pieces count over all devices */
  uint32_t n_weights, weights_max;
} weights_model;

enum { WEIGHTS_NUMERICS_MAX = 64, WEIGHTS_MODELS_MAX = 16 };

typedef struct weights_manifest {
  uint32_t pid; /* the owner */
  char version[32], backend[16], set[32], transport[16], scope[16];
  char card[WEFT_DEVICES_MAX][40]; /* [n_devices] */
  uint32_t n_devices, n_shards;    /* n_shards: devices that compute each layer together, as weft_split_shards */
  char *socket;                    /* from the root */
  uint32_t products;
  bool integers;
  weights_numerics numerics[WEIGHTS_NUMERICS_MAX]; /* [n_numerics] of the types that the models have */
  uint32_t n_numerics;
  uint64_t *piece; /* [n_pieces] bytes of each, device by device */
  uint32_t n_pieces;
  uint32_t first_piece[WEFT_DEVICES_MAX + 1]; /* [n_devices + 1] of each device; the last is n_pieces */
  weights_model model[WEIGHTS_MODELS_MAX];    /* [n_models] */
  uint32_t n_models;
} weights_manifest;

/* The 128 bits that owner and worker compare. */
typedef struct weights_digest {
  uint64_t low, high;
} weights_digest;
weights_digest weights_manifest_digest(const char *bytes, size_t n);

/* Adds a matrix to a model. NO_MEMORY. */
weft_status weights_model_add(weights_model *model, const weft_shelf_weight *weight);
/* NULL: the model has none. After weights_manifest_check. */
const weft_shelf_weight *weights_model_find(const weights_model *model, const char *name, uint32_t uses,
                                            uint32_t place);
/* The device of a piece. */
uint32_t weights_piece_place(const weights_manifest *manifest, uint32_t piece);
/* NULL: there is none of this file. */
const weights_model *weights_manifest_find(const weights_manifest *manifest, uint64_t low, uint64_t high);
uint64_t weights_model_bytes(const weights_model *model);

/* Sorts the weights of each model, and judges what the law says of ranges and names: FORMAT, with a line that names
 * what is wrong; NO_MEMORY. */
weft_status weights_manifest_check(weights_manifest *manifest, weft_error *error);
void weights_manifest_write(const weights_manifest *manifest, weft_text *out);
/* Reads and checks. The caller frees *out, after a failure too. Errors: FORMAT, NO_MEMORY. */
weft_status weights_manifest_read(const char *bytes, size_t n, weights_manifest *out, weft_error *error);
void weights_manifest_free(weights_manifest *manifest);

/* SOCKET.json. NULL: no memory; the caller frees. */
char *weights_manifest_path(const char *socket);
/* Writes the bytes beside the path and renames them into its place, for the owner's eyes alone. IO, NO_MEMORY. */
weft_status weights_manifest_save(const char *path, const weft_text *text, weft_error *error);
/* The whole file. Refused by a line: one that is not there (NOT_FOUND), that belongs to another user or can be written
 * by one (UNSUPPORTED), that is too large or no file (FORMAT). The caller frees *out. */
weft_status weights_manifest_load(const char *path, weft_text *out, weft_error *error);

#endif
