/* SPDX-License-Identifier: MIT */
/* experts: the pairs (row, rank) are sorted by expert; the pairs of one expert are the rows of small products.
 *
 * Law: a pair's place in that order, by expert and then by row, is called its slot here. The thread pool runs four
 * phases:
 *   1  rows are quantised
 *   2  each expert's rows are gathered into groups (an expert with one row reads it where it was quantised)
 *   3  a task of an expert and some of its n_ff columns computes act(gate) * up into the packed form that down reads
 *   4  a task of some output columns multiplies all slots by down, and adds each row's slots by pairs of leaves
 * A pair whose expert is not here has no slot. Experts are counted from the first one that is here.
 * So every weight is read from memory once per call, and a row's result does not depend on other rows (matmul.h). */
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/rows.h"
#include "kernels/parts.h"

enum {
  FF_BLOCK = 32,                                   /* of act(gate) * up: one block of activations for down */
  FF_BLOCKS_MAX = 4,                               /* per task */
  FF_WIDTH = FF_BLOCK * FF_BLOCKS_MAX + CPU_PANEL, /* up may begin inside a panel */
  COLUMN_PANELS = 4,                               /* per task of down; more while the sums of all slots stay small: */
  COLUMN_SLOTS = 4096,                             /* slots * panels */
  QUANTISE_INLINE = 8 * 1024
};

typedef struct experts_run {
  const weft_experts_args *args;
  const cpu_products *products;
  const cpu_rows *rows;
  const weft_weight *gate, *up;
  uint32_t first_up; /* row of up where up begins: n_ff when gate and up are one stack */
  uint32_t n_in, n_ff, n_experts, n_slots, n_touched; /* n_experts: here; n_slots: at most, a slot for each pair */
  uint32_t ff_blocks, n_ff_tasks;                     /* blocks per task, tasks per expert */
  uint32_t n_threads;
  uint32_t column_panels;
  uint32_t *first;      /* [n_experts + 1] first slot of each expert */
  uint32_t *touched;    /* [n_touched] experts that have slots, ascending */
  uint32_t *row_of;     /* [n_slots] */
  uint32_t *n_ranks;    /* [n_rows] whose experts are here */
  cpu_rank *rank;       /* [n_rows][k] these, leaf by leaf */
  uint8_t *x_rows;      /* each row as a quantised group of one */
  uint8_t *x_groups[2]; /* float, quantised: groups of slots */
  uint8_t *h_groups;
  float *out; /* per thread [n_slots][column_panels * 16] */
  uint64_t scratch_bytes;
} experts_run;

static uint8_t *take_scratch(experts_run *run, uint64_t n_bytes) {
  uint8_t *at = (uint8_t *)run->args->scratch;
  if (at != NULL) at += run->scratch_bytes;
  run->scratch_bytes += cpu_round_64(n_bytes);
  return at;
}

static uint32_t at_most(uint32_t n, uint32_t most) {
  return n < 1 ? 1 : n < most ? n : most;
}

/* Works out shapes, and where everything lies in scratch. Without scratch the pointers mean nothing, and only
 * scratch_bytes counts. */
