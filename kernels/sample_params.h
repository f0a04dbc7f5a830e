/* SPDX-License-Identifier: MIT */
/* What a request may ask of sampling, named once for the ops and for everything above them. */
#ifndef WEFT_KERNELS_SAMPLE_PARAMS_H
#define WEFT_KERNELS_SAMPLE_PARAMS_H

#include <stdint.h>

enum {
  WEFT_TOP_LOGPROBS_MAX = 20, /* most likely tokens that are reported beside the one drawn */
  WEFT_LOGIT_BIAS_MAX = 1024, /* entries of one request */
  WEFT_STABILITY_MAX = 8,     /* argmax canvases that are remembered */
  WEFT_CANVAS_MAX = 1024      /* positions of one canvas */
};

typedef struct weft_logit_bias {
  int32_t token; /* < n_vocab; a token may occur twice: both are added */
  float bias;
} weft_logit_bias;

#endif
