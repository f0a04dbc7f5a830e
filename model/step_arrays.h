/* SPDX-License-Identifier: MIT */
/* The arrays of one step where ops can read them: tokens, positions, slots and block tables.
 *
 * Law: on a device whose memory is ordinary memory they are the batch's own. Elsewhere one upload per step
 * brings them over, of every table only the entries that a row of the step can see; the memory for it is
 * taken at open and grows, by doubling, only when tables are longer than any before. */
#ifndef WEFT_MODEL_STEP_ARRAYS_H
#define WEFT_MODEL_STEP_ARRAYS_H

#include "kernels/device.h"
#include "model/batch.h"
#include "model/kv_layout.h"
#include "model/model.h"

typedef struct step_arrays {
  weft_device *device;
  bool in_place; /* the device reads host memory */
  uint8_t *staging;
  void *memory; /* device */
  uint64_t n_bytes;
  const weft_batch *batch;
  /* Of the step: device pointers. */
  const int32_t *token, *position; /* [n_rows] */
  const int32_t *cell_of;
  int32_t *written;                        /* token, while cells are moved there */
  const int64_t *kv_slot[WEFT_GROUPS_MAX]; /* [n_rows] each */
  const uint32_t *table;
  int64_t *table_at; /* [segments_max * groups]: from table to a segment's entry 0, which may lie before it */
} step_arrays;

weft_status step_arrays_open(step_arrays *arrays, weft_device *device, const weft_model_limits *limits);
void step_arrays_close(step_arrays *arrays);
/* Of a step's batch, its tokens and cells. */
weft_status step_arrays_fill(step_arrays *arrays, const weft_forward_args *args);
/* The block table of a segment in a group, for ops. */
const uint32_t *step_arrays_table(const step_arrays *arrays, uint32_t segment, uint32_t group);

#endif
