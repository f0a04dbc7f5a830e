/* SPDX-License-Identifier: MIT */
#include "bench/speed/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/inside.h"

enum { RECORD_MS = 1000 };

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double weft_median(double *values, uint32_t n) {
  if (n == 0) return 0.0;
  qsort(values, n, sizeof *values, by_value);
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

double weft_variation(const double *values, uint32_t n) {
  double sum = 0.0, square = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += values[i] / n;
  for (uint32_t i = 0; i < n; i++) square += (values[i] - sum) * (values[i] - sum);
  return n < 2 || !(sum > 0.0) ? NAN : 100.0 * sqrt(square / (n - 1)) / sum;
}

const char *weft_variation_text(double variation, bool csv, char out[WEFT_VARIATION_TEXT]) {
  if (isnan(variation))
    (void)snprintf(out, WEFT_VARIATION_TEXT, "%s", csv ? "" : "-");
  else
    (void)snprintf(out, WEFT_VARIATION_TEXT, csv ? "%.3g" : "%.2f", variation);
  return out;
}

int32_t weft_prompt_token(uint64_t seed, uint64_t prompt, uint64_t position, uint32_t n_vocab) {
  weft_draw_key key = {seed, prompt, WEFT_DRAW_TEST, position, 0};
  return (int32_t)(n_vocab / 2 + weft_draw_below(&key, n_vocab / 2));
}

int weft_measure_submit(weft_runtime *rt, const weft_load *load, uint64_t seed, uint32_t index, int32_t *tokens,
                        weft_generation **out) {
  weft_model_card card = weft_model_at(rt, 0);
  bool diffusion = load->diffusion || index >= load->n_parallel;
  for (uint32_t i = 0; i < load->n_prompt; i++)
    tokens[i] = load->tokens != NULL ? load->tokens[i] : weft_prompt_token(seed, index, i, card.vocabulary);
  weft_generate_params p;
  weft_generate_defaults(&p);
  p.prompt.tokens = tokens;
  p.prompt.n_tokens = load->n_prompt;
  p.sampling.temperature = 0.0f;
  p.ignore_eos = true;
  p.has_seed = true;
  p.sampling.seed = seed;
  p.no_cache = !load->found;
  p.mode = diffusion ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.max_tokens = diffusion ? card.canvas * (load->n_blocks > 1 ? load->n_blocks : 1) : load->n_generate;
  if (diffusion) {
    p.entropy_bound.max_steps = load->diffusion ? load->n_generate : load->n_steps;
    p.entropy_bound.confidence = 0.0f; /* never sure: every step is run */
    p.canvas_deltas = true;
  }
  char error[512];
  int status = weft_submit(rt, &p, out, error, sizeof error);
  return status == 0 ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error);
}

