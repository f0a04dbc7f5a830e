/* SPDX-License-Identifier: MIT */
/* Whether a model file is one for products of 8 bits: what `--precision auto` asks (docs/quality.md measured it).
 *
 * Law: the answer follows from the file alone, from the types of its matrices and the weights of its norms. So every
 * start, every replica and every device comes to the same one, whatever room or load there is. A file that says nothing
 * of one of them (no matrix in blocks, a norm that is not finite) is none for 8 bits. */
#ifndef WEFT_MODEL_EIGHT_BITS_H
#define WEFT_MODEL_EIGHT_BITS_H

#include "model/gguf/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bounds, which docs/quality.md measured: of the numbers in matrices of layers, the share that has to lie in types
 * of at most 6 bits, whose own loss is above that of products of 8 bits; and the largest spread of norms. */
#define WEFT_EIGHT_BITS_SHARE  0.5
#define WEFT_EIGHT_BITS_SPREAD 12.0

typedef struct weft_eight_bits {
  double share; /* of the numbers in matrices of layers, those in such types */
  double
      spread; /* (largest magnitude / median magnitude)^2 of the weights of a norm before matrices, for each 256 inputs
                    that will share a scale: the mean over all of them. What it multiplies is the noise of 8-bit rows */
  const char *largest; /* the tensor of the widest 256, in the gguf; NULL: there is no norm */
  bool fits;
} weft_eight_bits;

/* Reads the file: its data must not have been let go. */
weft_eight_bits weft_eight_bits_of(const weft_gguf *gguf);
/* Whether the head of its canvases may be multiplied in 8 bits: the last norm alone is held to the same spread. */
bool weft_eight_bits_head(const weft_gguf *gguf);
/* A clause that says why, as "99 % of the weights are ...". */
void weft_eight_bits_say(const weft_eight_bits *facts, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
