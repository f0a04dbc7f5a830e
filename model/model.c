/* SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/range.h"
#include "kernels/host_experts.h"
#include "model/assistant.h"
#include "model/dflash.h"
#include "model/gguf/keys.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/nextn.h"
#include "model/shards.h"
#include "model/weights_slice.h"

enum { ROWS_MAX = 1 << 20, EXTRA_VECTORS = 4 + 2 * WEFT_LAYERS_MAX };

const char *model_where(const weft_model *model, const model_part *part, char out[48]) {
  out[0] = 0;
  if (model->split.n_devices > 1)
    (void)snprintf(out, 48, " on device %" PRIu32, weft_device_get_info(part->device)->index);
  return out;
}

/* ---- open ---- */

/* Who places the weights of a part, and frees them. */
static weft_device *placer_of(const weft_model *model, uint32_t p) {
  return model->limits.placer != NULL ? model->limits.placer : model->part[p].device;
}

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

/* A drafter's keys lie in the pages of its target. */
static void find_target_keys(weft_model *model) {
  model->info.kv = model->target->info.kv;
  model->info.kv_type = model->target->info.kv_type;
  if (model->limits.nextn)
    nextn_find_keys(model);
  else if (dflash_is(model))
    dflash_find_keys(model);
  else
    assistant_find_keys(model);
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
  info->kv.n_shards = model->n_shards;
  if (model->limits.nextn && model->target == NULL) nextn_add_keys(hyper, &info->kv);
  if (model->limits.block_drafter != NULL && model->target == NULL) (void)dflash_add_keys(model, &info->kv);
  for (uint32_t s = info->kv.n_sets; s-- > 0;) model->first_set[info->kv.set[s].layer] = (uint16_t)s;
  if (model->target != NULL) find_target_keys(model);
  weft_gguf_fingerprint(gguf, &info->fingerprint_low, &info->fingerprint_high);
}

static weft_status check_heads(const weft_model *model, const weft_gguf *gguf, weft_error *error) {
  const uint32_t index_dim = model->hyper.latent.index_dim;
  if (!weft_kv_row_fits(model->info.kv_type, index_dim))
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: the rows of its index have %" PRIu32
                     " numbers; keys and values in 8 bits need multiples of %d",
                     weft_gguf_path(gguf), index_dim, WEFT_KV_Q8_BLOCK);
  for (uint32_t l = 0; l < model->hyper.n_layers; l++) {
    if (weft_kv_row_fits(model->info.kv_type, model->hyper.head_dim[l])) continue;
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: layer %" PRIu32 " has heads of %" PRIu32 "; keys and values in 8 bits need multiples of %d",
                     weft_gguf_path(gguf), l, model->hyper.head_dim[l], WEFT_KV_Q8_BLOCK);
  }
  return WEFT_OK;
}

static weft_status take_memory(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  model->layers = weft_alloc(model->hyper.n_layers, sizeof *model->layers);
  bool refused = model->layers == NULL;
  for (uint32_t p = 0; p < model->n_parts; p++) {
    model_part *part = &model->part[p];
    part->owned_max = weft_gguf_n_tensors(gguf) + EXTRA_VECTORS;
    if (model->hyper.latent.n_streams > 0) part->owned_max += model->hyper.n_layers * MODEL_LATENT_GROUPS_MAX;
    part->owned = weft_alloc(part->owned_max, sizeof *part->owned);
    part->weights = weft_alloc(part->owned_max, sizeof *part->weights);
    part->segments = weft_alloc(model->limits.segments_max, sizeof *part->segments);
    refused = refused || part->owned == NULL || part->weights == NULL || part->segments == NULL;
    if (model->hyper.latent.n_streams > 0 || model->hyper.mla.rank > 0) {
      part->latent_segments = weft_alloc(model->limits.segments_max, sizeof *part->latent_segments);
      refused = refused || part->latent_segments == NULL;
    }
    if (model->hyper.delta.n_v_heads == 0) continue;
    uint64_t n_writes = model->limits.rows_max / MODEL_DELTA_EVERY + (uint64_t)model->limits.segments_max;
    part->delta_segments = weft_alloc(model->limits.segments_max, sizeof *part->delta_segments);
    part->delta_writes = weft_alloc(n_writes, sizeof *part->delta_writes);
    refused = refused || part->delta_segments == NULL || part->delta_writes == NULL;
  }
  return refused ? weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf)) : WEFT_OK;
}

