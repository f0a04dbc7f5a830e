/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/rows.h"
#include "kernels/parts.h"

typedef struct embed_run {
  const weft_embed_args *args;
  const cpu_rows *rows;
} embed_run;

static void embed_rows(void *arg, uint32_t first, uint32_t end) {
  const embed_run *run = arg;
  const weft_embed_args *args = run->args;
  for (uint64_t r = first; r < end; r++) {
    float *y = args->y + r * args->y_stride;
    cpu_weight_row(args->weight, 0, (uint32_t)args->tokens[r], y);
    run->rows->scale(y, args->scale, args->weight->n_in);
  }
}

weft_status cpu_embed(weft_device *device, const weft_embed_args *args) {
  for (uint32_t r = 0; r < args->n_rows; r++) {
    if (args->tokens[r] < 0 || (uint32_t)args->tokens[r] >= args->weight->n_out) {
      return parts_refuse_row("embed", r, "has a token that the weight has no row for");
    }
  }
  embed_run run = {.args = args, .rows = cpu_rows_of(device)};
  cpu_for_rows(device, args->n_rows, args->weight->n_in, embed_rows, &run);
  return WEFT_OK;
}
