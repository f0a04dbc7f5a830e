/* SPDX-License-Identifier: MIT */
#include "model/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "kernels/ops.h"
#include "model/logits.h"
#include "model/op_outputs.h"

enum { PRODUCTS = 4 };
static const char *const products[PRODUCTS] = {"matmul", "experts", "head_rows", "soft"};
static const float temperature_of_check = 0.8f;

typedef struct record {
  const char *op;
  uint32_t layer, index, n_outputs;
  uint64_t work; /* of products with weights, in weights read or multiplied; 0: another op */
  uint64_t n[OP_OUTPUTS_MAX];
  float *values[OP_OUTPUTS_MAX]; /* host, dense */
} record;

/* What a device's watch gets: the run, and the device of the op. */
typedef struct check_run check_run;
typedef struct watched_device {
  check_run *run;
  weft_device *device;
} watched_device;

struct check_run {
  const weft_check_args *args;
  watched_device watched[WEFT_DEVICES_MAX];
  weft_device *device; /* of the op at hand */
  weft_check_report *report;
  weft_status status;
  bool comparing; /* ref's turn */
  bool nested;    /* an op of the check's own */
  uint32_t layer, index;
  record *record;
  uint32_t n_records, records_max, at;
  const weft_weight *head; /* of the device's model */
  float cap, embed_scale;
  uint64_t work_done, work_wanted;           /* by ref; of all records */
  double credit[PRODUCTS];                   /* work that a kind of product may still do */
  uint32_t n_seen[PRODUCTS], first, n_taken; /* first, n_taken: rows of the op at hand that ref computes */
};

#define IS(name) (strcmp(op, name) == 0)

/* Rows between a device and dense host memory. */
static weft_status move_rows(weft_device *d, const op_output *o, float *host, bool download) {
  weft_status status = WEFT_OK;
  for (uint64_t r = 0; r < o->n_rows && status == WEFT_OK; r++) {
    float *at = (float *)o->data + r * o->stride, *there = host + r * o->n_cols;
    uint64_t n_bytes = o->n_cols * sizeof(float);
    status = download ? weft_device_download(d, there, at, n_bytes) : weft_device_upload(d, at, there, n_bytes);
  }
  return status;
}

/* ---- judging --------------------------------------------------------------------------------------------- */

/* The first difference stays; until then the closest call. */
static void judge_error(check_run *run, const char *op, uint32_t layer, uint32_t index, uint32_t row, double error) {
  weft_check_report *report = run->report;
  if (!report->agrees || (error <= report->error && !isnan(error))) return;
  (void)snprintf(report->op, sizeof report->op, "%s", op);
  report->layer = layer;
  report->index = index;
  report->row = row;
  report->error = isnan(error) ? INFINITY : error;
  report->agrees = report->error <= 1.0;
}

