/* SPDX-License-Identifier: MIT */
/* weft logits: raw little-endian f32 logits, one row per token or per canvas position. */
#include <errno.h>
#include <string.h>

#include "bench/lab/model.h"

typedef struct logits_job {
  const weft_lab_config *config;
  weft_lab_model model;
  int32_t *tokens, *canvas;
  uint32_t n_tokens, n_canvas;
  char *previous;
  size_t n_previous;
  FILE *out;
} logits_job;

static int write_rows(void *self, const weft_logits_row *row, uint32_t n_rows, const float *logits, uint32_t n_vocab) {
  logits_job *job = self;
  size_t n = (size_t)n_rows * n_vocab;
  (void)row;
  return fwrite(logits, sizeof *logits, n, job->out) == n ? 0 : 1;
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

static weft_status load_model(logits_job *job, weft_error *error) {
  weft_model_limits limits = {.rows_max = job->n_tokens > 256 ? 256 : job->n_tokens, .segments_max = 1};
  if (limits.rows_max < job->n_canvas) limits.rows_max = job->n_canvas;
  limits.canvas_rows_max = job->n_canvas > 0 ? job->n_canvas : 1;
  weft_status status = weft_lab_model_load(&job->model, job->config, &limits, error);
  if (status != WEFT_OK) return status;
  const weft_model_info *info = weft_model_get_info(job->model.model);
  if (job->canvas != NULL && info->canvas_length == 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s has no canvas pass: leave --canvas out", info->name);
  }
  if (job->canvas != NULL && job->n_canvas != info->canvas_length) {
    return weft_fail(error, WEFT_E_INVALID, "the canvas has %u tokens; this model's has %u", job->n_canvas,
                     info->canvas_length);
  }
  size_t wanted = (size_t)job->n_canvas * info->n_vocab * sizeof(float);
  if (job->previous != NULL && job->n_previous != wanted) {
    return weft_fail(error, WEFT_E_INVALID, "--self-cond %s has %zu bytes; %u rows of f32 logits are %zu",
                     job->config->self_cond, job->n_previous, job->n_canvas, wanted);
  }
  return WEFT_OK;
}

static weft_status compute_logits(logits_job *job, weft_error *error) {
  weft_logits_config config = {.model = job->model.model,
                               .limits = job->model.limits,
                               .tokens_max = job->n_tokens,
                               .sequences_max = 1,
                               .head_rows = 1};
  weft_logits_sequence sequence = {.tokens = job->tokens,
                                   .n_tokens = job->n_tokens,
                                   .first = job->canvas != NULL ? job->n_tokens : 0,
                                   .canvas = job->canvas,
                                   .n_canvases = job->canvas != NULL ? 1 : 0,
                                   .previous = (const float *)(const void *)job->previous,
                                   .previous_temperature = job->config->self_cond_temperature};
  weft_logits *logits = NULL;
  weft_status status = weft_logits_open(&config, &logits, error);
  if (status == WEFT_OK) status = weft_logits_run(logits, &sequence, 1, write_rows, job, error);
  weft_logits_close(logits);
  return status;
}

static int run_logits(logits_job *job) {
  weft_error error = {{0}};
  const char *output = job->config->product.output;
  int code = read_inputs(job, &error);
  if (code != 0) return code;
  weft_status status = weft_lab_model_open(&job->model, job->config, &error);
  if (status == WEFT_OK) status = load_model(job, &error);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_code(status), "%s", error.text);
  job->out = fopen(output, "wb");
  if (job->out == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "-o %s: %s", output, strerror(errno));
  status = compute_logits(job, &error);
  bool written = fclose(job->out) == 0;
  job->out = NULL;
  if (status == WEFT_OK && !written) return weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: %s", output, strerror(errno));
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error.text);
}

int weft_lab_logits(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  if (config->product.models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "logits: name one GGUF file with -m FILE");
  if (config->product.tokens == NULL)
    return weft_cli_fail(WEFT_EXIT_USAGE, "logits: give the prompt with --tokens IDS");
  if (config->product.output == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "logits: name the result with -o FILE");
  logits_job job = {.config = config};
  int code = run_logits(&job);
  weft_lab_model_close(&job.model);
  weft_free(job.tokens);
  weft_free(job.canvas);
  weft_free(job.previous);
  return code;
}