/* What a part has no room for: "device 1: 12.00 MiB needed, 3.00 MiB free". */
static const char *tell_part(const weft_model *model, const model_part *part, uint64_t n_bytes,
                             char out[WEFT_SPLIT_ROOM_MAX]) {
  uint64_t needed[WEFT_DEVICES_MAX] = {0};
  needed[model_place_of(model, part)] = n_bytes;
  return weft_split_tell_room(&model->split, needed, NULL, out);
}

static weft_status take_arrays(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    status = step_arrays_open(&model->part[p].arrays, model->part[p].device, &model->limits);
  }
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
  if (status == WEFT_OK) status = weights_token_tables(loader);
  if (status == WEFT_OK && model->shard == 0) status = weights_check_unused(loader);
  return status;
}

static weft_status load_weights(weft_model *model, weights_loader *loader) {
  weft_status status = judge_weights(model, loader);
  if (status == WEFT_OK) status = weights_check_room(loader);
  if (status != WEFT_OK) return status;
  weights_rewind(loader);
  for (uint32_t p = 0; p < model->n_parts; p++)
    weft_device_expect_experts(placer_of(model, p), loader->experts[model_place_of(model, &model->part[p])]);
  status = model->arch->load(model, loader);
  if (status == WEFT_OK) status = weights_token_tables(loader);
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    status = weft_device_sync(placer_of(model, p)); /* what was enqueued has been read by the card */
  }
  if (status == WEFT_OK) status = gguf_reader_check_unchanged(loader->reader, loader->error);
  return status;
}

static weft_status take_scratch(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  char room[WEFT_SPLIT_ROOM_MAX];
  for (uint32_t p = 0; p < model->n_parts; p++) {
    model_part *part = &model->part[p];
    weft_status status = layers_plan(model, part);
    if (status == WEFT_OK) status = weft_device_alloc(placer_of(model, p), part->plan.n_bytes, &part->scratch_base);
    if (status != WEFT_OK) {
      return weft_fail(error, status,
                       "%s: no room for the scratch of %" PRIu32 " rows (%s); allow fewer rows per step: lower --rows",
                       weft_gguf_path(gguf), model->limits.rows_max, tell_part(model, part, part->plan.n_bytes, room));
    }
    layers_place(part);
    model->info.part[model_place_of(model, part)].scratch_bytes = part->plan.n_bytes;
    model->info.scratch_bytes += part->plan.n_bytes;
  }
  return WEFT_OK;
}

static weft_status read_hyper(weft_model *model, const weft_gguf *gguf, weft_error *error) {
  if (model->target == NULL) return model_hyper_read(gguf, &model->arch, &model->hyper, error);
  if (model->limits.nextn) return nextn_read(gguf, model, error);
  if (dflash_is_file(gguf)) return dflash_read(gguf, model, error);
  model->arch = assistant_arch(gguf);
  return assistant_read(gguf, model->target, &model->hyper, error);
}

/* Which layers lie where. */
static weft_status take_parts(weft_model *model, const weft_split *split, const weft_gguf *gguf, weft_error *error) {
  weft_error inner = {{0}};
  weft_status status = weft_split_check(split, &model->info.kv, &inner);
  if (status != WEFT_OK) return weft_fail(error, status, "%s: %.400s", weft_gguf_path(gguf), inner.text);
  model->split = *split;
  model->n_parts = weft_split_stages(split);
  model->info.n_parts = split->n_devices;
  for (uint32_t p = 0; p < model->n_parts; p++) {
    bool is_last = p + 1 == model->n_parts;
    model_part *part = &model->part[p];
    uint32_t place = model_place_of(model, part);
    part->device = split->device[place];
    part->first_layer = split->first_layer[p];
    part->end_layer = is_last ? model->hyper.n_layers : split->first_layer[p + 1];
    model->info.part[place].first_layer = part->first_layer;
    model->info.part[place].end_layer = part->end_layer;
    for (uint32_t s = 0; s < model->info.kv.n_sets; s++) {
      weft_kv_set *set = &model->info.kv.set[s];
      if (set->layer >= part->first_layer && set->layer < part->end_layer) set->part = (uint8_t)p;
    }
  }
  return WEFT_OK;
}