static void compare_output(check_run *run, const record *r, const op_output *o, const float *device, const float *ref) {
  for (uint64_t row = run->first; row < run->first + run->n_taken; row++) {
    const float *a = device + row * o->n_cols, *b = ref + row * o->n_cols;
    double worst = 0.0, square = 0.0;
    for (uint64_t i = 0; i < o->n_cols; i++) {
      if (o->is_ids) {
        /* Ids lie here as the bytes of floats. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) worst = INFINITY;
        continue;
      }
      double gap = fabs((double)a[i] - (double)b[i]);
      square += (double)b[i] * (double)b[i];
      if (gap > worst || isnan(gap)) worst = isnan(gap) ? INFINITY : gap;
    }
    double size = sqrt(square / (double)o->n_cols);
    judge_error(run, r->op, r->layer, r->index, (uint32_t)row,
                worst == 0.0 ? 0.0 : worst / ((double)run->args->tolerance * (size + 1e-6)));
  }
}

/* ---- statistics against logits ---------------------------------------------------------------------------- */

typedef struct row_stats {
  int32_t argmax, drawn;
  float top, log_total, entropy;
  uint8_t bad;
} row_stats;

static void touch_values(check_run *run, const char *op, void *values, uint64_t n) {
  if (run->args->touch != NULL) run->args->touch(run->args->touch_self, run->layer, op, values, n);
}

static void judge_stats(check_run *run, const float *logits, uint32_t n_vocab, float u, const row_stats *s) {
  double total = 0.0, weighted = 0.0, before = 0.0, temperature = (double)temperature_of_check;
  uint32_t row = run->report->n_rows, best = 0;
  for (uint32_t v = 1; v < n_vocab; v++) best = logits[v] > logits[best] ? v : best;
  for (uint32_t v = 0; v < n_vocab; v++) {
    double t = ((double)logits[v] - (double)logits[best]) / temperature, e = exp(t);
    total += e;
    weighted += e * t;
  }
  bool known = s->argmax >= 0 && (uint32_t)s->argmax < n_vocab && s->drawn >= 0 && (uint32_t)s->drawn < n_vocab;
  if (!known) {
    judge_error(run, "argmax", run->layer, 0, row, INFINITY);
    return;
  }
  judge_error(run, "argmax", run->layer, 0, row, fabs((double)logits[best] - (double)logits[s->argmax]) / 1e-4);
  judge_error(run, "entropy", run->layer, 0, row, fabs(log(total) - weighted / total - (double)s->entropy) / 1e-2);
  for (int32_t v = 0; v < s->drawn; v++) before += exp(((double)logits[v] - (double)logits[best]) / temperature);
  double own = exp(((double)logits[s->drawn] - (double)logits[best]) / temperature), want = (double)u * total;
  double off = want < before ? before - want : want > before + own ? want - before - own : 0.0;
  judge_error(run, "drawn", run->layer, 0, row, off / (1e-4 * total));
}

/* The soft embedding of one row, from the matrix as the file has it. */
static weft_status judge_soft(check_run *run, const float *logits, const weft_weight *head, const float *soft) {
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(run->args->gguf, "output.weight");
  if (tensor == NULL) tensor = weft_gguf_tensor_find(run->args->gguf, "token_embd.weight");
  uint32_t n = head->n_in, n_vocab = head->n_out;
  double *sum = weft_alloc(n, sizeof *sum), total = 0.0, square = 0.0, worst = 0.0;
  float *row = weft_alloc(n, sizeof *row), top = logits[0];
  if (tensor == NULL || sum == NULL || row == NULL) {
    weft_free(sum);
    weft_free(row);
    return tensor == NULL ? WEFT_E_NOT_FOUND : WEFT_E_NO_MEMORY;
  }
  const uint8_t *bytes = tensor->data;
  for (uint32_t v = 1; v < n_vocab; v++) top = logits[v] > top ? logits[v] : top;
  for (uint32_t v = 0; v < n_vocab; v++) {
    double weight = exp(((double)logits[v] - (double)top) / (double)temperature_of_check);
    total += weight;
    weft_dequantise_row(tensor->type, bytes + v * weft_type_row_bytes(tensor->type, n), row, n);
    for (uint32_t i = 0; i < n; i++) sum[i] += weight * (double)row[i];
  }
  for (uint32_t i = 0; i < n; i++) {
    double want = (double)run->embed_scale * sum[i] / total, gap = fabs(want - (double)soft[i]);
    square += want * want;
    if (gap > worst || isnan(gap)) worst = isnan(gap) ? INFINITY : gap;
  }
  judge_error(run, "soft row", run->layer, 0, run->report->n_rows,
              worst / ((double)run->args->tolerance * (sqrt(square / n) + 1e-6)));
  weft_free(sum);
  weft_free(row);
  return WEFT_OK;
}

/* Device memory of the statistics of one row. */
typedef struct stats_memory {
  float *in; /* temperature, u */
  row_stats *out;
  float *soft;
  void *scratch;
} stats_memory;

static weft_status run_stats(check_run *run, const weft_head_rows_args *rows, float u, row_stats *s, float *soft) {
  weft_device *d = run->device;
  const float in[2] = {temperature_of_check, u};
  stats_memory m = {NULL, NULL, NULL, NULL};
  weft_head_stats_args args = {.h = rows->h,
                               .weight = rows->weight,
                               .n_rows = 1,
                               .h_stride = rows->h_stride,
                               .soft_stride = rows->weight->n_in,
                               .cap = rows->cap,
                               .soft_scale = run->embed_scale};
  weft_status status = weft_device_alloc(d, sizeof in, (void **)&m.in);
  if (status == WEFT_OK) status = weft_device_alloc(d, sizeof *m.out, (void **)&m.out);
  if (status == WEFT_OK) status = weft_device_alloc(d, rows->weight->n_in * sizeof(float), (void **)&m.soft);
  args.soft = m.soft;
  args.scratch_bytes = weft_head_stats_scratch(d, &args);
  if (status == WEFT_OK && args.scratch_bytes > 0) status = weft_device_alloc(d, args.scratch_bytes, &m.scratch);
  if (status == WEFT_OK) status = weft_device_upload(d, m.in, in, sizeof in);
  if (status == WEFT_OK) {
    args.temperature = m.in;
    args.u = m.in + 1;
    args.scratch = m.scratch;
    args.argmax = &m.out->argmax;
    args.drawn = &m.out->drawn;
    args.top = &m.out->top;
    args.log_total = &m.out->log_total;
    args.entropy = &m.out->entropy;
    args.bad = &m.out->bad;
    status = weft_head_stats(d, &args);
  }
  if (status == WEFT_OK) status = weft_device_download(d, s, m.out, sizeof *s);
  if (status == WEFT_OK) status = weft_device_download(d, soft, m.soft, rows->weight->n_in * sizeof(float));
  weft_device_free(d, m.in);
  weft_device_free(d, m.out);
  weft_device_free(d, m.soft);
  weft_device_free(d, m.scratch);
  return status;
}

static weft_status check_statistics(check_run *run, const weft_head_rows_args *rows, const float *logits) {
  weft_draw_key key = {1, 0, WEFT_DRAW_TEST, run->report->n_rows, 0};
  float u = weft_draw_uniform(&key);
  float *soft = weft_alloc(rows->weight->n_in, sizeof *soft);
  row_stats s;
  if (soft == NULL) return WEFT_E_NO_MEMORY;
  run->nested = true;
  weft_status status = run_stats(run, rows, u, &s, soft);
  run->nested = false;
  if (status == WEFT_OK) {
    touch_values(run, "argmax", &s.argmax, 1);
    touch_values(run, "drawn", &s.drawn, 1);
    touch_values(run, "entropy", &s.entropy, 1);
    touch_values(run, "soft row", soft, rows->weight->n_in);
    judge_stats(run, logits, rows->weight->n_out, u, &s);
    if (run->report->n_rows == 0) status = judge_soft(run, logits, rows->weight, soft);
    run->report->n_rows += 1;
  }
  weft_free(soft);
  return status;
}

/* ---- products on ref ------------------------------------------------------------------------------------- */

static uint64_t weights_of(const weft_weight *w) {
  return w == NULL || w->data == NULL ? 0 : (uint64_t)w->n_in * w->n_out;
}

/* Of one row, beside what is the same for any number of rows. ref takes about as long to read a weight (it is stored in
 * another form) as to multiply by it; experts are read anew for each row. */
static uint64_t work_of(const char *op, const void *args, uint64_t *n_rows) {
  uint64_t each = 0, once = 0;
  if (IS("matmul")) {
    const weft_matmul_args *a = args;
    *n_rows = a->n_rows;
    for (uint32_t i = 0; i < a->n_weights; i++) each += weights_of(a->weight[i]);
    once = each;
  } else if (IS("experts")) {
    const weft_experts_args *a = args;
    *n_rows = a->n_rows;
    each = 2ull * a->k * (weights_of(a->gate_up) + weights_of(a->gate) + weights_of(a->up) + weights_of(a->down));
    once = weights_of(a->shared.gate) + weights_of(a->shared.up) + weights_of(a->shared.down);
    each += once;
  } else if (IS("head_rows")) {
    const weft_head_rows_args *a = args;
    *n_rows = a->n_rows;
    each = once = weights_of(a->weight);
  } else if (IS("soft")) {
    const weft_soft_args *a = args;
    *n_rows = a->n_rows;
    each = once = weights_of(a->weight);
  } else {
    return 0;
  }
  return once + *n_rows * each;
}

static uint32_t product_of(const char *op) {
  uint32_t i = 0;
  while (i < PRODUCTS && !IS(products[i])) i++;
  return i;
}

/* Rows [first, first + n) of an op on ref. */
static weft_status run_rows(weft_device *ref, const char *op, const void *args, uint32_t first, uint32_t n) {
  if (IS("matmul")) {
    weft_matmul_args a = *(const weft_matmul_args *)args;
    a.x += first * a.x_stride;
    for (uint32_t i = 0; i < a.n_weights; i++) a.y[i] += first * a.y_stride[i];
    a.n_rows = n;
    return weft_matmul(ref, &a);
  }
  if (IS("experts")) {
    weft_experts_args a = *(const weft_experts_args *)args;
    a.x += first * a.x_stride;
    a.y += first * a.y_stride;
    a.ids += first * a.k;
    a.weights += first * a.k;
    if (a.shared.gate != NULL) a.shared.x += first * a.shared.x_stride;
    if (a.shared.gate != NULL) a.shared.y += first * a.shared.y_stride;
    a.n_rows = n;
    return weft_experts(ref, &a);
  }
  if (IS("head_rows")) {
    weft_head_rows_args a = *(const weft_head_rows_args *)args;
    a.h += first * a.h_stride;
    a.logits += first * a.logits_stride;
    a.bad += a.bad == NULL ? 0 : first;
    a.n_rows = n;
    return weft_head_rows(ref, &a);
  }
  weft_soft_args a = *(const weft_soft_args *)args;
  a.logits += first * a.logits_stride;
  a.temperature += first;
  a.soft += first * a.soft_stride;
  a.n_rows = n;
  return weft_soft(ref, &a);
}

/* Before an op on ref: which of its rows are computed. True: all, in the ordinary way. */
static bool begin_op(check_run *run, const char *op, const void *args) {
  uint64_t n_rows = 0, work = work_of(op, args, &n_rows), most = run->args->work_max;
  uint32_t kind = product_of(op);
  run->first = 0;
  run->n_taken = UINT32_MAX;
  if (work == 0) return true;
  uint64_t taken = n_rows;
  if (most > 0 && run->work_wanted > most) {
    double share = (double)most / (double)run->work_wanted, each = (double)work / (double)n_rows;
    run->credit[kind] += share * (double)work;
    taken = run->credit[kind] > 0.0 ? (uint64_t)(run->credit[kind] / each) : 0;
    if (taken > n_rows) taken = n_rows;
    /* the head is one weight, called for one row again and again: not every call need have a row */
    if (taken == 0 && (kind != 2 || run->n_seen[kind] == 0)) taken = 1;
    run->credit[kind] -= (double)taken * each;
  }
  weft_draw_key key = {2, 0, WEFT_DRAW_TEST, run->at, 0};
  run->n_seen[kind] += 1;
  run->n_taken = (uint32_t)taken;
  run->first = (uint32_t)weft_draw_below(&key, (uint32_t)(n_rows - taken) + 1);
  run->report->product_rows += n_rows;
  run->report->rows_taken += taken;
  run->work_done += taken == n_rows ? work : (uint64_t)((double)work / (double)n_rows * (double)taken);
  if (taken == n_rows) return true;
  run->nested = true;
  if (taken > 0) run->status = run_rows(run->device, op, args, run->first, run->n_taken);
  run->nested = false;
  return false;
}

static void tell_progress(check_run *run, bool end) {
  uint64_t most = run->args->work_max, total = run->work_wanted;
  if (most > 0 && total > most) total = most;
  if (run->args->progress == NULL || total == 0) return;
  /* one row of each op is taken whatever the bound: then the work is more than was said */
  run->args->progress(run->args->progress_self, run->work_done < total && !end ? run->work_done : total, total);
}

/* ---- watching -------------------------------------------------------------------------------------------- */

static record *add_record(check_run *run) {
  record *records = weft_grow(run->record, run->n_records, &run->records_max, 1024, sizeof *records);
  if (records == NULL) return NULL;
  run->record = records;
  return &run->record[run->n_records++];
}

static weft_status keep_record(check_run *run, const char *op, const void *args) {
  op_output out[OP_OUTPUTS_MAX];
  uint32_t n = op_outputs_of(op, args, out);
  record *r = add_record(run);
  if (r == NULL) return WEFT_E_NO_MEMORY;
  uint64_t n_rows;
  *r = (record){.op = op, .layer = run->layer, .index = run->index++, .n_outputs = n};
  r->work = work_of(op, args, &n_rows);
  run->work_wanted += r->work;
  for (uint32_t i = 0; i < n; i++) {
    r->n[i] = out[i].n_rows * out[i].n_cols;
    r->values[i] = weft_alloc((size_t)r->n[i], sizeof(float));
    if (r->values[i] == NULL) return WEFT_E_NO_MEMORY;
    weft_status status = move_rows(run->device, &out[i], r->values[i], true);
    if (status != WEFT_OK) return status;
    if (strcmp(op, "head_rows") == 0) status = check_statistics(run, args, r->values[i]);
    if (status != WEFT_OK) return status;
    if (!out[i].is_ids) touch_values(run, op, r->values[i], r->n[i]);
  }
  return WEFT_OK;
}

static weft_status hold_against(check_run *run, const char *op, const void *args) {
  op_output out[OP_OUTPUTS_MAX];
  uint32_t n = op_outputs_of(op, args, out);
  if (run->at == run->n_records) return WEFT_E_INVALID;
  record *r = &run->record[run->at++];
  if (strcmp(r->op, op) != 0 || r->n_outputs != n) return WEFT_E_INVALID;
  bool whole = run->n_taken == UINT32_MAX;
  for (uint32_t i = 0; i < n; i++) {
    if (r->n[i] != out[i].n_rows * out[i].n_cols) return WEFT_E_INVALID;
    if (whole) run->n_taken = (uint32_t)out[i].n_rows;
    float *ref = weft_alloc((size_t)r->n[i], sizeof *ref);
    weft_status status = ref == NULL ? WEFT_E_NO_MEMORY : move_rows(run->device, &out[i], ref, true);
    if (status == WEFT_OK) compare_output(run, r, &out[i], r->values[i], ref);
    weft_free(ref);
    if (status == WEFT_OK) status = move_rows(run->device, &out[i], r->values[i], false);
    weft_free(r->values[i]);
    r->values[i] = NULL;
    if (status != WEFT_OK) return status;
  }
  run->report->n_ops += n > 0 && run->n_taken > 0;
  tell_progress(run, false);
  return WEFT_OK;
}

static bool watch_device(void *self, uint32_t layer, const char *op, const void *args, bool done) {
  const watched_device *watched = self;
  check_run *run = watched->run;
  if (run->nested || run->status != WEFT_OK) return true;
  run->device = watched->device;
  if (!done) return !run->comparing || begin_op(run, op, args);
  if (layer != run->layer) run->index = 0;
  run->layer = layer;
  run->status = run->comparing ? hold_against(run, op, args) : keep_record(run, op, args);
  return true;
}

static int ignore_rows(void *self, const weft_logits_row *row, uint32_t n_rows, const float *logits, uint32_t n_vocab) {
  (void)row;
  (void)n_rows;
  (void)logits;
  (void)n_vocab;
  return ((check_run *)self)->status == WEFT_OK ? 0 : 1;
}

static void watch_split(check_run *run, const weft_split *split, bool on) {
  for (uint32_t i = 0; i < split->n_devices; i++) {
    run->watched[i] = (watched_device){run, split->device[i]};
    weft_device_watch(split->device[i], on ? watch_device : NULL, on ? &run->watched[i] : NULL);
    weft_device_plain_rows(split->device[i], on);
  }
}

static weft_status run_on(check_run *run, const weft_split *split, weft_error *error) {
  const weft_check_args *a = run->args;
  uint32_t rows = a->n_tokens > a->n_canvas ? a->n_tokens : a->n_canvas;
  weft_model_limits limits = {
      .rows_max = rows, .canvas_rows_max = a->n_canvas > 0 ? a->n_canvas : 1, .segments_max = 1};
  weft_model *model = NULL;
  weft_status status = weft_model_open(a->gguf, split, &limits, NULL, NULL, &model, error);
  if (status != WEFT_OK) return status;
  weft_logits_config config = {
      .model = model, .limits = limits, .tokens_max = a->n_tokens, .sequences_max = 1, .head_rows = 1};
  weft_logits_sequence sequence = {.tokens = a->tokens, .n_tokens = a->n_tokens, .canvas = a->canvas};
  weft_logits *logits = NULL;
  if (a->canvas != NULL && a->n_canvas != weft_model_get_info(model)->canvas_length) {
    status = weft_fail(error, WEFT_E_INVALID, "the canvas has %u tokens; this model's has %u", a->n_canvas,
                       weft_model_get_info(model)->canvas_length);
  }
  run->head = weft_model_head(model, &run->cap, &run->embed_scale);
  if (status == WEFT_OK) status = weft_logits_open(&config, &logits, error);
  watch_split(run, split, true);
  if (status == WEFT_OK) status = weft_logits_run(logits, &sequence, 1, ignore_rows, run, error);
  if (status == WEFT_OK && a->canvas != NULL) {
    sequence.first = a->n_tokens;
    sequence.n_canvases = 1;
    status = weft_logits_run(logits, &sequence, 1, ignore_rows, run, error);
  }
  watch_split(run, split, false);
  weft_logits_close(logits);
  weft_model_close(model);
  if (run->status != WEFT_OK) {
    status = weft_fail(error, run->status, "the check could not go on: %s", weft_status_text(run->status));
  }
  return status;
}

weft_status weft_check(const weft_check_args *args, weft_check_report *report, weft_error *error) {
  check_run run = {.args = args, .report = report};
  *report = (weft_check_report){.agrees = true, .op = ""};
  if (weft_split_shards(args->split) > 1)
    return weft_fail(error, WEFT_E_INVALID,
                     "--split tensor cuts within layers, and ref has no such ops to compare with: leave it out");
  weft_status status = run_on(&run, args->split, error);
  run.comparing = true;
  run.layer = run.index = 0;
  if (status == WEFT_OK) tell_progress(&run, false);
  if (status == WEFT_OK) status = run_on(&run, args->ref, error);
  if (status == WEFT_OK) tell_progress(&run, true);
  for (uint32_t i = 0; i < run.n_records; i++) {
    for (uint32_t k = 0; k < OP_OUTPUTS_MAX; k++) weft_free(run.record[i].values[k]);
  }
  weft_free(run.record);
  return status;
}
