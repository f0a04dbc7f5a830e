/* SPDX-License-Identifier: MIT */
/* Hyper-connections and attention over latent rows, shared out to the threads: attention and the choice of far rows by
 * the instruction set's functions, all else by ref's own functions of rows. */
#include "kernels/cpu/latent.h"
#include "kernels/cpu/rows.h"

#define RUN_ROWS(name, op)                                    \
  static void name(void *arg, uint32_t first, uint32_t end) { \
    op((const void *)arg, first, end);                        \
  }
RUN_ROWS(run_mix, ref_mix_rows)
RUN_ROWS(run_spread, ref_spread_rows)
RUN_ROWS(run_rows, ref_latent_rows_range)
RUN_ROWS(run_store, ref_latent_press_store)
RUN_ROWS(run_blocks, ref_latent_press_blocks)
RUN_ROWS(run_add, ref_engram_add_rows)

weft_status cpu_mix(weft_device *device, const weft_mix_args *args) {
  weft_mix_args copy = *args;
  cpu_for_rows(device, args->n_rows, 2ull * args->n_streams * args->n_cols, run_mix, &copy);
  return WEFT_OK;
}

weft_status cpu_spread(weft_device *device, const weft_spread_args *args) {
  weft_spread_args copy = *args;
  cpu_for_rows(device, args->n_rows, (uint64_t)args->n_streams * args->n_streams * args->n_cols, run_spread, &copy);
  return WEFT_OK;
}

weft_status cpu_engram_rows(weft_device *device, const weft_engram_rows_args *args) {
  return ref_engram_rows(device, args); /* some numbers of a row */
}

weft_status cpu_engram_add(weft_device *device, const weft_engram_add_args *args) {
  weft_engram_add_args copy = *args;
  cpu_for_rows(device, args->n_rows, 5ull * args->n_streams * args->n_cols, run_add, &copy);
  return WEFT_OK;
}

weft_status cpu_latent_rows(weft_device *device, const weft_latent_rows_args *args) {
  weft_latent_rows_args copy = *args;
  cpu_for_rows(device, args->n_rows, 2ull * args->n_heads * args->near.width, run_rows, &copy);
  return WEFT_OK;
}

weft_status cpu_latent_press(weft_device *device, const weft_latent_press_args *args) {
  weft_latent_press_args copy = *args;
  if (args->pending.base != NULL) cpu_for_rows(device, args->n_rows, args->pending.width, run_store, &copy);
  cpu_for_rows(device, args->n_rows, 20ull * args->out.width, run_blocks, &copy);
  return WEFT_OK;
}

typedef struct choose_run {
  const weft_latent_choose_args *args;
  ref_latent_score score;
} choose_run;

static void run_choose(void *arg, uint32_t first, uint32_t end) {
  const choose_run *run = arg;
  ref_latent_choose_rows(run->args, run->score, first, end);
}

weft_status cpu_latent_choose(weft_device *device, const weft_latent_choose_args *args) {
  choose_run run = {args, CPU_CODE_OF(cpu_get_isa(device), cpu_latent)->score};
  cpu_for_rows(device, args->n_rows, 10ull * args->n_heads * args->index.width, run_choose, &run);
  return WEFT_OK;
}

typedef struct attend_run {
  const weft_latent_attend_args *args;
  const cpu_latent_code *code;
  uint32_t n_groups; /* of heads */
} attend_run;

static void run_attend(void *arg, uint32_t first, uint32_t end) {
  const attend_run *run = arg;
  for (uint32_t i = first; i < end; i++)
    run->code->attend(run->args, i / run->n_groups, i % run->n_groups * CPU_LATENT_HEADS);
}

weft_status cpu_latent_attend(weft_device *device, const weft_latent_attend_args *args) {
  const uint32_t n_groups = (args->n_heads + CPU_LATENT_HEADS - 1) / CPU_LATENT_HEADS;
  attend_run run = {args, CPU_CODE_OF(cpu_get_isa(device), cpu_latent), n_groups};
  cpu_for_rows(device, args->n_rows * n_groups, 100ull * args->near.width, run_attend, &run);
  return WEFT_OK;
}

typedef struct heads_run {
  const weft_latent_heads_args *args;
  const cpu_latent_code *code;
} heads_run;

/* Rows of a head follow one another, so that its matrix is read from near. */
static void run_heads(void *arg, uint32_t first, uint32_t end) {
  const heads_run *run = arg;
  const uint32_t n_rows = run->args->n_rows;
  for (uint32_t i = first; i < end; i++) run->code->multiply(run->args, i % n_rows, i / n_rows);
}

weft_status cpu_latent_heads(weft_device *device, const weft_latent_heads_args *args) {
  heads_run run = {args, CPU_CODE_OF(cpu_get_isa(device), cpu_latent)};
  cpu_for_rows(device, args->n_rows * args->n_heads, (uint64_t)args->n_out * args->n_in / 4, run_heads, &run);
  return WEFT_OK;
}
