/* SPDX-License-Identifier: MIT */
/* weft bench profile: the profile of this machine for `weft sim`: loads of one kind each are run, the engine's own
 * records say how long their steps took, and the coefficients of bench/sim/profile.h are fitted to them.
 *
 * Law: a sample is a step of known rows, outputs, keys and experts; its time is the shortest of all such steps,
 * since the machine may be shared. The fit is least squares of the relative error with no coefficient below zero. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/profile.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { COEFFICIENTS = 5, SAMPLES_MAX = 64, CHUNKS_MAX = 16, SWEEPS = 20000, WARM_TOKENS = 16 };

typedef struct profile_sample {
  weft_sim_step step;
  double us;
} profile_sample;

typedef struct profile_run {
  const weft_lab_config *config;
  weft_runtime *rt;
  weft_sim_model model;
  profile_sample sample[SAMPLES_MAX];
  uint32_t n_samples;
  weft_step_record record[WEFT_RECORDED_STEPS];
  double least_us[CHUNKS_MAX]; /* of one load: by chunk of the prompt, or all in the first; 0: none */
  uint32_t chunk_rows[CHUNKS_MAX];
} profile_run;

/* ---- steps of a load ----------------------------------------------------------------------------------------- */

static void add_time(profile_run *p, uint32_t chunk, uint32_t n_rows, double us) {
  if (chunk >= CHUNKS_MAX) return;
  if (!(us >= 1.0)) us = 1.0;
  if (p->least_us[chunk] == 0.0 || us < p->least_us[chunk]) p->least_us[chunk] = us;
  p->chunk_rows[chunk] = n_rows;
}

/* The steps since record `after` that hold nothing but what the load is about. */
static void take_times(profile_run *p, const weft_load *load, uint64_t after) {
  uint32_t n = weft_engine_get_steps(weft_replicas_at(p->rt->replicas, 0), p->record, WEFT_RECORDED_STEPS), chunk = 0;
  uint32_t canvas_rows = load->n_parallel * p->model.canvas;
  uint64_t free_us = 0;
  for (uint32_t i = 0; i < n; i++) {
    const weft_step_record *r = &p->record[i];
    uint64_t from = r->launched_us > free_us ? r->launched_us : free_us;
    double us = (double)(r->collected_us - from);
    free_us = r->collected_us;
    if (r->number <= after) continue;
    bool prefill = r->n_prefill_rows > 0 && r->n_decode_rows + r->n_canvas_rows + r->n_commit_rows == 0;
    bool decode = r->n_decode_rows == load->n_parallel && r->n_prefill_rows + r->n_canvas_rows == 0;
    bool canvas = r->n_canvas_rows == canvas_rows && r->n_prefill_rows + r->n_decode_rows + r->n_commit_rows == 0;
    if (load->n_generate == 1 && prefill) add_time(p, chunk++, r->n_prefill_rows, us);
    if (load->n_generate > 1 && (load->diffusion ? canvas : decode)) add_time(p, 0, 0, us);
  }
}

static uint64_t last_step(profile_run *p) {
  return weft_engine_get_steps(weft_replicas_at(p->rt->replicas, 0), p->record, 1) == 1 ? p->record[0].number : 0;
}

static void add_sample(profile_run *p, uint32_t chunk, weft_sim_step step) {
  if (p->least_us[chunk] == 0.0 || p->n_samples == SAMPLES_MAX) return;
  p->sample[p->n_samples++] = (profile_sample){.step = step, .us = p->least_us[chunk]};
}

