/* SPDX-License-Identifier: MIT */
/* The shared-system-prompt run against a server that listens on 127.0.0.1. */
#ifndef WEFT_BENCH_SPEED_SERVING_H
#define WEFT_BENCH_SPEED_SERVING_H

#include "bench/lab/lab.h"

typedef struct weft_serving {
  uint16_t port;
  uint32_t n_vocab;
  uint64_t seed;
  bool llama; /* /completion of llama-server instead of /v1/completions */
} weft_serving;

/* 0, or an exit code after one line. */
int weft_serving_run(const weft_serving *serving, double *seconds, uint64_t *n_computed);
int weft_serving_start(const weft_lab_config *config, weft_child *child);
int weft_serving_vocabulary(const char *path, uint32_t *n_vocab);

#endif
