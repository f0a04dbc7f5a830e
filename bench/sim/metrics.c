/* SPDX-License-Identifier: MIT */
#include "bench/sim/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct collector {
  const weft_lab_config *config;
  const weft_sim_load *load;
  const weft_sim_run *run;
  const weft_sim_counts *counts; /* NULL: of one tenant, which no replica counts apart */
  weft_sim_scope scope;
  double *scratch;
  weft_sim_metrics *out;
  double seconds;
} collector;

/* ---- values of one request ------------------------------------------------------------------- */

static double ms_between(uint64_t from_us, uint64_t to_us) {
  return to_us > from_us ? (double)(to_us - from_us) / 1000.0 : 0.0;
}

static bool is_good(const weft_sim_outcome *o) {
  return !o->refused && !o->failed && !o->cancelled && !o->expired && o->finished_us > 0;
}

double weft_sim_ttft(const weft_sim_item *item, const weft_sim_outcome *o) {
  return is_good(o) && o->first_us > 0 ? ms_between(item->at_us, o->first_us) : -1.0;
}

double weft_sim_tpot(const weft_sim_item *item, const weft_sim_outcome *o) {
  if (!is_good(o) || item->diffusion || o->n_answer < 2) return -1.0;
  return ms_between(o->first_us, o->finished_us) / (o->n_answer - 1);
}

double weft_sim_canvas(const weft_sim_item *item, const weft_sim_outcome *o) {
  if (!is_good(o) || !item->diffusion || o->n_canvases == 0) return -1.0;
  return ms_between(o->started_us, o->finished_us) / o->n_canvases;
}

static double e2e_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  return is_good(o) ? ms_between(item->at_us, o->finished_us) : -1.0;
}

static double queue_of(const weft_sim_item *item, const weft_sim_outcome *o) {
  return is_good(o) ? ms_between(item->at_us, o->started_us) : -1.0;
}

/* ---- many ------------------------------------------------------------------------------------ */

/* The requests of one replica, of one tenant, or all of them. */
typedef struct scope_items {
  const uint32_t *item; /* NULL: 0, 1, 2, … */
  uint32_t n;
} scope_items;

static scope_items items_of(const weft_sim_load *load, const weft_sim_run *run, weft_sim_scope scope) {
  if (scope.replica < 0 && scope.tenant < 0) return (scope_items){.n = load->n};
  const weft_sim_groups *groups = scope.replica >= 0 ? &run->by_replica : &run->by_tenant;
  const uint32_t *first = groups->first + (scope.replica >= 0 ? scope.replica : scope.tenant);
  return (scope_items){.item = groups->item + first[0], .n = first[1] - first[0]};
}