/* Reads one generation to its end, or to its first denoise step. answer: where its tokens go, or NULL. */
static int drain_generation(weft_generation *g, bool to_first_step, int32_t *answer, weft_usage_counts *usage) {
  weft_delta d;
  for (;;) {
    int status = weft_next(g, 1000, &d);
    if (status == WEFT_AGAIN) continue;
    if (status != 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", weft_status_text((weft_status)status));
    if (to_first_step && d.kind == WEFT_DELTA_CANVAS) return 0;
    if (d.kind == WEFT_DELTA_END) break;
    if (answer == NULL || d.kind != WEFT_DELTA_TEXT) continue;
    memcpy(answer, d.tokens, d.n_tokens * sizeof *answer);
    answer += d.n_tokens;
  }
  *usage = d.usage;
  if (strcmp(d.finish, "error") == 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", d.error);
  return 0;
}

double weft_measured_rate(const weft_measured *m) {
  return m->generate_s > 0.0 ? (double)m->n_tokens / m->generate_s : 0.0;
}

int weft_measure(weft_runtime *rt, const weft_load *load, uint64_t seed, weft_measured *out) {
  uint32_t n_all = load->n_parallel + load->n_canvases;
  weft_generation **list = weft_alloc(n_all, sizeof *list);
  int32_t *tokens = weft_alloc(load->n_prompt, sizeof *tokens);
  int code = list == NULL || tokens == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  uint64_t start = weft_clock_us(), last_first = start, end = start, first_end = UINT64_MAX;
  weft_usage_counts usage = {0};
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < n_all && code == 0; i++) code = weft_measure_submit(rt, load, seed, i, tokens, &list[i]);
  for (uint32_t i = 0; i < load->n_parallel && code == 0 && load->diffusion; i++)
    code = drain_generation(list[i], true, NULL, &usage);
  if (load->diffusion) last_first = weft_clock_us();
  for (uint32_t i = 0; i < load->n_parallel && code == 0; i++) {
    int32_t *answer = load->answers == NULL ? NULL : load->answers + (size_t)i * load->n_generate;
    code = drain_generation(list[i], false, answer, &usage);
    uint64_t first = start + usage.first_token_us;
    if (!load->diffusion && first > last_first) last_first = first;
    uint32_t n = load->diffusion ? usage.denoise_steps : usage.completion_tokens;
    out->n_tokens += n > 0 ? n - 1 : 0;
    if (start + usage.total_us > end) end = start + usage.total_us;
    if (start + usage.total_us < first_end) first_end = start + usage.total_us;
  }
  for (uint32_t i = load->n_parallel; i < n_all && code == 0; i++)
    code = drain_generation(list[i], false, NULL, &usage);
  for (uint32_t i = 0; list != NULL && i < n_all; i++) weft_generation_free(list[i]);
  weft_free(list);
  weft_free(tokens);
  out->all_from_us = last_first;
  out->all_to_us = first_end;
  out->prefill_s = (double)(last_first - start) * 1e-6;
  out->generate_s = end > last_first ? (double)(end - last_first) * 1e-6 : 0.0;
  return code;
}

/* Whether the n steps before `end` held all of the load together, and nothing else. */
static bool hold_all(const weft_step_record *end, uint32_t n, const weft_load *load, uint32_t canvas) {
  uint32_t n_canvases = load->diffusion ? load->n_parallel : load->n_canvases;
  uint32_t n_decoding = load->diffusion ? 0 : load->n_parallel;
  uint64_t n_canvas_rows = 0, n_decode_rows = 0, n_others = 0;
  for (const weft_step_record *r = end - n; r < end; r++) {
    n_canvas_rows += r->n_canvas_rows;
    n_decode_rows += r->n_decode_rows;
    n_others += r->n_prefill_rows + r->n_commit_rows;
  }
  return n_canvas_rows == (uint64_t)n_canvases * canvas && n_decode_rows == n_decoding && n_others == 0;
}

bool weft_measure_overlaps(const weft_runtime *rt) {
  return !weft_device_get_info(rt->devices.device[0])->immediate && !rt->options.no_overlap;
}

/* Over how many steps the load is spread: where several devices have parts, steps that are computed at once hold other
 * requests. */
static uint32_t count_rounds(const weft_runtime *rt, const weft_load *load) {
  uint32_t n = weft_measure_overlaps(rt) ? weft_split_stages(&rt->model[0].copy[0].split) : 1;
  uint32_t n_all = load->n_parallel + load->n_canvases;
  return n < n_all ? n : n_all;
}

typedef struct measured_steps {
  weft_step_record *record;    /* [WEFT_RECORDED_STEPS] */
  double *times;               /* likewise, in ms */
  uint64_t start_us, first_us; /* of the run; when the first step that held a part had ended, of the last part */
} measured_steps;

/* The part of the load that a replica has: what its fullest round of steps holds. */
static weft_load part_of(const measured_steps *m, uint32_t n, uint32_t round, const weft_load *load, uint32_t canvas) {
  uint64_t most_canvases = 0, most_decoding = 0;
  weft_load part = *load;
  for (uint32_t i = round; i <= n; i++) {
    uint64_t n_canvas_rows = 0, n_decode_rows = 0;
    if (m->record[i - round].began_us < m->start_us) continue;
    for (uint32_t k = i - round; k < i; k++) {
      n_canvas_rows += m->record[k].n_canvas_rows;
      n_decode_rows += m->record[k].n_decode_rows;
    }
    if (canvas > 0 && n_canvas_rows / canvas > most_canvases) most_canvases = n_canvas_rows / canvas;
    if (n_decode_rows > most_decoding) most_decoding = n_decode_rows;
  }
  part.n_parallel = (uint32_t)(load->diffusion ? most_canvases : most_decoding);
  part.n_canvases = load->diffusion ? 0 : (uint32_t)most_canvases;
  return part;
}

/* The median time between rounds of steps that hold the part, in ms; 0: there are no two in a row. */
static double take_times(measured_steps *m, uint32_t n, uint32_t round, const weft_load *part, uint32_t canvas) {
  uint32_t n_times = 0;
  for (uint32_t i = 2 * round; i <= n; i++) { /* the round that ends before step i, and the one before it */
    const weft_step_record *end = m->record + i, *middle = end - round;
    if ((middle - round)->began_us < m->start_us || !hold_all(middle, round, part, canvas) ||
        !hold_all(end, round, part, canvas))
      continue;
    if (n_times == 0 && (middle - 1)->collected_us > m->first_us) m->first_us = (middle - 1)->collected_us;
    m->times[n_times++] = (double)((end - 1)->collected_us - (middle - 1)->collected_us) / 1000.0;
  }
  return weft_median(m->times, n_times);
}

/* Of several replicas the slowest one counts; together they must have held the load. */
static int take_slowest(weft_runtime *rt, measured_steps *m, const weft_load *load, double *step_ms) {
  uint32_t canvas = weft_model_at(rt, 0).canvas, round = count_rounds(rt, load), n_held = 0;
  bool all = true;
  for (uint32_t r = 0; r < rt->n_replicas; r++) {
    uint32_t n = weft_engine_get_steps(weft_replicas_at(rt->replicas, r), m->record, WEFT_RECORDED_STEPS);
    const weft_load part = rt->n_replicas == 1 ? *load : part_of(m, n, round, load, canvas);
    n_held += part.n_parallel + part.n_canvases;
    if (part.n_parallel + part.n_canvases == 0) continue;
    double ms = take_times(m, n, round, &part, canvas);
    all = all && ms > 0.0;
    if (ms > *step_ms) *step_ms = ms;
  }
  if (all && n_held == load->n_parallel + load->n_canvases) return 0;
  return weft_cli_fail(WEFT_EXIT_FAILED,
                       "bench: no two steps in a row held the whole load: raise --rows, --running or --n-generate");
}

int weft_measure_steps(weft_runtime *rt, const weft_load *load, uint64_t seed, double *step_ms, double *first_ms) {
  measured_steps m = {.record = weft_alloc(WEFT_RECORDED_STEPS, sizeof *m.record),
                      .times = weft_alloc(WEFT_RECORDED_STEPS, sizeof *m.times)};
  weft_measured unused;
  int code = m.record == NULL || m.times == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  *step_ms = 0.0;
  m.start_us = weft_clock_us();
  if (code == 0) code = weft_measure(rt, load, seed, &unused);
  if (code == 0) code = take_slowest(rt, &m, load, step_ms);
  *first_ms = m.first_us > m.start_us ? (double)(m.first_us - m.start_us) / 1000.0 : 0.0;
  weft_free(m.record);
  weft_free(m.times);
  return code;
}

/* Times of the steps [from, n) that belong to one canvas, up to the one that writes its keys; returns where the next
 * canvas begins. A step counts that follows another denoise step of the canvas. */
static uint32_t time_block(const weft_step_record *record, uint32_t from, uint32_t n, double *times,
                           uint32_t *n_times) {
  *n_times = 0;
  uint32_t i = from;
  for (; i < n && record[i].n_commit_rows == 0; i++) {
    bool follows = i > from && record[i - 1].n_canvas_rows > 0;
    if (record[i].n_canvas_rows > 0 && follows)
      times[(*n_times)++] = (double)(record[i].collected_us - record[i - 1].collected_us) / 1000.0;
  }
  while (i < n && record[i].n_commit_rows > 0) i++;
  return i;
}

/* The steps since start_us, of the replica that had the answer. */
static uint32_t take_steps(weft_runtime *rt, uint64_t start_us, weft_step_record *record, uint32_t *from) {
  uint32_t n = 0;
  *from = 0;
  for (uint32_t r = 0; r < rt->n_replicas && *from == n; r++) {
    n = weft_engine_get_steps(weft_replicas_at(rt->replicas, r), record, WEFT_RECORDED_STEPS);
    for (*from = 0; *from < n && record[*from].began_us < start_us;) *from += 1;
  }
  return n;
}

int weft_measure_blocks(weft_runtime *rt, const weft_load *load, uint64_t seed, double *out) {
  weft_step_record *record = weft_alloc(WEFT_RECORDED_STEPS, sizeof *record);
  double *times = weft_alloc(WEFT_RECORDED_STEPS, sizeof *times);
  weft_measured unused;
  int code = record == NULL || times == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  uint64_t start_us = weft_clock_us();
  if (code == 0) code = weft_measure(rt, load, seed, &unused);
  uint32_t at = 0, n_times = 0, n = code == 0 ? take_steps(rt, start_us, record, &at) : 0;
  for (uint32_t b = 0; b < load->n_blocks && code == 0; b++) {
    at = time_block(record, at, n, times, &n_times);
    if (n_times == 0)
      code = weft_cli_fail(WEFT_EXIT_FAILED, "bench: canvas %u had no two denoise steps in a row", b + 1);
    else
      out[b] = weft_median(times, n_times);
  }
  weft_free(record);
  weft_free(times);
  return code;
}

/* ---- one sequence ---- */

/* The steps [at, n) of one sequence: those of its prompt, then those of a token each. */
static int take_answer(const weft_step_record *record, uint32_t at, uint32_t n, uint64_t start_us,
                       weft_answer_times *out) {
  uint64_t prompt_us = 0, second_us = 0, last_us = 0;
  for (; at < n; at++) {
    const weft_step_record *r = &record[at];
    if (r->n_pages_pinned > out->kv_pages_max) out->kv_pages_max = r->n_pages_pinned;
    if (r->n_prefill_rows > 0) prompt_us = r->collected_us;
    if (r->n_decode_rows == 0 || prompt_us == 0) continue;
    if (second_us == 0) second_us = r->collected_us;
    last_us = r->collected_us;
    out->n_decoded += 1;
  }
  if (out->n_decoded < 2)
    return weft_cli_fail(WEFT_EXIT_FAILED, "bench: the steps of an answer were not recorded: lower --n-generate");
  out->prefill_s = (double)(prompt_us - start_us) * 1e-6;
  out->decode_s = (double)(last_us - prompt_us) * 1e-6;
  out->steady_s = (double)(last_us - second_us) * 1e-6;
  return 0;
}

/* The records of the answer's steps. A step is recorded a moment after its tokens are given out. */
static uint32_t await_steps(weft_runtime *rt, uint64_t start_us, uint32_t n_decoded, weft_step_record *record,
                            uint32_t *at) {
  for (uint32_t waited = 0;; waited++) {
    uint32_t n = take_steps(rt, start_us, record, at), n_seen = 0;
    for (uint32_t i = *at; i < n; i++) n_seen += record[i].n_decode_rows > 0;
    if (n_seen >= n_decoded || waited == RECORD_MS) return n;
    (void)usleep(1000); /* woken early is fine */
  }
}

int weft_measure_answer(weft_runtime *rt, const weft_load *load, uint64_t seed, weft_answer_times *out) {
  weft_step_record *record = weft_alloc(WEFT_RECORDED_STEPS, sizeof *record);
  int32_t *tokens = weft_alloc(load->n_prompt, sizeof *tokens);
  weft_generation *g = NULL;
  weft_usage_counts usage = {0};
  int code = record == NULL || tokens == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  uint64_t start_us = weft_clock_us();
  uint32_t at = 0;
  *out = (weft_answer_times){.n_computed = 0};
  if (code == 0) code = weft_measure_submit(rt, load, seed, 0, tokens, &g);
  if (code == 0) code = drain_generation(g, false, NULL, &usage);
  uint32_t n = code == 0 ? await_steps(rt, start_us, usage.completion_tokens - 1, record, &at) : 0;
  out->n_computed = load->n_prompt - usage.cached_tokens;
  if (code == 0) code = take_answer(record, at, n, start_us, out);
  weft_generation_free(g);
  weft_free(record);
  weft_free(tokens);
  return code;
}
