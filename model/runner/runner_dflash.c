/* SPDX-License-Identifier: MIT */
/* Drafts of a drafter that fills a block in one pass (model/dflash.h).
 *
 * Law: behind every step of the model the drafter makes its keys of all rows of the step, from what went into the
 * named layers there; those of void rows are written again before anything reads them, as the model's are. Drafts
 * are one pass over the blocks of all requests, whose rows are then read one draft after another. */
#include "model/dflash.h"
#include "model/runner/runner_ways.h"

static uint32_t count_blocks(const device_runner *r, uint32_t n_drafts) {
  const runner_assist *a = r->assist;
  const uint32_t block = a->model->hyper.block.n, n = a->model->limits.canvas_rows_max / block;
  if (n_drafts + a->model->hyper.block.first > block) return 0;
  return n < a->rows_max ? n : a->rows_max;
}

/* The rows of the batch as it was given; what fills it up writes what is written already. */
static weft_status make_keys(device_runner *r, const runner_flight *f, const runner_step *step) {
  runner_assist *a = r->assist;
  weft_batch batch = *step->batch;
  (void)f;
  batch.n_rows -= step->n_filled;
  batch.n_stored = batch.n_encoder = batch.n_rows;
  batch.n_segments -= step->n_filled; /* they are the last ones: all rows store in the pool */
  batch.n_states = 0;
  const dflash_args args = {.model = a->model,
                            .batch = &batch,
                            .kv = r->config.store,
                            .layout = r->config.layout,
                            .features = r->config.model->features.rows};
  return dflash_store(&args);
}

static weft_status take_nothing(device_runner *r, const runner_flight *f, uint32_t segment, uint64_t row) {
  (void)r;
  (void)f;
  (void)segment;
  (void)row;
  return WEFT_OK;
}

/* Its keys come with the pages of the text, wherever these come from. */
static bool knows_all(const runner_slot *s) {
  (void)s;
  return true;
}

/* Block i: the last token of request i, then marks. */
static void lay_blocks(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  const model_block *block = &a->model->hyper.block;
  for (uint32_t i = 0; i < batch->n_rows; i++) {
    for (uint32_t k = 0; k < block->n; k++) {
      a->marks[i * block->n + k] = k == 0 ? batch->token[i] : block->mask;
      a->position[i * block->n + k] = batch->position[i] + (int32_t)k;
    }
    for (uint32_t k = 0; k < n_drafts; k++) a->row[i * n_drafts + k] = i * block->n + block->first + k;
    a->segment[i] = (weft_segment){.slot = batch->segment[i].slot,
                                   .first_row = i * block->n,
                                   .n_rows = block->n,
                                   .kv_len = (uint32_t)batch->position[i],
                                   .mask = WEFT_MASK_WHOLE,
                                   .stores = WEFT_STORES_SCRATCH,
                                   .first_output = block->first,
                                   .n_outputs = n_drafts};
  }
}

static weft_status compute_blocks(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  weft_batch own = *batch;
  lay_blocks(r, batch, n_drafts);
  own.n_rows = own.n_encoder = batch->n_rows * a->model->hyper.block.n;
  own.n_stored = 0;
  own.token = a->marks;
  own.position = a->position;
  own.segment = a->segment;
  for (uint32_t g = 0; g < batch->n_groups; g++) own.kv_slot[g] = batch->kv_slot[g] == NULL ? NULL : a->no_slot;
  const dflash_args args = {.model = a->model,
                            .batch = &own,
                            .kv = r->config.store,
                            .layout = r->config.layout,
                            .output_row = a->row,
                            .n_output = batch->n_rows * n_drafts,
                            .hidden = a->pair};
  return dflash_block(&args);
}

static weft_status begin_nothing(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  (void)r;
  (void)batch;
  (void)n_drafts;
  return WEFT_OK;
}

/* The first draft is made with the whole block. */
static weft_status copy_draft(device_runner *r, const weft_batch *batch, uint32_t k, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  const uint64_t n = a->n_hidden;
  const weft_status status = k == 0 ? compute_blocks(r, batch, n_drafts) : WEFT_OK;
  const weft_norm_args copy = {.x = a->pair + k * n,
                               .y = a->hidden,
                               .n_rows = batch->n_rows,
                               .n_cols = (uint32_t)n,
                               .plain = true,
                               .x_stride = n_drafts * n,
                               .y_stride = n};
  return status == WEFT_OK ? weft_norm(r->first, &copy) : status;
}

const runner_way runner_way_dflash = {.rows_at_once = count_blocks,
                                      .after_step = make_keys,
                                      .take = take_nothing,
                                      .knows = knows_all,
                                      .begin = begin_nothing,
                                      .draft = copy_draft};
