/* SPDX-License-Identifier: MIT */
#include "scheduler/deadline.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

weft_status weft_deadlines_open(weft_deadlines *deadlines, uint32_t n_max) {
  memset(deadlines, 0, sizeof *deadlines);
  deadlines->heap = weft_alloc(n_max, sizeof *deadlines->heap);
  if (deadlines->heap == NULL) return WEFT_E_NO_MEMORY;
  deadlines->n_max = n_max;
  return WEFT_OK;
}

void weft_deadlines_close(weft_deadlines *deadlines) {
  weft_free(deadlines->heap);
  memset(deadlines, 0, sizeof *deadlines);
}

static void put_entry(weft_deadlines *d, uint32_t i, weft_deadline entry) {
  d->heap[i] = entry;
  *entry.index = i;
}

static void sift_up(weft_deadlines *d, uint32_t i, weft_deadline entry) {
  while (i > 0 && entry.at_us < d->heap[(i - 1) / 2].at_us) {
    put_entry(d, i, d->heap[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  put_entry(d, i, entry);
}

static void sift_down(weft_deadlines *d, uint32_t i, weft_deadline entry) {
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= d->n) break;
    if (child + 1 < d->n && d->heap[child + 1].at_us < d->heap[child].at_us) child += 1;
    if (entry.at_us <= d->heap[child].at_us) break;
    put_entry(d, i, d->heap[child]);
    i = child;
  }
  put_entry(d, i, entry);
}

void weft_deadlines_add(weft_deadlines *deadlines, uint64_t at_us, void *owner, uint32_t *index) {
  WEFT_CHECK(deadlines->n < deadlines->n_max);
  weft_deadline entry = {.at_us = at_us, .owner = owner, .index = index};
  deadlines->n += 1;
  sift_up(deadlines, deadlines->n - 1, entry);
}

void weft_deadlines_remove(weft_deadlines *deadlines, uint32_t *index) {
  uint32_t i = *index;
  if (i == WEFT_DEADLINE_NONE) return;
  WEFT_CHECK(i < deadlines->n);
  WEFT_CHECK(deadlines->heap[i].index == index);
  *index = WEFT_DEADLINE_NONE;
  deadlines->n -= 1;
  if (i == deadlines->n) return;
  weft_deadline last = deadlines->heap[deadlines->n];
  if (i > 0 && last.at_us < deadlines->heap[(i - 1) / 2].at_us) {
    sift_up(deadlines, i, last);
  } else {
    sift_down(deadlines, i, last);
  }
}

void *weft_deadlines_expired(const weft_deadlines *deadlines, uint64_t now_us) {
  if (deadlines->n == 0 || deadlines->heap[0].at_us > now_us) return NULL;
  return deadlines->heap[0].owner;
}

uint64_t weft_deadlines_next_us(const weft_deadlines *deadlines) {
  return deadlines->n == 0 ? UINT64_MAX : deadlines->heap[0].at_us;
}
