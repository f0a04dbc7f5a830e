/* SPDX-License-Identifier: MIT */
/* Any bytes as a GGUF file: opened or refused; when opened, everything that the reader offers is read, the file is
 * described for a person and as JSON, its numbers are looked at, the keys are judged as those of a model, and the
 * model is opened on ref, and once more with the layer of its file that guesses ahead: or refused with a line. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/gguf/gguf_internal.h"
#include "model/gguf/numbers.h"
#include "model/inspect.h"
#include "model/models.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink; /* what was read must not be optimised away */

static void read_key(const weft_gguf *gguf, uint32_t index) {
  weft_bytes name = gguf->parts[0].keys[index].name, text = {NULL, 0};
  char *key = malloc(name.n + 1);
  weft_error error;
  uint64_t u = 0;
  double d = 0;
  bool b = false;
  if (key == NULL) abort();
  memcpy(key, name.data, name.n);
  key[name.n] = 0;
  uint64_t count = gguf->parts[0].keys[index].kind == WEFT_GGUF_ARRAY ? gguf->parts[0].keys[index].count : 1;
  int64_t found = weft_gguf_find(gguf, key);
  if (strlen(key) == name.n && found != (int64_t)index) abort(); /* names are unique */
  (void)weft_gguf_u64(gguf, key, &u, &error);
  (void)weft_gguf_f64(gguf, key, &d, &error);
  (void)weft_gguf_bool(gguf, key, &b, &error);
  if (weft_gguf_string(gguf, key, &text, &error) == WEFT_OK) {
    for (size_t i = 0; i < text.n; i++) sink += (uint8_t)text.data[i];
  }
  for (uint64_t i = 0; found >= 0 && i < count + 1 && i < 1000; i++) {
    (void)weft_gguf_u64_at(gguf, key, i, &u, &error);
    (void)weft_gguf_f64_at(gguf, key, i, &d, &error);
    if (weft_gguf_string_at(gguf, key, i, &text, &error) != WEFT_OK) continue;
    for (size_t k = 0; k < text.n; k++) sink += (uint8_t)text.data[k];
  }
  sink += u + (uint64_t)b + (d > 0);
  free(key);
}

static void read_tensor(const weft_gguf *gguf, uint32_t index) {
  const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, index);
  const uint8_t *bytes = tensor->data;
  if (weft_gguf_tensor_find(gguf, tensor->name) != tensor) abort();
  if (tensor->n_bytes > 0) sink += bytes[0] + bytes[tensor->n_bytes - 1];
  if (tensor->type == WEFT_TYPE_NONE && weft_gguf_check_type(gguf, tensor, NULL) == WEFT_OK) abort();
  if (tensor->type == WEFT_TYPE_NONE || tensor->ne[0] > 1 << 16) return;
  float *row = malloc(tensor->ne[0] * sizeof *row);
  if (row == NULL) abort();
  weft_dequantise_row(tensor->type, tensor->data, row, tensor->ne[0]);
  sink += row[0] > 0;
  free(row);
}

/* NULL: refused. What opens has tensors of the shapes that its keys ask for, so the file bounds the weights' memory. */
static weft_model *open_with(const weft_gguf *gguf, weft_device *device, const weft_model_limits *limits) {
  const weft_split split = weft_split_one(device);
  weft_model *model;
  weft_error error = {{0}};
  if (weft_model_open(gguf, &split, limits, NULL, NULL, &model, &error) == WEFT_OK) {
    sink += weft_model_get_info(model)->scratch_bytes;
    return model;
  }
  if (error.text[0] == 0) abort(); /* refused without a line */
  return NULL;
}

static void open_model(const weft_gguf *gguf) {
  static const weft_device_config config = {.backend = "ref", .n_threads = 1};
  weft_model_limits limits = {.rows_max = 2, .segments_max = 1};
  weft_device *device;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) abort();
  weft_model_close(open_with(gguf, device, &limits));
  limits.nextn = true;
  weft_model *model = open_with(gguf, device, &limits);
  limits.target = model;
  if (model != NULL) weft_model_close(open_with(gguf, device, &limits));
  weft_model_close(model);
  weft_device_close(device);
}

static void judge(const weft_gguf *gguf) {
  const model_arch *arch;
  static model_hyper hyper;
  weft_error error = {{0}};
  if (model_hyper_read(gguf, &arch, &hyper, &error) != WEFT_OK) {
    if (error.text[0] == 0) abort(); /* refused without a line */
    return;
  }
  weft_kv_geometry geometry = model_hyper_geometry(&hyper, gguf_kv_type(gguf));
  const weft_kv_geometry *list = &geometry;
  static weft_kv_layout layout;
  (void)weft_kv_layout_choose(&list, 1, 0, &layout, &error);
  sink += layout.page_bytes + weft_kv_bytes_per_token(&geometry, true);
  open_model(gguf);
}

static void describe(const weft_gguf *gguf) {
  for (int json = 0; json < 2; json++) {
    weft_text text = {0};
    weft_error error = {{0}};
    weft_status status = weft_inspect(gguf, json == 1, &text, &error);
    if (status != WEFT_OK && status != WEFT_E_NO_MEMORY) abort(); /* every file that opens is shown */
    if (status == WEFT_OK && (text.n == 0 || text.bytes[text.n - 1] != '\n')) abort();
    weft_text_free(&text);
  }
}

static void take_finding(void *self, const weft_numbers_finding *finding) {
  const weft_gguf *gguf = self;
  if (weft_gguf_tensor_find(gguf, finding->tensor) == NULL || finding->n_rows > finding->n_rows_all) abort();
  sink += finding->row;
}

static void look_at_numbers(weft_gguf *gguf) {
  weft_numbers_report report;
  weft_error error;
  weft_numbers_args args = {.gguf = gguf, .take = take_finding, .self = gguf};
  weft_status status = weft_numbers(&args, &report, &error);
  if (status == WEFT_OK && report.n_tensors + report.n_skipped != weft_gguf_n_tensors(gguf)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  weft_gguf *gguf;
  weft_error error;
  uint64_t low, high;
  weft_log_set_level(WEFT_LOG_ERROR);
  if (weft_gguf_open_memory(data, n, "input", &gguf, &error) != WEFT_OK) return 0;
  for (uint32_t i = 0; i < weft_gguf_n_keys(gguf); i++) read_key(gguf, i);
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) read_tensor(gguf, i);
  weft_gguf_fingerprint(gguf, &low, &high);
  sink += low ^ high;
  judge(gguf);
  describe(gguf);
  look_at_numbers(gguf);
  weft_gguf_close(gguf);
  return 0;
}