static experts_run make_run(weft_device *device, const weft_experts_args *args) {
  experts_run run = {.args = args};
  uint32_t n_threads = weft_thread_pool_size(cpu_thread_pool(device));
  bool fused = args->gate_up != NULL, any[2] = {false, false};
  run.n_threads = n_threads;
  run.n_in = args->down->n_out;
  run.n_ff = args->down->n_in;
  run.gate = fused ? args->gate_up : args->gate;
  run.up = fused ? args->gate_up : args->up;
  run.first_up = fused ? run.n_ff : 0;
  run.n_experts = args->down->n_mats;
  run.n_slots = args->n_rows * args->k;
  uint32_t column_panels = COLUMN_SLOTS / (run.n_slots < COLUMN_SLOTS ? run.n_slots : COLUMN_SLOTS);
  run.column_panels = at_most(cpu_panel_count(run.n_in) / (n_threads * 2),
                              column_panels > COLUMN_PANELS ? column_panels : COLUMN_PANELS);
  any[cpu_is_quantised(run.gate->type)] = any[cpu_is_quantised(run.up->type)] = true;
  run.first = (uint32_t *)(void *)take_scratch(&run, (run.n_experts + 1ull) * sizeof(uint32_t));
  run.touched = (uint32_t *)(void *)take_scratch(&run, run.n_experts * sizeof(uint32_t));
  run.row_of = (uint32_t *)(void *)take_scratch(&run, (uint64_t)run.n_slots * sizeof(uint32_t));
  run.n_ranks = (uint32_t *)(void *)take_scratch(&run, (uint64_t)args->n_rows * sizeof(uint32_t));
  run.rank = (cpu_rank *)(void *)take_scratch(&run, (uint64_t)run.n_slots * sizeof(cpu_rank));
  if (any[1]) run.x_rows = take_scratch(&run, args->n_rows * cpu_group_row_bytes(true, run.n_in));
  for (uint32_t q = 0; q < 2; q++) {
    if (any[q]) run.x_groups[q] = take_scratch(&run, run.n_slots * cpu_group_row_bytes(q == 1, run.n_in));
  }
  bool down_quantised = cpu_is_quantised(args->down->type);
  run.h_groups = take_scratch(&run, run.n_slots * cpu_group_row_bytes(down_quantised, run.n_ff));
  uint64_t width = (uint64_t)run.column_panels * CPU_PANEL;
  run.out = (float *)(void *)take_scratch(&run, n_threads * run.n_slots * width * sizeof(float));
  return run;
}

uint64_t cpu_experts_scratch(weft_device *device, const weft_experts_args *args) {
  weft_experts_args shape = *args;
  shape.scratch = NULL;
  return parts_shared_scratch(device, args, make_run(device, &shape).scratch_bytes, cpu_matmul_scratch);
}

/* ---- slots ---- */

/* Gives the ranks of a row that have an expert here their slots, and lists them leaf by leaf. */
static void place_row(experts_run *run, uint32_t row) {
  const weft_experts_args *args = run->args;
  uint32_t n = 0, n_all = parts_experts_count(args);
  cpu_rank *rank = run->rank + (uint64_t)row * args->k;
  for (uint32_t j = 0; j < args->k; j++) {
    uint64_t pair = (uint64_t)row * args->k + j;
    uint32_t id = (uint32_t)args->ids[pair], expert = id - args->first_expert, at = n;
    if (expert >= run->n_experts) continue;
    uint32_t slot = run->first[expert]++, leaf = weft_experts_leaf(id, n_all);
    run->row_of[slot] = row;
    for (; at > 0 && rank[at - 1].closes > leaf; at--) rank[at] = rank[at - 1];
    rank[at] = (cpu_rank){slot, leaf, args->weights[pair]}; /* the leaf, until all are there */
    n += 1;
  }
  for (uint32_t j = 0; j < n; j++) {
    rank[j].closes = weft_experts_closes(rank[j].closes, j + 1 < n ? rank[j + 1].closes : WEFT_EXPERTS_LEAVES);
  }
  run->n_ranks[row] = n;
}

/* Counting sort of (row, rank) by expert. */
static weft_status sort_slots(experts_run *run) {
  const weft_experts_args *args = run->args;
  uint32_t n_all = parts_experts_count(args);
  memset(run->first, 0, (run->n_experts + 1ull) * sizeof(uint32_t));
  for (uint32_t i = 0; i < run->n_slots; i++) {
    uint32_t id = (uint32_t)args->ids[i], expert = id - args->first_expert;
    if (id >= n_all) return parts_refuse_row("experts", i / args->k, "names an expert that does not exist");
    if (expert < run->n_experts) run->first[expert] += 1;
  }
  uint32_t n_before = 0;
  for (uint32_t e = 0; e <= run->n_experts; e++) {
    uint32_t n = e < run->n_experts ? run->first[e] : 0;
    if (n > 0) run->touched[run->n_touched++] = e;
    run->first[e] = n_before;
    n_before += n;
  }
  for (uint32_t r = 0; r < args->n_rows; r++) place_row(run, r);
  for (uint32_t e = run->n_experts; e > 0; e--) run->first[e] = run->first[e - 1];
  run->first[0] = 0;
  return WEFT_OK;
}

