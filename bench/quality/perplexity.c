/* SPDX-License-Identifier: MIT */
/* weft perplexity: how well a model foretells a text, token by token or as canvases under noise, and how far what it says
 * is from what another model, backend or precision said. docs/quality.md defines every number. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/lab/model.h"
#include "bench/lab/progress.h"
#include "bench/quality/scores.h"
#include "bench/quality/summary.h"

enum { SEGMENTS_MAX = 256 }; /* windows and canvases of a step */

static const char *const default_noise = "0.25,0.5,0.75,1";

typedef struct perplexity_job {
  const weft_lab_config *config;
  weft_mode mode;
  char *text;
  size_t n_text;
  weft_lab_model model;
  weft_tokenizer *tokenizer;
  weft_windows windows;
  float level[WEFT_SAVED_LEVELS_MAX];
  uint32_t n_levels; /* 0: token by token */
  weft_saved_header header;
  weft_saved_file *save, *against;
  weft_scores scores;
  weft_lab_progress progress;
  double seconds;
} perplexity_job;

/* ---- what the command line says ---- */

static weft_status read_levels(perplexity_job *job, weft_error *error) {
  const char *list = job->config->noise == NULL ? default_noise : job->config->noise, *at = list;
  for (const char *end; job->n_levels < WEFT_SAVED_LEVELS_MAX; at = end + 1) {
    double level;
    if (!weft_range_read(at, &level, &end) || !((float)level > 0.0f && level <= 1.0)) break;
    job->level[job->n_levels++] = (float)level;
    if (*end == 0) return WEFT_OK;
    if (*end != ',') break;
  }
  return weft_fail(error, WEFT_E_INVALID, "--noise %s: give at most %d shares above 0 and up to 1, as in %s", list,
                   WEFT_SAVED_LEVELS_MAX, default_noise);
}

/* What can be said without the model: 0, or an exit code after one line. */
static int read_options(perplexity_job *job) {
  const weft_lab_config *c = job->config;
  if (c->product.input == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "perplexity: name the text with -f FILE");
  if (c->save_logits != NULL && c->kl != NULL) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "--save-logits and --kl are two runs: give one of them");
  }
  int code = weft_cli_mode(c->product.mode, &job->mode);
  if (code != 0) return code;
  job->text = weft_cli_read(c->product.input, &job->n_text);
  return job->text == NULL ? WEFT_EXIT_LOAD : 0;
}

static weft_windows_config windows_config(const weft_lab_config *c) {
  return (weft_windows_config){
      .context = c->product.context, .stride = c->stride, .n_max = c->chunks, .special = c->product.special};
}

static weft_status open_windows(perplexity_job *job, weft_error *error) {
  const weft_windows_config config = windows_config(job->config);
  weft_status status = weft_windows_check(&config, error);
  if (status != WEFT_OK) return status;
  return weft_windows_open(job->tokenizer, &config, job->config->product.input, job->text, job->n_text, &job->windows,
                           error);
}

/* Which way, once it is known whether the model has canvases. */
static weft_status choose_way(perplexity_job *job, weft_error *error) {
  const weft_lab_config *c = job->config;
  const weft_model_info *info = weft_model_get_info(job->model.model);
  if (c->product.context > info->context_length) {
    return weft_fail(error, WEFT_E_INVALID, "-c %" PRIu32 ": the context of %s is %" PRIu32, c->product.context,
                     info->name, info->context_length);
  }
  if (job->mode == WEFT_MODE_AUTOREGRESSIVE || (job->mode == WEFT_MODE_AUTO && info->canvas_length == 0)) {
    if (c->noise == NULL) return WEFT_OK;
    return weft_fail(error, WEFT_E_INVALID, "--noise is of canvases: %s is measured token by token", info->name);
  }
  if (info->canvas_length == 0) return weft_fail(error, WEFT_E_INVALID, "%s has no canvas pass", info->name);
  if (c->stride > 0) return weft_fail(error, WEFT_E_INVALID, "--stride is of --mode autoregressive");
  if (c->product.context <= info->canvas_length || c->product.rows < info->canvas_length) {
    return weft_fail(error, WEFT_E_INVALID, "%s has canvases of %" PRIu32 ": -c must be larger, and --rows no smaller",
                     info->name, info->canvas_length);
  }
  return read_levels(job, error);
}

