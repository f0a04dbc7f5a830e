/* SPDX-License-Identifier: MIT */
/* What a simulation says, as a table, as CSV or as JSON: everything together, then each replica (if
 * there are several) and each tenant (if there are several). A number that does not exist is "-",
 * empty or null. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/metrics.h"

typedef struct sim_report {
  const weft_lab_config *config;
  const weft_sim_load *load;
  const weft_sim_run *run;
  double *scratch; /* [load.n] */
  weft_sim_metrics metrics;
} sim_report;

static const weft_sim_metrics *collect_scope(sim_report *r, int32_t replica, int32_t tenant) {
  weft_sim_scope scope = {.replica = replica, .tenant = tenant};
  weft_sim_collect(r->config, r->load, r->run, scope, r->scratch, &r->metrics);
  return &r->metrics;
}

static bool is_present(const sim_report *r, uint32_t tenant) {
  const uint32_t *first = r->run->by_tenant.first;
  return first[tenant + 1] > first[tenant];
}

/* ---- table ----------------------------------------------------------------------------------- */

static void print_cell(const weft_sim_metric *m, int width) {
  bool whole = m->unit[0] == 0 && m->value == floor(m->value);
  if (isnan(m->value)) {
    (void)printf(" %*s", width, "-");
  } else {
    (void)printf(" %*.*f", width, whole ? 0 : 2, m->value);
  }
}

/* Some columns of one scope. */
static void print_row(uint32_t index, const weft_sim_metrics *metrics, const char *const *column) {
  (void)printf("%8u", index);
  for (uint32_t i = 0; column[i] != NULL; i++) {
    weft_sim_metric m = {column[i], "", weft_sim_metric_of(metrics, column[i])};
    print_cell(&m, 12);
  }
  (void)putchar('\n');
}

static void print_head(const char *what, const char *const *column) {
  (void)printf("\n%8s", what);
  for (uint32_t i = 0; column[i] != NULL; i++) (void)printf(" %12s", column[i]);
  (void)putchar('\n');
}

static void print_table(sim_report *r) {
  static const char *const of_replica[] = {"requests",     "finished",    "steps", "preemptions",
                                           "busy_percent", "hit_percent", NULL};
  static const char *const of_tenant[] = {"requests",    "finished",    "rows",        "service_s",
                                          "hit_percent", "ttft_p50_ms", "ttft_p99_ms", NULL};
  const weft_sim_metrics *all = collect_scope(r, WEFT_SIM_ALL, WEFT_SIM_ALL);
  for (uint32_t i = 0; i < all->n; i++) {
    (void)printf("%-24s", all->metric[i].name);
    print_cell(&all->metric[i], 14);
    (void)printf(" %s\n", all->metric[i].unit);
  }
  if (r->run->n_replicas > 1) print_head("replica", of_replica);
  for (uint32_t i = 0; r->run->n_replicas > 1 && i < r->run->n_replicas; i++) {
    print_row(i, collect_scope(r, (int32_t)i, WEFT_SIM_ALL), of_replica);
  }
  if (r->load->n_tenants > 1) print_head("tenant", of_tenant);
  for (uint32_t i = 0; r->load->n_tenants > 1 && i < r->load->n_tenants; i++) {
    if (is_present(r, i)) print_row(i, collect_scope(r, WEFT_SIM_ALL, (int32_t)i), of_tenant);
  }
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* The columns are those of everything together; what a scope does not have stays empty. */
static void print_line(sim_report *r, const weft_sim_metrics *names, const char *scope, const char *index,
                       int32_t replica, int32_t tenant) {
  const weft_sim_metrics *metrics = collect_scope(r, replica, tenant);
  (void)printf("%s%s", scope, index);
  for (uint32_t i = 0; i < names->n; i++) {
    double value = weft_sim_metric_of(metrics, names->metric[i].name);
    (void)putchar(',');
    if (!isnan(value)) (void)printf("%.6g", value);
  }
  (void)putchar('\n');
}

static void print_csv(sim_report *r) {
  weft_sim_metrics names = *collect_scope(r, WEFT_SIM_ALL, WEFT_SIM_ALL);
  char index[16];
  (void)printf("scope");
  for (uint32_t i = 0; i < names.n; i++) (void)printf(",%s", names.metric[i].name);
  (void)putchar('\n');
  print_line(r, &names, "all", "", WEFT_SIM_ALL, WEFT_SIM_ALL);
  for (uint32_t i = 0; r->run->n_replicas > 1 && i < r->run->n_replicas; i++) {
    (void)snprintf(index, sizeof index, "%u", i);
    print_line(r, &names, "replica ", index, (int32_t)i, WEFT_SIM_ALL);
  }
  for (uint32_t i = 0; r->load->n_tenants > 1 && i < r->load->n_tenants; i++) {
    (void)snprintf(index, sizeof index, "%u", i);
    if (is_present(r, i)) print_line(r, &names, "tenant ", index, WEFT_SIM_ALL, (int32_t)i);
  }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void set_all(json_t *to, const weft_sim_metrics *metrics) {
  for (uint32_t i = 0; i < metrics->n; i++) {
    double value = metrics->metric[i].value;
    (void)json_object_set_new(to, metrics->metric[i].name, isnan(value) ? json_null() : json_real(value));
  }
}

static json_t *number_row(const char *what, uint32_t index, const weft_sim_metrics *metrics) {
  json_t *row = json_object();
  (void)json_object_set_new(row, what, json_integer(index));
  set_all(row, metrics);
  return row;
}

static int print_json(sim_report *r) {
  json_t *root = json_object(), *replicas = json_array(), *tenants = json_array();
  set_all(root, collect_scope(r, WEFT_SIM_ALL, WEFT_SIM_ALL));
  for (uint32_t i = 0; r->run->n_replicas > 1 && i < r->run->n_replicas; i++) {
    (void)json_array_append_new(replicas, number_row("replica", i, collect_scope(r, (int32_t)i, WEFT_SIM_ALL)));
  }
  for (uint32_t i = 0; i < r->load->n_tenants; i++) {
    if (!is_present(r, i)) continue;
    (void)json_array_append_new(tenants, number_row("tenant", i, collect_scope(r, WEFT_SIM_ALL, (int32_t)i)));
  }
  (void)json_object_set_new(root, "by_replica", replicas);
  (void)json_object_set_new(root, "by_tenant", tenants);
  char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  json_decref(root);
  if (text == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the report");
  (void)printf("%s\n", text);
  free(text); /* of jansson */
  return 0;
}

int weft_sim_report(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_run *run) {
  sim_report r = {.config = config, .load = load, .run = run};
  r.scratch = weft_alloc(load->n, sizeof *r.scratch);
  if (r.scratch == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the report");
  int code = 0;
  if (config->product.json) {
    code = print_json(&r);
  } else if (config->csv) {
    print_csv(&r);
  } else {
    print_table(&r);
  }
  weft_free(r.scratch);
  return code;
}
