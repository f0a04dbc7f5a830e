/* SPDX-License-Identifier: MIT */
/* weft bench model: measures a GGUF file the way people compare engines: prefill, decode, batched decode and canvas
 * steps; or sweeps, each named by a word: context, prefill, sequences, canvases, mix, blocks, recompute.
 *
 * Law: the rate of one sequence is its tokens over the time from the first one to the end. Steps of several
 * sequences, of canvases and of both are timed from one to the next of those that hold the whole load and nothing
 * else: what runs while the last prompts are still computed, and after the first answer has ended, does not count.
 * With --draft a row that decodes is measured without drafts as well, in turns, of the same prompts.
 * The first run of a row warms up, and there the experts it touches are counted. */
#include <jansson.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"
#include "bench/speed/report.h"
#include "bench/speed/touched.h"

enum { REPEAT_MAX = 1000, ROWS_MAX = 128, CANVAS_STEPS = 12, BLOCKS = 6 };

typedef enum bench_what { PREFILL, DECODE, STEPS, BLOCK, AGAIN, FLATNESS } bench_what;

typedef struct bench_row {
  char name[48];
  bench_what what;
  uint32_t block; /* BLOCK, AGAIN: which canvas of the answer */
  weft_load load;
} bench_row;

typedef struct bench_list {
  const weft_lab_config *config;
  weft_runtime *rt;
  weft_touched touched;
  bench_row row[ROWS_MAX];
  uint32_t n;
  weft_load load; /* of the runs below; a row of the same load measures nothing again */
  double values[REPEAT_MAX], rates[REPEAT_MAX], firsts[REPEAT_MAX]; /* values: of decode or steps; rates: of prefill */
  double plain_values[REPEAT_MAX], plain_firsts[REPEAT_MAX];        /* of decode without drafts */
  double blocks[REPEAT_MAX][BLOCKS];
} bench_list;

/* ---- one row ---- */

static const char *unit_of(const bench_row *row) {
  if (row->what == FLATNESS) return "times";
  return row->what == STEPS || row->what == BLOCK || row->what == AGAIN ? "ms/step" : "tok/s";
}

static int run_once(bench_list *list, const bench_row *row, uint64_t seed, uint32_t i) {
  const weft_load *l = &row->load;
  weft_measured m = {0};
  bool is_decode = row->what == DECODE && l->n_parallel > 1;
  if (l->n_blocks > 1) return weft_measure_blocks(list->rt, l, seed, list->blocks[i]);
  if (row->what == STEPS || is_decode) {
    double *value = &list->values[i];
    int code = weft_measure_steps(list->rt, l, seed, value, &list->firsts[i]);
    if (is_decode && code == 0) *value = *value > 0.0 ? 1000.0 * l->n_parallel / *value : 0.0;
    return code;
  }
  int code = weft_measure(list->rt, l, seed, &m);
  list->firsts[i] = 1000.0 * m.prefill_s;
  if (row->what == AGAIN) list->blocks[i][row->block] = list->firsts[i]; /* prompt and first step */
  list->values[i] = weft_measured_rate(&m);
  list->rates[i] = m.prefill_s > 0.0 ? l->n_parallel * (double)l->n_prompt / m.prefill_s : 0.0;
  return code;
}

static bool is_same_load(const weft_load *a, const weft_load *b) {
  return a->n_prompt == b->n_prompt && a->n_generate == b->n_generate && a->n_parallel == b->n_parallel &&
         a->diffusion == b->diffusion && a->n_blocks == b->n_blocks && a->n_canvases == b->n_canvases &&
         a->n_steps == b->n_steps;
}

/* Whether the row is also measured without the drafts that --draft gives it. */
static bool has_plain(const bench_list *list, const bench_row *row) {
  return list->rt->model[0].has_drafts && row->what == DECODE;
}

