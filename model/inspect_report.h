/* SPDX-License-Identifier: MIT */
/* What is known of a GGUF file without reading its weights: private to model/inspect*.c.
 *
 * Law: every field is filled whatever the file is; what cannot be known has a status that is not OK and a line. serves
 * is what opening the file for a server would say, by the same functions. */
#ifndef WEFT_MODEL_INSPECT_REPORT_H
#define WEFT_MODEL_INSPECT_REPORT_H

#include "model/gguf_internal.h"
#include "model/model_internal.h"

typedef struct inspect_type {
  uint32_t id; /* as in the file */
  bool computed;
  uint64_t n_tensors, n_bytes;
} inspect_type;

/* Layers whose keys and values have one shape and are kept equally long. */
typedef struct inspect_layers {
  uint32_t n_layers, n_kv_heads, head_dim, window;
} inspect_layers;

typedef struct inspect_report {
  const weft_gguf *gguf;
  char name[128]; /* of the model */
  uint64_t fingerprint_low, fingerprint_high;
  uint64_t n_elements, n_tensor_bytes;
  inspect_type *types; /* [n_types], by id */
  uint32_t n_types;
  weft_status keys; /* whether hyper, geometry, layout and layers hold */
  weft_error keys_line;
  model_hyper hyper;
  weft_kv_geometry geometry;
  weft_kv_layout layout;
  inspect_layers layers[WEFT_LAYERS_MAX];
  uint32_t n_layers;
  weft_status serves;
  weft_error refusal;
  const char *family; /* of the chat template; NULL: there is no template */
  weft_status chat;   /* whether the template renders; only where the vocabulary opens */
  weft_error chat_line;
} inspect_report;

/* Errors: NO_MEMORY. */
weft_status inspect_report_open(const weft_gguf *gguf, inspect_report **out, weft_error *error);
void inspect_report_close(inspect_report *report); /* NULL is fine */

/* Bytes that n_tokens of one sequence take in these layers: a window keeps what is in it. */
uint64_t inspect_layers_bytes(const inspect_report *report, const inspect_layers *layers, uint64_t n_tokens);
/* The same in all layers. */
uint64_t inspect_sequence_bytes(const inspect_report *report, uint64_t n_tokens);
/* The lengths that are shown: 1024, 4096 and on in doubles below the model's context, then that. 0: no more. */
uint64_t inspect_length(const inspect_report *report, uint32_t i);
/* The name of a type, or "type N"; returns out. */
enum { INSPECT_TYPE_NAME = 24 };
const char *inspect_type_name(uint32_t id, char out[INSPECT_TYPE_NAME]);

#endif
