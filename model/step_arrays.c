/* SPDX-License-Identifier: MIT */
#include "model/step_arrays.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "kernels/ops.h"

enum {
  ENTRIES_PER_TABLE = 64, /* taken at open; longer tables make the memory grow once */
  OLD_SEGMENTS_MAX = 128  /* of a batch: each is compared with all others */
};

static uint64_t row_bytes(uint32_t n_groups) {
  return 3 * sizeof(int32_t) + n_groups * sizeof(int64_t);
}

static weft_status take_memory(step_arrays *a, uint64_t n_bytes) {
  weft_free(a->staging);
  weft_device_free(a->placer, a->memory);
  a->memory = NULL;
  a->n_bytes = 0;
  a->staging = weft_alloc_aligned((size_t)n_bytes, 64);
  if (a->staging == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = weft_device_alloc(a->placer, n_bytes, &a->memory);
  if (status == WEFT_OK) a->n_bytes = n_bytes;
  return status;
}

uint64_t step_arrays_bytes(const weft_model_limits *limits) {
  uint64_t n_tables = (uint64_t)limits->segments_max * WEFT_GROUPS_MAX, n_entries = limits->table_entries_max;
  if (n_entries == 0) n_entries = n_tables * ENTRIES_PER_TABLE;
  return limits->rows_max * row_bytes(WEFT_GROUPS_MAX) + n_entries * sizeof(uint32_t);
}

weft_status step_arrays_open(step_arrays *a, weft_device *device, const weft_model_limits *limits) {
  *a = (step_arrays){.device = device,
                     .placer = limits->placer != NULL ? limits->placer : device,
                     .in_place = weft_device_get_info(device)->host_memory,
                     .grows = limits->table_entries_max == 0};
  if (a->in_place) return WEFT_OK;
  uint64_t n_tables = (uint64_t)limits->segments_max * WEFT_GROUPS_MAX;
  a->table_at = weft_alloc(n_tables, sizeof *a->table_at);
  a->n_old = weft_alloc(n_tables, sizeof *a->n_old);
  if (a->table_at == NULL || a->n_old == NULL) return WEFT_E_NO_MEMORY;
  return take_memory(a, step_arrays_bytes(limits));
}

void step_arrays_close(step_arrays *a) {
  weft_free(a->staging);
  weft_free(a->table_at);
  weft_free(a->n_old);
  if (a->placer != NULL) weft_device_free(a->placer, a->memory);
  *a = (step_arrays){0};
}

/* Entries [*first, *end) of segment s's table that some row of it can see or writes; of a group of states all pages of
 * the one that it begins with. */
static void entries_of(const weft_batch *batch, const weft_kv_layout *layout, uint32_t s, uint32_t g, uint32_t *first,
                       uint32_t *end) {
  const weft_segment *segment = &batch->segment[s];
  const weft_layer_group *group = &layout->group[g];
  if (group->state_pages > 0) {
    *first = 0;
    *end = batch->table_at[s * batch->n_groups + g] == WEFT_STATE_NONE ? 0 : group->state_pages;
    return;
  }
  uint32_t n = segment->kv_len + (segment->stores == WEFT_STORES_POOL ? segment->n_rows : 0),
           block = group->block_tokens;
  uint32_t oldest = weft_layer_group_first(group, segment->kv_len);
  *end = n / block + (n % block != 0 ? 1 : 0);
  *first = oldest / block < *end ? oldest / block : *end;
}

static uint64_t count_bytes(const weft_batch *batch, const weft_kv_layout *layout) {
  uint64_t n_entries = 0;
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    for (uint32_t g = 0; g < batch->n_groups; g++) {
      uint32_t first, end;
      entries_of(batch, layout, s, g, &first, &end);
      n_entries += end - first;
    }
  }
  for (uint32_t i = 0; i < batch->n_states; i++) n_entries += layout->group[batch->state[i].group].state_pages;
  return batch->n_rows * row_bytes(batch->n_groups) + n_entries * sizeof(uint32_t);
}

static uint8_t *pack_words(step_arrays *a, const int32_t *words, uint64_t n, uint64_t *at) {
  uint8_t *on_device = a->memory;
  on_device += *at;
  memcpy(a->staging + *at, words, n * sizeof *words);
  *at += n * sizeof *words;
  return on_device;
}

/* Finds for each segment of a group how many positions are older than the step. A page holds the same positions in
 * every table that has it. So of the pages that another segment stores into, only the one at the same place of a
 * segment's table matters. */
static void find_old(step_arrays *a, const weft_batch *batch, const weft_kv_layout *layout, uint32_t g) {
  uint32_t n_groups = batch->n_groups, block = layout->group[g].block_tokens;
  bool is_state = layout->group[g].state_pages > 0, is_known = !is_state && batch->n_segments <= OLD_SEGMENTS_MAX;
  for (uint32_t s = 0; s < batch->n_segments; s++) a->n_old[s * n_groups + g] = is_known ? batch->segment[s].kv_len : 0;
  for (uint32_t other = 0; is_known && other < batch->n_segments; other++) {
    const weft_segment *from = &batch->segment[other];
    const uint32_t *pages = batch->table + batch->table_at[other * n_groups + g];
    if (from->stores != WEFT_STORES_POOL) continue;
    for (uint32_t at = from->kv_len; at < from->kv_len + from->n_rows; at = (at / block + 1) * block) {
      uint32_t place = at / block, page = pages[place];
      for (uint32_t s = 0; s < batch->n_segments; s++) {
        uint32_t *n_old = &a->n_old[s * n_groups + g];
        if (s != other && at < *n_old && batch->table[batch->table_at[s * n_groups + g] + place] == page) *n_old = at;
      }
    }
  }
}