static int run_plain(bench_list *list, const bench_row *row, uint64_t seed, uint32_t i) {
  weft_draft *draft = &list->rt->model[0].draft;
  const weft_draft own = *draft;
  draft->kind = WEFT_DRAFT_OFF;
  int code = run_once(list, row, seed, i);
  *draft = own;
  list->plain_values[i] = list->values[i];
  list->plain_firsts[i] = list->firsts[i];
  return code;
}

static int run_all(bench_list *list, const bench_row *row, uint32_t n) {
  if (is_same_load(&list->load, &row->load)) return 0;
  list->load = row->load;
  weft_touched_count(&list->touched, true);
  int code = run_once(list, row, 1000, 0);
  weft_touched_count(&list->touched, false);
  for (uint32_t i = 0; i < n && code == 0; i++) {
    if (has_plain(list, row)) code = run_plain(list, row, 1001u + i, i);
    if (code == 0) code = run_once(list, row, 1001u + i, i);
  }
  return code;
}

/* MiB of keys and values that the row's sequences hold at their end. */
static double kv_mib_of(const weft_runtime *rt, const weft_load *load) {
  const weft_runner *runner = rt->model[0].runner;
  uint64_t n_tokens = (uint64_t)(load->n_parallel + load->n_canvases) * load->n_prompt;
  if (!load->diffusion) n_tokens += (uint64_t)load->n_parallel * load->n_generate;
  return (double)(runner->ops->info(runner)->kv_bytes_per_token * n_tokens) / (1024.0 * 1024.0);
}

/* Rows of the steps that the row is about. */
static uint32_t step_rows(const weft_runtime *rt, const bench_row *row) {
  const weft_load *l = &row->load;
  uint32_t canvas = weft_model_at(rt, 0).canvas,
           n = l->n_parallel * (l->diffusion ? canvas : 1) + l->n_canvases * canvas;
  if (row->what == PREFILL) n = l->n_parallel * l->n_prompt;
  return n < rt->options.rows ? n : rt->options.rows;
}

static json_t *record_of(bench_list *list, const bench_row *row, double median, double spread, double first_ms) {
  uint32_t n_rows = step_rows(list->rt, row);
  const weft_load *l = &row->load;
  const weft_device_info *device = weft_device_get_info(list->rt->devices.device[0]);
  json_t *record = json_pack("{s:s, s:f, s:f, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:i}", "work", row->name,
                             "median", median, "spread", spread, "unit", unit_of(row), "n_prompt", (int)l->n_prompt,
                             "n_generate", (int)l->n_generate, "n_parallel", (int)l->n_parallel, "n_canvases",
                             (int)l->n_canvases, "rows", (int)n_rows, "first_ms", first_ms, "kv_mib",
                             kv_mib_of(list->rt, l), "device", device->name, "product_bits", (int)device->products);
  double touched = weft_touched_mean(&list->touched, n_rows), expected = weft_touched_expected(&list->touched, n_rows);
  if (touched >= 0.0) (void)json_object_set_new(record, "experts_touched", json_real(touched));
  if (expected >= 0.0) (void)json_object_set_new(record, "experts_expected", json_real(expected));
  return record;
}

static double number_in(const json_t *record, const char *name) {
  return json_number_value(json_object_get(record, name));
}

