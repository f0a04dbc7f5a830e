/* SPDX-License-Identifier: MIT */
/* Finds weights of a file that no trained model has, as a broken download or conversion leaves them (weft check
 * numbers).
 *
 * Law: every element of every tensor of a type that weft computes is read once, a few MiB at a time. A tensor is broken
 * when an element (or the scale it is made with) is not finite, when a row of a matrix or a whole vector is zero, or
 * when a router has the same row for every expert. Rows of embeddings may be zero, since vocabularies have tokens that
 * no text has; if most of them are, the file was not written to its end. Biases may be zero. */
#ifndef WEFT_MODEL_GGUF_NUMBERS_H
#define WEFT_MODEL_GGUF_NUMBERS_H

#include "model/gguf/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_numbers_fault {
  WEFT_NUMBERS_NOT_FINITE = 0,
  WEFT_NUMBERS_ZERO = 1,
  WEFT_NUMBERS_CONSTANT_ROUTER = 2,
  WEFT_NUMBERS_FAULTS = 3
} weft_numbers_fault;

/* The rows of one tensor that have one fault. A vector is one row. */
typedef struct weft_numbers_finding {
  const char *tensor;
  weft_numbers_fault fault;
  uint64_t n_rows, n_rows_all;
  uint64_t matrix, row; /* where the first of them is; matrix: which one of a stack of experts, else 0 */
} weft_numbers_finding;

typedef struct weft_numbers_args {
  const weft_gguf *gguf;
  void (*take)(void *self, const weft_numbers_finding *finding);
  void (*progress)(void *self, uint64_t n_bytes, uint64_t n_bytes_all); /* or NULL */
  void *self;
} weft_numbers_args;

typedef struct weft_numbers_report {
  uint32_t n_tensors, n_broken, n_skipped; /* read; of these, broken; not read, being of an unknown type */
} weft_numbers_report;

/* Errors: IO, NO_MEMORY. A broken tensor is a finding and no error. */
weft_status weft_numbers(const weft_numbers_args *args, weft_numbers_report *report, weft_error *error);
/* A fault in words, such as "zero". */
const char *weft_numbers_fault_text(weft_numbers_fault fault);

#ifdef __cplusplus
}
#endif
#endif
