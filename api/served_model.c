/* SPDX-License-Identifier: MIT */
/* One model of a runtime: its file, its weights or plan, what its runner is made of, its name, its end. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/answer_defaults.h"
#include "api/chat_template.h"
#include "api/drafts.h"
#include "api/runtime.h"
#include "api/served_names.h"
#include "api/weights_import.h"
#include "base/memory.h"
#include "model/expert_loads.h"

static void show_progress(void *self, uint64_t done, uint64_t total) {
  const char *name = self;
  if (total < (uint64_t)64 << 20 || !isatty(STDERR_FILENO)) return;
  enum { WIDTH = 40 };
  char bar[WIDTH + 1];
  uint64_t filled = total == 0 ? WIDTH : done * WIDTH / total;
  for (uint64_t i = 0; i < WIDTH; i++) bar[i] = i < filled ? '#' : '.';
  bar[WIDTH] = 0;
  char clean[256];
  (void)weft_utf8_clean(name, clean, sizeof clean);
  (void)fprintf(stderr, "\rloading %s [%s] %3d %%%s", clean, bar, (int)(total == 0 ? 100 : done * 100 / total),
                done >= total ? "\n" : "");
}

static bool wants_8bit(const weft_open_options *o, const char *name) {
  for (uint32_t i = 0; i < o->n_kv_8bit; i++) {
    if (strcmp(o->kv_8bit[i], name) == 0 || strcmp(o->kv_8bit[i], "all") == 0) return true;
  }
  return false;
}

/* The largest step: every segment has a row, and a request has two at most (a commit and a canvas). */
static weft_model_limits limits_of(const weft_open_options *o) {
  uint32_t n_segments = 2 * o->running;
  return (weft_model_limits){
      .rows_max = o->rows, .canvas_rows_max = o->rows, .segments_max = n_segments < o->rows ? n_segments : o->rows};
}

weft_model_limits weft_runtime_limits(const weft_runtime *rt, const weft_served_model *m) {
  weft_model_limits limits = limits_of(&rt->options);
  limits.kv_8bit = wants_8bit(&rt->options, m->file_name);
  limits.unused_tensors = rt->options.unused_tensors;
  limits.nextn = m->draft_nextn;
  limits.token_ranges = true;
  if (m->assistant != NULL && weft_model_fills_blocks(m->assistant)) limits.block_drafter = m->assistant;
  return limits;
}

/* Every replica reads the weights; from the second one on they lie in the system's page cache. */
static weft_status open_copies(weft_runtime *rt, weft_served_model *m, weft_error *error) {
  weft_model_limits limits = weft_runtime_limits(rt, m);
  weft_status status = WEFT_OK;
  if (rt->weights != NULL)
    status = weights_import_shelf(rt->weights, m->gguf, m >= rt->model + rt->n_served, &limits.shelf, error);
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) {
    weft_model_copy *copy = &m->copy[r];
    status = devices_split(&rt->devices, r, m->gguf, &copy->split, &m->split_reason, error);
    if (status != WEFT_OK) return status;
    if (limits.shelf != NULL) weights_import_cut(rt->weights, limits.shelf, &copy->split);
    if (m->comes_and_goes)
      status = weft_model_plan(m->gguf, &copy->split, &limits, &copy->model, error);
    else
      status = weft_model_open(m->gguf, &copy->split, &limits, rt->options.quiet ? NULL : show_progress, m->name,
                               &copy->model, error);
  }
  m->model = m->copy[0].model;
  /* the owner has loaded the same file, so it is well formed, and what differs is how a matrix lies there */
  if (limits.shelf != NULL && (status == WEFT_E_FORMAT || status == WEFT_E_NOT_FOUND)) rt->otherwise = true;
  return status;
}

