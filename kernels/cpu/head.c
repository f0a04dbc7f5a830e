/* SPDX-License-Identifier: MIT */
/* head_stats, head_rows, head_part and head_join.
 *
 * Law: of every chunk of the vocabulary head_stats keeps four numbers for each row (cpu_head_chunk); logits exist only
 * for the chunks that are being computed. Without soft embeddings each chunk is one task. With them chunks come one
 * after another, because their sums are joined in order: first tasks of some panels make logits of all rows and widen
 * weights, then tasks of some rows make the numbers of the chunk and add its sums. Logits that are asked for are copied
 * out before they become e. At the end each row's chunks are
 * joined, ascending, in double. The chunk in which the draw falls is computed once more for that row alone, which gives
 * the same bits. head_join does the same from the products that head_part has left: nothing else of a chunk is kept. */
#include "kernels/cpu/head.h"

#include <math.h>
#include <string.h>

enum {
  LOGIT_ROWS = 64,                         /* rows whose logits of a chunk a thread keeps at a time; a multiple of 16 */
  SOFT_PANELS = CPU_SOFT_SPAN / CPU_PANEL, /* panels of a task in the first phase */
  SOFT_TASK_ROWS = 32,                     /* rows of a task in the second */
  HEAD_PANELS = 8                          /* panels of a head_rows task */
};

const cpu_head_fns *cpu_head_find(cpu_isa isa) {
  return CPU_CODE_OF(isa, cpu_head);
}

typedef struct head_run {
  const weft_head_stats_args *args;
  const weft_head_join_args *join; /* NULL: chunks are multiplied; else args are what both have */
  const cpu_products *products;
  const cpu_head_fns *fns;
  cpu_soft_run soft;
  bool any_soft, quantised;
  uint32_t n_chunks, chunk, logit_rows;
  uint64_t row_bytes;     /* of a packed row */
  uint8_t *groups;        /* packed rows */
  cpu_head_chunk *chunks; /* [n_chunks][n_rows] */
  uint8_t *own;           /* per thread: a row packed alone, then logits [logit_rows][WEFT_VOCAB_CHUNK] */
  uint64_t own_bytes;
  uint64_t scratch_bytes;
} head_run;

static uint8_t *take_scratch(head_run *run, uint8_t *scratch, uint64_t n_bytes) {
  uint8_t *at = scratch == NULL ? NULL : scratch + run->scratch_bytes;
  run->scratch_bytes += cpu_round_64(n_bytes);
  return at;
}

static bool any_soft(const weft_head_stats_args *args) {
  if (args->soft == NULL || args->want_soft == NULL) return args->soft != NULL;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    if (args->want_soft[r] != 0) return true;
  }
  return false;
}

/* Works out where everything lies in scratch. With scratch NULL only the bytes are counted, as if every row wanted its
 * soft embedding. */
static head_run make_run(weft_device *device, const weft_head_stats_args *args, uint8_t *scratch) {
  cpu_isa isa = cpu_get_isa(device);
  const weft_weight *weight = args->weight;
  head_run run = {.args = args, .products = cpu_products_find(isa), .fns = cpu_head_find(isa)};
  run.any_soft = scratch == NULL ? args->soft != NULL : any_soft(args);
  run.quantised = cpu_is_quantised(weight->type);
  run.n_chunks = cpu_chunk_count(weight->n_out);
  run.logit_rows = args->n_rows < LOGIT_ROWS ? args->n_rows : LOGIT_ROWS;
  run.row_bytes = cpu_group_row_bytes(run.quantised, weight->n_in);
  run.groups = take_scratch(&run, scratch, args->n_rows * run.row_bytes);
  run.chunks = (cpu_head_chunk *)(void *)take_scratch(&run, scratch,
                                                      (uint64_t)run.n_chunks * args->n_rows * sizeof(cpu_head_chunk));
  run.own_bytes = cpu_round_64(run.row_bytes) + (uint64_t)run.logit_rows * WEFT_VOCAB_CHUNK * sizeof(float);
  run.own = take_scratch(&run, scratch, run.own_bytes * weft_thread_pool_size(cpu_thread_pool(device)));
  if (!run.any_soft) return run;
  run.soft = (cpu_soft_run){
      .fns = cpu_soft_find(isa, weight->type),
      .weight = weight,
      .temperature = args->temperature,
      .want = args->want_soft,
      .soft = args->soft,
      .soft_stride = args->soft_stride,
      .n_rows = args->n_rows,
  };
  uint8_t *memory = take_scratch(&run, scratch, 0);
  run.scratch_bytes += cpu_round_64(cpu_soft_place(&run.soft, memory));
  return run;
}

