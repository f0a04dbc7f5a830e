/* SPDX-License-Identifier: MIT */
/* weft bench tenants: two tenants by the wall clock, what the simulation shows by the virtual one.
 *
 *   slowness  time to the first token of one tenant's short prompts: alone, and with long prompts of the other queued
 *   probes    the same time for prompts that the other tenant has in its cache and for prompts that no tenant has: how
 * many a
 *             threshold learned on one half of them tells apart on the other; 50 % is chance */
#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { FLOOD = 192, FLOOD_TOKENS = 512, ASKED = 64, ASKED_TOKENS = 32, PROBES = 256, PROBE_TOKENS = 160 };

static int submit_prompt(weft_runtime *rt, uint32_t tenant, uint32_t key, uint32_t n, weft_generation **out) {
  int32_t tokens[FLOOD_TOKENS];
  char error[256];
  for (uint32_t i = 0; i < n; i++) tokens[i] = weft_prompt_token(7, key, i, weft_model_at(rt, 0).vocabulary);
  weft_generate_params p;
  weft_generate_defaults(&p);
  p.prompt.tokens = tokens;
  p.prompt.n_tokens = n;
  p.max_tokens = 1;
  p.ignore_eos = true;
  p.sampling.temperature = 0.0f;
  p.mode = WEFT_MODE_AUTOREGRESSIVE;
  p.tenant = tenant;
  if (weft_submit(rt, &p, out, error, sizeof error) == 0) return 0;
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "bench tenants: %s", error);
}

static void hear_end(weft_generation *g) {
  weft_delta d;
  while (weft_next(g, 1000, &d) != 0 || d.kind != WEFT_DELTA_END) continue;
  weft_generation_free(g);
}

/* Asks and waits for the one token. */
static int ask_token(weft_runtime *rt, uint32_t tenant, uint32_t key, uint32_t n, double *ms) {
  weft_generation *g = NULL;
  uint64_t start_us = weft_clock_us();
  int code = submit_prompt(rt, tenant, key, n, &g);
  if (code != 0) return code;
  hear_end(g);
  *ms = (double)(weft_clock_us() - start_us) * 1e-3;
  return 0;
}

static int ask_all(weft_runtime *rt, uint32_t first_key, double *ms) {
  int code = 0;
  for (uint32_t i = 0; i < ASKED && code == 0; i++) code = ask_token(rt, 1, first_key + i, ASKED_TOKENS, &ms[i]);
  return code;
}

static int measure_slowness(weft_runtime *rt, double *alone, double *flooded) {
  weft_generation *flood[FLOOD];
  uint32_t n = 0;
  int code = ask_all(rt, 1000, alone);
  while (n < FLOOD && code == 0) {
    code = submit_prompt(rt, 0, 2000 + n, FLOOD_TOKENS, &flood[n]);
    if (code == 0) n++;
  }
  if (code == 0) code = ask_all(rt, 3000, flooded);
  for (uint32_t i = 0; i < n; i++) weft_cancel(flood[i]);
  for (uint32_t i = 0; i < n; i++) hear_end(flood[i]);
  return code;
}

/* Even probes are in the other tenant's cache. */
static int measure_probes(weft_runtime *rt, double *ms) {
  int code = 0;
  double unused;
  for (uint32_t i = 0; i < PROBES && code == 0; i += 2) code = ask_token(rt, 0, 5000 + i, PROBE_TOKENS, &unused);
  for (uint32_t i = 0; i < PROBES && code == 0; i++) code = ask_token(rt, 1, 5000 + i, PROBE_TOKENS, &ms[i]);
  return code;
}

/* Probes [first, end) that a threshold gets right, `below`: what is faster is held for cached. */
static uint32_t count_right(const double *ms, uint32_t first, uint32_t end, double threshold, bool below) {
  uint32_t n = 0;
  for (uint32_t i = first; i < end; i++) n += ((ms[i] < threshold) == below) == (i % 2 == 0) ? 1u : 0u;
  return n;
}

static double told_apart(const double *ms) {
  uint32_t best = 0;
  double threshold = 0.0;
  bool below = true;
  for (uint32_t i = 0; i < PROBES / 2; i++) {
    for (uint32_t side = 0; side < 2; side++) {
      uint32_t n = count_right(ms, 0, PROBES / 2, ms[i], side == 0);
      if (n > best) best = n, threshold = ms[i], below = side == 0;
    }
  }
  return 100.0 * count_right(ms, PROBES / 2, PROBES, threshold, below) / (PROBES / 2);
}

int weft_bench_tenants(const weft_lab_config *config) {
  weft_lab_config own = *config;
  weft_open_options options = weft_config_open(&own.product);
  weft_runtime *rt;
  char error[512];
  double alone[ASKED], flooded[ASKED], probe[PROBES];
  if (config->product.models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL);
  options.tenants = 2;
  options.tenant = NULL;
  options.context = 2 * FLOOD_TOKENS;
  int status = weft_open(&options, &rt, error, sizeof error);
  if (status != 0) return weft_cli_fail(weft_cli_code(status), "%s", error);
  int code = measure_slowness(rt, alone, flooded);
  if (code == 0) code = measure_probes(rt, probe);
  weft_close(rt);
  if (code != 0) return code;
  double p50[2] = {weft_median(alone, ASKED), weft_median(flooded, ASKED)}; /* and they are sorted */
  (void)printf(config->product.json
                   ? "{\"alone_p50_ms\": %.2f, \"alone_max_ms\": %.2f, \"flooded_p50_ms\": %.2f, "
                     "\"flooded_max_ms\": %.2f, \"probes\": %d, \"told_apart_percent\": %.1f}\n"
                   : "first token, alone    p50 %8.2f ms, most %8.2f ms\nfirst token, flooded  p50 %8.2f ms, most "
                     "%8.2f ms\nprobes                %d, told apart %.1f %%\n",
               p50[0], alone[ASKED - 1], p50[1], flooded[ASKED - 1], PROBES, told_apart(probe));
  return 0;
}
