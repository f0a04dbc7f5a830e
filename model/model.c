/* SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/range.h"
#include "model/keys.h"
#include "model/layers.h"
#include "model/models.h"

enum { ROWS_MAX = 1 << 20, EXTRA_VECTORS = 2 + 2 * WEFT_LAYERS_MAX };

/* ---- open ---- */

static weft_status check_limits(const weft_model_limits *limits, weft_error *error) {
  if (limits->rows_max >= 1 && limits->rows_max <= ROWS_MAX && limits->canvas_rows_max <= limits->rows_max &&
      limits->segments_max >= 1 && limits->segments_max <= limits->rows_max) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_E_INVALID,
                   "model limits: %" PRIu32 " rows, %" PRIu32 " canvas rows, %" PRIu32
                   " segments; rows 1..%d, the others at most as many",
                   limits->rows_max, limits->canvas_rows_max, limits->segments_max, ROWS_MAX);
}

/* What a request gets that leaves these numbers to the model; a file that names none has the plain distribution. */
static weft_status read_sampling(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  static const weft_range temperature = {WEFT_RANGE_TEMPERATURE}, top_p = {WEFT_RANGE_TOP_P};
  model_keys keys = {gguf, model->hyper.arch, error};
  weft_model_info *info = &model->info;
  weft_status status = model_keys_f32_or(&keys, "general.sampling.temp", temperature.least, temperature.greatest, 1.0f,
                                         &info->temperature);
  if (status == WEFT_OK) {
    status = model_keys_f32_or(&keys, "general.sampling.top_p", top_p.least, top_p.greatest, 1.0f, &info->top_p);
  }
  if (status == WEFT_OK) status = model_keys_u32_or(&keys, "general.sampling.top_k", 0, INT32_MAX, 0, &info->top_k);
  return status;
}

static void fill_info(weft_model *model, const weft_gguf *gguf) {
  const model_hyper *hyper = &model->hyper;
  weft_model_info *info = &model->info;
  memcpy(info->arch, hyper->arch, sizeof info->arch);
  gguf_model_name(gguf, info->name, sizeof info->name);
  info->n_vocab = hyper->n_vocab;
  info->n_hidden = hyper->n_hidden;
  info->n_layers = hyper->n_layers;
  info->n_experts = hyper->n_experts;
  info->n_experts_used = hyper->n_experts_used;
  info->context_length = hyper->context_length;
  info->canvas_length = hyper->canvas_length;
  info->entropy_bound = hyper->entropy_bound;
  info->kv_type = model->limits.kv_8bit ? WEFT_TYPE_Q8_0 : gguf_kv_type(gguf);
  info->kv = model_hyper_geometry(hyper, info->kv_type);
  weft_gguf_fingerprint(gguf, &info->fingerprint_low, &info->fingerprint_high);
}

static weft_status check_heads(const weft_model *model, const weft_gguf *gguf, weft_error *error) {
  for (uint32_t l = 0; l < model->hyper.n_layers; l++) {
    if (weft_kv_row_fits(model->info.kv_type, model->hyper.head_dim[l])) continue;
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: layer %" PRIu32 " has heads of %" PRIu32 "; keys and values in 8 bits need multiples of %d",
                     weft_gguf_path(gguf), l, model->hyper.head_dim[l], WEFT_KV_Q8_BLOCK);
  }
  return WEFT_OK;
}

static weft_status take_memory(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  model->owned_max = weft_gguf_n_tensors(gguf) + EXTRA_VECTORS;
  model->owned = weft_alloc(model->owned_max, sizeof *model->owned);
  model->weights = weft_alloc(model->owned_max, sizeof *model->weights);
  model->layers = weft_alloc(model->hyper.n_layers, sizeof *model->layers);
  model->segments = weft_alloc(model->limits.segments_max, sizeof *model->segments);
  if (model->owned == NULL || model->weights == NULL || model->layers == NULL || model->segments == NULL) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  }
  return WEFT_OK;
}

static weft_status take_arrays(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  weft_status status = step_arrays_open(&model->arrays, model->device, &model->limits);
  if (status == WEFT_OK) return WEFT_OK;
  return weft_fail(error, status, "%s: no memory for the arrays of a step", weft_gguf_path(gguf));
}

