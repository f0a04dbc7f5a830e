/* SPDX-License-Identifier: MIT */
/* Hyper-connections and attention over latent rows: ref's own functions of rows, shared out to the threads. */
#include "kernels/cpu/rows.h"
#include "kernels/ref/ref.h"

#define RUN_ROWS(name, op)                                    \
  static void name(void *arg, uint32_t first, uint32_t end) { \
    op((const void *)arg, first, end);                        \
  }
RUN_ROWS(run_mix, ref_mix_rows)
RUN_ROWS(run_spread, ref_spread_rows)
RUN_ROWS(run_rows, ref_latent_rows_range)
RUN_ROWS(run_store, ref_latent_press_store)
RUN_ROWS(run_blocks, ref_latent_press_blocks)
RUN_ROWS(run_choose, ref_latent_choose_rows)
RUN_ROWS(run_attend, ref_latent_attend_heads)

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

weft_status cpu_latent_rows(weft_device *device, const weft_latent_rows_args *args) {
  weft_latent_rows_args copy = *args;
  cpu_for_rows(device, args->n_rows, 2ull * args->n_heads * args->near.width, run_rows, &copy);
  return WEFT_OK;
}

weft_status cpu_latent_press(weft_device *device, const weft_latent_press_args *args) {
  weft_latent_press_args copy = *args;
  cpu_for_rows(device, args->n_rows, args->pending.width, run_store, &copy);
  cpu_for_rows(device, args->n_rows, 20ull * args->out.width, run_blocks, &copy);
  return WEFT_OK;
}

weft_status cpu_latent_choose(weft_device *device, const weft_latent_choose_args *args) {
  weft_latent_choose_args copy = *args;
  cpu_for_rows(device, args->n_rows, 100ull * args->n_heads * args->index.width, run_choose, &copy);
  return WEFT_OK;
}

weft_status cpu_latent_attend(weft_device *device, const weft_latent_attend_args *args) {
  weft_latent_attend_args copy = *args;
  cpu_for_rows(device, args->n_rows * args->n_heads, 100ull * args->near.width, run_attend, &copy);
  return WEFT_OK;
}
