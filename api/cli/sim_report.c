/* SPDX-License-Identifier: MIT */
/* What a simulation says: one list of named numbers, printed as a table, as CSV or as JSON. A
 * number that does not exist in this run (no canvas, one tenant) is "-", empty or null. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "api/cli/cli.h"
#include "api/cli/sim.h"
#include "base/memory.h"

enum { METRICS_MAX = 64 };

typedef struct metric {
  const char *name, *unit;
  double value; /* NAN: does not exist */
} metric;

typedef struct sim_report {
  const weft_config *config;
  const weft_sim_load *load;
  const weft_sim_run *run;
  metric metric[METRICS_MAX];
  uint32_t n;
  double *scratch; /* [load.n] */
} sim_report;

/* The value of one request, in milliseconds; negative: it has none. */
typedef double (*value_of)(const weft_sim_item *item, const weft_sim_outcome *o);

static double ms(uint64_t from_us, uint64_t to_us) {
  return to_us > from_us ? (double)(to_us - from_us) / 1000.0 : 0.0;
}

static bool good(const weft_sim_outcome *o) {
  return !o->refused && !o->failed && o->finished_us > 0;
}

static double ttft_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  return good(o) && o->first_us > 0 ? ms(item->at_us, o->first_us) : -1.0;
}

static double tpot_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  if (!good(o) || item->diffusion || o->n_answer < 2) return -1.0;
  return ms(o->first_us, o->finished_us) / (o->n_answer - 1);
}

static double canvas_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  if (!good(o) || !item->diffusion || o->n_canvases == 0) return -1.0;
  return ms(o->started_us, o->finished_us) / o->n_canvases;
}

static double e2e_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  return good(o) ? ms(item->at_us, o->finished_us) : -1.0;
}

static double queue_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  return good(o) ? ms(item->at_us, o->started_us) : -1.0;
}

static void add(sim_report *r, const char *name, const char *unit, double value) {
  if (r->n < METRICS_MAX) r->metric[r->n++] = (metric){name, unit, value};
}

static double share(double part, double whole) {
  return whole > 0.0 ? part / whole : NAN;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The values of a tenant's requests (UINT32_MAX: of all), in order. */
static uint32_t sorted(sim_report *r, value_of value, uint32_t tenant) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->load->n; i++) {
    if (tenant != UINT32_MAX && r->load->item[i].tenant != tenant) continue;
    double x = value(&r->load->item[i], &r->run->outcome[i]);
    if (x >= 0.0) r->scratch[n++] = x;
  }
  qsort(r->scratch, n, sizeof *r->scratch, by_value);
  return n;
}

/* The smallest value that at least p percent do not exceed. */
static double percentile(const sim_report *r, uint32_t n, uint32_t p) {
  return n == 0 ? NAN : r->scratch[((uint64_t)n * p + 99) / 100 - 1];
}

static void add_percentiles(sim_report *r, const char *const name[3], value_of value) {
  uint32_t n = sorted(r, value, UINT32_MAX);
  add(r, name[0], "ms", percentile(r, n, 50));
  add(r, name[1], "ms", percentile(r, n, 90));
  add(r, name[2], "ms", percentile(r, n, 99));
}

/* Within both targets; for a canvas request, the time for each token counts from its start. */
static bool meets(const sim_report *r, const weft_sim_item *item, const weft_sim_outcome *o) {
  if (!good(o)) return false;
  double each =
      item->diffusion ? ms(o->started_us, o->finished_us) / (o->n_answer + 1e-9) : tpot_of(item, o);
  return ttft_of(item, o) <= (double)r->config->target_ttft_ms &&
         each <= (double)r->config->target_tpot_ms;
}

/* Rows computed while every tenant had somebody waiting, the best served tenant over the worst
 * served one; all have the same weight. */
static double fairness(const sim_report *r) {
  uint64_t most = 0, least = UINT64_MAX;
  uint32_t n = 0;
  for (uint32_t t = 0; t < r->load->n_tenants; t++) {
    if (r->run->rows[t] == 0) continue; /* not in this load */
    uint64_t rows = r->run->rows_backlog[t];
    if (rows > most) most = rows;
    if (rows < least) least = rows;
    n += 1;
  }
  return n < 2 || least == 0 ? NAN : (double)most / (double)least;
}

static void add_counts(sim_report *r) {
  const weft_sim_run *run = r->run;
  double seconds = (double)run->end_us / 1e6;
  uint32_t n_good = 0, n_refused = 0, n_met = 0;
  for (uint32_t i = 0; i < r->load->n; i++) {
    n_good += good(&run->outcome[i]);
    n_refused += run->outcome[i].refused;
    n_met += meets(r, &r->load->item[i], &run->outcome[i]);
  }
  add(r, "requests", "", r->load->n);
  add(r, "finished", "", n_good);
  add(r, "refused", "", n_refused);
  add(r, "failed", "", r->load->n - n_good - n_refused);
  add(r, "seconds", "s", seconds);
  add(r, "answer_tokens_per_s", "tok/s", share((double)run->n_answer_tokens, seconds));
  add(r, "prompt_tokens_per_s", "tok/s", share((double)run->n_prompt_tokens, seconds));
  add(r, "goodput_per_s", "req/s", share(n_met, seconds));
  add(r, "goodput_percent", "%", share(100.0 * n_met, r->load->n));
}