static uint32_t item_at(const scope_items *items, uint32_t i) {
  return items->item == NULL ? i : items->item[i];
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

uint32_t weft_sim_sorted(const weft_sim_load *load, const weft_sim_run *run, weft_sim_scope scope, weft_sim_value value,
                         double *out) {
  scope_items items = items_of(load, run, scope);
  uint32_t n = 0;
  for (uint32_t i = 0; i < items.n; i++) {
    uint32_t at = item_at(&items, i);
    double x = value(&load->item[at], &run->outcome[at]);
    if (x >= 0.0) out[n++] = x;
  }
  qsort(out, n, sizeof *out, by_value);
  return n;
}

static void add_metric(collector *c, const char *name, const char *unit, double value) {
  if (c->out->n < WEFT_SIM_METRICS) {
    c->out->metric[c->out->n++] = (weft_sim_metric){name, unit, value};
  }
}

static double part_of_whole(double part, double whole) {
  return whole > 0.0 ? part / whole : NAN;
}

static void add_percentiles(collector *c, const char *const name[3], weft_sim_value value) {
  static const uint32_t percent[] = {50, 90, 99};
  uint32_t n = weft_sim_sorted(c->load, c->run, c->scope, value, c->scratch);
  for (uint32_t i = 0; i < 3; i++) {
    uint64_t at = ((uint64_t)n * percent[i] + 99) / 100;
    add_metric(c, name[i], "ms", n == 0 ? NAN : c->scratch[at - 1]);
  }
}

/* Within both targets; for a canvas request, the time for each token counts from its start. */
static bool meets_targets(const weft_lab_config *config, const weft_sim_item *item, const weft_sim_outcome *o) {
  if (!is_good(o)) return false;
  double each =
      item->diffusion ? ms_between(o->started_us, o->finished_us) / (o->n_answer + 1e-9) : weft_sim_tpot(item, o);
  return weft_sim_ttft(item, o) <= (double)config->goodput_ttft_ms && each <= (double)config->goodput_tpot_ms;
}

/* ---- groups of numbers ----------------------------------------------------------------------- */

typedef struct outcome_sums {
  uint32_t n, finished, refused, cancelled, expired, failed, met;
  double answer, prompt, cached, recomputed;
} outcome_sums;

static outcome_sums sum_outcomes(const collector *c) {
  outcome_sums s = {0};
  scope_items items = items_of(c->load, c->run, c->scope);
  for (uint32_t i = 0; i < items.n; i++) {
    const weft_sim_item *item = &c->load->item[item_at(&items, i)];
    const weft_sim_outcome *o = &c->run->outcome[item_at(&items, i)];
    s.n += 1;
    s.finished += is_good(o);
    s.refused += o->refused;
    s.cancelled += o->cancelled;
    s.expired += o->expired;
    s.failed += o->failed;
    s.met += meets_targets(c->config, item, o);
    s.answer += o->n_answer;
    s.cached += o->n_cached;
    s.recomputed += o->n_recomputed;
    if (o->started_us > 0 || o->first_us > 0) s.prompt += item->n_prompt;
  }
  return s;
}

static void add_outcomes(collector *c, const outcome_sums *s) {
  add_metric(c, "requests", "", s->n);
  add_metric(c, "finished", "", s->finished);
  add_metric(c, "refused", "", s->refused);
  add_metric(c, "cancelled", "", s->cancelled);
  add_metric(c, "expired", "", s->expired);
  add_metric(c, "failed", "", s->failed);
  add_metric(c, "seconds", "s", c->seconds);
  add_metric(c, "answer_tokens_per_s", "tok/s", part_of_whole(s->answer, c->seconds));
  add_metric(c, "prompt_tokens_per_s", "tok/s", part_of_whole(s->prompt, c->seconds));
  add_metric(c, "goodput_per_s", "req/s", part_of_whole(s->met, c->seconds));
  add_metric(c, "goodput_percent", "%", part_of_whole(100.0 * s->met, s->n));
}

static void add_times(collector *c) {
  static const char *const ttft[] = {"ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"};
  static const char *const tpot[] = {"tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms"};
  static const char *const canvas[] = {"canvas_p50_ms", "canvas_p90_ms", "canvas_p99_ms"};
  static const char *const e2e[] = {"e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms"};
  static const char *const queue[] = {"queue_p50_ms", "queue_p90_ms", "queue_p99_ms"};
  add_percentiles(c, ttft, weft_sim_ttft);
  add_percentiles(c, tpot, weft_sim_tpot);
  add_percentiles(c, canvas, weft_sim_canvas);
  add_percentiles(c, e2e, e2e_of);
  add_percentiles(c, queue, queue_of);
}

static void add_steps(collector *c, const weft_sim_counts *n, double recomputed) {
  double rows = (double)n->n_rows;
  add_metric(c, "steps", "", (double)n->n_steps);
  add_metric(c, "mixed_steps", "", (double)n->n_mixed_steps);
  add_metric(c, "switches", "", (double)n->n_switches);
  add_metric(c, "denoise_steps", "", (double)n->n_denoise_steps);
  add_metric(c, "rows_per_step", "", part_of_whole(rows, (double)n->n_steps));
  add_metric(c, "prefill_rows", "", (double)n->n_prefill_rows);
  add_metric(c, "void_rows", "", (double)n->n_void_rows);
  add_metric(c, "void_percent", "%", part_of_whole(100.0 * (double)n->n_void_rows, rows));
  add_metric(c, "waste_percent", "%", part_of_whole(100.0 * ((double)n->n_void_rows + recomputed), rows));
  add_metric(c, "preemptions", "", (double)n->n_preemptions);
  add_metric(c, "pages_to_host", "", (double)n->n_pages_out);
  add_metric(c, "pages_back", "", (double)n->n_pages_back);
  add_metric(c, "pages_evicted", "", (double)n->n_pages_evicted);
  add_metric(c, "prediction_error_percent", "%", part_of_whole(100.0 * (double)n->error_us, (double)n->measured_us));
}

/* Device time spent while every tenant had a request waiting, divided by weight: the best served
 * tenant over the worst served one. */
static double measure_fairness(const weft_sim_load *load, const weft_sim_counts *counts) {
  double most = 0.0, least = INFINITY;
  uint32_t n = 0;
  for (uint32_t t = 0; t < load->n_tenants; t++) {
    if (counts->rows[t] == 0) continue; /* not in this load */
    uint32_t weight = load->tenant[t].weight;
    double us = counts->service_backlog[t] / (weight == 0 ? 1 : weight);
    if (us > most) most = us;
    if (us < least) least = us;
    n += 1;
  }
  return n < 2 ? NAN : part_of_whole(most, least);
}

static void add_device(collector *c, const weft_sim_counts *n, uint32_t n_replicas) {
  double us = 1e6 * c->seconds * n_replicas;
  add_metric(c, "busy_percent", "%", part_of_whole(100.0 * (double)n->busy_us, us));
  add_metric(c, "pool_mean_percent", "%", part_of_whole(100.0 * n->pool_page_us, (double)n->n_pages / n_replicas * us));
  add_metric(c, "pool_peak_percent", "%", part_of_whole(100.0 * (double)n->n_pages_peak, (double)n->n_pages));
  add_metric(c, "backlog_percent", "%", part_of_whole(100.0 * (double)n->backlog_us, us));
  add_metric(c, "fairness_max_over_min", "x", measure_fairness(c->load, n));
}

/* What happened to replicas, and what they told of their caches. */
static void add_fleet(collector *c, const weft_sim_counts *n) {
  double seconds = c->run->has_events ? c->seconds : NAN;
  add_metric(c, "failures", "", n->n_failures);
  add_metric(c, "replaced", "", n->n_replaced);
  add_metric(c, "event_batches_per_s", "1/s", part_of_whole((double)n->n_event_batches, seconds));
  add_metric(c, "events_per_s", "1/s", part_of_whole((double)n->n_events, seconds));
  add_metric(c, "event_blocks_per_s", "1/s", part_of_whole((double)n->n_blocks_told, seconds));
  add_metric(c, "event_bytes_per_s", "B/s",
             n->n_event_bytes > 0 ? part_of_whole((double)n->n_event_bytes, seconds) : NAN);
}

/* A piece of a prompt behind all that stands before it. */
typedef struct prompt_piece {
  uint64_t chain;
  uint32_t n_tokens;
} prompt_piece;

static int by_chain(const void *a, const void *b) {
  const prompt_piece *x = a, *y = b;
  if (x->chain != y->chain) return x->chain < y->chain ? -1 : 1;
  return (x->n_tokens < y->n_tokens) - (x->n_tokens > y->n_tokens);
}

/* Prompt tokens of all that started, each prefix once in its sharing domain and model. NAN: no memory. */
static double count_distinct(const collector *c) {
  const weft_sim_load *load = c->load;
  prompt_piece *piece = weft_alloc(load->n_ids, sizeof *piece);
  double sum = 0.0;
  uint64_t n = 0;
  if (piece == NULL) return NAN;
  for (uint32_t i = 0; i < load->n; i++) {
    const weft_sim_item *item = &load->item[i];
    if (c->run->outcome[i].started_us == 0 && c->run->outcome[i].first_us == 0) continue;
    uint64_t domain = c->config->product.shared_cache ? 0 : item->tenant + 1;
    uint64_t chain = weft_mix64((uint64_t)item->model << 32 | domain);
    for (uint32_t at = 0; at < item->n_prompt; at += load->block) {
      uint32_t left = item->n_prompt - at;
      chain = weft_mix64(chain ^ weft_mix64(load->id[item->first_id + at / load->block] + 1));
      piece[n++] = (prompt_piece){chain, left < load->block ? left : load->block};
    }
  }
  qsort(piece, n, sizeof *piece, by_chain);
  for (uint64_t i = 0; i < n; i++) {
    if (i == 0 || piece[i].chain != piece[i - 1].chain) sum += piece[i].n_tokens;
  }
  weft_free(piece);
  return sum;
}

static double spread_of_requests(const collector *c) {
  const uint32_t *first = c->run->by_replica.first;
  uint32_t most = 0;
  for (uint32_t i = 0; i < c->run->n_replicas; i++) {
    if (first[i + 1] - first[i] > most) most = first[i + 1] - first[i];
  }
  return (double)most * c->run->n_replicas / c->load->n;
}

void weft_sim_collect(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_run *run,
                      weft_sim_scope scope, double *scratch, weft_sim_metrics *out) {
  const weft_sim_counts *counts = scope.replica < 0 ? &run->total : &run->replica[scope.replica];
  collector c = {.config = config,
                 .load = load,
                 .run = run,
                 .scope = scope,
                 .scratch = scratch,
                 .out = out,
                 .seconds = (double)run->total.end_us / 1e6};
  out->n = 0;
  outcome_sums sums = sum_outcomes(&c);
  add_outcomes(&c, &sums);
  add_times(&c);
  add_metric(&c, "prompt_tokens", "", sums.prompt);
  add_metric(&c, "hit_tokens", "", sums.cached);
  add_metric(&c, "hit_percent", "%", part_of_whole(100.0 * sums.cached, sums.prompt));
  if (scope.tenant >= 0) {
    add_metric(&c, "rows", "", (double)counts->rows[scope.tenant]);
    add_metric(&c, "service_s", "s", counts->service_us[scope.tenant] / 1e6);
    return;
  }
  add_steps(&c, counts, sums.recomputed);
  add_device(&c, counts, scope.replica < 0 ? run->n_replicas : 1);
  add_fleet(&c, counts);
  if (scope.replica >= 0) return;
  add_metric(&c, "prompt_tokens_distinct", "", count_distinct(&c));
  add_metric(&c, "replicas", "", run->n_replicas);
  add_metric(&c, "spilled", "", (double)run->n_spilled);
  add_metric(&c, "requests_max_over_mean", "x", spread_of_requests(&c));
  add_metric(&c, "credit_percent", "%",
             run->has_events ? part_of_whole(100.0 * (double)run->n_credited, sums.prompt) : NAN);
  add_metric(&c, "index_blocks_most", "", run->has_events ? run->n_index_most : NAN);
  add_metric(&c, "upgraded_at_s", "s", run->upgraded_us > 0 ? (double)run->upgraded_us / 1e6 : NAN);
}

double weft_sim_metric_of(const weft_sim_metrics *metrics, const char *name) {
  for (uint32_t i = 0; i < metrics->n; i++) {
    if (strcmp(metrics->metric[i].name, name) == 0) return metrics->metric[i].value;
  }
  return NAN;
}
