/* SPDX-License-Identifier: MIT */
/* Opening and closing: files, device, weights, the memory plan, the pool, runners, the engine thread. */
#include "api/tenants.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/answer_defaults.h"
#include "api/chat_template.h"
#include "api/config.h"
#include "api/drafts.h"
#include "api/models_folder.h"
#include "api/models_preset.h"
#include "api/request_memory.h"
#include "api/residents.h"
#include "api/served_names.h"
#include "api/shared_room.h"
#include "api/step_rows.h"
#include "api/weights_import.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "kernels/host_experts.h"
#include "model/residency.h"

enum { SPILL_PAGES_MAX = (1 << 24) - 4 };

/* ---- models ------------------------------------------------------------------------------------------------ */

static void list_files(const weft_runtime *rt, weft_gguf **gguf) {
  for (uint32_t i = 0; i < rt->n_models; i++) gguf[i] = rt->model[i].gguf;
}

/* All files are open before the first weight is loaded: whether integers of weights are kept depends on all of them. */
static void choose_integers(weft_runtime *rt, bool shares) {
  weft_gguf *gguf[WEFT_MODELS_MAX];
  list_files(rt, gguf);
  /* Where other processes map the weights, and models come and go, all have them or none. */
  devices_choose_integers(&rt->devices, gguf, rt->n_models, rt->options.kv_bytes,
                          !shares && !models_on_call(&rt->options));
}

/* Bytes of the device that weights and the pool that was asked for leave to a model that has it for itself. */
static uint64_t left_beside_weights(const weft_runtime *rt) {
  const weft_device *device = rt->devices.device[0];
  const uint64_t has = weft_device_get_info(device)->memory_free_bytes;
  uint64_t n_weights = 0, n_integers;
  if (rt->n_models != 1 || rt->model[0].comes_and_goes || rt->devices.n != rt->n_replicas) return 0;
  if (rt->options.weights == NULL) weft_split_weights(rt->model[0].gguf, device, &n_weights, &n_integers);
  const uint64_t taken = n_weights + rt->options.kv_bytes;
  return taken < has ? has - taken : 0;
}

static void choose_rows(weft_runtime *rt) {
  const bool host_memory = weft_device_get_info(rt->devices.device[0])->host_memory;
  const uint64_t left = host_memory ? 0 : left_beside_weights(rt);
  const step_rows rows = step_rows_choose(rt->options.rows, host_memory, left, rt->options.running);
  rt->options.rows = rows.most;
  rt->rows_beside = rows.beside;
}

static weft_status check_names(const weft_runtime *rt, weft_error *error) {
  weft_status status = served_names_check(rt, error);
  if (status == WEFT_OK) status = chat_templates_check(rt, error);
  if (status == WEFT_OK) status = drafts_check(rt, error);
  if (status != WEFT_OK) return status;
  for (uint32_t i = 0; i < rt->options.n_kv_8bit; i++) {
    const char *name = rt->options.kv_8bit[i];
    bool known = strcmp(name, "all") == 0;
    for (uint32_t j = 0; j < rt->n_models; j++) known |= strcmp(name, rt->model[j].file_name) == 0;
    if (!known) return weft_fail(error, WEFT_E_INVALID, "--kv-8bit: no model's file is named '%s'", name);
  }
  return WEFT_OK;
}

/* ---- the memory plan --------------------------------------------------------------------------------------- */

/* which: _SC_PHYS_PAGES or _SC_AVPHYS_PAGES. 0: the system does not say. */
static uint64_t host_bytes(int which) {
  long pages = sysconf(which), size = sysconf(_SC_PAGE_SIZE);
  return pages < 0 || size < 0 ? 0 : (uint64_t)pages * (uint64_t)size;
}

/* Bytes of pages that the longest request of a model holds, with one step's rows in flight. */
static uint64_t longest_bytes(const weft_served_model *m, uint32_t rows) {
  uint64_t n_pages = 0;
  for (uint32_t g = 0; g < m->layout.n_groups; g++) {
    const weft_layer_group *group = &m->layout.group[g];
    uint64_t tokens = (uint64_t)m->context + rows;
    n_pages += 3ull * group->state_pages; /* as weft_pager_pages_for counts them */
    if (group->state_pages > 0) continue;
    uint64_t kept = group->window == 0 ? tokens : (uint64_t)group->window + rows + group->block_tokens;
    n_pages += (kept < tokens ? kept : tokens) / group->block_tokens + 2;
  }
  return n_pages * m->layout.page_bytes;
}

static uint64_t least_kv_bytes(const weft_runtime *rt) {
  uint64_t least = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    uint64_t bytes = longest_bytes(&rt->model[i], rt->rows_beside);
    if (bytes > least) least = bytes;
  }
  return least;
}

/* The same of a device of its own memory: how many bytes of it the pages' part there may take. 85 % of what weights and
 * activations leave: slots, head scratch and graphs are not there yet. */
