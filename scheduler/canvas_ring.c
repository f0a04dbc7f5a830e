/* SPDX-License-Identifier: MIT */
#include "scheduler/canvas_ring.h"

#include <string.h>

enum {
  RING_BYTES = 1 << 20, /* per request */
  RING_RECORDS_MIN = 4
};

static size_t round_to_16(size_t n) {
  return (n + 15) & ~(size_t)15;
}

/* Arrays of one record. */
static size_t record_bytes(uint32_t n_canvas, bool trace) {
  size_t n = n_canvas;
  size_t bytes = round_to_16(n * sizeof(int32_t));
  if (trace) bytes += 3 * round_to_16(n * sizeof(int32_t)) + round_to_16(n * sizeof(float)) + round_to_16(n);
  return bytes;
}

uint32_t weft_canvas_ring_capacity(uint32_t n_canvas, uint64_t n_steps, bool trace) {
  uint64_t fit = RING_BYTES / record_bytes(n_canvas, trace);
  uint64_t n = n_steps < fit ? n_steps : fit;
  return n < RING_RECORDS_MIN ? RING_RECORDS_MIN : (uint32_t)n;
}

size_t weft_canvas_ring_bytes(uint32_t n_canvas, uint32_t capacity, bool trace) {
  size_t n = (size_t)capacity + 1;
  return round_to_16(n * sizeof(weft_canvas_record)) + n * record_bytes(n_canvas, trace);
}

void weft_canvas_ring_open(weft_canvas_ring *ring, void *memory, uint32_t n_canvas, uint32_t capacity, bool trace) {
  *ring = (weft_canvas_ring){.n_canvas = n_canvas, .capacity = capacity, .trace = trace};
  ring->record = memory;
  size_t n = (size_t)capacity + 1;
  char *at = (char *)memory + round_to_16(n * sizeof(weft_canvas_record));
  size_t ints = round_to_16((size_t)n_canvas * sizeof(int32_t));
  for (size_t i = 0; i < n; i++) {
    weft_canvas_record *r = &ring->record[i];
    r->argmax = (int32_t *)(void *)at;
    at += ints;
    if (!trace) continue;
    r->canvas_in = (int32_t *)(void *)at;
    r->drawn = (int32_t *)(void *)(at + ints);
    r->canvas_out = (int32_t *)(void *)(at + 2 * ints);
    r->entropy = (float *)(void *)(at + 3 * ints);
    r->accepted = (uint8_t *)(at + 3 * ints + round_to_16((size_t)n_canvas * sizeof(float)));
    at += record_bytes(n_canvas, true) - ints;
  }
}

static void copy_array(void *to, const void *from, size_t n_bytes) {
  if (from == NULL) {
    memset(to, 0, n_bytes);
  } else {
    memcpy(to, from, n_bytes);
  }
}

void weft_canvas_ring_push(weft_canvas_ring *ring, const weft_segment_result *result, uint32_t block, uint32_t step,
                           uint32_t n_answer) {
  if (ring->n == ring->capacity) {
    ring->first = (ring->first + 1) % ring->capacity;
    ring->n -= 1;
    ring->n_dropped += 1;
  }
  weft_canvas_record *r = &ring->record[(ring->first + ring->n) % ring->capacity];
  ring->n += 1;
  r->block = block;
  r->step = step;
  r->n_accepted = result->n_accepted;
  r->n_answer = n_answer;
  r->temperature = result->temperature;
  r->mean_entropy = result->mean_entropy;
  r->stopped = result->stopped;
  size_t ints = (size_t)ring->n_canvas * sizeof(int32_t);
  copy_array(r->argmax, result->argmax, ints);
  if (!ring->trace) return;
  copy_array(r->canvas_in, result->canvas_in, ints);
  copy_array(r->drawn, result->drawn, ints);
  copy_array(r->canvas_out, result->canvas_out, ints);
  copy_array(r->entropy, result->entropy, (size_t)ring->n_canvas * sizeof(float));
  copy_array(r->accepted, result->accepted, ring->n_canvas);
}

const weft_canvas_record *weft_canvas_ring_peek(const weft_canvas_ring *ring) {
  return ring->n == 0 ? NULL : &ring->record[ring->first];
}

const weft_canvas_record *weft_canvas_ring_take(weft_canvas_ring *ring, uint32_t *n_dropped) {
  if (ring->n == 0) return NULL;
  weft_canvas_record taken = ring->record[ring->first];
  ring->record[ring->first] = ring->record[ring->capacity]; /* what the reader had goes back */
  ring->record[ring->capacity] = taken;
  ring->first = (ring->first + 1) % ring->capacity;
  ring->n -= 1;
  *n_dropped = ring->n_dropped;
  ring->n_dropped = 0;
  return &ring->record[ring->capacity];
}
