/* SPDX-License-Identifier: MIT */
/* weft bench graphs: what a decoded token's time consists of, with steps as graphs and call by call, each with the next
 * step planned while one is computed and after it.
 *
 * Columns, medians over the steps that decode all sequences and nothing else: the nodes of a launch's graph (kernels
 * and copies; a step that is planned after the one before it is two launches); from one step's results to the next
 * one's; of that planning on the host, handing the step to the device (its launch), the device's own time, and taking
 * up its results. `idle` is the time between two steps in which the device computes neither. Next tokens are drawn on
 * the device, within its time. A trend over sizes is one run for each file. */
#include <unistd.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { SETTLED = 16 /* first steps of a run: a graph is made in these */, SEED = 9500, COLUMNS = 6, WAYS = 4 };

typedef struct graphs_way {
  const char *name;
  bool no_graphs, no_overlap;
} graphs_way;

static const graphs_way ways[WAYS] = {{"graphs", false, false},
                                      {"call by call", true, false},
                                      {"graphs, --no-overlap", false, true},
                                      {"call by call, --no-overlap", true, true}};
static const char *const names[COLUMNS] = {"step_us", "plan_us", "launch_us", "device_us", "apply_us", "idle_us"};

typedef struct graphs_row {
  double value[COLUMNS]; /* medians */
  double nodes;          /* of a launch; 0: no graph was launched */
  uint32_t n_steps;
} graphs_row;

typedef struct graphs_bench {
  const weft_lab_config *config;
  uint32_t n_parallel;
  weft_step_record *record; /* [WEFT_RECORDED_STEPS] */
  double *value[COLUMNS];   /* [WEFT_RECORDED_STEPS] */
  json_t *records;
  char device[128];
} graphs_bench;

static bool decodes_all(const weft_step_record *r, uint32_t n) {
  return r->n_decode_rows == n && r->n_prefill_rows + r->n_commit_rows + r->n_canvas_rows == 0;
}

static void take_step(graphs_bench *b, const weft_step_record *r, uint32_t at) {
  uint64_t step_us = r->collected_us - (r - 1)->collected_us;
  b->value[0][at] = (double)step_us;
  b->value[1][at] = (double)(r->launched_us - r->began_us);
  b->value[2][at] = (double)(r->enqueued_us - r->launched_us);
  b->value[3][at] = (double)r->measured_us;
  b->value[4][at] = (double)(r->applied_us - r->collected_us);
  b->value[5][at] = step_us > r->measured_us ? (double)(step_us - r->measured_us) : 0.0;
}

static void take_steps(graphs_bench *b, weft_runtime *rt, graphs_row *row) {
  uint32_t n = weft_engine_get_steps(weft_replicas_at(rt->replicas, 0), b->record, WEFT_RECORDED_STEPS), n_seen = 0;
  for (uint32_t i = 1; i < n; i++) {
    const weft_step_record *r = &b->record[i];
    if (!decodes_all(r, b->n_parallel) || !decodes_all(r - 1, b->n_parallel) || n_seen++ < SETTLED) continue;
    take_step(b, r, row->n_steps++);
  }
  for (uint32_t c = 0; c < COLUMNS; c++) row->value[c] = weft_median(b->value[c], row->n_steps);
}

static int measure_way(graphs_bench *b, const graphs_way *way, graphs_row *row) {
  weft_lab_config own = *b->config;
  weft_load load = {.n_prompt = own.n_prompt, .n_generate = own.n_generate, .n_parallel = b->n_parallel};
  weft_measured unused;
  weft_runtime *rt;
  own.product.no_graphs |= way->no_graphs;
  own.product.no_overlap |= way->no_overlap;
  int code = weft_cli_open(&own.product, &rt);
  if (code != 0) return code;
  const weft_device_info *device = weft_device_get_info(rt->devices.device[0]);
  (void)snprintf(b->device, sizeof b->device, "%s", device->name);
  if (device->host_memory && !way->no_graphs) { /* nothing of the host's is a graph */
    weft_close(rt);
    return 0;
  }
  if (load.n_prompt + load.n_generate > rt->model[0].context)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "bench: prompt and answer have more tokens than the context of %u",
                         rt->model[0].context);
  for (uint32_t i = 0; i < b->config->repeat && code == 0; i++) code = weft_measure(rt, &load, SEED + i, &unused);
  while (code == 0 && !weft_idle(rt)) (void)usleep(1000); /* the last step is recorded a moment after its tokens */
  weft_graph_counters n = devices_graphs(&rt->devices);
  if (n.launches > 0) row->nodes = (double)n.nodes / (double)n.launches;
  if (code == 0) take_steps(b, rt, row);
  if (code == 0 && row->n_steps == 0)
    code =
        weft_cli_fail(WEFT_EXIT_USAGE, "bench graphs: no %d steps decoded together: raise --n-generate", SETTLED + 1);
  weft_close(rt);
  return code;
}

static void print_way(graphs_bench *b, const graphs_way *way, const graphs_row *row) {
  json_t *record = json_pack("{s:s, s:s, s:i, s:f, s:i}", "work", "graphs", "way", way->name, "n_parallel",
                             (int)b->n_parallel, "nodes", row->nodes, "steps", (int)row->n_steps);
  bool text = !b->config->product.json && !b->config->csv;
  if (b->config->csv) (void)printf("\"%s\",%u,%g", way->name, b->n_parallel, row->nodes);
  if (text) (void)printf("%-26s %6.0f", way->name, row->nodes);
  for (uint32_t c = 0; c < COLUMNS; c++) {
    if (b->config->csv) (void)printf(",%g", row->value[c]);
    if (text) (void)printf(" %9.0f", row->value[c]);
    (void)json_object_set_new(record, names[c], json_real(row->value[c]));
  }
  (void)json_object_set_new(record, "device", json_string(b->device));
  (void)json_array_append_new(b->records, record);
  if (text || b->config->csv) (void)printf("\n");
  (void)fflush(stdout); /* a row at a time */
}

static void print_head(const graphs_bench *b) {
  if (b->config->product.json) return;
  if (b->config->csv)
    (void)printf("way,n_parallel,nodes");
  else
    (void)printf("%-26s %6s", "a step", "nodes");
  for (uint32_t c = 0; c < COLUMNS; c++) (void)printf(b->config->csv ? ",%s" : " %9s", names[c]);
  (void)printf("\n");
}

static bool take_memory(graphs_bench *b) {
  bool good = (b->record = weft_alloc(WEFT_RECORDED_STEPS, sizeof *b->record)) != NULL;
  for (uint32_t c = 0; c < COLUMNS; c++)
    good = (b->value[c] = weft_alloc(WEFT_RECORDED_STEPS, sizeof *b->value[c])) != NULL && good;
  return good;
}

int weft_bench_graphs(const weft_lab_config *config) {
  graphs_bench b = {.config = config, .n_parallel = config->n_parallel > 0 ? config->n_parallel : 1};
  int code = take_memory(&b) ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  b.records = json_array();
  print_head(&b);
  for (uint32_t w = 0; w < WAYS && code == 0; w++) {
    graphs_row row = {.n_steps = 0};
    code = measure_way(&b, &ways[w], &row);
    if (code == 0 && row.n_steps > 0) print_way(&b, &ways[w], &row);
  }
  if (code == 0 && config->product.json) weft_bench_print(b.records);
  json_decref(b.records);
  weft_free(b.record);
  for (uint32_t c = 0; c < COLUMNS; c++) weft_free(b.value[c]);
  return code;
}
