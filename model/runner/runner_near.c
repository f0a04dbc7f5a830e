/* SPDX-License-Identifier: MIT */
/* Pages for the drafts of a layer with latent rows (runner_ways.h, runner_near).
 *
 * Law: before the first draft of a batch the blocks of the pool that its rows will see are copied to pages of each
 * request's own, at the same places of their blocks; drafts read and write these pages alone. */
#include "base/memory.h"
#include "model/runner/runner_ways.h"

weft_status runner_near_open(device_runner *r, runner_assist *a) {
  const weft_kv_layout *layout = r->config.layout;
  weft_status status = WEFT_OK;
  runner_near *near = a->near = weft_alloc(1, sizeof *near);
  if (near == NULL) return WEFT_E_NO_MEMORY;
  near->set = a->model->first_set[0];
  near->group = layout->place[near->set].group;
  near->layout = *layout;
  near->layout.n_groups = 1;
  near->layout.group[0] = layout->group[near->group];
  weft_kv_place *place = &near->layout.place[near->set];
  place->group = 0;
  place->part = 0;
  place->offset = 0;
  const uint32_t block = near->layout.group[0].block_tokens, n_seen = a->model->hyper.window[0] + RUNNER_DRAFTS_MAX;
  near->n_blocks = n_seen / block + 2;
  near->first = r->config.seq_tokens_max / block + 1;
  near->store = (weft_kv_store){.n_parts = 1, .page_bytes = place->bytes, .n_pages = a->rows_max * near->n_blocks};
  near->store.part[0] = (weft_kv_part){.device = r->first, .page_bytes = place->bytes};
  near->store.part[0].base = runner_take_draft_memory(r, a, near->store.n_pages, place->bytes, &status);
  near->table = weft_alloc((uint64_t)near->first + near->store.n_pages, sizeof *near->table);
  near->table_at = weft_alloc(a->rows_max, sizeof *near->table_at);
  if (status != WEFT_OK) return status;
  if (near->table == NULL || near->table_at == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < near->store.n_pages; i++) near->table[near->first + i] = i;
  return WEFT_OK;
}

void runner_near_close(runner_near *near) {
  if (near == NULL) return;
  weft_free(near->table);
  weft_free(near->table_at);
  weft_free(near);
}

/* The first block that row 0 of request i sees is the first of its pages. */
weft_status runner_near_copy(device_runner *r, const weft_batch *batch) {
  const runner_near *near = r->assist->near;
  const weft_latent_view from = weft_kv_store_rows(r->config.store, r->config.layout, near->set, 0);
  const uint64_t block_bytes = near->store.page_bytes;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < batch->n_rows; i++) {
    const uint32_t n = (uint32_t)batch->position[i], block = from.block_tokens;
    const uint32_t first = weft_layer_group_first(&near->layout.group[0], n) / block;
    const uint32_t *page = batch->table + batch->table_at[i * batch->n_groups + near->group];
    uint8_t *to = near->store.part[0].base;
    to += (uint64_t)i * near->n_blocks * block_bytes;
    near->table_at[i] = near->first + i * near->n_blocks - first;
    for (uint32_t b = first; b * block < n && status == WEFT_OK; b++)
      status = weft_device_copy(r->first, to + (b - first) * block_bytes,
                                (const uint8_t *)from.base + page[b] * from.page_bytes + from.offset, block_bytes);
  }
  return status;
}

void runner_near_lay_out(runner_assist *a, const weft_batch *batch, uint32_t k, weft_batch *own) {
  const uint32_t n = batch->n_rows;
  *own = (weft_batch){.n_rows = n,
                      .n_stored = n,
                      .n_encoder = n,
                      .n_segments = n,
                      .n_groups = 1,
                      .token = a->position, /* nobody reads it: embeddings lie in the pairs */
                      .position = a->position,
                      .segment = a->segment,
                      .kv_slot = {a->no_slot},
                      .table = a->near->table,
                      .table_at = a->near->table_at};
  for (uint32_t i = 0; i < n; i++) {
    a->row[i] = i;
    a->position[i] = batch->position[i] + (int32_t)k;
    a->segment[i] = (weft_segment){.slot = batch->segment[i].slot,
                                   .first_row = i,
                                   .n_rows = 1,
                                   .kv_len = (uint32_t)batch->position[i] + k,
                                   .n_outputs = 1};
  }
}