uint64_t cpu_head_stats_scratch(weft_device *device, const weft_head_stats_args *args) {
  return make_run(device, args, NULL).scratch_bytes;
}

/* ---- chunks ---- */

static const uint32_t *allowed_of(const head_run *run, uint32_t r) {
  if (run->join != NULL) return run->join->allowed;
  return run->args->allowed == NULL ? NULL : run->args->allowed[r];
}

/* Turns one row's logits of a chunk, as they come from the product, into the chunk's numbers and into e (head.h). */
static void finish_row(const head_run *run, uint32_t chunk, uint32_t r, float *logits, cpu_head_chunk *out) {
  const weft_head_stats_args *args = run->args;
  uint32_t n = cpu_chunk_tokens(args->weight->n_out, chunk);
  const uint32_t *allowed = allowed_of(run, r);
  if (allowed != NULL) allowed += chunk * (WEFT_VOCAB_CHUNK / 32);
  *out = (cpu_head_chunk){.top = -INFINITY, .index = -1};
  bool bad = run->fns->cap(logits, n, args->cap);
  if (args->logits != NULL) {
    float *to = args->logits + r * args->logits_stride + (uint64_t)chunk * WEFT_VOCAB_CHUNK;
    memcpy(to, logits, n * sizeof *to);
  }
  if (bad) return;
  run->fns->chunk(logits, n, allowed, 1.0f / args->temperature[r], out);
}

static uint32_t chunk_panels(const head_run *run, uint32_t chunk) {
  return cpu_panel_count(cpu_chunk_tokens(run->args->weight->n_out, chunk));
}

static float *own_logits(const head_run *run, uint32_t thread) {
  return (float *)(void *)(run->own + thread * run->own_bytes + cpu_round_64(run->row_bytes));
}

/* Without soft embeddings a task is one chunk of all rows. */
static void chunk_task(void *arg, uint32_t task, uint32_t thread) {
  const head_run *run = arg;
  cpu_tile tile = cpu_tile_of(run->args->weight, 0, task * CPU_CHUNK_PANELS, chunk_panels(run, task));
  float *logits = own_logits(run, thread);
  tile.y = logits;
  tile.y_stride = WEFT_VOCAB_CHUNK;
  for (uint32_t first = 0; first < run->args->n_rows; first += LOGIT_ROWS) {
    uint32_t left = run->args->n_rows - first, n = left < LOGIT_ROWS ? left : LOGIT_ROWS;
    tile.x = run->groups + first * run->row_bytes;
    cpu_tile_rows(run->products, &tile, 0, n);
    for (uint32_t r = 0; r < n; r++) {
      cpu_head_chunk *out = &run->chunks[(uint64_t)task * run->args->n_rows + first + r];
      finish_row(run, task, first + r, logits + (uint64_t)r * WEFT_VOCAB_CHUNK, out);
    }
  }
}

/* A row's products with a chunk, from the part that has it. */
static void take_chunk(const weft_head_join_args *join, uint32_t chunk, uint32_t r, float *logits) {
  uint32_t part = 0, token = chunk * WEFT_VOCAB_CHUNK, n_vocab = join->token[join->n_parts];
  while (join->token[part + 1] <= token) part++;
  const float *from = join->logits[part] + r * join->logits_stride + (token - join->token[part]);
  memcpy(logits, from, cpu_chunk_tokens(n_vocab, chunk) * sizeof *logits);
}

static void take_task(void *arg, uint32_t task, uint32_t thread) {
  const head_run *run = arg;
  float *logits = own_logits(run, thread);
  for (uint32_t r = 0; r < run->args->n_rows; r++) {
    take_chunk(run->join, task, r, logits);
    finish_row(run, task, r, logits, &run->chunks[(uint64_t)task * run->args->n_rows + r]);
  }
}

