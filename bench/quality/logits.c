/* SPDX-License-Identifier: MIT */
/* weft logits: raw little-endian f32 logits, one row per token or per canvas position. */
#include <errno.h>
#include <string.h>

#include "bench/lab/lab.h"

typedef struct logits_job {
  const weft_lab_config *config;
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
  int32_t *tokens, *canvas;
  uint32_t n_tokens, n_canvas;
  char *previous;
  size_t n_previous;
  FILE *out;
} logits_job;

static int write_row(void *self, const float *logits, uint32_t n_vocab) {
  logits_job *job = self;
  return fwrite(logits, sizeof *logits, n_vocab, job->out) == n_vocab ? 0 : 1;
}

static int read_inputs(logits_job *job, weft_error *error) {
  const weft_lab_config *c = job->config;
  weft_status status = weft_config_ids(c->product.tokens, "--tokens", &job->tokens, &job->n_tokens, error);
  if (status == WEFT_OK && c->canvas != NULL) {
    status = weft_config_ids(c->canvas, "--canvas", &job->canvas, &job->n_canvas, error);
  }
  if (status != WEFT_OK) return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error->text);
  if (c->self_cond == NULL) return 0;
  if (c->canvas == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "--self-cond needs --canvas");
  job->previous = weft_cli_read(c->self_cond, &job->n_previous);
  return job->previous == NULL ? WEFT_EXIT_LOAD : 0;
}

static int load(logits_job *job, weft_model_limits *limits, weft_error *error) {
  const weft_lab_config *c = job->config;
  weft_device_config device = {.backend = c->product.backend, .n_threads = c->product.threads};
  weft_status status = weft_gguf_open(c->product.models.item[0], &job->gguf, error);
  if (status == WEFT_OK) status = weft_device_open(&device, &job->device, error);
  limits->rows_max = job->n_tokens > 256 ? 256 : job->n_tokens;
  if (limits->rows_max < job->n_canvas) limits->rows_max = job->n_canvas;
  limits->canvas_rows_max = job->n_canvas > 0 ? job->n_canvas : 1;
  limits->segments_max = 1;
  if (status == WEFT_OK) {
    status = weft_model_open(job->gguf, job->device, limits, NULL, NULL, &job->model, error);
  }
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error->text);
}

static int run(logits_job *job) {
  weft_error error = {{0}};
  weft_model_limits limits = {0};
  const weft_lab_config *c = job->config;
  int code = read_inputs(job, &error);
  if (code == 0) code = load(job, &limits, &error);
  if (code != 0) return code;
  size_t wanted = (size_t)job->n_canvas * weft_model_get_info(job->model)->n_vocab * sizeof(float);
  if (job->previous != NULL && job->n_previous != wanted) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "--self-cond %s has %zu bytes; %u rows of f32 logits are %zu", c->self_cond,
                         job->n_previous, job->n_canvas, wanted);
  }
  job->out = fopen(c->product.output, "wb");
  if (job->out == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "-o %s: %s", c->product.output, strerror(errno));
  weft_logits_args args = {.device = job->device,
                           .model = job->model,
                           .limits = limits,
                           .tokens = job->tokens,
                           .n_tokens = job->n_tokens,
                           .canvas = job->canvas,
                           .n_canvas = job->n_canvas,
                           .previous = (const float *)(const void *)job->previous,
                           .previous_temperature = c->self_cond_temperature,
                           .row = write_row,
                           .self = job};
  weft_status status = weft_logits(&args, &error);
  bool written = fclose(job->out) == 0;
  job->out = NULL;
  if (status == WEFT_OK && !written)
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: %s", c->product.output, strerror(errno));
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error.text);
}

int weft_lab_logits(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  if (config->product.models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "logits: name one GGUF file with -m FILE");
  if (config->product.tokens == NULL)
    return weft_cli_fail(WEFT_EXIT_USAGE, "logits: give the prompt with --tokens IDS");
  if (config->product.output == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "logits: name the result with -o FILE");
  logits_job job = {.config = config};
  int code = run(&job);
  weft_model_close(job.model);
  if (job.device != NULL) weft_device_close(job.device);
  weft_gguf_close(job.gguf);
  weft_free(job.tokens);
  weft_free(job.canvas);
  weft_free(job.previous);
  return code;
}
