/* SPDX-License-Identifier: MIT */
/* How many experts a step really touches: counted from the routes of steps that run call by call.
 *
 * Law: a watch on the device's ops; while it counts, the ids of each product of experts are read back and the distinct
 * ones are counted, per layer, under the number of rows. Steps that a graph repeats are not seen: their rows were,
 * when the step ran for the first time. Of replicas only the first one's steps are seen. Not counting costs a comparison
 * per op. */
#ifndef WEFT_BENCH_SPEED_TOUCHED_H
#define WEFT_BENCH_SPEED_TOUCHED_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/inside.h"

enum { WEFT_TOUCHED_SIZES = 256 };

typedef struct weft_touched {
  pthread_mutex_t mutex;
  weft_runtime *runtime;
  bool counting;
  int32_t *ids;  /* [n_ids] */
  uint8_t *seen; /* [n_experts] */
  uint64_t n_ids;
  uint32_t n_experts, n_used;
  struct {
    uint32_t n_rows;
    uint64_t n_calls, n_distinct;
  } size[WEFT_TOUCHED_SIZES];
  uint32_t n_sizes;
} weft_touched;

/* Watches the devices of the first model, of its first replica, until the runtime is closed. false: out of memory. */
bool weft_touched_open(weft_touched *touched, weft_runtime *runtime);
void weft_touched_close(weft_touched *touched);
void weft_touched_count(weft_touched *touched, bool on);
/* The mean over layers and steps of n_rows rows, or of the least number above it that fills such a step up; -1:
 * none was seen. */
double weft_touched_mean(weft_touched *touched, uint32_t n_rows);
/* What random routes give: E (1 - (1 - k / E)^rows); -1: the model has no experts. */
double weft_touched_expected(const weft_touched *touched, uint32_t n_rows);

#endif
