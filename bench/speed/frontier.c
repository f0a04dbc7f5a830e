/* SPDX-License-Identifier: MIT */
/* weft bench frontier: how speed changes as one conversation grows, from --from to --to tokens, --step at a time.
 *
 * Law: the prompt of each step is that of the step before and more, so with the prefix cache only the increment is
 * computed, and the column `computed` says so; with --no-prefix-cache the whole prompt is. Then --n-generate tokens
 * are decoded, and where the model has canvases twelve denoise steps follow over the same prompt. Each of --repeat
 * walks has a prompt of its own and starts with an empty cache; one walk to the first step comes before and is not
 * counted. A figure is the median over the walks; behind it stands the standard deviation over the mean, in percent.
 * A step's line is written in the last walk, as soon as its figures are there: a run that is cut off leaves those that
 * it has measured. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sim/plot.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { STEPS_MAX = 256, WALKS_MAX = 64, CANVAS_STEPS = 12, WARM_SEED = 7000 };

typedef enum frontier_figure {
  PREFILL = 0,    /* tokens of the increment per second */
  FIRST_MS = 1,   /* to the first token */
  GEN_TPS = 2,    /* tokens per second behind the first one */
  GEN_TPS_SS = 3, /* steady state: behind the second one */
  CANVAS_MS = 4,  /* a denoise step */
  FIGURES = 5
} frontier_figure;

static const char *const figure_names[FIGURES] = {"prefill_tps", "first_ms", "gen_tps", "gen_tps_ss", "canvas_ms"};

typedef struct frontier_step {
  uint32_t context, n_computed;
  uint64_t kv_bytes;
  double value[FIGURES][WALKS_MAX]; /* by walk; sorted once all are there */
  double median[FIGURES], variation[FIGURES];
} frontier_step;

typedef struct frontier {
  const weft_lab_config *config;
  weft_runtime *rt;
  weft_model_card card;
  bool autoregressive, canvases;
  uint32_t n_walks, n_steps, n_told;
  FILE *file; /* of -o; NULL: none */
  frontier_step step[STEPS_MAX];
} frontier;

/* ---- which steps ---- */

static int list_steps(frontier *f) {
  const weft_lab_config *c = f->config;
  uint32_t answer = c->n_generate > f->card.canvas ? c->n_generate : f->card.canvas;
  uint32_t most = f->card.context > answer ? f->card.context - answer : 0, to = c->to == 0 ? most : c->to;
  if (c->from > to || to > most)
    return weft_cli_fail(
        WEFT_EXIT_USAGE,
        "bench frontier: --from %u --to %u: the context of %u has room for prompts of %u at most beside "
        "an answer of %u; raise -c or lower them",
        c->from, to, f->card.context, most, answer);
  for (uint64_t n = c->from; n <= to; n = c->step > 0 ? n + c->step : 2 * n) {
    if (f->n_steps == STEPS_MAX)
      return weft_cli_fail(WEFT_EXIT_USAGE, "bench frontier: these are more than %d steps: raise --step", STEPS_MAX);
    f->step[f->n_steps++].context = (uint32_t)n;
  }
  if (c->n_generate < 3 || c->n_generate > WEFT_RECORDED_STEPS / 2)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench frontier: --n-generate must be from 3 to %d", WEFT_RECORDED_STEPS / 2);
  if (c->repeat > WALKS_MAX)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench frontier: --repeat must be %d at most", WALKS_MAX);
  f->n_walks = c->repeat;
  return 0;
}

/* ---- a step ---- */

