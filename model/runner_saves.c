/* SPDX-License-Identifier: MIT */
/* Canvases of preempted requests: what a slot keeps between two denoise steps, in host memory. Copies of soft
 * embeddings run in the device's order, so a slot or a place may be used again at once. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/runner_internal.h"

static uint64_t soft_bytes(const device_runner *r) {
  return (uint64_t)r->canvas_length * r->n_hidden * sizeof(float);
}

static size_t argmax_bytes(const device_runner *r) {
  return (size_t)WEFT_STABILITY_MAX * r->canvas_length * sizeof(int32_t);
}

weft_status runner_slot_save(weft_runner *base, uint32_t index, uint32_t save) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  WEFT_CHECK(index < r->config.n_slots && save < r->info.n_saves);
  const runner_slot *s = &r->slots[index];
  runner_save *to = &r->saves[save];
  WEFT_CHECK(s->open && s->params.canvas);
  memcpy(to->canvas, s->canvas, r->canvas_length * sizeof *to->canvas);
  memcpy(to->argmax, s->argmax, argmax_bytes(r));
  to->n_argmax = s->n_argmax;
  to->block = s->block;
  return weft_device_copy(r->config.device, to->soft, s->soft, soft_bytes(r));
}

weft_status runner_slot_restore(weft_runner *base, uint32_t index, uint32_t save) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  WEFT_CHECK(index < r->config.n_slots && save < r->info.n_saves);
  runner_slot *s = &r->slots[index];
  const runner_save *from = &r->saves[save];
  WEFT_CHECK(s->open && s->params.canvas);
  memcpy(s->canvas, from->canvas, r->canvas_length * sizeof *s->canvas);
  memcpy(s->argmax, from->argmax, argmax_bytes(r));
  s->n_argmax = from->n_argmax;
  s->block = from->block;
  s->done = false;
  return weft_device_copy(r->config.device, s->soft, from->soft, soft_bytes(r));
}

weft_status runner_open_saves(device_runner *r) {
  if (r->info.n_saves == 0) return WEFT_OK;
  r->saves = weft_alloc(r->info.n_saves, sizeof *r->saves);
  if (r->saves == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < r->info.n_saves; i++) {
    runner_save *save = &r->saves[i];
    void *soft = NULL;
    save->canvas = weft_alloc(r->canvas_length, sizeof *save->canvas);
    save->argmax = weft_alloc(1, argmax_bytes(r));
    if (save->canvas == NULL || save->argmax == NULL) return WEFT_E_NO_MEMORY;
    weft_status status = weft_device_alloc_host(r->config.device, soft_bytes(r), &soft);
    if (status != WEFT_OK) return status;
    save->soft = soft;
    r->n_bytes += soft_bytes(r) + argmax_bytes(r) + r->canvas_length * sizeof *save->canvas;
  }
  return WEFT_OK;
}

void runner_close_saves(device_runner *r) {
  if (r->saves == NULL) return;
  for (uint32_t i = 0; i < r->info.n_saves; i++) {
    weft_free(r->saves[i].canvas);
    weft_free(r->saves[i].argmax);
    weft_device_free_host(r->config.device, r->saves[i].soft);
  }
  weft_free(r->saves);
}