weft_status weft_runtime_open_file(weft_runtime *rt, const char *path, bool comes_and_goes, weft_error *error) {
  if (rt->n_models == WEFT_MODELS_MAX)
    return weft_fail(error, WEFT_E_INVALID,
                     "%s would be model %u, those that draft included; at most %d share one pool", path,
                     rt->n_models + 1, WEFT_MODELS_MAX);
  weft_served_model *m = &rt->model[rt->n_models++];
  m->comes_and_goes = comes_and_goes;
  m->path = weft_strdup(path);
  if (m->path == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", path);
  if (weft_expert_loads_open(&m->loads) != WEFT_OK) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", path);
  weft_status status = served_names_set(rt, path, m, error);
  if (status == WEFT_OK) status = weft_gguf_open(path, &m->gguf, error);
  return status == WEFT_OK && comes_and_goes ? weft_runtime_open_text(rt, m, error) : status;
}

weft_status weft_runtime_open_text(const weft_runtime *rt, weft_served_model *m, weft_error *error) {
  weft_status status = weft_tokenizer_open(m->gguf, &m->tokenizer, error);
  if (status == WEFT_OK) status = chat_template_open(&rt->options, m, error);
  if (status == WEFT_OK && weft_formats_open(m->tokenizer, rt->options.tenants, &m->formats) != WEFT_OK) {
    status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", m->path);
  }
  return status;
}

weft_status weft_runtime_load(weft_runtime *rt, weft_served_model *m, weft_error *error) {
  const char *path = m->path;
  struct stat about;
  if (stat(path, &about) == 0) m->created = about.st_mtime;
  weft_status status = open_copies(rt, m, error);
  if (status == WEFT_OK) status = drafts_load_assistant(rt, m, weft_runtime_limits(rt, m), error);
  if (status != WEFT_OK) return status;
  status = weft_gguf_let_go(m->gguf, error); /* from here on the file may be cut, replaced or removed */
  if (status != WEFT_OK) return status;
  const weft_model_info *info = weft_model_get_info(m->model);
  if (weft_tokenizer_n_vocab(m->tokenizer) != info->n_vocab) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: tokenizer.ggml.tokens has %u tokens but token_embd has %u rows", path,
                     weft_tokenizer_n_vocab(m->tokenizer), info->n_vocab);
  }
  if (info->canvas_length > rt->options.rows) {
    return weft_fail(error, WEFT_E_INVALID, "%s: a canvas of %u rows needs --rows %u or more (it is %u)", path,
                     info->canvas_length, info->canvas_length, rt->options.rows);
  }
  m->context = info->context_length < rt->options.context ? info->context_length : rt->options.context;
  if (m->context < 2) {
    return weft_fail(error, WEFT_E_INVALID, "%s: a context of %u has no room for a prompt and an answer", path,
                     m->context);
  }
  return answer_defaults_open(&rt->options, m, error);
}

weft_device_runner_config weft_runtime_runner_config(const weft_runtime *rt, uint32_t model, uint32_t replica) {
  const weft_served_model *m = &rt->model[model];
  uint32_t n_suppressed;
  const int32_t *suppressed = weft_tokenizer_suppressed(m->tokenizer, &n_suppressed);
  return (weft_device_runner_config){.model = m->copy[replica].model,
                                     .store = rt->store[replica],
                                     .layout = &m->layout,
                                     .name = m->name,
                                     .limits = limits_of(&rt->options),
                                     .n_slots = rt->options.running,
                                     .assistant = m->copy[replica].assistant,
                                     .draft_rows_max = drafts_rows_max(&rt->options, m),
                                     .n_saves = rt->options.saved_canvases,
                                     .seq_tokens_max = m->context,
                                     .suppressed = suppressed,
                                     .graph_owner = model + 1,
                                     .loads = m->loads,
                                     .n_suppressed = n_suppressed};
}

void weft_runtime_forget(weft_served_model *m) {
  weft_free(m->draft_file);
  for (uint32_t r = 0; r < WEFT_DEVICES_MAX; r++) {
    if (m->copy[r].runner != NULL) m->copy[r].runner->ops->close(m->copy[r].runner);
    weft_model_close(m->copy[r].assistant);
    weft_model_close(m->copy[r].model);
  }
  weft_chat_close(m->chat);
  weft_formats_close(m->formats);
  weft_tokenizer_close(m->tokenizer);
  weft_gguf_close(m->gguf);
  weft_gguf_close(m->assistant);
  weft_expert_loads_close(m->loads);
  weft_free(m->path);
  served_names_free(m);
  *m = (weft_served_model){0};
}

const weft_served_model *weft_runtime_model(const weft_runtime *rt, const char *name, uint32_t *index,
                                            weft_error *error) {
  *index = 0;
  if (name == NULL || rt->n_served == 1) return &rt->model[0];
  for (uint32_t i = 0; i < SERVED_NAMES_WAYS * rt->n_served; i++) {
    *index = i % rt->n_served;
    const weft_served_model *m = &rt->model[*index];
    if (served_names_lead(m, name, i / rt->n_served)) return m;
  }
  (void)served_names_unknown(rt, name, error);
  return NULL;
}
