/* SPDX-License-Identifier: MIT */
/* Soft embeddings, which are sums of the embedding's rows over the vocabulary, chunk by chunk (head.h); and the op
 * soft. */
#include <math.h>

#include "kernels/cpu/head.h"

enum { SOFT_BATCH = 32 /* rows that share a pass over the widened weights */ };

const cpu_soft_fns *cpu_soft_find(cpu_isa isa, weft_type type) {
#if defined(__x86_64__)
  if (isa == CPU_ISA_AVX512 && type != WEFT_TYPE_F32 && type != WEFT_TYPE_F16) return &cpu_soft_integers_avx512;
#else
  (void)type;
#endif
  return CPU_CODE_OF(isa, cpu_soft);
}

uint64_t cpu_soft_place(cpu_soft_run *run, uint8_t *memory) {
  uint64_t at[5] = {0, (uint64_t)run->n_rows * WEFT_VOCAB_CHUNK * sizeof(float),
                    (uint64_t)cpu_panel_count(run->weight->n_in) * run->fns->column_bytes,
                    cpu_round_64(run->n_rows * sizeof(float)), cpu_round_64(run->n_rows * sizeof(double))};
  for (uint32_t i = 1; i < 5; i++) at[i] += at[i - 1];
  if (memory != NULL) {
    run->logits = (float *)(void *)memory;
    run->wide = memory + at[1];
    run->top = (float *)(void *)(memory + at[2]);
    run->total = (double *)(void *)(memory + at[3]);
  }
  return at[4];
}

static bool wants_soft(const cpu_soft_run *run, uint32_t r) {
  return run->want == NULL || run->want[r] != 0;
}

void cpu_soft_begin(const cpu_soft_run *run) {
  for (uint32_t r = 0; r < run->n_rows; r++) {
    run->top[r] = -INFINITY;
    run->total[r] = 0.0;
    if (wants_soft(run, r)) memset(run->soft + r * run->soft_stride, 0, run->weight->n_in * sizeof(float));
  }
}

void cpu_soft_widen(const cpu_soft_run *run, uint32_t chunk, uint32_t at, uint32_t n) {
  const cpu_tile tile = cpu_tile_of(run->weight, 0, chunk * CPU_CHUNK_PANELS + at, n);
  const cpu_soft_panels panels = {tile.info, tile.panel, tile.panel_bytes, tile.n_in, at, n};
  run->fns->widen(&panels, run->wide);
}

/* The factors by which a row's sum so far and this chunk's sum are multiplied. False: the chunk is left out. */
static bool join_soft(const cpu_soft_run *run, uint32_t r, const cpu_head_chunk *chunk, float factor[2]) {
  if (chunk->index < 0) run->total[r] = -1.0;
  if (!wants_soft(run, r) || run->total[r] < 0.0 || chunk->top == -INFINITY) return false;
  double inverse = (double)(1.0f / run->temperature[r]);
  float top = chunk->top > run->top[r] ? chunk->top : run->top[r];
  double weight = exp(((double)chunk->top - (double)top) * inverse);
  double before = run->top[r] == -INFINITY ? 0.0 : exp(((double)run->top[r] - (double)top) * inverse);
  run->total[r] = run->total[r] * before + (double)chunk->sum * weight;
  run->top[r] = top;
  factor[0] = (float)before;
  factor[1] = (float)weight;
  return weight >= run->fns->least;
}

/* The rows of one task that do not leave the chunk out. */
typedef struct taking_part {
  uint32_t n;
  uint32_t row[SOFT_BATCH];
  float factor[SOFT_BATCH][2];
} taking_part;

/* Adds the chunk to up to eight of these rows, from `at` on, in a tile's columns from `column` on. */
static void add_tile(const cpu_soft_run *run, const taking_part *rows, uint32_t at, uint32_t column,
                     cpu_soft_tile *tile) {
  uint32_t i = column * CPU_PANEL, left = run->weight->n_in - i;
  tile->n_rows = rows->n - at < CPU_SOFT_ROWS ? rows->n - at : CPU_SOFT_ROWS;
  tile->n_cols = left < run->fns->columns * CPU_PANEL ? left : run->fns->columns * CPU_PANEL;
  tile->wide = run->wide + (uint64_t)column * run->fns->column_bytes;
  for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
    uint32_t from = at + (r < tile->n_rows ? r : tile->n_rows - 1), row = rows->row[from];
    tile->e[r] = run->logits + (uint64_t)row * WEFT_VOCAB_CHUNK;
    tile->soft[r] = run->soft + row * run->soft_stride + i;
    memcpy(tile->factor[r], rows->factor[from], sizeof tile->factor[r]);
  }
  run->fns->add(tile);
}