static int take_step(frontier *f, frontier_step *s, uint64_t seed, uint32_t walk) {
  weft_load load = {.n_prompt = s->context, .n_generate = f->config->n_generate, .n_parallel = 1, .found = true};
  weft_answer_times t;
  int code = 0;
  if (f->autoregressive) {
    code = weft_measure_answer(f->rt, &load, seed, &t);
    if (code != 0) return code;
    s->n_computed = t.n_computed;
    s->kv_bytes = t.kv_pages_max * f->rt->page_bytes;
    s->value[PREFILL][walk] = (double)t.n_computed / t.prefill_s;
    s->value[FIRST_MS][walk] = 1000.0 * t.prefill_s;
    s->value[GEN_TPS][walk] = t.n_decoded / t.decode_s;
    s->value[GEN_TPS_SS][walk] = (t.n_decoded - 1) / t.steady_s;
  }
  if (f->canvases) {
    load.diffusion = true;
    load.n_generate = CANVAS_STEPS;
    load.n_blocks = 1;
    code = weft_measure_blocks(f->rt, &load, seed, &s->value[CANVAS_MS][walk]);
  }
  return code;
}

/* ---- what is printed ---- */

static bool has_figure(const frontier *f, uint32_t figure) {
  return figure == CANVAS_MS ? f->canvases : f->autoregressive;
}

static void head_csv(const frontier *f, FILE *to) {
  (void)fprintf(to, "context,computed");
  for (uint32_t k = 0; k < FIGURES; k++) {
    if (has_figure(f, k)) (void)fprintf(to, ",%s,%s_cv", figure_names[k], figure_names[k]);
  }
  (void)fprintf(to, ",kv_bytes\n");
}

static void tell_csv(const frontier *f, const frontier_step *s, FILE *to) {
  char v[WEFT_VARIATION_TEXT];
  (void)fprintf(to, "%u,%u", s->context, s->n_computed);
  for (uint32_t k = 0; k < FIGURES; k++) {
    if (has_figure(f, k)) (void)fprintf(to, ",%.6g,%s", s->median[k], weft_variation_text(s->variation[k], true, v));
  }
  (void)fprintf(to, ",%llu\n", (unsigned long long)s->kv_bytes);
}

/* An element of the list, on a line of its own. */
static void tell_json(const frontier *f, const frontier_step *s) {
  json_t *row = json_pack("{s:i, s:i, s:I, s:i, s:b}", "context", (int)s->context, "computed", (int)s->n_computed,
                          "kv_bytes", (json_int_t)s->kv_bytes, "walks", (int)f->n_walks, "prefix_cache",
                          (int)!f->config->product.no_prefix_cache);
  for (uint32_t k = 0; k < FIGURES; k++) {
    char name[32];
    if (!has_figure(f, k)) continue;
    (void)snprintf(name, sizeof name, "%s_cv", figure_names[k]);
    (void)json_object_set_new(row, figure_names[k], json_real(s->median[k]));
    (void)json_object_set_new(row, name, json_real(s->variation[k]));
  }
  char *text = json_dumps(row, JSON_REAL_PRECISION(6));
  (void)printf("%s %s", f->n_told > 0 ? ",\n" : "", text == NULL ? "{}" : text);
  free(text); /* of jansson */
  json_decref(row);
}

static void head_table(const frontier *f) {
  (void)printf("%9s %9s", "context", "computed");
  for (uint32_t k = 0; k < FIGURES; k++) {
    if (has_figure(f, k)) (void)printf(" %12s %6s", figure_names[k], "cv %");
  }
  (void)printf(" %12s\n", "kv MiB");
}

static void tell_row(const frontier *f, const frontier_step *s) {
  char v[WEFT_VARIATION_TEXT];
  (void)printf("%9u %9u", s->context, s->n_computed);
  for (uint32_t k = 0; k < FIGURES; k++) {
    if (has_figure(f, k)) (void)printf(" %12.2f %6s", s->median[k], weft_variation_text(s->variation[k], false, v));
  }
  (void)printf(" %12.1f\n", (double)s->kv_bytes / 1048576.0);
}

