/* SPDX-License-Identifier: MIT */
/* A split of a model's layers over n devices, or over parts of n_shards devices each, as even as the model allows. */
#ifndef WEFT_TESTS_SPLIT_OF_H
#define WEFT_TESTS_SPLIT_OF_H

#include "model/models.h"
#include "model/split.h"

/* false: the model has no such split. The devices are left to the caller. */
static inline bool split_of(const weft_gguf *gguf, uint32_t n_devices, uint32_t n_shards, weft_split *split) {
  const model_arch *arch;
  model_hyper hyper;
  *split = (weft_split){.n_devices = n_devices, .n_shards = n_shards};
  uint32_t n_parts = weft_split_stages(split);
  if (n_parts == 1) return true;
  if (model_hyper_read(gguf, &arch, &hyper, NULL) != WEFT_OK) return false;
  const weft_kv_geometry geometry = model_hyper_geometry(&hyper, WEFT_TYPE_F32);
  for (uint32_t end = hyper.n_layers; end >= n_parts; end--) {
    for (uint32_t p = 0; p < n_parts; p++) split->first_layer[p] = end * p / n_parts;
    if (weft_split_check(split, &geometry, NULL) == WEFT_OK) return true;
  }
  return false;
}

#endif
