/* SPDX-License-Identifier: MIT */
/* weft check stages: the first stage at which a model differs from itself computed another way: row by row, or so many
 * rows at a time, in another precision, with keys in 8 bits, on another backend, or from another file. 0: nothing
 * differs by more than it may. */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/model.h"
#include "bench/quality/stages.h"

enum { TOKENS = 24, ROWS_MAX = 2048 };

typedef struct stages_job {
  const weft_lab_config *config;
  uint32_t by_rows; /* rows of a step of the second way, where not a bit may differ; 0: another way */
  int32_t *tokens;
  uint32_t n_tokens;
  weft_stages *stages;
} stages_job;

/* What stands behind the word rows: nothing, or a colon and how many at a time. */
static weft_status read_rows(stages_job *job, const char *text, weft_error *error) {
  char *end = NULL;
  unsigned long n = *text == ':' && text[1] >= '0' && text[1] <= '9' ? strtoul(text + 1, &end, 10) : 1;
  if (*text != 0 && (end == NULL || *end != 0 || n == 0 || n > ROWS_MAX))
    return weft_fail(error, WEFT_E_INVALID, "--with rows%.50s: give rows, or rows:N with N from 1 to %d", text,
                     ROWS_MAX);
  job->by_rows = (uint32_t)n;
  return WEFT_OK;
}

/* The second way; the first is that of the options. */
static weft_status choose_way(stages_job *job, weft_lab_config *other, weft_error *error) {
  const char *with = job->config->with == NULL ? "rows" : job->config->with;
  *other = *job->config;
  if (strncmp(with, "rows", 4) == 0) return read_rows(job, with + 4, error);
  if (strcmp(with, "exact") == 0 || strcmp(with, "fast") == 0) {
    other->product.precision = with;
  } else if (strcmp(with, "ref") == 0 || strcmp(with, "cpu") == 0 || strcmp(with, "cuda") == 0) {
    other->product.backend = with;
  } else if (strcmp(with, "kv-8bit") == 0) {
    other->product.kv_8bit = (weft_text_list){.item = {"all"}, .n = 1};
  } else if (strchr(with, '.') != NULL || strchr(with, '/') != NULL) {
    other->product.models.item[0] = with;
  } else {
    return weft_fail(error, WEFT_E_INVALID,
                     "--with %.100s: give rows, rows:N, exact, fast, kv-8bit, ref, cpu, cuda, or a GGUF file", with);
  }
  return WEFT_OK;
}

static weft_status find_tokens(stages_job *job, const weft_model *model, weft_error *error) {
  if (job->config->product.tokens != NULL)
    return weft_config_ids(job->config->product.tokens, "--tokens", &job->tokens, &job->n_tokens, error);
  job->n_tokens = TOKENS;
  job->tokens = weft_lab_draw_tokens(TOKENS, weft_model_get_info(model)->n_vocab);
  return job->tokens != NULL ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the tokens");
}

static uint32_t step_rows(const stages_job *job, bool second) {
  if (second && job->by_rows > 0) return job->by_rows;
  return job->n_tokens > 0 && job->n_tokens < ROWS_MAX ? job->n_tokens : ROWS_MAX;
}

/* One model at a time is in memory. */
static weft_status run_pass(stages_job *job, const weft_lab_config *config, bool second, weft_error *error) {
  weft_lab_model model;
  const uint32_t rows = step_rows(job, second);
  const weft_model_limits limits = {.rows_max = rows, .canvas_rows_max = 1, .segments_max = 1};
  weft_status status = weft_lab_model_open(&model, config, error);
  if (status == WEFT_OK) status = weft_lab_model_load(&model, config, &limits, error);
  if (status == WEFT_OK && !second) status = find_tokens(job, model.model, error);
  if (status == WEFT_OK && !second) status = weft_stages_open(job->tokens, job->n_tokens, &job->stages, error);
  if (status == WEFT_OK) status = weft_stages_pass(job->stages, model.model, &model.limits, error);
  weft_lab_model_close(&model);
  return status;
}

/* ---- what is told ---- */

static double bound_error(double error) {
  return error < 1e30 ? error : 1e30;
}

static void say_where(const weft_stages_line *l, char *out, size_t n) {
  if (l->stage == WEFT_STAGE_HEAD) {
    (void)snprintf(out, n, "the head");
  } else {
    (void)snprintf(out, n, "layer %" PRIu32 ", %s", l->layer, weft_stage_name(l->stage));
  }
}

