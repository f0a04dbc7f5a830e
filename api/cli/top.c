/* SPDX-License-Identifier: MIT */
/* weft top: a running server, live. Every view shows what changed since the one before: rates per
 * second, and latencies of the requests that ended or began to answer in between. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/observe.h"

enum { BAR = 40, NAME = 256 };

static volatile sig_atomic_t stopped;

static void stop_top(int signal_number) {
  (void)signal_number;
  stopped = 1;
}

typedef struct view {
  const weft_reading *before, *after;
} view;

static double current_value(const view *v, const char *name) {
  return weft_reading_of(v->after, name, NULL, NULL);
}

static double value_rate(const view *v, const char *name) {
  return weft_reading_rate(v->before, v->after, name, NULL, NULL);
}

static double percent_of(double part, double whole) {
  return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* ---- the lines of a view --------------------------------------------------------------------- */

static void put_requests(const view *v) {
  double prompts = value_rate(v, "vllm:prefix_cache_queries_total");
  (void)printf("requests  running %.0f  waiting %.0f  ended %.1f/s  preempted %.1f/s  clients left %.1f/s\n",
               current_value(v, "vllm:num_requests_running"), current_value(v, "vllm:num_requests_waiting"),
               value_rate(v, "vllm:request_success_total"), value_rate(v, "vllm:num_preemptions_total"),
               value_rate(v, "weft_http_clients_left_total"));
  (void)printf("tokens    prompt %.0f/s  answer %.0f/s  prefix cache %.0f %%\n",
               value_rate(v, "vllm:prompt_tokens_total"), value_rate(v, "vllm:generation_tokens_total"),
               percent_of(value_rate(v, "vllm:prefix_cache_hits_total"), prompts));
}

static void put_steps(const view *v) {
  double steps = value_rate(v, "weft_steps_total"), rows = value_rate(v, "weft_rows_total");
  double step_us = value_rate(v, "weft_step_microseconds_total");
  (void)printf(
      "steps     %.1f/s  %.2f ms each  planning %.1f %%  mixed %.0f %%  rows %.0f each: "
      "prefill %.0f %%  decode %.0f %%  canvas %.0f %%  commit %.0f %%\n",
      steps, steps > 0.0 ? step_us / steps / 1000.0 : 0.0,
      percent_of(value_rate(v, "weft_plan_microseconds_total"), step_us),
      percent_of(value_rate(v, "weft_steps_mixed_total"), steps), steps > 0.0 ? rows / steps : 0.0,
      percent_of(value_rate(v, "weft_rows_prefill_total"), rows),
      percent_of(value_rate(v, "weft_rows_decode_total"), rows),
      percent_of(value_rate(v, "weft_rows_canvas_total"), rows),
      percent_of(value_rate(v, "weft_rows_commit_total"), rows));
}

static void put_pool(const view *v) {
  double pages = current_value(v, "weft_pool_pages"), pinned = current_value(v, "weft_pool_pages_pinned");
  double cached = current_value(v, "weft_pool_pages_cached");
  char bar[BAR + 1];
  for (int i = 0; i < BAR; i++) {
    double at = (i + 0.5) / BAR * pages;
    bar[i] = at < pinned ? '#' : at < pinned + cached ? '=' : '.';
  }
  bar[BAR] = 0;
  (void)printf("pool      [%s]  # held %.0f %%  = cached %.0f %%  of %.0f pages  evicted %.1f/s\n", bar,
               percent_of(pinned, pages), percent_of(cached, pages), pages, value_rate(v, "weft_pool_evicted_total"));
  double host = current_value(v, "weft_host_pages");
  if (host == 0.0) return;
  (void)printf("host      %.0f %% of %.0f pages  out %.1f/s  back %.1f/s\n",
               percent_of(current_value(v, "weft_host_pages_used"), host), host,
               value_rate(v, "weft_spill_pages_out_total"), value_rate(v, "weft_spill_pages_back_total"));
}

static void put_quantiles(const view *v, const char *words, const char *histogram) {
  double median = weft_reading_quantile(v->before, v->after, histogram, 0.5);
  double tail = weft_reading_quantile(v->before, v->after, histogram, 0.99);
  if (median < 0.0) {
    (void)printf("  %s -", words);
  } else {
    (void)printf("  %s %.0f / %.0f", words, median * 1000.0, tail * 1000.0);
  }
}