static int run_load(profile_run *p, weft_load load) {
  memset(p->least_us, 0, sizeof p->least_us);
  for (uint32_t i = 0; i <= p->config->repeat; i++) { /* the first run warms up */
    weft_measured unused;
    uint64_t after = last_step(p);
    int code = weft_measure(p->rt, &load, 5000u + i, &unused);
    if (code != 0) return code;
    if (i > 0) take_times(p, &load, after);
  }
  uint32_t n = load.n_parallel, before = 0;
  if (load.diffusion) {
    uint32_t rows = n * p->model.canvas;
    uint64_t keys = n * weft_sim_keys(&p->model, load.n_prompt, p->model.canvas);
    add_sample(p, 0, (weft_sim_step){.n_rows = rows, .n_outputs = rows, .n_keys = keys});
  } else if (load.n_generate > 1) {
    uint64_t keys = n * weft_sim_keys(&p->model, load.n_prompt + load.n_generate / 2, 1);
    add_sample(p, 0, (weft_sim_step){.n_rows = n, .n_outputs = n, .n_keys = keys});
  }
  for (uint32_t c = 0; load.n_generate == 1 && c < CHUNKS_MAX && p->least_us[c] > 0.0; c++) {
    uint32_t rows = p->chunk_rows[c];
    weft_sim_step step = {.n_rows = rows, .n_outputs = before + rows == load.n_prompt};
    step.n_keys = weft_sim_keys(&p->model, before, rows);
    add_sample(p, c, step);
    before += rows;
  }
  return 0;
}

static int run_loads(profile_run *p) {
  uint32_t most = p->config->n_prompt, tokens = p->config->n_generate < 2 ? 2 : p->config->n_generate;
  const uint32_t at_once[] = {1, 2, 4, 8, 16, 32};
  int code = 0;
  for (uint32_t n = WARM_TOKENS; p->model.autoregressive && n <= most && code == 0; n *= 2) {
    code = run_load(p, (weft_load){.n_prompt = n, .n_generate = 1, .n_parallel = 1});
  }
  for (uint32_t i = 0; p->model.autoregressive && i < sizeof at_once / sizeof *at_once && code == 0; i++) {
    code = run_load(p, (weft_load){.n_prompt = WARM_TOKENS, .n_generate = tokens, .n_parallel = at_once[i]});
    if (code == 0) code = run_load(p, (weft_load){.n_prompt = most, .n_generate = tokens, .n_parallel = at_once[i]});
  }
  for (uint32_t i = 0; p->model.canvas > 0 && i < 4 && code == 0; i++) {
    weft_load load = {
        .n_prompt = i % 2 == 0 ? WARM_TOKENS : most, .n_generate = 8, .n_parallel = 1 + i / 2, .diffusion = true};
    code = run_load(p, load);
  }
  return code;
}

/* ---- the fit ------------------------------------------------------------------------------------------------- */

static double expected_experts(const weft_sim_model *model, uint32_t n_rows) {
  weft_sim_model unit = {.expert_us = 1.0, .n_experts = model->n_experts, .n_top = model->n_top};
  weft_sim_step step = {.n_rows = n_rows};
  return weft_sim_step_us(&unit, &step);
}

static void fill_features(const weft_sim_model *model, const profile_sample *s, double x[COEFFICIENTS]) {
  x[0] = 1.0;
  x[1] = s->step.n_rows;
  x[2] = s->step.n_outputs;
  x[3] = (double)s->step.n_keys / 1000.0;
  x[4] = expected_experts(model, s->step.n_rows);
}

/* Normal equations of the relative error, one coefficient at a time, never below zero. */
static void fit_profile(profile_run *p) {
  double a[COEFFICIENTS][COEFFICIENTS] = {{0}}, b[COEFFICIENTS] = {0}, c[COEFFICIENTS] = {0};
  for (uint32_t s = 0; s < p->n_samples; s++) {
    double x[COEFFICIENTS];
    fill_features(&p->model, &p->sample[s], x);
    for (uint32_t i = 0; i < COEFFICIENTS; i++) {
      b[i] += x[i] / p->sample[s].us;
      for (uint32_t k = 0; k < COEFFICIENTS; k++) a[i][k] += x[i] * x[k] / (p->sample[s].us * p->sample[s].us);
    }
  }
  for (uint32_t sweep = 0; sweep < SWEEPS; sweep++) {
    for (uint32_t i = 0; i < COEFFICIENTS; i++) {
      double rest = b[i];
      for (uint32_t k = 0; k < COEFFICIENTS; k++) rest -= k == i ? 0.0 : a[i][k] * c[k];
      c[i] = a[i][i] > 0.0 && rest > 0.0 ? rest / a[i][i] : 0.0;
    }
  }
  p->model.step_us = c[0];
  p->model.row_us = c[1];
  p->model.output_us = c[2];
  p->model.key_us = c[3];
  p->model.expert_us = c[4];
}