static int tell_head(frontier *f) {
  const char *path = f->config->product.output;
  if (f->config->product.json)
    (void)printf("[\n");
  else if (f->config->csv)
    head_csv(f, stdout);
  else
    head_table(f);
  if (path == NULL) return 0;
  f->file = fopen(path, "w");
  if (f->file == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: %s", path, strerror(errno));
  head_csv(f, f->file);
  return 0;
}

/* All walks have measured the step. */
static void tell_step(frontier *f, frontier_step *s) {
  for (uint32_t k = 0; k < FIGURES; k++) {
    s->variation[k] = weft_variation(s->value[k], f->n_walks);
    s->median[k] = weft_median(s->value[k], f->n_walks);
  }
  if (f->config->product.json)
    tell_json(f, s);
  else if (f->config->csv)
    tell_csv(f, s, stdout);
  else
    tell_row(f, s);
  (void)fflush(stdout);
  f->n_told += 1;
  if (f->file == NULL) return;
  tell_csv(f, s, f->file);
  (void)fflush(f->file);
}

static int tell_end(frontier *f) {
  if (f->config->product.json) (void)printf("%s]\n", f->n_told > 0 ? "\n" : "");
  if (f->file == NULL) return 0;
  bool failed = ferror(f->file) != 0;
  if (fclose(f->file) == 0 && !failed) return 0;
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "-o %s: %s", f->config->product.output, strerror(errno));
}

/* ---- walks ---- */

static int walk_once(frontier *f, uint64_t seed, uint32_t walk, uint32_t n_steps, bool is_last) {
  int code = 0;
  weft_reset_prefix_cache(f->rt);
  for (uint32_t i = 0; i < n_steps && code == 0; i++) {
    code = take_step(f, &f->step[i], seed, walk);
    if (code == 0 && is_last) tell_step(f, &f->step[i]);
  }
  return code;
}

/* What was measured before an error stays told. */
static int walk_all(frontier *f) {
  int code = walk_once(f, WARM_SEED, 0, 1, false);
  if (code != 0) return code;
  code = tell_head(f);
  if (code != 0) return code;
  for (uint32_t w = 0; w < f->n_walks && code == 0; w++)
    code = walk_once(f, WARM_SEED + 1 + w, w, f->n_steps, w + 1 == f->n_walks);
  int ended = tell_end(f);
  return code != 0 ? code : ended;
}

/* ---- pictures ---- */

static int draw_figure(const frontier *f, uint32_t first, uint32_t n, const char *title, const char *y_name,
                       const char *file) {
  double x[STEPS_MAX], y[FIGURES][STEPS_MAX];
  weft_plot plot = {.title = title, .x_name = "tokens of the context", .y_name = y_name};
  for (uint32_t i = 0; i < f->n_steps; i++) {
    x[i] = f->step[i].context;
    for (uint32_t k = 0; k < n; k++) y[k][i] = f->step[i].median[first + k];
  }
  for (uint32_t k = 0; k < n; k++)
    plot.line[plot.n_lines++] = (weft_plot_line){.name = figure_names[first + k], .x = x, .y = y[k], .n = f->n_steps};
  return weft_bench_draw(f->config, &plot, file);
}

static int draw_all(const frontier *f) {
  if (f->config->plots == NULL) return 0;
  int code = 0;
  if (f->autoregressive) code = draw_figure(f, PREFILL, 1, "Prefill of the increment", "tokens/s", "prefill.svg");
  if (f->autoregressive && code == 0) code = draw_figure(f, FIRST_MS, 1, "Time to the first token", "ms", "first.svg");
  if (f->autoregressive && code == 0) code = draw_figure(f, GEN_TPS, 2, "Decode", "tokens/s", "decode.svg");
  if (f->canvases && code == 0) code = draw_figure(f, CANVAS_MS, 1, "A denoise step", "ms", "canvas.svg");
  return code;
}

int weft_bench_frontier(const weft_lab_config *config) {
  frontier *f = weft_alloc(1, sizeof *f);
  if (f == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  f->config = config;
  int code = weft_cli_open(&config->product, &f->rt);
  if (code == 0) {
    f->card = weft_model_at(f->rt, 0);
    f->autoregressive = f->card.autoregressive;
    f->canvases = f->card.canvas > 0;
    code = list_steps(f);
  }
  if (code == 0) code = walk_all(f);
  if (code == 0) code = draw_all(f);
  weft_close(f->rt);
  weft_free(f);
  return code;
}
