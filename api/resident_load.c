/* SPDX-License-Identifier: MIT */
#include "api/resident_load.h"

#include <unistd.h>

#include "kernels/cpu/thread_pool.h"
#include "model/step_arrays.h"

/* ---- the pace -------------------------------------------------------------------------------------- */

static bool requests_run(const resident_loader *loader) {
  weft_engine_stats stats;
  weft_engine_get_stats(weft_replicas_at(loader->rt->replicas, 0), &stats);
  return stats.n_running > 0;
}

/* On the thread that loads, between two pieces. */
static void pace_load(void *self, uint64_t device_us) {
  resident_loader *loader = self;
  uint64_t now = weft_clock_us();
  if (load_pace_looks(&loader->pace, now)) load_pace_saw(&loader->pace, now, requests_run(loader));
  uint64_t us = load_pace_owes(&loader->pace, device_us);
  if (us == 0) return;
  (void)usleep((useconds_t)us);
  load_pace_slept(&loader->pace, weft_clock_us() - now);
}

/* ---- open ------------------------------------------------------------------------------------------ */

/* A card's driver loads the kernels that place weights when the first one is placed, which must not be beside steps. */
static weft_status place_first(weft_device *placer, weft_error *error) {
  enum { N_IN = 256, N_OUT = 16 };
  static const uint16_t bytes[N_IN * N_OUT];
  weft_weight weight = {.type = WEFT_TYPE_F16, .n_in = N_IN, .n_out = N_OUT, .n_mats = 1};
  weft_status status = weft_device_weight(placer, &weight, bytes, WEFT_USE_MATMUL, error);
  if (status == WEFT_OK) weft_device_weight_free(placer, &weight);
  return status;
}

weft_status resident_loader_open(weft_runtime *rt, uint64_t bytes_max, resident_loader *out, weft_error *error) {
  const weft_device_info *info = weft_device_get_info(rt->devices.device[0]);
  *out = (resident_loader){.rt = rt};
  weft_status status = devices_open_placer(&rt->options, &rt->devices, bytes_max, &out->placer, error);
  if (status == WEFT_OK && !info->host_memory) status = place_first(out->placer, error);
  bool has_core = info->host_memory && info->n_threads < weft_thread_pool_cores();
  if (status == WEFT_OK && !has_core) weft_device_set_pace(out->placer, pace_load, out);
  if (status == WEFT_OK) status = resident_beds_open(out->placer, rt->options.sleep_bytes, &out->beds, error);
  out->beds.pace = pace_load;
  out->beds.pace_self = out;
  return status;
}

void resident_loader_close(resident_loader *loader) {
  if (loader->placer != NULL) resident_beds_close(&loader->beds);
  weft_device_close(loader->placer);
}

/* ---- the plan -------------------------------------------------------------------------------------- */

/* Entries of the block tables of the largest step, of all segments. */
static uint64_t count_table_entries(const weft_runtime *rt, const weft_served_model *m,
                                    const weft_model_limits *limits) {
  uint64_t n_each = 0, n_states = 0;
  for (uint32_t g = 0; g < m->layout.n_groups; g++) {
    const weft_layer_group *group = &m->layout.group[g];
    uint64_t n_tokens = (uint64_t)m->context + rt->options.rows;
    uint64_t kept = (uint64_t)group->window + rt->options.rows + group->block_tokens;
    if (group->window > 0 && kept < n_tokens) n_tokens = kept;
    n_each += group->state_pages > 0 ? group->state_pages : n_tokens / group->block_tokens + 2;
    n_states += group->state_pages;
  }
  return limits->segments_max * n_each + (2ull * limits->segments_max + limits->rows_max / 16) * n_states;
}

/* Takes of a model, at most, whose sizes the plan adds up: weights, vectors, buffers of slots and steps. */
static uint32_t count_takes(const weft_runtime *rt, const weft_served_model *m) {
  return 4 * weft_gguf_n_tensors(m->gguf) + 32 * weft_model_get_info(m->model)->n_layers + 4 * rt->options.running +
         256;
}

static weft_status open_holding(resident_loader *loader, uint32_t i, uint64_t n_pinned, resident_memory *out,
                                weft_error *error) {
  const weft_served_model *m = &loader->rt->model[i];
  weft_model_limits limits = weft_runtime_limits(loader->rt, m);
  limits.table_entries_max = out->table_entries = count_table_entries(loader->rt, m, &limits);
  uint64_t n_bytes = weft_holding_bytes(out->need_bytes + step_arrays_bytes(&limits), count_takes(loader->rt, m));
  weft_status status = weft_holding_open(loader->placer, n_bytes, n_pinned, &out->holding);
  if (status == WEFT_E_UNSUPPORTED)
    return weft_fail(error, status,
                     "--models-dir: the driver of this card maps no memory, so no model can come and go: name each "
                     "with -m");
  if (status != WEFT_OK)
    return weft_fail(error, status, "--models-dir: there is no room for %.1f MiB of pinned host memory of %s",
                     (double)n_pinned / 1048576.0, m->name);
  out->need_bytes = out->holding.stretch.n_bytes_max;
  return WEFT_OK;
}

