/* SPDX-License-Identifier: MIT */
/* weft bench phases: where the time of a step goes, in one table of the phases prefill, canvas, head and soft.
 *
 * Law: every op of a step is awaited and timed by itself, without graphs, so the sum is more than the step takes
 * otherwise; what the table tells is the proportion. A step begins with the op that embeds its rows, or with the first
 * of several in a row: of the parts of a stream, of embeddings per layer. It is prefill where several rows have at most
 * one output, and a denoise step where exactly one canvas has outputs. `head` is the op that makes statistics of a
 * canvas's logits, in steps without soft embeddings; `soft` is how much longer it is in steps with them, and the
 * variation beside it is that of the whole op. Figures are medians over the steps. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { OPS_MAX = 24, STEPS_MAX = 4096, CANVAS_STEPS = 12 };

typedef enum step_kind { PREFILL, CANVAS, CANVAS_WITH_SOFT, OTHER, KINDS } step_kind;

typedef struct timed_step {
  uint32_t n_rows, head_rows;
  bool soft;
  double head_us, op_us[OPS_MAX]; /* op_us: by op, the head among them */
} timed_step;

typedef struct phases {
  const weft_lab_config *config;
  weft_runtime *rt;
  weft_device *device;
  uint32_t canvas;
  const char *op[OPS_MAX]; /* names, which are literals of the product */
  uint32_t n_ops;
  uint64_t begun_us;
  bool embeds;                     /* so far the step has embedded rows alone */
  timed_step now, step[STEPS_MAX]; /* now: n_rows 0: no step has begun */
  uint32_t n_steps;
  double values[STEPS_MAX]; /* scratch of a median */
} phases;

/* ---- on the engine's thread ---- */

static uint32_t find_op(phases *p, const char *op) {
  uint32_t i = 0;
  while (i < p->n_ops && strcmp(p->op[i], op) != 0) i++;
  if (i == p->n_ops && p->n_ops < OPS_MAX) p->op[p->n_ops++] = op;
  return i < OPS_MAX ? i : OPS_MAX - 1;
}

static void end_step(phases *p) {
  if (p->now.n_rows > 0 && p->n_steps < STEPS_MAX) p->step[p->n_steps++] = p->now;
  memset(&p->now, 0, sizeof p->now);
}

static bool time_op(void *self, uint32_t layer, const char *op, const void *args, bool done) {
  phases *p = self;
  (void)layer;
  (void)weft_device_sync(p->device); /* a device that fails says so to the step */
  uint64_t now_us = weft_clock_us();
  if (!done) {
    bool embed = strcmp(op, "embed") == 0;
    if (embed && !p->embeds) end_step(p);
    p->embeds = embed;
    if (embed) p->now.n_rows = ((const weft_embed_args *)args)->n_rows;
    p->begun_us = now_us;
    return true;
  }
  double us = (double)(now_us - p->begun_us);
  p->now.op_us[find_op(p, op)] += us;
  if (strcmp(op, "head_stats") != 0) return true;
  const weft_head_stats_args *a = args;
  bool some = a->soft != NULL && a->want_soft == NULL;
  for (uint32_t i = 0; i < a->n_rows && a->soft != NULL && a->want_soft != NULL; i++)
    some = some || a->want_soft[i] != 0;
  p->now.head_rows += a->n_rows;
  p->now.head_us += us;
  p->now.soft = p->now.soft || some;
  return true;
}

/* ---- what the steps say ---- */

static step_kind kind_of(const phases *p, const timed_step *s) {
  if (p->canvas > 0 && s->n_rows == p->canvas && s->head_rows == p->canvas) return s->soft ? CANVAS_WITH_SOFT : CANVAS;
  return s->n_rows > 1 && s->head_rows <= 1 ? PREFILL : OTHER;
}

/* Of a phase's steps: the ops but the head. For prefill only steps of as many rows as its fullest. */
static double body_us(const timed_step *s) {
  double us = -s->head_us;
  for (uint32_t i = 0; i < OPS_MAX; i++) us += s->op_us[i];
  return us;
}

typedef struct phase {
  const char *name;
  uint32_t n_rows, n_steps;
  double us, variation;
} phase;

static bool is_of(const phases *p, const timed_step *s, bool prefill, uint32_t n_rows) {
  step_kind kind = kind_of(p, s);
  return prefill ? kind == PREFILL && s->n_rows == n_rows : kind == CANVAS || kind == CANVAS_WITH_SOFT;
}

static phase body_of(phases *p, const char *name, bool prefill, uint32_t n_rows) {
  phase out = {.name = name, .n_rows = n_rows};
  for (uint32_t i = 0; i < p->n_steps; i++) {
    if (is_of(p, &p->step[i], prefill, n_rows)) p->values[out.n_steps++] = body_us(&p->step[i]);
  }
  out.variation = weft_variation(p->values, out.n_steps);
  out.us = weft_median(p->values, out.n_steps);
  return out;
}

static phase head_of(phases *p, const char *name, step_kind kind) {
  phase out = {.name = name, .n_rows = p->canvas};
  for (uint32_t i = 0; i < p->n_steps; i++) {
    if (kind_of(p, &p->step[i]) == kind) p->values[out.n_steps++] = p->step[i].head_us;
  }
  out.variation = weft_variation(p->values, out.n_steps);
  out.us = weft_median(p->values, out.n_steps);
  return out;
}