static uint64_t free_part_bytes(const weft_runtime *rt, uint32_t p) {
  weft_device *device = rt->devices.device[p];
  if (weft_device_get_info(device)->host_memory)
    return rt->devices.weights_bytes_max[p] == 0 ? UINT64_MAX : weft_device_memory_left(device) / 100 * 85;
  uint64_t used = weft_device_weights(device).n_bytes_held, has = weft_device_get_info(device)->memory_free_bytes;
  uint32_t r = rt->devices.replicas ? p : 0, part = rt->devices.replicas ? 0 : p;
  for (uint32_t i = 0; i < rt->n_models; i++)
    if (!rt->model[i].comes_and_goes) used += weft_model_get_info(rt->model[i].copy[r].model)->part[part].scratch_bytes;
  for (uint32_t i = 0; i < rt->n_models; i++) used += drafts_scratch_bytes(&rt->model[i].copy[r]);
  used += rt->models_bytes;
  return used < has ? (has - used) / 100 * 85 : 0;
}

/* Bytes that the pool of a replica may take: on each device there must be room for its part of every page. */
static uint64_t free_kv_bytes(const weft_runtime *rt) {
  uint64_t wanted = host_bytes(_SC_AVPHYS_PAGES) / 4 / rt->n_replicas, most = (uint64_t)4 << 30, n_pages = UINT32_MAX;
  const weft_kv_layout *layout = &rt->model[0].layout;
  for (uint32_t p = 0; p < rt->devices.n; p++) {
    uint64_t part_bytes = layout->part_bytes[rt->devices.replicas ? 0 : p];
    uint64_t own = part_bytes == 0 ? n_pages : free_part_bytes(rt, p) / part_bytes;
    if (own < n_pages) n_pages = own;
  }
  if (!weft_device_get_info(rt->devices.device[0])->host_memory) return n_pages * rt->page_bytes;
  if (wanted > most) wanted = most;
  return n_pages < wanted / rt->page_bytes ? n_pages * rt->page_bytes : wanted;
}

static uint64_t default_kv_bytes(const weft_runtime *rt) {
  uint64_t least = least_kv_bytes(rt), wanted = free_kv_bytes(rt);
  uint64_t useful = least * rt->options.running; /* more could never be held at once */
  if (wanted > useful) wanted = useful;
  return wanted < least ? least : wanted;
}

static double mib_of(uint64_t n_bytes) {
  return (double)n_bytes / (1024.0 * 1024.0);
}

static weft_status plan_pool(weft_runtime *rt, weft_error *error) {
  const weft_kv_geometry *geometry[WEFT_MODELS_MAX];
  weft_kv_layout *layouts = weft_alloc(rt->n_models, sizeof *layouts);
  if (layouts == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the plan");
  for (uint32_t i = 0; i < rt->n_models; i++) geometry[i] = &weft_model_get_info(rt->model[i].model)->kv;
  weft_status status = weft_kv_layout_choose(geometry, rt->n_models, 0, layouts, error);
  if (status == WEFT_OK) {
    for (uint32_t i = 0; i < rt->n_models; i++) rt->model[i].layout = layouts[i];
    rt->page_bytes = layouts[0].page_bytes;
  }
  weft_free(layouts);
  if (status != WEFT_OK) return status;
  if (rt->options.kv_bytes == 0) rt->options.kv_bytes = default_kv_bytes(rt);
  uint64_t n_pages = rt->options.kv_bytes / rt->page_bytes, memory = devices_memory(&rt->devices) / rt->n_replicas;
  if (n_pages > INT32_MAX || (memory > 0 && rt->options.kv_bytes > memory)) {
    return weft_fail(error, WEFT_E_INVALID,
                     "a pool of %.0f MiB is more than this device has (%.0f MiB): lower --kv-mib",
                     mib_of(rt->options.kv_bytes), mib_of(memory));
  }
  rt->n_pages = (uint32_t)n_pages;
  uint64_t n_host = rt->options.host_bytes / rt->n_replicas / rt->page_bytes, host = host_bytes(_SC_PHYS_PAGES);
  if (n_host >= 1u << 24 || (host > 0 && rt->options.host_bytes > host)) {
    return weft_fail(error, WEFT_E_INVALID,
                     "%.0f MiB of host memory behind the pool are more than 2^24 pages, or than there is (%.0f MiB): "
                     "lower --host-mib",
                     mib_of(rt->options.host_bytes), mib_of(host));
  }
  if (n_host > 0 && rt->options.no_prefix_cache) {
    return weft_fail(error, WEFT_E_INVALID,
                     "host memory keeps cached prefixes and there are none: leave out --host-mib or --no-prefix-cache");
  }
  if (n_host == 0 && rt->options.host_bytes > 0) {
    return weft_fail(error, WEFT_E_INVALID, "%.1f MiB of host memory hold no page of %.1f KiB: raise --host-mib",
                     mib_of(rt->options.host_bytes / rt->n_replicas), (double)rt->page_bytes / 1024.0);
  }
  rt->n_host_pages = (uint32_t)n_host;
  if (rt->n_pages == 0) {
    return weft_fail(error, WEFT_E_INVALID, "a pool of %.1f MiB holds no page of %.1f KiB: raise --kv-mib",
                     mib_of(rt->options.kv_bytes), (double)rt->page_bytes / 1024.0);
  }
  return WEFT_OK;
}

/* The pool of every replica, of the same size. */
static weft_status try_pools(weft_runtime *rt, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) {
    /* of a page all models have the same bytes */
    uint32_t n_max = rt->pool.n_pages_max, n = n_max > 0 ? rt->pool.n_pages_first : rt->n_pages;
    status =
        weft_kv_store_open_sized(&rt->model[0].copy[r].split, &rt->model[0].layout, n, n_max, &rt->store[r], error);
  }
  for (uint32_t r = 0; r < rt->n_replicas && status != WEFT_OK; r++) {
    weft_kv_store_close(rt->store[r]);
    rt->store[r] = NULL;
  }
  return status;
}