static void put_latencies(const view *v) {
  (void)printf("ms p50/p99");
  put_quantiles(v, "queue", "vllm:request_queue_time_seconds");
  put_quantiles(v, "first token", "vllm:time_to_first_token_seconds");
  put_quantiles(v, "per token", "vllm:request_time_per_output_token_seconds");
  put_quantiles(v, "whole", "vllm:e2e_request_latency_seconds");
  (void)putchar('\n');
}

static void put_models(const view *v) {
  char name[NAME];
  (void)printf("\n%-32s %8s %8s %10s %10s %8s %8s\n", "MODEL", "running", "waiting", "steps/s", "rows/s", "device",
               "error");
  for (uint32_t i = 0; weft_reading_label(v->after, "weft_model_steps_total", "model_name", i, name, sizeof name);
       i++) {
    const char *label = "model_name";
    double took = weft_reading_rate(v->before, v->after, "weft_model_step_measured_microseconds_total", label, name);
    double error = weft_reading_rate(v->before, v->after, "weft_model_step_error_microseconds_total", label, name);
    (void)printf("%-32s %8.0f %8.0f %10.1f %10.0f %7.0f%% %7.0f%%\n", name,
                 weft_reading_of(v->after, "weft_model_requests_running", label, name),
                 weft_reading_of(v->after, "weft_model_requests_waiting", label, name),
                 weft_reading_rate(v->before, v->after, "weft_model_steps_total", label, name),
                 weft_reading_rate(v->before, v->after, "weft_model_rows_total", label, name),
                 weft_reading_rate(v->before, v->after, "weft_model_busy_microseconds_total", label, name) / 1e4,
                 percent_of(error, took));
  }
}

static void put_tenants(const view *v) {
  char name[NAME];
  (void)printf("\n%-32s %10s %10s %10s %10s\n", "TENANT", "requests/s", "prompt/s", "cached/s", "answer/s");
  for (uint32_t i = 0; weft_reading_label(v->after, "weft_tenant_requests_total", "tenant", i, name, sizeof name);
       i++) {
    const char *label = "tenant";
    (void)printf("%-32s %10.1f %10.0f %10.0f %10.0f\n", name,
                 weft_reading_rate(v->before, v->after, "weft_tenant_requests_total", label, name),
                 weft_reading_rate(v->before, v->after, "weft_tenant_prompt_tokens_total", label, name),
                 weft_reading_rate(v->before, v->after, "weft_tenant_cached_tokens_total", label, name),
                 weft_reading_rate(v->before, v->after, "weft_tenant_completion_tokens_total", label, name));
  }
}

static void put_view(const weft_config *config, const view *v, bool live) {
  if (live) (void)printf("\033[H\033[2J");
  char name[160];
  weft_observe_name(config, name, sizeof name);
  (void)printf("weft at %s  %s\n", name, current_value(v, "weft_well") > 0.0 ? "well" : "UNWELL");
  put_requests(v);
  put_steps(v);
  put_pool(v);
  put_latencies(v);
  put_models(v);
  put_tenants(v);
  (void)fflush(stdout); /* a terminal that is gone shows at the end */
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void pause_for(float seconds) {
  struct timespec t = {.tv_sec = (time_t)seconds};
  t.tv_nsec = (long)((double)(seconds - (float)t.tv_sec) * 1e9);
  (void)nanosleep(&t, NULL); /* a signal ends it early, and the loop */
}

int weft_cli_top(const weft_config *config) {
  bool live = isatty(STDOUT_FILENO) == 1;
  uint32_t n_frames = config->frames == 0 && !live ? 1 : config->frames; /* 0: no end */
  weft_reading reading[2] = {{{0}, 0}, {{0}, 0}};
  struct sigaction action = {.sa_handler = stop_top};
  (void)sigaction(SIGINT, &action, NULL); /* cannot fail with these arguments */
  int code = weft_reading_take(config, &reading[0]);
  for (uint32_t i = 0; code == 0 && stopped == 0; i++) {
    weft_reading *before = &reading[i & 1], *after = &reading[(i & 1) ^ 1];
    pause_for(config->interval);
    if (stopped != 0) break;
    code = weft_reading_take(config, after);
    if (code != 0) break;
    put_view(config, &(view){before, after}, live);
    if (i + 1 == n_frames) break;
  }
  weft_text_free(&reading[0].text);
  weft_text_free(&reading[1].text);
  return code;
}
