/* SPDX-License-Identifier: MIT */
/* Canvas events of one request: what every denoise step did, kept until the reader takes it.
 *
 * Law. The ring is bounded: when the reader is too slow the oldest events are dropped and counted, so the newest
 * canvas is always there. Its memory is a part of the request's, taken once by submit; weft_canvas_ring_bytes says how
 * much. Not thread safe: the request's mutex guards it. */
#ifndef WEFT_SCHEDULER_CANVAS_RING_H
#define WEFT_SCHEDULER_CANVAS_RING_H

#include "model/batch.h"

typedef struct weft_canvas_record {
  uint32_t block, step, n_accepted;
  uint32_t n_answer; /* tokens of the answer that were final before this step */
  float temperature, mean_entropy;
  bool stopped;
  int32_t *argmax;                         /* [n_canvas] */
  int32_t *canvas_in, *drawn, *canvas_out; /* [n_canvas], NULL without trace */
  float *entropy;
  uint8_t *accepted;
} weft_canvas_record;

typedef struct weft_canvas_ring {
  uint32_t n_canvas;
  uint32_t capacity; /* records kept; one more is the reader's */
  uint32_t first, n;
  uint32_t n_dropped; /* since the last take */
  bool trace;
  weft_canvas_record *record; /* [capacity + 1] */
} weft_canvas_ring;

/* How many records to keep for a request of at most n_steps denoise steps: all of them, or as many as about 1 MiB
 * holds. */
uint32_t weft_canvas_ring_capacity(uint32_t n_canvas, uint64_t n_steps, bool trace);
/* Bytes for records and arrays; aligned to 16. */
size_t weft_canvas_ring_bytes(uint32_t n_canvas, uint32_t capacity, bool trace);
void weft_canvas_ring_open(weft_canvas_ring *ring, void *memory, uint32_t n_canvas, uint32_t capacity, bool trace);
/* Copies the result in. */
void weft_canvas_ring_push(weft_canvas_ring *ring, const weft_segment_result *result, uint32_t block, uint32_t step,
                           uint32_t n_answer);
/* The oldest record, NULL when empty; it stays in the ring. */
const weft_canvas_record *weft_canvas_ring_peek(const weft_canvas_ring *ring);
/* Moves the oldest record to the reader, where it is valid until the next take. *n_dropped: records lost before it.
 * NULL when empty. */
const weft_canvas_record *weft_canvas_ring_take(weft_canvas_ring *ring, uint32_t *n_dropped);

#endif