void cpu_soft_add(const cpu_soft_run *run, uint32_t chunk, uint32_t first, uint32_t n, const cpu_head_chunk *chunks) {
  uint32_t n_columns = cpu_panel_count(run->weight->n_in);
  cpu_soft_tile tile = {.n_tokens = cpu_panel_count(cpu_chunk_tokens(run->weight->n_out, chunk)) * CPU_PANEL};
  for (uint32_t r = 0; r < n;) {
    taking_part rows = {0};
    for (; r < n && rows.n < SOFT_BATCH; r++) {
      if (!join_soft(run, first + r, &chunks[r], rows.factor[rows.n])) continue;
      rows.row[rows.n++] = first + r;
      if (run->fns->narrow != NULL) run->fns->narrow(run->logits + (uint64_t)(first + r) * WEFT_VOCAB_CHUNK);
    }
    for (uint32_t column = 0; column < n_columns; column += run->fns->columns) {
      for (uint32_t at = 0; at < rows.n; at += CPU_SOFT_ROWS) {
        add_tile(run, &rows, at, column, &tile);
      }
    }
  }
}

void cpu_soft_end(const cpu_soft_run *run, float scale) {
  for (uint32_t r = 0; r < run->n_rows; r++) {
    if (!wants_soft(run, r)) continue;
    float *soft = run->soft + r * run->soft_stride;
    float factor = run->total[r] > 0.0 ? (float)((double)scale / run->total[r]) : 0.0f;
    if (factor == 0.0f)
      memset(soft, 0, run->weight->n_in * sizeof(float));
    else
      for (uint32_t i = 0; i < run->weight->n_in; i++) soft[i] *= factor;
  }
}

/* ---- the op: logits are given ---- */

enum { ROWS_PER_TASK = 32 };

typedef struct soft_call {
  cpu_soft_run run;
  const weft_soft_args *args;
  const cpu_head_fns *head;
  cpu_head_chunk *chunks; /* [n_rows] of this chunk */
  uint32_t chunk;
  uint64_t scratch_bytes;
} soft_call;

static soft_call make_call(weft_device *device, const weft_soft_args *args, uint8_t *scratch) {
  cpu_isa isa = cpu_get_isa(device);
  soft_call call = {.args = args, .head = cpu_head_find(isa)};
  call.run = (cpu_soft_run){
      .fns = cpu_soft_find(isa, args->weight->type),
      .weight = args->weight,
      .temperature = args->temperature,
      .soft = args->soft,
      .soft_stride = args->soft_stride,
      .n_rows = args->n_rows,
  };
  uint64_t used = cpu_soft_place(&call.run, scratch);
  if (scratch != NULL) call.chunks = (cpu_head_chunk *)(void *)(scratch + used);
  call.scratch_bytes = used + args->n_rows * sizeof(cpu_head_chunk);
  return call;
}

uint64_t cpu_soft_scratch(weft_device *device, const weft_soft_args *args) {
  return make_call(device, args, NULL).scratch_bytes;
}

static void widen_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const soft_call *call = arg;
  const uint32_t n_all = cpu_panel_count(cpu_chunk_tokens(call->args->weight->n_out, call->chunk));
  uint32_t at = task * (CPU_SOFT_SPAN / CPU_PANEL), left = n_all - at;
  cpu_soft_widen(&call->run, call->chunk, at, left < CPU_SOFT_SPAN / CPU_PANEL ? left : CPU_SOFT_SPAN / CPU_PANEL);
}

static void add_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const soft_call *call = arg;
  const weft_soft_args *args = call->args;
  uint32_t first = task * ROWS_PER_TASK, left = args->n_rows - first;
  uint32_t n = left < ROWS_PER_TASK ? left : ROWS_PER_TASK;
  uint32_t n_tokens = cpu_chunk_tokens(args->weight->n_out, call->chunk);
  for (uint32_t r = first; r < first + n; r++) {
    float *logits = call->run.logits + (uint64_t)r * WEFT_VOCAB_CHUNK;
    const float *from = args->logits + r * args->logits_stride + (uint64_t)call->chunk * WEFT_VOCAB_CHUNK;
    memcpy(logits, from, n_tokens * sizeof(float));
    call->chunks[r] = (cpu_head_chunk){.index = -1};
    if (call->head->cap(logits, n_tokens, 0.0f)) continue;
    call->head->chunk(logits, n_tokens, NULL, 1.0f / args->temperature[r], &call->chunks[r]);
  }
  cpu_soft_add(&call->run, call->chunk, first, n, call->chunks + first);
}

weft_status cpu_soft(weft_device *device, const weft_soft_args *args) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  soft_call call = make_call(device, args, args->scratch);
  uint32_t n_vocab = args->weight->n_out;
  cpu_soft_begin(&call.run);
  for (call.chunk = 0; call.chunk < cpu_chunk_count(n_vocab); call.chunk++) {
    uint32_t n_tokens = cpu_chunk_tokens(n_vocab, call.chunk);
    weft_thread_pool_run(pool, widen_task, &call, (n_tokens + CPU_SOFT_SPAN - 1) / CPU_SOFT_SPAN);
    weft_thread_pool_run(pool, add_task, &call, (args->n_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
  }
  cpu_soft_end(&call.run, args->scale);
  return WEFT_OK;
}
