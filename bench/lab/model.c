/* SPDX-License-Identifier: MIT */
#include "bench/lab/model.h"

#include <string.h>

#include "bench/lab/progress.h"

weft_status weft_lab_devices(const weft_lab_config *config, weft_gguf *gguf, weft_devices *devices, weft_error *error) {
  weft_open_options options = weft_config_open(&config->product);
  options.no_graphs = true;
  if (options.weights != NULL)
    return weft_fail(error, WEFT_E_INVALID, "--weights %.200s: this command loads its model itself: leave it out",
                     options.weights);
  weft_status status = devices_open(&options, &gguf, 1, devices, error);
  if (status == WEFT_OK && devices->replicas) {
    status =
        weft_fail(error, WEFT_E_INVALID,
                  "--split replicas: this command computes with one copy of the model; --split layer or tensor share "
                  "it out");
  }
  return status;
}

weft_status weft_lab_model_open(weft_lab_model *m, const weft_lab_config *config, weft_error *error) {
  const weft_text_list *files = &config->product.models;
  *m = (weft_lab_model){.gguf = NULL};
  if (files->n != 1) return weft_fail(error, WEFT_E_INVALID, "name one GGUF file with -m FILE");
  return weft_gguf_open(files->item[0], &m->gguf, error);
}

static weft_status choose_kv(const weft_lab_config *config, bool *kv_8bit, weft_error *error) {
  const weft_text_list *names = &config->product.kv_8bit;
  char *served = served_names_of_file(config->product.models.item[0]);
  weft_status status = served == NULL ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory") : WEFT_OK;
  for (uint32_t i = 0; i < names->n && status == WEFT_OK; i++) {
    *kv_8bit = strcmp(names->item[i], "all") == 0 || strcmp(names->item[i], served) == 0;
    if (!*kv_8bit) status = weft_fail(error, WEFT_E_INVALID, "--kv-8bit: no model is called '%s'", names->item[i]);
  }
  weft_free(served);
  return status;
}

static void show_loading(void *self, uint64_t done, uint64_t total) {
  if (total >= (uint64_t)64 << 20) weft_lab_progress_show(self, done, total, "");
}

weft_status weft_lab_model_load(weft_lab_model *m, const weft_lab_config *config, const weft_model_limits *limits,
                                weft_error *error) {
  weft_lab_progress progress = {.what = "loading", .quiet = config->product.quiet};
  weft_split split;
  weft_split_reason reason;
  m->limits = *limits;
  m->limits.unused_tensors = config->product.unused_tensors;
  weft_status status = choose_kv(config, &m->limits.kv_8bit, error);
  if (status == WEFT_OK) status = weft_lab_devices(config, m->gguf, &m->devices, error);
  if (status == WEFT_OK) status = devices_split(&m->devices, 0, m->gguf, &split, &reason, error);
  if (status != WEFT_OK) return status;
  m->device = m->devices.device[0];
  return weft_model_open(m->gguf, &split, &m->limits, show_loading, &progress, &m->model, error);
}

void weft_lab_model_close(weft_lab_model *m) {
  weft_model_close(m->model);
  devices_close(&m->devices);
  weft_gguf_close(m->gguf);
  *m = (weft_lab_model){.gguf = NULL};
}

int32_t *weft_lab_draw_tokens(uint32_t n, uint32_t n_vocab) {
  int32_t *tokens = weft_alloc(n > 0 ? n : 1, sizeof *tokens);
  for (uint32_t i = 0; tokens != NULL && i < n; i++) {
    weft_draw_key key = {n, 0, WEFT_DRAW_TEST, i, 0};
    tokens[i] = (int32_t)weft_draw_below(&key, n_vocab);
  }
  return tokens;
}