static void print_row(const bench_list *list, const bench_row *row, const json_t *record) {
  const weft_load *l = &row->load;
  double median = number_in(record, "median"), spread = number_in(record, "spread"),
         first = number_in(record, "first_ms");
  double touched = number_in(record, "experts_touched"), expected = number_in(record, "experts_expected");
  if (list->config->csv) {
    (void)printf("\"%s\",%.6g,%.6g,%s,%u,%u,%u,%u,%.6g,%.6g,%.4g,%.4g,%.6g,%.6g\n", row->name, median, spread,
                 unit_of(row), l->n_prompt, l->n_generate, l->n_parallel, l->n_canvases, first,
                 number_in(record, "kv_mib"), touched, expected, number_in(record, "plain_median"),
                 number_in(record, "plain_first_ms"));
  } else if (!list->config->product.json) {
    (void)printf("%-34s %10.2f %-8s spread %.2f over %u runs; first after %.2f ms; KV %.1f MiB", row->name, median,
                 unit_of(row), spread, list->config->repeat, first, number_in(record, "kv_mib"));
    if (touched > 0.0) (void)printf("; experts %.1f of %u, expected %.1f", touched, list->touched.n_experts, expected);
    if (has_plain(list, row))
      (void)printf("; without drafts %.2f %s, first after %.2f ms", number_in(record, "plain_median"), unit_of(row),
                   number_in(record, "plain_first_ms"));
    (void)printf("\n");
  }
  (void)fflush(stdout); /* a row at a time */
}

/* The slowest canvas of an answer over the fastest one. */
static double flatness_of(const double *block) {
  double least = block[0], most = least;
  for (uint32_t b = 1; b < BLOCKS; b++) {
    if (block[b] < least) least = block[b];
    if (block[b] > most) most = block[b];
  }
  return most / least;
}

/* What the runs of the row's load have for the row. */
static void take_values(const bench_list *list, const bench_row *row, uint32_t n, double *values) {
  for (uint32_t i = 0; i < n; i++) {
    values[i] = row->what == PREFILL    ? list->rates[i]
                : row->what == BLOCK    ? list->blocks[i][row->block]
                : row->what == AGAIN    ? list->blocks[i][row->block]
                : row->what == FLATNESS ? flatness_of(list->blocks[i])
                                        : list->values[i];
  }
}

static int run_row(bench_list *list, const bench_row *row, json_t *out) {
  uint32_t n = list->config->repeat < REPEAT_MAX ? list->config->repeat : REPEAT_MAX;
  double values[REPEAT_MAX], firsts[REPEAT_MAX];
  int code = run_all(list, row, n);
  if (code != 0) return code;
  take_values(list, row, n, values);
  memcpy(firsts, list->firsts, n * sizeof *firsts);
  double median = weft_median(values, n), spread = values[n - 1] - values[0];
  json_t *record = record_of(list, row, median, spread, weft_median(firsts, n));
  if (has_plain(list, row)) {
    (void)json_object_set_new(record, "plain_median", json_real(weft_median(list->plain_values, n)));
    (void)json_object_set_new(record, "plain_first_ms", json_real(weft_median(list->plain_firsts, n)));
  }
  print_row(list, row, record);
  (void)json_array_append_new(out, record);
  return 0;
}

/* ---- which rows ---- */

static bench_row *add_row(bench_list *list, bench_what what, weft_load load) {
  bench_row *row = &list->row[list->n < ROWS_MAX - 1 ? list->n++ : ROWS_MAX - 1];
  *row = (bench_row){.what = what, .load = load};
  return row;
}

static void add_prefill(bench_list *list, uint32_t n_prompt, uint32_t n_generate) {
  bench_row *row = add_row(list, PREFILL, (weft_load){.n_prompt = n_prompt, .n_generate = n_generate, .n_parallel = 1});
  (void)snprintf(row->name, sizeof row->name, "prefill %u", n_prompt);
}

static void add_prompts(bench_list *list, uint32_t n_prompt, uint32_t n_parallel) {
  weft_load load = {.n_prompt = n_prompt, .n_generate = 1, .n_parallel = n_parallel};
  bench_row *row = add_row(list, PREFILL, load);
  (void)snprintf(row->name, sizeof row->name, "prefill, %u at once, of %u", n_parallel, n_prompt);
}

static void add_decode(bench_list *list, uint32_t n_prompt, uint32_t n_parallel) {
  weft_load load = {.n_prompt = n_prompt, .n_generate = list->config->n_generate, .n_parallel = n_parallel};
  bench_row *row = add_row(list, DECODE, load);
  (void)snprintf(row->name, sizeof row->name, "decode, %u at once, after %u", n_parallel, n_prompt);
}