/* Everything that can be refused without reading weights. */
static weft_status judge_weights(weft_model *model, weights_loader *loader) {
  uint32_t n = weft_gguf_n_tensors(loader->gguf);
  loader->used = weft_alloc(n, 1);
  if (loader->used == NULL) {
    return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
  }
  for (uint32_t i = 0; i < n; i++) loader->n_bytes_all += weft_gguf_tensor_at(loader->gguf, i)->n_bytes;
  loader->judging = true;
  weft_status status = model->arch->load(model, loader);
  if (status == WEFT_OK) status = weights_check_unused(loader);
  return status;
}

static weft_status load_weights(weft_model *model, weights_loader *loader) {
  weft_status status = judge_weights(model, loader);
  if (status == WEFT_OK) status = weights_check_room(loader);
  if (status != WEFT_OK) return status;
  weights_rewind(loader);
  status = model->arch->load(model, loader);
  if (status == WEFT_OK) status = weft_device_sync(model->device); /* what was enqueued has been read by the card */
  if (status == WEFT_OK) status = gguf_reader_check_unchanged(loader->reader, loader->error);
  return status;
}

static weft_status take_scratch(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  weft_status status = layers_plan(model);
  if (status == WEFT_OK) status = weft_device_alloc(model->device, model->plan.n_bytes, &model->scratch_base);
  if (status != WEFT_OK) {
    return weft_fail(error, status,
                     "%s: no room for the scratch of %" PRIu32 " rows (%" PRIu64 " MiB); allow fewer rows per step",
                     weft_gguf_path(gguf), model->limits.rows_max, model->plan.n_bytes >> 20);
  }
  layers_place(model);
  model->info.scratch_bytes = model->plan.n_bytes;
  return WEFT_OK;
}

