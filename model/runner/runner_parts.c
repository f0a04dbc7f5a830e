/* SPDX-License-Identifier: MIT */
/* What goes between the devices of a runner, in the order that runner_internal.h states: cells and soft embeddings from
 * the last device to the first one, and the marks of flights. */
#include "model/model_internal.h"
#include "model/runner/runner_internal.h"
#include "model/shards.h"

uint64_t runner_mirror_token(const device_runner *r, uint32_t slot) {
  if (r->info.n_stages == 1) return slot;
  uint64_t flight = (r->slots[slot].written_by - 1) % (r->info.depth + 1);
  return flight * r->config.n_slots + slot;
}

uint64_t runner_mirror_canvas(const device_runner *r, uint32_t slot) {
  if (r->info.n_stages == 1) return runner_canvas_cell(r, slot);
  return (uint64_t)(r->info.depth + 1) * r->config.n_slots + runner_mirror_canvas_words(r) * slot;
}

/* ---- marks of flights ---- */

static uint32_t mark_of(const device_runner *r, uint64_t number) {
  return MARK_FLIGHT + (uint32_t)((number - 1) % (r->info.depth + 1));
}

weft_status runner_mark(device_runner *r, const runner_flight *f) {
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < r->split->n_devices && status == WEFT_OK; p++) {
    status = weft_device_mark(r->split->device[p], mark_of(r, f->number));
  }
  return status;
}

weft_status runner_wait(device_runner *r, const runner_flight *f) {
  weft_status status = WEFT_OK;
  for (uint32_t p = r->split->n_devices; p > 0 && status == WEFT_OK; p--) {
    status = weft_device_wait(r->split->device[p - 1], mark_of(r, f->number));
  }
  return status == WEFT_OK && model_shards_broken(r->config.model) ? WEFT_E_DEVICE : status;
}

/* A step that was collected has run on every device. */
static weft_status follow_step(device_runner *r, uint64_t number) {
  bool has_run = number + r->n_flights <= r->n_steps;
  return has_run ? WEFT_OK : weft_device_follow(r->first, r->last, mark_of(r, number));
}

weft_status runner_follow_slot(device_runner *r, uint32_t slot) {
  uint64_t number = r->slots[slot].written_by;
  return r->info.n_stages == 1 || number == 0 ? WEFT_OK : follow_step(r, number);
}

/* Whether the step reads what the slot of a segment has on the first device. */
static bool reads_slot(const device_runner *r, const weft_segment *segment) {
  if (segment->pass == WEFT_PASS_DECODER) return segment->step > 0;
  if (segment->token_source == WEFT_TOKENS_SAMPLED) return r->slots[segment->slot].n_pending > 0;
  return segment->token_source == WEFT_TOKENS_ARGMAX;
}

weft_status runner_follow(device_runner *r, const weft_batch *batch) {
  uint64_t newest = 0;
  if (r->info.n_stages == 1) return WEFT_OK;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    uint64_t number = r->slots[batch->segment[i].slot].written_by;
    if (number > newest && reads_slot(r, &batch->segment[i])) newest = number;
  }
  return newest == 0 ? WEFT_OK : follow_step(r, newest);
}

void runner_note_writes(device_runner *r, const runner_flight *f) {
  for (uint32_t i = 0; i < f->n_segments; i++) {
    const weft_segment *segment = &f->segment[i];
    bool writes = weft_segment_n_sampled(segment) > 0 || weft_segment_denoises(segment);
    if (writes) r->slots[segment->slot].written_by = f->number;
  }
}

/* ---- to the first device ---- */

/* From a buffer of the last device to one of the first, wherever they found room: the last device does it in its
 * order. */
static weft_status send_to_first(device_runner *r, void *to, const void *from, uint64_t n_bytes, uint64_t *crossed) {
  if (runner_memory_is_sent(&r->memory, to, from)) return model_send(r->last, r->first, to, from, n_bytes, crossed);
  if (r->first != r->last) (void)__atomic_fetch_add(crossed, n_bytes, __ATOMIC_RELAXED);
  return weft_device_copy(r->last, to, from, n_bytes);
}

static weft_status send_words(device_runner *r, uint64_t to, uint64_t from, uint64_t n) {
  return send_to_first(r, r->d_mirror + to, r->d_cells + from, n * sizeof *r->d_cells,
                       &r->config.model->crossed.tokens);
}

/* One piece of all cells from the first to the last slot that drew a token: those between have no newer ones. */
static weft_status send_tokens(device_runner *r, const runner_flight *f) {
  uint32_t first = UINT32_MAX, end = 0;
  for (uint32_t i = 0; i < f->n_segments; i++) {
    uint32_t slot = f->segment[i].slot;
    if (weft_segment_n_sampled(&f->segment[i]) == 0) continue;
    if (slot < first) first = slot;
    if (slot >= end) end = slot + 1;
  }
  if (end == 0) return WEFT_OK;
  return send_words(r, runner_mirror_token(r, first), first, end - first);
}

weft_status runner_send_cells(device_runner *r, const runner_flight *f) {
  if (r->info.n_stages == 1) return WEFT_OK;
  weft_status status = send_tokens(r, f);
  for (uint32_t i = 0; i < f->n_segments && status == WEFT_OK; i++) {
    uint32_t slot = f->segment[i].slot;
    if (!weft_segment_denoises(&f->segment[i])) continue;
    status = send_words(r, runner_mirror_canvas(r, slot), runner_canvas_cell(r, slot), runner_mirror_canvas_words(r));
  }
  return status;
}

weft_status runner_send_soft(device_runner *r, uint32_t slot, const float *soft, uint64_t n_rows) {
  return send_to_first(r, r->slots[slot].soft, soft, n_rows * r->n_hidden * sizeof *soft,
                       &r->config.model->crossed.soft);
}
