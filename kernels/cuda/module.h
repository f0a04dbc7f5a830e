/* SPDX-License-Identifier: MIT */
/* How the program and libweft-cuda.so meet: one function, and terms (a version and sizes) that both must agree on.
 *
 * Law: the module exports weft_cuda_module_open and nothing else. The program passes the terms that it was built with,
 * and a module of another build refuses them. */
#ifndef WEFT_KERNELS_CUDA_MODULE_H
#define WEFT_KERNELS_CUDA_MODULE_H

#include <string.h>

#include "kernels/device_internal.h"
#include "kernels/shards_exchange.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_cuda_module_terms {
  char version[32];
  uint32_t config_bytes, move_bytes, sample_bytes, canvas_bytes, classes_bytes, device_bytes, calls_bytes,
      kernels_bytes, attention_bytes, experts_bytes, stats_bytes, exchange_bytes;
} weft_cuda_module_terms;

static inline weft_cuda_module_terms weft_cuda_module_our_terms(void) {
  weft_cuda_module_terms terms;
  memset(&terms, 0, sizeof terms);
  strncpy(terms.version, WEFT_VERSION, sizeof terms.version - 1);
  terms.config_bytes = (uint32_t)sizeof(weft_device_config);
  terms.move_bytes = (uint32_t)sizeof(weft_move_args);
  terms.sample_bytes = (uint32_t)sizeof(weft_sample_args);
  terms.canvas_bytes = (uint32_t)sizeof(weft_canvas_args);
  terms.classes_bytes = (uint32_t)sizeof(weft_classes_args);
  terms.device_bytes = (uint32_t)sizeof(struct weft_device);
  terms.calls_bytes = (uint32_t)sizeof(device_calls);
  terms.kernels_bytes = (uint32_t)sizeof(weft_kernels);
  terms.attention_bytes = (uint32_t)sizeof(weft_attention_args);
  terms.experts_bytes = (uint32_t)sizeof(weft_experts_args);
  terms.stats_bytes = (uint32_t)sizeof(weft_head_stats_args);
  terms.exchange_bytes = (uint32_t)sizeof(shards_exchange);
  return terms;
}

typedef weft_status (*weft_cuda_module_open_fn)(const weft_cuda_module_terms *terms, const weft_device_config *config,
                                                weft_device **out, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
