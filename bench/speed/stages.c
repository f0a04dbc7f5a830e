/* SPDX-License-Identifier: MIT */
/* weft bench stages: prefill, decode and canvas steps with each stage switched back to its plain path, in one run.
 *
 * Law: each row opens the model anew with the options of the command line and one more, measures the same loads, and
 * is put beside the first row, `as it is`, which is measured again at the end: what lies between the two is the
 * machine's own change. A stage that this device does not have, or refuses, is a row with the reason. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { REPEAT_MAX = 64, CANVAS_STEPS = 12, REF_MIB = 64 };

typedef enum stage_of { EVERY_DEVICE, CARD_ONLY, HOST_ONLY } stage_of;

typedef enum stage_load { PREFILL, DECODE, CANVAS, LOADS } stage_load;
static const char *const load_names[LOADS] = {"prefill_tps", "decode_tps", "canvas_ms"};

typedef struct stage {
  const char *name; /* the option that switches it, as it is written */
  stage_of of;
  void (*set)(weft_config *config);
} stage;

static void set_nothing(weft_config *c) {
  (void)c;
}
static void set_no_graphs(weft_config *c) {
  c->no_graphs = true;
}
static void set_no_arena(weft_config *c) {
  c->no_arena = true;
}
static void set_no_overlap(weft_config *c) {
  c->no_overlap = true;
}
static void set_no_deterministic(weft_config *c) {
  c->no_deterministic = true;
}
static void set_exact(weft_config *c) {
  c->precision = "exact";
}
static void set_fast(weft_config *c) {
  c->precision = "fast";
}
static void set_avx2(weft_config *c) {
  c->isa = "avx2";
}
static void set_portable(weft_config *c) {
  c->isa = "portable";
}
static void set_ref(weft_config *c) {
  c->backend = "ref";
}
static void set_kv_8bit(weft_config *c) {
  c->kv_8bit = (weft_text_list){.item = {"all"}, .n = 1};
}
static void set_all_plain(weft_config *c) {
  c->no_graphs = c->no_arena = c->no_overlap = true;
}

static const stage stages[] = {
    {"as it is", EVERY_DEVICE, set_nothing},
    {"--no-graphs", CARD_ONLY, set_no_graphs},
    {"--no-arena", CARD_ONLY, set_no_arena},
    {"--no-overlap", CARD_ONLY, set_no_overlap},
    {"--no-graphs --no-arena --no-overlap", CARD_ONLY, set_all_plain},
    {"--no-deterministic", CARD_ONLY, set_no_deterministic},
    {"--precision exact", CARD_ONLY, set_exact},
    {"--precision fast", CARD_ONLY, set_fast},
    {"--isa avx2", HOST_ONLY, set_avx2},
    {"--isa portable", HOST_ONLY, set_portable},
    {"--backend ref", HOST_ONLY, set_ref},
    {"--kv-8bit all", EVERY_DEVICE, set_kv_8bit},
    {"as it is, again", EVERY_DEVICE, set_nothing},
};
enum { STAGES = sizeof stages / sizeof *stages };

typedef struct stage_row {
  double value[LOADS][REPEAT_MAX];
  double median[LOADS], variation[LOADS]; /* median 0: the model has no such load */
  char left_out[192];                     /* the reason; "": it was measured */
} stage_row;

typedef struct stage_run {
  const weft_lab_config *config;
  stage_row row[STAGES];
  bool on_host, has_canvases;
  uint64_t weight_bytes;
} stage_run;

/* ---- one row ---- */

static int measure_once(weft_runtime *rt, const weft_lab_config *c, uint64_t seed, uint32_t at, stage_row *row) {
  weft_model_card card = weft_model_at(rt, 0);
  weft_load load = {.n_prompt = c->n_prompt, .n_generate = c->n_generate, .n_parallel = 1};
  weft_answer_times t;
  double first;
  int code = 0;
  if (card.autoregressive) {
    code = weft_measure_answer(rt, &load, seed, &t);
    if (code != 0) return code;
    row->value[PREFILL][at] = t.n_computed / t.prefill_s;
    row->value[DECODE][at] = (t.n_decoded - 1) / t.steady_s;
  }
  load.diffusion = true;
  load.n_generate = CANVAS_STEPS;
  if (card.canvas > 0) code = weft_measure_steps(rt, &load, seed, &row->value[CANVAS][at], &first);
  return code;
}

/* The first measurement warms up. A device that refuses the stage leaves the row out. */
static int measure_stage(stage_run *run, const stage *s, stage_row *row) {
  weft_lab_config config = *run->config;
  weft_runtime *rt = NULL;
  uint32_t n = config.repeat;
  s->set(&config.product);
  const weft_open_options options = weft_config_open(&config.product);
  if (weft_open(&options, &rt, row->left_out, sizeof row->left_out) != 0) return 0;
  row->left_out[0] = 0;
  run->on_host = weft_device_get_info(rt->devices.device[0])->host_memory;
  run->weight_bytes = weft_model_at(rt, 0).weight_bytes;
  run->has_canvases = weft_model_at(rt, 0).canvas > 0;
  int code = measure_once(rt, &config, 9000, 0, row);
  for (uint32_t i = 0; i < n && code == 0; i++) code = measure_once(rt, &config, 9001u + i, i, row);
  for (uint32_t k = 0; k < LOADS; k++) {
    row->variation[k] = weft_variation(row->value[k], n);
    row->median[k] = weft_median(row->value[k], n);
  }
  weft_close(rt);
  return code;
}