static void quantise_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const experts_run *run = arg;
  uint64_t row_bytes = cpu_group_row_bytes(true, run->n_in);
  uint32_t end = (task + 1) * CPU_GROUP < run->args->n_rows ? (task + 1) * CPU_GROUP : run->args->n_rows;
  for (uint32_t r = task * CPU_GROUP; r < end; r++) {
    run->products->quantise(run->args->x + r * run->args->x_stride, run->n_in, 0, 1, run->x_rows + r * row_bytes);
  }
}

/* Row `from` (a group of one) becomes row r of a group of n_rows. */
static void copy_quantised(const uint8_t *from, uint32_t n_in, uint32_t r, uint32_t n_rows, uint8_t *group) {
  uint8_t *to = group + (uint64_t)r * CPU_X_BYTES;
  for (uint32_t b = 0; b < n_in / CPU_PACK_BLOCK; b++) {
    memcpy(to, from, CPU_X_BYTES);
    from += CPU_X_BYTES;
    to += (uint64_t)CPU_X_BYTES * n_rows;
  }
}

static void gather_group(const experts_run *run, uint32_t slot, uint32_t n_rows) {
  uint64_t quantised_bytes = cpu_group_row_bytes(true, run->n_in);
  for (uint32_t r = 0; r < n_rows; r++) {
    uint64_t row = run->row_of[slot + r];
    if (run->x_groups[1] != NULL) {
      copy_quantised(run->x_rows + row * quantised_bytes, run->n_in, r, n_rows,
                     run->x_groups[1] + slot * quantised_bytes);
    }
    if (run->x_groups[0] == NULL) continue;
    const float *x = run->args->x + row * run->args->x_stride;
    float *to = (float *)(void *)(run->x_groups[0] + slot * cpu_group_row_bytes(false, run->n_in)) + r;
    for (uint32_t i = 0; i < run->n_in; i++) to[(uint64_t)i * n_rows] = x[i];
  }
}

static void gather_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const experts_run *run = arg;
  uint32_t expert = run->touched[task], end = run->first[expert + 1];
  if (end - run->first[expert] == 1) return; /* the one row is read where it was quantised */
  for (uint32_t slot = run->first[expert], n; slot < end; slot += n) {
    n = cpu_group_next(end - slot);
    gather_group(run, slot, n);
  }
}

/* ---- gate and up ---- */

/* The group of n rows that begins at this slot. */
static const uint8_t *find_x(const experts_run *run, bool quantised, uint32_t expert, uint32_t slot) {
  uint64_t row_bytes = cpu_group_row_bytes(quantised, run->n_in);
  if (run->first[expert + 1] - run->first[expert] > 1) return run->x_groups[quantised] + slot * row_bytes;
  uint64_t row = run->row_of[slot];
  if (quantised) return run->x_rows + row * row_bytes;
  return (const uint8_t *)(run->args->x + row * run->args->x_stride);
}

/* The panels that hold output rows [begin, begin + n) of the expert's matrix. */
static cpu_tile find_columns(const weft_weight *weight, uint32_t expert, uint32_t begin, uint32_t n) {
  uint32_t panel = begin / CPU_PANEL, last = (begin + n - 1) / CPU_PANEL;
  cpu_tile tile = cpu_tile_of(weight, expert, panel, last - panel + 1);
  tile.y_stride = FF_WIDTH;
  return tile;
}

