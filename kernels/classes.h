/* SPDX-License-Identifier: MIT */
/* classes: what a row of logits says of classes of tokens, for answers on canvases that are held to a grammar
 * (model/grammar_graph.h).
 *
 * Law: z = logit / temperature. best is the most likely token of the class, the lower one where two are equal; log_sum
 * is the log of the sum of exp(z) over the class, in the order of the class's list, from the class's largest z. Only
 * tokens that `allowed` has and whose logit is finite are looked at; a class without one gives its first token
 * (without any token -1) and WEFT_CLASSES_NONE. A row's numbers depend on that row alone. */
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

/* One row, as ref and cpu compute it. */
void weft_classes_of_row(const weft_classes_args *args, uint32_t row);

#ifdef __cplusplus
}
#endif
#endif