/* A pool whose size is our default, not the operator's choice, is halved while a device refuses it. */
static weft_status open_pools(weft_runtime *rt, bool may_shrink, weft_error *error) {
  uint64_t least = least_kv_bytes(rt);
  weft_status status = try_pools(rt, error);
  while (status == WEFT_E_NO_MEMORY && may_shrink && rt->options.kv_bytes / 2 >= least) {
    rt->options.kv_bytes /= 2;
    rt->n_pages = (uint32_t)(rt->options.kv_bytes / rt->page_bytes);
    shared_room_plan(rt);
    status = try_pools(rt, error);
  }
  return status;
}

/* Slots of the file behind host memory, of each replica. */
static weft_status plan_file(weft_runtime *rt, weft_error *error) {
  const weft_open_options *o = &rt->options;
  uint64_t n_file = o->spill_bytes / rt->n_replicas / rt->page_bytes;
  if ((o->spill_file != NULL) != (o->spill_bytes > 0)) {
    return weft_fail(error, WEFT_E_INVALID,
                     "a file behind the host memory has a name and a size: give --spill-file and --spill-mib");
  }
  if (o->spill_file == NULL) return WEFT_OK;
  if (rt->n_host_pages == 0) {
    return weft_fail(error, WEFT_E_INVALID,
                     "the spill file lies behind host memory and there is none: give --host-mib, too");
  }
  if (n_file == 0 || n_file > SPILL_PAGES_MAX) {
    return weft_fail(error, WEFT_E_INVALID,
                     "a spill file of %.0f MiB holds %" PRIu64
                     " pages of %.1f KiB; give 1 to 2^24 - 4: change --spill-mib",
                     mib_of(o->spill_bytes), n_file, (double)rt->page_bytes / 1024.0);
  }
  rt->n_file_pages = (uint32_t)n_file;
  return WEFT_OK;
}

/* A file is unlinked as soon as it is made, so each replica makes its own at the same path, unless it is kept. */
static weft_status open_stores(weft_runtime *rt, bool may_shrink, weft_error *error) {
  weft_kv_file_config file = {.path = rt->options.spill_file, .n_slots = rt->n_file_pages, .moves_max = WEFT_MOVES_MAX};
  weft_status status = open_pools(rt, may_shrink, error);
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) {
    const weft_kept_file *kept = keep_file(rt->keep, r);
    if (kept != NULL) file.kept = weft_kept_file_slots(kept), file.io = weft_kept_file_io(kept);
    status = weft_kv_store_add_host(rt->store[r], rt->n_host_pages, error);
    if (status == WEFT_OK) status = weft_kv_store_add_file(rt->store[r], &file, error);
  }
  return status;
}

/* Buffers that found no room on their device. */
static void print_away(weft_runtime *rt, uint32_t i) {
  for (uint32_t r = 0; r < rt->n_replicas; r++) {
    const weft_model_copy *copy = &rt->model[i].copy[r];
    uint64_t n_first, n_host;
    weft_device_runner_away(copy->runner, &n_first, &n_host);
    if (n_first + n_host == 0) continue;
    weft_text_printf(
        &rt->plan, "  away     of slots and head %.2f MiB on device %u and %.2f MiB in host memory: a device is full\n",
        mib_of(n_first), weft_device_get_info(copy->split.device[0])->index, mib_of(n_host));
  }
}

/* What would be on and was turned off, each with its reason. */
static void print_off(const weft_runtime *rt, weft_text *t) {
  const weft_open_options *o = &rt->options;
  if (o->no_prefix_cache) weft_text_puts(t, "off      prefixes shared between requests: --no-prefix-cache\n");
  if (o->no_graphs) weft_text_puts(t, "off      steps as graphs: --no-graphs\n");
  if (rt->weights != NULL) weft_text_puts(t, "off      the arena of weights: --weights maps them\n");
  if (weft_device_get_info(rt->devices.device[0])->graphs && !devices_keep_graphs(&rt->devices))
    weft_text_puts(t, "off      steps as graphs: --split tensor without peer access\n");
  weft_gguf *gguf[WEFT_MODELS_MAX];
  list_files(rt, gguf);
  devices_tell_integers(&rt->devices, gguf, rt->n_models, t);
  if (o->no_peer_access && rt->devices.n > 1) weft_text_puts(t, "off      peer access: --no-peer-access\n");
}