/* With soft embeddings a task of the first phase is some panels of the chunk, for all rows. */
static void panels_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const head_run *run = arg;
  uint32_t at = task * SOFT_PANELS, left = chunk_panels(run, run->chunk) - at;
  uint32_t n = left < SOFT_PANELS ? left : SOFT_PANELS;
  cpu_tile tile = cpu_tile_of(run->args->weight, 0, run->chunk * CPU_CHUNK_PANELS + at, n);
  tile.x = run->groups;
  tile.y = run->soft.logits + at * CPU_PANEL;
  tile.y_stride = WEFT_VOCAB_CHUNK;
  cpu_tile_rows(run->products, &tile, 0, run->args->n_rows);
  cpu_soft_widen(&run->soft, run->chunk, at, n);
}

static void rows_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const head_run *run = arg;
  uint32_t first = task * SOFT_TASK_ROWS, left = run->args->n_rows - first;
  uint32_t n = left < SOFT_TASK_ROWS ? left : SOFT_TASK_ROWS;
  cpu_head_chunk *chunks = run->chunks + (uint64_t)run->chunk * run->args->n_rows + first;
  for (uint32_t r = 0; r < n; r++) {
    finish_row(run, run->chunk, first + r, run->soft.logits + (uint64_t)(first + r) * WEFT_VOCAB_CHUNK, &chunks[r]);
  }
  cpu_soft_add(&run->soft, run->chunk, first, n, chunks);
}

/* ---- joining ---- */

typedef struct joined {
  float top;
  int32_t argmax; /* -1: bad */
  double total;   /* of exp((logit - top) / temperature) */
  double below;   /* of exp(t) * t, t = (logit - top) / temperature */
} joined;

static joined join_row(const head_run *run, uint32_t r, double inverse) {
  joined row = {.top = -INFINITY, .argmax = -1};
  for (uint32_t c = 0; c < run->n_chunks; c++) {
    const cpu_head_chunk *chunk = &run->chunks[(uint64_t)c * run->args->n_rows + r];
    if (chunk->index < 0) return (joined){.argmax = -1};
    if (!(chunk->top > row.top)) continue;
    row.top = chunk->top;
    row.argmax = (int32_t)(c * WEFT_VOCAB_CHUNK) + chunk->index;
  }
  if (row.argmax < 0) return row;
  for (uint32_t c = 0; c < run->n_chunks; c++) {
    const cpu_head_chunk *chunk = &run->chunks[(uint64_t)c * run->args->n_rows + r];
    if (chunk->top == -INFINITY) continue;
    double under = ((double)chunk->top - (double)row.top) * inverse, weight = exp(under);
    if (weight == 0.0) continue;
    row.total += (double)chunk->sum * weight;
    row.below += weight * ((double)chunk->below + (double)chunk->sum * under);
  }
  return row;
}

/* Last allowed token of the vocabulary. */
static int32_t last_allowed(const head_run *run, uint32_t r) {
  uint32_t v = run->args->weight->n_out - 1;
  const uint32_t *allowed = allowed_of(run, r);
  while (allowed != NULL && v > 0 && (allowed[v / 32] >> (v % 32) & 1u) == 0) v--;
  return (int32_t)v;
}

/* A row's products with a chunk once more. */
static void again_chunk(const head_run *run, uint32_t r, uint32_t chunk, uint32_t thread) {
  const weft_head_stats_args *args = run->args;
  uint8_t *group = run->own + thread * run->own_bytes;
  const cpu_pack_rows rows = {run->products, args->h + r * args->h_stride, 0, args->weight->n_in, run->quantised,
                              group};
  cpu_rows_pack(&rows, 0, 1);
  cpu_tile tile = cpu_tile_of(args->weight, 0, chunk * CPU_CHUNK_PANELS, chunk_panels(run, chunk));
  tile.x = group;
  tile.y = own_logits(run, thread);
  tile.y_stride = WEFT_VOCAB_CHUNK;
  cpu_tile_rows(run->products, &tile, 0, 1);
}