/* Why this device has no such stage; "": it has. */
static const char *judge_stage(const stage_run *run, const stage *s) {
  if (s->of == CARD_ONLY && run->on_host) return "only a card has this";
  if (s->of == HOST_ONLY && !run->on_host) return "only the cpu has this";
  if (s->set == set_ref && run->weight_bytes > (uint64_t)REF_MIB << 20)
    return "ref would take minutes with a model of this size";
  return "";
}

/* ---- what is printed ---- */

/* How fast the row is in relation to the first one: above 1 is faster. */
static double speed_of(const stage_run *run, uint32_t i, uint32_t load) {
  double first = run->row[0].median[load], now = run->row[i].median[load];
  if (!(first > 0.0) || !(now > 0.0)) return NAN;
  return load == CANVAS ? first / now : now / first;
}

static json_t *row_json(const stage_run *run, uint32_t i) {
  const stage_row *row = &run->row[i];
  json_t *out = json_pack("{s:s}", "stage", stages[i].name);
  if (row->left_out[0] != 0) (void)json_object_set_new(out, "left_out", json_string(row->left_out));
  for (uint32_t k = 0; k < LOADS && row->left_out[0] == 0; k++) {
    double speed = speed_of(run, i, k);
    char name[32];
    if (isnan(speed)) continue;
    (void)json_object_set_new(out, load_names[k], json_real(row->median[k]));
    (void)snprintf(name, sizeof name, "%s_cv", load_names[k]);
    (void)json_object_set_new(out, name, json_real(row->variation[k]));
    (void)snprintf(name, sizeof name, "%s_speed", load_names[k]);
    (void)json_object_set_new(out, name, json_real(speed));
  }
  return out;
}

static void print_row(const stage_run *run, uint32_t i) {
  char v[WEFT_VARIATION_TEXT];
  const stage_row *row = &run->row[i];
  if (run->config->csv) {
    (void)printf("\"%s\"", stages[i].name);
    for (uint32_t k = 0; k < LOADS; k++) {
      if (row->median[k] > 0.0)
        (void)printf(",%.6g,%s,%.4g", row->median[k], weft_variation_text(row->variation[k], true, v),
                     speed_of(run, i, k));
      else
        (void)printf(",,,"); /* there is no such figure */
    }
    (void)printf("\n");
    return;
  }
  (void)printf("%-36s", stages[i].name);
  for (uint32_t k = 0; k < LOADS && row->left_out[0] == 0; k++) {
    if (!(row->median[k] > 0.0)) continue;
    (void)printf(" %10.2f %6s x %-5.3f", row->median[k], weft_variation_text(row->variation[k], false, v),
                 speed_of(run, i, k));
  }
  (void)printf("%s%s\n", row->left_out[0] != 0 ? " left out: " : "", row->left_out);
  (void)fflush(stdout); /* a row at a time */
}

static void print_head(const stage_run *run) {
  if (run->config->csv) {
    (void)printf("stage");
    for (uint32_t k = 0; k < LOADS; k++)
      (void)printf(",%s,%s_cv,%s_speed", load_names[k], load_names[k], load_names[k]);
  } else {
    (void)printf("%-36s", "stage");
    for (uint32_t k = 0; k < LOADS; k++) (void)printf(" %10s %6s speed  ", load_names[k], "cv %");
  }
  (void)printf("\n");
}

static int run_stages(stage_run *run, json_t *out) {
  bool text = !run->config->product.json;
  int code = 0;
  if (text) print_head(run);
  for (uint32_t i = 0; i < STAGES && code == 0; i++) {
    stage_row *row = &run->row[i];
    const char *reason = i == 0 ? "" : judge_stage(run, &stages[i]);
    (void)snprintf(row->left_out, sizeof row->left_out, "%s", reason);
    if (reason[0] == 0) code = measure_stage(run, &stages[i], row);
    if (i == 0 && code == 0 && row->left_out[0] != 0) code = weft_cli_fail(WEFT_EXIT_LOAD, "%s", row->left_out);
    if (code == 0 && text) print_row(run, i);
    if (code == 0) (void)json_array_append_new(out, row_json(run, i));
  }
  return code;
}

int weft_bench_stages(const weft_lab_config *config) {
  if (config->repeat > REPEAT_MAX)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench stages: --repeat must be %d at most", REPEAT_MAX);
  stage_run *run = weft_alloc(1, sizeof *run);
  json_t *out = json_array();
  int code = run == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  if (code == 0) {
    run->config = config;
    code = run_stages(run, out);
  }
  if (config->product.json) weft_bench_print(out); /* what was measured before an error, too */
  json_decref(out);
  weft_free(run);
  return code;
}
