/* SPDX-License-Identifier: MIT */
#include "api/models_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/drafts.h"
#include "api/models_preset.h"
#include "api/residents.h"
#include "api/served_names.h"
#include "base/log.h"
#include "base/memory.h"

static int is_model(const struct dirent *entry) {
  const char *name = entry->d_name;
  size_t n = strlen(name);
  unsigned part, parts;
  if (name[0] == '.' || n <= 5 || strcmp(name + n - 5, ".gguf") != 0) return 0;
  /* "-00002-of-00003.gguf": the other parts are found from the first one */
  bool is_part = n > 20 && sscanf(name + n - 20, "-%5u-of-%5u.gguf", &part, &parts) == 2;
  return !is_part || part == 1;
}

static void tell_left_out(const char *path, const char *why) {
  weft_log(WEFT_LOG_WARN, "--models-dir: %.200s is left out: %.300s", path, why);
}

/* The last model of rt has the name of another one. */
static bool has_name_of_another(const weft_runtime *rt) {
  const weft_served_model *last = &rt->model[rt->n_models - 1];
  for (uint32_t i = 0; i + 1 < rt->n_models; i++) {
    if (served_names_fit(&rt->model[i], last->name)) return true;
  }
  return false;
}

static weft_status add_file(weft_runtime *rt, const char *path, weft_error *error) {
  weft_status status = weft_runtime_open_file(rt, path, true, error);
  if (status == WEFT_OK) status = drafts_open(&rt->options, &rt->model[rt->n_models - 1], error);
  if (status == WEFT_OK && has_name_of_another(rt))
    status = weft_fail(error, WEFT_E_INVALID, "another model has its name");
  return status;
}

/* Opens one file; NO_MEMORY alone is an error. */
static weft_status take_file(weft_runtime *rt, const char *path, weft_error *error) {
  weft_error why = {{0}};
  uint32_t n_before = rt->n_models;
  weft_status status = add_file(rt, path, &why);
  if (status == WEFT_OK) return WEFT_OK;
  if (rt->n_models > n_before) weft_runtime_forget(&rt->model[--rt->n_models]);
  if (status == WEFT_E_NO_MEMORY) return weft_fail(error, status, "%s", why.text);
  tell_left_out(path, why.text[0] != 0 ? why.text : weft_status_text(status));
  return WEFT_OK;
}

