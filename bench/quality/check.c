/* SPDX-License-Identifier: MIT */
/* weft check: the numbers of a file, then a backend against ref, op by op. 0: all is well; 1: tensor and row, or the
 * first op that differs, are named. */

#include <inttypes.h>

#include "bench/lab/model.h"
#include "bench/lab/progress.h"
#include "bench/quality/stages.h"

/* REF_RATE: weights that ref reads and multiplies per second on one core of a server, about. The work is bounded by it and
 * not by a clock, so that a command compares the same rows on every machine. */
enum { TOKENS = 12, REF_RATE = 600000000 };

typedef struct check_job {
  weft_lab_progress progress; /* of ref's work */
  weft_gguf *gguf;
  weft_devices devices;
  weft_split split, ref; /* devices of the one are in `devices`; those of the other are the job's own */
  int32_t *tokens, *canvas;
} check_job;

/* What the file says of itself, from a model opened for a moment. */
static weft_status find_sizes(const check_job *job, uint32_t *n_vocab, uint32_t *n_canvas, weft_error *error) {
  weft_model_limits limits = {.rows_max = 1, .canvas_rows_max = 1, .segments_max = 1};
  weft_model *model = NULL;
  const weft_split split = weft_split_one(job->ref.device[0]);
  weft_status status = weft_model_open(job->gguf, &split, &limits, NULL, NULL, &model, error);
  if (status != WEFT_OK) return status;
  *n_vocab = weft_model_get_info(model)->n_vocab;
  *n_canvas = weft_model_get_info(model)->canvas_length;
  weft_model_close(model);
  return WEFT_OK;
}

/* As many devices of ref as there are devices, with the same cuts. */
static weft_status open_ref(check_job *job, weft_error *error) {
  const weft_device_config config = {.backend = "ref"};
  weft_status status = WEFT_OK;
  job->ref = job->split;
  job->ref.n_devices = 0;
  for (uint32_t i = 0; i < job->split.n_devices && status == WEFT_OK; i++) {
    status = weft_device_open(&config, &job->ref.device[i], error);
    if (status == WEFT_OK) job->ref.n_devices = i + 1;
  }
  return status;
}

static void show_progress(void *self, uint64_t done, uint64_t total) {
  check_job *job = self;
  char whole[64];
  (void)snprintf(whole, sizeof whole, "of about %.0f s of ref", (double)total / REF_RATE);
  weft_lab_progress_show(&job->progress, done, total, done == 0 ? whole : "");
}

static weft_status run_check(const weft_lab_config *c, check_job *job, weft_check_report *report, weft_error *error) {
  weft_split_reason reason;
  uint32_t n_tokens = TOKENS, n_vocab = 0, n_canvas = 0;
  weft_status status = weft_gguf_open(c->product.models.item[0], &job->gguf, error);
  if (status == WEFT_OK) status = weft_lab_devices(c, job->gguf, &job->devices, error);
  if (status == WEFT_OK) status = devices_split(&job->devices, 0, job->gguf, &job->split, &reason, error);
  if (status == WEFT_OK) status = open_ref(job, error);
  if (status == WEFT_OK) status = find_sizes(job, &n_vocab, &n_canvas, error);
  if (status != WEFT_OK) return status;
  job->canvas = n_canvas > 0 ? weft_lab_draw_tokens(n_canvas, n_vocab) : NULL;
  if (c->product.tokens == NULL) job->tokens = weft_lab_draw_tokens(n_tokens, n_vocab);
  if (c->product.tokens != NULL)
    status = weft_config_ids(c->product.tokens, "--tokens", &job->tokens, &n_tokens, error);
  if (status == WEFT_OK && (job->tokens == NULL || (n_canvas > 0 && job->canvas == NULL))) {
    status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tokens");
  }
  if (status != WEFT_OK) return status;
  weft_check_args args = {.gguf = job->gguf,
                          .split = &job->split,
                          .ref = &job->ref,
                          .tokens = job->tokens,
                          .n_tokens = n_tokens,
                          .canvas = job->canvas,
                          .n_canvas = n_canvas,
                          .tolerance = c->tolerance,
                          .work_max = (uint64_t)c->seconds * REF_RATE,
                          .progress = show_progress,
                          .progress_self = job};
  return weft_check(&args, report, error);
}

static void print_check(const weft_lab_config *c, const check_job *job, const weft_check_report *r) {
  const weft_device_info *d = weft_device_get_info(job->devices.device[0]);
  char where[64] = "after the last layer";
  if (r->layer != UINT32_MAX) (void)snprintf(where, sizeof where, "layer %" PRIu32, r->layer);
  if (c->product.json) {
    (void)printf("{\"agrees\":%s,\"backend\":\"%s\",\"ops\":%" PRIu32 ",\"rows\":%" PRIu32 ",\"product_rows\":%" PRIu64
                 ",\"product_rows_compared\":%" PRIu64 ",\"op\":\"%s\",\"layer\":%d,\"index\":%" PRIu32
                 ",\"row\":%" PRIu32 ",\"error\":%.6g}\n",
                 r->agrees ? "true" : "false", d->backend, r->n_ops, r->n_rows, r->product_rows, r->rows_taken, r->op,
                 r->layer == UINT32_MAX ? -1 : (int)r->layer, r->index, r->row, r->error < 1e30 ? r->error : 1e30);
  } else if (r->agrees) {
    (void)printf("%s %s agrees with ref: %" PRIu32 " ops, statistics of %" PRIu32
                 " rows; closest at %s, %s (op %" PRIu32 "): %.1f %% of what is allowed\n",
                 d->backend, d->isa, r->n_ops, r->n_rows, where, r->op, r->index, 100.0 * r->error);
    if (r->rows_taken < r->product_rows)
      (void)printf("of the products with weights, %" PRIu64 " of %" PRIu64
                   " rows were compared, some of every op (--seconds %" PRIu32 "); of all other ops every row\n",
                   r->rows_taken, r->product_rows, c->seconds);
  } else {
    (void)printf("%s %s differs from ref at %s, %s (op %" PRIu32 "), row %" PRIu32 ": %.3g times what is allowed\n",
                 d->backend, d->isa, where, r->op, r->index, r->row, r->error);
  }
}