static void print_file(const weft_runtime *rt, const char *each, weft_text *t) {
  char path[1024];
  if (rt->n_file_pages == 0) return;
  (void)weft_utf8_clean(rt->options.spill_file, path, sizeof path);
  weft_text_printf(t, "file     %.1f MiB behind the host memory%s: %u pages in %s (%s)\n",
                   mib_of((uint64_t)rt->n_file_pages * rt->page_bytes), each, rt->n_file_pages, path,
                   rt->keep == NULL ? "unlinked" : "kept");
  keep_print(rt, t);
}

static void mark_start(weft_runtime *rt, weft_start_part part) {
  rt->start_us[part + 1] = weft_clock_us();
}

static double start_seconds(const weft_runtime *rt, weft_start_part first, weft_start_part last) {
  return (double)(rt->start_us[last + 1] - rt->start_us[first]) * 1e-6;
}

/* Where the time before the first request went. */
static void print_start(const weft_runtime *rt, weft_text *t) {
  static const char *const names[] = {
      "files", "devices, vocabularies beside them", "the rest of these", "weights", "memory of keys", "runners",
      "engine"};
  weft_text_printf(t, "start    %.2f s:", start_seconds(rt, 0, WEFT_START_PARTS - 1));
  for (int i = 0; i < WEFT_START_PARTS; i++)
    weft_text_printf(t, "%s %s %.2f", i == 0 ? "" : ",", names[i],
                     start_seconds(rt, (weft_start_part)i, (weft_start_part)i));
  weft_text_puts(t, "\n");
}

static void print_weights(const weft_devices *devices, weft_text *t) {
  weft_weights_report held = devices_weights(devices);
  if (held.n_bytes_held > 0) {
    weft_text_printf(t, "weights  %.1f MiB of device memory for %.1f MiB of weights", mib_of(held.n_bytes_held),
                     mib_of(held.n_bytes));
    if (held.n_bytes_tables > 0)
      weft_text_printf(t, "; %.1f MiB of tables in host memory", mib_of(held.n_bytes_tables));
    if (held.n_bytes_host > 0) weft_text_printf(t, "; %.1f MiB of experts in host memory", mib_of(held.n_bytes_host));
    uint64_t n_cached = 0;
    uint32_t n_threads = 0; /* all devices have the same ones */
    for (uint32_t i = 0; i < devices->n; i++) {
      const weft_experts_report experts = weft_device_experts(devices->device[i]);
      n_cached += experts.n_bytes_cached;
      if (experts.n_threads > 0) n_threads = experts.n_threads;
    }
    if (n_cached > 0) weft_text_printf(t, ", of which %.1f MiB are in device memory besides", mib_of(n_cached));
    if (n_threads > 0) weft_text_printf(t, "; %u threads may compute some of them", n_threads);
    weft_text_printf(t, "\n");
  }
}

