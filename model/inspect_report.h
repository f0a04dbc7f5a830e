/* SPDX-License-Identifier: MIT */
/* What is known of a GGUF file without reading its weights: private to model/inspect*.c.
 *
 * Law: every field is filled whatever the file is; a part that cannot be known has a status other than OK, and a line
 * that says why. serves is the status that opening the file for a server would give, found by the same functions. */
#ifndef WEFT_MODEL_INSPECT_REPORT_H
#define WEFT_MODEL_INSPECT_REPORT_H

#include "model/gguf/gguf_internal.h"
#include "model/model_internal.h"

typedef struct inspect_type {
  uint32_t id;   /* as in the file */
  bool computed; /* weft computes with tensors of this type */
  uint64_t n_tensors, n_bytes;
} inspect_type;

/* Layers whose keys and values have one shape and are kept for the same window. */
typedef struct inspect_layers {
  uint32_t n_layers, window;
  bool from_border; /* the window is what lies behind the last multiple of it: at such a place nothing */
  weft_kv_rows rows;
} inspect_layers;

typedef struct inspect_report {
  const weft_gguf *gguf;
  char name[128]; /* of the model */
  uint64_t fingerprint_low, fingerprint_high;
  uint64_t n_elements, n_tensor_bytes;
  uint64_t n_left_out, left_out_bytes; /* tensors of layers that are not computed, which guess tokens ahead */
  inspect_type *types;                 /* [n_types], by id */
  uint32_t n_types;
  weft_status keys; /* OK: hyper, geometry, layout and layers are known */
  weft_error keys_line;
  model_hyper hyper;
  weft_kv_geometry geometry;
  weft_kv_layout layout;
  inspect_layers layers[WEFT_LAYERS_MAX];
  uint32_t n_layers;
  weft_status serves; /* whether weft serves the file; else refusal says why not */
  weft_error refusal;
  const char *family; /* the family of the chat template; NULL: there is no template */
  weft_status chat;   /* whether the template can be rendered; known only where the vocabulary opens */
  weft_error chat_line;
} inspect_report;

/* Errors: NO_MEMORY. */
weft_status inspect_report_open(const weft_gguf *gguf, inspect_report **out, weft_error *error);
void inspect_report_close(inspect_report *report); /* NULL is fine */

/* Bytes of the keys and values that these layers keep of a sequence of n_tokens: with a window, only what is in it, and
 * where that begins at borders, the most that it comes to hold. */
uint64_t inspect_layers_bytes(const inspect_report *report, const inspect_layers *layers, uint64_t n_tokens);
/* The same for all layers, and a state where the model has states. */
uint64_t inspect_sequence_bytes(const inspect_report *report, uint64_t n_tokens);
/* Of these, what a sequence at a border does not keep. */
uint64_t inspect_border_bytes(const inspect_report *report);
/* Bytes of the tensors that are loaded. */
uint64_t inspect_weight_bytes(const inspect_report *report);
/* The i-th length for which the report shows memory: 1024, 4096, 8192 and so on, doubling below the model's context,
 * then the context itself. 0: no more. */
uint64_t inspect_length(const inspect_report *report, uint32_t i);
/* Writes the name of a type, or "type N" of one without a name, and returns out. */
enum { INSPECT_TYPE_NAME = 24 };
const char *inspect_type_name(uint32_t id, char out[INSPECT_TYPE_NAME]);

#endif