weft_status weft_model_open(const weft_gguf *gguf, weft_device *device, const weft_model_limits *limits,
                            weft_model_progress progress, void *progress_self, weft_model **out, weft_error *error) {
  *out = NULL;
  weft_status status = check_limits(limits, error);
  if (status != WEFT_OK) return status;
  weft_model *model = weft_alloc(1, sizeof *model);
  if (model == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  weights_loader loader = {
      .gguf = gguf, .model = model, .progress = progress, .progress_self = progress_self, .error = error};
  model->device = device;
  model->limits = *limits;
  bool direct = !weft_device_get_info(device)->host_memory; /* a host's next start reads from the cache */
  status = gguf_reader_open(gguf, direct, &loader.reader, error);
  if (status == WEFT_OK) status = model_hyper_read(gguf, &model->arch, &model->hyper, error);
  if (status == WEFT_OK) status = read_sampling(model, gguf, error);
  if (status == WEFT_OK) fill_info(model, gguf);
  if (status == WEFT_OK) status = check_heads(model, gguf, error);
  if (status == WEFT_OK) status = take_memory(model, gguf, error);
  if (status == WEFT_OK) status = take_arrays(model, gguf, error);
  if (status == WEFT_OK) status = load_weights(model, &loader);
  weights_close(&loader);
  if (status == WEFT_OK) status = take_scratch(model, gguf, error);
  if (status != WEFT_OK) {
    weft_model_close(model);
    return status;
  }
  *out = model;
  return WEFT_OK;
}

weft_status weft_model_judge(const weft_gguf *gguf, weft_error *error) {
  weft_model *model = weft_alloc(1, sizeof *model);
  if (model == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  weights_loader loader = {.gguf = gguf, .model = model, .error = error};
  model->limits = (weft_model_limits){.rows_max = 1, .canvas_rows_max = 1, .segments_max = 1};
  weft_status status = model_hyper_read(gguf, &model->arch, &model->hyper, error);
  if (status == WEFT_OK) status = read_sampling(model, gguf, error);
  if (status == WEFT_OK) status = take_memory(model, gguf, error);
  if (status == WEFT_OK) status = judge_weights(model, &loader);
  weights_close(&loader);
  weft_free(model->owned);
  weft_free(model->weights);
  weft_free(model->layers);
  weft_free(model->segments);
  weft_free(model);
  return status;
}

void weft_model_close(weft_model *model) {
  if (model == NULL) return;
  for (uint32_t i = 0; i < model->n_owned; i++) weft_device_free(model->device, model->owned[i]);
  for (uint32_t i = 0; i < model->n_weights; i++) weft_device_weight_free(model->device, &model->weights[i]);
  if (model->scratch_base != NULL) weft_device_free(model->device, model->scratch_base);
  step_arrays_close(&model->arrays);
  weft_free(model->owned);
  weft_free(model->weights);
  weft_free(model->layers);
  weft_free(model->segments);
  weft_free(model);
}

const weft_model_info *weft_model_get_info(const weft_model *model) {
  return &model->info;
}

const weft_weight *weft_model_head(const weft_model *model, float *cap, float *embed_scale) {
  *cap = model->hyper.cap;
  *embed_scale = model->hyper.embed_scale;
  return model->globals.output.data != NULL ? &model->globals.output : &model->globals.token_embd;
}

/* ---- forward ---- */

/* Outputs of causal rows come before those of canvas rows. */
static bool outputs_are_sound(const weft_forward_args *args) {
  const weft_batch *batch = args->batch;
  if (args->n_output > batch->n_rows) return false;
  for (uint32_t i = 0; i < args->n_output; i++) {
    if (args->output_row[i] >= batch->n_rows) return false;
    bool was_canvas = i > 0 && args->output_row[i - 1] >= batch->n_causal;
    if (was_canvas && args->output_row[i] < batch->n_causal) return false;
  }
  return true;
}

static void probe_layer(const model_step *step, uint32_t layer) {
  const weft_forward_args *args = step->args;
  if (args->layer_probe != NULL) args->layer_probe(args->probe_self, layer, step->x, step->n_rows);
}

weft_status weft_model_forward(weft_model *model, weft_forward_args *args) {
  weft_batch_bounds bounds = model_bounds(model, args->layout, UINT32_MAX);
  args->n_experts_touched = 0;
  if (args->kv->page_bytes < args->layout->page_bytes) return WEFT_E_INVALID;
  if (!weft_batch_is_sound(args->batch, &bounds) || !outputs_are_sound(args)) return WEFT_E_INVALID;
  return model_forward(model, args);
}

weft_batch_bounds model_bounds(const weft_model *model, const weft_kv_layout *layout, uint32_t n_slots) {
  return (weft_batch_bounds){.rows_max = model->limits.rows_max,
                             .canvas_rows_max = model->limits.canvas_rows_max,
                             .segments_max = model->limits.segments_max,
                             .n_slots = n_slots,
                             .n_groups = layout->n_groups,
                             .canvas_length = model->hyper.canvas_length,
                             .scored_rows_max = model->limits.rows_max};
}

weft_status model_forward(weft_model *model, weft_forward_args *args) {
  args->n_experts_touched = 0;
  if (args->batch->n_rows == 0) return WEFT_OK;
  model_step step = {
      .model = model,
      .args = args,
      .n_rows = args->batch->n_rows,
      .n_causal = args->batch->n_causal,
      .x = model->scratch.x,
      .h = model->scratch.h,
      .a = model->scratch.a,
  };
  weft_status status = step_arrays_fill(&model->arrays, args);
  weft_device_at_layer(model->device, 0);
  if (status == WEFT_OK) status = model->arch->embed(&step);
  probe_layer(&step, 0);
  layers_norm_args norm = {.x = step.x, .weight = model->layers[0].attn_norm, .y = step.h, .n_rows = step.n_rows};
  if (status == WEFT_OK) status = layers_norm(&step, &norm);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    weft_device_at_layer(model->device, l);
    status = model->arch->layer(&step, l);
    if (step.n_rows == 0) break; /* no output is wanted, and all keys are stored */
    probe_layer(&step, l + 1);
  }
  weft_device_at_layer(model->device, UINT32_MAX);
  args->n_experts_touched = step.n_touched;
  return status;
}