/* The median of |predicted / measured - 1|, in percent; with -v every sample. */
static double error_percent(const profile_run *p) {
  double errors[SAMPLES_MAX];
  for (uint32_t i = 0; i < p->n_samples; i++) {
    const profile_sample *s = &p->sample[i];
    double us = weft_sim_step_us(&p->model, &s->step);
    errors[i] = 100.0 * fabs(us / s->us - 1.0);
    if (!p->config->product.verbose) continue;
    (void)fprintf(stderr, "%5u rows %5u outputs %8llu keys: %10.0f us, predicted %10.0f\n", s->step.n_rows,
                  s->step.n_outputs, (unsigned long long)s->step.n_keys, s->us, us);
  }
  return weft_median(errors, p->n_samples);
}

/* ---- the profile --------------------------------------------------------------------------------------------- */

static json_t *as_json(const profile_run *p) {
  const weft_sim_model *m = &p->model;
  json_t *groups = json_array();
  for (uint32_t g = 0; g < m->n_groups; g++) {
    (void)json_array_append_new(
        groups, json_pack("{s:i, s:i, s:i, s:i, s:i}", "block_tokens", (int)m->group[g].block_tokens, "window",
                          (int)m->group[g].window, "layers", (int)m->group[g].n_layers, "from_border",
                          (int)m->group[g].from_border, "state_pages", (int)m->group[g].state_pages));
  }
  return json_pack("{s:s, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:i, s:f, s:o}", "name", m->name,
                   "autoregressive", m->autoregressive, "canvas", (int)m->canvas, "step_us", m->step_us, "row_us",
                   m->row_us, "output_us", m->output_us, "key_us", m->key_us, "expert_us", m->expert_us, "experts",
                   (int)m->n_experts, "experts_per_row", (int)m->n_top, "samples", (int)p->n_samples, "error_percent",
                   error_percent(p), "groups", groups);
}

static void describe_machine(profile_run *p) {
  const weft_served_model *served = &p->rt->model[0];
  const weft_runner_info *info = served->runner->ops->info(served->runner);
  const weft_model_info *model = weft_model_get_info(served->model);
  weft_sim_model *m = &p->model;
  *m = (weft_sim_model){
      .autoregressive = info->autoregressive, .canvas = info->canvas_length, .n_groups = info->n_groups};
  (void)snprintf(m->name, sizeof m->name, "%.63s", info->name);
  m->n_experts = model->n_experts;
  m->n_top = model->n_experts_used;
  memcpy(m->group, info->group, sizeof m->group);
}

static int profile_model(const weft_lab_config *config, json_t *models, double *page_kib) {
  profile_run *p = weft_alloc(1, sizeof *p);
  if (p == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "bench: no memory for the samples");
  p->config = config;
  int code = weft_cli_open(&config->product, &p->rt);
  if (code == 0) {
    describe_machine(p);
    code = run_loads(p);
    *page_kib = fmax(*page_kib, (double)p->rt->page_bytes / 1024.0);
  }
  if (code == 0 && p->n_samples < COEFFICIENTS) code = weft_cli_fail(WEFT_EXIT_FAILED, "bench: too few steps to fit");
  if (code == 0) {
    fit_profile(p);
    (void)json_array_append_new(models, as_json(p));
  }
  weft_close(p->rt);
  weft_free(p);
  return code;
}

int weft_bench_profile(const weft_lab_config *config) {
  json_t *models = json_array();
  double page_kib = 0.0;
  int code =
      config->product.models.n > 0 && config->product.models.n <= WEFT_SIM_MODELS
          ? 0
          : weft_cli_fail(WEFT_EXIT_USAGE, "bench profile: name 1 to %d GGUF files with -m FILE", WEFT_SIM_MODELS);
  for (uint32_t i = 0; i < config->product.models.n && code == 0; i++) {
    weft_lab_config one = *config;
    one.product.models = (weft_text_list){.item = {config->product.models.item[i]}, .n = 1};
    code = profile_model(&one, models, &page_kib);
  }
  json_t *root = json_pack("{s:i, s:o}", "page_kib", (int)page_kib, "models", models);
  char *text = code == 0 ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
  json_decref(root);
  if (code == 0 && text == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "bench: no memory for the profile");
  if (text != NULL) (void)printf("%s\n", text);
  free(text); /* of jansson */
  return code;
}