/* The first canvas still runs when the last prompt is there: a step that is full of canvases leaves the prompt of
 * the j-th but last only j canvases' rows. */
static void add_canvas(bench_list *list, uint32_t n_prompt, uint32_t n_parallel) {
  uint32_t canvas = weft_model_at(list->rt, 0).canvas, n_steps = CANVAS_STEPS;
  for (uint32_t n = n_parallel; n > 1; n = (n + 1) / 2) n_steps += (n_prompt + canvas - 1) / canvas;
  weft_load load = {.n_prompt = n_prompt, .n_generate = n_steps, .n_parallel = n_parallel, .diffusion = true};
  bench_row *row = add_row(list, STEPS, load);
  (void)snprintf(row->name, sizeof row->name, "canvas step, %u at once, after %u", n_parallel, n_prompt);
}

/* Canvases of one answer, one after another. */
static void add_blocks(bench_list *list, uint32_t n_prompt) {
  weft_load load = {
      .n_prompt = n_prompt, .n_generate = CANVAS_STEPS, .n_parallel = 1, .diffusion = true, .n_blocks = BLOCKS};
  for (uint32_t b = 0; b < BLOCKS; b++) {
    bench_row *row = add_row(list, BLOCK, load);
    row->block = b;
    (void)snprintf(row->name, sizeof row->name, "canvas step, block %u of %u, after %u", b + 1, (uint32_t)BLOCKS,
                   n_prompt);
  }
  bench_row *row = add_row(list, FLATNESS, load);
  (void)snprintf(row->name, sizeof row->name, "slowest block over fastest");
}

/* The same without what is kept: each is the time of a prompt, with the canvases before, and of one denoise step. An
 * engine that keeps no keys of the prompt has it at every step; weft has it once for each canvas of a request
 * without a cache. */
static void add_blocks_again(bench_list *list, uint32_t n_prompt) {
  uint32_t canvas = weft_model_at(list->rt, 0).canvas;
  weft_load load = {.n_generate = 1, .n_parallel = 1, .diffusion = true};
  for (uint32_t b = 0; b < BLOCKS; b++) {
    load.n_prompt = n_prompt + b * canvas;
    bench_row *row = add_row(list, AGAIN, load);
    row->block = b;
    (void)snprintf(row->name, sizeof row->name, "prompt and step, block %u of %u, %u", b + 1, (uint32_t)BLOCKS,
                   load.n_prompt);
  }
  bench_row *row = add_row(list, FLATNESS, load);
  (void)snprintf(row->name, sizeof row->name, "slowest block over fastest, all again");
}

/* Decoding goes on until the canvases, whose prompts come after all others, have run. */
static void add_mix(bench_list *list, uint32_t n_prompt, uint32_t n_parallel, uint32_t n_canvases) {
  uint32_t n_steps = (n_parallel + n_canvases) * n_prompt / list->rt->rows_beside + CANVAS_STEPS + 4;
  weft_load load = {.n_prompt = n_prompt,
                    .n_generate = 2 * n_steps,
                    .n_parallel = n_parallel,
                    .n_canvases = n_canvases,
                    .n_steps = CANVAS_STEPS};
  bench_row *row = add_row(list, STEPS, load);
  (void)snprintf(row->name, sizeof row->name, "step of %u canvases and %u decoding", n_canvases, n_parallel);
}

/* Doubling from `from` while at most `to`. */
static uint32_t next_size(uint32_t size, uint32_t to) {
  return size > to / 2 ? to + 1 : 2 * size;
}

static void list_usual(bench_list *list, bool canvases) {
  static const uint32_t usual[] = {1, 4, 16, 32};
  uint32_t n_prompt = list->config->n_prompt, n_parallel = list->config->n_parallel;
  add_prefill(list, n_prompt, 1);
  for (uint32_t i = 0; i < 4 && n_parallel == 0; i++) add_decode(list, 16, usual[i]);
  if (n_parallel > 0) add_decode(list, n_prompt, n_parallel);
  if (canvases) add_canvas(list, n_prompt, 1);
}

