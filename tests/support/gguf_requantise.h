/* SPDX-License-Identifier: MIT */
/* A model file again with its matrices stored in other types, for tests.
 *
 * Law: keys are copied byte for byte. A matrix takes the wanted type when its rows are whole
 * blocks, else Q8_0, else it stays F32; vectors, routers and scalars stay F32, as in real files. */
#ifndef WEFT_TESTS_GGUF_REQUANTISE_H
#define WEFT_TESTS_GGUF_REQUANTISE_H

#include <stdio.h>
#include <stdlib.h>

#include "model/gguf/gguf_internal.h"
#include "tests/support/gguf_writer.h"

static inline const uint8_t *requantise_key_end(const gguf_key *key) {
  if (key->kind == WEFT_GGUF_STRING) return key->value + key->count;
  if (key->kind != WEFT_GGUF_ARRAY) return key->value + gguf_kind_bytes(key->kind);
  if (key->element != WEFT_GGUF_STRING) {
    return key->value + key->count * gguf_kind_bytes(key->element);
  }
  if (key->count == 0) return key->value;
  uint64_t n;
  const uint8_t *last = key->value + key->offsets[key->count - 1];
  memcpy(&n, last, sizeof n);
  return last + 8 + n;
}

/* The type that a tensor gets. */
static inline weft_type requantise_type(const weft_gguf_tensor *tensor, weft_type wanted) {
  bool is_vector = tensor->n_dims < 2 || strstr(tensor->name, ".bias") != NULL; /* or one for each expert */
  if (is_vector || strstr(tensor->name, "ffn_gate_inp") != NULL) return WEFT_TYPE_F32;
  if (weft_type_row_bytes(wanted, tensor->ne[0]) > 0) return wanted;
  return tensor->ne[0] % 32 == 0 ? WEFT_TYPE_Q8_0 : WEFT_TYPE_F32;
}

/* The values of a tensor, whatever it is stored as; the caller frees. */
static inline float *requantise_values(const weft_gguf_tensor *tensor, uint64_t *n) {
  const weft_type_info *info = weft_type_find((int32_t)tensor->type);
  *n = tensor->n_bytes / info->n_bytes * info->n_elements;
  float *values = malloc(*n * sizeof *values);
  if (values != NULL) weft_dequantise_row(tensor->type, tensor->data, values, *n);
  return values;
}

static inline void requantise_keys(const weft_gguf *from, gguf_writer *w) {
  for (uint32_t i = 0; i < from->parts[0].n_keys; i++) {
    const gguf_key *key = &from->parts[0].keys[i];
    const char *start = key->name.data - 8;
    gguf_writer_bytes(&w->keys, start, (size_t)((const char *)requantise_key_end(key) - start));
    w->n_keys += 1;
  }
}

/* Fills w; the file is gguf_writer_finish(w). */
static inline void requantise(const weft_gguf *from, weft_type wanted, gguf_writer *w) {
  requantise_keys(from, w);
  for (uint32_t i = 0; i < from->n_tensors; i++) {
    const weft_gguf_tensor *tensor = &from->tensors[i];
    uint64_t n;
    if (tensor->type == WEFT_TYPE_NONE) { /* a table of integers */
      gguf_writer_tensor(w, tensor->name, (int32_t)tensor->type_id, tensor->n_dims, tensor->ne, tensor->data,
                         (size_t)tensor->n_bytes);
      continue;
    }
    float *values = requantise_values(tensor, &n);
    weft_type type = requantise_type(tensor, wanted);
    size_t n_bytes = weft_type_row_bytes(type, n);
    void *stored = malloc(n_bytes);
    if (stored == NULL || values == NULL || weft_quantise_row(type, values, stored, n) != WEFT_OK) {
      (void)printf("FAILED: cannot store '%s' as %s\n", tensor->name, weft_type_find((int32_t)type)->name);
      exit(1);
    }
    gguf_writer_tensor(w, tensor->name, (int32_t)type, tensor->n_dims, tensor->ne, stored, n_bytes);
    free(stored);
    free(values);
  }
}

/* The same for a file with the values of the tensors that are stored in one type in F32; all else byte for byte. How many
 * they are. */
static inline uint32_t requantise_to_values(const weft_gguf *from, weft_type stored, gguf_writer *w) {
  uint32_t n_widened = 0;
  requantise_keys(from, w);
  for (uint32_t i = 0; i < from->n_tensors; i++) {
    const weft_gguf_tensor *tensor = &from->tensors[i];
    if (tensor->type != stored) {
      gguf_writer_tensor(w, tensor->name, (int32_t)tensor->type_id, tensor->n_dims, tensor->ne, tensor->data,
                         (size_t)tensor->n_bytes);
      continue;
    }
    uint64_t n;
    float *values = requantise_values(tensor, &n);
    if (values == NULL) {
      (void)printf("FAILED: no memory for '%s'\n", tensor->name);
      exit(1);
    }
    gguf_writer_tensor(w, tensor->name, WEFT_TYPE_F32, tensor->n_dims, tensor->ne, values, (size_t)n * sizeof *values);
    free(values);
    n_widened += 1;
  }
  return n_widened;
}

#endif