static void run_columns(const experts_run *run, cpu_tile *tile, uint32_t expert, uint32_t slot, uint32_t n_rows,
                        float *y) {
  tile->x = find_x(run, tile->info->form != CPU_FORM_FLOAT, expert, slot);
  tile->n_rows = n_rows;
  tile->y = y;
  tile->fetch = slot == run->first[expert];
  cpu_tile_run(run->products, tile);
}

/* Packs h[r][begin .. begin + n) of a group, columns of act(gate) * up, into the form that down reads. */
static void store_h(const experts_run *run, float *h, uint32_t begin, uint32_t n, uint32_t slot, uint32_t n_rows) {
  bool quantised = cpu_is_quantised(run->args->down->type);
  uint8_t *group = run->h_groups + slot * cpu_group_row_bytes(quantised, run->n_ff);
  for (uint32_t r = 0; r < n_rows; r++, h += FF_WIDTH) {
    if (quantised) {
      uint8_t *to = group + (uint64_t)(begin / CPU_PACK_BLOCK) * CPU_X_BYTES * n_rows;
      run->products->quantise(h, n, r, n_rows, to);
    } else {
      float *to = (float *)(void *)group + (uint64_t)begin * n_rows + r;
      for (uint32_t i = 0; i < n; i++) to[(uint64_t)i * n_rows] = h[i];
    }
  }
}

/* y[r][i] += bias[i], rows y_stride numbers apart. */
static void add_bias(float *y, uint64_t y_stride, uint32_t n_rows, const float *bias, uint32_t n) {
  for (uint32_t r = 0; r < n_rows; r++, y += y_stride) {
    for (uint32_t i = 0; i < n; i++) y[i] += bias[i];
  }
}

/* Where gate of a task begins; NULL: there is no such task. */
static const uint8_t *find_gate(const experts_run *run, uint32_t task) {
  if (task >= run->n_touched * run->n_ff_tasks) return NULL;
  uint32_t begin = task % run->n_ff_tasks * run->ff_blocks * FF_BLOCK;
  return cpu_tile_of(run->gate, run->touched[task / run->n_ff_tasks], begin / CPU_PANEL, 1).panel;
}

/* task = (touched expert) * n_ff_tasks + (part of n_ff) */
static void gate_up_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const experts_run *run = arg;
  uint32_t expert = run->touched[task / run->n_ff_tasks], width = run->ff_blocks * FF_BLOCK;
  uint32_t begin = task % run->n_ff_tasks * width;
  uint32_t n = run->n_ff - begin < width ? run->n_ff - begin : width;
  float gate[CPU_GROUP * FF_WIDTH], up[CPU_GROUP * FF_WIDTH];
  float *g = gate + begin % CPU_PANEL, *u = up + (run->first_up + begin) % CPU_PANEL;
  cpu_tile gate_tile = find_columns(run->gate, expert, begin, n);
  cpu_tile up_tile = find_columns(run->up, expert, run->first_up + begin, n);
  gate_tile.next = up_tile.panel;
  up_tile.next = find_gate(run, task + run->n_threads); /* the task that this thread probably takes next */
  for (uint32_t slot = run->first[expert], n_rows; slot < run->first[expert + 1]; slot += n_rows) {
    n_rows = cpu_group_next(run->first[expert + 1] - slot);
    run_columns(run, &gate_tile, expert, slot, n_rows, gate);
    run_columns(run, &up_tile, expert, slot, n_rows, up);
    if (run->args->gate_bias != NULL) {
      uint64_t at = (uint64_t)expert * run->n_ff + begin;
      add_bias(g, FF_WIDTH, n_rows, run->args->gate_bias + at, n);
      add_bias(u, FF_WIDTH, n_rows, run->args->up_bias + at, n);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
      float *gated = g + r * FF_WIDTH, *by = u + r * FF_WIDTH;
      if (run->args->limit > 0.0f)
        cpu_gate_limited(run->args->limit, gated, by, gated, n);
      else
        run->rows->gate(run->args->activation, gated, by, gated, n);
    }
    store_h(run, g, begin, n, slot, n_rows);
  }
}

/* ---- down ---- */