static void write_plan(weft_runtime *rt) {
  const weft_engine *engine = weft_replicas_at(rt->replicas, 0);
  const char *each = rt->n_replicas > 1 ? " in each replica" : "";
  weft_text *t = &rt->plan;
  devices_print(&rt->devices, rt->options.rows, rt->rows_beside, t);
  print_off(rt, t);
  for (uint32_t i = 0; i < rt->n_models; i++) {
    const weft_served_model *m = &rt->model[i];
    const weft_model_info *info = weft_model_get_info(m->model);
    char name[512];
    (void)weft_utf8_clean(m->name, name, sizeof name);
    const char *kind = m->comes_and_goes ? "on call " : i < rt->n_served ? "model   " : "drafter ";
    weft_text_printf(t, "%s %s: %s, weights %.1f MiB, activations %.1f MiB, slots and head %.1f MiB, context %u", kind,
                     name, info->arch, mib_of(info->weight_bytes), mib_of(info->scratch_bytes),
                     mib_of(m->copy[0].runner_bytes), m->context);
    if (info->canvas_length > 0) {
      weft_text_printf(t, ", canvas %u with %.2f MiB of state", info->canvas_length,
                       mib_of((uint64_t)info->canvas_length * info->n_hidden * sizeof(float)));
    }
    weft_text_printf(t, ", keys and values %s\n", weft_type_name_of_id((int32_t)info->kv_type));
    devices_print_parts(&rt->devices, info, &m->layout, &m->split_reason, t);
    if (!m->comes_and_goes) print_away(rt, i);
    if (!m->comes_and_goes) weft_model_print_residency(m->model, t);
    for (uint32_t g = 0; g < m->layout.n_groups; g++) {
      const weft_layer_group *group = &m->layout.group[g];
      weft_text_printf(t, "  group %u  %u layers, ", g, group->n_layers);
      weft_kv_group_print(&m->layout, g, t);
      if (group->state_pages > 0)
        weft_text_printf(t, ", %.2f MiB for each sequence, twice while a step reaches a border, and for each snapshot",
                         mib_of(weft_kv_state_bytes(&info->kv)));
      else
        weft_text_printf(t, ", blocks of %u tokens, %s", group->block_tokens,
                         group->window == 0   ? "keeps all"
                         : group->from_border ? "keeps what lies behind the last multiple"
                                              : "keeps a window");
      if (group->window > 0) weft_text_printf(t, " of %u", group->window);
      weft_text_printf(t, "\n");
    }
    answer_defaults_print(m, t);
    drafts_print(rt, m, t);
    uint32_t room = weft_engine_room(engine, i, m->context);
    weft_text_printf(t, "  room     %u requests that grow to %u tokens", room, m->context);
    if (info->canvas_length > 0 && info->canvas_length < m->context) {
      uint32_t n_prompt = m->context - info->canvas_length;
      weft_text_printf(t, ", or %u canvases over prompts of %u", weft_engine_room(engine, i, n_prompt), n_prompt);
    }
    weft_text_printf(t, ", at once%s\n", each);
    if (m->layout.padding > 0.001) weft_text_printf(t, "  padding  %.1f %% of each page\n", m->layout.padding * 100.0);
  }
  if (rt->weights != NULL) weights_import_print(rt->weights, t);
  residents_print(rt, t);
  print_weights(&rt->devices, t);
  weft_text_printf(t, "pool     %.1f MiB%s: %u pages of %.1f KiB, shared by all models\n",
                   mib_of((uint64_t)rt->n_pages * rt->page_bytes), each, rt->n_pages, (double)rt->page_bytes / 1024.0);
  if (rt->pool.n_pages_max > 0)
    weft_text_printf(t, "  room     up to %.1f MiB: the pool has what models of --models-dir do not take\n",
                     mib_of((uint64_t)rt->pool.n_pages_max * rt->page_bytes));
  if (rt->n_host_pages > 0) {
    weft_text_printf(t, "host     %.1f MiB behind the pool%s: %u pages\n",
                     mib_of((uint64_t)rt->n_host_pages * rt->page_bytes), each, rt->n_host_pages);
  }
  print_file(rt, each, t);
  weft_request_memory_print(rt, t);
  print_start(rt, t);
}

/* ---- open and close ---------------------------------------------------------------------------------------- */

static weft_status fill_options(weft_runtime *rt, const weft_open_options *options, weft_error *error) {
  rt->options = *options;
  weft_open_options *o = &rt->options;
  if ((o->n_models == 0 || o->models == NULL) && !models_on_call(o))
    return weft_fail(error, WEFT_E_INVALID, "no model was given: name a GGUF file");
  weft_status preset = models_preset_open(o, &rt->preset, error);
  if (preset != WEFT_OK) return preset;
  if (o->n_models > WEFT_MODELS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%u models were given; at most %d share one pool", o->n_models,
                     WEFT_MODELS_MAX);
  }
  weft_config_fill_open(o);
  rt->has_seed = o->seed != NULL;
  if (rt->has_seed) rt->seed = *o->seed;
  if (o->saved_canvases > o->running) o->saved_canvases = o->running;
  if (o->tenants == 0) o->tenants = 1;
  if (o->pins > 4096 || o->running > 8192 || o->queue > 65536 || o->rows > 65536 || o->context > 1u << 20 ||
      o->tenants > 255) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "an option is out of range: pins <= 4096, running <= 8192, queue <= 65536, rows <= 65536, context <= 1048576, "
        "tenants <= 255");
  }
  return WEFT_OK;
}

static weft_status open_runners(weft_runtime *rt, weft_error *error) {
  for (uint32_t i = 0; i < rt->n_models * rt->n_replicas; i++) {
    weft_served_model *m = &rt->model[i / rt->n_replicas];
    weft_model_copy *copy = &m->copy[i % rt->n_replicas];
    if (m->comes_and_goes) continue; /* residents_plan */
    weft_device_runner_config config = weft_runtime_runner_config(rt, i / rt->n_replicas, i % rt->n_replicas);
    weft_status status = weft_device_runner_open(&config, &copy->runner, &copy->runner_bytes, error);
    if (status != WEFT_OK) return status;
    m->runner = m->copy[0].runner;
  }
  return residents_plan(rt, error);
}

static void wake_engine(void *engine) {
  weft_engine_wake(engine);
}

