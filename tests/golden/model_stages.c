/* SPDX-License-Identifier: MIT */
/* weft check stages: a fault that is planted in a weight of one stage of one layer is named by stage and layer; rows
 * one by one and at once differ at no stage, on any kind of layer; two models of different shapes are refused. */
#include "model/stages.h"
#include "tests/support/model_harness.h"

enum { N_TOKENS = 11, ROWS = 4 };

static const int32_t tokens[N_TOKENS] = {5, 1, 2, 6, 7, 0, 4, 3, 1, 3, 2}; /* of the smallest vocabulary */

typedef struct opened {
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
  weft_model_limits limits;
} opened;

static opened open_tiny(const char *name, const char *backend, uint32_t rows) {
  opened o = {.limits = {.rows_max = rows, .canvas_rows_max = 1, .segments_max = 1}};
  const weft_device_config config = {.backend = backend, .n_threads = 1};
  weft_error error = {{0}};
  o.gguf = harness_gguf(harness_tiny(name));
  if (weft_device_open(&config, &o.device, &error) != WEFT_OK) harness_die(backend, WEFT_E_DEVICE, error.text);
  const weft_split split = weft_split_one(o.device);
  weft_status status = weft_model_open(o.gguf, &split, &o.limits, NULL, NULL, &o.model, &error);
  if (status != WEFT_OK) harness_die(name, status, error.text);
  return o;
}

static void close_tiny(opened *o) {
  weft_model_close(o->model);
  weft_device_close(o->device);
  weft_gguf_close(o->gguf);
}

static void pass(weft_stages *s, const opened *o) {
  weft_error error = {{0}};
  weft_status status = weft_stages_pass(s, o->model, &o->limits, &error);
  if (status != WEFT_OK) harness_die("a pass", status, error.text);
}

/* ---- a fault ---- */

typedef struct fault {
  const char *model;
  uint32_t layer;
  weft_stage stage;
} fault;

static void spoil_floats(const float *x, uint64_t n) {
  float *y = (float *)(uintptr_t)x;
  for (uint64_t i = 0; i < n; i++) y[i] *= 1.25f;
}

/* A low bit of each number, so that all stay finite. */
static void spoil_weight(const weft_weight *w) {
  uint8_t *bytes = (uint8_t *)(uintptr_t)w->data;
  for (uint64_t i = 1; i < w->n_bytes; i += 4) bytes[i] ^= 0x40;
}

static void plant(const opened *o, const fault *f) {
  const model_layer *layer = o->model->layers + (f->layer < o->model->hyper.n_layers ? f->layer : 0);
  switch (f->stage) {
    case WEFT_STAGE_QUERY:
      spoil_floats(layer->q_norm, 4);
      break;
    case WEFT_STAGE_ATTENTION:
      spoil_weight(&layer->o);
      break;
    case WEFT_STAGE_FFN:
      spoil_weight(&layer->down);
      break;
    case WEFT_STAGE_EXPERTS:
      spoil_weight(&layer->down_exps);
      break;
    case WEFT_STAGE_LAYER:
      spoil_floats(layer->post_ffw_norm, 4);
      break;
    case WEFT_STAGE_HEAD:
      spoil_floats(o->model->globals.output_norm, 4);
      break;
    default:
      harness_die("plant", WEFT_E_INVALID, "no such stage");
  }
}

static void expect(bool holds, const fault *f, const char *what) {
  if (holds) return;
  (void)printf("FAILED: %s, layer %u, %s: %s\n", f->model, f->layer, weft_stage_name(f->stage), what);
  exit(1);
}