static weft_status load_model(perplexity_job *job, weft_error *error) {
  uint32_t rows = job->config->product.rows;
  weft_model_limits limits = {
      .rows_max = rows, .canvas_rows_max = rows, .segments_max = rows < SEGMENTS_MAX ? rows : SEGMENTS_MAX};
  weft_status status = weft_lab_model_load(&job->model, job->config, &limits, error);
  if (status != WEFT_OK) return status;
  uint32_t n_vocab = weft_model_get_info(job->model.model)->n_vocab;
  if (weft_tokenizer_n_vocab(job->tokenizer) == n_vocab) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT, "%s: tokenizer.ggml.tokens has %u tokens but token_embd has %u rows",
                   weft_gguf_path(job->model.gguf), weft_tokenizer_n_vocab(job->tokenizer), n_vocab);
}

/* ---- the saved rows ---- */

static weft_status hash_vocabulary(const weft_tokenizer *tokenizer, uint64_t *out, weft_error *error) {
  weft_text text = {.bytes = NULL};
  uint32_t n = weft_tokenizer_n_vocab(tokenizer);
  weft_status status = WEFT_OK;
  *out = n;
  for (uint32_t id = 0; id < n && status == WEFT_OK; id++) {
    weft_text_clear(&text);
    status = weft_tokenizer_piece(tokenizer, (int32_t)id, true, &text);
    *out = XXH3_64bits_withSeed(text.bytes == NULL ? "" : text.bytes, text.n, *out);
  }
  weft_text_free(&text);
  return status == WEFT_OK ? status : weft_fail(error, status, "no memory for the vocabulary");
}

static void describe_backend(const weft_lab_model *m, char *out, size_t n_out) {
  const weft_device_info *d = weft_device_get_info(m->device);
  (void)snprintf(out, n_out, "%s %s, products of %" PRIu32 " bits, keys in %s", d->backend, d->isa, d->products,
                 weft_type_find((int32_t)weft_model_get_info(m->model)->kv_type)->name);
}

static weft_status fill_header(perplexity_job *job, weft_error *error) {
  const weft_model_info *info = weft_model_get_info(job->model.model);
  weft_saved_header *h = &job->header;
  memset(h, 0, sizeof *h);
  (void)snprintf(h->model, sizeof h->model, "%s", info->name);
  describe_backend(&job->model, h->backend, sizeof h->backend);
  h->fingerprint_low = info->fingerprint_low;
  h->fingerprint_high = info->fingerprint_high;
  h->text = job->windows.hash;
  h->n_vocab = info->n_vocab;
  h->context = job->windows.config.context;
  h->stride = job->windows.config.stride;
  h->n_windows = job->windows.n;
  h->n_levels = job->n_levels;
  memcpy(h->level, job->level, sizeof h->level);
  if (job->n_levels > 0) h->seed = job->config->product.sampling.seed;
  h->rows_per_window = weft_scores_per_window(&job->windows.config, job->level, job->n_levels, info->canvas_length);
  return hash_vocabulary(job->tokenizer, &h->vocabulary, error);
}

static weft_status open_saved(perplexity_job *job, weft_error *error) {
  const weft_lab_config *c = job->config;
  weft_status status = fill_header(job, error);
  if (status == WEFT_OK && c->save_logits != NULL) {
    status = weft_saved_create(c->save_logits, &job->header, &job->save, error);
  }
  if (status == WEFT_OK && c->kl != NULL) status = weft_saved_open(c->kl, &job->header, &job->against, error);
  return status;
}

/* ---- the run ---- */

