/* SPDX-License-Identifier: MIT */
/* A small runtime over models of tests/golden, as tests of weft.h open it: two threads of the cpu, 1 MiB of keys and
 * values, room for 128 tokens and a few requests. A test changes what it is about. */
#ifndef WEFT_TESTS_SMALL_RUNTIME_H
#define WEFT_TESTS_SMALL_RUNTIME_H

#include "api/weft.h"

#define MODELS WEFT_SOURCE_DIR "/tests/golden/models/"

static inline weft_open_options small_runtime(const char *const *models, uint32_t n_models) {
  return (weft_open_options){.models = models,
                             .n_models = n_models,
                             .backend = "cpu",
                             .threads = 2,
                             .kv_bytes = 1 << 20,
                             .context = 128,
                             .running = 4,
                             .queue = 16,
                             .rows = 64,
                             .quiet = true};
}

#endif