static double op_median(phases *p, uint32_t op, bool prefill, uint32_t n_rows) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n_steps; i++) {
    if (is_of(p, &p->step[i], prefill, n_rows)) p->values[n++] = p->step[i].op_us[op];
  }
  return weft_median(p->values, n);
}

/* ---- the table ---- */

static uint32_t fullest_prefill(const phases *p) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < p->n_steps; i++) {
    if (kind_of(p, &p->step[i]) == PREFILL && p->step[i].n_rows > most) most = p->step[i].n_rows;
  }
  return most;
}

static void print_phase(const phases *p, const phase *f) {
  char v[WEFT_VARIATION_TEXT];
  if (f->n_steps == 0) return;
  (void)weft_variation_text(f->variation, p->config->csv, v);
  (void)printf(p->config->csv ? "%s,%u,%u,%.6g,%s\n" : "%-10s %6u rows %6u steps %12.1f us  cv %6s %%\n", f->name,
               f->n_rows, f->n_steps, f->us, v);
}

static void print_ops(phases *p, uint32_t n_rows) {
  (void)printf("\n%-12s %12s %12s   us a step, of all ops together\n", "op", "prefill", "canvas");
  for (uint32_t i = 0; i < p->n_ops; i++)
    (void)printf("%-12s %12.1f %12.1f\n", p->op[i], op_median(p, i, true, n_rows), op_median(p, i, false, 0));
}

static void print_json(phases *p, const phase *list, uint32_t n, uint32_t n_rows) {
  json_t *out = json_array();
  for (uint32_t i = 0; i < n; i++) {
    if (list[i].n_steps == 0) continue;
    json_t *row = json_pack("{s:s, s:i, s:i, s:f}", "phase", list[i].name, "rows", (int)list[i].n_rows, "steps",
                            (int)list[i].n_steps, "us", list[i].us);
    if (!isnan(list[i].variation)) (void)json_object_set_new(row, "us_cv", json_real(list[i].variation));
    json_t *ops = json_object();
    for (uint32_t k = 0; k < p->n_ops && i < 2; k++)
      (void)json_object_set_new(ops, p->op[k], json_real(op_median(p, k, i == 0, n_rows)));
    (void)json_object_set_new(row, "ops", ops);
    (void)json_array_append_new(out, row);
  }
  weft_bench_print(out);
  json_decref(out);
}

static int print_table(phases *p) {
  uint32_t n_rows = fullest_prefill(p);
  phase list[4] = {body_of(p, "prefill", true, n_rows), body_of(p, "canvas", false, p->canvas),
                   head_of(p, "head", CANVAS), head_of(p, "soft", CANVAS_WITH_SOFT)};
  if (list[0].n_steps == 0)
    return weft_cli_fail(WEFT_EXIT_FAILED, "bench phases: no step held rows of a prompt alone: raise --n-prompt");
  if (list[2].n_steps > 0) list[3].us -= list[2].us;
  if (list[2].n_steps == 0) list[3].n_steps = 0; /* nothing to take the head's own part from */
  if (p->config->product.json) {
    print_json(p, list, 4, n_rows);
    return 0;
  }
  if (p->config->csv) (void)printf("phase,n_rows,n_steps,us,us_cv\n");
  for (uint32_t i = 0; i < 4; i++) print_phase(p, &list[i]);
  if (!p->config->csv) print_ops(p, n_rows);
  return 0;
}

static int run_loads(phases *p) {
  weft_load load = {.n_prompt = p->config->n_prompt, .n_generate = 1, .n_parallel = 1};
  weft_measured unused;
  int code = 0;
  for (uint32_t i = 0; i <= p->config->repeat && code == 0; i++) {
    if (i == 1) weft_device_watch(p->device, time_op, p); /* the first run warms up; nothing runs now */
    load.diffusion = false;
    load.n_generate = 1;
    if (weft_model_at(p->rt, 0).autoregressive) code = weft_measure(p->rt, &load, 400 + i, &unused);
    load.diffusion = true;
    load.n_generate = CANVAS_STEPS;
    if (p->canvas > 0 && code == 0) code = weft_measure(p->rt, &load, 500 + i, &unused);
  }
  return code;
}

int weft_bench_phases(const weft_lab_config *config) {
  weft_lab_config plain = *config;
  plain.product.no_graphs = plain.product.no_overlap = true; /* a step's ops follow one another and are calls */
  phases *p = weft_alloc(1, sizeof *p);
  if (p == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  p->config = config;
  int code = weft_cli_open(&plain.product, &p->rt);
  if (code == 0 && p->rt->devices.n > 1)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "bench phases: one device at a time: leave --devices out");
  if (code == 0) {
    p->device = p->rt->devices.device[0];
    p->canvas = weft_model_at(p->rt, 0).canvas;
    code = run_loads(p);
  }
  weft_close(p->rt); /* ends the engine's thread: what it wrote can be read */
  if (code == 0) {
    end_step(p);
    code = print_table(p);
  }
  weft_free(p);
  return code;
}