static void show_windows(void *self, uint32_t n_windows, double nll) {
  perplexity_job *job = self;
  char more[64];
  if (job->n_levels > 0) {
    (void)snprintf(more, sizeof more, "cross-entropy at noise %g %.4f", (double)job->level[job->n_levels - 1], nll);
  } else {
    (void)snprintf(more, sizeof more, "perplexity %.4f", exp(nll));
  }
  weft_lab_progress_show(&job->progress, n_windows, job->windows.n, n_windows > 0 ? more : "");
}

static weft_status measure_text(perplexity_job *job, weft_error *error) {
  weft_scores_args args = {.device = job->model.device,
                           .model = job->model.model,
                           .limits = job->model.limits,
                           .windows = &job->windows,
                           .level = job->level,
                           .n_levels = job->n_levels,
                           .seed = job->config->product.sampling.seed,
                           .n_threads = job->config->product.threads,
                           .save = job->save,
                           .against = job->against,
                           .progress = show_windows,
                           .progress_self = job};
  uint64_t begun = weft_clock_us();
  show_windows(job, 0, 0.0);
  weft_status status = weft_scores_run(&args, &job->scores, error);
  job->seconds = (double)(weft_clock_us() - begun) * 1e-6;
  return status;
}

static weft_status run_perplexity(perplexity_job *job, weft_error *error) {
  weft_status status = weft_lab_model_open(&job->model, job->config, error);
  if (status == WEFT_OK) status = weft_tokenizer_open(job->model.gguf, &job->tokenizer, error);
  if (status == WEFT_OK) status = open_windows(job, error);
  if (status == WEFT_OK) status = load_model(job, error);
  if (status == WEFT_OK) status = choose_way(job, error);
  if (status == WEFT_OK) status = open_saved(job, error);
  if (status == WEFT_OK) status = measure_text(job, error);
  weft_error closing = {{0}};
  weft_status closed = weft_saved_close(job->save, &closing);
  job->save = NULL;
  return status == WEFT_OK && closed != WEFT_OK ? weft_fail(error, closed, "%s", closing.text) : status;
}

/* ---- what is printed ---- */

/* The numbers of the saved rows beside ours; sorts the divergences. */
typedef struct comparison {
  double mean, median, p99, most, same_top, ratio; /* ratio: of perplexities, ours by the saved one */
  weft_interval of_mean, of_ratio;
} comparison;

static comparison compare_series(weft_series *s) {
  comparison c = {.mean = weft_moments_of(s->divergence, s->n).mean};
  c.of_mean = weft_interval_of(s->divergence, NULL, s->n_windows, s->per_window);
  weft_interval log_ratio = weft_interval_of(s->nll, s->saved_nll, s->n_windows, s->per_window);
  c.of_ratio = (weft_interval){exp(log_ratio.low), exp(log_ratio.high), log_ratio.known};
  c.ratio = exp(0.5 * (log_ratio.low + log_ratio.high));
  c.same_top = (double)s->n_same_top / (double)s->n;
  weft_sort_floats(s->divergence, s->n);
  c.median = weft_quantile(s->divergence, s->n, 0.5);
  c.p99 = weft_quantile(s->divergence, s->n, 0.99);
  c.most = (double)s->divergence[s->n - 1];
  return c;
}

static json_t *interval_json(const weft_interval *i) {
  return i->known ? json_pack("[f, f]", i->low, i->high) : json_null();
}

static json_t *series_json(const perplexity_job *job, uint32_t index) {
  weft_series *s = (weft_series *)&job->scores.series[index];
  weft_moments m = weft_moments_of(s->nll, s->n);
  json_t *j = json_pack("{s:I, s:f, s:f, s:f, s:f}", "scored", (json_int_t)s->n, "cross_entropy", m.mean,
                        "cross_entropy_standard_error", m.standard_error, "perplexity", exp(m.mean),
                        "perplexity_standard_error", exp(m.mean) * m.standard_error);
  if (job->n_levels > 0) (void)json_object_set_new(j, "noise", json_real((double)job->level[index]));
  if (job->against == NULL) return j;
  comparison c = compare_series(s);
  (void)json_object_set_new(
      j, "kl",
      json_pack("{s:f, s:o, s:f, s:f, s:f, s:f, s:f, s:o}", "mean", c.mean, "mean_interval", interval_json(&c.of_mean),
                "median", c.median, "p99", c.p99, "max", c.most, "same_top", c.same_top, "perplexity_ratio", c.ratio,
                "perplexity_ratio_interval", interval_json(&c.of_ratio)));
  return j;
}