weft_status resident_plan(resident_loader *loader, uint32_t i, resident_memory *out, weft_error *error) {
  weft_served_model *m = &loader->rt->model[i];
  const weft_model_info *info = weft_model_get_info(m->model);
  weft_device_runner_config config = weft_runtime_runner_config(loader->rt, i, 0);
  uint64_t n_bytes = 0, n_pinned = 0;
  weft_status status = weft_device_runner_count(&config, &n_bytes, &n_pinned);
  if (status != WEFT_OK) return weft_fail(error, status, "no memory to plan %s", m->path);
  m->copy[0].runner_bytes = n_bytes;
  out->need_bytes = info->weight_bytes + info->scratch_bytes + n_bytes;
  return weft_device_get_info(loader->placer)->host_memory ? WEFT_OK : open_holding(loader, i, n_pinned, out, error);
}

void resident_forget(resident_memory *memory) {
  weft_holding_close(&memory->holding);
}

/* ---- one load -------------------------------------------------------------------------------------- */

weft_status resident_open_file(const weft_served_model *m, weft_gguf **out, weft_error *error) {
  const weft_model_info *planned = weft_model_get_info(m->model);
  uint64_t low, high;
  weft_status status = weft_gguf_open(m->path, out, error);
  if (status != WEFT_OK) return status;
  weft_gguf_fingerprint(*out, &low, &high);
  if (low == planned->fingerprint_low && high == planned->fingerprint_high) return WEFT_OK;
  weft_gguf_close(*out);
  *out = NULL;
  return weft_fail(error, WEFT_E_INVALID,
                   "%s is another file than when the server started: start it again for this one", m->path);
}

static weft_status open_runner(const resident_loader *loader, uint32_t i, resident_memory *memory, weft_model *model,
                               weft_runner **out, weft_error *error) {
  weft_device_runner_config config = weft_runtime_runner_config(loader->rt, i, 0);
  const weft_model_info *info = weft_model_get_info(model);
  uint64_t n_bytes = 0;
  config.model = model;
  weft_status status = weft_device_runner_open(&config, out, &n_bytes, error);
  memory->took_bytes = info->weight_bytes + info->scratch_bytes + n_bytes;
  return status;
}

static weft_status open_model(const resident_loader *loader, uint32_t i, resident_memory *memory, weft_model **model,
                              weft_runner **runner, weft_error *error) {
  weft_served_model *m = &loader->rt->model[i];
  weft_model_limits limits = weft_runtime_limits(loader->rt, m);
  weft_gguf *gguf = NULL;
  limits.placer = loader->placer;
  limits.table_entries_max = memory->table_entries;
  weft_status status = resident_open_file(m, &gguf, error);
  if (status == WEFT_OK) status = weft_model_open(gguf, &m->copy[0].split, &limits, NULL, NULL, model, error);
  weft_gguf_close(gguf);
  if (status == WEFT_OK) status = open_runner(loader, i, memory, *model, runner, error);
  if (status != WEFT_OK) return status;
  status = weft_device_sync(loader->placer); /* its steps find all there */
  return status == WEFT_OK ? status : weft_fail(error, status, "the device did not place its weights");
}

weft_status resident_open(resident_loader *loader, uint32_t i, resident_memory *memory, weft_model **model,
                          weft_runner **runner, weft_error *error) {
  weft_holding *holding = memory->holding.stretch.base != NULL ? &memory->holding : NULL;
  *model = NULL;
  *runner = NULL;
  if (holding != NULL) weft_holding_begin(holding);
  weft_status status = open_model(loader, i, memory, model, runner, error);
  if (holding != NULL) weft_holding_end(holding);
  if (holding != NULL) memory->took_bytes = holding->stretch.n_bytes;
  if (status == WEFT_OK) return status;
  (void)weft_device_sync(loader->placer); /* of what was refused nothing is on its way */
  resident_close(memory, *model, *runner);
  *model = NULL;
  *runner = NULL;
  return status;
}

void resident_close(resident_memory *memory, weft_model *model, weft_runner *runner) {
  if (runner != NULL) runner->ops->close(runner);
  weft_model_close(model);
  if (memory->holding.stretch.base != NULL) weft_holding_clear(&memory->holding);
}