/* What the keys of the file say, and which layers lie where. */
static weft_status read_file(weft_model *model, const model_opening *opening) {
  const weft_gguf *gguf = opening->gguf;
  const weft_split *split = opening->split;
  weft_error *error = opening->error;
  weft_status status = read_hyper(model, gguf, error);
  if (status == WEFT_OK && model->limits.nextn && model->target == NULL)
    status = nextn_check(gguf, model, split->n_devices, error);
  if (status == WEFT_OK && model->limits.block_drafter != NULL && model->target == NULL)
    status = dflash_check(model, split->n_devices, error);
  if (status == WEFT_OK) status = weights_slice_heads(gguf, model, error);
  if (status == WEFT_OK) status = read_sampling(model, gguf, error);
  if (status == WEFT_OK) fill_info(model, gguf);
  if (status == WEFT_OK) status = check_heads(model, gguf, error);
  if (status == WEFT_OK) status = take_parts(model, split, gguf, error);
  if (status == WEFT_OK) model_shards_share_tokens(model, split);
  return status == WEFT_OK ? take_memory(model, gguf, error) : status;
}

static weft_model *make_model(const model_opening *opening, uint32_t shard) {
  const weft_split *split = opening->split;
  weft_model *model = weft_alloc(1, sizeof *model);
  if (model == NULL) {
    (void)weft_fail(opening->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(opening->gguf));
    return NULL;
  }
  model->limits = *opening->limits;
  model->target = opening->limits->target;
  model->n_shards = weft_split_shards(split);
  model->shard = shard;
  return model;
}

weft_status model_open_shard(const model_opening *opening, uint32_t shard, weft_model **out) {
  const weft_gguf *gguf = opening->gguf;
  weft_error *error = opening->error;
  weft_model *model = make_model(opening, shard);
  if (model == NULL) return WEFT_E_NO_MEMORY;
  weights_loader loader = {.gguf = gguf,
                           .model = model,
                           .progress = opening->progress,
                           .progress_self = opening->progress_self,
                           .error = error};
  bool direct = !weft_device_get_info(opening->split->device[0])->host_memory; /* a host's next start reads the cache */
  weft_status status = gguf_reader_open(gguf, direct, &loader.reader, error);
  if (status == WEFT_OK) status = read_file(model, opening);
  if (status == WEFT_OK) status = take_arrays(model, gguf, error);
  if (status == WEFT_OK) status = load_weights(model, &loader);
  model->info.read_bytes = gguf_reader_bytes(loader.reader);
  weights_close(&loader);
  if (status == WEFT_OK) status = take_scratch(model, gguf, error);
  if (status != WEFT_OK) {
    weft_model_close(model);
    return status;
  }
  *out = model;
  return WEFT_OK;
}

/* The largest step's scratch, by what was judged. */
static weft_status plan_scratch(weft_model *model) {
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    status = layers_plan(model, &model->part[p]);
    model->info.part[model_place_of(model, &model->part[p])].scratch_bytes = model->part[p].plan.n_bytes;
    model->info.scratch_bytes += model->part[p].plan.n_bytes;
  }
  return status;
}