static weft_status open_engines(weft_runtime *rt, const weft_tenant_config *tenant, weft_error *error) {
  weft_runner *runners[WEFT_DEVICES_MAX][WEFT_MODELS_MAX];
  uint32_t context = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    for (uint32_t r = 0; r < rt->n_replicas; r++) runners[r][i] = rt->model[i].copy[r].runner;
    if (rt->model[i].context > context) context = rt->model[i].context;
  }
  weft_engine_config each = {
      .n_models = rt->n_models,
      .n_pages = rt->n_pages,
      .pool = rt->pool.n_pages_max > 0 ? &rt->pool : NULL,
      .n_host_pages = rt->n_host_pages,
      .n_file_pages = rt->n_file_pages,
      .rows_per_step = rt->options.rows,
      .rows_beside = rt->rows_beside,
      .running_max = rt->options.running,
      .waiting_max = rt->options.queue,
      .request_bytes_max = rt->options.request_bytes,
      .pins_max = rt->options.pins,
      .n_tenants = rt->options.tenants,
      .tenant = tenant,
      .seq_tokens_max = context,
      .slice_us = (uint64_t)rt->options.slice_ms * 1000,
      .target_tpot_us = (uint64_t)rt->options.target_tpot_ms * 1000,
      /* where steps are computed inside submit, planning ahead would only add void rows */
      .overlap = !weft_device_get_info(rt->devices.device[0])->immediate && !rt->options.no_overlap,
      .no_prefix_cache = rt->options.no_prefix_cache,
      .prefix_feed = rt->options.prefix_feed,
      .saves_prefixes = rt->keep != NULL};
  weft_replicas_config config = {.n = rt->n_replicas, .engine = each};
  for (uint32_t r = 0; r < rt->n_replicas; r++) config.runner[r] = runners[r];
  weft_status status = weft_replicas_open(&config, &rt->replicas, error);
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) {
    if (rt->store[r]->file != NULL)
      weft_kv_file_watch(rt->store[r]->file, wake_engine, weft_replicas_at(rt->replicas, r));
  }
  if (status == WEFT_OK) status = keep_take(rt, error);
  if (status == WEFT_OK) status = drafts_start(rt, error);
  if (status == WEFT_OK) status = weft_replicas_start(rt->replicas);
  if (status == WEFT_OK) status = residents_start(rt, error);
  if (status != WEFT_OK && error->text[0] == 0)
    (void)weft_fail(error, status, "the engine could not start: %s", weft_status_text(status));
  return status;
}

