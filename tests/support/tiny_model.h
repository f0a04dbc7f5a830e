/* SPDX-License-Identifier: MIT */
/* A tiny model on a cpu device of one thread, for tests of what works with an open model (after cmocka.h). */
#ifndef WEFT_TESTS_TINY_MODEL_H
#define WEFT_TESTS_TINY_MODEL_H

#include "model/model.h"

typedef struct tiny_model {
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
} tiny_model;

static inline void tiny_model_open(tiny_model *m, const weft_model_limits *limits) {
  const weft_device_config config = {.backend = "cpu", .n_threads = 1};
  weft_error error = {{0}};
  const char *path = WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf";
  if (weft_gguf_open(path, &m->gguf, &error) != WEFT_OK) fail_msg("%s", error.text);
  if (weft_device_open(&config, &m->device, &error) != WEFT_OK) fail_msg("%s", error.text);
  const weft_split split = weft_split_one(m->device);
  weft_status status = weft_model_open(m->gguf, &split, limits, NULL, NULL, &m->model, &error);
  if (status != WEFT_OK) fail_msg("%s", error.text);
}

static inline void tiny_model_close(tiny_model *m) {
  weft_model_close(m->model);
  weft_device_close(m->device);
  weft_gguf_close(m->gguf);
}

#endif