static int print_json(const perplexity_job *job) {
  const weft_saved_header *h = &job->header;
  json_t *series = json_array();
  for (uint32_t i = 0; i < job->scores.n_series; i++) (void)json_array_append_new(series, series_json(job, i));
  json_t *root =
      json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:f}", "model", h->model, "backend", h->backend, "mode",
                job->n_levels > 0 ? "diffusion" : "autoregressive", "tokens", (int)job->windows.tokens.n, "context",
                (int)h->context, "stride", (int)h->stride, "windows", (int)h->n_windows, "seconds", job->seconds);
  if (job->n_levels > 0) (void)json_object_set_new(root, "seed", json_integer((json_int_t)h->seed));
  if (job->against != NULL) {
    const weft_saved_header *base = weft_saved_header_of(job->against);
    (void)json_object_set_new(root, "against", json_pack("{s:s, s:s}", "model", base->model, "backend", base->backend));
  }
  (void)json_object_set_new(root, "results", series);
  char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  json_decref(root);
  if (text == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "no memory for the numbers, or a name is not UTF-8");
  (void)printf("%s\n", text);
  free(text);
  return 0;
}

static void print_comparison(weft_series *s) {
  comparison c = compare_series(s);
  (void)printf("  KL divergence from the saved rows %.4g", c.mean);
  if (c.of_mean.known) (void)printf(" (95 %%, over windows: %.4g to %.4g)", c.of_mean.low, c.of_mean.high);
  (void)printf("; median %.4g, 99 %% %.4g, largest %.4g\n", c.median, c.p99, c.most);
  (void)printf("  same likeliest token %.3f %%; perplexity %.6f times the saved one", 100.0 * c.same_top, c.ratio);
  if (c.of_ratio.known) (void)printf(" (95 %%: %.6f to %.6f)", c.of_ratio.low, c.of_ratio.high);
  (void)printf("\n");
}

static void print_text(perplexity_job *job) {
  const weft_saved_header *h = &job->header;
  (void)printf("%s, %s: %" PRIu32 " windows of %" PRIu32 " tokens\n", h->model, h->backend, h->n_windows, h->context);
  for (uint32_t i = 0; i < job->scores.n_series; i++) {
    weft_series *s = &job->scores.series[i];
    weft_moments m = weft_moments_of(s->nll, s->n);
    if (job->n_levels > 0) {
      (void)printf("noise %.4g: cross-entropy %.4f +/- %.4f over %" PRIu64 " tokens\n", (double)job->level[i], m.mean,
                   m.standard_error, s->n);
    } else {
      (void)printf("perplexity %.4f +/- %.4f over %" PRIu64 " tokens\n", exp(m.mean), exp(m.mean) * m.standard_error,
                   s->n);
    }
    if (job->against != NULL) print_comparison(s);
  }
}

int weft_lab_perplexity(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  perplexity_job job = {.config = config, .progress = {.what = "perplexity", .quiet = config->product.quiet}};
  weft_error error = {{0}};
  int code = read_options(&job);
  weft_status status = code == 0 ? run_perplexity(&job, &error) : WEFT_OK;
  if (status != WEFT_OK) {
    code = weft_cli_fail(weft_cli_code(status), "%s", error.text);
  } else if (code == 0 && config->product.json) {
    code = print_json(&job);
  } else if (code == 0) {
    print_text(&job);
  }
  (void)weft_saved_close(job.against, &error);
  weft_scores_free(&job.scores);
  weft_windows_close(&job.windows);
  weft_tokenizer_close(job.tokenizer);
  weft_lab_model_close(&job.model);
  weft_free(job.text);
  return code;
}