static void down_task(void *arg, uint32_t task, uint32_t thread) {
  const experts_run *run = arg;
  const weft_experts_args *args = run->args;
  uint32_t panel = task * run->column_panels, left = cpu_panel_count(run->n_in) - panel;
  uint32_t n_panels = left < run->column_panels ? left : run->column_panels;
  uint64_t width = (uint64_t)run->column_panels * CPU_PANEL;
  uint64_t row_bytes = cpu_group_row_bytes(cpu_is_quantised(args->down->type), run->n_ff);
  float *out = run->out + thread * run->n_slots * width;
  cpu_tile tile = {0};
  uint32_t n_cols = run->n_in - panel * CPU_PANEL;
  if (n_cols > n_panels * CPU_PANEL) n_cols = n_panels * CPU_PANEL;
  for (uint32_t i = 0; i < run->n_touched; i++) {
    uint32_t expert = run->touched[i], end = run->first[expert + 1];
    tile = cpu_tile_of(args->down, expert, panel, n_panels);
    tile.y_stride = width;
    for (uint32_t slot = run->first[expert]; slot < end; slot += tile.n_rows) {
      tile.n_rows = cpu_group_next(end - slot);
      if (i + 1 < run->n_touched && slot + tile.n_rows == end) {
        tile.next = cpu_tile_of(args->down, run->touched[i + 1], panel, n_panels).panel;
      }
      tile.fetch = slot == run->first[expert] || tile.next != NULL;
      tile.x = run->h_groups + slot * row_bytes;
      tile.y = out + slot * width;
      cpu_tile_run(run->products, &tile);
      if (args->down_bias == NULL) continue;
      add_bias(tile.y, width, tile.n_rows, args->down_bias + (uint64_t)expert * run->n_in + panel * CPU_PANEL, n_cols);
    }
  }
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const cpu_ranked ranked = {out, width, run->rank + (uint64_t)r * args->k, run->n_ranks[r]};
    run->products->add_ranked(&ranked, n_cols, args->y + r * args->y_stride + panel * CPU_PANEL);
  }
}

static weft_status run_routed(weft_device *device, const weft_experts_args *args) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  uint32_t n_threads = weft_thread_pool_size(pool);
  experts_run run = make_run(device, args);
  run.products = cpu_products_find(cpu_get_isa(device));
  run.rows = cpu_rows_of(device);
  weft_status status = sort_slots(&run);
  if (status != WEFT_OK) return status;
  if (args->n_touched != NULL) *args->n_touched += run.n_touched;
  if (run.x_rows != NULL) {
    uint32_t n_tasks = (args->n_rows + CPU_GROUP - 1) / CPU_GROUP;
    if ((uint64_t)args->n_rows * run.n_in <= QUANTISE_INLINE) {
      for (uint32_t task = 0; task < n_tasks; task++) quantise_task(&run, task, 0);
    } else {
      weft_thread_pool_run(pool, quantise_task, &run, n_tasks);
    }
  }
  if (run.n_touched < run.first[run.n_experts]) weft_thread_pool_run(pool, gather_task, &run, run.n_touched);
  uint32_t n_blocks = (run.n_ff + FF_BLOCK - 1) / FF_BLOCK;
  run.ff_blocks = at_most(run.n_touched * n_blocks / (n_threads * CPU_TASKS_PER_THREAD), FF_BLOCKS_MAX);
  run.n_ff_tasks = (n_blocks + run.ff_blocks - 1) / run.ff_blocks;
  weft_thread_pool_run(pool, gate_up_task, &run, run.n_touched * run.n_ff_tasks);
  uint32_t n_panels = cpu_panel_count(run.n_in);
  weft_thread_pool_run(pool, down_task, &run, (n_panels + run.column_panels - 1) / run.column_panels);
  return WEFT_OK;
}

weft_status cpu_experts(weft_device *device, const weft_experts_args *args) {
  weft_status status = run_routed(device, args);
  return status == WEFT_OK ? parts_shared_run(device, args, cpu_matmul) : status;
}