static weft_status copy_tenants(weft_runtime *rt, weft_error *error) {
  const weft_open_options *o = &rt->options;
  if (o->n_load_tenants > WEFT_LOAD_TENANTS_MAX)
    return weft_fail(error, WEFT_E_INVALID, "--load-tenants names %u tenants; at most %d", o->n_load_tenants,
                     WEFT_LOAD_TENANTS_MAX);
  for (uint32_t i = 0; i < o->n_load_tenants; i++) {
    rt->load_tenant[i] = weft_strdup(o->load_tenants[i]);
    if (rt->load_tenant[i] == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --load-tenants");
    rt->n_load_tenants = i + 1;
  }
  return WEFT_OK;
}

static weft_status check_options(const weft_open_options *o, weft_error *error) {
  bool asks = o->n_load_tenants > 0 || o->models_bytes > 0 || o->sleep_bytes > 0 || o->keep_alive_us > 0;
  if (!models_on_call(o) && asks)
    return weft_fail(error, WEFT_E_INVALID,
                     "--load-tenants, --models-mib, --sleep-mib and --keep-alive-seconds are about models of "
                     "--models-dir or --models-preset: give one");
  if (models_on_call(o) && o->weights != NULL)
    return weft_fail(error, WEFT_E_INVALID,
                     "--models-dir: models come and go, and those of --weights are another "
                     "process': leave one of them out");
  return WEFT_OK;
}

static weft_status fail_none(const weft_runtime *rt, weft_error *error) {
  const weft_open_options *o = &rt->options;
  return weft_fail(error, WEFT_E_NOT_FOUND, "%s %.300s: no file there can be served",
                   o->models_dir != NULL ? "--models-dir" : "--models-preset",
                   o->models_dir != NULL ? o->models_dir : o->models_preset);
}

static weft_status open_folder(weft_runtime *rt, weft_error *error) {
  const weft_open_options *o = &rt->options;
  struct dirent **entry = NULL;
  weft_status status = WEFT_OK;
  if (o->models_dir == NULL) return WEFT_OK;
  int n = scandir(o->models_dir, &entry, is_model, alphasort);
  if (n < 0) return weft_fail(error, WEFT_E_IO, "--models-dir %.300s: %s", o->models_dir, strerror(errno));
  for (int i = 0; i < n; i++) {
    weft_text path = {0};
    weft_text_printf(&path, "%s/%s", o->models_dir, entry[i]->d_name);
    if (status == WEFT_OK && weft_text_status(&path) != WEFT_OK)
      status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %.300s", o->models_dir);
    if (status == WEFT_OK) status = take_file(rt, path.bytes, error);
    weft_text_free(&path);
    free(entry[i]);
  }
  free(entry);
  return status;
}

static const weft_served_model *find_file(const weft_runtime *rt, const char *file_name) {
  for (uint32_t i = 0; i < rt->n_models; i++)
    if (strcmp(rt->model[i].file_name, file_name) == 0) return &rt->model[i];
  return NULL;
}

/* The files that presets name, and those of the folder that they are about: one that cannot be served is an error. */
static weft_status open_presets(weft_runtime *rt, weft_error *error) {
  const char *path, *file;
  bool loads;
  for (uint32_t i = 0; (path = models_preset_path(rt->preset, i)) != NULL; i++) {
    char *name = served_names_of_file(path);
    bool is_there = name != NULL && find_file(rt, name) != NULL; /* in the folder, too */
    weft_free(name);
    weft_status status = is_there ? WEFT_OK : add_file(rt, path, error);
    if (status != WEFT_OK) return status;
  }
  for (uint32_t i = 0; (file = models_preset_file(rt->preset, i, &loads)) != NULL; i++)
    if (find_file(rt, file) == NULL)
      return weft_fail(
          error, WEFT_E_NOT_FOUND,
          "--models-preset: no model of --models-dir is of the file %.100s.gguf: give its section `model = "
          "PATH`",
          file);
  return WEFT_OK;
}

weft_status models_folder_open(weft_runtime *rt, weft_error *error) {
  const weft_open_options *o = &rt->options;
  weft_status status = check_options(o, error);
  if (!models_on_call(o) || status != WEFT_OK) return status;
  status = copy_tenants(rt, error);
  if (status == WEFT_OK) status = open_folder(rt, error);
  if (status == WEFT_OK) status = open_presets(rt, error);
  rt->n_served = rt->n_models;
  if (status == WEFT_OK && rt->n_served == 0) return fail_none(rt, error);
  return status;
}

/* ---- the plan ---------------------------------------------------------------------------------- */

static void leave_out(weft_runtime *rt, uint32_t i, const char *why) {
  tell_left_out(rt->model[i].path, why);
  weft_runtime_forget(&rt->model[i]);
  rt->n_served -= 1;
  rt->n_models -= 1;
  memmove(&rt->model[i], &rt->model[i + 1], (rt->n_models - i) * sizeof *rt->model);
  memset(&rt->model[rt->n_models], 0, sizeof *rt->model);
}

/* Whether the first n models and those that draft can share pages. */
static weft_status try_layouts(const weft_runtime *rt, uint32_t n, weft_kv_layout *layouts, weft_error *error) {
  const weft_kv_geometry *geometry[WEFT_MODELS_MAX];
  uint32_t n_all = 0;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    bool in = i < n || !rt->model[i].comes_and_goes;
    if (in) geometry[n_all++] = &weft_model_get_info(rt->model[i].model)->kv;
  }
  return weft_kv_layout_choose(geometry, n_all, 0, layouts, error);
}

static weft_status plan_models(weft_runtime *rt, weft_kv_layout *layouts, weft_error *error) {
  for (uint32_t i = 0; i < rt->n_served;) {
    weft_error why = {{0}};
    weft_served_model *m = &rt->model[i];
    weft_status status = m->comes_and_goes ? weft_runtime_load(rt, m, &why) : WEFT_OK;
    if (status == WEFT_OK && m->comes_and_goes) status = try_layouts(rt, i + 1, layouts, &why);
    if (status == WEFT_E_NO_MEMORY) return weft_fail(error, status, "%s", why.text);
    if (status == WEFT_OK)
      i += 1;
    else
      leave_out(rt, i, why.text[0] != 0 ? why.text : weft_status_text(status));
  }
  if (rt->n_served > 0) return WEFT_OK;
  return fail_none(rt, error);
}

weft_status models_folder_plan(weft_runtime *rt, weft_error *error) {
  if (!models_on_call(&rt->options)) return WEFT_OK;
  if (rt->devices.n > 1)
    return weft_fail(error, WEFT_E_INVALID, "--models-dir: models come and go on one device: name one with --devices");
  weft_kv_layout *layouts = weft_alloc(WEFT_MODELS_MAX, sizeof *layouts);
  if (layouts == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the plan");
  weft_status status = plan_models(rt, layouts, error);
  weft_free(layouts);
  rt->models_bytes = residents_bytes(rt);
  return status;
}

void models_folder_forget(weft_runtime *rt) {
  for (uint32_t i = 0; i < rt->n_load_tenants; i++) weft_free(rt->load_tenant[i]);
  rt->n_load_tenants = 0;
  models_preset_close(rt->preset);
  rt->preset = NULL;
}