static int list_sweep(bench_list *list, const char *sweep, bool canvases) {
  uint32_t n_prompt = list->config->n_prompt, running = list->rt->options.running, context = list->rt->model[0].context;
  uint32_t rows = list->rt->options.rows, beside = list->rt->rows_beside, canvas = weft_model_at(list->rt, 0).canvas;
  if (strcmp(sweep, "context") == 0) {
    uint32_t room = list->config->n_generate > canvas ? list->config->n_generate : canvas;
    for (uint32_t n = 512; n + room <= context; n = next_size(n, context)) {
      add_prefill(list, n, list->config->n_generate);
      add_decode(list, n, 1);
      if (canvases) add_canvas(list, n, 1);
    }
  } else if (strcmp(sweep, "prefill") == 0) {
    for (uint32_t n = 1; n <= running; n = next_size(n, running)) add_prompts(list, n_prompt, n);
  } else if (strcmp(sweep, "sequences") == 0) {
    for (uint32_t n = 1; n <= running; n = next_size(n, running)) add_decode(list, n_prompt, n);
  } else if (strcmp(sweep, "canvases") == 0 && canvases) {
    for (uint32_t n = 1; n <= running && n * canvas <= rows; n = next_size(n, running)) add_canvas(list, n_prompt, n);
  } else if (strcmp(sweep, "mix") == 0 && canvases) {
    for (uint32_t n = 1; n < running && n * canvas < beside; n *= 4)
      for (uint32_t d = 8; d <= 128 && d + n <= running && d + n * canvas <= beside; d *= 4)
        add_mix(list, n_prompt, d, n);
  } else if (strcmp(sweep, "blocks") == 0 && canvases) {
    add_blocks(list, n_prompt);
  } else if (strcmp(sweep, "recompute") == 0 && canvases) {
    add_blocks_again(list, n_prompt);
  } else {
    return weft_cli_fail(
        WEFT_EXIT_USAGE,
        "bench model: '%s' must be context, prefill or sequences, or canvases, mix, blocks or recompute of a "
        "model that has canvases",
        sweep);
  }
  return 0;
}

static int run_rows(bench_list *list, json_t *out) {
  const weft_lab_config *config = list->config;
  bool canvases = weft_model_at(list->rt, 0).canvas > 0;
  int code = 0;
  if (config->product.words.n <= 1) list_usual(list, canvases);
  for (uint32_t i = 1; i < config->product.words.n && code == 0; i++)
    code = list_sweep(list, config->product.words.item[i], canvases);
  if (code == 0 && config->csv) {
    (void)printf(
        "work,median,spread,unit,n_prompt,n_generate,n_parallel,n_canvases,first_ms,kv_mib,experts_touched,"
        "experts_expected,plain_median,plain_first_ms\n");
  }
  for (uint32_t i = 0; i < list->n && code == 0; i++) code = run_row(list, &list->row[i], out);
  return code;
}

int weft_bench_model(const weft_lab_config *config) {
  static bench_list list;
  list = (bench_list){.config = config};
  int code = weft_bench_report_check(config);
  if (code == 0) code = weft_cli_open(&config->product, &list.rt);
  if (code != 0) return code;
  json_t *out = json_array();
  if (!weft_touched_open(&list.touched, list.rt)) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  if (!config->product.json && !config->csv) (void)printf("%s", weft_plan(list.rt));
  if (code == 0) code = run_rows(&list, out);
  if (config->product.json) weft_bench_print(out); /* what was measured before an error, too */
  if (code == 0 && config->report != NULL) code = weft_bench_report(config, list.rt, out);
  json_decref(out);
  weft_close(list.rt);
  weft_touched_close(&list.touched);
  return code;
}