weft_status weft_model_plan(const weft_gguf *gguf, const weft_split *split, const weft_model_limits *limits,
                            weft_model **out, weft_error *error) {
  const model_opening opening = {gguf, split, limits, NULL, NULL, error};
  *out = NULL;
  weft_status status = check_limits(limits, error);
  if (status == WEFT_OK && split->n_devices != 1)
    status = weft_fail(error, WEFT_E_UNSUPPORTED, "%s: only a model on one device is planned", weft_gguf_path(gguf));
  weft_model *model = status == WEFT_OK ? make_model(&opening, 0) : NULL;
  if (model == NULL) return status == WEFT_OK ? WEFT_E_NO_MEMORY : status;
  weights_loader loader = {.gguf = gguf, .model = model, .error = error, .planning = true};
  status = read_file(model, &opening);
  if (status == WEFT_OK) status = judge_weights(model, &loader);
  weights_close(&loader);
  if (status == WEFT_OK && plan_scratch(model) != WEFT_OK)
    status = weft_fail(error, WEFT_E_NO_MEMORY, "%s: its activations cannot be planned", weft_gguf_path(gguf));
  if (status != WEFT_OK) {
    weft_model_close(model);
    return status;
  }
  *out = model;
  return WEFT_OK;
}

weft_status weft_model_open(const weft_gguf *gguf, const weft_split *split, const weft_model_limits *limits,
                            weft_model_progress progress, void *progress_self, weft_model **out, weft_error *error) {
  const model_opening opening = {gguf, split, limits, progress, progress_self, error};
  weft_model *model = NULL;
  *out = NULL;
  weft_status status = check_limits(limits, error);
  if (status == WEFT_OK) status = model_open_shard(&opening, 0, &model);
  if (status == WEFT_OK) status = model_shards_open(model, &opening);
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
  model->n_parts = model->n_shards = 1; /* without a device */
  model->part[0].end_layer = model->hyper.n_layers;
  if (status == WEFT_OK) status = read_sampling(model, gguf, error);
  if (status == WEFT_OK) status = take_memory(model, gguf, error);
  if (status == WEFT_OK) status = judge_weights(model, &loader);
  weights_close(&loader);
  weft_model_close(model);
  return status;
}

static void close_part(weft_model *model, uint32_t p) {
  model_part *part = &model->part[p];
  for (uint32_t i = 0; i < part->n_owned; i++) weft_device_free(placer_of(model, p), part->owned[i]);
  for (uint32_t i = 0; i < part->n_weights; i++) weft_device_weight_free(placer_of(model, p), &part->weights[i]);
  if (part->scratch_base != NULL) weft_device_free(placer_of(model, p), part->scratch_base);
  step_arrays_close(&part->arrays);
  weft_free(part->owned);
  weft_free(part->weights);
  weft_free(part->segments);
  weft_free(part->delta_segments);
  weft_free(part->delta_writes);
  weft_free(part->latent_segments);
}

void weft_model_close(weft_model *model) {
  if (model == NULL) return;
  model_shards_close(model);
  for (uint32_t p = 0; p < model->n_parts; p++) close_part(model, p);
  weft_free(model->layers);
  weft_free(model);
}

const weft_model_info *weft_model_get_info(const weft_model *model) {
  return &model->info;
}

const weft_split *weft_model_get_split(const weft_model *model) {
  return &model->split;
}

weft_crossed weft_model_crossed(const weft_model *model) {
  uint64_t others = model_shards_crossed(model->others);
  for (uint32_t p = 0; p < model->n_parts && model->n_shards > 1; p++)
    others += weft_shards_crossed(model->part[p].exchanges);
  return (weft_crossed){.rows = __atomic_load_n(&model->crossed.rows, __ATOMIC_RELAXED) + others,
                        .soft = __atomic_load_n(&model->crossed.soft, __ATOMIC_RELAXED),
                        .tokens = __atomic_load_n(&model->crossed.tokens, __ATOMIC_RELAXED)};
}

const weft_weight *weft_model_head(const weft_model *model, float *cap, float *embed_scale) {
  *cap = model->hyper.cap;
  *embed_scale = model->hyper.embed_scale;
  static const weft_weight none;
  const model_globals *globals = &model->globals;
  if (!model->has_head) return &none;
  if (globals->output.data != NULL) return &globals->output;
  return globals->tied_output.data != NULL ? &globals->tied_output : &globals->token_embd;
}
