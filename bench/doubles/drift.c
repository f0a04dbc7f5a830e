/* SPDX-License-Identifier: MIT */
#include "bench/doubles/drift.h"

#include <signal.h>
#include <unistd.h>

#include "base/segment.h"
#include "kernels/device_internal.h"

/* The ops have no place for a pointer of ours. */
static const weft_kernels *real;
static weft_kernels faulty;
static weft_drift fault;
static uint64_t n_calls; /* of one engine thread for each replica; counted together */

/* Rows [at, at + n) of a segment, with a window that leaves out the first key before them. */
static weft_status attend_part(weft_device *device, const weft_attention_args *args, const weft_attention_segment *of,
                               uint32_t at, uint32_t n) {
  weft_attention_segment part = *of;
  weft_attention_args one = *args;
  part.first_row += at;
  part.kv_len += at;
  part.n_rows = n;
  part.n_old = 0;
  one.segment = &part;
  one.n_segments = 1;
  if (part.kv_len > 0 && (one.window == 0 || one.window > part.kv_len)) one.window = part.kv_len;
  return real->attention(device, &one);
}

/* Row by row, since each has another window; a segment whose keys lie in scratch is never cut. */
static weft_status drop_first_key(weft_device *device, const weft_attention_args *args) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < args->n_segments && status == WEFT_OK; i++) {
    const weft_attention_segment *segment = &args->segment[i];
    bool whole = segment->mask != WEFT_MASK_CAUSAL || segment->stores != WEFT_STORES_POOL;
    uint32_t n = whole ? segment->n_rows : 1;
    for (uint32_t row = 0; row < segment->n_rows && status == WEFT_OK; row += n)
      status = attend_part(device, args, segment, row, n);
  }
  return status;
}

static weft_status attend_badly(weft_device *device, const weft_attention_args *args) {
  uint64_t number = __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED);
  if (number == fault.die_at) (void)kill(getpid(), SIGKILL);
  return fault.drops_key ? drop_first_key(device, args) : real->attention(device, args);
}

void weft_drift_device(const weft_drift *drift, weft_device *device) {
  if (device->kernels == &faulty || (!drift->drops_key && drift->die_at == 0)) return;
  real = device->kernels;
  fault = *drift;
  faulty = *real;
  faulty.attention = attend_badly;
  device->kernels = &faulty;
}
