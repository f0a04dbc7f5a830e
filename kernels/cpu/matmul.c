/* SPDX-License-Identifier: MIT */
/* matmul: rows are packed once, then the thread pool runs tasks of some rows and some panels. Also what other ops use
 * of matmul.h: packing rows and running tiles. */
#include "kernels/cpu/matmul.h"

#include "base/check.h"
#include "kernels/parts.h"

enum {
  ROWS_PER_TASK = 256, /* rows whose packed form stays in the second-level cache */
  PANELS_PER_TASK = 16,
  PACK_INLINE = 8 * 1024 /* elements that one thread packs in less time than it takes to wake the pool */
};

const cpu_products *cpu_products_find(cpu_isa isa) {
  return CPU_CODE_OF(isa, cpu_products);
}

bool cpu_supports(const weft_device *device, weft_type weight_type) {
  (void)device;
  const weft_type_info *info = weft_type_find((int32_t)weight_type);
  return info != NULL && cpu_pack_find(info->held_as) != NULL;
}

const char *cpu_numerics(const weft_device *device, weft_type weight_type) {
  if (!cpu_supports(device, weight_type)) return "none";
  if (cpu_is_quantised(weight_type)) return "q8x32-i32";
  return cpu_get_isa(device) == CPU_ISA_PORTABLE ? "f32x256" : "f32x256-fma";
}

/* ---- packing rows ---- */

/* Packs a float group of n_rows, input by input, so that memory is written in order. */
static void pack_floats(const float *x, uint64_t x_stride, uint32_t n_in, uint32_t n_rows, float *to) {
  for (uint32_t i = 0; i < n_in; i++, to += n_rows) {
    for (uint32_t r = 0; r < n_rows; r++) to[r] = x[r * x_stride + i];
  }
}

void cpu_rows_pack(const cpu_pack_rows *rows, uint32_t first, uint32_t n) {
  uint64_t row_bytes = cpu_group_row_bytes(rows->quantised, rows->n_in);
  for (uint32_t done = 0, n_rows; done < n; done += n_rows) {
    const float *x = rows->x + (uint64_t)(first + done) * rows->x_stride;
    uint8_t *group = rows->groups + (first + done) * row_bytes;
    n_rows = cpu_group_next(n - done);
    if (!rows->quantised) {
      pack_floats(x, rows->x_stride, rows->n_in, n_rows, (float *)(void *)group);
      continue;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
      rows->products->quantise(x + r * rows->x_stride, rows->n_in, r, n_rows, group);
    }
  }
}

typedef struct pack_call {
  cpu_pack_rows rows;
  uint32_t n_rows;
} pack_call;

static void pack_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const pack_call *call = arg;
  uint32_t first = task * CPU_GROUP;
  uint32_t n = call->n_rows - first < CPU_GROUP ? call->n_rows - first : CPU_GROUP;
  cpu_rows_pack(&call->rows, first, n);
}

void cpu_rows_pack_all(weft_thread_pool *pool, const cpu_pack_rows *rows, uint32_t n_rows) {
  pack_call call = {*rows, n_rows};
  uint32_t n_tasks = (n_rows + CPU_GROUP - 1) / CPU_GROUP;
  if ((uint64_t)n_rows * rows->n_in <= PACK_INLINE) {
    for (uint32_t task = 0; task < n_tasks; task++) pack_task(&call, task, 0);
  } else {
    weft_thread_pool_run(pool, pack_task, &call, n_tasks);
  }
}

void cpu_tile_run(const cpu_products *products, const cpu_tile *tile) {
  products->tile(tile);
  if (tile->scale == 1.0f) return;
  for (uint32_t r = 0; r < tile->n_rows; r++) {
    float *y = tile->y + r * tile->y_stride;
    for (uint32_t i = 0; i < tile->n_cols; i++) y[i] *= tile->scale;
  }
}

void cpu_tile_rows(const cpu_products *products, const cpu_tile *tile, uint32_t first, uint32_t n) {
  cpu_tile part = *tile;
  uint64_t row_bytes = cpu_group_row_bytes(tile->info->form != CPU_FORM_FLOAT, tile->n_in);
  for (uint32_t done = 0; done < n; done += part.n_rows) {
    part.n_rows = cpu_group_next(n - done);
    part.fetch = done == 0;
    part.x = tile->x + (first + done) * row_bytes;
    part.y = tile->y + (first + done) * tile->y_stride;
    cpu_tile_run(products, &part);
  }
}

