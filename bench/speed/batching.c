/* SPDX-License-Identifier: MIT */
/* weft bench batching: what paging and continuous batching are worth, each by itself. The same requests, all there from
 * the start, by one engine in four ways:
 *
 *   paged, continuous       requests begin as soon as others end, and hold the pages of their tokens
 *   contiguous, continuous  requests begin as soon as others end, and each reserves the longest one's memory
 *   paged, static           requests in batches: the next batch begins when the last request of one has ended
 *   contiguous, static      both
 *
 * Reserving is simulated by what comes with it: no more requests at once than fit into the pool at the longest length,
 * counted as contiguous memory with a ring of a window's size in layers that have one (weft_kv_pages_held), so the
 * kernels are the same. Loads: `uniform`, all as long as the longest, where neither can gain, and `mixed`, prompts and
 * answers between a sixteenth and the whole of it, their logarithms spread evenly. Pools: `ample` holds --running of
 * the longest, `tight` a quarter of that. A latency is a request's time from the start of all to its end. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { ROUNDS = 4 /* requests for each place of --running */, RUNS_MAX = 1000, SEED = 9000, WAYS = 4 };

typedef struct batching_way {
  const char *name;
  bool contiguous, in_batches;
} batching_way;

static const batching_way ways[WAYS] = {{"paged, continuous", false, false},
                                        {"contiguous, continuous", true, false},
                                        {"paged, static", false, true},
                                        {"contiguous, static", true, true}};

typedef struct batching_request {
  uint32_t n_prompt, n_generate;
  uint64_t submitted_us;
  double latency_s;
  weft_generation *generation; /* while it runs */
} batching_request;

typedef struct batching_figures {
  double tok_s[RUNS_MAX], mean_s[RUNS_MAX], p95_s[RUNS_MAX];
} batching_figures;

typedef struct batching_bench {
  const weft_lab_config *config;
  weft_runtime *rt;
  batching_request *request; /* [n] */
  uint32_t n, n_reserved;    /* requests of the longest length that the pool holds */
  int32_t *tokens;           /* [n_prompt] */
  double *latency;           /* [n] */
  batching_figures figures;
  json_t *records;
  const char *pool, *load;
} batching_bench;

/* From a sixteenth of the longest length to all of it. */
static uint32_t draw_length(uint64_t index, uint64_t which, uint32_t longest) {
  const uint32_t fine = 1u << 20;
  weft_draw_key key = {SEED, index, WEFT_DRAW_TEST, which, 0};
  uint32_t n = (uint32_t)lrint(longest * exp2(-4.0 * weft_draw_below(&key, fine) / fine));
  return n > 0 ? n : 1;
}

static void draw_requests(batching_bench *b, bool mixed) {
  for (uint32_t i = 0; i < b->n; i++) {
    b->request[i].n_prompt = mixed ? draw_length(i, 0, b->config->n_prompt) : b->config->n_prompt;
    b->request[i].n_generate = mixed ? draw_length(i, 1, b->config->n_generate) : b->config->n_generate;
  }
}

static int submit_request(batching_bench *b, uint32_t index, uint32_t run) {
  batching_request *r = &b->request[index];
  const weft_load load = {.n_prompt = r->n_prompt, .n_generate = r->n_generate, .n_parallel = b->n};
  r->submitted_us = weft_clock_us();
  return weft_measure_submit(b->rt, &load, SEED + run, index, b->tokens, &r->generation);
}

