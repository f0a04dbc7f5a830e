/* SPDX-License-Identifier: MIT */
/* classes: the best token, and the probability, of classes of tokens, for answers on canvases that are held to a
 * grammar (model/grammar_graph.h).
 *
 * Law: z = logit / temperature. best is the most likely token of the class, the lower one where two are equal. log_sum
 * is the log of the sum of exp(z) over the class, added in the order of the class's list relative to the class's
 * largest z. Only tokens that are allowed and whose logit is finite count. A class without such a token gives its first
 * token (-1 where it has none at all) and WEFT_CLASSES_NONE; a largest z beyond f32 gives WEFT_CLASSES_NONE too. A
 * row's numbers depend on that row alone. */
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
  const int32_t *token;     /* tokens of class c, ascending: token[at[c]] .. token[at[c + 1] - 1] */
  const uint32_t *at;       /* [n_classes + 1] */
  const uint32_t *allowed;  /* optional bitmask of tokens */
  int32_t *best;            /* [n_rows, n_classes] */
  float *log_sum;           /* [n_rows, n_classes] */
  uint32_t n_rows, n_classes;
  uint64_t logits_stride;
} weft_classes_args;

/* Computes one row. ref and cpu both call it. */
void weft_classes_of_row(const weft_classes_args *args, uint32_t row);

#ifdef __cplusplus
}
#endif
#endif
