/* SPDX-License-Identifier: MIT */
/* The arrays of one step where ops can read them: tokens, positions, slots and block tables.
 *
 * Law: on a device that reads host memory the arrays are the batch's own. Elsewhere one upload per step copies them to
 * the device, and of every block table only the entries that a row of the step can see. The memory for the upload is
 * taken at open and grows, by doubling, only when the block tables of a step are longer than any before; where limits
 * say how long they get, never. */
#ifndef WEFT_MODEL_STEP_ARRAYS_H
#define WEFT_MODEL_STEP_ARRAYS_H

#include "kernels/device.h"
#include "model/batch.h"
#include "model/kv_layout.h"
#include "model/model.h"

typedef struct step_arrays {
  weft_device *device, *placer; /* placer: memory is taken there */
  bool in_place, grows;         /* in_place: the device reads host memory */
  uint8_t *staging;
  void *memory; /* device */
  uint64_t n_bytes;
  const weft_batch *batch;
  /* The arrays of the step, as device pointers. */
  const int32_t *token, *position; /* [n_rows] */
  const int32_t *cell_of;
  int32_t *written;                        /* the same as token, to which the device writes what the cells hold */
  const int64_t *kv_slot[WEFT_GROUPS_MAX]; /* [n_rows] each */
  const uint32_t *table;
  int64_t *table_at; /* [segments_max * groups]: where in table a segment's entry 0 is; below 0 where it was not sent */
  uint32_t *n_old;   /* [segments_max * groups] */
  bool again;        /* set by a drafter: the next step has the batch of the one before, whose arrays are there */
  int64_t states_at; /* where in table the pages of the states that are written begin, one list behind another */
  uint32_t state_pages[WEFT_GROUPS_MAX]; /* of each group; 0: it is not of states */
} step_arrays;

/* Bytes of device memory that open takes where the device does not read host memory. */
uint64_t step_arrays_bytes(const weft_model_limits *limits);
weft_status step_arrays_open(step_arrays *arrays, weft_device *device, const weft_model_limits *limits);
void step_arrays_close(step_arrays *arrays);
/* Makes the arrays of the step: its batch and, where they are wanted, the tokens that its cells hold. */
weft_status step_arrays_fill(step_arrays *arrays, const weft_forward_args *args, bool wants_tokens);
/* The block table of a segment in a group, for ops. */
const uint32_t *step_arrays_table(const step_arrays *arrays, uint32_t segment, uint32_t group);
/* Of a group of states: the pages of the state that a segment begins with; NULL where that is position 0. */
const uint32_t *step_arrays_state(const step_arrays *arrays, uint32_t segment, uint32_t group);
/* The pages of the state that write i of the batch names. */
const uint32_t *step_arrays_written(const step_arrays *arrays, uint32_t i);
/* Positions of a segment that were stored before this step, in a group: below kv_len, and no other segment stores them
 * now. 0 where this was not found out. */
uint32_t step_arrays_old(const step_arrays *arrays, uint32_t segment, uint32_t group);

#endif