cpu_tile cpu_tile_of(const weft_weight *weight, uint32_t matrix, uint32_t panel, uint32_t n_panels) {
  const cpu_pack_info *info = cpu_pack_find(weight->type);
  uint32_t total = cpu_panel_count(weight->n_out);
  WEFT_CHECK(info != NULL);
  WEFT_CHECK(weight->layout == CPU_LAYOUT_PANELS);
  WEFT_CHECK(panel + n_panels <= total);
  uint64_t panel_bytes = cpu_panel_bytes(info, weight->n_in);
  uint32_t end = (panel + n_panels) * CPU_PANEL;
  return (cpu_tile){
      .info = info,
      .scale = weight->scale == NULL ? 1.0f : weight->scale[matrix],
      .panel = (const uint8_t *)weight->data + ((uint64_t)matrix * total + panel) * panel_bytes,
      .panel_bytes = panel_bytes,
      .n_panels = n_panels,
      .n_cols = (end < weight->n_out ? end : weight->n_out) - panel * CPU_PANEL,
      .n_in = weight->n_in,
  };
}

/* ---- the op ---- */

typedef struct matmul_plan {
  bool any[2];        /* is there a float weight, a quantised one */
  uint64_t offset[2]; /* of their packed rows in scratch */
  uint64_t scratch_bytes;
} matmul_plan;

static matmul_plan make_plan(const weft_matmul_args *args) {
  matmul_plan plan = {0};
  for (uint32_t w = 0; w < args->n_weights; w++) plan.any[cpu_is_quantised(args->weight[w]->type)] = true;
  for (uint32_t q = 0; q < 2; q++) {
    plan.offset[q] = plan.scratch_bytes;
    if (!plan.any[q]) continue;
    plan.scratch_bytes += cpu_round_64(args->n_rows * cpu_group_row_bytes(q == 1, args->weight[0]->n_in));
  }
  return plan;
}

uint64_t cpu_matmul_scratch(weft_device *device, const weft_matmul_args *args) {
  (void)device;
  return make_plan(args).scratch_bytes;
}

typedef struct matmul_run {
  const weft_matmul_args *args;
  const cpu_products *products;
  const uint8_t *groups[2];
  uint32_t n_threads, panels_per_task;
  uint32_t n_parts[WEFT_MATMUL_MAX]; /* panel blocks of each weight */
  uint32_t n_parts_all;
} matmul_run;

/* task = (block of rows) * n_parts_all + (weight, block of panels) */
static void matmul_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const matmul_run *run = arg;
  const weft_matmul_args *args = run->args;
  uint32_t first = task / run->n_parts_all * ROWS_PER_TASK, part = task % run->n_parts_all, w = 0;
  while (part >= run->n_parts[w]) part -= run->n_parts[w++];
  const weft_weight *weight = args->weight[w];
  uint32_t panel = part * run->panels_per_task, left = cpu_panel_count(weight->n_out) - panel;
  cpu_tile tile = cpu_tile_of(weight, 0, panel, left < run->panels_per_task ? left : run->panels_per_task);
  if (part + run->n_threads < run->n_parts[w]) /* the task that this thread probably takes next */
    tile.next = tile.panel + (uint64_t)run->n_threads * run->panels_per_task * tile.panel_bytes;
  tile.x = run->groups[cpu_is_quantised(weight->type)];
  tile.y = args->y[w] + (uint64_t)panel * CPU_PANEL;
  tile.y_stride = args->y_stride[w];
  uint32_t n = args->n_rows - first;
  cpu_tile_rows(run->products, &tile, first, n < ROWS_PER_TASK ? n : ROWS_PER_TASK);
}

weft_status cpu_matmul(weft_device *device, const weft_matmul_args *args) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  const matmul_plan plan = make_plan(args);
  matmul_run run = {.args = args, .products = cpu_products_find(cpu_get_isa(device))};
  uint32_t n_panels = 0;
  for (uint32_t q = 0; q < 2; q++) {
    if (!plan.any[q]) continue;
    uint8_t *groups = (uint8_t *)args->scratch + plan.offset[q];
    const cpu_pack_rows rows = {run.products, args->x, args->x_stride, args->weight[0]->n_in, q == 1, groups};
    cpu_rows_pack_all(pool, &rows, args->n_rows);
    run.groups[q] = groups;
  }
  for (uint32_t w = 0; w < args->n_weights; w++) n_panels += cpu_panel_count(args->weight[w]->n_out);
  run.n_threads = weft_thread_pool_size(pool);
  run.panels_per_task = n_panels / (run.n_threads * CPU_TASKS_PER_THREAD);
  if (run.panels_per_task < 1) run.panels_per_task = 1;
  if (run.panels_per_task > PANELS_PER_TASK) run.panels_per_task = PANELS_PER_TASK;
  for (uint32_t w = 0; w < args->n_weights; w++) {
    uint32_t total = cpu_panel_count(args->weight[w]->n_out);
    run.n_parts[w] = (total + run.panels_per_task - 1) / run.panels_per_task;
    run.n_parts_all += run.n_parts[w];
  }
  uint32_t n_blocks = (args->n_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
  weft_thread_pool_run(pool, matmul_task, &run, n_blocks * run.n_parts_all);
  if (args->activation == 0) return WEFT_OK;
  const weft_gate_args gate = parts_matmul_gate(args);
  return cpu_gate(device, &gate);
}
