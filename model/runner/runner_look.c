/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_look.h"

#include "model/expert_loads.h"
#include "model/layers_args.h"
#include "model/model_internal.h"

static uint32_t n_looked_layers(const device_runner *r) {
  return r->config.model->hyper.n_layers - 1;
}

static uint64_t layer_words(const device_runner *r) {
  return (uint64_t)RUNNER_LOOK_ROWS * r->info.n_experts_used;
}

weft_status runner_look_open(device_runner *r) {
  weft_status status = WEFT_OK;
  if (r->config.loads == NULL || r->info.n_experts == 0 || n_looked_layers(r) == 0) return WEFT_OK;
  if (!r->counts) status = weft_expert_loads_shape(r->config.loads, n_looked_layers(r), r->info.n_experts);
  uint64_t n_bytes = n_looked_layers(r) * layer_words(r) * sizeof *r->look;
  r->look = runner_memory_pin(&r->memory, r->last, n_bytes, &status);
  r->n_bytes += n_bytes;
  return status;
}

void runner_look_close(device_runner *r) {
  runner_memory_unpin(&r->memory, r->last, r->look);
}

/* Rows that fill a step up lie behind those that are stored, and are not looked at. */
static uint32_t n_rows_of(const runner_step *step) {
  uint32_t n = step->n_filled > 0 ? step->batch->n_stored - step->n_filled : step->batch->n_rows;
  return n < RUNNER_LOOK_ROWS ? n : RUNNER_LOOK_ROWS;
}

weft_status runner_look_send(device_runner *r, runner_flight *f, const runner_step *step) {
  const weft_model *model = r->config.model;
  weft_status status = WEFT_OK;
  f->n_looked = 0;
  if (r->look == NULL || r->is_looking || f->number % RUNNER_LOOK_EVERY != 1) return WEFT_OK;
  uint32_t n = n_rows_of(step);
  for (uint32_t l = 0; l < n_looked_layers(r) && status == WEFT_OK; l++) {
    const model_part *part = &model->part[model_part_of(model, l)];
    const model_layer *layer = &model->layers[l];
    if (layer->down_exps.data != NULL)
      status = weft_device_copy(part->device, r->look + l * layer_words(r), layers_ids_of(model, part, layer),
                                (uint64_t)n * r->info.n_experts_used * sizeof *r->look);
  }
  f->n_looked = n;
  r->is_looking = true;
  return status;
}

void runner_look_take(device_runner *r, const runner_flight *f, bool sound) {
  const weft_model *model = r->config.model;
  if (f->n_looked == 0) return;
  for (uint32_t l = 0; l < n_looked_layers(r) && sound; l++) {
    if (model->layers[l].down_exps.data == NULL) continue;
    weft_expert_loads_add(r->config.loads, l, r->look + l * layer_words(r),
                          (uint64_t)f->n_looked * r->info.n_experts_used);
  }
  r->is_looking = false;
}
