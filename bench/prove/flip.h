/* SPDX-License-Identifier: MIT */
/* A copy of a model file with one bit of one weight turned over, for proofs that must fail.
 *
 * Law: every other byte is that of the file. The copy is the caller's to remove. */
#ifndef WEFT_BENCH_PROVE_FLIP_H
#define WEFT_BENCH_PROVE_FLIP_H

#include "bench/inside.h"

typedef struct prove_flip {
  const char *tensor;
  uint64_t byte; /* of the tensor as it is stored */
  uint32_t bit;  /* of that byte, 0 is the lowest */
} prove_flip;

/* Errors: IO, FORMAT, NOT_FOUND (no such tensor), TOO_LARGE (it has fewer bytes), NO_MEMORY. A model of several files
 * is refused with what the reader of files says of one of them alone. */
weft_status prove_flip_copy(const prove_flip *flip, const char *from, const char *to, weft_error *error);

#endif