/* staging: [group][row] slots, then tokens, positions, cells, tables. */
static void pack_arrays(step_arrays *a, const weft_forward_args *args) {
  const weft_batch *batch = args->batch;
  const weft_kv_layout *layout = args->layout;
  uint64_t at = 0, n = batch->n_rows;
  uint8_t *on_device = a->memory;
  for (uint32_t g = 0; g < batch->n_groups; g++, at += n * sizeof(int64_t)) {
    if (layout->group[g].state_pages > 0)
      memset(a->staging + at, 0xFF, n * sizeof(int64_t)); /* no op reads it */
    else
      memcpy(a->staging + at, batch->kv_slot[g], n * sizeof(int64_t));
    a->kv_slot[g] = (const int64_t *)(const void *)(on_device + at);
  }
  a->written = (int32_t *)(void *)pack_words(a, args->token, n, &at);
  a->token = a->written;
  a->position = (const int32_t *)(const void *)pack_words(a, batch->position, n, &at);
  if (args->cell_of != NULL) a->cell_of = (const int32_t *)(const void *)pack_words(a, args->cell_of, n, &at);
  a->table = (const uint32_t *)(const void *)(on_device + at);
  uint64_t entry = 0;
  for (uint32_t g = 0; g < batch->n_groups; g++) find_old(a, batch, layout, g);
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    for (uint32_t g = 0; g < batch->n_groups; g++) {
      uint32_t first, end;
      entries_of(batch, layout, s, g, &first, &end);
      a->table_at[s * batch->n_groups + g] = (int64_t)entry - first;
      if (first == end) continue;
      const uint32_t *table = batch->table + batch->table_at[s * batch->n_groups + g];
      memcpy(a->staging + at + entry * sizeof *table, table + first, (end - first) * sizeof *table);
      entry += end - first;
    }
  }
  a->states_at = (int64_t)entry;
  for (uint32_t i = 0; i < batch->n_states; i++) {
    uint32_t n_pages = layout->group[batch->state[i].group].state_pages;
    memcpy(a->staging + at + entry * sizeof(uint32_t), batch->table + batch->state[i].table_at,
           n_pages * sizeof(uint32_t));
    entry += n_pages;
  }
}

weft_status step_arrays_fill(step_arrays *a, const weft_forward_args *args, bool wants_tokens) {
  const weft_batch *batch = args->batch;
  a->batch = batch;
  for (uint32_t g = 0; g < batch->n_groups; g++) a->state_pages[g] = args->layout->group[g].state_pages;
  if (a->in_place) {
    a->token = args->token;
    a->position = batch->position;
    for (uint32_t g = 0; g < batch->n_groups; g++) a->kv_slot[g] = batch->kv_slot[g];
    return WEFT_OK;
  }
  if (a->again) return WEFT_OK;
  uint64_t n_bytes = count_bytes(batch, args->layout);
  if (n_bytes > a->n_bytes) {
    WEFT_CHECK(a->grows);
    weft_status status = take_memory(a, 2 * n_bytes);
    if (status != WEFT_OK) return status;
  }
  pack_arrays(a, args);
  weft_status status = weft_device_upload(a->device, a->memory, a->staging, n_bytes);
  if (status != WEFT_OK || args->cell_of == NULL || !wants_tokens) return status;
  weft_move_args move = {.to = a->written, .from = args->cells, .from_at = a->cell_of, .n_rows = batch->n_rows};
  return weft_move(a->device, &move);
}

const uint32_t *step_arrays_table(const step_arrays *a, uint32_t segment, uint32_t group) {
  uint64_t i = (uint64_t)segment * a->batch->n_groups + group;
  if (a->in_place) return a->batch->table + a->batch->table_at[i];
  return (const uint32_t *)((uintptr_t)a->table + (uintptr_t)(a->table_at[i] * (int64_t)sizeof(uint32_t)));
}

const uint32_t *step_arrays_state(const step_arrays *a, uint32_t segment, uint32_t group) {
  uint64_t i = (uint64_t)segment * a->batch->n_groups + group;
  return a->batch->table_at[i] == WEFT_STATE_NONE ? NULL : step_arrays_table(a, segment, group);
}

const uint32_t *step_arrays_written(const step_arrays *a, uint32_t i) {
  const weft_state_write *state = a->batch->state;
  uint64_t at = (uint64_t)a->states_at;
  if (a->in_place) return a->batch->table + state[i].table_at;
  for (uint32_t before = 0; before < i; before++) at += a->state_pages[state[before].group];
  return a->table + at;
}

uint32_t step_arrays_old(const step_arrays *a, uint32_t segment, uint32_t group) {
  return a->in_place ? 0 : a->n_old[(uint64_t)segment * a->batch->n_groups + group];
}
