/* SPDX-License-Identifier: MIT */
/* The pictures of a run: ttft.svg, each.svg, pool.svg, queue.svg, tenants.svg. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/lab/lab.h"
#include "bench/sim/metrics.h"
#include "bench/sim/plot.h"

enum { SHOWN_TENANTS = WEFT_PLOT_LINES };

typedef struct sim_figures {
  const weft_lab_config *config;
  const weft_sim_load *load;
  const weft_sim_run *run;
  double *x, *y; /* [room] */
  size_t room, used;
} sim_figures;

static int write_figure(sim_figures *f, const weft_plot *plot, const char *name) {
  char path[4096];
  int n = snprintf(path, sizeof path, "%s/%s", f->config->plots, name);
  f->used = 0;
  if (n < 0 || (size_t)n >= sizeof path) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "--plots: the name is too long");
  }
  return weft_plot_write(plot, path);
}

/* n points of the figure's memory; y is filled by the caller. */
static weft_plot_line *add_line(sim_figures *f, weft_plot *plot, const char *name, uint32_t n) {
  weft_plot_line *line = &plot->line[plot->n_lines++];
  *line = (weft_plot_line){.name = name, .x = f->x + f->used, .y = f->y + f->used, .n = n};
  f->used += n;
  return line;
}

/* The share of requests with at most this value; of the values, at most so many that show. */
static void add_distribution(sim_figures *f, weft_plot *plot, const char *name, weft_sim_value value) {
  weft_sim_scope all = {WEFT_SIM_ALL, WEFT_SIM_ALL};
  double *x = f->x + f->used, *y = f->y + f->used;
  uint32_t n = weft_sim_sorted(f->load, f->run, all, value, x);
  uint32_t points = n < WEFT_SIM_BINS ? n : WEFT_SIM_BINS;
  for (uint32_t i = 0; i < points; i++) {
    uint32_t at = (uint32_t)((uint64_t)(i + 1) * n / points) - 1;
    x[i] = x[at];
    y[i] = 100.0 * (at + 1) / n;
  }
  if (points > 0) (void)add_line(f, plot, name, points);
}

static double ttft_ar(const weft_sim_item *item, const weft_sim_outcome *o) {
  return item->diffusion ? -1.0 : weft_sim_ttft(item, o);
}

static double ttft_diffusion(const weft_sim_item *item, const weft_sim_outcome *o) {
  return item->diffusion ? weft_sim_ttft(item, o) : -1.0;
}

static int draw_times(sim_figures *f) {
  weft_plot ttft = {
      .title = "time to the first token", .x_name = "ms", .log_x = true, .y_max = 100, .y_name = "requests, %"};
  add_distribution(f, &ttft, "token by token", ttft_ar);
  add_distribution(f, &ttft, "diffusion", ttft_diffusion);
  int code = write_figure(f, &ttft, "ttft.svg");
  weft_plot each = {
      .title = "time of a token, of a canvas", .x_name = "ms", .log_x = true, .y_max = 100, .y_name = "requests, %"};
  add_distribution(f, &each, "token", weft_sim_tpot);
  add_distribution(f, &each, "canvas", weft_sim_canvas);
  return code != 0 ? code : write_figure(f, &each, "each.svg");
}

/* The mean of a track in each bin, times scale. */
static void add_track(sim_figures *f, weft_plot *plot, const char *name, weft_sim_track track, double scale) {
  const weft_sim_series *s = &f->run->series;
  uint32_t n = weft_sim_series_bins(s);
  double *x = f->x + f->used, *y = f->y + f->used;
  for (uint32_t i = 0; i < n; i++) {
    double end = fmin((double)(i + 1) * (double)s->bin_us, (double)s->end_us + 1.0);
    x[i] = end / 1e6;
    y[i] = scale * s->track[track][i] / (end - (double)i * (double)s->bin_us);
  }
  (void)add_line(f, plot, name, n);
}

static int draw_pool(sim_figures *f) {
  double percent = 100.0 / (double)f->run->total.n_pages;
  weft_plot pool = {.title = "pages of the pool", .x_name = "seconds", .y_name = "%", .y_max = 100};
  add_track(f, &pool, "held by requests", WEFT_SIM_PINNED, percent);
  add_track(f, &pool, "and cached", WEFT_SIM_USED, percent);
  int code = write_figure(f, &pool, "pool.svg");
  weft_plot queue = {.title = "requests", .x_name = "seconds", .y_name = "at once"};
  add_track(f, &queue, "running", WEFT_SIM_RUNNING, 1.0);
  add_track(f, &queue, "waiting", WEFT_SIM_WAITING, 1.0);
  return code != 0 ? code : write_figure(f, &queue, "queue.svg");
}

static int draw_tenants(sim_figures *f) {
  static char name[SHOWN_TENANTS][24];
  const weft_sim_series *s = &f->run->series;
  uint32_t n = weft_sim_series_bins(s);
  weft_plot plot = {.title = "device time spent on each tenant", .x_name = "seconds", .y_name = "seconds"};
  for (uint32_t t = 0; t < s->n_tenants && plot.n_lines < SHOWN_TENANTS; t++) {
    double sum = 0.0, *x = f->x + f->used, *y = f->y + f->used;
    if (f->run->total.rows[t] == 0) continue;
    for (uint32_t i = 0; i < n; i++) {
      sum += s->service[(size_t)i * s->n_tenants + t] / 1e6;
      x[i] = (double)(i + 1) * (double)s->bin_us / 1e6;
      y[i] = sum;
    }
    (void)snprintf(name[plot.n_lines], sizeof name[0], "tenant %u", t);
    (void)add_line(f, &plot, name[plot.n_lines], n);
  }
  return write_figure(f, &plot, "tenants.svg");
}

int weft_sim_figures(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_run *run) {
  sim_figures f = {.config = config, .load = load, .run = run};
  f.room = (size_t)2 * load->n + (size_t)SHOWN_TENANTS * WEFT_SIM_BINS;
  if (mkdir(config->plots, 0777) != 0 && errno != EEXIST) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "--plots %s: %s", config->plots, strerror(errno));
  }
  f.x = weft_alloc(f.room, sizeof *f.x);
  f.y = weft_alloc(f.room, sizeof *f.y);
  int code = f.x != NULL && f.y != NULL ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the plots");
  if (code == 0) code = draw_times(&f);
  if (code == 0) code = draw_pool(&f);
  if (code == 0) code = draw_tenants(&f);
  weft_free(f.x);
  weft_free(f.y);
  return code;
}