static weft_status open_tenants_and_engines(weft_runtime *rt, weft_error *error) {
  weft_tenant_config *tenant = weft_alloc(rt->options.tenants, sizeof *tenant);
  if (tenant == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u tenants", rt->options.tenants);
  weft_status status = weft_tenants_name(rt, tenant, error);
  if (status == WEFT_OK) status = open_engines(rt, tenant, error);
  weft_free(tenant);
  return status;
}

/* The models that are served, then those that only draft. */
static weft_status open_files(weft_runtime *rt, weft_error *error) {
  const weft_open_options *o = &rt->options;
  rt->model = weft_alloc(WEFT_MODELS_MAX, sizeof *rt->model);
  if (rt->model == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u models", o->n_models);
  for (uint32_t i = 0; i < o->n_models; i++) {
    weft_status status = weft_runtime_open_file(rt, o->models[i], false, error);
    rt->n_served = rt->n_models;
    if (status == WEFT_OK) status = drafts_open(o, &rt->model[i], error);
    if (status == WEFT_OK) status = drafts_open_assistant(&rt->model[i], error);
    if (status != WEFT_OK) return status;
  }
  weft_status status = models_folder_open(rt, error);
  for (const char *path; status == WEFT_OK && (path = drafts_next_file(rt)) != NULL;)
    status = weft_runtime_open_file(rt, path, false, error);
  return status;
}

/* What broke, where it did, is said in lines that are there before. */
static void write_faults(weft_runtime *rt) {
  for (uint32_t p = 0; p < rt->devices.n; p++) {
    const weft_device_info *device = weft_device_get_info(rt->devices.device[p]);
    (void)snprintf(rt->degraded[p], sizeof rt->degraded[p],
                   "device %u (%s) broke, and its requests were ended; the other replicas go on: restart the server to "
                   "have all",
                   device->index, device->name);
    (void)snprintf(rt->unwell[p], sizeof rt->unwell[p],
                   "device %u (%s) broke, and the requests of its models were ended: restart the server", device->index,
                   device->name);
  }
}

/* Reads vocabularies and chat templates, which takes about as long as a GPU needs for its context. */
typedef struct texts_job {
  weft_runtime *rt;
  weft_status status;
  weft_error error;
} texts_job;

static void *open_texts(void *self) {
  texts_job *job = self;
  for (uint32_t i = 0; i < job->rt->n_models && job->status == WEFT_OK; i++) {
    weft_served_model *m = &job->rt->model[i];
    if (!m->comes_and_goes) job->status = weft_runtime_open_text(job->rt, m, &job->error);
  }
  return NULL;
}

/* The devices, and the texts beside them. */
static weft_status open_devices(weft_runtime *rt, const weft_open_options *options, weft_share_by shares,
                                weft_error *error) {
  weft_gguf *gguf[WEFT_MODELS_MAX];
  texts_job job = {.rt = rt};
  pthread_t thread;
  list_files(rt, gguf);
  weft_status status = weft_threads_start(&thread, open_texts, &job, error);
  if (status != WEFT_OK) return status;
  status = devices_open_as(options, gguf, rt->n_models, shares, &rt->devices, error);
  mark_start(rt, WEFT_START_DEVICES);
  (void)pthread_join(thread, NULL); /* it was started */
  mark_start(rt, WEFT_START_TEXTS);
  if (job.status == WEFT_OK) return status;
  *error = job.error;
  return job.status;
}

weft_status weft_runtime_begin(weft_runtime *rt, const weft_open_options *options, weft_share_by shares,
                               weft_error *error) {
  weft_status status = fill_options(rt, options, error);
  rt->start_us[0] = weft_clock_us();
  if (status == WEFT_OK) status = open_files(rt, error);
  mark_start(rt, WEFT_START_FILES);
  if (status == WEFT_OK) status = open_devices(rt, options, shares, error);
  if (status != WEFT_OK) return status;
  rt->n_replicas = devices_n_replicas(&rt->devices);
  write_faults(rt);
  choose_rows(rt);
  if (options->weights != NULL)
    return weights_import_open(options->weights, &rt->devices, &rt->weights, &rt->otherwise, error);
  choose_integers(rt, shares != WEFT_SHARE_NOT);
  return WEFT_OK;
}

/* What loading would take of each device, before anything is loaded: experts that go to host memory for want of room
 * would be no fault, and slow. */
static weft_status check_room_anew(const weft_runtime *rt, weft_error *error) {
  uint64_t needed = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    uint64_t n_bytes, n_integers;
    if (rt->model[i].comes_and_goes) continue;
    weft_split_weights(rt->model[i].gguf, rt->devices.device[0], &n_bytes, &n_integers);
    needed += n_bytes;
  }
  for (uint32_t p = 0; p < rt->devices.n; p++) {
    uint64_t share = (uint64_t)(devices_share(&rt->devices, p) * (double)needed);
    uint64_t left = weft_device_memory_left(rt->devices.device[p]);
    if (left > 0 && share > left)
      return weft_fail(error, WEFT_E_NO_MEMORY,
                       "--else-anew: weights of %" PRIu64 " MiB are to be loaded on device %u, and %" PRIu64
                       " MiB are free there: start an owner of this version's weights first, or give --take-over-after",
                       share >> 20, weft_device_get_info(rt->devices.device[p])->index, left >> 20);
  }
  return WEFT_OK;
}

static weft_status open_all(weft_runtime *rt, const weft_open_options *options, weft_error *error) {
  weft_status status = weft_runtime_begin(rt, options, WEFT_SHARE_NOT, error);
  if (status == WEFT_OK && rt->anew) status = check_room_anew(rt, error);
  for (uint32_t i = 0; i < rt->n_models && status == WEFT_OK; i++) {
    if (!rt->model[i].comes_and_goes) status = weft_runtime_load(rt, &rt->model[i], error);
  }
  if (status == WEFT_OK) status = models_folder_plan(rt, error);
  mark_start(rt, WEFT_START_WEIGHTS);
  if (status != WEFT_OK) return status;
  status = check_names(rt, error);
  if (status == WEFT_OK) answer_defaults_tell_unused(rt);
  if (status == WEFT_OK) status = plan_pool(rt, error);
  if (status == WEFT_OK) shared_room_plan(rt);
  if (status == WEFT_OK) status = plan_file(rt, error);
  if (status == WEFT_OK) status = keep_open(rt, options, error);
  if (status == WEFT_OK) status = open_stores(rt, options->kv_bytes == 0, error);
  mark_start(rt, WEFT_START_MEMORY);
  if (status == WEFT_OK) status = open_runners(rt, error);
  mark_start(rt, WEFT_START_RUNNERS);
  if (status != WEFT_OK) return status;
  if (rt->options.request_bytes == 0) rt->options.request_bytes = weft_request_memory_default(rt);
  status = open_tenants_and_engines(rt, error);
  if (status != WEFT_OK) return status;
  mark_start(rt, WEFT_START_ENGINE);
  write_plan(rt);
  return weft_text_status(&rt->plan);
}

static weft_status draw_secret(weft_runtime *rt, weft_error *error) {
  if (getrandom(rt->salt_secret, sizeof rt->salt_secret, 0) == (ssize_t)sizeof rt->salt_secret) return WEFT_OK;
  return weft_fail(error, WEFT_E_IO, "the system gave no random bytes for the secret of cache_salt: %s",
                   strerror(errno));
}

static weft_status open_new(const weft_open_options *options, bool anew, weft_runtime **out, weft_error *error) {
  weft_runtime *rt = *out = weft_alloc(1, sizeof *rt);
  weft_status status = rt == NULL ? WEFT_E_NO_MEMORY : draw_secret(rt, error);
  if (status == WEFT_OK) rt->anew = anew;
  if (status == WEFT_OK) status = open_all(rt, options, error);
  return status;
}

int weft_open(const weft_open_options *options, weft_runtime **out, char *error, size_t n_error) {
  weft_error why = {{0}};
  weft_runtime *rt;
  *out = NULL;
  weft_status status = open_new(options, false, &rt, &why);
  if (status != WEFT_OK && rt != NULL && rt->otherwise && options->else_anew) {
    weft_open_options own = *options; /* devices open again, since with --weights their arena is off */
    own.weights = NULL;
    weft_log(WEFT_LOG_WARN, "%s; --else-anew: this process loads them", why.text);
    weft_close(rt);
    status = open_new(&own, true, &rt, &why);
  }
  if (status != WEFT_OK) {
    weft_close(rt);
    return weft_tell(&why, status, error, n_error);
  }
  /* what the caller owns is not kept */
  rt->options.models = NULL;
  rt->options.models_dir = NULL;
  rt->options.models_preset = NULL;
  rt->options.load_tenants = NULL;
  rt->options.backend = NULL;
  rt->options.precision = NULL;
  rt->options.spill_file = NULL;
  rt->options.keep = NULL;
  rt->options.keep_key = NULL;
  rt->options.devices = NULL;
  rt->options.weights = NULL;
  rt->options.device_mib = NULL;
  rt->options.split = NULL;
  rt->options.split_ratio = NULL;
  rt->options.kv_8bit = NULL;
  rt->options.drafts = NULL;
  rt->options.served_names = NULL;
  rt->options.tenant = NULL;
  rt->options.sampling = NULL;
  rt->options.entropy_bound = NULL;
  rt->options.seed = NULL;
  *out = rt;
  return 0;
}

void weft_close(weft_runtime *rt) {
  if (rt == NULL) return;
  for (uint32_t r = 0; r < WEFT_DEVICES_MAX; r++) {
    if (rt->store[r] != NULL && rt->store[r]->file != NULL) weft_kv_file_watch(rt->store[r]->file, NULL, NULL);
  }
  residents_stop(rt->residents);
  if (rt->replicas != NULL) weft_replicas_stop(rt->replicas);
  keep_finish(rt);
  for (uint32_t r = 0; r < WEFT_DEVICES_MAX; r++) model_drafter_close(rt->drafter[r]);
  weft_replicas_close(rt->replicas);
  residents_close(rt->residents);
  for (uint32_t i = 0; i < rt->n_models; i++) weft_runtime_forget(&rt->model[i]);
  for (uint32_t r = 0; r < WEFT_DEVICES_MAX; r++) weft_kv_store_close(rt->store[r]);
  keep_close(rt->keep);
  weft_weights_close(rt->weights);
  devices_close(&rt->devices);
  weft_free(rt->model);
  weft_tenants_forget(rt);
  models_folder_forget(rt);
  weft_text_free(&rt->plan);
  weft_free(rt);
}

int weft_runtime_owner(const weft_runtime *rt) {
  return rt->weights == NULL ? -1 : weights_import_descriptor(rt->weights);
}

void weft_drain(weft_runtime *rt) {
  weft_replicas_drain(rt->replicas);
}

bool weft_idle(const weft_runtime *rt) {
  return weft_replicas_idle(rt->replicas);
}

/* ---- what it serves ------------------------------------------------------------------------------------------ */

weft_cache_size weft_runtime_cache(const weft_runtime *rt, uint32_t model) {
  const weft_kv_layout *layout = &rt->model[model].layout;
  weft_cache_size size = {0};
  for (uint32_t g = 0; g < layout->n_groups; g++) {
    if (layout->group[g].block_tokens > size.block_tokens) size.block_tokens = layout->group[g].block_tokens;
  }
  uint64_t n_tokens = weft_engine_tokens(weft_replicas_at(rt->replicas, 0), model) * rt->n_replicas;
  size.n_blocks = n_tokens / size.block_tokens;
  return size;
}

uint32_t weft_n_models(const weft_runtime *rt) {
  return rt->n_served;
}

weft_model_card weft_model_at(const weft_runtime *rt, uint32_t index) {
  if (index >= rt->n_served) return (weft_model_card){0};
  const weft_served_model *m = &rt->model[index];
  const weft_model_info *info = weft_model_get_info(m->model);
  return (weft_model_card){.name = m->name,
                           .aliases = (const char *const *)m->alias,
                           .n_aliases = m->n_aliases,
                           .created = m->created,
                           .arch = info->arch,
                           .path = m->path,
                           .context = m->context,
                           .vocabulary = info->n_vocab,
                           .canvas = info->canvas_length,
                           .autoregressive = true,
                           .diffusion = info->canvas_length > 0,
                           .chat = m->chat != NULL,
                           .weight_bytes = info->weight_bytes,
                           .state = residents_state_name(residents_look(rt->residents, index).state)};
}

const char *weft_plan(const weft_runtime *rt) {
  return rt->plan.bytes;
}

const char *weft_version(void) {
  return WEFT_VERSION;
}
