/* SPDX-License-Identifier: MIT */
#include "scheduler/ready.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

weft_status weft_ready_open(weft_ready *ready, uint32_t n_slots) {
  *ready = (weft_ready){.n_max = 2 * n_slots + 1};
  ready->at = weft_alloc(ready->n_max, sizeof *ready->at);
  ready->scratch = weft_alloc(ready->n_max, sizeof *ready->scratch);
  ready->skipped = weft_alloc(ready->n_max, sizeof *ready->skipped);
  if (ready->at != NULL && ready->scratch != NULL && ready->skipped != NULL) return WEFT_OK;
  weft_ready_close(ready);
  return WEFT_E_NO_MEMORY;
}

void weft_ready_close(weft_ready *ready) {
  weft_free(ready->at);
  weft_free(ready->scratch);
  weft_free(ready->skipped);
  memset(ready, 0, sizeof *ready);
}

static void close_holes(weft_ready *ready) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < ready->n; i++) {
    weft_request *r = ready->at[i];
    if (r == NULL) continue;
    r->ready_at = n;
    ready->at[n++] = r;
  }
  ready->n = n;
  ready->n_holes = 0;
}

void weft_ready_pack(weft_ready *ready) {
  if (ready->n_holes > ready->n / 4) close_holes(ready);
}

/* A commit and a denoise step share a pass. */
static uint32_t rows_of(const weft_request *request) {
  return request->denoises ? 2 * request->size.n_canvas : request->drafts ? 1 + WEFT_DRAFTS_MAX : 1;
}

void weft_ready_append(weft_ready *ready, weft_request *request) {
  if (ready->n == ready->n_max) close_holes(ready);
  WEFT_CHECK(ready->n < ready->n_max);
  request->ready_at = ready->n;
  ready->at[ready->n++] = request;
  ready->n_rows += rows_of(request);
  ready->n_decode += !request->denoises;
}

bool weft_ready_remove(weft_ready *ready, weft_request *request) {
  if (request->ready_at == WEFT_READY_NONE) return false;
  WEFT_CHECK(ready->at[request->ready_at] == request);
  ready->at[request->ready_at] = NULL;
  ready->n_holes += 1;
  ready->n_rows -= rows_of(request);
  ready->n_decode -= !request->denoises;
  request->ready_at = WEFT_READY_NONE;
  return true;
}

weft_request *weft_ready_any(const weft_ready *ready) {
  for (uint32_t i = 0; i < ready->n; i++) {
    if (ready->at[i] != NULL) return ready->at[i];
  }
  return NULL;
}

void weft_ready_skip(weft_ready *ready, uint32_t i) {
  ready->skipped[ready->n_skipped++] = i;
}

void weft_ready_turn(weft_ready *ready, uint32_t end) {
  if (ready->n_skipped == 0 && end == ready->n) return; /* all were served: the order stays */
  uint32_t n = 0, next = 0;
  for (uint32_t k = 0; k < ready->n_skipped; k++) {
    ready->scratch[n++] = ready->at[ready->skipped[k]];
  }
  for (uint32_t i = end; i < ready->n; i++) ready->scratch[n++] = ready->at[i];
  for (uint32_t i = 0; i < end; i++) {
    if (next < ready->n_skipped && ready->skipped[next] == i) {
      next += 1;
    } else {
      ready->scratch[n++] = ready->at[i];
    }
  }
  WEFT_CHECK(n == ready->n);
  weft_request **old = ready->at;
  ready->at = ready->scratch;
  ready->scratch = old;
  ready->n_skipped = 0;
  close_holes(ready);
}

void weft_ready_settle(weft_ready *ready, uint64_t plan_number) {
  uint32_t n = 0;
  for (int planned = 0; planned < 2; planned++) {
    for (uint32_t i = 0; i < ready->n; i++) {
      weft_request *r = ready->at[i];
      if (r != NULL && (r->planned_in == (uint32_t)plan_number) == planned) ready->scratch[n++] = r;
    }
  }
  weft_request **old = ready->at;
  ready->at = ready->scratch;
  ready->scratch = old;
  ready->n = n;
  close_holes(ready);
}