/* The token drawn, which lies in this chunk; `running` is the sum of all chunks before it. */
static int32_t draw_in_chunk(const head_run *run, uint32_t r, uint32_t chunk, const double sums[3], uint32_t thread) {
  const double weight = sums[0], threshold = sums[2];
  double running = sums[1];
  const weft_head_stats_args *args = run->args;
  float *e = own_logits(run, thread);
  if (run->join != NULL)
    take_chunk(run->join, chunk, r, e);
  else
    again_chunk(run, r, chunk, thread);
  cpu_head_chunk again;
  finish_row(run, chunk, r, e, &again);
  int32_t last = again.index; /* where rounding hides the crossing: the last token of the chunk with a weight */
  for (uint32_t v = 0; v < cpu_chunk_tokens(args->weight->n_out, chunk); v++) {
    if (e[v] == 0.0f) continue;
    last = (int32_t)v;
    running += (double)e[v] * weight;
    if (running > threshold) break;
  }
  return (int32_t)(chunk * WEFT_VOCAB_CHUNK) + last;
}

static int32_t draw_row(const head_run *run, uint32_t r, const joined *row, double inverse, uint32_t thread) {
  double threshold = (double)run->args->u[r] * row->total, running = 0.0;
  for (uint32_t c = 0; c < run->n_chunks; c++) {
    const cpu_head_chunk *chunk = &run->chunks[(uint64_t)c * run->args->n_rows + r];
    if (chunk->top == -INFINITY) continue;
    double weight = exp(((double)chunk->top - (double)row->top) * inverse);
    double after = running + (double)chunk->sum * weight;
    if (after > threshold) return draw_in_chunk(run, r, c, (const double[3]){weight, running, threshold}, thread);
    running = after;
  }
  return last_allowed(run, r);
}

static void join_task(void *arg, uint32_t r, uint32_t thread) {
  const head_run *run = arg;
  const weft_head_stats_args *args = run->args;
  double inverse = (double)(1.0f / args->temperature[r]);
  joined row = join_row(run, r, inverse);
  args->bad[r] = row.argmax < 0 ? 1 : 0;
  args->argmax[r] = row.argmax < 0 ? 0 : row.argmax;
  args->top[r] = row.argmax < 0 ? 0.0f : row.top;
  if (args->drawn == NULL) return;
  args->drawn[r] = 0;
  args->log_total[r] = args->entropy[r] = 0.0f;
  if (row.argmax < 0) return;
  args->log_total[r] = (float)((double)row.top * inverse + log(row.total));
  args->entropy[r] = (float)(log(row.total) - row.below / row.total);
  args->drawn[r] = draw_row(run, r, &row, inverse, thread);
}

weft_status cpu_head_stats(weft_device *device, const weft_head_stats_args *args) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  head_run run = make_run(device, args, args->scratch);
  const cpu_pack_rows rows = {run.products, args->h, args->h_stride, args->weight->n_in, run.quantised, run.groups};
  cpu_rows_pack_all(pool, &rows, args->n_rows);
  if (!run.any_soft) {
    weft_thread_pool_run(pool, chunk_task, &run, run.n_chunks);
  } else {
    cpu_soft_begin(&run.soft);
    for (run.chunk = 0; run.chunk < run.n_chunks; run.chunk++) {
      weft_thread_pool_run(pool, panels_task, &run, (chunk_panels(&run, run.chunk) + SOFT_PANELS - 1) / SOFT_PANELS);
      weft_thread_pool_run(pool, rows_task, &run, (args->n_rows + SOFT_TASK_ROWS - 1) / SOFT_TASK_ROWS);
    }
    cpu_soft_end(&run.soft, args->soft_scale);
  }
  weft_thread_pool_run(pool, join_task, &run, args->n_rows);
  return WEFT_OK;
}

/* ---- head_join ---- */

/* What head_stats and head_join share; of the weight only the number of tokens is asked. */
static weft_head_stats_args stats_of(const weft_head_join_args *args, weft_weight *vocabulary) {
  *vocabulary = (weft_weight){.type = WEFT_TYPE_F32, .n_out = args->token[args->n_parts]};
  return (weft_head_stats_args){.weight = vocabulary,
                                .temperature = args->temperature,
                                .u = args->u,
                                .argmax = args->argmax,
                                .drawn = args->drawn,
                                .top = args->top,
                                .log_total = args->log_total,
                                .entropy = args->entropy,
                                .bad = args->bad,
                                .n_rows = args->n_rows,
                                .cap = args->cap};
}

