/* SPDX-License-Identifier: MIT */
/* Canvases of preempted requests: what a slot keeps between two denoise steps, in host memory. Each device saves and
 * restores what it has, in its order, so a slot or a place may be used again at once. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/runner/runner_internal.h"

static uint64_t soft_bytes(const device_runner *r) {
  return (uint64_t)r->canvas_length * r->n_hidden * sizeof(float);
}

static uint64_t state_bytes(const device_runner *r) {
  return weft_canvas_state_words(r->canvas_length) * sizeof(int32_t);
}

static uint64_t mirror_bytes(const device_runner *r) {
  return r->info.n_stages == 1 ? 0 : runner_mirror_canvas_words(r) * sizeof(int32_t);
}

weft_status runner_slot_save(weft_runner *base, uint32_t index, uint32_t save) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  WEFT_CHECK(index < r->config.n_slots && save < r->info.n_saves);
  const runner_slot *s = &r->slots[index];
  runner_save *to = &r->saves[save];
  WEFT_CHECK(s->open && s->params.denoises);
  memcpy(to->canvas, s->canvas, r->canvas_length * sizeof *to->canvas);
  const int32_t *mirror = r->d_mirror + runner_mirror_canvas(r, index);
  weft_status status = weft_device_copy(r->last, to->state, r->d_cells + runner_canvas_cell(r, index), state_bytes(r));
  if (status == WEFT_OK && to->mirror != NULL) status = weft_device_copy(r->first, to->mirror, mirror, mirror_bytes(r));
  return status == WEFT_OK ? weft_device_copy(r->first, to->soft, s->soft, soft_bytes(r)) : status;
}

weft_status runner_slot_restore(weft_runner *base, uint32_t index, uint32_t save) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  WEFT_CHECK(index < r->config.n_slots && save < r->info.n_saves);
  runner_slot *s = &r->slots[index];
  const runner_save *from = &r->saves[save];
  WEFT_CHECK(s->open && s->params.denoises);
  memcpy(s->canvas, from->canvas, r->canvas_length * sizeof *s->canvas);
  int32_t *mirror = r->d_mirror + runner_mirror_canvas(r, index);
  weft_status status = runner_follow_slot(r, index); /* the request before may still be in flight there */
  if (status == WEFT_OK)
    status = weft_device_copy(r->last, r->d_cells + runner_canvas_cell(r, index), from->state, state_bytes(r));
  if (status == WEFT_OK && from->mirror != NULL)
    status = weft_device_copy(r->first, mirror, from->mirror, mirror_bytes(r));
  return status == WEFT_OK ? weft_device_copy(r->first, s->soft, from->soft, soft_bytes(r)) : status;
}

weft_status runner_open_saves(device_runner *r) {
  if (r->info.n_saves == 0) return WEFT_OK;
  r->saves = weft_alloc(r->info.n_saves, sizeof *r->saves);
  if (r->saves == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < r->info.n_saves; i++) {
    runner_save *save = &r->saves[i];
    save->canvas = weft_alloc(r->canvas_length, sizeof *save->canvas);
    if (save->canvas == NULL) return WEFT_E_NO_MEMORY;
    weft_status status = WEFT_OK;
    save->soft = runner_memory_pin(&r->memory, r->first, soft_bytes(r), &status);
    save->state = runner_memory_pin(&r->memory, r->last, state_bytes(r), &status);
    if (mirror_bytes(r) > 0) save->mirror = runner_memory_pin(&r->memory, r->first, mirror_bytes(r), &status);
    if (status != WEFT_OK) return status;
    r->n_bytes += soft_bytes(r) + state_bytes(r) + mirror_bytes(r) + r->canvas_length * sizeof *save->canvas;
  }
  return WEFT_OK;
}

void runner_close_saves(device_runner *r) {
  if (r->saves == NULL) return;
  for (uint32_t i = 0; i < r->info.n_saves; i++) {
    weft_free(r->saves[i].canvas);
    runner_memory_unpin(&r->memory, r->last, r->saves[i].state);
    runner_memory_unpin(&r->memory, r->first, r->saves[i].mirror);
    runner_memory_unpin(&r->memory, r->first, r->saves[i].soft);
  }
  weft_free(r->saves);
}