static void add_steps(sim_report *r) {
  const weft_sim_run *run = r->run;
  add(r, "hit_percent", "%",
      share(100.0 * (double)run->n_cached_tokens, (double)run->n_prompt_tokens));
  add(r, "steps", "", (double)run->n_steps);
  add(r, "mixed_steps", "", (double)run->n_mixed_steps);
  add(r, "denoise_steps", "", (double)run->n_denoise_steps);
  add(r, "rows_per_step", "", share((double)run->n_rows, (double)run->n_steps));
  add(r, "prefill_rows", "", (double)run->n_prefill_rows);
  add(r, "void_rows", "", (double)run->n_void_rows);
  add(r, "void_percent", "%", share(100.0 * (double)run->n_void_rows, (double)run->n_rows));
  add(r, "busy_percent", "%", share(100.0 * (double)run->busy_us, (double)run->end_us));
  add(r, "preemptions", "", (double)run->n_preemptions);
  add(r, "pool_mean_percent", "%",
      share(100.0 * run->pool_page_us, (double)run->n_pages * (double)run->end_us));
  add(r, "pool_peak_percent", "%", share(100.0 * run->n_pages_peak, run->n_pages));
  add(r, "backlog_percent", "%", share(100.0 * (double)run->backlog_us, (double)run->end_us));
  add(r, "fairness_max_over_min", "x", fairness(r));
}

static void collect(sim_report *r) {
  static const char *const ttft[] = {"ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"};
  static const char *const tpot[] = {"tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms"};
  static const char *const canvas[] = {"canvas_p50_ms", "canvas_p90_ms", "canvas_p99_ms"};
  static const char *const e2e[] = {"e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms"};
  static const char *const queue[] = {"queue_p50_ms", "queue_p90_ms", "queue_p99_ms"};
  add_counts(r);
  add_percentiles(r, ttft, ttft_of);
  add_percentiles(r, tpot, tpot_of);
  add_percentiles(r, canvas, canvas_of);
  add_percentiles(r, e2e, e2e_of);
  add_percentiles(r, queue, queue_of);
  add_steps(r);
}

static void print_csv(const sim_report *r) {
  for (uint32_t i = 0; i < r->n; i++) {
    (void)printf("%s%s", r->metric[i].name, i + 1 < r->n ? "," : "\n");
  }
  for (uint32_t i = 0; i < r->n; i++) {
    if (!isnan(r->metric[i].value)) (void)printf("%.6g", r->metric[i].value);
    (void)putchar(i + 1 < r->n ? ',' : '\n');
  }
}

static void print_table(sim_report *r) {
  for (uint32_t i = 0; i < r->n; i++) {
    const metric *m = &r->metric[i];
    if (isnan(m->value)) {
      (void)printf("%-24s %14s\n", m->name, "-");
    } else {
      bool whole = m->unit[0] == 0 && m->value == floor(m->value);
      (void)printf("%-24s %14.*f %s\n", m->name, whole ? 0 : 2, m->value, m->unit);
    }
  }
  if (r->load->n_tenants < 2) return;
  (void)printf("\n%8s %14s %14s %14s\n", "tenant", "rows", "ttft p50 ms", "ttft p99 ms");
  for (uint32_t t = 0; t < r->load->n_tenants; t++) {
    uint32_t n = sorted(r, ttft_of, t);
    if (n == 0) continue;
    (void)printf("%8u %14llu %14.2f %14.2f\n", t, (unsigned long long)r->run->rows[t],
                 percentile(r, n, 50), percentile(r, n, 99));
  }
}

static json_t *number(double value) {
  return isnan(value) ? json_null() : json_real(value);
}

static int print_json(sim_report *r) {
  json_t *root = json_object(), *tenants = json_array();
  for (uint32_t i = 0; i < r->n; i++) {
    (void)json_object_set_new(root, r->metric[i].name, number(r->metric[i].value));
  }
  for (uint32_t t = 0; t < r->load->n_tenants; t++) {
    uint32_t n = sorted(r, ttft_of, t);
    json_t *row = json_object();
    (void)json_object_set_new(row, "tenant", json_integer(t));
    (void)json_object_set_new(row, "rows", json_integer((json_int_t)r->run->rows[t]));
    (void)json_object_set_new(row, "ttft_p50_ms", number(percentile(r, n, 50)));
    (void)json_object_set_new(row, "ttft_p99_ms", number(percentile(r, n, 99)));
    (void)json_array_append_new(tenants, row);
  }
  (void)json_object_set_new(root, "tenants", tenants);
  char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  json_decref(root);
  if (text == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the report");
  (void)printf("%s\n", text);
  free(text); /* of jansson */
  return 0;
}

int weft_sim_report(const weft_config *config, const weft_sim_load *load, const weft_sim_run *run) {
  sim_report r = {.config = config, .load = load, .run = run};
  r.scratch = weft_alloc(load->n, sizeof *r.scratch);
  if (r.scratch == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the report");
  int code = 0;
  collect(&r);
  if (config->json) {
    code = print_json(&r);
  } else if (config->csv) {
    print_csv(&r);
  } else {
    print_table(&r);
  }
  weft_free(r.scratch);
  return code;
}