uint64_t cpu_head_join_scratch(weft_device *device, const weft_head_join_args *args) {
  weft_weight vocabulary;
  const weft_head_stats_args stats = stats_of(args, &vocabulary);
  return make_run(device, &stats, NULL).scratch_bytes;
}

weft_status cpu_head_join(weft_device *device, const weft_head_join_args *args) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  weft_weight vocabulary;
  const weft_head_stats_args stats = stats_of(args, &vocabulary);
  head_run run = make_run(device, &stats, args->scratch);
  run.join = args;
  weft_thread_pool_run(pool, take_task, &run, run.n_chunks);
  weft_thread_pool_run(pool, join_task, &run, args->n_rows);
  return WEFT_OK;
}

/* ---- head_rows and head_part ---- */

/* Products of rows with n_panels panels of a weight, from first_panel on. */
typedef struct rows_run {
  const weft_weight *weight;
  const cpu_products *products;
  const uint8_t *groups;
  float *logits;
  uint64_t logits_stride;
  uint32_t n_rows, first_panel, n_panels;
} rows_run;

static void product_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const rows_run *run = arg;
  uint32_t panel = task * HEAD_PANELS, left = run->n_panels - panel;
  cpu_tile tile = cpu_tile_of(run->weight, 0, run->first_panel + panel, left < HEAD_PANELS ? left : HEAD_PANELS);
  tile.x = run->groups;
  tile.y = run->logits + (uint64_t)panel * CPU_PANEL;
  tile.y_stride = run->logits_stride;
  cpu_tile_rows(run->products, &tile, 0, run->n_rows);
}

static void run_products(weft_device *device, const float *h, uint64_t h_stride, void *scratch, rows_run *run) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  bool quantised = cpu_is_quantised(run->weight->type);
  run->products = cpu_products_find(cpu_get_isa(device));
  run->groups = scratch;
  const cpu_pack_rows rows = {run->products, h, h_stride, run->weight->n_in, quantised, scratch};
  cpu_rows_pack_all(pool, &rows, run->n_rows);
  weft_thread_pool_run(pool, product_task, run, (run->n_panels + HEAD_PANELS - 1) / HEAD_PANELS);
}

typedef struct cap_run {
  const weft_head_rows_args *args;
  const cpu_head_fns *fns;
} cap_run;

static void cap_task(void *arg, uint32_t r, uint32_t thread) {
  (void)thread;
  const cap_run *run = arg;
  float *logits = run->args->logits + r * run->args->logits_stride;
  run->args->bad[r] = run->fns->cap(logits, run->args->weight->n_out, run->args->cap) ? 1 : 0;
}

/* Rows as run_products prepares them. */
static uint64_t prepared_bytes(const weft_weight *weight, uint32_t n_rows) {
  return n_rows * cpu_group_row_bytes(cpu_is_quantised(weight->type), weight->n_in);
}

uint64_t cpu_head_rows_scratch(weft_device *device, const weft_head_rows_args *args) {
  (void)device;
  return prepared_bytes(args->weight, args->n_rows);
}

weft_status cpu_head_rows(weft_device *device, const weft_head_rows_args *args) {
  rows_run run = {.weight = args->weight,
                  .logits = args->logits,
                  .logits_stride = args->logits_stride,
                  .n_rows = args->n_rows,
                  .n_panels = cpu_panel_count(args->weight->n_out)};
  if (args->h != NULL) run_products(device, args->h, args->h_stride, args->scratch, &run);
  cap_run cap = {args, cpu_head_find(cpu_get_isa(device))};
  weft_thread_pool_run(cpu_thread_pool(device), cap_task, &cap, args->n_rows);
  return WEFT_OK;
}

uint64_t cpu_head_part_scratch(weft_device *device, const weft_head_part_args *args) {
  (void)device;
  return prepared_bytes(args->weight, args->n_rows);
}

weft_status cpu_head_part(weft_device *device, const weft_head_part_args *args) {
  rows_run run = {.weight = args->weight,
                  .logits = args->logits,
                  .logits_stride = args->logits_stride,
                  .n_rows = args->n_rows,
                  .first_panel = args->first / CPU_PANEL,
                  .n_panels = cpu_panel_count(args->n_tokens)};
  run_products(device, args->h, args->h_stride, args->scratch, &run);
  return WEFT_OK;
}