/* Takes what the request has to say. *ended: it has ended. */
static int hear_request(batching_request *r, uint64_t start_us, bool *ended) {
  weft_delta d = {0};
  *ended = false;
  for (int status = 0; status == 0 && d.kind != WEFT_DELTA_END;) {
    status = weft_next(r->generation, 0, &d);
    if (status == WEFT_AGAIN) return 0;
    if (status != 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", weft_status_text((weft_status)status));
  }
  bool failed = strcmp(d.finish, "error") == 0;
  if (failed) (void)weft_cli_fail(WEFT_EXIT_RUNTIME, "bench batching: %s", d.error);
  r->latency_s = (double)(r->submitted_us - start_us + d.usage.total_us) * 1e-6;
  weft_generation_free(r->generation);
  r->generation = NULL;
  *ended = true;
  return failed ? WEFT_EXIT_RUNTIME : 0;
}

/* All requests, at most `limit` at once. */
static int run_requests(batching_bench *b, const batching_way *way, uint32_t limit, uint32_t run) {
  uint32_t n_begun = 0, n_ended = 0;
  uint64_t start_us = weft_clock_us();
  int code = 0;
  while (n_ended < b->n && code == 0) {
    bool may_begin = !way->in_batches || n_begun == n_ended;
    uint32_t n_heard = 0;
    for (; may_begin && n_begun < b->n && n_begun - n_ended < limit && code == 0; n_begun++)
      code = submit_request(b, n_begun, run);
    for (uint32_t i = 0; i < n_begun && code == 0; i++) {
      bool ended;
      if (b->request[i].generation == NULL) continue;
      code = hear_request(&b->request[i], start_us, &ended);
      n_heard += ended ? 1 : 0;
    }
    n_ended += n_heard;
    if (n_heard == 0) (void)usleep(200); /* woken early is fine */
  }
  for (uint32_t i = 0; i < b->n; i++) { /* of a run that failed */
    if (b->request[i].generation != NULL) weft_generation_free(b->request[i].generation);
    b->request[i].generation = NULL;
  }
  return code;
}

static void take_figures(batching_bench *b, uint32_t run) {
  double sum = 0.0, tokens = 0.0;
  for (uint32_t i = 0; i < b->n; i++) {
    b->latency[i] = b->request[i].latency_s;
    sum += b->latency[i];
    tokens += b->request[i].n_generate;
  }
  (void)weft_median(b->latency, b->n); /* sorts */
  b->figures.tok_s[run] = tokens / b->latency[b->n - 1];
  b->figures.mean_s[run] = sum / b->n;
  b->figures.p95_s[run] = b->latency[(b->n * 95 + 99) / 100 - 1];
}

static void print_way(batching_bench *b, const batching_way *way, uint32_t limit) {
  uint32_t n_runs = b->config->repeat;
  batching_figures *f = &b->figures;
  double variation = weft_variation(f->tok_s, n_runs), tok_s = weft_median(f->tok_s, n_runs);
  double mean_s = weft_median(f->mean_s, n_runs), p95_s = weft_median(f->p95_s, n_runs);
  char text[WEFT_VARIATION_TEXT];
  if (b->config->csv)
    (void)printf("%s,%s,\"%s\",%u,%.6g,%s,%.6g,%.6g\n", b->pool, b->load, way->name, limit, tok_s,
                 weft_variation_text(variation, true, text), mean_s, p95_s);
  else if (!b->config->product.json)
    (void)printf("%-6s %-8s %-23s at most %4u at once  %10.2f tok/s (%s %%)  latency: mean %8.3f s, 95 %% %8.3f s\n",
                 b->pool, b->load, way->name, limit, tok_s, weft_variation_text(variation, false, text), mean_s, p95_s);
  (void)fflush(stdout);
  json_t *record = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:s}", "work", "batching", "pool",
                             b->pool, "load", b->load, "way", way->name, "limit", (int)limit, "requests", (int)b->n,
                             "runs", (int)n_runs, "tok_s", tok_s, "mean_s", mean_s, "p95_s", p95_s, "device",
                             weft_device_get_info(b->rt->devices.device[0])->name);
  if (!isnan(variation)) (void)json_object_set_new(record, "tok_s_cv", json_real(variation));
  (void)json_array_append_new(b->records, record);
}

static int run_ways(batching_bench *b) {
  uint32_t running = b->rt->options.running, reserved = b->n_reserved < running ? b->n_reserved : running;
  int code = 0;
  for (uint32_t w = 0; w < WAYS && code == 0; w++) {
    uint32_t limit = ways[w].contiguous ? reserved : running;
    for (uint32_t run = 0; run < b->config->repeat && code == 0; run++) {
      code = run_requests(b, &ways[w], limit, run);
      if (code == 0) take_figures(b, run);
    }
    if (code == 0) print_way(b, &ways[w], limit);
  }
  return code;
}

/* Opens with a pool for n requests of the longest length, or, of 0, as the options say. */
static int open_pool(batching_bench *b, uint32_t n, uint64_t longest_bytes) {
  weft_lab_config own = *b->config;
  weft_open_options options = weft_config_open(&own.product);
  char error[512];
  options.context = b->config->n_prompt + b->config->n_generate;
  if (options.queue < ROUNDS * options.running) options.queue = ROUNDS * options.running;
  if (n > 0) options.kv_bytes = n * longest_bytes;
  int status = weft_open(&options, &b->rt, error, sizeof error);
  return status == 0 ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error);
}

static int run_pool(batching_bench *b, const char *name, uint32_t n, uint64_t longest_bytes) {
  int code = open_pool(b, n, longest_bytes);
  if (code != 0) return code;
  b->pool = name;
  b->n_reserved = n;
  for (uint32_t mixed = 0; mixed < 2 && code == 0; mixed++) {
    b->load = mixed > 0 ? "mixed" : "uniform";
    draw_requests(b, mixed > 0);
    code = run_ways(b);
  }
  weft_close(b->rt);
  return code;
}

/* What the longest request holds at its end. */
static int find_longest(batching_bench *b, uint64_t *bytes, uint32_t *running) {
  int code = open_pool(b, 0, 0);
  if (code != 0) return code;
  const weft_kv_layout *layout = &b->rt->model[0].layout;
  *bytes = weft_kv_pages_held(layout, b->config->n_prompt + b->config->n_generate, 0) * layout->page_bytes;
  *running = b->rt->options.running;
  weft_close(b->rt);
  return 0;
}

int weft_bench_batching(const weft_lab_config *config) {
  batching_bench *b = weft_alloc(1, sizeof *b);
  uint64_t longest_bytes = 0;
  uint32_t running = 0;
  if (b == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  b->config = config;
  int code = config->product.models.n == 0 ? weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL)
                                           : find_longest(b, &longest_bytes, &running);
  b->n = ROUNDS * running;
  b->records = json_array();
  b->request = weft_alloc(b->n > 0 ? b->n : 1, sizeof *b->request);
  b->latency = weft_alloc(b->n > 0 ? b->n : 1, sizeof *b->latency);
  b->tokens = weft_alloc(config->n_prompt, sizeof *b->tokens);
  if (b->request == NULL || b->latency == NULL || b->tokens == NULL)
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  if (code == 0) code = run_pool(b, "ample", running, longest_bytes);
  if (code == 0) code = run_pool(b, "tight", running > 4 ? running / 4 : 1, longest_bytes);
  if (code == 0 && config->product.json) weft_bench_print(b->records);
  json_decref(b->records);
  weft_free(b->request);
  weft_free(b->latency);
  weft_free(b->tokens);
  weft_free(b);
  return code;
}