/* ---- numbers ---- */

typedef struct numbers_job {
  bool json;
  uint32_t n_told; /* findings */
  weft_lab_progress progress;
  weft_text list;
} numbers_job;

static void take_finding(void *self, const weft_numbers_finding *f) {
  numbers_job *job = self;
  const char *what = weft_numbers_fault_text(f->fault);
  if (!job->json) {
    weft_text_printf(&job->list,
                     "%s: %" PRIu64 " of %" PRIu64 " rows are %s, the first is row %" PRIu64 " of matrix %" PRIu64 "\n",
                     f->tensor, f->n_rows, f->n_rows_all, what, f->row, f->matrix);
    return;
  }
  weft_text_puts(&job->list, job->n_told++ > 0 ? ",{\"tensor\":" : "{\"tensor\":");
  weft_json_words(&job->list, f->tensor);
  weft_text_printf(&job->list,
                   ",\"fault\":\"%s\",\"rows\":%" PRIu64 ",\"of\":%" PRIu64 ",\"row\":%" PRIu64 ",\"matrix\":%" PRIu64
                   "}",
                   what, f->n_rows, f->n_rows_all, f->row, f->matrix);
}

static void show_bytes(void *self, uint64_t n_bytes, uint64_t n_bytes_all) {
  numbers_job *job = self;
  weft_lab_progress_show(&job->progress, n_bytes, n_bytes_all, "");
}

static void say_numbers(const weft_config *c, const numbers_job *job, const weft_numbers_report *r, bool whole) {
  if (c->json && (whole || r->n_broken > 0)) {
    (void)printf("{\"sound\":%s,\"tensors\":%" PRIu32 ",\"broken\":%" PRIu32 ",\"skipped\":%" PRIu32
                 ",\"findings\":[%s]}\n",
                 r->n_broken == 0 ? "true" : "false", r->n_tensors, r->n_broken, r->n_skipped,
                 job->list.n > 0 ? job->list.bytes : "");
  } else if (!c->json) {
    (void)printf("%snumbers: %" PRIu32 " tensors read, %" PRIu32 " broken, %" PRIu32
                 " of types that are not computed\n",
                 job->list.n > 0 ? job->list.bytes : "", r->n_tensors, r->n_broken, r->n_skipped);
  }
}

/* whole: this is all that was asked for. */
static int check_numbers(const weft_config *c, bool whole) {
  numbers_job job = {.json = c->json, .progress = {.what = "reading numbers", .quiet = c->quiet}};
  weft_gguf *gguf = NULL;
  weft_numbers_report report = {0};
  weft_error error = {{0}};
  weft_status status = weft_gguf_open(c->models.item[0], &gguf, &error);
  weft_numbers_args args = {.gguf = gguf, .take = take_finding, .progress = show_bytes, .self = &job};
  if (status == WEFT_OK) status = weft_numbers(&args, &report, &error);
  if (status == WEFT_OK && weft_text_status(&job.list) != WEFT_OK)
    status = weft_fail(&error, WEFT_E_NO_MEMORY, "no memory for the findings");
  if (status == WEFT_OK) say_numbers(c, &job, &report, whole);
  weft_text_free(&job.list);
  weft_gguf_close(gguf);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_code(status), "%s", error.text);
  return report.n_broken == 0 ? WEFT_EXIT_OK : WEFT_EXIT_FAILED;
}

int weft_lab_check(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  const char *part = product->words.n == 1 ? product->words.item[0] : "";
  bool numbers_only = strcmp(part, "numbers") == 0, stages = strcmp(part, "stages") == 0;
  if (config->product.models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "check: name one GGUF file with -m FILE");
  if (product->words.n > 0 && !numbers_only && !stages)
    return weft_cli_fail(WEFT_EXIT_USAGE, "check: '%s' is no part of it; it has: numbers, stages",
                         product->words.item[0]);
  if (config->with != NULL && !stages) return weft_cli_fail(WEFT_EXIT_USAGE, "--with is of `weft check stages`");
  if (stages) return weft_check_stages(config);
  int numbers = check_numbers(product, numbers_only);
  if (numbers_only || numbers != WEFT_EXIT_OK) return numbers;
  check_job job = {.progress = {.what = "comparing with ref", .quiet = config->product.quiet}};
  weft_check_report report = {.agrees = false};
  weft_error error = {{0}};
  weft_status status = run_check(config, &job, &report, &error);
  int code = status != WEFT_OK ? weft_cli_fail(weft_cli_code(status), "%s", error.text) : 0;
  if (code == 0) print_check(config, &job, &report);
  devices_close(&job.devices);
  for (uint32_t i = 0; i < job.ref.n_devices; i++) weft_device_close(job.ref.device[i]);
  weft_gguf_close(job.gguf);
  weft_free(job.tokens);
  weft_free(job.canvas);
  return code != 0 ? code : report.agrees ? WEFT_EXIT_OK : WEFT_EXIT_FAILED;
}