static void find_fault(const fault *f) {
  opened right = open_tiny(f->model, "ref", ROWS), wrong = open_tiny(f->model, "ref", ROWS);
  weft_stages *s;
  uint32_t n, at = 0;
  plant(&wrong, f);
  if (weft_stages_open(tokens, N_TOKENS, &s, NULL) != WEFT_OK) harness_die("open", WEFT_E_NO_MEMORY, "");
  pass(s, &right);
  expect(weft_stages_first(s, 0) == NULL, f, "one pass differs from nothing");
  pass(s, &wrong);
  const weft_stages_line *line = weft_stages_lines(s, &n), *first = weft_stages_first(s, 0);
  expect(first != NULL && first->stage == f->stage && (first->layer == f->layer || f->stage == WEFT_STAGE_HEAD), f,
         "another place was named");
  expect(first->n_rows == N_TOKENS && first->n_differ > 0 && first->error > 0, f, "how much is not said");
  while (&line[at] != first) at++;
  for (uint32_t i = 0; i < at; i++) expect(line[i].n_differ == 0 && line[i].error == 0, f, "a place before differs");
  const weft_stages_line *coarse = weft_stages_first(s, first->error);
  expect(coarse == NULL || coarse > first, f, "a tolerance is not kept");
  weft_stages_close(s);
  close_tiny(&right);
  close_tiny(&wrong);
}

/* ---- rows one by one ---- */

static uint32_t same_by_rows(const char *name, const char *backend) {
  const fault none = {.model = name};
  opened whole = open_tiny(name, backend, N_TOKENS), single = open_tiny(name, backend, 1);
  weft_stages *s;
  uint32_t n;
  if (weft_stages_open(tokens, N_TOKENS, &s, NULL) != WEFT_OK) harness_die("open", WEFT_E_NO_MEMORY, "");
  pass(s, &whole);
  pass(s, &single);
  const weft_stages_line *line = weft_stages_lines(s, &n);
  expect(weft_stages_first(s, 0) == NULL, &none, "rows one by one have other bits");
  for (uint32_t i = 0; i < n; i++) expect(line[i].n_rows == N_TOKENS, &none, "a row was not compared");
  expect(line[n - 1].stage == WEFT_STAGE_HEAD, &none, "the head was not compared");
  weft_stages_close(s);
  close_tiny(&whole);
  close_tiny(&single);
  return n;
}

static void other_shapes_are_refused(void) {
  const fault none = {.model = "dg-base and ar-dense"};
  opened a = open_tiny("dg-base", "ref", ROWS), b = open_tiny("ar-dense", "ref", ROWS);
  weft_error error = {{0}};
  weft_stages *s;
  if (weft_stages_open(tokens, N_TOKENS, &s, NULL) != WEFT_OK) harness_die("open", WEFT_E_NO_MEMORY, "");
  pass(s, &a);
  weft_status status = weft_stages_pass(s, b.model, &b.limits, &error);
  expect(status == WEFT_E_INVALID && strstr(error.text, "cannot be compared") != NULL, &none, error.text);
  weft_stages_close(s);
  close_tiny(&a);
  close_tiny(&b);
}

int main(void) {
  static const fault faults[] = {
      {"dg-base", 0, WEFT_STAGE_QUERY}, {"dg-base", 1, WEFT_STAGE_QUERY},         {"dg-base", 1, WEFT_STAGE_ATTENTION},
      {"dg-base", 1, WEFT_STAGE_FFN},   {"dg-base", 0, WEFT_STAGE_EXPERTS},       {"dg-base", 1, WEFT_STAGE_EXPERTS},
      {"dg-base", 1, WEFT_STAGE_LAYER}, {"dg-base", UINT32_MAX, WEFT_STAGE_HEAD}, {"ar-dense", 1, WEFT_STAGE_FFN}};
  static const char *const models[] = {"dg-base", "ar-dense", "ar-e2b", "qwen35-moe", "gpt-oss-base", "deepseek4-base"};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) find_fault(&faults[i]);
  uint32_t n = 0;
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) n += same_by_rows(models[i], "cpu");
  other_shapes_are_refused();
  (void)printf("%zu faults were named; %u stages of %zu models are the same row by row\n",
               sizeof faults / sizeof *faults, n, sizeof models / sizeof *models);
  return 0;
}
