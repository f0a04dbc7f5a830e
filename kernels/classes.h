/* SPDX-License-Identifier: MIT */
/* classes: the best token, and the probability, of classes of tokens, for answers on canvases that are held to a
 * grammar (model/formats/grammar_graph.h).
 *
 * Law: z = logit / temperature. best is the most likely token of the class, the lower one where two are equal. log_sum
 * is the log of the sum of exp(z) over the class. Only tokens that are allowed and whose logit is finite count. A class
 * without such a token gives its first token (-1 where it has none at all) and WEFT_CLASSES_NONE; a largest z beyond
 * f32 gives WEFT_CLASSES_NONE too. A row's numbers depend on that row and on the classes alone.
 *
 * best is the same on every backend. ref and cpu add exp(z - largest z) in the order of the class's list, in one sum of
 * doubles. cuda adds up the parts of a class that lie in chunks of the list, each relative to its own largest z, and
 * then the parts, in doubles (kernels/cuda/head/classes.cu says in which order). An exponent is a difference that is rounded
 * to f32, and exp errs by two units in the last place; terms more than 32 below the largest add nothing that shows. So
 * two backends are at most 2 (32 * 2^-24 + 2^-22) + 2^-23 |log_sum| apart, less than 5e-6 + 2^-23 |log_sum|. */
#ifndef WEFT_KERNELS_CLASSES_H
#define WEFT_KERNELS_CLASSES_H

#include <stdint.h>

#include "base/status.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CLASSES_NONE (-1e30f)

typedef struct weft_classes_args {
  const float *logits;      /* [n_rows, n_vocab], capped; read only */
  const float *temperature; /* [n_rows], > 0 */
  const int32_t *token;     /* [n_tokens] of class c, ascending: token[at[c]] .. token[at[c + 1] - 1] */
  const uint32_t *at;       /* [n_classes + 1], from 0 to n_tokens */
  const uint32_t *allowed;  /* optional bitmask of tokens */
  int32_t *best;            /* [n_rows, n_classes] */
  float *log_sum;           /* [n_rows, n_classes] */
  uint32_t n_rows, n_classes, n_tokens;
  uint64_t logits_stride;
  void *scratch;
  uint64_t scratch_bytes;
} weft_classes_args;

/* Computes one row. ref and cpu both call it. */
void weft_classes_of_row(const weft_classes_args *args, uint32_t row);

#ifdef __cplusplus
}
#endif
#endif
