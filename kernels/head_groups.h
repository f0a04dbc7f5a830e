/* SPDX-License-Identifier: MIT */
/* head_groups: logits of the tokens of a few groups. Part of kernels/ops.h, whose laws hold.
 *
 * Law: tokens lie in groups of equal size: group g has those of tokens[g * size] and behind it. logits[r][t] is
 * h[r] . W_t for the tokens t of the groups that ids[r] names, and -infinity for all others. W_t is what embed gives,
 * and products are f32. A group or token that does not exist is INVALID; on cuda it is left out. */
#ifndef WEFT_KERNELS_HEAD_GROUPS_H
#define WEFT_KERNELS_HEAD_GROUPS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_HEAD_GROUPS_ROWS = 65535 /* at most */ };

typedef struct weft_head_groups_args {
  const float *h;            /* [n_rows, n_in], after the final norm */
  const weft_weight *weight; /* [n_vocab, n_in] */
  const int32_t *tokens;     /* [n_groups][size] */
  const int32_t *ids;        /* [n_rows, k] */
  float *logits;             /* [n_rows, n_vocab] */
  uint32_t n_rows, n_groups, size, k;
  uint64_t h_stride, logits_stride;
  void *scratch;
  uint64_t scratch_bytes;
} weft_head_groups_args;

#ifdef __cplusplus
}
#endif
#endif