/* The largest difference at each stage, over all layers. */
static void print_table(const stages_job *job) {
  uint32_t n;
  const weft_stages_line *line = weft_stages_lines(job->stages, &n);
  for (int k = 0; k < WEFT_STAGES; k++) {
    const weft_stages_line *worst = NULL;
    uint64_t n_rows = 0, n_differ = 0;
    for (uint32_t i = 0; i < n; i++) {
      if ((int)line[i].stage != k) continue;
      n_rows += line[i].n_rows;
      n_differ += line[i].n_differ;
      if (worst == NULL || line[i].error > worst->error) worst = &line[i];
    }
    if (worst == NULL) continue;
    (void)printf("%-10s %8" PRIu64 " of %8" PRIu64 " rows differ, by at most %.3g (layer %" PRIu32 ", row %" PRIu32
                 ")\n",
                 weft_stage_name((weft_stage)k), n_differ, n_rows, bound_error(worst->error), worst->layer, worst->row);
  }
}

static void print_words(const stages_job *job, const weft_stages_line *bit, const weft_stages_line *far) {
  char where[64];
  const double tolerance = (double)job->config->tolerance;
  print_table(job);
  if (bit == NULL) {
    (void)printf("no bit differs at any stage of %" PRIu32 " tokens\n", job->n_tokens);
    return;
  }
  say_where(bit, where, sizeof where);
  (void)printf("the first bit differs at %s, row %" PRIu32 ": by %.3g of the row's root mean square\n", where, bit->row,
               bound_error(bit->error));
  if (job->by_rows > 0) return;
  if (far == NULL) {
    (void)printf("no row differs by more than %g of its root mean square (--tolerance)\n", tolerance);
    return;
  }
  say_where(far, where, sizeof where);
  (void)printf("the first row that differs by more than %g is at %s, row %" PRIu32 ": by %.3g\n", tolerance, where,
               far->row, bound_error(far->error));
}

static void put_line(const char *name, const weft_stages_line *l) {
  if (name != NULL) (void)printf(",\"%s\":", name);
  if (l == NULL) {
    (void)printf("null");
    return;
  }
  (void)printf("{\"layer\":%" PRIu32 ",\"stage\":\"%s\",\"rows\":%" PRIu32 ",\"differ\":%" PRIu32 ",\"row\":%" PRIu32
               ",\"error\":%.6g}",
               l->layer, weft_stage_name(l->stage), l->n_rows, l->n_differ, l->row, bound_error(l->error));
}

static void print_json(const stages_job *job, const weft_stages_line *bit, const weft_stages_line *far, bool differs) {
  uint32_t n;
  const weft_stages_line *line = weft_stages_lines(job->stages, &n);
  (void)printf("{\"differs\":%s,\"tokens\":%" PRIu32, differs ? "true" : "false", job->n_tokens);
  put_line("first_bit", bit);
  put_line("first", job->by_rows > 0 ? bit : far);
  (void)printf(",\"stages\":[");
  for (uint32_t i = 0; i < n; i++) {
    if (i > 0) (void)printf(",");
    put_line(NULL, &line[i]);
  }
  (void)printf("]}\n");
}

int weft_check_stages(const weft_lab_config *config) {
  stages_job job = {.config = config};
  weft_lab_config other;
  weft_error error = {{0}};
  weft_status status = choose_way(&job, &other, &error);
  if (status == WEFT_OK) status = run_pass(&job, config, false, &error);
  if (status == WEFT_OK) status = run_pass(&job, &other, true, &error);
  bool differs = false;
  if (status == WEFT_OK) {
    const weft_stages_line *bit = weft_stages_first(job.stages, 0);
    const weft_stages_line *far = weft_stages_first(job.stages, (double)config->tolerance);
    differs = job.by_rows > 0 ? bit != NULL : far != NULL;
    if (config->product.json) {
      print_json(&job, bit, far, differs);
    } else {
      print_words(&job, bit, far);
    }
  }
  weft_stages_close(job.stages);
  weft_free(job.tokens);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_code(status), "%s", error.text);
  return differs ? WEFT_EXIT_FAILED : WEFT_EXIT_OK;
}
